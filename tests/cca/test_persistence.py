import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from diptych import AWCCA, InputError
from diptych._model_folder import write_version
from diptych._persistence import read_json
from diptych.cca._fitted import FittedAWCCA
from saved_files import edit_config, files_of, seal, seal_config


@pytest.fixture
def data(rng):
    x = rng.normal(size=(80, 6))
    return x, x[:, :4] + 0.5 * rng.normal(size=(80, 4))


@pytest.fixture
def model(data):
    return AWCCA(params={"search": (1.0, 2.0), "annotate": (0.5, 3.0)}, weighting=(0.5, 1.0)).fit(*data)


def test_loaded_equals_saved(model, data, tmp_path):
    model.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params()
    for task in ("search", "annotate"):
        for vectors, expected in zip(
            loaded.transform(*data, task=task), model.transform(*data, task=task), strict=True
        ):
            np.testing.assert_array_equal(vectors, expected)
        assert loaded.models_[task].filter_y == model.models_[task].filter_y
    assert sorted(p.name for p in files_of(tmp_path / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
    ]


def test_a_shared_model_is_written_once(data, tmp_path):
    shared = AWCCA(filter="tsvd", params=(3, 2)).fit(*data)
    shared.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    np.testing.assert_array_equal(loaded.transform(data[0]), shared.transform(data[0]))
    names = load_file(files_of(tmp_path / "model") / "model.safetensors").keys()
    assert "search.x_weights" in names
    assert "annotate.x_weights" not in names


def test_a_metric_that_is_a_function_is_not_stored(data, tmp_path):
    AWCCA(params=(1.0, 1.0), metric=lambda ranks: 1.0).fit(*data).save(tmp_path / "model")
    assert AWCCA.load(tmp_path / "model").metric == "r@1"


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


def test_a_failed_save_leaves_the_old_model(model, data, tmp_path):
    model.save(tmp_path / "model")

    def fail(path):
        (path / "config.json").write_text("{")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_version(tmp_path / "model", "awcca", fail)
    np.testing.assert_array_equal(AWCCA.load(tmp_path / "model").transform(data[0]), model.transform(data[0]))
    assert len(list((tmp_path / "model" / "versions").iterdir())) == 1


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
        (lambda f: write_config(f, "[]"), "expected an object"),
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
        (lambda f: edit_config(f, models=3), "models: Expected `object`, got `int`"),
        (lambda f: edit_config(f, files=3), "files: Expected `object`, got `int`"),
        (lambda f: edit_config(f, files={}), "does not list model.safetensors"),
        (
            lambda f: edit_config(f, params={"filter": "evil"}),
            "params: Object missing required field `params`",
        ),
        (lambda f: edit_params(f, filter="evil"), "params: filter='evil' is unknown; choose one of"),
        (lambda f: edit_params(f, verbose=1), "params.verbose: Expected `bool | null`, got `int`"),
        (lambda f: edit_params(f, colour="red"), "params: Object contains unknown field `colour`"),
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


def test_a_model_is_loaded_and_used_without_scikit_learn(model, data, tmp_path):
    model.save(tmp_path / "model")
    script = """
import sys
import numpy as np
from diptych.cca._fitted import FittedAWCCA
from diptych.fusion._fitted import FittedFusion

model = FittedAWCCA.load(sys.argv[1])
np.save(sys.argv[2], model.transform(np.load(sys.argv[3])))
assert not {"sklearn", "pandas"} & {*sys.modules}
"""
    np.save(tmp_path / "x.npy", data[0])
    arguments = [str(tmp_path / name) for name in ("model", "vectors.npy", "x.npy")]
    subprocess.run([sys.executable, "-c", script, *arguments], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "vectors.npy"), model.transform(data[0]))


def test_a_loaded_model_becomes_an_estimator(model, data, tmp_path):
    model.save(tmp_path / "model")
    estimator = FittedAWCCA.load(tmp_path / "model").make_estimator()
    assert isinstance(estimator, AWCCA)
    assert estimator.get_params() == model.get_params()
    np.testing.assert_array_equal(estimator.transform(data[0]), model.transform(data[0]))
