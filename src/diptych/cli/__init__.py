"""The commands: each reads files, calls the library and prints the result.

A command's module is imported when that command runs, so that ``--help`` and ``--version`` load nothing of
the library.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from diptych import __version__


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they run.

    ``table`` has the module of each command, which is the function ``prefix`` + name there.
    """

    table: ClassVar[dict[str, str]] = {}
    prefix: ClassVar = ""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        summaries = {name: TyperCommand(name) for name in self.table}
        self.commands = {**summaries, **self.commands}

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command; one of the table only with its summary, the first line of its docstring."""
        command: Any = super().get_command(ctx, cmd_name)
        file = Path(__file__).with_name(f"{self.table.get(cmd_name)}.py")
        if cmd_name in self.table and file.is_file():  # not if it was installed without sources
            function = rf'^def {self.prefix}{cmd_name}\(.*?\) -> None:\n    """(.*?)\n'
            found = re.search(function, file.read_text("utf-8"), re.MULTILINE | re.DOTALL)
            command.help = found[1] if found else None
        return command

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the group itself; flags that are not given are False.

        If they were None, typer would convert them, and import pydantic for that.
        """
        params = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False) and param.default is None:
                param.default = False
        return params

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command to run, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, self._import(name) if name in self.table else command, rest

    def _import(self, name: str) -> Any:
        function = getattr(import_module(f"diptych.cli.{self.table[name]}"), self.prefix + name)
        alone = typer.Typer(**OPTIONS, add_completion=False)
        run = import_module("diptych.cli._run")
        alone.command(name)(run.expand_options(function))
        command: Any = typer.main.get_command(alone)
        flags = {param.name: max(param.opts, key=len) for param in command.params}
        run.OPTION_NAMES.set({name: flag for name, flag in flags.items() if flag.startswith("--")})
        return command


class Commands(LazyGroup):
    """``diptych …``, in the order of the help."""

    table: ClassVar = {
        "demo": "_demo",
        "index": "_index",
        "fit": "_fit",
        "evaluate": "_fit",
        "audit": "_audit",
        "score": "_audit",
        "search": "_search",
        "annotate": "_search",
        "similar": "_search",
        "duplicates": "_items",
        "list": "_list",
        "add": "_items",
        "learn": "_items",
        "sync": "_index",
        "remove": "_items",
        "info": "_items",
        "export": "_items",
        "serve": "_serve",
        "push": "_items",
        "pull": "_items",
        "encoders": "_encoders",
        "check": "_data",
    }


class Encode(LazyGroup):
    """``diptych encode …``."""

    prefix: ClassVar = "encode_"
    table: ClassVar = {"images": "_data", "text": "_data"}


OPTIONS: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": "markdown"}

app = typer.Typer(
    cls=Commands, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]}, **OPTIONS
)
encode = typer.Typer(cls=Encode, no_args_is_help=True, **OPTIONS)
app.add_typer(encode, name="encode")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diptych {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Search both ways between two paired views: images and texts, or any other two."""


@encode.callback()
def encode_main() -> None:
    """Turn images or captions into features on disk."""
