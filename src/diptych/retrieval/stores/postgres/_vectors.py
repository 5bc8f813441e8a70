"""Vectors and features as rows: written and read in binary, and searched."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pgvector import HalfVector, Vector
from psycopg import sql

from diptych._checks import TASKS, InputError, Task
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval.stores._base import Floats
from diptych.retrieval.stores.postgres._connection import Connection
from diptych.retrieval.stores.postgres._items import COLUMNS, Condition, Keys, Row
from diptych.retrieval.stores.postgres._schema import MAX_GRAPH_DIMENSION, Tables, cast_for_graph

VECTOR_TYPES = {"float32": "vector", "float16": "halfvec"}
"""pgvector's type for each dtype."""

RERANKED = 4
"""Candidates per result of a graph over float16 that are compared again in float32."""

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_CHUNK_BYTES = 2**22


def copy_vectors(
    connection: Connection, tables: Tables, task: Task, keys: Keys, vectors: Floats, norms: Floats, dtype: str
) -> None:
    """Write vectors in binary."""
    rows = np.zeros(len(keys), _vector_row(vectors.shape[1], dtype))
    rows["fields"], rows["key_size"], rows["norm_size"] = 3, 8, 4
    rows["size"], rows["dimension"] = 4 + rows["v"].dtype.itemsize * vectors.shape[1], vectors.shape[1]
    with np.errstate(over="ignore"):  # the server refuses values that are too large for float16
        rows["key"], rows["norm"], rows["v"] = keys, norms, vectors
    _copy_rows(connection, sql.SQL("COPY {} (key, norm, v)").format(tables.vectors(task)), rows)


def copy_features(connection: Connection, tables: Tables, view: View, keys: Keys, features: Floats) -> None:
    """Write features in binary."""
    width = features.shape[1]
    rows = np.zeros(
        len(keys),
        [("fields", ">i2"), ("key_size", ">i4"), ("key", ">i8"), ("size", ">i4"), ("row", "<f4", (width,))],
    )
    rows["fields"], rows["key_size"], rows["size"] = 2, 8, 4 * width
    rows["key"], rows["row"] = keys, features
    _copy_rows(connection, sql.SQL("COPY {} (key, row)").format(tables.features(view)), rows)


def read_vectors(
    connection: Connection, tables: Tables, task: Task, dimension: int, dtype: str
) -> Iterator[tuple[Keys, Floats, Floats]]:
    """Iterate over chunks of all keys, vectors and norms of a task, in the order of the keys."""
    row = _vector_row(dimension, dtype)
    statement = sql.SQL("COPY (SELECT key, norm, v FROM {} ORDER BY key) TO STDOUT (FORMAT BINARY)").format(
        tables.vectors(task)
    )
    content, has_header = bytearray(), True
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        for part in copy:
            content += part
            if has_header and len(content) >= len(_HEADER):
                del content[: len(_HEADER)]
                has_header = False
            if not has_header and len(content) > max(_CHUNK_BYTES, row.itemsize):
                whole = len(content) // row.itemsize * row.itemsize
                yield _unpack_vectors(bytes(content[:whole]), row, dimension)
                del content[:whole]
    yield _unpack_vectors(bytes(content[: -len(_TRAILER)]), row, dimension)


def read_features(
    connection: Connection, tables: Tables, view: View, keys: Keys, width: int
) -> dict[int, Floats]:
    """Return the stored features of some items by key."""
    statement = sql.SQL("SELECT key, row FROM {} WHERE key = ANY(%s)").format(tables.features(view))
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(statement, [keys.tolist()]).fetchall()
    if any(len(row) != 4 * width for _, row in rows):
        raise InputError(
            f"the database holds {view} features of another length than the model's {width}; fit it again."
        )
    return {key: np.frombuffer(row, "<f4").astype(np.float32, copy=False) for key, row in rows}


def delete_vectors(connection: Connection, tables: Tables, keys: Sequence[int], *, features: bool) -> None:
    """Delete the vectors of some items, and with ``features`` those too."""
    stored = [tables.features(view) for view in VIEWS] if features else []
    for table in (*(tables.vectors(task) for task in TASKS), *stored):
        connection.execute(sql.SQL("DELETE FROM {} WHERE key = ANY(%s)").format(table), [list(keys)])


def search_vectors(
    connection: Connection,
    tables: Tables,
    task: Task,
    queries: Floats,
    k: int,
    condition: Condition,
    dtype: str,
    *,
    graph: bool,
) -> list[list[Row]]:
    """Return the rows of the k nearest items for each query: ``COLUMNS`` and the inner product."""
    where, values = condition
    vector = Vector if dtype == "float32" else HalfVector
    parameters = [
        values | {"query": vector(query), "k": min(k, 2**31), "candidates": RERANKED * min(k, 2**28)}
        for query in queries
    ]
    statement = search_statement(tables, task, where, queries.shape[1], dtype, graph=graph)
    results = _execute_many(connection, statement, parameters)
    if graph:
        # A graph may end before it has returned all items that match; those queries are searched exactly.
        short = [i for i, rows in enumerate(results) if len(rows) < k]
        exact = search_statement(tables, task, where, queries.shape[1], dtype, graph=False)
        for i, rows in zip(
            short, _execute_many(connection, exact, [parameters[i] for i in short]), strict=True
        ):
            results[i] = rows
    return results


def search_statement(
    tables: Tables, task: Task, where: sql.Composable, dimension: int, dtype: str, *, graph: bool
) -> sql.Composed:
    """Return the SQL of a search, with placeholders ``query``, ``k`` and ``candidates``."""
    kind = VECTOR_TYPES[dtype]
    # The server uses a graph only for an ORDER BY with the graph's own operator.
    order: sql.Composable = sql.SQL("ORDER BY score DESC, key LIMIT %(k)s")
    source: sql.Composable = tables.vectors(task)
    if graph:
        nearest = sql.SQL("{} <#> {}").format(
            cast_for_graph(kind, dimension, sql.Identifier("v")),
            cast_for_graph(kind, dimension, sql.SQL("%(query)b")),
        )
        if kind == "vector" and dimension > MAX_GRAPH_DIMENSION["vector"]:
            source = sql.SQL("(SELECT key, v FROM {} WHERE {} ORDER BY {} LIMIT %(candidates)s)").format(
                source, where, nearest
            )
            where = sql.SQL("TRUE")
        else:
            order = sql.SQL("ORDER BY {} LIMIT %(k)s").format(nearest)
    return sql.SQL(
        "SELECT {columns}, f.score FROM (SELECT key, -(v <#> %(query)b) AS score FROM {source} c "
        "WHERE {where} {order}) f JOIN {items} i USING (key) ORDER BY f.score DESC, key"
    ).format(columns=COLUMNS, source=source, where=where, order=order, items=tables.items)


def _execute_many(
    connection: Connection, statement: sql.Composed, parameters: list[dict[str, Any]]
) -> list[list[Row]]:
    if not parameters:
        return []
    with connection.cursor() as cursor:
        cursor.executemany(statement, parameters, returning=True)
        results = [cursor.fetchall()]
        while cursor.nextset():
            results.append(cursor.fetchall())
    return results


def _vector_row(dimension: int, dtype: str) -> np.dtype[Any]:
    """Return the binary format of a row of vectors in PostgreSQL's COPY."""
    number = ">f4" if dtype == "float32" else ">f2"
    return np.dtype(
        [
            *(("fields", ">i2"), ("key_size", ">i4"), ("key", ">i8"), ("norm_size", ">i4"), ("norm", ">f4")),
            *(("size", ">i4"), ("dimension", ">i2"), ("unused", ">i2"), ("v", number, (dimension,))),
        ]
    )


def _unpack_vectors(content: bytes, row: np.dtype[Any], dimension: int) -> tuple[Keys, Floats, Floats]:
    rows = np.frombuffer(content, row) if len(content) % row.itemsize == 0 else np.empty(0, row)
    if len(rows) * row.itemsize != len(content) or np.any(rows["dimension"] != dimension):
        raise InputError(
            f"the database holds vectors of another length than the model's {dimension}; refit the model."
        )
    native = row["v"].base.newbyteorder("=")
    return rows["key"].astype(np.int64), rows["v"].astype(native), rows["norm"].astype(np.float32)


def _copy_rows(connection: Connection, head: sql.Composable, rows: np.ndarray[Any, Any]) -> None:
    statement = sql.SQL("{} FROM STDIN (FORMAT BINARY)").format(head)
    step = max(1, _CHUNK_BYTES // rows.dtype.itemsize)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(_HEADER)
        for start in range(0, len(rows), step):
            copy.write(rows[start : start + step].tobytes())
        copy.write(_TRAILER)
