"""Groups of near-identical items in a store, and a contact sheet of them."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Literal, TypeAlias

import numpy as np

from diptych._checks import InputError, ViewNames, check_choice, check_number, count, plural
from diptych._persistence import replace_file
from diptych._progress import progress_bar
from diptych.cca._projector import split_blocks
from diptych.cca._weighting import to_unit_length
from diptych.data._duplicates import center_rows, choose_threshold, group_rows, least_similarity
from diptych.retrieval._items import TASK_OF, VIEWS, Item, View
from diptych.retrieval._placing import remove_coordinate
from diptych.retrieval._searcher import BLOCK, Searcher
from diptych.retrieval.stores._base import Floats

Compared: TypeAlias = Literal["features", "vectors"]

SHEET_GROUPS, SHEET_ITEMS = 100, 10
"""How many groups a contact sheet shows, and how many items of each."""


@dataclass(frozen=True)
class DuplicateGroup:
    """Items that are near-identical, in order of addition.

    Attributes
    ----------
    items
        At least two. Each is as similar as the threshold to another one of them, not necessarily to all.
    similarity
        Of the two items that are least alike.
    """

    items: tuple[Item, ...]
    similarity: float

    def to_json(self) -> dict[str, Any]:
        """Return the group as plain data."""
        return {"similarity": self.similarity, "items": [item.to_json() for item in self.items]}


class Duplicates(list[DuplicateGroup]):
    """Groups of near-identical items, the largest first, as ``Retriever.duplicates`` returns them.

    Attributes
    ----------
    view
        ``"image"`` or ``"text"``.
    threshold
        The similarity, a cosine, from which two items count as near-identical.
    compared
        What was compared: the encoder's ``"features"``, or where they are not kept the model's ``"vectors"``.
    n_items
        How many items there were.
    """

    def __init__(
        self,
        groups: Sequence[DuplicateGroup],
        *,
        view: View,
        threshold: float,
        compared: Compared,
        n_items: int,
        views: ViewNames,
        shows_images: bool,
    ) -> None:
        super().__init__(groups)
        self.view, self.threshold, self.compared, self.n_items = view, threshold, compared, n_items
        self._views, self._shows_images = views, shows_images

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        about = {name: getattr(self, name) for name in ("view", "threshold", "compared")}
        return {**about, "items": self.n_items, "groups": [group.to_json() for group in self]}

    def summary(self) -> str:
        """Return one sentence: how many groups there are, and from which similarity."""
        name = self._views.of(self.view)
        members = sum(len(group.items) for group in self)
        of = f"{members:,} of {count(self.n_items, name)}"
        basis = f"cosine of the {self.compared} at least {self.threshold:.4f}"
        if not self:
            return f"no near-identical {plural(name)} among {self.n_items:,} ({basis})"
        return f"{count(len(self), 'group')} of near-identical {plural(name)}, {of} ({basis})"

    def write_sheet(self, path: str | os.PathLike[str]) -> None:
        """Write a contact sheet: one HTML file with small copies of the images, or ids where they are gone.

        It shows at most ``SHEET_GROUPS`` groups and ``SHEET_ITEMS`` items of each. A file that exists is
        replaced.
        """
        from diptych.report._page import heading, page, section, show_items

        shown = self[:SHEET_GROUPS]
        parts = []
        for number, group in enumerate(shown, 1):
            size = count(len(group.items), "item")
            rest = f", {SHEET_ITEMS} of them shown" if len(group.items) > SHEET_ITEMS else ""
            parts.append(heading(f"{number}. {size}{rest}, similarity at least {group.similarity:.4f}"))
            parts.append(show_items(self._show(item) for item in group.items[:SHEET_ITEMS]))
        title = f"Near-identical {plural(self._views.of(self.view))}"
        lead = self.summary()[:1].upper() + self.summary()[1:] + "."
        if len(self) > SHEET_GROUPS:
            lead += f" The {SHEET_GROUPS} largest groups are shown."
        text = page(title, lead, [section("Groups", *parts)] if parts else [])
        with replace_file(path) as staged:
            staged.write_text(text, "utf-8")

    def _show(self, item: Item) -> tuple[Any, str]:
        """Return an image, or None if there is none to show, and what to write below it."""
        from diptych.encoders._decoding import UnreadableImage, open_image

        image = None
        if self._shows_images and item.path is not None:
            with suppress(UnreadableImage):
                image = open_image(item.path)
        return image, item.id if item.text is None else f"{item.text} ({item.id})"


def find_duplicates(searcher: Searcher, view: str, threshold: float | None) -> Duplicates:
    """Return the groups of near-identical items of a view; ``threshold=None`` chooses one from the data."""
    check_choice(view, VIEWS, "view")
    chosen: View = "image" if view == "image" else "text"
    if threshold is not None and not 0 < check_number(threshold, "threshold") <= 1:
        raise InputError(f"threshold={threshold} is not a similarity; give a number above 0, at most 1.")
    names = searcher.encoders.views
    name = plural(names.of(chosen))
    with tempfile.TemporaryFile() as file, progress_bar(f"comparing {name}") as progress:
        try:
            compared: Compared = "features"
            items, numbers, rows = _write_rows(_read_features(searcher, chosen), file)
        except _NotKeptError:
            compared = "vectors"
            items, numbers, rows = _write_rows(_read_vectors(searcher, chosen), file)
        if not items:
            raise InputError(f"the model has no {name}; add some, and look for duplicates then.")
        limit = choose_threshold(rows) if threshold is None else float(threshold)
        labels = group_rows(rows, limit, progress)[numbers]
        groups = []
        for members in _list_groups(labels):
            similarity = least_similarity(rows, np.unique(numbers[members]))
            groups.append(DuplicateGroup(tuple(items[at] for at in members.tolist()), similarity))
        del rows  # the file is closed now
    groups.sort(key=lambda group: -len(group.items))
    return Duplicates(
        groups,
        view=chosen,
        threshold=limit,
        compared=compared,
        n_items=len(items),
        views=names,
        shows_images=chosen == "image" and searcher.encoders.inputs == "images",
    )


class _NotKeptError(Exception):
    """The features of some items are not stored."""


def _read_features(searcher: Searcher, view: View) -> Iterator[tuple[Sequence[Item], Floats]]:
    """Iterate over the items of a view with their features; every block of features counts alike."""
    store, layout = searcher.store, searcher.fitted.layout(view)
    if not store.keeps_features:
        raise _NotKeptError
    remaining = store.items(view)
    while items := list(itertools.islice(remaining, BLOCK)):
        features = store.features(view, [item.id for item in items])
        if features is None:
            raise _NotKeptError
        blocks = split_blocks(features, layout).values() if layout else [features]
        yield items, np.hstack([to_unit_length(np.asarray(block, np.float32)) for block in blocks])


def _read_vectors(searcher: Searcher, view: View) -> Iterator[tuple[Sequence[Item], Floats]]:
    for block in searcher.store.vectors(TASK_OF[view], searcher.version):
        yield block.items, searcher.projectors[TASK_OF[view]].coordinates(remove_coordinate(block.vectors))


def _write_rows(
    blocks: Iterator[tuple[Sequence[Item], Floats]], file: IO[bytes]
) -> tuple[list[Item], np.ndarray[Any, Any], Floats]:
    """Write rows to compare to a file; return all items, the number of each one's row, and the rows mapped.

    Items with the same text have the same row.
    """
    file.seek(0)
    items, numbers, rows_of, n_rows, width = list[Item](), list[int](), dict[str, int](), 0, 1
    for some, features in blocks:
        is_new = np.zeros(len(some), bool)
        for at, item in enumerate(some):
            number = rows_of.setdefault(item.text, n_rows) if item.text else n_rows
            is_new[at] = number == n_rows
            n_rows += int(is_new[at])
            numbers.append(number)
        items.extend(some)
        width = features.shape[1]
        file.write(np.ascontiguousarray(to_unit_length(features[is_new]), np.float32).tobytes())
    file.flush()
    rows = np.memmap(file, np.float32, "r+", shape=(n_rows, width)) if n_rows else np.empty((0, width))
    center_rows(rows)
    return items, np.array(numbers, np.int64), rows


def _list_groups(labels: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Iterate over the places of equal labels that occur more than once, by their first place."""
    order = np.argsort(labels, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)
    yield from sorted((group for group in groups if len(group) > 1), key=lambda group: int(group[0]))
