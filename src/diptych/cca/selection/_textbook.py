"""One SVD per grid point, as Algorithms 2 and 3 are printed; it serves every weighting and dimension.

It is the reference for the exact route, and the only route for weightings other than the asymmetric one and
for vectors of fewer dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from diptych._arrays import Array, Floats, group_max, move_like, namespace, to_numpy
from diptych._checks import TASKS, InputError, Task, check_similarity
from diptych._threads import multiply
from diptych.cca._canonical import (
    CanonicalModel,
    decompose_t,
    leading_components,
    mean_correlation,
    whiten_t,
)
from diptych.cca._sparse import multiply_any
from diptych.cca._spectra import Spectra
from diptych.cca._weighting import Weighting, maps, weight_columns, weight_factors
from diptych.cca.selection._grids import best_point
from diptych.cca.selection._problem import Problem, Weights, products
from diptych.ranking import Metric, ranks
from diptych.ranking._ranks import Truth, annotate_ranks, search_ranks, tie_slack

BLOCK_BYTES = 2**26


def textbook_ranks(
    problem: Problem,
    w_x: Array,
    w_y: Array,
    weightings: Sequence[Weighting] = ("asymmetric",),
    n_components: int | None = None,
) -> Iterator[dict[Task, Array]]:
    """Yield the ranks of both tasks at one grid point, for each weighting.

    This is the body of the loops of Algorithm 2 (lines 7 to 12) and of Algorithm 3 (lines 9 to 14), with
    ``w_x`` and ``w_y`` the diagonals of :math:`D^{-1}`.
    """
    xp = namespace(problem.a)
    root_x, root_y = _take_roots(w_x), _take_roots(w_y)
    k_x, k_y = int(root_x.shape[0]), int(root_y.shape[0])
    p_x, sigma, p_y = decompose_t(problem.t0, root_x, root_y)
    keep = sigma.shape[0] if n_components is None else min(n_components, int(sigma.shape[0]))
    tolerance = float(xp.finfo(sigma.dtype).eps) * max(k_x, k_y) * float(sigma[0])
    keep = min(keep, max(1, int(xp.count_nonzero(sigma > tolerance))))
    x = multiply(problem.a[:, :k_x], root_x[:, None] * p_x[:, :keep])
    y = multiply(problem.b[:, :k_y], root_y[:, None] * p_y[:, :keep])
    sigma = sigma[:keep]
    for weighting in weightings:
        by_task: dict[Task, Array] = {}
        for task in TASKS:
            for_x, for_y = weight_factors(sigma, weighting, task)
            by_task[task] = ranks(
                weight_columns(x, for_x),
                weight_columns(y, for_y),
                problem.truth.pairing,
                task=task,
                similarity=check_similarity(problem.similarity),
            )
        yield by_task


def textbook_path(
    problem: Problem,
    w_x: Weights,
    w_y: Weights,
    weighting: Weighting = "asymmetric",
    n_components: int | None = None,
) -> Iterator[tuple[int, int, dict[Task, Array]]]:
    """Yield ``(x index, y index, ranks)`` of every grid point; no ranks if a point failed numerically.

    These are the loops of Algorithm 2 (Tikhonov) and Algorithm 3 (truncated SVD).
    """
    for i in range(w_x.rows.shape[0]):
        for j in range(w_y.rows.shape[0]):
            point = textbook_ranks(problem, w_x.rows[i, :], w_y.rows[j, :], (weighting,), n_components)
            try:
                yield i, j, next(point)
            except (InputError, np.linalg.LinAlgError):
                yield i, j, {}


def correlation_path(
    problem: Problem, w_x: Weights, w_y: Weights, n_components: int | None = None
) -> Iterator[tuple[int, int, dict[Task, float]]]:
    """Yield ``(x index, y index, mean correlation)`` of every grid point, the same for both tasks.

    It is that of the first ``n_components`` (None: the first) over the validation pairs. Nothing more of T is
    decomposed; a point that failed numerically has none.
    """
    for i in range(w_x.rows.shape[0]):
        for j in range(w_y.rows.shape[0]):
            root_x, root_y = _take_roots(w_x.rows[i, :]), _take_roots(w_y.rows[j, :])
            try:
                p_x, _, p_y = leading_components(whiten_t(problem.t0, root_x, root_y), n_components or 1)
            except np.linalg.LinAlgError:
                yield i, j, {}
                continue
            u = multiply(problem.a[:, : root_x.shape[0]], root_x[:, None] * p_x)
            v = multiply(problem.b[:, : root_y.shape[0]], root_y[:, None] * p_y)
            yield i, j, dict.fromkeys(TASKS, mean_correlation(u, v, problem.truth.pairing, n_components))


def _take_roots(w: Array) -> Array:
    """Return the diagonal of D^-½, up to the last direction that is kept."""
    xp = namespace(w)
    return xp.sqrt(w[: int(xp.nonzero(w)[0][-1]) + 1])


def dimensions_up_to(full: int, points: int = 16) -> list[int]:
    """Return the dimensions to try, evenly spaced on a logarithmic scale up to the full dimension."""
    return sorted({round(d) for d in np.geomspace(min(4, full), full, points)})


def best_dimension(
    problem: Problem,
    spectra: Spectra,
    model: CanonicalModel,
    weighting: Weighting,
    task: Task,
    metric: Metric,
) -> int:
    """Return the dimension with the best ``metric`` on the validation pairs; on a tie, the smallest."""
    xp = namespace(problem.a)

    def embed(rows: Array, vectors: Array, singular: Array, weights: Array) -> Array:
        # The rows of the problem are in the eigenbasis, divided by the largest singular value.
        inner = multiply_any(weights.T, vectors).T * float(singular[0])
        return multiply(rows, xp.astype(move_like(inner, rows), rows.dtype, copy=False))

    x_map, y_map = maps(model, weighting, task)
    x = embed(problem.a, spectra.v_x, spectra.s_x, x_map)
    y = embed(problem.b, spectra.v_y, spectra.s_y, y_map)
    dimensions = dimensions_up_to(int(model.correlations.shape[0]))
    values = components_path(x, y, problem.truth.pairing, task, problem.similarity, metric, dimensions)
    return dimensions[best_point(np.array([metric.signed(value) for value in values]))[0]]


def components_path(
    x: Array,
    y: Array,
    pairing: Array,
    task: Task,
    similarity: str,
    metric: Callable[[Array], float],
    dimensions: list[int],
) -> Floats:
    """Return ``metric`` at each of the ``dimensions`` of the vectors ``x`` and ``y`` of a task.

    Each dimension adds to the scores of the one before, so all of them cost one product.
    """
    xp = namespace(x, y)
    truth = Truth.of(pairing, x.shape[0])
    queries, items = (y, x) if task == "search" else (x[truth.described, :], y)
    kept = np.arange(x.shape[1]) < np.asarray(dimensions)[:, None]
    weights = Weights.of(kept.astype(np.float64), x)
    norms = weights.rows @ (items * items).T
    lengths = xp.sqrt(weights.rows @ (queries * queries).T)
    if task == "search":
        true_norms = xp.take(norms, pairing, axis=1)
    else:
        true_norms = group_max(norms.T, pairing, x.shape[0])[truth.described, :].T
    slack = [
        tie_slack(lengths[d, :], xp.sqrt(true_norms[d, :]), k, similarity) for d, k in enumerate(dimensions)
    ]
    if similarity == "cosine":
        scale = 1.0 / xp.sqrt(xp.where(norms > 0, norms, 1.0))
    blocks: list[list[Array]] = [[] for _ in dimensions]
    rows = max(1, BLOCK_BYTES // (items.shape[0] * items.dtype.itemsize))
    for start in range(0, queries.shape[0], rows):
        for d, product in products(queries[start : start + rows, :], weights, items.T):
            scores = product * scale[d, :] if similarity == "cosine" else product - 0.5 * norms[d, :]
            at = slice(start, start + rows)
            if task == "search":
                blocks[d].append(search_ranks(scores, pairing[at], slack[d][at]))
            else:
                blocks[d].append(annotate_ranks(scores, truth, truth.described[at], slack[d][at]))
    return np.asarray([metric(to_numpy(xp.concat(parts))) for parts in blocks])
