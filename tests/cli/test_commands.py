"""The table of commands: what is shown, and what is imported for it."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import diptych
from commands import run
from diptych.cli import Commands, Encode

COMMANDS = dict(Commands.table)
COMMANDS |= {f"encode {name}": entry for name, entry in Encode.table.items()}


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["--version"], ["encode", "--help"]])
def test_help_and_version_load_nothing_of_the_library(arguments):
    code = (
        "import sys; from diptych.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "sys.stderr.write(' '.join(m for m in ('numpy', 'scipy', 'sklearn', 'PIL') if m in sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    assert shown.returncode == 0
    assert shown.stderr == ""
    assert ("diptych" if "--version" in arguments else "Usage:") in shown.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_the_summary_of_a_command_is_the_first_line_of_its_docstring(command):
    module, function, summary = COMMANDS[command]
    assert getattr(import_module(module), function).__doc__.splitlines()[0] == summary


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
