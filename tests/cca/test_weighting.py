import numpy as np
import pytest

from diptych import InputError
from diptych.cca import bjorck_golub, maps, powers, spectra


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
def test_powers(weighting, search, annotate):
    assert powers(weighting, "search") == search
    assert powers(weighting, "annotate") == annotate


@pytest.mark.parametrize("weighting", ["both", (1,), (1, 2, 3), (-1, 0), (np.nan, 0), 2, None])
def test_unknown(weighting):
    with pytest.raises(InputError, match="weighting"):
        powers(weighting, "search")


def test_maps(rng):
    x = rng.normal(size=(50, 4))
    model = bjorck_golub(spectra(x, x[:, :3] + rng.normal(size=(50, 3))))
    for_x, for_y = maps(model, "asymmetric", "search")
    np.testing.assert_allclose(for_x, model.x_weights @ np.diag(model.correlations))
    np.testing.assert_array_equal(for_y, model.y_weights)
    for_x, for_y = maps(model, (2, 0.5), "annotate")
    np.testing.assert_allclose(for_x, model.x_weights @ np.diag(model.correlations**2))
    np.testing.assert_allclose(for_y, model.y_weights @ np.diag(model.correlations**0.5))
