"""Prediction of one view from the other, and of features from vectors, beside scikit-learn's regressions."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from sklearn.decomposition import PCA
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score

from diptych import AWCCA, InputError, Retriever
from diptych.cca import SpectralFilter
from diptych.cca._polish import Polish
from saved_files import files_of, seal


def make_pair(n=80, p=6, q=4, seed=0, captions=1):
    """Return two views with means far from 0, and their pairing."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, p)) @ rng.normal(size=(p, p)) + 3.0
    pairing = np.repeat(np.arange(n), captions)
    y = x[pairing] @ rng.normal(size=(p, q)) + 2.0 * rng.normal(size=(n * captions, q)) - 5.0
    return x, y, pairing


def fit_ridge(x, y, gamma):
    return (Ridge(alpha=gamma, solver="svd") if gamma else LinearRegression()).fit(x, y)


@given(
    n=st.integers(3, 60),
    p=st.integers(1, 12),
    q=st.integers(1, 12),
    captions=st.integers(1, 3),
    gamma=st.sampled_from([0.0, 1e-3, 1.0, 1e3]),
    solver=st.sampled_from(["svd", "gram"]),
)
@pytest.mark.filterwarnings("ignore::diptych._checks.DataWarning")
def test_at_full_dimension_it_is_ridge_regression(n, p, q, captions, gamma, solver):
    if gamma == 0.0 and n <= p + 1:
        gamma = 1e-3  # without a penalty the coefficients would not be unique
    x, y, pairing = make_pair(n, p, q, captions=captions)
    # The penalty of the other view changes nothing.
    model = AWCCA(params=(gamma, 2 * gamma), solver=solver).fit(x, y, pairing)
    scale = np.abs(y).max()
    np.testing.assert_allclose(
        model.predict(x),
        fit_ridge(x[pairing], y, gamma).predict(x).reshape(n, q),
        atol=1e-6 * scale,
        rtol=1e-6,
    )
    if gamma or len(y) > q + 1:
        np.testing.assert_allclose(
            model.predict_x(y),
            fit_ridge(y, x[pairing], 2 * gamma).predict(y).reshape(len(y), p),
            atol=1e-6 * scale,
            rtol=1e-6,
        )


def test_truncated_svd_is_regression_on_principal_components():
    x, y, _ = make_pair()
    components = PCA(3).fit(x)
    expected = LinearRegression().fit(components.transform(x), y).predict(components.transform(x))
    np.testing.assert_allclose(AWCCA(filter="tsvd", params=(3, 4)).fit(x, y).predict(x), expected, rtol=1e-8)


@pytest.mark.parametrize("params", [(5, 2), (2, 2), (3, 4)])
@pytest.mark.parametrize("n_components", [None, 1])
def test_truncated_views_are_regressed_on_the_components_that_there_are(params, n_components):
    x, y, _ = make_pair()
    model = AWCCA(filter="tsvd", params=params, n_components=n_components, weighting="none").fit(x, y)
    vectors = model.transform(x)
    expected = LinearRegression().fit(vectors, y).predict(vectors)
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-8)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_with_fewer_components_it_is_reduced_rank_ridge_regression(k):
    x, y, _ = make_pair()
    gamma = 7.0
    model = AWCCA(params=(gamma, 2.0), n_components=k).fit(x, y)
    # Least squares on the variates with γ as added rows, written out.
    u = model.models_["search"].x_weights
    rows = np.concatenate([(x - x.mean(axis=0)) @ u, np.sqrt(gamma) * u])
    target = np.concatenate([y - y.mean(axis=0), np.zeros((x.shape[1], y.shape[1]))])
    coefficients = np.linalg.lstsq(rows, target, rcond=None)[0]
    expected = y.mean(axis=0) + (x - x.mean(axis=0)) @ u @ coefficients
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-9)
    assert np.linalg.matrix_rank(model.predict(x) - y.mean(axis=0), tol=1e-8) == k


def test_full_dimension_needs_no_decomposition_of_t():
    x, y, _ = make_pair()
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    model.predict(x)
    model.predict_x(y)
    model.score(x, y, metric="r2")
    assert not model.models_.computed


def test_each_direction_has_the_filters_of_its_task():
    x, y, _ = make_pair()
    model = AWCCA(params={"search": (1.0, 20.0), "annotate": (300.0, 4.0)}).fit(x, y)
    for predicted, own, other, gamma in (
        (model.predict(x), x, y, 1.0),
        (model.predict(x, task="annotate"), x, y, 300.0),
        (model.predict_x(y), y, x, 4.0),
        (model.predict_x(y, task="search"), y, x, 20.0),
    ):
        np.testing.assert_allclose(predicted, fit_ridge(own, other, gamma).predict(own), rtol=1e-9)


def test_weights_are_those_of_ridge(tmp_path):
    x, y, _ = make_pair()
    weights = np.random.default_rng(1).uniform(0.0, 3.0, size=80)
    model = AWCCA(params=(2.0, 2.0)).fit(x, y, sample_weight=weights)
    expected = Ridge(alpha=2.0).fit(x, y, sample_weight=weights).predict(x)
    model.save(tmp_path / "model")
    for fitted in (model, AWCCA.load(tmp_path / "model")):
        np.testing.assert_allclose(fitted.predict(x), expected, rtol=1e-8)


@pytest.mark.parametrize("n_components", [None, 2])
def test_sparse_views_predict_as_dense_ones_do(n_components):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 8)) * (rng.random((60, 8)) < 0.3)
    y = x[:, :5] + 0.1 * rng.normal(size=(60, 5)) * (rng.random((60, 5)) < 0.3)
    settings = {"params": (1.0, 1.0), "n_components": n_components}
    dense = AWCCA(**settings).fit(x, y)
    sparse = AWCCA(**settings).fit(scipy.sparse.csr_array(x), scipy.sparse.csc_array(y))
    np.testing.assert_allclose(sparse.predict(scipy.sparse.csr_array(x)), dense.predict(x), atol=1e-9)
    np.testing.assert_allclose(sparse.predict_x(scipy.sparse.coo_array(y)), dense.predict_x(y), atol=1e-9)
    r2 = sparse.score(scipy.sparse.csr_array(x), scipy.sparse.csr_array(y), metric="r2")
    assert r2 == pytest.approx(dense.score(x, y, metric="r2"))


def test_a_filter_that_drops_directions():
    x, y, _ = make_pair()

    def keep(squares, k):
        return np.where(np.arange(len(squares)) < k, 1.0 / squares, 0.0)

    own = AWCCA(filter=SpectralFilter(keep), params=(3, 2)).fit(x, y)
    np.testing.assert_allclose(
        own.predict(x), AWCCA(filter="tsvd", params=(3, 2)).fit(x, y).predict(x), rtol=1e-8
    )


def test_a_vector_is_predicted_as_a_vector(tmp_path):
    x, y, _ = make_pair()
    model = AWCCA(params=(1.0, 0.0)).fit(x, y[:, 0])
    model.save(tmp_path / "model")
    for fitted in (model, AWCCA.load(tmp_path / "model")):
        np.testing.assert_allclose(fitted.predict(x), fit_ridge(x, y[:, 0], 1.0).predict(x))
        assert fitted.inverse_transform(y=fitted.transform(y=y[:, 0])).shape == (80,)
    assert AWCCA(params=(1.0, 0.0)).fit(x, list(y[:, 0])).predict(x).shape == (80,)
    assert AWCCA(params=(1.0, 0.0)).fit(x, y[:, :1]).predict(x).shape == (80, 1)


def test_a_model_without_spectra_says_what_is_missing(tmp_path):
    x, y, _ = make_pair()
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    del model.spectra_
    model.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    Retriever.from_features(x, y, model=AWCCA(params=(1.0, 1.0))).save(tmp_path / "retriever")
    bare = Retriever.load(tmp_path / "retriever").model
    for ask in (loaded.predict, loaded.inverse_transform, bare.predict):
        with pytest.raises(InputError, match="spectra of the training pairs.*fit the model again"):
            ask(x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("spectra.t0"), "has no 'spectra.t0'"),
        (lambda tensors: tensors.update({"spectra.v_x": np.ones((6, 2))}), "'spectra.v_x'"),
        (lambda tensors: tensors.update({"spectra.s_y": np.full(4, np.nan)}), "'spectra.s_y'"),
    ],
)
def test_damaged_spectra_are_refused(tmp_path, change, message):
    x, y, _ = make_pair()
    AWCCA(params=(1.0, 1.0)).fit(x, y).save(tmp_path / "model")
    file = files_of(tmp_path / "model") / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    seal(tmp_path / "model")
    with pytest.raises(InputError, match=message):
        AWCCA.load(tmp_path / "model")


def test_predictions_of_a_normalised_view_are_normalised():
    x, y, _ = make_pair()
    model = AWCCA(params=(1.0, 1.0), normalize=("unit", "signed-sqrt")).fit(x, y)
    unit, root = x / np.linalg.norm(x, axis=1, keepdims=True), np.sign(y) * np.sqrt(np.abs(y))
    expected = fit_ridge(unit, root, 1.0).predict(unit)
    np.testing.assert_allclose(model.predict(x), expected, rtol=1e-8)
    assert model.score(x, y, metric="r2") == pytest.approx(r2_score(root, expected))


@pytest.mark.parametrize("task", [None, "search", "annotate"])
def test_r2_is_that_of_scikit_learn(task):
    x, y, pairing = make_pair(captions=2)
    model = AWCCA(params={"search": (1.0, 1.0), "annotate": (500.0, 1.0)}).fit(x, y, pairing)
    expected = r2_score(y, model.predict(x, task=task or "search")[pairing])
    assert model.score(x, y, pairing, task=task, metric="r2") == pytest.approx(expected)


def test_another_metric_is_measured_in_place_of_the_estimators():
    x, y, _ = make_pair()
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    other = AWCCA(params=(1.0, 1.0), metric="median_rank").fit(x, y)
    assert model.score(x, y, metric="median_rank") == other.score(x, y) < 0
    with pytest.raises(InputError, match="metric"):
        model.score(x, y, metric="r3")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_torch_predicts_as_numpy_does(dtype):
    torch = pytest.importorskip("torch")
    x, y, pairing = make_pair(captions=2)
    model = AWCCA(params=(1.0, 1.0), n_components=2).fit(x, y, pairing)
    tensors = [torch.as_tensor(view, dtype=getattr(torch, dtype)) for view in (x, y)]
    for fitted in (model, AWCCA(params=(1.0, 1.0), n_components=2).fit(*tensors, torch.as_tensor(pairing))):
        vectors = fitted.transform(*tensors)
        made = fitted.predict(tensors[0]), fitted.predict_x(tensors[1]), *fitted.inverse_transform(*vectors)
        expected = model.predict(x), model.predict_x(y), *model.inverse_transform(*model.transform(x, y))
        for tensor, array in zip(made, expected, strict=True):
            assert tensor.dtype == getattr(torch, dtype)
            np.testing.assert_allclose(tensor.numpy(), array, rtol=2e-3 if dtype == "float32" else 1e-8)
        r2 = fitted.score(*tensors, torch.as_tensor(pairing), metric="r2")
        assert r2 == pytest.approx(model.score(x, y, pairing, metric="r2"), abs=1e-4)


@pytest.mark.parametrize("weighting", ["asymmetric", "none", "symmetric", "residual", (0.5, 3.0)])
@pytest.mark.parametrize("task", ["search", "annotate"])
def test_features_come_back_exactly_where_all_directions_are_kept(weighting, task):
    x, y, pairing = make_pair(p=4, q=4, captions=2)
    model = AWCCA(params=(3.0, 5.0), weighting=weighting).fit(x, y, pairing)
    back = model.inverse_transform(*model.transform(x, y, task=task), task=task)
    for features, view in zip(back, (x, y), strict=True):
        np.testing.assert_allclose(features, view, rtol=1e-7)


@pytest.mark.parametrize("n_components", [1, 3])
@pytest.mark.parametrize("weighting", ["asymmetric", "symmetric"])
def test_features_come_back_by_least_squares(n_components, weighting):
    x, y, pairing = make_pair(captions=3)
    model = AWCCA(params=(3.0, 5.0), n_components=n_components, weighting=weighting).fit(x, y, pairing)
    of_x, of_y = model.transform(x, y)
    for vectors, view, rows, back in (
        (of_x, x, pairing, model.inverse_transform(of_x)),
        (of_y, y, slice(None), model.inverse_transform(y=of_y)),
    ):
        expected = LinearRegression().fit(vectors[rows], view[rows]).predict(vectors)
        np.testing.assert_allclose(back, expected, rtol=1e-8)


def test_a_polish_is_undone():
    x, y, _ = make_pair(p=4, q=5)
    model = AWCCA(params=(1.0, 2.0)).fit(x, y)
    rng = np.random.default_rng(0)
    polish = Polish(*(np.eye(4) + 0.2 * rng.normal(size=(2, 4, 4))), epochs=3)
    model.models_ = {task: replace(own, polish=polish) for task, own in model.models_.items()}
    for task in ("search", "annotate"):
        np.testing.assert_allclose(
            model.inverse_transform(model.transform(x, task=task), task=task), x, rtol=1e-6
        )


@pytest.mark.parametrize("solver", ["gram", "svd"])
@pytest.mark.parametrize("n_components", [None, 2])
def test_a_constant_feature_is_predicted_exactly(solver, n_components):
    x, y, _ = make_pair(q=5)
    y[:, 3] = 0.0
    y[:, 1] *= 1e-9  # small, but no rounding error
    model = AWCCA(params=(1.0, 1.0), solver=solver, n_components=n_components).fit(x, y)
    predicted = model.predict(x)
    assert not np.any(predicted[:, 3])
    scores = r2_score(y, predicted, multioutput="raw_values")
    assert scores[3] == 1.0
    assert scores[1] > 0.1
    if n_components is None and solver == "svd":
        expected = r2_score(y, fit_ridge(x, y, 1.0).predict(x))
        assert model.score(x, y, metric="r2") == pytest.approx(expected, abs=1e-5)


def test_directions_without_variance_come_back_as_their_mean():
    x, y, _ = make_pair()
    x[:, 2] = 7.0
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    back = model.inverse_transform(model.transform(x))
    np.testing.assert_allclose(back[:, 2], 7.0)
    np.testing.assert_allclose(model.predict_x(y)[:, 2], 7.0)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m, x, y: m.predict(y), "X has 4 features, but AWCCA is expecting 6"),
        (lambda m, x, y: m.predict_x(x), "Y has 6 features, but is expecting 4"),
        (lambda m, x, y: m.predict(x, task="find"), "task='find' is unknown"),
        (lambda m, x, y: m.inverse_transform(), "neither X nor y"),
        (lambda m, x, y: m.inverse_transform(x), "vectors of X have 6 components, but those of this model 4"),
        (lambda m, x, y: m.score(x, y[:5], metric="r2"), "X has 80 rows and Y has 5"),
        (lambda m, x, y: m.score(x, x, metric="r2"), "Y has 6 features, but is expecting 4"),
        (lambda m, x, y: m.fit_transform([(x, y)]), "not blocks"),
    ],
)
def test_wrong_input_is_refused_in_a_sentence(ask, message):
    x, y, _ = make_pair()
    with pytest.raises(ValueError, match=message):
        ask(AWCCA(params=(1.0, 1.0)).fit(x, y), x, y)
