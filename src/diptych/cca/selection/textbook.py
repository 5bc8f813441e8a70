"""The textbook route: one SVD per grid point, which then serves every weighting and dimension.

It is the reference the exact path is tested against, and the only route for weightings other than the
asymmetric one and for embeddings of fewer dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from diptych.arrays import Array, namespace, svd
from diptych.cca.selection.problem import Problem, Weights
from diptych.cca.weighting import Weighting, weighted
from diptych.checks import TASKS, InputError, Task
from diptych.ranking import ranks


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
    p_x, sigma, p_y = svd(root_x[:, None] * problem.t0[:k_x, :k_y] * root_y)
    keep = sigma.shape[0] if n_components is None else min(n_components, int(sigma.shape[0]))
    keep = min(keep, max(1, int(xp.count_nonzero(sigma > _tolerance(sigma, k_x, k_y)))))
    x = problem.a[:, :k_x] @ (root_x[:, None] * p_x[:, :keep])
    y = problem.b[:, :k_y] @ (root_y[:, None] * p_y[:keep, :].T)
    sigma = sigma[:keep]
    for weighting in weightings:
        found: dict[Task, Array] = {}
        for task in TASKS:
            found[task] = ranks(
                weighted(x, sigma, weighting, task, "x"),
                weighted(y, sigma, weighting, task, "y"),
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
