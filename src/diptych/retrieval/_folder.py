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
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diptych._checks import TASKS, InputError, Task
from diptych._persistence import (
    CONFIG,
    ChangedError,
    Version,
    check_file,
    check_format,
    find_current,
    library_version,
    new_version,
    read_config,
    read_current,
    read_json,
    write_config,
    write_json,
)
from diptych.cca import AWCCA, CanonicalModel, Moments
from diptych.fusion import Fusion
from diptych.report import draw_regularization_path, model_card
from diptych.report._card import (
    CORRELATIONS,
    PICTURE,
    SHOWN_CORRELATIONS,
    Card,
    EncoderFacts,
    IndexFacts,
    TaskFacts,
)
from diptych.retrieval._embedding import embedding_of
from diptych.retrieval._fit import Fitted
from diptych.retrieval._encoders import Encoders, Known
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval._model_files import (
    MODEL,
    MOMENTS,
    TEXT,
    known_encoders,
    read_model,
    read_moments,
    read_text_encoder,
    write_model,
)
from diptych.retrieval._searcher import Searcher
from diptych.retrieval.stores import open_store, read_address
from diptych.retrieval.stores._base import ModelChanged, Store
from diptych.retrieval.stores._index_files import FEATURES, INDEX, ITEMS, read_index, take_graph, write_index
from diptych.retrieval.stores._memory import MemoryStore
from diptych.text import HKSE

if TYPE_CHECKING:
    from diptych.retrieval._retriever import Retriever


KIND, FORMAT_VERSION = "retriever", 2
STORED = "version"
"""The kind of the config of a model in a shared store."""
TEXT_FILES = (f"{TEXT}/{CONFIG}", f"{TEXT}/hkse.safetensors")
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
class LoadedModel:
    """A model that was read from a folder or a shared store, with its store.

    Attributes
    ----------
    fitted, store, version
        The model, its items, and its version in a shared store.
    known
        The encoders that its features come from.
    hkse
        Its text encoder, where that is kept with it and was asked for.
    keep_features
        Whether features of new items are kept.
    """

    fitted: Fitted
    store: Store
    version: str
    known: dict[View, Known]
    hkse: HKSE | None
    keep_features: bool

    def encoders(self, image: Any, text: Any) -> Encoders:
        """Return the encoders given, or those kept with the model, or named by it."""
        return Encoders(image, self.hkse if text is None else text, self.known)

    def has_encoders(self, encoders: Encoders) -> bool:
        """Return whether the features of the model come from these encoders."""
        return all(encoders.describe(v).fingerprint == self.known[v].fingerprint for v in VIEWS)

    def searcher(self, encoders: Encoders) -> Searcher:
        """Return the model on its store."""
        return Searcher(self.fitted, self.store, encoders, self.version)


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
    def of(cls, version: Version, fitted: Fitted, store: Store, hkse: HKSE | None, journal: int) -> Base:
        """Count changes of a store from now on."""
        first_key = 0
        if isinstance(store, MemoryStore):
            first_key = store.table.next_key
            store.table.removed.clear()
        kept = None if store.shared else fitted
        return cls(version, _identity(version.folder), first_key, kept, hkse, journal)

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
        if overtaken and bring and current and not _same_database(retriever.store, current):
            bring(current)
            base, facts = retriever.base, describe(retriever)
        if journal is None:
            journal = 0 if base is None or current is None else base.journal
        searcher, hkse = retriever.searcher, retriever.encoders.hkse
        fitted, store = searcher.fitted, searcher.store
        same = base is not None and base.fitted is fitted and base.hkse is hkse
        before = current if same else None
        if isinstance(store, MemoryStore):
            said = write_model(draft.path, fitted, hkse, None if before is None else before.path)
            said |= write_index(draft.path, store, place)
        else:
            said = {"version": 2, "address": store.address}
        _write_card(retriever, facts, draft.path, place.name)
        encoders = {
            view: told | {"origin": _origin(retriever.encoders.describe(view).origin, place)}
            for view, told in facts["encoders"].items()
        }
        config = {**facts, "encoders": encoders, "journal": journal, **said}
        write_config(draft.path, KIND, config.pop("version", 1), config, before)
    assert draft.version is not None
    retriever.base = Base.of(draft.version, fitted, store, hkse, journal)


def check_current(retriever: Retriever, folder: str | os.PathLike[str]) -> None:
    """Raise ``ChangedError`` if a retriever is not of the current version of a folder any more."""
    _check_base(retriever, find_current(folder), folder)


def load(
    folder: str | os.PathLike[str],
    *,
    mmap: bool = False,
    trust_graph: bool = False,
    text: bool = True,
    index: str | None = None,
) -> tuple[LoadedModel, Base]:
    """Read the current version of a folder; without ``text``, all but the text encoder.

    ``index`` is the address of the database that a folder points to, where another is to be used.
    """

    def read(version: Version) -> tuple[LoadedModel, Base]:
        return read_version(version, mmap=mmap, trust_graph=trust_graph, text=text, index=index)

    return read_current(folder, read)


def read_version(
    version: Version,
    *,
    mmap: bool = False,
    trust_graph: bool = False,
    text: bool = True,
    index: str | None = None,
) -> tuple[LoadedModel, Base]:
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
            store = open_store(index or read_address(config["address"]), create=False)
            loaded = load_from_store(store, text=text)
        else:
            loaded = _read(version, config, mmap, trust_graph, text)
        return loaded, Base.of(version, loaded.fitted, loaded.store, loaded.hkse, journal)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"{folder / CONFIG} lacks or garbles a setting ({error}); save the model again."
        ) from None


def describe(retriever: Retriever) -> dict[str, Any]:
    """What is known of a retriever, as plain data."""
    searcher = retriever.searcher
    fitted, store = searcher.fitted, searcher.store
    return {
        "library": library_version(),
        "encoders": {
            view: {
                "name": (known := retriever.encoders.describe(view)).name,
                "fingerprint": known.fingerprint,
                "dimension": searcher.embedding.features(view),
            }
            for view in VIEWS
        },
        **_models(fitted.model),
        "index": {"kind": store.kind, "dtype": store.dtype},
        "keep_features": bool(retriever.keep_features),
        "items": {view: store.count(view) for view in VIEWS},
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
    version: Version, config: Mapping[str, Any], mmap: bool, trust_graph: bool, text: bool
) -> LoadedModel:
    folder, files = version.path, config["files"]
    mapped = (INDEX, FEATURES) if mmap else ()
    optional = [name for name in (MOMENTS, FEATURES) if name in files]
    for name in (MODEL, INDEX, ITEMS, *optional):
        check_file(folder, name, config, whole=name not in mapped)
    fitted = read_model(folder, config)
    if MOMENTS in files:
        moments = read_moments(folder, fitted.model)
        fitted = replace(fitted, load_moments=lambda: moments)
    store = read_index(folder, config, embedding_of(fitted.model), version.folder, mmap=mmap)
    for task in TASKS if store.kind == "hnsw" else ():
        graph = folder / f"{task}.hnsw"
        trusted = trust_graph and graph.name in files
        if trusted and len(store.indexes[task]):
            check_file(folder, graph.name, config)
        take_graph(store.indexes[task], graph, fitted.facts, task, trusted=trusted)
    hkse: HKSE | None = None
    if config["text_encoder"] and text:
        check_file(folder, f"{TEXT}/{CONFIG}", config)
        hkse = read_text_encoder(folder)
    known = known_encoders(config, version.folder)
    return LoadedModel(fitted, store, "", known, hkse, config["keep_features"] is True)


def write_stored_model(
    folder: Path, fitted: Fitted, encoders: Encoders, store: Store, keep_features: bool
) -> None:
    """Write a model's files to a folder, for a shared store."""
    config = {
        "format": f"diptych-{STORED}",
        "version": 1,
        "library": library_version(),
        "encoders": {view: asdict(_known(encoders, view)) for view in VIEWS},
        "index": {"kind": "hnsw" if "hnsw" in store.kind else "exact", "dtype": store.dtype},
        "keep_features": keep_features,
        **write_model(folder, fitted, encoders.hkse),
        "facts": fitted.facts,
    }
    write_json(folder / CONFIG, config)


def load_from_store(store: Store, *, text: bool = True, before: Encoders | None = None) -> LoadedModel:
    """Read the model that a shared store holds; without ``text``, all but the text encoder.

    The text encoder is not read either if it is open in ``before``.
    """
    while True:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            version = store.read_model(folder, (CONFIG, MODEL))
            try:
                config = read_json(folder / CONFIG)
                check_format(config, STORED, 1, folder / CONFIG)
                fitted, known = read_model(folder, config), known_encoders(config)
                keep_features, refittable = config["keep_features"] is True, config["moments"] is True
            except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
                raise InputError(
                    f"the model in {store.address} is damaged ({str(error).replace(f'{folder}/', '').rstrip('.')}); "
                    "fit again, or restore the database."
                ) from None
            hkse: HKSE | None = None
            if text and (before is None or before.kept("text", known) is None):
                if store.read_model(folder, TEXT_FILES) != version:
                    continue  # another process has replaced the model meanwhile
                hkse = read_text_encoder(folder) if (folder / TEXT_FILES[0]).exists() else None
        if refittable:
            fitted = replace(fitted, load_moments=partial(_load_stored_moments, store, fitted.model, version))
        return LoadedModel(fitted, store, version, known, hkse, keep_features)


def _load_stored_moments(store: Store, model: AWCCA | Fusion, version: str) -> Moments:
    with tempfile.TemporaryDirectory() as scratch:
        if store.read_model(Path(scratch), (MOMENTS,)) != version:
            raise ModelChanged
        return read_moments(Path(scratch), model)


def _known(encoders: Encoders, view: View) -> Known:
    """Return what a model remembers of an encoder: where it came from at first, if that is known."""
    described = encoders.describe(view)
    known = encoders.known.get(view, described)
    return known if known.fingerprint == described.fingerprint else described


def _write_card(retriever: Retriever, facts: dict[str, Any], staged: Path, name: str) -> None:
    searcher = retriever.searcher
    fitted, store = searcher.fitted, searcher.store
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
            {view: store.count(view) for view in VIEWS},
            "exact" if store.kind == "flat" else store.kind,
            store.dtype,
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


def _same_database(store: Store, version: Version) -> bool:
    """Whether a store is the database that a version points to: then both have the same items."""
    address = store.address
    return bool(address) and read_json(version.path / CONFIG).get("address") == address


def _identity(folder: Path) -> tuple[int, int]:
    found = os.stat(folder)
    return found.st_dev, found.st_ino
