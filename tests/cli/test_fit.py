"""``fit`` and ``evaluate`` as a user runs them."""

import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from commands import config, refused, run, run_json
from diptych import InputError, Retriever
from diptych.data import PairedDataset, PairedViews
from diptych.encoders import PyramidDescriptor
from diptych.retrieval._training import SAMPLED_PAIRS, training_sample, training_share
from diptych.scenes import make_scenes
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


HAS_TORCH = importlib.util.find_spec("torch") is not None
NO_DEVICE = "there is no device 'cuda:99' here" if HAS_TORCH else "the device 'cuda:99' needs torch"
PARAMS, GRID = {"params": [1, 1]}, {"grid": 5}
PYRAMID = ["--image-encoder", "pyramid"]
FIT = ["fit", "x.npy", "y.npy", "--pairs", "pairing.npy", "-o", "m"]


def test_fit_then_evaluate(files):
    fitted = run_json(*FIT, *config(model={"grid": 5}))
    assert fitted["facts"]["pairs"] == {"train": [90, 270]}
    assert fitted["items"] == {"image": 90, "text": 270}
    found = run_json("evaluate", "m", "x.npy", "y.npy", "--pairs", "pairing.npy")["all"]
    model = Retriever.load("m").fitted.model
    held_out = model.path_.held_out.partition(" ")[0]
    said = f"{held_out} of 90 training images, held out"
    assert fitted["facts"]["selection"]["pairs"].startswith(said)
    x, y, pairing = (np.load(f"{name}.npy") for name in ("x", "y", "pairing"))
    for task in ("search", "annotate"):
        assert found[task]["r@1"] == model.score(x, y, pairing, task=task)


@pytest.mark.slow
def test_a_cluster_fits_the_same_model(files):
    pytest.importorskip("distributed")
    here = run_json(*FIT, *config(model={"grid": 5, "solver": "gram"}))
    there = run_json(*FIT, *config(model={"grid": 5}), "--dask", "local")
    assert there["filters"] == here["filters"]
    assert not list(files.glob(".m*"))
    best = [*FIT, "--preset", "best", *config(model={"grid": 5})]
    here, there = run_json(*best), run_json(*best, "--dask", "local")
    assert there["facts"]["selection"] == here["facts"]["selection"]
    assert not list(files.glob(".m*"))


def test_settings_are_those_of_the_python_api(files):
    model = {"params": [5, 4], "weighting": [0.5, 1], "similarity": "l2", "n_components": 3}
    model |= {"solver": "svd", "normalize": ["unit", "none"]}
    settings = config(model=model, retriever={"keep_features": False})
    options = ["--filter", "tsvd", "--metric", "r@5", "--dtype", "float16", "--threads", 1]
    run(*FIT, *options, *settings)
    retriever = Retriever.load("m")
    model = retriever.fitted.model
    chosen = model.get_params()
    assert (chosen["filter"], chosen["params"], chosen["weighting"]) == ("tsvd", (5.0, 4.0), (0.5, 1.0))
    assert chosen["normalize"] == ("unit", "none")
    assert model.models_["search"].correlations.shape == (3,)
    assert (retriever.dtype, retriever.store.keeps_features) == ("float16", False)
    assert "k = 5 on images" in run("info", "m").stdout


def test_the_table_says_what_was_selected_and_where_the_time_went(files):
    result = run(*FIT, *config(model={"grid": 4}), "--index", "hnsw")
    for words in (
        "There, the right image came first for",
        "diptych info m says more",
        " grid, exact)",
        " models ",
        "of the exact ten best",
    ):
        assert words in result.stdout


def test_the_best_preset_has_one_name(files):
    result = run(*FIT, "--preset", "best")
    shown = " ".join(result.stdout.split())
    assert "Learned from 90 images with 270 captions; images are seen by the features given" in shown
    assert "×" not in shown
    assert "CSLS" not in shown
    found = run_json("evaluate", "m", "x.npy", "y.npy", "--pairs", "pairing.npy")["all"]
    assert found["search"]["r@10"] > 50
    assert "  1 × (x × y), " in run("info", "m").stdout
    assert "choose one of 'best'" in refused(*FIT[:-1], "n", "--preset", "worst")


def test_a_model_is_polished_on_request(files):
    run(*FIT, "--polish", *config(model={"grid": 3}))
    assert Retriever.load("m").fitted.model.get_params()["polish"] is True
    best = "--polish has no effect with --preset best; preset best polishes already; leave it out"
    assert best in refused(*FIT, "--preset", "best", "--polish")
    twice = config(model={"polish": False})
    assert "polish is set by --polish and in" in refused(*FIT, "--polish", *twice)


def test_quiet_says_nothing(files):
    result = run(*FIT, *config(model={"grid": 3}), "-q")
    assert result.output == ""


def test_mistakes_are_one_sentence(files):
    (files / "words.npy").write_text("not an array at all")
    (files / "full").mkdir()
    (files / "full" / "letter.txt").write_text("keep me")
    (files / "empty").mkdir()
    (files / "letters").mkdir()
    (files / "letters" / "letter.jpg").write_text("dear reader")
    (files / "letters" / "letter.txt").write_text("a letter is a letter")
    for arguments, words in (
        ("fit none.npy y.npy -o m", "none.npy"),
        ("fit x.npy y.npy -o m", "--pairs"),
        ("fit x.npy y.npy -o m --pairs x.npy", "row numbers"),
        ("fit x.npy y.npy -o m --pairs words.npy", "not an array of plain numbers"),
        ("fit x.npy words.npy -o m --pairs pairing.npy", "words.npy"),
        ("fit x.npy y.npy -o m --pairs pairing.npy --filter ridge", "tikhonov"),
        ("fit x.npy y.npy -o m --pairs pairing.npy --device moon", "'moon'"),
        ("fit x.npy y.npy -o m --pairs pairing.npy --index tree", "hnsw"),
        ("fit x.npy y.npy -o full --pairs pairing.npy", "not a diptych"),
        ("fit nowhere -o m", "nowhere"),
        ("fit empty -o m", "empty"),
        ("fit letters -o m --image-encoder pyramid --text-encoder hkse", "none"),
        ("fit letters -o m --image-encoder no.onnx", "no.onnx"),
        ("fit letters -o m --image-encoder pyramid --vectors no.bin", "no.bin"),
        ("fit letters --pairs pairing.npy -o m", "two files of features"),
        ("evaluate m x.npy x.npy", "not a folder"),
    ):
        assert words in refused(*arguments.split()), arguments
        assert not (files / "m").exists()
        assert (files / "full" / "letter.txt").read_text() == "keep me"


def test_from_images_to_answers(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_scenes(120).write("drawn")
    small = config(model={"grid": 6}, hkse={"word_features": 60, "sentence_features": 60})
    fitted = run("fit", "drawn", "-o", "model", *PYRAMID, *small)
    assert "test" in fitted.stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["drawn", "model"]
    told = run_json("info", "model")["facts"]["metrics"]["test"]
    assert run_json("evaluate", "model", "drawn")["test"] == told
    # The commands that its card names.
    shutil.copy(next((tmp_path / "drawn").rglob("*.png")), "photo.jpg")
    card = (tmp_path / "model" / "README.md").read_text("utf-8")
    commands = re.search(r"```sh\n(.*?)```", card, re.DOTALL)[1].splitlines()
    assert len(commands) == 2
    for command in commands:
        run(*shlex.split(command)[1:])


def test_encoded_features_give_what_pairs_give(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid, linear = {"grid": 6}, {"word": "lin", "sentence": "lin"}
    make_scenes(120).write("drawn")
    for command, settings in (
        ("encode images drawn -o x", PYRAMID),
        ("encode text drawn -o y --save-encoder words", config(hkse=linear)),
        ("fit x y --pairs drawn -o a -q", config(model=grid)),
        ("fit drawn -o b -q", [*PYRAMID, *config(model=grid, hkse=linear)]),
    ):
        run(*command.split(), *settings)
    a, b = (run_json("info", model) for model in "ab")
    assert a["facts"]["metrics"] == b["facts"]["metrics"]
    # The store remembers who made it, so that only the same encoder is taken for queries.
    assert "hkse" in refused("search", "a", "a red star")
    answers = [run_json("search", m, "a red star", *extra)["answers"][0]["hits"] for m, extra in (
        ("a", ["--text-encoder", "words"]), ("b", []))]  # fmt: skip
    assert [hit["id"] for hit in answers[0]] == [hit["id"] for hit in answers[1]]
    settings = [*config(hkse={"word": "lin"}), "--random-state", 1]
    run("encode", "text", "drawn", "-o", "z", *settings, "--save-encoder", "others")
    assert "made with" in refused("search", "a", "a red star", "--text-encoder", "others")


def test_interrupted_encoding_resumes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_scenes(60).write("drawn")
    (tmp_path / ".model.features").mkdir()
    run("encode", "images", "drawn", *PYRAMID, "-o", ".model.features/images")

    def encode_again(*_):
        raise AssertionError("images that were encoded are encoded again")

    monkeypatch.setattr(PyramidDescriptor, "encode_prepared", encode_again)
    settings = config(model={"grid": 3}, hkse={"word": "lin", "sentence": "lin"})
    run("fit", "drawn", "-o", "model", *PYRAMID, *settings, "-q")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["drawn", "model"]


def test_files_of_others_stay_in_and_beside_the_model(photos, files):
    """``files`` and ``photos`` are in the same folder."""
    names = [".m.features/mine.txt", ".m.features/images/.mine", ".m.sum", "m/mine.txt"]
    fit = ["fit", "captions.csv", "--images", "drawn", *COLUMNS, *PYRAMID, "-o", "m", "-q"]
    fit += config(model={"grid": 3}, hkse=SMALL_TEXT)
    for name in names[:-1]:
        (photos / name).parent.mkdir(parents=True, exist_ok=True)
        (photos / name).write_text("mine")
    run(*fit)
    (photos / "m" / "mine.txt").write_text("mine")
    for command in (fit, [*FIT, "-q", *config(model=PARAMS)], fit):
        run(*command)
        assert all((photos / name).read_text() == "mine" for name in names)
    assert sorted(os.listdir(photos / ".m.features")) == ["images", "mine.txt"]
    assert os.listdir(photos / ".m.features" / "images") == [".mine"]


def test_a_wrong_folder_of_images_leaves_nothing_to_resume(photos):
    (photos / "empty").mkdir()
    arguments = [*COLUMNS, *PYRAMID, "-o", "m", "-q", *config(model={"grid": 3}, hkse=SMALL_TEXT)]
    assert "could be read" in refused("fit", "captions.csv", "--images", "empty", *arguments)
    run("fit", "captions.csv", "--images", "drawn", *arguments)


@pytest.mark.slow
def test_interrupted_nothing_is_half_written(tmp_path):
    rng = np.random.default_rng(0)
    np.save(tmp_path / "x.npy", rng.normal(size=(3000, 400)).astype(np.float32))
    np.save(tmp_path / "y.npy", rng.normal(size=(3000, 400)).astype(np.float32))
    # One SVD per point of a large grid takes minutes.
    slow = map(str, config(model={"weighting": "none", "grid": 60}))
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


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """Drawn images and a table with unusual columns."""
    folder = tmp_path_factory.mktemp("photos")
    pairs = make_scenes(60, size=48).write(folder / "drawn")
    lines = [
        f"{pairs.image_ids[image]};{text}" for image, text in zip(pairs.pairing, pairs.captions, strict=True)
    ]
    (folder / "captions.csv").write_text("Bild;Satz\n" + "\n".join(lines) + "\n")
    return folder


@pytest.fixture
def photos(drawn, tmp_path, monkeypatch):
    """A copy of these files, in the folder where commands run."""
    shutil.copytree(drawn, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


SMALL_TEXT = {"word_features": 40, "sentence_features": 40}
COLUMNS = ["--image-column", "Bild", "--caption-column", "Satz"]
UNSPLIT = ["fit", "captions.csv", "--images", "drawn", *COLUMNS, *PYRAMID, "-o", "m"]


def test_everything_is_checked_before_an_image_is_encoded(photos, monkeypatch):
    def encode(*_):
        raise AssertionError("an image was encoded")

    monkeypatch.setattr(PyramidDescriptor, "encode", encode)
    monkeypatch.setattr(PyramidDescriptor, "prepare", encode)
    for arguments, settings, message in (
        ("--preset bset", {}, "--preset 'bset' is unknown; choose one of 'best'"),
        ("--filter tvsd", {}, "--filter 'tvsd' is unknown"),
        ("--metric best", {}, "best"),
        ("--dtype float8", {}, "--dtype 'float8'"),
        ("--index tree", {}, "hnsw"),
        ("--device moon", {}, "moon"),
        ("-o captions.csv/m", {}, "is a file"),
        ("-o drawn", {}, "not a diptych"),
        ("", {"model": {"weighting": "nonsense"}}, "nonsense"),
        ("", {"model": {"solver": "qqq"}}, "solver='qqq' is unknown"),
        ("", {"model": {"similarity": "near"}}, "similarity='near'"),
        ("", {"model": {"normalize": "unit"}}, "normalize='unit' is not a pair"),
        ("", {"model": {"grid": 0}}, "grid=0 is not a number of points"),
        ("", {"model": {"grid": "fine"}}, "grid"),
        ("", {"model": {"grid": ["even", 5]}}, "even"),
        ("", {"model": {"params": [1, -2]}}, "γ"),
        ("", {"model": {"params": [1]}}, "params"),
        ("", {"model": {"precision": "float16"}}, "precision='float16'"),
        ("", {"model": {"n_components": "few"}}, "n_components='few'"),
        ("", {"model": {"validation_fraction": 2}}, "validation_fraction=2"),
        ("", {"model": {"validation_fraction": "x"}}, "validation_fraction"),
        ("--preset best", {"model": {"validation_fraction": 2}}, "validation_fraction=2"),
        ("", {"retriever": {"keep_features": 3}}, "keep_features=3 is not true or false"),
        ("", {"model": {"path_metrics": "none"}}, "path_metrics='none'"),
        ("", {"model": {"gird": 5}}, "[model] has no setting 'gird'; did you mean 'grid'?"),
        ("", {"hkse": {"tokenizer": "x"}}, "[hkse] has no setting 'tokenizer'"),
        (
            "",
            {"text": {"word": "lin"}},
            "'text' is not a table of settings here; use [model], [hkse], [retriever]",
        ),
        ("--filter tsvd", {"model": {"filter": "tsvd"}}, "filter is set by --filter and in"),
        (
            "--preset best --random-state 7 --filter tsvd --metric r@5",
            {},
            "--filter and --metric have no effect",
        ),
        ("--preset best", {"model": {"solver": "svd"}}, "[model] has no setting 'solver'"),
        ("--preset best --device cuda:99", {}, NO_DEVICE),
        ("", {"model": PARAMS | GRID}, "grid has no effect with params"),
        (
            "",
            {"model": PARAMS | {"validation_fraction": 0.2}},
            "validation_fraction has no effect with params",
        ),
        ("--dask local", {"model": {"solver": "svd"}}, "solver='svd' cannot be used with --dask"),
        ("--text-encoder folder --vectors v.bin", {}, "--vectors has no effect"),
        ("--text-encoder folder", {"hkse": {"word": "lin"}}, "word in [hkse] has no effect"),
    ):
        assert message in refused(*UNSPLIT, *arguments.split(), *(config(**settings) if settings else []))
        assert not (photos / "m").exists()


def test_a_damaged_file_of_settings_is_named(photos):
    for content, message in (
        (b"grid = ", "is not valid TOML"),
        (b"\xff", "is not valid TOML"),
        (b"#" * 2**21, "larger than"),
    ):
        (photos / "settings.toml").write_bytes(content)
        assert message in refused(*UNSPLIT, "--config", "settings.toml")
    assert "none.toml" in refused(*UNSPLIT, "--config", "none.toml")


def test_options_without_effect_are_refused(photos):
    np.save("x.npy", np.ones((5, 3), np.float32))
    np.save("y.npy", np.ones((5, 3), np.float32))
    for arguments, settings, message in (
        (
            "fit drawn -o m",
            {"model": {"validation_fraction": 0.2}},
            "has no effect on pairs with a val split",
        ),
        ("fit x.npy y.npy -o m", {"hkse": {"word": "lin"}}, "word in [hkse] has no effect on features"),
        ("fit x.npy y.npy -o m --vectors v", {}, "--vectors has no effect on features"),
        ("fit x.npy y.npy -o m --text-encoder hkse", {}, "fitted on captions"),
        ("fit x.npy y.npy -o m --images drawn", {}, "--images"),
        ("fit drawn/nothing.json -o m --image-column a", {}, "does not exist"),
        ("encode text drawn -o t --text-encoder hkse --device cuda", {}, "--device has no effect with hkse"),
        ("encode text drawn -o t --text-encoder folder --random-state 3", {}, "--random-state has no effect"),
        ("encode text drawn -o t", {"model": GRID}, "'model' is not a table of settings here; use [hkse]"),
    ):
        assert message in refused(*arguments.split(), *(config(**settings) if settings else [])), arguments


def test_a_wrong_preset_fails_before_encoding_in_python(photos):
    with pytest.raises(InputError, match="'bset'"):
        Retriever(preset="bset")
    retriever = Retriever("pyramid", "hkse")
    retriever.model.solver = "qqq"
    with pytest.raises(InputError, match="solver"):
        retriever.fit(make_scenes(10).write(photos / "more"), features=photos / "features")
    assert not (photos / "features").exists()


@pytest.mark.parametrize("preset", [[], ["--preset", "best"]])
def test_one_truth_about_held_out_pairs(photos, preset):
    settings = {"hkse": SMALL_TEXT} if preset else {"hkse": SMALL_TEXT, "model": {"grid": 3}}
    fitted = run(*UNSPLIT, *config(**settings), *preset)
    quality = run_json("info", "m")["facts"]["quality"]
    assert re.match(r"Selected on 9 of 60 training images, .*; r@1 there: search [\d.]+, annotate", quality)
    assert "Not measured on pairs" in quality
    assert (
        "Learned from 60 images with 300 captions; images are seen by pyramid, texts by hkse" in fitted.stdout
    )
    assert "chosen on 9 of 60 training images, held out" in fitted.stdout
    assert quality in run("info", "m").stdout
    assert quality in (photos / "m" / "README.md").read_text("utf-8").replace("\\", "")
    result = run("evaluate", "m", "captions.csv", "--images", "drawn", *COLUMNS)
    assert "note: these are training pairs of this model" in result.stderr


def test_training_pairs_are_known_again_and_others_are_not(files, recwarn):
    run(*FIT, *config(model={"grid": 3}))
    again = run("evaluate", "m", "x.npy", "y.npy", "--pairs", "pairing.npy")
    assert "these are training pairs" in again.stderr
    for name in ("x", "y"):
        np.save(f"new-{name}.npy", np.load(f"{name}.npy") + 1)
    others = run("evaluate", "m", "new-x.npy", "new-y.npy", "--pairs", "pairing.npy")
    assert "training pairs" not in others.stderr


def test_the_share_of_training_pairs_is_found_by_a_sample():
    ids = tuple(f"{i}.jpg" for i in range(4000))
    dataset = PairedDataset(ids, ids, np.arange(4000), splits=("train",) * 3000 + ("test",) * 1000)
    views = PairedViews(dataset, np.zeros((4000, 1)), np.zeros((4000, 1)))
    sample = training_sample(views, ("train",))
    assert len(sample) == 16 * SAMPLED_PAIRS
    assert training_share(sample, views, np.arange(3000)) == 1
    assert training_share(sample, views, np.arange(3000, 4000)) == 0
    # Of 4,000 pairs about 341 fall among the sampled hashes: five standard deviations around 3 of 4.
    assert abs(training_share(sample, views, np.arange(4000)) - 0.75) < 5 * (0.75 * 0.25 / 341) ** 0.5


def test_the_seconds_are_those_of_the_whole_command(photos, monkeypatch):
    true = PyramidDescriptor.encode_prepared

    def slow(self, prepared):
        time.sleep(0.5)
        return true(self, prepared)

    monkeypatch.setattr(PyramidDescriptor, "encode_prepared", slow)
    small = config(model={"grid": 3}, hkse=SMALL_TEXT)
    begun = time.perf_counter()
    found = run_json(*UNSPLIT, *small)
    wall = time.perf_counter() - begun
    assert found["facts"]["seconds"]["encoding images"] >= 0.5
    assert found["facts"]["seconds"]["all"] >= found["facts"]["seconds"]["encoding images"]
    assert found["facts"]["seconds"]["all"] <= found["seconds"] + 0.1 <= wall + 0.2
    shown = run(*UNSPLIT, *small).stdout
    total = float(re.search(r"([\d.]+) s in all: ", shown)[1])
    parts = re.search(r"in all: (.*)", shown)[1]
    assert "encoding images" in parts
    assert sum(float(part) for part in re.findall(r"([\d.]+) s", parts)) == pytest.approx(total, abs=0.5)
