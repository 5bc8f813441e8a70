"""``demo``: the whole way on pictures it draws itself, with nothing to download."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from diptych._checks import TASKS, InputError
from diptych._persistence import replacing_file
from diptych.cca import AWCCA
from diptych.cli._options import AsJson, Quiet, Threads
from diptych.cli._output import limit_threads, make_console, print_json, report_errors
from diptych.data import PairedDataset, PairedViews
from diptych.fusion import Fusion
from diptych.image import open_image
from diptych.paper._comparison import (
    FILTERS,
    Compared,
    compare_filter,
    compare_fitted,
    compare_weightings,
    demo_page,
)
from diptych.report import Answer, ContactRow
from diptych.retrieval import Item, Retriever
from diptych.scenes import make_scenes
from diptych.text import HKSE

QUERIES = ("a big red square on a wooden table", "two green hearts at night", "a triangle in the desert")
REPORT = "report.html"


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write everything to.")] = Path(
        "demo-output"
    ),
    number: Annotated[int, typer.Option("--number", "-n", min=200, help="How many scenes.")] = 1500,
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Draw scenes, encode, select, compare, search both ways; write a model and a report.

    Example: `diptych demo`
    """
    with report_errors(), limit_threads(threads):
        console, start = make_console(), time.perf_counter()
        console.quiet = quiet or as_json
        pairs = make_scenes(number, random_state=0).write(out / "scenes")
        retriever = Retriever("pyramid", HKSE(word_features=600, sentence_features=600), AWCCA())
        views = retriever.encode(pairs)
        console.print(
            f"Drew {number} pictures with five sentences each; encoded a picture as {views.x.shape[1]} "
            f"numbers and a sentence as {views.y.shape[1]} ({time.perf_counter() - start:.1f} s)."
        )
        best = Retriever("pyramid", retriever.encoders.hkse, preset="best")
        compared = _compare(console, views, best)
        retriever.fit(views).save(out / "model")
        best.save(out / "best")
        _answer(console, best, pairs)
        commands = [f"diptych serve {out / 'model'}", f'diptych search {out / "best"} "{QUERIES[0]}"']
        written = _report(retriever, best, compared, pairs, commands, out / REPORT)
        seconds = time.perf_counter() - start
        console.print(f"The models are {out / 'model'} and {out / 'best'}; {written}.")
        console.print(f"All in {seconds:.0f} s. Next:")
        for command in commands:
            console.print(f"  {command}")
        if as_json:
            found = {each.name: {task: each.scores(task) for task in TASKS} for each in compared}
            print_json(
                {
                    "model": str(out / "model"),
                    "best": str(out / "best"),
                    "seconds": round(seconds, 1),
                    "test": found,
                }
            )


def _compare(console: Console, views: PairedViews, best: Retriever) -> list[Compared]:
    n_test = len(views.split("test")[0])
    table = Table(
        title=f"{n_test} test pictures, regularisation selected on validation", title_justify="left"
    )
    table.add_column("model")
    for task in TASKS:
        table.add_column(f"{task} r@1", justify="right")
        table.add_column("r@10", justify="right")
    table.add_column("seconds", justify="right")
    compared = [*compare_weightings(views), *(compare_filter(views, name) for name in FILTERS)]
    start = time.perf_counter()
    fused = best.fit(views).collection.fitted.model
    assert isinstance(fused, Fusion)
    compared.append(compare_fitted(fused, views, 'preset "best"', time.perf_counter() - start))
    for found in compared:
        cells = [f"{found.scores(task)[metric]:.1f}" for task in TASKS for metric in ("r@1", "r@10")]
        table.add_row(found.name, *cells, f"{found.seconds:.1f}")
    console.print(table)
    first = max(compared, key=lambda each: each.mean)
    console.print(
        f"Best here by mean r@1: {first.name}. Drawn scenes are no photographs: the order on Flickr8k is "
        "in the README."
    )
    return compared


def _is_test(item: Item) -> bool:
    return item.metadata.get("split") == "test"


def _answer(console: Console, retriever: Retriever, pairs: PairedDataset) -> None:
    """Three sentences and three pictures, asked of the test split."""
    for query, hits in zip(QUERIES, retriever.search(list(QUERIES), 1, where=_is_test), strict=True):
        own = pairs.captions[int(pairs.caption_rows([pairs.image_ids.index(hits[0].id)])[0])]
        console.print(f"search {query!r}: {hits[0].id} ({own!r}), score {hits[0].score:.2f}")
    test = pairs.subset("test")
    assert test.paths is not None
    for name, hits in zip(
        test.image_ids, retriever.annotate(list(test.paths[:3]), 1, where=_is_test), strict=False
    ):
        console.print(f"annotate {name}: {hits[0].text!r}, score {hits[0].score:.2f}")


def _report(
    retriever: Retriever,
    best: Retriever,
    compared: list[Compared],
    pairs: PairedDataset,
    commands: list[str],
    file: Path,
) -> str:
    """Write the page; say where it is, or why there is none."""
    test = pairs.subset("test")
    assert test.paths is not None
    sheet = []
    asked = [int(test.caption_rows([row])[0]) for row in range(4)]
    found = best.search([test.captions[j] for j in asked], 6, where=_is_test)
    for row, (j, hits) in enumerate(zip(asked, found, strict=True)):
        answers = [
            Answer(open_image(str(hit.path)), hit.score, hit.id == test.image_ids[row]) for hit in hits
        ]
        sheet.append(ContactRow(test.captions[j], answers))
    for row, hits in zip(range(4, 8), best.annotate(list(test.paths[4:8]), 4, where=_is_test), strict=True):
        answers = [Answer(str(hit.text), hit.score, hit.item.image == test.image_ids[row]) for hit in hits]
        sheet.append(ContactRow(open_image(test.paths[row]), answers))
    model = retriever.collection.fitted.model
    assert isinstance(model, AWCCA)
    assert model.path_ is not None
    try:
        page = demo_page(compared, model.path_, sheet, pairs.n_images, commands)
    except InputError as missing:  # matplotlib is not installed
        return f"no report: {missing}"
    with replacing_file(file) as staged:
        staged.write_text(page, "utf-8")
    return f"the report is {file}"
