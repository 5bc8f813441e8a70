"""The files of a saved model, for tests that look at them or damage them."""

import json
import sqlite3
from contextlib import closing

import numpy as np

from diptych._database import FILE
from diptych._model_folder import RECORD, current_version
from diptych._persistence import file_digest
from diptych.retrieval._folder import write_model
from diptych.retrieval._searcher import Searcher
from diptych.retrieval.stores._folder import FolderStore
from diptych.retrieval.stores._memory import MemoryStore


def files_of(folder):
    """Where the files of the current version lie."""
    return current_version(folder).path


def seal(folder):
    """Make all checksums true again, as someone would who means harm."""
    version = files_of(folder)
    config = json.loads((version / "config.json").read_bytes())
    for name in config.get("files", {}):
        path = version / name
        if path.is_file() and not path.is_symlink():
            config["files"][name] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    (version / "config.json").write_text(json.dumps(config), "utf-8")
    seal_config(folder)


def seal_config(folder):
    """Make the checksum of the config true again, whatever is in it."""
    digest = file_digest(files_of(folder) / "config.json")
    if (folder / FILE).exists():
        execute(folder, "UPDATE current SET sha256 = ?", digest)
        return
    pointer = {**json.loads((folder / RECORD).read_bytes()), "sha256": digest}
    (folder / RECORD).write_text(json.dumps(pointer), "utf-8")


def execute(folder, statement, *values):
    """Change the database of a saved retriever behind its back; return the rows."""
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as connection:
        return connection.execute(statement, values).fetchall()


def rows_of(folder, name, width, dtype="<f4"):
    """Map a file of rows to be changed: the vectors of a task, or the features of a view."""
    (path,) = (folder / "rows").glob(f"*.{name}")
    return np.memmap(path, dtype, "r+").reshape(-1, width)


def edit_config(folder, **changes):
    """Change settings of a saved model."""
    path = files_of(folder) / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **changes}), "utf-8")
    seal_config(folder)


def save_without_features(retriever, folder):
    """Save a retriever as one that was fitted with ``keep_features=False``."""
    store = retriever.store.resident
    parts = {"table": store.table, "indexes": store.indexes, "learned": store.learned}
    slim = MemoryStore(store.kind, store.dtype, **parts)
    searcher = Searcher(retriever.fitted, slim, retriever.encoders)
    FolderStore.write(folder, slim, lambda path: write_model(path, searcher, False, place=folder)).close()


def places(tree, path=()):
    """Return every place in a JSON tree; of a long list, only the first few."""
    paths = [path] if path else []
    children = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, child in children:
        if not (isinstance(key, int) and key > 3):
            paths += places(child, (*path, key))
    return paths
