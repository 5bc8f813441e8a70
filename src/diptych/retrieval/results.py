"""What a search gives back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diptych.retrieval.items import Item


@dataclass(frozen=True)
class Hit:
    """One item that was found.

    ``score`` is a cosine (or minus a distance, for a model with ``similarity="l2"``), not a probability:
    it orders the answers to one query, and no more.
    """

    item: Item
    score: float

    @property
    def id(self) -> str:
        """Its name."""
        return self.item.id

    @property
    def path(self) -> str | None:
        """Where the picture lies."""
        return self.item.path

    @property
    def text(self) -> str | None:
        """The sentence."""
        return self.item.text

    @property
    def metadata(self) -> Mapping[str, Any]:
        """What the user gave with it."""
        return self.item.metadata

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {"score": round(self.score, 6), **self.item.to_json()}


class Hits(list[Hit]):
    """The items found for one query, best first.

    Attributes
    ----------
    ignored_words
        Words of a text query that the text encoder does not know and left out; empty where all are known,
        for features, and for encoders that cannot tell.
    """

    def __init__(self, hits: Iterable[Hit] = (), ignored_words: Iterable[str] = ()) -> None:
        super().__init__(hits)
        self.ignored_words = tuple(ignored_words)


@dataclass(frozen=True)
class Pack:
    """All captions of one picture, found as a whole: by the mean of their embeddings.

    Attributes
    ----------
    image
        Id of the picture that they describe.
    score
        Of the mean.
    captions
        Best first, each with its own score.
    """

    image: str
    score: float
    captions: Sequence[Hit]

    @property
    def best(self) -> Hit:
        """The caption that fits best by itself."""
        return self.captions[0]

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        captions = [hit.to_json() for hit in self.captions]
        return {"score": round(self.score, 6), "image": self.image, "captions": captions}
