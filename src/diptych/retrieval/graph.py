"""An HNSW graph over vectors: searches that look at a few of them only, and may miss some."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np

from diptych.checks import InputError

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
