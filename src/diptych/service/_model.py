"""The loaded model of a server, its description for clients, and its replacement by new versions."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import re
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import numpy as np

from diptych._checks import TASKS, InputError, ViewNames, count, plural
from diptych._model_folder import current_version
from diptych._persistence import real_folder
from diptych.encoders._decoding import EXTENSIONS as IMAGE_SUFFIXES
from diptych.report._card import FIGURE_FILE, RELIABILITY_FILE, describe_correction
from diptych.retrieval import AuditedPair, Hit, Hits, Item, PairScores, Retriever
from diptych.retrieval._filters import elements, is_number
from diptych.retrieval._inputs import join_blocks, read_where
from diptych.retrieval._items import VIEWS, View
from diptych.retrieval.stores._base import Listing
from diptych.retrieval.stores._files import FOR_PEOPLE
from diptych.retrieval.stores._folder import FolderStore
from diptych.service._files import MEDIA_TYPES, Media, Upload, encode_first_view, suffix
from diptych.service._limits import UnreadableFile
from diptych.service._schemas import Matrix, PageQuery
from diptych.service._writes import Writer

log = logging.getLogger("diptych.service")

CAPTIONS_SHOWN = 5
EXAMPLES = 8
MENU_VALUES, FACET_VALUES, FACETS, BINS = 12, 1_000, 6, 20
MAX_CARD_BYTES = 2**20

# What clients are told of the model itself, and of an encoder.
_INFO = ("library", "filters", "components", "correlations", "index", "parts", "facts")
_ENCODER = ("name", "fingerprint", "dimension")
_KEYS = 50  # metadata keys that clients are told
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d(?!\d)")

# Taken from the first items only, so that loading stays fast and memory bounded.
_SUFFIX_ITEMS, _DESCRIBED_ITEMS = 20_000, 1_000_000


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """One version of a model in memory, with the name of its folder and its model card (Markdown).

    If ``send_files``, clients may get the files of its items of any type.
    """

    retriever: Retriever
    name: str
    version: str
    card: str = ""
    send_files: bool = False
    _description: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, retriever: Retriever, folder: Path, *, send_files: bool) -> LoadedModel:
        """Return the model of a folder that a retriever has loaded."""
        text = ""
        with suppress(InputError, OSError):  # another version has just replaced it, and will be loaded next
            card = current_version(folder).path / FOR_PEOPLE[0]
            if card.is_file() and not card.is_symlink() and card.stat().st_size <= MAX_CARD_BYTES:
                text = card.read_text("utf-8", errors="replace")
        return cls(retriever, Path(folder).absolute().name, retriever.version, text, send_files)

    def __post_init__(self) -> None:
        # For the operator: clients are not told which encoders are missing.
        for error in self.encoder_errors.values():
            log.warning("%s", error)

    @property
    def views(self) -> ViewNames:
        """What people call the items of the two views."""
        return self.retriever.views

    @property
    def inputs(self) -> str:
        """What the encoder of the first view takes: images, paths or texts."""
        return self.retriever.encoders.inputs

    @cached_property
    def encoder_errors(self) -> dict[View, str]:
        """Why items of a view cannot be encoded here, for the operator; a view is absent if they can be."""
        encoders, errors = self.retriever.encoders, dict[View, str]()
        for view in VIEWS:
            try:
                if (encoders.image if view == "image" else encoders.text) is None:
                    (encoders.encode_images if view == "image" else encoders.encode_texts)([])
            except InputError as error:
                errors[view] = str(error)
        return errors

    @cached_property
    def upload_suffixes(self) -> frozenset[str]:
        """Suffixes of the files that may be uploaded for the first view: those of the stored items."""
        items = islice(self.retriever.store.items("image"), _SUFFIX_ITEMS)
        suffixes = {suffix(item.path) for item in items if item.path is not None} - {""}
        return frozenset(suffixes or MEDIA_TYPES)

    @property
    def weighting(self) -> str:
        """The model's own weighting, for people."""
        model = self.retriever.fitted.description
        if any(model.epochs.values()):
            return "polished"
        if isinstance(model.weighting, str):
            return model.weighting
        powers = zip(model.weighting, (self.views.image, self.views.text), strict=True)
        return ", ".join(f"Σ^{power:g} on {plural(name)}" for power, name in powers)

    def encode_file(self, source: Upload | Path) -> np.ndarray[Any, Any]:
        """Return the features of an uploaded or stored file, from an encoder that reads files itself."""
        if isinstance(source, Path):
            return encode_first_view(self.retriever.encoders, [str(source)])
        if source.suffix not in self.upload_suffixes:
            accepted = ", ".join(sorted(self.upload_suffixes))
            raise UnreadableFile(
                f"files that end in {source.suffix[:10]!r} are not accepted; send one of {accepted}."
            )
        with tempfile.TemporaryDirectory(prefix="diptych-") as folder:
            path = Path(folder, f"upload{source.suffix}")
            path.write_bytes(source.content)
            return encode_first_view(self.retriever.encoders, [str(path)])

    def join_features(self, view: View, features: Matrix | dict[str, Matrix]) -> Matrix:
        """Check the features of a request against this model; return named blocks as one matrix."""
        rows: Matrix = join_blocks(features, self.retriever.fitted.layout, view, self.views)
        width = self.retriever.fitted.width(view)
        if rows.shape[1] != width:
            raise InputError(
                f"the features have {rows.shape[1]} numbers; this model expects {width} for "
                f"{plural(self.views.of(view))}."
            )
        return rows

    def why_not_encoded(self, view: View) -> str | None:
        """Return why queries of a view cannot be encoded here, for clients; None if they can be."""
        if view not in self.encoder_errors:
            return None
        return (
            f"This server has no {self.views.of(view)} encoder for this model; choose one of the stored "
            f"{plural(self.noun(view))} instead."
        )

    def noun(self, view: View) -> str:
        """Return what people call a stored item of a view."""
        return self.views.image if view == "image" else self.views.caption

    def media(self, item: Item) -> Media | None:
        """Return how to show the file of an item, by its suffix; None if it has none."""
        if item.path is None:
            return None
        ending = suffix(item.path)
        if ending in MEDIA_TYPES:
            return "audio" if MEDIA_TYPES[ending].startswith("audio/") else "video"
        return "image" if ending in IMAGE_SUFFIXES or self.views.image == "image" else "file"

    def describe(self) -> dict[str, Any]:
        """Return the content of ``GET /v1/model``, without limits."""
        if not self._description:
            self._description.update(_to_json(self._describe()))
        return self._description | {"items": {view: self.retriever.store.count(view) for view in VIEWS}}

    def describe_hit(self, hit: Hit) -> dict[str, Any]:
        """Return a hit for clients."""
        probability = None if hit.probability is None else _round(hit.probability)
        return {"score": _round(hit.score), "probability": probability, **self.describe_item(hit.item)}

    def describe_results(
        self, names: list[Any], results: list[Hits], start: float, weighting: str | None = None
    ) -> dict[str, Any]:
        """Return the response to a search: the hits of each query. It began at the time ``start``."""
        described = [
            {
                "query": name,
                "hits": [self.describe_hit(hit) for hit in hits],
                "ignored_words": list(hits.ignored_words),
                "more": hits.more,
            }
            for name, hits in zip(names, results, strict=True)
        ]
        seconds, used = round(time.perf_counter() - start, 6), weighting or self.weighting
        return {"version": self.version, "weighting": used, "seconds": seconds, "results": described}

    def describe_pairs(
        self, images: list[Any], texts: list[Any], scores: PairScores, start: float
    ) -> dict[str, Any]:
        """Return the response with the scores of pairs, each text with its image or all with one."""
        pairs = [
            {"image": image, "text": text, **pair}
            for image, text, pair in zip(cycle(images), texts, scores.to_json(), strict=False)
        ]
        seconds = round(time.perf_counter() - start, 6)
        return {"version": self.version, "seconds": seconds, "pairs": pairs, "absent": scores.absent}

    def describe_items(self, listing: Listing, where: str | None) -> dict[str, Any]:
        """Return the response to a listing: a page of items, and how many there are on all pages."""
        items, total = self.retriever.searcher.list_items(listing, read_where(where))
        described = [self.describe_item(item) for item in items]
        more = listing.offset + len(items) < total
        return {"version": self.version, "total": total, "more": more, "items": described}

    def audit(self) -> tuple[list[AuditedPair], float]:
        """Return the stored pairs, those that look most wrong first, and the share of wrong ones."""
        audit = self.retriever.audit()
        return list(audit), audit.share

    def describe_audit(
        self, pairs: list[AuditedPair], share: float, query: PageQuery, *, outdated: bool
    ) -> dict[str, Any]:
        """Return a page of audited pairs whose captions pass the filter and, if ``outdated``, still exist."""
        if outdated or query.where is not None:
            captions, _ = self.retriever.searcher.list_items(Listing("text"), read_where(query.where))
            stored = {caption.id for caption in captions}
            pairs = [pair for pair in pairs if pair.text_id in stored]
        shown = pairs[query.offset : query.offset + query.limit]
        ids = {item_id for pair in shown for item_id in (pair.image, pair.text_id)}
        items = {item.id: item for item in self.retriever.store.items(ids=list(ids))}
        described = [
            {
                "image": self.describe_item(items[pair.image]),
                "caption": self.describe_item(items[pair.text_id]),
                "score": _round(pair.score),
                "wrong": _round(pair.wrong),
                "flagged": pair.flagged,
            }
            for pair in shown
            if pair.image in items and pair.text_id in items  # they may have been removed meanwhile
        ]
        return {
            "version": self.version,
            "total": len(pairs),
            "more": query.offset + len(shown) < len(pairs),
            "flagged": sum(pair.flagged for pair in pairs),
            "share": _round(share),
            "outdated": outdated,
            "pairs": described,
        }

    def item_state(self) -> tuple[Any, ...]:
        """Return what changes with the stored items, but for their metadata."""
        store = self.retriever.store
        return store.state(), store.count()

    def describe_item(self, item: Item) -> dict[str, Any]:
        """Return an item for clients, without the path of its file."""
        content: dict[str, Any] = {"id": item.id, "view": item.view}
        if item.view == "image":
            captions = islice(self.retriever.store.items(images=[item.id]), CAPTIONS_SHOWN)
            content["captions"] = [{"id": caption.id, "text": caption.text} for caption in captions]
            media, url = self.media(item), _item_url(item.id)
            content |= {"text": item.text, "has_file": item.path is not None, "media": media}
            if media == "image":
                content |= {"image_url": f"{url}/image", "thumbnail": f"{url}/thumbnail"}
            if item.path is not None and (media != "image" or self.send_files):
                content["file_name"] = os.path.basename(item.path)
                content["file_url"] = f"{url}/file" if media != "file" or self.send_files else None
        else:
            content |= {"text": item.text, "image": item.image}
            image = self.retriever.item(item.image) if item.image is not None else None
            if image is not None and self.media(image) == "image":
                content["thumbnail"] = f"{_item_url(image.id)}/thumbnail"
        return content | {"metadata": dict(item.metadata)}

    def _feature_widths(self, view: View) -> int | dict[str, int]:
        layout = self.retriever.fitted.layout(view)
        return layout if len(layout) > 1 else self.retriever.fitted.width(view)

    def _describe(self) -> dict[str, Any]:
        model, info = self.retriever.fitted.description, self.retriever.info()
        projectors = self.retriever.searcher.projectors
        items = list(islice(self.retriever.store.items(), _DESCRIBED_ITEMS))
        return {
            **{name: info.get(name, {}) for name in _INFO},
            "name": self.name,
            "version": self.version,
            # Clients must not learn where an encoder is stored on this machine.
            "encoders": {
                view: {name: encoder[name] for name in _ENCODER if name in encoder}
                for view, encoder in info["encoders"].items()
            },
            "weighting": self.weighting,
            "weightings": list(dict.fromkeys(name for task in TASKS for name in projectors[task].masks())),
            "corrections": {
                task: describe_correction(correction)
                for task, correction in info.get("corrections", {}).items()
            },
            "path": _describe_path(model.path),
            "spectrum": msgspec.to_builtins(model.spectrum),
            "views": self.views._asdict(),
            "nouns": {
                name: [count(1, noun).partition(" ")[2], plural(noun)]
                for name, noun in (*self.views._asdict().items(), ("caption", self.views.caption))
            },
            "inputs": self.inputs,
            "uploads": sorted(self.upload_suffixes) if self.inputs == "paths" else [],
            "examples": {
                view: [self.describe_item(item) for item in chosen]
                for view, chosen in _choose_examples(items).items()
            },
            **_collect_filters(items),
            "calibration": info.get("calibration", {"absent": "this model has no calibration."}),
            "features": {view: self._feature_widths(view) for view in VIEWS},
            "can": {"text": self.why_not_encoded("text"), "image": self.why_not_encoded("image")},
            "card": self.card.replace(f"]({FIGURE_FILE})", "]()").replace(f"]({RELIABILITY_FILE})", "]()"),
        }


class ModelHolder:
    """Holds the loaded model, ``current``, and replaces it when its folder or database has another.

    A request reads ``current`` once and uses that to the end. Without ``load`` the model is never replaced,
    without ``writer`` its items never change.
    """

    def __init__(
        self,
        model: LoadedModel,
        *,
        load: Callable[[], LoadedModel] | None = None,
        folder: Path | None = None,
        writer: Writer | None = None,
    ) -> None:
        self.current, self.writer = model, writer
        self._load, self._folder, self._failure = load, folder, ""
        self.reloads = {"loaded": 0, "failed": 0}

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        writable: bool = False,
        image_encoder: Any = None,
        text_encoder: Any = None,
        send_files: bool = False,
    ) -> ModelHolder:
        """Load a model folder; if ``writable``, items may be changed."""
        if writable:  # changes go to this folder, even if a link to it is changed later
            folder = real_folder(folder)

        def load() -> LoadedModel:
            retriever = Retriever.load(folder, image_encoder, text_encoder)
            return LoadedModel.of(retriever, folder, send_files=send_files)

        model = load()
        writer = Writer(folder, model.retriever) if writable else None
        return cls(model, load=load, folder=folder, writer=writer)

    async def watch(self, seconds: float = 1.0) -> None:
        """Look for a new model every few seconds, forever."""
        while True:
            await asyncio.sleep(seconds)
            await self.refresh()

    async def refresh(self) -> None:
        """Load the model that is current now, if it is another."""
        failure = ""
        try:
            if (model := await asyncio.to_thread(self._find_new)) is not None:
                self.current = model
                self.reloads["loaded"] += 1
                log.info("loaded version %s", model.version)
        except (InputError, OSError) as error:
            failure = str(error)
            if failure != self._failure:
                self.reloads["failed"] += 1
                log.error("the new model cannot be loaded: %s", error)
        self._failure = failure

    def _find_new(self) -> LoadedModel | None:
        """Return the model that is current now; None if it is the loaded one."""
        if self._load is None or self._folder is None:
            return None
        model, store = self.current, self.current.retriever.store
        if isinstance(store, FolderStore) and not store.is_in(real_folder(self._folder)):
            # A writable server stays with the folder that it was started on.
            if self.writer is not None or not self._folder.exists():
                return None
            return self._load()
        model.retriever.searcher  # noqa: B018, it loads another model
        if model.retriever.version == model.version:
            return None
        return LoadedModel.of(model.retriever, self._folder, send_files=model.send_files)


def _to_json(value: Any) -> Any:
    """Return ``value`` with types that JSON has; numbers it lacks become null."""
    if isinstance(value, dict):
        return {str(key): _to_json(content) for key, content in value.items()}
    if isinstance(value, list | tuple):
        return list(map(_to_json, value))
    if isinstance(value, np.generic):
        return _to_json(value.item())
    if isinstance(value, float):
        return _round(value)
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def _round(value: float) -> float | None:
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _item_url(item_id: str) -> str:
    return f"/v1/items/{quote(item_id, safe='', errors='surrogatepass')}"


def _describe_path(path: Any) -> dict[str, Any] | None:
    """Return the regularisation path: the scores and the selected point of each task."""
    if path is None:
        return None
    return {
        "kind": path.grid.kind,
        "metric": path.metric,
        "x": path.grid.x.tolist(),
        "y": path.grid.y.tolist(),
        # Points that were only bounded have no exact score.
        "scores": {
            task: np.where(path.exact[task], path.scores[task][path.metric], np.nan).tolist()
            for task in TASKS
        },
        "bounds": {task: int((~path.exact[task]).sum()) for task in TASKS},
        "choice": {task: list(path.choice[task]) for task in TASKS},
    }


def _choose_examples(items: list[Item]) -> dict[View, list[Item]]:
    """Return a few evenly spaced items of each view, held out from training if there are any."""
    examples: dict[View, list[Item]] = {}
    for view in VIEWS:
        of_view = [item for item in items if item.view == view]
        held_out = [item for item in of_view if item.metadata.get("split") in ("test", "val")] or of_view
        short = [item for item in held_out if item.text and len(item.text) <= 90] or held_out
        step = max(1, len(short) // EXAMPLES)
        # The offset avoids that only first captions are chosen.
        examples[view] = short[step // 3 :: step][:EXAMPLES]
    return examples


def _collect_filters(items: list[Item]) -> dict[str, Any]:
    """Return metadata keys: all, those of numbers or ISO dates (ranges), others of few values (facets)."""
    values_of: dict[str, list[Any]] = {}
    for item in items:
        for key, value in item.metadata.items():
            values_of.setdefault(key, []).append(value)
    facets: dict[str, list[Any]] = {}
    ranges: dict[str, list[Any]] = {}
    for key, values in sorted(values_of.items()):
        parts = [part for value in values for part in elements(value) if part is not None]
        if all(map(is_number, parts)) or all(isinstance(p, str) and _ISO_DATE.match(p) for p in parts):
            least, greatest = min(parts, default=None), max(parts, default=None)
            if least != greatest:
                ranges[key] = [least, greatest]
        if all(isinstance(value, str | bool | int) for value in values):
            different = set(values)
            # A person chooses one of many years or days as a range.
            if 1 < len(different) <= (MENU_VALUES if key in ranges else FACET_VALUES):
                facets[key] = sorted(different, key=str)
    # Menus come first: they are used more often than long lists.
    chosen = sorted(facets, key=lambda key: (len(facets[key]) > MENU_VALUES, key))[:FACETS]
    shown = dict(list(ranges.items())[:FACETS])
    return {
        "facets": {key: facets[key] for key in chosen},
        "ranges": shown,
        "histograms": {key: _count_bins(values_of[key]) for key in shown},
        "keys": sorted(values_of)[:_KEYS],
    }


def _count_bins(values: list[Any]) -> list[int]:
    """Count numbers or ISO dates in bins of equal width, 20 at most and from the least to the greatest."""
    parts = [part for value in values for part in elements(value) if part is not None]
    numbers = [part if is_number(part) else _count_days(part) for part in parts]
    least, greatest = min(numbers), max(numbers)
    if all(isinstance(number, int) for number in numbers):  # each bin has as many whole numbers, or days
        width = -(-(greatest - least + 1) // BINS)
        bins = [(number - least) // width for number in numbers]
    else:  # halves, as the range of two doubles may be no double
        width = (greatest / 2 - least / 2) / BINS or 1.0
        bins = [min(int((number / 2 - least / 2) / width), BINS - 1) for number in numbers]
    counts: list[int] = np.bincount(bins).tolist()
    return counts


def _count_days(text: str) -> int:
    """Return the number of the day of an ISO date; of one that there is not, the first of its month."""
    try:
        return date.fromisoformat(text[:10]).toordinal()
    except ValueError:
        return date(max(1, int(text[:4])), min(12, max(1, int(text[5:7]))), 1).toordinal()
