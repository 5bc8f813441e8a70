"""Items, the hits of a search, and items as lines of a file."""

from __future__ import annotations

import json
import ntpath
import os
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from html import escape
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, overload

import msgspec
import numpy as np

from diptych._checks import (
    QUERY_VIEW,
    SEARCHED_VIEW,
    InputError,
    Task,
    import_package,
)
from diptych._persistence import Schema
from diptych.data._files import contained_path

Integers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
View: TypeAlias = Literal["image", "text"]
VIEWS: tuple[View, ...] = ("image", "text")

_NAMES: dict[Literal["x", "y"], View] = {"x": "image", "y": "text"}

SIDES: dict[View, Literal["x", "y"]] = {"image": "x", "text": "y"}
"""The view of the models that is meant."""

SEARCHED: dict[Task, View] = {task: _NAMES[letter] for task, letter in SEARCHED_VIEW.items()}
"""The view whose items a task returns."""

QUERIED: dict[Task, View] = {task: _NAMES[letter] for task, letter in QUERY_VIEW.items()}
"""The view of a task's queries."""

TASK_OF: dict[View, Task] = {view: task for task, view in SEARCHED.items()}
"""The task that returns items of a view."""

PLACE = ("latitude", "longitude")
"""Metadata that photos have of the place where they were taken; they are not published."""

UPLOADS = "uploads"
"""Files that were sent to a server, in the model folder."""

_SHOWN_HITS, _SHOWN_LETTERS, _SHOWN_PIXELS = 20, 300, 50_000_000  # in a notebook

MAX_CHARACTERS = 2**20
"""Of one stored item as JSON."""


@dataclass(frozen=True)
class Item:
    """One image or text.

    Attributes
    ----------
    id
        Unique among all items of both views.
    view
        ``"image"`` or ``"text"``.
    path
        The file of an image, if known.
    text
        The text, if known; of the first view, that of an item which an encoder of texts takes.
    image
        For a caption, the id of its image.
    metadata
        Plain values that JSON can hold, to filter by.

    Examples
    --------
    >>> Item("7#0", "text", text="a red star", image="7").to_json()
    {'id': '7#0', 'view': 'text', 'text': 'a red star', 'image': '7'}
    """

    id: str
    view: View
    path: str | None = None
    text: str | None = None
    image: str | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the item as plain data, without what is not known."""
        fields = {"id": self.id, "view": self.view, "path": self.path, "text": self.text, "image": self.image}
        return {name: value for name, value in fields.items() if value is not None} | (
            {"metadata": dict(self.metadata)} if self.metadata else {}
        )


@dataclass(frozen=True)
class Hit:
    """One item of a search result.

    ``score`` is a cosine (or minus a distance, for a model with ``similarity="l2"``), less an offset for
    items with captions (``docs/library.md``). It orders the hits of one query and is not comparable between
    queries. ``probability`` is comparable: how likely the item is a right one, if the gallery that was
    searched has one; see ``docs/calibration.md``. It is None for a model without calibration, and for
    searches that it was not measured for.

    Examples
    --------
    >>> hit = Hit(Item("7", "image", path="/images/7.jpg"), 0.5, 0.8)
    >>> hit.id, hit.path, hit.score, hit.probability
    ('7', '/images/7.jpg', 0.5, 0.8)
    """

    item: Item
    score: float
    probability: float | None = None

    @property
    def id(self) -> str:
        """The id of the item."""
        return self.item.id

    @property
    def path(self) -> str | None:
        """The file of the image, if known."""
        return self.item.path

    @property
    def text(self) -> str | None:
        """The text, if known."""
        return self.item.text

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata of the item."""
        return self.item.metadata

    def to_json(self) -> dict[str, Any]:
        """Return the hit as plain data, with its probability if that is known."""
        probability = {} if self.probability is None else {"probability": round(self.probability, 6)}
        return {"score": round(self.score, 6), **probability, **self.item.to_json()}


class Hits(Sequence[Hit]):
    """The hits of one query, best first; those of a search are made when they are read.

    Attributes
    ----------
    ignored_words
        Words of a text query that the text encoder does not know and left out. Empty if it knows all of them,
        for queries by features, and for encoders that cannot tell.
    more
        Whether there are further hits after these, to be had with ``offset``.

    Examples
    --------
    >>> hits = Hits([Hit(Item("7", "image"), 0.5)], ["qwrtz"])
    >>> hits[0].id, hits.ignored_words, hits.more
    ('7', ('qwrtz',), False)
    """

    def __init__(
        self, hits: Iterable[Hit] = (), ignored_words: Iterable[str] = (), *, more: bool = False
    ) -> None:
        made = list(hits)
        self.ignored_words, self.more = tuple(ignored_words), more
        self._make: Callable[[int], Hit] = lambda place: made[place]
        self._places: Sequence[int] = range(len(made))

    @classmethod
    def deferred(
        cls, make: Callable[[int], Hit], places: Sequence[int], ignored_words: tuple[str, ...], more: bool
    ) -> Hits:
        """Return the hits that ``make`` makes of some places when they are read."""
        hits = cls.__new__(cls)
        hits.ignored_words, hits.more, hits._make, hits._places = ignored_words, more, make, places
        return hits

    def page(self, offset: int, k: int) -> Hits:
        """Return at most ``k`` of these hits, from ``offset`` on, as a search with that offset does."""
        more = self.more or len(self) > offset + k
        return self.deferred(self._make, self._places[offset : offset + k], self.ignored_words, more)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> list[Hit]: ...
    def __getitem__(self, place: int | slice) -> Hit | list[Hit]:
        if isinstance(place, slice):
            return list(map(self._make, self._places[place]))
        return self._make(self._places[place])

    def __iter__(self) -> Iterator[Hit]:
        return map(self._make, self._places)

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Hits | list) else NotImplemented

    def __repr__(self) -> str:
        return repr(list(self))

    def _repr_html_(self) -> str:
        """Return a table of the first hits for a notebook, with small copies of images on this machine."""
        hits, rows = self[:_SHOWN_HITS], []
        for hit in hits:
            probability = "" if hit.probability is None else f"{hit.probability:.3f}"
            about = ", ".join(f"{name}: {value}" for name, value in hit.metadata.items())
            texts = [escape(_cut(words)) for words in (hit.id, hit.text or "", about)]
            rows.append([_show_image(hit.path), f"{hit.score:.3f}", probability, *texts])
        head = "".join(f"<th>{name}</th>" for name in ("", "score", "probability", "id", "text", "metadata"))
        body = "".join(f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows)
        rest = f"<p>{len(self) - len(hits)} more</p>" if len(self) > len(hits) else ""
        return f"<table><tr>{head}</tr>{body}</table>{rest}"

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each hit, and a column for each key of the metadata."""
        pandas = import_package("pandas", "a data frame needs", "pandas", "pandas")
        fields = ("score", "probability", "id", "view", "path", "text", "image")
        rows = [
            {"score": hit.score, "probability": hit.probability, **vars(hit.item)}
            | {f"metadata.{name}": value for name, value in hit.metadata.items()}
            for hit in self
        ]
        names = dict.fromkeys((*fields, *(name for row in rows for name in row if name != "metadata")))
        return pandas.DataFrame(rows, columns=list(names))

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Hits, more=self.more), (list(self), self.ignored_words)


def _cut(words: str) -> str:
    return words if len(words) <= _SHOWN_LETTERS else f"{words[:_SHOWN_LETTERS]}…"


def _show_image(path: str | None) -> str:
    """Return a small copy of an image as markup; nothing for another file, or one that cannot be read."""
    from diptych.encoders._decoding import EXTENSIONS, UnreadableImage, open_image
    from diptych.report._page import thumbnail

    if path is None or os.path.splitext(path)[1].lower() not in EXTENSIONS:
        return ""
    try:
        return thumbnail(open_image(path, max_pixels=_SHOWN_PIXELS), "")
    except UnreadableImage:
        return ""


def check_unique(items: Iterable[Item | StoredItem]) -> None:
    """Refuse items that share an id."""
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise InputError(f"the id {item.id!r} is given twice; give every item an id of its own.")
        seen.add(item.id)


def unknown_item(item_id: object) -> InputError:
    """Return the error for an id that no item has."""
    return InputError(f"there is no item {item_id!r}; ids are those given when items were added.")


def other_view(item_id: str) -> InputError:
    """Return the error for an id that an item of the other view has."""
    return InputError(f"the id {item_id!r} belongs to an item of the other view; give another id.")


UPLOAD_NAME = r"\A[0-9a-f]{64}-[0-9a-f]{8}(\.[0-9a-z]{1,10})?\Z"
"""The name of an upload: its SHA-256, a number, and for other files than images their suffix."""


Integer: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Value: TypeAlias = str | Integer | float | bool | dict[str, Any] | None
"""What filters compare of metadata; they look into no dict, and into lists of these."""


class StoredItem(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An item as JSON in a row of the database; ``upload`` is the name of an upload in the model folder."""

    id: str
    view: View
    path: str | None = None
    text: str | None = None
    image: str | None = None
    metadata: dict[str, Value | list[Value | list[Any]]] = {}
    upload: Annotated[str, msgspec.Meta(pattern=UPLOAD_NAME)] | msgspec.UnsetType = msgspec.UNSET


class PlacesConfig(Schema, frozen=True):
    """The folder of all images, and its path from the model folder."""

    folder: str
    from_model: str


@dataclass(frozen=True)
class Places:
    """Where images lie, so that a model folder can be moved, alone or together with its images.

    An upload is stored by its name in the model folder, an image under ``images`` by its path from there, and
    any other image by its whole path.
    """

    folder: Path  # the model folder
    images: str | None  # the folder that contains all images, if there is one

    @classmethod
    def of(cls, items: Iterable[Item], folder: Path) -> Places:
        """Find the folder that contains the images of these items."""
        uploads = str(folder / UPLOADS)
        folders = {os.path.dirname(item.path) for item in items if item.path is not None} - {uploads}
        try:
            common = os.path.commonpath(folders) if folders else ""
        except ValueError:  # on several drives
            common = ""
        if not os.path.isabs(common) or os.path.dirname(common) == common:
            return cls(folder, None)
        return cls(folder, common)

    @classmethod
    def read(cls, stored: PlacesConfig | None, folder: Path) -> Places:
        """Find where images lie now: where they were, or at the same place relative to the model folder."""
        if stored is None:
            return cls(folder, None)
        moved = os.path.normpath(folder / stored.from_model)
        is_moved = not os.path.isdir(stored.folder) and os.path.isdir(moved)
        return cls(folder, moved if is_moved else stored.folder)

    def describe(self) -> PlacesConfig | None:
        """Return what ``read`` needs to find the images again."""
        if self.images is None:
            return None
        real = os.path.realpath(self.images)
        try:
            return PlacesConfig(real, os.path.relpath(real, self.folder))
        except ValueError:  # on another drive
            return PlacesConfig(real, real)

    def pack(self, item: Item) -> str:
        """Return what is stored of an item, as JSON."""
        stored = item.to_json()
        if item.path is not None:
            folder, name = os.path.split(item.path)
            if folder == str(self.folder / UPLOADS) and re.match(UPLOAD_NAME, name):
                del stored["path"]
                stored["upload"] = name
            elif self.images is not None and item.path.startswith(start := os.path.join(self.images, "")):
                stored["path"] = item.path[len(start) :]
        packed = _encode(stored)
        if len(packed) > MAX_CHARACTERS:
            raise InputError(
                f"the item {item.id[:60]!r} takes {len(packed)} characters to write; at most "
                f"{MAX_CHARACTERS} can be read again. Remove it, or shorten its text or metadata."
            )
        return packed

    def unpack(self, stored: StoredItem) -> Item:
        """Return the item that ``pack`` packed."""
        path = stored.path
        if stored.upload is not msgspec.UNSET:
            path = str(self.folder / UPLOADS / stored.upload)
        elif self.images is not None and path is not None:
            path = os.path.join(self.images, path)
        return Item(stored.id, stored.view, path, stored.text, stored.image, stored.metadata)


class PublishedPlaces(Places):
    """Where the images of a model lie that others published: its paths are ignored, only ids are used.

    ``images`` is the folder in which the user has the images under their ids, if they have them.
    """

    def unpack(self, stored: StoredItem) -> Item:
        """Return the item, with the file that has its id as name."""
        path = None
        if self.images is not None and stored.view == "image":
            with suppress(InputError):  # an id that leads out of the folder
                path = contained_path(self.images, stored.id)
        path = path if path is not None and path.is_file() else None
        shown = None if path is None else os.path.abspath(path)
        return Item(stored.id, stored.view, shown, stored.text, stored.image, stored.metadata)


def strip_paths(items: Iterable[Item]) -> list[Item]:
    """Return items as they are published: without their files and where on earth these were taken.

    File names take the place of paths as ids.
    """
    stripped = [
        replace(
            item,
            path=None,
            id=file_name(item.id),
            image=item.image and file_name(item.image),
            metadata={name: value for name, value in item.metadata.items() if name not in PLACE},
        )
        for item in items
    ]
    check_unique(stripped)
    return stripped


def file_name(name: str) -> str:
    r"""Return the last part of an absolute path of any system; other names unchanged.

    >>> file_name("/home/ada/photos/dog.jpg"), file_name("photos/dog.jpg"), file_name(r"C:\Users\ada\dog.jpg")
    ('dog.jpg', 'photos/dog.jpg', 'dog.jpg')
    """
    if posixpath.isabs(name) or ntpath.splitdrive(name)[0]:
        return re.split(r"[/\\]", name.rstrip("/\\"))[-1]
    return name


def parse_items(
    rows: Iterator[tuple[int, int, str]], source: Path
) -> tuple[list[StoredItem], Integers, Integers]:
    """Return items with their keys and rows, all ascending; anything else in a file is an ``InputError``."""
    items: list[StoredItem] = []
    numbers = [np.empty((0, 2), np.int64)]
    try:
        # Few at a time: the garbage collector would visit all tuples again and again.
        while some := list(islice(rows, _PARSED)):
            keys, places, packed = zip(*some, strict=True)
            numbers.append(np.array([keys, places]).T)
            items += map(_decode, packed)
    except (ValueError, TypeError, RecursionError, OverflowError) as error:
        raise InputError(f"{source} holds what is not an item ({error}); restore the file.") from None
    joined = np.concatenate(numbers)
    if joined.dtype != np.int64 or (len(joined) and joined.min() < 0):
        raise InputError(f"{source} holds an item without a row; restore the file.")
    return items, joined[:, 0].copy(), joined[:, 1].copy()


_encode = json.JSONEncoder(allow_nan=False, ensure_ascii=False).encode  # json.dumps would make one each time
_decode = msgspec.json.Decoder(StoredItem).decode
_PARSED = 10_000
