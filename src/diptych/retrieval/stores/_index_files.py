"""Items, vectors and features in memory as files of a model's folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diptych._checks import TASKS, InputError, Task
from diptych._persistence import Rows, map_tensors, write_tensors
from diptych.retrieval._embedding import Embedding
from diptych.retrieval._items import SEARCHED, VIEWS, Item, Places, View, read_items, write_items
from diptych.retrieval.stores._faiss import Graph, VectorIndex
from diptych.retrieval.stores._memory import ItemTable, MemoryStore

INDEX, FEATURES, ITEMS = "index.safetensors", "features.safetensors", "items.jsonl"


def write_index(folder: Path, store: MemoryStore, model_folder: Path) -> dict[str, Any]:
    """Write items, vectors and features; return what the config beside them is to say."""
    table = store.table
    order = {view: table.keys(view) for view in VIEWS}
    stored_items = [
        item for view in VIEWS for key in order[view].tolist() if (item := table.get(key)) is not None
    ]
    places = Places.of(stored_items, model_folder)
    stored: dict[str, Any] = {}
    for task in TASKS:
        stored |= _rows(f"{task}.vectors", store.indexes[task])
        stored[f"{task}.norms"] = _joined(store.indexes[task], "norms", np.float32)
    write_tensors(folder / INDEX, stored, {})
    if store.kept:
        kept = {name: part for v, index in store.kept.items() for name, part in _rows(v, index).items()}
        write_tensors(folder / FEATURES, kept, {})
    write_items(stored_items, folder / ITEMS, places)
    for task in TASKS:
        graph = store.indexes[task].graph
        if graph is not None and np.array_equal(graph.keys, store.indexes[task].keys):
            graph.write(folder / f"{task}.hnsw")
    return {"learned": int(np.count_nonzero(order["text"] < store.learned)), "images": places.describe()}


def read_index(
    folder: Path, config: Mapping[str, Any], embedding: Embedding, model_folder: Path, *, mmap: bool
) -> MemoryStore:
    """Read a store without its graphs."""
    counts: dict[View, int] = {view: _count(config["items"][view]) for view in VIEWS}
    places = Places.read(config["images"], model_folder)
    table = ItemTable(
        _items(read_items(folder / ITEMS, sum(counts.values()), places), counts, folder / ITEMS)
    )
    arrays = _arrays(folder / INDEX, mmap)
    indexes: dict[Task, VectorIndex] = {}
    for task in TASKS:
        view, shape = SEARCHED[task], (counts[SEARCHED[task]], embedding.dimension(task))
        vectors = _array(arrays, f"{task}.vectors", shape, folder / INDEX)
        norms = _array(arrays, f"{task}.norms", shape[:1], folder / INDEX)
        indexes[task] = VectorIndex.of(vectors, norms, table.keys(view))
    kept: dict[View, VectorIndex] = {}
    if FEATURES in config["files"]:
        features = _arrays(folder / FEATURES, mmap)
        for view in VIEWS:
            rows = _array(features, view, (counts[view], embedding.features(view)), folder / FEATURES)
            kept[view] = VectorIndex.of(rows, np.ones(len(rows), np.float32), table.keys(view))
    # Texts come after all images here; those that were learned from come first.
    learned = counts["image"] + _count(config["learned"])
    options = config["index"]["kind"], config["index"]["dtype"]
    return MemoryStore(*options, table=table, indexes=indexes, kept=kept, learned=learned)


def take_graph(
    index: VectorIndex, path: Path, facts: Mapping[str, Any], task: Task, *, trusted: bool
) -> None:
    """Search through the graph of a file if that is ``trusted``, or through one that is built anew."""
    if len(index) == 0:
        return
    if trusted:
        recall = float(facts.get("graph_recall", {}).get(task, float("nan")))
        index.take_graph(Graph.read(path, index.keys, index.dimension, recall))
    else:
        index.build_graph()


def _rows(name: str, index: VectorIndex) -> dict[str, Rows]:
    chunks = index.chunks()
    shape = (sum(map(len, chunks)), index.dimension)
    return {name: Rows((chunk.vectors for chunk in chunks), shape, index.dtype)}


def _joined(index: VectorIndex, part: str, dtype: type) -> np.ndarray[Any, Any]:
    arrays = [getattr(chunk, part) for chunk in index.chunks()]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value


def _items(found: list[Item], counts: Mapping[View, int], path: Path) -> list[Item]:
    views = [item.view for item in found]
    if views != ["image"] * counts["image"] + ["text"] * counts["text"]:
        raise InputError(f"{path} does not hold the pictures and sentences that were saved; save again.")
    return found


def _arrays(path: Path, mmap: bool) -> dict[str, np.ndarray[Any, Any]]:
    mapped = map_tensors(path)
    return mapped if mmap else {name: np.array(array) for name, array in mapped.items()}


def _array(
    arrays: Mapping[str, np.ndarray[Any, Any]], name: str, shape: tuple[int, ...], path: Path
) -> np.ndarray[Any, Any]:
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype not in (np.float32, np.float16):
        found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise InputError(f"{path}: {name!r} is {found}; expected real numbers of shape {list(shape)}.")
    return array
