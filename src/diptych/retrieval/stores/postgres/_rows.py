"""Items, vectors and features as rows: written and read in pages or in binary, filtered and searched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from pgvector import HalfVector, Vector
from psycopg import sql
from psycopg.types.json import Jsonb

from diptych._checks import TASKS, InputError, Task
from diptych.retrieval._filters import (
    And,
    Condition,
    Exists,
    Filter,
    In,
    Not,
    Or,
    check_metadata_keys,
    required_keys,
)
from diptych.retrieval._items import VIEWS, Item, View, other_view, unknown_item
from diptych.retrieval.stores._base import Change, Floats, Listing, TakenError, search_in_steps
from diptych.retrieval.stores.postgres._connection import Connection
from diptych.retrieval.stores.postgres._schema import MAX_GRAPH_DIMENSION, Version, cast_for_graph

Keys: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Row: TypeAlias = tuple[Any, ...]
Choice: TypeAlias = tuple[sql.Composable, dict[str, Any]]
"""A condition on rows in SQL, and the values of its placeholders."""

COLUMNS = sql.SQL("i.key, i.id, i.view, i.path, i.text, i.image, i.metadata")

MAX_ID_BYTES = 2600
"""Longest value in an index of PostgreSQL."""

_INDEXED_VALUES = 16  # of a condition, which are looked up in the index one by one; more are compared

_SIGNS = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}

# A path in strict mode looks no deeper than it says. It compares numbers with numbers and strings with
# strings, by code point; anything else is not true.
_COMPARE = """coalesce(
    jsonb_path_exists(i.metadata -> {key}, {single}, {value}, true)
    OR jsonb_path_exists(i.metadata -> {key}, {element}, {value}, true), FALSE)"""

_IN_MANY = """CASE jsonb_typeof(i.metadata -> {key})
    WHEN 'array' THEN EXISTS (SELECT FROM jsonb_array_elements(i.metadata -> {key}) e
        WHERE e = ANY({values}::jsonb[]))
    ELSE coalesce(i.metadata -> {key} = ANY({values}::jsonb[]), FALSE) END"""

# Numbers, then texts by code point, then all others.
_ORDER = """CASE jsonb_typeof(i.metadata -> %(name)s) WHEN 'number' THEN 0 WHEN 'string' THEN 1 ELSE 2 END,
    CASE jsonb_typeof(i.metadata -> %(name)s) WHEN 'number' THEN (i.metadata ->> %(name)s)::numeric END {way},
    CASE jsonb_typeof(i.metadata -> %(name)s) WHEN 'string' THEN i.metadata ->> %(name)s END
        COLLATE "C" {way}, key"""

_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")  # NUL and unpaired surrogates


def make_item(row: Sequence[Any]) -> Item:
    """Return the item of a row of ``COLUMNS``, which other programs may have written."""
    _, item_id, view, path, text, image, metadata = row
    if view not in VIEWS or not isinstance(metadata, dict):
        raise InputError(
            f"the item {str(item_id)[:60]!r} in the database is damaged; remove it and add it again."
        )
    return Item(item_id, view, path, text, image, metadata)


def check_storable(items: Iterable[Item], max_characters: int) -> None:
    """Refuse items that PostgreSQL cannot store, or that are too long."""
    for item in items:
        shown, content = repr(item.id[:60]), item.to_json()
        if len(item.id.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
            raise InputError(f"the id {shown}… is longer than {MAX_ID_BYTES} bytes; give a shorter one.")
        size = len(json.dumps(content))
        if size > max_characters:
            raise InputError(
                f"the item {shown} takes {size} characters; at most {max_characters} are stored. Shorten its "
                "text or metadata, or allow more with ?max_item=."
            )
        if not all(map(_is_storable, _all_strings(content))):
            raise InputError(
                f"the item {shown} contains a NUL character or an unpaired surrogate, which PostgreSQL "
                "cannot store; remove it from its id, path, text or metadata."
            )


def check_not_stored(connection: Connection, version: Version, items: Sequence[Item]) -> None:
    """Raise ``TakenError`` if the id of an item is in use."""
    stored = find_keys(connection, version, [item.id for item in items])
    for item in items:
        if item.id in stored:
            raise TakenError(item.id)


def find_keys(connection: Connection, version: Version, ids: Iterable[str]) -> dict[str, int]:
    """Return the keys of those ids that are stored."""
    statement = sql.SQL("SELECT id, key FROM {} WHERE id = ANY(%s)").format(version.items)
    return dict(connection.execute(statement, [storable_ids(ids)]).fetchall())


def reserve_keys(connection: Connection, version: Version, n: int) -> Keys:
    """Return ``n`` ascending keys that were never used."""
    name = sql.SQL("{}::regclass").format(sql.Literal(version.keys.as_string(None)))
    row = connection.execute(
        sql.SQL("SELECT setval({0}, nextval({0}) + %s - 1)").format(name), [n]
    ).fetchone()
    assert row is not None
    return np.arange(row[0] - n + 1, row[0] + 1, dtype=np.int64)


def next_key(connection: Connection, version: Version) -> int:
    """Return the key of the next item."""
    statement = sql.SQL("SELECT last_value + is_called::int FROM {}").format(version.keys)
    row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


def copy_items(connection: Connection, version: Version, keys: Keys, items: Sequence[Item]) -> None:
    """Write items in binary."""
    statement = sql.SQL(
        "COPY {} (key, id, view, path, text, image, metadata) FROM STDIN (FORMAT BINARY)"
    ).format(version.items)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["int8", *["text"] * 5, "jsonb"])
        for key, item in zip(keys.tolist(), items, strict=True):
            row = (key, item.id, item.view, item.path, item.text, item.image, Jsonb(dict(item.metadata)))
            copy.write_row(row)


def delete_items(connection: Connection, version: Version, ids: Sequence[str]) -> list[int]:
    """Delete items, and with an image its captions; return their keys."""
    stored = find_keys(connection, version, ids)
    for item_id in ids:
        if item_id not in stored:
            raise unknown_item(item_id)
    statement = sql.SQL(
        "DELETE FROM {} WHERE id = ANY(%(ids)s) OR image = ANY(%(ids)s) RETURNING key"
    ).format(version.items)
    return [row[0] for row in connection.execute(statement, {"ids": list(stored)}).fetchall()]


def delete_replaced(connection: Connection, version: Version, view: View, items: Sequence[Item]) -> list[int]:
    """Delete the items of a view that others with their ids are to replace; return their keys."""
    stored = read_items(connection, version, ids=[item.id for item in items])
    for _, item in stored:
        if item.view != view:
            raise other_view(item.id)
    keys = [key for key, _ in stored]
    connection.execute(sql.SQL("DELETE FROM {} WHERE key = ANY(%s)").format(version.items), [keys])
    return keys


def change_items(
    connection: Connection, version: Version, ids: Sequence[str], change: Change
) -> dict[int, Item]:
    """Return what ``change`` makes of some items, by their keys; unknown ids are refused."""
    stored = {item.id: (key, item) for key, item in read_items(connection, version, ids=ids)}
    for item_id in ids:
        if item_id not in stored:
            raise unknown_item(item_id)
    return {key: change(item) for key, item in map(stored.__getitem__, ids)}


def update_items(connection: Connection, version: Version, items: Mapping[int, Item]) -> None:
    """Put other items in the place of those under some keys."""
    statement = sql.SQL("UPDATE {} SET path = %s, text = %s, image = %s, metadata = %s WHERE key = %s")
    with connection.cursor() as cursor:
        cursor.executemany(
            statement.format(version.items),
            [
                (item.path, item.text, item.image, Jsonb(dict(item.metadata)), key)
                for key, item in items.items()
            ],
        )


def read_items(
    connection: Connection,
    version: Version,
    view: View | None = None,
    *,
    ids: Iterable[str] | None = None,
    image: str | None = None,
    first: int = 0,
    limit: int | None = None,
) -> list[tuple[int, Item]]:
    """Return keys and items in the order of the keys, from the key ``first`` on; see ``Store.items``."""
    statement = sql.SQL(
        "SELECT {} FROM {} i WHERE key >= %(first)s AND (%(view)s::text IS NULL OR view = %(view)s) "
        "AND (%(ids)s::text[] IS NULL OR id = ANY(%(ids)s)) "
        "AND (%(images)s::text[] IS NULL OR image = ANY(%(images)s)) ORDER BY key LIMIT %(limit)s"
    ).format(COLUMNS, version.items)
    values = {
        "first": first,
        "view": view,
        "ids": None if ids is None else storable_ids(ids),
        "images": None if image is None else storable_ids([image]),
        "limit": limit,
    }
    return [(row[0], make_item(row)) for row in connection.execute(statement, values).fetchall()]


def list_items(connection: Connection, version: Version, listing: Listing) -> tuple[list[Item], int]:
    """Return a page of items, and how many there are on all pages; see ``Store.page``."""
    where, values = filter_condition(connection, version, listing.where)
    source = sql.SQL("FROM {} i WHERE (%(view)s::text IS NULL OR view = %(view)s) AND {}").format(
        version.items, where
    )
    order: sql.Composable = sql.SQL("key")
    if listing.order_by is not None:
        check_filter_keys(connection, version, Filter(condition=Exists(listing.order_by)), "order_by")
        way = sql.SQL("DESC" if listing.descending else "ASC")
        order, values["name"] = sql.SQL(_ORDER).format(way=way), listing.order_by
    statement = sql.SQL("SELECT {} {} ORDER BY {} OFFSET %(offset)s LIMIT %(limit)s")
    values |= {"view": listing.view, "offset": listing.offset, "limit": listing.limit}
    row = connection.execute(sql.SQL("SELECT count(*) {}").format(source), values).fetchone()
    total = 0 if row is None else int(row[0])
    if listing.where is not None and total == 0:
        check_filter_keys(connection, version, listing.where)
    rows = connection.execute(statement.format(COLUMNS, source, order), values).fetchall()
    return [make_item(row) for row in rows], total


def filter_condition(connection: Connection, version: Version, where: Filter | None) -> Choice:
    """Return a filter as a condition on ``key``."""
    conditions: list[sql.Composable] = [sql.SQL("TRUE")]
    values: dict[str, Any] = {}
    if where is not None and where.ids is not None:
        # Many ids are looked up once here, rather than once for each query.
        conditions.append(sql.SQL("key = ANY(%(keys)s)"))
        keys = find_keys(connection, version, where.ids)
        where.check_stored(keys)
        values["keys"] = list(keys.values())
    if where is not None and where.condition is not None:
        metadata = metadata_condition(where.condition, values)
        conditions.append(sql.SQL("key IN (SELECT i.key FROM {} i WHERE {})").format(version.items, metadata))
    return sql.SQL(" AND ").join(conditions), values


def metadata_condition(condition: Condition, values: dict[str, Any]) -> sql.Composable:
    """Return a condition on ``i.metadata``, never NULL; adds to the values of its placeholders."""

    def bind(value: Any) -> sql.Placeholder:
        values[name := f"value_{len(values)}"] = value
        return sql.Placeholder(name)

    def write(condition: Condition) -> sql.Composable:
        match condition:
            case And(parts):
                return _join(" AND ", "TRUE", map(write, parts))
            case Or(parts):
                return _join(" OR ", "FALSE", map(write, parts))
            case Not(part):
                return sql.SQL("NOT {}").format(write(part))
        if not _is_storable(condition.key):
            return sql.SQL("FALSE")
        if isinstance(condition, Exists):
            return sql.SQL("i.metadata ? {}").format(bind(condition.key))
        if isinstance(condition, In):
            options = [value for value in condition.values if all(map(_is_storable, _all_strings(value)))]
            if len(options) <= _INDEXED_VALUES:
                contained = [{condition.key: part} for value in options for part in (value, [value])]
                contains = sql.SQL("i.metadata @> {}")
                return _join(" OR ", "FALSE", (contains.format(bind(Jsonb(part))) for part in contained))
            return sql.SQL(_IN_MANY).format(key=bind(condition.key), values=bind([*map(Jsonb, options)]))
        compares = f"? (@ {_SIGNS[condition.operator]} $value)"
        return sql.SQL(_COMPARE).format(
            key=bind(condition.key),
            value=bind(Jsonb({"value": condition.value})),
            single=sql.Literal(f"strict $ {compares}"),
            element=sql.Literal(f"strict $[*] {compares}"),
        )

    return write(condition)


def _join(operator: str, nothing: str, parts: Iterable[sql.Composable]) -> sql.Composable:
    return sql.SQL("({})").format(
        sql.SQL(operator).join(parts) if (parts := list(parts)) else sql.SQL(nothing)
    )


def check_filter_keys(
    connection: Connection, version: Version, where: Filter, argument: str = "where"
) -> None:
    """Refuse a filter with a metadata key that no item has; for filters that matched nothing."""

    def exists(condition: str, *values: str) -> bool:
        statement = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(
            version.items, sql.SQL(condition)
        )
        row = connection.execute(statement, values).fetchone()
        return row is not None and bool(row[0])

    # Listing the keys of all items takes a while, so that is done only where one is missing.
    if all(_is_storable(name) and exists("metadata ? %s", name) for name in required_keys(where.condition)):
        return
    if exists("TRUE"):
        keys = sql.SQL("SELECT DISTINCT jsonb_object_keys(metadata) FROM {}").format(version.items)
        check_metadata_keys(where, [row[0] for row in connection.execute(keys).fetchall()], argument)


def _all_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield name
            yield from _all_strings(part)
    elif isinstance(value, list):
        for part in value:
            yield from _all_strings(part)


def storable_ids(ids: Iterable[Any]) -> list[str]:
    """Return those ids that PostgreSQL can store; no item has any other."""
    return [item_id for item_id in ids if isinstance(item_id, str) and _is_storable(item_id)]


def _is_storable(text: str) -> bool:
    return _NOT_STORABLE.search(text) is None


RERANKED = 4
"""Candidates per result of a graph over float16 that are compared again in float32."""

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_CHUNK_BYTES = 2**22


def copy_vectors(connection: Connection, version: Version, task: Task, keys: Keys, vectors: Floats) -> None:
    """Write vectors in binary."""
    number, width = ">f4" if version.dtype == "float32" else ">f2", vectors.shape[1]
    head = [("fields", ">i2"), ("key_size", ">i4"), ("key", ">i8"), ("size", ">i4")]
    rows = np.zeros(len(keys), [*head, ("dimension", ">i2"), ("unused", ">i2"), ("v", number, (width,))])
    rows["fields"], rows["key_size"] = 2, 8
    rows["size"], rows["dimension"] = 4 + rows["v"].dtype.itemsize * width, width
    with np.errstate(over="ignore"):  # the server refuses values that are too large for float16
        rows["key"], rows["v"] = keys, vectors
    _copy_rows(connection, sql.SQL("COPY {} (key, v)").format(version.vectors(task)), rows)


def copy_features(connection: Connection, version: Version, view: View, keys: Keys, features: Floats) -> None:
    """Write features in binary."""
    width = features.shape[1]
    rows = np.zeros(
        len(keys),
        [("fields", ">i2"), ("key_size", ">i4"), ("key", ">i8"), ("size", ">i4"), ("row", "<f4", (width,))],
    )
    rows["fields"], rows["key_size"], rows["size"] = 2, 8, 4 * width
    rows["key"], rows["row"] = keys, features
    _copy_rows(connection, sql.SQL("COPY {} (key, row)").format(version.features(view)), rows)


def read_vectors(
    connection: Connection, version: Version, task: Task, first: int, limit: int
) -> tuple[list[tuple[int, Item]], Floats]:
    """Return keys and items of a task with their vectors, from the key ``first`` on."""
    statement = sql.SQL(
        "SELECT {}, {}(v) FROM {} JOIN {} i USING (key) WHERE key >= %s ORDER BY key LIMIT %s"
    ).format(COLUMNS, sql.Identifier(f"{version.kind}_send"), version.vectors(task), version.items)
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(statement, [first, limit]).fetchall()
    stored = np.dtype(version.dtype)
    vector = "v", stored.newbyteorder(">"), (version.dimensions[task],)
    packed = np.frombuffer(
        b"".join(row[-1] for row in rows), [("dimension", ">i2"), ("unused", ">i2"), vector]
    )
    return [(row[0], make_item(row[:-1])) for row in rows], packed["v"].astype(stored)


def read_features(
    connection: Connection, version: Version, view: View, ids: Iterable[str], width: int
) -> dict[str, Floats]:
    """Return the stored features of some items by id."""
    statement = sql.SQL("SELECT id, row FROM {} JOIN {} USING (key) WHERE id = ANY(%s)").format(
        version.items, version.features(view)
    )
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(statement, [storable_ids(ids)]).fetchall()
    if any(len(row) != 4 * width for _, row in rows):
        raise InputError(
            f"the database holds {view} features of another length than the model's {width}; fit it again."
        )
    return {item_id: np.frombuffer(row, "<f4").astype(np.float32, copy=False) for item_id, row in rows}


def delete_vectors(connection: Connection, version: Version, keys: Sequence[int], *, features: bool) -> None:
    """Delete the vectors of some items, and with ``features`` those too."""
    stored = [version.features(view) for view in VIEWS] if features else []
    for table in (*(version.vectors(task) for task in TASKS), *stored):
        connection.execute(sql.SQL("DELETE FROM {} WHERE key = ANY(%s)").format(table), [list(keys)])


def search_vectors(
    connection: Connection,
    version: Version,
    task: Task,
    queries: Floats,
    k: int,
    condition: Choice,
    *,
    graph: bool,
) -> list[list[Row]]:
    """Return the rows of the k nearest items for each query: ``COLUMNS`` and the inner product."""
    where, values = condition
    vector = Vector if version.dtype == "float32" else HalfVector
    vectors = [vector(query) for query in queries]

    def search(places: list[int], size: int, *, graph: bool = graph) -> list[list[Row]]:
        limits = {"k": min(size, 2**31), "candidates": RERANKED * min(size, 2**28)}
        statement = search_statement(version, task, where, graph=graph)
        parameters = [values | limits | {"query": vectors[place]} for place in places]
        results = _execute_many(connection, statement, parameters)
        if graph:
            # A graph may end before it has returned all items that match; those queries are searched exactly.
            short = [at for at, rows in enumerate(results) if len(rows) < size]
            for at, rows in zip(short, search([places[at] for at in short], size, graph=False), strict=True):
                results[at] = rows
        return results

    if not graph:
        return search(list(range(len(queries))), k)
    return search_in_steps(search, lambda row: int(row[0]), len(queries), k)


def search_statement(version: Version, task: Task, where: sql.Composable, *, graph: bool) -> sql.Composed:
    """Return the SQL of a search, with placeholders ``query``, ``k`` and ``candidates``."""
    # The server uses a graph only for an ORDER BY with the graph's own operator.
    order: sql.Composable = sql.SQL("ORDER BY score DESC, key LIMIT %(k)s")
    source: sql.Composable = version.vectors(task)
    if graph:
        nearest = sql.SQL("{} <#> {}").format(
            cast_for_graph(version, task, sql.Identifier("v")),
            cast_for_graph(version, task, sql.SQL("%(query)b")),
        )
        if version.kind == "vector" and version.dimensions[task] > MAX_GRAPH_DIMENSION["vector"]:
            source = sql.SQL("(SELECT key, v FROM {} WHERE {} ORDER BY {} LIMIT %(candidates)s)").format(
                source, where, nearest
            )
            where = sql.SQL("TRUE")
        else:
            order = sql.SQL("ORDER BY {} LIMIT %(k)s").format(nearest)
    return sql.SQL(
        "SELECT {columns}, f.score FROM (SELECT key, -(v <#> %(query)b) AS score FROM {source} c "
        "WHERE {where} {order}) f JOIN {items} i USING (key) ORDER BY f.score DESC, key"
    ).format(columns=COLUMNS, source=source, where=where, order=order, items=version.items)


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


def _copy_rows(connection: Connection, head: sql.Composable, rows: np.ndarray[Any, Any]) -> None:
    statement = sql.SQL("{} FROM STDIN (FORMAT BINARY)").format(head)
    step = max(1, _CHUNK_BYTES // rows.dtype.itemsize)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(_HEADER)
        for start in range(0, len(rows), step):
            copy.write(rows[start : start + step].tobytes())
        copy.write(_TRAILER)
