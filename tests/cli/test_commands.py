"""The table of commands: what is shown, and what is imported for it."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import diptych
from commands import run
from diptych import AWCCA, HKSE, Retriever
from diptych.cli import Commands, Encode
from diptych.cli._output import report_errors
from diptych.data import PairedDataset, PairedViews

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


def loaded_packages(*arguments):
    """Run a command in a process of its own; return its output and the packages and modules it imported."""
    code = (
        "import sys; from diptych.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "print(*sys.modules, sep='\\n', file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    modules = set(done.stderr.splitlines())
    return done.stdout, {name.partition(".")[0] for name in modules} | {
        name for name in modules if name.startswith("diptych.")
    }


@pytest.mark.parametrize(
    "arguments",
    ["--help", "-h", "--version", "encode --help", *(f"{command} --help" for command in COMMANDS)],
)
def test_help_and_version_load_nothing_of_the_library(arguments):
    shown, loaded = loaded_packages(*arguments.split())
    assert ("diptych" if "--version" in arguments else "Usage:") in shown
    assert not loaded & {"numpy", "scipy", "sklearn", "PIL", "msgspec", "pydantic"}
    ours = {name for name in loaded if not name.startswith("diptych.cli")}
    assert {name for name in ours if name.startswith("diptych.")} <= {"diptych._lazy", "diptych._checks"}


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
    for arguments in (
        ("search", model, "a dog in the snow", "--json"),
        ("search", model, "a dog in the snow", "a red cat"),
        ("annotate", model, "--features", tmp_path / "x.npy"),
        ("similar", model, "a dog in the snow"),
        ("search", model, "a dog", "--plus", "snow:2", "--where", 'not split = "x"', "--offset", "3"),
    ):
        shown, loaded = loaded_packages(*arguments)
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


@pytest.mark.parametrize("command", COMMANDS)
def test_the_summary_of_a_command_is_the_first_line_of_its_docstring(command):
    assert find_function(command).__doc__.splitlines()[0] == COMMANDS[command][1]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_short_flag_for_help(command):
    short, long = run(*command.split(), "-h"), run(*command.split(), "--help")
    assert short.exit_code == 0
    assert short.stdout == long.stdout
    assert "Example: diptych" in " ".join(long.stdout.split())


def test_the_version_is_that_of_the_package():
    assert run("--version").stdout == f"diptych {diptych.__version__}\n"


def test_a_misspelt_command_is_corrected():
    result = run("serach")
    assert result.exit_code == 2
    assert "'search'" in result.output


def test_messages_name_only_options_that_exist(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")  # narrower help cuts long names
    known = {"--version", "--help", "--upgrade"}
    for command in COMMANDS:
        known |= set(re.findall(r"--[a-z][a-z-]+", run(*command.split(), "--help").stdout))
    for path in Path(diptych.__file__).parent.rglob("*.py"):
        for name in re.findall(r"(?<![\w\"'-])--[a-z][a-z-]+", path.read_text("utf-8")):
            assert name in known, f"{path}: {name}"


@pytest.mark.parametrize(
    "command", ["search {} dog", "info {}", "serve {}", "remove {} a.jpg", "annotate {} a.jpg"]
)
def test_a_folder_that_is_no_model_is_named_in_plain_words(tmp_path, command):
    for place in (tmp_path / "nowhere", tmp_path):
        result = run(*command.format(place).split())
        assert result.exit_code == 2
        assert "folder of a model" in result.output
        assert "()" not in result.output


def test_a_reader_that_stops_early_is_no_error(capsys):
    """As in ``diptych duplicates model | head``: the error is left to typer, which exits without a word."""
    with pytest.raises(BrokenPipeError), report_errors():
        raise BrokenPipeError
    assert capsys.readouterr().err == ""
