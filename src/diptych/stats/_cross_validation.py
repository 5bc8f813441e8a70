"""Correlations of canonical variates over pairs that were held out of the fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych._arrays import Array, Floats, to_numpy
from diptych._checks import (
    InputError,
    Task,
    check_count,
    check_pair_of_views,
    check_seed,
    check_task,
    count,
    order_rows,
)
from diptych._progress import progress_bar
from diptych.cca import AWCCA, Engine
from diptych.cca._covariates import Sides, check_covariates, take_rows
from diptych.cca._settings import params_by_task, plain_pair, scale_params
from diptych.cca.selection._grids import PairRows, select_rows
from diptych.stats._pairs import (
    COMPONENTS,
    Ints,
    block_codes,
    check_given,
    check_unweighted,
    count_components,
    is_pair,
)
from diptych.stats._tables import component_frame, format_components
from diptych.stats._transformers import read_views

FEWEST = 3
"""Rows of X of a fold that has a correlation: that of two pairs is 1 or −1 whatever they are."""

CONFIDENCE = 0.95
"""Of the interval of each mean."""


@dataclass(frozen=True, eq=False)
class CrossValidatedCorrelations:
    """Correlations of canonical variates over held-out pairs; see ``cross_validated_correlations``.

    ``print`` shows a table, and ``to_frame`` returns one.

    Attributes
    ----------
    folds
        Correlations over the held-out pairs of each fold, folds × components. NaN for fewer than three rows
        of X.
    mean
        Mean over the folds of three rows of X or more, one per component; NaN if there are none, as with
        ``LeaveOneOut``, where ``pooled`` is what to read.
    low, high
        Limits of the 95 % interval of each mean; NaN for fewer than two such folds. It is that of Student's t
        over folds, widened because their training pairs overlap (Nadeau and Bengio, 2003): see Notes of
        ``cross_validated_correlations``.
    pooled
        Correlations of the held-out variates of all folds together.
    in_sample
        Mean over folds of the correlations over the training pairs: the difference is overfitting.
    held_out_x, held_out_y
        Canonical variates of each pair by the model that has not seen it, pairs × components, in the order of
        the pairs; NaN for a pair that no fold holds out. The sign of a component is that of the first fold.
    fold_of
        The fold that holds each pair out, a row of ``folds``, the first of several; −1 if none does.
    """

    folds: Floats
    mean: Floats
    low: Floats
    high: Floats
    pooled: Floats
    in_sample: Floats
    held_out_x: Floats
    held_out_y: Floats
    fold_of: Ints

    def __str__(self) -> str:
        large = self._large_folds()
        columns = {"in-sample": self.in_sample}
        note, small = "", len(self.folds) - len(large)
        if small:
            verbs = ("has", "it counts") if small == 1 else ("have", "they count")
            note = (
                f"\n{count(small, 'fold')} {verbs[0]} fewer than three rows of X: {verbs[1]} in pooled only."
            )
        title = f"Cross-validated correlations, {len(self.folds)} folds"
        if len(large):
            columns["held-out mean"] = self.mean
        if len(large) > 1:
            columns |= {"low": self.low, "high": self.high}
            title += f", intervals of {100 * CONFIDENCE:g} %"
        columns["pooled"] = self.pooled
        return f"{title}\n{format_components(columns)}{note}"

    def _large_folds(self) -> Floats:
        return self.folds[~np.isnan(self.folds).all(axis=1)]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each component."""
        folds = {f"fold_{number}": fold for number, fold in enumerate(self.folds, 1)}
        return component_frame(
            {
                "in_sample": self.in_sample,
                "mean": self.mean,
                "low": self.low,
                "high": self.high,
                "pooled": self.pooled,
                **folds,
            }
        )


def cross_validated_correlations(
    model: Any,
    X: Any,
    y: Any,
    pairing: Any = None,
    *,
    preprocess: Any = None,
    covariates: Any = None,
    cv: Any = 5,
    random_state: int | None = 0,
    n_components: int | None = None,
    blocks: Any = None,
    task: Task = "search",
    engine: Engine | None = None,
    device: str | None = None,
    verbose: bool | None = None,
) -> CrossValidatedCorrelations:
    r"""Return the correlations of canonical variates over pairs that the model has not seen.

    For each fold a copy of the model is fitted on the other folds, with its own selection of the
    regularisation there (nested), and its variates are correlated over the held-out pairs. On unrelated views
    the result is around 0, where in-sample correlations may be near 1. A component is the one with this
    number in each fold's own model; where correlations are nearly equal, the order may differ between folds,
    so read the first few together.

    Parameters
    ----------
    model
        A ``CCA``, ``PLS`` or ``AWCCA``, fitted or not, whose parameters are used; or ``(γ_x, γ_y)``. A γ that
        is given in ``params`` is scaled to the number of pairs of a fold.
    X, y, pairing
        The pairs, as in ``AWCCA.fit``. Rows of Y stay with their row of X.
    preprocess
        A transformer of scikit-learn for both views, such as ``StandardScaler()`` or a pipeline that starts
        with an imputer, or a pair ``(for_x, for_y)``, with None for a view that stays as it is. A
        copy is fitted on the training pairs of each fold, before anything else.
    covariates
        What both views may depend on, such as age, sex or motion: rows of X × covariates, numbers. In each
        fold both views are regressed on them over the training pairs, and these regressions are applied to
        the held-out pairs: to regress them out of all pairs beforehand lets each row know of the others. Or a
        pair, as in ``AWCCA.fit``. Needed if the model was fitted with covariates.
    cv
        Number of folds; a splitter of scikit-learn, which splits the rows of X; or a list of splits, each the
        row numbers of the training part and of the part that is held out.
    random_state
        Shuffles the rows before they are cut into folds, if ``cv`` is a number and there are no blocks.
    n_components
        The first components; None: at most 10.
    blocks
        One label per row of X, such as the subject: the rows of a block are in one fold (``GroupKFold``).
    task
        Whose model of an ``AWCCA``: each task has its own regularisation, unless ``params`` was one pair. A
        ``CCA`` or ``PLS`` has one model.
    engine, device, verbose
        As in ``AWCCA``.

    Notes
    -----
    Folds share training pairs, so their correlations :math:`r_1, …, r_K` are not independent, and their mean
    varies more than :math:`s^2/K`, where s is their standard deviation. Its interval is

    .. math:: \bar r \pm t_{K-1}\, s \sqrt{\frac{1}{K} + \frac{n_\mathrm{test}}{n_\mathrm{train}}}

    with the quantile of Student's t and the rows of X of both parts, averaged over folds (Nadeau and Bengio,
    2003), cut at −1 and 1. It is an interval for models of so many training pairs, and no test: that is
    ``permutation_test``. It is approximate, and somewhat short where folds have few pairs.

    References
    ----------
    Nadeau and Bengio (2003), "Inference for the generalization error", Machine Learning 52. Varma and Simon
    (2006), "Bias in error estimation when using cross-validation for model selection", BMC Bioinformatics 7.

    Examples
    --------
    >>> import numpy as np
    >>> from diptych.stats import cross_validated_correlations
    >>> x, y = np.random.default_rng(0).normal(size=(2, 100, 20))  # unrelated
    >>> result = cross_validated_correlations((1.0, 1.0), x, y)
    >>> bool(result.in_sample[0] > 0.7), bool(abs(result.pooled[0]) < 0.2)
    (True, True)
    """
    estimator = _make_estimator(model, verbose, covariates)
    task = check_task(task)
    views, pairing = read_views(X, y, pairing, preprocess)
    n_x, n_pairs = int(views.x.shape[0]), len(pairing)
    sides = check_covariates(covariates, X, n_x)
    blocks = order_rows(blocks, X, "blocks", "X")
    if n_components is not None:
        check_count(n_components, "n_components")
    most = n_components or COMPONENTS
    held_out: list[Floats] = []
    pairs, in_sample, sizes, first = [], [], [], None
    with progress_bar("cross-validating", verbose) as progress:
        splits = list(_split(cv, pairing, n_x, blocks, random_state))
        for number, (train, test) in enumerate(splits):
            x, y, _ = check_pair_of_views(*views.fit(train.x, train.y), pairing)
            fold = _fit_fold(estimator, x, y, train, sides, engine, device)
            seen, unseen = (_compute_variates(fold, task, x, y, rows, sides, most) for rows in (train, test))
            pairs.append(to_numpy(test.y))
            variates = np.full((2, n_pairs, seen.shape[2]), np.nan)
            variates[:, to_numpy(train.y)], variates[:, pairs[-1]] = seen, unseen
            first = variates if first is None else first
            # A component's sign is arbitrary: it is made that of the first fold, over all pairs of both.
            k = min(first.shape[2], seen.shape[2])
            signs = np.where(np.nansum(variates[..., :k] * first[..., :k], axis=(0, 1)) < 0, -1.0, 1.0)
            held_out.append(unseen[..., :k] * signs)
            in_sample.append(to_numpy(fold.models_[task].train_correlations))
            sizes.append((len(train.x), len(test.x)))
            progress((number + 1) / len(splits))
    kept = count_components(n_components, min(map(len, in_sample)))
    held_out = [variates[..., :kept] for variates in held_out]
    folds = np.stack([_correlate_columns(u, v) for u, v in held_out])
    is_large = np.array([n_test for _, n_test in sizes]) >= FEWEST
    folds[~is_large] = np.nan
    mean, half = _average(folds[is_large], np.array(sizes)[is_large])
    fold_of, by_pair = np.full(n_pairs, -1), np.full((2, n_pairs, kept), np.nan)
    for number in reversed(range(len(splits))):  # of several folds, the first is kept
        fold_of[pairs[number]], by_pair[:, pairs[number]] = number, held_out[number]
    return CrossValidatedCorrelations(
        folds,
        mean,
        np.maximum(mean - half, -1.0),
        np.minimum(mean + half, 1.0),
        _correlate_columns(*np.concatenate(held_out, axis=1)),
        np.mean([correlations[:kept] for correlations in in_sample], axis=0),
        by_pair[0],
        by_pair[1],
        fold_of,
    )


def _compute_variates(
    fold: AWCCA, task: Task, x: Array, y: Array, rows: PairRows, covariates: Sides | None, most: int
) -> Floats:
    """Return the first variates of both views for each pair of ``rows``, at the same scale for all folds."""
    canonical, scale = fold.models_[task], fold.spectra_.count**0.5
    owners = to_numpy(rows.pairing)
    z_x, z_y = (None, None) if covariates is None else take_rows(covariates, rows.x)
    z_y = None if z_y is None else z_y[owners]
    u = fold.project(x[rows.x, :], "x", canonical.x_weights[:, :most], covariates=z_x)
    v = fold.project(y[rows.y, :], "y", canonical.y_weights[:, :most], covariates=z_y)
    variates: Floats = np.stack([to_numpy(u)[owners], to_numpy(v)]) * scale
    return variates


def _average(folds: Floats, sizes: Ints) -> tuple[Floats, Floats]:
    """Return the mean over folds and half the length of its interval, NaN where there are too few.

    ``sizes`` are the rows of the training part and of the part that is held out, of each fold.
    """
    from scipy.stats import t

    n_folds = len(folds)
    nothing = np.full(folds.shape[1], np.nan)
    if n_folds < 2:
        return (folds[0] if n_folds else nothing), nothing
    spread = np.std(folds, axis=0, ddof=1) * (1 / n_folds + np.mean(sizes[:, 1] / sizes[:, 0])) ** 0.5
    return np.mean(folds, axis=0), t.ppf((1 + CONFIDENCE) / 2, n_folds - 1) * spread


def _make_estimator(model: Any, verbose: bool | None, covariates: Any) -> AWCCA:
    """Return an estimator with the parameters of a model, not fitted."""
    from sklearn.base import clone

    if is_pair(model):
        return AWCCA(params=plain_pair(model), verbose=verbose)
    if not isinstance(model, AWCCA):
        raise InputError(
            f"{type(model).__name__} is not an estimator; give a CCA, PLS or AWCCA, or (γ_x, γ_y)."
        )
    check_unweighted(model)
    check_given(model, covariates)
    estimator: AWCCA = clone(model)
    if verbose is not None:
        estimator.verbose = verbose
    return estimator


def _fit_fold(
    estimator: AWCCA,
    x: Array,
    y: Array,
    rows: PairRows,
    covariates: Sides | None,
    engine: Engine | None,
    device: str | None,
) -> AWCCA:
    """Return the estimator fitted on a training part of the pairs."""
    from sklearn.base import clone

    fold: AWCCA = clone(estimator)
    if fold.params is not None:
        share = int(rows.y.shape[0]) / int(y.shape[0])
        fold.params = scale_params(params_by_task(fold.params), fold.filter, share)
    inside = None if covariates is None else take_rows(covariates, rows.x)
    views = x[rows.x, :], y[rows.y, :]
    return fold.fit(*views, rows.pairing, covariates=inside, engine=engine, device=device)


def _split(
    cv: Any, pairing: Array, n_x: int, blocks: Any, random_state: int | None
) -> Iterator[tuple[PairRows, PairRows]]:
    """Yield the training part and the held-out part of each fold: rows of X that have a pair, with those."""
    from sklearn.model_selection import GroupKFold, KFold

    paired = np.unique(to_numpy(pairing))
    codes = None if blocks is None else block_codes(blocks, n_x)
    groups = None if codes is None else codes[paired]
    is_list = isinstance(cv, Iterable) and not isinstance(cv, str | bytes)
    if not is_list and (isinstance(cv, str | bytes) or not hasattr(cv, "split")):
        parts, noun = (len(paired), "row") if groups is None else (len(np.unique(groups)), "block")
        if check_count(cv, "cv", minimum=2) > parts:
            raise InputError(f"cv={cv} folds need as many {noun}s, but there are {parts}; give fewer folds.")
        shuffled = KFold(cv, shuffle=True, random_state=check_seed(random_state))
        cv = shuffled if groups is None else GroupKFold(cv)
    splits = (
        _read_splits(cv, n_x)
        if is_list
        else ((paired[train], paired[test]) for train, test in cv.split(paired, groups=groups))
    )
    has_pair = np.isin(np.arange(n_x), paired)
    for number, fold in enumerate(splits, 1):
        masks = np.zeros((2, n_x), dtype=bool)
        for mask, rows in zip(masks, fold, strict=True):
            mask[rows] = has_pair[rows]
        if not masks.any(axis=1).all():
            raise InputError(f"split {number} of cv has a part without pairs; give rows to both parts.")
        if masks.all(axis=0).any():
            raise InputError(f"split {number} of cv has rows that are in both parts; hold them out of one.")
        if codes is not None and len(np.intersect1d(codes[masks[0]], codes[masks[1]])):
            raise InputError(
                f"split {number} of cv has rows of one block in both parts; give splits of whole blocks, "
                "such as GroupKFold, or leave blocks out."
            )
        yield select_rows(pairing, masks[0]), select_rows(pairing, masks[1])


def _read_splits(splits: Iterable[Any], n_x: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield splits that are given as rows of X: those of the training part and those that are held out."""
    number = 0
    for number, split in enumerate(splits, 1):
        try:
            train, test = (np.asarray(rows) for rows in split)
            valid = all(
                rows.ndim == 1 and rows.dtype.kind in "iu" and rows.min() >= 0 and rows.max() < n_x
                for rows in (train, test)
            )
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise InputError(
                f"split {number} of cv is not (training rows, held-out rows); give row numbers of X, from 0 "
                f"to {n_x - 1}."
            )
        yield train, test
    if number == 0:
        raise InputError("cv has no splits; give at least one, or a number of folds.")


def _correlate_columns(u: Floats, v: Floats) -> Floats:
    """Return the correlation of each pair of columns; 0 for a constant one."""
    u, v = u - u.mean(axis=0), v - v.mean(axis=0)
    lengths = np.linalg.norm(u, axis=0) * np.linalg.norm(v, axis=0)
    products: Floats = np.sum(u * v, axis=0)
    return products / np.where(lengths > 0, lengths, 1.0)
