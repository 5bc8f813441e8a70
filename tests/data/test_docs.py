"""The examples of docs/data.md run as they are printed."""

from pathlib import Path

import pytest
from PIL import Image

from diptych.data import read_pairs
from diptych.encoders import open_image
from diptych.scenes import make_scenes
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


def test_a_dataset_of_the_hub(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    monkeypatch.chdir(tmp_path)
    scenes = make_scenes(3, size=32).write(tmp_path / "drawn")
    content = {"image": [str(path) for path in scenes.paths], "text": [["A scene.", "Again."]] * 3}
    data = datasets.Dataset.from_dict(content).cast_column("image", datasets.Image())
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split: data)
    exec(code_blocks(PAGE)[1], {})
    pairs = read_pairs("captions.parquet", images="photos")
    assert pairs.captions == ("A scene.", "Again.") * 3
    assert [open_image(path).size for path in pairs.paths] == [(32, 32)] * 3


def test_generated_scenes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(code_blocks(PAGE)[2].replace("1000", "3"), names)
    assert names["pairs"].n_captions == 15


def test_image_encoders(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    write_network(tmp_path / "resnet50.onnx")
    Image.new("RGB", (64, 64)).save("dog.jpg")
    names = {}
    exec(code_blocks(PAGE)[3], names)
    assert names["features"].shape == (1, 48)
