"""Filters selected on validation images and scored on test images, without one SVD."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np
import threadpoolctl

from diptych._checks import TASKS, InputError, Task
from diptych.cca import Spectra, Tikhonov
from diptych.cca._filters import make_filters
from diptych.cca.selection import Grid, Path, Problem, make_grid, make_weights, regularization_path
from diptych.cca.selection._path import exact_points
from diptych.paper._cache import Result, digest
from diptych.paper._setting import Setting
from diptych.paper._sources import Floats, Rows, Source
from diptych.ranking import metric, summary

Kind: TypeAlias = Literal["tikhonov", "tsvd"]

VERSION = 2


def select(
    setting: Setting,
    image: Source,
    text: Source,
    validation: Rows,
    kind: Kind,
    spacing: str,
    similarity: str = "cosine",
) -> Result:
    """The parameters with the best r@1 on validation images, for each task, over a square grid."""

    def compute() -> Result:
        spectra = setting.spectra(image, text)
        problem = setting.problem(image, text, validation, similarity=similarity)
        grid = make_grid(kind, (spacing, setting.options.grid), spectra)
        path = regularization_path(problem, spectra, grid, metric("r@1"))
        return {"seconds": path.seconds, "threads": blas_threads(), "route": path.route, **chosen(path)}

    inputs = {
        "kind": kind,
        "spacing": spacing,
        "grid": setting.options.grid,
        "similarity": similarity,
        "validation": digest(validation),
    }
    return setting.remember(f"select {kind} {spacing}", VERSION, (image, text), inputs, compute)


def blas_threads() -> int:
    """How many threads matrix products may use."""
    libraries = threadpoolctl.threadpool_info()
    return max((each["num_threads"] for each in libraries if each["user_api"] == "blas"), default=1)


def chosen(path: Path) -> Result:
    """Parameters, place on the grid and score of each task's choice."""
    return {
        task: {"params": path.params(task), "place": path.choice[task], "score": path.best(task)}
        for task in TASKS
    }


def ranks_at(problem: Problem, spectra: Spectra, name: str, params: Any) -> dict[Task, Floats]:
    """Ranks of every query of both tasks for one filter; exact, by the identity that needs no SVD."""
    weights = make_weights(problem, spectra, point(spectra, name, params))
    _, _, ranks = next(exact_points(problem, weights))
    if not ranks:
        raise InputError(f"{name} at {params} gives numbers that are not finite; check the features.")
    return ranks


def point(spectra: Spectra, name: str, params: Any) -> Grid:
    """A grid of one point: the filters of that name, ``"guided"`` included."""
    x, y = make_filters(name, tuple(params), spectra.s_x, spectra.s_y)
    if isinstance(x, Tikhonov) and isinstance(y, Tikhonov):
        return Grid("tikhonov", np.array([x.gamma]), np.array([y.gamma]))
    return Grid("tsvd", np.array([float(params[0])]), np.array([float(params[1])]))


def selected_and_tested(
    setting: Setting,
    image: Source,
    text: Source,
    validation: Rows,
    tests: list[Rows],
    name: str,
    spacing: str,
    similarity: str = "cosine",
) -> list[Result]:
    """Select a filter for each task on validation images; scores and ranks on each set of test images."""
    kind: Kind = "tikhonov" if name == "tikhonov" else "tsvd"
    choice = select(setting, image, text, validation, kind, spacing, similarity)
    spectra = setting.spectra(image, text)
    found = []
    for rows in tests:
        problem = setting.problem(image, text, rows, similarity=similarity)
        at: dict[str, dict[Task, Floats]] = {}
        by_task: Result = {"query_ranks": {}}
        for task in TASKS:
            params = choice[task]["params"]
            if str(params) not in at:
                at[str(params)] = ranks_at(problem, spectra, name, params)
            ranks = at[str(params)][task]
            by_task[task], by_task["query_ranks"][task] = summary(ranks), ranks
        found.append(by_task)
    return found
