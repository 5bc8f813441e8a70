"""A retriever as a model folder: safetensors for the numbers, JSON for the rest, and a card for people.

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

These are the files of one version; ``diptych._persistence`` tells how versions follow each other. A retriever
remembers the version it was loaded from. If that is still the current one, ``save`` replaces it. If others
have saved meanwhile, ``save`` brings the items that were added and removed here into what they saved, or
refuses. A retriever that was fitted, rather than loaded, replaces whatever is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych._checks import TASKS, InputError, Task
from diptych._persistence import (
    CONFIG,
    ChangedError,
    Version,
    check_file,
    find_current,
    library_version,
    new_version,
    read_config,
    read_current,
    read_json,
    write_config,
)
from diptych.cca import AWCCA, CanonicalModel
from diptych.fusion import Fusion
from diptych.report import draw_regularization_path, model_card
from diptych.report._card import (
    CORRELATIONS,
    FIGURE_FILE,
    SHOWN_CORRELATIONS,
    Card,
    EncoderFacts,
    IndexFacts,
    TaskFacts,
)
from diptych.retrieval._embedding import embedding_of
from diptych.retrieval._fit import Fitted
from diptych.retrieval._homes import opened, saved_address
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval._model_files import (
    MODEL,
    MOMENTS,
    TEXT,
    known_encoders,
    read_model,
    read_moments,
    read_text_encoder,
)
from diptych.retrieval.stores._base import Collection, Content
from diptych.retrieval.stores._index_files import FEATURES, INDEX, ITEMS, read_index, take_graph
from diptych.retrieval.stores._memory import MemoryCollection
from diptych.text import HKSE

if TYPE_CHECKING:
    from diptych.retrieval._retriever import Retriever


KIND, FORMAT_VERSION = "retriever", 2
"""Format version 2 is a folder that points to a database; one that holds its items itself is version 1."""
CARD = "README.md"
MEANINGS = {
    CONFIG: "format, encoders, filters, grids, path, recalls and checksums",
    MODEL: "the model of each task",
    MOMENTS: "what a refit needs of the training pairs",
    INDEX: "the vectors of all items",
    FEATURES: "the features of all items",
    ITEMS: "what the items are",
    TEXT: "the text encoder",
}


@dataclass(frozen=True, eq=False)
class Base:
    """The version that a retriever was loaded from, or saved as last: what its changes are counted from.

    Attributes
    ----------
    version
        It.
    identity
        Of the model folder, wherever it is moved to.
    first_key
        Items with this key, or a greater one, were added since.
    fitted, hkse
        Its model and text encoder: while the retriever has these, their files need not be written again.
    journal
        The last entry of a server's journal that is part of it.
    """

    version: Version
    identity: tuple[int, int]
    first_key: int
    fitted: Fitted | None
    hkse: HKSE | None
    journal: int

    @classmethod
    def of(cls, version: Version, collection: Collection, hkse: HKSE | None, journal: int) -> Base:
        """Count changes of a collection from now on."""
        first_key = 0
        if isinstance(collection, MemoryCollection):
            first_key = collection.items.next_key
            collection.items.removed.clear()
        fitted = None if collection.shared else collection.fitted
        return cls(version, _identity(version.folder), first_key, fitted, hkse, journal)

    def is_in(self, folder: Path) -> bool:
        """Whether it is a version of this model folder."""
        return self.version.folder == folder or self.identity == _identity(folder)


def save(
    retriever: Retriever,
    folder: str | os.PathLike[str],
    bring: Callable[[Version], None] | None,
    journal: int | None = None,
) -> None:
    """Write a retriever as a new version of a folder; a crash on the way leaves the folder as it was.

    Parameters
    ----------
    retriever
        What is saved.
    folder
        Where.
    bring
        Brings what was saved meanwhile by others into the retriever, if its base is not the current version
        any more; None: that is a ``ChangedError``.
    journal
        The last entry of a server's journal that is saved; None: the same as before.
    """
    with retriever._writing:
        _save(retriever, folder, bring, journal)


def _save(
    retriever: Retriever,
    folder: str | os.PathLike[str],
    bring: Callable[[Version], None] | None,
    journal: int | None,
) -> None:
    facts = describe(retriever)
    with new_version(folder, KIND) as draft:
        place, current = draft.path.parent.parent, draft.current
        if bring is None:
            _check_base(retriever, current, folder)
        base = retriever.base if retriever.base is not None and retriever.base.is_in(place) else None
        overtaken = base is not None and current is not None and current.id != base.version.id
        if overtaken and bring and current and not _same_database(retriever.collection, current):
            bring(current)
            base, facts = retriever.base, describe(retriever)
        if journal is None:
            journal = 0 if base is None or current is None else base.journal
        collection, hkse = retriever.collection, retriever.encoders.hkse
        same = base is not None and base.fitted is collection.fitted and base.hkse is hkse
        before = current if same else None
        said = collection.write(draft.path, hkse, place, None if before is None else before.path)
        _write_card(retriever, facts, draft.path, place.name)
        encoders = {
            view: told | {"origin": _origin(retriever.encoders.describe(view).origin, place)}
            for view, told in facts["encoders"].items()
        }
        config = {**facts, "encoders": encoders, "journal": journal, **said}
        write_config(draft.path, KIND, config.pop("version", 1), config, before)
    assert draft.version is not None
    retriever.base = Base.of(draft.version, collection, hkse, journal)


def check_current(retriever: Retriever, folder: str | os.PathLike[str]) -> None:
    """Raise ``ChangedError`` if a retriever is not of the current version of a folder any more."""
    _check_base(retriever, find_current(folder), folder)


def load(
    folder: str | os.PathLike[str],
    *,
    mmap: bool = False,
    trust_graph: bool = False,
    own_text: bool = True,
    index: str | None = None,
) -> tuple[Content, Base]:
    """Read the current version of a folder; without ``own_text``, all but the text encoder.

    ``index`` is the address of the database that a folder points to, where another is to be used.
    """

    def read(version: Version) -> tuple[Content, Base]:
        return read_version(version, mmap=mmap, trust_graph=trust_graph, own_text=own_text, index=index)

    return read_current(folder, read)


def read_version(
    version: Version,
    *,
    mmap: bool = False,
    trust_graph: bool = False,
    own_text: bool = True,
    index: str | None = None,
) -> tuple[Content, Base]:
    """Read one version of a folder."""
    folder = version.path
    config = read_json(folder / CONFIG)
    if config.get("format") == "diptych-awcca":
        raise InputError(
            f"{version.folder} holds a model without an index; AWCCA.load reads it, and diptych fit makes "
            "one with."
        )
    config = read_config(folder, KIND, FORMAT_VERSION)
    if "address" not in config and index is not None:
        raise InputError(
            f"{version.folder} holds its items itself; index= is for folders that point to a database."
        )
    try:
        journal = int(config["journal"])
        if "address" in config:
            content = opened(index or saved_address(config["address"]), own_text=own_text)
        else:
            content = _read(version, config, mmap, trust_graph, own_text)
        return content, Base.of(version, content.collection, content.text, journal)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{folder / CONFIG} lacks or garbles a setting ({error}); save the model again."
        ) from None


def describe(retriever: Retriever) -> dict[str, Any]:
    """What is known of a retriever, as plain data."""
    collection = retriever.collection
    fitted = collection.fitted
    return {
        "library": library_version(),
        "encoders": {
            view: {
                "name": (known := retriever.encoders.describe(view)).name,
                "fingerprint": known.fingerprint,
                "dimension": collection.embedding.features(view),
            }
            for view in VIEWS
        },
        **_models(fitted.model),
        "index": {"kind": collection.kind, "dtype": retriever.dtype},
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
        "correlations": {task: _correlations(models[task]) for task in TASKS},
    }


def _correlations(model: CanonicalModel) -> dict[str, list[float] | None]:
    """The first few canonical correlations of each kind; None where they were not measured."""
    return {
        name: None
        if (values := getattr(model, name)) is None
        else [round(float(value), 6) for value in values[:SHOWN_CORRELATIONS]]
        for name in CORRELATIONS
    }


def _read(
    version: Version, config: Mapping[str, Any], mmap: bool, trust_graph: bool, own_text: bool
) -> Content:
    folder, files = version.path, config["files"]
    mapped = (INDEX, FEATURES) if mmap else ()
    optional = [name for name in (MOMENTS, FEATURES) if name in files]
    for name in (MODEL, INDEX, ITEMS, *optional):
        check_file(folder, name, config, whole=name not in mapped)
    fitted = read_model(folder, config)
    if MOMENTS in files:
        fitted = replace(fitted, moments=read_moments(folder, fitted.model))
    items, indexes, features, learned = read_index(
        folder, config, embedding_of(fitted.model), version.folder, mmap=mmap
    )
    options = {
        "index": config["index"]["kind"],
        "dtype": config["index"]["dtype"],
        "keep_features": config["keep_features"] is True,
    }
    for task in TASKS if options["index"] == "hnsw" else ():
        graph = folder / f"{task}.hnsw"
        trusted = trust_graph and graph.name in files
        if trusted and len(indexes[task]):
            check_file(folder, graph.name, config)
        take_graph(indexes[task], graph, fitted.facts, task, trusted=trusted)
    hkse: HKSE | None = None
    if config["text_encoder"] and own_text:
        check_file(folder, f"{TEXT}/{CONFIG}", config)
        hkse = read_text_encoder(folder)
    collection = MemoryCollection(fitted, items, indexes, features, learned, options["index"])
    return Content(collection, options, known_encoders(config, version.folder), hkse)


def _write_card(retriever: Retriever, facts: dict[str, Any], staged: Path, name: str) -> None:
    fitted, collection = retriever.collection.fitted, retriever.collection
    model, known = fitted.model, facts["encoders"]
    path = model.path_ if isinstance(model, AWCCA) else None
    has_picture = False
    if path is not None:
        try:
            draw_regularization_path(path, staged / FIGURE_FILE)
            has_picture = True
        except InputError:  # matplotlib is not installed: a card without a picture is a card
            has_picture = False
    encoders = [
        EncoderFacts(
            known[view]["name"],
            known[view]["fingerprint"],
            known[view]["dimension"],
            _reopens(retriever, view),
        )
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
        selected_on=fitted.facts.get("selection", {}).get("pairs"),
        seconds=fitted.facts.get("seconds", {}).get("all"),
        quality=fitted.facts.get("quality", Card.quality),
        metrics=fitted.facts.get("metrics") or None,
        index=IndexFacts(
            {view: collection.items.count(view) for view in VIEWS},
            "exact" if collection.kind == "flat" else collection.kind,
            retriever.dtype,
            min(recall.values()) if recall else None,
        ),
        files={n: m for n, m in MEANINGS.items() if (staged / n).exists()},
        has_picture=has_picture,
    )
    (staged / CARD).write_text(model_card(card), "utf-8")


def _reopens(retriever: Retriever, view: View) -> bool:
    """Whether a loaded model finds an encoder by itself, if its files stay where they are."""
    if view == "text" and retriever.encoders.hkse is not None:
        return True
    origin = retriever.encoders.describe(view).origin
    place = str(origin.get("weights", origin.get("source", "")))
    return place == "pyramid" or os.path.isabs(place)


def _task_facts(model: AWCCA | Fusion) -> dict[Task, TaskFacts]:
    found = _models(model)
    if isinstance(model, Fusion):
        return {
            t: TaskFacts("; ".join(found["filters"][t]), "the same", found["components"][t]) for t in TASKS
        }
    return {
        task: TaskFacts(
            *(found["filters"][task][0], found["filters"][task][1], found["components"][task]),
            *(found["correlations"][task][name] or () for name in CORRELATIONS),
        )
        for task in TASKS
    }


def _params(model: AWCCA | Fusion) -> dict[str, object]:
    if isinstance(model, Fusion):
        corrections = {f"hubness, {task}": model.corrections_[task].kind for task in TASKS}
        return {"preset": model.preset, **corrections}
    names = ("filter", "weighting", "similarity", "normalize", "metric", "grid")
    return {name: getattr(model, name) for name in names}


def _origin(origin: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Where an encoder comes from, with its place relative to the model's, for folders that move together."""
    place = str(origin.get("weights", origin.get("source", "")))
    if not os.path.isabs(place):
        return dict(origin)
    with suppress(ValueError):  # on another drive of Windows
        return {**origin, "beside": os.path.relpath(os.path.realpath(place), folder)}
    return dict(origin)


def _check_base(retriever: Retriever, current: Version | None, folder: str | os.PathLike[str]) -> None:
    if current is None or retriever.base is None or current.id != retriever.base.version.id:
        raise ChangedError(f"{folder} holds another version by now.")


def _same_database(collection: Collection, version: Version) -> bool:
    """Whether a collection is in the database that a version points to: then both have the same items."""
    address = collection.address
    return bool(address) and read_json(version.path / CONFIG).get("address") == address


def _identity(folder: Path) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino
