"""The store in PostgreSQL: shared by processes, searched by the server, its model replaced in one step."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import LiteralString, TypeVar
from uuid import uuid4

import numpy as np
import psycopg
from psycopg import sql
from psycopg.errors import UndefinedTable

from diptych._checks import TASKS, InputError, Task, check_choice
from diptych.retrieval._filters import Filter
from diptych.retrieval._items import TASK_OF, Item, View, check_unique
from diptych.retrieval.stores._base import (
    Block,
    Change,
    Contents,
    Floats,
    Listing,
    Matches,
    ModelChanged,
    State,
    measure_recall,
)
from diptych.retrieval.stores._faiss import DTYPES
from diptych.retrieval.stores.postgres._connection import Address, Connection, Connections
from diptych.retrieval.stores.postgres._rows import ALL, Rows, check_storable
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
        return self._version is not None and self._version.keeps_features

    def state(self) -> State:
        try:
            return self._read(lambda rows: State(rows.version.name, rows.next_key()))
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
        deepest = max(k, depth or 0)
        return self._read(lambda rows: rows.search(task, queries, k, where, deepest), version)

    def add(self, blocks: Sequence[Block], version: str, *, replace: bool = False) -> None:
        items = [item for block in blocks for item in block.items]
        check_unique(items)
        check_storable(items, self._address.max_item)

        def write(rows: Rows) -> None:
            if not replace:
                rows.check_new(items)
            for block in blocks:
                rows.add(block, replace=replace)

        self._write(write, version)

    def update(
        self, ids: Sequence[str], change: Change, version: str, content: Block | None = None
    ) -> list[Item]:
        def write(rows: Rows) -> list[Item]:
            changed = rows.change(ids, change)
            items = list(changed.values())
            check_storable(items, self._address.max_item)
            if content is not None:
                rows.add(replace(content, items=items), replace=True)
            else:
                rows.update(changed)
            return items

        return self._write(write, version)

    def remove(self, ids: Sequence[str]) -> int:
        return self._write(lambda rows: rows.remove(ids)) if ids else 0

    def items(
        self,
        view: View | None = None,
        *,
        ids: Sequence[str] | None = None,
        images: Sequence[str] | None = None,
        new: bool = False,
    ) -> Iterator[Item]:
        def read(rows: Rows, first: int) -> tuple[list[int], list[Item]]:
            start = max(first, rows.version.first_new_key or 0) if new else first
            return rows.items(view, ids=ids, images=images, first=start, limit=PAGE)

        return itertools.chain.from_iterable(self._pages(read))

    def page(self, listing: Listing) -> tuple[list[Item], int]:
        return self._read(lambda rows: rows.page(listing))

    def count(self, view: View | None = None) -> int:
        statement: LiteralString = "SELECT count(*) FROM {items} WHERE view = coalesce(%s, view)"
        return self._read(lambda rows: int(rows.fetch_value(statement, [view])))

    def count_kinds(self, view: View) -> tuple[int, int]:
        """Return how many items of a view have partners, and how many have none, at most a minute ago."""
        at, kinds = self._kinds.get(view, (0.0, (0, 0)))
        if not at or time.monotonic() > at + KINDS_KEPT:
            kinds = self._read(lambda rows: rows.count_kinds(view))
            self._kinds[view] = time.monotonic(), kinds
        return kinds

    def vectors(self, task: Task, version: str) -> Iterator[Block]:
        return self._pages(lambda rows, first: rows.vectors(task, first, PAGE), version)

    def _pages(
        self, read: Callable[[Rows, int], tuple[list[int], T]], version: str | None = None
    ) -> Iterator[T]:
        """Iterate over what ``read`` returns with the keys of a page, from the next key on."""
        first = 0

        def read_next(rows: Rows) -> tuple[list[int], T]:
            return read(rows, first)

        while True:
            keys, page = self._read(read_next, version)
            if keys:
                yield page
            if len(keys) < PAGE:
                return
            first = keys[-1] + 1

    def features(self, view: View, ids: Sequence[str]) -> Floats | None:
        return self._read(lambda rows: rows.features(view, ids))

    @contextmanager
    def model_files(self, names: Sequence[str]) -> Iterator[tuple[Path, str]]:
        """Give a folder with copies of the stored files of the model that have these names."""
        with tempfile.TemporaryDirectory() as scratch:

            def read(rows: Rows) -> str:
                _read_files(rows, self._address, names, Path(scratch))
                return rows.version.name

            version = self._read(read)
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

    def _read(self, query: Callable[[Rows], T], version: str | None = None) -> T:
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
                        current = self._refresh(connection, version)
                        return query(Rows(connection, current))
                except UndefinedTable as error:  # another version came into use, and this one was dropped
                    if current is None or current == previous:
                        reason = error.diag.message_primary
                        raise InputError(
                            f"{reason} in {self.address}; restore the table, or fit again."
                        ) from None
                    previous = current

        return self._connections.run(attempt)

    def _write(self, write: Callable[[Rows], T], version: str | None = None) -> T:
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
                    results[:] = [write(Rows(connection, self._refresh(connection, version)))]
                    for statement, values in (
                        ("INSERT INTO {}.batches (token) VALUES (%s)", [token]),
                        ("DELETE FROM {}.batches WHERE done < now() - %s::interval", [TOKENS_KEPT]),
                    ):
                        connection.execute(sql.SQL(statement).format(schema), values)
            return results[0]

        return self._connections.run(attempt)


def _read_files(rows: Rows, address: Address, names: Sequence[str], folder: Path) -> None:
    """Write those files of a version's model that have one of these names to a folder, piece by piece.

    Rows with other names are ignored, so that a database cannot choose where files are written.
    """
    files = sql.Identifier(address.schema, "files")
    size = rows.fetch_value(
        "SELECT coalesce(sum(octet_length(content)), 0) FROM {files} WHERE version = %s AND name = ANY(%s)",
        [rows.version.number, list(names)],
        files=files,
    )
    if size > address.max_model:
        raise InputError(
            f"the model in {address.public} takes {size} bytes; at most {address.max_model} are read. Allow "
            "more with ?max_model=."
        )
    query = sql.SQL("SELECT content FROM {} WHERE version = %s AND name = %s AND number = %s").format(files)
    with rows.connection.cursor(binary=True) as cursor:
        for name in names:
            for number in itertools.count():
                row = cursor.execute(query, [rows.version.number, name, number]).fetchone()
                if row is None:
                    break
                (folder / name).parent.mkdir(exist_ok=True)
                with open(folder / name, "ab" if number else "wb") as file:
                    file.write(row[0])


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
    new = insert_version(connection, address, contents, dtype, previous)
    on_begin(new.name)
    rows = Rows(connection, new)
    try:
        _fill_tables(rows, address, contents, previous)
        _write_files(rows, contents, previous)
        first_new_key = rows.next_key()
        if previous is not None and contents.same_vectors:
            first_new_key = previous.first_new_key or 0
    except BaseException:
        with suppress(psycopg.Error):
            drop_unused(connection, address.schema, wait=False)
        raise
    put_in_use(connection, new, first_new_key)
    with suppress(psycopg.Error):  # whatever remains is dropped next time
        drop_unused(connection, address.schema, wait=False)


def _fill_tables(rows: Rows, address: Address, contents: Contents, previous: Version | None) -> None:
    connection, new = rows.connection, rows.version
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
                rows.add(block)
            else:
                stored = rows.find_keys(item.id for item in block.items)
                keys = np.array([stored[item.id] for item in block.items], np.int64)
                rows.copy_vectors(TASK_OF[block.view], keys, block.vectors)
    if previous is None:
        check_unique(items)
        index_items(connection, new)
    for task in TASKS:
        index_vectors(connection, new, task, address)
        queries = contents.sample_queries(task, SAMPLE_QUERIES) if new.graph else None
        if queries is not None:
            exact, approximate = (
                [[hit[0] for hit in hits] for hits in rows.nearest(task, queries, 10, ALL, graph=graph)]
                for graph in (False, True)
            )
            contents.report_recall(task, measure_recall(exact, approximate))


def _write_files(rows: Rows, contents: Contents, previous: Version | None) -> None:
    """Store the files of a model; those that it does not write are copied from the previous version."""
    table, number = sql.Identifier(rows.version.schema, "files"), rows.version.number
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        contents.write_model(folder)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        with rows.connection.transaction():
            for name, path in files.items():
                with open(path, "rb") as file:
                    for place, piece in enumerate(iter(partial(file.read, PIECE_BYTES), b"")):
                        values = [number, name, place, piece]
                        rows.execute("INSERT INTO {files} VALUES (%s, %s, %s, %b)", values, files=table)
            if previous is not None:
                rows.execute(
                    "INSERT INTO {files} SELECT %s, name, number, content FROM {files} "
                    "WHERE version = %s AND name <> ALL(%s)",
                    [number, previous.number, list(files)],
                    files=table,
                )
