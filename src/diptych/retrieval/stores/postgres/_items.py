"""Items as rows: checked, written, read in pages, filtered."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from psycopg import sql
from psycopg.types.json import Jsonb

from diptych._checks import InputError
from diptych.retrieval._items import VIEWS, Filter, Item, Plain, View, check_metadata_keys, unknown_item
from diptych.retrieval.stores._base import TakenError
from diptych.retrieval.stores.postgres._connection import Connection
from diptych.retrieval.stores.postgres._schema import Tables

Keys: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Row: TypeAlias = tuple[Any, ...]
Condition: TypeAlias = tuple[sql.Composable, dict[str, Any]]
"""A condition on rows in SQL, and the values of its placeholders."""

COLUMNS = sql.SQL("i.key, i.id, i.view, i.path, i.text, i.image, i.metadata")

MAX_ID_BYTES = 2600
"""Longest value in an index of PostgreSQL."""


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


def check_not_stored(connection: Connection, tables: Tables, items: Sequence[Item]) -> None:
    """Raise ``TakenError`` if the id of an item is in use."""
    stored = find_keys(connection, tables, [item.id for item in items])
    for item in items:
        if item.id in stored:
            raise TakenError(item.id)


def find_keys(connection: Connection, tables: Tables, ids: Iterable[str]) -> dict[str, int]:
    """Return the keys of those ids that are stored."""
    statement = sql.SQL("SELECT id, key FROM {} WHERE id = ANY(%s)").format(tables.items)
    return dict(connection.execute(statement, [_storable(ids)]).fetchall())


def reserve_keys(connection: Connection, tables: Tables, n: int) -> Keys:
    """Return ``n`` ascending keys that were never used."""
    name = sql.SQL("{}::regclass").format(sql.Literal(tables.keys.as_string(None)))
    row = connection.execute(
        sql.SQL("SELECT setval({0}, nextval({0}) + %s - 1)").format(name), [n]
    ).fetchone()
    assert row is not None
    return np.arange(row[0] - n + 1, row[0] + 1, dtype=np.int64)


def next_key(connection: Connection, tables: Tables) -> int:
    """Return the key of the next item."""
    statement = sql.SQL("SELECT last_value + is_called::int FROM {}").format(tables.keys)
    row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


def copy_items(connection: Connection, tables: Tables, keys: Keys, items: Sequence[Item]) -> None:
    """Write items in binary."""
    statement = sql.SQL(
        "COPY {} (key, id, view, path, text, image, metadata) FROM STDIN (FORMAT BINARY)"
    ).format(tables.items)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["int8", *["text"] * 5, "jsonb"])
        for key, item in zip(keys.tolist(), items, strict=True):
            row = (key, item.id, item.view, item.path, item.text, item.image, Jsonb(dict(item.metadata)))
            copy.write_row(row)


def delete_items(connection: Connection, tables: Tables, ids: Sequence[str]) -> list[int]:
    """Delete items, and with an image its captions; return their keys."""
    stored = find_keys(connection, tables, ids)
    for item_id in ids:
        if item_id not in stored:
            raise unknown_item(item_id)
    statement = sql.SQL(
        "DELETE FROM {} WHERE id = ANY(%(ids)s) OR image = ANY(%(ids)s) RETURNING key"
    ).format(tables.items)
    return [row[0] for row in connection.execute(statement, {"ids": list(stored)}).fetchall()]


def read_items(
    connection: Connection,
    tables: Tables,
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
    ).format(COLUMNS, tables.items)
    values = {
        "first": first,
        "view": view,
        "ids": None if ids is None else _storable(ids),
        "images": None if image is None else _storable([image]),
        "limit": limit,
    }
    return [(row[0], make_item(row)) for row in connection.execute(statement, values).fetchall()]


def filter_condition(connection: Connection, tables: Tables, where: Filter | None) -> Condition:
    """Return a filter as a condition on ``key``."""
    conditions: list[sql.Composable] = [sql.SQL("TRUE")]
    values: dict[str, Any] = {}
    if where is not None and where.ids is not None:
        # Many ids are looked up once here, rather than once for each query.
        conditions.append(sql.SQL("key = ANY(%(keys)s)"))
        values["keys"] = list(find_keys(connection, tables, where.ids).values())
    if where is not None and where.metadata:
        metadata, values_of_metadata = metadata_condition(where.metadata)
        conditions.append(sql.SQL("key IN (SELECT i.key FROM {} i WHERE {})").format(tables.items, metadata))
        values |= values_of_metadata
    return sql.SQL(" AND ").join(conditions), values


def metadata_condition(metadata: Mapping[str, Sequence[Plain]]) -> Condition:
    """Return a condition on ``i.metadata``: one of the values of every key."""
    values: dict[str, Any] = {}
    conditions: list[sql.Composable] = []
    for name, options in metadata.items():
        either: list[sql.Composable] = [sql.SQL("FALSE")]
        for option in options:
            if all(map(_is_storable, _all_strings([name, option]))):
                placeholder = f"value_{len(values)}"
                either.append(sql.SQL("i.metadata @> {}").format(sql.Placeholder(placeholder)))
                values[placeholder] = Jsonb({name: option})
        conditions.append(sql.SQL("({})").format(sql.SQL(" OR ").join(either)))
    return sql.SQL(" AND ").join(conditions), values


def check_filter_keys(connection: Connection, tables: Tables, where: Filter) -> None:
    """Refuse a filter with a metadata key that no item has; for filters that matched nothing."""

    def exists(condition: str, *values: str) -> bool:
        statement = sql.SQL("SELECT EXISTS (SELECT FROM {} WHERE {})").format(
            tables.items, sql.SQL(condition)
        )
        row = connection.execute(statement, values).fetchone()
        return row is not None and bool(row[0])

    # Listing the keys of all items takes a while, so that is done only where one is missing.
    if all(_is_storable(name) and exists("metadata ? %s", name) for name in where.metadata or ()):
        return
    if exists("TRUE"):
        keys = sql.SQL("SELECT DISTINCT jsonb_object_keys(metadata) FROM {}").format(tables.items)
        check_metadata_keys(where, [row[0] for row in connection.execute(keys).fetchall()])


def _all_strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield name
            yield from _all_strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _all_strings(each)


def _storable(ids: Iterable[Any]) -> list[str]:
    return [item_id for item_id in ids if isinstance(item_id, str) and _is_storable(item_id)]


def _is_storable(text: str) -> bool:
    """Return whether PostgreSQL can store a text: any but NUL and unpaired surrogates."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)
