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

    ``table`` has the module, the function and the summary of each command. The summary is the first line of
    the function's docstring.
    """

    table: ClassVar[dict[str, tuple[str, str, str]]] = {}

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        summaries = {name: TyperCommand(name, help=summary) for name, (*_, summary) in self.table.items()}
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
        module, function, _ = self.table[name]
        alone = typer.Typer(**OPTIONS, add_completion=False)
        alone.command(name)(getattr(import_module(module), function))
        command: Any = typer.main.get_command(alone)
        flags = {param.name: max(param.opts, key=len) for param in command.params}
        import_module("diptych.cli._output").OPTION_NAMES.set(
            {name: flag for name, flag in flags.items() if flag.startswith("--")}
        )
        return command


class Commands(LazyGroup):
    """``diptych …``."""

    table: ClassVar = {
        "demo": (
            "diptych.cli._paper",
            "demo",
            "Draw scenes, encode, select, compare, search both ways; write a model and a report.",
        ),
        "fit": (
            "diptych.cli._fit",
            "fit",
            "Fit a searchable model on pairs, or on features of both views, and report its recall.",
        ),
        "evaluate": (
            "diptych.cli._fit",
            "evaluate",
            "Measure how well a model retrieves known pairs, both ways.",
        ),
        "search": (
            "diptych.cli._search",
            "search",
            "Find images for texts, with scores and, where they are known, probabilities.",
        ),
        "annotate": (
            "diptych.cli._search",
            "annotate",
            "Find texts for images, with scores and, where they are known, probabilities.",
        ),
        "similar": (
            "diptych.cli._search",
            "similar",
            "Find images similar to an image, or texts similar to a text.",
        ),
        "duplicates": (
            "diptych.cli._search",
            "duplicates",
            "List groups of near-identical images or texts.",
        ),
        "add": (
            "diptych.cli._search",
            "add",
            "Add images or pairs to a model. It learns from new pairs only with --refit.",
        ),
        "remove": (
            "diptych.cli._search",
            "remove",
            "Remove items from a model; an image is removed with its captions.",
        ),
        "info": (
            "diptych.cli._search",
            "info",
            "Show what a model is, what it was fitted on, and how good it is.",
        ),
        "export": (
            "diptych.cli._search",
            "export",
            "Write an ONNX file that turns features of one view into vectors, for clients without Python.",
        ),
        "serve": (
            "diptych.cli._serve",
            "serve",
            "Open a web page that searches images with text and text with images, and serve the HTTP API.",
        ),
        "push": ("diptych.cli._hub", "push", "Publish a model on the Hugging Face Hub."),
        "pull": ("diptych.cli._hub", "pull", "Download a published model from the Hugging Face Hub."),
        "encoders": (
            "diptych.cli._encoders",
            "encoders",
            "List the encoders: what is installed, and which to name for which need.",
        ),
        "check": (
            "diptych.cli._data",
            "check",
            "Check pairs and their images; exit with 1 when something is wrong.",
        ),
        "scenes": (
            "diptych.cli._data",
            "scenes_command",
            "Draw scenes with five captions each: images and a table of pairs, with splits.",
        ),
        "reproduce": (
            "diptych.cli._paper",
            "reproduce",
            "Compute every table and figure of the paper, and compare the numbers with the published ones.",
        ),
    }


class Encode(LazyGroup):
    """``diptych encode …``."""

    table: ClassVar = {
        "images": (
            "diptych.cli._data",
            "encode_images_command",
            "Encode images into a feature store; interrupted work resumes.",
        ),
        "text": (
            "diptych.cli._data",
            "encode_text_command",
            "Encode captions into a feature store; hkse is fitted on the training captions.",
        ),
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
