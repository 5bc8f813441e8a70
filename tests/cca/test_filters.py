import numpy as np
import pytest

from diptych import InputError
from diptych.cca import Tikhonov, TruncatedSVD, g_hard, g_soft
from diptych.cca._filters import make_filters

S = np.array([5.0, 3.0, 1.0, 0.5])


def test_soft_and_hard_filters_are_those_of_the_paper():
    np.testing.assert_allclose(g_soft(S, 3.0), S / np.sqrt(S**2 + 9))
    np.testing.assert_array_equal(g_hard(S, 3.0), [1, 1, 0, 0])
    assert g_soft(np.zeros(1), 0.0) == 0.0


def test_denominators_are_the_filters_of_theorem_1_3():
    np.testing.assert_allclose(S / np.sqrt(Tikhonov(4.0).denominators(S)), g_soft(S, 2.0))
    kept = S[:3] / np.sqrt(TruncatedSVD(3).denominators(S))
    np.testing.assert_allclose(kept, g_hard(S, S[2])[:3])


def test_guided_filters_take_gamma_from_the_singular_value_at_k():
    assert make_filters("guided", (2, 3), S, S) == (Tikhonov(9.0), Tikhonov(1.0))
    assert make_filters("tsvd", (2, 3), S, S) == (TruncatedSVD(2), TruncatedSVD(3))
    assert make_filters("tikhonov", (2, 3), S, S) == (Tikhonov(2.0), Tikhonov(3.0))


@pytest.mark.parametrize("gamma", [-1.0, np.nan, np.inf, "much"])
def test_a_wrong_gamma_is_refused(gamma):
    with pytest.raises(InputError, match="γ"):
        Tikhonov(gamma)


@pytest.mark.parametrize("k", [0, -2, 1.5, np.inf, np.nan, None])
def test_a_wrong_k_is_refused(k):
    with pytest.raises(InputError, match="k"):
        TruncatedSVD(k)


def test_k_beyond_the_rank_is_refused():
    with pytest.raises(InputError, match="rank of its view, 4"):
        TruncatedSVD(5).denominators(S)
