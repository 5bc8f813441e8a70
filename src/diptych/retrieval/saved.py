"""A retriever as a folder: safetensors for the numbers, JSON for the rest, and a card for people.

=========================  ==============================================================================
``config.json``            format, library, encoders' fingerprints, filters, grids, path, recalls, checksums
``model.safetensors``      the model of each task, and where its training items lay
``moments.safetensors``    what ``refit`` needs of the training pairs
``index.safetensors``      the vectors of all items
``features.safetensors``   their features, where they are kept
``items.jsonl``            what the items are
``text-encoder/``          the HKSE, where that is the text encoder
``search.hnsw`` …          graphs, which are read only from a folder that is trusted
``README.md``              the model card, with ``regularization.png``
=========================  ==============================================================================
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from diptych import storage
from diptych.cca import AWCCA, Moments
from diptych.cca.persistence import Loaded, unpack
from diptych.checks import TASKS, InputError, Task
from diptych.fusion import Fusion
from diptych.fusion.saved import unpack as unpack_fusion
from diptych.report import draw_regularization_path, model_card
from diptych.report.card import PICTURE, Card, EncoderFacts, IndexFacts, TaskFacts
from diptych.retrieval.collection import Collection
from diptych.retrieval.embedding import SEARCHED, embedding_of
from diptych.retrieval.encoders import Encoders, Known
from diptych.retrieval.fitting import Fitted
from diptych.retrieval.graph import Graph
from diptych.retrieval.index import VectorIndex
from diptych.retrieval.items import VIEWS, Item, Items, View, read_items, write_items
from diptych.retrieval.reach import Reach
from diptych.text import HKSE

if TYPE_CHECKING:
    from diptych.retrieval.retriever import Retriever

KIND, FORMAT_VERSION = "retriever", 1
MODEL, MOMENTS, INDEX, FEATURES, ITEMS, CARD, TEXT = (
    *("model.safetensors", "moments.safetensors", "index.safetensors", "features.safetensors"),
    *("items.jsonl", "README.md", "text-encoder"),
)
MEANINGS = {
    storage.CONFIG: "format, encoders, filters, grids, path, recalls and checksums",
    MODEL: "the model of each task",
    MOMENTS: "what a refit needs of the training pairs",
    INDEX: "the vectors of all items",
    FEATURES: "the features of all items",
    ITEMS: "what the items are",
    TEXT: "the text encoder",
}


@dataclass(frozen=True, eq=False)
class Content:
    """What was read from a folder."""

    collection: Collection
    options: dict[str, Any]
    known: dict[View, Known]
    text: HKSE | None

    def encoders(self, image: Any, text: Any) -> Encoders:
        """The encoders given, or those that are in the folder or in the library."""
        if image is None and self.known["image"].built_in:
            image = self.known["image"].name
        return Encoders(image, self.text if text is None else text, self.known)


def save(retriever: Retriever, folder: str | os.PathLike[str]) -> None:
    """Write a retriever; a crash on the way leaves the folder as it was."""
    collection = retriever.collection
    fitted, indexes = collection.fitted, collection.indexes
    order = {view: collection.items.keys(view) for view in VIEWS}
    everything = [collection.items.get(key) for view in VIEWS for key in order[view].tolist()]
    tensors, model = fitted.model.packed()
    for view in VIEWS:
        tensors |= {f"reach.{view}.mean": fitted.reach[view].mean}
        tensors |= {f"reach.{view}.variance": fitted.reach[view].variance}
    hkse = retriever.encoders.hkse
    with storage.replacing_folder(folder, KIND) as staged:
        storage.write_tensors(staged / MODEL, tensors, {})
        if fitted.moments is not None:
            fitted.moments.save(staged / MOMENTS)
        stored: dict[str, Any] = {}
        for task in TASKS:
            stored |= _rows(f"{task}.vectors", indexes[task])
            stored[f"{task}.norms"] = _joined(indexes[task], "norms", np.float32)
        storage.write_tensors(staged / INDEX, stored, {})
        if collection.features:
            kept = {
                name: part
                for v, store in collection.features.items()
                for name, part in _rows(v, store).items()
            }
            storage.write_tensors(staged / FEATURES, kept, {})
        write_items((item for item in everything if item is not None), staged / ITEMS)
        if hkse is not None:
            hkse.save(staged / TEXT)
        for task in TASKS:
            graph = indexes[task].graph
            if graph is not None and np.array_equal(graph.keys, indexes[task].keys):
                graph.write(staged / f"{task}.hnsw")
        facts = describe(retriever)
        config = {
            "format": f"diptych-{KIND}",
            "version": FORMAT_VERSION,
            **facts,
            "kind": "fusion" if isinstance(fitted.model, Fusion) else "awcca",
            "model": model,
            "reach": {view: fitted.reach[view].limit for view in VIEWS},
            "text_encoder": hkse is not None,
            "learned": int(np.count_nonzero(order["text"] < collection.learned)),
            "files": {path.name: _checksum(path) for path in sorted(staged.iterdir()) if path.is_file()},
        }
        storage.write_json(staged / storage.CONFIG, config)
        _write_card(retriever, facts, staged, Path(folder).absolute().name)


def load(
    folder: str | os.PathLike[str], *, mmap: bool = False, trust_graph: bool = False, own_text: bool = True
) -> Content:
    """Read what ``save`` wrote; without ``own_text``, all but the text encoder."""
    folder = storage.existing_folder(folder)
    config = storage.read_json(folder / storage.CONFIG)
    if config.get("format") == "diptych-awcca":
        raise InputError(
            f"{folder} holds a model without an index; AWCCA.load reads it, and diptych fit makes one with."
        )
    storage.check_format(config, KIND, FORMAT_VERSION, folder / storage.CONFIG)
    try:
        return _read(folder, config, mmap, trust_graph, own_text)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{folder / storage.CONFIG} lacks or garbles a setting ({error}); save the model again."
        ) from None


def describe(retriever: Retriever) -> dict[str, Any]:
    """What is known of a retriever, as plain data."""
    collection = retriever.collection
    fitted = collection.fitted
    return {
        "library": storage.library_version(),
        "encoders": {
            view: asdict(retriever.encoders.describe(view))
            | {"dimension": collection.embedding.features(view)}
            for view in VIEWS
        },
        **_models(fitted.model),
        "index": {"kind": retriever.index, "dtype": retriever.dtype},
        "keep_features": bool(retriever.keep_features),
        "items": {view: collection.items.count(view) for view in VIEWS},
        "facts": fitted.facts,
    }


def _models(model: AWCCA | Fusion) -> dict[str, Any]:
    """What was fitted for each task, in words and numbers."""
    if isinstance(model, Fusion):
        members = {task: model.members_[task] for task in TASKS}
        return {
            "filters": {
                t: [f"{m.weight:.2g} × ({m.part}), {m.use.weighting}" for m in members[t]] for t in TASKS
            },
            "components": {t: sum(int(m.linear.x_map.shape[1]) for m in members[t]) for t in TASKS},
            "corrections": {task: asdict(model.corrections_[task]) for task in TASKS},
        }
    models = model.models_
    return {
        "filters": {task: [str(models[task].filter_x), str(models[task].filter_y)] for task in TASKS},
        "components": {task: int(models[task].correlations.shape[0]) for task in TASKS},
    }


def copied(model: AWCCA) -> Loaded:
    """The parts of a model, apart from the model itself."""
    return unpack(*model.packed(), Path("model"))


def _read(folder: Path, config: Mapping[str, Any], mmap: bool, trust_graph: bool, own_text: bool) -> Content:
    files = config["files"]
    mapped = (INDEX, FEATURES) if mmap else ()
    fused = config["kind"] == "fusion"
    there = [MODEL, INDEX, ITEMS, *([] if fused else [MOMENTS]), *([FEATURES] if FEATURES in files else [])]
    for name in there:
        _check_file(folder, name, files[name], whole=name not in mapped)
    tensors = storage.read_tensors(folder / MODEL)
    model: AWCCA | Fusion
    if fused:
        model = Fusion.unpacked(unpack_fusion(tensors, config["model"], folder))
    else:
        model = AWCCA.unpacked(unpack(tensors, config["model"], folder))
    embedding, moments = embedding_of(model), None if fused else Moments.load(folder / MOMENTS)
    widths: dict[View, int] = {view: embedding.features(view) for view in VIEWS}
    if moments is not None and (len(moments.x_mean), len(moments.y_mean)) != tuple(widths.values()):
        raise InputError(f"{folder / MOMENTS} belongs to a model of other features; save the model again.")
    reach: dict[View, Reach] = {}
    for view in VIEWS:
        mean, variance = (
            storage.take(tensors, f"reach.{view}.{part}", (widths[view],), folder / MODEL)
            for part in ("mean", "variance")
        )
        reach[view] = Reach(
            mean, np.maximum(variance, np.finfo(np.float32).tiny), float(config["reach"][view])
        )
    counts: dict[View, int] = {view: _count(config["items"][view]) for view in VIEWS}
    items = Items()
    items.add(_items(read_items(folder / ITEMS, sum(counts.values())), counts, folder / ITEMS))
    arrays = _arrays(folder / INDEX, mmap)
    indexes: dict[Task, VectorIndex] = {}
    for task in TASKS:
        view, shape = SEARCHED[task], (counts[SEARCHED[task]], embedding.dimension(task))
        vectors = _array(arrays, f"{task}.vectors", shape, folder / INDEX)
        norms = _array(arrays, f"{task}.norms", shape[:1], folder / INDEX)
        indexes[task] = VectorIndex.of(vectors, norms, items.keys(view))
    features: dict[View, VectorIndex] = {}
    if FEATURES in files:
        kept = _arrays(folder / FEATURES, mmap)
        for view in VIEWS:
            rows = _array(kept, view, (counts[view], widths[view]), folder / FEATURES)
            features[view] = VectorIndex.of(rows, np.ones(len(rows), np.float32), items.keys(view))
    facts = config["facts"]
    options = {
        "index": config["index"]["kind"],
        "dtype": config["index"]["dtype"],
        "keep_features": config["keep_features"] is True,
    }
    if not isinstance(facts, dict):
        raise TypeError("facts are no object")
    if options["index"] == "hnsw":
        for task in TASKS:
            _take_graph(indexes[task], folder / f"{task}.hnsw", facts, task, files, trust_graph)
    known: dict[View, Known] = {
        view: Known(str(config["encoders"][view]["name"]), str(config["encoders"][view]["fingerprint"]))
        for view in VIEWS
    }
    hkse = None
    if config["text_encoder"] and own_text:
        if (folder / TEXT).is_symlink():
            raise InputError(f"{folder / TEXT} is a link; expected the text encoder's folder.")
        hkse = HKSE.load(folder / TEXT)
    # Sentences come after all pictures here; those that were learned from come first.
    learned = counts["image"] + _count(config["learned"])
    collection = Collection(Fitted(model, moments, reach, facts), items, indexes, features, learned)
    return Content(collection, options, known, hkse)


def _take_graph(
    index: VectorIndex,
    path: Path,
    facts: Mapping[str, Any],
    task: Task,
    files: Mapping[str, Any],
    trusted: bool,
) -> None:
    if len(index) == 0:
        return
    if trusted and path.name in files:
        _check_file(path.parent, path.name, files[path.name], whole=True)
        recall = float(facts.get("graph_recall", {}).get(task, float("nan")))
        index.take_graph(Graph.read(path, index.keys, index.dimension, recall))
    else:
        index.build_graph()


def _write_card(retriever: Retriever, facts: dict[str, Any], staged: Path, name: str) -> None:
    fitted, collection = retriever.collection.fitted, retriever.collection
    model, known = fitted.model, facts["encoders"]
    path = model.path_ if isinstance(model, AWCCA) else None
    has_picture = False
    if path is not None:
        try:
            draw_regularization_path(path, staged / PICTURE)
            has_picture = True
        except InputError:  # matplotlib is not installed: a card without a picture is a card
            has_picture = False
    encoders = [
        EncoderFacts(known[view]["name"], known[view]["fingerprint"], known[view]["dimension"])
        if known[view]["name"]
        else None
        for view in VIEWS
    ]
    recall = fitted.facts.get("graph_recall", {})
    card = Card(
        name=name,
        folder=name,
        library=facts["library"],
        date=str(fitted.facts.get("date", "")),
        pairs={split: (int(n), int(m)) for split, (n, m) in fitted.facts.get("pairs", {}).items()},
        image_encoder=encoders[0],
        text_encoder=encoders[1],
        tasks=_task_facts(model),
        params=_params(model),
        selected_on=fitted.facts.get("selected_on"),
        seconds=fitted.facts.get("seconds", {}).get("all"),
        metrics=fitted.facts.get("metrics") or None,
        index=IndexFacts(
            {view: collection.items.count(view) for view in VIEWS},
            "exact" if retriever.index == "flat" else "hnsw",
            retriever.dtype,
            min(recall.values()) if recall else None,
        ),
        files={n: m for n, m in MEANINGS.items() if (staged / n).exists()},
        has_picture=has_picture,
    )
    (staged / CARD).write_text(model_card(card), "utf-8")


def _task_facts(model: AWCCA | Fusion) -> dict[Task, TaskFacts]:
    found = _models(model)
    if isinstance(model, Fusion):
        return {
            t: TaskFacts("; ".join(found["filters"][t]), "the same", found["components"][t]) for t in TASKS
        }
    return {
        task: TaskFacts(
            *(found["filters"][task][0], found["filters"][task][1], found["components"][task]),
            [float(c) for c in model.models_[task].correlations[:5]],
        )
        for task in TASKS
    }


def _params(model: AWCCA | Fusion) -> dict[str, object]:
    if isinstance(model, Fusion):
        corrections = {f"hubness, {task}": model.corrections_[task].kind for task in TASKS}
        return {"preset": model.preset, **corrections}
    names = ("filter", "weighting", "similarity", "normalize", "metric", "grid")
    return {name: getattr(model, name) for name in names}


def _rows(name: str, index: VectorIndex) -> dict[str, storage.Rows]:
    chunks = index.chunks()
    shape = (sum(map(len, chunks)), index.dimension)
    return {name: storage.Rows((chunk.vectors for chunk in chunks), shape, index.dtype)}


def _joined(index: VectorIndex, part: str, dtype: type) -> np.ndarray[Any, Any]:
    arrays = [getattr(chunk, part) for chunk in index.chunks()]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _checksum(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": storage.file_digest(path)}


def _check_file(folder: Path, name: str, expected: Any, *, whole: bool) -> None:
    path = storage.plain_file(folder / name, "a file that save() wrote")
    if path.stat().st_size != expected["bytes"] or (
        whole and storage.file_digest(path) != expected["sha256"]
    ):
        raise InputError(f"{path} is not as it was written (its checksum differs); restore it or save again.")


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
    mapped = storage.map_tensors(path)
    return mapped if mmap else {name: np.array(array) for name, array in mapped.items()}


def _array(
    arrays: Mapping[str, np.ndarray[Any, Any]], name: str, shape: tuple[int, ...], path: Path
) -> np.ndarray[Any, Any]:
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype not in (np.float32, np.float16):
        found = "nothing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise InputError(f"{path}: {name!r} is {found}; expected real numbers of shape {list(shape)}.")
    return array
