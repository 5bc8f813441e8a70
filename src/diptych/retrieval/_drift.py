"""Outlier detection: which new items lie far from the training data of a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych._normalize import normalize

Floats: TypeAlias = np.ndarray[Any, Any]

_SAMPLE = 20_000


@dataclass(frozen=True, eq=False)
class OutlierDetector:
    r"""The mean and spread of one view's training features, and the limit beyond which an item is an outlier.

    The distance of an item is :math:`\frac1d \sum_j (x_j - \mu_j)^2 / \sigma_j^2`, which is 1 on average over
    the training items. The limit is one and a half times the 99th percentile of their distances.
    """

    normalize: str  # how features are normalised first
    mean: Floats
    variance: Floats
    limit: float

    @classmethod
    def fit(cls, features: Floats, normalize: str = "none", random_state: int = 0) -> OutlierDetector:
        """Return the detector for training features; a sample of them is used if there are many."""
        if len(features) > _SAMPLE:
            rows = np.random.default_rng(random_state).choice(len(features), _SAMPLE, replace=False)
            features = features[np.sort(rows)]
        # The embedding refuses features that are too large.
        with np.errstate(over="ignore", invalid="ignore"):
            return cls._fit(features, normalize)

    @classmethod
    def _fit(cls, features: Floats, how: str) -> OutlierDetector:
        sample: Floats = normalize(np.asarray(features, np.float64), how)
        mean, variance = sample.mean(axis=0), sample.var(axis=0)
        # A feature that never varied would put any other value infinitely far away.
        variance = np.maximum(variance, 1e-6 * max(float(variance.max()), 1e-30))
        mean, variance = mean.astype(np.float32), variance.astype(np.float32)
        distances = _distances(sample, mean, variance)
        return cls(how, mean, variance, 1.5 * float(np.quantile(distances, 0.99)))

    @classmethod
    def unlimited(cls, width: int) -> OutlierDetector:
        """Return a detector for a model whose training features are unknown: nothing is an outlier."""
        return cls("none", np.zeros(width, np.float32), np.ones(width, np.float32), float("inf"))

    def distances(self, features: Floats) -> Floats:
        """Return the distance of each item; 1 is ordinary."""
        rows = normalize(features.astype(np.float32, copy=False), self.normalize)
        return _distances(rows, self.mean, self.variance)


def _distances(rows: Floats, mean: Floats, variance: Floats) -> Floats:
    away = np.asarray(rows, np.float32) - mean
    distances: Floats = np.mean(away * away / variance, axis=1)
    return distances
