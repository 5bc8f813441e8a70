import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from diptych import InputError
from diptych._arrays import to_numpy
from diptych.cca._weighting import NORMALIZATIONS, normalize

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


def test_normalize_keeps_the_precision(backend):
    assert to_numpy(normalize(backend(np.ones((2, 2), np.float32)), "sqrt-unit")).dtype == np.float32


@given(arrays(np.float64, (3, 4), elements=FINITE))
def test_lengths_are_one_or_zero(view):
    for name in ("unit", "sqrt-unit"):
        lengths = np.linalg.norm(normalize(view, name), axis=1)
        assert np.all(np.isclose(lengths, 1) | (lengths == 0))
        assert np.array_equal(np.sign(normalize(view, name)), np.sign(view)) or name == "unit"


def test_very_long_and_very_short_rows_do_not_overflow():
    view = np.array([[1e30, 1e30], [1e-30, 1e-30]], np.float32)
    np.testing.assert_allclose(normalize(view, "unit"), np.full((2, 2), 0.5**0.5), rtol=1e-6)


def test_unknown_names_are_refused():
    with pytest.raises(InputError, match="sqrt-unit"):
        normalize(np.ones((2, 2)), "softmax")
