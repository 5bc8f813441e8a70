"""Every option that a message, a help text or a docstring names exists on some command."""

import ast
import re
from pathlib import Path

import typer

import diptych
from diptych.cli import app

SOURCE = Path(diptych.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")


def real_options(command):
    for parameter in command.params:
        yield from (*parameter.opts, *parameter.secondary_opts)
    if hasattr(command, "list_commands"):
        context = typer.Context(command)
        for name in command.list_commands(context):
            # Commands are imported when they are resolved; before, they have no options.
            yield from real_options(command.resolve_command(context, [name])[1])


def named_options():
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for option in OPTION.findall(node.value):
                    yield f"{path.relative_to(SOURCE)}:{node.lineno}", option


def test_every_option_named_in_a_text_exists():
    real = {*real_options(typer.main.get_command(app)), "--help"}
    assert {"--out", "--image-encoder", "--json"} <= real
    named = list(named_options())
    assert len(named) > 20
    assert [(place, option) for place, option in named if option not in real] == []
