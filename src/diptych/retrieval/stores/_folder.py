"""A store in a model folder: items in SQLite, vectors and features in files of rows, searched in memory.

**A writer** is one transaction of SQLite, alone among all processes. It first learns what others have
committed, writes new rows behind the valid ones, flushes them, and then commits the items together with the
number of valid rows. So an addition is on the disk when it returns, and one that was killed leaves rows that
the next writer overwrites. An item that gets another vector gets a new key and a new row. Removed items leave
holes. Once more than half of the rows are holes, or there were twice as many changes as rows, the rows are
written again without holes, and the log of changes begins anew.

**A new model** (a fit, a refit, a calibration) is a new version and new files of rows, written completely and
flushed before the commit that makes them current. Then the old files are removed; a process that has them
mapped can still read them (on Windows the next such commit removes them).

**A reader** looks at a counter of SQLite before each search. If others have committed, it reads the items
added since, and the keys whose items were changed or removed since; if there are other files, it reads
everything again. A search for another version of the model than the current one is ``ModelChanged``.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from sqlite3 import Connection

import msgspec
import numpy as np

from diptych._checks import TASKS, InputError, Task
from diptych._database import FILE, Database
from diptych._model_folder import Version
from diptych.retrieval._filters import Filter
from diptych.retrieval._items import TASK_OF, VIEWS, Item, Places, PublishedPlaces, StoredItem, View
from diptych.retrieval.stores._base import (
    Block,
    Change,
    Contents,
    Floats,
    Keys,
    Listing,
    Matches,
    ModelChanged,
    State,
    Store,
)
from diptych.retrieval.stores._faiss import VectorIndex
from diptych.retrieval.stores._files import (
    ROWS,
    Layout,
    check_version,
    check_writable,
    delete_items,
    insert_items,
    read_current_layout,
    read_graph,
    read_items,
    tidy,
    update_items,
    write_current,
    write_folder,
    write_layout,
)
from diptych.retrieval.stores._memory import ItemTable, MemoryStore

COMPACTED = 1024
"""Rows from which a file is written again once more than half of it are holes."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """What is in memory: the version, the layout, and the number of the last change that are applied."""

    version: Version
    layout: Layout
    store: MemoryStore
    change: int = 0


@dataclass(frozen=True)
class Reading:
    """How the files of a folder are read.

    ``mmap``: leave vectors, features and the model on the disk. ``trust_graph``: read graphs as they are.
    ``images``, with ``published``: the folder of the images, for a folder of somebody else.
    """

    mmap: bool = False
    trust_graph: bool = False
    published: bool = False
    images: str | os.PathLike[str] | None = None

    def places(self, layout: Layout, folder: Path) -> Places:
        """Return where images lie."""
        if self.published:
            return PublishedPlaces(folder, None if self.images is None else os.fspath(self.images))
        return Places.read(layout.images, folder)


class FolderStore:
    """Items of a model folder, a real path, for any number of processes on one machine.

    Each change is one transaction, and on the disk when the call returns.
    """

    shared = True
    address = ""

    def __init__(self, folder: Path, reading: Reading = Reading(), *, loaded: Loaded | None = None) -> None:
        self.folder, self.reading = folder, reading
        self._writing, self._syncing = threading.RLock(), threading.RLock()
        self._database = Database(folder, read_only=reading.published)
        self._seen = self._database.data_version()
        self._loaded = self._load() if loaded is None else loaded

    @classmethod
    def write(
        cls,
        folder: str | os.PathLike[str],
        store: MemoryStore,
        write_model: Callable[[Path], None],
        *,
        graphs: bool = True,
    ) -> FolderStore:
        """Put a store and its model into a folder, in place of what it holds; return the store there.

        ``write_model`` writes the files of the model to an empty folder. Without ``graphs``, those of the
        store are left out.
        """
        folder = check_writable(folder)
        version, layout = write_folder(folder, store, write_model, graphs=graphs)
        assert layout is not None
        return cls(folder, loaded=Loaded(version, layout, store))

    @property
    def kind(self) -> str:
        return self._loaded.layout.kind

    @property
    def dtype(self) -> str:
        return self._loaded.layout.dtype

    @property
    def keeps_features(self) -> bool:
        return bool(self._loaded.layout.widths)

    @property
    def resident(self) -> MemoryStore:
        """What is in memory or mapped, as it is now."""
        return self._refresh().store

    def state(self) -> State:
        loaded = self._refresh()
        return State(loaded.version.id, loaded.layout.next_key)

    def is_in(self, folder: Path) -> bool:
        """Return whether this store is in a folder."""
        with suppress(OSError):
            return os.path.samefile(folder / FILE, self._database.path)
        return False

    def close(self) -> None:
        """Close the database, so that its file alone holds all items; the store cannot be used any more."""
        self._database.close()

    @contextmanager
    def read_tables(self) -> Iterator[Connection]:
        """Give a connection for reading other tables than those of items."""
        with self._syncing, self._database.reading() as connection:
            yield connection

    @contextmanager
    def write_tables(self) -> Iterator[Connection]:
        """Give a connection for changing other tables than those of items, in one transaction."""
        with self._transaction() as (connection, _):
            yield connection

    def check_in_place(self) -> None:
        """Raise a ``MovedError`` if the folder was removed or replaced since it was opened."""
        self._database.check_in_place()

    def search(
        self,
        task: Task,
        queries: Floats,
        k: int,
        where: Filter | None,
        version: str,
        depth: int | None = None,
    ) -> Matches:
        return self._read(version).search(task, queries, k, where, depth=depth)

    def items(
        self,
        view: View | None = None,
        *,
        ids: Sequence[str] | None = None,
        images: Sequence[str] | None = None,
        new: bool = False,
    ) -> Iterator[Item]:
        return self.resident.items(view, ids=ids, images=images, new=new)

    def count(self, view: View | None = None) -> int:
        return self.resident.count(view)

    def count_kinds(self, view: View) -> tuple[int, int]:
        """Return how many items of a view have partners, and how many have none."""
        return self.resident.count_kinds(view)

    def vectors(self, task: Task, version: str) -> Iterator[Block]:
        return self._read(version).vectors(task)

    def features(self, view: View, ids: Sequence[str]) -> Floats | None:
        return self.resident.features(view, ids)

    @contextmanager
    def model_files(self, names: Sequence[str]) -> Iterator[tuple[Path, str]]:
        """Give the folder of the current version, and its name."""
        version = self._refresh().version
        try:
            check_version(version)
        except (InputError, OSError):
            if self._refresh().version == version:
                raise
            version = self._refresh().version  # another process has just replaced it
        yield version.path, version.id

    def page(self, listing: Listing) -> tuple[list[Item], int]:
        return self.resident.page(listing)

    def add(self, blocks: Sequence[Block], version: str, *, replace: bool = False) -> None:
        with self._transaction(version) as (connection, loaded):
            self._add(connection, loaded, blocks, replace=replace)
        self._compact_sparse()

    def update(
        self, ids: Sequence[str], change: Change, version: str, content: Block | None = None
    ) -> list[Item]:
        with self._transaction(version) as (connection, loaded):
            changed = loaded.store.change_items(ids, change)
            items = list(changed.values())
            if content is not None:
                self._add(connection, loaded, [replace(content, items=items)], replace=True)
            else:
                layout, places = loaded.layout, self._places(loaded.layout, items)
                update_items(connection, places, changed)
                write_layout(connection, msgspec.structs.replace(layout, images=places.describe()))
        self._compact_sparse()
        return items

    def remove(self, ids: Sequence[str]) -> int:
        with self._transaction() as (connection, loaded):
            keys = loaded.store.keys_to_remove(ids).tolist()
            delete_items(connection, keys)
        self._compact_sparse()
        return len(keys)

    def _add(self, connection: Connection, loaded: Loaded, blocks: Sequence[Block], *, replace: bool) -> None:
        """Write rows behind the valid ones, and insert their items; with ``replace``, in place of others."""
        delete_items(connection, loaded.store.check_new(blocks, replace=replace))
        layout = loaded.layout
        places = self._places(layout, [item for block in blocks for item in block.items])
        rows, key = dict(layout.rows), layout.next_key
        for block in blocks:
            first, n = rows[block.view], len(block.items)
            for name, file in layout.files(block.view).items():
                content = block.vectors if name == TASK_OF[block.view] else block.features
                if content is None:
                    raise InputError("this index keeps features; pass them with the vectors.")
                file.write(self.folder, first, [content.reshape(n, file.width)])
            insert_items(connection, places, block.items, itertools.count(key), itertools.count(first))
            rows[block.view], key = first + n, key + n
        write_layout(
            connection,
            msgspec.structs.replace(layout, rows=rows, next_key=key, images=places.describe()),
        )

    def _places(self, layout: Layout, items: Sequence[Item]) -> Places:
        """Return where images lie; if these are the first that lie somewhere, there."""
        places = self.reading.places(layout, self.folder)
        return Places.of(items, self.folder) if places.images is None else places

    def replace(self, make: Callable[[], Contents], version: str | None = None) -> Store:
        """Put another model in place of the stored one, for the same items.

        Without ``version``, return a store in memory with new items, to be written to a folder.
        """
        if version is None:
            loaded = self._loaded
            return MemoryStore(loaded.layout.kind, loaded.layout.dtype).replace(make)
        with self._transaction(version) as (connection, loaded):
            contents = make()
            store, layout = loaded.store, loaded.layout if contents.same_vectors else None
            if layout is None:
                store = store.replace(lambda: contents, version)
            self._put_in_use(connection, store, contents.write_model, layout)
        self._tidy()
        return self

    def compact(self) -> None:
        """Write all rows again, without those of removed items."""
        with self._transaction() as (connection, loaded):
            self._put_in_use(connection, loaded.store, None)
        self._tidy()

    def _put_in_use(
        self,
        connection: Connection,
        store: MemoryStore,
        write_model: Callable[[Path], None] | None,
        layout: Layout | None = None,
    ) -> None:
        """Write other files, commit, and go on with ``store``, which holds what they do."""
        version, layout = write_current(connection, self.folder, store, write_model, layout)
        assert layout is not None
        with self._syncing:  # so that no search reads everything again
            connection.execute("COMMIT")
            change = self._loaded.change if layout.name == self._loaded.layout.name else 0
            self._loaded = Loaded(version, layout, store, change)

    def _tidy(self) -> None:
        with self._writing:
            tidy(self._database)

    def _read(self, version: str) -> MemoryStore:
        """Return what is in memory if it belongs to a version of the model."""
        loaded = self._refresh()
        if loaded.version.id != version:
            raise ModelChanged
        return loaded.store

    @contextmanager
    def _transaction(self, version: str | None = None) -> Iterator[tuple[Connection, Loaded]]:
        """Change the database, alone among all threads and processes, knowing all that they have changed."""
        with self._writing:
            with self._database.writing() as connection:
                loaded = self._refresh()
                if version not in (None, loaded.version.id):
                    raise ModelChanged
                yield connection, loaded
            self._refresh()

    def _refresh(self) -> Loaded:
        """Learn what was committed since this was last called, here or by other processes."""
        with self._syncing:
            if (seen := self._database.data_version()) != self._seen:
                self._loaded, self._seen = self._catch_up(self._loaded), seen
            return self._loaded

    def _catch_up(self, loaded: Loaded) -> Loaded:
        with self._database.reading() as connection:
            version, layout = read_current_layout(connection, self.folder)
            same = (version, layout.name) == (loaded.version, loaded.layout.name)
            first = loaded.layout.next_key if same else layout.next_key
            items = read_items(connection, self.folder, first, loaded.change)
            changes = connection.execute(
                "SELECT number, key FROM changes WHERE number > ? ORDER BY number", (loaded.change,)
            ).fetchall()
        if not same:
            return self._load()
        try:
            self._apply(loaded, layout, {key for _, key in changes}, *items)
        except (InputError, OSError):  # the files were replaced meanwhile
            return self._load()
        return Loaded(version, layout, loaded.store, changes[-1][0] if changes else loaded.change)

    def _apply(
        self,
        loaded: Loaded,
        layout: Layout,
        changed: set[int],
        items: list[StoredItem],
        keys: Keys,
        rows: Keys,
    ) -> None:
        """Make the changes in memory that were committed."""
        store = loaded.store
        store.table.places = self.reading.places(layout, self.folder)
        gone = changed.difference(keys.tolist())
        n_changed = int(np.searchsorted(keys, loaded.layout.next_key))
        for key, item in zip(keys[:n_changed].tolist(), items, strict=False):
            store.table.change(key, item)
        items, keys, rows = items[n_changed:], keys[n_changed:], rows[n_changed:]
        new = {(item.id, item.view) for item in items}
        removed = [
            key
            for key in sorted(gone)
            if (stored := store.table.get(key)) is not None and (stored.id, stored.view) not in new
        ]
        if removed:
            store.drop(np.array(removed, np.int64))
        for view in VIEWS:
            chosen = np.array([item.view == view for item in items], np.bool_)
            if chosen.any():
                blocks = {
                    name: file.read(self.folder, rows[chosen]) for name, file in layout.files(view).items()
                }
                some = list(itertools.compress(items, chosen))
                store.put(view, some, blocks[TASK_OF[view]], blocks.get(view), keys[chosen])
        store.table.next_key = layout.next_key

    def _load(self) -> Loaded:
        """Read everything; again if the files were replaced meanwhile."""
        while True:
            with self._database.reading() as connection:
                version, layout = read_current_layout(connection, self.folder)
                items = read_items(connection, self.folder)
                change = connection.execute("SELECT max(number) FROM changes").fetchone()[0]
            try:
                store = self._open(version, layout, *items)
                return Loaded(version, layout, store, change or 0)
            except (InputError, OSError):
                with self._database.reading() as connection:
                    if read_current_layout(connection, self.folder) == (version, layout):
                        raise

    def _open(
        self, version: Version, layout: Layout, items: Sequence[StoredItem], all_keys: Keys, all_rows: Keys
    ) -> MemoryStore:
        """Return a store in memory of the items, and of the rows of the files."""
        source = self._database.path
        table = ItemTable(places=self.reading.places(layout, self.folder))
        table.check_new(items)
        table.add(items, all_keys)
        if table.next_key > layout.next_key or layout.learned > layout.next_key:
            raise InputError(f"{source} has items with keys that were not given yet; restore the file.")
        table.next_key = layout.next_key
        indexes, kept = dict[Task, VectorIndex](), dict[View, VectorIndex]()
        for view in VIEWS:
            chosen = np.array([item.view == view for item in items], np.bool_)
            keys, rows = all_keys[chosen], all_rows[chosen]
            if len(rows) and (np.any(np.diff(rows) <= 0) or rows[-1] >= layout.rows[view]):
                raise InputError(f"{source} has items without rows of their own; restore the file.")
            for name, file in layout.files(view).items():
                array = file.map(self.folder, layout.rows[view])
                if not self.reading.mmap:
                    array = np.array(array)
                    # A sum needs no second array of this size. Mapped rows are checked in a search.
                    sums = array.sum(axis=-1, dtype=np.float64)
                    if not np.isfinite(sums[rows]).all():
                        raise InputError(
                            f"{self.folder / ROWS / file.name} has numbers that are not finite; restore the "
                            "file."
                        )
                index = VectorIndex.of(array, keys, rows)
                if name in TASKS:
                    indexes[name] = index
                else:
                    kept[view] = index
        for task, index in indexes.items() if layout.kind == "hnsw" else ():
            if len(index) and not (self.reading.trust_graph and read_graph(version.path, task, index)):
                index.build_graph()
        return MemoryStore(
            layout.kind, layout.dtype, table=table, indexes=indexes, kept=kept, learned=layout.learned
        )

    def _compact_sparse(self) -> None:
        """Write all rows again if more than half of them are holes, or the log of changes is long."""
        loaded, rows = self._loaded, sum(self._loaded.layout.rows.values())
        if rows >= COMPACTED and (2 * len(loaded.store.table) < rows or loaded.change > 2 * rows):
            self.compact()
