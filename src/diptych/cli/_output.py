"""What every command shares: errors in one sentence, notes, progress, and output for people or machines."""

from __future__ import annotations

import contextlib
import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import threadpoolctl
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar
from rich.table import Table

from diptych._checks import DataWarning, InputError
from diptych.data import Progress
from diptych.image._decoding import UnreadableImage, open_image

FLAGS: ContextVar[dict[str, str]] = ContextVar("flags", default={})  # noqa: B039
"""The flags of the running command, by the names that the library has for them."""

COLUMNS = {"r@1": "r@1", "r@5": "r@5", "r@10": "r@10", "median_rank": "median", "mean_rank": "mean rank"}


@contextlib.contextmanager
def report_errors(interrupted: str = "nothing was written") -> Iterator[None]:
    """Turn what the user can mend into one sentence and an exit code, and what he should know into a note."""
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)

    def note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        errors.print(f"note: {in_flags(str(message))}")

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", DataWarning)
            warnings.showwarning = note
            yield
    except InputError as error:
        errors.print(f"error: {in_flags(str(error))}")
        raise typer.Exit(2) from None
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        errors.print(f"error: {reason}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        errors.print(f"interrupted; {interrupted}")
        raise typer.Exit(130) from None


def name_options(message: str) -> str:
    """``message`` with the flags of the running command in place of the library's names of parameters.

    ``grid=0`` becomes ``--grid 0``, ``image_column`` becomes ``--image-column``, ``sentences[0]`` becomes
    sentence 1.
    """
    for name, flag in FLAGS.get().items():
        alone = rf"(?<![\w./\\-]){name}"
        message = re.sub(rf"{alone}=(?=\S)", f"{flag} ", message)
        if "_" in name:
            message = re.sub(rf"{alone}(?![\w/\\=-]|\.\w)", flag, message)
    return re.sub(r"\bsentences\[(\d+)\]", lambda found: f"sentence {int(found[1]) + 1}", message)


@contextlib.contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Run on that many threads."""
    with threadpoolctl.threadpool_limits(threads):
        yield


def split_readable(paths: Iterable[Path]) -> tuple[list[Path], dict[str, str]]:
    """Image files that can be decoded, and those that cannot, with the reason."""
    good, bad = [], dict[str, str]()
    for path in paths:
        try:
            open_image(path)
            good.append(path)
        except UnreadableImage as error:
            bad[str(path)] = str(error)
    return good, bad


def exit_if_unreadable(unreadable: dict[str, str]) -> None:
    """Name the image files that were left out, and end with 1 if there are any."""
    errors = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    for reason in unreadable.values():
        errors.print(f"left out: {reason}")
    if unreadable:
        raise typer.Exit(1)


def print_json(found: dict[str, Any]) -> None:
    """One object on one line of standard output."""
    json.dump({k: v for k, v in found.items() if v is not None}, sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n")


def make_console() -> Console:
    """Standard output for people: what users named is shown as they named it."""
    return Console(highlight=False, soft_wrap=True, markup=False)


def describe_model(found: dict[str, Any]) -> list[str]:
    """What was fitted for each task, a line each."""
    lines = []
    for task, chosen in found["filters"].items():
        if "corrections" in found:
            correction = found["corrections"][task]
            hubness = f"; hubness: {correction['kind']}, {correction['strength']:g}"
            lines.append(f"{task}: {' + '.join(chosen)}{hubness if correction['kind'] != 'none' else ''}")
        else:
            lines.append(f"{task}: {chosen[0]} on images, {chosen[1]} on texts")
        lines[-1] += f"; {found['components'][task]} components"
    return lines


def describe_correlations(found: dict[str, Any]) -> list[str]:
    """The first canonical correlations of each task: of the regularised model, and of its variates."""
    names = {"correlations": "Σ", "train_correlations": "training", "validation_correlations": "validation"}
    lines = []
    for task, kinds in found.get("correlations", {}).items():
        shown = [
            f"{names[kind]} {' '.join(f'{value:.3f}' for value in values)}"
            for kind, values in kinds.items()
            if values
        ]
        lines.append(f"{task}, first canonical correlations: {'; '.join(shown)}")
    return lines


def recall_table(title: str, found: dict[str, dict[str, float]]) -> Table:
    """Recalls of both tasks."""
    table = Table(title=title, title_justify="left")
    table.add_column("task")
    for name in COLUMNS.values():
        table.add_column(name, justify="right")
    for task, scores in found.items():
        table.add_row(task, *(f"{scores[key]:.1f}" for key in COLUMNS))
    return table


@contextlib.contextmanager
def show_progress(title: str, hidden: bool) -> Iterator[tuple[Bar, TaskID]]:
    """A progress bar with rate and time left, on standard error."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), disable=hidden) as shown:
        yield shown, shown.add_task(title, total=None)


class EncodingBars:
    """Bars for encoding, one for each kind of thing."""

    def __init__(self, shown: Bar, first: TaskID) -> None:
        self._bar, self._tasks, self._first = shown, dict[str, TaskID](), first

    def __call__(self, what: str, done: Progress) -> None:
        """Say how far the encoding of ``what`` is."""
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(f"encoding {what}") if self._tasks else self._first
            self._bar.update(self._tasks[what], description=f"encoding {what}")
        self._bar.update(self._tasks[what], completed=done.done, total=done.total)
