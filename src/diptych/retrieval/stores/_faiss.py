"""Vectors in memory, searched by inner product with FAISS: exactly, or through an HNSW graph.

Vectors lie in chunks that never change once readers can see them. A writer makes new chunks and swaps the
tuple that holds them, so a reader with the old tuple finishes on it undisturbed. Chunks may be slices of a
memory-mapped file, a removal copies one chunk only, and FAISS searches each chunk where it lies.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import faiss
import numpy as np

from diptych._checks import InputError, check_choice
from diptych.retrieval.stores._base import FIRST_STEP, Floats, Keys, measure_recall, search_in_steps

DTYPES = ("float32", "float16")

CHUNK_BYTES = 2**25
"""Of float32: large enough for FAISS to run at full speed, small enough to copy at a removal."""

_CANDIDATES = 128  # that a search through a graph keeps: more find more, and take longer
_EFFORT = 200  # candidates while a graph is built
_MERGE_AT = 32  # results of chunks that are kept before they are merged
_FEW = 0.1  # share of allowed items below which all of them are compared, graph or not
_MANY = 0.3  # share of allowed items above which one query is compared with all: reading in order is faster

if hasattr(os, "register_at_fork"):
    # GNU's OpenMP does not survive a fork: a child that uses its threads waits for them forever.
    os.register_at_fork(after_in_child=lambda: faiss.omp_set_num_threads(1))


@dataclass(frozen=True, eq=False)
class Graph:
    """An HNSW graph, which never changes: items added after it was built are searched beside it."""

    index: Any  # FAISS's graph, with its own copy of the vectors
    keys: Keys  # of its vectors, ascending
    recall: float = float("nan")  # share of the exact ten best that it returned when it was built

    @classmethod
    def build(cls, chunks: Sequence[Chunk], neighbours: int) -> Graph:
        """Build a graph over chunks of vectors, of which there is one at least."""
        dimension = chunks[0].vectors.shape[1]
        if chunks[0].vectors.dtype == np.float16:
            kind = faiss.ScalarQuantizer.QT_fp16
            index = faiss.IndexHNSWSQ(dimension, kind, neighbours, faiss.METRIC_INNER_PRODUCT)
            index.is_trained = True  # a float16 quantiser has nothing to learn
        else:
            index = faiss.IndexHNSWFlat(dimension, neighbours, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = _EFFORT
        for chunk in chunks:
            index.add(np.ascontiguousarray(chunk.vectors, np.float32))
        return cls(index, _join_keys(chunk.keys for chunk in chunks))

    def search(self, queries: Floats, k: int, allowed: Keys | None) -> tuple[Floats, Keys]:
        """Return the largest inner products it finds and their keys, only of ``allowed`` keys (None: all)."""
        options: dict[str, Any] = {"efSearch": _CANDIDATES if k <= FIRST_STEP else 2 * k}
        if allowed is not None and len(allowed) < len(self.keys):
            mask = np.zeros(len(self.keys), np.bool_)
            mask[_rows_of(self.keys, allowed)] = True
            bits = np.packbits(mask, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(len(self.keys), faiss.swig_ptr(bits))
        scores, rows = self.index.search(queries, k, params=faiss.SearchParametersHNSW(**options))
        return scores, np.where(rows < 0, -1, self.keys[np.maximum(rows, 0)])

    def write(self, path: str | os.PathLike[str]) -> None:
        try:
            faiss.write_index(self.index, os.fspath(path))
        except RuntimeError as error:  # such as that of a full disk
            reason = str(error).splitlines()[-1]
            raise OSError(f"{path} could not be written ({reason[:200]})") from None

    @classmethod
    def read(cls, path: str | os.PathLike[str], keys: Keys, dimension: int) -> Graph:
        """Read what ``write`` wrote. FAISS does not check every link, so only read files you trust."""
        try:
            index = faiss.read_index(os.fspath(path))
        except RuntimeError as error:
            raise InputError(
                f"{path} is not a FAISS file ({str(error).splitlines()[-1][:120]}); load without "
                "trust_graph, and the graph is built again."
            ) from None
        if index.ntotal != len(keys) or index.d != dimension:
            raise InputError(
                f"{path} holds {index.ntotal} vectors of {index.d} columns; expected {len(keys)} of "
                f"{dimension}. Load without trust_graph, and the graph is built again."
            )
        return cls(index, np.asarray(keys, np.int64))


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some vectors and their keys, ascending."""

    vectors: Floats
    keys: Keys

    def __len__(self) -> int:
        return len(self.keys)

    def at(self, rows: Any) -> Chunk:
        """Return some of the rows."""
        return Chunk(self.vectors[rows], self.keys[rows])


class VectorIndex:
    """Vectors under integer keys, searched by inner product; float16 takes half the memory, and more time.

    Examples
    --------
    >>> index = VectorIndex(2)
    >>> index.add(np.array([7, 9]), np.eye(2, dtype=np.float32))
    >>> scores, keys = index.search(np.array([[0.6, 0.8]], np.float32), 1)
    >>> keys.tolist()
    [[9]]
    """

    def __init__(self, dimension: int, dtype: str = "float32") -> None:
        check_choice(dtype, DTYPES, "dtype")
        self.dimension, self.dtype = dimension, np.dtype(dtype)
        self._chunk_rows = max(1024, CHUNK_BYTES // (4 * max(1, dimension)))
        self.graph: Graph | None = None  # that searches use
        self._chunks: tuple[Chunk, ...] = ()
        self._spare: Chunk | None = None  # the last chunk's memory, with room for more
        self._lock = threading.Lock()

    @classmethod
    def of(cls, vectors: Floats, keys: Keys, rows: Keys | None = None) -> VectorIndex:
        """Return an index over arrays as they lie, memory-mapped ones included.

        ``rows`` are those of the keys, ascending; None: all rows. Where some are missing, a chunk is copied.
        """
        index = cls(int(vectors.shape[1]), str(vectors.dtype))
        step, rows = index._chunk_rows, np.arange(len(keys)) if rows is None else rows
        chunks = []
        for some in (slice(start, start + step) for start in range(0, len(keys), step)):
            first, last = int(rows[some][0]), int(rows[some][-1])
            whole = last - first + 1 == len(rows[some])
            chunks.append(Chunk(vectors[first : last + 1] if whole else vectors[rows[some]], keys[some]))
        index._chunks = tuple(chunks)
        return index

    def __len__(self) -> int:
        return sum(map(len, self._chunks))

    @property
    def keys(self) -> Keys:
        """All keys, ascending."""
        return _join_keys(chunk.keys for chunk in self._chunks)

    def chunks(self) -> tuple[Chunk, ...]:
        """Return all chunks; they stay as they are while others add and remove."""
        return self._chunks

    def add(self, keys: Keys, vectors: Floats, replacing: Keys | None = None) -> None:
        """Add vectors under new keys, each greater than any before it; remove others in the same step."""
        keys = np.asarray(keys, np.int64)
        if vectors.shape != (len(keys), self.dimension):
            raise InputError(
                f"got vectors of shape {list(vectors.shape)} for {len(keys)} keys of an index with "
                f"{self.dimension} columns."
            )
        new = Chunk(self.convert(vectors), keys)
        with self._lock:
            chunks = list(self._chunks if replacing is None else self._without(replacing))
            last = int(chunks[-1].keys[-1]) if chunks else -1
            if len(keys) and (int(keys[0]) <= last or np.any(np.diff(keys) <= 0)):
                raise InputError(f"the key {int(keys[0])} does not follow {last}; keys must ascend.")
            done = 0
            while done < len(keys):
                done += self._append(chunks, new.at(slice(done, None)))
            self._chunks = tuple(chunks)

    def convert(self, vectors: Floats) -> Floats:
        """Return vectors as they are stored; an ``InputError`` if float16 has no such large numbers."""
        with np.errstate(over="ignore"):
            stored = np.asarray(vectors, self.dtype)
        if stored.dtype == np.float16 and np.isinf(stored).any():
            raise InputError("a vector has numbers too large for dtype=float16; choose float32.")
        return stored

    def remove(self, keys: Keys) -> int:
        """Remove vectors; return how many."""
        with self._lock:
            before = len(self)
            self._chunks = tuple(self._without(keys))
            return before - len(self)

    def search(
        self, queries: Floats, k: int, *, allowed: Keys | None = None, exact: bool = False
    ) -> tuple[Floats, Keys]:
        """Return the ``k`` largest inner products of each query, descending, and their keys.

        If there are fewer than ``k``, keys of −1 follow. Equal products are ordered by key. Only ``allowed``
        keys count, which ascend; None: all. ``exact``: compare all of them, graph or not.
        """
        chunks, graph = self._chunks, None if exact else self.graph
        queries = np.ascontiguousarray(queries, np.float32)
        if graph is None or (allowed is not None and len(allowed) < _FEW * len(graph.keys)):
            return _search_chunks(chunks, queries, k, allowed)

        if k <= FIRST_STEP:  # as below, in one step
            scores, keys = _search_graph(chunks, graph, queries, FIRST_STEP, allowed)
            return scores[:, :k], keys[:, :k]

        def search(places: list[int], size: int) -> list[list[tuple[float, int]]]:
            scores, keys = _search_graph(chunks, graph, queries[places], size, allowed)
            return [
                [(score, key) for score, key in zip(*row, strict=True) if key >= 0]
                for row in zip(scores.tolist(), keys.tolist(), strict=True)
            ]

        scores = np.full((len(queries), k), -np.inf, np.float32)
        keys = np.full((len(queries), k), -1, np.int64)
        for place, row in enumerate(search_in_steps(search, lambda hit: hit[1], len(queries), k)):
            if row:
                scores[place, : len(row)], keys[place, : len(row)] = zip(*row, strict=True)
        return scores, keys

    def build_graph(self, queries: Floats | None = None, *, neighbours: int = 32) -> Graph:
        """Build an HNSW graph over all vectors, and measure its recall against exact search.

        ``queries`` are compared for that; None: a sample of the vectors. ``neighbours`` are the links of each
        vector.
        """
        chunks = self._chunks
        if not chunks:
            raise InputError("the index is empty; add items before a graph is built.")
        graph = Graph.build(chunks, neighbours)
        if queries is None:
            queries = chunks[0].vectors[:: max(1, len(chunks[0]) // 200)][:200]
        queries = np.ascontiguousarray(queries, np.float32)
        k = min(10, len(graph.keys))
        exact, approximate = _search_chunks(chunks, queries, k, None)[1], graph.search(queries, k, None)[1]
        self.graph = replace(graph, recall=measure_recall(exact.tolist(), approximate.tolist()))
        return self.graph

    def vectors_of(self, keys: Keys) -> Floats:
        """Return the vectors under some keys, which ascend; keys without a vector are left out."""
        parts = [chunk.vectors[_rows_of(chunk.keys, keys)] for chunk in self._chunks]
        return np.concatenate(parts) if parts else np.empty((0, self.dimension), self.dtype)

    def last_coordinates(self, keys: Keys) -> Floats:
        """Return the last coordinate of the vectors under keys of any order; 0 for those without a vector."""
        wanted, places = np.unique(keys, return_inverse=True)
        last = np.zeros(len(wanted), np.float32)
        for chunk in self._chunks:
            rows = _rows_of(chunk.keys, wanted)
            last[np.searchsorted(wanted, chunk.keys[rows])] = chunk.vectors[rows, -1]
        return last[places].reshape(keys.shape)

    def _without(self, keys: Keys) -> Sequence[Chunk]:
        """Return the chunks without some keys; the caller holds the lock, and puts them in use."""
        unwanted = np.unique(np.asarray(keys, np.int64))
        kept: list[Chunk] = []
        removed = 0
        for chunk in self._chunks:
            stays = np.isin(chunk.keys, unwanted, assume_unique=True, invert=True)
            lost = len(chunk) - int(np.count_nonzero(stays))
            removed += lost
            rest = chunk.at(stays) if lost else chunk
            # Chunks that have become small are joined, so that their number follows the items'.
            if kept and len(kept[-1]) + len(rest) <= self._chunk_rows // 2:
                rest = _join(kept.pop(), rest)
            if len(rest):
                kept.append(rest)
        if not removed:
            return self._chunks
        self._spare = None
        return kept

    def _append(self, chunks: list[Chunk], more: Chunk) -> int:
        """Put as much of ``more`` as fits into the last chunk, or into a new one; return how much."""
        spare = self._spare
        used = len(chunks[-1]) if spare is not None else 0
        if spare is None or used == self._chunk_rows:
            spare = self._spare = Chunk(
                np.empty((self._chunk_rows, self.dimension), self.dtype),
                np.empty(self._chunk_rows, np.int64),
            )
            used = 0
        else:
            chunks.pop()
        n = min(self._chunk_rows - used, len(more))
        # Readers see no further than their own chunk reaches, so the room behind it may be written.
        spare.vectors[used : used + n], spare.keys[used : used + n] = more.vectors[:n], more.keys[:n]
        chunks.append(spare.at(slice(0, used + n)))
        return n


def _join(first: Chunk, second: Chunk) -> Chunk:
    vectors = np.concatenate([first.vectors, second.vectors])
    return Chunk(vectors, np.concatenate([first.keys, second.keys]))


def _join_keys(parts: Iterable[Keys]) -> Keys:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _search_graph(
    chunks: tuple[Chunk, ...], graph: Graph, queries: Floats, k: int, allowed: Keys | None
) -> tuple[Floats, Keys]:
    """Return what the graph finds, and what was added after it was built; fewer than ``k`` only if all."""
    # Items that were added after the graph was built are compared exactly.
    last = int(graph.keys[-1])
    bounds = [int(np.searchsorted(chunk.keys, last, "right")) for chunk in chunks]
    newer = tuple(c.at(slice(b, None)) for c, b in zip(chunks, bounds, strict=True) if b < len(c))
    present = _join_keys(c.keys[:b] for c, b in zip(chunks, bounds, strict=True))
    if allowed is not None:
        present = present[_rows_of(present, allowed)]
    results = [_order(*graph.search(queries, k, present)), _search_chunks(newer, queries, k, allowed)]
    scores, keys = _merge(results, k)
    short = np.flatnonzero(keys[:, k - 1] < 0)
    if len(short):
        scores[short], keys[short] = _search_chunks(chunks, queries[short], k, allowed)
    return scores, keys


def _rows_of(keys: Keys, wanted: Keys) -> Keys:
    """Return the places among ``keys`` of those that are wanted; both ascend."""
    if not len(keys):
        return np.empty(0, np.int64)
    first, last = np.searchsorted(wanted, (keys[0], keys[-1] + 1))
    wanted = wanted[first:last]
    if keys[-1] - keys[0] == len(keys) - 1:  # no key is missing between them
        rows: Keys = wanted - keys[0]
    else:
        rows = np.searchsorted(keys, wanted)
        rows = rows[keys[rows] == wanted]
    return rows


def _search_chunks(
    chunks: tuple[Chunk, ...], queries: Floats, k: int, allowed: Keys | None
) -> tuple[Floats, Keys]:
    results: list[tuple[Floats, Keys]] = []
    for chunk in chunks:
        among = None if allowed is None else _rows_of(chunk.keys, allowed)
        if among is not None and len(among) == len(chunk):
            among = None
        elif among is not None and (len(queries) != 1 or chunk.vectors.dtype != np.float32):
            chunk, among = chunk.at(among), None  # one copy for all queries
        n = min(k, len(chunk) if among is None else len(among))
        if n == 0:
            continue
        scores, rows = _nearest(queries, np.ascontiguousarray(chunk.vectors, np.float32), n, among)
        # FAISS gives −1 where a score is not a number.
        results.append((scores, np.where(rows < 0, -1, chunk.keys[np.maximum(rows, 0)])))
        if len(results) == _MERGE_AT:
            results = [_merge(results, k)]
    return _merge(results, k, len(queries))


def _nearest(queries: Floats, vectors: Floats, k: int, among: Keys | None) -> tuple[Floats, Keys]:
    """Return the ``k`` largest inner products with rows of ``vectors``; of equal ones, the first rows.

    Only the rows ``among`` count; None: all.
    """
    # FAISS drops any of the equal scores at the end of its list, so more are requested until none is cut off.
    available = len(vectors) if among is None else len(among)
    wanted = min(k + 1, available)
    scores, rows = _order(*_compare(queries, vectors, wanted, among))
    best, places = scores[:, :k], rows[:, :k]
    tied = np.flatnonzero((rows[:, -1] >= 0) & (scores[:, -1] == scores[:, k - 1]))
    while wanted < available and len(tied):
        wanted = min(4 * wanted, available)
        scores, rows = _order(*_compare(queries[tied], vectors, wanted, among))
        best[tied], places[tied] = scores[:, :k], rows[:, :k]
        tied = tied[scores[:, -1] == scores[:, k - 1]]
    return best, places


def _compare(queries: Floats, vectors: Floats, k: int, among: Keys | None) -> tuple[Floats, Keys]:
    if among is None:
        scores, rows = faiss.knn(queries, vectors, k, faiss.METRIC_INNER_PRODUCT)
        return scores, rows
    # One query: ``faiss.knn`` computes the same products, but takes no selector.
    n, dimension = vectors.shape
    inputs = faiss.swig_ptr(queries), faiss.swig_ptr(vectors)
    if len(among) > _MANY * n:
        products = np.empty(n, np.float32)
        faiss.fvec_inner_products_ny(faiss.swig_ptr(products), *inputs, dimension, n)
        products = products[among]
        products[np.isnan(products)] = -np.inf
        places = np.argpartition(products, len(among) - k)[len(among) - k :]
        scores, rows = products[places], np.where(np.isneginf(products[places]), -1, among[places])
        return scores[None], rows[None]
    scores, rows = np.empty((1, k), np.float32), np.empty((1, k), np.int64)
    selector = faiss.IDSelectorArray(len(among), faiss.swig_ptr(among))
    outputs = faiss.swig_ptr(scores), faiss.swig_ptr(rows)
    faiss.knn_inner_product(*inputs, dimension, 1, n, k, *outputs, selector)
    return scores, rows


def _order(scores: Floats, keys: Keys) -> tuple[Floats, Keys]:
    """Return results with scores descending, equal ones ordered by key; FAISS's are, but for equal ones."""
    rows = np.flatnonzero((scores[:, :-1] <= scores[:, 1:]).any(axis=1))
    if len(rows):
        order = np.lexsort((keys[rows], -scores[rows]), axis=1)
        scores, keys = scores.copy(), keys.copy()
        scores[rows] = np.take_along_axis(scores[rows], order, 1)
        keys[rows] = np.take_along_axis(keys[rows], order, 1)
    return scores, keys


def _merge(results: list[tuple[Floats, Keys]], k: int, rows: int = 0) -> tuple[Floats, Keys]:
    """Return the ``k`` best of several results, filled up with keys of −1.

    Each is ordered as ``_order`` does, and has greater keys than those before it.
    """
    rows = len(results[0][0]) if results else rows
    filler = np.full((rows, k), -np.inf, np.float32), np.full((rows, k), -1, np.int64)
    scores, keys = (np.concatenate(parts, axis=1) for parts in zip(*results, filler, strict=True))
    scores = np.where(keys < 0, -np.inf, scores)
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    scores, keys = np.take_along_axis(scores, order, 1), np.take_along_axis(keys, order, 1)
    if np.isposinf(scores[:, :1]).any():  # files that are mapped are not read when they are loaded
        raise InputError("a stored vector is not finite, so its file is damaged; save the model again.")
    return scores, keys
