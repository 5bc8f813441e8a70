"""What a retriever needs of its items, their vectors and the model that made them, wherever they are kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych._checks import InputError, Task
from diptych._normalize import normalize
from diptych.cca import AWCCA, Moments
from diptych.cca._weighting import Weighting
from diptych.retrieval._embedding import Embedding
from diptych.retrieval._encoders import Encoders, EncoderRecord
from diptych.retrieval._fit import Fitted
from diptych.retrieval._items import Catalogue, Hit, Item, Pack, View, Where
from diptych.text import HKSE

Floats: TypeAlias = np.ndarray[Any, Any]
Keys: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Given: TypeAlias = Mapping[View, list[Item]]
Rows: TypeAlias = Mapping[View, Floats]
Encode: TypeAlias = Callable[[View, list[Item]], Floats]
"""Features of items, made anew."""
Name: TypeAlias = Callable[[Iterator[str]], Given]
"""New items, some of them called by names that nobody has."""
Learn: TypeAlias = Callable[["Collection"], Fitted]
"""Another model, from what a collection holds."""

BLOCK = 4096
"""Items that are embedded at a time."""

TASK_OF: dict[View, Task] = {"image": "search", "text": "annotate"}
"""The task that looks through a view."""


class UnavailableError(InputError):
    """A shared collection cannot be asked now; later it may."""


class RefusedError(InputError):
    """A shared collection refused what it was asked; the message names its user, host and schema."""


class OtherEncodersError(UnavailableError):
    """A shared collection was filled anew, from features of other encoders than these queries come from.

    Parameters
    ----------
    reopen
        Opens what is there now.
    """

    def __init__(self, reopen: Callable[[], Content]) -> None:
        super().__init__(
            "what is searched was filled anew by another process, from features of other encoders; open it "
            "again, and make features with those."
        )
        self.reopen = reopen


class Collection(ABC):
    """What can be found, by any number of threads at once, while one at a time adds and removes."""

    items: Catalogue
    """What there is."""

    shared = False
    """Whether other processes hold it too: what is added is kept by then, and asking takes a while."""

    address = ""
    """Of the database that it is in, for people; empty: it is in none."""

    @property
    def version(self) -> str:
        """Changes when others put another model in place; empty where nobody else can."""
        return ""

    @property
    @abstractmethod
    def fitted(self) -> Fitted:
        """The model; its moments may be kept elsewhere, see ``training_moments``."""

    @property
    @abstractmethod
    def embedding(self) -> Embedding:
        """The model as vectors."""

    @property
    @abstractmethod
    def kind(self) -> str:
        """What it is, for people."""

    @property
    @abstractmethod
    def keeps_features(self) -> bool:
        """Whether the features of the items are here too."""

    @abstractmethod
    def add(self, name: Name, rows: Rows, keep: bool) -> Given:
        """Take in items with their features, and those too if they are to be kept; all of them, or none."""

    @abstractmethod
    def remove(self, ids: Iterable[str]) -> int:
        """Take items out, and with a picture its captions; returns how many went."""

    @abstractmethod
    def found(
        self, task: Task, queries: Floats, k: int, where: Where | None, weighting: Weighting | None = None
    ) -> list[list[Hit]]:
        """The best items of a task for each row of features."""

    @abstractmethod
    def similar(self, view: View, features: Floats, k: int, where: Where | None) -> list[list[Hit]]:
        """Items of a view like others of it, in the canonical space."""

    @abstractmethod
    def packs(self, queries: Floats, k: int) -> list[list[Pack]]:
        """Pictures by all of their captions together, for each row of features."""

    @abstractmethod
    def kept_features(self, view: View, ids: list[str]) -> Floats | None:
        """Features of items as they were kept, in the order of ``ids``; None if one of them is gone."""

    @abstractmethod
    def features_of(self, view: View, keys: Keys, encode: Encode) -> Floats:
        """Features of items: those that were kept, or made anew. ``keys`` ascend."""

    @abstractmethod
    def new_pairs(self) -> list[tuple[int, int]]:
        """Keys of pictures and sentences that were added as pairs since the model was fitted."""

    @abstractmethod
    def training_moments(self) -> Moments | None:
        """Moments of the pairs that the model was fitted on; None: they are not known."""

    @abstractmethod
    def refitted(self, learn: Learn, encode: Encode) -> Collection:
        """The same items under another model; nobody adds or removes meanwhile."""

    @abstractmethod
    def write(self, folder: Path, hkse: HKSE | None, model_folder: Path, same: Path | None) -> dict[str, Any]:
        """Write a version of a model folder; returns what its config is to say.

        ``same`` is a version with the same model and text encoder, whose files are linked.
        """

    def new_moments(self, encode: Encode) -> Moments:
        """Moments of the pairs that were added since the model was fitted."""
        model, moments = self.fitted.model, self.training_moments()
        if not isinstance(model, AWCCA):
            raise InputError("a fusion is not refitted from moments; fit it again on all pairs.")
        if moments is None:
            raise InputError(
                "the moments of this model's training pairs are not known, so it cannot be refitted; fit it "
                "again on all pairs."
            )
        pairs = self.new_pairs()
        total = Moments.zero(len(moments.x_mean), len(moments.y_mean), precision=moments.precision)
        for start in range(0, len(pairs), BLOCK):
            block = np.array(pairs[start : start + BLOCK], np.int64)
            images, pairing = np.unique(block[:, 0], return_inverse=True)
            x = normalize(self.features_of("image", images, encode), model.normalize[0])
            y = normalize(self.features_of("text", block[:, 1], encode), model.normalize[1])
            total.update(x, y, pairing)
        return total


class Home(ABC):
    """Where collections are made.

    Attributes
    ----------
    name
        For people: nothing in it is secret.
    """

    name: str

    def check(self) -> None:
        """Refuse what could only fail once all the work is done."""
        return

    @abstractmethod
    def fill(self, fitted: Fitted, given: Given, rows: Rows, keep: bool, encoders: Encoders) -> Collection:
        """A collection of items with their features; it takes the place of what was there."""


@dataclass(frozen=True, eq=False)
class Content:
    """A collection that was opened, and what its retriever is to know."""

    collection: Collection
    options: dict[str, Any]
    known: dict[View, EncoderRecord]
    text: HKSE | None

    def encoders(self, image: Any, text: Any) -> Encoders:
        """The encoders given, or those that are kept with the collection, or found where they were."""
        return Encoders(image, self.text if text is None else text, self.known)


def check_k(k: Any) -> None:
    """Refuse what is no number of answers."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or k < 1:
        raise InputError(f"k={k!r} is not a number of answers; give 1 or more.")
