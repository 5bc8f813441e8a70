"""Ranks along the rows of a grid, here or in another process.

A regularisation path: every grid point scored by retrieval on validation pairs, and the best per task.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any, Literal, TypeAlias

import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import Array, fields_to_numpy, to_numpy
from diptych._checks import TASKS, DataWarning, InputError, Task
from diptych.cca._spectra import Spectra
from diptych.cca._streaming import Engine
from diptych.cca._weighting import Weighting
from diptych.cca.selection._exact import exact_rows
from diptych.cca.selection._grids import Floats, Grid
from diptych.cca.selection._leave_one_out import LeftOut, leave_one_out_ranks
from diptych.cca.selection._problem import Problem, Weights, annotate_norms, make_weights
from diptych.cca.selection._screening import ANCHORS_PER_SIDE, screen, screen_bytes
from diptych.cca.selection._textbook import textbook_path
from diptych.ranking import Metric, mean_recall, median_rank, recall_at_k

Ranks: TypeAlias = np.ndarray[Any, Any]


def exact_points(
    problem: Problem, weights: tuple[Weights, Weights], norms: Array | None = None
) -> Iterator[tuple[int, int, dict[Task, Ranks]]]:
    """``(x index, y index, ranks of both tasks)``; no ranks where a point failed numerically."""
    for i, search, annotate, finite in exact_rows(problem, *weights, norms):
        search, annotate, finite = to_numpy(search), to_numpy(annotate), to_numpy(finite)
        for j in range(len(finite)):
            yield i, j, {"search": search[j], "annotate": annotate[j]} if finite[j] else {}


@dataclass(frozen=True, eq=False)
class RowScorer:
    """Ranks at every point of one row of the grid; it can be sent to another process.

    Attributes
    ----------
    problem, weights
        See ``diptych.cca.selection._problem``.
    norms
        Of the exact route, the captions' norms at every point, which all rows share.
    weighting, n_components
        Of the textbook route.
    """

    problem: Problem
    weights: tuple[Weights, Weights]
    norms: Any
    weighting: Weighting
    n_components: int | None

    @classmethod
    def of(
        cls,
        problem: Problem,
        weights: tuple[Weights, Weights],
        route: str,
        weighting: Weighting,
        n_components: int | None,
    ) -> RowScorer:
        """For ``route``, in NumPy wherever the problem is."""
        norms = to_numpy(annotate_norms(problem, *weights)) if route == "exact" else None
        truth = fields_to_numpy(problem.truth)
        here = replace(fields_to_numpy(problem), truth=truth)
        x, y = (Weights.of(to_numpy(each.rows), here.a) for each in weights)
        return cls(here, (x, y), norms, weighting, n_components)

    def __call__(self, i: int) -> list[tuple[int, int, dict[Task, Ranks]]]:
        """The points of row ``i``."""
        row = Weights.of(self.weights[0].rows[i : i + 1], self.problem.a)
        if self.norms is not None:
            points = exact_points(self.problem, (row, self.weights[1]), self.norms[i : i + 1])
        else:
            points = textbook_path(self.problem, row, self.weights[1], self.weighting, self.n_components)
        return [(i, j, ranks) for _, j, ranks in points]


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
        For each task, where ``scores`` are exact. Elsewhere they are upper bounds below the best exact value
        (the screened route): enough to choose by, and often above the exact value, for truncated SVDs above
        all.
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
    extended
        For ``"x"`` and ``"y"``, how many stronger and how many weaker values were added to an automatic grid
        whose best point lay on its edge.
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
    extended: dict[str, tuple[int, int]] = field(default_factory=lambda: {"x": (0, 0), "y": (0, 0)})

    def params(self, task: Task) -> tuple[float, float] | tuple[int, int]:
        """The chosen parameters of a task."""
        return self.grid.params(*self.choice[task])

    def best(self, task: Task) -> float:
        """The metric at the chosen point."""
        return float(self.scores[task][self.metric][self.choice[task]])

    def edges(self, task: Task) -> list[str]:
        """Name the edges of the grid that the chosen point lies on, such as ``"strongest of X"``."""
        return [f"{end} of {side.upper()}" for side, end in _edges(self.grid, self.choice[task])]

    def describe_extension(self) -> str:
        """Say in words how the grid was extended; empty if it was not."""
        added = [
            f"{count} {end} value{'s' if count > 1 else ''} of {side.upper()}"
            for side, counts in self.extended.items()
            for count, end in zip(counts, ("stronger", "weaker"), strict=True)
            if count
        ]
        return f"the best point lay on the edge of the grid, so it got {', '.join(added)}" if added else ""


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
    extend: bool = False,
    progress: Callable[[float], None] = lambda share: None,
) -> Path:
    """Score every point of ``grid`` and choose the best for each task.

    Ties go to the higher mean of r@1, r@5 and r@10, then to the stronger regularisation. A value that was
    added to the grid wins only if it is better.

    Parameters
    ----------
    path_metrics
        ``"metric"`` keeps what ``metric`` gives; ``"all"`` keeps r@1, r@5, r@10 and the median rank too.
    route
        None lets ``choose_route`` decide.
    engine
        What scores the rows of the grid, each by itself; None: this process. Where screening serves, it
        stays here: it needs a tenth of the work.
    extend
        Extend an automatic grid while the best point of a task lies on its edge, as far as that can change
        anything (see ``Grid.beyond``), and warn where the edge is one of a grid that was given.
    progress
        Called now and then with the share that is done.
    """
    if path_metrics not in ("metric", "all"):
        raise InputError(f"path_metrics={path_metrics!r} is unknown; choose 'metric' or 'all'.")
    start = time.perf_counter()
    routes: list[Route] = []

    def score(part: Grid, progress: Callable[[float], None]) -> Scored:
        weights = make_weights(problem, spectra, part)
        way = route or choose_route(problem, weights, metric, weighting, n_components, path_metrics)
        routes.append(way)
        if way == "screened":
            return _screened(problem, weights, metric, progress)
        if engine is not None:
            scorer = RowScorer.of(problem, weights, way, weighting, n_components)
            points = iter(engine.reduce(add, engine.map(scorer, range(part.shape[0]))))
        elif way == "exact":
            points = exact_points(problem, weights)
        else:
            points = textbook_path(problem, *weights, weighting, n_components)
        return _collect(part.shape, points, metric, path_metrics, progress)

    path = _searched(grid, score, metric, spectra, extend, progress)
    path.route = routes[0]
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

    Ties go as in ``regularization_path``. The grid is never extended: beyond σ²₁ an image's map is little but
    what its absence does to the mean, which is no measure of retrieval. An edge that was chosen is warned of.
    """
    start = time.perf_counter()

    def score(part: Grid, progress: Callable[[float], None]) -> Scored:
        return _collect(part.shape, leave_one_out_ranks(rows, part), metric, path_metrics, progress)

    as_given, advice = replace(grid, automatic=False), "give validation pairs to look there"
    path = _searched(as_given, score, metric, rows.spectra, True, progress, advice)
    path.grid, path.route, path.held_out = grid, "leave-one-out", rows.said
    return _finished(path, start)


@dataclass(eq=False)
class Scored:
    """What is known of the points of one grid; see ``Path``. ``recalls`` break ties between exact scores."""

    scores: dict[Task, dict[str, Floats]]
    exact: dict[Task, np.ndarray[Any, np.dtype[np.bool_]]]
    recalls: dict[Task, Floats]
    failed: list[tuple[int, int]]

    @classmethod
    def empty(cls, shape: tuple[int, int], names: Iterable[str]) -> Scored:
        """Of a grid of which nothing is known yet."""
        scores = {task: {name: np.full(shape, np.nan) for name in names} for task in TASKS}
        exact = {task: np.ones(shape, dtype=bool) for task in TASKS}
        return cls(scores, exact, {task: np.full(shape, np.nan) for task in TASKS}, [])

    def signed(self, task: Task, metric: Metric) -> Floats:
        """Exact values of ``metric`` with the sign that makes greater better; NaN where none is known."""
        values = np.where(self.exact[task], self.scores[task][metric.name], np.nan)
        return values if metric.greater_is_better else -values

    def put(self, other: Scored, rows: Ranks, columns: Ranks) -> None:
        """Take over the points of a grid whose values stand at ``rows`` and ``columns`` of this one."""
        at = np.ix_(rows, columns)
        for task in TASKS:
            for name, values in other.scores[task].items():
                self.scores[task][name][at] = values
            self.exact[task][at] = other.exact[task]
            self.recalls[task][at] = other.recalls[task]
        self.failed += [(int(rows[i]), int(columns[j])) for i, j in other.failed]


Score: TypeAlias = Callable[[Grid, Callable[[float], None]], Scored]


def _searched(
    grid: Grid,
    score: Score,
    metric: Metric,
    spectra: Spectra,
    extend: bool,
    progress: Callable[[float], None],
    advice: str = "give a wider grid",
) -> Path:
    """Score ``grid``, choose, and extend the grid where that is wanted; only new points are scored."""
    found = score(grid, progress)
    # How often the grid had been extended when a value came in.
    ages = {side: np.zeros(len(values), dtype=int) for side, values in (("x", grid.x), ("y", grid.y))}
    added = {"x": (0, 0), "y": (0, 0)}
    age = 0
    while True:
        choice = {
            task: _choose(
                found.signed(task, metric), found.recalls[task], np.maximum(ages["x"][:, None], ages["y"])
            )
            for task in TASKS
        }
        edges = {edge for task in TASKS for edge in _edges(grid, choice[task])} if extend else set()
        new = {edge: grid.beyond(*edge, spectra) for edge in sorted(edges)}
        new = {edge: values for edge, values in new.items() if len(values)}
        if not grid.automatic or not new:
            break
        age += 1
        none = np.empty(0)
        first = {side: new.get((side, "strongest"), none) for side in ages}
        last = {side: new.get((side, "weakest"), none) for side in ages}
        old = {side: np.arange(len(ages[side])) + len(first[side]) for side in ages}
        for side in ages:
            sizes = len(first[side]), len(last[side])
            added[side] = added[side][0] + sizes[0], added[side][1] + sizes[1]
            ages[side] = np.pad(ages[side], sizes, constant_values=age)
        grid = replace(
            grid,
            x=np.concatenate([first["x"], grid.x, last["x"]]),
            y=np.concatenate([first["y"], grid.y, last["y"]]),
        )
        wider = Scored.empty(grid.shape, found.scores["search"])
        wider.put(found, old["x"], old["y"])
        fresh = {side: np.setdiff1d(np.arange(len(ages[side])), old[side]) for side in ages}
        for rows, columns in ((fresh["x"], np.arange(grid.shape[1])), (old["x"], fresh["y"])):
            if len(rows) and len(columns):
                part = replace(grid, x=grid.x[rows], y=grid.y[columns])
                wider.put(score(part, lambda share: None), rows, columns)
        found = wider
    open_edges = [edge for edge in sorted(edges) if not grid.automatic and not grid.is_limit(*edge, spectra)]
    if open_edges:
        named = " and ".join(
            f"the {end} of {side.upper()} ({grid.edge(side, end):.4g})" for side, end in open_edges
        )
        warnings.warn(
            f"the best point lies on the edge of the grid, at {named}; a better one may lie beyond: "
            f"{advice}.",
            DataWarning,
            stacklevel=4,
        )
    return Path(
        grid, metric.name, found.scores, found.exact, choice, "exact", 0.0, found.failed, extended=added
    )


def _edges(grid: Grid, point: tuple[int, int]) -> list[tuple[str, str]]:
    """The ends of either side that ``point`` lies on; a side of one value has none."""
    found = []
    for side, at, length in zip(("x", "y"), point, grid.shape, strict=True):
        if length > 1 and at in (0, length - 1):
            found.append((side, "strongest" if at == 0 else "weakest"))
    return found


def _collect(
    shape: tuple[int, int],
    points: Iterator[tuple[int, int, dict[Task, Ranks]]],
    metric: Metric,
    path_metrics: str,
    progress: Callable[[float], None],
) -> Scored:
    names: dict[str, Callable[[Ranks], float]] = {
        metric.name: metric,
        **(ALL_METRICS if path_metrics == "all" else {}),
    }
    found = Scored.empty(shape, names)
    for done, (i, j, ranks) in enumerate(points, start=1):
        for task in TASKS:
            if task not in ranks:
                continue
            for name, of in names.items():
                found.scores[task][name][i, j] = of(ranks[task])
            found.recalls[task][i, j] = mean_recall(ranks[task])
        if not ranks:
            found.failed.append((i, j))
        progress(done / (shape[0] * shape[1]))
    return found


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


def _screened(
    problem: Problem,
    weights: tuple[Weights, Weights],
    metric: Metric,
    progress: Callable[[float], None],
) -> Scored:
    assert metric.cutoff is not None
    screened = screen(problem, *weights, metric.cutoff, progress)
    found = Scored.empty(screened.bounds["search"].shape, [metric.name])
    # Where the arithmetic is not finite there is nothing to verify: the score is NaN, as on every route.
    failed = np.isnan(screened.bounds["search"])
    found.failed += [(int(i), int(j)) for i, j in np.argwhere(failed)]
    for task in TASKS:
        found.scores[task][metric.name][:] = screened.bounds[task]
        found.exact[task][:] = failed
    for task in TASKS:
        scores, exact = found.scores[task][metric.name], found.exact[task]
        while True:
            open_bounds = np.where(exact, -np.inf, scores)
            best = np.max(np.where(exact & ~failed, scores, -np.inf))
            # A bound that only equals the best still has to be looked at: it may win the tie.
            if exact.all() or open_bounds.max() < best - 1e-9:
                break
            i, j = (int(v) for v in np.unravel_index(open_bounds.argmax(), scores.shape))
            for each, ranks in screened.exact(i, j).items():
                found.scores[each][metric.name][i, j] = metric(ranks)
                found.exact[each][i, j] = True
                found.recalls[each][i, j] = mean_recall(ranks)
    progress(1.0)
    return found


def _choose(signed: Floats, recalls: Floats, ages: Floats) -> tuple[int, int]:
    """The best point; ties by ``recalls``, then by ``ages``, then by how far up the grid.

    Up the grid is towards more regularisation; ``ages`` say when a point was added, 0 being the first grid.
    """
    if not np.any(np.isfinite(signed)):
        raise InputError("every grid point failed numerically; check the data for extreme values.")
    tied = [(int(i), int(j)) for i, j in np.argwhere(signed >= np.nanmax(signed) - 1e-9)]
    return min(tied, key=lambda at: (-round(float(recalls[at]), 9), int(ages[at]), sum(at), at))
