"""The examples in docs/postgresql.md work as printed."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from commands import config, run
from diptych.retrieval.stores.postgres._connection import SETTINGS, Address
from example_files import write_photos
from fastembed_models import write_fastembed_cache

PAGE = (Path(__file__).parent.parent.parent / "docs" / "postgresql.md").read_text("utf-8")
ADDRESS = "postgresql://me@db.example.org/images"


@pytest.fixture
def place(tmp_path, monkeypatch, views):
    """A folder with the files that the page's examples use."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FASTEMBED_CACHE_PATH", str(tmp_path / "cache"))
    write_fastembed_cache(tmp_path / "cache")
    drawn = write_photos(tmp_path, 80, size=48)
    drawn.images[3].save(tmp_path / "new.jpg")
    x, y, _ = views(n=120, captions=1)
    np.save("image-features.npy", x.astype(np.float32))
    np.save("text-features.npy", y.astype(np.float32))
    return tmp_path


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::diptych._checks.DataWarning")
def test_the_examples_run(place, fresh):
    address, names = fresh(), {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        code = block.replace(f'"{ADDRESS}"', repr(address))
        exec(code.replace('address + "?schema=mine"', repr(fresh())), names)
    assert len(names["other"].search("a star", k=5)) == 5
    assert names["filled"].store.count() == 2 * len(names["x"])
    for line in re.findall(r"^diptych .*$", PAGE, re.MULTILINE):
        words = shlex.split(line.replace(ADDRESS, fresh()))[1:]
        result = run(*words, *(config(model={"grid": 4}) if words[0] == "fit" else []))
        assert result.exit_code == 0, f"{line}: {result.output}"


def test_every_setting_is_described_with_its_default():
    rows = dict(re.findall(r"^\| (.+?) \| .*? \| (.+?) \|$", PAGE, re.MULTILINE))
    described = {
        name: value
        for names, values in rows.items()
        if "`" in names
        for name, value in zip(re.findall(r"`(\w+)`", names), values.split(", "), strict=False)
    }
    assert set(described) == set(SETTINGS)
    defaults = Address({})
    for name, value in described.items():
        if name not in ("index", "schema"):
            assert int(value) == getattr(defaults, name), name
    assert described["schema"] == f"`{defaults.schema}`"


def test_settings_of_the_server_are_passed_on_as_written():
    examples = re.findall(r"`(\?\w+=[^`]+)`", PAGE)
    assert len(examples) >= 2
    for example in examples:
        name, value = example[1:].split("=", 1)
        address = Address.parse(ADDRESS + example)
        assert address.server[name].replace(" ", "%20").replace("=", "%3D") == value
