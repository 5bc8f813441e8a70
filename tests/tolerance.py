"""How far apart rounding may take two ways of computing the same numbers."""

import numpy as np


def rounding(dtype, terms, magnitude=1.0, condition=1.0):
    """Return how far apart two floating-point computations of the same sums may lie.

    Kernels differ in the order of their sums and in where they fuse operations or keep wider registers, so
    batches, routes, threads, processors and libraries agree to this and no further. A sum of ``terms``
    numbers whose absolute values add up to ``magnitude`` is wrong by at most λ √terms u ``magnitude``, where
    u = eps / 2, with probability 1 − 2 terms exp(−λ² / 2) (Higham & Mary 2019, "A new approach to
    probabilistic rounding error analysis", theorem 2.4). With λ = 8 hardly one sum in 10¹² exceeds it, and
    two of them differ by twice as much.

    Parameters
    ----------
    dtype : the narrowest floating-point type on the way.
    terms : the length of the longest sum; where sums follow each other, their lengths added.
    magnitude : the sum of absolute values, or an array of results, whose largest absolute value is taken.
        For an inner product, the product of the two norms bounds it.
    condition : by how much what follows enlarges a relative error: for the small ones of several singular
        values or of their vectors, the ratio of the largest to them or to the gap beside them.
    """
    largest = float(np.max(np.abs(magnitude)))
    return 8 * float(np.finfo(dtype).eps) * float(np.sqrt(terms)) * largest * condition


def assert_close(found, expected, terms, *, dtype=None, magnitude=None, condition=1.0):
    """Two ways of computing give the same numbers but for rounding, at the scale of the largest of them."""
    found, expected = np.asarray(found), np.asarray(expected)
    if dtype is None:
        dtype = min(found.dtype, expected.dtype, key=lambda each: np.finfo(each).bits)
    scale = expected if magnitude is None else magnitude
    np.testing.assert_allclose(found, expected, rtol=0, atol=rounding(dtype, terms, scale, condition))


def assert_same_hits(found, expected, tolerance):
    """Two ways of searching find the same: only hits whose scores are this close may change places."""
    assert len(found) == len(expected)
    np.testing.assert_allclose([h.score for h in found], [h.score for h in expected], rtol=0, atol=tolerance)
    known = {_name(hit): hit for hit in expected}
    assert len({_name(hit) for hit in found}) == len(known)
    for hit in found:
        same = known.get(_name(hit))
        if same is None:  # it changed places with one that was cut off
            assert abs(hit.score - expected[-1].score) <= tolerance
            continue
        assert abs(hit.score - same.score) <= tolerance
        if hasattr(hit, "captions"):
            assert_same_hits(hit.captions, same.captions, tolerance)
        else:
            assert hit.item == same.item


def assert_ranked(hits, scores, tolerance):
    """Hits are the best of what was scored another way, ``{id: score}``, best first, but for rounding."""
    best = sorted(scores.values(), reverse=True)[: len(hits)]
    np.testing.assert_allclose([hit.score for hit in hits], best, rtol=0, atol=tolerance)
    known = [scores[_name(hit)] for hit in hits]
    np.testing.assert_allclose([hit.score for hit in hits], known, rtol=0, atol=tolerance)
    assert len({_name(hit) for hit in hits}) == len(hits)


def _name(hit):
    return hit.image if hasattr(hit, "captions") else hit.id  # a pack has no id of its own
