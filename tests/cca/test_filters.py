import numpy as np
import pytest

from diptych import InputError
from diptych.cca import Tikhonov, TruncatedSVD, g_hard, g_soft
from diptych.cca._filters import Filter, named_filters

S = np.array([5.0, 3.0, 1.0, 0.5])


def test_the_papers_filters():
    np.testing.assert_allclose(g_soft(S, 3.0), S / np.sqrt(S**2 + 9))
    np.testing.assert_array_equal(g_hard(S, 3.0), [1, 1, 0, 0])
    assert g_soft(np.zeros(1), 0.0) == 0.0


def test_a_filter_is_its_g_at_alpha():
    np.testing.assert_allclose(Tikhonov(4.0).response(S), g_soft(S, 2.0))
    np.testing.assert_array_equal(TruncatedSVD(2).response(S), g_hard(S, S[1]))


def test_response_and_denominators_agree():
    for chosen in (Tikhonov(0.7), TruncatedSVD(3)):
        assert isinstance(chosen, Filter)
        d = chosen.denominators(S)
        np.testing.assert_allclose(S[: len(d)] / np.sqrt(d), chosen.response(S)[: len(d)])


def test_guided_reads_gamma_at_k():
    assert named_filters("guided", (2, 3), S, S) == (Tikhonov(9.0), Tikhonov(1.0))
    assert named_filters("tsvd", (2, 3), S, S) == (TruncatedSVD(2), TruncatedSVD(3))
    assert named_filters("tikhonov", (2, 3), S, S) == (Tikhonov(2.0), Tikhonov(3.0))


@pytest.mark.parametrize("gamma", [-1.0, np.nan, np.inf, "much"])
def test_not_a_gamma(gamma):
    with pytest.raises(InputError, match="γ"):
        Tikhonov(gamma)


@pytest.mark.parametrize("k", [0, -2, 1.5, np.inf, np.nan, None])
def test_not_a_k(k):
    with pytest.raises(InputError, match="k"):
        TruncatedSVD(k)


def test_k_beyond_the_rank():
    with pytest.raises(InputError, match="rank of its view, 4"):
        TruncatedSVD(5).denominators(S)
