"""``demo``: the whole way on pictures it draws itself, with nothing to download."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from diptych.cca import AWCCA
from diptych.checks import TASKS, InputError
from diptych.cli.console import Threads, limited_to, said_plainly
from diptych.data import Scenes, scenes
from diptych.image import PyramidDescriptor
from diptych.ranking import retrieval_scores
from diptych.report import draw_regularization_path
from diptych.text import HKSE

MODELS: dict[str, dict[str, Any]] = {
    "plain CCA": {"weighting": "none"},
    "symmetric": {"weighting": "symmetric"},
    "search generation": {"weighting": "search-generation"},
    "query generation, T-SVD": {"filter": "tsvd"},
    "query generation, guided": {"filter": "guided"},
    "query generation": {},
}
QUERIES = ("a red star at night", "two boats on the sea", "three blue umbrellas")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the model and pictures.")] = Path(
        "demo-output"
    ),
    number: Annotated[int, typer.Option("--number", "-n", min=200, help="How many scenes.")] = 1500,
    threads: Threads = None,
) -> None:
    """Draw scenes, encode, select, compare, and search both ways.

    Example: `diptych demo`
    """
    with said_plainly(), limited_to(threads):
        console, start = Console(highlight=False, soft_wrap=True), time.perf_counter()
        drawn = scenes(number, random_state=0)
        dataset = drawn.dataset
        x = PyramidDescriptor().encode(list(drawn.pictures))
        rows = {split: dataset.image_rows(split) for split in ("train", "val", "test")}
        text = HKSE(word_features=600, sentence_features=600)
        text.fit(dataset.subset("train").captions)
        y = text.transform(dataset.captions, unknown="mean")
        console.print(
            f"Drew {number} pictures with five sentences each; encoded a picture as {x.shape[1]} numbers "
            f"and a sentence as {y.shape[1]} ({time.perf_counter() - start:.1f} s)."
        )

        def part(split: str) -> tuple[Any, Any, Any]:
            captions = dataset.caption_rows(rows[split])
            return x[rows[split]], y[captions], np.searchsorted(rows[split], dataset.pairing[captions])

        model = _compare(console, part)
        model.save(out / "model")
        text.save(out / "text-encoder")
        _answer(console, drawn, model, text, x, y, rows["test"])
        try:
            assert model.path_ is not None
            draw_regularization_path(model.path_, out / "regularization.png")
            console.print(f"The regularisation map is {out / 'regularization.png'}.")
        except InputError as missing:
            console.print(f"No regularisation map: {missing}", markup=False)
        console.print(
            f"The model is {out / 'model'}; all in {time.perf_counter() - start:.0f} s. Next, yours:\n"
            "  diptych check captions.csv --images photos\n"
            "  diptych fit image-features.npy text-features.npy --pairs captions.csv --out model"
        )


def _compare(console: Console, part: Any) -> AWCCA:
    """Fit every model of the table (Tikhonov unless it says otherwise); the last is the one to keep."""
    table = Table(title=f"{len(part('test')[0])} test pictures, regularisation selected on validation")
    table.add_column("model")
    for task in TASKS:
        table.add_column(f"{task} r@1", justify="right")
        table.add_column("r@10", justify="right")
    table.add_column("seconds", justify="right")
    x, y, pairing = part("test")
    means: dict[str, float] = {}
    for name, options in MODELS.items():
        start = time.perf_counter()
        # Other weightings take one SVD per grid point, so their grid is coarser here.
        grid = 20 if "weighting" not in options else 8
        model = AWCCA(grid=grid, **options).fit(*part("train"), validation=part("val"))
        seconds = time.perf_counter() - start
        cells, means[name] = [], 0.0
        for task in TASKS:
            ex, ey = model.transform(x, y, task=task)
            found = retrieval_scores(ex, ey, pairing, task=task)
            means[name] += found["r@1"] / len(TASKS)
            cells += [f"{found['r@1']:.1f}", f"{found['r@10']:.1f}"]
        table.add_row(name, *cells, f"{seconds:.1f}")
    console.print(table)
    best = max(means, key=lambda name: means[name])
    console.print(
        f"Best here by mean r@1: {best}. Drawn scenes are no photographs: on Flickr8k query generation "
        "is best (README)."
    )
    return model


def _answer(console: Console, drawn: Scenes, model: AWCCA, text: HKSE, x: Any, y: Any, test: Any) -> None:
    """Three sentences and three pictures, asked of the test pictures."""
    dataset = drawn.dataset
    captions = dataset.caption_rows(test)
    images, sentences = model.transform(x[test], text.transform(list(QUERIES)), task="search")
    for query, row in zip(QUERIES, _cosines(sentences, images), strict=True):
        best = test[int(np.argmax(row))]
        own = dataset.captions[int(dataset.caption_rows([best])[0])]
        console.print(f"search {query!r}: picture {dataset.image_ids[best]} ({own!r})", markup=False)
    asked = test[:3]
    pictures, words = model.transform(x[asked], y[captions], task="annotate")
    for image, row in zip(asked, _cosines(pictures, words), strict=True):
        caption = dataset.captions[int(captions[int(np.argmax(row))])]
        console.print(f"annotate {dataset.image_ids[image]}: {caption!r}", markup=False)


def _cosines(queries: Any, items: Any) -> Any:
    return queries @ (items / np.linalg.norm(items, axis=1, keepdims=True)).T
