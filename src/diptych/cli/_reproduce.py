"""``reproduce``: the paper's experiments on a dataset, in one report."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from diptych._checks import InputError
from diptych.cli._options import AsJson, ImagesFolder, Quiet, Threads
from diptych.cli._output import bar, limited_to, plain_console, print_json, said_plainly
from diptych.paper import EXPERIMENTS, Options, Reproduction, find_data
from diptych.paper._runner import check_experiments

RESUMES = "finished results are stored; run the same command again to continue"


def reproduce(
    dataset: Annotated[
        str, typer.Argument(help="flickr8k, flickr30k, coco, scenes, or the name of a protocol.")
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
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the main tables: mean and spread.")] = 1,
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
    with said_plainly(RESUMES), limited_to(threads):
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
            console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
            for each in paper_data.files:
                console.print(f"{each.file}: {each.use}")
        with bar("reproducing", quiet or as_json) as (progress, task):
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
    cache, console = reproduction.setting.cache, plain_console()
    console.print("claims: " + ", ".join(f"{words} {n}" for words, n in reproduction.verdicts().items()))
    if reproduction.caveat:
        console.print(reproduction.caveat)
    times = ", ".join(f"{name} {value:.0f}" for name, value in reproduction.seconds.items())
    console.print(f"seconds: {times}")
    console.print(
        f"{len(cache.computed)} results computed, {len(cache.read)} read from the folder; {seconds:.0f} s; "
        f"wrote {files[0]} and {len(files) - 1} files of numbers and tables"
    )
