import numpy as np
import pytest

from diptych import AWCCA, InputError
from diptych.cca import bjorck_golub, maps, powers, spectra
from diptych.cca._weighting import weight_factors


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


def test_the_residual_weighting_is_selected_and_saved_and_has_no_powers(rng, tmp_path):
    x = rng.normal(size=(80, 6))
    y = x[:, :4] + rng.normal(size=(80, 4))
    model = AWCCA(weighting="residual", grid=3).fit(x, y)
    assert model.path_.route == "textbook"
    model.save(tmp_path / "model")
    again = AWCCA.load(tmp_path / "model")
    np.testing.assert_array_equal(model.transform(x), again.transform(x))
    with pytest.raises(InputError, match="weighting"):
        powers("residual", "search")


def test_a_perfect_correlation_does_not_outweigh_everything():
    for_x, for_y = weight_factors(np.array([1.0, 0.5]), "residual", "annotate")
    assert np.all(np.isfinite(for_x))
    assert np.all(np.isfinite(for_y))
