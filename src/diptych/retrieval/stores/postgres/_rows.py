"""Items, vectors and features as rows: written and read in pages or in binary, filtered and searched."""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, TypeAlias

import numpy as np
from pgvector import HalfVector, Vector
from psycopg import Cursor, sql
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
from diptych.retrieval._items import SEARCHED, TASK_OF, VIEWS, Item, View, other_view, unknown_item
from diptych.retrieval.stores._base import (
    Block,
    Change,
    Floats,
    Keys,
    Listing,
    Matches,
    TakenError,
    search_in_steps,
)
from diptych.retrieval.stores.postgres._connection import Connection
from diptych.retrieval.stores.postgres._schema import MAX_GRAPH_DIMENSION, Version, cast_for_graph

Row: TypeAlias = tuple[Any, ...]
Choice: TypeAlias = tuple[sql.Composable, dict[str, Any]]
"""A condition on rows in SQL, and the values of its placeholders."""

ALL: Choice = sql.SQL("TRUE"), {}

MAX_ID_BYTES = 2600
"""Longest value in an index of PostgreSQL."""

RERANKED = 4
"""Candidates per result of a graph over float16 that are compared again in float32."""

_COLUMNS = sql.SQL("i.key, i.id, i.view, i.path, i.text, i.image, i.metadata")

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

_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
_TRAILER = b"\xff\xff"
_CHUNK_BYTES = 2**22


@dataclass(frozen=True)
class Rows:
    """The items, vectors and features of a version, as one connection sees them."""

    connection: Connection
    version: Version

    def execute(self, statement: LiteralString, values: Any = (), **parts: sql.Composable) -> Cursor[Row]:
        """Run a statement with the name of the table ``items``, and with other parts."""
        return self.connection.execute(sql.SQL(statement).format(items=self.version.items, **parts), values)

    def fetch_value(self, statement: LiteralString, values: Any = (), **parts: sql.Composable) -> Any:
        """Return the only value that a statement returns."""
        row = self.execute(statement, values, **parts).fetchone()
        assert row is not None
        return row[0]

    # Items

    def next_key(self) -> int:
        """Return the key of the next item."""
        return int(self.fetch_value("SELECT last_value + is_called::int FROM {keys}", keys=self.version.keys))

    def find_keys(self, ids: Iterable[str]) -> dict[str, int]:
        """Return the keys of those ids that are stored."""
        return dict(self.execute("SELECT id, key FROM {items} WHERE id = ANY(%s)", [_storable_ids(ids)]))

    def check_new(self, items: Sequence[Item]) -> None:
        """Raise ``TakenError`` if the id of an item is in use."""
        stored = self.find_keys(item.id for item in items)
        for item in items:
            if item.id in stored:
                raise TakenError(item.id)

    def add(self, block: Block, *, replace: bool = False) -> None:
        """Add items with their vectors and features; with ``replace``, in place of those with their ids."""
        if replace:
            stored = self.items(ids=[item.id for item in block.items])
            for item in stored[1]:
                if item.view != block.view:
                    raise other_view(item.id)
            self._delete("key = ANY(%(keys)s)", {"keys": stored[0]})
        if not block.items:
            return
        version, keys = self.version, self._reserve_keys(len(block.items))
        statement = sql.SQL("COPY {} (key, id, view, path, text, image, metadata) FROM STDIN (FORMAT BINARY)")
        with self.connection.cursor() as cursor, cursor.copy(statement.format(version.items)) as copy:
            copy.set_types(["int8", *["text"] * 5, "jsonb"])
            for key, item in zip(keys.tolist(), block.items, strict=True):
                about = Jsonb(dict(item.metadata))
                copy.write_row((key, item.id, item.view, item.path, item.text, item.image, about))
        if version.keeps_features and block.features is not None:
            rows = _make_rows(keys, ("<f4", (block.features.shape[1],)))
            rows["value"] = block.features
            self._copy(version.features(block.view), "row", rows)
        self.copy_vectors(TASK_OF[block.view], keys, block.vectors)

    def _reserve_keys(self, n: int) -> Keys:
        """Return ``n`` ascending keys that were never used."""
        sequence = sql.SQL("{}::regclass").format(sql.Literal(self.version.keys.as_string(None)))
        last = self.fetch_value("SELECT setval({keys}, nextval({keys}) + %s - 1)", [n], keys=sequence)
        return np.arange(last - n + 1, last + 1, dtype=np.int64)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items, and with an image its captions; return how many. Unknown ids are refused."""
        _check_stored(ids, self.find_keys(ids))
        return self._delete("id = ANY(%(ids)s) OR image = ANY(%(ids)s)", {"ids": list(ids)})

    def _delete(self, condition: LiteralString, values: Mapping[str, Any]) -> int:
        """Delete the items that fulfil a condition, with their vectors and features; return how many."""
        statement: LiteralString = "DELETE FROM {items} WHERE {condition} RETURNING key"
        rows = self.execute(statement, values, condition=sql.SQL(condition))
        keys, version = [key for (key,) in rows], self.version
        features = map(version.features, VIEWS) if version.keeps_features else ()
        for table in (*map(version.vectors, TASKS), *features):
            self.execute("DELETE FROM {table} WHERE key = ANY(%s)", [keys], table=table)
        return len(keys)

    def change(self, ids: Sequence[str], change: Change) -> dict[int, Item]:
        """Return what ``change`` makes of some items, by their keys; unknown ids are refused."""
        stored = {item.id: (key, item) for key, item in zip(*self.items(ids=ids), strict=True)}
        _check_stored(ids, stored)
        return {key: change(item) for key, item in map(stored.__getitem__, ids)}

    def update(self, items: Mapping[int, Item]) -> None:
        """Put other items in the place of those under some keys."""
        statement = sql.SQL("UPDATE {} SET path = %s, text = %s, image = %s, metadata = %s WHERE key = %s")
        values = [
            (item.path, item.text, item.image, Jsonb(dict(item.metadata)), key) for key, item in items.items()
        ]
        with self.connection.cursor() as cursor:
            cursor.executemany(statement.format(self.version.items), values)

    def items(
        self,
        view: View | None = None,
        *,
        ids: Iterable[str] | None = None,
        images: Sequence[str] | None = None,
        first: int = 0,
        limit: int | None = None,
    ) -> tuple[list[int], list[Item]]:
        """Return keys and items in the order of the keys, from the key ``first`` on; see ``Store.items``."""
        values = {
            "first": first,
            "view": view,
            "ids": None if ids is None else _storable_ids(ids),
            "images": None if images is None else _storable_ids(images),
            "limit": limit,
        }
        rows = self.execute(
            "SELECT {columns} FROM {items} i WHERE key >= %(first)s "
            "AND (%(view)s::text IS NULL OR view = %(view)s) "
            "AND (%(ids)s::text[] IS NULL OR id = ANY(%(ids)s)) "
            "AND (%(images)s::text[] IS NULL OR image = ANY(%(images)s)) ORDER BY key LIMIT %(limit)s",
            values,
            columns=_COLUMNS,
        ).fetchall()
        return [row[0] for row in rows], [_make_item(row) for row in rows]

    def page(self, listing: Listing) -> tuple[list[Item], int]:
        """Return a page of items, and how many there are on all pages; see ``Store.page``."""
        where, values = self.condition(listing.where)
        source = sql.SQL("FROM {} i WHERE (%(view)s::text IS NULL OR view = %(view)s) AND {}").format(
            self.version.items, where
        )
        order: sql.Composable = sql.SQL("key")
        if listing.order_by is not None:
            self.check_filter_keys(Filter(condition=Exists(listing.order_by)), "order_by")
            way = sql.SQL("DESC" if listing.descending else "ASC")
            order, values["name"] = sql.SQL(_ORDER).format(way=way), listing.order_by
        values |= {"view": listing.view, "offset": listing.offset, "limit": listing.limit}
        total = int(self.fetch_value("SELECT count(*) {source}", values, source=source))
        if listing.where is not None and total == 0:
            self.check_filter_keys(listing.where)
        rows = self.execute(
            "SELECT {columns} {source} ORDER BY {order} OFFSET %(offset)s LIMIT %(limit)s",
            values,
            columns=_COLUMNS,
            source=source,
            order=order,
        )
        return list(map(_make_item, rows)), total

    # Filters

    def condition(self, where: Filter | None) -> Choice:
        """Return a filter as a condition on ``key``."""
        conditions: list[sql.Composable] = [sql.SQL("TRUE")]
        values: dict[str, Any] = {}
        if where is not None and where.ids is not None:
            # Many ids are looked up once here, rather than once for each query.
            conditions.append(sql.SQL("key = ANY(%(keys)s)"))
            keys = self.find_keys(where.ids)
            where.check_stored(keys)
            values["keys"] = list(keys.values())
        if where is not None and where.condition is not None:
            metadata = _write_condition(where.condition, values)
            chosen = sql.SQL("key IN (SELECT i.key FROM {} i WHERE {})").format(self.version.items, metadata)
            conditions.append(chosen)
        return sql.SQL(" AND ").join(conditions), values

    def check_filter_keys(self, where: Filter, argument: str = "where") -> None:
        """Refuse a filter with a metadata key that no item has; for filters that matched nothing."""

        def exists(name: str) -> bool:
            statement: LiteralString = "SELECT EXISTS (SELECT FROM {items} WHERE metadata ? %s)"
            return _is_storable(name) and bool(self.fetch_value(statement, [name]))

        # Listing the keys of all items takes a while, so that is done only where one is missing.
        if all(map(exists, required_keys(where.condition))):
            return
        if self.fetch_value("SELECT EXISTS (SELECT FROM {items})"):
            names = self.execute("SELECT DISTINCT jsonb_object_keys(metadata) FROM {items}")
            check_metadata_keys(where, [name for (name,) in names], argument)

    # Vectors and features

    def copy_vectors(self, task: Task, keys: Keys, vectors: Floats) -> None:
        """Write vectors."""
        rows = _make_rows(keys, self._vector_type(task))
        rows["value"]["dimension"] = vectors.shape[1]
        with np.errstate(over="ignore"):  # the server refuses values that are too large for float16
            rows["value"]["vector"] = vectors
        self._copy(self.version.vectors(task), "v", rows)

    def _vector_type(self, task: Task) -> np.dtype[Any]:
        """Return how the server writes a vector of a task in binary."""
        vector = "vector", np.dtype(self.version.dtype).newbyteorder(">"), (self.version.dimensions[task],)
        return np.dtype([("dimension", ">i2"), ("unused", ">i2"), vector])

    def _copy(self, table: sql.Identifier, column: LiteralString, rows: np.ndarray[Any, Any]) -> None:
        statement = sql.SQL("COPY {} (key, {}) FROM STDIN (FORMAT BINARY)").format(table, sql.SQL(column))
        step = max(1, _CHUNK_BYTES // rows.dtype.itemsize)
        with self.connection.cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(_HEADER)
            for start in range(0, len(rows), step):
                copy.write(rows[start : start + step].tobytes())
            copy.write(_TRAILER)

    def vectors(self, task: Task, first: int, limit: int) -> tuple[list[int], Block]:
        """Return keys and items of a task with their vectors, from the key ``first`` on."""
        statement = sql.SQL(
            "SELECT {}, {}(v) FROM {} JOIN {} i USING (key) WHERE key >= %s ORDER BY key LIMIT %s"
        ).format(
            _COLUMNS,
            sql.Identifier(f"{self.version.kind}_send"),
            self.version.vectors(task),
            self.version.items,
        )
        with self.connection.cursor(binary=True) as cursor:
            rows = cursor.execute(statement, [first, limit]).fetchall()
        packed = np.frombuffer(b"".join(row[-1] for row in rows), self._vector_type(task))
        items = [_make_item(row[:-1]) for row in rows]
        vectors = packed["vector"].astype(self.version.dtype)
        return [row[0] for row in rows], Block(SEARCHED[task], items, vectors)

    def features(self, view: View, ids: Sequence[str]) -> Floats | None:
        """Return stored features in the order of ``ids``; None if those of one item are not stored."""
        width = self.version.widths[view]
        statement = sql.SQL("SELECT id, row FROM {} JOIN {} USING (key) WHERE id = ANY(%s)").format(
            self.version.items, self.version.features(view)
        )
        with self.connection.cursor(binary=True) as cursor:
            stored = dict(cursor.execute(statement, [_storable_ids(ids)]).fetchall())
        if any(len(row) != 4 * width for row in stored.values()):
            raise InputError(
                f"the database holds {view} features of another length than the model's {width}; fit it "
                "again."
            )
        if not all(item_id in stored for item_id in ids):
            return None
        joined = np.frombuffer(b"".join(stored[item_id] for item_id in ids), "<f4")
        return joined.astype(np.float32).reshape(len(ids), width)

    # Searches

    def search(self, task: Task, queries: Floats, k: int, where: Filter | None, depth: int) -> Matches:
        """Return the k nearest items of each query, and the products of ``depth``."""
        results = self.nearest(task, queries, depth, self.condition(where), graph=self.version.graph)
        if where is not None and not any(results):
            self.check_filter_keys(where)
        products = np.full((len(results), max(map(len, results), default=0)), -np.inf, np.float32)
        last = np.zeros_like(products)
        for row, coordinates, hits in zip(products, last, results, strict=True):
            row[: len(hits)] = [hit[-1] for hit in hits]
            coordinates[: len(hits)] = [hit[-2] for hit in hits]
        items = [[_make_item(hit[:-2]) for hit in hits[:k]] for hits in results]
        return Matches(products, items, lambda item: item, lambda: last)

    def count_kinds(self, view: View) -> tuple[int, int]:
        """Return how many items of a view have partners, and how many have none."""
        distinct = sql.SQL("DISTINCT" if view == "image" else "ALL")
        paired = int(
            self.fetch_value(
                "SELECT count({distinct} image) FROM {items} WHERE view = 'text'", distinct=distinct
            )
        )
        total = int(self.fetch_value("SELECT count(*) FROM {items} WHERE view = %s", [view]))
        return paired, max(0, total - paired)

    def nearest(
        self, task: Task, queries: Floats, k: int, condition: Choice, *, graph: bool
    ) -> list[list[Row]]:
        """Return the rows of the k nearest items for each query.

        They have ``_COLUMNS``, the last coordinate of the vector and the inner product.
        """
        where, values = condition
        vector = Vector if self.version.dtype == "float32" else HalfVector
        vectors = [vector(query) for query in queries]

        def search(places: list[int], size: int, *, graph: bool = graph) -> list[list[Row]]:
            limits = {"k": min(size, 2**31), "candidates": RERANKED * min(size, 2**28)}
            statement = self.search_statement(task, where, graph=graph)
            results = self._execute_many(
                statement, [values | limits | {"query": vectors[place]} for place in places]
            )
            if graph:
                # A graph may end before it has returned all items that match; those queries are searched
                # exactly.
                short = [at for at, rows in enumerate(results) if len(rows) < size]
                exact = search([places[at] for at in short], size, graph=False)
                for at, rows in zip(short, exact, strict=True):
                    results[at] = rows
            return results

        if not graph:
            return search(list(range(len(queries))), k)
        return search_in_steps(search, lambda row: int(row[0]), len(queries), k)

    def search_statement(self, task: Task, where: sql.Composable, *, graph: bool) -> sql.Composed:
        """Return the SQL of a search, with placeholders ``query``, ``k`` and ``candidates``."""
        version = self.version
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
            "SELECT {columns}, (v::real[])[{dimension}], f.score "
            "FROM (SELECT key, -(v <#> %(query)b) AS score FROM {source} c WHERE {where} {order}) f "
            "JOIN {items} i USING (key) JOIN {vectors} USING (key) ORDER BY f.score DESC, key"
        ).format(
            columns=_COLUMNS,
            dimension=sql.Literal(version.dimensions[task]),
            source=source,
            where=where,
            order=order,
            items=version.items,
            vectors=version.vectors(task),
        )

    def _execute_many(self, statement: sql.Composed, parameters: list[dict[str, Any]]) -> list[list[Row]]:
        if not parameters:
            return []
        with self.connection.cursor() as cursor:
            cursor.executemany(statement, parameters, returning=True)
            results = [cursor.fetchall()]
            while cursor.nextset():
                results.append(cursor.fetchall())
        return results


def _make_item(row: Sequence[Any]) -> Item:
    """Return the item of a row of ``_COLUMNS``, which other programs may have written."""
    _, item_id, view, path, text, image, metadata = row
    if view not in VIEWS or not isinstance(metadata, dict):
        raise InputError(
            f"the item {str(item_id)[:60]!r} in the database is damaged; remove it and add it again."
        )
    return Item(item_id, view, path, text, image, metadata)


def _make_rows(keys: Keys, value: Any) -> np.ndarray[Any, Any]:
    """Return rows of a key and a value of some type, as the server reads them in binary."""
    head = [("fields", ">i2"), ("key_size", ">i4"), ("key", ">i8"), ("size", ">i4")]
    rows = np.zeros(len(keys), [*head, ("value", value)])
    rows["fields"], rows["key_size"], rows["key"], rows["size"] = 2, 8, keys, np.dtype(value).itemsize
    return rows


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


def _check_stored(ids: Iterable[str], stored: Container[str]) -> None:
    for item_id in ids:
        if item_id not in stored:
            raise unknown_item(item_id)


def _storable_ids(ids: Iterable[Any]) -> list[str]:
    """Return those ids that PostgreSQL can store; no item has any other."""
    return [item_id for item_id in ids if isinstance(item_id, str) and _is_storable(item_id)]


def _is_storable(text: str) -> bool:
    return _NOT_STORABLE.search(text) is None


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


def _write_condition(condition: Condition, values: dict[str, Any]) -> sql.Composable:
    """Return a condition on ``i.metadata``, never NULL; adds to the values of its placeholders."""

    def bind(value: Any) -> sql.Placeholder:
        values[name := f"value_{len(values)}"] = value
        return sql.Placeholder(name)

    def join(
        operator: LiteralString, nothing: LiteralString, parts: Iterable[sql.Composable]
    ) -> sql.Composed:
        joined = sql.SQL(operator).join(parts) if (parts := list(parts)) else sql.SQL(nothing)
        return sql.SQL("({})").format(joined)

    match condition:
        case And(parts):
            return join(" AND ", "TRUE", (_write_condition(part, values) for part in parts))
        case Or(parts):
            return join(" OR ", "FALSE", (_write_condition(part, values) for part in parts))
        case Not(part):
            return sql.SQL("NOT {}").format(_write_condition(part, values))
    if not _is_storable(condition.key):
        return sql.SQL("FALSE")
    if isinstance(condition, Exists):
        return sql.SQL("i.metadata ? {}").format(bind(condition.key))
    if isinstance(condition, In):
        options = [value for value in condition.values if all(map(_is_storable, _all_strings(value)))]
        if len(options) <= _INDEXED_VALUES:
            contained = [{condition.key: part} for value in options for part in (value, [value])]
            contains = sql.SQL("i.metadata @> {}")
            return join(" OR ", "FALSE", (contains.format(bind(Jsonb(part))) for part in contained))
        return sql.SQL(_IN_MANY).format(key=bind(condition.key), values=bind([*map(Jsonb, options)]))
    compares = f"? (@ {_SIGNS[condition.operator]} $value)"
    return sql.SQL(_COMPARE).format(
        key=bind(condition.key),
        value=bind(Jsonb({"value": condition.value})),
        single=sql.Literal(f"strict $ {compares}"),
        element=sql.Literal(f"strict $[*] {compares}"),
    )
