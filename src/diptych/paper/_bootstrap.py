"""Differences of recalls with their sampling error: a paired bootstrap over test images.

Both methods answer the same queries, so images are drawn anew, with replacement and with all their captions,
and the difference of the two recalls is taken on each such sample. Captions of one image are not independent
of each other; drawing whole images respects that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

RESAMPLES = 2000
LEVEL = 95.0
"""Percent of the resamples within an interval."""
SEED = 0


@dataclass(frozen=True)
class Interval:
    """A value and the interval that holds ``LEVEL`` percent of its resampled values."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{_signed(self.value)} [{_signed(self.low)}, {_signed(self.high)}]"


@dataclass(frozen=True, eq=False)
class Answers:
    """Ranks of one method on the queries of one set of test images.

    Attributes
    ----------
    ranks
        Seeds × queries; the seeds' mean is what is compared.
    owners
        The image of each query, 0 to ``n_images`` − 1.
    n_images
        Number of test images.
    """

    ranks: np.ndarray[Any, Any]
    owners: np.ndarray[Any, Any]
    n_images: int

    def hits(self, k: int) -> Floats:
        """For each image, its queries whose truth is among the first ``k``."""
        share = (np.atleast_2d(self.ranks) <= k).mean(axis=0)
        return np.bincount(self.owners, share, self.n_images).astype(np.float64)

    def queries(self) -> Floats:
        """For each image, the number of its queries."""
        return np.bincount(self.owners, minlength=self.n_images).astype(np.float64)


def compare_recall(first: Sequence[Answers], second: Sequence[Answers], k: int) -> Interval:
    """Recall at ``k`` of the first method minus that of the second, in points, with its interval.

    Each entry of ``first`` belongs to the entry of ``second`` at the same place: the same test images and
    queries. Several entries are the runs of a protocol; their mean is compared.
    """
    differences: list[float] = []
    resampled: list[Floats] = []
    for one, other in zip(first, second, strict=True):
        gain, queries = one.hits(k) - other.hits(k), one.queries()
        weights = draw_images(one.n_images, len(differences))
        differences.append(100.0 * gain.sum() / queries.sum())
        resampled.append(100.0 * (weights @ gain) / np.maximum(weights @ queries, 1.0))
    return interval(float(np.mean(differences)), np.mean(resampled, axis=0))


def interval(value: float, resampled: Any) -> Interval:
    """``value`` with the percentile interval of its resampled values."""
    tail = (1 - LEVEL / 100) / 2
    low, high = np.quantile(np.asarray(resampled, dtype=np.float64), [tail, 1 - tail])
    return Interval(value, float(low), float(high))


@lru_cache(maxsize=5)
def draw_images(n_images: int, run: int = 0) -> Floats:
    """How often each image is drawn in each resample: resamples × images; the same for every comparison."""
    rng = np.random.default_rng([SEED, run, n_images])
    counts = rng.multinomial(n_images, np.full(n_images, 1.0 / n_images), size=RESAMPLES)
    return counts.astype(np.float64)


def _signed(value: float) -> str:
    return f"{value:+.1f}".replace("-", "−")
