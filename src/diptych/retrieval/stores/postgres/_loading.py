"""Versions made: staged where nobody sees them, block by block, and put in place in one step."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import psycopg

from diptych._checks import TASKS, Task
from diptych._persistence import CONFIG, library_version, write_json
from diptych.retrieval._embedding import embedding_of
from diptych.retrieval._encoders import EncoderRecord
from diptych.retrieval._fit import Fitted
from diptych.retrieval._items import VIEWS, Item, View
from diptych.retrieval._model_files import write_model
from diptych.retrieval.stores._base import BLOCK, TASK_OF, Encode, Floats, Keys
from diptych.retrieval.stores.postgres._connection import Address, Connection
from diptych.retrieval.stores.postgres._items import copy_items, item_blocks, next_key, reserve
from diptych.retrieval.stores.postgres._migrations import lock, unlock
from diptych.retrieval.stores.postgres._schema import (
    Tables,
    build_graph,
    check_graph,
    create_items,
    create_vectors,
    index_items,
    index_vectors,
)
from diptych.retrieval.stores.postgres._vectors import (
    VECTOR_TYPES,
    copy_features,
    copy_vectors,
    feature_blocks,
    searched,
)
from diptych.retrieval.stores.postgres._versions import (
    FORMAT_VERSION,
    KIND,
    TEXT_FILES,
    Version,
    begin,
    copy_files,
    swap,
    sweep,
    write_files,
)
from diptych.text import HKSE

Block: TypeAlias = tuple[View, list[Item] | None, Keys | None, Floats]
"""Items to be put in, or the keys of those that are there; and their features."""

MEASURED = 50
"""Queries by which the recall of a graph is measured."""


@dataclass(frozen=True, eq=False)
class Plan:
    """What a version is to be.

    Attributes
    ----------
    fitted
        The model.
    known
        The encoders that its features come from.
    hkse
        The text encoder, to be kept with it.
    dtype, graph
        Of its vectors, and whether a graph is built over them.
    keep
        Whether features are kept.
    blocks
        Gives the items; called again if all has to be done again.
    before
        The version whose items and text encoder it shares; None: it has its own.
    """

    fitted: Fitted
    known: Mapping[View, EncoderRecord]
    hkse: HKSE | None
    dtype: str
    graph: bool
    keep: bool
    blocks: Callable[[Connection], Iterable[Block]]
    before: Version | None = None


@contextmanager
def alone(connection: Connection, address: Address) -> Iterator[None]:
    """Be the only one that writes, for as long as it takes; readers go on."""
    lock(connection, address, session=True)
    try:
        yield
    finally:
        with suppress(psycopg.Error):  # a lock goes with its connection
            unlock(connection, address)


def load(connection: Connection, address: Address, plan: Plan, attempts: list[int]) -> None:
    """Make a version and put it in place; the caller is alone.

    Its number is added to ``attempts``: where a connection is lost at the end, one that is current by then
    tells that all was done.
    """
    sweep(connection, address.schema)
    generation = None if plan.before is None else plan.before.tables.generation
    tables = begin(connection, address.schema, generation)
    attempts.append(tables.version)
    try:
        _stage(connection, address, plan, tables)
        learned = next_key(connection, tables)
    except BaseException:
        with suppress(psycopg.Error):
            sweep(connection, address.schema, patient=False)
        raise
    swap(connection, tables, learned)
    with suppress(psycopg.Error):  # what is left is swept the next time
        sweep(connection, address.schema, patient=False)


def _stage(connection: Connection, address: Address, plan: Plan, tables: Tables) -> None:
    embedding, kind = embedding_of(plan.fitted.model), VECTOR_TYPES[plan.dtype]
    dimensions: dict[Task, int] = {task: embedding.dimension(task) for task in TASKS}
    with connection.transaction():
        for task in TASKS:
            if plan.graph:
                check_graph(kind, dimensions[task])
            create_vectors(connection, tables, task, kind, dimensions[task])
        if plan.before is None:
            create_items(connection, tables)
    asked: dict[View, Floats] = {}
    for view, items, given, rows in plan.blocks(connection):
        task = TASK_OF[view]
        with connection.transaction():
            # The last step waits for the disk, and with it for all before it.
            connection.execute("SET LOCAL synchronous_commit = off")
            keys = reserve(connection, tables, len(rows)) if given is None else given
            if items is not None:
                copy_items(connection, tables, keys, items)
                if plan.keep:
                    copy_features(connection, tables, view, keys, rows)
            copy_vectors(connection, tables, task, keys, *embedding.items(rows, task), plan.dtype)
        asked.setdefault(view, rows[:MEASURED])
    if plan.before is None:
        index_items(connection, tables)
    for task in TASKS:
        index_vectors(connection, tables, task)
        if plan.graph:
            build_graph(connection, tables, task, kind, dimensions[task], address.m, address.ef_construction)
            other = asked.get("text" if task == "search" else "image")
            if other is not None:
                found = _recall(connection, tables, task, embedding.queries(other, task), plan.dtype)
                plan.fitted.facts.setdefault("graph_recall", {})[task] = found
    _write(connection, plan, tables)


def _write(connection: Connection, plan: Plan, tables: Tables) -> None:
    with tempfile.TemporaryDirectory() as scratch, connection.transaction():
        folder = Path(scratch)
        said = write_model(folder, plan.fitted, plan.fitted.moments, plan.hkse)
        config: dict[str, Any] = {
            "format": f"diptych-{KIND}",
            "version": FORMAT_VERSION,
            "library": library_version(),
            "encoders": {view: asdict(plan.known.get(view, EncoderRecord())) for view in VIEWS},
            "index": {"kind": "hnsw" if plan.graph else "exact", "dtype": plan.dtype},
            "keep_features": plan.keep,
            "facts": plan.fitted.facts,
            **said,
        }
        write_json(folder / CONFIG, config)
        write_files(connection, tables.schema, tables.version, folder)
        if plan.before is not None and plan.before.has_text:
            names = TEXT_FILES
            copy_files(connection, tables.schema, plan.before.id, tables.version, names)


def _recall(connection: Connection, tables: Tables, task: Task, queries: Floats, dtype: str) -> float:
    """Share of the exact ten best that a graph finds."""
    true, found = (
        [
            {row[0] for row in rows}
            for rows in searched(connection, tables, task, queries, 10, None, dtype, graph=graph)
        ]
        for graph in (False, True)
    )
    wanted = sum(map(len, true))
    return sum(len(a & b) for a, b in zip(true, found, strict=True)) / wanted if wanted else 1.0


def given_blocks(given: Mapping[View, list[Item]], rows: Mapping[View, Floats]) -> Iterator[Block]:
    """New items with their features."""
    for view in VIEWS:
        own = given.get(view, [])
        for start in range(0, len(own), BLOCK):
            end = start + BLOCK
            yield view, own[start:end], None, np.asarray(rows[view][start:end], np.float32)


def stored_blocks(connection: Connection, version: Version, encode: Encode) -> Iterator[Block]:
    """Items that are there, with their features as they were kept, or made anew."""
    for view in VIEWS:
        width = version.embedding.features(view)
        if version.keeps_features:
            for keys, rows in feature_blocks(connection, version.tables, view, width, BLOCK):
                yield view, None, keys, rows
        else:
            for keys, items in item_blocks(connection, version.tables, view, BLOCK):
                yield view, None, keys, np.asarray(encode(view, items), np.float32)
