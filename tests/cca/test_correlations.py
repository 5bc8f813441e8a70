"""The correlations of the variates, beside those of the regularised model."""

import numpy as np
import pytest

from diptych import AWCCA
from diptych._arrays import to_numpy
from diptych._checks import DataWarning
from diptych.cca import Moments
from generated_pairs import make_pairs

TASKS = ("search", "annotate")


def measured(model, x, y, pairing, task="search"):
    """Correlations of what transform() gives without weighting, over pairs."""
    plain = AWCCA(params=(1.0, 1.0), weighting="none", normalize=model.normalize)
    plain.models_, plain.x_mean_, plain.y_mean_ = model.models_, model.x_mean_, model.y_mean_
    plain.n_features_in_ = model.n_features_in_
    u, v = plain.transform(x, y, task=task)
    u, v = to_numpy(u)[to_numpy(pairing)], to_numpy(v)
    return np.array([np.corrcoef(a, b)[0, 1] for a, b in zip(u.T, v.T, strict=True)])


@pytest.mark.parametrize("filter", ["tikhonov", "tsvd", "guided"])
@pytest.mark.parametrize("solver", ["gram", "svd"])
def test_train_and_validation_correlations_are_those_of_the_variates(backend, filter, solver):
    training, validation = make_pairs(0, n=120)
    model = AWCCA(filter=filter, solver=solver, grid=5, normalize=("unit", "none"))
    model.fit(*(backend(v) for v in training), validation=tuple(backend(v) for v in validation))
    for task in TASKS:
        own = model.models_[task]
        # The last components of a truncated SVD may be all but constant.
        kept = to_numpy(own.correlations) > 1e-6
        for result, pairs in ((own.train_correlations, training), (own.validation_correlations, validation)):
            expected = measured(model, *(backend(v) for v in pairs), task=task)
            np.testing.assert_allclose(to_numpy(result)[kept], expected[kept], rtol=1e-6, atol=1e-7)


def test_validation_correlations_are_measured_on_unseen_pairs():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 20)), rng.normal(size=(200, 20))
    model = AWCCA(grid=5).fit(x, y)
    own = model.models_["search"]
    # Views that have nothing to do with each other: only unseen pairs tell.
    assert own.train_correlations[0] > 0.3
    assert np.abs(own.validation_correlations[:5]).mean() < 0.25
    np.testing.assert_allclose(own.train_correlations, measured(model, x, y, np.arange(200)), atol=1e-8)


def test_regularisation_lowers_sigma_but_not_the_validation_correlations():
    rng = np.random.default_rng(0)
    cause = rng.normal(size=(400, 1))
    x, y = (cause + 0.1 * rng.normal(size=(400, 6)) for _ in range(2))
    gamma = float(np.linalg.norm(x[:300] - x[:300].mean(0), 2) ** 2)
    own = AWCCA(params=(gamma, gamma)).fit(x[:300], y[:300], validation=(x[300:], y[300:])).models_["search"]
    assert own.correlations[0] == pytest.approx(0.5, abs=0.02)
    assert own.train_correlations[0] > 0.98
    assert own.validation_correlations[0] > 0.98


def test_more_features_than_pairs_without_regularisation_warn():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 80)), rng.normal(size=(60, 70))
    with pytest.warns(DataWarning, match="59 of 59 canonical correlations are 1 whatever the data") as caught:
        model = AWCCA(params=(0.0, 0.0)).fit(
            x[:60], y[:60], validation=(x[::-1] + 1, y[::-1] * 2 + x[:, :70])
        )
    assert len(caught) == 1
    own = model.models_["search"]
    np.testing.assert_allclose(own.correlations, 1.0)
    np.testing.assert_allclose(own.train_correlations, 1.0)
    unseen = rng.normal(size=(500, 80)), rng.normal(size=(500, 70))
    again = AWCCA(params=(1.0, 1.0)).fit(x, y, validation=unseen).models_["search"]
    assert np.abs(again.validation_correlations).max() < 0.25


def test_measured_correlations_are_saved(tmp_path):
    training, validation = make_pairs(0)
    model = AWCCA(grid=4).fit(*training, validation=validation)
    model.save(tmp_path / "one")
    loaded = AWCCA.load(tmp_path / "one")
    for task in TASKS:
        for name in ("train_correlations", "validation_correlations"):
            np.testing.assert_array_equal(
                getattr(loaded.models_[task], name), getattr(model.models_[task], name)
            )
    given = AWCCA(params=(1.0, 1.0)).fit(*training)
    given.save(tmp_path / "two")
    loaded = AWCCA.load(tmp_path / "two").models_["search"]
    assert loaded.validation_correlations is None
    np.testing.assert_array_equal(loaded.train_correlations, given.models_["search"].train_correlations)
    # What a refit has seen since is not what was measured.
    model.refit_moments(Moments.of(*training), 45)
    assert model.models_["search"].validation_correlations is None
