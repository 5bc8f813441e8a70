"""The commands that score pairs and find those that look wrong."""

import csv
import shutil
from pathlib import Path

import numpy as np
import pytest

from commands import refused, run, run_json
from diptych import Retriever
from diptych.scenes import make_scenes
from example_files import code_blocks, write_network, write_photos

PAGE = Path(__file__).parents[2] / "docs" / "audit.md"
ENCODERS = ["--image-encoder", "pyramid", "--text-encoder", "hkse"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """120 drawings with a table of captions, two of which are exchanged, and word vectors for them."""
    folder = tmp_path_factory.mktemp("audited")
    pairs = make_scenes(120, size=48).write(folder)
    captions, owners = list(pairs.captions), [pairs.paths[row].name for row in pairs.pairing]
    captions[3], captions[400] = captions[400], captions[3]
    with open(folder / "captions.csv", "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("image", "caption"), *zip(owners, captions, strict=True)])
    words = sorted({word.strip(".,").lower() for text in captions for word in text.split()})
    vectors = np.random.default_rng(0).normal(size=(len(words), 8))
    rows = (f"{word} {' '.join(f'{x:.4f}' for x in row)}" for word, row in zip(words, vectors, strict=True))
    (folder / "words.txt").write_text("\n".join([f"{len(words)} 8", *rows]), "utf-8")
    return folder


@pytest.fixture(scope="module")
def source(photos):
    return [
        photos / "captions.csv",
        "--images",
        photos / "images",
        *ENCODERS,
        "--vectors",
        photos / "words.txt",
    ]


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Files of features with two exchanged texts, and a model of them."""
    folder = tmp_path_factory.mktemp("features")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(640, 8))
    y = x[:, :6] + 0.3 * rng.normal(size=(640, 6))
    Retriever.from_features(x, y).save(folder / "model")
    y[[3, 5]] = y[[5, 3]]
    np.save(folder / "x.npy", x)
    np.save(folder / "y.npy", y)
    return folder


def test_an_audit_of_captions_lists_the_most_suspect_first(source, photos, tmp_path):
    shown = run("audit", *source, "-k", 3, "--out", tmp_path / "all.csv", "-o", tmp_path / "sheet.html")
    lines = shown.stdout.splitlines()
    assert lines[0].split() == ["score", "wrong", "flagged", "pair"]
    assert len(lines) == 1 + 3 + 1 + 2
    assert lines[4].endswith("%")
    assert lines[4].partition(" of 600 pairs flagged as wrong")[0].isdecimal()
    assert lines[-2:] == [f"wrote {tmp_path / 'all.csv'}", f"wrote {tmp_path / 'sheet.html'}"]
    told = run_json("audit", *source)
    with open(tmp_path / "all.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text_id"] for row in rows] == [pair["text_id"] for pair in told["lowest_first"]]
    assert (told["pairs"], len(rows)) == (600, 600)
    assert f"{rows[0]['image']}: {rows[0]['text']}" in lines[1]
    assert (tmp_path / "sheet.html").read_text("utf-8").count("data:image/jpeg") == 200
    assert run("audit", *source, "--quiet").stdout == ""


def test_a_fit_says_how_many_pairs_an_audit_left_out(source, tmp_path):
    fitted = run("fit", *source, "--audit", "--random-state", 3, "-o", tmp_path / "model")
    left_out = run_json("info", tmp_path / "model")["facts"]["audit"]["left_out"]
    sentence = f"An audit left out {left_out} of 600 training pairs, which look wrong."
    assert sentence in fitted.stdout
    assert sentence in run("info", tmp_path / "model").stdout
    assert sentence in (tmp_path / "model" / "README.md").read_text("utf-8")


def test_features_are_audited(features):
    told = run_json("audit", features / "x.npy", features / "y.npy")
    assert {pair["image"] for pair in told["lowest_first"] if pair["flagged"]} == {"3", "5"}
    lines = run("audit", features / "x.npy", features / "y.npy", "-k", 2).stdout.splitlines()
    assert [line.split()[2:] for line in lines[1:3]] == [
        ["flagged", pair["image"] + ":", pair["text_id"]] for pair in told["lowest_first"][:2]
    ]


def test_features_are_scored(features, tmp_path):
    files = features / "x.npy", features / "y.npy"
    told = run_json("score", features / "model", *files)
    x, y = map(np.load, files)
    expected = Retriever.load(features / "model").score_pairs(x, y).to_json()
    assert [{name: pair[name] for name in expected[0]} for pair in told["pairs"]] == expected
    assert told["pairs"][7]["image"] == "7"
    assert expected[3]["true_percentile"] < 5 < expected[7]["true_percentile"]
    shown = run("score", features / "model", *files, "--out", tmp_path / "scores.csv")
    lines = shown.stdout.splitlines()
    assert lines[0].split("  ") == [" score", "true percentile", "false percentile", "pair"]
    assert lines[8].split()[0] == f"{expected[7]['score']:.3f}"
    assert len(lines) == 642
    with open(tmp_path / "scores.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == [pair["score"] for pair in told["pairs"]]
    np.save(tmp_path / "rows.npy", np.arange(640)[::-1])
    reversed_ = run_json("score", features / "model", *files, "--pairs", tmp_path / "rows.npy")["pairs"]
    assert reversed_[0]["image"] == "639"
    assert np.mean([pair["score"] for pair in reversed_]) < 0.2


def test_captions_are_scored(source, photos, tmp_path):
    run("fit", *source, "-o", tmp_path / "model", "--quiet")
    table = photos / "captions.csv", "--images", photos / "images"
    told = run_json("score", tmp_path / "model", *table)
    assert "24 held-out images" in told["absent"]
    with open(table[0], encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [pair["text"] for pair in told["pairs"]] == [row["caption"] for row in rows]
    assert "true_percentile" in told["pairs"][0]
    last = run("score", tmp_path / "model", *table).stdout.splitlines()[-1]
    assert last == f"no percentiles: {told['absent']}"
    # An image that cannot be read is left out with its captions, with a note.
    images = shutil.copytree(photos / "images", tmp_path / "images")
    next(images.glob("*.png")).write_bytes(b"no image")
    partly = run("score", tmp_path / "model", photos / "captions.csv", "--images", images, "--json")
    assert "1 image could not be read" in partly.stderr
    assert partly.stdout.count('"score"') == 595


def test_mistakes_are_one_sentence(source, features, tmp_path):
    files = features / "x.npy", features / "y.npy"
    assert "neither a .csv nor an .html" in refused("audit", *files, "--out", tmp_path / "pairs.txt")
    assert "--image-encoder has no effect on features" in refused("audit", *files, *ENCODERS[:2])
    assert "--device has no effect on features" in refused("audit", *files, "--device", "cuda")
    assert "--device has no effect" in refused("audit", *source, "--device", "cuda")
    assert "has no effect on features" in refused("audit", *files, "--vectors", tmp_path / "words.txt")
    assert "--text-encoder has no effect" in refused("score", features / "model", *files, *ENCODERS[2:])
    assert "features" in refused("score", features / "model", *files[::-1])


def test_the_examples_of_the_page_run(tmp_path, monkeypatch, capsys):
    pytest.importorskip("onnxruntime")
    monkeypatch.chdir(tmp_path)
    drawn = write_photos(tmp_path, 100, size=64)
    write_network(tmp_path / "resnet50.onnx")
    for name in ("photo.jpg", "other.jpg"):
        drawn.images[3].save(name)
    audit, scores = code_blocks(PAGE)
    names = {}
    exec(audit, names)
    assert len(capsys.readouterr().out.splitlines()) == 500
    exec(scores, names)
    assert len(capsys.readouterr().out.splitlines()) == 2
    for name in ("pairs.csv", "sheet.html"):
        assert (tmp_path / name).is_file()
