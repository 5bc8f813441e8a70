"""The model that is served now, and the next one, loaded aside and put in its place in one step.

One version of a model while it is served: what it can do, what it says of itself, how its items read.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from diptych._checks import TASKS, InputError
from diptych._persistence import JOURNAL, ChangedError, find_current, real_folder
from diptych.cca import AWCCA
from diptych.cca._weighting import NAMES
from diptych.fusion import Fusion
from diptych.report._card import FIGURE_FILE
from diptych.retrieval import Hit, Item, Pack, Retriever
from diptych.retrieval._embedding import fusion_layout
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval.stores._base import UnavailableError
from diptych.service._schemas import Matrix
from diptych.service._writes import Writer, read_entries

log = logging.getLogger("diptych.service")


class Shelf:
    """Holds the version that is served. Requests take it once and finish on it, whatever comes after.

    Parameters
    ----------
    served
        The first version.
    load
        Reads the folder; None: nothing is ever reloaded.
    folder
        Where versions appear.
    writer
        What was added since, to be added to a new version as well; None: nothing is written.
    """

    def __init__(
        self,
        served: Served,
        *,
        folder: Path | None = None,
        load: Callable[[], Served] | None = None,
        writer: Writer | None = None,
    ) -> None:
        self.current, self.writer = served, writer
        self._folder, self._load = folder, load
        self._shared = served.retriever.version
        self._refused = ""
        self.writing = asyncio.Lock()
        self.reloads = {"loaded": 0, "failed": 0}

    @classmethod
    def open(cls, folder: Path, *, writable: bool = False, **encoders: Any) -> Shelf:
        """Load a folder, and what its journal holds; later versions are loaded as they appear."""
        if writable:  # what is written goes to this folder, whatever a link to it names later
            folder = real_folder(folder)

        def load() -> Served:
            return Served.load(folder, **encoders)

        served = load()
        writer = Writer(folder) if writable else None
        if writer is not None and (replayed := writer.replay(served.retriever)):
            log.info("replayed %d entries of the journal", replayed)
        if writer is None and (left := _unsaved(folder, served)):
            log.warning("%d changes in the journal of %s are not served without --writable", left, folder)
        return cls(served, folder=folder, load=load, writer=writer)

    async def watch(self, seconds: float = 1.0) -> None:
        """Look for a new version again and again."""
        while True:
            await asyncio.sleep(seconds)
            await self.refresh()

    async def refresh(self) -> bool:
        """Load the version on disk if it is another one than before; returns whether it is served now."""
        if self._load is None or self._new_version() is None:
            return False
        async with self.writing:
            if (found := self._new_version()) is None:  # this server has saved it itself
                return False
            try:
                served = await asyncio.to_thread(self._loaded)
            except (InputError, OSError) as error:
                if isinstance(error, InputError):  # anything else may pass
                    self._refused = found
                self.reloads["failed"] += 1
                log.error("the new version is not served, the old one is: %s", error)
                return False
            self._shared = served.retriever.version
            self.current = served
        self.reloads["loaded"] += 1
        log.info("serving version %s", served.version)
        return True

    def fold(self) -> None:
        """Save what was added; where another version lies in the folder by now, it stays in the journal."""
        if self.writer is None:
            return
        try:
            self.writer.fold(self.current.retriever)
        except UnavailableError as error:
            log.warning("pictures that no item shows any more are left: %s", error)
        except (ChangedError, FileNotFoundError):
            log.warning("%s holds another version by now; what was added stays in the journal", self._folder)
        except (InputError, OSError) as error:
            log.error("what was added could not be saved and stays in the journal: %s", error)

    def _loaded(self) -> Served:
        assert self._load is not None
        served = self._load()
        if self.writer is not None:
            self.writer.replay(served.retriever)
        return served

    def _new_version(self) -> str | None:
        """What is in the folder, or in the database it points to, if that is neither served nor refused."""
        if self._folder is None:
            return None
        try:
            current = find_current(self._folder)
        except (InputError, OSError) as error:
            found = f"unreadable: {error}"
        else:
            if current is None:
                return None
            base, shared = self.current.retriever.base, self.current.retriever.version
            if base is not None and current.id == base.version.id and shared == self._shared:
                return None
            found = f"{current.id} {shared}"
        return found if found != self._refused else None


def _unsaved(folder: Path, served: Served) -> int:
    """How many entries of a folder's journal are not part of the version that is served."""
    entries, _ = read_entries(real_folder(folder) / JOURNAL)
    base = served.retriever.base
    return sum(base is None or entry["n"] > base.journal for entry in entries)


log = logging.getLogger("diptych.service")

UNABLE: dict[View, str] = {
    "image": "This server has no image encoder for this model; choose a picture of the index instead.",
    "text": "This server has no text encoder for this model; choose a caption of the index instead.",
}

CAPTIONS_SHOWN = 5
EXAMPLES = 8
FACET_VALUES, FACETS = 12, 6
MAX_CARD_BYTES = 2**20
MAX_SPECTRUM = 512

# Items that facets and examples are taken from, so that a reload stays quick and memory bounded.
_LOOKED_AT, _LISTED = 20_000, 1_000_000


@dataclass(frozen=True, eq=False)
class Served:
    """A loaded model.

    Attributes
    ----------
    retriever
        It.
    name
        Of its folder.
    folder_version
        Which version of its folder it is.
    card
        Its model card, as Markdown.
    """

    retriever: Retriever
    name: str
    folder_version: str
    card: str = ""
    _told: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, folder: Path, image_encoder: Any = None, text_encoder: Any = None) -> Served:
        """Read what ``Retriever.save`` wrote."""
        retriever = Retriever.load(folder, image_encoder, text_encoder)
        assert retriever.base is not None
        version, text = retriever.base.version, ""
        card = version.path / "README.md"
        with suppress(OSError):  # another version has taken its place: it will be loaded next
            if card.is_file() and not card.is_symlink() and card.stat().st_size <= MAX_CARD_BYTES:
                text = card.read_text("utf-8", errors="replace")
        served = cls(retriever, Path(folder).absolute().name, version.id, text)
        for view in VIEWS:
            if (reason := served._unable(view)) is not None:
                log.warning("%s", reason)
        return served

    @property
    def version(self) -> str:
        """Tells it from other versions."""
        return "-".join(filter(None, (self.folder_version, self.retriever.version)))

    def item(self, item_id: str) -> Item | None:
        """The item of this id, if there is one."""
        return self.retriever.item(item_id)

    def widths(self, view: View) -> int | dict[str, int]:
        """How many numbers the features of a view have; where they are made of named blocks, of each."""
        model = self.retriever.fitted.model
        blocks = fusion_layout(model, view) if isinstance(model, Fusion) else {}
        return blocks if len(blocks) > 1 else self.retriever.searcher.embedding.features(view)

    def rows(self, view: View, features: Matrix | dict[str, Matrix]) -> Matrix:
        """Features that a request carries as rows that this model takes."""
        widths = self.widths(view)
        if isinstance(features, np.ndarray):
            width = widths if isinstance(widths, int) else sum(widths.values())
            if features.shape[1] != width:
                raise InputError(
                    f"the features have {features.shape[1]} numbers; this model's {view}s have {width}."
                )
            return features
        if isinstance(widths, int):
            raise InputError(f"the features of this model's {view}s are no named blocks; give one list.")
        given = {name: rows.shape[1] for name, rows in features.items()}
        if given != widths:
            raise InputError(
                f"the features have the blocks {_listed(given)}; those of this model's {view}s are "
                f"{_listed(widths)}."
            )
        return np.concatenate([features[name] for name in widths], axis=1)

    def missing(self, view: View) -> str | None:
        """Why queries of a view cannot be encoded here, for whoever asks; None: they can.

        What to do about it is the operator's business, and is logged when the model is loaded.
        """
        return None if self._unable(view) is None else UNABLE[view]

    def _unable(self, view: View) -> str | None:
        encoders = self.retriever.encoders
        try:
            if (encoders.image if view == "image" else encoders.text) is None:
                (encoders.encode_images if view == "image" else encoders.encode_texts)([])
        except InputError as error:
            return str(error)
        return None

    @property
    def weighting(self) -> str:
        """The model's own weighting, in words."""
        own = self.retriever.searcher.embedding.weighting
        if own is None:
            return "fusion"
        return own if isinstance(own, str) else f"Σ^{own[0]:g} on images, Σ^{own[1]:g} on texts"

    def describe(self) -> dict[str, Any]:
        """What ``GET /v1/model`` says, as far as it does not change."""
        if not self._told:
            self._told.update(plain(self._described()))
        counts = self.retriever.store
        return self._told | {"items": {"image": counts.count("image"), "text": counts.count("text")}}

    def _described(self) -> dict[str, Any]:
        model, info = self.retriever.fitted.model, self.retriever.info()
        found = list(islice(self.retriever.store.items(), _LISTED))
        return {
            "name": self.name,
            "version": self.version,
            "library": info["library"],
            # Where an encoder lies on this machine is nobody's business.
            "encoders": {
                view: {name: one[name] for name in ("name", "fingerprint", "dimension") if name in one}
                for view, one in info["encoders"].items()
            },
            "filters": info["filters"],
            "components": info["components"],
            "correlations": info.get("correlations", {}),
            "index": info["index"],
            "weighting": self.weighting,
            # A fusion has several, which it chose itself: there is nothing to compare.
            "weightings": list(NAMES) if isinstance(model, AWCCA) else [],
            "facts": info["facts"],
            "path": _path(model.path_) if isinstance(model, AWCCA) else None,
            "spectrum": {t: _thinned(np.asarray(model.models_[t].correlations)) for t in TASKS}
            if isinstance(model, AWCCA)
            else {},
            "examples": _examples(found),
            "facets": _facets(found[:_LOOKED_AT]),
            "features": {view: self.widths(view) for view in VIEWS},
            "can": {"text": self.missing("text"), "image": self.missing("image")},
            "card": self.card.replace(f"]({FIGURE_FILE})", "]()"),
        }

    def hit(self, hit: Hit) -> dict[str, Any]:
        """What was found, without where it lies on disk."""
        return {"score": _finite(hit.score), **self.shown(hit.item)}

    def pack(self, pack: Pack) -> dict[str, Any]:
        """All captions of one picture, found as a whole."""
        own = [self.hit(hit) for hit in pack.captions]
        return {"score": _finite(pack.score), "image": pack.image, "captions": own}

    def shown(self, item: Item) -> dict[str, Any]:
        """An item for readers."""
        found: dict[str, Any] = {"id": item.id, "view": item.view}
        if item.view == "image":
            found |= {"captions": self._captions(item), "picture": item.path is not None, **links(item.id)}
        else:
            found |= {"text": item.text, "image": item.image}
            owner = self.item(item.image) if item.image is not None else None
            if owner is not None and owner.path is not None:
                found["thumbnail"] = links(owner.id)["thumbnail"]
        return found | {"metadata": dict(item.metadata)}

    def _captions(self, item: Item) -> list[dict[str, Any]]:
        own = islice(self.retriever.store.items(image=item.id), CAPTIONS_SHOWN)
        return [{"id": one.id, "text": one.text} for one in own]


def _listed(widths: dict[str, int]) -> str:
    """Some blocks and their widths, in words."""
    return ", ".join(f"{name[:60]!r} ({width})" for name, width in list(widths.items())[:12])


def links(item_id: str) -> dict[str, str]:
    """Where a picture of the index is shown."""
    place = f"/v1/items/{quote(item_id, safe='', errors='surrogatepass')}"
    return {"image_url": f"{place}/image", "thumbnail": f"{place}/thumbnail"}


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: numbers that are none become null."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return _finite(value)
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _finite(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _path(path: Any) -> dict[str, Any] | None:
    """The regularisation path: a table of scores for each task, and the point that was chosen."""
    if path is None:
        return None
    return {
        "kind": path.grid.kind,
        "metric": path.metric,
        "x": path.grid.x.tolist(),
        "y": path.grid.y.tolist(),
        # Bounds are no scores: only what is exact is shown.
        "scores": {
            task: np.where(path.exact[task], path.scores[task][path.metric], np.nan).tolist()
            for task in TASKS
        },
        "bounds": {task: int((~path.exact[task]).sum()) for task in TASKS},
        "choice": {task: list(path.choice[task]) for task in TASKS},
    }


def _thinned(correlations: np.ndarray[Any, Any]) -> dict[str, Any]:
    """The canonical correlations, at most so many of them, each with its number."""
    n = len(correlations)
    at = np.unique(np.linspace(0, n - 1, min(n, MAX_SPECTRUM)).round().astype(int)) if n else np.empty(0, int)
    return {"number": (at + 1).tolist(), "correlation": correlations[at].astype(float).tolist()}


def _examples(found: list[Item]) -> dict[str, list[dict[str, Any]]]:
    """A few items of each view to begin with: unseen in training where there are such, spread evenly."""
    examples: dict[str, list[dict[str, Any]]] = {}
    for view in ("image", "text"):
        own = [item for item in found if item.view == view]
        unseen = [item for item in own if item.metadata.get("split") in ("test", "val")] or own
        texts = [item for item in unseen if item.text and len(item.text) <= 90] or unseen
        step = max(1, len(texts) // EXAMPLES)
        # An odd offset, so that not only first captions are shown.
        picked = texts[step // 3 :: step][:EXAMPLES]
        examples[view] = [{"id": item.id, "text": item.text, "image": item.image} for item in picked]
    return examples


def _facets(found: list[Item]) -> dict[str, list[Any]]:
    """Metadata with few values, to filter by: for each name, the values there are."""
    values: dict[str, set[Any]] = {}
    for item in found:
        for name, value in item.metadata.items():
            known = values.setdefault(name, set())
            if isinstance(value, str | bool | int) and len(known) <= FACET_VALUES:
                known.add(value)
            elif not isinstance(value, str | bool | int):
                known.update(range(FACET_VALUES + 1))  # not a plain value: never a facet
    few = {name: sorted(known, key=str) for name, known in values.items() if 1 < len(known) <= FACET_VALUES}
    return dict(sorted(few.items())[:FACETS])
