"""What the README shows works as it stands there."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from commands import config, run
from example_files import code_blocks, write_photos
from fastembed_models import VISION, cached_folder, write_fastembed_cache
from generated_pairs import make_pairs

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what the README's examples expect to find."""
    monkeypatch.chdir(tmp_path)
    drawn = write_photos(tmp_path, 80)
    for name in ("photo.jpg", "new.jpg"):
        drawn.images[3].save(tmp_path / name)
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "cache"))
    write_fastembed_cache(tmp_path / "cache")
    (tmp_path / "resnet50").symlink_to(cached_folder(tmp_path / "cache", VISION))
    (x, y, pairing), _ = make_pairs(0)
    for name, array in (("image-features", x), ("text-features", y), ("pairing", pairing)):
        np.save(f"{name}.npy", array.astype(np.float32) if array.dtype.kind == "f" else array)
    return tmp_path


def test_the_python_examples_run(place, capsys):
    quick, features = code_blocks(README)
    assert len([line for line in quick.splitlines() if line.strip()]) <= 10
    names = {}
    exec(quick, names)
    assert len(names["retriever"].search("a star", k=5)) == 5
    assert (place / "model" / "current.json").is_file()
    assert (place / "model" / "README.md").is_file()
    exec(features, names)
    assert len(capsys.readouterr().out.splitlines()) == 7


def test_the_examples_of_the_page_on_scale_run(place):
    mapped, sparse, on_a_card = code_blocks(README.parent / "docs" / "scale.md", "py(?:thon)?")
    names = {}
    exec(mapped, names)
    assert not (place / "fit.sum").exists()
    names["texts"] = [f"caption {row % 9} of image {owner}" for row, owner in enumerate(names["pairing"])]
    exec(sparse, names)
    pytest.importorskip("torch")
    exec(on_a_card.replace("cuda", "cpu"), names)
    assert len(names["vectors"]) == len(names["x"])


def test_the_commands_run(place):
    commands = [
        line
        for block in code_blocks(README, "sh")
        for line in block.splitlines()
        if line.startswith("diptych ")
    ]
    assert len(commands) >= 5
    for line in commands:
        words = shlex.split(line, comments=True)[1:]
        if words[0] == "serve":  # it would not end; its own tests run it
            words = ["serve", "--help"]
        settings = {"model": {"grid": 4}}
        if "hkse" in words:
            settings["hkse"] = {"word_features": 60, "sentence_features": 60}
        result = run(*words, *(config(**settings) if words[0] == "fit" else []))
        assert result.exit_code == 0, f"{line}: {result.output}"


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
