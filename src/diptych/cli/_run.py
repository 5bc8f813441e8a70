"""How a command runs: its groups of options, its threads, its errors, and what it prints.

A command takes a group of options as one parameter, a dataclass; ``expand_options`` shows typer its fields.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, ClassVar, get_type_hints

import typer

from diptych._checks import InputError
from diptych.cli._output import OPTION_NAMES, limit_threads, print_json, report_errors, say


def option(help: str, *names: str, panel: str | None = None, **settings: Any) -> Any:
    """Return what typer has to know of an option: its help, its names if not its own, its help panel."""
    return typer.Option(*names, help=help, rich_help_panel=panel, **settings)


run_option = functools.partial(option, panel="Run")

Threads = Annotated[int | None, run_option("Number of threads. Default: all cores.", min=1)]
Quiet = Annotated[bool, run_option("Print no progress bar and no table.", "--quiet", "-q")]
AsJson = Annotated[bool, run_option("Print one JSON object instead of tables.", "--json")]


@dataclass(frozen=True)
class RunOptions:
    """How a command runs and what it prints."""

    interrupted: ClassVar[str] = "nothing was written"
    """What Ctrl+C leaves behind, for the message about it."""

    threads: Threads = None
    quiet: Quiet = False
    as_json: AsJson = False

    @property
    def silent(self) -> bool:
        """Whether to show no progress bars."""
        return self.quiet or self.as_json

    @property
    def bars(self) -> bool | None:
        """Whether to show progress bars: None if they are wanted where there is a terminal."""
        return False if self.silent else None

    def show(self, content: dict[str, Any], lines: Iterable[str] = ()) -> None:
        """Print a result: as JSON, or as lines for people, or not at all."""
        if self.as_json:
            print_json(content)
        elif not self.quiet:
            for line in lines:
                say(line)


class ResumedRun(RunOptions):
    """How a command runs that continues interrupted work."""

    interrupted = "run the same command again to resume"


def expand_options(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command for typer: with the options of its groups, and errors in one sentence."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        members, types = [parameter], hints
        if name in groups:
            members = list(inspect.signature(groups[name]).parameters.values())
            types = get_type_hints(groups[name], include_extras=True)
        parameters += [
            member.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=types[member.name])
            for member in members
        ]

    @functools.wraps(function)
    def command(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        run = next((value for value in values.values() if isinstance(value, RunOptions)), RunOptions())
        with report_errors(run.interrupted), limit_threads(run.threads):
            function(**values)

    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return command


def refuse_unused(options: Any, names: Iterable[str], reason: str) -> None:
    """Raise an error for options of a group that were set but have no effect.

    ``reason`` continues "has no effect".
    """
    defaults, flags = type(options)(), OPTION_NAMES.get()
    given = [name for name in names if getattr(options, name) not in (getattr(defaults, name), [])]
    refuse_settings([flags[name] for name in given], reason)


def refuse_settings(names: list[str], reason: str) -> None:
    """Raise an error for settings, by name, that have no effect."""
    if names:
        has, it = ("has", "it") if len(names) == 1 else ("have", "them")
        raise InputError(f"{' and '.join(names)} {has} no effect {reason}; leave {it} out.")
