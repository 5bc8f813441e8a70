"""How far apart rounding may take two ways of computing the same numbers."""

import numpy as np


def rounding(dtype, terms, magnitude=1.0):
    """Return how far apart two floating-point sums of the same terms may lie.

    Kernels differ in the order of their sums and in where they fuse or keep a wider register, so batches,
    routes, threads, processors and libraries agree to this and no further. A sum of ``terms`` numbers whose
    absolute values add up to ``magnitude`` is wrong by at most λ √terms u ``magnitude``, u = eps / 2, with
    probability 1 − 2 terms exp(−λ² / 2) (Higham & Mary 2019, "A new approach to probabilistic rounding error
    analysis", theorem 2.4). With λ = 8 that fails once in 10¹² sums, and two of them differ by twice as much.

    Parameters
    ----------
    dtype : the narrowest floating-point type on the way.
    terms : the length of the longest sum; for sums of sums, the lengths added.
    magnitude : the sum of absolute values, or an array of results, whose largest absolute value is taken.
        For an inner product the product of the two norms bounds it.
    """
    return 8 * float(np.finfo(dtype).eps) * np.sqrt(terms) * float(np.max(np.abs(magnitude)))


def assert_close(found, expected, terms, *, dtype=None, magnitude=None):
    """Two ways of computing give the same numbers but for rounding, at the scale of the largest of them."""
    found, expected = np.asarray(found), np.asarray(expected)
    if dtype is None:
        dtype = min(found.dtype, expected.dtype, key=lambda each: np.finfo(each).bits)
    scale = expected if magnitude is None else magnitude
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding(dtype, terms, scale))


def assert_same_hits(found, expected, tolerance):
    """Two ways of searching find the same: only hits whose scores are this close may change places."""
    assert len(found) == len(expected)
    np.testing.assert_allclose([h.score for h in found], [h.score for h in expected], rtol=0, atol=tolerance)
    known = {hit.id: hit for hit in expected}
    assert len({hit.id for hit in found}) == len(known)
    for hit in found:
        if hit.id in known:
            assert abs(hit.score - known[hit.id].score) <= tolerance
            assert hit.item == known[hit.id].item
        else:  # it changed places with one that was cut off
            assert abs(hit.score - expected[-1].score) <= tolerance
