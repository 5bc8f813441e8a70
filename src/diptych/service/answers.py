"""What answers look like."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class CaptionOf(BaseModel):
    """A caption of a picture."""

    id: str
    text: str | None = None


class Shown(BaseModel):
    """An item: a picture or a caption."""

    id: str
    view: Literal["image", "text"]
    text: str | None = Field(None, description="Of a caption.")
    image: str | None = Field(None, description="Of a caption: the picture it belongs to.")
    captions: list[CaptionOf] | None = Field(None, description="Of a picture: its first captions.")
    picture: bool | None = Field(None, description="Of a picture: whether it can be shown.")
    image_url: str | None = None
    thumbnail: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)


class HitOut(Shown):
    """An item that was found. The score orders the answers to one query; it is no probability."""

    score: float | None


class PackOut(BaseModel):
    """All captions of one picture, found as a whole."""

    score: float | None
    image: str
    captions: list[HitOut]


class Answers(BaseModel):
    """The answers to one query, best first."""

    query: str | None = Field(description="The sentence, the id, the name of the file; of features, null.")
    hits: list[HitOut] | None = None
    packs: list[PackOut] | None = None
    ignored_words: list[str] | None = Field(
        None, description="Words of the query that the model does not know and left out."
    )


class Found(BaseModel):
    """One list of answers for each query, in their order."""

    version: str = Field(description="Of the model that answered.")
    weighting: str
    seconds: float
    results: list[Answers]


class Added(BaseModel):
    """Ids of what was added. It is on the disk."""

    image: str | None
    captions: list[str]


class Removed(BaseModel):
    """How many items went: a picture takes its captions with it."""

    removed: int


class Health(BaseModel):
    """A server that answers."""

    status: Literal["ok"]
    version: str


class ModelOut(BaseModel):
    """A model, for readers and for the page."""

    name: str
    version: str
    library: str
    items: dict[str, int]
    encoders: dict[str, Any]
    filters: dict[str, list[str]]
    components: dict[str, int]
    correlations: dict[str, dict[str, list[float] | None]] = Field(
        description="The first of each task: of the regularised model, and of its variates on training and "
        "on validation pairs, null where they were not measured."
    )
    index: dict[str, str]
    weighting: str
    weightings: list[str] = Field(description="What may be asked for instead.")
    facts: dict[str, Any] = Field(description="Pairs of each split, recalls, seconds of fitting.")
    path: dict[str, Any] | None = Field(description="Scores over the grid of regularisation parameters.")
    spectrum: dict[str, Any] = Field(description="Canonical correlations of each task's regularised model.")
    examples: dict[str, list[dict[str, Any]]]
    facets: dict[str, list[Any]] = Field(description="Metadata to filter by, and its values.")
    features: dict[str, int | dict[str, int]] = Field(
        description="Numbers in the features of each view; where they are made of named blocks, of each."
    )
    can: dict[str, str | None] = Field(description="Why a view cannot be encoded here; null: it can.")
    card: str
    limits: dict[str, int]
    writable: bool
