"""AWCCA choosing its own parameters."""

import json

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from diptych import AWCCA, InputError
from diptych.cca import Tikhonov, TruncatedSVD
from diptych.cca.selection import hold_out
from generated_pairs import make_pairs
from saved_files import edit_config, files_of


def test_validation_pairs_are_not_fitted(pairs):
    training, validation = pairs
    model = AWCCA(grid=6).fit(*training, validation=validation)
    for task in ("search", "annotate"):
        fitted = model.models_[task]
        assert (fitted.filter_x.gamma, fitted.filter_y.gamma) == model.path_.params(task)
        again = AWCCA(params=model.path_.params(task)).fit(*training)
        np.testing.assert_allclose(fitted.x_weights, again.models_[task].x_weights, atol=1e-9)
        assert model.score(*validation, task=task) == model.path_.best(task)


def test_without_validation_the_model_is_refitted_on_all_pairs(pairs):
    training, _ = pairs
    model = AWCCA(grid=6).fit(*training)
    pairing = training[2]
    train, _ = hold_out(pairing, len(training[0]), 0.15, 0)
    grown = len(pairing) / len(train.y)
    assert grown > 1
    gamma = model.path_.params("search")[0]
    assert model.models_["search"].filter_x == Tikhonov(gamma * grown)
    assert "of 45 rows of X" in model.path_.held_out
    assert model.spectra_.count == len(pairing)
    again = AWCCA(grid=6).fit(*training)
    np.testing.assert_array_equal(model.transform(training[0]), again.transform(training[0]))


def test_guided_takes_gamma_from_the_truncated_svd(pairs):
    training, validation = pairs
    hard = AWCCA("tsvd", grid=6).fit(*training, validation=validation)
    k_x, k_y = hard.path_.params("search")
    assert hard.models_["search"].filter_x == TruncatedSVD(k_x)
    guided = AWCCA("guided", grid=6).fit(*training, validation=validation)
    assert guided.path_.params("search") == (k_x, k_y)
    for model in (guided, AWCCA("guided", grid=5).fit(*training)):  # the spectra are those of all pairs
        k_x, _ = model.path_.params("search")
        gamma = float(model.spectra_.s_x[k_x - 1] ** 2)
        assert model.models_["search"].filter_x.gamma == pytest.approx(gamma)


@pytest.mark.parametrize(
    "options",
    [{"weighting": "none"}, {"weighting": "symmetric"}, {"weighting": (0.5, 0.5)}, {"n_components": 3}],
)
def test_other_weightings_and_fewer_components_take_the_textbook_route(pairs, options):
    training, validation = pairs
    model = AWCCA(grid=4, **options).fit(*training, validation=validation)
    assert model.path_.route == "textbook"
    assert model.transform(validation[0]).shape[1] == options.get("n_components", 11)
    for task in ("search", "annotate"):
        assert model.score(*validation, task=task) == model.path_.best(task)


def test_auto_chooses_the_dimension_on_validation():
    training, validation = make_pairs(3, n=400, m_x=40, m_y=30, hidden=4, noise=1.0)
    model = AWCCA(grid=5, n_components="auto", weighting="none", metric="mean_recall")
    model.fit(*training, validation=validation)
    sizes = {task: model.models_[task].correlations.shape[0] for task in model.models_}
    full = AWCCA(grid=5, weighting="none", metric="mean_recall").fit(*training, validation=validation)
    assert max(sizes.values()) < 30
    for task in sizes:
        assert model.score(*validation, task=task) > full.score(*validation, task=task)


def test_auto_dimension_with_given_params(pairs):
    training, validation = pairs
    model = AWCCA(params=(5.0, 5.0), n_components="auto").fit(*training, validation=validation)
    assert model.path_ is None
    assert model.models_["search"].filter_x == Tikhonov(5.0)
    held = AWCCA(params=(5.0, 5.0), n_components="auto", validation_fraction=0.3).fit(*training)
    assert held.models_["search"].filter_x == Tikhonov(5.0)


def test_a_damaged_path_is_refused(pairs, tmp_path):
    AWCCA(grid=4).fit(*pairs[0]).save(tmp_path / "model")
    path = json.loads((files_of(tmp_path / "model") / "config.json").read_text())["path"]
    edit_config(tmp_path / "model", path={**path, "grid": {**path["grid"], "x": [1.0]}})
    with pytest.raises(InputError, match="path: a table or a point does not fit the grid"):
        AWCCA.load(tmp_path / "model")


@given(st.integers(0, 10**6), st.floats(0.1, 0.9), st.integers(10, 40))
def test_hold_out_never_splits_an_image(seed, fraction, n):
    rng = np.random.default_rng(seed)
    pairing = rng.integers(0, n, 80)
    size = round(fraction * len(np.unique(pairing)))
    assume(2 <= size <= len(np.unique(pairing)) - 2)
    train, held = hold_out(pairing, n, fraction, seed)
    assert len(held.x) == size
    assert set(train.x) | set(held.x) == set(range(n))
    assert not set(train.x) & set(held.x)
    assert sorted([*train.y, *held.y]) == list(range(80))
    for part in (train, held):
        np.testing.assert_array_equal(part.x[part.pairing], pairing[part.y])


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, "a", 0.01])
def test_a_wrong_fraction_is_refused(pairs, fraction):
    with pytest.raises(InputError, match="validation_fraction"):
        AWCCA(validation_fraction=fraction).fit(*pairs[0])


def test_torch_selects_the_same(pairs):
    torch = pytest.importorskip("torch")
    theirs = [tuple(torch.as_tensor(part) for part in views) for views in pairs]
    model = AWCCA(grid=4).fit(*theirs[0], validation=theirs[1])
    ours = AWCCA(grid=4).fit(*pairs[0], validation=pairs[1])
    assert model.path_.choice == ours.path_.choice
    held = AWCCA(grid=4).fit(*theirs[0])
    assert held.path_.choice == AWCCA(grid=4).fit(*pairs[0]).path_.choice


def test_verbose_shows_a_progress_bar(pairs, capsys):
    AWCCA(grid=3, verbose=True).fit(*pairs[0])
    assert "selecting" in capsys.readouterr().err
