"""Items of one split that are all but the same as items of another: they make recalls too good."""

from __future__ import annotations

from typing import Any

import numpy as np

from diptych.normalize import unit_length

SAME = 0.9999
"""Cosine of centred features from which two items count as the same."""

_SAMPLE, _BLOCK = 2000, 8192


def near_duplicates(
    training: np.ndarray[Any, Any], held_out: np.ndarray[Any, Any], *, random_state: int = 0
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of ``held_out`` whose features are all but those of some row of ``training``.

    Of more than 2,000 held-out rows, a seeded sample is looked at.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(20, 8))
    >>> near_duplicates(x, np.vstack([rng.normal(size=(3, 8)), x[5] + 1e-6]))
    array([3])
    """
    rows = np.arange(len(held_out))
    if len(rows) > _SAMPLE:
        rows = np.sort(np.random.default_rng(random_state).choice(rows, _SAMPLE, replace=False))
    mean = np.asarray(training[:_BLOCK], np.float32).mean(axis=0)
    asked = unit_length(np.asarray(held_out[rows], np.float32) - mean)
    nearest = np.full(len(rows), -1.0, np.float32)
    for start in range(0, len(training), _BLOCK):
        block = unit_length(np.asarray(training[start : start + _BLOCK], np.float32) - mean)
        nearest = np.maximum(nearest, np.max(asked @ block.T, axis=1))
    found: np.ndarray[Any, np.dtype[np.int64]] = rows[nearest > SAME]
    return found
