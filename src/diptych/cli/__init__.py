"""The commands: each reads files, calls the library and prints the result.

A command's module is imported when that command runs, so that ``--help`` and ``--version`` load nothing of
the library.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from diptych import __version__


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they run.

    ``table`` has the module and the summary of each command, which is the first line of the docstring of the
    function ``prefix`` + name in that module.
    """

    table: ClassVar[dict[str, tuple[str, str]]] = {}
    prefix: ClassVar = ""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        summaries = {name: TyperCommand(name, help=summary) for name, (_, summary) in self.table.items()}
        self.commands = {**summaries, **self.commands}

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
        function = getattr(import_module(f"diptych.cli.{self.table[name][0]}"), self.prefix + name)
        alone = typer.Typer(**OPTIONS, add_completion=False)
        run = import_module("diptych.cli._run")
        alone.command(name)(run.expand_options(function))
        command: Any = typer.main.get_command(alone)
        flags = {param.name: max(param.opts, key=len) for param in command.params}
        run.OPTION_NAMES.set({name: flag for name, flag in flags.items() if flag.startswith("--")})
        return command


class Commands(LazyGroup):
    """``diptych …``."""

    table: ClassVar = {
        "demo": ("_demo", "Draw scenes, fit, compare, search both ways; write models and a report."),
        "index": ("_index", "Make a library of photos, which need no captions: search it at once."),
        "fit": ("_fit", "Fit a searchable model on pairs, or on features of both views, and measure it."),
        "evaluate": ("_fit", "Measure how well a model retrieves known pairs, both ways."),
        "audit": (
            "_audit",
            "List captions that look as if they belonged to another image, the most suspect first.",
        ),
        "score": (
            "_audit",
            "Say how well each caption fits its image, in scores that can be compared between pairs.",
        ),
        "search": ("_search", "Find images for texts, with scores and, if measured, probabilities."),
        "annotate": ("_search", "Find texts for images, with scores and, if measured, probabilities."),
        "similar": ("_search", "Find images similar to an image, or texts similar to a text."),
        "duplicates": ("_items", "List groups of near-identical images or texts."),
        "list": (
            "_list",
            "List the items of a model, filtered, in order of addition or of a metadata value.",
        ),
        "add": ("_items", "Add images or pairs to a model. It learns from new pairs only with --refit."),
        "learn": (
            "_items",
            "Confirm which images a text should find. The model learns from it with --refit.",
        ),
        "sync": ("_index", "Bring a library up to date with its folders of photos."),
        "remove": ("_items", "Remove items from a model; an image is removed with its captions."),
        "info": ("_items", "Check the files of a model; show what it is and how good it is."),
        "export": ("_items", "Write an ONNX file from features to vectors, for clients without Python."),
        "serve": ("_serve", "Serve a web page that searches both ways, and an HTTP API."),
        "push": ("_items", "Publish a model on the Hugging Face Hub."),
        "pull": ("_items", "Download a published model from the Hugging Face Hub."),
        "encoders": ("_encoders", "List the encoders: what is installed, and which to name for which need."),
        "check": ("_data", "Check pairs and their images; exit with 1 when something is wrong."),
    }


class Encode(LazyGroup):
    """``diptych encode …``."""

    prefix: ClassVar = "encode_"
    table: ClassVar = {
        "images": ("_data", "Encode images into a feature store; interrupted work resumes."),
        "text": ("_data", "Encode captions into a feature store; hkse is fitted on the training captions."),
    }


OPTIONS: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": "markdown"}

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    **OPTIONS,
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
