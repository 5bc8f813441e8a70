"""A regularisation path: every grid point scored by retrieval on validation pairs, and the best per task."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import add
from typing import Any, Literal, TypeAlias

import numpy as np
from array_api_compat import is_numpy_array

from diptych.cca.engine import Engine
from diptych.cca.selection.grids import Floats, Grid
from diptych.cca.selection.leave_one_out import LeftOut, leave_one_out_ranks
from diptych.cca.selection.problem import Problem, Weights, make_weights
from diptych.cca.selection.rows import Ranks, RowScorer, exact_points
from diptych.cca.selection.screening import ANCHORS_PER_SIDE, screen, screen_bytes
from diptych.cca.selection.textbook import textbook_path
from diptych.cca.spectra import Spectra
from diptych.cca.weighting import Weighting
from diptych.checks import TASKS, InputError, Task
from diptych.ranking import Metric, mean_recall, median_rank, recall_at_k

Route: TypeAlias = Literal["screened", "exact", "textbook", "leave-one-out"]

ALL_METRICS: dict[str, Callable[[Ranks], float]] = {
    "r@1": lambda ranks: recall_at_k(ranks, 1),
    "r@5": lambda ranks: recall_at_k(ranks, 5),
    "r@10": lambda ranks: recall_at_k(ranks, 10),
    "median_rank": median_rank,
}
SCREEN_BYTES = 4 * 2**30


class NumericalFailureWarning(UserWarning):
    """A grid point gave numbers that are not finite; it is never chosen."""


@dataclass(eq=False)
class Path:
    """Scores over a grid, and the choice for each task.

    Attributes
    ----------
    grid
        Parameters on both sides, strongest regularisation first.
    metric
        Name of the metric that chose.
    scores
        For each task and metric, x values × y values; NaN where a point failed.
    exact
        For each task, where ``scores`` are exact. Elsewhere they are upper bounds that were below the
        best exact value (the screened route), nearly always equal to the exact value.
    choice
        For each task, the chosen point (x index, y index).
    route
        ``"screened"``, ``"exact"``, ``"textbook"`` or ``"leave-one-out"``: how it was computed.
    seconds
        Time spent.
    failed
        Points that failed numerically.
    held_out
        In words, which pairs scored it.
    """

    grid: Grid
    metric: str
    scores: dict[Task, dict[str, Floats]]
    exact: dict[Task, np.ndarray[Any, np.dtype[np.bool_]]]
    choice: dict[Task, tuple[int, int]]
    route: Route
    seconds: float
    failed: list[tuple[int, int]] = field(default_factory=list)
    held_out: str = "the given validation pairs"

    def params(self, task: Task) -> tuple[float, float] | tuple[int, int]:
        """The chosen parameters of a task."""
        return self.grid.params(*self.choice[task])

    def best(self, task: Task) -> float:
        """The metric at the chosen point."""
        return float(self.scores[task][self.metric][self.choice[task]])


def choose_route(
    problem: Problem,
    weights: tuple[Weights, Weights],
    metric: Metric,
    weighting: Weighting = "asymmetric",
    n_components: int | None = None,
    path_metrics: str = "metric",
) -> Route:
    """The one place where the way of computing a path is chosen.

    The SVD-free identity holds for the asymmetric weighting at full dimension; anything else takes the
    textbook route. Screening pays on a CPU, for recall at a small k, on grids larger than its anchors.
    """
    if weighting != "asymmetric" or n_components is not None:
        return "textbook"
    on_cpu = is_numpy_array(problem.a)
    short = path_metrics == "metric" and metric.cutoff is not None and metric.cutoff <= 10
    large = min(w.rows.shape[0] for w in weights) > ANCHORS_PER_SIDE + 1
    fits = screen_bytes(problem, *weights) <= SCREEN_BYTES
    return "screened" if on_cpu and short and large and fits else "exact"


def regularization_path(
    problem: Problem,
    spectra: Spectra,
    grid: Grid,
    metric: Metric,
    *,
    weighting: Weighting = "asymmetric",
    n_components: int | None = None,
    path_metrics: str = "metric",
    route: Route | None = None,
    engine: Engine | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Path:
    """Score every point of ``grid`` and choose the best for each task.

    Ties go to the higher mean of r@1, r@5 and r@10, then to the stronger regularisation.

    Parameters
    ----------
    path_metrics
        ``"metric"`` keeps what ``metric`` gives; ``"all"`` keeps r@1, r@5, r@10 and the median rank too.
    route
        None lets ``choose_route`` decide.
    engine
        What scores the rows of the grid, each by itself; None: this process. Where screening serves, it
        stays here: it needs a tenth of the work.
    progress
        Called now and then with the share that is done.
    """
    if path_metrics not in ("metric", "all"):
        raise InputError(f"path_metrics={path_metrics!r} is unknown; choose 'metric' or 'all'.")
    start = time.perf_counter()
    weights = make_weights(problem, spectra, grid)
    route = route or choose_route(problem, weights, metric, weighting, n_components, path_metrics)
    path = _empty(grid, metric, path_metrics, route)
    if engine is not None and route != "screened":
        score = RowScorer.of(problem, weights, route, weighting, n_components)
        points = engine.reduce(add, engine.map(score, range(grid.shape[0])))
        _fill(path, iter(points), metric, path_metrics, progress)
    elif route == "screened":
        _screened(path, problem, weights, metric, progress)
    else:
        found = (
            exact_points(problem, weights)
            if route == "exact"
            else textbook_path(problem, *weights, weighting, n_components)
        )
        _fill(path, found, metric, path_metrics, progress)
    return _finished(path, start)


def leave_one_out_path(
    rows: LeftOut,
    grid: Grid,
    metric: Metric,
    *,
    path_metrics: str = "metric",
    progress: Callable[[float], None] = lambda share: None,
) -> Path:
    """Score every point of ``grid`` with no validation pairs: each image is left out in turn.

    Ties go as in ``regularization_path``.
    """
    start = time.perf_counter()
    path = _empty(grid, metric, path_metrics, "leave-one-out")
    path.held_out = rows.said
    _fill(path, leave_one_out_ranks(rows, grid), metric, path_metrics, progress)
    return _finished(path, start)


def _empty(grid: Grid, metric: Metric, path_metrics: str, route: Route) -> Path:
    names = [metric.name, *(ALL_METRICS if path_metrics == "all" else ())]
    scores = {task: {name: np.full(grid.shape, np.nan) for name in names} for task in TASKS}
    exact = {task: np.ones(grid.shape, dtype=bool) for task in TASKS}
    return Path(grid, metric.name, scores, exact, {}, route, 0.0)


def _fill(
    path: Path,
    points: Iterator[tuple[int, int, dict[Task, Ranks]]],
    metric: Metric,
    path_metrics: str,
    progress: Callable[[float], None],
) -> None:
    shape, scores = path.grid.shape, path.scores
    names = {metric.name: metric.of, **(ALL_METRICS if path_metrics == "all" else {})}
    recalls = {task: np.full(shape, np.nan) for task in TASKS}
    for done, (i, j, ranks) in enumerate(points, start=1):
        for task in TASKS:
            _note(path, task, i, j, ranks.get(task), names, recalls)
        progress(done / (shape[0] * shape[1]))
    for task in TASKS:
        signed = np.asarray([metric.signed(v) for v in scores[task][metric.name].reshape(-1)])
        path.choice[task] = _choose(signed.reshape(shape), recalls[task])


def _finished(path: Path, start: float) -> Path:
    if path.failed:
        warnings.warn(
            f"{len(path.failed)} of {path.grid.shape[0] * path.grid.shape[1]} grid points failed numerically "
            "and were left out; see path_.failed",
            NumericalFailureWarning,
            stacklevel=3,
        )
    path.seconds = time.perf_counter() - start
    return path


def _note(
    path: Path,
    task: Task,
    i: int,
    j: int,
    ranks: Ranks | None,
    names: Mapping[str, Callable[[Ranks], float]],
    recalls: dict[Task, Floats],
) -> None:
    if ranks is None:
        if (i, j) not in path.failed:
            path.failed.append((i, j))
        return
    for name, of in names.items():
        path.scores[task][name][i, j] = of(ranks)
    recalls[task][i, j] = mean_recall(ranks)


def _screened(
    path: Path,
    problem: Problem,
    weights: tuple[Weights, Weights],
    metric: Metric,
    progress: Callable[[float], None],
) -> None:
    assert metric.cutoff is not None
    screened = screen(problem, *weights, metric.cutoff, progress)
    recalls = {task: np.full(path.grid.shape, -np.inf) for task in TASKS}
    for task in TASKS:
        path.scores[task][metric.name][:] = screened.bounds[task]
        path.exact[task][:] = False
    for task in TASKS:
        scores, exact = path.scores[task][metric.name], path.exact[task]
        while True:
            open_bounds = np.where(exact, -np.inf, scores)
            best = np.max(np.where(exact, scores, -np.inf))
            # A bound that only equals the best still has to be looked at: it may win the tie.
            if open_bounds.max() < best - 1e-9:
                break
            i, j = (int(v) for v in np.unravel_index(open_bounds.argmax(), scores.shape))
            for each, ranks in screened.exact(i, j).items():
                path.scores[each][metric.name][i, j] = metric.of(ranks)
                path.exact[each][i, j] = True
                recalls[each][i, j] = mean_recall(ranks)
        path.choice[task] = _choose(np.where(exact, scores, -np.inf), recalls[task])
    progress(1.0)


def _choose(signed: Floats, recalls: Floats) -> tuple[int, int]:
    """The best point; ties by ``recalls``, then by how far up the grid (towards more regularisation)."""
    if not np.any(np.isfinite(signed)):
        raise InputError("every grid point failed numerically; check the data for extreme values.")
    best = np.nanmax(signed)
    tied = [(int(i), int(j)) for i, j in np.argwhere(signed >= best - 1e-9)]
    return min(tied, key=lambda point: (-round(float(recalls[point]), 9), sum(point), point))
