"""What the demo shows of drawn scenes: weightings and filters compared, hits of both tasks, and the page."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from diptych._checks import TASKS, InputError, Task
from diptych._persistence import replace_file
from diptych._threads import map_parallel
from diptych.cca import AWCCA, spectra
from diptych.cca.selection import best_point, make_grid, make_problem, make_weights, textbook_ranks
from diptych.cli._run import align
from diptych.data import PairedDataset, PairedViews
from diptych.encoders import open_image
from diptych.ranking import ranks, recall_at_k, summary
from diptych.report import draw_recall_curves, draw_regularization_path, draw_reliability
from diptych.report._page import Html, ShownHit, code, figure, page, paragraph, section, show_hits, table
from diptych.retrieval import Item, Retriever
from diptych.retrieval._evaluation import rank_pairs

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


def fit_models(views: PairedViews, best: Retriever) -> list[TestedModel]:
    """Fit and test every model of the comparison, the last one as the retriever ``best``."""
    models = compare_weightings(views)
    for name, chosen in FILTERS.items():
        start = time.perf_counter()
        model = AWCCA(filter=chosen).fit(*views.split("train"), validation=views.split("val"))
        seconds = time.perf_counter() - start
        models.append(_test_model(name, {task: model.projector(task) for task in TASKS}, seconds, views))
    start = time.perf_counter()
    projectors = best.fit(views).fitted.projectors
    return [*models, _test_model('preset "best"', projectors, time.perf_counter() - start, views)]


def _test_model(name: str, projectors: Mapping[Task, Any], seconds: float, views: PairedViews) -> TestedModel:
    pairs = views.split("test")
    ranked = rank_pairs(projectors, pairs)
    by_task = {task: ranks(ranked[task].x, ranked[task].y, pairs[2], task=task) for task in TASKS}
    return TestedModel(name, by_task, seconds)


def best_model(models: Sequence[TestedModel]) -> TestedModel:
    """Return the model with the highest mean r@1."""
    return max(models, key=lambda model: model.mean_recall)


def describe_models(models: Sequence[TestedModel]) -> Iterator[str]:
    """Return the comparison as lines of text."""
    n_images = len(models[0].ranks["annotate"])
    yield f"{n_images} test images, regularisation selected on validation:"
    rows = [["model", *(f"{task} {metric}" for task in TASKS for metric in ("r@1", "r@10")), "seconds"]]
    for model in models:
        cells = [f"{model.scores(task)[metric]:.1f}" for task in TASKS for metric in ("r@1", "r@10")]
        rows.append([model.name, *cells, f"{model.seconds:.1f}"])
    yield from align(rows, slice(1, None))
    yield (
        f"Best here by mean r@1: {best_model(models).name}. Drawn scenes are not photographs: the README has "
        "the order on Flickr8k."
    )


def choose_queries(pairs: PairedDataset) -> list[str]:
    """Return the longest caption, which says most, of each of the first three images of the test split."""
    test = pairs.subset("test")
    return [max((test.captions[at] for at in test.caption_rows([row])), key=len) for row in range(3)]


def describe_hits(retriever: Retriever, pairs: PairedDataset, queries: Sequence[str]) -> Iterator[str]:
    """Search with captions of the first images of the test split, and annotate these images."""
    test = pairs.subset("test")
    assert test.paths is not None
    results = retriever.search(list(queries), 10, where=_is_test)
    for name, query, hits in zip(test.image_ids, queries, results, strict=False):
        rank = next((at for at, hit in enumerate(hits, 1) if hit.id == name), None)
        where = "first" if rank == 1 else f"number {rank}" if rank else "not among the first ten"
        yield f"search {query!r}: {hits[0].id}; the image of this caption is {where}"
    images = list(test.paths[: len(queries)])
    for name, hits in zip(test.image_ids, retriever.annotate(images, 1, where=_is_test), strict=False):
        right = "one of its captions" if hits[0].item.image == name else f"a caption of {hits[0].item.image}"
        yield f"annotate {name}: {hits[0].text!r}, {right}"


def _is_test(item: Item) -> bool:
    return item.metadata.get("split") == "test"


def write_report(
    retriever: Retriever,
    best: Retriever,
    models: Sequence[TestedModel],
    pairs: PairedDataset,
    commands: Sequence[str],
    file: Path,
) -> str:
    """Write the page; return where it is, or why it could not be written."""
    try:
        content = _make_page(retriever, best, models, pairs, commands)
    except InputError as error:  # matplotlib is not installed
        return f"no report: {error}"
    with replace_file(file) as staged:
        staged.write_text(content, "utf-8")
    return f"the report is {file}"


def _find_examples(
    best: Retriever, pairs: PairedDataset
) -> Iterator[tuple[Image.Image | str, list[ShownHit]]]:
    """Return captions and images of the test split with their hits."""
    test = pairs.subset("test")
    assert test.paths is not None
    captions = [test.captions[int(test.caption_rows([row])[0])] for row in range(4)]
    for name, caption, hits in zip(
        test.image_ids, captions, best.search(captions, 6, where=_is_test), strict=False
    ):
        yield caption, [ShownHit(open_image(str(hit.path)), hit.score, hit.id == name) for hit in hits]
    images = test.paths[4:8]
    for name, path, hits in zip(
        test.image_ids[4:], images, best.annotate(list(images), 4, where=_is_test), strict=False
    ):
        yield open_image(path), [ShownHit(str(hit.text), hit.score, hit.item.image == name) for hit in hits]


def _make_page(
    retriever: Retriever,
    best: Retriever,
    models: Sequence[TestedModel],
    pairs: PairedDataset,
    commands: Sequence[str],
) -> str:
    path = retriever.fitted.description.path
    assert path is not None
    rows = [
        [model.name, *(model.scores(t)[m] for t in TASKS for m in ("r@1", "r@5", "r@10")), model.seconds]
        for model in models
    ]
    return page(
        "diptych: a demonstration",
        f"{pairs.n_images:,} drawn images with five captions each, encoded without a neural network, mapped "
        "into one space by regularised CCA, and searched both ways.",
        [
            section(
                "Queries and hits",
                "Four captions and four images of the test split, which the model has not seen, with their "
                "hits. The right hit is framed or ticked; other hits may fit the query as well.",
                *(show_hits(query, hits) for query, hits in _find_examples(best, pairs)),
                paragraph(
                    'Preset "best". Scores order the hits of one query; they are not probabilities.',
                    note=True,
                ),
            ),
            section("Probabilities of hits", *_show_probabilities(best.info()["calibration"])),
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
