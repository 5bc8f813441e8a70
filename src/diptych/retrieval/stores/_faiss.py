"""An HNSW graph over vectors: searches that look at a few of them only, and may miss some.

Exact search by inner product over vectors that come and go, for any number of readers at once.

Vectors lie in chunks that are never changed once they can be seen: a writer makes new chunks and swaps the
tuple that holds them, so a reader that took the old tuple finishes on it undisturbed. Chunks may be slices
of a memory-mapped file, removing an item copies one chunk only, and FAISS searches each where it lies.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import faiss
import numpy as np

from diptych._checks import InputError, check_choice

DEFAULT_EF = 128
"""Candidates that a search keeps in hand: more find more, and take longer."""


@dataclass(frozen=True, eq=False)
class Graph:
    """An HNSW graph, never changed once built: items that come later are searched beside it.

    Attributes
    ----------
    index
        FAISS's graph with its own copy of the vectors.
    keys
        The key of each of its vectors, ascending.
    recall
        Share of the exact ten best that it found when it was built.
    """

    index: Any
    keys: np.ndarray[Any, np.dtype[np.int64]]
    recall: float = float("nan")

    @classmethod
    def build(
        cls,
        blocks: Iterable[np.ndarray[Any, Any]],
        keys: np.ndarray[Any, Any],
        *,
        half: bool = False,
        neighbours: int = 32,
        effort: int = 200,
    ) -> Graph:
        """Build over blocks of float32 vectors; ``half`` keeps them as float16."""
        index: Any = None
        for block in blocks:
            if index is None:
                index = _empty(block.shape[1], half, neighbours)
                index.hnsw.efConstruction = effort
            index.add(np.ascontiguousarray(block, np.float32))
        return cls(index, np.asarray(keys, np.int64))

    def search(
        self,
        queries: np.ndarray[Any, Any],
        k: int,
        present: np.ndarray[Any, np.dtype[np.int64]] | None,
        *,
        ef: int = DEFAULT_EF,
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, np.dtype[np.int64]]]:
        """The largest inner products found, and their keys; only keys in ``present`` count (None: all)."""
        options: dict[str, Any] = {"efSearch": max(ef, 2 * k)}
        if present is not None and len(present) < len(self.keys):
            allowed = np.isin(self.keys, present, assume_unique=True)
            bits = np.packbits(allowed, bitorder="little")
            options["sel"] = faiss.IDSelectorBitmap(len(self.keys), faiss.swig_ptr(bits))
        scores, rows = self.index.search(queries, k, params=faiss.SearchParametersHNSW(**options))
        return scores, np.where(rows < 0, -1, self.keys[np.maximum(rows, 0)])

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write FAISS's own file."""
        faiss.write_index(self.index, os.fspath(path))

    @classmethod
    def read(
        cls, path: str | os.PathLike[str], keys: np.ndarray[Any, Any], dimension: int, recall: float
    ) -> Graph:
        """Read what ``write`` wrote. FAISS does not check every link, so only read files you trust."""
        try:
            index = faiss.read_index(os.fspath(path))
        except RuntimeError as error:
            raise InputError(
                f"{path} is no FAISS file ({str(error).splitlines()[-1][:120]}); load without trusting it, "
                "and the graph is built anew."
            ) from None
        if index.ntotal != len(keys) or index.d != dimension:
            raise InputError(
                f"{path} holds {index.ntotal} vectors of {index.d} columns; expected {len(keys)} of "
                f"{dimension}. Load without trusting it, and the graph is built anew."
            )
        return cls(index, np.asarray(keys, np.int64), recall)


def _empty(dimension: int, half: bool, neighbours: int) -> Any:
    if half:
        kind = faiss.ScalarQuantizer.QT_fp16
        index = faiss.IndexHNSWSQ(dimension, kind, neighbours, faiss.METRIC_INNER_PRODUCT)
        # A float16 quantiser has nothing to learn.
        index.is_trained = True
        return index
    return faiss.IndexHNSWFlat(dimension, neighbours, faiss.METRIC_INNER_PRODUCT)


Floats: TypeAlias = np.ndarray[Any, Any]
Keys: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

DTYPES = ("float32", "float16")
CHUNK_BYTES = 2**24
"""Of float32: large enough for FAISS to run at full speed, small enough to copy when an item goes."""

if hasattr(os, "register_at_fork"):
    # GNU's OpenMP does not survive a fork: a child that asks for its threads waits for them for ever.
    os.register_at_fork(after_in_child=lambda: faiss.omp_set_num_threads(1))

_MERGE_AT = 32  # chunks whose best are kept before they are merged
_FEW = 0.1  # share of items allowed by a filter below which all of them are looked at, graph or not


@dataclass(frozen=True, eq=False)
class Chunk:
    """Some vectors, the length each had before it was scaled, and their keys, ascending."""

    vectors: Floats
    norms: Floats
    keys: Keys

    def __len__(self) -> int:
        return len(self.keys)

    def at(self, rows: Any) -> Chunk:
        """Some of the rows."""
        return Chunk(self.vectors[rows], self.norms[rows], self.keys[rows])


@dataclass(frozen=True, eq=False)
class _State:
    chunks: tuple[Chunk, ...] = ()
    graph: Graph | None = None
    version: int = 0


class VectorIndex:
    """Vectors under integer keys, searched by inner product.

    Parameters
    ----------
    dimension
        Columns of the vectors.
    dtype
        ``"float32"``, or ``"float16"``: half the memory, at the price of a conversion in every search.

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
        self._state = _State()
        self._spare: Chunk | None = None  # the last chunk's memory, with room for more
        self._lock = threading.Lock()

    @classmethod
    def of(cls, vectors: Floats, norms: Floats, keys: Keys) -> VectorIndex:
        """An index over arrays as they lie, memory-mapped ones included."""
        index = cls(int(vectors.shape[1]), str(vectors.dtype))
        step = index._chunk_rows
        starts = range(0, len(keys), step)
        whole = Chunk(vectors, norms, keys)
        index._state = _State(tuple(whole.at(slice(s, s + step)) for s in starts))
        return index

    def __len__(self) -> int:
        return sum(map(len, self._state.chunks))

    @property
    def version(self) -> int:
        """Changes with every addition and removal."""
        return self._state.version

    @property
    def graph(self) -> Graph | None:
        """What makes searches approximate and fast, if there is one."""
        return self._state.graph

    @property
    def keys(self) -> Keys:
        """All keys, ascending."""
        chunks = self._state.chunks
        return np.concatenate([c.keys for c in chunks]) if chunks else np.empty(0, np.int64)

    def chunks(self) -> tuple[Chunk, ...]:
        """What there is now; it stays as it is while others add and remove."""
        return self._state.chunks

    def add(self, keys: Keys, vectors: Floats, norms: Floats | None = None) -> None:
        """Add vectors under new keys, each greater than any before it."""
        keys = np.asarray(keys, np.int64)
        if vectors.shape != (len(keys), self.dimension):
            raise InputError(
                f"{list(vectors.shape)} vectors cannot join an index of {self.dimension} columns "
                f"under {len(keys)} keys."
            )
        if len(keys) == 0:
            return
        norms = np.ones(len(keys), np.float32) if norms is None else np.asarray(norms, np.float32)
        given = Chunk(np.asarray(vectors, self.dtype), norms, keys)
        with self._lock:
            chunks = list(self._state.chunks)
            last = int(chunks[-1].keys[-1]) if chunks else -1
            if int(keys[0]) <= last or np.any(np.diff(keys) <= 0):
                raise InputError(f"the key {int(keys[0])} does not follow {last}; keys must ascend.")
            done = 0
            while done < len(keys):
                done += self._append(chunks, given.at(slice(done, None)))
            self._swap(tuple(chunks))

    def remove(self, keys: Keys) -> int:
        """Take vectors out; returns how many there were."""
        gone = np.unique(np.asarray(keys, np.int64))
        with self._lock:
            kept: list[Chunk] = []
            removed = 0
            for chunk in self._state.chunks:
                stays = np.isin(chunk.keys, gone, assume_unique=True, invert=True)
                lost = len(chunk) - int(np.count_nonzero(stays))
                removed += lost
                rest = chunk.at(stays) if lost else chunk
                # Chunks that have become small are joined, so that their number follows the items'.
                if kept and len(kept[-1]) + len(rest) <= self._chunk_rows // 2:
                    rest = _joined(kept.pop(), rest)
                if len(rest):
                    kept.append(rest)
            if removed:
                self._spare = None
                self._swap(tuple(kept))
        return removed

    def search(
        self, queries: Floats, k: int, *, allowed: Keys | None = None, exact: bool = False
    ) -> tuple[Floats, Keys]:
        """The ``k`` largest inner products of each query, descending, and their keys.

        Where there are fewer than ``k``, keys of −1 follow. Equal scores are ordered by key.

        Parameters
        ----------
        queries
            One row each.
        k
            How many.
        allowed
            Keys to choose among, ascending; None: all.
        exact
            Look at every vector, even where there is a graph.
        """
        state = self._state
        queries = np.ascontiguousarray(queries, np.float32)
        graph = None if exact else state.graph
        if graph is not None and allowed is not None and len(allowed) < _FEW * len(graph.keys):
            graph = None
        if graph is None:
            return _search_chunks(state.chunks, queries, k, allowed)
        # What was added after the graph was built is searched exactly.
        last = int(graph.keys[-1])
        newer = (c.at(slice(np.searchsorted(c.keys, last, "right"), None)) for c in state.chunks)
        tail = tuple(chunk for chunk in newer if len(chunk))
        present = _keys_up_to(state.chunks, last)
        if allowed is not None:
            present = np.intersect1d(present, allowed, assume_unique=True)
        found = graph.search(queries, k, present)
        scores, keys = _best([found, _search_chunks(tail, queries, k, allowed)], k)
        short = np.flatnonzero(keys[:, min(k, keys.shape[1]) - 1] < 0) if k else np.empty(0, np.int64)
        if len(short):
            scores[short], keys[short] = _search_chunks(state.chunks, queries[short], k, allowed)
        return scores, keys

    def build_graph(self, queries: Floats | None = None, *, neighbours: int = 32) -> Graph:
        """Build an HNSW graph over what there is now, and measure its recall against exact search.

        Parameters
        ----------
        queries
            To measure with; None: a sample of the vectors themselves.
        neighbours
            Links of each vector.
        """
        chunks = self.chunks()
        if not chunks:
            raise InputError("the index is empty; add items before a graph is built.")
        graph = Graph.build(
            (np.asarray(c.vectors, np.float32) for c in chunks),
            np.concatenate([c.keys for c in chunks]),
            half=self.dtype == np.float16,
            neighbours=neighbours,
        )
        if queries is None:
            step = max(1, len(chunks[0]) // 200)
            queries = np.asarray(chunks[0].vectors[::step][:200], np.float32)
        queries = np.ascontiguousarray(queries, np.float32)
        k = min(10, len(graph.keys))
        truth = _search_chunks(chunks, queries, k, None)[1]
        found = graph.search(queries, k, None)[1]
        hits = [len(np.intersect1d(a, b)) for a, b in zip(truth, found, strict=True)]
        self.take_graph(replace(graph, recall=sum(hits) / (k * len(queries))))
        assert self.graph is not None
        return self.graph

    def take_graph(self, graph: Graph) -> None:
        """Search through ``graph`` from now on."""
        with self._lock:
            self._state = replace(self._state, graph=graph)

    def vectors_of(self, keys: Keys) -> Chunk:
        """The vectors under some keys, in ascending order of key."""
        wanted = np.sort(np.asarray(keys, np.int64))
        parts = [c.at(np.isin(c.keys, wanted, assume_unique=True)) for c in self._state.chunks]
        parts = [part for part in parts if len(part)]
        if not parts:
            return Chunk(np.empty((0, self.dimension), self.dtype), np.empty(0, np.float32), wanted[:0])
        whole = parts[0]
        for part in parts[1:]:
            whole = _joined(whole, part)
        return whole

    def _append(self, chunks: list[Chunk], more: Chunk) -> int:
        """Put as much of ``more`` as fits into the last chunk, or into a new one; returns how much."""
        spare = self._spare
        used = len(chunks[-1]) if spare is not None else 0
        if spare is None or used == self._chunk_rows:
            spare = self._spare = Chunk(
                np.empty((self._chunk_rows, self.dimension), self.dtype),
                np.empty(self._chunk_rows, np.float32),
                np.empty(self._chunk_rows, np.int64),
            )
            used = 0
        else:
            chunks.pop()
        n = min(self._chunk_rows - used, len(more))
        # Readers see no further than their own chunk reaches, so the room behind it may be written.
        for target, source in zip(_arrays(spare), _arrays(more), strict=True):
            target[used : used + n] = source[:n]
        chunks.append(spare.at(slice(0, used + n)))
        return n

    def _swap(self, chunks: tuple[Chunk, ...]) -> None:
        self._state = replace(self._state, chunks=chunks, version=self._state.version + 1)


def _arrays(chunk: Chunk) -> tuple[Any, Any, Any]:
    return chunk.vectors, chunk.norms, chunk.keys


def _joined(first: Chunk, second: Chunk) -> Chunk:
    return Chunk(*(np.concatenate(pair) for pair in zip(_arrays(first), _arrays(second), strict=True)))


def _keys_up_to(chunks: tuple[Chunk, ...], last: int) -> Keys:
    parts = [c.keys[: np.searchsorted(c.keys, last, "right")] for c in chunks]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _search_chunks(
    chunks: tuple[Chunk, ...], queries: Floats, k: int, allowed: Keys | None
) -> tuple[Floats, Keys]:
    found: list[tuple[Floats, Keys]] = []
    for chunk in chunks:
        part = chunk if allowed is None else _allowed_in(chunk, allowed)
        n = min(k, len(part))
        if n == 0:
            continue
        vectors = np.ascontiguousarray(part.vectors, np.float32)
        scores, rows = _nearest(queries, vectors, n)
        # FAISS gives −1 where a score is not a number.
        found.append((scores, np.where(rows < 0, -1, part.keys[np.maximum(rows, 0)])))
        if len(found) == _MERGE_AT:
            found = [_best(found, k)]
    return _best(found, k, len(queries))


def _nearest(queries: Floats, vectors: Floats, k: int) -> tuple[Floats, Keys]:
    """The ``k`` largest inner products with rows of ``vectors``; of equal ones, the first rows."""
    # Of equal scores at the end of its list FAISS drops any: it is asked for more until none is cut off.
    asked = min(k + 1, len(vectors))
    scores, rows = _in_order(*faiss.knn(queries, vectors, asked, faiss.METRIC_INNER_PRODUCT))
    best, places = scores[:, :k], rows[:, :k]
    open_ended = np.flatnonzero((rows[:, -1] >= 0) & (scores[:, -1] == scores[:, k - 1]))
    while asked < len(vectors) and len(open_ended):
        asked = min(4 * asked, len(vectors))
        more = faiss.knn(queries[open_ended], vectors, asked, faiss.METRIC_INNER_PRODUCT)
        scores, rows = _in_order(*more)
        best[open_ended], places[open_ended] = scores[:, :k], rows[:, :k]
        open_ended = open_ended[scores[:, -1] == scores[:, k - 1]]
    return best, places


def _in_order(scores: Floats, rows: Keys) -> tuple[Floats, Keys]:
    order = np.lexsort((rows, -scores), axis=1)
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def _allowed_in(chunk: Chunk, allowed: Keys) -> Chunk:
    first, last = np.searchsorted(allowed, (chunk.keys[0], chunk.keys[-1] + 1))
    if first == last:
        return chunk.at(slice(0, 0))
    return chunk.at(np.flatnonzero(np.isin(chunk.keys, allowed[first:last], assume_unique=True)))


def _best(found: list[tuple[Floats, Keys]], k: int, rows: int = 0) -> tuple[Floats, Keys]:
    """The ``k`` best of several results, filled up with keys of −1."""
    rows = len(found[0][0]) if found else rows
    filler = np.full((rows, k), -np.inf, np.float32), np.full((rows, k), -1, np.int64)
    scores, keys = (np.concatenate(parts, axis=1) for parts in zip(*found, filler, strict=True))
    scores = np.where(keys < 0, -np.inf, scores)
    order = np.lexsort((keys, -scores), axis=1)[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(keys, order, 1)
