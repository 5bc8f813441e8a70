"""``demo``: every step on drawn images."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from diptych._checks import TASKS, InputError
from diptych.cli._run import RunOptions, make_console, name_program, option

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console

    from diptych.cli._comparison import TestedModel
    from diptych.data import PairedDataset, PairedViews
    from diptych.report._page import ShownHit
    from diptych.retrieval import Item, Retriever


def demo(
    out: Annotated[Path, option("Folder to write everything to.", "--out", "-o")] = Path("demo-output"),
    number: Annotated[int, option("How many scenes.", "--number", "-n", min=200)] = 1500,
    *,
    run: RunOptions,
) -> None:
    """Draw scenes, fit, compare, search both ways; write models and a report.

    Example: `diptych demo`
    """
    from diptych.cca import AWCCA
    from diptych.encoders import HKSE
    from diptych.retrieval import Retriever
    from diptych.scenes import make_scenes

    console, start = make_console(), time.perf_counter()
    console.quiet = run.silent
    _check_out(out)
    pairs = make_scenes(number, random_state=0).write(out / "scenes")
    retriever = Retriever("pyramid", HKSE(word_features=600, sentence_features=600), AWCCA())
    views = retriever.encode(pairs)
    console.print(
        f"Drew {number} images with five captions each; encoded an image as {views.x.shape[1]} numbers "
        f"and a caption as {views.y.shape[1]} ({time.perf_counter() - start:.1f} s)."
    )
    best = Retriever("pyramid", retriever.encoders.hkse, preset="best")
    models = _compare(console, views, best)
    retriever.fit(views).save(out / "model")
    best.save(out / "best")
    queries = _choose_queries(pairs)
    _print_hits(console, best, pairs, queries)
    program, model = name_program(), shlex.quote(str(out / "best"))
    commands = [f"{program} serve {model}", f"{program} search {model} {shlex.quote(queries[0])}"]
    outcome = _write_report(retriever, best, models, pairs, commands, out / "report.html")
    seconds = time.perf_counter() - start
    console.print(f"The models are {out / 'model'} and {out / 'best'}; {outcome}.")
    console.print(f"All in {seconds:.0f} s. Next:")
    for command in commands:
        console.print(f"  {command}")
    scores = {model.name: {task: model.scores(task) for task in TASKS} for model in models}
    content = {"model": str(out / "model"), "best": str(out / "best"), "seconds": round(seconds, 1)}
    run.show(content | {"test": scores})


def _check_out(out: Path) -> None:
    """Refuse a folder in which a file of somebody else would be replaced."""
    from diptych.retrieval.stores._files import check_writable
    from diptych.scenes import TABLE

    for name in ("model", "best"):
        check_writable(out / name)
    table, report = out / "scenes" / TABLE, out / "report.html"
    # The table of an earlier demo, also of one that was interrupted, says what is drawn.
    if table.is_file() and b'"description": {' in table.read_bytes()[:10_000]:
        return
    for path in (table, report):
        if path.exists():
            raise InputError(f"{path} exists, and no demo wrote it; move it away, or choose another --out.")


def _compare(console: Console, views: PairedViews, best: Retriever) -> list[TestedModel]:
    from rich.table import Table

    from diptych.cli._comparison import (
        FILTERS,
        best_model,
        compare_weightings,
        evaluate_filter,
        evaluate_fusion,
    )
    from diptych.fusion import Fusion

    models = [*compare_weightings(views), *(evaluate_filter(views, name) for name in FILTERS)]
    start = time.perf_counter()
    fusion = best.fit(views).fitted.model
    assert isinstance(fusion, Fusion)
    models.append(evaluate_fusion(fusion, views, 'preset "best"', time.perf_counter() - start))
    title = f"{len(views.split('test')[0])} test images, regularisation selected on validation"
    table = Table(title=title, title_justify="left")
    table.add_column("model")
    for task in TASKS:
        table.add_column(f"{task} r@1", justify="right")
        table.add_column("r@10", justify="right")
    table.add_column("seconds", justify="right")
    for model in models:
        cells = [f"{model.scores(task)[metric]:.1f}" for task in TASKS for metric in ("r@1", "r@10")]
        table.add_row(model.name, *cells, f"{model.seconds:.1f}")
    console.print(table)
    console.print(
        f"Best here by mean r@1: {best_model(models).name}. Drawn scenes are not photographs: the README has "
        "the order on Flickr8k."
    )
    return models


def _is_test(item: Item) -> bool:
    return item.metadata.get("split") == "test"


def _choose_queries(pairs: PairedDataset) -> list[str]:
    """Return the longest caption, which says most, of each of the first three images of the test split."""
    test = pairs.subset("test")
    return [max((test.captions[at] for at in test.caption_rows([row])), key=len) for row in range(3)]


def _print_hits(console: Console, retriever: Retriever, pairs: PairedDataset, queries: list[str]) -> None:
    """Search with captions of the first images of the test split, and annotate these images."""
    test = pairs.subset("test")
    assert test.paths is not None
    for name, query, hits in zip(
        test.image_ids, queries, retriever.search(queries, 10, where=_is_test), strict=False
    ):
        rank = next((at for at, hit in enumerate(hits, 1) if hit.id == name), None)
        where = "first" if rank == 1 else f"number {rank}" if rank else "not among the first ten"
        console.print(f"search {query!r}: {hits[0].id}; the image of this caption is {where}")
    images = list(test.paths[: len(queries)])
    for name, hits in zip(test.image_ids, retriever.annotate(images, 1, where=_is_test), strict=False):
        right = "one of its captions" if hits[0].item.image == name else f"a caption of {hits[0].item.image}"
        console.print(f"annotate {name}: {hits[0].text!r}, {right}")


def _write_report(
    retriever: Retriever,
    best: Retriever,
    models: list[TestedModel],
    pairs: PairedDataset,
    commands: list[str],
    file: Path,
) -> str:
    """Write the page; return where it is, or why it could not be written."""
    from diptych._persistence import replace_file
    from diptych.cca import AWCCA
    from diptych.cli._comparison import demo_page
    from diptych.encoders import open_image
    from diptych.report._page import ShownHit

    test = pairs.subset("test")
    assert test.paths is not None
    examples: list[tuple[Image.Image | str, list[ShownHit]]] = []
    captions = [test.captions[int(test.caption_rows([row])[0])] for row in range(4)]
    for row, hits in enumerate(best.search(captions, 6, where=_is_test)):
        shown = [
            ShownHit(open_image(str(hit.path)), hit.score, hit.id == test.image_ids[row]) for hit in hits
        ]
        examples.append((captions[row], shown))
    for row, hits in zip(range(4, 8), best.annotate(list(test.paths[4:8]), 4, where=_is_test), strict=True):
        shown = [ShownHit(str(hit.text), hit.score, hit.item.image == test.image_ids[row]) for hit in hits]
        examples.append((open_image(test.paths[row]), shown))
    model = retriever.fitted.model
    assert isinstance(model, AWCCA)
    assert model.path_ is not None
    try:
        calibration = best.info()["calibration"]
        content = demo_page(models, model.path_, examples, pairs.n_images, commands, calibration)
    except InputError as error:  # matplotlib is not installed
        return f"no report: {error}"
    with replace_file(file) as staged:
        staged.write_text(content, "utf-8")
    return f"the report is {file}"
