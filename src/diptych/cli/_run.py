"""How a command runs and prints: its groups of options, its threads, errors in one sentence, tables and JSON.

A command takes a group of options as one parameter, a dataclass; ``expand_options`` shows typer its fields.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from diptych._checks import TASKS, DataWarning, InputError, count

if TYPE_CHECKING:
    from diptych.retrieval import Hit, Item
    from diptych.retrieval._encoders import Encoders

OPTION_NAMES: ContextVar[dict[str, str]] = ContextVar("option_names", default={})  # noqa: B039
"""The options of the running command, by the parameter names of the library."""

INTERRUPTED = {
    **dict.fromkeys(
        ("fit", "index", "sync", "encode_images", "encode_text"), "run the same command again to resume"
    ),
    **dict.fromkeys(("add", "remove"), "the change may have been made; diptych info counts the items"),
    "push": "the repository may be incomplete; run the same command again",
    "serve": "the server has stopped",
}
"""What Ctrl+C leaves behind, for the message about it; other commands have written nothing."""

RECALLS = {"r@1": "r@1", "r@5": "r@5", "r@10": "r@10", "median_rank": "median", "mean_rank": "mean rank"}

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal obeys rather than shows: control characters, the direction of a line, half characters."""


def option(default: Any, help: str, *names: str, panel: str | None = None, **settings: Any) -> Any:
    """Return what stands for the default of a command's parameter, or of a field of a group, as an option.

    With ``...`` as the default it must be given. ``names`` are those beside the parameter's own, or in place
    of it. Other settings are those of ``typer.Option``.
    """
    settings |= {"help": help, "rich_help_panel": panel}
    return field(default=MISSING if default is ... else default, metadata={"names": names, **settings})


run_option = functools.partial(option, panel="Run")

Threads = Annotated[
    int | None, typer.Option(help="Number of threads. Default: all cores.", min=1, rich_help_panel="Run")
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of tables.", rich_help_panel="Run")
]


@dataclass(frozen=True)
class RunOptions:
    """How a command runs and what it prints."""

    threads: Threads = None
    quiet: bool = run_option(False, "Print no progress bar and no table.", "-q")
    as_json: AsJson = False

    @property
    def silent(self) -> bool:
        """Whether to show no progress bars."""
        return self.quiet or self.as_json

    @property
    def bars(self) -> bool | None:
        """Whether to show progress bars: None if they are wanted where there is a terminal."""
        return False if self.silent else None

    def progress(self, work: str) -> contextlib.AbstractContextManager[Any]:
        """Show progress bars of some work, if they are wanted."""
        from diptych._progress import progress_bar

        return progress_bar(work, self.bars)

    def show(self, content: dict[str, Any], lines: Iterable[str] = ()) -> None:
        """Print a result: as JSON, or as lines for people, or not at all."""
        if self.as_json:
            print_json(content)
        elif not self.quiet:
            for line in lines:
                say(line)


def expand_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: with the options of its groups, and errors in one sentence."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            types = get_type_hints(groups[name], include_extras=True)
            parameters += [
                _make_parameter(field.name, types[field.name], field) for field in fields(groups[name])
            ]
        else:
            parameters.append(_make_parameter(name, hints[name], parameter.default))

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        run = next((value for value in values.values() if isinstance(value, RunOptions)), RunOptions())
        if run.silent:  # the libraries of the Hub read this when they are imported, which is later
            os.environ.update(HF_HUB_DISABLE_PROGRESS_BARS="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
        with report_errors(function.__name__), limit_threads(run.threads):
            function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def _make_parameter(name: str, hint: Any, default: Any) -> inspect.Parameter:
    """Return a parameter as typer reads it; a flag has no second name that turns it off."""
    if isinstance(default, Field):
        if default.metadata:
            settings = dict(default.metadata)
            names = settings.pop("names")
            if len(name) > 1 and not any(name.startswith("--") for name in names):
                names = (f"--{name.replace('_', '-')}", *names)
            hint = Annotated[hint, typer.Option(*names, **settings)]
        default = inspect.Parameter.empty if default.default is MISSING else default.default
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def refuse_unused(options: Any, names: Iterable[str], reason: str) -> None:
    """Raise an error for options of a group that were set but have no effect.

    ``reason`` continues "has no effect".
    """
    defaults, flags = type(options)(), OPTION_NAMES.get()
    unused = [name for name in names if getattr(options, name) not in (getattr(defaults, name), [])]
    refuse_settings([flags[name] for name in unused], reason)


def refuse_settings(names: list[str], reason: str) -> None:
    """Raise an error for settings, by name, that have no effect."""
    if names:
        has, it = ("has", "it") if len(names) == 1 else ("have", "them")
        raise InputError(f"{' and '.join(names)} {has} no effect {reason}; leave {it} out.")


def escape_controls(text: str) -> str:
    r"""Return text with control characters as escapes, so that no caption or file name directs a terminal.

    >>> escape_controls("a dog\x1b[2J in the snow")
    'a dog\\x1b[2J in the snow'
    """
    return _CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def say(line: str, *, error: bool = False) -> None:
    """Print one line."""
    print(escape_controls(line), file=sys.stderr if error else sys.stdout)


def print_json(content: dict[str, Any]) -> None:
    """Print one JSON object on one line, without keys whose value is None."""
    text = json.dumps({k: v for k, v in content.items() if v is not None}, ensure_ascii=False)
    sys.stdout.write(_CONTROLS.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n")


def align(rows: Iterable[Sequence[str]], numbers: slice = slice(0)) -> list[str]:
    """Return the rows of a table as lines; the columns that ``numbers`` selects are aligned to the right.

    No library draws it: a search should not wait for an import, and what is printed can be piped and copied.
    """
    columns = [list(column) for column in zip(*rows, strict=True)]
    right = range(len(columns))[numbers]
    for at, column in enumerate(columns):
        width = max(map(len, column))
        columns[at] = [cell.rjust(width) if at in right else cell.ljust(width) for cell in column]
    return ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]


def name_gallery(split: str, *sizes: int) -> str:
    """Return the title of a table of recalls: the split, and among how many items each task searched."""
    among = (f"{task} among {size:,}" for task, size in zip(TASKS, sizes, strict=False))
    return ", ".join([split, *among])


@contextlib.contextmanager
def report_errors(command: str = "") -> Iterator[None]:
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
        say(f"interrupted; {INTERRUPTED.get(command, 'nothing was written')}", error=True)
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


def shorten(path: str) -> str:
    """Return a path below the working folder as relative to it."""
    here = os.path.join(os.path.realpath("."), "")
    return path[len(here) :] if path.startswith(here) else path


def label(item: Hit | Item) -> str:
    """Return the text or the file of an item, or its id if it has neither."""
    return item.text or (item.path and shorten(item.path)) or item.id


def limit_threads(threads: int | None) -> contextlib.AbstractContextManager[Any]:
    """Run the numerical libraries on that many threads; None: on all cores."""
    if threads is None:
        return contextlib.nullcontext()
    from threadpoolctl import threadpool_limits

    limits: contextlib.AbstractContextManager[Any] = threadpool_limits(threads)
    return limits


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
