"""What one server gives at most, so that no request takes everything.

Errors as RFC 9457 problem details: one shape for all of them, one sentence in each.

What may be asked, and how much of it.
"""

from __future__ import annotations

import errno
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from http import HTTPStatus
from typing import Annotated, Any, Literal, Self, TypeAlias
from urllib.parse import unquote

import numpy as np
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
    model_validator,
)
from starlette.exceptions import HTTPException

from diptych._checks import InputError, count
from diptych.image import UnreadableImage
from diptych.retrieval.stores._base import RefusedError, UnavailableError


@dataclass(frozen=True)
class Limits:
    """Bounds of a server; every one of them is refused politely beyond, and can be moved.

    Attributes
    ----------
    upload_bytes
        Of a request that carries pictures, all of it.
    json_bytes
        Of any other request.
    pixels
        Of one picture.
    k
        Answers to one query.
    batch
        Queries of one request.
    concurrency
        Threads that search and encode.
    waiting
        Questions that may wait for a thread; more are told to come back.
    requests
        Requests that have arrived and are open at once; as many again without the token.
    unfinished, unfinished_per_address
        Connections whose request has not arrived, in all and of one address; beyond, the oldest is closed.
    header_seconds
        To send the headers of a request.
    decode_seconds
        To open one picture.
    decoders
        Processes that open pictures.
    thumbnail_bytes
        Of memory for thumbnails.
    body_seconds
        To send a request, and to read some of its answer.
    text_characters
        Of one sentence.
    """

    upload_bytes: int = 20 * 2**20
    json_bytes: int = 2**20
    pixels: int = 40_000_000
    k: int = 200
    batch: int = 64
    concurrency: int = 8
    waiting: int = 256
    requests: int = 1024
    unfinished: int = 1024
    unfinished_per_address: int = 256
    header_seconds: float = 10.0
    decode_seconds: float = 10.0
    decoders: int = 2
    thumbnail_bytes: int = 64 * 2**20
    body_seconds: float = 30.0
    text_characters: int = 2000

    def __post_init__(self) -> None:
        """Refuse a bound that nothing could keep."""
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise InputError(f"the limit {field.name}={value!r} is not above 0; give a positive number.")


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


MAX_ID = 512
MAX_METADATA = 16_384
MAX_FILTER_NAMES, MAX_FILTER_VALUES = 16, 64

WeightingName = Literal["asymmetric", "search-generation", "symmetric", "none"]


def _printable(text: str) -> str:
    """Text that every file and terminal can hold."""
    if any(0xD800 <= ord(c) <= 0xDFFF or (ord(c) < 32 and c not in "\t\n\r") or ord(c) == 127 for c in text):
        raise ValueError("it holds half a character or a control character")
    return text


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty: give at least one word")
    return _printable(text)


Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


def _matrix(given: Any) -> Matrix:
    """A list of numbers, or several such lists, as rows of float32."""
    rows = given if isinstance(given, list) and given and isinstance(given[0], list) else [given]
    if not all(isinstance(row, list) and row and len(row) == len(rows[0]) for row in rows):
        raise ValueError("it is no list of numbers, nor a list of such lists of one length")
    if not all(type(value) in (int, float) for row in rows for value in row):
        raise ValueError("it holds something that is no number")
    try:
        with np.errstate(over="ignore"):
            matrix = np.array(rows, np.float64).astype(np.float32)
    except OverflowError:
        matrix = np.array([np.inf], np.float32)
    if not np.isfinite(matrix).all():
        raise ValueError("it holds NaN, infinity or a number beyond float32")
    return matrix


def _features(given: Any) -> Matrix | dict[str, Matrix] | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        return _matrix(given)
    if not given:
        raise ValueError("it names no block")
    blocks = {str(name): _matrix(rows) for name, rows in given.items()}
    if len({len(rows) for rows in blocks.values()}) > 1:
        raise ValueError("its blocks differ in their number of rows")
    return blocks


_ROW: dict[str, Any] = {"type": "array", "items": {"type": "number"}, "minItems": 1}
_ROWS: dict[str, Any] = {"type": "array", "items": _ROW, "minItems": 1}
_BLOCKS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"anyOf": [_ROW, _ROWS]},
    "minProperties": 1,
}

# Checked as a whole: a list of errors for each of some thousand numbers helps nobody.
Features = Annotated[
    Any, AfterValidator(_features), WithJsonSchema({"anyOf": [_ROW, _ROWS, _BLOCKS, {"type": "null"}]})
]
"""Rows of numbers from the encoders that the model was made with, as one block or as named blocks."""

ABOUT_FEATURES = (
    "Numbers from the encoder that the model was made with: a list, or several. For a model of named blocks, "
    "an object from their names to such lists. /v1/model tells how many numbers."
)

Text = Annotated[str, Field(min_length=1), AfterValidator(_said)]
ItemId = Annotated[str, Field(min_length=1, max_length=MAX_ID), AfterValidator(_printable)]
ItemPath = Annotated[str, AfterValidator(unquote)]
"""An id in the path of a request, as it was sent."""

Plain = str | bool | int | Annotated[float, Field(allow_inf_nan=False)] | None
Where = Annotated[
    dict[
        Annotated[str, Field(max_length=MAX_ID)],
        Plain | Annotated[list[Plain], Field(max_length=MAX_FILTER_VALUES)],
    ],
    Field(max_length=MAX_FILTER_NAMES),
]


class RequestBody(BaseModel):
    """What every request has in common: nothing that is not asked for is taken."""

    model_config = ConfigDict(extra="forbid")


class Asked(RequestBody):
    """How many answers, among which items, under which weighting."""

    k: Annotated[int, Field(ge=1, description="How many answers to each query.")] = 12
    where: Where | None = Field(
        None, description="Only items whose metadata has these values; of a list, one of them."
    )
    weighting: WeightingName | None = Field(
        None,
        description="Another weighting than the model's own: asymmetric is query generation, none is CCA.",
    )


class SearchRequest(Asked):
    """Pictures for sentences, or for captions of the index by their ids."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"text": "a red star at night", "k": 5},
                {"text": ["two boats on the sea", "three blue umbrellas"], "where": {"split": "test"}},
                {"id": "images/scene-000007.png#2", "weighting": "none"},
                {"features": [0.12, -1.5, 0.7], "k": 5},
                {"features": {"words": [0.12, -1.5], "tones": [0.7, 0.1, -0.3]}},
            ]
        },
    )
    text: Text | list[Text] | None = Field(None, description="A sentence, or several.")
    id: ItemId | list[ItemId] | None = Field(None, description="A caption of the index, or several.")
    features: Features = Field(None, description=ABOUT_FEATURES)

    @model_validator(mode="after")
    def one_query(self) -> Self:
        """Sentences, ids or features."""
        _one_of(text=self.text, id=self.id, features=self.features)
        return self


class AnnotateRequest(Asked):
    """Captions for pictures of the index, or for features."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"id": "images/scene-000007.png", "k": 5},
                {"features": [[0.12, -1.5, 0.7], [0.3, 0.0, -2.0]]},
                {"features": {"resnet": [0.12, -1.5], "dino": [0.7, 0.1, -0.3]}},
            ]
        },
    )
    id: ItemId | list[ItemId] | None = Field(None, description="A picture of the index, or several.")
    features: Features = Field(None, description=ABOUT_FEATURES)
    packs: bool = Field(False, description="Find all captions of one picture as a whole.")

    @model_validator(mode="after")
    def one_query(self) -> Self:
        """Ids or features; packs are found among all pictures, as the model is."""
        _one_of(id=self.id, features=self.features)
        check_packs(self.packs, self.where, self.weighting)
        return self


class SimilarRequest(RequestBody):
    """Pictures like a picture, or captions like a caption: of the index, or by features."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"id": "images/scene-000007.png"},
                {"features": [0.12, -1.5, 0.7], "view": "image"},
            ]
        },
    )
    id: ItemId | None = Field(None, description="An item of the index.")
    features: Features = Field(None, description=ABOUT_FEATURES)
    view: Literal["image", "text"] | None = Field(None, description="What the features are of.")
    k: Annotated[int, Field(ge=1)] = 12
    where: Where | None = None

    @model_validator(mode="after")
    def one_query(self) -> Self:
        """An id, or features of a view."""
        _one_of(id=self.id, features=self.features)
        if (self.features is None) != (self.view is None):
            raise ValueError("give view with features, and only then")
        return self


class Addition(RequestBody):
    """What is added, beside a picture."""

    id: ItemId | None = Field(
        None, description="Of the picture; its captions get it with # and a number. None: one is made up."
    )
    metadata: dict[str, JsonValue] = Field(default_factory=dict, description="Plain values to filter by.")

    @model_validator(mode="after")
    def small_metadata(self) -> Self:
        """What is kept of an item is bounded."""
        check_metadata(self.metadata)
        return self


class AdditionFields(Addition):
    """What a form may say beside its picture."""

    captions: list[Text] = Field(default_factory=list, description="Its captions.")


class ItemRequest(Addition):
    """Captions to add, with or without a picture, by themselves or by features."""

    model_config = ConfigDict(
        extra="forbid",
        json_schema_extra={
            "examples": [
                {"captions": ["a red star at night"]},
                {"id": "photo-17", "features": [0.12, -1.5, 0.7], "metadata": {"album": "2024"}},
                {
                    "id": "photo-18",
                    "features": [0.12, -1.5, 0.7],
                    "captions": ["a red star"],
                    "caption_features": [[0.3, 0.1]],
                },
            ]
        },
    )
    captions: list[Text] = Field(default_factory=list, description="Captions.")
    features: Features = Field(None, description=f"Of one picture. {ABOUT_FEATURES}")
    caption_features: Features = Field(
        None, description="Of the captions, one list for each, where the model cannot make them itself."
    )

    @model_validator(mode="after")
    def something(self) -> Self:
        """What is given together belongs together."""
        if self.features is not None and count_rows(self.features) != 1:
            raise ValueError("features are of one picture; add one at a time")
        if self.caption_features is None:
            return self
        rows = count_rows(self.caption_features)
        if self.captions and rows != len(self.captions):
            raise ValueError(f"there are {rows} rows of caption_features for {len(self.captions)} captions")
        return self


class SessionRequest(RequestBody):
    """The token, once; the page is given a cookie for it."""

    token: Annotated[str, Field(max_length=1024)]


def count_rows(features: Matrix | dict[str, Matrix]) -> int:
    """How many queries or items features are of."""
    return len(features if isinstance(features, np.ndarray) else next(iter(features.values())))


def _one_of(**given: Any) -> None:
    if sum(value is not None for value in given.values()) != 1:
        *names, last = given
        raise ValueError(f"give {', '.join(names)} or {last}, one of them")


def check_packs(packs: bool, where: object, weighting: object) -> None:
    """Refuse what packs cannot be combined with."""
    if packs and (where is not None or weighting is not None):
        raise ValueError("packs are found among all pictures, as the model is: leave out where and weighting")


def check_metadata(metadata: dict[str, Any]) -> None:
    """Refuse what is no small JSON object."""
    try:
        written = json.dumps(metadata, ensure_ascii=False, allow_nan=False)
        written.encode()
    except (ValueError, RecursionError):
        raise ValueError("metadata must hold plain JSON values") from None
    if len(written) > MAX_METADATA:
        raise ValueError(f"metadata has {len(written)} characters; at most {MAX_METADATA} are kept")


def check_sizes(limits: Limits, *, k: int = 1, queries: int = 1, texts: list[str] | None = None) -> None:
    """Refuse what is beyond the bounds of this server."""
    if k > limits.k:
        raise InputError(f"k={k} is more than this server gives; ask for {limits.k} at most.")
    if queries > limits.batch:
        raise InputError(f"one request has {count(queries, 'query')}; at most {limits.batch} are taken.")
    if queries < 1:
        raise InputError("there are no queries; give at least one.")
    longest = max(map(len, texts or [""]))
    if longest > limits.text_characters:
        raise InputError(f"a sentence has {longest} characters; at most {limits.text_characters} are taken.")
