"""What an experiment is, and the step that most of them share: select filters, then test them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import threadpoolctl

from diptych._checks import TASKS, InputError, Task
from diptych.cca import Spectra, Tikhonov
from diptych.cca._filters import make_filters
from diptych.cca.selection import Grid, Problem, make_grid, make_weights, regularization_path
from diptych.cca.selection._path import exact_points
from diptych.paper._features import Features, Floats, Result, Rows, digest
from diptych.paper._setting import Setting
from diptych.paper._tables import ReportTable
from diptych.ranking import metric, summary
from diptych.report._page import Html

Jobs: TypeAlias = dict[str, Callable[[], Result]]
Results: TypeAlias = dict[str, Result]
"""Result of each job of an experiment."""
Records: TypeAlias = list[dict[str, Any]]
Part: TypeAlias = str | Html | ReportTable
"""A paragraph, markup or table of a section of the report; tables are written as files too."""
Kind: TypeAlias = Literal["tikhonov", "tsvd"]


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    Attributes
    ----------
    name
        Its name on the command line.
    title
        Its heading in the report.
    jobs
        Returns the jobs, each a function that computes a result; results are stored when a job is done.
    show
        Returns the parts of its section of the report.
    tables
        Returns further numbers, such as those of figures, as records by table name, for CSV files.
    """

    name: str
    title: str
    jobs: Callable[[Setting], Jobs]
    show: Callable[[Setting, Results], list[Part]]
    tables: Callable[[Results], dict[str, Records]] = lambda results: {}


def select(
    setting: Setting,
    image: Features,
    text: Features,
    validation: Rows,
    kind: Kind,
    spacing: str,
    similarity: str = "cosine",
) -> Result:
    """Select for each task the parameters with the best r@1 on validation images, over a square grid."""

    def compute() -> Result:
        spectra = setting.spectra(image, text)
        problem = setting.problem(image, text, validation, similarity=similarity)
        grid = make_grid(kind, (spacing, setting.options.grid), spectra)
        path = regularization_path(problem, spectra, grid, metric("r@1"))
        choice: Result = {
            task: {"params": path.params(task), "place": path.choice[task], "score": path.best(task)}
            for task in TASKS
        }
        return {"seconds": path.seconds, "threads": blas_threads(), "route": path.route, **choice}

    inputs = {
        "kind": kind,
        "spacing": spacing,
        "grid": setting.options.grid,
        "similarity": similarity,
        "validation": digest(validation),
    }
    return setting.fetch(f"select {kind} {spacing}", (image, text), inputs, compute)


def blas_threads() -> int:
    """Return how many threads matrix products may use."""
    libraries = threadpoolctl.threadpool_info()
    return max((each["num_threads"] for each in libraries if each["user_api"] == "blas"), default=1)


def rank_queries(problem: Problem, spectra: Spectra, name: str, params: Any) -> dict[Task, Floats]:
    """Rank every query of both tasks with one filter, exactly and without an SVD."""
    x, y = make_filters(name, tuple(params), spectra.s_x, spectra.s_y)
    if isinstance(x, Tikhonov) and isinstance(y, Tikhonov):
        point = Grid("tikhonov", np.array([x.gamma]), np.array([y.gamma]))
    else:
        point = Grid("tsvd", np.array([float(params[0])]), np.array([float(params[1])]))
    _, _, ranks = next(exact_points(problem, make_weights(problem, spectra, point)))
    if not ranks:
        raise InputError(f"{name} at {params} gives numbers that are not finite; check the features.")
    return ranks


def select_and_test(
    setting: Setting,
    image: Features,
    text: Features,
    validation: Rows,
    tests: list[Rows],
    name: str,
    spacing: str,
    similarity: str = "cosine",
) -> list[Result]:
    """Select a filter for each task on validation images, and score it on each set of test images."""
    kind: Kind = "tikhonov" if name == "tikhonov" else "tsvd"
    choice = select(setting, image, text, validation, kind, spacing, similarity)
    spectra = setting.spectra(image, text)
    results = []
    for rows in tests:
        problem = setting.problem(image, text, rows, similarity=similarity)
        ranks_at = cache(lambda *params, problem=problem: rank_queries(problem, spectra, name, params))
        ranks = {task: ranks_at(*choice[task]["params"])[task] for task in TASKS}
        scores: Result = {task: summary(ranks[task]) for task in TASKS}
        results.append({**scores, "query_ranks": ranks})
    return results
