"""The routes of the HTTP API: searches, items, and the state of the server."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError
from starlette.datastructures import UploadFile

from diptych.service import _schemas as schemas
from diptych.service._files import ANY_TYPE, MEDIA_TYPES, send_file
from diptych.service._images import IMAGE_SIDE, THUMBNAIL_SIDE
from diptych.service._limits import Problem, problem_responses, unknown_item
from diptych.service._security import COOKIE, SESSION_SECONDS, client_address, media_type
from diptych.service._service import FileQuery, FormFile, Service

M = TypeVar("M", bound=BaseModel)

_JSON_FIELDS = ("where", "plus", "minus", "metadata")
"""Fields of a form that hold lists or objects."""

_PROBLEMS = problem_responses(400, 401, 403, 404, 408, 413, 415, 421, 422, 429, 503)
_IMAGE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The image.", "content": {"image/webp": {"schema": {"type": "string"}}}},
    304: {"description": "It has not changed."},
    **problem_responses(401, 404, 421, 429, 503),
}
_FILE = {
    "description": "The file.",
    "content": {t: {"schema": {"type": "string"}} for t in (*MEDIA_TYPES.values(), ANY_TYPE)},
}
_FILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _FILE,
    206: _FILE | {"description": "A part of it."},
    304: {"description": "It has not changed."},
    **problem_responses(401, 404, 416, 421, 429, 503),
}


class JsonResponse(Response):
    """JSON in ASCII: Starlette's own is UTF-8 and fails for unpaired surrogates."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


class JsonRoute(APIRoute):
    """A route that refuses any other body than JSON before reading it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if self.body_field is not None and media_type(request.headers) != "application/json":
                raise Problem(415, "wrong-type", "send application/json.")
            return await handler(request)

        return handle


def search_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["search"], route_class=JsonRoute)

    @router.post("/search", response_model=schemas.SearchResponse, responses=_PROBLEMS)
    async def search(body: schemas.SearchRequest, request: Request) -> JsonResponse:
        """Find images for texts, for stored captions, or for text features."""
        request.state.queries = body.names
        return JsonResponse(await service.search("search", body, body))

    @router.post(
        "/annotate",
        response_model=schemas.SearchResponse,
        responses=_PROBLEMS,
        openapi_extra=_describe_body(schemas.AnnotateRequest, schemas.AnnotateForm, "The image, or several."),
    )
    async def annotate(request: Request) -> JsonResponse:
        """Find captions for images: uploaded as a form, stored ones by their ids, or by features."""
        if not _is_form(request):
            body = _validate(schemas.AnnotateRequest, await _read_json(request))
            request.state.queries = body.names
            return JsonResponse(await service.search("annotate", body, body))
        form, files = await _read_form(request, schemas.AnnotateForm, service.limits.batch, 8)
        if not files:
            raise Problem(422, "bad-request", "the form has no file; send one in the field 'image'.")
        query = FileQuery(files)
        request.state.queries = query.names
        return JsonResponse(await service.search("annotate", form, query))

    @router.post("/similar", response_model=schemas.SearchResponse, responses=_PROBLEMS)
    async def similar(body: schemas.SimilarRequest, request: Request) -> JsonResponse:
        """Find images similar to an image, or captions similar to a caption, by id or by features."""
        request.state.queries = body.names
        return JsonResponse(await service.find_similar(body))

    return router


def item_routes(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1/items", tags=["items"])

    async def send_image(item_id: str, request: Request, side: int) -> Response:
        image = await service.stored_image(item_id, side)
        headers = {"ETag": f'"{image.etag}"', "Cache-Control": "private, max-age=300"}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(image.content, media_type="image/webp", headers=headers)

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
        """Return the audio or video file of an item as it is, or a part of it (``Range``)."""
        return send_file(request, await service.stored_file(item_id))

    @router.get(
        "/{item_id:path}", response_model=schemas.ItemOut, responses=problem_responses(401, 404, 421, 429)
    )
    async def item(item_id: schemas.ItemPath) -> JsonResponse:
        """Return an item."""
        model = service.model
        if (item := await service.look_up(model.retriever.item, item_id)) is None:
            raise unknown_item(item_id)
        return JsonResponse(await service.look_up(model.describe_item, item))

    @router.post(
        "",
        status_code=201,
        response_model=schemas.AddResponse,
        responses={**_PROBLEMS, **problem_responses(409, 507)},
        openapi_extra=_describe_body(schemas.AddRequest, schemas.AddForm, "The image.", required=False),
    )
    async def add(request: Request) -> JsonResponse:
        """Add an image with its captions as a form, captions alone, or features; needs ``--writable``.

        The response is sent once all of it is on disk. Choose ids yourself to be able to repeat the request
        after a broken connection: 409 then means that the item was added.
        """
        _ = service.writer  # a read-only server does not read the body
        if _is_form(request):
            form, files = await _read_form(request, schemas.AddForm, 1, service.limits.batch + 2)
            body, file = schemas.AddRequest(**form.model_dump()), files[0] if files else None
        else:
            body, file = _validate(schemas.AddRequest, await _read_json(request)), None
        ids = await service.add(body, file)
        location = quote(ids["image"] or ids["captions"][0], safe="")
        return JsonResponse(ids, 201, {"Location": f"/v1/items/{location}"})

    @router.delete(
        "/{item_id:path}",
        response_model=schemas.RemoveResponse,
        responses={**_PROBLEMS, **problem_responses(507)},
    )
    async def remove(item_id: schemas.ItemPath) -> JsonResponse:
        """Remove an item, an image together with its captions; needs ``--writable``."""
        return JsonResponse({"removed": await service.remove(item_id)})

    return router


def about_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["about"], route_class=JsonRoute)

    @router.get("/v1/model", response_model=schemas.ModelOut, responses=problem_responses(401, 421, 429))
    async def model() -> JsonResponse:
        """Describe the model: its encoders, recalls, regularisation path and canonical spectrum."""
        description = await service.batcher.run(service.model.describe)
        names = ("k", "batch", "upload_bytes", "pixels", "text_characters")
        limits = {name: getattr(service.limits, name) for name in names}
        writable = service.holder.writer is not None
        return JsonResponse(description | {"limits": limits, "writable": writable})

    @router.get("/healthz", response_model=schemas.Health, responses=problem_responses(421))
    async def healthz() -> JsonResponse:
        """Tell that the server answers, and the version of its model."""
        return JsonResponse({"status": "ok", "version": service.model.version})

    @router.get(
        "/metrics",
        response_class=Response,
        responses={
            200: {"description": "Metrics.", "content": {"text/plain": {"schema": {"type": "string"}}}},
            **problem_responses(401, 421, 429),
        },
    )
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(await service.render_metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.post(
        "/v1/session",
        status_code=204,
        responses=problem_responses(400, 401, 403, 408, 413, 415, 421, 422, 429, 503),
    )
    async def session(body: schemas.SessionRequest, request: Request) -> Response:
        """Exchange the token for a cookie, which browsers also send when they load images."""
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


def _describe_body(
    kind: type[BaseModel], form_kind: type[BaseModel], about_image: str, *, required: bool = True
) -> dict[str, Any]:
    """Return the OpenAPI description of a body that is JSON, or a form with images."""
    template = "#/components/schemas/{model}"
    form = form_kind.model_json_schema(ref_template=template)
    form["title"] = form_kind.__name__
    for name in _JSON_FIELDS:
        if name in form["properties"]:
            about = form["properties"][name].get("description", name)
            form["properties"][name] = {"type": "string", "description": f"{about} As JSON."}
    files = {"type": "array", "items": {"type": "string", "format": "binary"}, "description": about_image}
    form["properties"] = {"image": files, **form["properties"]}
    form["required"] = ["image"] if required else []
    content = {
        "application/json": {"schema": kind.model_json_schema(ref_template=template)},
        "multipart/form-data": {"schema": form},
    }
    return {"requestBody": {"required": True, "content": content}}


def _is_form(request: Request) -> bool:
    """Return whether the body is a form; refuse anything else but JSON."""
    kind = media_type(request.headers)
    if kind not in ("multipart/form-data", "application/json"):
        raise Problem(415, "wrong-type", "send multipart/form-data with a file, or application/json.")
    return kind == "multipart/form-data"


async def _read_json(request: Request) -> Any:
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError):
        raise Problem(400, "no-json", "the request is not valid JSON.") from None


def _validate(kind: type[M], content: Any) -> M:
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise RequestValidationError(
            [each | {"loc": ("body", *each["loc"])} for each in error.errors()]
        ) from None


async def _read_form(
    request: Request, kind: type[M], max_files: int, max_fields: int
) -> tuple[M, list[FormFile]]:
    """Return the fields of a form, of which lists and objects are JSON, and its images."""
    async with request.form(max_files=max_files, max_fields=max_fields) as form:
        parts = [part for part in form.getlist("image") if isinstance(part, UploadFile)]
        files = [FormFile(part.filename or "", await part.read()) for part in parts]
    fields: dict[str, Any] = {}
    for name in set(form) - {"image"}:
        values = [part for part in form.getlist(name) if isinstance(part, str)]
        fields[name] = values if name == "captions" else (values[-1] if values else None)
        is_expression = name == "where" and not str(fields[name]).lstrip().startswith("{")
        if name in _JSON_FIELDS and not is_expression:
            try:
                fields[name] = json.loads(fields[name])
            except (ValueError, TypeError, RecursionError):
                raise Problem(422, "bad-request", f"{name}: it is not valid JSON.") from None
    return _validate(kind, fields), files
