"""The demo's comparison of weightings and filters on drawn scenes, and the page about it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from diptych._checks import TASKS, Task
from diptych._threads import map_parallel
from diptych.cca import AWCCA, spectra
from diptych.cca.selection import Path, best_point, make_grid, make_problem, make_weights, textbook_ranks
from diptych.data import PairedViews
from diptych.fusion import Fusion
from diptych.ranking import ranks, recall_at_k, summary
from diptych.report import draw_recall_curves, draw_regularization_path, draw_reliability
from diptych.report._page import Html, ShownHit, code, figure, page, paragraph, section, show_hits, table

WEIGHTINGS: dict[str, dict[Task, tuple[float, float]]] = {
    "plain CCA": {"search": (0.0, 0.0), "annotate": (0.0, 0.0)},
    "symmetric": {"search": (1.0, 1.0), "annotate": (1.0, 1.0)},
    "search generation": {"search": (0.0, 1.0), "annotate": (1.0, 0.0)},
}
"""Powers of Σ on images and texts that are compared with the paper's weighting."""
FILTERS = {
    "query generation, T-SVD": "tsvd",
    "query generation, guided": "guided",
    "query generation, Tikhonov": "tikhonov",
}
"""The paper's filters with its weighting; the demo saves the last one."""
_GRID = 8  # of the weightings, which need an SVD at every point


@dataclass(frozen=True, eq=False)
class TestedModel:
    """Ranks of one model on the test split, and how long its selection took."""

    name: str
    ranks: Mapping[Task, Any]
    seconds: float

    def scores(self, task: Task) -> dict[str, float]:
        """Return recalls and ranks."""
        return summary(self.ranks[task])

    @property
    def mean_recall(self) -> float:
        """The mean r@1 of both tasks."""
        return sum(self.scores(task)["r@1"] for task in TASKS) / len(TASKS)


def compare_weightings(views: PairedViews) -> list[TestedModel]:
    """Select and test each of ``WEIGHTINGS`` with Tikhonov; one SVD per grid point serves them all."""
    start = time.perf_counter()
    training = spectra(*views.split("train"))
    grid = make_grid("tikhonov", _GRID, training)
    pairs = sorted({powers for by_task in WEIGHTINGS.values() for powers in by_task.values()})
    problems = {split: make_problem(training, views.split(split)) for split in ("val", "test")}
    w_x, w_y = make_weights(problems["val"], training, grid)

    def rank(split: str, at: tuple[int, ...]) -> list[dict[Task, Any]]:
        return list(textbook_ranks(problems[split], w_x.rows[at[0]], w_y.rows[at[1]], pairs))

    # Small SVDs gain nothing from several threads, so whole points run in parallel.
    points = list(np.ndindex(grid.shape))
    scored = map_parallel(lambda at: rank("val", at), points, training.t0)
    best: dict[tuple[str, Task], tuple[int, ...]] = {}
    for name, by_task in WEIGHTINGS.items():
        for task, powers in by_task.items():
            recalls = [recall_at_k(point[pairs.index(powers)][task], 1) for point in scored]
            best[name, task] = best_point(np.reshape(recalls, grid.shape))
    seconds = (time.perf_counter() - start) / len(WEIGHTINGS)
    chosen = list(best)
    tested = map_parallel(lambda model: rank("test", best[model]), chosen, training.t0)
    ranked = {
        (name, task): tested[at][pairs.index(WEIGHTINGS[name][task])][task]
        for at, (name, task) in enumerate(chosen)
    }
    return [
        TestedModel(name, {task: ranked[name, task] for task in by_task}, seconds)
        for name, by_task in WEIGHTINGS.items()
    ]


def evaluate_filter(views: PairedViews, name: str) -> TestedModel:
    """Select one of ``FILTERS`` on the validation split, and test it."""
    start = time.perf_counter()
    model = AWCCA(filter=FILTERS[name]).fit(*views.split("train"), validation=views.split("val"))
    seconds = time.perf_counter() - start
    x, y, pairing = views.split("test")
    by_task = {}
    for task in TASKS:
        vectors_x, vectors_y = model.transform(x, y, task=task)
        by_task[task] = ranks(vectors_x, vectors_y, pairing, task=task)
    return TestedModel(name, by_task, seconds)


def evaluate_fusion(model: Fusion, views: PairedViews, name: str, seconds: float) -> TestedModel:
    """Test a fitted fusion."""
    x, y, pairing = views.split("test")
    return TestedModel(name, {task: model.ranks(x, y, pairing, task=task) for task in TASKS}, seconds)


def best_model(models: Sequence[TestedModel]) -> TestedModel:
    """Return the model with the highest mean r@1."""
    return max(models, key=lambda model: model.mean_recall)


def demo_page(
    models: Sequence[TestedModel],
    path: Path,
    examples: Sequence[tuple[Image.Image | str, Sequence[ShownHit]]],
    pairs: int,
    commands: Sequence[str],
    calibration: Mapping[str, Any],
) -> str:
    """Return the HTML page that the demo writes; ``calibration`` is that of preset "best"."""
    rows = [
        [model.name, *(model.scores(t)[m] for t in TASKS for m in ("r@1", "r@5", "r@10")), model.seconds]
        for model in models
    ]
    return page(
        "diptych: a demonstration",
        f"{pairs:,} drawn images with five captions each, encoded without a neural network, mapped into one "
        "space by regularised CCA, and searched both ways.",
        [
            section(
                "Queries and hits",
                "Four captions and four images of the test split, which the model has not seen, with their "
                "hits. The right hit is framed or ticked; other hits may fit the query as well.",
                *(show_hits(query, hits) for query, hits in examples),
                paragraph(
                    'Preset "best". Scores order the hits of one query; they are not probabilities.',
                    note=True,
                ),
            ),
            section("Probabilities of hits", *_show_probabilities(calibration)),
            section(
                "Models compared",
                table(
                    ["model", *("r@1", "r@5", "r@10") * 2, "seconds"],
                    rows,
                    caption="Test split; every regularisation was selected on the validation split.",
                    note=f"Best here by the mean of both r@1: {best_model(models).name}. Drawn scenes are "
                    "not photographs: the README has the order on Flickr8k.",
                    best=dict.fromkeys(range(1, 7), "high"),
                    groups=[("", 1), ("search", 3), ("annotate", 3), ("", 1)],
                ),
                figure(
                    draw_recall_curves({model.name: model.ranks for model in models}),
                    "How often the right hit is among the first k.",
                    "Recall against k for every model and both tasks",
                ),
            ),
            section(
                "The selected regularisation",
                figure(
                    draw_regularization_path(path),
                    "r@1 on the validation split over the grid, with the choice marked.",
                    "Heat maps of r@1 over the grid, for both tasks",
                ),
            ),
            section("Next", *(code(command, block=True) for command in commands)),
        ],
    )


def _show_probabilities(calibration: Mapping[str, Any]) -> list[str | Html]:
    if "absent" in calibration:
        return [f"There are none, because {calibration['absent']}."]
    return [
        figure(
            draw_reliability(calibration),
            f"How often hits are right against their probability, by cross-validation on "
            f"{calibration['search']['on']}; preset “best”.",
            "The share of right hits against their probability, for both tasks",
        )
    ]
