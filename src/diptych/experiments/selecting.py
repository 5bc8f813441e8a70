"""Filters selected on validation images and scored on test images, without one SVD."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import numpy as np

from diptych.cca import Spectra, Tikhonov
from diptych.cca.filters import named_filters
from diptych.cca.selection import Grid, Path, Problem, make_grid, regularization_path
from diptych.checks import TASKS
from diptych.experiments.cache import Result, digest
from diptych.experiments.setting import Setting
from diptych.experiments.sources import Rows, Source
from diptych.ranking import metric

Kind: TypeAlias = Literal["tikhonov", "tsvd"]

VERSION = 1
METRICS = ("r@1", "r@5", "r@10", "median_rank")


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
        return {"seconds": path.seconds, "route": path.route, **chosen(path)}

    inputs = {
        "kind": kind,
        "spacing": spacing,
        "grid": setting.options.grid,
        "similarity": similarity,
        "validation": digest(validation),
    }
    return setting.remember(f"select {kind} {spacing}", VERSION, (image, text), inputs, compute)


def chosen(path: Path) -> Result:
    """Parameters, place on the grid and score of each task's choice."""
    return {
        task: {"params": path.params(task), "place": path.choice[task], "score": path.best(task)}
        for task in TASKS
    }


def scores_at(problem: Problem, spectra: Spectra, name: str, params: Any) -> Result:
    """All metrics of both tasks for one filter; exact, by the identity that needs no SVD."""
    path = regularization_path(
        problem, spectra, point(spectra, name, params), metric("r@1"), path_metrics="all", route="exact"
    )
    return {task: {key: float(path.scores[task][key][0, 0]) for key in METRICS} for task in TASKS}


def point(spectra: Spectra, name: str, params: Any) -> Grid:
    """A grid of one point: the filters of that name, ``"guided"`` included."""
    x, y = named_filters(name, tuple(params), spectra.s_x, spectra.s_y)
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
    """Select a filter for each task on validation images; scores on each set of test images."""
    kind: Kind = "tikhonov" if name == "tikhonov" else "tsvd"
    choice = select(setting, image, text, validation, kind, spacing, similarity)
    spectra = setting.spectra(image, text)
    found = []
    for rows in tests:
        problem = setting.problem(image, text, rows, similarity=similarity)
        by_task: Result = {}
        at: dict[str, Result] = {}
        for task in TASKS:
            params = choice[task]["params"]
            at.setdefault(str(params), scores_at(problem, spectra, name, params))
            by_task[task] = at[str(params)][task]
        found.append(by_task)
    return found
