"""The store in PostgreSQL: shared by processes, searched by the server, its model replaced in one step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import numpy as np
from psycopg import sql
from psycopg.errors import UndefinedTable

from diptych._checks import InputError, Task, check_choice
from diptych.retrieval._filters import Filter
from diptych.retrieval._items import SEARCHED, Item, View, check_unique
from diptych.retrieval.stores._base import Block, Contents, Floats, ModelChanged, State
from diptych.retrieval.stores._faiss import DTYPES
from diptych.retrieval.stores.postgres._connection import Address, Connection, Connections
from diptych.retrieval.stores.postgres._rows import (
    check_filter_keys,
    check_not_stored,
    check_storable,
    delete_items,
    delete_vectors,
    filter_condition,
    make_item,
    next_key,
    read_features,
    read_items,
    read_vectors,
    search_vectors,
)
from diptych.retrieval.stores.postgres._schema import NoModelError, exclusive, lock_writes, migrate
from diptych.retrieval.stores.postgres._versions import (
    Version,
    drop_unused,
    insert_block,
    load_version,
    query_version,
    read_files,
    read_version,
)

T = TypeVar("T")

PAGE = 2000
"""Items read at a time."""

TOKENS_KEPT = "1 day"
"""How long the tokens of finished writes are kept: longer than any connection is retried."""


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
        self._version: Version | None = None  # the one that was in use when last read
        self._connections = Connections(self._address, partial(migrate, address=self._address, create=create))

    @property
    def keeps_features(self) -> bool:
        """Whether the features of items are stored."""
        return self._version is not None and self._version.keeps_features

    def state(self) -> State:
        """Return the current state; a store opened with ``create`` creates its tables first."""

        def query(connection: Connection, version: Version) -> State:
            return State(version.name, next_key(connection, version.tables))

        try:
            return self._read(query)
        except NoModelError:
            if not self._create:
                raise
            return State("", 0)

    def search(
        self, task: Task, queries: Floats, k: int, where: Filter | None, version: str
    ) -> list[list[tuple[Item, float]]]:
        """Return the k items with the largest inner products for each query, largest first."""

        def query(connection: Connection, current: Version) -> list[list[tuple[Item, float]]]:
            tables, condition = current.tables, filter_condition(connection, current.tables, where)
            results = search_vectors(
                connection, tables, task, queries, k, condition, current.dtype, graph=current.graph
            )
            if where is not None and not any(results):
                check_filter_keys(connection, tables, where)
            return [[(make_item(row[:-1]), row[-1]) for row in rows] for rows in results]

        return self._read(query, version)

    def add(self, blocks: Sequence[Block], version: str) -> None:
        """Add items in one transaction; they are on the disk when this returns."""
        items = [item for block in blocks for item in block.items]
        check_unique(items)
        check_storable(items, self._address.max_item)

        def write(connection: Connection) -> None:
            current = self._refresh(connection)
            if current.name != version:
                raise ModelChanged
            check_not_stored(connection, current.tables, items)
            for block in blocks:
                insert_block(connection, current, block)

        self._write(write)

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items in one transaction, and with an image its captions; return how many."""

        def write(connection: Connection) -> int:
            current = self._refresh(connection)
            keys = delete_items(connection, current.tables, ids)
            delete_vectors(connection, current.tables, keys, features=current.keeps_features)
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
            return read_items(connection, current.tables, view, ids=ids, image=image, first=start, limit=PAGE)

        while page := self._read(query):
            yield from (item for _, item in page)
            if len(page) < PAGE:
                return
            first = page[-1][0] + 1

    def count(self, view: View | None = None) -> int:
        """Return the number of items, of one view or of both."""

        def query(connection: Connection, current: Version) -> int:
            condition = sql.SQL("TRUE" if view is None else "view = %s")
            statement = sql.SQL("SELECT count(*) FROM {} WHERE {}").format(current.tables.items, condition)
            row = connection.execute(statement, [] if view is None else [view]).fetchone()
            return int(row[0]) if row else 0

        return self._read(query)

    def vectors(self, task: Task, version: str) -> Iterator[Block]:
        """Iterate over all items of a task with their vectors, in order of addition."""
        view = SEARCHED[task]

        def query(connection: Connection, current: Version) -> list[Block]:
            statement = sql.SQL("SELECT count(*) FROM {}").format(current.tables.vectors(task))
            row = connection.execute(statement).fetchone()
            size = 4 * (row[0] if row else 0) * current.dimensions[task]
            if size > self._address.max_memory:
                raise InputError(
                    f"this reads all vectors into memory, {size} bytes; at most {self._address.max_memory} "
                    "are read. Allow more with ?max_memory=."
                )
            chunks = list(
                read_vectors(connection, current.tables, task, current.dimensions[task], current.dtype)
            )
            items = dict(read_items(connection, current.tables, view))
            return [Block(view, [items[key] for key in keys.tolist()], vectors) for keys, vectors in chunks]

        return iter(self._read(query, version, pipeline=False))  # COPY does not work in a pipeline

    def features(self, view: View, ids: Sequence[str]) -> Floats | None:
        """Return stored features in the order of ``ids``; None if those of one item are not stored."""

        def query(connection: Connection, current: Version) -> Floats | None:
            width = current.widths[view]
            rows = read_features(connection, current.tables, view, ids, width)
            if not all(item_id in rows for item_id in ids):
                return None
            return np.array([rows[item_id] for item_id in ids], np.float32).reshape(len(ids), width)

        return self._read(query)

    def read_model(self, folder: Path, names: Sequence[str]) -> str:
        """Write the stored files of the model with these names to a folder; return the version."""

        def query(connection: Connection, current: Version) -> str:
            read_files(connection, self._address, current, names, folder)
            return current.name

        return self._read(query, pipeline=False)

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
                    load_version(connection, self._address, make(), dtype, previous, names.append)
                self._refresh(connection)

        self._connections.run(attempt, share=True)
        return self

    def _refresh(self, connection: Connection) -> Version:
        """Read which version is in use now."""
        version = read_version(connection, self._address.schema)
        if version is None:
            raise NoModelError(self._address)
        self._version, self.dtype = version, version.dtype
        self.kind = "postgresql, hnsw" if version.graph else "postgresql"
        return version

    def _read(
        self,
        query: Callable[[Connection, Version], T],
        version: str | None = None,
        *,
        pipeline: bool = True,
    ) -> T:
        """Call ``query`` within one snapshot of the database, with the version that is in use there.

        In a pipeline, statements are sent before the answer about the version arrives, which saves a round
        trip. The result counts only if the version turns out to be the expected one. Otherwise the query is
        repeated with the new version, or ``ModelChanged`` is raised where the caller needs a certain one.
        """

        def attempt(connection: Connection) -> T:
            current = self._version or self._refresh(connection)
            while True:
                if version is not None and current.name != version:
                    current = self._refresh(connection)
                    if current.name != version:
                        raise ModelChanged
                missing = ""
                refused: InputError | None = None
                try:
                    with ExitStack() as stack:
                        if pipeline:
                            stack.enter_context(connection.pipeline())
                        stack.enter_context(connection.transaction())
                        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                        in_use = query_version(connection, self._address.schema)
                        try:
                            result = query(connection, current)
                        except InputError as error:
                            refused = error
                        row = in_use.fetchone()
                        if row is not None and row[0] == current.tables.version:
                            if refused is not None:
                                raise refused
                            return result
                except UndefinedTable as error:  # the version was replaced twice since it was read
                    missing = str(error.diag.message_primary)
                previous, current = current, self._refresh(connection)
                if missing and current == previous:
                    raise InputError(f"{missing} in {self.address}; restore the table, or fit again.")

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
