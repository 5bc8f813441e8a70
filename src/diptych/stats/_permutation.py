"""Permutation tests of canonical correlations, one after the other."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych._arrays import Array, Floats, count_groups, group_sum, move_like, namespace, to_numpy
from diptych._checks import (
    DataWarning,
    InputError,
    Task,
    check_choice,
    check_count,
    check_number,
    check_seed,
    count,
    order_rows,
)
from diptych._progress import progress_bar
from diptych._threads import map_lapack, multiply, one_blas_thread
from diptych.cca import Engine
from diptych.cca._canonical import forced_ones
from diptych.cca._filters import AnyFilter, Isotropic, Tikhonov
from diptych.stats._chains import (
    STATISTICS,
    TIE,
    Remainder,
    Statistic,
    draw_statistics,
    log_wilks,
    standard_error,
)
from diptych.stats._pairs import (
    EXCHANGES,
    Exchange,
    ExchangeBlocks,
    PreparedPairs,
    count_components,
    make_seed,
    prepare_pairs,
)
from diptych.stats._tables import component_frame, format_components, format_p

Method: TypeAlias = Literal["conditional", "stepwise"]
METHODS: tuple[Method, ...] = ("conditional", "stepwise")

REAL = 0.05
"""A removed component counts as real, not as due to chance, if its corrected p-value is at most this."""


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """p-values of canonical correlations; see ``permutation_test`` and ``permutation_test_views``.

    ``print`` shows a table, ``to_frame`` returns it as a pandas DataFrame, and ``describe`` returns a
    paragraph for a paper.

    Attributes
    ----------
    correlations
        The observed correlations Σ: the singular values of the regularised T, descending. With covariates,
        partial ones; with blocks that are not exchanged, those within blocks. Of a ``PLS``, covariances: the
        singular values of XᵀY / n. Of m views, (λ − 1) / (m − 1).
    p_values
        Of each correlation, with the earlier components removed.
    standard_errors
        Monte Carlo standard error of each p-value: how much it differs between seeds. About 1/√n_permutations
        times √(p(1 − p)) for the first component, and more for later ones, whose permutations are drawn in
        chains.
    p_corrected
        The largest p-value up to each component: take the components in order up to the first one above α.
        What is then guaranteed, and what is not, is in the notes of ``permutation_test``.
    observed
        The statistic of each component: its correlation, or with ``statistic="wilks"`` −Σ log(1 − r²) over
        its correlation r and all later ones.
    null
        Permutations × components: the statistic of what remains, under permutation.
    n_permutations, random_state, method, statistic
        As given.
    n_covariates
        Numbers of covariates of X and of Y that are neither constant nor combinations of others.
    n_pairs, n_features
        Number of pairs (or rows), and of the features of X and of Y (or of all views).
    filters
        The regularisation of X and of Y (or of all views).
    has_blocks
        Whether blocks were given.
    exchange
        As given.
    """

    correlations: Floats
    p_values: Floats
    standard_errors: Floats
    p_corrected: Floats
    observed: Floats
    null: Floats
    n_permutations: int
    random_state: int | None
    method: Method
    statistic: Statistic
    n_covariates: tuple[int, int]
    n_pairs: int
    n_features: tuple[int, ...]
    filters: tuple[AnyFilter, ...]
    has_blocks: bool
    exchange: Exchange

    def __str__(self) -> str:
        columns = self._columns()
        cells: dict[str, Iterable[Any]] = {
            self._measure: self.correlations,
            **({} if self.statistic == "roy" else {"−Σ log(1 − r²)": self.observed}),
            "null mean": columns["null_mean"],
            "null 95 %": columns["null_95"],
            "p": map(format_p, self.p_values),
            "std. error": map(format_p, self.standard_errors),
            "p corrected": map(format_p, self.p_corrected),
        }
        removed = _describe_removed(self.n_covariates)
        return f"Permutation test, {self.n_permutations:,} permutations{removed}\n{format_components(cells)}"

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each component."""
        return component_frame(self._columns())

    def describe(self, alpha: float = 0.05) -> str:
        """Return what was done and found as a paragraph for a paper; ``alpha`` is the level of significance.

        >>> from sklearn.datasets import load_linnerud
        >>> from diptych.stats import permutation_test
        >>> exercises, physiology = load_linnerud(return_X_y=True)
        >>> print(permutation_test((0, 0), physiology, exercises).describe()[:85])
        Canonical correlations of two views (3 and 3 features) of 20 pairs were computed with
        """
        alpha = check_number(alpha, "alpha")
        if not 0.0 < alpha < 1.0:
            raise InputError(f"alpha={alpha} is not between 0 and 1; give for example 0.05.")
        several = len(self.n_features) > 2
        *sizes, last = (f"{size:,}" for size in self.n_features)
        sentences = [
            f"Canonical correlations of {len(self.n_features) if several else 'two'} views "
            f"({', '.join(sizes)} and {last} features) of "
            f"{count(self.n_pairs, 'row' if several else 'pair')} were computed "
            f"{_describe_filters(self.filters)}."
        ]
        if any(self.n_covariates):
            if not all(self.n_covariates):
                view = "X" if self.n_covariates[0] else "Y"
                sentences.append(
                    f"They are part correlations: covariates were regressed out of {view} alone."
                )
            sentences.append(
                "Both views were projected onto the dimensions that an intercept and "
                f"{count(max(self.n_covariates), 'covariate')} leave, and permuted there (Theil, 1965; Huh "
                "and Jhun, 2001; Winkler et al., 2020)."
            )
        is_within = self.has_blocks and self.exchange != "blocks"
        within = " within blocks, whose means were subtracted from both views" if is_within else ""
        noun = {
            "rows": "rows of every view but one" if several else "pairs",
            "shift": "pairs by circular shifts",
            "blocks": "whole blocks of pairs",
        }
        statistic = _STATISTICS["views" if several else self.statistic]
        sentences.append(
            f"The correlations were tested by {count(self.n_permutations, 'permutation')} of the "
            f"{noun[self.exchange]}{within}, with {statistic} as statistic."
        )
        if len(self.p_values) > 1:
            sentences.append(_DESCRIPTIONS[self.method])
        sentences.append(
            "The p-value is the share of permutations, the observed one included, whose statistic is at "
            "least as large; the corrected p-value of a component is the largest up to it."
        )
        n_found = int(np.count_nonzero(self.p_corrected <= alpha))
        tested = count(len(self.p_values), "component")
        results = "; ".join(
            f"component {at + 1}: {self.correlations[at]:.3f}, corrected p = {self._format_p(at)}"
            for at in range(max(1, n_found))
        )
        verb = "was" if n_found == 1 else "were"
        error = np.max(self.standard_errors[: max(1, n_found)])
        sentences.append(
            f"Of {tested}, {n_found or 'none'} {verb} significant at {100 * alpha:g} % ({results}; "
            f"Monte Carlo standard error at most {error:.4f})."
        )
        text = " ".join(sentences)
        if self._measure == "covariance":
            text = text.replace("Canonical correlations", "Covariances of latent variables (PLS)")
            text = text.replace(" (Roy's root)", "").replace("correlation", "covariance")
        return text

    @property
    def _measure(self) -> str:
        return "covariance" if isinstance(self.filters[0], Isotropic) else "correlation"

    def _format_p(self, at: int) -> str:
        """Return a corrected p-value with as many decimals as the permutations resolve."""
        return f"{self.p_corrected[at]:.{max(3, len(str(self.n_permutations)))}f}"

    def _columns(self) -> dict[str, Floats]:
        return {
            self._measure: self.correlations,
            **({} if self.statistic == "roy" else {"statistic": self.observed}),
            "null_mean": self.null.mean(axis=0),
            "null_95": np.quantile(self.null, 0.95, axis=0),
            "p_value": self.p_values,
            "standard_error": self.standard_errors,
            "p_corrected": self.p_corrected,
        }


_STATISTICS = {
    "roy": "the largest correlation (Roy's root)",
    "wilks": "the sum of −log(1 − r²) over the tested correlation and all later ones (Wilks' Λ)",
    "views": "the largest eigenvalue λ of generalised CCA",
}

_DESCRIPTIONS = {
    "conditional": (
        "Each later component was tested with the earlier ones removed, given their correlations: what "
        "remains of both views was split by the intercept and the removed variates of both, the parts along "
        "these were held fixed, and the others were permuted in an orthonormal basis (Theil, 1965). "
        "Permutations had weights from the joint density of the correlations given the removed ones (Glynn "
        "and Muirhead, 1978), where a removed component counts as real if its corrected p-value is at most "
        f"{REAL}, and were drawn by Metropolis chains around the observed one (Besag and Clifford, 1989)."
    ),
    "stepwise": (
        "Each later component was tested with the earlier canonical variates left out of both views (Winkler "
        "et al., 2020)."
    ),
}


def _describe_filters(filters: Sequence[AnyFilter]) -> str:
    if isinstance(filters[0], Isotropic):
        return "as the singular values of their cross-covariance matrix"
    if all(filter == Tikhonov(0.0) for filter in filters):
        return "without regularisation"
    names = ["X", "Y"] if len(filters) == 2 else [f"view {at}" for at in range(1, len(filters) + 1)]
    listed = ", ".join(f"{filter} for {name}" for filter, name in zip(filters, names, strict=True))
    return f"with regularisation ({listed})"


def permutation_test(
    model: Any,
    X: Any,
    y: Any,
    pairing: Any = None,
    *,
    preprocess: Any = None,
    covariates: Any = None,
    n_permutations: int = 1000,
    method: Method | None = None,
    statistic: Statistic = "roy",
    random_state: int | None = 0,
    blocks: Any = None,
    exchange: Exchange = "rows",
    n_components: int | None = None,
    task: Task = "search",
    engine: Engine | None = None,
    device: str | None = None,
    verbose: bool | None = None,
) -> PermutationTest:
    r"""Test whether each canonical correlation is larger than chance makes it, by permuting the pairs.

    The regularisation stays that of the model. It does not depend on who is paired with whom, so a
    permutation costs one product and its singular values, not a fit. The first p-value tests whether the
    views are related at all, the second whether they are beyond the first component, and so on.

    Parameters
    ----------
    model
        A fitted ``CCA``, ``PLS`` or ``AWCCA``, or ``(γ_x, γ_y)`` as ``AWCCA(params=…)`` takes them. A γ that
        was selected on the same pairs has seen the pairing, which the test does not account for; one that was
        given, or comes from ``selection="ledoit-wolf"``, has not. For a ``PLS`` the statistic is the largest
        singular value of XᵀY / n, as in McIntosh and Lobaugh (2004).
    X, y, pairing
        The pairs, as in ``AWCCA.fit``. A row of X keeps its rows of Y together, and changes places only with
        rows of X that have as many.
    preprocess
        A transformer of scikit-learn for both views, such as ``StandardScaler()`` or a pipeline that starts
        with an imputer, or a pair ``(for_x, for_y)``, with None for a view that stays as it is. It is
        fitted once: what it learns from one view does not depend on who is paired with whom, so the test
        stays as valid. A fitted model is one of the transformed views.
    covariates
        What both views may depend on, such as age, sex or motion: rows of X × covariates, numbers. The test
        is then of the partial correlations, of what a regression on the covariates leaves of both views (and
        of each row's mean, where it has several rows of Y). Or a pair, as in ``AWCCA.fit``, with None for
        one view: the correlations are then part correlations. Needed if the model was fitted with covariates.
        Give the views as they are: see Notes. Not together with ``blocks``.
    n_permutations
        Number of permutations; the smallest possible p-value is 1 / (n_permutations + 1).
    method
        How components after the first are tested. ``"conditional"``: given the correlations of the removed
        ones, as the notes say. ``"stepwise"``: as Winkler et al. (2020) do, where rows of what remains are
        permuted as if they were free; their statistic is ``"wilks"``. With many features that rejects
        too often beside a real component, and too rarely beside one that is due to chance (with ``"wilks"``
        too often in both cases). None: ``"conditional"`` where rows are exchanged, otherwise ``"stepwise"``.
    statistic
        Of what remains: ``"roy"``, the largest correlation, finds one strong component; ``"wilks"``,
        −Σ log(1 − r²) over all correlations r, several weak ones. Choose before you look.
    random_state
        Seeds the permutations, which are the same whatever the engine.
    blocks
        One label per row of X, such as the subject: rows change places only within their block. For repeated
        measures. What is constant in a block can then not be tested, and is taken out: the block means are
        subtracted from both views (unless whole blocks are exchanged), and the correlations are those within
        blocks.
    exchange
        What changes places. ``"rows"``: any rows, or those of a block, which have to be independent.
        ``"shift"``: rows of X, in the order of time, move along Y in a circle, in each block by a number of
        their own. That keeps the serial dependence within each view: for stationary time series that are long
        beside their dependence. n rows have n shifts, so no p-value is much below 1/n. ``"blocks"``: whole
        blocks change places with others of the same size, and rows keep their order inside: for series in
        pieces that do not depend on each other, such as scans. The last two are not supported together with
        ``covariates``.
    n_components
        The first components; None: at most 10.
    task
        Whose model of an ``AWCCA``: each task has its own regularisation, unless ``params`` was one pair. A
        ``CCA`` or ``PLS`` has one model.
    engine, device, verbose
        As in ``AWCCA``.

    Notes
    -----
    Let A and B be the whitened views over pairs, so that :math:`T = A^\top B = P_x \Sigma P_y^\top`, and
    rotate them to :math:`A P_x` and :math:`B P_y`. The earlier components are removed by leaving out their
    columns: what remains of T has the later correlations, and no others (Winkler et al., 2020). The statistic
    is the largest of them (Roy), or :math:`-\sum \log(1 - σ_i^2)` (Wilks). For the first component, rows of
    A are permuted: the test is exact.

    What remains of A is orthogonal to the removed variates v of Y, and what remains of B to those of X, u,
    with any regularisation. To permute rows as if they were free would spread them over dimensions that are
    fixed, and reject too often. So the parts along 1, u and v stay as they are, and the other parts are
    permuted in an orthonormal basis whose rows stand for rows of the data (Theil, 1965).

    The removed components were the largest, and what remains is smaller than that: permutations whose largest
    correlation exceeds the last removed one are impossible, and the others are not equally likely. The joint
    density of the squared correlations of unrelated views contains the factors :math:`σ_i^2 - λ_j`; hence,
    given the removed :math:`σ_i`, a permutation whose squared correlations are :math:`λ_j` has the weight
    :math:`\prod_i \prod_j (σ_i^2 - λ_j)`. For a component that is real, the power of its factors is ½ (Glynn
    and Muirhead, 1978); one whose corrected p-value is at most 0.05 counts as real here. If the removed ones
    are far above, the weights are equal. Without weights, the p-values of later components are too large if
    the earlier ones are due to chance.

    Permutations are drawn with these weights by Metropolis steps, in chains around the observed one, which
    keeps p-values valid however slowly the chains mix and whatever the statistic (Besag and Clifford, 1989).
    Neighbours in a chain are alike, so these p-values differ more between seeds than those of as many
    independent permutations: ``standard_errors`` says how much, and more permutations make it less.

    **What is guaranteed**: the first p-value is right for any distribution, any number of features and any
    regularisation that has not seen the pairing, if unrelated rows that change places are independent and
    alike in distribution (within their block, apart from the block's mean). So if nothing at all is related,
    any corrected p-value is α or less with a probability of at most α. With covariates, this holds for
    Gaussian errors. **What is not guaranteed**: p-values of later components. Their weights are exact for
    unrelated Gaussian views without regularisation, and the rest of a view is permuted as if its rows were
    alike in scale. With heavy tails, small blocks or rows of unequal scale they may be too small, and beside
    a real component so may the corrected ones. With ``method="stepwise"``, shifts or whole blocks there is
    less to rely on still. ``benchmarks/permutation.py calibrate`` measures how p-values are distributed, in
    these cases too.

    An intercept and c covariates leave n − 1 − c dimensions. Residuals of both views are orthogonal to the
    covariates, and permuted residuals are not: views from which covariates were regressed out beforehand are
    not exchangeable, and their test rejects far too often. With ``covariates``, also the first test permutes
    both views in an orthonormal basis of those n − 1 − c dimensions (Theil, 1965; Huh and Jhun, 2001; Winkler
    et al., 2020), and nothing is centred again. That is exact for Gaussian errors with any covariates, and
    approximate for others. If one view alone has covariates, what is left of it is in those dimensions; the
    other one is whitened as it is, and both are permuted there (part CCA).

    References
    ----------
    Theil (1965), "The analysis of disturbances in regression analysis", Journal of the American Statistical
    Association 60. Huh and Jhun (2001), "Random permutation testing in multiple linear regression",
    Communications in Statistics 30. Winkler, Renaud, Smith and Nichols (2020), "Permutation inference for
    canonical correlation analysis", NeuroImage 220. Glynn and Muirhead (1978), "Inference in canonical
    correlation analysis", Journal of Multivariate Analysis 8. Besag and Clifford (1989), "Generalized Monte
    Carlo significance tests", Biometrika 76.

    Examples
    --------
    >>> from sklearn.datasets import load_linnerud
    >>> from diptych.stats import permutation_test
    >>> exercises, physiology = load_linnerud(return_X_y=True)
    >>> test = permutation_test((0, 0), physiology, exercises)
    >>> test.correlations.round(2)
    array([0.8 , 0.2 , 0.07])
    >>> bool(0.03 < test.p_values[0] < 0.1)
    True
    """
    check_count(n_permutations, "n_permutations")
    exchange = check_exchange(exchange, method, blocks, covariates)
    method = method or ("conditional" if exchange == "rows" else "stepwise")
    check_choice(method, METHODS, "method")
    check_choice(statistic, STATISTICS, "statistic")
    check_seed(random_state)
    if covariates is not None and blocks is not None:
        raise InputError(
            "covariates and blocks are not supported together: rows that covariates are projected out of no "
            "longer belong to one block; give one of them."
        )
    with one_blas_thread(), progress_bar("permutation test", verbose):
        blocks = order_rows(blocks, X, "blocks", "X")
        within = blocks if exchange != "blocks" else None
        pairs = prepare_pairs(model, X, y, pairing, task, device, covariates, within, preprocess)
        if all(pairs.n_covariates) and pairs.scores[0] is not pairs.scores[1]:
            raise InputError(
                "covariates of X and others of Y leave the views in different dimensions, where no rows can "
                "change places; give the same for both, or those of one view."
            )
        if statistic == "wilks" and isinstance(pairs.filters[0], Isotropic):
            raise InputError("statistic='wilks' is of correlations, and a PLS has covariances; give 'roy'.")
        whitened = _whiten_pairs(pairs, blocks, exchange)
        if exchange == "rows" and blocks is None:
            _warn_if_serial(pairs)
        n_rows = len(whitened.blocks.labels)
        free_rows = n_rows - pairs.n_blocks - max(pairs.n_covariates)
        whitened.blocks.check()
        _check_free(pairs, n_rows)
        rotated, correlations = whitened.rotate()
        # Above rounding error, and with rows left to permute.
        above_rounding = int(np.count_nonzero(correlations > correlations[0] * 1e-10))
        most = max(1, min(above_rounding, free_rows // 2))
        n_components = count_components(n_components, most)
        observed = correlations
        if statistic == "wilks":
            observed = np.cumsum(log_wilks(correlations**2)[::-1])[::-1]
        seed = make_seed(random_state)
        null = np.empty((n_permutations, n_components))
        p_values, standard_errors = np.empty(n_components), np.empty(n_components)
        with progress_bar("permuting") as progress:
            for k in range(n_components):
                remainder = _remove(rotated, correlations, np.maximum.accumulate(p_values[:k]), method)
                chains = draw_statistics(
                    replace(remainder, statistic=statistic),
                    n_permutations,
                    [seed, 0 if method == "stepwise" else k],  # stepwise: the same at each step
                    engine,
                    device,
                    lambda share, k=k: progress((k + share) / n_components),  # type: ignore[misc]
                )
                null[:, k] = np.concatenate(chains)
                least = observed[k] * (1 - TIE)
                p_values[k] = (1 + np.count_nonzero(null[:, k] >= least)) / (1 + n_permutations)
                standard_errors[k] = standard_error(chains, least)
    p_corrected = np.maximum.accumulate(p_values)
    correlations = correlations[:n_components]
    return PermutationTest(
        correlations,
        p_values,
        standard_errors,
        p_corrected,
        observed[:n_components],
        null,
        n_permutations,
        random_state,
        method,
        statistic,
        pairs.n_covariates,
        pairs.spectra.count,
        (int(pairs.x.shape[1]), int(pairs.y.shape[1])),
        pairs.filters,
        blocks is not None,
        exchange,
    )


def check_exchange(exchange: object, method: object, blocks: Any, covariates: Any) -> Exchange:
    """Return ``exchange`` if it is one, and goes with the other settings."""
    check_choice(exchange, EXCHANGES, "exchange")
    if exchange == "rows":
        return "rows"
    if exchange == "blocks" and blocks is None:
        raise InputError("exchange='blocks' exchanges whole blocks; give blocks, one label per row of X.")
    if covariates is not None:
        raise InputError(
            f"exchange={exchange!r} and covariates are not supported together: rows that covariates are "
            "projected out of no longer follow each other in time; give one of them."
        )
    if method == "conditional":
        raise InputError(
            f"method='conditional' assumes independent rows; with exchange={exchange!r} give "
            "method='stepwise', or None."
        )
    return "shift" if exchange == "shift" else "blocks"


def lag_correlation(view: Floats) -> float:
    """Return how alike neighbouring rows are: the lag-1 autocorrelation of the features, on average.

    >>> import numpy as np
    >>> round(lag_correlation(np.array([[1.0], [2.0], [3.0], [4.0]])), 3)
    0.25
    """
    view = view - view.mean(axis=0)
    squares = np.sum(view * view, axis=0)
    products = np.sum(view[1:] * view[:-1], axis=0)
    varies = squares > 1e-20 * np.max(squares)
    return float(np.mean(products[varies] / squares[varies]))


def _warn_if_serial(pairs: PreparedPairs) -> None:
    """Warn if neighbouring rows depend on each other in both views, as in time series.

    The lag-1 autocorrelation of n independent rows is about −1/n with a standard deviation of 1/√n, or less
    if it is the mean of several features; more than 3/√n in both views, with the same sign, is not due to
    chance, and makes the correlations of unrelated views vary more than those of permuted ones (Bartlett,
    1935).
    """
    rows, n_x = np.unique(to_numpy(pairs.pairing)), int(pairs.x.shape[0])
    x = to_numpy(pairs.x)[rows].astype(np.float64)
    y = to_numpy(group_sum(pairs.y, pairs.pairing, n_x)).astype(np.float64)[rows]
    y /= np.bincount(to_numpy(pairs.pairing), minlength=n_x)[rows, None]
    lags = lag_correlation(x), lag_correlation(y)
    if lags[0] * lags[1] > 0 and min(map(abs, lags)) > 3.0 / len(rows) ** 0.5:
        warnings.warn(
            f"neighbouring rows depend on each other in both views (lag-1 autocorrelations {lags[0]:.2f} and "
            f"{lags[1]:.2f}), but rows that change places have to be independent: p-values of a time series "
            "are far too small; give exchange='shift', or exchange='blocks' and blocks. If the rows are only "
            "sorted, shuffle the pairs.",
            DataWarning,
            stacklevel=3,
        )


def _describe_removed(n_covariates: tuple[int, int]) -> str:
    return f" without {count(max(n_covariates), 'covariate')}" if any(n_covariates) else ""


def _check_free(pairs: PreparedPairs, n_rows: int) -> None:
    """Raise an error if the correlations would be the same whatever the pairing of n rows of X."""
    ones, free_x, free_y = forced_ones(pairs.free_spectra, *pairs.filters)
    left_x, left_y = (
        n - pairs.n_blocks - removed
        for n, removed in zip((n_rows, pairs.spectra.count), pairs.n_covariates, strict=True)
    )
    # A view without regularisation that spans all there is, is only rotated by a permutation.
    if ones or free_x >= left_x or free_y >= left_y:
        removed = _describe_removed(pairs.n_covariates)
        removed += f" in {count(pairs.n_blocks, 'block')}" if pairs.n_blocks > 1 else ""
        raise InputError(
            f"the correlations are the same whatever the pairing, so there is nothing to test: {free_x} and "
            f"{free_y} directions without regularisation are too many for {pairs.spectra.count} "
            f"pairs{removed}; regularise, or give fewer features."
        )


@dataclass(frozen=True, eq=False)
class WhitenedPairs:
    """Whitened views, one row for each row of X that has pairs, such that T = ``a.T @ b``.

    Row i of X has c rows of Y: ``a`` has √c times the row, and ``b`` the sum of the others over √c. A view
    with covariates is orthogonal to ``removed``, an orthonormal basis of intercept and covariates: the √c of
    all rows at length 1, and √c times the scores of the covariates.
    """

    a: Array
    b: Array
    removed: Array
    blocks: ExchangeBlocks

    def rotate(self) -> tuple[WhitenedPairs, Floats]:
        """Return the views in the coordinates of the canonical variates, and the correlations of those."""
        svd = namespace(self.a).linalg.svd
        p_x, sigma, p_yt = map_lapack(svd, [multiply(self.a.T, self.b)], self.a)[0]
        rotated = replace(self, a=multiply(self.a, p_x), b=multiply(self.b, p_yt.T))
        return rotated, to_numpy(sigma)


def _whiten_pairs(pairs: PreparedPairs, blocks: Any, exchange: Exchange = "rows") -> WhitenedPairs:
    spectra, n_x = pairs.spectra, int(pairs.x.shape[0])
    filter_x, filter_y = pairs.filters
    if isinstance(filter_x, Isotropic):
        filter_x = filter_y = Isotropic(spectra.count)  # so that T is the cross-covariance matrix
    x = _whiten(filter_x, pairs.x, spectra.x_mean, spectra.s_x, spectra.v_x)
    y = _whiten(filter_y, pairs.y, spectra.y_mean, spectra.s_y, spectra.v_y)
    xp = namespace(x)
    counts = count_groups(pairs.pairing, n_x)
    rows = xp.nonzero(counts > 0)[0]
    root = xp.sqrt(xp.astype(counts[rows], xp.float64))[:, None]
    scores = move_like(max(pairs.scores, key=np.size), x)[rows, :]
    return WhitenedPairs(
        x[rows, :] * root,
        group_sum(y, pairs.pairing, n_x)[rows, :] / root,
        xp.concat([root / xp.linalg.vector_norm(root), root * scores], axis=1),
        ExchangeBlocks.of_pairs(blocks, pairs.pairing, n_x, exchange),
    )


def _whiten(filter: AnyFilter, view: Array, mean: Array, s: Array, v: Array) -> Array:
    r"""Return :math:`(X - \mu) V D^{-1/2}` in float64."""
    xp = namespace(view)
    root = 1.0 / xp.sqrt(xp.astype(filter.denominators(s), xp.float64))
    weights = xp.astype(v[:, : root.shape[0]], xp.float64) * root
    return multiply(xp.astype(view, xp.float64) - xp.astype(mean, xp.float64), weights)


def _remove(
    rotated: WhitenedPairs, correlations: Floats, p_corrected: Floats, method: Method = "conditional"
) -> Remainder:
    r"""Return what remains of rotated views without the first components, which have these p-values.

    With Z an orthonormal basis of 1, covariates, u and v, the other parts of the views are permuted in the
    basis :math:`Q = M S (S^\top M S)^{-1/2}`, :math:`M = I - ZZ^\top`, where S leaves out as many rows as Z
    has columns: those by which it is best determined. Then :math:`Q^\top A = (S^\top M S)^{-1/2} S^\top M A`.
    Without covariates, the first component needs no basis, because permutations leave 1 as it is. Stepwise, Z
    is that of the first component for all.
    """
    k = len(p_corrected)
    is_conditional = k > 0 and method == "conditional"
    if not is_conditional and rotated.removed.shape[1] == 1:
        return Remainder(rotated.a[:, k:], rotated.b[:, k:], rotated.blocks)
    import scipy.linalg

    xp = namespace(rotated.a)
    nuisance = rotated.removed
    if is_conditional:
        nuisance = xp.concat([nuisance, rotated.a[:, :k], rotated.b[:, :k]], axis=1)
    z = xp.linalg.qr(nuisance / xp.linalg.vector_norm(nuisance, axis=0))[0]
    pivots = scipy.linalg.qr(to_numpy(z).T, mode="r", pivoting=True)[1]
    kept = np.sort(pivots[z.shape[1] :])
    rows = move_like(kept, rotated.a)
    z_kept = z[rows, :]
    values, vectors = xp.linalg.eigh(z_kept.T @ z_kept)
    values = xp.clip(values, 0.0, 1.0 - 1e-12)
    # (I − WWᵀ)^-½ = I + W f(WᵀW) Wᵀ, where f(e) = ((1 − e)^-½ − 1)/e = 1/(r(1 + r)) with r = (1 − e)^½.
    r = xp.sqrt(1.0 - values)
    turn = (vectors / (r * (1.0 + r))) @ vectors.T

    def split(view: Array) -> tuple[Array, Array]:
        """Return the part of a view in the basis Q, and its products with Z."""
        products = z.T @ view
        rest = view[rows, :] - multiply(z_kept, products)
        return rest + multiply(z_kept, turn @ (z_kept.T @ rest)), products

    (a, along_a), (b, along_b) = split(rotated.a[:, k:]), split(rotated.b[:, k:])
    powers = np.where(p_corrected <= REAL, 0.5, 1.0)
    blocks = ExchangeBlocks(rotated.blocks.labels[kept])  # other exchanges are stepwise, without a basis
    if not is_conditional:
        return Remainder(a, b, blocks)
    return Remainder(a, b, blocks, along_a.T @ along_b, correlations[:k] ** 2, powers)
