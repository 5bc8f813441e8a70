"""``fit`` and ``evaluate`` as a user runs them."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from commands import refused, run, run_json
from diptych import AWCCA, Retriever
from diptych.image import PyramidDescriptor
from generated_pairs import make_pairs


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Feature files and a pairing, in the folder where commands run."""
    (x, y, pairing), (xv, yv, pairing_v) = make_pairs(0)
    x, y = np.concatenate([x, xv]), np.concatenate([y, yv])
    pairing = np.concatenate([pairing, pairing_v + 45])
    order = np.argsort(pairing, kind="stable")
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    np.save(tmp_path / "y.npy", y[order].astype(np.float32))
    np.save(tmp_path / "pairing.npy", pairing[order])
    monkeypatch.chdir(tmp_path)
    return tmp_path


FIT = ["fit", "x.npy", "y.npy", "--pairs", "pairing.npy", "-o", "m"]


def test_fit_then_evaluate(files):
    fitted = run_json(*FIT, "--grid", 5)
    assert fitted["facts"]["pairs"] == {"train": [90, 270]}
    assert fitted["facts"]["selection"]["pairs"].startswith("14 of 90 training images, held out")
    assert fitted["items"] == {"image": 90, "text": 270}
    found = run_json("evaluate", "m", "x.npy", "y.npy", "--pairs", "pairing.npy")["all"]
    model = Retriever.load("m").collection.fitted.model
    x, y, pairing = (np.load(f"{name}.npy") for name in ("x", "y", "pairing"))
    for task in ("search", "annotate"):
        assert found[task]["r@1"] == model.score(x, y, pairing, task=task)


@pytest.mark.slow
def test_a_cluster_fits_the_same_model(files):
    pytest.importorskip("distributed")
    here = run_json(*FIT, "--grid", 5, "--solver", "gram")
    there = run_json(*FIT, "--grid", 5, "--dask", "local")
    assert there["filters"] == here["filters"]
    assert not list(files.glob(".m*"))
    assert "--dask has no effect with --preset best" in refused(*FIT, "--preset", "best", "--dask", "local")


def test_the_flags_are_those_of_the_python_api(files):
    result = run(
        *FIT,
        "--filter", "tsvd", "--params", "5,4", "--weighting", "0.5,1", "--similarity", "l2",
        "--n-components", "3", "--metric", "r@5", "--solver", "svd",
        "--normalize", "unit,none", "--dtype", "float16", "--no-keep-features", "--threads", 1,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    retriever = Retriever.load("m")
    model = retriever.collection.fitted.model
    chosen = model.get_params()
    assert (chosen["filter"], chosen["params"], chosen["weighting"]) == ("tsvd", (5.0, 4.0), (0.5, 1.0))
    assert chosen["normalize"] == ("unit", "none")
    assert model.models_["search"].correlations.shape == (3,)
    assert (retriever.dtype, retriever.collection.features) == ("float16", {})
    assert "k = 5 on images" in result.stdout


def test_the_table_says_what_was_selected_and_where_the_time_went(files):
    result = run(*FIT, "--grid", 4, "--index", "hnsw")
    assert result.exit_code == 0, result.output
    for words in (
        "r@1 there: search",
        "selection (4 × 4 grid",
        "spectra and models",
        "of the exact ten best",
    ):
        assert words in result.stdout


def test_the_best_preset_has_one_name(files):
    result = run(*FIT, "--preset", "best")
    assert result.exit_code == 0, result.output
    assert "search: 1 × (x × y)" in result.stdout
    found = run_json("evaluate", "m", "x.npy", "y.npy", "--pairs", "pairing.npy")["all"]
    assert found["search"]["r@10"] > 50
    assert "search: 1 × (x × y)" in run("info", "m").stdout
    assert "choose one of 'best'" in refused(*FIT[:-1], "n", "--preset", "worst")


def test_quiet_says_nothing(files):
    result = run(*FIT, "--grid", 3, "-q")
    assert result.exit_code == 0
    assert result.output == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("fit none.npy y.npy -o m", "none.npy"),
        ("fit x.npy y.npy -o m", "--pairs"),
        ("fit x.npy y.npy -o m --pairs x.npy", "row numbers"),
        ("fit x.npy y.npy -o m --pairs words.npy", "row numbers"),
        ("fit x.npy words.npy -o m --pairs pairing.npy", "words.npy"),
        ("fit x.npy y.npy -o m --pairs pairing.npy --grid fine", "--grid"),
        ("fit x.npy y.npy -o m --pairs pairing.npy --params 1", "two numbers"),
        ("fit x.npy y.npy -o m --pairs pairing.npy --filter ridge", "tikhonov"),
        ("fit x.npy y.npy -o m --pairs pairing.npy --n-components few", "dimension"),
        ("fit x.npy y.npy -o m --pairs pairing.npy --device moon", "'moon'"),
        ("fit x.npy y.npy -o m --pairs pairing.npy --index tree", "hnsw"),
        ("fit x.npy y.npy -o full --pairs pairing.npy --params 1,1", "not a diptych"),
        ("fit nowhere -o m", "nowhere"),
        ("fit empty -o m", "empty"),
        ("fit letters -o m", "not one of 1 pictures"),
        ("fit letters -o m --image-encoder no.onnx", "no.onnx"),
        ("fit letters -o m --vectors no.bin", "no.bin"),
        ("fit letters --pairs pairing.npy -o m", "two files of features"),
        ("evaluate m x.npy x.npy", "not a folder"),
    ],
)
def test_mistakes_are_one_sentence(files, arguments, words):
    (files / "words.npy").write_text("not an array at all")
    (files / "full").mkdir()
    (files / "full" / "letter.txt").write_text("keep me")
    (files / "empty").mkdir()
    (files / "letters").mkdir()
    (files / "letters" / "letter.jpg").write_text("dear reader")
    (files / "letters" / "letter.txt").write_text("a letter is a letter")
    assert words in refused(*arguments.split())
    assert not (files / "m").exists()
    assert (files / "full" / "letter.txt").read_text() == "keep me"


def test_few_pairs_and_copies_across_splits_are_said(files, tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 4)).astype(np.float32), rng.normal(size=(30, 4)).astype(np.float32)
    x[29] = x[0]
    np.save("few-x.npy", x)
    np.save("few-y.npy", y)
    splits = ["train"] * 20 + ["test"] * 10
    lines = [f"{i}.png,caption {i},{split}" for i, split in enumerate(splits)]
    (tmp_path / "few.csv").write_text("image,caption,split\n" + "\n".join(lines) + "\n")
    result = run("fit", "few-x.npy", "few-y.npy", "--pairs", "few.csv", "-o", "few", "--params", "1,1", "-q")
    assert result.exit_code == 0, result.output
    notes = result.stderr.splitlines()
    assert [note.startswith("note: ") for note in notes] == [True, True]
    assert "20 training pairs are very few" in notes[0]
    assert "1 of the test pictures" in notes[1]
    assert "move copies into one split" in notes[1]


def test_from_pictures_to_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("scenes", "drawn", "-n", 120).exit_code == 0
    small = ["--word-features", 60, "--sentence-features", 60, "--grid", 6]
    fitted = run("fit", "drawn", "-o", "model", *small)
    assert fitted.exit_code == 0, fitted.output
    assert "test" in fitted.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["drawn", "model"]
    told = run_json("info", "model")["facts"]["metrics"]["test"]
    assert run_json("evaluate", "model", "drawn")["test"] == told


def test_encoded_features_give_what_pairs_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (
        "scenes drawn -n 120",
        "encode images drawn -o x",
        "encode text drawn -o y --word lin --sentence lin --save-encoder words",
        "fit x y --pairs drawn -o a --grid 6 -q",
        "fit drawn -o b --word lin --sentence lin --grid 6 -q",
    ):
        result = run(*command.split())
        assert result.exit_code == 0, result.output
    a, b = (run_json("info", model) for model in "ab")
    assert a["facts"]["metrics"] == b["facts"]["metrics"]
    # The store remembers who made it, so that only the same encoder is taken for queries.
    assert "hkse" in refused("search", "a", "a red star")
    answers = [run_json("search", m, "a red star", *extra)["answers"][0]["hits"] for m, extra in (
        ("a", ["--text-encoder", "words"]), ("b", []))]  # fmt: skip
    assert [hit["id"] for hit in answers[0]] == [hit["id"] for hit in answers[1]]
    other = run(
        "encode", "text", "drawn", "-o", "z", "--word", "lin", "--random-state", 1, "--save-encoder", "others"
    )
    assert other.exit_code == 0, other.output
    assert "made with" in refused("search", "a", "a red star", "--text-encoder", "others")


def test_interrupted_encoding_goes_on(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("scenes", "drawn", "-n", 60).exit_code == 0
    (tmp_path / ".model.features").mkdir()
    assert run("encode", "images", "drawn", "-o", ".model.features/images").exit_code == 0

    def encode_again(*_):
        raise AssertionError("pictures that were encoded are encoded again")

    monkeypatch.setattr(PyramidDescriptor, "encode_prepared", encode_again)
    result = run("fit", "drawn", "-o", "model", "--word", "lin", "--sentence", "lin", "--grid", 3, "-q")
    assert result.exit_code == 0, result.output
    assert sorted(p.name for p in tmp_path.iterdir()) == ["drawn", "model"]


@pytest.mark.slow
def test_interrupted_nothing_is_half_written(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(3000, 400)).astype(np.float32))
    np.save(tmp_path / "y.npy", rng.normal(size=(3000, 400)).astype(np.float32))
    # One SVD per point of a large grid takes minutes.
    slow = ["--weighting", "none", "--grid", "60"]
    command = [sys.executable, "-m", "diptych", "fit", "x.npy", "y.npy", "-o", "m", *slow]
    process = subprocess.Popen(
        command, cwd=tmp_path, stderr=subprocess.PIPE, env={**os.environ, "COLUMNS": "80"}
    )
    time.sleep(8)
    assert process.poll() is None, "it was too fast to interrupt"
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in errors
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.npy", "y.npy"]


@pytest.mark.data
@pytest.mark.slow
def test_flickr8k_through_the_command_line_equals_python(real_data, tmp_path):
    folder = real_data / "flickr8k"
    pairs = folder / "dataset_flickr8k.json"
    features = [folder / "dinov2s.npy", folder / "minilm.npy"]
    found = run_json("fit", *features, "--pairs", pairs, "-o", tmp_path / "m")["facts"]["metrics"]
    x, y = (np.load(file).astype(np.float32) for file in features)
    pairing = np.arange(40000) // 5
    model = AWCCA().fit(
        x[:6000], y[:30000], pairing[:30000], validation=(x[6000:7000], y[30000:35000], pairing[:5000])
    )
    for task in ("search", "annotate"):
        assert found["test"][task]["r@1"] == model.score(x[7000:], y[35000:], pairing[:5000], task=task)
    assert found["test"]["search"]["r@1"] > 34
    assert found["test"]["annotate"]["r@1"] > 45
