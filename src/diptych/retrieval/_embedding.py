"""From features to the float32 vectors that a store compares; and which features are outliers.

Both kinds of model have the same methods: ``items`` and ``queries`` embed features, ``scores`` turns inner
products into what users see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych._arrays import fields_to_numpy, to_numpy
from diptych._checks import IMAGE_AND_TEXT, TASKS, InputError, Task, ViewNames, check_view
from diptych.cca._fitted import FittedAWCCA
from diptych.cca._moments import Moments
from diptych.cca._weighting import Weighting, apply_factors, model_factors, normalize, project
from diptych.fusion._fitted import FittedFusion
from diptych.fusion._members import Member
from diptych.retrieval._items import QUERIED, SEARCHED, VIEWS, View

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

_SAMPLE = 20_000
"""Training items that an outlier detector looks at."""

Layout: TypeAlias = dict[str, int]
"""Feature blocks side by side in one matrix: their names and widths."""

UNCORRECTED = "uncorrected"

_CANCELLED = 1e-4
"""Length of a weighted mean of directions below which its own direction is only rounding."""


class CanonicalEmbedding:
    """The embedding of an ``AWCCA``.

    A cosine is the inner product of vectors of length 1. A distance ranks as an inner product does once an
    item has −‖x‖²/2 as one more coordinate and a query has 1. So one kind of index serves both.

    ``names`` are those of the views, for messages.
    """

    def __init__(self, model: FittedAWCCA, names: ViewNames = IMAGE_AND_TEXT) -> None:
        self._model, self._names = model, names
        polished = any(canonical.polish is not None for canonical in model.models_.values())
        self.weighting: Weighting | Literal["polished"] = "polished" if polished else model.weighting
        self._euclidean = model.similarity == "l2"
        self._normalize = dict(zip(VIEWS, model.normalize, strict=True))
        means = (to_numpy(mean).astype(np.float32) for mean in (model.x_mean_, model.y_mean_))
        self._mean: dict[View, Floats] = dict(zip(VIEWS, means, strict=True))
        self._weights: dict[tuple[Task, View], Floats] = {}
        self._factors: dict[tuple[Task, View], Floats | None] = {}
        for task in TASKS:
            canonical = fields_to_numpy(model.models_[task])
            factors = model_factors(canonical, model.weighting, task)
            for view, weights, factor in zip(
                VIEWS, (canonical.x_weights, canonical.y_weights), factors, strict=True
            ):
                self._weights[task, view] = np.ascontiguousarray(weights, np.float32)
                self._factors[task, view] = None if factor is None else np.asarray(factor, np.float32)

    def dimension(self, task: Task) -> int:
        return int(self._weights[task, "image"].shape[1]) + self._euclidean

    def features(self, view: View) -> int:
        return len(self._mean[view])

    def moment_widths(self) -> list[int]:
        """Return the numbers of columns of both views in the model's moments."""
        return [self.features(view) for view in VIEWS]

    def moments(self, x: Floats, y: Floats, pairing: Any) -> Moments:
        """Return the moments of pairs as the model's are: of normalised features."""
        x, y = normalize(x, self._normalize["image"]), normalize(y, self._normalize["text"])
        return Moments.of(x, y, pairing, precision=self._model.precision)

    def linear_map(self, view: View, task: Task) -> tuple[str, Floats, Floats]:
        """Return the normalisation of a view, its mean, and its map for a task, with the weights' factors."""
        weights = apply_factors(self._weights[task, view], self._factors[task, view])
        return self._normalize[view], self._mean[view], weights

    def items(self, features: Any, task: Task) -> Floats:
        """Return the vectors of items that a task searches."""
        return self._scale(self._project(features, task, SEARCHED[task]))

    def queries(self, features: Any, task: Task) -> Floats:
        return self.as_queries(self._scale(self._project(features, task, QUERIED[task])))

    def masks(self, task: Task) -> dict[str, Floats]:
        """Return what can be compared with the whole: nothing, it has one part."""
        return {}

    def as_queries(self, vectors: Floats) -> Floats:
        """Return vectors of items as queries for similar items."""
        if not self._euclidean:
            return vectors
        queries = vectors.copy()
        queries[:, -1] = 1.0
        return queries

    def coordinates(self, vectors: Floats) -> Floats:
        """Return vectors without what only the inner product of an item with a query needs."""
        return vectors[:, :-1] if self._euclidean else vectors

    def scores(self, inner: Floats, queries: Floats) -> Floats:
        """Return cosines, or distances with a minus sign."""
        if not self._euclidean:
            return inner
        squares = np.sum(queries[:, :-1] ** 2, axis=1, keepdims=True)
        distances: Floats = np.sqrt(np.maximum(squares - 2 * inner, 0))
        return -distances

    def _project(self, features: Any, task: Task, view: View) -> Floats:
        name = self._names.of(view)
        rows = to_numpy(check_view(features, f"{name} features", n_features=self.features(view)))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = normalize(rows.astype(np.float32, copy=False), self._normalize[view])
            vectors = project(rows, self._mean[view], self._weights[task, view], self._factors[task, view])
            return _check_lengths(vectors, name)

    def _scale(self, vectors: Floats) -> Floats:
        if self._euclidean:
            return np.hstack([vectors, -0.5 * np.sum(vectors**2, axis=1, keepdims=True)])
        lengths = np.asarray(np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)
        return np.asarray(vectors / np.where(lengths > 0, lengths, 1).astype(np.float32), np.float32)


class FusedEmbedding:
    """The embedding of a ``Fusion``: weighted unit vectors side by side, then the hubness correction."""

    weighting = None  # the members differ

    def __init__(self, model: FittedFusion, names: ViewNames = IMAGE_AND_TEXT) -> None:
        self._model, self._names = model, names
        self._layout = {view: fusion_layout(model, view) for view in VIEWS}

    def dimension(self, task: Task) -> int:
        return 1 + sum(int(member.linear.x_map.shape[1]) for member in self._model.members_[task])

    def features(self, view: View) -> int:
        return sum(self._layout[view].values())

    def moment_widths(self) -> list[int]:
        """Return the numbers of columns of both views in the model's moments."""
        return list(self._model.moment_widths().values())

    def moments(self, x: Floats, y: Floats, pairing: Any) -> Moments:
        """Return the moments of pairs as the model's are: of all blocks in their geometry."""
        blocks = split_blocks(x, self._layout["image"]), split_blocks(y, self._layout["text"])
        return self._model.make_moments(*blocks, pairing)

    def items(self, features: Any, task: Task) -> Floats:
        """Return the vectors of items that a task searches."""
        return self._embed(self._model.items, features, task, SEARCHED[task])

    def queries(self, features: Any, task: Task) -> Floats:
        return self._embed(self._model.queries, features, task, QUERIED[task])

    def masks(self, task: Task) -> dict[str, Floats]:
        """Return what can be compared with the whole, and what queries are multiplied by for that.

        These are the parts, each alone, and all of them without the correction. Items need no other vectors:
        in an inner product, zeros of the query leave the other parts and the correction out. The weight of a
        part is divided out, so its scores are cosines. What would change nothing is left out.
        """
        members, masks, start = self._model.members_[task], dict[str, Floats](), 0
        if self._model.corrections_[task].kind != "none":
            masks[UNCORRECTED] = np.ones(self.dimension(task), np.float32)
            masks[UNCORRECTED][sum(member.dimension for member in members) :] = 0
        for name, member in zip(name_members(members), members, strict=True):
            if len(members) > 1:
                masks[name] = np.zeros(self.dimension(task), np.float32)
                masks[name][start : start + member.dimension] = 1 / member.weight
            start += member.dimension
        return masks

    def as_queries(self, vectors: Floats) -> Floats:
        """Return vectors of items as queries; the correction is for queries of the other view."""
        queries = vectors.copy()
        queries[:, -1] = 0.0
        return queries

    def coordinates(self, vectors: Floats) -> Floats:
        """Return vectors without the correction, which is for queries of the other view."""
        return vectors[:, :-1]

    def scores(self, inner: Floats, queries: Floats) -> Floats:
        """Return the corrected sums of cosines."""
        return inner

    def _embed(self, embed: Callable[..., Any], features: Any, task: Task, view: View) -> Floats:
        name = self._names.of(view)
        rows = to_numpy(check_view(features, f"{name} features", n_features=self.features(view)))
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = embed(split_blocks(rows, self._layout[view]), task)
            return _check_lengths(np.asarray(vectors, np.float32), name)


Embedding: TypeAlias = CanonicalEmbedding | FusedEmbedding


def embedding_of(model: FittedAWCCA | FittedFusion, names: ViewNames = IMAGE_AND_TEXT) -> Embedding:
    """Return the embedding of a fitted model."""
    if isinstance(model, FittedFusion):
        return FusedEmbedding(model, names)
    return CanonicalEmbedding(model, names)


def restrict(embedding: Embedding, queries: Floats, task: Task, weighting: str | None) -> Floats:
    """Return queries that compare only what a ``weighting`` of ``masks`` does; None: everything."""
    if weighting is None:
        return queries
    masks = embedding.masks(task)
    if not masks:
        raise InputError(
            f"weighting={weighting!r} names a part of a fusion, and the {task} model has one part and no "
            "correction; leave it out."
        )
    if not isinstance(weighting, str) or weighting not in masks:
        raise InputError(
            f"weighting={weighting!r} is no part of this fusion that {task} uses; choose one of "
            f"{', '.join(map(repr, masks))}."
        )
    return queries * masks[weighting]


def compose(embedding: Embedding, queries: Floats, weights: Sequence[float]) -> Floats:
    """Return one query, the weighted sum of several: of their directions, with the length of the first.

    So an item that is added scores higher than before, and a query added to itself stays as it was. Where
    scores are inner products, the sum ranks as the weighted sum of the single scores does. The hubness
    correction of a fusion is that of the first query.
    """
    directions = np.asarray(embedding.coordinates(queries), np.float64)
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


def name_members(members: Sequence[Member]) -> list[str]:
    """Return a name for each model of a fusion's task: its blocks, and more where two have the same."""
    names = [f"{m.part}, as encoded" if m.part.kind == "identity" else str(m.part) for m in members]
    repeats = [names[:at].count(name) for at, name in enumerate(names)]
    return [f"{name} ({n + 1})" if n else name for name, n in zip(names, repeats, strict=True)]


def fusion_layout(model: FittedFusion, view: View) -> Layout:
    """Return the names and widths of the feature blocks that a fusion was fitted on."""
    return {name: block.width for name, block in model.geometry_["x" if view == "image" else "y"].items()}


def split_blocks(features: Any, layout: Layout) -> dict[str, Any]:
    """Return the columns of a matrix as named blocks."""
    parts = np.split(features, np.cumsum(list(layout.values()))[:-1], axis=1)
    return dict(zip(layout, parts, strict=True))


def _check_lengths(vectors: Floats, name: str) -> Floats:
    """Refuse vectors whose lengths float32 cannot hold."""
    if not np.all(np.isfinite(np.linalg.norm(vectors, axis=1))):
        raise InputError(
            f"{name} features hold values too large for float32, in which vectors are compared; divide all "
            f"{name} features, those of the training pairs too, by one constant."
        )
    return vectors


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
