"""Model versions: the one in use, the files of its model, and how a new one is loaded and put in use."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import psycopg
from psycopg import sql
from psycopg.errors import LockNotAvailable

from diptych._checks import TASKS, InputError, Task
from diptych.retrieval._items import TASK_OF, VIEWS, Item, View, check_unique
from diptych.retrieval.stores._base import Block, Contents, Floats
from diptych.retrieval.stores.postgres._connection import Address, Connection
from diptych.retrieval.stores.postgres._rows import (
    VECTOR_TYPES,
    Keys,
    Row,
    check_storable,
    copy_features,
    copy_items,
    copy_vectors,
    find_keys,
    next_key,
    reserve_keys,
    search_vectors,
)
from diptych.retrieval.stores.postgres._schema import (
    Tables,
    build_graph,
    check_graph,
    create_items,
    create_vectors,
    index_items,
    index_vectors,
)

PIECE_BYTES = 2**22
"""Bytes of a file in one row."""

SAMPLE_QUERIES = 50
"""Queries that the recall of a graph is measured with."""


@dataclass(frozen=True)
class Version:
    """A stored model version."""

    tables: Tables
    dtype: str
    graph: bool
    keeps_features: bool
    dimensions: Mapping[Task, int]  # columns of the vectors
    widths: Mapping[View, int]  # columns of the features
    first_new_key: int | None  # items with smaller keys were there when the model was fitted

    @property
    def name(self) -> str:
        """The name by which callers of the store know it."""
        return str(self.tables.version)


_COLUMNS = sql.SQL("id, coalesce(items, id), dtype, graph, keeps_features, dimensions, widths, first_new_key")


def _make_version(schema: str, row: Row) -> Version:
    number, generation, dtype, graph, keeps_features, dimensions, widths, first_new_key = row
    columns = dict(zip(TASKS, dimensions, strict=True)), dict(zip(VIEWS, widths, strict=True))
    return Version(Tables(schema, number, generation), dtype, graph, keeps_features, *columns, first_new_key)


def read_version(connection: Connection, schema: str) -> Version | None:
    """Return the version in use; None if no model has been stored."""
    statement = sql.SQL("SELECT {1} FROM {0}.current_version c LEFT JOIN {0}.versions v ON v.id = c.version")
    row = connection.execute(statement.format(sql.Identifier(schema), _COLUMNS)).fetchone()
    if row is None:
        raise InputError(
            f"the table current_version of the schema {schema!r} is empty; restore the database."
        )
    return None if row[0] is None else _make_version(schema, row)


def query_version(connection: Connection, schema: str) -> psycopg.Cursor[tuple[int | None]]:
    """Ask for the number of the version in use; a cursor, for use in a pipeline."""
    statement = sql.SQL("SELECT version FROM {}.current_version").format(sql.Identifier(schema))
    return connection.execute(statement)


def read_files(
    connection: Connection, address: Address, version: Version, names: Sequence[str], folder: Path
) -> None:
    """Write those files of a version's model that have one of these names to a folder, piece by piece.

    Rows with other names are ignored, so that a database cannot choose where files are written.
    """
    schema = sql.Identifier(address.schema)
    statement = sql.SQL(
        "SELECT name, count(*), sum(octet_length(content)) FROM {}.files "
        "WHERE version = %s AND name = ANY(%s) GROUP BY name"
    ).format(schema)
    number = version.tables.version
    files = connection.execute(statement, [number, list(names)]).fetchall()
    size = sum(int(size) for _, _, size in files)
    if size > address.max_model:
        raise InputError(
            f"the model in {address.public} takes {size} bytes; at most {address.max_model} are read. Allow "
            "more with ?max_model=."
        )
    statement = sql.SQL(
        "SELECT content FROM {}.files WHERE version = %s AND name = %s AND number = %s"
    ).format(schema)
    with connection.cursor(binary=True) as cursor:
        for name, pieces, _ in files:
            (folder / name).parent.mkdir(exist_ok=True)
            with open(folder / name, "wb") as file:
                for piece in range(pieces):
                    row = cursor.execute(statement, [number, name, piece]).fetchone()
                    file.write(row[0] if row else b"")


def load_version(
    connection: Connection,
    address: Address,
    contents: Contents,
    dtype: str,
    previous: Version | None,
    on_begin: Callable[[str], None],
) -> None:
    """Load a version and put it in use; for callers within ``exclusive``.

    ``previous`` is the version whose items and dtype stay; None: the contents bring new items. ``on_begin``
    is called with the name of the new version before it can be in use.
    """
    schema, graph = address.schema, address.index == "hnsw"
    if previous is not None:
        dtype, graph = previous.dtype, graph if address.index else previous.graph
    new = _insert_version(connection, schema, contents, dtype, graph, previous)
    on_begin(new.name)
    try:
        _fill_tables(connection, address, contents, new, previous)
        _write_files(connection, contents, new, previous)
        first_new_key = next_key(connection, new.tables)
    except BaseException:
        with suppress(psycopg.Error):
            drop_unused(connection, schema, wait=False)
        raise
    swap(connection, new.tables, first_new_key)
    with suppress(psycopg.Error):  # whatever remains is dropped next time
        drop_unused(connection, schema, wait=False)


def insert_block(connection: Connection, version: Version, block: Block) -> None:
    """Insert items with their vectors, and their features where the version keeps them."""
    if not block.items:
        return
    keys = reserve_keys(connection, version.tables, len(block.items))
    copy_items(connection, version.tables, keys, block.items)
    if version.keeps_features and block.features is not None:
        copy_features(connection, version.tables, block.view, keys, np.asarray(block.features, np.float32))
    _insert_vectors(connection, version, block, keys)


def swap(connection: Connection, tables: Tables, first_new_key: int) -> None:
    """Put a version in place of the one in use, in one step."""
    schema = sql.Identifier(tables.schema)
    with connection.transaction():
        connection.execute(
            sql.SQL("UPDATE {}.versions SET first_new_key = %s WHERE id = %s").format(schema),
            [first_new_key, tables.version],
        )
        connection.execute(
            sql.SQL("UPDATE {}.current_version SET previous = version, version = %s").format(schema),
            [tables.version],
        )


def drop_unused(connection: Connection, schema: str, *, wait: bool = True) -> None:
    """Drop unfinished versions, and all but the one in use and the previous one, which others may still read.

    Without ``wait``, versions that somebody reads now are left for the next time.
    """
    name = sql.Identifier(schema)
    rows = connection.execute(
        sql.SQL(
            "SELECT v.id, coalesce(v.items, v.id), NOT EXISTS (SELECT FROM {0}.versions o "
            "JOIN {0}.current_version c ON o.id IN (c.version, c.previous) "
            "WHERE coalesce(o.items, o.id) = coalesce(v.items, v.id)) "
            "FROM {0}.versions v WHERE NOT EXISTS "
            "(SELECT FROM {0}.current_version c WHERE v.id IN (c.version, c.previous))"
        ).format(name)
    ).fetchall()
    for version, generation, own_items in rows:
        with suppress(LockNotAvailable), connection.transaction():
            connection.execute("SELECT set_config('lock_timeout', %s, true)", ["0" if wait else "200ms"])
            Tables(schema, version, generation).drop(connection, items=own_items)
            connection.execute(sql.SQL("DELETE FROM {}.versions WHERE id = %s").format(name), [version])


def _insert_version(
    connection: Connection, schema: str, contents: Contents, dtype: str, graph: bool, previous: Version | None
) -> Version:
    statement = sql.SQL(
        "INSERT INTO {}.versions (items, dtype, graph, keeps_features, dimensions, widths) "
        "VALUES (%s, %s, %s, %s, %s, %s) RETURNING {}"
    ).format(sql.Identifier(schema), _COLUMNS)
    values = [
        None if previous is None else previous.tables.generation,
        dtype,
        graph,
        contents.keep_features if previous is None else previous.keeps_features,
        [contents.dimensions[task] for task in TASKS],
        [contents.widths[view] for view in VIEWS],
    ]
    row = connection.execute(statement, values).fetchone()
    assert row is not None
    return _make_version(schema, row)


def _fill_tables(
    connection: Connection, address: Address, contents: Contents, new: Version, previous: Version | None
) -> None:
    kind, tables = VECTOR_TYPES[new.dtype], new.tables
    with connection.transaction():
        for task in TASKS:
            if new.graph:
                check_graph(new.dimensions[task])
            create_vectors(connection, tables, task, kind, new.dimensions[task])
        if previous is None:
            create_items(connection, tables)
    items: list[Item] = []
    for block in contents.blocks:
        if previous is None:
            check_storable(block.items, address.max_item)
            items += block.items
        with connection.transaction():
            # The swap waits for the disk, and with it for everything before.
            connection.execute("SET LOCAL synchronous_commit = off")
            if previous is None:
                insert_block(connection, new, block)
            else:
                stored = find_keys(connection, tables, [item.id for item in block.items])
                keys = np.array([stored[item.id] for item in block.items], np.int64)
                _insert_vectors(connection, new, block, keys)
    if previous is None:
        check_unique(items)
        index_items(connection, tables)
    for task in TASKS:
        index_vectors(connection, tables, task)
        if new.graph:
            build_graph(connection, tables, task, kind, new.dimensions[task], address)
            queries = contents.sample_queries(task, SAMPLE_QUERIES)
            if queries is not None:
                contents.report_recall(task, _measure_recall(connection, new, task, queries))


def _insert_vectors(connection: Connection, version: Version, block: Block, keys: Keys) -> None:
    task = TASK_OF[block.view]
    copy_vectors(connection, version.tables, task, keys, block.vectors, version.dtype)


def _measure_recall(connection: Connection, version: Version, task: Task, queries: Floats) -> float:
    """Return the share of the exact ten nearest items that the graph finds."""
    exact, nearest = (
        [
            {row[0] for row in rows}
            for rows in search_vectors(
                *(connection, version.tables, task, queries, 10, (sql.SQL("TRUE"), {}), version.dtype),
                graph=graph,
            )
        ]
        for graph in (False, True)
    )
    total = sum(map(len, exact))
    return sum(len(a & b) for a, b in zip(exact, nearest, strict=True)) / total if total else 1.0


def _write_files(connection: Connection, contents: Contents, new: Version, previous: Version | None) -> None:
    """Store the files of a model; those that it does not write are copied from the previous version."""
    schema, number = sql.Identifier(new.tables.schema), new.tables.version
    insert = sql.SQL("INSERT INTO {}.files VALUES (%s, %s, %s, %b)").format(schema)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        contents.write_model(folder)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        with connection.transaction():
            for name, path in files.items():
                with open(path, "rb") as file:
                    for place, piece in enumerate(iter(partial(file.read, PIECE_BYTES), b"")):
                        connection.execute(insert, [number, name, place, piece])
            if previous is not None:
                copy = sql.SQL(
                    "INSERT INTO {0}.files SELECT %s, name, number, content FROM {0}.files "
                    "WHERE version = %s AND name <> ALL(%s)"
                ).format(schema)
                connection.execute(copy, [number, previous.tables.version, list(files)])
