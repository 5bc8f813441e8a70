"""What the README shows works as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest
from typer.main import get_command

from diptych.cli import app
from generated_pairs import make_pairs

README = Path(__file__).parent.parent / "README.md"


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README.read_text("utf-8"), re.DOTALL)


def test_the_python_example_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (x, y, pairing), _ = make_pairs(0)
    for name, array in (("image-features", x), ("text-features", y), ("pairing", pairing)):
        np.save(f"{name}.npy", array.astype(np.float32) if array.dtype.kind == "f" else array)
    (code,) = blocks("python")
    names = {}
    exec(code, names)
    assert 0 <= names["best"] < len(x)
    assert (tmp_path / "model" / "model.safetensors").is_file()


def test_every_command_and_flag_exists():
    commands = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("diptych ")]
    assert len(commands) == 5
    for line in commands:
        words = line.split("#")[0].split()[1:]
        command = get_command(app)
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {flag for parameter in command.params for flag in parameter.opts}
        for word in words:
            assert not word.startswith("-") or word in known, f"{line}: {word}"


@pytest.mark.parametrize("target", ["demo", "test"])
def test_make_has_what_is_promised(target):
    assert f"make {target}" in README.read_text("utf-8")
    assert re.search(rf"^{target}:", (README.parent / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_links_lead_somewhere():
    for page in [README, *(README.parent / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)#:]+)\)", page.read_text("utf-8")):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"
