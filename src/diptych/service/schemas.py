"""What may be asked, and how much of it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, model_validator

from diptych.checks import InputError, count
from diptych.service.limits import Limits

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


Text = Annotated[str, Field(min_length=1), AfterValidator(_said)]
ItemId = Annotated[str, Field(min_length=1, max_length=MAX_ID), AfterValidator(_printable)]
Plain = str | bool | int | float | None
Where = Annotated[
    dict[
        Annotated[str, Field(max_length=MAX_ID)],
        Plain | Annotated[list[Plain], Field(max_length=MAX_FILTER_VALUES)],
    ],
    Field(max_length=MAX_FILTER_NAMES),
]


class Request(BaseModel):
    """What every request has in common: nothing that is not asked for is taken."""

    model_config = ConfigDict(extra="forbid")


class Asked(Request):
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
            ]
        },
    )
    text: Text | list[Text] | None = Field(None, description="A sentence, or several.")
    id: ItemId | list[ItemId] | None = Field(None, description="A caption of the index, or several.")

    @model_validator(mode="after")
    def one_of_two(self) -> Self:
        """Sentences or ids."""
        if (self.text is None) == (self.id is None):
            raise ValueError("give text or id, one of them")
        return self


class AnnotateRequest(Asked):
    """Captions for pictures of the index."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"id": "images/scene-000007.png", "k": 5}]}
    )
    id: ItemId | list[ItemId] = Field(description="A picture of the index, or several.")
    packs: bool = Field(False, description="Find all captions of one picture as a whole.")

    @model_validator(mode="after")
    def packs_alone(self) -> Self:
        """Packs are found among all pictures, as the model is."""
        check_packs(self.packs, self.where, self.weighting)
        return self


class SimilarRequest(Request):
    """Pictures like a picture of the index, or captions like a caption."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"id": "images/scene-000007.png"}]}
    )
    id: ItemId = Field(description="An item of the index.")
    k: Annotated[int, Field(ge=1)] = 12
    where: Where | None = None


class Addition(Request):
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


class CaptionsRequest(Addition):
    """Captions to add without a picture."""

    model_config = ConfigDict(
        extra="forbid", json_schema_extra={"examples": [{"captions": ["a red star at night"]}]}
    )
    captions: Annotated[list[Text], Field(min_length=1)]


class SessionRequest(Request):
    """The token, once; the page is given a cookie for it."""

    token: Annotated[str, Field(max_length=1024)]


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
