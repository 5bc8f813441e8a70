"""The files of a model folder with items, and the rows of its database.

==========================  ===========================================================================
``items.sqlite``            items, the current version, and how many rows of the files are valid
                            (``diptych._database``)
``versions/ID/``            the files of the model, which never change (``diptych.retrieval._folder``)
``rows/ID.search`` …        the vectors of each task and the features of each view, one row after the other,
                            as float32 or float16 in little-endian order
``uploads/``                files that were sent to a server
``README.md`` …             the model card of the current version with its figures, for people
==========================  ===========================================================================

``diptych.retrieval.stores._folder`` says how they are read and written by several processes. Only names that
are made here are ever removed, and of a version only what its config names. Nothing is read or written
through a link.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
import numpy as np

from diptych._checks import TASKS, InputError, Task, UnavailableError
from diptych._database import FILE, Database
from diptych._model_folder import (
    VERSION_ID,
    VERSIONS,
    Version,
    next_version,
    read_version,
    remove_others,
    write_files,
)
from diptych._persistence import (
    CONFIG,
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
from diptych.retrieval._items import TASK_OF, VIEWS, Item, Places, PlacesConfig, StoredItem, View, parse_items
from diptych.retrieval.stores._base import Floats, Keys
from diptych.retrieval.stores._faiss import Graph, VectorIndex
from diptych.retrieval.stores._memory import MemoryStore

ROWS = "rows"
FOR_PEOPLE = ("README.md", "regularization.png", "reliability.png")
"""Files of the current version that are shown in the model folder itself."""

_ROW_FILE = re.compile(rf"({VERSION_ID.pattern})\.({'|'.join((*TASKS, *VIEWS))})")
_GRAPH_COVERS = 0.9  # share of the items that a stored graph must have to be used

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Width: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=2**24)]
Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"\A{VERSION_ID.pattern}\Z")]


@dataclass(frozen=True)
class RowFile:
    """A file of rows, one behind the other; which of them are valid is in the database."""

    name: str
    dtype: np.dtype[Any]
    width: int

    def write(self, folder: Path, first: int, arrays: Iterable[Floats]) -> None:
        """Write arrays from a row on; they are on the disk afterwards."""
        path = folder / ROWS / self.name
        check_own(folder, f"{ROWS}/{self.name}")
        with name_in_errors(path), open(path, "r+b" if path.exists() else "xb") as file:
            file.seek(first * self.width * self.dtype.itemsize)
            for array in arrays:
                file.write(np.ascontiguousarray(array, self.dtype).data)
            file.flush()
            os.fsync(file.fileno())

    def map(self, folder: Path, n: int) -> Floats:
        """Return the first ``n`` rows, memory-mapped."""
        path, shape = check_plain_file(folder / ROWS / self.name), (n, self.width)
        check_own(folder, ROWS)
        if path.stat().st_size < n * self.width * self.dtype.itemsize:
            raise InputError(
                f"{path} is too short for {n} rows of {self.width} numbers; restore the file, or fit again."
            )
        return np.memmap(path, self.dtype, "r", shape=shape) if n else np.empty(shape, self.dtype)

    def read(self, folder: Path, rows: Keys) -> Floats:
        """Return some rows, which ascend."""
        some: Floats = np.asarray(self.map(folder, int(rows[-1]) + 1)[rows[0] :])[rows - rows[0]]
        return some


class Layout(Schema, frozen=True):
    """What the database knows of the files of rows, and of the items as a whole.

    ``name`` is the first part of the files' names; without features there are no widths. ``rows`` are the
    valid rows of each view, holes included. Items with keys below ``learned`` were there when the model was
    fitted.
    """

    kind: Literal["flat", "hnsw"]
    dtype: Literal["float32", "float16"]
    dimensions: dict[Task, Width]
    widths: dict[View, Width]
    name: Name
    rows: dict[View, Count]
    next_key: Count
    learned: Count
    images: PlacesConfig | None

    def __post_init__(self) -> None:
        """Refuse a layout without one of the views or tasks."""
        names = set(self.dimensions), set(self.rows), set(self.widths) or set(VIEWS)
        if names != (set(TASKS), set(VIEWS), set(VIEWS)):
            raise InputError(f"expected the tasks {', '.join(TASKS)} and the views {', '.join(VIEWS)}")

    def files(self, view: View) -> dict[Task | View, RowFile]:
        """Return the files with the vectors and the features of a view."""
        task = TASK_OF[view]
        vectors = np.dtype(self.dtype).newbyteorder("<")
        files: dict[Task | View, RowFile] = {
            task: RowFile(f"{self.name}.{task}", vectors, self.dimensions[task])
        }
        if self.widths:
            files[view] = RowFile(f"{self.name}.{view}", np.dtype("<f4"), self.widths[view])
        return files


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
    with Database(folder, read_only=True).reading() as connection:
        version, layout = read_current_layout(connection, folder)
    return version.id, [f"{ROWS}/{file.name}" for view in VIEWS for file in layout.files(view).values()]


def has_items(folder: Path) -> bool:
    """Return whether a folder holds items itself, rather than the address of a database."""
    with Database(folder).reading() as connection:
        return read_layout(connection, folder) is not None


def check_version(version: Version) -> None:
    """Refuse a version whose config is not as it was written, or that is a link."""
    if os.path.realpath(version.path) != os.fspath(version.path):
        raise InputError(f"{version.path} is a link; expected the folder of a model's version.")
    config = check_plain_file(version.path / CONFIG)
    check_same(config, file_digest(config) == version.digest)


def write_folder(
    folder: Path, store: MemoryStore | None, write_model: Callable[[Path], None], *, graphs: bool = True
) -> tuple[Version, Layout | None]:
    """Put a model and items into a folder, in place of what it holds.

    A folder without a store only names a database; it has no layout. Without ``graphs``, those of the store
    are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    database = Database(folder, create=True)
    with database.writing() as connection:
        version, layout = write_current(connection, folder, store, write_model, graphs=graphs)
    tidy(database)
    return version, layout


def write_current(
    connection: Connection,
    folder: Path,
    store: MemoryStore | None,
    write_model: Callable[[Path], None] | None,
    layout: Layout | None = None,
    *,
    graphs: bool = True,
) -> tuple[Version, Layout | None]:
    """Write a model and all items and rows of a store to new files, and name them in the database.

    Without ``write_model`` the model stays; with a ``layout``, items and rows do.
    """
    check_own(folder, VERSIONS, ROWS)
    (folder / ROWS).mkdir(exist_ok=True)
    previous = read_version(folder, connection)
    name = next_version("" if previous is None else previous.id)
    if layout is None:
        for table in ("items", "changes"):
            connection.execute(f"DELETE FROM {table}")  # noqa: S608
        layout = None if store is None else _write_items(connection, folder, name, store)
    if write_model is not None:

        def write_version(path: Path) -> None:
            for task, index in store.indexes.items() if store is not None and graphs else ():
                if index.graph is not None:
                    index.graph.write(path / f"{task}.hnsw")
                    np.save(path / f"{task}.hnsw.npy", index.graph.keys)
            write_model(path)

        version = write_files(folder, name, write_version)
    else:
        assert previous is not None
        version = previous
    contents = None if layout is None else msgspec.json.encode(layout).decode()
    connection.execute("DELETE FROM current")
    connection.execute("INSERT INTO current VALUES (?, ?, ?)", (version.id, version.digest, contents))
    flush_folder(folder)
    return version, layout


def _write_items(connection: Connection, folder: Path, name: str, store: MemoryStore) -> Layout:
    """Write all items and their rows, one row behind the other."""
    places = store.table.places
    if type(places) is not Places or places.folder != folder:  # else items in memory rely on them
        places = Places.of((item for _, item in store.table), folder)
    layout = Layout(
        store.kind,  # type: ignore[arg-type]
        store.dtype,  # type: ignore[arg-type]
        {task: store.indexes[task].dimension for task in TASKS},
        {view: index.dimension for view, index in store.kept.items()},
        name,
        {view: store.count(view) for view in VIEWS},
        store.table.next_key,
        store.learned,
        places.describe(),
    )
    for view in VIEWS:
        insert_items(
            connection, places, store.items(view), store.table.keys(view).tolist(), itertools.count()
        )
        for kind, file in layout.files(view).items():
            index = store.indexes[kind] if kind in TASKS else store.kept[kind]  # type: ignore[index]
            file.write(folder, 0, (chunk.vectors for chunk in index.chunks()))
    flush_folder(folder / ROWS)
    return layout


def read_items(
    connection: Connection, folder: Path, first: int = 0, change: int = 0
) -> tuple[list[StoredItem], Keys, Keys]:
    """Return the items with keys from ``first`` on, or changed after ``change``, with their keys and rows."""
    # CROSS JOIN looks up these keys; otherwise SQLite would look at every item.
    changed = connection.execute(
        "SELECT DISTINCT items.key, row, item FROM changes CROSS JOIN items USING (key) "
        "WHERE number > ? AND key < ? ORDER BY items.key",
        (change, first),
    )
    new = connection.execute("SELECT key, row, item FROM items WHERE key >= ? ORDER BY key", (first,))
    return parse_items(itertools.chain(changed, new), folder / FILE)


def insert_items(
    connection: Connection, places: Places, items: Iterable[Item], keys: Iterable[int], rows: Iterable[int]
) -> None:
    """Add items under their keys."""
    values = (
        (key, row, item.id, places.pack(item)) for key, row, item in zip(keys, rows, items, strict=False)
    )
    _execute(connection, "INSERT INTO items VALUES (?, ?, ?, ?)", values)


def update_items(connection: Connection, places: Places, items: Mapping[int, Item]) -> None:
    """Put other items in the place of those under some keys."""
    values = ((places.pack(item), key) for key, item in items.items())
    _execute(connection, "UPDATE items SET item = ? WHERE key = ?", values)
    _log_changes(connection, items)


def delete_items(connection: Connection, keys: Sequence[int]) -> None:
    """Remove items."""
    connection.executemany("DELETE FROM items WHERE key = ?", [(key,) for key in keys])
    _log_changes(connection, keys)


def _log_changes(connection: Connection, keys: Iterable[int]) -> None:
    """Tell readers that the items under some keys were changed or removed."""
    connection.executemany("INSERT INTO changes (key) VALUES (?)", [(key,) for key in keys])


def _execute(connection: Connection, statement: str, values: Iterable[tuple[Any, ...]]) -> None:
    try:
        connection.executemany(statement, values)
    except UnicodeEncodeError as error:
        text = ascii(error.object)[:60]
        raise InputError(f"{text} is not valid Unicode text; rename the file or the id.") from None


def tidy(database: Database) -> None:
    """Show the card of the current version, and remove the files of others and of killed writers.

    This is done alone, because others may be writing theirs; if it fails, the next writer does it.
    """
    folder = database.folder
    with suppress(UnavailableError, OSError):
        with database.writing() as connection:
            current, layout = read_version(folder, connection), read_layout(connection, folder)
            if current is not None:
                others = [path for path in (folder / VERSIONS).iterdir() if VERSION_ID.fullmatch(path.name)]
                for name in FOR_PEOPLE:
                    _show(current.path / name, folder / name, [path / name for path in others])
            remove_others(folder, current)
            for path in (folder / ROWS).iterdir():
                match = _ROW_FILE.fullmatch(path.name)
                if match is not None and (layout is None or match[1] != layout.name):
                    with suppress(OSError):  # on Windows, a file that is mapped
                        path.unlink()
        database.fold_log()


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


def read_layout(connection: Connection, folder: Path) -> Layout | None:
    row = connection.execute("SELECT contents FROM current").fetchone()
    if row is None or row[0] is None:
        return None
    source = folder / FILE
    if not isinstance(row[0], str):
        raise InputError(f"{source} does not say which files it has; restore the file.")
    return convert(parse_object(row[0].encode(), source), Layout, source)


def write_layout(connection: Connection, layout: Layout) -> None:
    connection.execute("UPDATE current SET contents = ?", (msgspec.json.encode(layout).decode(),))


def read_current_layout(connection: Connection, folder: Path) -> tuple[Version, Layout]:
    version, layout = read_version(folder, connection), read_layout(connection, folder)
    if version is None or layout is None:
        reason = "nothing was saved there yet" if version is None else "its items are in another database now"
        raise InputError(f"{folder} has no items to search: {reason}; give another folder.")
    return version, layout


def read_graph(folder: Path, task: Task, index: VectorIndex) -> bool:
    """Use the stored graph of an index, unless it lacks too many of its items; return whether it is used.

    Graphs are read only from a folder that is trusted.
    """
    names = f"{task}.hnsw", f"{task}.hnsw.npy"
    files = ModelFiles(folder, read_entries(folder) or {})
    if not all(name in files for name in names):
        return False
    graph, keys = map(files.check, names)
    known = map_npy(keys)
    if np.isin(index.keys, known).mean() < _GRAPH_COVERS:
        return False
    index.graph = Graph.read(graph, known, index.dimension)
    return True
