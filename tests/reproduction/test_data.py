"""Data is found in a folder by name and shape, and one clear message says what is wrong with it."""

import json
import re

import numpy as np
import pytest
from scipy.io import savemat

from diptych import InputError
from reproduction.__main__ import main
from reproduction.data import find_data
from reproduction.protocols import _SIZES
from reproduction.setting import Options, Setting

SIZES = {"train": 60, "val": 10, "test": 10}
N = sum(SIZES.values())


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A small folder laid out like Flickr8k's, with two captions per image and features that say nothing."""
    monkeypatch.setitem(_SIZES, "flickr8k", tuple(SIZES.values()))
    splits = [split for split, size in SIZES.items() for _ in range(size)]
    images = []
    for i, split in enumerate(splits):
        sentences = [{"raw": f"A dog {i % 7} {n}.", "sentid": 2 * i + n, "imgid": i} for n in range(2)]
        images.append({"filename": f"{i}.jpg", "imgid": i, "split": split, "sentences": sentences})
    data = tmp_path / "flickr8k"
    data.mkdir()
    (data / "dataset_flickr8k.json").write_text(json.dumps({"images": images, "dataset": "flickr8k"}))
    np.save(data / "resnet50.npy", np.ones((N, 3), np.float16))
    np.save(data / "another.npy", np.ones((N, 2), np.float32))
    np.save(data / "minilm.npy", np.ones((2 * N, 4), np.float16))
    np.save(data / "part.npy", np.ones((10, 4), np.float16))
    return data


def test_features_are_recognised_by_their_number_of_rows(folder):
    for base in (folder, folder.parent):
        data = find_data("flickr8k", base)
        assert [features.name for features in data.images] == ["ResNet-50", "another (yours)"]
        assert [features.name for features in data.texts] == ["MiniLM"]
    uses = dict(data.files)
    assert uses["part.npy"].startswith("not used")
    assert "image features" in uses["resnet50.npy"]
    assert "learned" in data.vectors_origin


def test_word_vectors_in_the_parent_are_found(folder):
    (folder.parent / "word2vec-small.txt").write_text("2 2\ndog 1 0\na 0 1\n")
    data = find_data("flickr8k", folder)
    assert data.vectors_origin == "word2vec-small.txt"
    assert set(data.read_vectors([], ["A dog."]).words) == {"a", "dog"}


def test_words_that_only_test_captions_have_keep_their_vectors(folder):
    (folder.parent / "word2vec-small.txt").write_text("2 2\ndog 1 0\nquokka 0 1\n")
    content = json.loads((folder / "dataset_flickr8k.json").read_text())
    content["images"][-1]["sentences"][0]["raw"] = "A quokka."
    (folder / "dataset_flickr8k.json").write_text(json.dumps(content))
    setting = Setting(find_data("flickr8k", folder))
    assert set(setting.words.vectors.words) == {"dog", "quokka"}
    assert "quokka" not in " ".join(setting.words.training_captions)
    last = [setting.data.dataset.n_captions - 2]
    np.testing.assert_allclose(setting.mean_words.take(np.array(last)), [[0.0, 1.0]])
    # Learned vectors come from the training captions alone.
    (folder.parent / "word2vec-small.txt").unlink()
    assert "quokka" not in Setting(find_data("flickr8k", folder)).words.vectors


def test_karpathys_vgg_features_are_called_vgg_16(folder):
    savemat(folder / "vgg_feats.mat", {"feats": np.ones((3, N))})
    data = find_data("flickr8k", folder)
    assert "VGG-16 (vgg_feats.mat)" in [features.name for features in data.images]
    # The paper's ten-crop VGG-19 is still missing, and this is not the feature of the single experiments.
    assert "VGG-19" in {what.split(" ")[0] for what, _ in data.missing()}
    assert data.images[0].name == "ResNet-50"
    use = next(use for file, use in data.files if file == "vgg_feats.mat")
    assert "not the paper's VGG-19" in use
    (folder / "vgg_feats.mat").write_bytes(b"damaged")
    with pytest.raises(InputError, match="holds no readable matrix 'feats'"):
        find_data("flickr8k", folder)


def test_own_features_are_marked_rows(folder, tmp_path):
    np.save(tmp_path / "mine.npy", np.full((N, 5), 2.0, np.float32))
    np.save(tmp_path / "words.npy", np.full((2 * N, 6), 3.0, np.float32))
    entries = [f"my net={tmp_path / 'mine.npy'}", f"my words={tmp_path / 'words.npy'}"]
    data = find_data("flickr8k", folder, features=entries)
    assert data.images[-1].name == "my net (yours)"
    assert data.texts[-1].name == "my words (yours)"
    with pytest.raises(InputError, match=r"two files of features are called my net \(yours\)"):
        find_data("flickr8k", folder, features=[entries[0], entries[0]])
    setting = Setting(data, Options.for_dataset("flickr8k", quick=True))
    # A quick run leaves other image features out, but not the user's own.
    names = {image.name for _, image, _ in setting.feature_pairs()}
    assert names == {"ResNet-50", "another (yours)", "my net (yours)"}


def test_coco_keeps_five_captions_and_their_features(tmp_path):
    images, total = [], 0
    for i, count in enumerate([5, 7, 5, 6]):
        sentences = [{"raw": f"image {i} caption {n}", "sentid": total + n} for n in range(count)]
        total += count
        images.append({"filename": f"{i}.jpg", "split": "test", "sentences": sentences})
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": images}))
    np.save(tmp_path / "resnet101.npy", np.ones((4, 3), np.float32))
    np.save(tmp_path / "skipthoughts.npy", np.arange(total, dtype=np.float32)[:, None])
    data = find_data("coco", tmp_path)
    dataset = data.dataset
    assert dataset.n_captions == 20
    assert np.bincount(dataset.pairing).tolist() == [5, 5, 5, 5]
    # Features have a row for every caption of the file; each kept caption finds its own.
    rows = data.texts[0].take(np.arange(20))[:, 0].astype(int)
    assert rows.tolist() == [int(number) for number in dataset.caption_ids]
    assert any("the other 3 are left out" in use for _, use in data.files)


def test_missing_data_is_listed_with_how_to_get_it(folder):
    missing = {what.split(" ")[0]: how for what, how in find_data("flickr8k", folder).missing()}
    assert "vgg-ten-crops" in missing["VGG-19"]
    assert "resnet101" in missing["ResNet-101"]
    np.save(folder / "vgg19.npy", np.ones((N, 2), np.float32))
    data = find_data("flickr8k", folder)
    assert data.images[0].name == "VGG-19"
    assert "VGG-19" not in {what.split(" ")[0] for what, _ in data.missing()}


def test_no_features_and_false_features(folder):
    for name in ("resnet50", "another"):
        (folder / f"{name}.npy").unlink()
    with pytest.raises(InputError, match="no image features"):
        find_data("flickr8k", folder)
    (folder / "resnet50.npy").write_text("not an array")
    with pytest.raises(InputError, match=r"resnet50\.npy"):
        find_data("flickr8k", folder)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("flickr8k", "--data"),
        ("flickr8k --data nowhere", "not a folder"),
        ("coco --data .", "dataset_coco.json"),
        ("imagenet --data .", "choose one of flickr8k, flickr30k, coco, scenes, flickr30k-paper,"),
        ("scenes --quick --only nothing", "nothing"),
        ("scenes --quick --out file", "file"),
        *(
            (f"flickr8k --data flickr8k --features {entry}", entry.removeprefix("mine="))
            for entry in ("mine.npy", "=mine.npy", "mine=", "mine=nowhere.npy", "mine=short.npy")
        ),
    ],
)
def test_the_command_says_what_is_wrong_in_one_message(arguments, words, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder.parent)
    (folder.parent / "file").write_text("")
    np.save("short.npy", np.ones((7, 2)))
    assert main(arguments.split()) == 2
    printed = capsys.readouterr().err
    assert printed.startswith("error: ")
    assert words in printed
    assert len(printed.strip().splitlines()) == 1


def test_the_command_on_scenes(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("reproduction.data.QUICK_SCENES", 120)
    out = tmp_path / "out"
    arguments = ["scenes", "--quick", "--only", "filters,similarity", "--out", str(out)]
    assert main([*arguments, "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    content = json.loads((out / "results.json").read_text())
    assert "indicative" in content["caveat"]
    assert set(content["seconds"]) == set(content["results"]) == {"filters", "similarity"}
    assert {claim["verdict"] for claim in content["claims"]} <= {"holds", "does not hold", "undecided"}
    assert (out / "tables" / "similarity.csv").is_file()
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert re.search("^0 results computed, [1-9].* wrote .*report.html", printed.out, re.MULTILINE)
    assert "indicative" in printed.out
    assert "filters: selected" in printed.err
