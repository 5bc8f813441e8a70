"""What is indexed: pictures and sentences by id, and the keys their vectors lie under.

Which items count: by their metadata, by a function, or by their ids.

What a search gives back.
"""

from __future__ import annotations

import difflib
import itertools
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych._checks import InputError, count
from diptych._persistence import UPLOADS, parse_json

View: TypeAlias = Literal["image", "text"]
VIEWS: tuple[View, ...] = ("image", "text")

MAX_LINE = 2**20
"""Characters of one item on disk; a longer line is refused."""

_UPLOAD = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Item:
    """One picture or sentence.

    Attributes
    ----------
    id
        Its name; no two items share one.
    view
        ``"image"`` or ``"text"``.
    path
        Where a picture lies, if known.
    text
        The sentence, if known.
    image
        For a sentence, the id of the picture it belongs to, if any.
    metadata
        Whatever the user gave: plain values that JSON can hold.
    """

    id: str
    view: View
    path: str | None = None
    text: str | None = None
    image: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What there is of it."""
        found = {"id": self.id, "view": self.view, "path": self.path, "text": self.text, "image": self.image}
        return {k: v for k, v in found.items() if v is not None} | (
            {"metadata": dict(self.metadata)} if self.metadata else {}
        )


class Catalogue(ABC):
    """What there is: items under integer keys that are never used twice, wherever they are kept."""

    @abstractmethod
    def __len__(self) -> int:
        """Items of both views."""

    @abstractmethod
    def __contains__(self, item_id: object) -> bool:
        """Whether there is an item of this id."""

    @abstractmethod
    def __iter__(self) -> Iterator[tuple[int, Item]]:
        """Keys and items, in the order of the keys."""

    @abstractmethod
    def get(self, key: int) -> Item | None:
        """The item under a key; None if it is gone."""

    @abstractmethod
    def find(self, item_id: str) -> Item | None:
        """The item of an id; None if there is none."""

    @abstractmethod
    def captions(self, image_id: str) -> list[Item]:
        """The sentences that belong to a picture."""

    @abstractmethod
    def count(self, view: View) -> int:
        """Items of one view."""


class Items(Catalogue):
    """Items in memory."""

    def __init__(self) -> None:
        self._item: dict[int, Item] = {}
        self._key: dict[str, int] = {}
        self._captions: dict[str, list[int]] = {}
        self._with_key: dict[str, int] = {}
        self._next = 0
        self.removed: list[tuple[int, str]] = []
        """Keys and ids of items that were removed, until they are saved without them."""

    def __len__(self) -> int:
        return len(self._item)

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._key

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        while True:
            # Making the list may let another thread run, which changes the items.
            with suppress(RuntimeError):
                return iter(list(self._item.items()))

    @property
    def next_key(self) -> int:
        """The key that the next item will get."""
        return self._next

    def get(self, key: int) -> Item | None:
        """The item under a key; None if it is gone."""
        return self._item.get(key)

    def key(self, item_id: str) -> int:
        """The key of an id."""
        if not isinstance(item_id, str) or item_id not in self._key:
            raise no_item(item_id)
        return self._key[item_id]

    def is_of(self, key: int, view: View) -> bool:
        """Whether there is an item of ``view`` under a key."""
        item = self._item.get(key)
        return item is not None and item.view == view

    def keys(self, view: View) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Keys of one view, ascending."""
        return np.array([key for key, item in self if item.view == view], np.int64)

    def find(self, item_id: str) -> Item | None:
        """The item of an id; None if there is none."""
        return self._item.get(self._key.get(item_id, -1))

    def captions(self, image_id: str) -> list[Item]:
        """The sentences that belong to a picture."""
        return [item for key in self.caption_keys(image_id) if (item := self._item.get(key))]

    def caption_keys(self, image_id: str) -> list[int]:
        """Keys of the sentences that belong to a picture."""
        return list(self._captions.get(image_id, ()))

    def count(self, view: View) -> int:
        """Items of one view."""
        return sum(item.view == view for _, item in self)

    def has_metadata(self, name: str) -> bool:
        """Whether the metadata of any item, of either view, has the key ``name``."""
        return name in self._with_key

    def metadata_keys(self) -> list[str]:
        """The keys that the metadata of the items has."""
        while True:
            with suppress(RuntimeError):  # as above
                return list(self._with_key)

    def unused_names(self) -> Iterator[str]:
        """Names for new items that nobody gave one, none of them taken."""
        return (name for name in numbered_names(self._next) if name not in self._key)

    def check_new(self, items: Sequence[Item]) -> None:
        """Refuse ids that are taken, or given twice."""
        check_unique(items, self._key)

    def add(self, items: Sequence[Item]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Take items in and return their keys, ascending."""
        self.check_new(items)
        keys = np.arange(self._next, self._next + len(items), dtype=np.int64)
        for key, item in zip(keys.tolist(), items, strict=True):
            self._item[key], self._key[item.id] = item, key
            if item.image is not None:
                self._captions.setdefault(item.image, []).append(key)
            for name in item.metadata:
                self._with_key[name] = self._with_key.get(name, 0) + 1
        self._next += len(items)
        return keys

    def remove(self, keys: Iterable[int]) -> None:
        """Forget items."""
        for key in keys:
            item = self._item.pop(key)
            del self._key[item.id]
            self.removed.append((key, item.id))
            if item.image is not None:
                own = self._captions[item.image]
                own.remove(key)
                if not own:
                    del self._captions[item.image]
            for name in item.metadata:
                self._with_key[name] -= 1
                if not self._with_key[name]:
                    del self._with_key[name]


def numbered_names(first: int) -> Iterator[str]:
    """What items are called that nobody gave a name."""
    return (f"item-{number}" for number in itertools.count(first))


def no_item(item_id: object) -> InputError:
    """There is no item of this id."""
    return InputError(f"there is no item {item_id!r}; ids are those given when items were added.")


def check_unique(items: Sequence[Item], taken: Container[str]) -> None:
    """Refuse ids that are taken, or given twice."""
    seen: set[str] = set()
    for item in items:
        if item.id in taken or item.id in seen:
            where = "is in the index already" if item.id in taken else "is given twice"
            raise InputError(f"the id {item.id!r} {where}; give every picture and sentence an id of its own.")
        seen.add(item.id)


@dataclass(frozen=True)
class Places:
    """Where images lie, so that a model folder can be moved, alone or together with its images.

    An upload is stored by its name in the model folder, an image under ``images`` by its path from there, and
    any other image by its whole path.

    Attributes
    ----------
    folder
        The model folder.
    images
        The folder that all images lie under, if there is one.
    """

    folder: Path
    images: str | None

    @classmethod
    def of(cls, items: Iterable[Item], folder: Path) -> Places:
        """Find where images lie."""
        own = str(folder / UPLOADS)
        around = {os.path.dirname(item.path) for item in items if item.path is not None} - {own}
        try:
            common = os.path.commonpath(around) if around else ""
        except ValueError:  # on several drives
            common = ""
        if not os.path.isabs(common) or os.path.dirname(common) == common:
            return cls(folder, None)
        return cls(folder, common)

    @classmethod
    def read(cls, said: Any, folder: Path) -> Places:
        """Find where images lie now: where they were, or where they were as seen from the model folder."""
        if said is None:
            return cls(folder, None)
        was, seen = str(said["folder"]), str(said["from_model"])
        moved = os.path.normpath(folder / seen)
        return cls(folder, moved if not os.path.isdir(was) and os.path.isdir(moved) else was)

    def describe(self) -> dict[str, str] | None:
        """What is to be known to find the images again."""
        if self.images is None:
            return None
        real = os.path.realpath(self.images)
        try:
            return {"folder": real, "from_model": os.path.relpath(real, self.folder)}
        except ValueError:  # on another drive
            return {"folder": real, "from_model": real}

    def pack(self, item: Item) -> dict[str, Any]:
        """Return what is stored of an item."""
        packed = item.to_json()
        if item.path is None:
            return packed
        folder, name = os.path.split(item.path)
        if folder == str(self.folder / UPLOADS) and _UPLOAD.fullmatch(name):
            del packed["path"]
            return packed | {"upload": name}
        if self.images is not None and item.path.startswith(start := os.path.join(self.images, "")):
            packed["path"] = item.path[len(start) :]
        return packed

    def unpack(self, stored: dict[str, Any]) -> Item:
        """Return the item that ``pack`` packed."""
        upload = stored.pop("upload", None)
        if upload is not None:
            stored["path"] = str(self.folder / UPLOADS / upload)
        elif self.images is not None and stored.get("path") is not None:
            stored["path"] = os.path.join(self.images, stored["path"])
        return Item(**stored)


def write_items(items: Iterable[Item], path: Path, places: Places) -> None:
    """One JSON object a line."""
    with open(path, "w", encoding="utf-8") as file:
        for item in items:
            # Names of files may hold bytes that are no text, which only an escape can write.
            line = json.dumps(places.pack(item), allow_nan=False) + "\n"
            if len(line) > MAX_LINE:
                raise InputError(
                    f"the item {item.id[:60]!r} takes {len(line)} characters to write; at most {MAX_LINE} "
                    "are read again. Remove it, or shorten its text or metadata."
                )
            file.write(line)


def read_items(path: Path, expected: int, places: Places) -> list[Item]:
    """Read ``expected`` items; anything else is an ``InputError``."""
    found: list[Item] = []
    try:
        with open(path, encoding="utf-8") as file:
            while line := file.readline(MAX_LINE):
                found.append(places.unpack(_parsed(line, path, len(found) + 1)))
                if len(found) > expected:
                    break
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason}); save the model again.") from None
    if len(found) != expected:
        raise InputError(
            f"{path} holds {count(len(found), 'item')}; expected {expected}. Save the model again."
        )
    return found


def _parsed(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        content = parse_json(line)
    except (ValueError, RecursionError):
        content = None
    texts = ("path", "text", "image")
    whole = (
        isinstance(content, dict)
        and set(content) <= {"id", "view", "metadata", "upload", *texts}
        and isinstance(content.get("id"), str)
        and content.get("view") in VIEWS
        and all(isinstance(content.get(name), str | None) for name in texts)
        and ("upload" not in content or _UPLOAD.fullmatch(str(content["upload"])) is not None)
        and isinstance(content.get("metadata", {}), dict)
    )
    if not whole:
        raise InputError(f"{path}, line {number}, is no item ({line[:60]!r}); save the model again.")
    assert isinstance(content, dict)
    return content


Plain: TypeAlias = str | int | float | None
Where: TypeAlias = Mapping[str, Any] | Callable[[Item], bool] | Iterable[str]
"""Values of metadata, of a list one of them; a function of an item; or ids."""

MOST_KEYS = 20
"""Keys of metadata that an error names."""


def check_where(where: Any) -> None:
    """Refuse what is no filter."""
    if not callable(where) and not isinstance(where, Iterable):
        raise InputError(
            f"where={where!r} is no filter; give values of metadata, a function of an Item, or ids."
        )


def wanted(where: Mapping[str, Any]) -> dict[str, list[Plain]]:
    """For each name, the values of which an item must have one."""
    found: dict[str, list[Plain]] = {}
    for name, value in where.items():
        values = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
        if not isinstance(name, str) or not all(
            isinstance(v, str | bool | int | float | None) and v == v and v not in (inf, -inf) for v in values
        ):
            raise InputError(
                f"the filter {name!r}: {value!r} holds no plain values; give a string, a finite number, "
                "true, false or None, or a list of these."
            )
        found[name] = values
    return found


def unknown_key(name: str, known: Iterable[str]) -> InputError:
    """A filter names a key that the metadata of no item has; ``known`` are the keys there are."""
    keys = sorted(known)
    if not keys:
        return InputError(
            f"where names the key {name!r}, but no item has metadata; give metadata when items are added."
        )
    near = difflib.get_close_matches(name, keys, 1)
    listed = ", ".join(map(repr, keys[:MOST_KEYS])) + (", …" if len(keys) > MOST_KEYS else "")
    return InputError(
        f"where names the key {name!r}, which no item has in its metadata"
        + (f"; did you mean {near[0]!r}?" if near else ".")
        + f" The keys there are: {listed}."
    )


def matcher(where: Mapping[str, Any]) -> Callable[[Item], bool]:
    """Whether an item's metadata has all these values; of a list, one of them."""
    named = wanted(where)

    def fits(item: Item) -> bool:
        held = item.metadata
        return all(
            name in held and any(_equal(held[name], one) for one in values) for name, values in named.items()
        )

    return fits


def ids_in(where: Iterable[str]) -> list[str]:
    """The ids of a filter by ids, which may be a single one."""
    return [where] if isinstance(where, str) else list(where)


def _equal(held: Any, one: Plain) -> bool:
    # True equals 1 in Python; in a filter, as in JSON, it must not.
    return isinstance(held, bool) == isinstance(one, bool) and bool(held == one)


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
