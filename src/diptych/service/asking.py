"""The routes that answer questions: search, annotate, similar."""

from __future__ import annotations

import json
import time
from typing import Any, TypeVar

import numpy as np
from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ValidationError
from starlette.datastructures import FormData, UploadFile

from diptych.retrieval import Hit, Pack
from diptych.service.answering import Queries
from diptych.service.answers import Found
from diptych.service.problems import Problem, documented
from diptych.service.responses import Json, JsonRoute, body_of, content_type
from diptych.service.schemas import (
    AnnotateRequest,
    Asked,
    SearchRequest,
    SimilarRequest,
    check_packs,
    check_sizes,
    count_rows,
)
from diptych.service.served import Served
from diptych.service.service import Service

M = TypeVar("M", bound=BaseModel)

PROBLEMS = documented(400, 401, 403, 404, 408, 413, 415, 421, 422, 503)


class UploadFields(Asked):
    """What a form may say beside its pictures."""

    packs: bool = False


def routes(service: Service) -> APIRouter:
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
            packs = await service.desk.run(served.retriever.annotate, rows, asked.k, packs=True)
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
