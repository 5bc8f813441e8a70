"""What every command shares: options, errors in one sentence, and output for people or machines."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import threadpoolctl
import typer
from rich.console import Console
from rich.table import Table

from diptych.checks import TASKS, InputError

COLUMNS = {"r@1": "r@1", "r@5": "r@5", "r@10": "r@10", "median_rank": "median", "mean_rank": "mean rank"}

Threads = Annotated[int | None, typer.Option(min=1, help="BLAS threads; default: all cores.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bar and no table.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
PairsFile = Annotated[Path, typer.Argument(metavar="PAIRS", help="A pairs file or a folder.")]
ImagesFolder = Annotated[Path | None, typer.Option("--images", help="Folder of the image files.")]


@contextlib.contextmanager
def said_plainly(interrupted: str = "nothing was written") -> Iterator[None]:
    """Turn what the user can mend into one sentence and an exit code."""
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    try:
        yield
    except InputError as error:
        errors.print(f"error: {error}")
        raise typer.Exit(2) from None
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        errors.print(f"error: {reason}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print(f"interrupted; {interrupted}")
        raise typer.Exit(130) from None


@contextlib.contextmanager
def limited_to(threads: int | None) -> Iterator[None]:
    """Run on that many BLAS threads."""
    with threadpoolctl.threadpool_limits(threads, user_api="blas"):
        yield


def say(found: dict[str, Any], quiet: bool, as_json: bool) -> None:
    """Print what came out, for people or for machines."""
    if as_json:
        json.dump({k: v for k, v in found.items() if v is not None}, sys.stdout, ensure_ascii=False)
        sys.stdout.write("\n")
        return
    if quiet:
        return
    console = Console(highlight=False)
    for part in ("validation", "test", "train", "val", "all"):
        if found.get(part):
            console.print(_recall_table(part, found[part]))
    if "filters" in found:
        for task in TASKS:
            x, y = found["filters"][task]
            console.print(f"{task}: {x} on images, {y} on texts; {found['components'][task]} components")
        if "selected on" in found:
            console.print(f"selected on {found['selected on']}")
        spent = ", ".join(f"{name} {value:.1f} s" for name, value in found["seconds"].items())
        console.print(f"{found['pairs']} pairs; {spent}; wrote {found['model']}", soft_wrap=True)


def _recall_table(title: str, found: dict[str, dict[str, float]]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("task")
    for name in COLUMNS.values():
        table.add_column(name, justify="right")
    for task, scores in found.items():
        table.add_row(task, *(f"{scores[key]:.1f}" for key in COLUMNS))
    return table
