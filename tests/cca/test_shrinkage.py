import numpy as np
import pytest
import sklearn.covariance
from hypothesis import given
from hypothesis import strategies as st

from diptych import AWCCA, InputError
from diptych._checks import DataWarning
from diptych.cca._filters import shrinkage, shrinkage_gammas
from generated_pairs import make_pairs


@given(seed=st.integers(0, 10_000), n=st.integers(3, 80), p=st.integers(2, 60))
def test_shrinkage_equals_scikit_learns(seed, n, p):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, p)) @ rng.normal(size=(p, p)) + rng.normal(size=p)
    expected = sklearn.covariance.ledoit_wolf_shrinkage(rows), sklearn.covariance.oas(rows)[1]
    assert shrinkage(rows, "ledoit-wolf")[0] == pytest.approx(expected[0], abs=1e-12)
    assert shrinkage(rows, "oas")[0] == pytest.approx(expected[1], abs=1e-12)


@pytest.mark.parametrize("kind", ["ledoit-wolf", "oas"])
def test_tikhonov_with_its_gamma_is_the_shrunk_covariance(rng, kind):
    x, y = rng.normal(size=(50, 8)) @ rng.normal(size=(8, 8)), rng.normal(size=(50, 5))
    gamma = shrinkage_gammas(x, y, np.arange(50), kind)[0]
    function = sklearn.covariance.ledoit_wolf if kind == "ledoit-wolf" else sklearn.covariance.oas
    covariance, delta = function(x)
    centred = x - x.mean(0)
    ours = (centred.T @ centred + gamma * np.eye(8)) / 50 * (1 - delta)
    np.testing.assert_allclose(ours, covariance, atol=1e-10)


@pytest.mark.parametrize("kind", ["ledoit-wolf", "oas"])
def test_a_model_fits_without_validation_pairs(rng, kind):
    training, validation = make_pairs(2, n=120, m_x=60, m_y=50)
    model = AWCCA(selection=kind, metric="r@10").fit(*training)
    assert model.path_ is None
    weakest = AWCCA(params=(1e-9, 1e-9), metric="r@10").fit(*training)
    assert model.score(*validation) > weakest.score(*validation)
    # Pure noise shrinks to a sphere, which is no error.
    AWCCA(selection=kind).fit(rng.normal(size=(6, 30)), rng.normal(size=(6, 20)))


def test_too_few_items_to_hold_out_take_gamma_from_shrinkage(rng):
    x, y = rng.normal(size=(9, 4)), rng.normal(size=(9, 3))
    with pytest.warns(DataWarning, match="9 items are too few to hold some out"):
        model = AWCCA().fit(x, y)
    expected = AWCCA(selection="ledoit-wolf").fit(x, y)
    assert model.models_["search"].filter_x == expected.models_["search"].filter_x
    assert model.path_ is None
    with pytest.raises(InputError, match="too few to choose on"):
        AWCCA(filter="tsvd").fit(x, y)
    with pytest.raises(InputError, match="not between 0 and 1"):
        AWCCA(validation_fraction=2.0).fit(x, y)
