"""The application: its middleware, its page, and the OpenAPI description."""

from __future__ import annotations

import contextlib
import json
import logging
import mimetypes
import os
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute, Match, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych._checks import InputError
from diptych._persistence import library_version
from diptych.retrieval import Retriever
from diptych.service._limits import Limits, ProblemDetails, answer_problem
from diptych.service._model import LoadedModel, ModelHolder
from diptych.service._routes import about_routes, item_routes, search_routes
from diptych.service._security import Gate, check_token, client_address
from diptych.service._service import Metrics, Service

access_log = logging.getLogger("diptych.access")

_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})


class RequestMonitor:
    """Middleware that counts and logs requests.

    The log has no texts, ids or file names of queries unless ``log_queries`` is set. ``routes`` are those to
    count a request under that was refused before it reached the router. Item ids stay percent-encoded until a
    route is chosen: one may contain ``/image`` or a line break, which would be taken for a part of the route.
    """

    def __init__(
        self, app: ASGIApp, metrics: Metrics, routes: Sequence[BaseRoute] = (), log_queries: bool = False
    ) -> None:
        self._app, self._metrics, self._routes, self._log_queries = app, metrics, routes, log_queries

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        start, status, size = time.perf_counter(), 500, 0
        if (raw_path := scope.get("raw_path") or b"").startswith(b"/v1/items/"):
            scope["path"] = raw_path.decode("latin-1")

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
        queries = scope.get("state", {}).get("queries") if self._log_queries else None
        access_log.info(
            "%s %s %s %d %d bytes %.1f ms%s",
            client_address(scope) or "-",
            scope["method"][:10],
            route,
            status,
            size,
            seconds * 1000,
            f" {json.dumps(queries)}" if queries else "",
        )


DESCRIPTION = """
Search images with text, and text with images, or items of any two views with each other. Requests and
responses call the views `image` and `text`, whatever they hold; `views` of `/v1/model` names them for people.

A score is a cosine (or minus a distance, for some models): it orders the hits of one query. Where the model
has a calibration, hits have a `probability` too. Errors are problem details (RFC 9457). If the server needs a
token, send it as `Authorization: Bearer TOKEN`.
"""

PAGE = Path(__file__).parent / "page"
PAGE_PATHS = frozenset({"/", *(f"/{file.name}" for file in PAGE.iterdir() if file.name != "index.html")})

# The registry of Windows may have another type for scripts, which browsers then refuse to run.
mimetypes.add_type("text/javascript", ".js")


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
    app.add_middleware(Gate, limits=service.limits, access=service.access, open_paths=PAGE_PATHS)
    app.add_middleware(RequestMonitor, metrics=service.metrics, routes=routes, log_queries=log_queries)
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
