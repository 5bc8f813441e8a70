"""The state of one server, and what its routes do with it: search, encode, look up and change items."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from uuid import uuid4

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.responses import FileResponse

from diptych._checks import InputError, Task, with_article
from diptych.encoders import UnreadableImage
from diptych.retrieval import AuditedPair
from diptych.retrieval._inputs import Queries, QueryPart
from diptych.retrieval._items import QUERIED, VIEWS, Item, View
from diptych.service import _schemas as schemas
from diptych.service._batching import Batcher, run_in_background
from diptych.service._files import Images, Upload, WebpImage, encode_first_view, open_file
from diptych.service._limits import Limits, Problem, Slots, UnreadableFile, unknown_item
from diptych.service._model import LoadedModel, ModelHolder
from diptych.service._schemas import Matrix
from diptych.service._security import Access
from diptych.service._writes import Addition, Writer

T = TypeVar("T")
P = ParamSpec("P")

COUNT_SECONDS = 1.0
"""How long the metrics wait for the number of items in a database."""
AUDIT_SECONDS = 2.0
"""How long a request waits for an audit that has just begun."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        labels = ("route", "method", "status")
        self.requests = Counter("diptych_requests", "Answered requests.", labels, registry=registry)
        about = "Time to answer a request."
        self.seconds = Histogram(
            "diptych_request_seconds", about, ("route",), registry=registry, buckets=_SECONDS
        )
        self.open = Gauge("diptych_requests_open", "Requests being answered.", registry=registry)
        about = "Queries answered by one pass over the index."
        self.batches = Histogram("diptych_batch_queries", about, registry=registry, buckets=_SIZES)


@dataclass(eq=False)
class Service:
    """The state of one server, which its routes share; the parameters are those of ``create_app``."""

    holder: ModelHolder
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    threads: int | None = None
    watch_seconds: float = 1.0

    def __post_init__(self) -> None:
        self.access = Access(self.token)
        self.metrics = Metrics()
        self.batcher = Batcher(self.limits, self.threads, self.metrics.batches.observe)
        self.images = Images(self.limits)
        self._encoding = asyncio.Semaphore(self.limits.decoders)
        self._images_waiting = Slots(self.limits.waiting, "many files are waiting to be encoded")
        self._writing = asyncio.Lock()  # one change at a time, so that searches keep their threads
        self._item_count: asyncio.Future[int] | None = None
        self._audits: list[tuple[Any, asyncio.Future[tuple[list[AuditedPair], float]]]] = []
        """The last audit and the one before, and of which items they are."""
        for name, about, read in (
            ("diptych_items", "Items of the index; NaN: they cannot be counted now.", self._read_count),
            ("diptych_searches_open", "Searches that wait or run.", lambda: self.batcher.slots.used),
            ("diptych_thumbnail_bytes", "Memory of cached thumbnails.", lambda: self.images.cached_bytes),
            ("diptych_reloads_loaded", "Versions loaded.", lambda: self.holder.reloads["loaded"]),
            ("diptych_reloads_failed", "Versions refused.", lambda: self.holder.reloads["failed"]),
        ):
            Gauge(name, about, registry=self.metrics.registry).set_function(read)

    @property
    def model(self) -> LoadedModel:
        """The loaded model; a request reads it once."""
        return self.holder.current

    @property
    def writer(self) -> Writer:
        """What changes items; a problem if the server is read-only."""
        if self.holder.writer is None:
            raise Problem(
                403, "read-only", "this server is read-only; start it with --writable to change items."
            )
        return self.holder.writer

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run decoders and look for new models."""
        self.images.start()
        watch = asyncio.create_task(self.holder.watch(self.watch_seconds))
        try:
            yield
        finally:
            watch.cancel()
            self.images.close()
            self.batcher.close()

    async def look_up(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that looks up items: in a thread, unless they are in memory alone."""
        if self.model.retriever.store.shared:
            return await self.batcher.run(function, *args, **kwargs)
        return function(*args, **kwargs)

    async def render_metrics(self) -> bytes:
        """Return all metrics, without waiting for a database that does not answer."""
        if self._item_count is None or self._item_count.done():
            self._item_count = asyncio.ensure_future(self.look_up(self.model.retriever.store.count))
        await asyncio.wait({self._item_count}, timeout=COUNT_SECONDS)
        return generate_latest(self.metrics.registry)

    def _read_count(self) -> float:
        count = self._item_count
        if count is None or not count.done() or count.exception() is not None:
            return float("nan")
        return float(count.result())

    # Listing

    async def describe_item(self, item_id: str) -> dict[str, Any]:
        """Return an item for clients."""
        model = self.model
        return await self.look_up(model.describe_item, await self._find_item(model, item_id))

    async def list_items(self, query: schemas.ListQuery) -> dict[str, Any]:
        """Return a page of items for clients."""
        model = self.model
        query.check_limits(self.limits)
        return await self.batcher.run(model.describe_items, query.listing, query.where)

    async def list_audit(self, query: schemas.PageQuery) -> dict[str, Any]:
        """Return a page of the stored pairs, those that look most wrong first.

        They are audited in the background, once until items change; meanwhile the last audit is shown.
        """
        model = self.model
        query.check_limits(self.limits)
        captions = await self.look_up(model.retriever.store.count, "text")
        if captions > (most := self.limits.audit_captions):
            raise InputError(
                f"this server audits at most {most:,} captions, and this library has {captions:,}; call "
                "Retriever.audit() instead."
            )
        state = await self.look_up(model.item_state)
        if not self._audits or (self._audits[-1][0] != state and self._audits[-1][1].done()):
            audit = run_in_background(model.audit, self.threads)
            self._audits = [*self._audits[-1:], (state, audit)]
        audits = self._audits
        await asyncio.wait({audits[-1][1]}, timeout=AUDIT_SECONDS)
        finished = [entry for entry in audits if entry[1].done()]
        if not finished:
            reason = "the pairs are being audited for the first time; try again later."
            raise Problem(503, "busy", reason, {"Retry-After": "5"})
        audited, audit = finished[-1]
        if audit.exception() is not None:  # it may go well at the next request
            self._audits = []
        pairs, share = audit.result()
        outdated = audited != state
        return await self.batcher.run(model.describe_audit, pairs, share, query, outdated=outdated)

    # Searching

    async def search(self, task: Task, body: schemas.TaskQuery) -> dict[str, Any]:
        """Answer the queries of a request."""
        start, model, view = time.perf_counter(), self.model, QUERIED[task]
        queries = await self._read_queries(model, view, body)
        options = await self._read_options(model, view, body)
        hits = await self.batcher.search(model, task, queries, **options)
        return await self.look_up(model.describe_results, body.names, hits, start, body.weighting)

    async def find_similar(self, body: schemas.SimilarRequest) -> dict[str, Any]:
        """Answer a search for items that are similar to one of their view."""
        start, model = time.perf_counter(), self.model
        view = body.view or ("image" if body.files else (await self._find_item(model, body.names[0])).view)
        queries = await self._read_queries(model, view, body)
        options = await self._read_options(model, view, body)
        options[view] = Queries(np.asarray(queries), single=True)
        hits = await self.batcher.run(model.retriever.similar, **options)
        return await self.look_up(model.describe_results, body.names, [hits], start)

    async def score_pairs(self, body: schemas.ScoreRequest) -> dict[str, Any]:
        """Score the pairs of a request."""
        start, model = time.perf_counter(), self.model
        images = await self._read_queries(model, "image", body.image)
        texts = await self._read_queries(model, "text", body.text)
        pairing = np.arange(len(texts)) % len(images)
        scores = await self.batcher.run(model.retriever.score_pairs, images, texts, pairing)
        return model.describe_pairs(body.image.names, body.text.names, scores, start)

    async def _read_queries(self, model: LoadedModel, view: View, query: schemas.Query) -> list[str] | Matrix:
        """Return the features of queries of a view, or texts, which are encoded together with others."""
        if query.files:
            return await self._encode(model, view, query.files)
        if query.features is not None:
            return await self.look_up(model.join_features, view, query.features)
        if query.id is not None:
            return await self._item_features(model, view, query.id)
        if view == "image":
            return await self._encode(model, view, query.texts)
        _check_encoder(model, view)
        return query.texts

    async def _read_options(self, model: LoadedModel, view: View, body: schemas.PagedQuery) -> dict[str, Any]:
        """Return the options of a search in the library's terms; ``view`` is that of the query."""
        names = ("k", "offset", "where", "weighting", "min_probability")
        options = {name: value for name in names if (value := getattr(body, name, None)) is not None}
        for name, parts in (("plus", body.plus), ("minus", body.minus)):
            options[name] = [(await self._read_part(model, view, part), part.weight) for part in parts]
        return options

    async def _read_part(self, model: LoadedModel, view: View, part: schemas.Part) -> QueryPart:
        """Encode a part of a query of a view."""
        if part.id is not None:
            view = (await self._find_item(model, part.id[0])).view
        elif part.texts and not (view == "image" and model.inputs == "texts"):
            view = "text"
        queries = await self._read_queries(model, view, part)
        if not isinstance(queries, list):
            return QueryPart(view, queries)
        features, ignored = await self.batcher.run(model.retriever.encoders.encode_queries, queries)
        return QueryPart(view, features, ignored_words=ignored[0])

    async def _find_item(self, model: LoadedModel, item_id: str) -> Item:
        if (item := await self.look_up(model.retriever.item, item_id)) is None:
            raise unknown_item(item_id)
        return item

    # Encoding

    async def _encode(self, model: LoadedModel, view: View, sources: Sequence[Any]) -> Matrix:
        """Return the features of texts (str), uploads or stored files (Path); few images are in memory."""
        _check_encoder(model, view)
        encoders, first = model.retriever.encoders, with_article(model.views.image)
        if view == "text":
            return await self.batcher.run(encoders.encode_texts, sources)
        are_texts = isinstance(sources[0], str)
        if are_texts and model.inputs != "texts":
            raise InputError(f"this model takes files for {first}; send one as a form.")
        if model.inputs == "texts" and not are_texts:
            raise InputError(f"this model takes texts for {first}, not files.")
        if are_texts:
            return await self.batcher.run(encode_first_view, encoders, sources)
        rows = []
        for source in sources:
            with self._images_waiting:
                async with self._encoding:
                    if model.inputs == "images":
                        image = await self.images.load_pixels(source)
                        rows.append(await self.batcher.run(encoders.encode_images, [image]))
                    else:
                        rows.append(await self.batcher.run(model.encode_file, source))
        return np.concatenate(rows)

    async def _encode_new(
        self, model: LoadedModel, view: View, sources: Sequence[Upload | str], features: Any
    ) -> Matrix | None:
        """Return the features that a request sent, or those of its files or texts; None without either."""
        if features is not None:
            return await self.look_up(model.join_features, view, features)
        return await self._encode(model, view, sources) if sources else None

    async def _item_features(self, model: LoadedModel, view: View, ids: list[str]) -> Matrix:
        """Return the features of stored items, encoded again where the model does not keep them."""
        items: list[Item] = []
        stored = await self.look_up(lambda: list(map(model.retriever.item, ids)))
        for item_id, item in zip(ids, stored, strict=True):
            if item is None:
                raise unknown_item(item_id)
            if item.view != view:
                noun, expected = (with_article(model.noun(name)) for name in (item.view, view))
                raise InputError(f"{item_id!r} is {noun}; give the id of {expected}.")
            items.append(item)
        if (features := await self.look_up(model.retriever.store.features, view, ids)) is not None:
            return features
        by_text = view == "text" or model.inputs == "texts"
        sources = [source for item in items if (source := item.text if by_text else item.path) is not None]
        if len(sources) != len(items):
            raise Problem(
                422, "no-features", "this item has neither stored features nor a source to encode again."
            )
        if by_text:
            return await self._encode(model, view, sources)
        rows = []
        for item_id, path in zip(ids, sources, strict=True):
            try:
                rows.append(await self._encode(model, view, [Path(path)]))
            except (UnreadableImage, UnreadableFile):
                raise _unreadable_file(model, item_id) from None
        return np.concatenate(rows)

    # Files of items

    async def stored_image(self, item_id: str, side: int) -> WebpImage:
        """Return a stored image for a browser."""
        model = self.model
        item, path = await self._item_with_file(model, item_id, "no-image")
        if model.media(item) != "image":
            raise _unreadable_file(model, item_id)
        try:
            return await self.images.load_webp(model.version, item.id, path, side)
        except UnreadableImage:
            raise _unreadable_file(model, item_id) from None

    async def stored_file(self, item_id: str) -> FileResponse:
        """Return the file of an item that is sent as it is."""
        model = self.model
        item, path = await self._item_with_file(model, item_id, "no-file")
        if model.media(item) == "image" and not model.send_files:
            raise Problem(404, "no-file", "images are sent as WebP; ask for /image or /thumbnail.")
        return await asyncio.to_thread(open_file, path, self.limits.file_bytes, any_type=model.send_files)

    async def _item_with_file(self, model: LoadedModel, item_id: str, problem: str) -> tuple[Item, str]:
        item = await self._find_item(model, item_id)
        if item.view != "image":
            raise unknown_item(item_id)
        if item.path is None:
            raise Problem(404, problem, f"the item {item_id[:200]!r} was added without a file.")
        return item, item.path

    # Changes

    async def add(self, bodies: Sequence[schemas.AddRequest], on_conflict: str) -> list[dict[str, Any]]:
        """Add images, by their files, texts or features, with their captions, or either alone; all or none.

        Return the ids of each.
        """
        model = self.model
        additions = [await self._encode_addition(model, body) for body in bodies]
        async with self._writing:
            if self.model is not model:  # the new version may need other features
                additions = [await self._encode_addition(self.model, body) for body in bodies]
            return await self._change(self.writer.add, additions, on_conflict)

    async def update(self, item_id: str, body: schemas.UpdateRequest) -> dict[str, Any]:
        """Change an item; return it as it is then."""
        model = self.model
        source, rows = await self._encode_content(model, item_id, body)
        async with self._writing:
            if self.model is not model:
                source, rows = await self._encode_content(self.model, item_id, body)
            await self._change(self.writer.update, item_id, source, rows, body.metadata)
        return await self.describe_item(item_id)

    async def learn(self, body: schemas.LearnRequest) -> list[str]:
        """Store that a text should find some images; return the ids of these pairs."""
        text: Any = body.text
        if body.features is None:
            _check_encoder(self.model, "text")
        else:
            text = await self.look_up(self.model.join_features, "text", body.features)
        async with self._writing:
            return await self._change(lambda retriever: retriever.learn(text, body.right))

    async def remove(self, item_id: str) -> int:
        """Remove an item, an image together with its captions; return how many items."""
        async with self._writing:
            return await self._change(self.writer.remove, item_id)

    async def _encode_addition(self, model: LoadedModel, body: schemas.AddRequest) -> Addition:
        """Return what is to be added, with its features."""
        sources = _list_sources(model, body)
        if not sources and body.features is None and not body.all_captions:
            nouns = " nor ".join(with_article(model.noun(view)) for view in VIEWS)
            raise Problem(422, "bad-request", f"the request has neither {nouns}; send one.")
        rows = await self._encode_new(model, "image", sources, body.features)
        caption_rows = await self._encode_new(model, "text", body.captions, body.caption_features)
        item_id = body.id or f"item-{uuid4().hex[:12]}"
        source = next(iter(sources), None)
        return Addition(source, rows, body.all_captions, caption_rows, body.metadata, item_id)

    async def _encode_content(
        self, model: LoadedModel, item_id: str, body: schemas.UpdateRequest
    ) -> tuple[Upload | str | None, Matrix | None]:
        """Return the new file or text of an item, if there is one, and its features."""
        view, sources = (await self._find_item(model, item_id)).view, _list_sources(model, body)
        if view == "text" and body.image:
            raise InputError(
                f"{item_id!r} is {with_article(model.noun(view))}; send text in place of a file."
            )
        return next(iter(sources), None), await self._encode_new(model, view, sources, body.features)

    async def _change(self, change: Callable[..., T], *args: Any) -> T:
        """Change the items of the model; the caller holds the lock."""
        try:
            return await self.batcher.run(change, self.model.retriever, *args)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise Problem(507, "disk", f"the change could not be written to disk ({reason}).") from None


def _list_sources(model: LoadedModel, body: schemas.Content) -> list[Upload | str]:
    """Return the file or the text of a request, if it has one; the name of an image is of no use."""
    files = [Upload(file.content) if model.inputs == "images" else file for file in body.image]
    return [*files, *([] if body.text is None or files else [body.text])]


def _check_encoder(model: LoadedModel, view: View) -> None:
    if (reason := model.why_not_encoded(view)) is not None:
        raise Problem(422, "no-encoder", reason)


def _unreadable_file(model: LoadedModel, item_id: str) -> Problem:
    # The error itself names a path on this machine, which clients must not see.
    kind = with_article(model.views.image)
    return Problem(404, "no-image", f"the file of {item_id[:200]!r} is missing or is not {kind}.")
