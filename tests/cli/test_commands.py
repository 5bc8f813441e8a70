"""The table of commands: what is shown, and what is imported for it."""

import ast
import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import typer

import diptych
from commands import run
from diptych import AWCCA, HKSE, Retriever
from diptych.cli import Commands, Encode, app
from diptych.cli._run import report_errors
from diptych.data import PairedDataset, PairedViews

SOURCE = Path(diptych.__file__).parent
COMMANDS = dict(Commands.table)
COMMANDS |= {f"encode {name}": entry for name, entry in Encode.table.items()}


def find_function(command):
    """Return the function of a command."""
    return getattr(import_module(f"diptych.cli.{COMMANDS[command][0]}"), command.replace(" ", "_"))


HEAVY = {
    *("sklearn", "scipy", "pandas", "pyarrow", "matplotlib", "torch", "joblib", "onnxruntime", "fastembed"),
    *("fastapi", "uvicorn", "dask", "PIL", "filelock", "asyncio"),
}
"""Packages that take long to import, and that a search does not need."""


WATCH = """
import sys, json, contextlib, io
from diptych.cli import app
for line in json.loads(sys.argv[1]):
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        app(line, standalone_mode=False)
    print(json.dumps([shown.getvalue(), sorted(sys.modules)]))
"""
"""Runs commands in one process; of each, prints its output and what is imported by then."""


def watch(*commands):
    """Run commands in a process of its own; return their outputs, and what each or one before it imported."""
    lines = [[str(word) for word in command] for command in commands]
    code = [sys.executable, "-c", WATCH, json.dumps(lines)]
    done = subprocess.run(code, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        shown, modules = json.loads(line)
        ours = {name for name in modules if name.startswith("diptych.")}
        yield shown, {name.partition(".")[0] for name in modules} | ours


def test_help_and_version_load_nothing_of_the_library():
    asked = ["--help", "-h", "--version", "encode --help", *(f"{command} --help" for command in COMMANDS)]
    results = list(watch(*map(str.split, asked)))
    assert len(results) == len(asked)
    for arguments, (shown, loaded) in zip(asked, results, strict=True):
        assert ("diptych" if "--version" in arguments else "Usage:") in shown, arguments
        assert not loaded & {"numpy", "scipy", "sklearn", "PIL", "msgspec", "pydantic"}, arguments
        ours = {name for name in loaded if name.startswith("diptych.") and not name.startswith("diptych.cli")}
        assert ours <= {"diptych._lazy", "diptych._checks"}, arguments


def test_a_search_loads_no_package_that_it_does_not_need(tmp_path):
    rng = np.random.default_rng(0)
    words = ["red", "green", "blue", "dog", "cat", "tree", "snow", "sea"]
    captions = tuple(" ".join(rng.choice(words, 4)) for _ in range(60))
    text = HKSE(word_features=20, sentence_features=20).fit(captions)
    x = rng.normal(size=(60, 12)).astype(np.float32)
    pairs = PairedDataset(tuple(f"{i}.jpg" for i in range(60)), captions, np.arange(60))
    model = tmp_path / "model"
    retriever = Retriever(None, text, AWCCA(params=(1.0, 1.0)))
    retriever.fit(PairedViews(pairs, x, text.transform(captions))).save(model)
    np.save(tmp_path / "x.npy", x[:2])
    for shown, loaded in watch(
        ("search", model, "a dog in the snow", "--json"),
        ("search", model, "a dog in the snow", "a red cat"),
        ("annotate", model, "--features", tmp_path / "x.npy"),
        ("similar", model, "a dog in the snow"),
        ("search", model, "a dog", "--plus", "snow:2", "--where", 'not split = "x"', "--offset", "3"),
    ):
        assert "snow" in shown or "jpg" in shown or "row 0" in shown
        assert {"numpy", "faiss"} <= loaded
        assert loaded & HEAVY == set()
        assert not loaded & {"diptych.cca._awcca", "diptych.fusion._fusion", "diptych.retrieval._training"}


def test_the_package_itself_loads_nothing():
    code = "import diptych, sys; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {name.partition(".")[0] for name in loaded.stdout.split()} & {
        *HEAVY,
        "numpy",
        "faiss",
        "msgspec",
    }


def test_every_command_has_a_summary_an_example_and_the_common_flags():
    group = typer.main.get_command(app)
    for command in COMMANDS:
        *parent, name = command.split()
        listed = (group.commands["encode"] if parent else group).get_command(None, name)
        assert find_function(command).__doc__.splitlines()[0] == listed.help
        help_text = run(*command.split(), "--help").stdout
        assert run(*command.split(), "-h").stdout == help_text
        shown = " ".join(help_text.split())
        assert f"Example: diptych {command}" in shown
        for flag in ("--json", "--quiet", "--threads"):
            assert (flag in shown) or command in ("serve", "encoders"), command


def test_the_version_is_that_of_the_package():
    assert run("--version").stdout == f"diptych {diptych.__version__}\n"


def test_a_misspelt_command_is_corrected():
    result = run("serach", exit_code=2)
    assert "'search'" in result.output


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


def test_a_folder_that_is_no_model_is_named_in_plain_words(tmp_path):
    for command in ("search {} dog", "info {}", "serve {}", "remove {} a.jpg", "annotate {} a.jpg"):
        for place in (tmp_path / "nowhere", tmp_path):
            result = run(*command.format(place).split(), exit_code=2)
            assert "folder of a model" in result.output
            assert "()" not in result.output


def test_a_reader_that_stops_early_is_no_error(capsys):
    """As in ``diptych duplicates model | head``: the error is left to typer, which exits without a word."""
    with pytest.raises(BrokenPipeError), report_errors():
        raise BrokenPipeError
    assert capsys.readouterr().err == ""
