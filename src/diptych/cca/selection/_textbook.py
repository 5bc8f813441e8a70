"""The textbook route: one SVD per grid point, which then serves every weighting and dimension.

It is the reference the exact path is tested against, and the only route for weightings other than the
asymmetric one and for embeddings of fewer dimensions.

Recall against the dimension of the embeddings, from one SVD: each dimension adds to the one before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from diptych._arrays import Array, group_max, move_like, namespace, to_numpy
from diptych._checks import TASKS, InputError, Task
from diptych.cca._canonical import CanonicalModel, decompose_t
from diptych.cca._spectra import Spectra
from diptych.cca._weighting import Weighting, apply_factors, maps, weight_factors
from diptych.cca.selection._grids import Floats
from diptych.cca.selection._problem import Problem, Weights, products
from diptych.ranking import Metric, Truth, annotate_ranks, ranks, search_ranks, tie_slack


def textbook_ranks(
    problem: Problem,
    w_x: Array,
    w_y: Array,
    weightings: Sequence[Weighting] = ("asymmetric",),
    n_components: int | None = None,
) -> Iterator[dict[Task, Array]]:
    """Ranks of both tasks at one grid point, for each weighting in turn."""
    xp = namespace(problem.a)
    root_x, root_y = xp.sqrt(_kept(w_x)), xp.sqrt(_kept(w_y))
    k_x, k_y = int(root_x.shape[0]), int(root_y.shape[0])
    p_x, sigma, p_y = decompose_t(problem.t0, root_x, root_y)
    keep = sigma.shape[0] if n_components is None else min(n_components, int(sigma.shape[0]))
    keep = min(keep, max(1, int(xp.count_nonzero(sigma > _tolerance(sigma, k_x, k_y)))))
    x = problem.a[:, :k_x] @ (root_x[:, None] * p_x[:, :keep])
    y = problem.b[:, :k_y] @ (root_y[:, None] * p_y[:, :keep])
    sigma = sigma[:keep]
    for weighting in weightings:
        found: dict[Task, Array] = {}
        for task in TASKS:
            for_x, for_y = weight_factors(sigma, weighting, task)
            found[task] = ranks(
                apply_factors(x, for_x),
                apply_factors(y, for_y),
                problem.truth.pairing,
                task=task,
                similarity=problem.similarity,
            )
        yield found


def textbook_path(
    problem: Problem,
    w_x: Weights,
    w_y: Weights,
    weighting: Weighting = "asymmetric",
    n_components: int | None = None,
) -> Iterator[tuple[int, int, dict[Task, Array]]]:
    """``(x index, y index, ranks)`` over the whole grid; no ranks where a point failed numerically."""
    for i in range(w_x.rows.shape[0]):
        for j in range(w_y.rows.shape[0]):
            point = textbook_ranks(problem, w_x.rows[i, :], w_y.rows[j, :], (weighting,), n_components)
            try:
                yield i, j, next(point)
            except (InputError, np.linalg.LinAlgError):
                yield i, j, {}


def _kept(weights: Array) -> Array:
    xp = namespace(weights)
    return weights[: int(xp.nonzero(weights)[0][-1]) + 1]


def _tolerance(sigma: Array, k_x: int, k_y: int) -> float:
    xp = namespace(sigma)
    return float(xp.finfo(sigma.dtype).eps) * max(k_x, k_y) * float(sigma[0])


BLOCK_BYTES = 2**26


def dimensions_up_to(full: int, points: int = 16) -> list[int]:
    """Dimensions to try: about evenly spaced on a logarithmic scale, the full one included."""
    return sorted({round(d) for d in np.geomspace(min(4, full), full, points)})


def best_dimension(
    problem: Problem,
    spectra: Spectra,
    model: CanonicalModel,
    weighting: Weighting,
    task: Task,
    metric: Metric,
) -> int:
    """The dimension with the best ``metric`` on the validation pairs; the smaller one on a tie."""
    xp = namespace(problem.a)

    def embed(view: Array, vectors: Array, singular: Array, weights: Array) -> Array:
        # The problem's rows are in the eigenbasis, scaled by the largest singular value.
        inner = (vectors.T @ weights) * float(singular[0])
        return view @ xp.astype(move_like(inner, view), view.dtype, copy=False)

    x_map, y_map = maps(model, weighting, task)
    x = embed(problem.a, spectra.v_x, spectra.s_x, x_map)
    y = embed(problem.b, spectra.v_y, spectra.s_y, y_map)
    dimensions = dimensions_up_to(int(model.correlations.shape[0]))
    found = components_path(x, y, problem.truth.pairing, task, problem.similarity, metric.of, dimensions)
    return dimensions[int(np.argmax([metric.signed(value) for value in found]))]


def components_path(
    x: Array,
    y: Array,
    pairing: Array,
    task: Task,
    similarity: str,
    metric: Callable[[Array], float],
    dimensions: list[int],
) -> Floats:
    """``metric`` at each of the ``dimensions``, of full embeddings ``x`` and ``y`` of a task."""
    xp = namespace(x, y)
    truth = Truth.of(pairing, x.shape[0])
    queries, items = (y, x) if task == "search" else (x[truth.described, :], y)
    kept = np.arange(x.shape[1]) < np.asarray(dimensions)[:, None]
    weights = Weights.of(kept.astype(np.float64), x)
    norms = weights.rows @ (items * items).T
    lengths = xp.sqrt(weights.rows @ (queries * queries).T)
    if task == "search":
        own = xp.take(norms, pairing, axis=1)
    else:
        own = xp.stack([group_max(line, pairing, x.shape[0])[truth.described] for line in norms])
    slack = [tie_slack(lengths[d, :], xp.sqrt(own[d, :]), k, similarity) for d, k in enumerate(dimensions)]
    if similarity == "cosine":
        scale = 1.0 / xp.sqrt(xp.where(norms > 0, norms, 1.0))
    found: list[list[Array]] = [[] for _ in dimensions]
    rows = max(1, BLOCK_BYTES // (items.shape[0] * items.dtype.itemsize))
    for start in range(0, queries.shape[0], rows):
        for d, product in products(queries[start : start + rows, :], weights, items.T):
            scores = product * scale[d, :] if similarity == "cosine" else product - 0.5 * norms[d, :]
            at = slice(start, start + rows)
            if task == "search":
                found[d].append(search_ranks(scores, pairing[at], slack[d][at]))
            else:
                found[d].append(annotate_ranks(scores, truth, truth.described[at], slack[d][at]))
    return np.asarray([metric(to_numpy(xp.concat(parts))) for parts in found])
