"""SQL of vectors and features: in and out in binary, whole blocks at a time, and searched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pgvector import HalfVector, Vector
from psycopg import sql

from diptych._checks import TASKS, InputError, Task
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval.stores._base import Floats, Keys
from diptych.retrieval.stores._faiss import Chunk
from diptych.retrieval.stores.postgres._connection import Connection
from diptych.retrieval.stores.postgres._items import COLUMNS, Condition
from diptych.retrieval.stores.postgres._schema import MAX_GRAPH, Tables, compared

VECTOR_TYPES = {"float32": "vector", "float16": "halfvec"}
"""The type of a column of vectors, by its dtype."""

RERANKED = 4
"""For each answer, so many that a graph over halves finds are compared by their whole vectors."""

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_BLOCK = 2**22  # bytes handed to the driver at a time


def copy_vectors(
    connection: Connection, tables: Tables, task: Task, keys: Keys, vectors: Floats, norms: Floats, dtype: str
) -> None:
    """Put vectors in, in binary."""
    rows = np.zeros(len(keys), _vector_row(vectors.shape[1], dtype))
    rows["fields"], rows["key_size"], rows["norm_size"] = 3, 8, 4
    rows["size"], rows["dimension"] = 4 + rows["v"].dtype.itemsize * vectors.shape[1], vectors.shape[1]
    with np.errstate(over="ignore"):  # what float16 cannot hold, the server refuses
        rows["key"], rows["norm"], rows["v"] = keys, norms, vectors
    _copy_in(connection, sql.SQL("COPY {} (key, norm, v)").format(tables.vectors(task)), rows)


def copy_features(connection: Connection, tables: Tables, view: View, keys: Keys, rows: Floats) -> None:
    """Put features in, in binary."""
    width = rows.shape[1]
    found = np.zeros(
        len(keys),
        [("fields", ">i2"), ("key_size", ">i4"), ("key", ">i8"), ("size", ">i4"), ("row", "<f4", (width,))],
    )
    found["fields"], found["key_size"], found["size"] = 2, 8, 4 * width
    found["key"], found["row"] = keys, rows
    _copy_in(connection, sql.SQL("COPY {} (key, row)").format(tables.features(view)), found)


def all_vectors(
    connection: Connection, tables: Tables, task: Task, dimension: int, dtype: str
) -> Iterator[Chunk]:
    """All vectors of a task in the order of their keys, in chunks."""
    kind = _vector_row(dimension, dtype)
    statement = sql.SQL("COPY (SELECT key, norm, v FROM {} ORDER BY key) TO STDOUT (FORMAT BINARY)").format(
        tables.vectors(task)
    )
    waiting = bytearray()
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        begun = False
        for block in copy:
            waiting += block
            if not begun and len(waiting) >= len(_HEADER):
                del waiting[: len(_HEADER)]
                begun = True
            if begun and len(waiting) > max(_BLOCK, kind.itemsize):
                whole = len(waiting) // kind.itemsize * kind.itemsize
                yield _chunk(bytes(waiting[:whole]), kind, dimension)
                del waiting[:whole]
    yield _chunk(bytes(waiting[: -len(_TRAILER)]), kind, dimension)


def features_of(
    connection: Connection, tables: Tables, view: View, keys: Keys, width: int
) -> dict[int, Floats]:
    """Features by key, those that are there."""
    statement = sql.SQL("SELECT key, row FROM {} WHERE key = ANY(%s)").format(tables.features(view))
    with connection.cursor(binary=True) as cursor:
        return {key: _features(row, width) for key, row in cursor.execute(statement, [keys.tolist()])}


def feature_blocks(
    connection: Connection, tables: Tables, view: View, width: int, size: int
) -> Iterator[tuple[Keys, Floats]]:
    """All features of a view in the order of their keys, ``size`` at a time."""
    statement = sql.SQL("SELECT key, row FROM {} WHERE key > %s ORDER BY key LIMIT %s").format(
        tables.features(view)
    )
    last = -1
    with connection.cursor(binary=True) as cursor:
        while rows := cursor.execute(statement, [last, size]).fetchall():
            last = rows[-1][0]
            keys = np.array([key for key, _ in rows], np.int64)
            yield keys, np.stack([_features(row, width) for _, row in rows])


def delete_rows(connection: Connection, tables: Tables, keys: Sequence[int], *, features: bool) -> None:
    """Take vectors out, and features."""
    kept = [tables.features(view) for view in VIEWS] if features else []
    for table in (*(tables.vectors(task) for task in TASKS), *kept):
        connection.execute(sql.SQL("DELETE FROM {} WHERE key = ANY(%s)").format(table), [list(keys)])


def searched(
    connection: Connection,
    tables: Tables,
    task: Task,
    queries: Floats,
    k: int,
    condition: Condition | None,
    dtype: str,
    *,
    graph: bool,
) -> list[list[tuple[Any, ...]]]:
    """For each query, the rows of the best items: ``COLUMNS``, and the inner product."""
    where, values = condition or (sql.SQL("TRUE"), {})
    own = Vector if dtype == "float32" else HalfVector
    asked = [
        values | {"query": own(query), "k": min(k, 2**31), "more": RERANKED * min(k, 2**28)}
        for query in queries
    ]
    statement = _statement(tables, task, where, queries.shape[1], dtype, graph=graph)
    found = _answers(connection, statement, asked)
    if graph:
        # A graph may end before it has found as many as there are: then all of them are looked at.
        short = [i for i, rows in enumerate(found) if len(rows) < k]
        exact = _statement(tables, task, where, queries.shape[1], dtype, graph=False)
        for i, rows in zip(short, _answers(connection, exact, [asked[i] for i in short]), strict=True):
            found[i] = rows
    return found


def inner_products(
    connection: Connection, tables: Tables, query: Floats, images: Sequence[str], dtype: str
) -> list[tuple[Any, ...]]:
    """All captions of some pictures, best first: ``COLUMNS``, and the inner product."""
    statement = sql.SQL(
        "SELECT {columns}, -(f.v <#> %(query)b) AS score FROM {items} i JOIN {vectors} f USING (key) "
        "WHERE i.image = ANY(%(images)s) ORDER BY score DESC, key"
    ).format(columns=COLUMNS, items=tables.items, vectors=tables.vectors("annotate"))
    own = Vector if dtype == "float32" else HalfVector
    return connection.execute(statement, {"query": own(query), "images": list(images)}).fetchall()


def _statement(
    tables: Tables, task: Task, where: sql.Composable, dimension: int, dtype: str, *, graph: bool
) -> sql.Composed:
    kind = VECTOR_TYPES[dtype]
    # A graph is used where the order is that of its own operator, and nowhere else.
    inside: sql.Composable = sql.SQL("ORDER BY score DESC, key LIMIT %(k)s")
    source: sql.Composable = tables.vectors(task)
    if graph:
        nearest = sql.SQL("{} <#> {}").format(
            compared(kind, dimension, sql.Identifier("v")),
            compared(kind, dimension, sql.SQL("%(query)b")),
        )
        if kind == "vector" and dimension > MAX_GRAPH["vector"]:
            source = sql.SQL("(SELECT key, v FROM {} WHERE {} ORDER BY {} LIMIT %(more)s)").format(
                source, where, nearest
            )
            where = sql.SQL("TRUE")
        else:
            inside = sql.SQL("ORDER BY {} LIMIT %(k)s").format(nearest)
    return sql.SQL(
        "SELECT {columns}, f.score FROM (SELECT key, -(v <#> %(query)b) AS score FROM {source} c "
        "WHERE {where} {inside}) f JOIN {items} i USING (key) ORDER BY f.score DESC, key"
    ).format(columns=COLUMNS, source=source, where=where, inside=inside, items=tables.items)


def _answers(
    connection: Connection, statement: sql.Composed, asked: list[dict[str, Any]]
) -> list[list[tuple[Any, ...]]]:
    if not asked:
        return []
    with connection.cursor() as cursor:
        cursor.executemany(statement, asked, returning=True)
        found = [cursor.fetchall()]
        while cursor.nextset():
            found.append(cursor.fetchall())
    return found


def _vector_row(dimension: int, dtype: str) -> np.dtype[Any]:
    """A row of a table of vectors as PostgreSQL sends it."""
    number = ">f4" if dtype == "float32" else ">f2"
    return np.dtype(
        [
            *(("fields", ">i2"), ("key_size", ">i4"), ("key", ">i8"), ("norm_size", ">i4"), ("norm", ">f4")),
            *(("size", ">i4"), ("dimension", ">i2"), ("unused", ">i2"), ("v", number, (dimension,))),
        ]
    )


def _chunk(content: bytes, kind: np.dtype[Any], dimension: int) -> Chunk:
    rows = np.frombuffer(content, kind) if len(content) % kind.itemsize == 0 else np.empty(0, kind)
    if len(rows) * kind.itemsize != len(content) or np.any(rows["dimension"] != dimension):
        raise InputError(
            f"the database holds vectors of another length than the model's {dimension}; refit it."
        )
    native = kind["v"].base.newbyteorder("=")
    return Chunk(rows["v"].astype(native), rows["norm"].astype(np.float32), rows["key"].astype(np.int64))


def _features(row: bytes, width: int) -> Floats:
    if len(row) != 4 * width:
        raise InputError(
            f"the database holds features of another length than the model's {width}; fit again."
        )
    return np.frombuffer(row, "<f4").astype(np.float32, copy=False)


def _copy_in(connection: Connection, head: sql.Composable, rows: np.ndarray[Any, Any]) -> None:
    statement = sql.SQL("{} FROM STDIN (FORMAT BINARY)").format(head)
    step = max(1, _BLOCK // rows.dtype.itemsize)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(_HEADER)
        for start in range(0, len(rows), step):
            copy.write(rows[start : start + step].tobytes())
        copy.write(_TRAILER)
