"""What the demo shows: the paper's comparison on pairs at hand, and a page about it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych._checks import TASKS, Task
from diptych.cca import AWCCA, spectra
from diptych.cca._filters import make_filters
from diptych.cca.selection import Path, make_grid
from diptych.data import PairedViews
from diptych.fusion import Fusion
from diptych.paper._weighted import canonical, weighted_ranks
from diptych.ranking import ranks, summary
from diptych.report import ContactRow, draw_contact_sheet, draw_recall_curves, draw_regularization_path
from diptych.report._page import Row, code, figure, join, page, section, table

WEIGHTINGS: dict[str, dict[Task, tuple[float, float]]] = {
    "plain CCA": {"search": (0.0, 0.0), "annotate": (0.0, 0.0)},
    "symmetric": {"search": (1.0, 1.0), "annotate": (1.0, 1.0)},
    "search generation": {"search": (0.0, 1.0), "annotate": (1.0, 0.0)},
}
"""Powers of Σ on pictures and sentences, to compare the paper's weighting with."""

FILTERS = {
    "query generation, T-SVD": "tsvd",
    "query generation, guided": "guided",
    "query generation, Tikhonov": "tikhonov",
}
"""The paper's filters under its weighting; the last is what the demo keeps."""

_GRID = 8  # of the weightings, which take an SVD at every point


@dataclass(frozen=True, eq=False)
class Compared:
    """One model on the test split."""

    name: str
    ranks: Mapping[Task, Any]
    seconds: float

    def scores(self, task: Task) -> dict[str, float]:
        """Recalls and ranks."""
        return summary(self.ranks[task])

    @property
    def mean(self) -> float:
        """r@1, the mean of both tasks."""
        return sum(self.scores(task)["r@1"] for task in TASKS) / len(TASKS)


def compare_weightings(views: PairedViews) -> list[Compared]:
    """Every one of ``WEIGHTINGS`` under Tikhonov; the SVD of a grid point serves them all."""
    start = time.perf_counter()
    training = spectra(*views.split("train"))
    pairs = sorted({pair for by_task in WEIGHTINGS.values() for pair in by_task.values()})
    best: dict[tuple[str, Task], tuple[float, Any]] = {}

    def ranked(filters: Any, split: str) -> dict[Task, Any]:
        x, y, pairing = views.split(split)
        return weighted_ranks(*canonical(training, filters, x, y), pairing, pairs)

    grid = make_grid("tikhonov", _GRID, training)
    for gammas in itertools.product(grid.x, grid.y):
        filters = make_filters("tikhonov", gammas, training.s_x, training.s_y)
        found = ranked(filters, "val")
        for name, by_task in WEIGHTINGS.items():
            for task, pair in by_task.items():
                score = summary(found[task][pairs.index(pair)])["r@1"]
                best[name, task] = max(best.get((name, task), (-1.0, None)), (score, filters), key=_first)
    seconds = time.perf_counter() - start
    return [
        Compared(
            name,
            {t: ranked(best[name, t][1], "test")[t][pairs.index(pair)] for t, pair in by_task.items()},
            seconds / len(WEIGHTINGS),
        )
        for name, by_task in WEIGHTINGS.items()
    ]


def compare_filter(views: PairedViews, name: str) -> Compared:
    """One of ``FILTERS``, selected on the validation split."""
    start = time.perf_counter()
    model = AWCCA(filter=FILTERS[name]).fit(*views.split("train"), validation=views.split("val"))
    seconds = time.perf_counter() - start
    x, y, pairing = views.split("test")
    found = {}
    for task in TASKS:
        ex, ey = model.transform(x, y, task=task)
        found[task] = ranks(ex, ey, pairing, task=task)
    return Compared(name, found, seconds)


def compare_fitted(model: Fusion, views: PairedViews, name: str, seconds: float) -> Compared:
    """A fusion that was fitted already."""
    x, y, pairing = views.split("test")
    return Compared(name, {task: model.ranks(x, y, pairing, task=task) for task in TASKS}, seconds)


def _first(pair: tuple[float, Any]) -> float:
    return pair[0]


def demo_page(
    compared: Sequence[Compared], path: Path, sheet: Sequence[ContactRow], pairs: int, commands: Sequence[str]
) -> str:
    """The page that the demo writes."""
    best = max(compared, key=lambda each: each.mean)
    rows = [
        [each.name, *(each.scores(t)[m] for t in TASKS for m in ("r@1", "r@5", "r@10")), each.seconds]
        for each in compared
    ]
    return page(
        "diptych: a demonstration",
        f"{pairs:,} drawn pictures with five sentences each, encoded without any network, hinged by "
        "regularised CCA, and searched both ways.",
        [
            section(
                "What was found",
                "Four sentences and four pictures of the test split, which the model has not seen, and what "
                "it found for them. What belongs together is framed or ticked; a good answer need not be.",
                figure(
                    draw_contact_sheet(sheet),
                    'By the preset "best". Scores order the answers to one query; they are no probabilities.',
                    "Queries with their answers",
                    raster=True,
                ),
            ),
            section(
                "One model against another",
                table(
                    ["model", *("r@1", "r@5", "r@10") * 2, "seconds"],
                    [Row(cells) for cells in rows],
                    caption="Test split; every model's regularisation was selected on the validation split.",
                    note=f"Best here by the mean of both r@1: {best.name}. Drawn scenes are no photographs: "
                    "the order on Flickr8k is in the README.",
                    best=dict.fromkeys(range(1, 7), "high"),
                    groups=[("", 1), ("search", 3), ("annotate", 3), ("", 1)],
                ),
                figure(
                    draw_recall_curves({each.name: each.ranks for each in compared}),
                    "How often the right answer is among the first k.",
                    "Recall against k for every model and both tasks",
                ),
            ),
            section(
                "The regularisation that was chosen",
                figure(
                    draw_regularization_path(path),
                    "r@1 on the validation split over the whole grid, with the choice marked.",
                    "Heat maps of r@1 over the grid, for both tasks",
                ),
            ),
            section("Next", *(join(code(command, block=True)) for command in commands)),
        ],
    )
