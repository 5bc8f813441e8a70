"""What a folder holds, found by shape, and one clear sentence when it holds the wrong things."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from diptych import InputError
from diptych.cli import app
from diptych.experiments import gather
from diptych.experiments.gaps import gaps

SIZES = {"train": 6000, "val": 1000, "test": 1000}


@pytest.fixture
def folder(tmp_path):
    """A folder laid out like Flickr8k's, with features that say nothing."""
    splits = [split for split, size in SIZES.items() for _ in range(size)]
    images = [
        {
            "filename": f"{i}.jpg",
            "imgid": i,
            "split": split,
            "sentids": [i],
            "sentences": [{"raw": f"A dog number {i % 7}.", "sentid": i, "imgid": i, "tokens": []}] * 1,
        }
        for i, split in enumerate(splits)
    ]
    # Two captions each, so that images and captions are told apart by their number.
    for i, image in enumerate(images):
        image["sentids"] = [2 * i, 2 * i + 1]
        image["sentences"] = [
            {"raw": f"A dog {i % 7} {n}.", "sentid": 2 * i + n, "imgid": i} for n in range(2)
        ]
    data = tmp_path / "flickr8k"
    data.mkdir()
    (data / "dataset_flickr8k.json").write_text(json.dumps({"images": images, "dataset": "flickr8k"}))
    np.save(data / "resnet50.npy", np.ones((8000, 3), np.float16))
    np.save(data / "another.npy", np.ones((8000, 2), np.float32))
    np.save(data / "minilm.npy", np.ones((16000, 4), np.float16))
    np.save(data / "part.npy", np.ones((1000, 4), np.float16))
    return data


def test_features_are_told_by_their_rows(folder):
    for given in (folder, folder.parent):
        found = gather("flickr8k", given)
        assert [source.name for source in found.images] == ["ResNet-50", "another"]
        assert [source.name for source in found.texts] == ["MiniLM"]
    uses = {each.file: each.use for each in found.found}
    assert uses["part.npy"].startswith("not used")
    assert "image features" in uses["resnet50.npy"]
    assert "learned" in found.vectors_kind


def test_word_vectors_in_the_parent_are_found(folder):
    (folder.parent / "word2vec-small.txt").write_text("2 2\ndog 1 0\na 0 1\n")
    found = gather("flickr8k", folder)
    assert found.vectors_kind == "word2vec-small.txt"
    assert set(found.read_vectors(["A dog."]).words) == {"a", "dog"}


def test_gaps_say_what_is_missing_and_how_to_get_it(folder):
    found = {gap.what.split(" ")[0]: gap.how for gap in gaps(gather("flickr8k", folder))}
    assert "vgg-ten-crops" in found["VGG-19"]
    assert "resnet101" in found["ResNet-101"]
    np.save(folder / "vgg19.npy", np.ones((8000, 2), np.float32))
    materials = gather("flickr8k", folder)
    assert materials.images[0].name == "VGG-19"
    assert "VGG-19" not in {gap.what.split(" ")[0] for gap in gaps(materials)}


def test_a_missing_dataset_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="--data"):
        gather("flickr8k")
    with pytest.raises(InputError, match="not a folder"):
        gather("flickr8k", tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"dataset_coco\.json"):
        gather("coco", tmp_path)
    with pytest.raises(InputError, match="flickr30k"):
        gather("imagenet", tmp_path)


def test_no_features_and_false_features(folder):
    for name in ("resnet50", "another"):
        (folder / f"{name}.npy").unlink()
    with pytest.raises(InputError, match="no image features"):
        gather("flickr8k", folder)
    (folder / "resnet50.npy").write_text("not an array")
    with pytest.raises(InputError, match=r"resnet50\.npy"):
        gather("flickr8k", folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ["flickr8k"],
        ["flickr8k", "--data", "nowhere"],
        ["imagenet", "--data", "."],
        ["scenes", "--quick", "--only", "nothing"],
        ["scenes", "--quick", "--out", "{file}"],
    ],
)
def test_the_command_says_what_is_wrong_in_one_sentence(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    found = CliRunner().invoke(app, ["reproduce", *(word.format(file="file") for word in arguments)])
    assert found.exit_code == 2
    assert found.stderr.startswith("error: ")
    assert len(found.stderr.strip().splitlines()) == 1


def test_the_command_on_scenes(tmp_path, monkeypatch):
    out = tmp_path / "out"
    arguments = [
        "reproduce",
        "scenes",
        "--quick",
        "--only",
        "filters,similarity",
        "--out",
        str(out),
        "--json",
    ]
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 0, found.stderr
    told = json.loads(found.stdout)
    assert told["report"] == str(out / "report.html")
    assert told["computed"] > 0
    assert (out / "csv" / "similarity.csv").is_file()
    again = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert again["computed"] == 0


def test_an_unknown_dataset_is_answered_with_each_name_once():
    with pytest.raises(InputError) as refused:
        gather("flickr9k")
    assert str(refused.value).count("'flickr8k'") == 1
