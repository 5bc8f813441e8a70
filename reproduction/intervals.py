"""Differences of two methods with their sampling error.

Both answer the same queries. For the error of their difference, test images are resampled with replacement,
each with all its captions, because captions of one image are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.stats import rankdata

from reproduction.results import Floats

RESAMPLES = 2000
LEVEL = 95.0
"""Percent of the resampled values within an interval."""
SEED = 0


@dataclass(frozen=True)
class Interval:
    """A value with two intervals.

    ``low`` and ``high`` enclose ``LEVEL`` percent of its resampled values. ``joint_low`` and ``joint_high``
    are wider where several values belong together: ``LEVEL`` percent of the resamples lie within the joint
    intervals of all of them at once.
    """

    value: float
    low: float
    high: float
    joint_low: float
    joint_high: float

    def __str__(self) -> str:
        value, low, high = (f"{each:+.1f}".replace("-", "−") for each in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"

    def shift(self, by: float) -> Interval:
        """Return the interval of the value plus a number."""
        return Interval(*(each + by for each in astuple(self)))


def make_intervals(values: Sequence[float], resampled: Any) -> list[Interval]:
    """Return the percentile intervals of values that belong together; ``resampled`` is values × resamples.

    The joint intervals leave out the same number of resamples at each end of each value: the largest number
    for which ``LEVEL`` percent of the resamples are within all of them.

    >>> rng = np.random.default_rng(0)
    >>> six = make_intervals([0.0] * 6, rng.normal(size=(6, 2000)))
    >>> [round(each) for each in (-100 * six[0].low, -100 * six[0].joint_low)]
    [194, 293]
    """
    resampled = np.asarray(resampled, dtype=np.float64)
    tail = (1 - LEVEL / 100) / 2
    limits = np.quantile(resampled, [tail, 1 - tail], axis=1)
    # How many resamples of a value are at least as far out, and the fewest over all values.
    below, above = rankdata(resampled, "max", axis=1), rankdata(-resampled, "max", axis=1)
    depth = np.minimum(below, above).min(axis=0)
    outside = max(int(np.quantile(depth, 1 - LEVEL / 100, method="lower")), 1)
    ordered = np.sort(resampled, axis=1)
    joint = np.minimum(limits[0], ordered[:, outside - 1]), np.maximum(limits[1], ordered[:, -outside])
    return [
        Interval(float(value), *map(float, ends))
        for value, *ends in zip(values, *limits, *joint, strict=True)
    ]


@dataclass(frozen=True, eq=False)
class Answers:
    """Ranks of one method for the queries of one set of test images.

    Attributes
    ----------
    ranks
        Seeds × queries, or queries; recalls are averaged over seeds.
    owners
        The image of each query, 0 to ``n_images`` − 1.
    n_images
        Number of test images.
    """

    ranks: np.ndarray[Any, Any]
    owners: np.ndarray[Any, Any]
    n_images: int

    def hits(self, k: int) -> Floats:
        """Return for each image the number of its queries with the truth among the first ``k``."""
        share = (np.atleast_2d(self.ranks) <= k).mean(axis=0)
        return np.bincount(self.owners, share, self.n_images).astype(np.float64)

    def queries(self) -> Floats:
        """Return for each image the number of its queries."""
        return np.bincount(self.owners, minlength=self.n_images).astype(np.float64)


def resample_recall(
    first: Sequence[Answers], second: Sequence[Answers] | None, k: int
) -> tuple[float, Floats]:
    """Return recall at ``k`` of the first method minus that of the second, in points, and its resamples.

    ``first[i]`` and ``second[i]`` answer the same queries. Several entries are the runs of a protocol; their
    mean is compared. Without a second method, it is the recall of the first. Every comparison on the same
    images draws the same resamples.
    """
    values: list[float] = []
    resampled: list[Floats] = []
    for run, one in enumerate(first):
        hits = one.hits(k) - (0.0 if second is None else second[run].hits(k))
        queries, weights = one.queries(), draw_images(one.n_images, run)
        values.append(100.0 * hits.sum() / queries.sum())
        resampled.append(100.0 * (weights @ hits) / np.maximum(weights @ queries, 1.0))
    return float(np.mean(values)), np.mean(resampled, axis=0)


@lru_cache(maxsize=5)
def draw_images(n_images: int, run: int = 0) -> Floats:
    """Count how often each image is drawn in each resample: resamples × images."""
    rng = np.random.default_rng([SEED, run, n_images])
    counts = rng.multinomial(n_images, np.full(n_images, 1.0 / n_images), size=RESAMPLES)
    return counts.astype(np.float64)
