"""``demo`` and ``reproduce``: every step on drawn images, and the paper's experiments on a dataset."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diptych._checks import TASKS, InputError
from diptych.cli._options import AsJson, ImagesFolder, Quiet, Threads
from diptych.cli._output import limit_threads, make_console, print_json, report_errors, show_progress

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console

    from diptych.data import PairedDataset, PairedViews
    from diptych.paper import Reproduction
    from diptych.paper._comparison import TestedModel
    from diptych.report._page import ShownHit
    from diptych.retrieval import Item, Retriever

EXPERIMENTS = (
    *("main", "weighting", "generation", "regularization", "timing", "maps", "filters", "plane", "examples"),
    *("approximation", "similarity"),
)
"""The names of ``diptych.paper.EXPERIMENTS``, without its import, for the help of ``--only``."""

QUERIES = ("a big red square on a wooden table", "two green hearts at night", "a triangle in the desert")


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
    from diptych.cca import AWCCA
    from diptych.retrieval import Retriever
    from diptych.scenes import make_scenes
    from diptych.text import HKSE

    with report_errors(), limit_threads(threads):
        console, start = make_console(), time.perf_counter()
        console.quiet = quiet or as_json
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
        _print_hits(console, best, pairs)
        commands = [f"diptych serve {out / 'model'}", f'diptych search {out / "best"} "{QUERIES[0]}"']
        outcome = _write_report(retriever, best, models, pairs, commands, out / "report.html")
        seconds = time.perf_counter() - start
        console.print(f"The models are {out / 'model'} and {out / 'best'}; {outcome}.")
        console.print(f"All in {seconds:.0f} s. Next:")
        for command in commands:
            console.print(f"  {command}")
        if as_json:
            print_json(
                {
                    "model": str(out / "model"),
                    "best": str(out / "best"),
                    "seconds": round(seconds, 1),
                    "test": {model.name: {task: model.scores(task) for task in TASKS} for model in models},
                }
            )


def _compare(console: Console, views: PairedViews, best: Retriever) -> list[TestedModel]:
    from rich.table import Table

    from diptych.fusion import Fusion
    from diptych.paper._comparison import (
        FILTERS,
        best_model,
        compare_weightings,
        evaluate_filter,
        evaluate_fusion,
    )

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


def _print_hits(console: Console, retriever: Retriever, pairs: PairedDataset) -> None:
    """Search with three texts and annotate three images of the test split."""
    for query, hits in zip(QUERIES, retriever.search(list(QUERIES), 1, where=_is_test), strict=True):
        own = pairs.captions[int(pairs.caption_rows([pairs.image_ids.index(hits[0].id)])[0])]
        console.print(f"search {query!r}: {hits[0].id} ({own!r}), score {hits[0].score:.2f}")
    test = pairs.subset("test")
    assert test.paths is not None
    for name, hits in zip(
        test.image_ids, retriever.annotate(list(test.paths[:3]), 1, where=_is_test), strict=False
    ):
        console.print(f"annotate {name}: {hits[0].text!r}, score {hits[0].score:.2f}")


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
    from diptych.image import open_image
    from diptych.paper._comparison import demo_page
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
        known = best.info()["calibration"]
        content = demo_page(models, model.path_, examples, pairs.n_images, commands, known)
    except InputError as error:  # matplotlib is not installed
        return f"no report: {error}"
    with replace_file(file) as staged:
        staged.write_text(content, "utf-8")
    return f"the report is {file}"


RESUMES = "finished results are stored; run the same command again to continue"


def reproduce(
    dataset: Annotated[
        str,
        typer.Argument(
            metavar="DATASET", help="flickr8k, flickr30k, coco, scenes, or the name of a protocol."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report and its numbers.")] = Path(
        "reproduction"
    ),
    data: Annotated[
        Path | None, typer.Option(help="Folder of the split file and features; not needed for scenes.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version: coarse grids, fewer features.")
    ] = False,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds of the main tables, for mean and spread.")
    ] = 1,
    only: Annotated[
        str | None, typer.Option(help=f"Run only some experiments: {','.join(EXPERIMENTS)}.")
    ] = None,
    vectors: Annotated[
        Path | None, typer.Option(help="Word vectors, if they are not in the data folder.")
    ] = None,
    images: ImagesFolder = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Your own image or text features, one row per image or caption in the order of the split "
            "file; repeatable. The tables mark their rows.",
        ),
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compute every table and figure of the paper, and compare the numbers with the published ones.

    Writes a self-contained report.html, results.json, and every table as CSV, LaTeX and Markdown. Results are
    stored in the folder: a second run computes only what changed in the data, the options or the library.

    Example: `diptych reproduce flickr8k --data flickr8k --out reproduction`
    """
    from diptych.paper import Options, Reproduction, find_data
    from diptych.paper._runner import check_experiments

    with report_errors(RESUMES), limit_threads(threads):
        start = time.perf_counter()
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file; name a folder for the report.")
        names = check_experiments(None if only is None else [name.strip() for name in only.split(",")])
        paper_data = find_data(
            dataset, data, vectors=vectors, images=images, features=features or (), quick=quick
        )
        options = Options.for_dataset(paper_data.name, quick=quick, seeds=seeds)
        reproduction = Reproduction(paper_data, options, out)
        if not (quiet or as_json):
            console = make_console(stderr=True)
            for each in paper_data.files:
                console.print(f"{each.file}: {each.use}")
        with show_progress("reproducing", quiet or as_json) as (progress, task):
            for step in reproduction.run(names):
                description = step.label.split(":")[0]
                progress.update(task, completed=step.done, total=step.total, description=description)
        command = " ".join(["diptych", *map(shlex.quote, sys.argv[1:])])
        files = reproduction.write(command)
        seconds = time.perf_counter() - start
        if as_json:
            _print_json(reproduction, files[0], seconds)
        elif not quiet:
            _print(reproduction, files, seconds)


def _print_json(reproduction: Reproduction, report: Path, seconds: float) -> None:
    cache = reproduction.setting.cache
    print_json(
        {
            "report": str(report),
            "seconds": seconds,
            "computed": len(cache.computed),
            "stored": len(cache.read),
            "verdicts": reproduction.verdicts(),
            "caveat": reproduction.caveat or None,
            "claims": {claim.claim: claim.verdict for claim in reproduction.claims()},
            "seconds_by_experiment": reproduction.seconds,
        }
    )


def _print(reproduction: Reproduction, files: list[Path], seconds: float) -> None:
    cache, console = reproduction.setting.cache, make_console()
    console.print("claims: " + ", ".join(f"{words} {n}" for words, n in reproduction.verdicts().items()))
    if reproduction.caveat:
        console.print(reproduction.caveat)
    times = ", ".join(f"{name} {value:.0f}" for name, value in reproduction.seconds.items())
    console.print(f"seconds: {times}")
    console.print(
        f"{len(cache.computed)} results computed, {len(cache.read)} read from the folder; {seconds:.0f} s; "
        f"wrote {files[0]} and {len(files) - 1} files of numbers and tables"
    )
