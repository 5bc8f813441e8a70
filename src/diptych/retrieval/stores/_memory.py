"""A collection in the memory of this process."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diptych._checks import TASKS, Task
from diptych.cca import Moments
from diptych.cca._weighting import Weighting, check_weighting
from diptych.retrieval._embedding import SEARCHED, Embedding, Packs, embedding_of, make_packs
from diptych.retrieval._fit import Fitted
from diptych.retrieval._items import (
    Hit,
    Item,
    Items,
    Pack,
    View,
    Where,
    check_where,
    ids_in,
    matcher,
    unknown_key,
    wanted,
)
from diptych.retrieval._model_files import write_model
from diptych.retrieval.stores._base import (
    BLOCK,
    TASK_OF,
    Collection,
    Encode,
    Floats,
    Given,
    Keys,
    Learn,
    Name,
    Rows,
    check_k,
)
from diptych.retrieval.stores._faiss import VectorIndex
from diptych.retrieval.stores._index_files import write_index
from diptych.text import HKSE

REMEMBERED = 8
"""Filters, other weightings, and packs, that are held beside the index."""


class MemoryCollection(Collection):
    """Items and vectors in memory, or in mapped files.

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
    kind
        ``"flat"`` or ``"hnsw"``.
    """

    items: Items

    def __init__(
        self,
        fitted: Fitted,
        items: Items,
        indexes: dict[Task, VectorIndex],
        features: dict[View, VectorIndex],
        learned: int,
        kind: str = "flat",
    ) -> None:
        self._fitted, self._embedding = fitted, embedding_of(fitted.model)
        self.items, self.indexes, self.features = items, indexes, features
        self.learned, self._kind = learned, kind
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
    ) -> MemoryCollection:
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
        for task in TASKS if kind == "hnsw" else ():
            other: View = "text" if task == "search" else "image"
            asked = embedding.queries(of(other, keys[other][:500]), task) if len(keys[other]) else None
            if len(indexes[task]):
                fitted.facts.setdefault("graph_recall", {})[task] = indexes[task].build_graph(asked).recall
        return cls(fitted, items, indexes, features, items.next_key, kind)

    @property
    def fitted(self) -> Fitted:
        """The model."""
        return self._fitted

    @property
    def embedding(self) -> Embedding:
        """The model as vectors."""
        return self._embedding

    @property
    def kind(self) -> str:
        """``"flat"`` or ``"hnsw"``."""
        return self._kind

    @property
    def keeps_features(self) -> bool:
        """Whether the features of the items are here too."""
        return bool(self.features)

    def add(self, name: Name, rows: Rows, keep: bool) -> Given:
        """Take in items with their features; all of them, or none."""
        with self._lock:
            new = name(self.items.unused_names())
            self.items.check_new([item for own in new.values() for item in own])
            for view, own in new.items():
                task = TASK_OF[view]
                vectors = self.embedding.items(rows[view], task)
                # A name before a vector, so that no search finds an item without one.
                keys = self.items.add(own)
                if keep and view in self.features:
                    self.features[view].add(keys, rows[view])
                self.indexes[task].add(keys, *vectors)
        return new

    def remove(self, ids: Iterable[str]) -> int:
        """Take items out, and with a picture its captions; returns how many went."""
        with self._lock:
            keys: set[int] = set()
            for item_id in ids:
                keys |= {self.items.key(item_id), *self.items.caption_keys(item_id)}
            gone = np.array(sorted(keys), np.int64)
            for store in (*self.indexes.values(), *self.features.values()):
                store.remove(gone)
            self.items.remove(gone.tolist())
        return len(gone)

    def take_changes(self, other: MemoryCollection, first_key: int, encode: Encode, keep: bool) -> None:
        """Remove and add what ``other`` did since its items got keys from ``first_key`` on."""
        gone = [item_id for key, item_id in other.items.removed if key < first_key]
        self.remove(dict.fromkeys(item_id for item_id in gone if item_id in self.items))
        new: dict[View, list[Item]] = {}
        rows: dict[View, Floats] = {}
        for view in TASK_OF:
            keys = other.items.keys(view)
            keys = keys[keys >= first_key]
            if len(keys):
                new[view] = [item for key in keys.tolist() if (item := other.items.get(key)) is not None]
                rows[view] = other.features_of(view, keys, encode)
        self.add(lambda unused: new, rows, keep)

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
        packs: Packs = self._remembered("packs", self.indexes["annotate"], self._packed)
        vectors = self.embedding.queries(queries, "annotate")
        inner, rows = packs.index.search(vectors, min(k, len(packs.images)))
        scores = self.embedding.scores(inner, vectors)
        found = [
            [self._pack(packs.images[r], s, vectors[q]) for r, s in zip(*pair, strict=True) if r >= 0]
            for q, pair in enumerate(zip(rows.tolist(), scores.tolist(), strict=True))
        ]
        # Captions may have been removed since the packs were made.
        return [[pack for pack in own if pack.captions] for own in found]

    def kept_features(self, view: View, ids: list[str]) -> Floats | None:
        """Features of items as they were kept, in the order of ``ids``; None if one of them is gone."""
        keys = np.array([self.items.key(item_id) for item_id in ids], np.int64)
        ascending, place = np.unique(keys, return_inverse=True)
        rows = np.asarray(self.features[view].vectors_of(ascending).vectors, np.float32)
        return rows[place] if len(rows) == len(ascending) else None

    def features_of(self, view: View, keys: Keys, encode: Encode) -> Floats:
        """Features of items: those that were kept, or made anew. ``keys`` ascend."""
        if view in self.features:
            return np.asarray(self.features[view].vectors_of(keys).vectors, np.float32)
        return encode(view, [item for key in keys.tolist() if (item := self.items.get(key))])

    def new_pairs(self) -> list[tuple[int, int]]:
        """Keys of pictures and sentences that were added as pairs since the model was fitted."""
        return [
            (self.items.key(item.image), key)
            for key, item in self.items
            if key >= self.learned and item.image is not None and item.image in self.items
        ]

    def training_moments(self) -> Moments | None:
        """Moments of the pairs that the model was fitted on."""
        return self.fitted.moments

    def refitted(self, learn: Learn, encode: Encode) -> MemoryCollection:
        """The same items under another model."""
        fitted = learn(self)

        def of(view: View, keys: Keys) -> Floats:
            return self.features_of(view, keys, encode)

        dtype = str(self.indexes["search"].dtype)
        return MemoryCollection.of(fitted, self.items, self.features, of, dtype, self._kind)

    def write(self, folder: Path, hkse: HKSE | None, model_folder: Path, same: Path | None) -> dict[str, Any]:
        """Write everything; returns what the config is to say."""
        said = write_model(folder, self.fitted, self.fitted.moments, hkse, same)
        return said | write_index(folder, self.items, self.indexes, self.features, self.learned, model_folder)

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
        check_where(where)
        if isinstance(where, Mapping):
            if len(self.items):
                for key in wanted(where):
                    if not self.items.has_metadata(key):
                        raise unknown_key(key, self.items.metadata_keys())
            # Looking at every item takes longer than a search, and the same filter is often asked again.
            fits, name = matcher(where), (view, json.dumps(wanted(where), sort_keys=True))
            found: Keys = self._remembered(
                name, self.indexes[TASK_OF[view]], lambda: self._fitting(view, fits)
            )
            return found
        if callable(where):
            return self._fitting(view, where)
        keys = [key for key in map(self.items.key, ids_in(where)) if self.items.is_of(key, view)]
        return np.unique(np.array(keys, np.int64))

    def _fitting(self, view: View, fits: Callable[[Item], bool]) -> Keys:
        keys = [key for key, item in self.items if item.view == view and fits(item)]
        return np.unique(np.array(keys, np.int64))

    def _reweighted(self, task: Task, weighting: Weighting) -> tuple[Embedding, VectorIndex]:
        """The items of a task under another weighting of the same model."""
        other = self.embedding.under(weighting)
        index = VectorIndex(self.indexes[task].dimension)
        for chunk in self.indexes[task].chunks():
            index.add(chunk.keys, other.reweighted(chunk.vectors, chunk.norms, task, self.embedding))
        return other, index

    def _packed(self) -> Packs:
        index = self.indexes["annotate"]
        owner = {key: item.image for key, item in self.items if item.image is not None}
        return make_packs(owner, self.embedding, index.chunks(), index.dimension)

    def _pack(self, image: str, score: float, vector: Floats) -> Pack:
        own, index = np.array(self.items.caption_keys(image), np.int64), self.indexes["annotate"]
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
