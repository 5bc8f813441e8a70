"""The routes that tell: the model, the server's health and counters, and the page."""

from __future__ import annotations

import asyncio
import hashlib
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.routing import Route

from diptych.service.answers import Health, ModelOut
from diptych.service.problems import Problem, documented
from diptych.service.responses import Json, JsonRoute
from diptych.service.schemas import SessionRequest
from diptych.service.security import COOKIE, same, session_of
from diptych.service.service import Service

TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def routes(service: Service) -> APIRouter:
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
