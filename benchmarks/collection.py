"""Adding to a folder of items, removing and loading: ``python benchmarks/collection.py [--sizes 10000 …]``.

Each addition and removal is on the disk when it returns. Beside them stand the same items as rows of SQLite
alone, with each of its journals, and with ``--peers`` LanceDB and Chroma. ``--sizes 1000000`` needs about
6 GiB of memory and of disk.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sqlite3
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from measuring import pin_threads, record, require, time_call

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
parser.add_argument("--rounds", type=int, default=100, help="additions and removals, one by one")
parser.add_argument("--batch", type=int, default=10_000)
parser.add_argument("--peers", action="store_true", help="measure LanceDB and Chroma too")
parser.add_argument("--folder", type=Path, help="where to write; default: a temporary folder")
options = parser.parse_args()
pin_threads(1)
if options.peers:
    require("lancedb", "pip install lancedb")
    require("chromadb", "pip install chromadb")

import numpy as np  # noqa: E402

from diptych._persistence import write_json  # noqa: E402
from diptych.retrieval import Item  # noqa: E402
from diptych.retrieval._filters import parse_filter  # noqa: E402
from diptych.retrieval.stores import open_store  # noqa: E402
from diptych.retrieval.stores._base import Block, Contents  # noqa: E402
from diptych.retrieval.stores._folder import FolderStore, Reading  # noqa: E402

COLUMNS = 256
QUERY = np.random.default_rng(1).normal(size=(1, COLUMNS)).astype(np.float32)


def make_items(first: int, n: int) -> list[Item]:
    """Return items as a collection of photos has them."""
    return [
        Item(f"photo {i}", "image", f"/photos/{i % 1000}/{i}.jpg", metadata={"year": 1950 + i % 70, "n": i})
        for i in range(first, first + n)
    ]


def make_vectors(seed: int, n: int) -> Any:
    """Return vectors of length 1."""
    rows = np.random.default_rng(seed).standard_normal((n, COLUMNS), np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def make_block(first: int, n: int) -> Block:
    """Return items with vectors, which are their features too."""
    vectors = make_vectors(first, n)
    return Block("image", make_items(first, n), vectors, vectors)


def fill(folder: Path, n: int) -> float:
    """Write a folder with n items; return the seconds."""
    widths: Any = {"image": COLUMNS, "text": COLUMNS}
    dimensions: Any = {"search": COLUMNS, "annotate": COLUMNS}
    blocks = (make_block(first, min(50_000, n - first)) for first in range(0, n, 50_000))
    contents = Contents(
        dimensions, widths, True, False, blocks, lambda *_: None, lambda *_: None, lambda _: None
    )
    store = open_store("flat").replace(lambda: contents)

    def write_model(path: Path) -> None:
        write_json(path / "config.json", {})

    seconds, written = time_call(lambda: FolderStore.write(folder, store, write_model))  # type: ignore[arg-type]
    written.close()
    return seconds


def measure(place: Path, n: int) -> dict[str, object]:
    """Measure one size."""
    folder = place / f"model-{n}"
    written = fill(folder, n)
    mapped, store = time_call(lambda: FolderStore(folder, Reading(mmap=True)))
    version = store.state().version
    search = partial(store.search, "search", QUERY, 10, None, version)
    first = time_call(search)[0]
    searches = [time_call(search)[0] for _ in range(20)]
    other = FolderStore(folder, Reading(mmap=True))
    adds, found = [], []
    for i in range(options.rounds):
        block = make_block(n + i, 1)
        adds.append(time_call(partial(store.add, [block], version))[0])
        # What another process does at its next search: it learns of the new item.
        found.append(time_call(lambda: other.count())[0])
    removals = [time_call(partial(store.remove, [f"photo {n + i}"]))[0] for i in range(options.rounds)]
    block = make_block(2 * n, options.batch)
    batch = time_call(partial(store.add, [block], version))[0]
    chosen = parse_filter("year >= 2010 and n < 1000000000")
    store.search("search", QUERY, 1, chosen, version)  # makes the columns
    filters = [
        time_call(partial(store.resident.table.find, "image", parse_filter(f"n >= {n // 2 + i}")))[0]
        for i in range(20)
    ]
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    store.close()
    other.close()
    shutil.rmtree(folder)
    return {
        "items": f"{n:,}",
        "add one, p50": milliseconds(adds),
        "p99": f"{1000 * np.quantile(adds, 0.99):.1f} ms",
        "seen by another process": milliseconds(found),
        "remove one": milliseconds(removals),
        f"add {options.batch:,}": f"{batch:.2f} s",
        "write all": f"{written:.1f} s",
        "load, mapped": f"{mapped:.2f} s",
        "first search": f"{1000 * first:.0f} ms",
        "search": milliseconds(searches),
        "range filter": milliseconds(filters),
        "disk": f"{size / 2**20:,.0f} MiB",
    }


def milliseconds(seconds: list[float]) -> str:
    """Return the median."""
    return f"{1000 * statistics.median(seconds):.2f} ms"


def open_sqlite(place: Path, mode: str, n: int) -> Iterator[Callable[[int, int], None]]:
    """Give a function that inserts rows of SQLite, with the vector in the row."""
    insert = "INSERT INTO items VALUES (?, ?, ?, ?)"

    def rows(first: int, count: int) -> Iterator[tuple[object, ...]]:
        for i, vector in enumerate(make_vectors(first, count)):
            yield first + i, f"photo {first + i}", f"/photos/{first + i}.jpg", vector.tobytes()

    with closing(sqlite3.connect(place / f"{mode}.sqlite", isolation_level=None)) as connection:
        connection.execute(f"PRAGMA journal_mode={mode}")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(
            "CREATE TABLE items (key INTEGER PRIMARY KEY, id TEXT UNIQUE, path TEXT, vector BLOB)"
        )

        def add(first: int, count: int) -> None:
            connection.execute("BEGIN IMMEDIATE")
            connection.executemany(insert, rows(first, count))
            connection.execute("COMMIT")

        add(0, n)
        yield add


def open_lance(place: Path, n: int) -> Iterator[Callable[[int, int], None]]:
    """Give a function that adds rows to a table of LanceDB."""
    import lancedb

    def rows(first: int, count: int) -> list[dict[str, object]]:
        return [
            {"id": f"photo {first + i}", "path": f"/photos/{first + i}.jpg", "vector": vector}
            for i, vector in enumerate(make_vectors(first, count))
        ]

    table = lancedb.connect(place / "lance").create_table("items", rows(0, min(n, 50_000)))
    for first in range(50_000, n, 50_000):
        table.add(rows(first, min(50_000, n - first)))
    yield lambda first, count: table.add(rows(first, count))


def open_chroma(place: Path, n: int) -> Iterator[Callable[[int, int], None]]:
    """Give a function that adds rows to a collection of Chroma."""
    import chromadb

    client = chromadb.PersistentClient(os.fspath(place / "chroma"))
    collection = client.create_collection("items")

    def add(first: int, count: int) -> None:
        for start in range(first, first + count, 5000):
            size = min(5000, first + count - start)
            ids = [f"photo {start + i}" for i in range(size)]
            metadata = [{"path": f"/photos/{start + i}.jpg"} for i in range(size)]
            collection.add(ids=ids, embeddings=make_vectors(start, size), metadatas=metadata)

    add(0, n)
    yield add


def measure_peer(name: str, adding: Iterator[Callable[[int, int], None]], n: int) -> dict[str, object]:
    """Measure additions to something else that holds n items."""
    add = next(adding)
    times = [time_call(partial(add, n + i, 1))[0] for i in range(options.rounds)]
    batch = time_call(partial(add, 2 * n, options.batch))[0]
    return {
        "what": name,
        "add one, p50": milliseconds(times),
        "p99": f"{1000 * np.quantile(times, 0.99):.1f} ms",
        f"add {options.batch:,}": f"{batch:.2f} s",
    }


def main() -> None:
    """Measure all sizes, and what else there is on the second one."""
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        place = Path(scratch)
        note = (
            f"Vectors and features of {COLUMNS} float32; medians of {options.rounds} additions and removals, "
            "each on the disk when it returns."
        )
        record("collection", [measure(place, n) for n in options.sizes], note)
        n = min(options.sizes[-1], 100_000)
        peers = {f"SQLite alone, journal {mode}": open_sqlite(place, mode, n) for mode in ("WAL", "DELETE")}
        if options.peers:
            peers |= {"LanceDB": open_lance(place, n), "Chroma": open_chroma(place, n)}
        rows = [measure_peer(name, adding, n) for name, adding in peers.items()]
        note = f"{n:,} vectors of {COLUMNS} float32 with an id and a path; SQLite flushes each commit."
        record("collection_peers", rows, note)


if __name__ == "__main__":
    main()
