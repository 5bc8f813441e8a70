"""The files of a retriever in a model folder, and those of its model in a database.

=========================  ==============================================================================
``config.json``            projectors, encoders, what is known of the model, number of items, checksums
``model.safetensors``      the arrays of the projectors, and the spread of the training features
``estimator.json`` and     the fitted model, which only a refit needs; arrays that a projector has are not
``estimator.safetensors``  stored again
``moments.safetensors``    the moments of the training pairs, which only a refit needs
``index.safetensors``      the vectors of all items
``features.safetensors``   their features, if they are kept
``items.jsonl``            the items
``text-encoder/``          the HKSE, if that is the text encoder or one of several
``search.hnsw`` …          graphs, which are read only from a folder that is trusted
``README.md``              the model card with its figures, written after a fit or a refit
=========================  ==============================================================================

These are the files of one version; ``diptych._model_folder`` describes how versions follow each other. A
folder may instead hold the address of a database, which then holds the rest. A retriever remembers the
version it was loaded from. If that is still current, ``save`` replaces it. If other processes have saved
since, ``save`` applies the items that were added and removed here to what they saved, or refuses. A retriever
that was fitted, rather than loaded, replaces whatever is in the folder.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, TypeAlias, TypedDict

import msgspec
import numpy as np

from diptych._checks import (
    TASKS,
    InputError,
    Task,
    ViewNames,
    check_choice,
    check_view_names,
)
from diptych._model_folder import (
    FOR_PEOPLE,
    ChangedError,
    Version,
    find_current,
    link_file,
    new_version,
    read_current,
)
from diptych._persistence import (
    CONFIG,
    TENSORS,
    MatrixBlocks,
    ModelFiles,
    Schema,
    Tensors,
    map_tensors,
    read_config,
    read_json,
    take_array,
    write_config,
    write_tensors,
)
from diptych.cca._description import ModelDescription
from diptych.cca._moments import Moments
from diptych.cca._projector import Projector, ProjectorConfig
from diptych.cca._weighting import check_normalization
from diptych.encoders._hkse_encoder import INSIDE, WORDS, HKSEEncoder, read_hkse, write_hkse
from diptych.retrieval._calibration import TaskCalibrations
from diptych.retrieval._encoders import EncoderRecord, Encoders
from diptych.retrieval._fitted import Fitted, Learned, OutlierDetector, name_views
from diptych.retrieval._items import (
    SEARCHED,
    SIDES,
    VIEWS,
    Item,
    Places,
    PublishedPlaces,
    View,
    read_items,
    strip_paths,
    write_items,
)
from diptych.retrieval._searcher import Searcher
from diptych.retrieval.stores import open_store, read_address
from diptych.retrieval.stores._base import ModelChanged, Store
from diptych.retrieval.stores._faiss import Graph, VectorIndex
from diptych.retrieval.stores._memory import KINDS, ItemTable, MemoryStore

if TYPE_CHECKING:
    from diptych.cca import AWCCA
    from diptych.fusion import Fusion
    from diptych.retrieval._retriever import Retriever

KIND, STORED_KIND = "retriever", "stored-model"
ESTIMATOR = ("estimator.json", "estimator.safetensors")
MOMENTS, INDEX, FEATURES = "moments.safetensors", "index.safetensors", "features.safetensors"
ITEMS, TEXT = "items.jsonl", INSIDE
TEXT_FILES = (f"{TEXT}/{CONFIG}", f"{TEXT}/{TENSORS}", f"{TEXT}/{WORDS}")
MODEL_FILES = (TENSORS, *ESTIMATOR, MOMENTS, INDEX, FEATURES, ITEMS, *TEXT_FILES)
"""The files of a version that are published, beside its config; nothing that can be executed."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class IndexConfig(Schema, frozen=True):
    """How vectors are searched and stored."""

    kind: str
    dtype: Literal["float32", "float16"]


class Selection(TypedDict):
    """The pairs that the regularisation was selected on, and the best value of the metric there."""

    pairs: str
    metric: str
    search: float
    annotate: float
    grid: NotRequired[str]


class Refit(TypedDict):
    """The number of pairs after a refit, and before."""

    pairs: int
    before: int


class Audited(TypedDict):
    """How many training pairs an audit left out, and how many there were."""

    left_out: int
    pairs: int


class Facts(TypedDict, total=False):
    """What a fit records for people, as plain data; checked when a saved model is read."""

    date: str
    pairs: dict[str, tuple[int, int]]
    moments: dict[str, int]
    seconds: dict[str, float]
    training_sample: str
    leaks: dict[str, int]
    blocks: dict[View, list[tuple[str, int]]]
    selection: Selection
    theory: str
    audit: Audited
    quality: str
    metrics: dict[str, dict[Task, dict[str, float]]]
    graph_recall: dict[Task, float]
    refitted: Refit


class OutlierConfig(Schema, frozen=True):
    """How features are normalised before they are compared with the training features, and the limit."""

    normalize: str
    limit: float | None


class ModelConfig(Schema, frozen=True):
    """A fitted model and its encoders; ``views`` are the names of the views for people.

    ``calibration`` has what was measured on held-out pairs, or says why nothing was.
    """

    projectors: dict[Task, ProjectorConfig]
    description: ModelDescription
    outliers: dict[View, OutlierConfig]
    encoders: dict[View, EncoderRecord]
    index: IndexConfig
    keep_features: bool
    facts: Facts
    views: tuple[str, str]
    calibration: TaskCalibrations | str

    @property
    def names(self) -> ViewNames:
        """The names of the views."""
        return check_view_names(self.views)

    def __post_init__(self) -> None:
        """Refuse a config without one of the views or tasks, and names that are none."""
        self.names  # noqa: B018
        if set(self.outliers) != set(VIEWS) or set(self.encoders) != set(VIEWS):
            raise InputError(f"expected outliers and encoders of the views {', '.join(VIEWS)}")
        if set(self.projectors) != set(TASKS):
            raise InputError(f"expected a projector of the tasks {', '.join(TASKS)}")
        search, annotate = (self.projectors[task] for task in TASKS)
        if (search.x, search.y) != (annotate.x, annotate.y):
            raise InputError("the projectors of the two tasks are for other features")


class PlacesConfig(Schema, frozen=True):
    """The folder of all images, and its path from the model folder."""

    folder: str
    from_model: str


class ItemsConfig(Schema, frozen=True):
    """The number of items, and of the texts among them that the model was fitted on."""

    image: Count
    text: Count
    learned: Count
    images: PlacesConfig | None


class RetrieverConfig(Schema, frozen=True):
    """What ``config.json`` says of a retriever: the address of a database, or a model and items.

    ``journal`` is the last entry of a server's journal that is part of this version.
    """

    journal: Count
    address: str | None = None
    model: ModelConfig | None = None
    items: ItemsConfig | None = None

    def __post_init__(self) -> None:
        """Refuse a folder that has both, or neither."""
        if {self.address is None, self.model is not None, self.items is not None} not in ({True}, {False}):
            raise InputError("expected either the address of a database, or a model and items")
        if self.model is not None:
            check_choice(self.model.index.kind, KINDS, "model.index.kind")


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model from a folder or a database, its store, and what is known of the encoders of its features."""

    fitted: Fitted
    store: Store
    records: dict[View, EncoderRecord]
    hkse: HKSEEncoder | None
    keep_features: bool
    views: ViewNames
    version: str = ""

    def encoders(self, image: Any = None, text: Any = None) -> Encoders:
        """Return the encoders, with those of the user in place of the stored ones."""
        return Encoders(image, text, self.records, self.views, self.hkse, self.fitted.layout)

    def has_encoders(self, encoders: Encoders) -> bool:
        """Return whether the features of this model came from ``encoders``."""
        return all(encoders.describe(v).fingerprint == self.records[v].fingerprint for v in VIEWS)

    def searcher(self, encoders: Encoders) -> Searcher:
        """Return a searcher of this model."""
        return Searcher(self.fitted, self.store, encoders, self.version)


@dataclass(frozen=True, eq=False)
class Base:
    """The version that a retriever was loaded from or last saved as, from which its changes are counted.

    ``identity`` is that of the model folder, even when it is moved. Items from ``first_key`` on were added
    since. While the retriever has the same ``fitted`` and ``hkse``, their files are not written again.
    """

    version: Version
    identity: tuple[int, int]
    first_key: int
    fitted: Fitted | None
    hkse: HKSEEncoder | None
    journal: int

    @classmethod
    def start(
        cls, version: Version, store: Store, fitted: Fitted, hkse: HKSEEncoder | None, journal: int
    ) -> Base:
        """Count changes of a store from now on."""
        first_key = 0
        if isinstance(store, MemoryStore):
            first_key = store.table.next_key
            store.table.removed.clear()
        unchanged = None if store.shared else fitted
        return cls(version, _identify(version.folder), first_key, unchanged, hkse, journal)

    def is_in(self, folder: Path) -> bool:
        """Return whether it is a version of this model folder."""
        return self.version.folder == folder or self.identity == _identify(folder)


def save(
    retriever: Retriever,
    folder: str | os.PathLike[str],
    merge: Callable[[Version], None] | None,
    journal: int | None = None,
) -> None:
    """Write a retriever as a new version of a folder; a crash leaves the folder as it was.

    ``merge`` applies the retriever's changes to a version that others have saved since its base, and makes
    that its base; without it, such a version is a ``ChangedError``. ``journal`` is the last entry of a
    server's journal that is saved; None: the same as before.
    """
    address = retriever.searcher.store.address  # refuses a retriever that is not fitted
    with retriever._writing, new_version(folder, KIND) as draft:
        place, current = draft.path.parent.parent, draft.current
        if merge is None:
            _check_base(retriever, current, folder)
        base = retriever.base if retriever.base is not None and retriever.base.is_in(place) else None
        if base is not None and current is not None and current.id != base.version.id:
            # Both have the same items if they are in the same database.
            same = address and read_json(current.path / CONFIG).get("address") == address
            if merge is not None and not same:
                merge(current)
                base = retriever.base
        if journal is None:
            journal = 0 if base is None or current is None else base.journal
        searcher = retriever.searcher
        fitted, store, hkse = searcher.fitted, searcher.store, searcher.encoders.hkse
        unchanged = base is not None and base.fitted is fitted and base.hkse is hkse
        previous = current if unchanged else None
        if isinstance(store, MemoryStore):
            options = (store, retriever.keep_features, place, previous)
            model = _write_model(draft.path, fitted, searcher.encoders, *options)
            items = _list_items(store)
            counts = _write_items(draft.path, store, items, Places.of(items, place), store.kept)
            config = RetrieverConfig(journal, None, model, counts)
        else:
            config = RetrieverConfig(journal, store.address)
        if previous is not None and (previous.path / FOR_PEOPLE[0]).is_file():
            for name in FOR_PEOPLE:
                link_file(name, previous.path, draft.path)
        else:
            from diptych.retrieval._description import write_card

            write_card(retriever, draft.path, place.name)
        write_config(draft.path, KIND, config, None if previous is None else previous.path)
    assert draft.version is not None
    retriever.base = Base.start(draft.version, store, fitted, hkse, journal)


def save_published(
    retriever: Retriever, folder: Path, repo: str, *, keep_features: bool, front_matter: str
) -> None:
    """Write a retriever to a new folder as it is published in ``repo``, without anything of this machine.

    Paths, uploads and graphs are left out, and without ``keep_features`` what only a refit needs.
    """
    from diptych.retrieval._description import write_card

    searcher = retriever.searcher
    fitted, store, encoders = searcher.fitted, searcher.store, searcher.encoders
    if not isinstance(store, MemoryStore):
        raise InputError(
            "the items of this model are in a database and are not published; fit a model with index='flat'."
        )
    if keep_features and not store.kept:
        raise InputError("this model does not have its features, so keep_features has no effect.")
    with retriever._writing, new_version(folder, KIND) as draft:
        kept = store.kept if keep_features else {}
        if not keep_features:
            fitted = replace(fitted, learned=Learned(fitted.learned.model))
        model = _write_model(draft.path, fitted, encoders, store, keep_features)
        records = {view: record.strip_paths() for view, record in model.encoders.items()}
        items, places = strip_paths(_list_items(store)), Places(draft.path, None)
        counts = _write_items(draft.path, store, items, places, kept, graphs=False)
        write_card(retriever, draft.path, repo.rpartition("/")[2], repo, front_matter)
        model = msgspec.structs.replace(model, encoders=records)
        write_config(draft.path, KIND, RetrieverConfig(0, None, model, counts))


def check_current(retriever: Retriever, folder: str | os.PathLike[str]) -> None:
    """Raise ``ChangedError`` unless the base of a retriever is the current version of a folder."""
    _check_base(retriever, find_current(folder), folder)


def load(folder: str | os.PathLike[str], **options: Any) -> tuple[LoadedModel, Base]:
    """Read the current version of a folder with the ``options`` of ``read_version``."""
    return read_current(folder, partial(read_version, **options))


def read_version(
    version: Version,
    *,
    mmap: bool = False,
    trust_graph: bool = False,
    text: bool = True,
    index: str | None = None,
    published: bool = False,
    images: str | os.PathLike[str] | None = None,
) -> tuple[LoadedModel, Base]:
    """Read one version of a folder; without ``text``, all but the text encoder.

    ``index`` replaces the address of the database that a folder points to. ``published``: the folder was
    written by others, so nothing that it names outside of itself is opened; its images are in ``images``.
    """
    if read_json(version.path / CONFIG).get("format") == "diptych-awcca":
        raise InputError(
            f"{version.folder} holds a model without items. Load it with AWCCA.load, or create a searchable "
            "model with diptych fit."
        )
    config, files = read_config(version.path, KIND, RetrieverConfig)
    if config.model is None or config.items is None:
        if published:
            raise InputError(f"{version.folder} names a database, which is not opened for a published model.")
        address = index or read_address(config.address)
        loaded = load_from_store(open_store(address, create=False), text=text)
    elif index is not None:
        raise InputError(
            f"{version.folder} holds its items itself; index= is for folders that point to a database."
        )
    else:
        fitted = _read_model(config.model, files, mmap=mmap)
        stored = config.items.images
        places = (
            PublishedPlaces(version.folder, None if images is None else os.fspath(images))
            if published
            else Places.read(stored and msgspec.structs.asdict(stored), version.folder)
        )
        store = _read_items(config.model, config.items, files, fitted, places, mmap, trust_graph)
        hkse = None
        if text and TEXT_FILES[0] in files:
            files.check(TEXT_FILES[0])
            hkse = read_hkse(files.folder / TEXT, mmap=mmap)
        records = {
            view: record.strip_paths() if published else record.locate(version.folder)
            for view, record in config.model.encoders.items()
        }
        names = config.model.names
        loaded = LoadedModel(fitted, store, records, hkse, config.model.keep_features, names)
    return loaded, Base.start(version, loaded.store, loaded.fitted, loaded.hkse, config.journal)


def write_stored_model(
    folder: Path, fitted: Fitted, encoders: Encoders, store: Store, keep_features: bool
) -> None:
    """Write the files of a model that a database keeps."""
    write_config(folder, STORED_KIND, _write_model(folder, fitted, encoders, store, keep_features))


def load_from_store(store: Store, *, text: bool = True, opened: Encoders | None = None) -> LoadedModel:
    """Read the model that a database keeps; without ``text``, all but its text encoder.

    The text encoder is not read either if it is open in ``opened``.
    """
    while True:
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            version = store.read_model(folder, (CONFIG, TENSORS))
            try:
                config, files = read_config(folder, STORED_KIND, ModelConfig)
                fitted = _read_model(config, files, partial(_fetch, store, version))
            except InputError as error:
                reason = str(error).replace(f"{folder}{os.sep}", "").rstrip(".")
                raise InputError(
                    f"the model in {store.address} is damaged ({reason}); fit again, or restore the database."
                ) from None
            hkse = None
            if text and (opened is None or opened.match_open("text", config.encoders) is None):
                if store.read_model(folder, TEXT_FILES) != version:
                    continue  # another process has replaced the model meanwhile
                hkse = read_hkse(folder / TEXT) if (folder / TEXT_FILES[0]).exists() else None
        records, names = dict(config.encoders), config.names
        return LoadedModel(fitted, store, records, hkse, config.keep_features, names, version)


def _write_model(
    folder: Path,
    fitted: Fitted,
    encoders: Encoders,
    store: Store,
    keep_features: bool,
    place: Path | None = None,
    previous: Version | None = None,
) -> ModelConfig:
    """Write the files of a model, or link those of the ``previous`` version, which has the same model.

    ``place`` is the model folder; None: they are for a database.
    """
    configs, arrays = dict[Task, ProjectorConfig](), dict[str, Any]()
    for task, projector in fitted.projectors.items():
        configs[task], tensors = projector.pack()
        arrays |= {f"{task}.{name}": array for name, array in tensors.items()}
    if previous is not None:
        for name in (TENSORS, *ESTIMATOR, MOMENTS, *TEXT_FILES):
            link_file(name, previous.path, folder)
    if not (folder / ESTIMATOR[1]).exists():
        from diptych.retrieval._refitting import write_estimator

        tensors = write_estimator(fitted.model, arrays, folder / ESTIMATOR[0])
        write_tensors(folder / ESTIMATOR[1], tensors)
    if not (folder / TENSORS).exists():
        for view in VIEWS:
            arrays[f"outliers.{view}.mean"] = fitted.outliers[view].mean
            arrays[f"outliers.{view}.variance"] = fitted.outliers[view].variance
        write_tensors(folder / TENSORS, arrays)
    if fitted.learned.moments is not None and not (folder / MOMENTS).exists():
        fitted.learned.moments().save(folder / MOMENTS)
    if encoders.hkse is not None and not (folder / TEXT).exists():
        (folder / TEXT).mkdir()
        write_hkse(encoders.hkse, folder / TEXT)
    dtype: Literal["float32", "float16"] = "float16" if store.dtype == "float16" else "float32"
    return ModelConfig(
        configs,
        fitted.description,
        {
            view: OutlierConfig(detector.normalize, detector.limit if np.isfinite(detector.limit) else None)
            for view, detector in fitted.outliers.items()
        },
        {view: _record(encoders, view, place) for view in VIEWS},
        IndexConfig(store.kind, dtype),
        bool(keep_features),
        fitted.facts,  # type: ignore[arg-type]
        (encoders.views.image, encoders.views.text),
        fitted.calibration,
    )


def _record(encoders: Encoders, view: View, place: Path | None) -> EncoderRecord:
    described = encoders.describe(view)
    if place is not None:
        return described.relative_to(place)
    # Several machines may use a database; the path on the one that filled it stays.
    record = encoders.records.get(view, described)
    return record if record.fingerprint == described.fingerprint else described


def _read_model(
    config: ModelConfig,
    files: ModelFiles,
    fetch: Callable[[str], bytes] | None = None,
    *,
    mmap: bool = False,
) -> Fitted:
    """Read a model; ``fetch`` reads the files that only a refit needs from a database, when it does."""
    arrays, source = files.read_tensors(mmap=mmap), files.folder / TENSORS
    projectors = {
        task: name_views(
            Projector.unpack(task, config.projectors[task], _take_prefix(arrays, task), source), config.names
        )
        for task in TASKS
    }
    outliers = dict[View, OutlierDetector]()
    for view in VIEWS:
        width = (projectors["search"].width(SIDES[view]),)
        mean, variance = (
            take_array(arrays, f"outliers.{view}.{part}", width, source) for part in ("mean", "variance")
        )
        stored = config.outliers[view]
        variance = np.maximum(variance, np.finfo(np.float32).tiny)
        limit = float("inf") if stored.limit is None else stored.limit
        outliers[view] = OutlierDetector(check_normalization(stored.normalize), mean, variance, limit)

    read = {
        name: partial(fetch, name) if fetch else files.defer(name)
        for name in (*ESTIMATOR, MOMENTS)
        if name in files
    }

    @cache
    def load_model() -> AWCCA | Fusion:
        from diptych.retrieval._refitting import parse_estimator

        missing = next((name for name in ESTIMATOR if name not in read), None)
        if missing is not None:
            raise InputError(f"{files.folder / CONFIG} does not list {missing}; save the model again.")
        settings, tensors = (read[name]() for name in ESTIMATOR)
        return parse_estimator(settings, tensors, arrays, files.folder / ESTIMATOR[0])

    def load_moments() -> Moments:
        return Moments.parse(read[MOMENTS](), files.folder / MOMENTS)

    # Lists in place of tuples, as everywhere in plain data.
    facts = msgspec.json.decode(msgspec.json.encode(config.facts))
    learned = Learned(load_model, load_moments if MOMENTS in read else None)
    return Fitted(projectors, outliers, config.description, learned, facts, config.calibration)


def _take_prefix(arrays: Tensors, task: Task) -> Tensors:
    """Return the arrays of a task's projector under their own names."""
    prefix = f"{task}."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _fetch(store: Store, version: str, name: str) -> bytes:
    with tempfile.TemporaryDirectory() as scratch:
        if store.read_model(Path(scratch), (name,)) != version:
            raise ModelChanged
        return (Path(scratch) / name).read_bytes()


def _list_items(store: MemoryStore) -> list[Item]:
    """Return all items in the order of the files: images first, then texts."""
    keys = [key for view in VIEWS for key in store.table.keys(view).tolist()]
    return [item for key in keys if (item := store.table.get(key)) is not None]


def _write_items(
    folder: Path,
    store: MemoryStore,
    items: Sequence[Item],
    places: Places,
    kept: Mapping[View, VectorIndex],
    graphs: bool = True,
) -> ItemsConfig:
    """Write items, vectors, features and graphs: images first, then texts."""
    tensors: dict[str, Any] = {}
    for task in TASKS:
        tensors[f"{task}.vectors"] = _matrix(store.indexes[task])
    write_tensors(folder / INDEX, tensors)
    if kept:
        write_tensors(folder / FEATURES, {view: _matrix(kept[view]) for view in VIEWS})
    write_items(items, folder / ITEMS, places)
    for task in TASKS:
        graph = store.indexes[task].graph
        if graphs and graph is not None and np.array_equal(graph.keys, store.indexes[task].keys):
            graph.write(folder / f"{task}.hnsw")
    keys = {view: store.table.keys(view) for view in VIEWS}
    learned = int(np.count_nonzero(keys["text"] < store.learned))
    images = places.describe()
    return ItemsConfig(
        len(keys["image"]), len(keys["text"]), learned, None if images is None else PlacesConfig(**images)
    )


def _read_items(
    config: ModelConfig,
    counts: ItemsConfig,
    files: ModelFiles,
    fitted: Fitted,
    places: Places,
    mmap: bool,
    trust_graph: bool,
) -> MemoryStore:
    projectors = fitted.projectors
    number: dict[View, int] = {"image": counts.image, "text": counts.text}
    path = files.check(ITEMS)
    items = read_items(path, counts.image + counts.text)
    if [item.view for item in items] != ["image"] * counts.image + ["text"] * counts.text:
        raise InputError(f"{path} does not hold the items that were saved; save the model again.")
    table = ItemTable(items, places)
    all_keys = np.arange(len(items), dtype=np.int64)
    keys: dict[View, Any] = {"image": all_keys[: counts.image], "text": all_keys[counts.image :]}
    arrays = _map(files, INDEX, mmap)
    indexes = {
        task: VectorIndex.of(
            _take(
                arrays, f"{task}.vectors", (number[view], projectors[task].dimension), files.folder / INDEX
            ),
            keys[view],
        )
        for task, view in SEARCHED.items()
    }
    kept: dict[View, VectorIndex] = {}
    if FEATURES in files:
        arrays = _map(files, FEATURES, mmap)
        for view in VIEWS:
            shape = (number[view], fitted.width(view))
            features = _take(arrays, view, shape, files.folder / FEATURES)
            kept[view] = VectorIndex.of(features, keys[view])
    for task, index in indexes.items() if config.index.kind == "hnsw" else ():
        if len(index) and trust_graph and f"{task}.hnsw" in files:
            recall = fitted.facts.get("graph_recall", {}).get(task, float("nan"))
            graph = files.check(f"{task}.hnsw")
            index.use_graph(Graph.read(graph, index.keys, index.dimension, float(recall)))
        elif len(index):
            index.build_graph()
    # Images have the smaller keys, so the texts that the model was fitted on come right after them.
    learned = counts.image + counts.learned
    kind, dtype = config.index.kind, config.index.dtype
    return MemoryStore(kind, dtype, table=table, indexes=indexes, kept=kept, learned=learned)


def _matrix(index: VectorIndex) -> MatrixBlocks:
    chunks = index.chunks()
    shape = (sum(map(len, chunks)), index.dimension)
    return MatrixBlocks((chunk.vectors for chunk in chunks), shape, index.dtype)


def _map(files: ModelFiles, name: str, mmap: bool) -> Tensors:
    mapped = map_tensors(files.check(name, whole=not mmap))
    # Each mapping is released once it is copied, so that not all are in memory twice.
    return mapped if mmap else {key: np.array(mapped.pop(key)) for key in list(mapped)}


def _take(arrays: Tensors, name: str, shape: tuple[int, ...], path: Path) -> np.ndarray[Any, Any]:
    array = arrays.get(name)
    if array is None or array.shape != shape or array.dtype not in (np.float32, np.float16):
        content = "missing" if array is None else f"{array.dtype}{list(array.shape)}"
        raise InputError(f"{path}: {name!r} is {content}; expected real numbers of shape {list(shape)}.")
    # A sum needs no second array of this size; a mapped array stays on disk, and a search will notice.
    if not isinstance(array, np.memmap) and not np.isfinite(array.sum(axis=-1, dtype=np.float64)).all():
        raise InputError(f"{path}: {name!r} has numbers that are not finite; save the model again.")
    return array


def _check_base(retriever: Retriever, current: Version | None, folder: str | os.PathLike[str]) -> None:
    if current is None or retriever.base is None or current.id != retriever.base.version.id:
        raise ChangedError(f"{folder} holds another version by now; load it again.")


def _identify(folder: Path) -> tuple[int, int]:
    status = os.stat(folder)
    return status.st_dev, status.st_ino


def merge_changes(
    mine: Searcher, base: Base, current: Version, refits: Iterable[tuple[Any, ...] | None]
) -> tuple[Searcher, Base, bool]:
    """Apply the changes made here to the version of a folder that others have saved since ``base``.

    Return the result, the base to count further changes from, and whether it keeps features. ``refits`` are
    the validation pairs of refits since the last save.
    """
    loaded, new_base = read_version(current, text=False)
    if not isinstance(mine.store, MemoryStore) or not isinstance(loaded.store, MemoryStore):
        raise ChangedError(f"{current.folder} holds another model now; load it again.")
    merged = loaded.searcher(mine.encoders)
    for view in VIEWS:
        same_width = mine.fitted.width(view) == merged.fitted.width(view)
        if not same_width or mine.encoders.describe(view).fingerprint != loaded.records[view].fingerprint:
            raise ChangedError(
                f"{current.folder} was fitted again meanwhile, on features of another "
                f"{mine.encoders.views.of(view)} encoder; load it again and repeat the changes."
            )
    removed, added = mine.store.changes_since(base.first_key)
    stored = {item.id for item in merged.store.items(ids=removed)}
    merged.store.remove([item_id for item_id in dict.fromkeys(removed) if item_id in stored])
    items = {view: [item for item in added if item.view == view] for view in VIEWS}
    items = {view: rows for view, rows in items.items() if rows}
    merged.add(items, {view: mine.features_of(view, rows) for view, rows in items.items()})
    if mine.fitted.facts == merged.fitted.facts:  # the model is the same: a calibration made here holds
        merged = merged.recalibrate(mine.fitted.calibration)
    if refits:
        from diptych.retrieval._refitting import refit

        for validation in refits:
            merged = refit(merged, validation)
    return merged, replace(new_base, hkse=mine.encoders.hkse), loaded.keep_features
