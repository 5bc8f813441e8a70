"""Output of the commands: errors in one sentence, notes, progress bars, tables and JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from diptych._checks import DataWarning, InputError, count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from diptych.retrieval._encoders import Encoders

OPTION_NAMES: ContextVar[dict[str, str]] = ContextVar("option_names", default={})  # noqa: B039
"""The options of the running command, by the parameter names of the library."""

RECALLS = {"r@1": "r@1", "r@5": "r@5", "r@10": "r@10", "median_rank": "median", "mean_rank": "mean rank"}

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys rather than shows: control characters, the direction of a line, half characters."""


def escape_controls(text: str) -> str:
    r"""Return text with control characters as escapes, so that no caption or file name directs a terminal.

    >>> escape_controls("a dog\x1b[2J in the snow")
    'a dog\\x1b[2J in the snow'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(line: str, *, error: bool = False) -> None:
    """Print one line. Not by rich, which takes long to import and prints control characters."""
    print(escape_controls(line), file=sys.stderr if error else sys.stdout)


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on one line, without keys whose value is None."""
    text = json.dumps({k: v for k, v in content.items() if v is not None}, ensure_ascii=False)
    sys.stdout.write(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


def make_console(*, stderr: bool = False) -> Console:
    """Return a console that prints tables, with texts as they are."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False, soft_wrap=True, markup=False)


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Print a table whose first column is words and whose others are numbers."""
    from rich.table import Table

    table: Table = Table(title=title, title_justify="left")
    for at, name in enumerate(columns):
        table.add_column(name, justify="right" if at else "left")
    for row in rows:
        table.add_row(*map(escape_controls, row))
    make_console().print(table)


@contextlib.contextmanager
def report_errors(interrupted: str = "nothing was written") -> Iterator[None]:
    """Print an error as one sentence and exit with 2, warnings as notes; on Ctrl+C exit with 130."""

    def print_note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
        say(f"note: {name_options(str(message))}", error=True)

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("always", DataWarning)
            warnings.showwarning = print_note
            yield
    except InputError as error:
        say(f"error: {name_options(str(error))}", error=True)
        raise typer.Exit(2) from None
    except BrokenPipeError:  # the reader of the output, such as head, has all it wants: typer exits quietly
        raise
    except OSError as error:
        say(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}", error=True)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        say(f"interrupted; {interrupted}", error=True)
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


def name_program() -> str:
    """Return what to write for ``diptych`` in a command to be pasted into the shell that runs this one."""
    program = Path(sys.executable).with_name("diptych.exe" if os.name == "nt" else "diptych")
    if not program.is_file():
        return f"{shlex.quote(shorten(sys.executable))} -m diptych"
    on_path = shutil.which("diptych")
    is_same = on_path is not None and os.path.realpath(on_path) == os.path.realpath(program)
    return "diptych" if is_same else shlex.quote(shorten(os.fspath(program)))


def shorten(path: str) -> str:
    """Return a path below the working folder as relative to it."""
    here = os.path.join(os.path.realpath("."), "")
    return path[len(here) :] if path.startswith(here) else path


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
    from diptych.encoders._image import open_input

    if encoders.image is None:
        raise encoders.missing("image")
    readable, unreadable = [], dict[str, str]()
    for source in sources:
        try:
            open_input(source, encoders.inputs, encoders.views.image)
            readable.append(source)
        except InputError as error:
            unreadable[source] = str(error)
    if not readable and len(unreadable) > 1:
        what = count(len(unreadable), encoders.views.image)
        raise InputError(f"none of {what} can be read (the first: {next(iter(unreadable.values()))})")
    if not readable:
        raise InputError("".join(unreadable.values()))
    return readable, unreadable


def exit_if_unreadable(unreadable: dict[str, str]) -> None:
    """Name the files that were skipped, and exit with 1 if there are any."""
    for reason in unreadable.values():
        say(f"skipped: {reason}", error=True)
    if unreadable:
        raise typer.Exit(1)
