"""``reproduce``: the paper's experiments on whatever of its data there is, in one report."""

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
from diptych.cli._output import limit_threads, make_console, print_json, report_errors, show_progress
from diptych.paper import (
    CACHE,
    EXPERIMENTS,
    REPORT,
    VERDICTS,
    Cache,
    Options,
    Reproduction,
    Setting,
    chosen_names,
    gather,
)

RESUMES = "what was finished is kept; run the same command again to go on where it stopped"


def reproduce(
    dataset: Annotated[str, typer.Argument(help="flickr8k, flickr30k, coco, scenes, or a protocol's name.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the report and its numbers.")] = Path(
        "reproduction"
    ),
    data: Annotated[
        Path | None, typer.Option(help="Folder with the split file and features; not needed for scenes.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small version: coarse grids, fewer features.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds of the main tables: mean and spread.")] = 1,
    only: Annotated[str | None, typer.Option(help=f"Some of: {','.join(EXPERIMENTS)}.")] = None,
    vectors: Annotated[Path | None, typer.Option(help="Word vectors, if not beside the data.")] = None,
    images: ImagesFolder = None,
    features: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=PATH",
            help="Your own image or text features, a row per image or caption in the order of the split "
            "file; repeatable. They appear as marked rows.",
        ),
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Run every table and figure of the paper, and set the numbers beside the published ones.

    Writes one self-contained report.html, results.json, and every table as CSV, LaTeX and Markdown. Results
    are kept: a second run computes only what changed.

    Example: `diptych reproduce flickr8k --data flickr8k --out reproduction`
    """
    with report_errors(RESUMES), limit_threads(threads):
        start = time.perf_counter()
        if out.exists() and not out.is_dir():
            raise InputError(f"{out} is a file; give a folder for the report.")
        names = chosen_names(None if only is None else [name.strip() for name in only.split(",")])
        materials = gather(
            dataset, data, vectors=vectors, images=images, features=features or (), quick=quick
        )
        options = Options.for_dataset(materials.name, quick=quick, seeds=seeds)
        cache = Cache(out / CACHE)
        found = Reproduction(Setting(materials, options, cache))
        console = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)
        if not (quiet or as_json):
            for each in materials.found:
                console.print(f"{each.file}: {each.use}")
        with show_progress("reproducing", quiet or as_json) as (progress, task):
            for step in found.run(names):
                progress.update(
                    task, completed=step.done, total=step.total, description=step.label.split(":")[0]
                )
        written = found.write(out, _command())
        _say(found, out, cache, time.perf_counter() - start, len(written), quiet, as_json)


def _say(
    found: Reproduction, out: Path, cache: Cache, seconds: float, files: int, quiet: bool, as_json: bool
) -> None:
    claims = found.claims()
    verdicts = {words: sum(claim.verdict == words for claim in claims) for words in VERDICTS}
    if as_json:
        content = {
            "report": str(out / REPORT),
            "seconds": seconds,
            "computed": len(cache.computed),
            "found": len(cache.found),
            "verdicts": verdicts,
            "caveat": found.caveat or None,
            "claims": {claim.claim: claim.verdict for claim in claims},
            "seconds_by_experiment": found.seconds,
        }
        print_json(content)
    elif not quiet:
        console = make_console()
        console.print("claims: " + ", ".join(f"{words} {count}" for words, count in verdicts.items()))
        if found.caveat:
            console.print(found.caveat)
        console.print("seconds: " + ", ".join(f"{name} {value:.0f}" for name, value in found.seconds.items()))
        console.print(
            f"{len(cache.computed)} results computed, {len(cache.found)} found; {seconds:.0f} s; wrote "
            f"{out / REPORT} and {files - 1} files of numbers and tables"
        )


def _command() -> str:
    # As the user typed it, but for where the program lies.
    return " ".join(["diptych", *(shlex.quote(word) for word in sys.argv[1:])])
