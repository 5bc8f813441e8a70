"""The routes of items: what they are, how they look, and, where that is allowed, adding and removing them."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import Response

from diptych.service.answers import Added, Removed, Shown
from diptych.service.asking import PROBLEMS, checked, fields, is_form, json_of, uploads
from diptych.service.pictures import THUMBNAIL, WHOLE
from diptych.service.problems import Problem, documented
from diptych.service.responses import Json, body_of
from diptych.service.schemas import AdditionFields, ItemPath, ItemRequest, check_sizes, count_rows
from diptych.service.served import Served
from diptych.service.service import Service
from diptych.service.writing import Writer, unknown

_PICTURE: dict[int | str, dict[str, Any]] = {
    200: {"description": "The picture.", "content": {"image/webp": {"schema": {"type": "string"}}}},
    304: {"description": "It has not changed."},
    **documented(401, 404, 421, 503),
}


def routes(service: Service) -> APIRouter:
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
