"""The application: its routes and their OpenAPI description, its middleware and its page."""

from __future__ import annotations

import json
import logging
import mimetypes
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Match, Route
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diptych._checks import InputError
from diptych._persistence import library_version
from diptych.retrieval import Retriever
from diptych.service import _schemas as schemas
from diptych.service._docs import describe_api
from diptych.service._files import ANY_TYPE, IMAGE_SIDE, MEDIA_TYPES, THUMBNAIL_SIDE, is_known, send_file
from diptych.service._limits import Limits, ProblemDetails, answer_problem, problem_responses
from diptych.service._model import LoadedModel, ModelHolder
from diptych.service._security import COOKIE, SESSION_SECONDS, Gate, check_token, client_address
from diptych.service._service import Metrics, Service

access_log = logging.getLogger("diptych.access")

_METHODS = frozenset({"GET", "HEAD", "POST", "DELETE", "OPTIONS", "PUT", "PATCH"})

DESCRIPTION = """
Search images with text, and text with images, or items of any two views with each other. Requests and
responses call the views `image` and `text`, whatever they hold; `views` of `/v1/model` names them for people.

A score is a cosine (or minus a distance, for some models): it orders the hits of one query. Where the model
has a calibration, hits have a `probability` too. Scores of `/v1/score` can be compared between pairs. Errors
are problem details (RFC 9457). If the server needs a token, send it as `Authorization: Bearer TOKEN`.
"""

PAGE = Path(__file__).parent / "page"
PAGE_PATHS = frozenset({"/", *(f"/{file.name}" for file in PAGE.iterdir() if file.name != "index.html")})

# The registry of Windows may have another type for scripts, which browsers then refuse to run.
mimetypes.add_type("text/javascript", ".js")

_REFERENCE = "#/components/schemas/{model}"
_BODIES = (
    schemas.SearchRequest,
    schemas.AnnotateRequest,
    schemas.SimilarRequest,
    schemas.ScoreRequest,
    schemas.AddRequest,
    schemas.UpdateRequest,
    schemas.LearnRequest,
    schemas.SessionRequest,
)
_PROBLEMS = problem_responses(400, 401, 403, 404, 408, 413, 415, 421, 422, 429, 503)
_IMAGE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The image.", "content": {"image/webp": {"schema": {"type": "string"}}}},
    304: {"description": "It has not changed."},
}
_METRICS_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}}
}
_FILE = {
    "content": {kind: {"schema": {"type": "string"}} for kind in (*MEDIA_TYPES.values(), "image/*", ANY_TYPE)}
}
_FILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _FILE | {"description": "The file."},
    206: _FILE | {"description": "A part of it."},
    304: {"description": "It has not changed."},
    **problem_responses(416),
}


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
        Let clients download the files of all items; otherwise they get audio and video, and images as WebP.

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
        version = model.version or "memory"
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
    page = GZipMiddleware(StaticFiles(directory=PAGE, html=True))
    app = FastAPI(
        title="diptych",
        version=library_version(),
        description=DESCRIPTION,
        lifespan=lambda _: service.running(),
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
        matching = (route for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        return str(getattr(scope.get("route") or next(matching, None), "path_format", "unmatched"))

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


class JsonResponse(Response):
    """JSON in ASCII: Starlette's own is UTF-8 and fails for unpaired surrogates."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def search_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["search"], responses=_PROBLEMS)

    @router.post("/search", **_takes(schemas.SearchRequest, schemas.SearchResponse))
    async def search(request: Request) -> JsonResponse:
        """Find images for texts, for stored captions, or for text features."""
        body = await schemas.SearchRequest.parse(request, service.limits)
        return JsonResponse(await service.search("search", body))

    @router.post("/annotate", **_takes(schemas.AnnotateRequest, schemas.SearchResponse))
    async def annotate(request: Request) -> JsonResponse:
        """Find captions for images: uploaded as a form, stored ones by their ids, or by features."""
        body = await schemas.AnnotateRequest.parse(request, service.limits)
        return JsonResponse(await service.search("annotate", body))

    @router.post("/similar", **_takes(schemas.SimilarRequest, schemas.SearchResponse))
    async def similar(request: Request) -> JsonResponse:
        """Find images similar to an image, uploaded or stored, or captions similar to a stored caption.

        Either may also be given by its features.
        """
        body = await schemas.SimilarRequest.parse(request, service.limits)
        return JsonResponse(await service.find_similar(body))

    @router.post("/score", **_takes(schemas.ScoreRequest, schemas.ScoreResponse))
    async def score(request: Request) -> JsonResponse:
        """Say how well texts fit images, in scores that can be compared between pairs.

        Each text is scored with the image at the same place, or all texts with one image.
        """
        body = await schemas.ScoreRequest.parse(request, service.limits)
        return JsonResponse(await service.score_pairs(body))

    @router.get("/audit", response_model=schemas.AuditResponse)
    async def audit(query: Annotated[schemas.PageQuery, Query()]) -> JsonResponse:
        """List stored captions with their images, those first that look as if they belonged to another.

        ``where`` filters the captions. The pairs are audited at the first request, which is answered with 503
        until that is done, and again once items have changed. Correct a caption with PATCH, or DELETE it.
        """
        return JsonResponse(await service.list_audit(query))

    @router.post("/learn", **_takes(schemas.LearnRequest, schemas.LearnResponse, 507))
    async def learn(request: Request) -> JsonResponse:
        """Store that a text should find some images, for the next refit; needs ``--writable``.

        The response is sent once it is on disk. A pair that was confirmed before is stored once.
        """
        _ = service.writer
        body = await schemas.LearnRequest.parse(request, service.limits)
        return JsonResponse({"learned": await service.learn(body)})

    return router


def item_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/items", tags=["items"], responses=_PROBLEMS)

    async def send_image(item_id: str, request: Request, side: int) -> Response:
        image = await service.stored_image(item_id, side)
        headers = {"ETag": f'"{image.etag}"', "Cache-Control": "private, max-age=300"}
        response = Response(image.content, media_type="image/webp", headers=headers)
        return NotModifiedResponse(response.headers) if is_known(request, response) else response

    @router.get("/{item_id:path}/image", responses=_IMAGE_RESPONSES, response_class=Response)
    async def image(item_id: schemas.ItemPath, request: Request) -> Response:
        """Return a stored image as WebP, at most 1600 pixels wide and high."""
        return await send_image(item_id, request, IMAGE_SIDE)

    @router.get("/{item_id:path}/thumbnail", responses=_IMAGE_RESPONSES, response_class=Response)
    async def thumbnail(item_id: schemas.ItemPath, request: Request) -> Response:
        """Return a stored image as WebP, at most 320 pixels wide and high."""
        return await send_image(item_id, request, THUMBNAIL_SIDE)

    @router.head("/{item_id:path}/file", include_in_schema=False)
    @router.get("/{item_id:path}/file", responses=_FILE_RESPONSES, response_class=Response)
    async def file(item_id: schemas.ItemPath, request: Request) -> Response:
        """Return the file of an item as it is, or a part of it (``Range``).

        Only audio and video files are sent, and with ``--send-files`` any other, images too, to be saved.
        """
        return send_file(request, await service.stored_file(item_id))

    @router.get("/{item_id:path}", response_model=schemas.ItemOut)
    async def item(item_id: schemas.ItemPath) -> JsonResponse:
        """Return an item."""
        return JsonResponse(await service.describe_item(item_id))

    @router.get("", response_model=schemas.ListResponse)
    async def items(query: Annotated[schemas.ListQuery, Query()]) -> JsonResponse:
        """List items, in order of addition or of a metadata value, page by page."""
        return JsonResponse(await service.list_items(query))

    several = schemas.AddResponse | list[schemas.AddResponse]

    @router.post("", status_code=201, **_takes(schemas.AddRequest, several, 409, 507, several=True))
    async def add(request: Request, on_conflict: schemas.OnConflict = "error") -> JsonResponse:
        """Add an image with its captions as a form, captions alone, or features; needs ``--writable``.

        Several are sent as a JSON list, or as NDJSON, one on each line: all are added, or none. An id that is
        stored is an error, or with ``on_conflict`` is left as it is (skip), or replaced (replace). The
        response is sent once all of it is on disk. Choose ids yourself to be able to repeat the request after
        a broken connection: 409 then means that the item was added.
        """
        _ = service.writer  # a read-only server does not read the body
        bodies = await schemas.AddRequest.parse_all(request, service.limits)
        if isinstance(bodies, list):
            return JsonResponse(await service.add(bodies, on_conflict), 201)
        (ids,) = await service.add([bodies], on_conflict)
        return JsonResponse(ids, 201, _locate(ids))

    @router.put("/{item_id:path}", status_code=201, **_takes(schemas.AddRequest, schemas.AddResponse, 507))
    async def put(item_id: schemas.ItemPath, request: Request) -> JsonResponse:
        """Add an image with its captions under an id, in place of what is stored; needs ``--writable``.

        Other captions of a stored image stay.
        """
        _ = service.writer
        body = await schemas.AddRequest.parse(request, service.limits)
        if body.id not in (None, item_id):
            raise InputError(
                f"the body has the id {body.id!r}, the address another; leave it out of the body."
            )
        if not body.image and body.text is None and body.features is None:
            raise InputError(
                "the request has captions alone; send what has this id, or change a text with PATCH."
            )
        schemas.AddRequest.check({"id": item_id}, service.limits)
        (ids,) = await service.add([body.model_copy(update={"id": item_id})], "replace")
        return JsonResponse(ids, 201, _locate(ids))

    @router.patch("/{item_id:path}", **_takes(schemas.UpdateRequest, schemas.ItemOut, 507))
    async def update(item_id: schemas.ItemPath, request: Request) -> JsonResponse:
        """Change metadata of an item, or its image or text; needs ``--writable``. Return it as it is then."""
        _ = service.writer
        body = await schemas.UpdateRequest.parse(request, service.limits)
        return JsonResponse(await service.update(item_id, body))

    @router.delete("/{item_id:path}", response_model=schemas.RemoveResponse, responses=problem_responses(507))
    async def remove(item_id: schemas.ItemPath) -> JsonResponse:
        """Remove an item, an image together with its captions; needs ``--writable``."""
        return JsonResponse({"removed": await service.remove(item_id)})

    return router


class _CompressedRoute(APIRoute):
    """A route whose responses are compressed: they contain no secret that their length could tell."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        await GZipMiddleware(super().handle)(scope, receive, send)


def about_routes(service: Service) -> APIRouter:
    router = APIRouter(route_class=_CompressedRoute, tags=["about"], responses=_PROBLEMS)

    @router.get("/v1/model", response_model=schemas.ModelOut)
    async def model() -> JsonResponse:
        """Describe the model: its encoders, recalls, regularisation path and canonical spectrum."""
        description = await service.batcher.run(service.model.describe)
        names = ("k", "batch", "upload_bytes", "pixels", "text_characters")
        limits = {name: getattr(service.limits, name) for name in names}
        writable = service.holder.writer is not None
        return JsonResponse(description | {"limits": limits, "writable": writable})

    @router.get("/docs", include_in_schema=False)
    async def docs(request: Request) -> HTMLResponse:
        """Return the description of this API for people."""
        return HTMLResponse(describe_api(request.app.openapi(), str(request.base_url).rstrip("/")))

    @router.get("/healthz", response_model=schemas.Health)
    async def healthz() -> JsonResponse:
        """Tell that the server answers, and the version of its model."""
        return JsonResponse({"status": "ok", "version": service.model.version})

    @router.get("/metrics", responses=_METRICS_RESPONSES, response_class=Response)
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(await service.render_metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.post("/v1/session", status_code=204, **_takes(schemas.SessionRequest, None))
    async def session(request: Request) -> Response:
        """Exchange the token for a cookie, which browsers also send when they load images."""
        body = await schemas.SessionRequest.parse(request, service.limits)
        response = Response(status_code=204)
        access, address = service.access, client_address(request.scope)
        if access.token is None:
            return response
        if not access.accepts(address, token=body.token):
            raise access.refuse(address, "this is not the token of this server.")
        response.set_cookie(
            COOKIE,
            access.make_cookie(),
            max_age=SESSION_SECONDS,
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    return router


def _locate(ids: dict[str, Any]) -> dict[str, str]:
    """Return the header that says where what was added is, if something was."""
    added = [name for name in (ids["image"], *ids["captions"]) if name is not None]
    return {"Location": f"/v1/items/{quote(added[0], safe='')}"} if added else {}


def _takes(
    body: type[schemas.RequestBody], response: Any, *problems: int, several: bool = False
) -> dict[str, Any]:
    """Return what FastAPI has to know of a route that parses its body itself, for the description.

    ``problems`` are those of this route alone; ``several``: the body may also be a list of such bodies, or
    lines of them.
    """
    one: dict[str, Any] = {"$ref": _REFERENCE.format(model=body.__name__)}
    schemas_of: dict[str, dict[str, Any]] = {"application/json": one}
    if several:
        schemas_of["application/json"] = {"anyOf": [one, {"type": "array", "items": one}]}
        schemas_of[schemas.NDJSON] = one
    if body.form_fields:
        schemas_of["multipart/form-data"] = {"$ref": _REFERENCE.format(model=f"{body.__name__}Form")}
    content = {kind: {"schema": schema} for kind, schema in schemas_of.items()}
    return {
        "response_model": response,
        "responses": problem_responses(*problems),
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
    }


def _describe(app: FastAPI, limits: Limits) -> dict[str, Any]:
    """Return the OpenAPI description, with request bodies, problem details and the limits of this server."""
    if app.openapi_schema is not None:
        return app.openapi_schema
    description = FastAPI.openapi(app)
    models: list[Any] = [(model, "validation") for model in (*_BODIES, ProblemDetails)]
    components = models_json_schema(models, ref_template=_REFERENCE)[1]["$defs"]
    for schema in components.values():
        _add_limits(schema.get("properties", {}), limits)
    for model in _BODIES:
        if model.form_fields:
            components[f"{model.__name__}Form"] = _describe_form(
                model, components[model.__name__]["properties"]
            )
    description["components"]["schemas"] |= components
    return description


def _describe_form(body: type[schemas.RequestBody], properties: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a body as a form: with files, and lists and objects as JSON."""
    fields = {name: field for name, field in properties.items() if name in body.form_fields}
    for name in schemas.JSON_FIELDS & fields.keys():
        fields[name] = {"type": "string", "description": f"{fields[name].get('description')} As JSON."}
    file = {"type": "string", "format": "binary"}
    images = {"type": "array", "items": file, "description": body.model_fields["image"].description}
    return {"type": "object", "properties": {"image": images, **fields}}


def _add_limits(properties: dict[str, Any], limits: Limits) -> None:
    if "k" in properties:
        properties["k"]["maximum"] = limits.k
    if "offset" in properties:
        properties["offset"]["maximum"] = limits.k - 1
    for name in ("text", "id", "captions", "right"):
        for choice in (properties.get(name, {}), *properties.get(name, {}).get("anyOf", ())):
            if choice.get("type") == "array":
                choice["maxItems"] = limits.batch
                if name != "captions":
                    choice["minItems"] = 1
            if choice.get("type") == "string" and name == "text":
                choice["maxLength"] = limits.text_characters
