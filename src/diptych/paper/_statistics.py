"""Differences of recalls with their sampling error: a paired bootstrap over test images.

Two methods answer the same queries. Test images are resampled with replacement, each with all its captions,
because captions of one image are not independent; the difference of the recalls is computed on each resample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from diptych._checks import TASKS
from diptych.paper._cache import Result
from diptych.paper._features import Floats

RESAMPLES = 2000
LEVEL = 95.0
"""Percent of the resampled values within an interval."""
SEED = 0


@dataclass(frozen=True)
class Interval:
    """A value and the interval that contains ``LEVEL`` percent of its resampled values."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        value, low, high = (f"{each:+.1f}".replace("-", "−") for each in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"

    def __add__(self, shift: float) -> Interval:
        return Interval(self.value + shift, self.low + shift, self.high + shift)


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


def compare_recall(first: Sequence[Answers], second: Sequence[Answers], k: int) -> Interval:
    """Return recall at ``k`` of the first method minus that of the second, in points, with its interval.

    ``first[i]`` and ``second[i]`` answer the same queries. Several entries are the runs of a protocol; their
    mean is compared.
    """
    differences: list[float] = []
    resampled: list[Floats] = []
    for one, other in zip(first, second, strict=True):
        gain, queries = one.hits(k) - other.hits(k), one.queries()
        weights = draw_images(one.n_images, len(differences))
        differences.append(100.0 * gain.sum() / queries.sum())
        resampled.append(100.0 * (weights @ gain) / np.maximum(weights @ queries, 1.0))
    return percentile_interval(float(np.mean(differences)), np.mean(resampled, axis=0))


def percentile_interval(value: float, resampled: Any) -> Interval:
    """Return ``value`` with the percentile interval of its resampled values."""
    tail = (1 - LEVEL / 100) / 2
    low, high = np.quantile(np.asarray(resampled, dtype=np.float64), [tail, 1 - tail])
    return Interval(value, float(low), float(high))


@lru_cache(maxsize=5)
def draw_images(n_images: int, run: int = 0) -> Floats:
    """Count how often each image is drawn in each resample: resamples × images."""
    rng = np.random.default_rng([SEED, run, n_images])
    counts = rng.multinomial(n_images, np.full(n_images, 1.0 / n_images), size=RESAMPLES)
    return counts.astype(np.float64)


def mean_scores(runs: Sequence[Mapping[str, Any]]) -> Result:
    """Average every metric of both tasks over runs."""
    return {
        task: {name: sum(run[task][name] for run in runs) / len(runs) for name in runs[0][task]}
        for task in TASKS
    }


def mean_runs(runs: Sequence[Mapping[str, Any]]) -> Result:
    """Average the scores of runs, and keep the ranks of each run's queries for comparisons."""
    ranks = {task: [run["query_ranks"][task] for run in runs] for task in TASKS}
    return {**mean_scores(runs), "query_ranks": ranks}
