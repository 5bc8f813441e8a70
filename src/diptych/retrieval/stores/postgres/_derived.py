"""What is made of all vectors, and held in this process until they change: packs, other weightings."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from psycopg import sql

from diptych._checks import InputError, Task
from diptych.cca._weighting import Weighting
from diptych.retrieval._embedding import Embedding, Packs, make_packs
from diptych.retrieval.stores._base import Floats
from diptych.retrieval.stores._faiss import VectorIndex
from diptych.retrieval.stores.postgres._connection import Address, Connection
from diptych.retrieval.stores.postgres._items import Condition, items_under
from diptych.retrieval.stores.postgres._schema import Tables
from diptych.retrieval.stores.postgres._vectors import all_vectors
from diptych.retrieval.stores.postgres._versions import Version, current_number

REMEMBERED = 4
"""Other weightings, and packs, that are held at a time."""


class Derived:
    """Made within a snapshot of the database, and made again when there were changes.

    Parameters
    ----------
    address
        Says how much memory it may take.
    """

    def __init__(self, address: Address) -> None:
        self._address, self._lock = address, threading.Lock()
        self._held: dict[Any, tuple[tuple[Any, int], Any]] = {}

    def packs(self, connection: Connection, version: Version) -> Packs:
        """The captions of each picture as one vector."""

        def make() -> Packs:
            owners = sql.SQL("SELECT key, image FROM {} WHERE image IS NOT NULL").format(version.tables.items)
            owner = dict(connection.execute(owners).fetchall())
            dimension = version.embedding.dimension("annotate")
            chunks = list(all_vectors(connection, version.tables, "annotate", dimension, version.dtype))
            return make_packs(owner, version.embedding, chunks, dimension)

        found: Packs = self._remembered("packs", connection, version, "annotate", make)
        return found

    def reweighted(
        self, connection: Connection, version: Version, task: Task, weighting: Weighting
    ) -> tuple[Embedding, VectorIndex]:
        """The items of a task under another weighting of the same model."""
        other, dimension = version.embedding.under(weighting), version.embedding.dimension(task)

        def make() -> VectorIndex:
            index = VectorIndex(dimension)
            for chunk in all_vectors(connection, version.tables, task, dimension, version.dtype):
                again = other.reweighted(chunk.vectors, chunk.norms, task, version.embedding)
                index.add(chunk.keys, again)
            return index

        return other, self._remembered((task, weighting), connection, version, task, make)

    def _remembered(
        self, name: Any, connection: Connection, version: Version, task: Task, make: Callable[[], Any]
    ) -> Any:
        when = current_number(connection, version.tables.schema)
        with self._lock:
            held = self._held.get(name)
            if held is None or held[0] != when:
                self._check_size(connection, version, task)
                held = self._held[name] = (when, make())
                if len(self._held) > REMEMBERED:
                    del self._held[next(iter(self._held))]
            return held[1]

    def _check_size(self, connection: Connection, version: Version, task: Task) -> None:
        statement = sql.SQL("SELECT count(*) FROM {}").format(version.tables.vectors(task))
        row = connection.execute(statement).fetchone()
        size = 4 * (row[0] if row else 0) * version.embedding.dimension(task)
        if size > self._address.max_memory:
            raise InputError(
                f"this needs all vectors in memory, {size} bytes; at most {self._address.max_memory} are "
                "read. Allow more with ?max_memory=."
            )


def searched_here(
    connection: Connection,
    tables: Tables,
    index: VectorIndex,
    queries: Floats,
    k: int,
    condition: Condition | None,
) -> list[list[tuple[Any, ...]]]:
    """For each query, the rows of the best items of an index in this process, and the inner product."""
    allowed = None
    if condition is not None:
        statement = sql.SQL("SELECT key FROM {} WHERE {} ORDER BY key").format(tables.items, condition[0])
        rows = connection.execute(statement, condition[1]).fetchall()
        allowed = np.array([row[0] for row in rows], np.int64)
    inner, keys = index.search(queries, min(k, max(1, len(index))), allowed=allowed)
    items = items_under(connection, tables, np.unique(keys[keys >= 0]))
    return [
        [(*items[key], score) for key, score in zip(*pair, strict=True) if key in items]
        for pair in zip(keys.tolist(), inner.tolist(), strict=True)
    ]
