"""Limits of a server, and the problem details (RFC 9457) it answers with when it refuses a request."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from diptych._checks import InputError, UnavailableError
from diptych._database import MovedError
from diptych.encoders import UnreadableImage
from diptych.retrieval._filters import FilterError
from diptych.retrieval.stores._base import RefusedError

log = logging.getLogger("diptych.service")

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:problem-type:diptych:"
MAX_DETAIL = 1000
"""Characters of a message, which may quote a part of the request."""

_DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})


@dataclass(frozen=True)
class Limits:
    """Limits on requests, so that no client can use up the server. All must be positive.

    Parameters
    ----------
    upload_bytes, json_bytes
        Size of a request with images or other files, and of any other.
    pixels, text_characters
        Pixels of one image, and length of one text.
    k, batch
        Hits per query, and queries per request; also texts or features searched in one pass.
    concurrency, waiting
        Threads that search and encode, and requests that may wait for one; more are answered with 503.
    requests
        Requests being answered at once; the same number again for clients without the token.
    connections
        Connections whose request has not arrived; beyond it the one that has waited longest is closed.
    header_seconds, body_seconds
        Time to send the headers of a request, and its body; the latter also to read a part of the response.
    decoders, decode_seconds
        Processes that decode images, and the time for one image.
    thumbnail_bytes, file_bytes
        Memory for cached thumbnails, and size of an audio, video or other file that is sent as it is.
    audit_captions
        Captions of a library that is audited at a client's request, which takes minutes and much memory.

    Examples
    --------
    >>> Limits(k=50).k
    50
    """

    upload_bytes: int = 20 * 2**20
    json_bytes: int = 2**20
    pixels: int = 40_000_000
    k: int = 200
    batch: int = 64
    concurrency: int = 8
    waiting: int = 256
    requests: int = 1024
    connections: int = 1024
    header_seconds: float = 10.0
    decode_seconds: float = 10.0
    decoders: int = 2
    thumbnail_bytes: int = 64 * 2**20
    body_seconds: float = 30.0
    text_characters: int = 2000
    file_bytes: int = 2**30
    audit_captions: int = 100_000

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InputError(f"the limit {field.name}={value!r} is not positive; give a number above 0.")


class ProblemDetails(BaseModel):
    """Why a request was refused (RFC 9457)."""

    type: str = Field(examples=[f"{TYPE_PREFIX}unknown-item"])
    title: str
    status: int
    detail: str = Field(examples=["there is no item 'x'."])
    errors: list[dict[str, str]] = Field(default=[], description="The field and the detail of each error.")


class Problem(HTTPException):
    """A refused request: a status, a short name of the reason for programs, and a sentence for people."""

    def __init__(
        self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind, self.more = kind, more

    def response(self) -> Response:
        title = HTTPStatus(self.status_code).phrase
        content = {"type": f"{TYPE_PREFIX}{self.kind}", "title": title, "status": self.status_code}
        body = json.dumps(content | {"detail": self.detail} | self.more)
        return Response(body, self.status_code, dict(self.headers or {}), MEDIA_TYPE)


def busy(reason: str) -> Problem:
    return Problem(503, "busy", f"the server is busy ({reason}); try again shortly.", {"Retry-After": "1"})


class UnreadableFile(InputError):  # noqa: N818, the name describes the file
    """An encoder that reads files or texts of the first view itself cannot read one."""


class Slots:
    """A context manager for a limited number of calls at once; one more is refused as busy."""

    def __init__(self, limit: int, reason: str) -> None:
        self._limit, self._reason = limit, reason
        self.used = 0

    def __enter__(self) -> None:
        if self.used >= self._limit:
            raise busy(self._reason)
        self.used += 1

    def __exit__(self, *error: object) -> None:
        self.used -= 1


def invalid_request(errors: list[Any]) -> Problem:
    """Return the problem of a body in which pydantic found these errors."""
    fields = [
        {
            "field": ".".join(str(part) for part in error["loc"]),
            "detail": str(error["msg"]).removeprefix("Value error, "),
        }
        for error in errors
    ]
    field, detail = fields[0].values()
    kind = "bad-filter" if field == "where" else "bad-request"
    return Problem(422, kind, f"{field}: {detail}." if field else f"{detail}.", errors=fields)


def unknown_item(item_id: str) -> Problem:
    return Problem(404, "unknown-item", f"there is no item {item_id[:200]!r}.")


def as_problem(error: Exception) -> Problem:
    """Turn any error that a request handler raises into a problem."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, RequestValidationError):  # of the parameters of an address
        return invalid_request([{**part, "loc": part["loc"][1:]} for part in error.errors()])
    if isinstance(error, UnreadableImage):
        return Problem(422, "unreadable-image", str(error))
    if isinstance(error, UnreadableFile):
        return Problem(422, "unreadable-file", str(error))
    if isinstance(error, UnavailableError):
        # The error's own message names the folder or the database, which clients must not see.
        return busy("the database is unreachable, or the model is being replaced")
    if isinstance(error, RefusedError):
        log.warning("%s", error)
        return Problem(422, "bad-input", "the database refused this request; the server's log says why.")
    if isinstance(error, MovedError):
        return Problem(
            507,
            "disk",
            "the model folder was removed, replaced or moved, so it takes no changes; restart the server.",
        )
    if isinstance(error, FilterError):
        return Problem(422, "bad-filter", str(error)[:MAX_DETAIL])
    if isinstance(error, InputError):
        return Problem(422, "bad-input", str(error)[:MAX_DETAIL])
    if isinstance(error, HTTPException):
        return Problem(error.status_code, "http", str(error.detail), error.headers)
    if isinstance(error, OSError) and error.errno in _DISK_ERRORS:
        return Problem(507, "disk", f"the change could not be written to disk ({error.strerror}).")
    return Problem(500, "defect", "the server has an internal error; its log says which.")


async def answer_problem(_: Request, error: Exception) -> Response:
    """Answer an error with problem details; an exception handler of FastAPI."""
    return as_problem(error).response()


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of the problems a route may answer with."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
