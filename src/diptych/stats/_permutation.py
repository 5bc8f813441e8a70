"""Permutation tests of canonical correlations, one after the other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diptych._arrays import Array, Floats, count_groups, group_sum, move_like, namespace, to_numpy
from diptych._checks import InputError, Task, check_count, check_seed, order_rows
from diptych._progress import progress_bar
from diptych._threads import map_lapack, multiply, one_blas_thread
from diptych.cca import Engine
from diptych.cca._canonical import forced_ones
from diptych.cca._filters import AnyFilter
from diptych.stats._chains import TIE, Remainder, draw_largest
from diptych.stats._pairs import ExchangeBlocks, PreparedPairs, count_components, make_seed, prepare_pairs
from diptych.stats._tables import component_frame, format_components, format_p

REAL = 0.05
"""A removed component counts as real, not as due to chance, if its corrected p-value is at most this."""


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """p-values of canonical correlations; see ``permutation_test``.

    ``print`` shows a table, and ``to_frame`` returns it as a pandas DataFrame.

    Attributes
    ----------
    correlations
        The observed correlations Σ: the singular values of the regularised T, descending.
    p_values
        Of each correlation, with the earlier components removed.
    p_corrected
        The largest p-value up to each component. If the components are taken in order up to the first one
        above α, the probability that any of them is a false discovery is α at most.
    null
        Permutations × components: the largest correlation of what remains, under permutation.
    n_permutations, random_state
        As given.
    """

    correlations: Floats
    p_values: Floats
    p_corrected: Floats
    null: Floats
    n_permutations: int
    random_state: int | None

    def __str__(self) -> str:
        columns = self._columns()
        cells: dict[str, Iterable[Any]] = {
            "correlation": self.correlations,
            "null mean": columns["null_mean"],
            "null 95 %": columns["null_95"],
            "p": map(format_p, self.p_values),
            "p corrected": map(format_p, self.p_corrected),
        }
        return f"Permutation test, {self.n_permutations:,} permutations\n{format_components(cells)}"

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each component."""
        return component_frame(self._columns())

    def _columns(self) -> dict[str, Floats]:
        return {
            "correlation": self.correlations,
            "null_mean": self.null.mean(axis=0),
            "null_95": np.quantile(self.null, 0.95, axis=0),
            "p_value": self.p_values,
            "p_corrected": self.p_corrected,
        }


def permutation_test(
    model: Any,
    X: Any,
    y: Any,
    pairing: Any = None,
    *,
    n_permutations: int = 1000,
    random_state: int | None = 0,
    blocks: Any = None,
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
        A fitted ``AWCCA``, or ``(γ_x, γ_y)`` as ``AWCCA(params=…)`` takes them. A γ that was selected by
        retrieval on the same pairs has seen the pairing, which the test does not account for; one that was
        given, or comes from ``selection="ledoit-wolf"``, has not.
    X, y, pairing
        The pairs, as in ``AWCCA.fit``. A row of X keeps its rows of Y together, and changes places only with
        rows of X that have as many.
    n_permutations
        Number of permutations; the smallest possible p-value is 1 / (n_permutations + 1).
    random_state
        Seeds the permutations, which are the same whatever the engine.
    blocks
        One label per row of X, such as the subject: rows change places only within their block. For repeated
        measures. Whole blocks are not exchanged with each other.
    n_components
        The first components; None: at most 10.
    task
        Whose model: each task has its own regularisation, unless ``params`` was one pair.
    engine, device, verbose
        As in ``AWCCA``.

    Notes
    -----
    Let A and B be the whitened views over pairs, so that :math:`T = A^\top B = P_x \Sigma P_y^\top`, and
    rotate them to :math:`A P_x` and :math:`B P_y`. The earlier components are removed by leaving out their
    columns: what remains of T has the later correlations, and no others (Winkler et al., 2020). The statistic
    is the largest of them (Roy). For the first component, rows of A are permuted: the test is exact.

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
    keeps p-values valid however slowly the chains mix (Besag and Clifford, 1989). The weights are exact for
    unrelated Gaussian views without regularisation; with heavy tails or small blocks, p-values of later
    components are too small, but not the corrected ones. ``benchmarks/permutation.py calibrate`` measures how
    p-values are distributed.

    References
    ----------
    Winkler, Renaud, Smith and Nichols (2020), "Permutation inference for canonical correlation analysis",
    NeuroImage 220. Glynn and Muirhead (1978), "Inference in canonical correlation analysis", Journal of
    Multivariate Analysis 8. Besag and Clifford (1989), "Generalized Monte Carlo significance tests",
    Biometrika 76.

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
    check_seed(random_state)
    with one_blas_thread(), progress_bar("permutation test", verbose):
        pairs = prepare_pairs(model, X, y, pairing, task, device)
        whitened = _whiten_pairs(pairs, order_rows(blocks, X, "blocks", "X"))
        _check_free(pairs, len(whitened.blocks.labels))
        whitened.blocks.check()
        rotated, correlations = whitened.rotate()
        # Above rounding error, and with rows left to permute.
        above_rounding = int(np.count_nonzero(correlations > correlations[0] * 1e-10))
        most = max(1, min(above_rounding, (len(whitened.blocks.labels) - 1) // 2))
        n_components = count_components(n_components, most)
        seed = make_seed(random_state)
        null, p_values = np.empty((n_permutations, n_components)), np.empty(n_components)
        with progress_bar("permuting") as progress:
            for k in range(n_components):
                remainder = _remove(rotated, correlations, np.maximum.accumulate(p_values[:k]))
                null[:, k] = draw_largest(
                    remainder,
                    n_permutations,
                    [seed, k],
                    engine,
                    device,
                    lambda share, k=k: progress((k + share) / n_components),  # type: ignore[misc]
                )
                above = np.count_nonzero(null[:, k] >= correlations[k] * (1 - TIE))
                p_values[k] = (1 + above) / (1 + n_permutations)
    p_corrected = np.maximum.accumulate(p_values)
    correlations = correlations[:n_components]
    return PermutationTest(correlations, p_values, p_corrected, null, n_permutations, random_state)


def _check_free(pairs: PreparedPairs, rows: int) -> None:
    """Raise an error if the correlations would be the same whatever the pairing."""
    ones, free_x, free_y = forced_ones(pairs.spectra, *pairs.filters)
    count = pairs.spectra.count
    # A view without regularisation that spans all there is, is only rotated by a permutation.
    if ones or free_x >= rows - 1 or free_y >= count - 1:
        raise InputError(
            f"the correlations are the same whatever the pairing, so there is nothing to test: {free_x} and "
            f"{free_y} directions without regularisation are too many for {count} pairs; regularise, or give "
            "fewer features."
        )


@dataclass(frozen=True, eq=False)
class WhitenedPairs:
    """Whitened views, one row for each row of X that has pairs, such that T = ``a.T @ b``.

    Row i of X has c rows of Y: ``a`` has √c times the row, and ``b`` the sum of the others over √c. Both are
    orthogonal to ``mean``, the √c of all rows at length 1.
    """

    a: Array
    b: Array
    mean: Array
    blocks: ExchangeBlocks

    def rotate(self) -> tuple[WhitenedPairs, Floats]:
        """Return the views in the coordinates of the canonical variates, and the correlations of those."""
        svd = namespace(self.a).linalg.svd
        p_x, sigma, p_yt = map_lapack(svd, [multiply(self.a.T, self.b)], self.a)[0]
        rotated = replace(self, a=multiply(self.a, p_x), b=multiply(self.b, p_yt.T))
        return rotated, to_numpy(sigma)


def _whiten_pairs(pairs: PreparedPairs, blocks: Any) -> WhitenedPairs:
    spectra, n_x = pairs.spectra, int(pairs.x.shape[0])
    filter_x, filter_y = pairs.filters
    x = _whiten(filter_x, pairs.x, spectra.x_mean, spectra.s_x, spectra.v_x)
    y = _whiten(filter_y, pairs.y, spectra.y_mean, spectra.s_y, spectra.v_y)
    xp = namespace(x)
    counts = count_groups(pairs.pairing, n_x)
    rows = xp.nonzero(counts > 0)[0]
    root = xp.sqrt(xp.astype(counts[rows], xp.float64))
    return WhitenedPairs(
        x[rows, :] * root[:, None],
        group_sum(y, pairs.pairing, n_x)[rows, :] / root[:, None],
        root / xp.linalg.vector_norm(root),
        ExchangeBlocks.of_pairs(blocks, pairs.pairing, n_x),
    )


def _whiten(filter: AnyFilter, view: Array, mean: Array, s: Array, v: Array) -> Array:
    r"""Return :math:`(X - \mu) V D^{-1/2}` in float64."""
    xp = namespace(view)
    root = 1.0 / xp.sqrt(xp.astype(filter.denominators(s), xp.float64))
    weights = xp.astype(v[:, : root.shape[0]], xp.float64) * root
    return multiply(xp.astype(view, xp.float64) - xp.astype(mean, xp.float64), weights)


def _remove(rotated: WhitenedPairs, correlations: Floats, p_corrected: Floats) -> Remainder:
    r"""Return what remains of rotated views without the first components, which have these p-values.

    With Z an orthonormal basis of 1, u and v, the other parts of the views are permuted in the basis
    :math:`Q = M S (S^\top M S)^{-1/2}`, :math:`M = I - ZZ^\top`, where S leaves out as many rows as Z has
    columns: those by which it is best determined. Then :math:`Q^\top A = (S^\top M S)^{-1/2} S^\top M A`.
    """
    k = len(p_corrected)
    if k == 0:
        return Remainder(rotated.a, rotated.b, rotated.blocks)
    import scipy.linalg

    xp = namespace(rotated.a)
    nuisance = xp.concat([rotated.mean[:, None], rotated.a[:, :k], rotated.b[:, :k]], axis=1)
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
    blocks = ExchangeBlocks(rotated.blocks.labels[kept])
    return Remainder(a, b, blocks, along_a.T @ along_b, correlations[:k] ** 2, powers)
