"""The demo with few scenes."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from commands import run
from diptych import Retriever
from diptych.cli._demo import name_program


def test_the_demo_writes_models_and_a_report(tmp_path):
    result = run("demo", "-n", 200, "-o", tmp_path / "out", "--threads", 1)
    for words in (
        *("Drew 200 images", "plain CCA", "search generation", "T-SVD", "Best here by mean r@1"),
        *("the image of this caption is", "annotate images/scene-"),
    ):
        assert words in result.stdout.replace("\n", " ")
    retriever = Retriever.load(tmp_path / "out" / "model")
    assert len(retriever.search("a red star", 3)) == 3
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.count("<figure>") == 2
    assert page.count('class="strip"') == 8
    assert "plain CCA" in page
    assert "http" not in page
    serve, search = (line.strip() for line in result.stdout.splitlines()[-2:])
    assert shlex.split(serve)[1:] == ["serve", str(tmp_path / "out" / "best")]
    # As pasted into the shell that ran the demo.
    found = subprocess.run(search, shell=True, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert "images/scene-" in found.stdout


@pytest.mark.parametrize("name", ["report.html", "scenes/captions.jsonl", "model/thesis.tex"])
def test_the_demo_replaces_no_file_of_others(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("precious")
    result = run("demo", "-n", 200, "-o", tmp_path, exit_code=2)
    assert result.stderr.count("\n") == 1
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / name]
    assert (tmp_path / name).read_text() == "precious"


def test_the_program_is_named_as_the_shell_finds_it(tmp_path, monkeypatch):
    """A stand-in for an environment: Python and the program side by side, in or outside the PATH."""
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "diptych"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(programs / "python"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/usr/bin")
    assert name_program() == str(Path(".venv") / "bin" / "diptych")
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}/usr/bin")
    assert name_program() == "diptych"
    (programs / "diptych").unlink()
    assert name_program() == f"{Path('.venv') / 'bin' / 'python'} -m diptych"
