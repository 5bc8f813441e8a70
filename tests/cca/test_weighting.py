"""Normalisations, weightings, and the Gaussian model of Appendix A."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import multivariate_normal

from diptych import AWCCA, InputError
from diptych._arrays import to_numpy
from diptych.cca import Tikhonov, bjorck_golub, maps, powers, regularized_cca, spectra
from diptych.cca._weighting import NORMALIZATIONS, normalize, weight_factors

FINITE = st.floats(-1e6, 1e6, allow_subnormal=False)


def test_each_normalisation_equals_its_formula(backend):
    view = backend(np.array([[3.0, -4.0], [0.0, 0.0]]))
    expected = {
        "none": [[3, -4], [0, 0]],
        "unit": [[0.6, -0.8], [0, 0]],
        "signed-sqrt": [[3**0.5, -2], [0, 0]],
        "sqrt-unit": [[(3 / 7) ** 0.5, -((4 / 7) ** 0.5)], [0, 0]],
    }
    assert set(expected) == set(NORMALIZATIONS)
    for name, rows in expected.items():
        np.testing.assert_allclose(to_numpy(normalize(view, name)), rows, rtol=1e-12)
        assert to_numpy(normalize(backend(np.ones((2, 2), np.float32)), name)).dtype == np.float32
    # Very long and very short rows do not overflow.
    extreme = to_numpy(normalize(backend(np.array([[1e30, 1e30], [1e-30, 1e-30]], np.float32)), "unit"))
    np.testing.assert_allclose(extreme, np.full((2, 2), 0.5**0.5), rtol=1e-6)


@given(arrays(np.float64, (3, 4), elements=FINITE))
def test_lengths_are_one_or_zero(view):
    for name in ("unit", "sqrt-unit"):
        lengths = np.linalg.norm(normalize(view, name), axis=1)
        assert np.all(np.isclose(lengths, 1) | (lengths == 0))
        assert np.array_equal(np.sign(normalize(view, name)), np.sign(view)) or name == "unit"


@pytest.mark.parametrize(
    ("weighting", "search", "annotate"),
    [
        ("asymmetric", (1, 0), (0, 1)),
        ("search-generation", (0, 1), (1, 0)),
        ("symmetric", (1, 1), (1, 1)),
        ("none", (0, 0), (0, 0)),
        ((0.3, 0.7), (0.3, 0.7), (0.3, 0.7)),
        ([2, 2], (2, 2), (2, 2)),
    ],
)
def test_powers_of_each_weighting(weighting, search, annotate):
    assert powers(weighting, "search") == search
    assert powers(weighting, "annotate") == annotate


@pytest.mark.parametrize("weighting", ["both", (1,), (1, 2, 3), (-1, 0), (np.nan, 0), 2, None])
def test_an_unknown_weighting_is_refused(weighting):
    with pytest.raises(InputError, match="weighting"):
        powers(weighting, "search")


def test_maps_contain_the_powers(rng):
    x = rng.normal(size=(50, 4))
    model = bjorck_golub(spectra(x, x[:, :3] + rng.normal(size=(50, 3))))
    for_x, for_y = maps(model, "asymmetric", "search")
    np.testing.assert_allclose(for_x, model.x_weights @ np.diag(model.correlations))
    np.testing.assert_array_equal(for_y, model.y_weights)
    for_x, for_y = maps(model, (2, 0.5), "annotate")
    np.testing.assert_allclose(for_x, model.x_weights @ np.diag(model.correlations**2))
    np.testing.assert_allclose(for_y, model.y_weights @ np.diag(model.correlations**0.5))


def test_residual_divides_by_the_unexplained_variance(rng):
    x = rng.normal(size=(80, 6))
    y = x[:, :4] + rng.normal(size=(80, 4))
    model = AWCCA(params=(3.0, 2.0), weighting="residual").fit(x, y)
    items, queries = model.transform(x, y, task="search")
    centred_x, centred_y = x - x.mean(0), y - y.mean(0)
    d_x = centred_x.T @ centred_x + 3.0 * np.eye(6)
    d_y = centred_y.T @ centred_y + 2.0 * np.eye(4)
    cross = centred_x.T @ centred_y
    predicted = centred_x @ np.linalg.solve(d_x, cross)
    rest = np.linalg.inv(d_y - cross.T @ np.linalg.solve(d_x, cross))
    np.testing.assert_allclose(items @ queries.T, predicted @ rest @ centred_y.T, atol=1e-9)
    norms = np.sqrt(np.einsum("ij,jk,ik->i", predicted, rest, predicted))
    np.testing.assert_allclose(np.linalg.norm(items, axis=1), norms, atol=1e-9)


def test_the_residual_weighting_is_selected_by_the_textbook_route_and_has_no_powers(rng):
    x = rng.normal(size=(80, 6))
    y = x[:, :4] + rng.normal(size=(80, 4))
    assert AWCCA(weighting="residual", grid=3).fit(x, y).path_.route == "textbook"
    with pytest.raises(InputError, match="weighting"):
        powers("residual", "search")


def test_a_perfect_correlation_does_not_outweigh_everything():
    for_x, for_y = weight_factors(np.array([1.0, 0.5]), "residual", "annotate")
    assert np.all(np.isfinite(for_x))
    assert np.all(np.isfinite(for_y))


def test_the_gaussian_model_of_the_query_is_most_likely_at_the_asymmetric_weights(rng):
    hidden = rng.normal(size=(200, 4))
    x, y = (hidden @ rng.normal(size=(4, width)) + rng.normal(size=(200, width)) for width in (9, 6))
    x, y = x - x.mean(axis=0), y - y.mean(axis=0)
    model = regularized_cca(spectra(x, y), Tikhonov(1e-9), Tikhonov(1e-9))
    item_map, query_map = maps(model, "asymmetric", "search")
    queries, variance = y @ query_map, 0.3

    def log_likelihood(weights):
        return multivariate_normal(cov=variance).logpdf((queries - x @ weights).ravel()).sum()

    best = log_likelihood(item_map)
    for _ in range(50):
        assert log_likelihood(item_map + 1e-3 * rng.normal(size=item_map.shape)) < best
    # The gradient of the likelihood is zero there.
    np.testing.assert_allclose(x.T @ (queries - x @ item_map), 0, atol=1e-6)
    # Items are ranked by their distance from the query.
    vectors = x @ item_map
    query = queries[0]
    density = [multivariate_normal(mean=vector, cov=variance).logpdf(query) for vector in vectors]
    order = np.argsort(np.linalg.norm(vectors - query, axis=1))
    np.testing.assert_array_equal(np.argsort(density)[::-1], order)
