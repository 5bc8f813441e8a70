"""Run commands as a user does."""

import json

from typer.testing import CliRunner

from diptych.cli import app

_runner = CliRunner()


def run(*arguments):
    """What ``diptych ARGUMENTS`` gives."""
    return _runner.invoke(app, [str(a) for a in arguments])


def run_json(*arguments):
    """What ``diptych ARGUMENTS --json`` prints, which must succeed."""
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def refused(*arguments):
    """The one sentence with which a command refuses."""
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    # Before it there may be a progress bar and notes.
    assert result.stdout == ""
    assert result.stderr.endswith("\n")
    last = result.stderr.splitlines()[-1]
    assert last.startswith("error: ")
    assert "Traceback" not in result.stderr
    return last
