"""Run commands as a user does."""

import json
import tempfile
from pathlib import Path

from typer.testing import CliRunner

from diptych.cli import app

_runner = CliRunner()
_folder = tempfile.TemporaryDirectory()


def config(**tables):
    """Write settings as TOML, and return the option that names the file: ``config(model={"grid": 5})``."""
    lines = []
    for table, settings in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
    path = Path(_folder.name) / f"settings-{len(list(Path(_folder.name).iterdir()))}.toml"
    path.write_text("\n".join(lines), "utf-8")
    return ["--config", path]


def run(*arguments, exit_code=0):
    """Run ``diptych ARGUMENTS``, which must end with this exit code."""
    result = _runner.invoke(app, [str(a) for a in arguments])
    assert result.exit_code == exit_code, (arguments, result.output)
    return result


def run_json(*arguments):
    """Run ``diptych ARGUMENTS --json``, which must succeed, and return what it prints."""
    return json.loads(run(*arguments, "--json").stdout)


def refused(*arguments):
    """Run a command that must fail, and return its error message."""
    result = run(*arguments, exit_code=2)
    # Before it there may be a progress bar and notes.
    assert result.stdout == ""
    assert result.stderr.endswith("\n")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in result.stderr
    return last
