"""The examples of docs/data.md run as they are printed."""

from pathlib import Path

import pytest
from PIL import Image

from example_files import code_blocks, write_network, write_photos

PAGE = Path(__file__).parents[2] / "docs" / "data.md"


def test_from_files_to_arrays(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    write_photos(tmp_path, 20, size=64)
    write_network(tmp_path / "resnet50.onnx")
    names = {}
    exec(code_blocks(PAGE)[0], names)
    assert (names["x"].shape, names["y"].shape) == ((14, 48), (70, 200))


def test_generated_scenes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code_blocks(PAGE)[1].replace("1000", "3"), names)
    assert names["pairs"].n_captions == 15


def test_image_encoders(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path / "resnet50.onnx")
    Image.new("RGB", (64, 64)).save("dog.jpg")
    names = {}
    exec(code_blocks(PAGE)[2], names)
    assert names["features"].shape == (1, 48)
