"""How far an item lies from what a model was trained on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych._normalize import normalize

Floats: TypeAlias = np.ndarray[Any, Any]

_SAMPLE = 20_000


@dataclass(frozen=True, eq=False)
class Reach:
    r"""Where the training items of one view lie.

    The distance of an item is :math:`\frac1d \sum_j (x_j - \mu_j)^2 / \sigma_j^2`: 1 on average over the
    training items. Beyond one and a half times what 99 of 100 of them keep, an item counts as far.

    Attributes
    ----------
    mean, variance
        Of each feature, after normalisation.
    limit
        Distance beyond which an item is far.
    """

    mean: Floats
    variance: Floats
    limit: float

    @classmethod
    def of(cls, features: Floats, how: str = "none", random_state: int = 0) -> Reach:
        """The reach of features, once normalised; of a sample of them where there are many."""
        if len(features) > _SAMPLE:
            rows = np.random.default_rng(random_state).choice(len(features), _SAMPLE, replace=False)
            features = features[np.sort(rows)]
        with np.errstate(over="ignore", invalid="ignore"):  # the embedding refuses what is too large
            return cls._of(features, how)

    @classmethod
    def _of(cls, features: Floats, how: str) -> Reach:
        sample: Floats = normalize(np.asarray(features, np.float64), how)
        mean, variance = sample.mean(axis=0), sample.var(axis=0)
        # A feature that never varied would make any other value infinitely far.
        variance = np.maximum(variance, 1e-6 * max(float(variance.max()), 1e-30))
        unlimited = cls(mean.astype(np.float32), variance.astype(np.float32), np.inf)
        return cls(
            unlimited.mean, unlimited.variance, 1.5 * float(np.quantile(unlimited.distances(sample), 0.99))
        )

    def distances(self, features: Floats) -> Floats:
        """The distance of each item; 1 is ordinary."""
        away = np.asarray(features, np.float32) - self.mean
        found: Floats = np.mean(away * away / self.variance, axis=1)
        return found
