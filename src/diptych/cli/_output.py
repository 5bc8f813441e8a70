"""Output of the commands: errors in one sentence, notes, progress bars, tables and JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import typer

from diptych._checks import DataWarning, InputError, count, plural

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID
    from rich.table import Table

    from diptych.data import Progress
    from diptych.retrieval import Evaluation
    from diptych.retrieval._encoders import Encoders

OPTION_NAMES: ContextVar[dict[str, str]] = ContextVar("option_names", default={})  # noqa: B039
"""The options of the running command, by the parameter names of the library."""

RESUMES = "run the same command again to resume"
COLUMNS = {"r@1": "r@1", "r@5": "r@5", "r@10": "r@10", "median_rank": "median", "mean_rank": "mean rank"}


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints file names and texts as they are."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False)


@contextlib.contextmanager
def report_errors(interrupted: str = "nothing was written") -> Iterator[None]:
    """Print an error as one sentence and exit with 2, warnings as notes; on Ctrl+C exit with 130."""

    def say(line: str) -> None:
        make_console(stderr=True).print(line)

    def print_note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        # Not by a console of its own, which would write over a progress bar.
        print(f"note: {name_options(str(message))}", file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", DataWarning)
            warnings.showwarning = print_note
            yield
    except InputError as error:
        say(f"error: {name_options(str(error))}")
        raise typer.Exit(2) from None
    except OSError as error:
        reason = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        say(f"error: {reason}")
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        say(f"interrupted; {interrupted}")
        raise typer.Exit(130) from None


def name_options(message: str) -> str:
    """Replace the library's parameter names in a message by the options of the running command.

    ``dtype=int8`` becomes ``--dtype int8``, ``image_column`` becomes ``--image-column``, ``texts[0]`` becomes
    text 1.
    """
    for name, option in OPTION_NAMES.get().items():
        word = rf"(?<![\w./\\-]){name}"
        message = re.sub(rf"{word}=(?=\S)", f"{option} ", message)
        if "_" in name:
            message = re.sub(rf"{word}(?![\w/\\=-]|\.\w)", option, message)
    return re.sub(r"\b(sentence|text)s\[(\d+)\]", lambda match: f"{match[1]} {int(match[2]) + 1}", message)


def hide_library_bars(hidden: bool) -> None:
    """Keep the libraries of the Hugging Face Hub from showing progress bars of their own."""
    if hidden:  # they read this when they are imported, which is when they are needed
        os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")


@contextlib.contextmanager
def limit_threads(threads: int | None) -> Iterator[None]:
    """Run the numerical libraries on that many threads; None: on all cores."""
    if threads is None:
        yield
        return
    import threadpoolctl

    with threadpoolctl.threadpool_limits(threads):
        yield


def split_readable(sources: Iterable[str], encoders: Encoders) -> tuple[list[str], dict[str, str]]:
    """Return the items that can be opened for the encoder of the first view, and why the others cannot."""
    from diptych.image._encoders import open_input

    if encoders.image is None:
        raise encoders.missing("image")
    readable, unreadable = [], dict[str, str]()
    for source in sources:
        try:
            open_input(source, encoders.inputs, encoders.views.image)
            readable.append(source)
        except InputError as error:
            unreadable[source] = str(error)
    return readable, unreadable


def exit_if_unreadable(unreadable: dict[str, str]) -> None:
    """Name the files that were skipped, and exit with 1 if there are any."""
    for reason in unreadable.values():
        make_console(stderr=True).print(f"skipped: {reason}")
    if unreadable:
        raise typer.Exit(1)


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on one line, without keys whose value is None."""
    json.dump({k: v for k, v in content.items() if v is not None}, sys.stdout, ensure_ascii=False)
    sys.stdout.write("\n")


def describe_model(info: dict[str, Any]) -> list[str]:
    """Return a line for each task: what was fitted; for a fusion, also one for each part and correction."""
    from diptych.report._card import describe_correction, describe_polish

    lines = []
    for task, chosen in info["filters"].items():
        components = f"{info['components'][task]} components"
        if "parts" in info:
            parts = info["parts"][task]
            lines.append(f"{task}: {count(len(parts), 'part')}, {components}")
            lines += [f"  {each['weight']:.2g} × ({each['name']}), {each['use']}" for each in parts]
            lines.append(f"  correction for hubness: {describe_correction(info['corrections'][task])}")
        else:
            on = [f"{own} on {plural(name)}" for own, name in zip(chosen, info["views"], strict=True)]
            lines.append(f"{task}: {', '.join(on)}; {components}")
            if epochs := info["epochs"][task]:
                lines[-1] += f", {describe_polish(epochs)}"
    return lines


def describe_correlations(info: dict[str, Any]) -> list[str]:
    """Return a line for each task with the first canonical correlations."""
    names = {"correlations": "Σ", "train_correlations": "training", "validation_correlations": "validation"}
    lines = []
    for task, kinds in info.get("correlations", {}).items():
        parts = [
            f"{names[kind]} {' '.join(f'{value:.3f}' for value in values)}"
            for kind, values in kinds.items()
            if values
        ]
        lines.append(f"{task}, first canonical correlations: {'; '.join(parts)}")
    return lines


def recall_table(title: str, scores: dict[str, dict[str, float]]) -> Table:
    """Return a table of the recalls of both tasks."""
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column("task")
    for name in COLUMNS.values():
        table.add_column(name, justify="right")
    for task, values in scores.items():
        table.add_row(task, *(f"{values[key]:.1f}" for key in COLUMNS))
    return table


def metrics_table(title: str, result: Evaluation) -> Table:
    """Return a table of all metrics of both tasks, with their intervals."""
    from rich.table import Table

    from diptych.retrieval._evaluation import TITLES

    table, limits = Table(title=title, title_justify="left"), result.intervals()
    table.add_column("metric")
    for task in result:
        table.add_column(task, justify="right")
    for name, shown in TITLES.items():
        table.add_row(shown, *result.cells(name, limits))
    return table


@contextlib.contextmanager
def show_progress(title: str, hidden: bool) -> Iterator[tuple[Bar, TaskID]]:
    """Show a progress bar with rate and time left on standard error."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        TaskProgressColumn,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
    )
    with Bar(*columns, console=Console(stderr=True), disable=hidden) as bar:
        yield bar, bar.add_task(title, total=None)


class EncodingBars:
    """A progress bar for each view that is encoded; ``watch`` of ``Retriever.encode``."""

    def __init__(self, bar: Bar, first: TaskID) -> None:
        self._bar, self._first = bar, first
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, what: str, progress: Progress) -> None:
        """Show how far the encoding of ``what`` is."""
        if what not in self._tasks:
            self._tasks[what] = self._bar.add_task(f"encoding {what}") if self._tasks else self._first
            self._bar.update(self._tasks[what], description=f"encoding {what}")
        self._bar.update(self._tasks[what], completed=progress.done, total=progress.total)
