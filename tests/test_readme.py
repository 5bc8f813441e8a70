"""What the README shows works as it stands there."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import urllib.request
from pathlib import Path

import numpy as np
import pytest

from commands import run
from example_files import code_blocks, write_photos
from fastembed_models import write_fastembed_cache
from generated_pairs import make_pairs

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what a newcomer has: photos and captions; and small networks in place of the download."""
    monkeypatch.chdir(tmp_path)
    drawn = write_photos(tmp_path, 80)
    for name in ("photo.jpg", "new.jpg"):
        drawn.images[3].save(tmp_path / name)
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "cache"))
    write_fastembed_cache(tmp_path / "cache")
    return tmp_path


@pytest.fixture
def features(place):
    """Features of both views, and which belong together."""
    (x, y, pairing), _ = make_pairs(0)
    for name, array in (("image-features", x), ("text-features", y), ("pairing", pairing)):
        np.save(f"{name}.npy", array.astype(np.float32) if array.dtype.kind == "f" else array)


def test_the_python_examples_run(place, features, capsys):
    quick, from_features = code_blocks(README)
    assert len([line for line in quick.splitlines() if line.strip()]) <= 10
    names = {}
    exec(quick, names)
    assert len(names["retriever"].search("a star", k=5)) == 5
    assert (place / "model" / "items.sqlite").is_file()
    assert (place / "model" / "README.md").is_file()
    exec(from_features, names)
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_the_examples_of_the_page_on_scale_run(place, features):
    mapped, sparse, on_a_card = code_blocks(README.parent / "docs" / "scale.md", "py(?:thon)?")
    names = {}
    exec(mapped, names)
    assert not (place / "fit.sum").exists()
    names["texts"] = [f"caption {row % 9} of image {owner}" for row, owner in enumerate(names["pairing"])]
    exec(sparse, names)
    pytest.importorskip("torch")
    exec(on_a_card.replace("cuda", "cpu"), names)
    assert len(names["vectors"]) == len(names["x"])


def list_commands():
    """Return the lines of all shell blocks, in order."""
    return [line for block in code_blocks(README, "sh") for line in block.splitlines()]


def test_the_commands_run_as_pasted_in_order(place):
    """``pip`` and ``venv`` need a network, and minutes; ``serve`` gets a free port, and is stopped."""
    commands = [line for line in list_commands() if line.startswith("diptych ")]
    assert len(commands) >= 10
    for line in commands:
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "serve":
            assert b"<html" in serve(place, words)
            continue
        result = run(*words)
        assert result.exit_code == 0, f"{line}: {result.output}"
        if words[0] == "fit":
            assert "Learned from 80 images with 400 captions" in result.stdout
        assert result.stdout


def serve(place, words):
    """Run ``diptych serve``, and return the page that it serves."""
    command = [sys.executable, "-u", "-m", "diptych", *words, "--port", "0"]
    with subprocess.Popen(
        command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=os.environ
    ) as server:
        try:
            url = next(match[1] for line in server.stdout if (match := re.search(r"Open (http\S+)", line)))
            return urllib.request.urlopen(url, timeout=60).read()
        finally:
            server.terminate()


def test_what_is_installed_is_what_the_commands_need():
    others = [line for line in list_commands() if line and not line.startswith("diptych ")]
    assert others == ["python3 -m venv .venv", ". .venv/bin/activate", 'pip install ".[encoders,serve]"']
    project = tomllib.loads((README.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert {"encoders", "serve"} <= set(project["optional-dependencies"])


def test_the_index_leads_to_every_page():
    docs = README.parent / "docs"
    linked = re.findall(r"\]\(([\w-]+\.md)", (docs / "index.md").read_text("utf-8"))
    assert set(linked) == {page.name for page in docs.glob("*.md")} - {"index.md"}
    assert "docs/index.md" in README.read_text("utf-8")


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_has_what_is_promised(target):
    assert f"make {target}" in README.read_text("utf-8")
    assert re.search(rf"^{target}:", (README.parent / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_benchmarks_that_are_named_exist():
    for page in [README, README.parent / "CONTRIBUTING.md", *(README.parent / "docs").glob("*.md")]:
        for script in re.findall(r"benchmarks/\w+\.py", page.read_text("utf-8")):
            assert (README.parent / script).is_file(), f"{page.name} names {script}"


def test_links_lead_somewhere():
    for page in [README, *(README.parent / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
