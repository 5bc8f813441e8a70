"""Answers as JSON, and request bodies of two kinds as OpenAPI describes them.

The routes of items: what they are, how they look, and, where that is allowed, adding and removing them.

The routes that answer questions: search, annotate, similar.

The routes that tell: the model, the server's health and counters, and the page.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Coroutine
from importlib.resources import files
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile
from starlette.routing import Route

from diptych.retrieval import Hit, Pack
from diptych.service._batching import Queries
from diptych.service._images import THUMBNAIL, WHOLE
from diptych.service._model import Served, plain
from diptych.service._schemas import (
    AdditionFields,
    AnnotateRequest,
    Asked,
    ItemPath,
    ItemRequest,
    Problem,
    SearchRequest,
    SessionRequest,
    SimilarRequest,
    check_packs,
    check_sizes,
    count_rows,
    documented,
)
from diptych.service._security import COOKIE, same, session_of
from diptych.service._service import Added, Found, Health, ModelOut, Removed, Service, Shown
from diptych.service._writes import Writer, unknown

_PLACE = "#/components/schemas/{model}"


class Json(Response):
    """Plain ASCII JSON: any string a model or a user may hold can be written so."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of the answer."""
        try:
            return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()
        except (ValueError, TypeError):  # a model from elsewhere may hold numbers that JSON lacks
            return json.dumps(plain(content), allow_nan=False, separators=(",", ":")).encode()


class JsonRoute(APIRoute):
    """A route whose body, if it takes one, is JSON; anything else is refused before it is read."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """What answers a request."""
        answer = super().get_route_handler()

        async def checked(request: Request) -> Response:
            if self.body_field is not None and content_type(request) != "application/json":
                raise Problem(415, "wrong-type", "send application/json.")
            return await answer(request)

        return checked


def content_type(request: Request) -> str:
    """What a request says it carries."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def body_of(
    kind: type[BaseModel], fields: type[BaseModel], file: str, about: str, *, needed: bool = True
) -> dict[str, Any]:
    """The body of a route that takes JSON of a ``kind``, or a form of ``fields`` with files."""
    form = fields.model_json_schema(ref_template=_PLACE)
    form.pop("examples", None)
    form["title"] = f"{kind.__name__} as a form"
    form["properties"] = {
        file: {"type": "array", "items": {"type": "string", "format": "binary"}, "description": about},
        **{name: _as_field(name, schema) for name, schema in form["properties"].items()},
    }
    form["required"] = [file] if needed else []
    content = {
        "application/json": {"schema": kind.model_json_schema(ref_template=_PLACE)},
        "multipart/form-data": {"schema": form},
    }
    return {"requestBody": {"required": True, "content": content}}


def _as_field(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A field of a form is a string, whatever it stands for."""
    if name in ("where", "metadata"):
        return {"type": "string", "description": f"{schema.get('description', name)} As JSON."}
    return schema


_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The picture.", "content": {"image/webp": {"schema": {"type": "string"}}}},
    304: {"description": "It has not changed."},
    **documented(401, 404, 421, 503),
}


def item_routes(service: Service) -> APIRouter:
    """The routes of one server."""
    router = APIRouter(prefix="/v1/items", tags=["items"])

    async def picture(item_id: str, request: Request, side: int) -> Response:
        shown = await service.shown(item_id, side)
        headers = {"ETag": f'"{shown.etag}"', "Cache-Control": "private, max-age=300"}
        if request.headers.get("if-none-match") == headers["ETag"]:
            return Response(status_code=304, headers=headers)
        return Response(shown.content, media_type=shown.media_type, headers=headers)

    @router.get("/{item_id:path}/image", responses=_PICTURE, response_class=Response)
    async def image(item_id: ItemPath, request: Request) -> Response:
        """A picture of the index, decoded and written anew, at most 1600 pixels wide and high."""
        return await picture(item_id, request, WHOLE)

    @router.get("/{item_id:path}/thumbnail", responses=_PICTURE, response_class=Response)
    async def thumbnail(item_id: ItemPath, request: Request) -> Response:
        """A small copy of a picture of the index, at most 320 pixels wide and high."""
        return await picture(item_id, request, THUMBNAIL)

    @router.get("/{item_id:path}", response_model=Shown, responses=documented(401, 404, 421))
    async def item(item_id: ItemPath) -> Json:
        """What is known of an item."""
        served = service.served
        if (found := await service.look(served.item, item_id)) is None:
            raise unknown(item_id)
        return Json(await service.look(served.shown, found))

    @router.post(
        "",
        status_code=201,
        response_model=Added,
        responses={**PROBLEMS, **documented(409, 507)},
        openapi_extra=body_of(ItemRequest, AdditionFields, "image", "The picture.", needed=False),
    )
    async def add(request: Request) -> Json:
        """Add a picture with its captions as a form, captions alone, or by features; with ``--writable``.

        It is answered once all of it is on the disk. Give an id of your own to be able to ask again after
        a broken connection: 409 then means that it is there.
        """
        writer = _writer(service)
        content: bytes | None = None
        asked: AdditionFields | ItemRequest
        if is_form(request):
            async with request.form(max_files=1, max_fields=service.limits.batch + 2) as form:
                files = uploads(form)
                asked = checked(AdditionFields, fields(form, "image", lists=("captions",)))
                content = await files[0].read() if files else None
        else:
            asked = checked(ItemRequest, await json_of(request))
        features, told = (
            (asked.features, asked.caption_features) if isinstance(asked, ItemRequest) else (None,) * 2
        )
        captions: list[str | None] = [*asked.captions] or [None] * (0 if told is None else count_rows(told))
        if content is None and features is None and not captions:
            raise Problem(422, "bad-request", "there is neither a picture nor a caption; give at least one.")
        check_sizes(service.limits, queries=max(1, len(captions)), texts=asked.captions)

        async def rows_of(served: Served) -> tuple[Any, Any]:
            if captions and told is None and (missing := served.missing("text")) is not None:
                raise Problem(422, "no-encoder", missing)
            rows = None if features is None else served.rows("image", features)
            if content is not None:
                rows = await service.features(served, content=content)
            return rows, None if told is None else served.rows("text", told)

        served = service.served
        rows, caption_rows = await rows_of(served)
        async with service.shelf.writing:
            if service.served is not served:  # a new version, of other features
                rows, caption_rows = await rows_of(service.served)
            try:
                added = await service.desk.run(
                    writer.add,
                    service.served.retriever,
                    None if rows is None else (content, rows),
                    captions,
                    asked.id,
                    asked.metadata,
                    caption_rows,
                )
            except OSError as error:
                raise Problem(507, "disk", f"it could not be written ({error.strerror}).") from None
        service.fold_later()
        first = added["image"] or added["captions"][0]
        return Json(added, 201, {"Location": f"/v1/items/{quote(first, safe='')}"})

    @router.delete("/{item_id:path}", response_model=Removed, responses=PROBLEMS)
    async def remove(item_id: ItemPath) -> Json:
        """Remove an item, a picture with its captions; only with ``--writable``."""
        writer = _writer(service)
        async with service.shelf.writing:
            gone = await service.desk.run(writer.remove, service.served.retriever, item_id)
        service.fold_later()
        return Json({"removed": gone})

    return router


def _writer(service: Service) -> Writer:
    if service.shelf.writer is None:
        raise Problem(403, "read-only", "this server changes nothing; start it with --writable to allow it.")
    return service.shelf.writer


M = TypeVar("M", bound=BaseModel)

PROBLEMS = documented(400, 401, 403, 404, 408, 413, 415, 421, 422, 503)


class UploadFields(Asked):
    """What a form may say beside its pictures."""

    packs: bool = False


def search_routes(service: Service) -> APIRouter:
    """The routes of one server."""
    router = APIRouter(prefix="/v1", tags=["search"], route_class=JsonRoute)

    @router.post("/search", response_model=Found, responses=PROBLEMS)
    async def search(asked: SearchRequest, request: Request) -> Json:
        """Pictures for sentences, or for their features: the best of the index, and how well each fits."""
        start, served = time.perf_counter(), service.served
        queries = _queries(asked.features, asked.text if asked.text is not None else asked.id)
        check_sizes(service.limits, k=asked.k, queries=len(queries), texts=queries if asked.text else None)
        request.state.queries = queries
        rows: Queries
        if asked.features is not None:
            rows = served.rows("text", asked.features)
        elif asked.text is None:
            rows = await service.features_of(served, "text", queries)
        elif (missing := served.missing("text")) is not None:
            raise Problem(422, "no-encoder", missing)
        else:
            rows = queries
        found = await service.found(served, "search", rows, asked.k, asked.where, asked.weighting)
        return await service.look(_answer, served, queries, found, asked.weighting, start)

    @router.post(
        "/annotate",
        response_model=Found,
        responses=PROBLEMS,
        openapi_extra=body_of(AnnotateRequest, UploadFields, "image", "The picture, or several."),
    )
    async def annotate(request: Request) -> Json:
        """Captions for pictures: uploaded as a form, of the index by their ids, or by their features."""
        start, served = time.perf_counter(), service.served
        asked: UploadFields | AnnotateRequest
        if is_form(request):
            async with request.form(max_files=service.limits.batch, max_fields=8) as form:
                files = uploads(form)
                asked = checked(UploadFields, fields(form, "image"))
                queries: list[Any] = [file.filename or "" for file in files]
                _check(service, asked, len(files))
                blocks = [await service.features(served, content=await file.read()) for file in files]
                rows = np.concatenate(blocks)
        else:
            asked = checked(AnnotateRequest, await json_of(request))
            queries = _queries(asked.features, asked.id)
            _check(service, asked, len(queries))
            if asked.features is not None:
                rows = served.rows("image", asked.features)
            else:
                rows = await service.features_of(served, "image", queries)
        request.state.queries = queries
        if asked.packs:
            packs: Any = await service.desk.run(served.retriever.annotate, rows, asked.k, packs=True)
            return await service.look(_packed, served, queries, packs, start)
        found = await service.found(served, "annotate", rows, asked.k, asked.where, asked.weighting)
        return await service.look(_answer, served, queries, found, asked.weighting, start)

    @router.post("/similar", response_model=Found, responses=PROBLEMS)
    async def similar(asked: SimilarRequest, request: Request) -> Json:
        """Pictures like a picture, or captions like a caption: of the index, or by its features."""
        start, served = time.perf_counter(), service.served
        queries = _queries(asked.features, asked.id)
        check_sizes(service.limits, k=asked.k)
        request.state.queries = queries
        if len(queries) > 1:
            raise Problem(422, "bad-request", "features: give those of one item.")
        if asked.view is not None:
            view, rows = asked.view, served.rows(asked.view, asked.features)
        else:
            item = await service.look(served.item, *queries)
            view = item.view if item is not None else "image"
            rows = await service.features_of(served, view, queries)
        found = await service.desk.run(
            served.retriever.similar, **{str(view): rows[0]}, k=asked.k, where=asked.where
        )
        return await service.look(_answer, served, queries, [found], None, start)

    return router


def is_form(request: Request) -> bool:
    """Whether a request carries a form; anything but that and JSON is refused."""
    kind = content_type(request)
    if kind not in ("multipart/form-data", "application/json"):
        raise Problem(415, "wrong-type", "send multipart/form-data with a picture, or application/json.")
    return kind == "multipart/form-data"


async def json_of(request: Request) -> Any:
    """The JSON that a request carries."""
    try:
        return json.loads(await request.body())
    except (ValueError, RecursionError):
        raise Problem(400, "no-json", "the request is not valid JSON.") from None


def checked(kind: type[M], content: Any) -> M:
    """``content`` as a ``kind``."""
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        found = [each | {"loc": ("body", *each["loc"])} for each in error.errors()]
        raise RequestValidationError(found) from None


def uploads(form: FormData, name: str = "image") -> list[UploadFile]:
    """The files of a form."""
    return [part for part in form.getlist(name) if isinstance(part, UploadFile)]


def fields(form: FormData, *files: str, lists: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a form says in words; ``where`` and ``metadata`` are JSON."""
    said: dict[str, Any] = {}
    for name in form:
        if name in files:
            continue
        values = [part for part in form.getlist(name) if isinstance(part, str)]
        said[name] = values if name in lists else (values[-1] if values else None)
        if name in ("where", "metadata"):
            try:
                said[name] = json.loads(said[name])
            except (ValueError, TypeError, RecursionError):
                raise Problem(422, "bad-request", f"{name}: it is not valid JSON.") from None
    return said


def _queries(features: Any, named: str | list[str] | None) -> list[Any]:
    """What was asked, for the answer to repeat: sentences or ids; features have no name."""
    if features is not None:
        return [None] * count_rows(features)
    return [named] if isinstance(named, str) else list(named or [])


def _check(service: Service, asked: UploadFields | AnnotateRequest, queries: int) -> None:
    if queries < 1:
        raise Problem(422, "bad-request", "there is no picture; send one as the file field 'image'.")
    try:
        check_packs(asked.packs, asked.where, asked.weighting)
    except ValueError as error:
        raise Problem(422, "bad-request", f"{error}.") from None
    check_sizes(service.limits, k=asked.k, queries=queries)


def _answer(
    served: Served, queries: list[Any], found: list[list[Hit]], weighting: str | None, start: float
) -> Json:
    results = [
        {
            "query": query,
            "hits": [served.hit(hit) for hit in hits],
            "ignored_words": list(getattr(hits, "ignored_words", ())),
        }
        for query, hits in zip(queries, found, strict=True)
    ]
    return _said(served, results, weighting, start)


def _packed(served: Served, queries: list[Any], found: list[list[Pack]], start: float) -> Json:
    results = [
        {"query": query, "packs": [served.pack(pack) for pack in own]}
        for query, own in zip(queries, found, strict=True)
    ]
    return _said(served, results, None, start)


def _said(served: Served, results: list[dict[str, Any]], weighting: str | None, start: float) -> Json:
    return Json(
        {
            "version": served.version,
            "weighting": weighting or served.weighting,
            "seconds": round(time.perf_counter() - start, 6),
            "results": results,
        }
    )


TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def about_routes(service: Service) -> APIRouter:
    """The routes of one server."""
    router = APIRouter(tags=["about"], route_class=JsonRoute)

    @router.get("/v1/model", response_model=ModelOut, responses=documented(401, 421))
    async def model() -> Json:
        """What the model is, how good it is, its regularisation path and canonical spectrum."""
        served, limits = service.served, service.limits
        told = await service.desk.run(served.describe)
        bounds = {
            "k": limits.k,
            "batch": limits.batch,
            "upload_bytes": limits.upload_bytes,
            "pixels": limits.pixels,
            "text_characters": limits.text_characters,
        }
        return Json(told | {"limits": bounds, "writable": service.shelf.writer is not None})

    @router.get("/healthz", response_model=Health, responses=documented(421))
    async def healthz() -> Json:
        """Whether this server answers, and with which version of the model."""
        return Json({"status": "ok", "version": service.served.version})

    @router.get(
        "/metrics",
        response_class=Response,
        responses={
            200: {"description": "Counters.", "content": {"text/plain": {"schema": {"type": "string"}}}},
            **documented(401, 421),
        },
    )
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(await service.counters(), headers={"Content-Type": CONTENT_TYPE_LATEST})

    @router.post(
        "/v1/session", status_code=204, responses=documented(400, 401, 403, 408, 413, 415, 421, 422, 503)
    )
    async def session(asked: SessionRequest, request: Request) -> Response:
        """Give the token once, and have it remembered by a cookie: pictures carry no other proof."""
        answer = Response(status_code=204)
        if service.token is None:
            return answer
        if not same(asked.token, service.token):
            await asyncio.sleep(0.3)  # a guess costs time
            raise Problem(401, "token-needed", "this is not the token of this server.")
        safe = request.url.scheme == "https"
        answer.set_cookie(COOKIE, session_of(service.token), httponly=True, samesite="strict", secure=safe)
        return answer

    return router


class Page:
    """The page's files, read once: a request chooses among them by name and reaches no file system."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[bytes, str, str]] = {}
        for file in files("diptych.service").joinpath("page").iterdir():
            kind = TYPES.get(file.name.rpartition(".")[2])
            if kind is not None:
                content = file.read_bytes()
                etag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
                place = "/" if file.name == "index.html" else f"/{file.name}"
                self._files[place] = (content, kind, etag)

    def __contains__(self, path: object) -> bool:
        return path in self._files

    def routes(self) -> list[Any]:
        """One route for each file."""
        return [Route(path, self._answer, methods=["GET"]) for path in self._files]

    async def _answer(self, request: Request) -> Response:
        content, kind, etag = self._files[request.url.path]
        headers = {"ETag": etag, "Cache-Control": "no-cache"}
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(content, media_type=kind, headers=headers)
