"""Every property the theorems promise, agreement with independent solutions, and correlations over pairs."""

import numpy as np
import pytest
import scipy.linalg
from cca_zoo import linear as cca_zoo
from hypothesis import given
from hypothesis import strategies as st
from sklearn import cross_decomposition

from diptych import AWCCA, InputError
from diptych._arrays import to_numpy
from diptych.cca import Moments, Tikhonov, TruncatedSVD, _canonical, bjorck_golub, regularized_cca, spectra
from generated_pairs import make_pairs


def views(seed=0, n=120, m_x=7, m_y=5):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(n, 3))
    x = hidden @ rng.normal(size=(3, m_x)) + rng.normal(size=(n, m_x))
    y = hidden @ rng.normal(size=(3, m_y)) + rng.normal(size=(n, m_y))
    return x - x.mean(0), y - y.mean(0)


def weights(model):
    return to_numpy(model.x_weights), to_numpy(model.y_weights), to_numpy(model.correlations)


@pytest.mark.parametrize("solver", ["gram", "svd"])
@pytest.mark.parametrize("shape", [(7, 5), (4, 9)])
def test_cca_is_orthonormal_in_each_covariance(backend, solver, shape):
    x, y = views(m_x=shape[0], m_y=shape[1])
    u, v, sigma = weights(bjorck_golub(spectra(backend(x), backend(y), solver=solver)))
    k = min(shape)
    np.testing.assert_allclose(u.T @ x.T @ x @ u, np.eye(k), atol=1e-10)
    np.testing.assert_allclose(v.T @ y.T @ y @ v, np.eye(k), atol=1e-10)
    np.testing.assert_allclose(u.T @ x.T @ y @ v, np.diag(sigma), atol=1e-10)
    assert (np.diff(sigma) <= 0).all()
    assert (sigma >= 0).all()
    assert (sigma <= 1).all()


@given(st.integers(0, 10**6), st.floats(0.0, 50.0), st.floats(0.0, 50.0))
def test_tikhonov_is_orthonormal_in_each_regularised_covariance(seed, gamma_x, gamma_y):
    x, y = views(seed)
    model = regularized_cca(spectra(x, y), Tikhonov(gamma_x), Tikhonov(gamma_y))
    u, v, sigma = weights(model)
    k = len(sigma)
    np.testing.assert_allclose(u.T @ (x.T @ x + gamma_x * np.eye(7)) @ u, np.eye(k), atol=1e-9)
    np.testing.assert_allclose(v.T @ (y.T @ y + gamma_y * np.eye(5)) @ v, np.eye(k), atol=1e-9)
    np.testing.assert_allclose(u.T @ x.T @ y @ v, np.diag(sigma), atol=1e-9)
    assert (np.diff(sigma) <= 0).all()
    assert 0 <= sigma[-1] <= sigma[0] <= 1


def test_truncated_svd_is_cca_of_the_truncated_views():
    x, y = views()
    model = regularized_cca(spectra(x, y), TruncatedSVD(4), TruncatedSVD(3))
    u, v, sigma = weights(model)

    def truncated(view, k):
        left, s, right = np.linalg.svd(view, full_matrices=False)
        return (left[:, :k] * s[:k]) @ right[:k]

    low_x, low_y = truncated(x, 4), truncated(y, 3)
    np.testing.assert_allclose(u.T @ low_x.T @ low_x @ u, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(v.T @ low_y.T @ low_y @ v, np.eye(3), atol=1e-10)
    np.testing.assert_allclose(u.T @ x.T @ y @ v, np.diag(sigma), atol=1e-10)
    other = bjorck_golub(spectra(low_x, low_y))
    np.testing.assert_allclose(sigma, other.correlations, atol=1e-10)
    np.testing.assert_allclose(u, other.x_weights, atol=1e-8)


@pytest.mark.parametrize("gamma", [0.0, 3.0])
def test_cross_view_maps_are_ridge_regression(gamma):
    x, y = views()
    u, v, sigma = weights(regularized_cca(spectra(x, y), Tikhonov(gamma), Tikhonov(2.0)))
    ridge = np.linalg.solve(x.T @ x + gamma * np.eye(7), x.T @ y @ v)
    np.testing.assert_allclose(u * sigma, ridge, atol=1e-10)
    ridge = np.linalg.solve(y.T @ y + 2.0 * np.eye(5), y.T @ x @ u)
    np.testing.assert_allclose(v * sigma, ridge, atol=1e-10)


@pytest.mark.parametrize("solver", ["gram", "svd"])
def test_the_sign_is_fixed(solver):
    x, y = views()
    for given_x, given_y in ((x, y), (-x, y), (x[::-1], y[::-1])):
        u, v, sigma = weights(bjorck_golub(spectra(given_x, given_y, solver=solver)))
        largest = np.abs(u).argmax(0)
        assert (u[largest, range(u.shape[1])] > 0).all()
        np.testing.assert_allclose(np.diag(u.T @ given_x.T @ given_y @ v), sigma, atol=1e-10)


@pytest.mark.parametrize(("gamma_x", "gamma_y"), [(0.0, 0.0), (3.0, 0.5), (100.0, 1000.0)])
def test_equals_the_generalised_eigenvalue_solution(gamma_x, gamma_y):
    x, y = views()
    cxx, cyy, cxy = x.T @ x + gamma_x * np.eye(7), y.T @ y + gamma_y * np.eye(5), x.T @ y
    zeros = np.zeros
    left = np.block([[zeros((7, 7)), cxy], [cxy.T, zeros((5, 5))]])
    right = np.block([[cxx, zeros((7, 5))], [zeros((5, 7)), cyy]])
    values, vectors = scipy.linalg.eigh(left, right)
    values, vectors = values[::-1][:5], vectors[:, ::-1][:, :5] * np.sqrt(2)
    u, v, sigma = weights(regularized_cca(spectra(x, y), Tikhonov(gamma_x), Tikhonov(gamma_y)))
    np.testing.assert_allclose(sigma, values, atol=1e-8)
    signs = np.sign(np.sum(vectors[:7] * u, axis=0))
    np.testing.assert_allclose(vectors[:7] * signs, u, atol=1e-8)
    np.testing.assert_allclose(vectors[7:] * signs, v, atol=1e-8)


def test_equals_scikit_learn():
    x, y = views(n=300)
    model = bjorck_golub(spectra(x, y), n_components=2)
    theirs = cross_decomposition.CCA(n_components=2, scale=False, tol=1e-15, max_iter=20000).fit(x, y)
    their_x, their_y = theirs.transform(x, y)
    for ours, result in ((x @ model.x_weights, their_x), (y @ model.y_weights, their_y)):
        for i in range(2):
            assert abs(np.corrcoef(ours[:, i], result[:, i])[0, 1]) == pytest.approx(1.0, abs=1e-8)


def test_equals_cca_zoo():
    x, y = views()
    n = len(x)
    plain = cca_zoo.CCA(n_components=5).fit([x, y])
    u, v, _ = weights(bjorck_golub(spectra(x, y)))
    np.testing.assert_allclose(np.abs(plain.weights_[0]), np.abs(u) * np.sqrt(n - 1), atol=1e-8)
    c = 0.3
    # Their metric (1 − c) XᵀX/(n − 1) + c I is ours at γ = (n − 1) c/(1 − c), but for a scale.
    ridge = cca_zoo.RidgeCCA(n_components=5, shrinkage=c).fit([x, y])
    gamma = (n - 1) * c / (1 - c)
    u, v, sigma = weights(regularized_cca(spectra(x, y), Tikhonov(gamma), Tikhonov(gamma)))
    scale = np.sqrt((n - 1) / (1 - c))
    np.testing.assert_allclose(np.abs(ridge.weights_[0]), np.abs(u) * scale, atol=1e-8)
    np.testing.assert_allclose(np.abs(ridge.weights_[1]), np.abs(v) * scale, atol=1e-8)


@pytest.mark.parametrize("solver", ["gram", "svd"])
def test_components_within_rounding_error_are_not_kept(rng, solver):
    x = rng.normal(size=(200, 6))
    x -= x.mean(0)
    # y shares two directions with x and is orthogonal to it in the others.
    noise = rng.normal(size=(200, 3))
    noise -= noise.mean(0)
    noise -= x @ np.linalg.lstsq(x, noise, rcond=None)[0]
    y = np.hstack([x[:, :2] + 0.3 * noise[:, :2], noise])
    model = bjorck_golub(spectra(x, y, solver=solver))
    assert model.correlations.shape == (2,)


def test_n_components_keeps_the_first_components():
    x, y = views()
    three = bjorck_golub(spectra(x, y), n_components=3)
    assert three.x_weights.shape == (7, 3)
    np.testing.assert_allclose(three.x_weights, bjorck_golub(spectra(x, y)).x_weights[:, :3])
    with pytest.raises(InputError, match="give 1 to 5"):
        bjorck_golub(spectra(x, y), n_components=6)


def decompose_both_ways(monkeypatch, fitted, filters, n_components=None):
    """Return the model by the Gram matrix of T, and by an SVD of T."""
    models = []
    for small in (0, 10**9):
        monkeypatch.setattr(_canonical, "SMALL", small)
        models.append(regularized_cca(fitted, *filters, n_components))
    return models


@pytest.mark.parametrize("shape", [(30, 20), (20, 30)])
@pytest.mark.parametrize("n_components", [3, 18, None])
def test_components_by_the_gram_matrix_equal_those_of_the_svd(monkeypatch, backend, shape, n_components):
    x, y = views(n=160, m_x=shape[0], m_y=shape[1])
    fitted, filters = spectra(backend(x), backend(y)), (Tikhonov(3.0), Tikhonov(5.0))
    gram, whole = decompose_both_ways(monkeypatch, fitted, filters, n_components)
    for result, expected in zip(weights(gram), weights(whole), strict=True):
        np.testing.assert_allclose(result, expected, atol=1e-9)


@pytest.mark.parametrize("small", [0, 3, 12, 29])
@pytest.mark.parametrize("lowest", [1e-3, 1e-6, 1e-10])
def test_small_correlations_are_as_exact_as_those_of_the_svd(monkeypatch, backend, small, lowest):
    # 30 components, of which the last are far below the others: too small for the Gram matrix of T.
    rng = np.random.default_rng(small)
    sigma = np.concatenate([np.linspace(1.0, 0.1, 30 - small), lowest * np.linspace(1.0, 0.5, small)])
    p, q = (np.linalg.qr(rng.normal(size=(m, 30)))[0] for m in (40, 30))
    monkeypatch.setattr(_canonical, "SMALL", 0)
    t = backend((p * sigma) @ q.T)
    p_x, result, p_y = (to_numpy(part) for part in _canonical.leading_components(t))
    np.testing.assert_allclose(result, sigma, rtol=1e-9, atol=1e-13)
    for vectors in (p_x, p_y):
        np.testing.assert_allclose(vectors.T @ vectors, np.eye(30), atol=1e-7)
    np.testing.assert_allclose((p_x * result) @ p_y.T, to_numpy(t), atol=1e-12)


@pytest.mark.parametrize("filters", [(Tikhonov(3.0), Tikhonov(5.0)), (TruncatedSVD(5), TruncatedSVD(3))])
def test_float32_spectra_are_decomposed_too(monkeypatch, filters):
    x, y = (view.astype(np.float32) for view in views(n=200))
    fitted = spectra(x, y, solver="gram", precision="float32")
    for n_components in (2, None):
        gram, whole = decompose_both_ways(monkeypatch, fitted, filters, n_components)
        np.testing.assert_allclose(gram.correlations, whole.correlations, atol=1e-4)


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


def test_a_refit_has_no_correlations_over_validation_pairs():
    training, validation = make_pairs(0)
    model = AWCCA(grid=4).fit(*training, validation=validation)
    # What it has seen since is not what was measured.
    model.refit_moments(Moments.of(*training), 45)
    assert model.models_["search"].validation_correlations is None
