"""What an experiment is, and the step that most of them share: select filters, then test them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeAlias

import numpy as np
import threadpoolctl

from diptych import InputError
from diptych.cca import Spectra
from diptych.cca.selection import Grid, Problem, exact_points, make_grid, make_weights, regularization_path
from diptych.ranking import metric, summary
from diptych.report import Html
from reproduction.features import Features
from reproduction.results import TASKS, Floats, Result, Rows, Task, digest
from reproduction.setting import Setting
from reproduction.tables import ReportTable

Jobs: TypeAlias = dict[str, Callable[[], Result]]
Results: TypeAlias = dict[str, Result]
"""Result of each job of an experiment."""
Content: TypeAlias = str | Html | ReportTable
"""A paragraph, markup or table of a section of the report; tables are written as files too."""
Kind: TypeAlias = Literal["tikhonov", "tsvd"]

# Okabe and Ito's colours, which the colour-blind can tell apart.
BLACK, BLUE, GREEN, SKY, VERMILLION = "#000000", "#0072B2", "#009E73", "#56B4E9", "#D55E00"


@dataclass(frozen=True)
class Experiment:
    """An experiment of the paper.

    ``items`` are the tables and figures that it computes again, or the statement that it checks, by the
    paper's numbers. ``jobs`` are functions that each compute a result, which is stored; ``show`` returns the
    section of the report.
    """

    name: str
    items: tuple[str, ...]
    title: str
    jobs: Callable[[Setting], Jobs]
    show: Callable[[Setting, Results], list[Content]]

    @property
    def place(self) -> str:
        """Its items in words, such as ``"Table 5, Table 6"``."""
        return ", ".join(self.items)


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
    return max((library["num_threads"] for library in libraries if library["user_api"] == "blas"), default=1)


def count_threads(threads: int) -> str:
    """Return the number in words.

    >>> count_threads(1), count_threads(2)
    ('1 thread', '2 threads')
    """
    return f"{threads} thread{'s' if threads != 1 else ''}"


def guided_gammas(spectra: Spectra, ks: Any) -> tuple[float, float]:
    """Return γ = σ²_k of both views, which guided Tikhonov takes (Algorithm 4)."""
    return float(spectra.s_x[ks[0] - 1]) ** 2, float(spectra.s_y[ks[1] - 1]) ** 2


def make_point(spectra: Spectra, name: str, params: Any) -> Grid:
    """Return the grid of one point of a filter: ``"tsvd"`` or ``"guided"`` at k, or ``"tikhonov"`` at γ."""
    x, y = guided_gammas(spectra, params) if name == "guided" else params
    return Grid("tsvd" if name == "tsvd" else "tikhonov", np.array([float(x)]), np.array([float(y)]))


def rank_queries(problem: Problem, spectra: Spectra, name: str, params: Any) -> dict[Task, Floats]:
    """Rank every query of both tasks with one filter, exactly and without an SVD."""
    point = make_point(spectra, name, params)
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


def new_figure(width: float, height: float) -> Any:
    """Create a figure of ``width`` × ``height`` inches without a window or global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("the report needs matplotlib; install diptych[report].") from None
    return Figure(figsize=(width, height), dpi=160, layout="constrained")


def finish_axes(axes: Any, x_label: str, y_label: str) -> None:
    """Label the axes, and leave only the left and lower frame and a faint grid."""
    axes.set_xlabel(x_label, fontsize=9)
    if y_label:
        axes.set_ylabel(y_label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.7)
    axes.set_axisbelow(True)
