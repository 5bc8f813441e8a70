"""The application: routes, gate, errors and description, around one service."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from diptych._persistence import library_version
from diptych.service._metrics import Watch
from diptych.service._routes import Page, about_routes, item_routes, search_routes
from diptych.service._schemas import SCHEMA, Limits, install
from diptych.service._security import App, Gate, Receive, Scope, Send
from diptych.service._service import Service

DESCRIPTION = """
Search pictures with words, and words with pictures.

A score is a cosine (or minus a distance, for some models), not a probability: it orders the answers to one
query. Errors are problem details (RFC 9457). Where the server asks for a token, send it as
`Authorization: Bearer TOKEN`.
"""


class ItemPaths:
    """Leaves the ids of items in paths as they were sent, until a route has been chosen.

    An id may hold ``/image`` or a line break; sent as ``%2F`` and ``%0A`` they are not the path's own.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        sent = scope.get("raw_path") or b""
        if scope["type"] == "http" and sent.startswith(b"/v1/items/"):
            scope["path"] = sent.decode("latin-1")
        await self._app(scope, receive, send)


def create_app(service: Service, *, log_queries: bool = False) -> FastAPI:
    """An ASGI application.

    Parameters
    ----------
    service
        What it serves.
    log_queries
        Write what was asked to the access log, which otherwise says only that something was.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    page = Page()
    app = FastAPI(
        title="diptych",
        version=library_version(),
        description=DESCRIPTION,
        lifespan=lifespan,
        routes=page.routes(),
        openapi_url="/v1/openapi.json",
        # Those pages fetch their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
    )
    routers = [routes(service) for routes in (search_routes, item_routes, about_routes)]
    known = list(app.routes)
    for router in routers:
        app.include_router(router)
        known += router.routes
    install(app)
    app.add_middleware(Gate, limits=service.limits, token=service.token, is_open=page.__contains__)
    app.add_middleware(Watch, meter=service.meter, routes=known, log_queries=log_queries)
    app.add_middleware(ItemPaths)
    app.openapi = lambda: _description(app, service.limits)  # type: ignore[method-assign]
    return app


def _description(app: FastAPI, limits: Limits) -> dict[str, Any]:
    """The OpenAPI description, with the problems and the bounds of this server."""
    if app.openapi_schema is None:
        said = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes
        )
        schemas = said["components"]["schemas"]
        schemas["ProblemDetails"] = SCHEMA
        bodies = [
            content["schema"]
            for path in said["paths"].values()
            for operation in path.values()
            for content in operation.get("requestBody", {}).get("content", {}).values()
        ]
        for schema in bodies:
            schemas.update(schema.pop("$defs", {}))
        asked = [schema for name, schema in schemas.items() if name.endswith("Request")]
        for schema in (*asked, *bodies):
            _bound(schema.get("properties", {}), limits)
        app.openapi_schema = said
    return app.openapi_schema


def _bound(properties: dict[str, Any], limits: Limits) -> None:
    if "k" in properties:
        properties["k"]["maximum"] = limits.k
    for name in ("text", "id", "captions"):
        for kind in (properties.get(name, {}), *properties.get(name, {}).get("anyOf", ())):
            if kind.get("type") == "array":
                kind["maxItems"] = limits.batch
                if name != "captions":
                    kind["minItems"] = 1
            if kind.get("type") == "string" and name == "text":
                kind["maxLength"] = limits.text_characters
