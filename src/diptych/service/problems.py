"""Errors as RFC 9457 problem details: one shape for all of them, one sentence in each."""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from diptych.checks import InputError
from diptych.image import UnreadableImage
from diptych.retrieval.collection import RefusedError, UnavailableError

log = logging.getLogger("diptych.service")

MEDIA_TYPE = "application/problem+json"
TYPES = "urn:problem-type:diptych:"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG})
"""Disks that take no more."""


class Problem(HTTPException):
    """A request that is not answered, and why.

    Parameters
    ----------
    status
        HTTP status code.
    kind
        Short name of the kind of problem, for programs.
    detail
        One sentence for people.
    headers
        More headers of the answer.
    more
        Extension members.
    """

    def __init__(
        self, status: int, kind: str, detail: str, headers: Mapping[str, str] | None = None, **more: Any
    ) -> None:
        super().__init__(status, detail, headers)
        self.kind, self.more = kind, more

    def content(self) -> dict[str, Any]:
        """The members of the problem."""
        return {
            "type": f"{TYPES}{self.kind}",
            "title": HTTPStatus(self.status_code).phrase,
            "status": self.status_code,
            "detail": self.detail,
            **self.more,
        }

    def response(self) -> Response:
        """The answer that says so."""
        body = json.dumps(self.content()).encode()
        return Response(body, self.status_code, dict(self.headers or {}), MEDIA_TYPE)


def busy(what: str) -> Problem:
    """All hands are at work."""
    return Problem(503, "busy", f"the server is busy ({what}); try again shortly.", {"Retry-After": "1"})


def as_problem(error: Exception) -> Problem:
    """Any error that a handler may raise, as a problem."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, UnreadableImage):
        return Problem(422, "unreadable-picture", str(error))
    if isinstance(error, UnavailableError):
        # The reason names a place that is nobody's business.
        return busy("what it searches is out of reach, or being replaced")
    if isinstance(error, RefusedError):
        log.warning("%s", error)
        return Problem(422, "bad-input", "the database refused this request; the server's log says why.")
    if isinstance(error, InputError):
        return Problem(422, "bad-input", str(error))
    if isinstance(error, RequestValidationError):
        found = [
            {"field": ".".join(str(part) for part in each["loc"][1:]), "detail": str(each["msg"])}
            for each in error.errors()
        ]
        first = found[0] if found else {"field": "", "detail": "it does not fit its description"}
        where = f"{first['field']}: " if first["field"] else ""
        return Problem(422, "bad-request", f"{where}{first['detail']}.", errors=found)
    if isinstance(error, HTTPException):
        return Problem(error.status_code, "http", str(error.detail), error.headers)
    if isinstance(error, OSError) and error.errno in FULL:
        return Problem(507, "disk", f"it could not be written ({error.strerror}).")
    return Problem(500, "defect", "the server met an error of its own; its log says which.")


def install(app: FastAPI) -> None:
    """Answer every error of ``app`` with a problem."""

    async def answer(_: Request, error: Exception) -> Response:
        return as_problem(error).response()

    # What is none of these is answered by the gate, whose headers an answer from further out would lack.
    for kind in (HTTPException, InputError, RequestValidationError):
        app.add_exception_handler(kind, answer)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problems that a route may answer with, for its OpenAPI description."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


SCHEMA: dict[str, Any] = {
    "title": "ProblemDetails",
    "description": "Why a request was not answered (RFC 9457).",
    "type": "object",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "examples": [f"{TYPES}unknown-item"]},
        "title": {"type": "string", "examples": ["Not Found"]},
        "status": {"type": "integer", "examples": [404]},
        "detail": {"type": "string", "examples": ["there is no item 'x'."]},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "detail": {"type": "string"}},
            },
        },
    },
}
