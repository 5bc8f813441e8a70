"""The files of a model, in a version of a model folder or in a database.

=========================  ==============================================================================
``config.json``            projectors, encoders, what is known of the model, checksums
``model.safetensors``      the arrays of the projectors, and the spread of the training features
``estimator.json`` and     the fitted model, which only a refit needs; arrays that a projector has are not
``estimator.safetensors``  stored again
``moments.safetensors``    the moments of the training pairs, which only a refit needs
``text-encoder/``          the HKSE, if that is the text encoder or one of several
``search.hnsw`` …          graphs, which are read only from a folder that is trusted
``README.md``              the model card with its figures
=========================  ==============================================================================

``diptych.retrieval.stores._folder`` describes the files of items beside them. A folder may instead hold the
address of a database, which then holds items and model.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, TypeAlias, TypedDict

import msgspec
import numpy as np

from diptych._checks import TASKS, InputError, Task, ViewNames, check_view_names
from diptych._database import Database
from diptych._model_folder import RECORD, current_version, link_file
from diptych._persistence import (
    CONFIG,
    TENSORS,
    ModelFiles,
    Schema,
    Tensors,
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
from diptych.retrieval._items import SIDES, VIEWS, View, strip_paths
from diptych.retrieval._placing import KindRecalls, Offset
from diptych.retrieval._searcher import Searcher
from diptych.retrieval.stores import open_store, read_address
from diptych.retrieval.stores._base import ModelChanged, Store
from diptych.retrieval.stores._files import (
    check_version,
    check_writable,
    has_items,
    write_folder,
)
from diptych.retrieval.stores._folder import FolderStore, Reading
from diptych.retrieval.stores._memory import ItemTable, MemoryStore

if TYPE_CHECKING:
    from diptych.cca import AWCCA
    from diptych.fusion import Fusion
    from diptych.retrieval._retriever import Retriever

KIND = "retriever"
ESTIMATOR = ("estimator.json", "estimator.safetensors")
MOMENTS = "moments.safetensors"
TEXT = INSIDE
TEXT_FILES = (f"{TEXT}/{CONFIG}", f"{TEXT}/{TENSORS}", f"{TEXT}/{WORDS}")
MODEL_FILES = (TENSORS, *ESTIMATOR, MOMENTS, *TEXT_FILES)
"""The files of a version that are published, beside its config; nothing that can be executed."""

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


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
    quality: str
    metrics: dict[str, dict[Task, dict[str, float]]]
    graph_recall: dict[Task, float]
    refitted: Refit
    audit: Audited
    library: KindRecalls


class OutlierConfig(Schema, frozen=True):
    """How features are normalised before they are compared with the training features, and the limit."""

    normalize: str
    limit: float | None


class ModelConfig(Schema, frozen=True):
    """A fitted model and its encoders; ``views`` are the names of the views for people.

    ``calibration`` has what was measured on held-out pairs, or says why nothing was; ``offsets`` are what is
    subtracted from the scores of items with partners.
    """

    projectors: dict[Task, ProjectorConfig]
    description: ModelDescription
    outliers: dict[View, OutlierConfig]
    encoders: dict[View, EncoderRecord]
    keep_features: bool
    facts: Facts
    views: tuple[str, str]
    calibration: TaskCalibrations | str
    offsets: dict[Task, Offset]

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


class AddressConfig(Schema, frozen=True):
    """What the config of a folder says whose items and model are in a database."""

    address: str


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


def save(retriever: Retriever, folder: str | os.PathLike[str]) -> None:
    """Write a retriever to a folder, in place of what it holds; a crash leaves the folder as it was.

    A retriever in memory is in that folder from then on. One that is in the folder already is there with all
    its changes; in another folder, a copy is made.
    """
    searcher, place = retriever.searcher, check_writable(folder)
    store, keep = searcher.store, retriever.keep_features
    if isinstance(store, FolderStore) and store.is_in(place):
        with store.model_files((CONFIG,)) as (path, _):
            stored = read_config(path, KIND, ModelConfig)[0].encoders
        # Where encoders are may have changed.
        if stored != {view: _record(searcher.encoders, view, store.folder) for view in VIEWS}:
            retriever._current.use(searcher.recalibrate(searcher.fitted.calibration, searcher.fitted.offsets))
        return
    if store.address:

        def write_address(path: Path) -> None:
            write_card(searcher, keep, path, place.name)
            write_config(path, KIND, AddressConfig(store.address))

        write_folder(place, None, write_address)
        return
    searcher, items = _snapshot(retriever)
    written = FolderStore.write(place, items, lambda path: write_model(path, searcher, keep, place=place))
    if isinstance(store, MemoryStore):
        version = written.state().version
        retriever._current.use(Searcher(searcher.fitted, written, searcher.encoders, version))


def save_published(
    retriever: Retriever, folder: Path, repo: str, *, keep_features: bool, front_matter: str
) -> None:
    """Write a retriever to a new folder as it is published in ``repo``, without anything of this machine.

    Paths, uploads and graphs are left out, and without ``keep_features`` what only a refit needs.
    """
    if retriever.searcher.store.address:
        raise InputError(
            "the items of this model are in a database and are not published; fit a model with index='flat'."
        )
    if keep_features and not retriever.store.keeps_features:
        raise InputError("this model does not have its features, so keep_features has no effect.")
    searcher, store = _snapshot(retriever)
    if not keep_features:
        fitted = replace(searcher.fitted, learned=Learned(searcher.fitted.learned.model))
        searcher = Searcher(fitted, searcher.store, searcher.encoders, searcher.version)
    table, pairs = ItemTable(), list(store.table)
    items = strip_paths(item for _, item in pairs)
    table.add(items, np.array([key for key, _ in pairs], np.int64))
    stripped = MemoryStore(
        store.kind,
        store.dtype,
        table=table,
        indexes=store.indexes,
        kept=store.kept if keep_features else {},
        learned=store.learned,
    )

    def write(path: Path) -> None:
        write_model(path, searcher, keep_features, repo=repo, front_matter=front_matter)

    FolderStore.write(folder, stripped, write, graphs=False).close()


def load(
    folder: str | os.PathLike[str],
    reading: Reading = Reading(),  # noqa: B008, it is frozen
    *,
    text: bool = True,
    index: str | None = None,
) -> LoadedModel:
    """Read what ``save`` wrote; without ``text``, all but the text encoder.

    ``index`` replaces the address of the database that a folder names. Of a published folder, which others
    have written, nothing is opened that it names outside of itself, and nothing is written to it.
    """
    version = current_version(folder)
    if os.path.lexists(version.folder / RECORD):
        kind = read_json(version.path / CONFIG).get("format")
        if kind == f"diptych-{KIND}":
            raise InputError(
                f"{version.folder} was saved by an earlier version of diptych, whose folders are no longer "
                "read; fit again."
            )
        if kind == "diptych-awcca":
            raise InputError(
                f"{version.folder} holds a model without items. Load it with AWCCA.load, or create a "
                "searchable model with diptych fit."
            )
        raise InputError(f"{version.folder} holds {kind!r}; expected a diptych {KIND}.")
    if has_items(version.folder):
        if index is not None:
            raise InputError(
                f"{version.folder} holds its items itself; index= is for folders that name a database."
            )
        store = FolderStore(version.folder, reading)
        loaded = load_from_store(store, text=text)
        return replace(loaded, store=store.resident, version="") if reading.published else loaded
    if reading.published:
        raise InputError(f"{version.folder} names a database, which is not opened for a published model.")
    check_version(version)
    config, _ = read_config(version.path, KIND, AddressConfig)
    address = index or read_address(config.address)
    return load_from_store(open_store(address, create=False), text=text)


def check_files(folder: str | os.PathLike[str]) -> None:
    """Compare every file of a model with its checksum, and read all of its database."""
    version = current_version(folder)
    check_version(version)
    for name in (files := ModelFiles.of(version.path)).entries:
        files.check(name)
    Database(version.folder).check_pages()


def load_from_store(store: Store, *, text: bool = True, opened: Encoders | None = None) -> LoadedModel:
    """Read the model that a store keeps; without ``text``, all but its text encoder.

    The text encoder is not read either if it is open in ``opened``.
    """
    while True:
        version = ""
        try:
            with store.model_files((CONFIG, TENSORS)) as (folder, version):
                config, fitted, records, mmap = _read_files(store, folder, version)
            hkse = None
            if text and (opened is None or opened.match_open("text", config.encoders) is None):
                with store.model_files(TEXT_FILES) as (folder, now):
                    if now != version:
                        continue
                    if (folder / TEXT_FILES[0]).exists():
                        hkse = read_hkse(folder / TEXT, mmap=mmap)
        except (InputError, OSError):
            if version and store.state().version != version:
                continue  # another process has replaced the model meanwhile
            raise
        return LoadedModel(fitted, store, records, hkse, config.keep_features, config.names, version)


def _read_files(
    store: Store, folder: Path, version: str
) -> tuple[ModelConfig, Fitted, dict[View, EncoderRecord], bool]:
    """Read the files of a model but for its text encoder; also return whether arrays stay on the disk."""
    if isinstance(store, FolderStore):
        config, files = read_config(folder, KIND, ModelConfig)
        fitted = _read_model(config, files, mmap=store.reading.mmap)
        records = {
            view: record.strip_paths() if store.reading.published else record.locate(store.folder)
            for view, record in config.encoders.items()
        }
        return config, fitted, records, store.reading.mmap
    try:
        config, files = read_config(folder, KIND, ModelConfig)
        fitted = _read_model(config, files, partial(_fetch, store, version))
    except InputError as error:
        reason = str(error).replace(f"{folder}{os.sep}", "").rstrip(".")
        raise InputError(
            f"the model in {store.address} is damaged ({reason}); fit again, or restore the database."
        ) from None
    return config, fitted, dict(config.encoders), False


def write_model(
    folder: Path,
    searcher: Searcher,
    keep_features: bool,
    *,
    place: Path | None = None,
    repo: str = "",
    front_matter: str = "",
) -> None:
    """Write the files of a model to an empty folder.

    ``place`` is the model folder. None: that of the store that the model is a new version in, if that is a
    folder, whose text encoder stays; or none, if it is a database. A model that is published in ``repo`` says
    nothing of this machine.
    """
    fitted, encoders, store = searcher.fitted, searcher.encoders, searcher.store
    if place is None and not repo and isinstance(store, FolderStore):
        place = store.folder
        with store.model_files(TEXT_FILES) as (previous, _):
            for name in TEXT_FILES:
                link_file(name, previous, folder)
    configs, arrays = dict[Task, ProjectorConfig](), dict[str, Any]()
    for task, projector in fitted.projectors.items():
        configs[task], tensors = projector.pack()
        arrays |= {f"{task}.{name}": array for name, array in tensors.items()}
    from diptych.retrieval._refitting import write_estimator

    write_tensors(folder / ESTIMATOR[1], write_estimator(fitted.model, arrays, folder / ESTIMATOR[0]))
    for view in VIEWS:
        arrays[f"outliers.{view}.mean"] = fitted.outliers[view].mean
        arrays[f"outliers.{view}.variance"] = fitted.outliers[view].variance
    write_tensors(folder / TENSORS, arrays)
    if fitted.learned.moments is not None:
        fitted.learned.moments().save(folder / MOMENTS)
    if encoders.hkse is not None and not (folder / TEXT).exists():
        (folder / TEXT).mkdir()
        write_hkse(encoders.hkse, folder / TEXT)
    records = {view: _record(encoders, view, place) for view in VIEWS}
    if repo:
        records = {view: record.strip_paths() for view, record in records.items()}
    if place is not None or repo:
        name = place.name if place is not None else repo.rpartition("/")[2]
        write_card(searcher, keep_features, folder, name, repo, front_matter)
    config = ModelConfig(
        configs,
        fitted.description,
        {
            view: OutlierConfig(detector.normalize, detector.limit if np.isfinite(detector.limit) else None)
            for view, detector in fitted.outliers.items()
        },
        records,
        bool(keep_features),
        fitted.facts,  # type: ignore[arg-type]
        (encoders.views.image, encoders.views.text),
        fitted.calibration,
        dict(fitted.offsets),
    )
    write_config(folder, KIND, config)


def write_card(searcher: Searcher, keep_features: bool, folder: Path, *names: str) -> None:
    """Write the model card, which needs what only a fit needs; see ``write_card`` of ``_description``."""
    from diptych.retrieval import _description

    _description.write_card(searcher, keep_features, folder, *names)


def _snapshot(retriever: Retriever) -> tuple[Searcher, MemoryStore]:
    """Return a retriever's model and its items, which nobody else changes while they are written."""
    while True:
        searcher = retriever.searcher
        if isinstance(searcher.store, MemoryStore):
            return searcher, searcher.store
        assert isinstance(searcher.store, FolderStore)
        copied = FolderStore(searcher.store.folder, replace(searcher.store.reading, mmap=True))
        items = copied.resident
        if copied.state().version == searcher.version:  # no other process has replaced the model meanwhile
            return searcher, items


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
    return Fitted(
        projectors, outliers, config.description, learned, facts, config.calibration, config.offsets
    )


def _take_prefix(arrays: Tensors, task: Task) -> Tensors:
    """Return the arrays of a task's projector under their own names."""
    prefix = f"{task}."
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _fetch(store: Store, version: str, name: str) -> bytes:
    with store.model_files((name,)) as (folder, now):
        if now != version:
            raise ModelChanged
        return (folder / name).read_bytes()
