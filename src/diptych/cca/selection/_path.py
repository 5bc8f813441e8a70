"""The regularisation path: score every grid point by retrieval on validation pairs, choose the best per task.

It is Algorithm 2 for Tikhonov, Algorithm 3 for the truncated SVD, and line 1 of Algorithm 4 for guided
Tikhonov.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from operator import add
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import Array, Floats, fields_to_numpy, to_numpy
from diptych._checks import TASKS, DataWarning, InputError, Task
from diptych._progress import progress_bar
from diptych.cca._spectra import Spectra
from diptych.cca._streaming import Engine
from diptych.cca._weighting import Weighting
from diptych.cca.selection._exact import exact_rows
from diptych.cca.selection._grids import Grid, Path, Route, best_point, select_rows
from diptych.cca.selection._leave_one_out import LeftOut, leave_one_out_ranks
from diptych.cca.selection._problem import Problem, Weights, annotate_norms, make_weights
from diptych.cca.selection._screening import Screen, screen, screen_bytes
from diptych.cca.selection._textbook import correlation_path, textbook_path
from diptych.ranking import Metric, mean_recall, median_rank, recall_at_k
from diptych.ranking._ranks import Truth

Ranks: TypeAlias = np.ndarray[Any, Any]
Point: TypeAlias = tuple[int, int, dict[Task, Ranks]]
"""x index, y index and the ranks of both tasks; no ranks if the point failed numerically."""

Textbook: TypeAlias = Callable[[Problem, Weights, Weights], Iterator[Any]]
"""Yields the points of a grid with an SVD for each."""

Progress: TypeAlias = Callable[[float], None]

ALL_METRICS: dict[str, Callable[[Ranks], float]] = {
    "r@1": lambda ranks: recall_at_k(ranks, 1),
    "r@5": lambda ranks: recall_at_k(ranks, 5),
    "r@10": lambda ranks: recall_at_k(ranks, 10),
    "median_rank": median_rank,
}
SCREEN_BYTES = 4 * 2**30
"""Memory that screening may take."""

SMALLEST_SCREENED = 5
"""Grids with fewer values on a side are scored exactly: screening would save nothing."""

CORRELATION = Metric("correlation", float)
"""The mean correlation of variates over the validation pairs, which takes the place of ranks at a point."""

FIRST_LOOK = 250
"""Validation images that ``narrow_grid`` looks at."""


class NumericalFailureWarning(UserWarning):
    """A grid point gave numbers that are not finite; it is never chosen."""


def choose_route(
    problem: Problem,
    weights: tuple[Weights, Weights],
    metric: Metric,
    weighting: Weighting = "asymmetric",
    n_components: int | None = None,
    path_metrics: str = "metric",
) -> Route:
    """Return how to compute a path.

    The identity without an SVD holds for the asymmetric weighting at full dimension; anything else takes the
    textbook route. Screening pays for recall at a small k, on grids that are not small.
    """
    if metric is CORRELATION or weighting != "asymmetric" or n_components is not None:
        return "textbook"
    small_k = path_metrics == "metric" and metric.cutoff is not None and metric.cutoff <= 10
    large_grid = min(w.rows.shape[0] for w in weights) >= SMALLEST_SCREENED
    fits = screen_bytes(problem, *weights) <= SCREEN_BYTES
    return "screened" if small_k and large_grid and fits else "exact"


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
    extend: bool = False,
    progress: Progress = lambda share: None,
) -> Path:
    """Score every point of ``grid`` and choose the best for each task.

    Ties go to the stronger regularisation; a value that was added to the grid is chosen only if it is better
    (``best_point``).

    Parameters
    ----------
    problem, spectra, grid, metric
        Validation pairs, training spectra, parameters to try, and what to maximise.
    weighting, n_components, path_metrics
        As in ``AWCCA``.
    route
        None lets ``choose_route`` decide.
    engine
        Scores the rows of the grid; None: this process. Screening, a tenth of the work, always runs here.
    extend
        Extend an automatic grid while the best point of a task is on its edge, as far as that can change
        anything (see ``Grid.beyond``), and warn if the edge is one of a grid that was given.
    progress
        Called with the share that is done.
    """
    if path_metrics not in ("metric", "all"):
        raise InputError(f"path_metrics={path_metrics!r} is unknown; choose 'metric' or 'all'.")
    start = time.perf_counter()
    routes: list[Route] = []
    textbook: Textbook = (
        partial(correlation_path, n_components=n_components)
        if metric is CORRELATION
        else partial(textbook_path, weighting=weighting, n_components=n_components)
    )

    def score(part: Grid, progress: Progress) -> GridScores:
        weights = make_weights(problem, spectra, part)
        chosen = route or choose_route(problem, weights, metric, weighting, n_components, path_metrics)
        routes.append(chosen)
        if chosen == "screened":
            return _score_screened(problem, weights, metric, progress)
        if engine is not None:
            scorer = RowScorer.of(problem, weights, chosen, textbook)
            points = iter(engine.reduce(add, engine.map(scorer, range(part.shape[0]))))
        elif chosen == "exact":
            points = exact_points(problem, weights)
        else:
            points = textbook(problem, *weights)
        return _score_points(part.shape, points, metric, path_metrics, progress)

    path = _search_grid(grid, score, metric, spectra, extend, progress)
    path.route = routes[0]
    return _finish(path, start)


def narrow_grid(problem: Problem, spectra: Spectra, grid: Grid) -> Grid:
    """Return the values of an automatic grid around the best points for a sample of the validation images.

    The sample is scored at every second value, by the mean of r@1, r@5 and r@10, because r@1 alone varies
    too much on so few. What is returned may be extended, if the best point for all images is on its edge.
    """
    described = to_numpy(problem.truth.described)
    if not grid.automatic or len(described) < 2 * FIRST_LOOK or min(grid.shape) <= SMALLEST_SCREENED:
        return grid
    mask = np.zeros(problem.truth.x_count, dtype=bool)
    mask[described[np.linspace(0, len(described) - 1, FIRST_LOOK).astype(int)]] = True
    part = select_rows(problem.truth.pairing, mask)
    sample = replace(
        problem, a=problem.a[part.x, :], b=problem.b[part.y, :], truth=Truth.of(part.pairing, FIRST_LOOK)
    )
    every_second = replace(grid, x=grid.x[::2], y=grid.y[::2])
    path = regularization_path(sample, spectra, every_second, Metric("mean_recall", mean_recall))

    def around(values: Floats, side: int) -> Floats:
        chosen = [2 * path.choice[task][side] for task in TASKS]
        return values[max(0, min(chosen) - 1) : max(chosen) + 2]

    return replace(grid, x=around(grid.x, 0), y=around(grid.y, 1))


def leave_one_out_path(
    rows: LeftOut,
    grid: Grid,
    metric: Metric,
    *,
    path_metrics: str = "metric",
    progress: Progress = lambda share: None,
) -> Path:
    """Score every point of ``grid`` without validation pairs: each image is left out in turn.

    Ties go as in ``regularization_path``. The grid is never extended: beyond σ²₁ the map of an image is
    little more than the effect of its absence on the mean, which says nothing about retrieval. A warning
    tells of a choice on the edge.
    """
    start = time.perf_counter()

    def score(part: Grid, progress: Progress) -> GridScores:
        return _score_points(part.shape, leave_one_out_ranks(rows, part), metric, path_metrics, progress)

    fixed, advice = replace(grid, automatic=False), "give validation pairs to look there"
    path = _search_grid(fixed, score, metric, rows.spectra, True, progress, advice)
    path.grid, path.route, path.held_out = grid, "leave-one-out", rows.description
    return _finish(path, start)


def _finish(path: Path, start: float) -> Path:
    if path.failed:
        warnings.warn(
            f"{len(path.failed)} of {path.grid.shape[0] * path.grid.shape[1]} grid points failed numerically "
            "and were left out; see path_.failed",
            NumericalFailureWarning,
            stacklevel=3,
        )
    path.seconds = time.perf_counter() - start
    return path


def exact_points(
    problem: Problem, weights: tuple[Weights, Weights], norms: Array | None = None
) -> Iterator[Point]:
    """Yield every grid point with its ranks, by the exact route."""
    for i, search, annotate, finite in exact_rows(problem, *weights, norms):
        search, annotate, finite = to_numpy(search), to_numpy(annotate), to_numpy(finite)
        for j in range(len(finite)):
            yield i, j, {"search": search[j], "annotate": annotate[j]} if finite[j] else {}


@dataclass(frozen=True, eq=False)
class RowScorer:
    """Computes the points of one row of the grid; it can be sent to another process."""

    problem: Problem
    weights: tuple[Weights, Weights]
    norms: Any  # for the exact route, the annotate norms of all points; else None
    textbook: Textbook

    @classmethod
    def of(
        cls, problem: Problem, weights: tuple[Weights, Weights], route: str, textbook: Textbook
    ) -> RowScorer:
        """Return the scorer of a route, with NumPy arrays whatever the backend of the problem."""
        norms = to_numpy(annotate_norms(problem, *weights)) if route == "exact" else None
        host = replace(fields_to_numpy(problem), truth=fields_to_numpy(problem.truth))
        x, y = (Weights.of(to_numpy(w.rows), host.a) for w in weights)
        return cls(host, (x, y), norms, textbook)

    def __call__(self, i: int) -> list[Point]:
        row = Weights.of(self.weights[0].rows[i : i + 1], self.problem.a)
        if self.norms is not None:
            points = exact_points(self.problem, (row, self.weights[1]), self.norms[i : i + 1])
        else:
            points = self.textbook(self.problem, row, self.weights[1])
        return [(i, j, ranks) for _, j, ranks in points]


@dataclass(eq=False)
class GridScores:
    """Scores of the points of one grid; see ``Path``."""

    scores: dict[Task, dict[str, Floats]]
    exact: dict[Task, np.ndarray[Any, np.dtype[np.bool_]]]
    failed: list[tuple[int, int]] = field(default_factory=list)
    screens: list[tuple[Screen, Ranks, Ranks]] = field(default_factory=list)  # with their rows and columns

    @classmethod
    def empty(cls, shape: tuple[int, int], names: Iterable[str]) -> GridScores:
        """Return the scores of a grid before any point is scored."""
        scores = {task: {name: np.full(shape, np.nan) for name in names} for task in TASKS}
        exact = {task: np.ones(shape, dtype=bool) for task in TASKS}
        return cls(scores, exact)

    def choose(self, task: Task, metric: Metric, ages: Ranks) -> tuple[int, int]:
        """Return the ``best_point``. If it is a bound, it is verified and the best one sought again."""
        while True:
            sign = 1 if metric.greater_is_better else -1
            i, j = best_point(self.scores[task][metric.name] * sign, ages)
            if self.exact[task][i, j]:
                return i, j
            self._verify(task, metric, (i, j))

    def _verify(self, task: Task, metric: Metric, point: tuple[int, int]) -> None:
        """Replace the bound at ``point`` by the exact score, and lower other bounds by what it shows."""
        for screened, rows, columns in self.screens:
            i, j = np.flatnonzero(rows == point[0]), np.flatnonzero(columns == point[1])
            if not (len(i) and len(j)):
                continue
            score, at = screened.verify(task, int(i[0]), int(j[0])), np.ix_(rows, columns)
            for screened_task, bounds in screened.bounds.items():
                scores, exact = self.scores[screened_task][metric.name], self.exact[screened_task]
                scores[at] = np.where(exact[at], scores[at], bounds)
            self.scores[task][metric.name][point], self.exact[task][point] = score, True

    def insert(self, part: GridScores, rows: Ranks, columns: Ranks) -> None:
        """Copy the points of another grid to ``rows`` × ``columns`` of this one."""
        at = np.ix_(rows, columns)
        for task in TASKS:
            for name, values in part.scores[task].items():
                self.scores[task][name][at] = values
            self.exact[task][at] = part.exact[task]
        self.failed += [(int(rows[i]), int(columns[j])) for i, j in part.failed]
        self.screens += [(screened, rows[i], columns[j]) for screened, i, j in part.screens]


Score: TypeAlias = Callable[[Grid, Progress], GridScores]
Ages: TypeAlias = dict[str, np.ndarray[Any, np.dtype[np.int64]]]
"""For ``"x"`` and ``"y"``, in which extension each value was added; 0: in the first grid."""


def _score_points(
    shape: tuple[int, int], points: Iterator[Point], metric: Metric, path_metrics: str, progress: Progress
) -> GridScores:
    metrics: dict[str, Callable[[Ranks], float]] = {metric.name: metric}
    if path_metrics == "all":
        metrics |= ALL_METRICS
    result = GridScores.empty(shape, metrics)
    for done, (i, j, ranks) in enumerate(points, start=1):
        for task in ranks:
            for name, compute in metrics.items():
                result.scores[task][name][i, j] = compute(ranks[task])
        if not ranks:
            result.failed.append((i, j))
        progress(done / (shape[0] * shape[1]))
    return result


def _score_screened(
    problem: Problem, weights: tuple[Weights, Weights], metric: Metric, progress: Progress
) -> GridScores:
    assert metric.cutoff is not None
    screened = screen(problem, *weights, metric.cutoff, progress)
    result = GridScores.empty(screened.bounds["search"].shape, [metric.name])
    # There is nothing to verify where scores are not finite: the score is NaN, as on every route.
    failed = np.isnan(screened.bounds["search"])
    result.failed += [(int(i), int(j)) for i, j in np.argwhere(failed)]
    for task in TASKS:
        result.scores[task][metric.name][:] = screened.bounds[task]
        result.exact[task][:] = failed
    result.screens.append((screened, np.arange(failed.shape[0]), np.arange(failed.shape[1])))
    return result


def _search_grid(
    grid: Grid,
    score: Score,
    metric: Metric,
    spectra: Spectra,
    extend: bool,
    progress: Progress,
    advice: str = "give a wider grid",
) -> Path:
    """Score ``grid`` and choose; extend an automatic grid while the choice is on its edge."""
    scores = score(grid, progress)
    ages: Ages = {"x": np.zeros(len(grid.x), dtype=int), "y": np.zeros(len(grid.y), dtype=int)}
    while True:
        age = np.maximum(ages["x"][:, None], ages["y"])
        with progress_bar("verifying the best points"):
            choice = {task: scores.choose(task, metric, age) for task in TASKS}
        edges = sorted({edge for task in TASKS for edge in grid.edges_at(choice[task])}) if extend else []
        new = {edge: values for edge in edges if len(values := grid.beyond(*edge, spectra))}
        if not grid.automatic or not new:
            break
        grid, scores, ages = _extend(grid, scores, ages, new, score)
    progress(1.0)
    open_edges = [edge for edge in edges if not grid.automatic and not grid.is_limit(*edge, spectra)]
    if open_edges:
        places = " and ".join(
            f"the {end} of {side.upper()} ({grid.edge(side, end):.4g})" for side, end in open_edges
        )
        warnings.warn(
            f"the best point is on the edge of the grid, at {places}; a better one may lie beyond: {advice}.",
            DataWarning,
            stacklevel=4,
        )
    extended = {}
    for side, added_in in ages.items():
        original = np.flatnonzero(added_in == 0)
        extended[side] = int(original[0]), len(added_in) - 1 - int(original[-1])
    return Path(
        grid, metric.name, scores.scores, scores.exact, choice, "exact", 0.0, scores.failed, extended=extended
    )


def _extend(
    grid: Grid, scores: GridScores, ages: Ages, new: dict[tuple[str, str], Floats], score: Score
) -> tuple[Grid, GridScores, Ages]:
    """Return the grid with the ``new`` values at its ends, and its scores; only new points are scored."""
    none = np.empty(0)
    values: dict[str, Floats] = {}
    newer: Ages = {}
    old: dict[str, Ranks] = {}
    fresh: dict[str, Ranks] = {}
    age = 1 + max(int(np.max(side)) for side in ages.values())
    for side, previous in (("x", grid.x), ("y", grid.y)):
        first, last = new.get((side, "strongest"), none), new.get((side, "weakest"), none)
        values[side] = np.concatenate([first, previous, last])
        newer[side] = np.pad(ages[side], (len(first), len(last)), constant_values=age)
        old[side] = np.arange(len(previous)) + len(first)
        fresh[side] = np.flatnonzero(newer[side] == age)
    wider = replace(grid, x=values["x"], y=values["y"])
    result = GridScores.empty(wider.shape, scores.scores["search"])
    result.insert(scores, old["x"], old["y"])
    for rows, columns in ((fresh["x"], np.arange(wider.shape[1])), (old["x"], fresh["y"])):
        if len(rows) and len(columns):
            part = replace(wider, x=wider.x[rows], y=wider.y[columns])
            with progress_bar("selecting on a wider grid") as progress:
                result.insert(score(part, progress), rows, columns)
    return wider, result, newer
