"""Metadata in columns: which items fulfil a condition, without looking at each of them in Python.

The items of a view lie in segments, whose rows never change: items that were added or changed later are a new
segment, and small segments are joined, so that there are few. A segment has a column for each metadata key
that a filter has named, made when it is first named. Removed items are only marked, until half of a segment
is gone.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from diptych.retrieval._filters import And, Compare, Condition, Exists, In, Not, Or, is_number
from diptych.retrieval._items import Item, StoredItem, View

Array: TypeAlias = np.ndarray[Any, Any]
Items: TypeAlias = Mapping[int, Item | StoredItem]

_NO_KEYS = np.empty(0, np.int64)
_PLAIN = (None, (False,), (True,), ())  # the last stands for dicts, and lists that are empty or in lists
_FEW = 8  # values that are compared one after the other


class Columns:
    """The metadata of one view's items, read by any number of threads while one writes to the items."""

    def __init__(self, view: View, items: Items) -> None:
        self._view, self._items = view, items
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._changed: set[int] = set()  # items to be put into the next segment
        self._next_key = 0

    def find(self, condition: Condition, next_key: int) -> Array:
        """Return the keys of the items that fulfil a condition, ascending.

        ``next_key`` is that of the next item; all before it are considered.
        """
        with self._lock:
            self._append(next_key)
            parts = [keys for segment in self._segments if len(keys := segment.find(condition))]
            keys = np.concatenate([_NO_KEYS, *parts])
            return np.sort(keys) if any(b[0] < a[-1] for a, b in pairwise(parts)) else keys

    def names(self, next_key: int) -> set[str]:
        """Return the metadata keys of all items."""
        with self._lock:
            self._append(next_key)
            return set[str]().union(*(segment.names() for segment in self._segments))

    def change(self, key: int) -> None:
        """Notice that an item has other metadata."""
        with self._lock:
            if key < self._next_key:
                self._mark_removed(np.array([key]))
                self._changed.add(key)

    def remove(self, keys: Array) -> None:
        """Forget items, after they were removed; others than those here are ignored."""
        with self._lock:
            self._mark_removed(keys)

    def _mark_removed(self, keys: Array) -> None:
        for place, segment in enumerate(self._segments):
            segment.remove(keys)
            if 2 * np.count_nonzero(segment.present) < len(segment.keys):
                self._segments[place] = _Segment(segment.keys[segment.present], self._items)

    def _append(self, next_key: int) -> None:
        """Add the items that were added or changed since, as a segment."""
        # An item that was removed meanwhile is not there, or ``remove`` waits for the lock.
        keys = np.array(
            [
                key
                for key in (*sorted(self._changed), *range(self._next_key, next_key))
                if (item := self._items.get(key)) is not None and item.view == self._view
            ],
            np.int64,
        )
        self._next_key, self._changed = max(next_key, self._next_key), set()
        if len(keys):
            while self._segments and len(self._segments[-1].keys) <= len(keys):
                last = self._segments.pop()
                keys = np.concatenate([last.keys[last.present], keys])
            self._segments.append(_Segment(np.sort(keys), self._items))


class _Segment:
    """Some items in consecutive rows, with ascending keys, and the columns that filters have named."""

    def __init__(self, keys: Array, items: Items) -> None:
        self.keys, self.present = keys, np.ones(len(keys), np.bool_)
        self._items = items
        self._names: set[str] | None = None  # not known yet
        self._columns: dict[str, _Column] = {}

    def find(self, condition: Condition) -> Array:
        """Return the keys of the items that fulfil a condition."""
        keys: Array = self.keys[self._evaluate(condition) & self.present]
        return keys

    def names(self) -> set[str]:
        """Return the metadata keys of all items."""
        if self._names is None:
            self._names = set[str]().union(*self._metadata())
        return self._names

    def remove(self, keys: Array) -> None:
        """Mark items as removed."""
        rows = np.searchsorted(self.keys, keys)
        rows = rows[rows < len(self.keys)]
        rows = rows[np.isin(self.keys[rows], keys)]
        if len(rows):
            self.present[rows], self._names = False, None

    def _metadata(self) -> list[Mapping[str, Any]]:
        """Return the metadata of each row; none for a removed item."""
        items = map(self._items.get, self.keys.tolist())
        return [{} if item is None else item.metadata for item in items]

    def _evaluate(self, condition: Condition) -> Array:
        """Return a mask of the rows that fulfil a condition, those of removed items included."""
        match condition:
            case Not(part):
                return ~self._evaluate(part)
            case And(parts):
                mask = np.ones(len(self.keys), np.bool_)
                for part in parts:
                    mask &= self._evaluate(part)
                return mask
            case Or(parts):
                mask = np.zeros(len(self.keys), np.bool_)
                for part in parts:
                    mask |= self._evaluate(part)
                return mask
        name, mask = condition.key, np.zeros(len(self.keys), np.bool_)
        if name not in self._columns and name in self.names():
            self._columns[name] = _Column.of(self._metadata(), name)
        if name in self._columns:
            self._columns[name].mark(condition, mask)
        return mask


@dataclass(frozen=True, eq=False)
class _Column:
    """The values of one metadata key, each with its row; a list has one for each element.

    A value is stored as its place among those that occur: plain ones, then numbers, then texts, the latter
    two ascending. So a condition is looked up among these, where Python compares integers and floats exactly.
    """

    rows: Array | None  # None: every row has one value, in order
    places: Array
    plain: Sequence[Any]  # ``_PLAIN`` as dictionaries have it; nothing if there are only numbers and texts
    numbers: Sequence[int | float]
    texts: Sequence[str]

    @classmethod
    def of(cls, metadata: Sequence[Mapping[str, Any]], name: str) -> _Column:
        """Return the values of a metadata key in all rows."""
        rows = [row for row, about in enumerate(metadata) if name in about]
        values = [metadata[row][name] for row in rows]
        types = set(map(type, values))
        if types & {list, tuple}:
            pairs = [
                (row, part)
                for row, value in zip(rows, values, strict=True)
                for part in (value if isinstance(value, list | tuple) and value else (value,))
            ]
            rows, values = [row for row, _ in pairs], [part for _, part in pairs]
            types = set(map(type, values))
        whole = len(rows) == len(metadata) and np.array_equal(rows, np.arange(len(metadata)))
        stored_rows = None if whole else np.array(rows, np.int64)
        if types in ({int}, {float}):  # the same as below, in less time
            distinct, places = np.unique(np.array(values), return_inverse=True)
            return cls(stored_rows, places.astype(np.int32), (), distinct.tolist(), ())
        plain = () if types <= {int, float, str} else _PLAIN
        if plain:
            values = list(map(_hashable, values))
        different = set(values)
        numbers = sorted(value for value in different if is_number(value))
        texts = sorted(value for value in different if isinstance(value, str))
        place_of = {value: place for place, value in enumerate((*plain, *numbers, *texts))}
        places = np.fromiter(map(place_of.__getitem__, values), np.int32, len(values))
        return cls(stored_rows, places, plain, numbers, texts)

    def mark(self, condition: In | Compare | Exists, mask: Array) -> None:
        """Set the rows that fulfil a condition in a mask."""
        match condition:
            case In(_, options):
                places = [place for option in options if (place := self._find(option)) is not None]
                chosen = _is_in(self.places, places)
            case Compare(_, order, value):
                first, values = self._part(value)
                place = first + (bisect_left if order in ("$gte", "$lt") else bisect_right)(values, value)
                end = first + len(values)
                chosen = self._between(*((first, place) if order in ("$lt", "$lte") else (place, end)))
            case Exists():
                chosen = np.ones(len(self.places), np.bool_)
        if self.rows is None:
            mask |= chosen
        else:
            mask[self.rows[chosen]] = True

    def _part(self, value: str | int | float) -> tuple[int, Sequence[Any]]:
        """Return the place of the first of the values that are compared with this one, and all of them."""
        if isinstance(value, str):
            return len(self.plain) + len(self.numbers), self.texts
        return len(self.plain), self.numbers

    def _find(self, value: Any) -> int | None:
        """Return the place of the values that equal this one, if there are any."""
        if value is None or isinstance(value, bool):
            return _PLAIN.index(_hashable(value)) if self.plain else None
        first, values = self._part(value)
        place = bisect_left(values, value)
        return first + place if place < len(values) and values[place] == value else None

    def _between(self, low: int, high: int) -> Array:
        """Return a mask of the values with places from ``low`` to before ``high``."""
        end = len(self.plain) + len(self.numbers) + len(self.texts)
        mask: Array = self.places < high if low == 0 else self.places >= low
        return mask & (self.places < high) if low > 0 and high < end else mask


def _hashable(value: Any) -> Any:
    """Return what stands for a value in a dictionary, in which True would be 1."""
    if isinstance(value, bool):
        return (value,)
    return value if value is None or isinstance(value, int | float | str) else ()


def _is_in(array: Array, values: Sequence[int]) -> Array:
    if len(values) > _FEW:
        return np.isin(array, values)
    mask = np.zeros(len(array), np.bool_)
    for value in values:
        mask |= array == value
    return mask
