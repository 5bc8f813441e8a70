"""The store in PostgreSQL: shared by processes, searched by the server, its model replaced in one step."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import numpy as np
import psycopg
from psycopg import sql
from psycopg.errors import UndefinedTable

from diptych._checks import TASKS, InputError, Task, check_choice
from diptych.retrieval._filters import Filter
from diptych.retrieval._items import SEARCHED, TASK_OF, Item, View, check_unique
from diptych.retrieval.stores._base import (
    Block,
    Change,
    Contents,
    Floats,
    Listing,
    Matches,
    ModelChanged,
    State,
)
from diptych.retrieval.stores._faiss import DTYPES
from diptych.retrieval.stores.postgres._connection import Address, Connection, Connections
from diptych.retrieval.stores.postgres._rows import (
    change_items,
    check_filter_keys,
    check_not_stored,
    check_storable,
    copy_features,
    copy_items,
    copy_vectors,
    delete_items,
    delete_replaced,
    delete_vectors,
    filter_condition,
    find_keys,
    list_items,
    make_item,
    next_key,
    read_features,
    read_items,
    read_vectors,
    reserve_keys,
    search_vectors,
    update_items,
)
from diptych.retrieval.stores.postgres._schema import (
    NoModelError,
    Version,
    create_items,
    create_vectors,
    drop_unused,
    exclusive,
    index_items,
    index_vectors,
    insert_version,
    lock_writes,
    migrate,
    put_in_use,
    read_version,
)

T = TypeVar("T")

PAGE = 2000
"""Items read at a time."""

TOKENS_KEPT = "1 day"
"""How long the tokens of finished writes are kept: longer than any connection is retried."""

KINDS_KEPT = 60.0
"""Seconds for which a count of items with and without partners is used; a full count reads all items."""

PIECE_BYTES = 2**22
"""Bytes of a file in one row."""

SAMPLE_QUERIES = 50
"""Queries that the recall of a graph is measured with."""


class PostgresStore:
    """Items and vectors in one schema of a PostgreSQL database with pgvector.

    Every call is answered within one transaction, which also checks the model version. So a query made by one
    model is never compared with vectors of another, and nothing is lost or half written whenever a process or
    the server is killed.

    Parameters
    ----------
    address
        ``postgresql://user@host/database``, with settings of PostgreSQL and of ``Address``.
    dtype
        Of the vectors of a new fit.
    create
        Whether to create missing tables; without it, a schema without a model is an ``InputError``.
    """

    shared = True

    def __init__(self, address: str, dtype: str = "float32", *, create: bool = False) -> None:
        self._address, self._create = Address.parse(address), create
        self._new_dtype = self.dtype = check_choice(dtype, DTYPES, "dtype")
        self.kind, self.address = "postgresql", self._address.public
        self._kinds: dict[View, tuple[float, tuple[int, int]]] = {}
        self._version: Version | None = None  # the one that was in use when last read
        self._connections = Connections(self._address, partial(migrate, address=self._address, create=create))

    @property
    def keeps_features(self) -> bool:
        """Whether the features of items are stored."""
        return self._version is not None and self._version.keeps_features

    def state(self) -> State:
        """Return the current state; a store opened with ``create`` creates its tables first."""

        def query(connection: Connection, version: Version) -> State:
            return State(version.name, next_key(connection, version))

        try:
            return self._read(query)
        except NoModelError:
            if not self._create:
                raise
            return State("", 0)

    def search(
        self,
        task: Task,
        queries: Floats,
        k: int,
        where: Filter | None,
        version: str,
        depth: int | None = None,
    ) -> Matches:
        """Return the k items with the largest inner products for each query, largest first."""
        deepest = max(k, depth or 0)

        def query(connection: Connection, current: Version) -> Matches:
            condition = filter_condition(connection, current, where)
            results = search_vectors(
                connection, current, task, queries, deepest, condition, graph=current.graph
            )
            if where is not None and not any(results):
                check_filter_keys(connection, current, where)
            products = np.full((len(results), max(map(len, results), default=0)), -np.inf, np.float32)
            for row, found in zip(products, results, strict=True):
                row[: len(found)] = [record[-1] for record in found]
            items = [[make_item(record[:-1]) for record in found[:k]] for found in results]
            return Matches(products, items, lambda item: item)

        return self._read(query, version)

    def add(self, blocks: Sequence[Block], version: str, *, replace: bool = False) -> None:
        """Add items in one transaction; they are on the disk when this returns."""
        items = [item for block in blocks for item in block.items]
        check_unique(items)
        check_storable(items, self._address.max_item)

        def write(connection: Connection) -> None:
            current = self._refresh(connection, version)
            if not replace:
                check_not_stored(connection, current, items)
            for block in blocks:
                self._add(connection, current, block, replace=replace)

        self._write(write)

    def update(
        self, ids: Sequence[str], change: Change, version: str, content: Block | None = None
    ) -> list[Item]:
        """Change items in one transaction; see ``Store.update``."""

        def write(connection: Connection) -> list[Item]:
            current = self._refresh(connection, version)
            changed = change_items(connection, current, ids, change)
            items = list(changed.values())
            check_storable(items, self._address.max_item)
            if content is not None:
                self._add(connection, current, replace(content, items=items), replace=True)
            else:
                update_items(connection, current, changed)
            return items

        return self._write(write)

    def _add(self, connection: Connection, version: Version, block: Block, *, replace: bool) -> None:
        if replace:
            keys = delete_replaced(connection, version, block.view, block.items)
            delete_vectors(connection, version, keys, features=version.keeps_features)
        _insert_block(connection, version, block)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items in one transaction, and with an image its captions; return how many."""

        def write(connection: Connection) -> int:
            current = self._refresh(connection)
            keys = delete_items(connection, current, ids)
            delete_vectors(connection, current, keys, features=current.keeps_features)
            return len(keys)

        return self._write(write) if ids else 0

    def items(
        self,
        view: View | None = None,
        *,
        ids: Sequence[str] | None = None,
        image: str | None = None,
        new: bool = False,
    ) -> Iterator[Item]:
        """Iterate over items in order of addition; see ``Store.items``."""
        first = 0

        def query(connection: Connection, current: Version) -> list[tuple[int, Item]]:
            start = max(first, current.first_new_key or 0) if new else first
            return read_items(connection, current, view, ids=ids, image=image, first=start, limit=PAGE)

        while page := self._read(query):
            yield from (item for _, item in page)
            if len(page) < PAGE:
                return
            first = page[-1][0] + 1

    def page(self, listing: Listing) -> tuple[list[Item], int]:
        """Return a page of items, and how many there are on all pages; see ``Store.page``."""
        return self._read(lambda connection, current: list_items(connection, current, listing))

    def count(self, view: View | None = None) -> int:
        """Return the number of items, of one view or of both."""

        def query(connection: Connection, current: Version) -> int:
            statement = sql.SQL("SELECT count(*) FROM {} WHERE view = coalesce(%s, view)")
            row = connection.execute(statement.format(current.items), [view]).fetchone()
            return int(row[0]) if row else 0

        return self._read(query)

    def count_kinds(self, view: View) -> tuple[int, int]:
        """Return how many items of a view have partners, and how many have none, at most a minute ago."""

        def query(connection: Connection, current: Version) -> tuple[int, int]:
            distinct = sql.SQL("DISTINCT" if view == "image" else "ALL")
            statement = sql.SQL(
                "SELECT (SELECT count({0} image) FROM {1} WHERE view = 'text'), count(*) "
                "FROM {1} WHERE view = %s"
            )
            row = connection.execute(statement.format(distinct, current.items), [view]).fetchone()
            assert row is not None
            return int(row[0]), max(0, int(row[1] - row[0]))

        at, kinds = self._kinds.get(view, (0.0, (0, 0)))
        if not at or time.monotonic() > at + KINDS_KEPT:
            kinds = self._read(query)
            self._kinds[view] = time.monotonic(), kinds
        return kinds

    def vectors(self, task: Task, version: str) -> Iterator[Block]:
        """Iterate over all items of a task with their vectors, in order of addition."""
        first = 0

        def query(connection: Connection, current: Version) -> tuple[list[tuple[int, Item]], Floats]:
            return read_vectors(connection, current, task, first, PAGE)

        while True:
            page, vectors = self._read(query, version)
            if page:
                yield Block(SEARCHED[task], [item for _, item in page], vectors)
            if len(page) < PAGE:
                return
            first = page[-1][0] + 1

    def features(self, view: View, ids: Sequence[str]) -> Floats | None:
        """Return stored features in the order of ``ids``; None if those of one item are not stored."""

        def query(connection: Connection, current: Version) -> Floats | None:
            width = current.widths[view]
            rows = read_features(connection, current, view, ids, width)
            if not all(item_id in rows for item_id in ids):
                return None
            return np.array([rows[item_id] for item_id in ids], np.float32).reshape(len(ids), width)

        return self._read(query)

    @contextmanager
    def model_files(self, names: Sequence[str]) -> Iterator[tuple[Path, str]]:
        """Give a folder with the stored files of the model that have these names, and the model's version."""
        with tempfile.TemporaryDirectory() as scratch:

            def query(connection: Connection, current: Version) -> str:
                _read_files(connection, self._address, current, names, Path(scratch))
                return current.name

            version = self._read(query)
            yield Path(scratch), version

    def replace(self, make: Callable[[], Contents], version: str | None = None) -> PostgresStore:
        """Load a model and all vectors beside the stored ones, then put them in use in one step."""
        names: list[str] = []

        def attempt(connection: Connection) -> None:
            with exclusive(connection, self._address.schema):
                current = read_version(connection, self._address.schema)
                # If the connection is lost after the swap, the next attempt sees its own version and stops.
                if current is None or current.name not in names:
                    if version is not None and (current is None or current.name != version):
                        raise ModelChanged
                    drop_unused(connection, self._address.schema)
                    previous = None if version is None else current
                    # A store that was opened to be read keeps its dtype when it is fitted again.
                    dtype = self._new_dtype if self._create or current is None else current.dtype
                    _load_version(connection, self._address, make(), dtype, previous, names.append)
                self._refresh(connection)

        self._connections.run(attempt, share=True)
        return self

    def _refresh(self, connection: Connection, expected: str | None = None) -> Version:
        """Read which version is in use now; ``ModelChanged`` if it is not the ``expected`` one."""
        version = read_version(connection, self._address.schema)
        if version is None:
            raise NoModelError(self._address)
        if expected not in (None, version.name):
            raise ModelChanged
        self._version, self.dtype = version, version.dtype
        self.kind = "postgresql, hnsw" if version.graph else "postgresql"
        return version

    def _read(self, query: Callable[[Connection, Version], T], version: str | None = None) -> T:
        """Call ``query`` within one snapshot of the database, with the version that is in use there.

        ``ModelChanged`` if that is not the ``version`` of the caller.
        """

        def attempt(connection: Connection) -> T:
            previous: Version | None = None
            while True:
                current = None
                try:
                    with connection.pipeline(), connection.transaction():
                        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                        current = self._refresh(connection)
                        if version not in (None, current.name):
                            raise ModelChanged
                        return query(connection, current)
                except UndefinedTable as error:  # another version came into use, and this one was dropped
                    if current is None or current == previous:
                        reason = error.diag.message_primary
                        raise InputError(
                            f"{reason} in {self.address}; restore the table, or fit again."
                        ) from None
                    previous = current

        return self._connections.run(attempt)

    def _write(self, write: Callable[[Connection], T]) -> T:
        """Call ``write`` in one transaction, alone among writers, and exactly once.

        If the connection is lost during the commit, the client cannot know whether it succeeded. So the
        transaction also stores a token: if the next attempt finds it, everything has been written.
        """
        token, name = uuid4(), self._address.schema
        schema = sql.Identifier(name)
        results: list[T] = []

        def attempt(connection: Connection) -> T:
            with connection.transaction():
                lock_writes(connection, name)  # a previous attempt has ended once the lock is free
                done = sql.SQL("SELECT FROM {}.batches WHERE token = %s").format(schema)
                if connection.execute(done, [token]).fetchone() is None:
                    results[:] = [write(connection)]
                    for statement, values in (
                        ("INSERT INTO {}.batches (token) VALUES (%s)", [token]),
                        ("DELETE FROM {}.batches WHERE done < now() - %s::interval", [TOKENS_KEPT]),
                    ):
                        connection.execute(sql.SQL(statement).format(schema), values)
            return results[0]

        return self._connections.run(attempt)


def _read_files(
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
    number = version.number
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


def _load_version(
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
    new = insert_version(connection, schema, contents, dtype, graph, previous)
    on_begin(new.name)
    try:
        _fill_tables(connection, address, contents, new, previous)
        _write_files(connection, contents, new, previous)
        first_new_key = next_key(connection, new)
        if previous is not None and contents.same_vectors:
            first_new_key = previous.first_new_key or 0
    except BaseException:
        with suppress(psycopg.Error):
            drop_unused(connection, schema, wait=False)
        raise
    put_in_use(connection, new, first_new_key)
    with suppress(psycopg.Error):  # whatever remains is dropped next time
        drop_unused(connection, schema, wait=False)


def _insert_block(connection: Connection, version: Version, block: Block) -> None:
    """Insert items with their vectors, and their features where the version keeps them."""
    if not block.items:
        return
    keys = reserve_keys(connection, version, len(block.items))
    copy_items(connection, version, keys, block.items)
    if version.keeps_features and block.features is not None:
        copy_features(connection, version, block.view, keys, np.asarray(block.features, np.float32))
    copy_vectors(connection, version, TASK_OF[block.view], keys, block.vectors)


def _fill_tables(
    connection: Connection, address: Address, contents: Contents, new: Version, previous: Version | None
) -> None:
    with connection.transaction():
        for task in TASKS:
            create_vectors(connection, new, task)
        if previous is None:
            create_items(connection, new)
    items: list[Item] = []
    for block in contents.blocks:
        if previous is None:
            check_storable(block.items, address.max_item)
            items += block.items
        with connection.transaction():
            # The switch waits for the disk, and with it for everything before.
            connection.execute("SET LOCAL synchronous_commit = off")
            if previous is None:
                _insert_block(connection, new, block)
            else:
                stored = find_keys(connection, new, [item.id for item in block.items])
                keys = np.array([stored[item.id] for item in block.items], np.int64)
                copy_vectors(connection, new, TASK_OF[block.view], keys, block.vectors)
    if previous is None:
        check_unique(items)
        index_items(connection, new)
    for task in TASKS:
        index_vectors(connection, new, task, address)
        queries = contents.sample_queries(task, SAMPLE_QUERIES) if new.graph else None
        if queries is not None:
            contents.report_recall(task, _measure_recall(connection, new, task, queries))


def _measure_recall(connection: Connection, version: Version, task: Task, queries: Floats) -> float:
    """Return the share of the exact ten nearest items that the graph finds."""
    everything = sql.SQL("TRUE"), dict[str, object]()
    exact, nearest = (
        [
            {row[0] for row in rows}
            for rows in search_vectors(connection, version, task, queries, 10, everything, graph=graph)
        ]
        for graph in (False, True)
    )
    total = sum(map(len, exact))
    return sum(len(a & b) for a, b in zip(exact, nearest, strict=True)) / total if total else 1.0


def _write_files(connection: Connection, contents: Contents, new: Version, previous: Version | None) -> None:
    """Store the files of a model; those that it does not write are copied from the previous version."""
    schema, number = sql.Identifier(new.schema), new.number
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
                connection.execute(copy, [number, previous.number, list(files)])
