"""A store in a model folder: items in SQLite, vectors and features in files of rows, searched in memory.

==========================  ===========================================================================
``items.sqlite``            items, the current version, and how many rows of the files are valid
                            (``diptych._database``)
``versions/ID/``            the files of the model, which never change (``diptych.retrieval._folder``)
``rows/ID.search`` …        the vectors of each task and the features of each view, one row after the other,
                            as float32 or float16 in little-endian order
``uploads/``                files that were sent to a server
``README.md`` …             the model card of the current version with its figures, for people
==========================  ===========================================================================

**A writer** is one transaction of SQLite, alone among all processes. It first learns what others have
committed, writes new rows behind the valid ones, flushes them, and then commits the items together with the
number of valid rows. So an addition is on the disk when it returns, and one that was killed leaves rows that
the next writer overwrites. An item that gets another vector gets a new key and a new row. Removed items leave
holes. Once more than half of the rows are holes, the rows are
written again without them.

**A new model** (a fit, a refit, a calibration) is a new version and new files of rows, written completely and
flushed before the commit that makes them current. Then the old files are removed; a process that has them
mapped can still read them (on Windows the next such commit removes them).

**A reader** looks at a counter of SQLite before each search. If others have committed, it reads the items
added since, and the keys whose items were changed or removed since; if there are other files, it reads
everything again. A search for
another version of the model than the current one is ``ModelChanged``.

Only names that this module makes are ever removed, and of a version only what its config names. Nothing is
read or written through a link.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Annotated, Any, Literal, TypeAlias
from uuid import uuid4

import msgspec
import numpy as np

from diptych._checks import TASKS, InputError, Task, UnavailableError
from diptych._database import FILE, Database
from diptych._model_folder import (
    VERSION_ID,
    VERSIONS,
    Version,
    flush_version,
    next_version,
    read_version,
    remove_version,
)
from diptych._persistence import (
    CONFIG,
    TEMPORARY,
    ModelFiles,
    Schema,
    check_own,
    check_plain_file,
    check_same,
    convert,
    file_digest,
    flush_folder,
    map_npy,
    name_in_errors,
    parse_object,
    read_entries,
    real_folder,
    replace_file,
)
from diptych.retrieval._filters import Filter
from diptych.retrieval._items import (
    COLUMNS,
    TASK_OF,
    VIEWS,
    Item,
    Places,
    PlacesConfig,
    PublishedPlaces,
    View,
    parse_items,
)
from diptych.retrieval.stores._base import (
    Block,
    Contents,
    Floats,
    Listing,
    Matches,
    ModelChanged,
    State,
    Store,
)
from diptych.retrieval.stores._faiss import Graph, VectorIndex
from diptych.retrieval.stores._memory import ItemTable, Keys, MemoryStore

ROWS = "rows"
FOR_PEOPLE = ("README.md", "regularization.png", "reliability.png")
"""Files of the current version that are shown in the model folder itself."""

COMPACTED = 1024
"""Rows from which a file is written again once more than half of it are holes."""

_CHANGE = f"UPDATE items SET ({COLUMNS}) = ({', '.join('?' * len(COLUMNS.split(', ')))}) WHERE key = ?"  # noqa: S608
_INSERT = f"INSERT INTO items ({COLUMNS}) VALUES ({', '.join('?' * len(COLUMNS.split(', ')))})"  # noqa: S608
_READ = 50_000  # items or rows that are written or checked at a time
_ROW_FILE = re.compile(rf"({VERSION_ID.pattern})\.({'|'.join((*TASKS, *VIEWS))})")
_GRAPH_COVERS = 0.9  # share of the items that a stored graph must have to be used

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Width: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{VERSION_ID.pattern}\Z")]


class Layout(Schema, frozen=True):
    """What the database knows of the files of rows, and of the items as a whole.

    ``vectors`` and ``features`` are the first part of the files' names; without features there are no widths.
    ``rows`` are the valid rows of each view, holes included. Items with keys below ``learned`` were there
    when the model was fitted.
    """

    kind: Literal["flat", "hnsw"]
    dtype: Literal["float32", "float16"]
    dimensions: dict[Task, Width]
    widths: dict[View, Width]
    vectors: Name
    features: Name | None
    rows: dict[View, Count]
    next_key: Count
    learned: Count
    images: PlacesConfig | None

    def __post_init__(self) -> None:
        """Refuse a layout without one of the views or tasks."""
        widths = set() if self.features is None else set(VIEWS)
        if (set(self.dimensions), set(self.rows), set(self.widths)) != (set(TASKS), set(VIEWS), widths):
            raise InputError(f"expected the tasks {', '.join(TASKS)} and the views {', '.join(VIEWS)}")

    def files(self, view: View) -> dict[Task | View, tuple[str, np.dtype[Any], int]]:
        """Return name, dtype and width of the files with the rows of a view."""
        task = TASK_OF[view]
        files: dict[Task | View, tuple[str, np.dtype[Any], int]] = {
            task: (f"{self.vectors}.{task}", np.dtype(self.dtype).newbyteorder("<"), self.dimensions[task])
        }
        if self.features is not None:
            files[view] = f"{self.features}.{view}", np.dtype("<f4"), self.widths[view]
        return files

    @property
    def names(self) -> set[str]:
        """The names of all files of rows."""
        return {name for view in VIEWS for name, _, _ in self.files(view).values()}


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
    """Items of a model folder, a real path, for any number of processes on one machine."""

    shared = True
    address = ""

    def __init__(self, folder: Path, reading: Reading = Reading(), *, loaded: Loaded | None = None) -> None:
        self.folder, self.reading = folder, reading
        self._writing, self._syncing = threading.RLock(), threading.RLock()
        self._database = Database(folder, immutable=reading.published)
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

        def fill(connection: Connection, name: str) -> Layout:
            places = Places.of((item for _, item in store.table), folder)
            keys = {view: store.table.keys(view) for view in VIEWS}
            layout = Layout(
                store.kind,  # type: ignore[arg-type]
                store.dtype,  # type: ignore[arg-type]
                {task: store.indexes[task].dimension for task in TASKS},
                {view: index.dimension for view, index in store.kept.items()},
                name,
                name if store.kept else None,
                {view: len(keys[view]) for view in VIEWS},
                store.table.next_key,
                store.learned,
                places.describe(),
            )
            _write_rows(folder, layout, store, {view: np.arange(len(keys[view])) for view in VIEWS})
            clear_items(connection)
            rows = {key: row for view in VIEWS for row, key in enumerate(keys[view].tolist())}
            _execute(connection, _INSERT, (places.pack(key, rows[key], item) for key, item in store.table))
            return layout

        def write_files(path: Path) -> None:
            for task, index in store.indexes.items() if graphs else ():
                _write_graph(path, task, index)
            write_model(path)

        version, layout = write_version(folder, fill, write_files)
        assert layout is not None
        return cls(folder, loaded=Loaded(version, layout, store))

    @property
    def kind(self) -> str:
        """How vectors are searched: ``"flat"`` or ``"hnsw"``."""
        return self._loaded.layout.kind

    @property
    def dtype(self) -> str:
        """The dtype of the vectors."""
        return self._loaded.layout.dtype

    @property
    def keeps_features(self) -> bool:
        """Whether the features of items are stored."""
        return self._loaded.layout.features is not None

    @property
    def resident(self) -> MemoryStore:
        """What is in memory or mapped, as it is now."""
        return self._refresh().store

    def state(self) -> State:
        """Return the current state."""
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
        """Return the k items with the largest inner products for each query, largest first."""
        return self._read(version).search(task, queries, k, where, depth=depth)

    def items(
        self,
        view: View | None = None,
        *,
        ids: Sequence[str] | None = None,
        image: str | None = None,
        new: bool = False,
    ) -> Iterator[Item]:
        """Iterate over items in order of addition; see ``Store.items``."""
        return self.resident.items(view, ids=ids, image=image, new=new)

    def count(self, view: View | None = None) -> int:
        """Return the number of items, of one view or of both."""
        return self.resident.count(view)

    def vectors(self, task: Task, version: str) -> Iterator[Block]:
        """Iterate over all items of a task with their vectors, in order of addition."""
        return self._read(version).vectors(task)

    def features(self, view: View, ids: Sequence[str]) -> Floats | None:
        """Return stored features in the order of ``ids``; None if those of one item are not stored."""
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
        """Return a page of items, and how many there are on all pages; see ``Store.page``."""
        return self.resident.page(listing)

    def add(self, blocks: Sequence[Block], version: str, *, replace: bool = False) -> None:
        """Add items in one transaction; they are on the disk when this returns."""
        with self._transaction(version) as (connection, loaded):
            self._add(connection, loaded, blocks, replace=replace)
        if replace:
            self._compact_sparse()

    def update(
        self,
        ids: Sequence[str],
        change: Callable[[Item], Item],
        version: str,
        vectors: Floats | None = None,
        features: Floats | None = None,
    ) -> list[Item]:
        """Change items in one transaction; see ``Store.update``."""
        with self._transaction(version) as (connection, loaded):
            changed = loaded.store.change_items(ids, change)
            items = list(changed.values())
            if vectors is not None:
                block = Block(items[0].view, items, vectors, features)
                self._add(connection, loaded, [block], replace=True)
            else:
                self._change(connection, loaded.layout, changed)
        if vectors is not None:
            self._compact_sparse()
        return items

    def remove(self, ids: Sequence[str]) -> int:
        """Remove items in one transaction, and with an image its captions; return how many."""
        with self._transaction() as (connection, loaded):
            keys = loaded.store.keys_to_remove(ids).tolist()
            _delete(connection, keys)
        self._compact_sparse()
        return len(keys)

    def _add(self, connection: Connection, loaded: Loaded, blocks: Sequence[Block], *, replace: bool) -> None:
        """Write rows behind the valid ones, and insert their items, in place of others with ``replace``."""
        replacing = loaded.store.check_new(blocks, replace=replace)
        _delete(connection, np.concatenate(list(replacing.values())).tolist())
        layout = loaded.layout
        places = self._places(layout, (item for block in blocks for item in block.items))
        rows, key = dict(layout.rows), layout.next_key
        for block in blocks:
            first, n = rows[block.view], len(block.items)
            for name, (file, dtype, width) in layout.files(block.view).items():
                content = block.vectors if name == TASK_OF[block.view] else block.features
                if content is None:
                    raise InputError("this index keeps features; pass them with the vectors.")
                with open_rows(self.folder, file) as write:
                    write(first, np.asarray(content, dtype).reshape(n, width))
            packed = (places.pack(key + i, first + i, item) for i, item in enumerate(block.items))
            _execute(connection, _INSERT, packed)
            rows[block.view], key = first + n, key + n
        _write_layout(
            connection,
            msgspec.structs.replace(layout, rows=rows, next_key=key, images=places.describe()),
        )

    def _change(self, connection: Connection, layout: Layout, changed: Mapping[int, Item]) -> None:
        """Put other items in the places of some, with their rows."""
        places = self._places(layout, changed.values())
        row = "SELECT row FROM items WHERE key = ?"
        rows = {key: connection.execute(row, [key]).fetchone()[0] for key in changed}
        packed = ((*places.pack(key, rows[key], item), key) for key, item in changed.items())
        _execute(connection, _CHANGE, packed)
        _log(connection, changed)
        _write_layout(connection, msgspec.structs.replace(layout, images=places.describe()))

    def _places(self, layout: Layout, items: Iterable[Item]) -> Places:
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
            store = loaded.store
            if not contents.same_vectors:
                store = store.replace(lambda: contents, version)

            def fill(connection: Connection, name: str) -> Layout:
                if contents.same_vectors:
                    return loaded.layout
                layout = msgspec.structs.replace(
                    loaded.layout, vectors=name, dimensions=dict(contents.dimensions), learned=store.learned
                )
                _write_rows(self.folder, layout, store, _read_row_numbers(connection, store), {name})
                return layout

            def write_model(folder: Path) -> None:
                for task, index in store.indexes.items():
                    _write_graph(folder, task, index)
                contents.write_model(folder)

            self._put_in_use(connection, loaded, fill, write_model, store)
        self._tidy()
        return self

    def compact(self) -> None:
        """Write all rows again, without those of removed items."""
        with self._transaction() as (connection, loaded):
            store = loaded.store

            def fill(connection: Connection, name: str) -> Layout:
                keys = {view: store.table.keys(view) for view in VIEWS}
                layout = msgspec.structs.replace(
                    loaded.layout,
                    vectors=name,
                    features=name if store.kept else None,
                    rows={view: len(keys[view]) for view in VIEWS},
                )
                _write_rows(self.folder, layout, store, {view: np.arange(len(keys[view])) for view in VIEWS})
                for view in VIEWS:
                    rows = enumerate(keys[view].tolist())
                    connection.executemany("UPDATE items SET row = ? WHERE key = ?", rows)
                connection.execute("DELETE FROM changes")
                return layout

            self._put_in_use(connection, loaded, fill, None, store)
        self._tidy()

    def _put_in_use(
        self,
        connection: Connection,
        loaded: Loaded,
        fill: Callable[[Connection, str], Layout],
        write_model: Callable[[Path], None] | None,
        store: MemoryStore,
    ) -> None:
        """Write other files, commit, and go on with ``store``, which holds what they do."""
        version, layout = _write_files(connection, self.folder, loaded.version, fill, write_model)
        assert layout is not None
        with self._syncing:  # so that no search reads everything again
            connection.execute("COMMIT")
            self._loaded = Loaded(version, layout, store, 0 if write_model is None else loaded.change)

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
            version, layout = _read_current(connection, self.folder)
            same = (version, layout.names) == (loaded.version, loaded.layout.names)
            first = loaded.layout.next_key if same else layout.next_key
            rows = connection.execute(
                f"SELECT {COLUMNS} FROM items WHERE key >= ? "  # noqa: S608
                "OR key IN (SELECT key FROM changes WHERE number > ?) ORDER BY key",
                (first, loaded.change),
            )
            stored = parse_items(rows, self._database.path)
            changes = connection.execute(
                "SELECT number, key FROM changes WHERE number > ? ORDER BY number", (loaded.change,)
            ).fetchall()
        if not same:
            return self._load()
        store = loaded.store
        store.table.places = self.reading.places(layout, self.folder)
        items = [item for item in stored if item.key >= first]
        for changed in stored[: len(stored) - len(items)]:
            store.table.change(changed.key, changed)
        gone = {key for _, key in changes} - {item.key for item in stored}
        removed = {key: item for key in gone if (item := store.table.get(key)) is not None}
        view_of = {item.id: item.view for item in items}
        replaced = {key: item.view for key, item in removed.items() if view_of.get(item.id) == item.view}
        if removed.keys() - replaced:
            store.drop(np.array(sorted(removed.keys() - replaced), np.int64))
        for view in VIEWS:
            some = [item for item in items if item.view == view]
            if some:
                keys, rows_of = (
                    np.array([getattr(item, n) for item in some], np.int64) for n in ("key", "row")
                )
                blocks = {
                    name: _read_rows(self.folder, file, dtype, width, rows_of)
                    for name, (file, dtype, width) in layout.files(view).items()
                }
                replacing = [key for key, view_of_key in replaced.items() if view_of_key == view]
                store.put(view, some, blocks[TASK_OF[view]], blocks.get(view), keys, replacing)
        store.table.next_key = layout.next_key
        return Loaded(version, layout, store, changes[-1][0] if changes else loaded.change)

    def _load(self) -> Loaded:
        """Read everything; again if the files were replaced meanwhile."""
        while True:
            with self._database.reading() as connection:
                version, layout = _read_current(connection, self.folder)
                rows = connection.execute(f"SELECT {COLUMNS} FROM items ORDER BY key")  # noqa: S608
                items = parse_items(rows, self._database.path)
                change = connection.execute("SELECT max(number) FROM changes").fetchone()[0]
            try:
                store = self._open(version, layout, items)
                return Loaded(version, layout, store, change or 0)
            except (InputError, OSError):
                with self._database.reading() as connection:
                    if _read_current(connection, self.folder) == (version, layout):
                        raise

    def _open(self, version: Version, layout: Layout, items: Sequence[Any]) -> MemoryStore:
        """Return a store in memory of the items, and of the rows of the files."""
        source = self._database.path
        table = ItemTable(self.reading.places(layout, self.folder))
        table.add(items, np.array([item.key for item in items], np.int64))
        if table.next_key > layout.next_key or layout.learned > layout.next_key:
            raise InputError(f"{source} has items with keys that were not given yet; restore the file.")
        table.next_key = layout.next_key
        indexes, kept = dict[Task, VectorIndex](), dict[View, VectorIndex]()
        for view in VIEWS:
            pairs = [(item.key, item.row) for item in items if item.view == view]
            keys, rows = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
            if len(rows) and (np.any(np.diff(rows) <= 0) or rows[-1] >= layout.rows[view]):
                raise InputError(f"{source} has items without rows of their own; restore the file.")
            for name, (file, dtype, width) in layout.files(view).items():
                array = _map_rows(self.folder, file, dtype, (layout.rows[view], width))
                if not self.reading.mmap:
                    array = np.array(array)
                    # A sum needs no second array of this size. Mapped rows are checked in a search.
                    sums = array.sum(axis=-1, dtype=np.float64)
                    if not np.isfinite(sums[rows]).all():
                        raise InputError(
                            f"{self.folder / ROWS / file} has numbers that are not finite; restore the file."
                        )
                index = VectorIndex.of(array, keys, rows)
                if name in TASKS:
                    indexes[name] = index
                else:
                    kept[view] = index
        for task, index in indexes.items() if layout.kind == "hnsw" else ():
            if len(index) and not (self.reading.trust_graph and _read_graph(version.path, task, index)):
                index.build_graph()
        return MemoryStore(
            layout.kind, layout.dtype, table=table, indexes=indexes, kept=kept, learned=layout.learned
        )

    def _compact_sparse(self) -> None:
        """Write all rows again if more than half of them are holes."""
        rows = sum(self._loaded.layout.rows.values())
        if rows >= COMPACTED and 2 * len(self._loaded.store.table) < rows:
            self.compact()


def check_writable(folder: str | os.PathLike[str]) -> Path:
    """Return the real path of a folder that a retriever can be written to; refuse any other."""
    folder = real_folder(folder)
    if folder.exists():
        if not folder.is_dir():
            raise InputError(f"{folder} is a file; choose another folder.")
        if os.path.lexists(folder / FILE):
            check_own(folder, FILE, VERSIONS, ROWS)
            if (folder / FILE).stat().st_size:
                Database(folder)
        elif any(folder.iterdir()):
            raise InputError(
                f"{folder} exists and is not a diptych retriever of this version; choose another folder, or "
                "an empty one."
            )
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        reason = "is a file" if not parent.is_dir() else "cannot be written to"
        raise InputError(f"{folder} cannot be made, because {parent} {reason}; choose another folder.")
    return folder


def list_files(folder: Path) -> tuple[str, list[str]]:
    """Return the version that a downloaded database names, and its files of rows."""
    with Database(folder, immutable=True).reading() as connection:
        version, layout = _read_current(connection, folder)
    return version.id, [f"{ROWS}/{name}" for name in sorted(layout.names)]


def has_items(folder: Path) -> bool:
    """Return whether a folder holds items itself, rather than the address of a database."""
    with Database(folder).reading() as connection:
        return _read_layout(connection, folder) is not None


def check_version(version: Version) -> None:
    """Refuse a version whose config is not as it was written, or that is a link."""
    if os.path.realpath(version.path) != os.fspath(version.path):
        raise InputError(f"{version.path} is a link; expected the folder of a model's version.")
    config = check_plain_file(version.path / CONFIG)
    check_same(config, file_digest(config) == version.digest)


def write_version(
    folder: Path, fill: Callable[[Connection, str], Layout | None], write_model: Callable[[Path], None]
) -> tuple[Version, Layout | None]:
    """Make a new version of a folder the current one; ``fill`` writes items and rows, under the name given.

    A folder without items, which only names a database, has no layout.
    """
    folder.mkdir(parents=True, exist_ok=True)
    database = Database(folder, create=True)
    with database.writing() as connection:
        previous = read_version(folder, connection)
        version, layout = _write_files(connection, folder, previous, fill, write_model)
    tidy(database)
    return version, layout


def clear_items(connection: Connection) -> None:
    """Forget all items."""
    for table in ("items", "changes"):
        connection.execute(f"DELETE FROM {table}")  # noqa: S608


def _delete(connection: Connection, keys: Sequence[int]) -> None:
    connection.executemany("DELETE FROM items WHERE key = ?", [(key,) for key in keys])
    _log(connection, keys)


def _log(connection: Connection, keys: Iterable[int]) -> None:
    """Tell readers that the items under some keys were changed or removed."""
    connection.executemany("INSERT INTO changes (key) VALUES (?)", [(key,) for key in keys])


def _execute(connection: Connection, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
    """Run a statement that writes items, once for each row of values."""
    try:
        connection.executemany(statement, rows)
    except UnicodeEncodeError as error:
        text = ascii(error.object)[:60]
        raise InputError(f"{text} is not valid Unicode text; rename the file or the id.") from None


def _write_files(
    connection: Connection,
    folder: Path,
    previous: Version | None,
    fill: Callable[[Connection, str], Layout | None],
    write_model: Callable[[Path], None] | None,
) -> tuple[Version, Layout | None]:
    """Write files of rows and, unless the model stays, a version; name them in the database."""
    check_own(folder, VERSIONS, ROWS)
    for name in (VERSIONS, ROWS):
        (folder / name).mkdir(exist_ok=True)
    name = next_version("" if previous is None else previous.id)
    layout = fill(connection, name)
    if write_model is None:
        assert previous is not None
        version = previous
    else:
        version = _write_model(folder, name, write_model)
    contents = None if layout is None else msgspec.json.encode(layout).decode()
    connection.execute("DELETE FROM current")
    connection.execute("INSERT INTO current VALUES (?, ?, ?)", (version.id, version.digest, contents))
    flush_folder(folder)
    return version, layout


def _write_model(folder: Path, name: str, write_model: Callable[[Path], None]) -> Version:
    """Write the files of a version beside the others; it is complete when it gets its name."""
    draft = folder / VERSIONS / f".{name}.diptych-{uuid4().hex[:12]}"
    draft.mkdir()
    try:
        with name_in_errors(draft):
            write_model(draft)
        flush_version(draft)
        version = Version(folder, name, file_digest(draft / CONFIG))
        draft.rename(version.path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    flush_folder(folder / VERSIONS)
    return version


def tidy(database: Database) -> None:
    """Show the card of the current version, and remove the files of others and of killed writers.

    This is done alone, because others may be writing theirs; if it fails, the next writer does it.
    """
    folder = database.folder
    with suppress(UnavailableError, OSError), database.writing() as connection:
        current, layout = read_version(folder, connection), _read_layout(connection, folder)
        versions = [path for path in (folder / VERSIONS).iterdir() if not path.is_symlink()]
        others = [path for path in versions if VERSION_ID.fullmatch(path.name)]
        if current is not None and current.path in others:
            others.remove(current.path)
            for name in FOR_PEOPLE:
                _show(current.path / name, folder / name, [path / name for path in others])
        for path in others:
            remove_version(path)
        for path in versions:
            if TEMPORARY.fullmatch(path.name) and path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
        used = set() if layout is None else layout.names
        for path in (folder / ROWS).iterdir():
            if _ROW_FILE.fullmatch(path.name) and path.name not in used:
                with suppress(OSError):  # on Windows, a file that is mapped
                    path.unlink()


def _show(new: Path, shown: Path, previous: Iterable[Path]) -> None:
    """Copy a file for people to the model folder, unless a file of somebody else is there."""
    if os.path.lexists(shown):
        ours = {file_digest(path) for path in (new, *previous) if path.is_file()}
        if shown.is_symlink() or not shown.is_file() or (digest := file_digest(shown)) not in ours:
            return
        if new.is_file() and digest == file_digest(new):
            return
        shown.unlink()
    if new.is_file():
        with replace_file(shown) as staged:
            shutil.copyfile(new, staged)


def _read_layout(connection: Connection, folder: Path) -> Layout | None:
    row = connection.execute("SELECT contents FROM current").fetchone()
    if row is None or row[0] is None:
        return None
    source = folder / FILE
    if not isinstance(row[0], str):
        raise InputError(f"{source} does not say which files it has; restore the file.")
    return convert(parse_object(row[0].encode(), source), Layout, source)


def _write_layout(connection: Connection, layout: Layout) -> None:
    connection.execute("UPDATE current SET contents = ?", (msgspec.json.encode(layout).decode(),))


def _read_current(connection: Connection, folder: Path) -> tuple[Version, Layout]:
    version, layout = read_version(folder, connection), _read_layout(connection, folder)
    if version is None or layout is None:
        reason = "nothing was saved there yet" if version is None else "its items are in another database now"
        raise InputError(f"{folder} has no items to search: {reason}; give another folder.")
    return version, layout


# Rows


@contextmanager
def open_rows(folder: Path, name: str) -> Iterator[Callable[[int, Floats], None]]:
    """Give a function that writes an array from a row on; the rows are on the disk afterwards."""
    path = folder / ROWS / name
    check_own(folder, f"{ROWS}/{name}")
    with name_in_errors(path), open(path, "r+b" if path.exists() else "xb") as file:

        def write(first: int, array: Floats) -> None:
            file.seek(first * array.shape[1] * array.dtype.itemsize)
            file.write(np.ascontiguousarray(array).data)

        yield write
        file.flush()
        os.fsync(file.fileno())


def _write_rows(
    folder: Path, layout: Layout, store: MemoryStore, rows: Mapping[View, Keys], only: Iterable[str] = ()
) -> None:
    """Write the rows of a store's items to new files: the vectors and features of a view's n-th item to row n
    of ``rows``; only files whose names begin so, if any are given.
    """
    for view in VIEWS:
        for name, (file, dtype, width) in layout.files(view).items():
            if only and file.partition(".")[0] not in only:
                continue
            index = store.indexes[name] if name in TASKS else store.kept[name]  # type: ignore[index]
            with open_rows(folder, file) as write:
                done = 0
                for chunk in index.chunks():
                    places = rows[view][done : done + len(chunk)]
                    # Holes are zeros.
                    block = np.zeros((int(places[-1] - places[0]) + 1, width), dtype)
                    block[places - places[0]] = chunk.vectors
                    write(int(places[0]), block)
                    done += len(chunk)
    flush_folder(folder / ROWS)


def _read_row_numbers(connection: Connection, store: MemoryStore) -> dict[View, Keys]:
    """Return the row of each item of a view, in the order of their keys."""
    pairs = np.array(connection.execute("SELECT key, row FROM items ORDER BY key").fetchall(), np.int64)
    pairs = pairs.reshape(-1, 2)
    return {view: pairs[np.searchsorted(pairs[:, 0], store.table.keys(view)), 1] for view in VIEWS}


def _map_rows(folder: Path, name: str, dtype: np.dtype[Any], shape: tuple[int, int]) -> Floats:
    path = check_plain_file(folder / ROWS / name)
    check_own(folder, ROWS)
    if path.stat().st_size < shape[0] * shape[1] * dtype.itemsize:
        raise InputError(
            f"{path} is too short for {shape[0]} rows of {shape[1]} numbers; restore the file, or fit again."
        )
    return np.memmap(path, dtype, "r", shape=shape) if shape[0] else np.empty(shape, dtype)


def _read_rows(folder: Path, name: str, dtype: np.dtype[Any], width: int, rows: Keys) -> Floats:
    """Return some rows of a file, which ascend."""
    mapped = _map_rows(folder, name, dtype, (int(rows[-1]) + 1, width))
    some: Floats = np.asarray(mapped[rows[0] :])[rows - rows[0]]
    return some


# Graphs, which are read only from a folder that is trusted


def _write_graph(folder: Path, task: Task, index: VectorIndex) -> None:
    if index.graph is not None:
        index.graph.write(folder / f"{task}.hnsw")
        np.save(folder / f"{task}.hnsw.npy", index.graph.keys)


def _read_graph(folder: Path, task: Task, index: VectorIndex) -> bool:
    """Use the stored graph of an index, unless it lacks too many of its items; return whether it is used."""
    names = f"{task}.hnsw", f"{task}.hnsw.npy"
    files = ModelFiles(folder, read_entries(folder) or {})
    if not all(name in files for name in names):
        return False
    graph, keys = map(files.check, names)
    known = map_npy(keys)
    if np.isin(index.keys, known).mean() < _GRAPH_COVERS:
        return False
    index.use_graph(Graph.read(graph, known, index.dimension))
    return True
