"""Loadings: direct computation from the data, published values, and regression."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from sklearn.datasets import load_linnerud
from sklearn.linear_model import LinearRegression

from diptych import AWCCA, InputError
from diptych.stats import loadings
from generated_pairs import make_pairs
from tolerance import rounding


def correlate(features, variates):
    """Correlations of all columns with all columns, as NumPy computes them."""
    return np.corrcoef(features.T, variates.T)[: features.shape[1], features.shape[1] :]


def variates_of(model, x, y, task="search"):
    canonical = model.models_[task]
    return (x - model.x_mean_) @ canonical.x_weights, (y - model.y_mean_) @ canonical.y_weights


@pytest.mark.parametrize("solver", ["svd", "gram"])
@pytest.mark.parametrize("params", [(0.0, 0.0), (20.0, 5.0)])
def test_loadings_are_correlations_over_pairs(params, solver, backend):
    (x, y, pairing), _ = make_pairs(0)
    model = AWCCA(params=params, solver=solver).fit(backend(x), backend(y), backend(pairing))
    result = loadings(model)
    reference = AWCCA(params=params, solver=solver).fit(x, y, pairing)
    u, v = variates_of(reference, x, y)
    tolerance = rounding(np.float64, 300, condition=1e4)
    for table, expected in (
        (result.x, correlate(x[pairing], u[pairing])),
        (result.y, correlate(y, v)),
        (result.x_cross, correlate(x[pairing], v)),
        (result.y_cross, correlate(y, u[pairing])),
    ):
        np.testing.assert_allclose(table, expected, rtol=0, atol=tolerance)
    np.testing.assert_allclose(result.correlations, np.diag(correlate(u[pairing], v)), rtol=0, atol=tolerance)
    np.testing.assert_allclose(
        result.correlations, reference.models_["search"].train_correlations, rtol=0, atol=tolerance
    )
    np.testing.assert_allclose(result.x_variance, np.mean(result.x**2, axis=0))
    np.testing.assert_allclose(result.y_redundancy, result.y_variance * result.correlations**2)


def test_the_published_loadings_of_linnerud_are_reproduced():
    exercises, physiology = load_linnerud(return_X_y=True)
    result = loadings(AWCCA(params=(0, 0)).fit(physiology, exercises))
    # The sign of a component is arbitrary.
    assert [f"{value:.4f}" for value in result.x[:, 0]] == ["0.6206", "0.9254", "-0.3328"]
    assert [f"{value:.4f}" for value in result.y[:, 0]] == ["-0.7276", "-0.8177", "-0.1622"]
    assert [f"{value:.4f}" for value in result.x_cross[:, 0]] == ["0.4938", "0.7363", "-0.2648"]
    assert [f"{value:.4f}" for value in result.y_cross[:, 0]] == ["-0.5789", "-0.6506", "-0.1290"]
    assert [f"{value:.4f}" for value in result.x_variance] == ["0.4508", "0.2470", "0.3022"]
    assert [f"{value:.4f}" for value in result.y_variance] == ["0.4081", "0.4345", "0.1574"]
    assert [f"{value:.4f}" for value in result.x_redundancy] == ["0.2854", "0.0099", "0.0016"]
    assert [f"{value:.4f}" for value in result.y_redundancy] == ["0.2584", "0.0175", "0.0008"]


@given(seed=st.integers(0, 10**6), p=st.integers(1, 5), q=st.integers(1, 5))
def test_redundancies_add_up_to_the_variance_that_regression_explains(seed, p, q):
    rng = np.random.default_rng(seed)
    y = rng.normal(size=(40, q))
    x = y @ rng.normal(size=(q, p)) + rng.normal(size=(40, p))
    result = loadings(AWCCA(params=(0, 0)).fit(x, y))
    explained = LinearRegression().fit(y, x)
    residuals = x - explained.predict(y)
    r2 = 1 - np.sum(residuals**2, axis=0) / np.sum((x - x.mean(axis=0)) ** 2, axis=0)
    np.testing.assert_allclose(result.x_redundancy.sum(), r2.mean(), atol=1e-10)
    if p <= q:
        np.testing.assert_allclose(result.x_variance.sum(), 1.0, atol=1e-10)
    # Without regularisation a cross loading is the loading times the correlation.
    np.testing.assert_allclose(result.x_cross, result.x * result.correlations, atol=1e-9)


@pytest.mark.parametrize("solver", ["svd", "gram"])
def test_a_constant_feature_has_no_loading(rng, solver):
    x = rng.normal(size=(50, 3))
    y = x + rng.normal(size=(50, 3))
    model = AWCCA(params=(1.0, 1.0), solver=solver)
    expected = loadings(model.fit(x, y))
    result = loadings(model.fit(np.insert(x, 1, 0.1, axis=1), y))
    assert np.isnan(result.x[1]).all()
    assert np.isnan(result.x_cross[1]).all()
    np.testing.assert_allclose(np.delete(result.x, 1, axis=0), expected.x, atol=1e-10)
    np.testing.assert_allclose(result.x_variance, expected.x_variance, atol=1e-10)


def test_a_sparse_view_has_the_loadings_of_a_dense_one(rng, monkeypatch):
    monkeypatch.setattr("diptych.cca._spectra._SMALL", 100)  # small views are made dense
    monkeypatch.setattr("diptych.stats._loadings._DIRECTIONS", 7)
    for rows, columns in ((40, 90), (90, 40)):
        x = scipy.sparse.random_array((rows, columns), density=0.3, rng=rng, format="csr")
        y = x.toarray()[:, :5] + 0.1 * rng.normal(size=(rows, 5))
        model = AWCCA(params=(0.5, 0.5), n_components=3)
        result, expected = (loadings(model.fit(view, y)) for view in (x, x.toarray()))
        for name in ("x", "y", "x_cross", "y_cross"):
            np.testing.assert_allclose(getattr(result, name), getattr(expected, name), atol=1e-8)


def test_weights_of_pairs_are_those_of_the_fit(rng):
    x = rng.normal(size=(50, 3))
    y = x + rng.normal(size=(50, 3))
    times = rng.integers(0, 3, size=50)
    model = AWCCA(params=(1.0, 1.0))
    result = loadings(model.fit(x, y, sample_weight=times))
    expected = loadings(model.fit(np.repeat(x, times, axis=0), np.repeat(y, times, axis=0)))
    np.testing.assert_allclose(result.x, expected.x, atol=1e-10)
    np.testing.assert_allclose(result.y_redundancy, expected.y_redundancy, atol=1e-10)


def test_each_task_has_its_own_loadings():
    (x, y, pairing), _ = make_pairs(2)
    model = AWCCA(params={"search": (1.0, 1.0), "annotate": (100.0, 50.0)}).fit(x, y, pairing)
    u, _ = variates_of(model, x, y, "annotate")
    expected = correlate(x[pairing], u[pairing])
    np.testing.assert_allclose(loadings(model, task="annotate").x, expected, atol=1e-9)
    assert not np.allclose(loadings(model).x, expected, atol=1e-2)


def test_names_of_features_are_those_of_the_data_frame():
    data = load_linnerud(as_frame=True)
    result = loadings(AWCCA(params=(0, 0)).fit(data.target, data.data))
    assert isinstance(result.x, pd.DataFrame)
    assert list(result.x.index) == ["Weight", "Waist", "Pulse"]
    assert result.y_cross.loc["Chins", 1] == pytest.approx(-0.5789, abs=5e-5)
    assert "Waist     0.925" in str(result)
    frames = result.to_frames()
    pd.testing.assert_frame_equal(frames["x"], result.x)
    assert frames["components"].loc[1, "x_redundancy"] == pytest.approx(0.2854, abs=5e-5)


def test_arrays_give_arrays_and_numbered_names_in_tables(rng):
    x = rng.normal(size=(50, 40))
    result = loadings(AWCCA(params=(10.0, 10.0)).fit(x, x[:, :2]))
    assert isinstance(result.x, np.ndarray)
    text = str(result)
    assert "x29" in text
    assert "x30" not in text
    assert "…" in text
    assert list(result.to_frames()["x"].index[:2]) == ["x0", "x1"]


def test_too_many_components_and_models_without_spectra_are_refused(rng):
    x = rng.normal(size=(50, 3))
    model = AWCCA(params=(1.0, 1.0)).fit(x, x)
    assert loadings(model, n_components=2).x.shape == (3, 2)
    with pytest.raises(InputError, match="give 1 to 3"):
        loadings(model, n_components=4)
    with pytest.raises(InputError, match="saved without the spectra"):
        loadings(model.split_moments()[0])
    with pytest.raises(InputError, match="tuple is not a model"):
        loadings((1.0, 1.0))
