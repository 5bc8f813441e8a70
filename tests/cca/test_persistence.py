import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.base import clone

from diptych import AWCCA, InputError
from diptych._persistence import read_json, to_builtins
from generated_pairs import make_graded_pairs
from saved_files import edit_config, files_of, seal, seal_config
from tolerance import assert_close

TASKS = ("search", "annotate")


@pytest.fixture
def data(rng):
    x = rng.normal(size=(80, 6))
    return x, x[:, :4] + 0.5 * rng.normal(size=(80, 4))


@pytest.fixture
def model(data):
    return AWCCA(params={"search": (1.0, 2.0), "annotate": (0.5, 3.0)}, weighting=(0.5, 1.0)).fit(*data)


MODELS = {
    "powers": AWCCA(params={"search": (1.0, 2.0), "annotate": (0.5, 3.0)}, weighting=(0.5, 1.0)),
    "an array of parameters": AWCCA(params=np.array([2, 3])),
    "normalised": AWCCA(params=(2.0, 3.0), normalize=("sqrt-unit", "unit"), metric="r@5"),
    "residual": AWCCA(weighting="residual", grid=3),
    "every metric of the path": AWCCA(grid=([1e4, 1e5], [1e4, 1e5]), path_metrics="all"),
    "an extended grid": AWCCA(grid=3),
    "truncated": AWCCA(filter="tsvd", params=(5, 3)),
    "few components": AWCCA(params=(2.0, 3.0), n_components=2, similarity="l2"),
    "polished": AWCCA(params=(5.0, 5.0), weighting="none", polish=True),
}


@pytest.mark.filterwarnings("ignore:the best point is on the edge")
@pytest.mark.parametrize("name", MODELS)
def test_loaded_equals_saved(name, tmp_path):
    training, validation = make_graded_pairs(1, 300), make_graded_pairs(2, 150)
    weights = None if name == "polished" else np.arange(len(training[2])) % 3 + 1.0
    model = clone(MODELS[name]).fit(*training, validation=validation, sample_weight=weights)
    model.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    params = model.get_params()
    if name == "an array of parameters":
        params["params"] = (2, 3)
    assert loaded.get_params() == params
    x, y, _ = validation
    for task in TASKS:
        mine, its = model.models_[task], loaded.models_[task]
        assert (its.filter_x, its.filter_y) == (mine.filter_x, mine.filter_y)
        for measured in ("correlations", "train_correlations", "validation_correlations"):
            np.testing.assert_array_equal(getattr(its, measured), getattr(mine, measured))
        assert (its.polish and its.polish.epochs) == (mine.polish and mine.polish.epochs)
        assert (its.polish is not None) == (name == "polished")
        vectors = loaded.transform(x, y, task=task)
        for result, expected in zip(vectors, model.transform(x, y, task=task), strict=True):
            np.testing.assert_array_equal(result, expected)
        back = loaded.inverse_transform(*vectors, task=task), model.inverse_transform(*vectors, task=task)
        for result, expected in zip(*back, strict=True):
            assert_close(result, expected, 1000, condition=1e4)
        assert_close(loaded.predict(x, task=task), model.predict(x, task=task), 1000, condition=1e4)
        assert_close(loaded.predict_x(y, task=task), model.predict_x(y, task=task), 1000, condition=1e4)
    assert (loaded.spectra_.count, loaded.spectra_.weight) == (model.spectra_.count, model.spectra_.weight)
    if model.path_ is not None:
        assert to_builtins(loaded.path_) == to_builtins(model.path_)
    if name == "an extended grid":
        assert any(loaded.path_.extended["x"] + loaded.path_.extended["y"])
    files = sorted(path.name for path in files_of(tmp_path / "model").iterdir())
    assert files == ["config.json", "model.safetensors"]


def test_a_shared_model_is_written_once_and_a_function_is_not_stored(data, tmp_path):
    shared = AWCCA(filter="tsvd", params=(3, 2), metric=lambda ranks: 1.0).fit(*data)
    shared.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(data[0]), shared.transform(data[0]))
    names = load_file(files_of(tmp_path / "model") / "model.safetensors").keys()
    assert "search.x_weights" in names
    assert "annotate.x_weights" not in names
    assert loaded.metric == "r@1"
    assert loaded.models_["search"].validation_correlations is None


def test_torch_models_are_saved_too(data, tmp_path):
    torch = pytest.importorskip("torch")
    fitted = AWCCA(params=(1.0, 1.0)).fit(*(torch.as_tensor(v) for v in data))
    fitted.save(tmp_path / "model")
    np.testing.assert_allclose(
        AWCCA.load(tmp_path / "model").transform(data[0]), fitted.transform(data[0]), atol=1e-12
    )


def test_saving_replaces_an_older_model_and_nothing_else(model, tmp_path):
    (tmp_path / "model").mkdir()
    model.save(tmp_path / "model")
    model.save(tmp_path / "model")
    assert [p.name for p in tmp_path.iterdir()] == ["model"]
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("keep me")
    with pytest.raises(InputError, match="not a diptych awcca"):
        model.save(tmp_path / "letters")
    assert (tmp_path / "letters" / "dear.txt").read_text() == "keep me"


@pytest.mark.slow
def test_killed_at_any_moment_a_whole_model_remains(tmp_path):
    script = (
        "import sys, numpy as np; from diptych import AWCCA; rng = np.random.default_rng(0)\n"
        "x = rng.normal(size=(300, 200)); model = AWCCA(params=(1.0, 1.0)).fit(x, x + 1)\n"
        "model.save(sys.argv[1]); print('saved', flush=True)\n"
        "while True: model.save(sys.argv[1])\n"
    )
    folder = tmp_path / "model"
    rng = np.random.default_rng(0)
    for _ in range(10):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(folder)],
            stdout=subprocess.PIPE,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        ) as process:
            process.stdout.readline()
            time.sleep(rng.uniform(0, 0.05))
            process.send_signal(signal.SIGKILL)
        assert AWCCA.load(folder).transform(np.ones((1, 200))).shape[0] == 1


def write_config(folder, content):
    (files_of(folder) / "config.json").write_text(content)
    seal_config(folder)


def edit_params(folder, **changes):
    config = read_json(files_of(folder) / "config.json")
    edit_config(folder, params={**config["params"], **changes})


def edit_filter(folder, **changes):
    models = read_json(files_of(folder) / "config.json")["models"]
    models["search"]["filter_x"] |= changes
    edit_config(folder, models=models)


def edit_text(folder, old, new):
    text = (files_of(folder) / "config.json").read_text()
    assert old in text
    write_config(folder, text.replace(old, new))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda f: (f / "current.json").write_text("{"), "not valid JSON"),
        (lambda f: (f / "current.json").write_text("{}"), "missing required field `format`"),
        (
            lambda f: (f / "current.json").write_text('{"format": "x", "version": 5, "sha256": ""}'),
            "version: Expected `str`, got `int`",
        ),
        (
            lambda f: (f / "current.json").write_text('{"format": "", "version": "../..", "sha256": ""}'),
            "not name a",
        ),
        (lambda f: (f / "current.json").unlink(), "has neither current.json nor"),
        (lambda f: (files_of(f) / "config.json").write_text("{}"), "its checksum differs"),
        (lambda f: write_config(f, "{"), "not valid JSON"),
        (lambda f: write_config(f, "[" * 100_000), "not valid JSON"),
        (lambda f: (files_of(f) / "config.json").unlink(), "is missing"),
        (lambda f: (files_of(f) / "model.safetensors").unlink(), "not a file"),
        (lambda f: os.truncate(files_of(f) / "model.safetensors", 500), "its checksum differs"),
        (lambda f: (os.truncate(files_of(f) / "model.safetensors", 5), seal(f)), "damaged"),
        (lambda f: (os.truncate(files_of(f) / "model.safetensors", 500), seal(f)), "damaged"),
        (lambda f: edit_config(f, version=99), "install a newer version of diptych"),
        (lambda f: edit_config(f, version="x"), "no valid format version"),
        (lambda f: edit_config(f, format="diptych-moments"), "expected a diptych awcca"),
        (lambda f: edit_config(f, models={}), "models has the tasks"),
        (lambda f: edit_config(f, files=3), "files: Expected `object`, got `int`"),
        (lambda f: edit_config(f, files={}), "does not list model.safetensors"),
        (lambda f: edit_params(f, filter="evil"), "params: filter='evil' is unknown; choose one of"),
        (lambda f: edit_params(f, verbose=1), "params.verbose: Expected `bool | null`, got `int`"),
        (lambda f: edit_config(f, colour="red"), "Object contains unknown field `colour`"),
        (lambda f: edit_filter(f, parameter=-1.0), "models.*: γ=-1.0 is not a Tikhonov parameter"),
        (lambda f: edit_filter(f, kind="none"), "models.*filter_x.kind: Invalid enum value 'none'"),
        (lambda f: edit_text(f, '"verbose": null', '"verbose": NaN'), "not valid JSON"),
        (lambda f: edit_text(f, '"parameter": 1.0', '"parameter": 1e999'), "not valid JSON"),
    ],
)
def test_damaged_folders_are_one_sentence(model, tmp_path, damage, words):
    folder = tmp_path / "model"
    model.save(folder)
    damage(folder)
    with pytest.raises(InputError, match=words) as caught:
        AWCCA.load(folder)
    assert "\n" not in str(caught.value)


def test_swapped_tensors_are_refused(model, data, tmp_path):
    model.save(tmp_path / "a")
    AWCCA(params=(1.0, 1.0)).fit(data[0][:, :5], data[1]).save(tmp_path / "b")
    (files_of(tmp_path / "b") / "config.json").write_bytes(
        (files_of(tmp_path / "a") / "config.json").read_bytes()
    )
    seal(tmp_path / "b")
    with pytest.raises(InputError, match=r"has no 'annotate"):
        AWCCA.load(tmp_path / "b")


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        AWCCA.load(tmp_path / "nothing")
