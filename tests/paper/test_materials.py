"""What a folder holds, found by shape, and one clear sentence when it holds the wrong things."""

import json

import numpy as np
import pytest
from scipy.io import savemat
from typer.testing import CliRunner

from diptych import InputError
from diptych.cli import app
from diptych.paper import Options, Setting, gather
from diptych.paper._gaps import gaps

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
        assert [source.name for source in found.images] == ["ResNet-50", "another (yours)"]
        assert [source.name for source in found.texts] == ["MiniLM"]
    uses = {each.file: each.use for each in found.found}
    assert uses["part.npy"].startswith("not used")
    assert "image features" in uses["resnet50.npy"]
    assert "learned" in found.vectors_kind


def test_word_vectors_in_the_parent_are_found(folder):
    (folder.parent / "word2vec-small.txt").write_text("2 2\ndog 1 0\na 0 1\n")
    found = gather("flickr8k", folder)
    assert found.vectors_kind == "word2vec-small.txt"
    assert set(found.read_vectors([], ["A dog."]).words) == {"a", "dog"}


def test_words_that_only_test_captions_have_keep_their_vectors(folder):
    (folder.parent / "word2vec-small.txt").write_text("2 2\ndog 1 0\nquokka 0 1\n")
    content = json.loads((folder / "dataset_flickr8k.json").read_text())
    content["images"][-1]["sentences"][0]["raw"] = "A quokka."
    (folder / "dataset_flickr8k.json").write_text(json.dumps(content))
    setting = Setting(gather("flickr8k", folder))
    assert set(setting.words.vectors.words) == {"dog", "quokka"}
    assert "quokka" not in " ".join(setting.words.training_captions)
    last = [setting.materials.dataset.n_captions - 2]
    np.testing.assert_allclose(setting.mean_words.take(np.array(last)), [[0.0, 1.0]])
    # Learned vectors come from the training captions alone.
    (folder.parent / "word2vec-small.txt").unlink()
    assert "quokka" not in Setting(gather("flickr8k", folder)).words.vectors


def test_karpathys_vgg_features_are_called_what_they_are(folder):
    savemat(folder / "vgg_feats.mat", {"feats": np.ones((3, 8000))})
    materials = gather("flickr8k", folder)
    assert "VGG-16 (vgg_feats.mat)" in [source.name for source in materials.images]
    # The paper's ten-crop VGG-19 is still missing, and this is not the feature of the single experiments.
    assert "VGG-19" in {gap.what.split(" ")[0] for gap in gaps(materials)}
    assert materials.images[0].name == "ResNet-50"
    use = next(each.use for each in materials.found if each.file == "vgg_feats.mat")
    assert "not the paper's VGG-19" in use


def test_own_features_are_marked_rows(folder, tmp_path):
    np.save(tmp_path / "mine.npy", np.full((8000, 5), 2.0, np.float32))
    np.save(tmp_path / "words.npy", np.full((16000, 6), 3.0, np.float32))
    given = [f"my net={tmp_path / 'mine.npy'}", f"my words={tmp_path / 'words.npy'}"]
    materials = gather("flickr8k", folder, features=given)
    assert materials.images[-1].name == "my net (yours)"
    assert materials.texts[-1].name == "my words (yours)"
    with pytest.raises(InputError, match=r"two files of features are called my net \(yours\)"):
        gather("flickr8k", folder, features=[given[0], given[0]])
    setting = Setting(materials, Options.for_dataset("flickr8k", quick=True))
    # A quick run leaves other image features out, but not the user's own.
    names = {image.name for _, image, _ in setting.pairs_of_features()}
    assert names == {"ResNet-50", "another (yours)", "my net (yours)"}


@pytest.mark.parametrize("given", ["mine.npy", "=mine.npy", "mine=", "mine=nowhere.npy", "mine={short}"])
def test_wrong_own_features_are_one_sentence(folder, tmp_path, given):
    np.save(tmp_path / "short.npy", np.ones((7, 2)))
    arguments = ["reproduce", "flickr8k", "--data", str(folder), "--out", str(tmp_path / "out")]
    found = CliRunner().invoke(app, [*arguments, "--features", given.format(short=tmp_path / "short.npy")])
    assert found.exit_code == 2
    assert found.stderr.startswith("error: ")
    assert len(found.stderr.strip().splitlines()) == 1


def test_coco_keeps_five_captions_and_their_features(tmp_path):
    images, total = [], 0
    for i, count in enumerate([5, 7, 5, 6]):
        sentences = [{"raw": f"image {i} caption {n}", "sentid": total + n} for n in range(count)]
        total += count
        images.append({"filename": f"{i}.jpg", "split": "test", "sentences": sentences})
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": images}))
    np.save(tmp_path / "resnet101.npy", np.ones((4, 3), np.float32))
    np.save(tmp_path / "skipthoughts.npy", np.arange(total, dtype=np.float32)[:, None])
    materials = gather("coco", tmp_path)
    dataset = materials.dataset
    assert dataset.n_captions == 20
    assert np.bincount(dataset.pairing).tolist() == [5, 5, 5, 5]
    # Features have a row for every caption of the file; each kept caption finds its own.
    rows = materials.texts[0].take(np.arange(20))[:, 0].astype(int)
    assert rows.tolist() == [int(number) for number in dataset.caption_ids]
    assert any("the other 3 are left out" in each.use for each in materials.found)


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
    assert "indicative" in told["caveat"]
    assert set(told["seconds_by_experiment"]) == {"filters", "similarity"}
    assert set(told["claims"].values()) <= {"holds", "does not hold", "undecided"}
    assert (out / "tables" / "similarity.csv").is_file()
    again = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert again["computed"] == 0


def test_an_unknown_dataset_is_answered_with_each_name_once():
    with pytest.raises(InputError) as refused:
        gather("flickr9k")
    assert str(refused.value).count("'flickr8k'") == 1
