"""The commands as a user runs them."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

from diptych import AWCCA
from diptych.cli import app
from generated_pairs import make_pairs

runner = CliRunner()


@pytest.fixture
def files(tmp_path):
    """Feature files, a pairing, and a table of pairs with splits."""
    (x, y, pairing), (xv, yv, pairing_v) = make_pairs(0)
    x, y = np.concatenate([x, xv]), np.concatenate([y, yv])
    pairing = np.concatenate([pairing, pairing_v + 45])
    order = np.argsort(pairing, kind="stable")
    y, pairing = y[order], pairing[order]
    np.save(tmp_path / "x.npy", x.astype(np.float32))
    np.save(tmp_path / "y.npy", y.astype(np.float32))
    np.save(tmp_path / "pairing.npy", pairing)
    return tmp_path


def run(*arguments):
    return runner.invoke(app, [str(a) for a in arguments])


def test_fit_then_evaluate(files):
    result = run(
        "fit",
        files / "x.npy",
        files / "y.npy",
        "--pairs",
        files / "pairing.npy",
        "-o",
        files / "m",
        "--grid",
        5,
        "--json",
    )
    assert result.exit_code == 0, result.output
    fitted = json.loads(result.stdout)
    assert fitted["pairs"] == 270
    assert "of 90 rows" in fitted["selected on"]
    evaluated = run(
        "evaluate", files / "m", files / "x.npy", files / "y.npy", "--pairs", files / "pairing.npy", "--json"
    )
    found = json.loads(evaluated.stdout)["all"]
    model = AWCCA.load(files / "m")
    x, y, pairing = (np.load(files / f"{name}.npy") for name in ("x", "y", "pairing"))
    for task in ("search", "annotate"):
        assert found[task]["r@1"] == model.score(x, y, pairing, task=task)


def test_the_flags_are_those_of_the_python_api(files):
    result = run(
        "fit", files / "x.npy", files / "y.npy", "--pairs", files / "pairing.npy", "-o", files / "m",
        "--filter", "tsvd", "--params", "5,4", "--weighting", "0.5,1", "--similarity", "l2",
        "--n-components", "3", "--metric", "r@5", "--solver", "svd",
        "--normalize", "unit,none", "--threads", 1,
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    model = AWCCA.load(files / "m")
    chosen = model.get_params()
    assert (chosen["filter"], chosen["params"], chosen["weighting"]) == ("tsvd", (5.0, 4.0), (0.5, 1.0))
    assert chosen["normalize"] == ("unit", "none")
    assert model.models_["search"].correlations.shape == (3,)
    assert "k = 5 on images" in result.stdout


def test_quiet_says_nothing(files):
    result = run(
        "fit",
        files / "x.npy",
        files / "y.npy",
        "--pairs",
        files / "pairing.npy",
        "-o",
        files / "m",
        "--grid",
        3,
        "-q",
    )
    assert result.exit_code == 0
    assert result.output == ""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "none.npy", "y.npy", "-o", "m"], "none.npy"),
        (["fit", "x.npy", "y.npy", "-o", "m"], "--pairs"),
        (["fit", "x.npy", "y.npy", "-o", "m", "--pairs", "x.npy"], "row numbers"),
        (["fit", "x.npy", "y.npy", "-o", "m", "--pairs", "words.npy"], "row numbers"),
        (["fit", "x.npy", "words.npy", "-o", "m", "--pairs", "pairing.npy"], "words.npy"),
        (["fit", "x.npy", "y.npy", "-o", "m", "--pairs", "pairing.npy", "--grid", "fine"], "--grid"),
        (["fit", "x.npy", "y.npy", "-o", "m", "--pairs", "pairing.npy", "--params", "1"], "two numbers"),
        (["fit", "x.npy", "y.npy", "-o", "m", "--pairs", "pairing.npy", "--filter", "ridge"], "tikhonov"),
        (
            ["fit", "x.npy", "y.npy", "-o", "m", "--pairs", "pairing.npy", "--n-components", "few"],
            "dimension",
        ),
        (["fit", "x.npy", "y.npy", "-o", "m", "--pairs", "pairing.npy", "--device", "moon"], "--device moon"),
        (
            ["fit", "x.npy", "y.npy", "-o", "full", "--pairs", "pairing.npy", "--params", "1,1"],
            "not a diptych",
        ),
        (["evaluate", "m", "x.npy", "y.npy"], "not a folder"),
    ],
)
def test_mistakes_are_one_sentence(files, monkeypatch, arguments, words):
    monkeypatch.chdir(files)
    (files / "words.npy").write_text("not an array at all")
    (files / "full").mkdir()
    (files / "full" / "letter.txt").write_text("keep me")
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert not (files / "m").exists()


def test_help_has_an_example():
    for command in ("fit", "evaluate", "check", "scenes", "encode images", "encode text", "demo"):
        shown = " ".join(run(*command.split(), "--help").stdout.split())
        assert f"Example: diptych {command}" in shown


def test_from_pictures_to_recalls(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in (
        "scenes drawn -n 120",
        "check drawn",
        "encode images drawn -o x",
        "encode text drawn -o y --word lin --sentence lin --save-encoder words",
        "fit x y --pairs drawn -o model --grid 6 -q",
    ):
        result = run(*command.split())
        assert result.exit_code == 0, result.output
    found = json.loads(run("evaluate", "model", "x", "y", "--pairs", "drawn", "--json").stdout)
    assert found["test"]["annotate"]["r@10"] > 60
    assert (tmp_path / "words" / "config.json").is_file()
    again = run("encode", "text", "drawn", "-o", "y")
    assert again.exit_code == 2
    assert "another encoder" in again.stderr


def test_check_finds_what_is_wrong(tmp_path):
    (tmp_path / "letter.jpg").write_text("dear reader")
    (tmp_path / "letter.txt").write_text("a letter")
    result = run("check", tmp_path)
    assert result.exit_code == 1
    assert "problem: 1 image(s) cannot be read: letter.jpg." in result.stdout
    assert json.loads(run("check", tmp_path, "--json").stdout)["ok"] is False
    encoded = run("encode", "images", tmp_path, "-o", tmp_path / "x")
    assert encoded.exit_code == 2
    assert "not one of 1 pictures" in encoded.stderr


def test_scenes_are_not_drawn_over_other_files(tmp_path):
    (tmp_path / "letter.txt").write_text("keep me")
    assert run("scenes", tmp_path).exit_code == 2
    assert [p.name for p in tmp_path.iterdir()] == ["letter.txt"]


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
    result = run("fit", *features, "--pairs", pairs, "-o", tmp_path / "m", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    x, y = (np.load(file).astype(np.float32) for file in features)
    pairing = np.arange(40000) // 5
    model = AWCCA().fit(
        x[:6000], y[:30000], pairing[:30000], validation=(x[6000:7000], y[30000:35000], pairing[:5000])
    )
    for task in ("search", "annotate"):
        assert found["test"][task]["r@1"] == model.score(x[7000:], y[35000:], pairing[:5000], task=task)
    assert found["test"]["search"]["r@1"] > 34
    assert found["test"]["annotate"]["r@1"] > 45


def test_the_demo_goes_the_whole_way(tmp_path):
    result = run("demo", "-n", 200, "-o", tmp_path / "out", "--threads", 1)
    assert result.exit_code == 0, result.output
    for words in (
        "Drew 200 pictures",
        "plain CCA",
        "Best here by mean r@1",
        "search 'a red star",
        "annotate scene-",
    ):
        assert words in result.stdout
    assert AWCCA.load(tmp_path / "out" / "model").path_ is not None
    assert (tmp_path / "out" / "regularization.png").stat().st_size > 5000
