"""Small HKSE models for the tests, and how close their features must be."""

import numpy as np

from diptych.encoders import HKSE
from tolerance import assert_close

KINDS = [("lin", "lin"), ("lin", "rbf"), ("rbf", "lin"), ("rbf", "rbf")]


def small(vectors, word="rbf", sentence="rbf", **options):
    """Return an HKSE with few features, not fitted."""
    return HKSE(vectors, word, sentence, **{"word_features": 40, "sentence_features": 30, **options})


def assert_alike(features, expected):
    """Compare features up to rounding: sums of 7 dimensions, 9 words and 40 features, then a cosine."""
    assert_close(features, expected, 7 + 9 + 40, dtype=np.float32, magnitude=1.0)
