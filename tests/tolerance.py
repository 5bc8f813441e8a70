"""How far two computations of the same numbers may differ by rounding."""

import numpy as np


def rounding(dtype, terms, magnitude=1.0, condition=1.0):
    """Return how far two floating-point computations of the same sums may differ.

    Kernels differ in the order of their sums and in where they fuse operations or keep wider registers, so
    batches, routes, threads, processors and libraries agree to this and no further. A sum of ``terms``
    numbers whose absolute values add up to ``magnitude`` is wrong by at most λ √terms u ``magnitude``, where
    u = eps / 2, with probability 1 − 2 terms exp(−λ² / 2) (Higham & Mary 2019, "A new approach to
    probabilistic rounding error analysis", theorem 2.4). With λ = 8 hardly one sum in 10¹² exceeds it, and
    two of them differ by twice as much.

    Parameters
    ----------
    dtype : the narrowest floating-point type that is used.
    terms : the length of the longest sum; where sums follow each other, their lengths added.
    magnitude : the sum of absolute values, or an array of results, whose largest absolute value is taken.
        For an inner product, the product of the two norms bounds it.
    condition : how much later steps enlarge a relative error: for small singular values or their vectors, the
        ratio of the largest singular value to them or to the gap next to them.
    """
    largest = float(np.max(np.abs(magnitude)))
    return 8 * float(np.finfo(dtype).eps) * float(np.sqrt(terms)) * largest * condition


def assert_close(result, expected, terms, *, dtype=None, magnitude=None, condition=1.0):
    """Assert that two computations agree up to rounding, at the scale of the largest number."""
    result, expected = np.asarray(result), np.asarray(expected)
    if dtype is None:
        dtype = min(result.dtype, expected.dtype, key=lambda each: np.finfo(each).bits)
    scale = expected if magnitude is None else magnitude
    np.testing.assert_allclose(result, expected, rtol=0, atol=rounding(dtype, terms, scale, condition))


def assert_same_hits(result, expected, tolerance):
    """Assert that two searches return the same hits; only hits with scores this close may change places."""
    assert len(result) == len(expected)
    np.testing.assert_allclose([h.score for h in result], [h.score for h in expected], rtol=0, atol=tolerance)
    known = {hit.id: hit for hit in expected}
    assert len({hit.id for hit in result}) == len(known)
    for hit in result:
        same = known.get(hit.id)
        if same is None:  # it changed places with one beyond the last
            assert abs(hit.score - expected[-1].score) <= tolerance
            continue
        assert abs(hit.score - same.score) <= tolerance
        assert hit.item == same.item


def assert_ranked(hits, scores, tolerance):
    """Assert that hits are the best of ``scores`` (``{id: score}``), best first, up to rounding."""
    best = sorted(scores.values(), reverse=True)[: len(hits)]
    np.testing.assert_allclose([hit.score for hit in hits], best, rtol=0, atol=tolerance)
    known = [scores[hit.id] for hit in hits]
    np.testing.assert_allclose([hit.score for hit in hits], known, rtol=0, atol=tolerance)
    assert len({hit.id for hit in hits}) == len(hits)
