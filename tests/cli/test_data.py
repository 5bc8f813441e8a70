"""``check`` and ``encode`` as a user runs them."""

import json
import resource

import pytest
from PIL import Image

from commands import config, refused, run, run_json
from diptych.scenes import make_scenes


def test_check_finds_what_is_wrong(tmp_path):
    (tmp_path / "letter.jpg").write_text("dear reader")
    (tmp_path / "letter.txt").write_text("a letter")
    result = run("check", tmp_path, exit_code=1)
    assert "problem: 1 image cannot be read: letter.jpg." in result.stdout
    report = json.loads(run("check", tmp_path, "--json", exit_code=1).stdout)
    assert (report["ok"], report["problems"]) == (False, ["1 image cannot be read: letter.jpg."])
    encode = ["encode", "images", tmp_path, "--image-encoder", "pyramid", "-o", tmp_path / "x"]
    assert "none of 1 image" in run(*encode, exit_code=2).stderr


@pytest.fixture
def small_files():
    """Files larger than 2,000 bytes cannot be written, as on a disk that is nearly full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize("what", ["images", "text"])
def test_a_file_that_cannot_be_written_is_named(tmp_path, monkeypatch, request, what):
    monkeypatch.chdir(tmp_path)
    make_scenes(20, size=32).write("drawn")
    request.getfixturevalue("small_files")
    options = ["--image-encoder", "pyramid"] if what == "images" else ["--text-encoder", "hkse"]
    assert (
        refused("encode", what, "drawn", "-o", "x", *options) == "error: x/features.partial: File too large"
    )


def test_another_encoder_does_not_go_on_with_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_scenes(20).write("drawn")
    linear = config(hkse={"word": "lin", "sentence": "lin"})
    assert run_json("encode", "text", "drawn", "-o", "y", *linear)["rows"] == 100
    assert run_json("encode", "text", "drawn", "-o", "y", *linear)["rows"] == 100
    assert "another encoder" in refused("encode", "text", "drawn", "-o", "y", "--text-encoder", "hkse")


def test_unusual_columns_and_encodings_are_named_by_flags(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("Bild;Satz\na.png;ein Café\n", "cp1252")
    assert "give --encoding 'cp1252'" in refused("check", "t.csv")
    assert "name it with --image-column" in refused("check", "t.csv", "--encoding", "cp1252")
    Image.new("RGB", (9, 9)).save("a.png")
    columns = ["--image-column", "Bild", "--caption-column", "Satz"]
    run("check", "t.csv", "--encoding", "cp1252", *columns)
    (tmp_path / "empty.csv").write_text("")
    assert "empty.csv is empty" in refused("check", "empty.csv")
    assert "--encoding 'x' is unknown" in refused("check", "t.csv", "--encoding", "x")
