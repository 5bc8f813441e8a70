"""``check``, ``scenes`` and ``encode`` as a user runs them."""

import json

from PIL import Image

from commands import config, refused, run, run_json


def test_check_finds_what_is_wrong(tmp_path):
    (tmp_path / "letter.jpg").write_text("dear reader")
    (tmp_path / "letter.txt").write_text("a letter")
    result = run("check", tmp_path)
    assert result.exit_code == 1
    assert "problem: 1 image cannot be read: letter.jpg." in result.stdout
    assert json.loads(run("check", tmp_path, "--json").stdout)["ok"] is False
    encoded = run("encode", "images", tmp_path, "--image-encoder", "pyramid", "-o", tmp_path / "x")
    assert encoded.exit_code == 2
    assert "none of 1 image" in encoded.stderr


def test_scenes_are_not_drawn_over_other_files(tmp_path):
    (tmp_path / "letter.txt").write_text("keep me")
    assert run("scenes", tmp_path).exit_code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


def test_another_encoder_does_not_go_on_with_a_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("scenes", "drawn", "-n", 20).exit_code == 0
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
    found = run("check", "t.csv", "--encoding", "cp1252", *columns)
    assert found.exit_code == 0, found.output
    (tmp_path / "empty.csv").write_text("")
    assert "empty.csv is empty" in refused("check", "empty.csv")
    assert "--encoding 'x' is unknown" in refused("check", "t.csv", "--encoding", "x")
