"""From features to the vectors that an index compares by inner product alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych.arrays import to_numpy
from diptych.cca import AWCCA, maps, powers
from diptych.cca.weighting import Weighting
from diptych.checks import TASKS, Task, check_view
from diptych.normalize import normalize
from diptych.retrieval.items import View

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

SEARCHED: dict[Task, View] = {"search": "image", "annotate": "text"}
"""The view whose items a task looks through."""


@dataclass(frozen=True, eq=False)
class Side:
    """One view under one task: the linear map of centred features, and the power of Σ in it."""

    mean: Floats
    weights: Floats
    power: float


class Embedding:
    """A fitted ``AWCCA`` as vectors, in float32.

    Cosine is the inner product of vectors of length 1. Distances rank as inner products do once an item
    carries −‖x‖²/2 as one more coordinate and a query carries 1. So one kind of index serves both.

    Parameters
    ----------
    model
        The fitted model.
    weighting
        Another weighting than the model's own.
    """

    def __init__(self, model: AWCCA, weighting: Weighting | None = None) -> None:
        self.weighting = model.weighting if weighting is None else weighting
        self.euclidean = model.similarity == "l2"
        self.correlations = {t: to_numpy(model.models_[t].correlations).astype(np.float32) for t in TASKS}
        self._normalize: dict[View, str] = {"image": model.normalize[0], "text": model.normalize[1]}
        means = {"image": to_numpy(model.x_mean_), "text": to_numpy(model.y_mean_)}
        self._sides: dict[tuple[Task, View], Side] = {}
        for task in TASKS:
            both = maps(model.models_[task], self.weighting, task), powers(self.weighting, task)
            views: tuple[View, View] = ("image", "text")
            for view, weights, power in zip(views, *both, strict=True):
                dense = np.ascontiguousarray(to_numpy(weights), np.float32)
                self._sides[task, view] = Side(means[view].astype(np.float32), dense, power)

    def dimension(self, task: Task) -> int:
        """Columns of the vectors of a task."""
        return len(self.correlations[task]) + self.euclidean

    def features(self, view: View) -> int:
        """Columns of the features of a view."""
        return len(self._sides["search", view].mean)

    def items(self, features: Any, task: Task) -> tuple[Floats, Floats]:
        """Vectors of what a task looks through, and the length each had."""
        return self._finished(self._embedded(features, task, SEARCHED[task]))

    def queries(self, features: Any, task: Task) -> Floats:
        """Vectors of queries."""
        return self.as_queries(self._finished(self._embedded(features, task, _asked(task)))[0])

    def as_queries(self, vectors: Floats) -> Floats:
        """Vectors of items, to ask for their like."""
        if not self.euclidean:
            return vectors
        asked = vectors.copy()
        asked[:, -1] = 1.0
        return asked

    def scores(self, inner: Floats, queries: Floats) -> Floats:
        """What users see of inner products: cosines, or distances with a minus sign."""
        if not self.euclidean:
            return inner
        lengths = np.sum(queries[:, :-1] ** 2, axis=1, keepdims=True)
        distances: Floats = np.sqrt(np.maximum(lengths - 2 * inner, 0))
        return -distances

    def reweighted(self, vectors: Floats, norms: Floats, task: Task, before: Embedding) -> Floats:
        """Vectors of items that were made by ``before``, as this embedding makes them."""
        view = SEARCHED[task]
        change = self._sides[task, view].power - before._sides[task, view].power
        with np.errstate(divide="ignore"):
            scale = np.where(self.correlations[task] > 0, self.correlations[task] ** change, 0)
        return self._finished(before.coordinates(vectors, norms) * scale.astype(np.float32))[0]

    def coordinates(self, vectors: Floats, norms: Floats) -> Floats:
        """Canonical coordinates of items, as they were before they were scaled for the index."""
        wide: Floats = np.asarray(vectors, np.float32)
        return wide[:, :-1] if self.euclidean else wide * norms[:, None]

    def means(self, vectors: Floats, norms: Floats, groups: Any, n_groups: int) -> Floats:
        """Vectors that stand for groups of items: the mean of each group's canonical coordinates."""
        coordinates = self.coordinates(vectors, norms)
        order = np.argsort(groups, kind="stable")
        starts = np.searchsorted(groups[order], np.arange(n_groups))
        sums = np.add.reduceat(coordinates[order], starts, axis=0)
        sizes = np.bincount(groups, minlength=n_groups)[:, None].astype(np.float32)
        return self._finished(np.asarray(sums / sizes, np.float32))[0]

    def _embedded(self, features: Any, task: Task, view: View) -> Floats:
        side = self._sides[task, view]
        rows = check_view(to_numpy(features), f"{view} features", n_features=len(side.mean))
        rows = normalize(rows.astype(np.float32, copy=False), self._normalize[view])
        embedded: Floats = (rows - side.mean) @ side.weights
        return embedded

    def _finished(self, embedded: Floats) -> tuple[Floats, Floats]:
        if self.euclidean:
            squares = -0.5 * np.sum(embedded**2, axis=1, keepdims=True)
            return np.hstack([embedded, squares]), np.ones(len(embedded), np.float32)
        norms = np.asarray(np.linalg.norm(embedded, axis=1), np.float32)
        unit: Floats = embedded / np.where(norms > 0, norms, 1).astype(np.float32)[:, None]
        return unit, norms


def _asked(task: Task) -> View:
    return "text" if task == "search" else "image"
