"""Bodies of requests and responses, checked by pydantic and described by OpenAPI."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self, TypeAlias
from urllib.parse import unquote

import numpy as np
from fastapi import Request
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    InstanceOf,
    JsonValue,
    SkipValidation,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema
from starlette.datastructures import UploadFile

from diptych._checks import InputError, count
from diptych.retrieval._inputs import MAX_WEIGHT, read_listing
from diptych.retrieval.stores._base import Listing
from diptych.service._files import Upload
from diptych.service._limits import Limits, Problem, invalid_request
from diptych.service._security import media_type

MAX_ID = 512
MAX_METADATA = 16_384
MAX_WEIGHTING = 1024
MAX_FILTER = 16_384
MAX_PARTS = 16
NDJSON = "application/x-ndjson"

Matrix: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]


def _check_characters(text: str) -> str:
    if any(0xD800 <= ord(c) <= 0xDFFF or (ord(c) < 32 and c not in "\t\n\r") or ord(c) == 127 for c in text):
        raise ValueError("it contains an unpaired surrogate or a control character")
    return text


def _check_text(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty; give at least one word")
    return _check_characters(text)


def _as_list(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError("expected a string, or a list of strings")
    return [value] if isinstance(value, str) else value


def _parse_matrix(value: Any) -> Matrix:
    """Convert a list of numbers, or a list of such lists, to rows of float32."""
    rows = value if isinstance(value, list) and value and isinstance(value[0], list) else [value]
    if not all(isinstance(row, list) and row and len(row) == len(rows[0]) for row in rows):
        raise ValueError("expected a list of numbers, or several such lists of one length")
    if not all(type(number) in (int, float) for row in rows for number in row):
        raise ValueError("it contains a value that is not a number")
    try:
        with np.errstate(over="ignore"):
            matrix = np.array(rows, np.float64).astype(np.float32)
    except OverflowError:
        matrix = np.array([np.inf], np.float32)
    if not np.isfinite(matrix).all():
        raise ValueError("it contains NaN, infinity or a number beyond the range of float32")
    if not matrix.any(axis=1).all():
        raise ValueError("it has a row with only zeros")
    return matrix


def _parse_features(value: Any) -> Matrix | dict[str, Matrix] | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        return _parse_matrix(value)
    if not value:
        raise ValueError("expected at least one named block")
    blocks = {str(name): _parse_matrix(rows) for name, rows in value.items()}
    if len({len(rows) for rows in blocks.values()}) > 1:
        raise ValueError("its blocks have different numbers of rows")
    return blocks


def _check_where(where: Any) -> Any:
    if not isinstance(where, dict | str):
        raise ValueError("expected an object, or an expression")
    return _check_length(where, MAX_FILTER)


def _check_length(value: Any, most: int) -> Any:
    """Refuse an expression, or an object as JSON, that is too long."""
    try:
        content = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, allow_nan=False)
        content.encode()
    except (ValueError, RecursionError):
        raise ValueError("it must be plain JSON values") from None
    if len(content) > most:
        raise ValueError(f"it has {len(content)} characters; at most {most} are accepted")
    return value


_ROW = {"type": "array", "items": {"type": "number"}, "minItems": 1}
_ROWS = {"type": "array", "items": _ROW, "minItems": 1}
_BLOCKS = {"type": "object", "additionalProperties": {"anyOf": [_ROW, _ROWS]}, "minProperties": 1}

# Checked as a whole: one error for each of some thousand numbers would help nobody.
Features = Annotated[
    SkipValidation[Matrix | dict[str, Matrix] | None],
    BeforeValidator(_parse_features),
    WithJsonSchema({"anyOf": [_ROW, _ROWS, _BLOCKS, {"type": "null"}]}),
]
"""Features from the encoder the model was fitted with, as one block or as named blocks."""

ABOUT_FEATURES = (
    "Features from the encoder the model was fitted with: a list of numbers, or several such lists. For a "
    "model of named blocks, an object with such a value for each name. /v1/model has the expected lengths."
)

Text = Annotated[str, Field(min_length=1), AfterValidator(_check_text)]
ItemId = Annotated[str, Field(min_length=1, max_length=MAX_ID), AfterValidator(_check_characters)]
Texts = Annotated[list[Text], BeforeValidator(_as_list, json_schema_input_type=Text | list[Text])]
ItemIds = Annotated[list[ItemId], BeforeValidator(_as_list, json_schema_input_type=ItemId | list[ItemId])]
ItemPath = Annotated[str, AfterValidator(unquote)]
"""An item id in the path of a request, still percent-encoded."""

Where = Annotated[
    SkipValidation[dict[str, Any] | str],
    AfterValidator(_check_where),
    WithJsonSchema({"anyOf": [{"type": "object"}, {"type": "string", "maxLength": MAX_FILTER}]}),
]
"""A filter, whose meaning ``diptych.retrieval`` checks."""

ABOUT_WHERE = (
    "Only items with this metadata: a value, or a list of accepted values, per key; an object of the "
    "operators $eq $ne $gt $gte $lt $lte $in $nin $exists per key, joined by $and $or $not; or an expression "
    'such as year >= 2010 and tag = "beach".'
)


def _examples(*examples: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"examples": list(examples)})


Files = SkipJsonSchema[list[InstanceOf[Upload]]]
"""Files of a form; JSON has none."""

JSON_FIELDS = frozenset({"where", "plus", "minus", "metadata"})
"""Fields of a form that hold lists or objects, as JSON."""

LIST_FIELDS = frozenset({"captions", "text"})
"""Fields of a form that are repeated for several values."""


class RequestBody(BaseModel):
    """Base class of request bodies; unknown fields are refused.

    ``form_fields`` are the fields that a form may have beside its images; without any, a body is JSON.
    """

    model_config = ConfigDict(extra="forbid", arbitrary_types_allowed=True)
    form_fields: ClassVar[frozenset[str]] = frozenset()

    @classmethod
    async def parse(cls, request: Request, limits: Limits) -> Self:
        """Read and check the body of a request."""
        kind = media_type(request.headers)
        if kind == "multipart/form-data" and cls.form_fields:
            content = await cls._read_form(request, limits)
        elif kind == "application/json":
            content = _parse_json(await request.body())
        else:
            form = "multipart/form-data with a file, or " if cls.form_fields else ""
            raise Problem(415, "wrong-type", f"send {form}application/json.")
        body = cls.check(content, limits)
        request.state.queries = body.names
        return body

    @classmethod
    def check(cls, content: Any, limits: Limits) -> Self:
        """Return a body of this content."""
        try:
            body = cls.model_validate(content)
        except ValidationError as error:
            raise invalid_request(error.errors()) from None
        body.check_limits(limits)
        return body

    def check_limits(self, limits: Limits) -> None:
        """Refuse a request that exceeds the limits of this server."""

    @property
    def names(self) -> list[Any]:
        """The queries, for the response and the log: texts, ids or file names, None for features."""
        return []

    @classmethod
    async def _read_form(cls, request: Request, limits: Limits) -> dict[str, Any]:
        async with request.form(max_files=limits.batch, max_fields=limits.batch + 8) as form:
            parts = [part for part in form.getlist("image") if isinstance(part, UploadFile)]
            content: dict[str, Any] = {"image": [Upload(await p.read(), p.filename or "") for p in parts]}
        for name in set(form) - {"image"}:
            values = [part for part in form.getlist(name) if isinstance(part, str)]
            content[name] = values if name in LIST_FIELDS else values[-1] if values else None
            if name not in cls.form_fields:
                raise Problem(422, "bad-request", f"{name[:100]}: a form has no such field.")
            is_expression = name == "where" and not str(content[name]).lstrip().startswith("{")
            if name in JSON_FIELDS and not is_expression:
                try:
                    content[name] = json.loads(content[name])
                except (ValueError, TypeError, RecursionError):
                    raise Problem(422, "bad-request", f"{name}: it is not valid JSON.") from None
        return content


class Query(RequestBody):
    """Exactly one of several ways to say what is searched for."""

    id: ItemIds | None = Field(None, description="The id of a stored item, or several.")
    features: Features = Field(None, description=ABOUT_FEATURES)

    @model_validator(mode="after")
    def _check_query(self) -> Self:
        ways = [name for name in ("text", "id", "features") if name in type(self).model_fields]
        if sum(getattr(self, way) is not None for way in ways) + bool(self.files) != 1:
            form = ", or files in the field image of a form" if self.form_fields else ""
            raise ValueError(f"give exactly one of {', '.join(ways[:-1])} or {ways[-1]}{form}")
        return self

    @property
    def names(self) -> list[Any]:
        """The queries, for the response and the log: texts, ids or file names, None for features."""
        if self.features is not None:
            return [None] * count_rows(self.features)
        return self.id if self.id is not None else self.texts or [file.name for file in self.files]

    @property
    def texts(self) -> list[str]:
        """The texts among the queries."""
        texts: list[str] | None = getattr(self, "text", None)
        return texts or []

    @property
    def files(self) -> list[Upload]:
        """The files among the queries."""
        return getattr(self, "image", [])


class TextQuery(Query):
    """A query that may also be a text."""

    text: Texts | None = Field(
        None,
        description="A text, or several. In place of images, for a model whose first view is texts, such as "
        "molecules.",
    )


class Part(TextQuery):
    """What is added to a query, or subtracted: a text, a stored item of either view, or features."""

    model_config = _examples({"text": "snow", "weight": 0.5}, {"id": "images/scene-000007.png"})
    weight: Annotated[float, Field(gt=0, le=MAX_WEIGHT, allow_inf_nan=False)] = Field(
        1.0, description="Its weight; the query itself has the weight 1."
    )

    @model_validator(mode="after")
    def _check_part(self) -> Self:
        if len(self.names) != 1:
            raise ValueError("give one text, one id or one row of features")
        return self


def _as_part(value: Any) -> Any:
    if not isinstance(value, str | dict | Part):
        raise ValueError("expected a text, or an object with text, id or features")
    return {"text": value} if isinstance(value, str) else value


Parts = Annotated[
    list[Annotated[Part, BeforeValidator(_as_part, json_schema_input_type=Text | Part)]],
    Field(max_length=MAX_PARTS),
]


class PagedQuery(Query):
    """A query with the options of all searches."""

    k: Annotated[int, Field(ge=1, description="Hits per query.")] = 12
    offset: Annotated[
        int,
        Field(
            ge=0,
            description="Leave out this many of the best hits, for pages: offset 0, k, 2k, … never repeat or "
            "skip an item while the items stay the same. offset and k together are limited as k is.",
        ),
    ] = 0
    where: Where | None = Field(None, description=ABOUT_WHERE)
    plus: Parts = Field(
        default_factory=list, description="What to add to a single query; a string is a text, never a file."
    )
    minus: Parts = Field(default_factory=list, description="What to subtract from a single query.")

    def check_limits(self, limits: Limits) -> None:
        if self.k > limits.k:
            raise InputError(f"k={self.k} exceeds the limit of this server; ask for at most {limits.k} hits.")
        if self.offset + self.k > limits.k:
            raise InputError(
                f"offset={self.offset} and k={self.k} reach beyond the first {limits.k} hits, the limit of "
                "this server; ask for fewer."
            )
        parts = (*self.plus, *self.minus)
        if parts and len(self.names) != 1:
            raise InputError("plus and minus are for one query at a time; send a request for each.")
        texts = [*self.texts, *(text for part in parts for text in part.texts)]
        check_sizes(limits, len(self.names), texts)


class TaskQuery(PagedQuery, TextQuery):
    """A query with the options of ``search`` and ``annotate``."""

    min_probability: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = Field(
        None, description="Leave out hits that are less likely to be right; for a model with a calibration."
    )
    weighting: Annotated[str, Field(max_length=MAX_WEIGHTING)] | None = Field(
        None,
        description="To compare, for a fusion: one of its parts alone, by its name in /v1/model, "
        "or uncorrected, all of them without the hubness correction.",
    )


class SearchRequest(TaskQuery):
    """Search images for texts, for stored captions, or for text features."""

    model_config = _examples(
        {"text": "a red star at night", "k": 5},
        {"text": ["two boats on the sea", "three blue umbrellas"], "where": {"split": "test"}},
        {"id": "images/scene-000007.png#2", "min_probability": 0.2},
        {"text": "a boat", "plus": ["night", {"id": "images/scene-000007.png"}], "minus": ["a star"]},
        {"text": "a boat", "where": 'split = "test"', "k": 12, "offset": 12},
        {"features": [0.12, -1.5, 0.7], "k": 5},
        {"features": {"words": [0.12, -1.5], "tones": [0.7, 0.1, -0.3]}},
    )


class AnnotateRequest(TaskQuery):
    """Search captions for uploaded or stored images, or for image features."""

    form_fields = frozenset({"k", "offset", "where", "plus", "minus", "min_probability", "weighting"})
    model_config = _examples(
        {"id": "images/scene-000007.png", "k": 5},
        {"features": [[0.12, -1.5, 0.7], [0.3, 0.0, -2.0]]},
        {"features": {"resnet": [0.12, -1.5], "dino": [0.7, 0.1, -0.3]}},
    )
    image: Files = Field(default=[], description="The image, or several.")


class SimilarRequest(PagedQuery):
    """Search images similar to an uploaded or stored image, or captions similar to a caption."""

    form_fields = frozenset({"k", "offset", "where", "plus", "minus"})
    model_config = _examples(
        {"id": "images/scene-000007.png"}, {"features": [0.12, -1.5, 0.7], "view": "image"}
    )
    view: Literal["image", "text"] | None = Field(None, description="The view of the features.")
    image: Files = Field(default=[], description="The image.")

    @model_validator(mode="after")
    def _check_view(self) -> Self:
        if (self.features is None) != (self.view is None):
            raise ValueError("give view together with features, and only then")
        if len(self.names) != 1:
            raise ValueError("give one id, the features of one item, or one file")
        return self


class FirstViewQuery(TextQuery):
    """Images of pairs: stored ones, features, or files of a form."""

    image: Files = []


def _as_images(value: Any) -> Any:
    is_form = isinstance(value, list) and all(isinstance(file, Upload) for file in value)
    return {"image": value} if is_form else value


def _as_texts(value: Any) -> Any:
    return {"text": value} if isinstance(value, str | list) else value


class ScoreRequest(RequestBody):
    """Pairs to score: each text with the image at the same place, or all texts with one image."""

    form_fields = frozenset({"text"})
    model_config = _examples(
        {"image": {"id": "images/scene-000007.png"}, "text": ["a red star at night", "two boats"]},
        {"image": {"features": [0.12, -1.5, 0.7]}, "text": {"id": "images/scene-000007.png#2"}},
    )
    image: Annotated[FirstViewQuery, BeforeValidator(_as_images, json_schema_input_type=TextQuery)] = Field(
        description="The image, or several."
    )
    text: Annotated[
        TextQuery, BeforeValidator(_as_texts, json_schema_input_type=Text | list[Text] | TextQuery)
    ] = Field(description="The text, or several.")

    @model_validator(mode="after")
    def _check_pairs(self) -> Self:
        images, texts = len(self.image.names), len(self.text.names)
        if images not in (1, texts):
            what = f"{count(images, 'image')} for {count(texts, 'text')}"
            raise ValueError(f"got {what}; give one for each text, or one in all")
        return self

    @property
    def names(self) -> list[Any]:
        """The images and texts, for the log."""
        return [*self.image.names, *self.text.names]

    def check_limits(self, limits: Limits) -> None:
        check_sizes(limits, len(self.text.names), [*self.image.texts, *self.text.texts])


class Content(RequestBody):
    """What the new content of an item may be."""

    text: Text | None = Field(
        None, description="In place of an image, for a model whose first view is texts, such as molecules."
    )
    features: Features = Field(None, description=f"Of one item. {ABOUT_FEATURES}")
    image: Files = Field(default=[], max_length=1, description="The image.")

    @model_validator(mode="after")
    def _check_features(self) -> Self:
        if self.features is not None and count_rows(self.features) != 1:
            raise ValueError("features must be those of one item; give one row")
        return self


ItemMetadata = Annotated[
    dict[str, JsonValue], AfterValidator(lambda metadata: _check_length(metadata, MAX_METADATA))
]


class AddRequest(Content):
    """An image with its captions, or either alone; features in place of encoding here."""

    form_fields = frozenset({"id", "captions", "metadata"})
    model_config = _examples(
        {"captions": ["a red star at night"]},
        {"id": "photo-17", "features": [0.12, -1.5, 0.7], "metadata": {"album": "2024"}},
        {"features": [0.12, -1.5], "captions": ["a red star"], "caption_features": [[0.3, 0.1]]},
    )
    id: ItemId | None = Field(
        None,
        description="The id of the image; its captions get it with # and a number. Default: a random id.",
    )
    captions: list[Text] = Field(default_factory=list, description="Captions of the image.")
    metadata: ItemMetadata = Field(default_factory=dict, description="Values to filter by.")
    caption_features: Features = Field(
        None, description="Of the captions, one list for each; needed where the server has no text encoder."
    )

    @classmethod
    async def parse_all(cls, request: Request, limits: Limits) -> list[Self] | Self:
        """Read and check the body of a request: one addition, or as JSON a list or lines of several."""
        kind = media_type(request.headers)
        if kind == NDJSON:
            content = [_parse_json(line) for line in (await request.body()).splitlines() if line.strip()]
        elif kind == "application/json":
            content = _parse_json(await request.body())
        else:
            return await cls.parse(request, limits)
        if not isinstance(content, list):
            return cls.check(content, limits)
        bodies = []
        for number, part in enumerate(content[: limits.batch + 1]):
            try:
                bodies.append(cls.check(part, limits))
            except Problem as problem:
                problem.detail = f"{number}: {problem.detail}"
                raise
        check_sizes(limits, max(len(content), sum(len(body.all_captions) for body in bodies)), [])
        return bodies

    @model_validator(mode="after")
    def _check_rows(self) -> Self:
        if self.features is not None and self.text is not None:
            raise ValueError("give text or features, not both")
        rows = len(self.all_captions)
        if self.captions and rows != len(self.captions):
            raise ValueError(f"got {rows} rows of caption_features for {len(self.captions)} captions")
        return self

    @property
    def all_captions(self) -> list[str | None]:
        """The captions, None for those that are only features."""
        if self.caption_features is None:
            return [*self.captions]
        rows = count_rows(self.caption_features)
        return [*self.captions] if len(self.captions) == rows else [None] * rows

    def check_limits(self, limits: Limits) -> None:
        texts = [*self.captions, *([] if self.text is None else [self.text])]
        check_sizes(limits, max(1, len(self.all_captions)), texts)


class UpdateRequest(Content):
    """What is to change of an item: metadata, and its image or text."""

    form_fields = frozenset({"metadata"})
    model_config = _examples({"metadata": {"album": "2024", "draft": None}}, {"text": "two red stars"})
    metadata: ItemMetadata | None = Field(
        None, description="Values of some names; null removes a name. Other names stay."
    )
    text: Text | None = Field(None, description="The new text of a caption, or of an item that is a text.")
    image: Files = Field(default=[], max_length=1, description="The new image.")

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.metadata is None and self.text is None and self.features is None and not self.image:
            raise ValueError("give metadata, text, features, or a file in the field image of a form")
        return self

    def check_limits(self, limits: Limits) -> None:
        check_sizes(limits, 1, [] if self.text is None else [self.text])


class LearnRequest(RequestBody):
    """A text, or the features of one, and the images that it should find."""

    model_config = _examples({"text": "a red star at night", "right": ["images/scene-000007.png"]})
    text: Text | None = Field(None, description="What was searched for.")
    features: Features = Field(None, description=f"Of one text. {ABOUT_FEATURES}")
    right: ItemIds = Field(min_length=1, description="The id of an image that is right, or several.")

    @model_validator(mode="after")
    def _check_text(self) -> Self:
        if (self.text is None) == (self.features is None):
            raise ValueError("give exactly one of text or features")
        return self

    @property
    def names(self) -> list[Any]:
        """The text, for the log."""
        return [self.text]

    def check_limits(self, limits: Limits) -> None:
        check_sizes(limits, len(self.right), [] if self.text is None else [self.text])


class PageQuery(BaseModel):
    """A page of some items, as parameters of the address."""

    model_config = ConfigDict(extra="forbid")
    where: Annotated[str, Field(max_length=MAX_FILTER)] | None = Field(
        None, description="Only items with this metadata: an expression, or an object as JSON."
    )
    offset: Annotated[int, Field(ge=0, le=2**53)] = 0
    limit: Annotated[int, Field(ge=1, description="Items of the page; limited as k of a search is.")] = 50

    def check_limits(self, limits: Limits) -> None:
        if self.limit > limits.k:
            raise InputError(f"limit={self.limit} exceeds the limit of this server; give at most {limits.k}.")


class ListQuery(PageQuery):
    """Which items to list, as parameters of the address."""

    view: Literal["image", "text"] | None = Field(None, description="Only items of one view.")
    order_by: Annotated[str, Field(min_length=1, max_length=MAX_ID)] | None = Field(
        None, description="A metadata key; with - before it, the greatest come first. Default: as added."
    )

    @property
    def listing(self) -> Listing:
        """What to list of all items."""
        return read_listing(self.view, self.order_by, self.offset, self.limit)


OnConflict = Literal["error", "skip", "replace"]


class SessionRequest(RequestBody):
    """The token, exchanged for a cookie."""

    model_config = _examples({"token": "TOKEN"})
    token: Annotated[str, Field(max_length=1024)]


class CaptionOut(BaseModel):
    """A caption of an image."""

    id: str
    text: str | None = None


class ItemOut(BaseModel):
    """A stored image or caption."""

    id: str
    view: Literal["image", "text"]
    text: str | None = Field(None, description="Its text, if it is one.")
    image: str | None = Field(None, description="Of a caption: the id of its image.")
    captions: list[CaptionOut] | None = Field(None, description="Of an image: its first captions.")
    has_file: bool | None = Field(None, description="Of an image: whether its file is known, to show it.")
    media: Literal["image", "audio", "video", "file"] | None = Field(
        None, description="Of an image: how to show its file; null if it has none."
    )
    image_url: str | None = Field(None, description="Where to get an image.")
    thumbnail: str | None = Field(None, description="Where to get a small image.")
    file_url: str | None = Field(None, description="Where to get the file as it is, if it is sent.")
    file_name: str | None = Field(
        None, description="The name of the file; of an image, only if the file is sent."
    )
    metadata: dict[str, Any] = Field(default_factory=dict)


class HitOut(ItemOut):
    """A hit. Scores order the hits of one query; probabilities are comparable between queries."""

    score: float | None
    probability: float | None = Field(
        None, description="How likely it is right; null if the model or the search has no calibration."
    )


class QueryResult(BaseModel):
    """The hits of one query, best first."""

    query: str | None = Field(description="The text, the id or the file name; null for features.")
    hits: list[HitOut]
    ignored_words: list[str] | None = Field(
        None, description="Words of the query that the model does not know and ignored."
    )
    more: bool = Field(False, description="Whether there are further hits after these, at a larger offset.")


class SearchResponse(BaseModel):
    """One result for each query, in the order of the queries."""

    version: str = Field(description="The version of the model that answered.")
    weighting: str
    seconds: float
    results: list[QueryResult]


class PairOut(BaseModel):
    """How well a text fits its image. Scores can be compared between pairs."""

    image: str | None = Field(description="The id or the file name; null for features.")
    text: str | None = Field(description="The text or the id; null for features.")
    score: float
    true_percentile: float | None = Field(
        description="The share, in percent, of held-out true pairs with a smaller score."
    )
    false_percentile: float | None = Field(
        description="The share of held-out texts with an image drawn at random that have a smaller score."
    )


class ScoreResponse(BaseModel):
    """One result for each text, in the order of the texts."""

    version: str = Field(description="The version of the model that answered.")
    seconds: float
    pairs: list[PairOut]
    absent: str | None = Field(description="Why there are no percentiles; null if there are.")


class AddResponse(BaseModel):
    """Ids of the added items, which are on disk now; without those that were skipped."""

    image: str | None
    captions: list[str]


class LearnResponse(BaseModel):
    """Ids of the pairs, which are on disk now: captions of these images, to be removed like others."""

    learned: list[str]


class ListResponse(BaseModel):
    """A page of items."""

    version: str = Field(description="The version of the model that answered.")
    total: int = Field(description="How many items there are on all pages.")
    more: bool = Field(description="Whether there are others after these.")
    items: list[ItemOut]


class AuditedPairOut(BaseModel):
    """A stored caption with its image, scored by a model that was not fitted on this pair."""

    image: ItemOut
    caption: ItemOut
    score: float
    wrong: float = Field(description="How likely the caption belongs to another image.")
    flagged: bool = Field(description="Whether that is more likely than not.")


class AuditResponse(BaseModel):
    """A page of pairs, the lowest scores first."""

    version: str = Field(description="The version of the model that answered.")
    total: int = Field(description="How many pairs there are on all pages.")
    more: bool = Field(description="Whether there are others after these.")
    flagged: int = Field(description="How many of all pairs are flagged.")
    share: float = Field(description="The estimated share of wrong pairs among all.")
    outdated: bool = Field(description="Whether items have changed since; they are being audited again then.")
    pairs: list[AuditedPairOut]


class RemoveResponse(BaseModel):
    """How many items were removed: an image is removed together with its captions."""

    removed: int


class Health(BaseModel):
    """The state of a server that answers."""

    status: Literal["ok"]
    version: str


class ModelOut(BaseModel):
    """A description of the loaded model."""

    name: str
    version: str
    library: str
    views: dict[str, str] = Field(description="What people call the items of the two views.")
    nouns: dict[str, list[str]] = Field(
        description="Singular and plural of what people call an item of the first view (image), one of the "
        "second (text), and one of the second that belongs to one of the first (caption)."
    )
    inputs: Literal["images", "paths", "texts"] = Field(
        description="What the encoder of the first view takes: images, other files, or texts."
    )
    uploads: list[str] = Field(description="Suffixes of the files that may be uploaded; none for images.")
    items: dict[str, int]
    encoders: dict[str, Any]
    filters: dict[str, list[str]]
    components: dict[str, int]
    correlations: dict[str, dict[str, list[float] | None]] = Field(
        description="The first canonical correlations of each task: of the regularised model, and of its "
        "variates on training and validation pairs; null where they were not measured."
    )
    index: dict[str, str]
    weighting: str
    weightings: list[str] = Field(
        description="What a request may choose as weighting, for any task; empty unless it is a fusion."
    )
    parts: dict[str, list[dict[str, Any]]] = Field(
        description="Of a fusion, for each task: name, weight, use and number of components of each part."
    )
    corrections: dict[str, str] = Field(
        description="Of a fusion, for each task: the correction for hubness, in words, or none."
    )
    facts: dict[str, Any] = Field(description="Pairs of each split, recalls, seconds of fitting.")
    path: dict[str, Any] | None = Field(description="Scores over the grid of regularisation parameters.")
    spectrum: dict[str, Any] = Field(description="Canonical correlations of each task's regularised model.")
    examples: dict[str, list[dict[str, Any]]]
    facets: dict[str, list[Any]] = Field(description="Metadata keys to filter by, with their values.")
    ranges: dict[str, list[float | str]] = Field(
        description="Metadata keys whose values are numbers or dates, with the least and the greatest."
    )
    histograms: dict[str, list[int]] = Field(
        description="For each key of ranges, the numbers of values in bins of equal width between its limits."
    )
    keys: list[str] = Field(description="Metadata keys of the items, for filters.")
    calibration: dict[str, Any] = Field(
        description="For each task how probabilities were measured, and how good they are; or why there are "
        "none, as absent."
    )
    features: dict[str, int | dict[str, int]] = Field(
        description="Length of the features of each view; for named blocks, of each block."
    )
    can: dict[str, str | None] = Field(
        description="Why queries of a view cannot be encoded on this server; null if they can."
    )
    card: str
    limits: dict[str, int]
    writable: bool


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise Problem(400, "no-json", "the request is not valid JSON.") from None


def count_rows(features: Matrix | dict[str, Matrix]) -> int:
    """Return the number of rows of features."""
    return len(features if isinstance(features, np.ndarray) else next(iter(features.values())))


def check_sizes(limits: Limits, queries: int, texts: Sequence[str]) -> None:
    """Refuse a request that exceeds the limits of this server."""
    if queries > limits.batch:
        raise InputError(f"the request has {count(queries, 'query')}; at most {limits.batch} are accepted.")
    if queries < 1:
        raise InputError("the request has no query; give at least one.")
    longest = max(map(len, texts), default=0)
    if longest > limits.text_characters:
        raise InputError(f"a text has {longest} characters; at most {limits.text_characters} are accepted.")
