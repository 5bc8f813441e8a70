"""Items, their vectors and the model that made them: found, named, added and removed as one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from diptych.cca import AWCCA, Moments
from diptych.cca.weighting import Weighting, check_weighting
from diptych.checks import TASKS, InputError, Task
from diptych.normalize import normalize
from diptych.retrieval.embedding import SEARCHED, Embedding, embedding_of
from diptych.retrieval.fitting import Fitted
from diptych.retrieval.index import VectorIndex
from diptych.retrieval.items import Item, Items, View
from diptych.retrieval.packs import Packs, make_packs
from diptych.retrieval.results import Hit, Pack

Where: TypeAlias = Callable[[Item], bool] | Iterable[str]
Floats: TypeAlias = np.ndarray[Any, Any]
Keys: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Encode: TypeAlias = Callable[[View, list[Item]], Floats]
"""Features of items, made anew."""

BLOCK = 4096
REMEMBERED = 8
"""Other weightings, and packs, that are held beside the index."""

TASK_OF: dict[View, Task] = {"image": "search", "text": "annotate"}
"""The task that looks through a view."""


class Collection:
    """What can be found, by any number of threads at once, while one at a time adds and removes.

    Parameters
    ----------
    fitted
        The model.
    items
        What there is.
    indexes
        Its vectors: pictures under ``"search"``, sentences under ``"annotate"``.
    features
        Features of both views by key, where they are kept.
    learned
        Items with smaller keys were there when the model was fitted.
    """

    def __init__(
        self,
        fitted: Fitted,
        items: Items,
        indexes: dict[Task, VectorIndex],
        features: dict[View, VectorIndex],
        learned: int,
    ) -> None:
        self.fitted, self.items, self.indexes, self.features = fitted, items, indexes, features
        self.embedding, self.learned = embedding_of(fitted.model), learned
        self._lock = threading.RLock()
        self._derived: dict[Any, tuple[VectorIndex, int, Any]] = {}

    @classmethod
    def of(
        cls,
        fitted: Fitted,
        items: Items,
        features: dict[View, VectorIndex],
        of: Callable[[View, Keys], Floats],
        dtype: str,
        kind: str,
    ) -> Collection:
        """Embed all ``items``, whose features ``of`` gives, and build a graph over them if wanted."""
        embedding = embedding_of(fitted.model)
        keys = {view: items.keys(view) for view in TASK_OF}
        indexes: dict[Task, VectorIndex] = {}
        for task in TASKS:
            own = keys[SEARCHED[task]]
            index = indexes[task] = VectorIndex(embedding.dimension(task), dtype)
            for start in range(0, len(own), BLOCK):
                some = own[start : start + BLOCK]
                index.add(some, *embedding.items(of(SEARCHED[task], some), task))
        if kind == "hnsw":
            for task in TASKS:
                other: View = "text" if task == "search" else "image"
                asked = embedding.queries(of(other, keys[other][:500]), task) if len(keys[other]) else None
                fitted.facts.setdefault("graph_recall", {})[task] = indexes[task].build_graph(asked).recall
        return cls(fitted, items, indexes, features, items.next_key)

    def add(self, new: Mapping[View, list[Item]], rows: Mapping[View, Floats], keep: bool) -> None:
        """Take in items with their features; all of them, or none."""
        with self._lock:
            self.items.check_new([item for own in new.values() for item in own])
            for view, own in new.items():
                task = TASK_OF[view]
                vectors = self.embedding.items(rows[view], task)
                # A name before a vector, so that no search finds an item without one.
                keys = self.items.add(own)
                if keep:
                    keep_features(self.features, view, keys, rows[view])
                self.indexes[task].add(keys, *vectors)

    def remove(self, ids: Iterable[str]) -> int:
        """Take items out, and with a picture its captions; returns how many went."""
        with self._lock:
            keys: set[int] = set()
            for item_id in ids:
                keys |= {self.items.key(item_id), *self.items.captions(item_id)}
            gone = np.array(sorted(keys), np.int64)
            for store in (*self.indexes.values(), *self.features.values()):
                store.remove(gone)
            self.items.remove(gone.tolist())
        return len(gone)

    def found(
        self, task: Task, queries: Floats, k: int, where: Where | None, weighting: Weighting | None = None
    ) -> list[list[Hit]]:
        """The best items of a task for each row of features."""
        embedding, index = self.embedding, self.indexes[task]
        if weighting is not None:
            check_weighting(weighting)
            if weighting != embedding.weighting:
                embedding, index = self._remembered(
                    (task, weighting), index, lambda: self._reweighted(task, weighting)
                )
        vectors, allowed = embedding.queries(queries, task), self._allowed(SEARCHED[task], where)
        return self._hits(task, embedding, index, vectors, k, allowed)

    def similar(self, view: View, features: Floats, k: int, where: Where | None) -> list[list[Hit]]:
        """Items of a view like others of it, in the canonical space."""
        task = TASK_OF[view]
        vectors = self.embedding.as_queries(self.embedding.items(features, task)[0])
        return self._hits(task, self.embedding, self.indexes[task], vectors, k, self._allowed(view, where))

    def packs(self, queries: Floats, k: int) -> list[list[Pack]]:
        """Pictures by all of their captions together, for each row of features."""
        check_k(k)
        index = self.indexes["annotate"]
        packs: Packs = self._remembered(
            "packs", index, lambda: make_packs(self.items, self.embedding, index.chunks(), index.dimension)
        )
        vectors = self.embedding.queries(queries, "annotate")
        inner, rows = packs.index.search(vectors, min(k, len(packs.images)))
        scores = self.embedding.scores(inner, vectors)
        found = [
            [self._pack(packs.images[r], s, vectors[q]) for r, s in zip(*pair, strict=True) if r >= 0]
            for q, pair in enumerate(zip(rows.tolist(), scores.tolist(), strict=True))
        ]
        # Captions may have been removed since the packs were made.
        return [[pack for pack in own if pack.captions] for own in found]

    def features_of(self, view: View, keys: Keys, encode: Encode) -> Floats:
        """Features of items: those that were kept, or made anew. ``keys`` ascend."""
        if view in self.features:
            return np.asarray(self.features[view].vectors_of(keys).vectors, np.float32)
        return encode(view, [item for key in keys.tolist() if (item := self.items.get(key))])

    def new_moments(self, encode: Encode) -> Moments:
        """Moments of the pairs that were added since the model was fitted."""
        model, moments = self.fitted.model, self.fitted.moments
        if moments is None or not isinstance(model, AWCCA):
            raise InputError("a fusion is not refitted from moments; fit it again on all pairs.")
        pairs = [
            (self.items.key(item.image), key)
            for key, item in self.items
            if key >= self.learned and item.image is not None and item.image in self.items
        ]
        total = Moments.zero(len(moments.x_mean), len(moments.y_mean), precision=moments.precision)
        for start in range(0, len(pairs), BLOCK):
            block = np.array(pairs[start : start + BLOCK], np.int64)
            images, pairing = np.unique(block[:, 0], return_inverse=True)
            x = normalize(self.features_of("image", images, encode), model.normalize[0])
            y = normalize(self.features_of("text", block[:, 1], encode), model.normalize[1])
            total.update(x, y, pairing)
        return total

    def _hits(
        self,
        task: Task,
        embedding: Embedding,
        index: VectorIndex,
        vectors: Floats,
        k: int,
        allowed: Keys | None,
    ) -> list[list[Hit]]:
        check_k(k)
        while True:
            inner, keys = index.search(vectors, min(int(k), max(1, len(index))), allowed=allowed)
            items = {key: self.items.get(key) for key in np.unique(keys[keys >= 0]).tolist()}
            if None not in items.values():
                break
            # An item was removed between being found and being named: the search goes on among the others.
            present = self.items.keys(SEARCHED[task])
            allowed = present if allowed is None else np.intersect1d(allowed, present, assume_unique=True)
        scores = embedding.scores(inner, vectors)
        return [
            [Hit(item, score) for key, score in zip(*pair, strict=True) if (item := items.get(key))]
            for pair in zip(keys.tolist(), scores.tolist(), strict=True)
        ]

    def _allowed(self, view: View, where: Where | None) -> Keys | None:
        if where is None:
            return None
        if not callable(where) and not isinstance(where, Iterable):
            raise InputError(f"where={where!r} is no filter; give a function of an Item, or ids.")
        if callable(where):
            keys = [key for key, item in self.items if item.view == view and where(item)]
        else:
            chosen = [where] if isinstance(where, str) else where
            keys = [key for key in map(self.items.key, chosen) if self.items.is_of(key, view)]
        return np.unique(np.array(keys, np.int64))

    def _reweighted(self, task: Task, weighting: Weighting) -> tuple[Embedding, VectorIndex]:
        """The items of a task under another weighting of the same model."""
        other = self.embedding.under(weighting)
        index = VectorIndex(self.indexes[task].dimension)
        for chunk in self.indexes[task].chunks():
            index.add(chunk.keys, other.reweighted(chunk.vectors, chunk.norms, task, self.embedding))
        return other, index

    def _pack(self, image: str, score: float, vector: Floats) -> Pack:
        own, index = np.array(self.items.captions(image), np.int64), self.indexes["annotate"]
        hits = self._hits("annotate", self.embedding, index, vector[None, :], max(1, len(own)), own)
        return Pack(image, score, hits[0])

    def _remembered(self, name: Any, index: VectorIndex, make: Callable[[], Any]) -> Any:
        """What was derived from the items of an index; made again when they change."""
        with self._lock:
            held = self._derived.get(name)
            if held is None or held[1] != index.version:
                held = self._derived[name] = (index, index.version, make())
                if len(self._derived) > REMEMBERED:
                    del self._derived[next(iter(self._derived))]
            return held[2]


def keep_features(stores: dict[View, VectorIndex], view: View, keys: Keys, rows: Floats) -> None:
    """Keep features under the keys of their items."""
    if view not in stores:
        stores[view] = VectorIndex(rows.shape[1])
    stores[view].add(keys, rows)


def check_k(k: Any) -> None:
    """Refuse what is no number of answers."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise InputError(f"k={k!r} is not a number of answers; give 1 or more.")
