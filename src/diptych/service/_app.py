"""The application: the state that its routes share, middleware, metrics, and the OpenAPI description."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import mimetypes
import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych._checks import InputError, with_article
from diptych._persistence import library_version
from diptych.image import UnreadableImage
from diptych.retrieval import Retriever
from diptych.retrieval._inputs import QueryPart
from diptych.retrieval._items import Item, View
from diptych.service import _schemas as schemas
from diptych.service._batching import Batcher
from diptych.service._files import SentFile, check_file, encode_first_view
from diptych.service._images import Images, WebpImage
from diptych.service._limits import (
    Limits,
    Problem,
    ProblemDetails,
    Slots,
    UnreadableFile,
    answer_problem,
    unknown_item,
)
from diptych.service._model import LoadedModel, ModelHolder
from diptych.service._routes import about_routes, item_routes, search_routes
from diptych.service._security import Gate, check_token

access_log = logging.getLogger("diptych.access")

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_SIZES = (1, 2, 4, 8, 16, 32, 64)
_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


class Metrics:
    """The metrics of one server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        labels = ("route", "method", "status")
        self.requests = Counter("diptych_requests", "Answered requests.", labels, registry=self.registry)
        self.seconds = Histogram(
            "diptych_request_seconds",
            "Time to answer a request.",
            ("route",),
            registry=self.registry,
            buckets=_SECONDS,
        )
        self.open = Gauge("diptych_requests_open", "Requests being answered.", registry=self.registry)
        self.batches = Histogram(
            "diptych_batch_queries",
            "Queries answered by one pass over the index.",
            registry=self.registry,
            buckets=_SIZES,
        )

    def add_gauge(self, name: str, about: str, read: Callable[[], float]) -> None:
        Gauge(name, about, registry=self.registry).set_function(read)

    def render(self) -> bytes:
        return generate_latest(self.registry)


class RequestMonitor:
    """Middleware that counts and logs requests.

    The log has no texts, ids or file names of queries unless ``log_queries`` is set. ``routes`` are those to
    count a request under that was refused before it reached the router.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute] = (), log_queries: bool = False
    ) -> None:
        self._app, self._metrics, self._routes, self._log_queries = app, metrics, routes, log_queries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status, size = time.perf_counter(), 500, 0

        async def send_counted(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                size += len(message.get("body", b""))
            await send(message)

        self._metrics.open.inc()
        try:
            await self._app(scope, receive, send_counted)
        finally:
            self._metrics.open.dec()
            seconds = time.perf_counter() - start
            route = self._route(scope)
            method = scope["method"] if scope["method"] in _METHODS else "other"
            self._metrics.requests.labels(route, method, str(status)).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            if access_log.isEnabledFor(logging.INFO):
                self._log(scope, route, status, size, seconds)

    def _route(self, scope: Scope) -> str:
        # The pattern of a route, not the path: that would make one time series for every id.
        route = scope.get("route") or next(
            (each for each in self._routes if each.matches(scope)[0] is not Match.NONE), None
        )
        return str(getattr(route, "path_format", "unmatched"))

    def _log(self, scope: Scope, route: str, status: int, size: int, seconds: float) -> None:
        client = scope["client"][0] if scope.get("client") else "-"
        queries = scope.get("state", {}).get("queries") if self._log_queries else None
        access_log.info(
            "%s %s %s %d %d bytes %.1f ms%s",
            client,
            scope["method"][:10],
            route,
            status,
            size,
            seconds * 1000,
            f" {json.dumps(queries)}" if queries else "",
        )


log = logging.getLogger("diptych.service")

T = TypeVar("T")
P = ParamSpec("P")

DESCRIPTION = """
Search images with text, and text with images, or items of any two views with each other. Requests and
responses call the views `image` and `text`, whatever they hold; `views` of `/v1/model` names them for people.

A score is a cosine (or minus a distance, for some models): it orders the hits of one query. Where the model
has a calibration, hits have a `probability` too, and a result says if there is `no_match`. Errors are problem
details (RFC 9457). If the server needs a token, send it as `Authorization: Bearer TOKEN`.
"""
COUNT_SECONDS = 1.0
"""How long the metrics wait for the number of items in a database."""

PAGE = Path(__file__).parent / "page"
PAGE_PATHS = frozenset({"/", *(f"/{file.name}" for file in PAGE.iterdir() if file.name != "index.html")})

# The registry of Windows may have another type for scripts, which browsers then refuse to run.
mimetypes.add_type("text/javascript", ".js")


@dataclass(eq=False)
class Service:
    """The state of one server, which its routes share; the parameters are those of ``create_app``."""

    holder: ModelHolder
    limits: Limits = field(default_factory=Limits)
    token: str | None = None
    threads: int | None = None
    watch_seconds: float = 1.0

    def __post_init__(self) -> None:
        self.metrics = Metrics()
        self.batcher = Batcher(self.limits, self.threads, self.metrics.batches.observe)
        self.images = Images(self.limits)
        self._encoding = asyncio.Semaphore(self.limits.decoders)
        self._images_waiting = Slots(self.limits.waiting, "many files are waiting to be encoded")
        self._saving: asyncio.Task[None] | None = None
        self._item_count: asyncio.Future[int] | None = None
        for name, about, read in (
            ("diptych_items", "Items of the index; NaN: they cannot be counted now.", self._read_count),
            ("diptych_searches_open", "Searches that wait or run.", lambda: self.batcher.slots.used),
            ("diptych_thumbnail_bytes", "Memory of cached thumbnails.", lambda: self.images.cached_bytes),
            ("diptych_reloads_loaded", "Versions loaded.", lambda: self.holder.reloads["loaded"]),
            ("diptych_reloads_failed", "Versions refused.", lambda: self.holder.reloads["failed"]),
        ):
            self.metrics.add_gauge(name, about, read)

    @property
    def model(self) -> LoadedModel:
        """The loaded model; a request reads it once."""
        return self.holder.current

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run decoders and look for new versions; at the end, save all changes."""
        self.images.start()
        watch = asyncio.create_task(self.holder.watch(self.watch_seconds))
        try:
            yield
        finally:
            watch.cancel()
            if self._saving is not None:
                await asyncio.wait([self._saving])
            try:
                await asyncio.to_thread(self.holder.save)
            finally:
                self.images.close()
                self.batcher.close()
                if self.holder.writer is not None:
                    self.holder.writer.journal.close()

    async def look_up(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that looks up items: in a thread if they are in a database."""
        if self.model.retriever.store.shared:
            return await self.batcher.run(function, *args, **kwargs)
        return function(*args, **kwargs)

    async def render_metrics(self) -> bytes:
        """Return all metrics, without waiting for a database that does not answer."""
        if self._item_count is None or self._item_count.done():
            self._item_count = asyncio.ensure_future(self.look_up(self.model.retriever.store.count))
        await asyncio.wait({self._item_count}, timeout=COUNT_SECONDS)
        return self.metrics.render()

    def _read_count(self) -> float:
        count = self._item_count
        if count is None or not count.done() or count.exception() is not None:
            return float("nan")
        return float(count.result())

    async def encode_image(
        self, model: LoadedModel, *, content: bytes = b"", name: str = "", path: str | None = None
    ) -> np.ndarray[Any, Any]:
        """Return the features of an uploaded or stored image or other file; only a few are in memory."""
        self._check_encoder(model)
        encoders = model.retriever.encoders
        if model.inputs == "texts":
            raise InputError(f"this model takes texts for {with_article(model.views.image)}, not files.")
        with self._images_waiting:
            async with self._encoding:
                if model.inputs == "images":
                    image = await self.images.load_pixels(content=content, path=path)
                    return await self.batcher.run(encoders.encode_images, [image])
                if path is not None:
                    return await self.batcher.run(encode_first_view, encoders, [path])
                return await self.batcher.run(model.encode_file, content, name)

    async def encode_first_texts(self, model: LoadedModel, texts: list[str]) -> np.ndarray[Any, Any]:
        """Return the features of texts of the first view, such as molecules."""
        self._check_encoder(model)
        if model.inputs != "texts":
            raise InputError(
                f"this model takes files for {with_article(model.views.image)}; send one as a form."
            )
        return await self.batcher.run(encode_first_view, model.retriever.encoders, texts)

    def _check_encoder(self, model: LoadedModel) -> None:
        if (reason := model.why_not_encoded("image")) is not None:
            raise Problem(422, "no-encoder", reason)

    async def item_features(self, model: LoadedModel, view: View, ids: list[str]) -> np.ndarray[Any, Any]:
        """Return the features of stored items, encoded again where the model does not keep them."""
        items = []
        for item_id, item in zip(
            ids, await self.look_up(lambda: list(map(model.retriever.item, ids))), strict=True
        ):
            if item is None:
                raise unknown_item(item_id)
            if item.view != view:
                own, other = (with_article(model.noun(each)) for each in (item.view, view))
                raise InputError(f"{item_id!r} is {own}; give the id of {other}.")
            items.append(item)
        if (features := await self.look_up(model.retriever.store.features, view, ids)) is not None:
            return features
        by_text = view == "text" or model.inputs == "texts"
        sources = [item.text if by_text else item.path for item in items]
        known = [source for source in sources if source is not None]
        if len(known) != len(items):
            raise Problem(
                422, "no-features", "this item has neither stored features nor a source to encode again."
            )
        if view == "text":
            return await self.batcher.run(model.retriever.encoders.encode_texts, known)
        if by_text:
            return await self.encode_first_texts(model, known)
        blocks = []
        for item_id, path in zip(ids, known, strict=True):
            try:
                blocks.append(await self.encode_image(model, path=path))
            except (UnreadableImage, UnreadableFile):
                raise _unreadable_file(model, item_id) from None
        return np.concatenate(blocks)

    async def read_options(self, model: LoadedModel, view: View, body: schemas.PageOptions) -> dict[str, Any]:
        """Return the options of a search in the library's terms; ``view`` is that of the query."""
        options = body.model_dump(include={"offset", "where", "weighting", "min_probability"})
        for name, parts in (("plus", body.plus), ("minus", body.minus)):
            options[name] = [(await self._read_part(model, view, part), part.weight) for part in parts]
        return options

    async def _read_part(self, model: LoadedModel, view: View, part: schemas.Part) -> QueryPart:
        """Encode a part of a query of a view."""
        if part.features is not None:
            return QueryPart(view, await self.look_up(model.join_features, view, part.features))
        if part.id is not None:
            item = await self.look_up(model.retriever.item, part.id)
            own = "image" if item is None else item.view
            return QueryPart(own, await self.item_features(model, own, [part.id]))
        texts = [str(part.text)]
        if view == "image" and model.inputs == "texts":
            return QueryPart(view, await self.encode_first_texts(model, texts))
        if (reason := model.why_not_encoded("text")) is not None:
            raise Problem(422, "no-encoder", reason)
        features, ignored = await self.batcher.run(model.encode_queries, texts)
        return QueryPart("text", features, ignored_words=ignored[0])

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

    async def stored_file(self, item_id: str) -> SentFile:
        """Return the file of an item that is sent as it is."""
        model = self.model
        item, path = await self._item_with_file(model, item_id, "no-file")
        if model.media(item) == "image":
            raise Problem(404, "no-file", "images are sent as WebP; ask for /image or /thumbnail.")
        return await asyncio.to_thread(check_file, path, self.limits.file_bytes, any_type=model.send_files)

    async def _item_with_file(self, model: LoadedModel, item_id: str, problem: str) -> tuple[Item, str]:
        item = await self.look_up(model.retriever.item, item_id)
        if item is None or item.view != "image":
            raise unknown_item(item_id)
        if item.path is None:
            raise Problem(404, problem, f"the item {item_id[:200]!r} was added without a file.")
        return item, item.path

    def save_if_due(self) -> None:
        """Save the changes in the background once there are many of them."""
        writer = self.holder.writer
        if writer is None or not writer.is_due or (self._saving is not None and not self._saving.done()):
            return

        async def save() -> None:
            async with self.holder.writing:
                try:
                    await asyncio.to_thread(self.holder.save)
                except Exception:
                    log.exception("the changes could not be saved; they stay in the journal")

        self._saving = asyncio.create_task(save())


def _unreadable_file(model: LoadedModel, item_id: str) -> Problem:
    # The error itself names a path on this machine, which clients must not see.
    kind = with_article(model.views.image)
    return Problem(404, "no-image", f"the file of {item_id[:200]!r} is missing or is not {kind}.")


class _ItemPaths:
    """Middleware that leaves item ids percent-encoded until a route is chosen.

    An id may contain ``/image`` or a line break, which would otherwise be taken for a part of the route.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        raw_path = scope.get("raw_path") or b""
        if scope["type"] == "http" and raw_path.startswith(b"/v1/items/"):
            scope["path"] = raw_path.decode("latin-1")
        await self._app(scope, receive, send)


def create_app(
    model: str | os.PathLike[str] | Retriever,
    *,
    token: str | None = None,
    limits: Limits | None = None,
    image_encoder: object | None = None,
    text_encoder: object | None = None,
    threads: int | None = None,
    log_queries: bool = False,
    send_files: bool = False,
) -> FastAPI:
    """Return an ASGI application with the web page and the HTTP API of a model, read-only.

    A new version of the model that is saved to the folder is loaded within seconds. For a server that adds
    and removes items, and that limits slow connections, use ``diptych serve``.

    Parameters
    ----------
    model
        The model folder that ``Retriever.save`` or ``diptych fit`` wrote, or a fitted ``Retriever`` in
        memory, with the encoders it has.
    token
        The secret that clients must send; None: none, and then only loopback host names are answered.
    limits
        Limits on requests; None: the defaults.
    image_encoder, text_encoder
        With a folder: encoders to use instead of those that the model remembers.
    threads
        BLAS and OpenMP threads of one search; None: one per core.
    log_queries
        Write queries to the access log, the logger ``diptych.access``.
    send_files
        Let clients download the files of items of any type; otherwise they get only images, audio and video.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> from starlette.testclient import TestClient
    >>> from diptych import Retriever
    >>> x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    >>> folder = tempfile.TemporaryDirectory()
    >>> Retriever.from_features(x, x).save(folder.name)
    >>> client = TestClient(create_app(folder.name), "http://127.0.0.1")
    >>> response = client.post("/v1/search", json={"features": x[7].tolist(), "k": 1})
    >>> response.json()["results"][0]["hits"][0]["id"]
    '7'
    >>> folder.cleanup()
    """
    if isinstance(model, Retriever):
        if image_encoder is not None or text_encoder is not None:
            raise InputError("a retriever has its own encoders; leave out image_encoder and text_encoder.")
        model.info()  # an error if it is not fitted
        version = "memory" if model.base is None else model.base.version.id
        holder = ModelHolder(LoadedModel(model, "diptych", version, send_files=send_files))
    else:
        holder = ModelHolder.open(
            Path(model), image_encoder=image_encoder, text_encoder=text_encoder, send_files=send_files
        )
    # 127.0.0.1 as the host: without a token, the application refuses all other host names itself.
    service = Service(holder, limits or Limits(), check_token("127.0.0.1", token), threads)
    return build_app(service, log_queries=log_queries)


def build_app(service: Service, *, log_queries: bool = False) -> FastAPI:
    """Return the ASGI application of a service."""

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    page = StaticFiles(directory=PAGE, html=True)
    app = FastAPI(
        title="diptych",
        version=library_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        # A route for each file, not a mount of "/", which would answer wrong methods of the API with 404.
        routes=[Route(path, page, methods=["GET"]) for path in sorted(PAGE_PATHS)],
        openapi_url="/v1/openapi.json",
        # FastAPI's pages for these load scripts from other servers.
        docs_url=None,
        redoc_url=None,
        # Other errors are answered by Gate: a response made further out would lack its headers.
        exception_handlers=dict.fromkeys((HTTPException, InputError, RequestValidationError), answer_problem),
    )
    routes = list(app.routes)
    for make_router in (search_routes, item_routes, about_routes):
        router = make_router(service)
        app.include_router(router)
        routes += router.routes
    app.add_middleware(Gate, limits=service.limits, token=service.token, open_paths=PAGE_PATHS)
    app.add_middleware(RequestMonitor, metrics=service.metrics, routes=routes, log_queries=log_queries)
    app.add_middleware(_ItemPaths)
    app.openapi = lambda: _describe(app, service.limits)  # type: ignore[method-assign]
    return app


def _describe(app: FastAPI, limits: Limits) -> dict[str, Any]:
    """Return the OpenAPI description, with problem details and the limits of this server."""
    if app.openapi_schema is None:
        description = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        known = description["components"]["schemas"]
        known["ProblemDetails"] = ProblemDetails.model_json_schema()
        bodies = [
            content["schema"]
            for path in description["paths"].values()
            for operation in path.values()
            for content in operation.get("requestBody", {}).get("content", {}).values()
        ]
        for schema in bodies:
            known.update(schema.pop("$defs", {}))
        requests = [schema for name, schema in known.items() if name.endswith(("Request", "Part"))]
        for schema in (*requests, *bodies):
            _add_limits(schema.get("properties", {}), limits)
        app.openapi_schema = description
    return app.openapi_schema


def _add_limits(properties: dict[str, Any], limits: Limits) -> None:
    if "k" in properties:
        properties["k"]["maximum"] = limits.k
    if "offset" in properties:
        properties["offset"]["maximum"] = limits.k - 1
    for name in ("text", "id", "captions"):
        for kind in (properties.get(name, {}), *properties.get(name, {}).get("anyOf", ())):
            if kind.get("type") == "array":
                kind["maxItems"] = limits.batch
                if name != "captions":
                    kind["minItems"] = 1
            if kind.get("type") == "string" and name == "text":
                kind["maxLength"] = limits.text_characters
