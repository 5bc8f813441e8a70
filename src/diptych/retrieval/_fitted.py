"""A fitted model as a retriever holds it: projectors, and what is known of its training data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diptych._checks import IMAGE_AND_TEXT, TASKS, InputError, Task, ViewNames
from diptych.cca._description import ModelDescription
from diptych.cca._projector import Projector
from diptych.cca._weighting import normalize
from diptych.retrieval._calibration import NOT_CALIBRATED, Calibration
from diptych.retrieval._items import SIDES, View
from diptych.retrieval._placing import Offset

if TYPE_CHECKING:
    from diptych.cca import AWCCA, Moments
    from diptych.fusion import Fusion

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

Layout: TypeAlias = dict[str, int]
"""Feature blocks side by side in one matrix: their names and widths."""

_SAMPLE = 20_000
"""Training items that an outlier detector looks at."""

_CANCELLED = 1e-4
"""Length of a weighted mean of directions below which its own direction is only rounding."""


@dataclass(frozen=True, eq=False)
class Learned:
    """What a refit continues from, and nothing else reads: both are loaded when they are needed.

    ``model`` returns the fitted estimator, without moments. ``moments`` returns those of the training pairs,
    of the features as the model takes them; None if they are not known.
    """

    model: Callable[[], AWCCA | Fusion]
    moments: Callable[[], Moments] | None = None


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model: the projectors of both tasks, and what is known of it and of its training data.

    ``stored_description`` is as it was read; ``description`` is checked. ``facts`` are as in ``Facts``.
    ``calibration`` has the probabilities of both tasks, or says why there are none; ``offsets`` are for items
    with partners, where they could be measured.
    """

    projectors: Mapping[Task, Projector]
    outliers: Mapping[View, OutlierDetector]
    stored_description: ModelDescription
    learned: Learned
    facts: dict[str, Any] = field(default_factory=dict)
    calibration: Calibration = NOT_CALIBRATED
    offsets: Mapping[Task, Offset] = field(default_factory=dict)

    @cached_property
    def description(self) -> ModelDescription:
        """What is known of the model, for people."""
        return self.stored_description.check()

    @property
    def model(self) -> AWCCA | Fusion:
        """The model as an ``AWCCA`` or ``Fusion``."""
        return self.learned.model()

    def width(self, view: View) -> int:
        """Return the number of features of a view."""
        return self.projectors["search"].width(SIDES[view])

    def layout(self, view: View) -> Layout:
        """Return names and widths of a view's feature blocks; empty if its features have no blocks."""
        if stored := self.facts.get("blocks", {}).get(view):
            return {str(name): int(width) for name, width in stored}
        blocks = dict(self.projectors["search"].blocks[SIDES[view]])
        return {} if list(blocks) == [SIDES[view]] else blocks


def make_projectors(model: AWCCA | Fusion, names: ViewNames = IMAGE_AND_TEXT) -> dict[Task, Projector]:
    """Return the projectors of both tasks of an estimator, whose messages use the names of the views."""
    return {task: name_views(model.projector(task), names) for task in TASKS}


def name_views(projector: Projector, names: ViewNames) -> Projector:
    """Return a projector whose messages use the names of the views."""
    return replace(projector, names={side: names.of(view) for view, side in SIDES.items()})


def compose(projector: Projector, queries: Floats, weights: Sequence[float]) -> Floats:
    """Return one query, the weighted sum of several: of their directions, with the length of the first.

    So an item that is added scores higher than before, and a query added to itself stays as it was. Where
    scores are inner products, the sum ranks as the weighted sum of the single scores does. The hubness
    correction of a fusion is that of the first query.
    """
    directions = np.asarray(projector.coordinates(queries), np.float64)
    lengths = np.linalg.norm(directions, axis=1)
    if not np.all(lengths > 0):
        raise InputError("a part of the query has no direction in this model; leave it out.")
    total = (np.asarray(weights, np.float64) / lengths) @ directions
    length = np.linalg.norm(total)
    if length < _CANCELLED * np.sum(np.abs(weights)):
        raise InputError("the parts of the query cancel each other; give other parts, or other weights.")
    query = queries[:1].copy()
    query[0, : len(total)] = total * (lengths[0] / length)
    return query


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
        # The projector refuses features that are too large.
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
