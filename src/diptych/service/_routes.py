"""The routes of the HTTP API: searches, items, and the state of the server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile

from diptych._checks import with_article
from diptych.retrieval._items import VIEWS
from diptych.service import _schemas as schemas
from diptych.service._files import ANY_TYPE, MEDIA_TYPES, send_file, suffix
from diptych.service._images import IMAGE_SIDE, THUMBNAIL_SIDE
from diptych.service._limits import Problem, problem_responses, unknown_item
from diptych.service._model import LoadedModel, Queries
from diptych.service._security import COOKIE, media_type, secrets_equal, session_cookie
from diptych.service._writes import Upload, Writer

if TYPE_CHECKING:
    from diptych.service._app import Service

M = TypeVar("M", bound=BaseModel)

_JSON_FIELDS = ("where", "plus", "minus", "metadata")
"""Fields of a form that hold lists or objects."""

_PROBLEMS = problem_responses(400, 401, 403, 404, 408, 413, 415, 421, 422, 503)
_IMAGE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The image.", "content": {"image/webp": {"schema": {"type": "string"}}}},
    304: {"description": "It has not changed."},
    **problem_responses(401, 404, 421, 503),
}
_FILE = {
    "description": "The file.",
    "content": {t: {"schema": {"type": "string"}} for t in (*MEDIA_TYPES.values(), ANY_TYPE)},
}
_FILE_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: _FILE,
    206: _FILE | {"description": "A part of it."},
    304: {"description": "It has not changed."},
    **problem_responses(401, 404, 416, 421, 503),
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
        start, model = time.perf_counter(), service.model
        names = _query_names(body.features, body.text if body.text is not None else body.id)
        schemas.check_sizes(service.limits, queries=len(names), texts=names if body.text else None)
        schemas.check_page(service.limits, body, len(names))
        request.state.queries = names
        queries: Queries
        if body.features is not None:
            queries = await service.look_up(model.join_features, "text", body.features)
        elif body.text is None:
            queries = await service.item_features(model, "text", names)
        elif (reason := model.why_not_encoded("text")) is not None:
            raise Problem(422, "no-encoder", reason)
        else:
            queries = names
        options = await service.read_options(model, "text", body)
        hits = await service.batcher.search(model, "search", queries, body.k, **options)
        return await service.look_up(_respond, model, names, hits, body.weighting, start)

    @router.post(
        "/annotate",
        response_model=schemas.SearchResponse,
        responses=_PROBLEMS,
        openapi_extra=_describe_body(schemas.AnnotateRequest, schemas.AnnotateForm, "The image, or several."),
    )
    async def annotate(request: Request) -> JsonResponse:
        """Find captions for images: uploaded as a form, stored ones by their ids, or by features."""
        start, model = time.perf_counter(), service.model
        body: schemas.AnnotateForm | schemas.AnnotateRequest
        if _is_form(request):
            async with request.form(max_files=service.limits.batch, max_fields=8) as form:
                files = _form_images(form)
                body = _validate(schemas.AnnotateForm, _form_fields(form))
                names: list[Any] = [file.filename or "" for file in files]
                if not files:
                    raise Problem(422, "bad-request", "the form has no file; send one in the field 'image'.")
                schemas.check_page(service.limits, body, len(files))
                blocks = [
                    await service.encode_image(model, content=await file.read(), name=file.filename or "")
                    for file in files
                ]
                features = np.concatenate(blocks)
        else:
            body = _validate(schemas.AnnotateRequest, await _read_json(request))
            names = _query_names(body.features, body.text if body.text is not None else body.id)
            texts = names if body.text is not None else None
            schemas.check_sizes(service.limits, queries=len(names), texts=texts)
            schemas.check_page(service.limits, body, len(names))
            if body.features is not None:
                features = await service.look_up(model.join_features, "image", body.features)
            elif texts is not None:
                features = await service.encode_first_texts(model, texts)
            else:
                features = await service.item_features(model, "image", names)
        request.state.queries = names
        if body.packs:
            # One more tells whether there are further packs.
            found = await service.batcher.run(
                model.retriever.annotate, features, body.k + 1, offset=body.offset, packs=True
            )
            return await service.look_up(_respond, model, names, found, None, start, packs=body.k)
        options = await service.read_options(model, "image", body)
        hits = await service.batcher.search(model, "annotate", features, body.k, **options)
        return await service.look_up(_respond, model, names, hits, body.weighting, start)

    @router.post("/similar", response_model=schemas.SearchResponse, responses=_PROBLEMS)
    async def similar(body: schemas.SimilarRequest, request: Request) -> JsonResponse:
        """Find images similar to an image, or captions similar to a caption, by id or by features."""
        start, model = time.perf_counter(), service.model
        names = _query_names(body.features, body.id)
        schemas.check_page(service.limits, body, len(names))
        request.state.queries = names
        if body.view is not None and body.features is not None:
            view = body.view
            features = await service.look_up(model.join_features, view, body.features)
        else:
            item = await service.look_up(model.retriever.item, *names)
            view = item.view if item is not None else "image"
            features = await service.item_features(model, view, names)
        options = {str(view): features[0]} | await service.read_options(model, view, body)
        hits = await service.batcher.run(model.retriever.similar, k=body.k, **options)
        return await service.look_up(_respond, model, names, [hits], None, start)

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

    @router.get("/{item_id:path}", response_model=schemas.ItemOut, responses=problem_responses(401, 404, 421))
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
        writer = _writer(service)
        source: Upload | str | None = None
        features = caption_features = None
        if _is_form(request):
            async with request.form(max_files=1, max_fields=service.limits.batch + 2) as form:
                files = _form_images(form)
                body = _validate(schemas.AddForm, _form_fields(form, lists=("captions",)))
                if files:
                    own = "" if service.model.inputs == "images" else suffix(files[0].filename or "")
                    source = Upload(await files[0].read(), own)
        else:
            body = parsed = _validate(schemas.AddRequest, await _read_json(request))
            source, features, caption_features = parsed.text, parsed.features, parsed.caption_features
        captions: list[str | None] = [*body.captions]
        if not captions and caption_features is not None:
            captions = [None] * schemas.count_rows(caption_features)
        if source is None and features is None and not captions:
            nouns = " nor ".join(with_article(service.model.noun(view)) for view in VIEWS)
            raise Problem(422, "bad-request", f"the request has neither {nouns}; send one.")
        texts = [*body.captions, source] if isinstance(source, str) else body.captions
        schemas.check_sizes(service.limits, queries=max(1, len(captions)), texts=texts)

        async def encode(model: LoadedModel) -> tuple[np.ndarray[Any, Any] | None, schemas.Matrix | None]:
            reason = model.why_not_encoded("text") if captions and caption_features is None else None
            if reason is not None:
                raise Problem(422, "no-encoder", reason)
            rows = caption_rows = None
            if isinstance(source, str):
                rows = await service.encode_first_texts(model, [source])
            elif source is not None:
                rows = await service.encode_image(model, content=source.content, name=f"x{source.suffix}")
            elif features is not None:
                rows = await service.look_up(model.join_features, "image", features)
            if caption_features is not None:
                caption_rows = await service.look_up(model.join_features, "text", caption_features)
            return rows, caption_rows

        model = service.model
        rows, caption_rows = await encode(model)
        async with service.holder.writing:
            if service.model is not model:  # the new version may need other features
                rows, caption_rows = await encode(service.model)
            try:
                ids = await service.batcher.run(
                    writer.add,
                    service.model.retriever,
                    None if rows is None else (source, rows),
                    captions,
                    body.id,
                    body.metadata,
                    caption_rows,
                )
            except OSError as error:
                raise Problem(
                    507, "disk", f"the item could not be written to disk ({error.strerror})."
                ) from None
        service.save_if_due()
        location = quote(ids["image"] or ids["captions"][0], safe="")
        return JsonResponse(ids, 201, {"Location": f"/v1/items/{location}"})

    @router.delete("/{item_id:path}", response_model=schemas.RemoveResponse, responses=_PROBLEMS)
    async def remove(item_id: schemas.ItemPath) -> JsonResponse:
        """Remove an item, an image together with its captions; needs ``--writable``."""
        writer = _writer(service)
        async with service.holder.writing:
            removed = await service.batcher.run(writer.remove, service.model.retriever, item_id)
        service.save_if_due()
        return JsonResponse({"removed": removed})

    return router


def about_routes(service: Service) -> APIRouter:
    router = APIRouter(tags=["about"], route_class=JsonRoute)

    @router.get("/v1/model", response_model=schemas.ModelOut, responses=problem_responses(401, 421))
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
            **problem_responses(401, 421),
        },
    )
    async def metrics() -> Response:
        """Return metrics for Prometheus."""
        return Response(await service.render_metrics(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.post(
        "/v1/session",
        status_code=204,
        responses=problem_responses(400, 401, 403, 408, 413, 415, 421, 422, 503),
    )
    async def session(body: schemas.SessionRequest, request: Request) -> Response:
        """Exchange the token for a cookie, which browsers also send when they load images."""
        response = Response(status_code=204)
        if service.token is None:
            return response
        if not secrets_equal(body.token, service.token):
            await asyncio.sleep(0.3)  # slows down guessing
            raise Problem(401, "token-needed", "this is not the token of this server.")
        response.set_cookie(
            COOKIE,
            session_cookie(service.token),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return response

    return router


def _writer(service: Service) -> Writer:
    if service.holder.writer is None:
        raise Problem(403, "read-only", "this server is read-only; start it with --writable to change items.")
    return service.holder.writer


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


def _form_images(form: FormData) -> list[UploadFile]:
    return [part for part in form.getlist("image") if isinstance(part, UploadFile)]


def _form_fields(form: FormData, lists: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the fields of a form without its images; lists and objects are parsed as JSON."""
    fields: dict[str, Any] = {}
    for name in set(form) - {"image"}:
        values = [part for part in form.getlist(name) if isinstance(part, str)]
        fields[name] = values if name in lists else (values[-1] if values else None)
        expression = name == "where" and not str(fields[name]).lstrip().startswith("{")
        if name in _JSON_FIELDS and not expression:
            try:
                fields[name] = json.loads(fields[name])
            except (ValueError, TypeError, RecursionError):
                raise Problem(422, "bad-request", f"{name}: it is not valid JSON.") from None
    return fields


def _query_names(
    features: schemas.Matrix | dict[str, schemas.Matrix] | None, names: str | list[str] | None
) -> list[Any]:
    """Return the queries as the response repeats them: texts or ids, and None for each row of features."""
    if features is not None:
        return [None] * schemas.count_rows(features)
    return [names] if isinstance(names, str) else list(names or [])


def _respond(
    model: LoadedModel,
    names: list[Any],
    answers: list[Any],
    weighting: str | None,
    start: float,
    *,
    packs: int = 0,
) -> JsonResponse:
    """Return the hits of each query, or at most so many ``packs``."""
    results: list[dict[str, Any]] = [{"query": name} for name in names]
    for result, answer in zip(results, answers, strict=True):
        if packs:
            result["packs"] = [model.describe_pack(pack) for pack in answer[:packs]]
            result["more"] = len(answer) > packs
        else:
            result["hits"] = [model.describe_hit(hit) for hit in answer]
            result |= model.describe_hits(answer)
    seconds = round(time.perf_counter() - start, 6)
    weighting = weighting or model.weighting
    return JsonResponse(
        {"version": model.version, "weighting": weighting, "seconds": seconds, "results": results}
    )
