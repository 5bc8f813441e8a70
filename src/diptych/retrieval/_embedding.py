"""Packs: the captions of one picture as a whole, represented by the mean of their embeddings.

From features to the vectors that an index compares by inner product alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import TASKS, InputError, Task, check_view
from diptych._normalize import normalize
from diptych.cca import AWCCA
from diptych.cca._weighting import Weighting, project, weight_factors
from diptych.fusion import Fusion
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval.stores._faiss import Chunk, VectorIndex


@dataclass(frozen=True, eq=False)
class Packs:
    """One vector for each picture that has captions; its key is the picture's place in ``images``."""

    images: list[str]
    index: VectorIndex


def make_packs(
    owner: Mapping[int, str], embedding: Embedding, chunks: Sequence[Chunk], dimension: int
) -> Packs:
    """Packs of the captions in ``chunks``; ``owner`` gives the picture of the keys that belong to one."""
    owned = [chunk.at(np.array([key in owner for key in chunk.keys.tolist()], bool)) for chunk in chunks]
    images = sorted({owner[key] for chunk in owned for key in chunk.keys.tolist()})
    if not images:
        raise InputError("no caption in the index belongs to a picture; add captions together with images.")
    place = {image: row for row, image in enumerate(images)}
    groups = np.array([place[owner[key]] for chunk in owned for key in chunk.keys.tolist()])
    vectors = np.concatenate([np.asarray(chunk.vectors, np.float32) for chunk in owned])
    norms = np.concatenate([chunk.norms for chunk in owned])
    index = VectorIndex(dimension)
    index.add(np.arange(len(images)), embedding.means(vectors, norms, groups, len(images)))
    return Packs(images, index)


Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]

SEARCHED: dict[Task, View] = {"search": "image", "annotate": "text"}
"""The view whose items a task looks through."""

Layout: TypeAlias = dict[str, int]
"""Feature blocks that lie side by side in one matrix: their names and widths."""

_LETTER: dict[View, str] = {"image": "x", "text": "y"}


class Embedding(ABC):
    """A fitted model as vectors, in float32, whose inner products rank."""

    weighting: Weighting | None
    """How the canonical correlations enter; None: in more ways than one."""

    @abstractmethod
    def dimension(self, task: Task) -> int:
        """Columns of the vectors of a task."""

    @abstractmethod
    def features(self, view: View) -> int:
        """Columns of the features of a view."""

    @abstractmethod
    def items(self, features: Any, task: Task) -> tuple[Floats, Floats]:
        """Vectors of what a task looks through, and the length each had."""

    @abstractmethod
    def queries(self, features: Any, task: Task) -> Floats:
        """Vectors of queries."""

    @abstractmethod
    def as_queries(self, vectors: Floats) -> Floats:
        """Vectors of items, to ask for their like."""

    @abstractmethod
    def scores(self, inner: Floats, queries: Floats) -> Floats:
        """What users see of inner products."""

    @abstractmethod
    def means(self, vectors: Floats, norms: Floats, groups: Any, n_groups: int) -> Floats:
        """Vectors that stand for groups of items."""

    @abstractmethod
    def under(self, weighting: Weighting) -> Embedding:
        """The same model under another weighting."""

    @abstractmethod
    def reweighted(self, vectors: Floats, norms: Floats, task: Task, before: Embedding) -> Floats:
        """Vectors of items that were made by ``before``, as this embedding makes them."""


class CanonicalEmbedding(Embedding):
    """A fitted ``AWCCA``.

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
        self._model = model
        self._weighting: Weighting = model.weighting if weighting is None else weighting
        self.weighting = self._weighting
        self._euclidean = model.similarity == "l2"
        self._correlations = {t: to_numpy(model.models_[t].correlations).astype(np.float32) for t in TASKS}
        self._normalize: dict[View, str] = {"image": model.normalize[0], "text": model.normalize[1]}
        self._mean: dict[View, Floats] = {
            "image": to_numpy(model.x_mean_).astype(np.float32),
            "text": to_numpy(model.y_mean_).astype(np.float32),
        }
        self._weights: dict[tuple[Task, View], Floats] = {}
        for task in TASKS:
            own = model.models_[task]
            for view, weights in zip(self._mean, (own.x_weights, own.y_weights), strict=True):
                self._weights[task, view] = np.ascontiguousarray(to_numpy(weights), np.float32)

    def dimension(self, task: Task) -> int:
        """Columns of the vectors of a task."""
        return len(self._correlations[task]) + self._euclidean

    def features(self, view: View) -> int:
        """Columns of the features of a view."""
        return len(self._mean[view])

    def items(self, features: Any, task: Task) -> tuple[Floats, Floats]:
        """Vectors of what a task looks through, and the length each had."""
        return self._finished(self._embedded(features, task, SEARCHED[task]))

    def queries(self, features: Any, task: Task) -> Floats:
        """Vectors of queries."""
        return self.as_queries(self._finished(self._embedded(features, task, _asked(task)))[0])

    def as_queries(self, vectors: Floats) -> Floats:
        """Vectors of items, to ask for their like."""
        if not self._euclidean:
            return vectors
        asked = vectors.copy()
        asked[:, -1] = 1.0
        return asked

    def scores(self, inner: Floats, queries: Floats) -> Floats:
        """Cosines, or distances with a minus sign."""
        if not self._euclidean:
            return inner
        lengths = np.sum(queries[:, :-1] ** 2, axis=1, keepdims=True)
        distances: Floats = np.sqrt(np.maximum(lengths - 2 * inner, 0))
        return -distances

    def means(self, vectors: Floats, norms: Floats, groups: Any, n_groups: int) -> Floats:
        """The mean of each group's embeddings, as they were before they were scaled for the index."""
        return self._finished(group_means(self._unscaled(vectors, norms), groups, n_groups))[0]

    def under(self, weighting: Weighting) -> CanonicalEmbedding:
        """The same model under another weighting."""
        return CanonicalEmbedding(self._model, weighting)

    def reweighted(self, vectors: Floats, norms: Floats, task: Task, before: Embedding) -> Floats:
        """Vectors of items that were made by ``before``, as this embedding makes them."""
        assert isinstance(before, CanonicalEmbedding)
        now, then = (each._factor(task, SEARCHED[task]) for each in (self, before))
        with np.errstate(divide="ignore", invalid="ignore"):
            scale = np.where(then > 0, now / then, 0).astype(np.float32)
        return self._finished(before._unscaled(vectors, norms) * scale)[0]

    def _factor(self, task: Task, view: View) -> Floats:
        own = weight_factors(self._correlations[task], self._weighting, task)[0 if view == "image" else 1]
        return np.ones_like(self._correlations[task]) if own is None else np.asarray(own, np.float32)

    def _unscaled(self, vectors: Floats, norms: Floats) -> Floats:
        wide: Floats = np.asarray(vectors, np.float32)
        return wide[:, :-1] if self._euclidean else wide * norms[:, None]

    def _embedded(self, features: Any, task: Task, view: View) -> Floats:
        rows = check_view(features, f"{view} features", n_features=self.features(view))
        with np.errstate(over="ignore", invalid="ignore"):
            rows = normalize(to_numpy(rows).astype(np.float32, copy=False), self._normalize[view])
            own = weight_factors(self._correlations[task], self._weighting, task)[0 if view == "image" else 1]
            found: Floats = project(rows, self._mean[view], self._weights[task, view], own)
            return check_lengths(found, view)

    def _finished(self, embedded: Floats) -> tuple[Floats, Floats]:
        if self._euclidean:
            squares = -0.5 * np.sum(embedded**2, axis=1, keepdims=True)
            return np.hstack([embedded, squares]), np.ones(len(embedded), np.float32)
        norms = np.asarray(np.linalg.norm(embedded, axis=1), np.float32)
        unit: Floats = embedded / np.where(norms > 0, norms, 1).astype(np.float32)[:, None]
        return unit, norms


class FusedEmbedding(Embedding):
    """A fitted ``Fusion``: weighted unit vectors side by side, and the hubness correction behind them.

    Parameters
    ----------
    model
        The fitted model.
    """

    def __init__(self, model: Fusion) -> None:
        self._model = model
        self.weighting: Weighting | None = None
        self._layout = {view: layout_of(model, view) for view in VIEWS}

    def dimension(self, task: Task) -> int:
        """Columns of the vectors of a task."""
        return 1 + sum(int(member.linear.x_map.shape[1]) for member in self._model.members_[task])

    def features(self, view: View) -> int:
        """Columns of the features of a view, all its blocks side by side."""
        return sum(self._layout[view].values())

    def items(self, features: Any, task: Task) -> tuple[Floats, Floats]:
        """Vectors of what a task looks through."""
        vectors = self._embedded(self._model.items, features, task, SEARCHED[task])
        return vectors, np.ones(len(vectors), np.float32)

    def queries(self, features: Any, task: Task) -> Floats:
        """Vectors of queries."""
        return self._embedded(self._model.queries, features, task, _asked(task))

    def as_queries(self, vectors: Floats) -> Floats:
        """Vectors of items, to ask for their like; the correction is for queries of the other view."""
        asked = vectors.copy()
        asked[:, -1] = 0.0
        return asked

    def scores(self, inner: Floats, queries: Floats) -> Floats:
        """Sums of cosines, corrected."""
        return inner

    def means(self, vectors: Floats, norms: Floats, groups: Any, n_groups: int) -> Floats:
        """The mean of each group's vectors: a query's score with it is the mean of its scores."""
        return group_means(np.asarray(vectors, np.float32), groups, n_groups)

    def under(self, weighting: Weighting) -> Embedding:
        """Refused: the members have weightings of their own."""
        raise InputError("a fusion chose its weightings itself; compare weightings on a model of AWCCA.")

    def reweighted(self, vectors: Floats, norms: Floats, task: Task, before: Embedding) -> Floats:
        """Refused, as ``under`` is."""
        raise InputError("a fusion has no other weighting.")

    def _embedded(self, embed: Callable[..., Any], features: Any, task: Task, view: View) -> Floats:
        rows = to_numpy(check_view(features, f"{view} features", n_features=self.features(view)))
        with np.errstate(over="ignore", invalid="ignore"):
            vectors = embed(in_blocks(rows, self._layout[view]), task)
            return check_lengths(np.asarray(vectors, np.float32), view)


def embedding_of(model: AWCCA | Fusion) -> Embedding:
    """The embedding of a fitted model."""
    return FusedEmbedding(model) if isinstance(model, Fusion) else CanonicalEmbedding(model)


def check_lengths(vectors: Floats, view: View) -> Floats:
    """``vectors`` if float32 can hold them and their lengths; features that are too large give others."""
    if not np.all(np.isfinite(np.linalg.norm(vectors, axis=1))):
        raise InputError(
            f"{view} features hold values too large for float32, in which vectors are compared; divide all "
            f"{view} features, those of the training pairs too, by one constant."
        )
    return vectors


def layout_of(model: Fusion, view: View) -> Layout:
    """The blocks that a fusion was fitted on."""
    return {name: each.width for name, each in model.geometry_[_LETTER[view]].items()}


def in_blocks(rows: Any, layout: Layout) -> dict[str, Any]:
    """Columns side by side as named blocks."""
    parts = np.split(rows, np.cumsum(list(layout.values()))[:-1], axis=1)
    return dict(zip(layout, parts, strict=True))


def group_means(rows: Floats, groups: Any, n_groups: int) -> Floats:
    """The mean of the rows of each group; every group has at least one."""
    order = np.argsort(groups, kind="stable")
    starts = np.searchsorted(groups[order], np.arange(n_groups))
    sizes = np.bincount(groups, minlength=n_groups)[:, None].astype(np.float32)
    return np.asarray(np.add.reduceat(rows[order], starts, axis=0) / sizes, np.float32)


def _asked(task: Task) -> View:
    return "text" if task == "search" else "image"
