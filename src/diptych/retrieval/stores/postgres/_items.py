"""SQL of items: in, out, counted, filtered."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from psycopg import sql
from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

from diptych._checks import InputError
from diptych.retrieval._items import (
    VIEWS,
    Catalogue,
    Item,
    View,
    Where,
    check_unique,
    check_where,
    ids_in,
    no_item,
    numbered_names,
    unknown_key,
    wanted,
)
from diptych.retrieval.stores._base import Keys
from diptych.retrieval.stores.postgres._connection import Connection
from diptych.retrieval.stores.postgres._schema import Tables

COLUMNS = sql.SQL("i.key, i.id, i.view, i.path, i.text, i.image, i.metadata")
MAX_ID_BYTES = 2600
"""What an index of PostgreSQL holds of one value."""

BATCH = 2000
"""Items that are streamed at a time."""

Condition: TypeAlias = tuple[sql.Composable, dict[str, Any]]
"""What is asked of a row's ``key``, and the values in it."""

Reading: TypeAlias = Callable[[Callable[[Connection, Tables], Any]], Any]
"""Does something with a connection and the tables of now."""


def item_of(row: Sequence[Any]) -> Item:
    """A row of ``COLUMNS``, checked: others than this library may have written it."""
    _, item_id, view, path, text, image, metadata = row
    if view not in VIEWS or not isinstance(metadata, dict):
        raise InputError(
            f"the item {str(item_id)[:60]!r} in the database is damaged; remove and add it again."
        )
    return Item(item_id, view, path, text, image, metadata)


def check_storable(items: Sequence[Item], limit: int) -> None:
    """Refuse what PostgreSQL cannot hold, or what is longer than ``limit`` characters."""
    for item in items:
        shown = repr(item.id[:60])
        if len(item.id.encode("utf-8", "surrogatepass")) > MAX_ID_BYTES:
            raise InputError(f"the id {shown}… is longer than {MAX_ID_BYTES} bytes; give a shorter one.")
        size = len(json.dumps(item.to_json()))
        if size > limit:
            raise InputError(
                f"the item {shown} takes {size} characters; at most {limit} are stored. Shorten its text or "
                "metadata, or allow more with ?max_item=."
            )
        for text in _texts(item.to_json()):
            if not _storable(text):
                raise InputError(
                    f"the item {shown} holds a NUL character or half a character, which PostgreSQL cannot "
                    "store; take it out of its id, path, text or metadata."
                )


def check_new(connection: Connection, tables: Tables, items: Sequence[Item]) -> None:
    """Refuse ids that are taken, or given twice."""
    taken = sql.SQL("SELECT id FROM {} WHERE id = ANY(%s)").format(tables.items)
    rows = connection.execute(taken, [[item.id for item in items]]).fetchall()
    check_unique(items, {row[0] for row in rows})


def reserve(connection: Connection, tables: Tables, n: int) -> Keys:
    """``n`` keys that were never used, ascending."""
    statement = sql.SQL("SELECT setval({0}, nextval({0}) + %s - 1)").format(_name(tables.keys))
    row = connection.execute(statement, [n]).fetchone()
    assert row is not None
    return np.arange(row[0] - n + 1, row[0] + 1, dtype=np.int64)


def next_key(connection: Connection, tables: Tables) -> int:
    """The key that the next item will get."""
    statement = sql.SQL("SELECT last_value + is_called::int FROM {}").format(tables.keys)
    row = connection.execute(statement).fetchone()
    assert row is not None
    return int(row[0])


def unused_names(connection: Connection, tables: Tables) -> Iterator[str]:
    """Names for new items that nobody gave one, none of them taken."""
    names = numbered_names(next_key(connection, tables))
    statement = sql.SQL("SELECT id FROM {} WHERE id = ANY(%s)").format(tables.items)
    while True:
        some = [next(names) for _ in range(256)]
        taken = {row[0] for row in connection.execute(statement, [some]).fetchall()}
        yield from (name for name in some if name not in taken)


def copy_items(connection: Connection, tables: Tables, keys: Keys, items: Sequence[Item]) -> None:
    """Put items in, in binary."""
    statement = sql.SQL(
        "COPY {} (key, id, view, path, text, image, metadata) FROM STDIN (FORMAT BINARY)"
    ).format(tables.items)
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        copy.set_types(["int8", *["text"] * 5, "jsonb"])
        for key, item in zip(keys.tolist(), items, strict=True):
            row = (key, item.id, item.view, item.path, item.text, item.image, Jsonb(dict(item.metadata)))
            copy.write_row(row)


def delete_items(connection: Connection, tables: Tables, ids: Sequence[str]) -> list[int]:
    """Take items out, and with a picture its captions; returns their keys."""
    known = sql.SQL("SELECT id FROM {} WHERE id = ANY(%s)").format(tables.items)
    texts = [item_id for item_id in ids if isinstance(item_id, str) and _storable(item_id)]
    found = {row[0] for row in connection.execute(known, [texts]).fetchall()}
    for item_id in ids:
        if not isinstance(item_id, str) or item_id not in found:
            raise no_item(item_id)
    gone = sql.SQL("DELETE FROM {} WHERE id = ANY(%(ids)s) OR image = ANY(%(ids)s) RETURNING key").format(
        tables.items
    )
    return [row[0] for row in connection.execute(gone, {"ids": texts}).fetchall()]


def item_blocks(
    connection: Connection, tables: Tables, view: View, size: int
) -> Iterator[tuple[Keys, list[Item]]]:
    """All items of a view in the order of their keys, ``size`` at a time."""
    statement = sql.SQL("SELECT {} FROM {} i WHERE view = %s AND key > %s ORDER BY key LIMIT %s").format(
        COLUMNS, tables.items
    )
    last = -1
    while rows := connection.execute(statement, [view, last, size]).fetchall():
        last = rows[-1][0]
        yield np.array([row[0] for row in rows], np.int64), [item_of(row) for row in rows]


def items_under(connection: Connection, tables: Tables, keys: Keys) -> dict[int, tuple[Any, ...]]:
    """Rows of items by key, those that are there."""
    statement = sql.SQL("SELECT {} FROM {} i WHERE key = ANY(%s)").format(COLUMNS, tables.items)
    return {row[0]: row for row in connection.execute(statement, [keys.tolist()]).fetchall()}


def all_items(connection: Connection, tables: Tables, view: View | None = None) -> Iterator[tuple[int, Item]]:
    """Keys and items, a batch at a time, in the order of the keys; within one transaction."""
    statement = sql.SQL("SELECT {} FROM {} i WHERE {} ORDER BY key").format(
        COLUMNS, tables.items, sql.SQL("TRUE") if view is None else sql.SQL("view = {}").format(view)
    )
    with connection.cursor("items", row_factory=tuple_row) as cursor:
        cursor.itersize = BATCH
        for row in cursor.execute(statement):
            yield row[0], item_of(row)


def allowed(connection: Connection, tables: Tables, view: View, where: Where) -> Condition:
    """A filter as SQL: what metadata says is looked up by the server, the rest is a list of keys."""
    check_where(where)
    if isinstance(where, Mapping):
        return by_metadata(tables, view, where)
    if callable(where):
        chosen = where
        keys = [key for key, item in all_items(connection, tables, view) if chosen(item)]
    else:
        ids = ids_in(where)
        texts = [each for each in ids if isinstance(each, str) and _storable(each)]
        statement = sql.SQL("SELECT id, key, view FROM {} WHERE id = ANY(%s)").format(tables.items)
        found = {row[0]: row[1:] for row in connection.execute(statement, [texts]).fetchall()}
        for each in ids:
            if not isinstance(each, str) or each not in found:
                raise no_item(each)
        keys = [key for key, own in found.values() if own == view]
    return sql.SQL("key = ANY(%(allowed)s)"), {"allowed": keys}


def by_metadata(tables: Tables, view: View, where: Mapping[str, Any]) -> Condition:
    """Items that have all these values; of a list, one of them."""
    values: dict[str, Any] = {"view": view}
    parts: list[sql.Composable] = [sql.SQL("i.view = %(view)s")]
    for name, several in wanted(where).items():
        either = []
        for value in several:
            if all(map(_storable, _texts([name, value]))):
                either.append(sql.SQL("i.metadata @> {}").format(sql.Placeholder(f"value_{len(values)}")))
                values[f"value_{len(values)}"] = Jsonb({name: value})
        parts.append(sql.SQL("({})").format(sql.SQL(" OR ").join(either)) if either else sql.SQL("FALSE"))
    return sql.SQL("key IN (SELECT i.key FROM {} i WHERE {})").format(
        tables.items, sql.SQL(" AND ").join(parts)
    ), values


def check_keys(connection: Connection, tables: Tables, where: Mapping[str, Any]) -> None:
    """Refuse a filter that names a key which no item's metadata has; to be called when nothing was found.

    An unknown key matches nothing, so a filter that found something needs no look at the items for it.
    """

    def any_item(condition: sql.Composable, values: Sequence[Any] = ()) -> bool:
        statement = sql.SQL("SELECT EXISTS (SELECT 1 FROM {} WHERE {})").format(tables.items, condition)
        row = connection.execute(statement, values).fetchone()
        return row is not None and bool(row[0])

    for name in where:
        if _storable(name) and any_item(sql.SQL("metadata ? %s"), [name]):
            continue
        if any_item(sql.SQL("TRUE")):
            keys = sql.SQL("SELECT DISTINCT jsonb_object_keys(metadata) FROM {}").format(tables.items)
            raise unknown_key(name, [row[0] for row in connection.execute(keys).fetchall()])


class PostgresItems(Catalogue):
    """The items of a database, asked one question at a time.

    Parameters
    ----------
    read
        Does something with a connection and the tables of now.
    """

    def __init__(self, read: Reading) -> None:
        self._read = read

    def __len__(self) -> int:
        return self._number("SELECT count(*) FROM {}")

    def __contains__(self, item_id: object) -> bool:
        return isinstance(item_id, str) and self.find(item_id) is not None

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        last = -1
        while some := self._after(last):
            yield from some
            last = some[-1][0]

    def get(self, key: int) -> Item | None:
        """The item under a key; None if it is gone."""
        found = self._some("key = %s", [int(key)])
        return found[0] if found else None

    def find(self, item_id: str) -> Item | None:
        """The item of an id; None if there is none."""
        found = self._some("id = %s", [item_id]) if _storable(item_id) else []
        return found[0] if found else None

    def captions(self, image_id: str) -> list[Item]:
        """The sentences that belong to a picture."""
        return self._some("image = %s", [image_id]) if _storable(image_id) else []

    def count(self, view: View) -> int:
        """Items of one view."""
        return self._number("SELECT count(*) FROM {} WHERE view = %s", [view])

    def _number(self, statement: str, values: Sequence[Any] = ()) -> int:
        def ask(connection: Connection, tables: Tables) -> int:
            row = connection.execute(sql.SQL(statement).format(tables.items), values).fetchone()
            return int(row[0]) if row else 0

        return int(self._read(ask))

    def _after(self, last: int) -> list[tuple[int, Item]]:
        def ask(connection: Connection, tables: Tables) -> list[tuple[int, Item]]:
            statement = sql.SQL("SELECT {} FROM {} i WHERE key > %s ORDER BY key LIMIT %s").format(
                COLUMNS, tables.items
            )
            return [(row[0], item_of(row)) for row in connection.execute(statement, [last, BATCH]).fetchall()]

        found: list[tuple[int, Item]] = self._read(ask)
        return found

    def _some(self, condition: str, values: Sequence[Any]) -> list[Item]:
        def ask(connection: Connection, tables: Tables) -> list[Item]:
            statement = sql.SQL("SELECT {} FROM {} i WHERE {} ORDER BY key").format(
                COLUMNS,
                tables.items,
                sql.SQL(condition),
            )
            return [item_of(row) for row in connection.execute(statement, values).fetchall()]

        found: list[Item] = self._read(ask)
        return found


def _name(table: sql.Identifier) -> sql.Composable:
    """A name as a value that is looked up as one."""
    return sql.SQL("{}::regclass").format(sql.Literal(table.as_string(None)))


def _texts(value: Any) -> Iterator[str]:
    """All strings in plain data."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield name
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


def _storable(text: str) -> bool:
    """Whether PostgreSQL can hold a text: all but NUL, and halves of characters."""
    return "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)
