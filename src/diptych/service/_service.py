"""What answers look like.

What the routes of one server share: the model on the shelf, threads, decoders and counters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, ParamSpec, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from diptych._checks import InputError, Task
from diptych.cca._weighting import Weighting
from diptych.image import UnreadableImage
from diptych.retrieval import Hit, Hits
from diptych.retrieval._items import View
from diptych.service._batching import Desk, Queries, encoded
from diptych.service._images import Pictures
from diptych.service._metrics import Meter
from diptych.service._model import Served, Shelf
from diptych.service._schemas import Limits, Problem, busy
from diptych.service._writes import unknown


class CaptionOf(BaseModel):
    """A caption of a picture."""

    id: str
    text: str | None = None


class Shown(BaseModel):
    """An item: a picture or a caption."""

    id: str
    view: Literal["image", "text"]
    text: str | None = Field(None, description="Of a caption.")
    image: str | None = Field(None, description="Of a caption: the picture it belongs to.")
    captions: list[CaptionOf] | None = Field(None, description="Of a picture: its first captions.")
    picture: bool | None = Field(None, description="Of a picture: whether it can be shown.")
    image_url: str | None = None
    thumbnail: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class HitOut(Shown):
    """An item that was found. The score orders the answers to one query; it is no probability."""

    score: float | None


class PackOut(BaseModel):
    """All captions of one picture, found as a whole."""

    score: float | None
    image: str
    captions: list[HitOut]


class Answers(BaseModel):
    """The answers to one query, best first."""

    query: str | None = Field(description="The sentence, the id, the name of the file; of features, null.")
    hits: list[HitOut] | None = None
    packs: list[PackOut] | None = None
    ignored_words: list[str] | None = Field(
        None, description="Words of the query that the model does not know and left out."
    )


class Found(BaseModel):
    """One list of answers for each query, in their order."""

    version: str = Field(description="Of the model that answered.")
    weighting: str
    seconds: float
    results: list[Answers]


class Added(BaseModel):
    """Ids of what was added. It is on the disk."""

    image: str | None
    captions: list[str]


class Removed(BaseModel):
    """How many items went: a picture takes its captions with it."""

    removed: int


class Health(BaseModel):
    """A server that answers."""

    status: Literal["ok"]
    version: str


class ModelOut(BaseModel):
    """A model, for readers and for the page."""

    name: str
    version: str
    library: str
    items: dict[str, int]
    encoders: dict[str, Any]
    filters: dict[str, list[str]]
    components: dict[str, int]
    correlations: dict[str, dict[str, list[float] | None]] = Field(
        description="The first of each task: of the regularised model, and of its variates on training and "
        "on validation pairs, null where they were not measured."
    )
    index: dict[str, str]
    weighting: str
    weightings: list[str] = Field(description="What may be asked for instead.")
    facts: dict[str, Any] = Field(description="Pairs of each split, recalls, seconds of fitting.")
    path: dict[str, Any] | None = Field(description="Scores over the grid of regularisation parameters.")
    spectrum: dict[str, Any] = Field(description="Canonical correlations of each task's regularised model.")
    examples: dict[str, list[dict[str, Any]]]
    facets: dict[str, list[Any]] = Field(description="Metadata to filter by, and its values.")
    features: dict[str, int | dict[str, int]] = Field(
        description="Numbers in the features of each view; where they are made of named blocks, of each."
    )
    can: dict[str, str | None] = Field(description="Why a view cannot be encoded here; null: it can.")
    card: str
    limits: dict[str, int]
    writable: bool


log = logging.getLogger("diptych.service")

T = TypeVar("T")
P = ParamSpec("P")

COUNT_SECONDS = 1.0
"""To count the items of a shared collection."""

WORDS: dict[View, str] = {"image": "picture", "text": "caption"}


@dataclass(eq=False)
class Service:
    """One server.

    Attributes
    ----------
    shelf
        The model, its next versions, and what is written.
    limits
        Bounds of requests.
    token
        What callers must know; None: nothing.
    threads
        BLAS and OpenMP threads of one search; None: all cores.
    watch_seconds
        How often a new version is looked for.
    """

    shelf: Shelf
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    threads: int | None = None
    watch_seconds: float = 1.0

    def __post_init__(self) -> None:
        """Set up what runs beside the requests."""
        self.desk = Desk(self.limits, self.threads)
        self.pictures = Pictures(self.limits)
        self.meter = Meter()
        self.desk.passes = self.meter.passes.observe
        self._eyes = asyncio.Semaphore(self.limits.decoders)
        self._looking = 0
        self._folding: asyncio.Task[None] | None = None
        self._items: asyncio.Future[int] | None = None
        for name, about, value in (
            ("diptych_items", "Items of the index; NaN: they cannot be counted now.", self._counted),
            ("diptych_questions_inside", "Questions that wait or are answered.", lambda: self.desk.inside),
            ("diptych_thumbnail_bytes", "Memory of kept thumbnails.", lambda: self.pictures.kept_bytes),
            ("diptych_reloads_loaded", "Versions put in service.", lambda: self.shelf.reloads["loaded"]),
            ("diptych_reloads_failed", "Versions refused.", lambda: self.shelf.reloads["failed"]),
        ):
            self.meter.gauge(name, about, value)

    @property
    def served(self) -> Served:
        """The version of now; a request takes it once."""
        return self.shelf.current

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Be at work; on leaving, save what was added."""
        self.pictures.warm()
        watch = asyncio.create_task(self.shelf.watch(self.watch_seconds))
        try:
            yield
        finally:
            watch.cancel()
            if self._folding is not None:
                await asyncio.wait([self._folding])
            try:
                await asyncio.to_thread(self.shelf.fold)
            finally:
                self.pictures.close()
                self.desk.close()
                if self.shelf.writer is not None:
                    self.shelf.writer.journal.close()

    async def look(self, ask: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call what asks the collection a small question: in a thread if the answer comes from elsewhere."""
        if self.served.retriever.store.shared:
            return await self.desk.run(ask, *args, **kwargs)
        return ask(*args, **kwargs)

    async def counters(self) -> bytes:
        """All counters, for Prometheus, which does not wait for a database that is away."""
        if self._items is None or self._items.done():
            self._items = asyncio.ensure_future(self.look(self.served.retriever.store.count))
        await asyncio.wait({self._items}, timeout=COUNT_SECONDS)
        return self.meter.text()

    def _counted(self) -> float:
        if self._items is None or not self._items.done() or self._items.exception() is not None:
            return float("nan")
        return float(self._items.result())

    async def found(
        self,
        served: Served,
        task: Task,
        queries: Queries,
        k: int,
        where: dict[str, Any] | None,
        weighting: Weighting | None,
    ) -> list[list[Hit]]:
        """The best items for each query."""
        if where is None:
            return await self.desk.ask(served, task, queries, k, weighting)

        def filtered() -> list[list[Hit]]:
            (rows, ignored), ask = encoded(served, queries), served.retriever
            found = ask.search if task == "search" else ask.annotate
            return list(map(Hits, found(rows, k, where=where, weighting=weighting), ignored))

        return await self.desk.run(filtered)

    async def features(
        self, served: Served, *, content: bytes = b"", path: str | None = None
    ) -> np.ndarray[Any, Any]:
        """Features of one picture, uploaded or of the index; only a few are in memory at any time."""
        if (missing := served.missing("image")) is not None:
            raise Problem(422, "no-encoder", missing)
        if self._looking >= self.limits.waiting:
            raise busy("many pictures are waiting to be seen")
        self._looking += 1
        try:
            async with self._eyes:
                picture = await self.pictures.pixels(content=content, path=path)
                return await self.desk.run(served.retriever.encoders.encode_images, [picture])
        finally:
            self._looking -= 1

    async def features_of(self, served: Served, view: View, ids: list[str]) -> np.ndarray[Any, Any]:
        """Features of items of the index: those that were kept, or made anew."""
        items = await self.look(lambda: [served.item(item_id) for item_id in ids])
        for item_id, item in zip(ids, items, strict=True):
            if item is None:
                raise unknown(item_id)
            if item.view != view:
                raise InputError(f"{item_id!r} is a {WORDS[item.view]}; give the id of a {WORDS[view]}.")
        if served.retriever.store.keeps_features:
            return await self.desk.run(_kept, served, view, ids)
        given = [item.path if view == "image" else item.text for item in items if item is not None]
        things = [thing for thing in given if thing is not None]
        if len(things) != len(items):
            raise Problem(422, "no-features", "the features of this item were not kept, nor is it itself.")
        if view == "text":
            return await self.desk.run(served.retriever.encoders.encode_texts, things)
        blocks = []
        for item_id, path in zip(ids, things, strict=True):
            try:
                blocks.append(await self.features(served, path=path))
            except UnreadableImage:
                raise no_picture(item_id) from None
        return np.concatenate(blocks)

    async def shown(self, item_id: str, side: int) -> Any:
        """A picture of the index for a browser."""
        served = self.served
        item = await self.look(served.item, item_id)
        if item is None or item.view != "image":
            raise unknown(item_id)
        if item.path is None:
            raise Problem(404, "no-picture", f"of {item_id[:200]!r} only the features are known.")
        try:
            return await self.pictures.shown(served.version, item.id, item.path, side)
        except UnreadableImage:
            raise no_picture(item_id) from None

    def fold_later(self) -> None:
        """Save what was added once there is much of it, while requests go on."""
        writer = self.shelf.writer
        if writer is None or not writer.is_due or (self._folding is not None and not self._folding.done()):
            return

        async def fold() -> None:
            async with self.shelf.writing:
                try:
                    await asyncio.to_thread(self.shelf.fold)
                except Exception:
                    log.exception("what was added could not be saved; it stays in the journal")

        self._folding = asyncio.create_task(fold())


def no_picture(item_id: str) -> Problem:
    """A file that cannot be opened; the reason names a place on this machine, which is nobody's business."""
    return Problem(404, "no-picture", f"the file of {item_id[:200]!r} is missing, or is no picture.")


def _kept(served: Served, view: View, ids: list[str]) -> np.ndarray[Any, Any]:
    rows = served.retriever.store.features(view, ids)
    if rows is None:  # one of them was removed meanwhile
        raise unknown(ids[0])
    return rows
