"""Metadata in columns: which items fulfil a condition, without looking at each of them in Python.

The items of a view lie in segments, whose rows never change: later items are a new segment, and small
segments are joined, so that there are few. A segment has a column for each metadata key that a filter has
named, made when it is first named: pairs of row and value in typed arrays, one for each type of value that
occurs, since values of different types are never equal nor ordered. A list has a pair for each element.
Removed items are only marked, until half of a segment is gone. Items with changed metadata are looked at one
by one, until there are many.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, floor, inf, nextafter
from typing import Any, TypeAlias

import numpy as np

from diptych.retrieval._filters import (
    COMPARISONS,
    MAX_INTEGER,
    MIN_INTEGER,
    And,
    Compare,
    Condition,
    Exists,
    In,
    Not,
    Or,
    Ordering,
    holds,
    is_number,
)
from diptych.retrieval._items import Item, StoredItem, View

Array: TypeAlias = np.ndarray[Any, Any]
Items: TypeAlias = Mapping[int, Item | StoredItem]

_NO_KEYS = np.empty(0, np.int64)
_PLAIN = (None, False, True)  # their places are their codes; what no condition compares has the next one
_FEW = 8  # values that are compared one after the other
_MANY = 1000  # changed items that are looked at one by one


class Columns:
    """The metadata of one view's items, read by any number of threads while one writes to the items."""

    def __init__(self, view: View, items: Items) -> None:
        self._view, self._items = view, items
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self._changed: set[int] = set()
        self._next_key = 0

    def find(self, condition: Condition, next_key: int) -> Array:
        """Return the keys of the items that fulfil a condition, ascending.

        ``next_key`` is that of the next item; all before it are considered.
        """
        with self._lock:
            self._append(next_key)
            keys = np.concatenate([_NO_KEYS, *(segment.find(condition) for segment in self._segments)])
            if not self._changed:
                return keys
            changed = {key: item for key in self._changed if (item := self._items.get(key)) is not None}
            fulfil = [key for key, item in changed.items() if holds(condition, item.metadata)]
            unchanged = keys[~np.isin(keys, list(self._changed))]
            return np.union1d(unchanged, np.array(fulfil, np.int64))

    def names(self, next_key: int) -> set[str]:
        """Return the metadata keys of all items."""
        with self._lock:
            self._append(next_key)
            changed = [item.metadata for key in self._changed if (item := self._items.get(key)) is not None]
            return set[str]().union(*(segment.names() for segment in self._segments), *changed)

    def change(self, key: int) -> None:
        """Notice that an item has other metadata."""
        with self._lock:
            if key < self._next_key:
                self._changed.add(key)
            if len(self._changed) > _MANY:
                self._segments = [
                    _Segment(segment.keys[segment.present], self._items) for segment in self._segments
                ]
                self._changed = set()

    def remove(self, keys: Array) -> None:
        """Forget items, after they were removed; others than those here are ignored."""
        with self._lock:
            self._changed.difference_update(keys.tolist())
            for place, segment in enumerate(self._segments):
                segment.remove(keys)
                if 2 * np.count_nonzero(segment.present) < len(segment.keys):
                    self._segments[place] = _Segment(segment.keys[segment.present], self._items)

    def _append(self, next_key: int) -> None:
        """Add the items that were added since, as a segment."""
        # An item that was removed meanwhile is not there, or ``remove`` waits for the lock.
        keys = np.array(
            [
                key
                for key in range(self._next_key, next_key)
                if (item := self._items.get(key)) is not None and item.view == self._view
            ],
            np.int64,
        )
        self._next_key = max(next_key, self._next_key)
        if len(keys):
            while self._segments and len(self._segments[-1].keys) <= len(keys):
                last = self._segments.pop()
                keys = np.concatenate([last.keys[last.present], keys])
            self._segments.append(_Segment(keys, self._items))


class _Segment:
    """Some items in consecutive rows, and the columns that filters have named."""

    def __init__(self, keys: Array, items: Items) -> None:
        self.keys, self.present = keys, np.ones(len(keys), np.bool_)
        self._items = items
        self._names: set[str] | None = None  # not known yet
        self._columns: dict[str, list[_Values]] = {}

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

    def _column(self, name: str) -> list[_Values]:
        """Return the values of a key, by type; none if no item has it."""
        if name not in self._columns and name in self.names():
            self._columns[name] = _make_column(self._metadata(), name)
        return self._columns.get(name, [])

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
        mask = np.zeros(len(self.keys), np.bool_)
        for values in self._column(condition.key):
            values.mark(condition, mask)
        return mask


@dataclass(frozen=True, eq=False)
class _Values:
    """The values of one type under one metadata key, each with its row.

    Integers and floats are stored as they are, strings as places in ``texts``, which ascend; null, booleans
    and what no condition compares (dicts, and lists in lists or empty ones) as codes.
    """

    kind: type  # int, float, str or object
    rows: Array | None  # None: every row has one value, in order
    stored: Array
    texts: Sequence[str]

    @classmethod
    def of(cls, kind: type, rows: Sequence[int], values: Sequence[Any], n_rows: int) -> _Values:
        """Store values of one type, which is ``kind`` or derived from it."""
        texts: list[str] = []
        if kind is str:
            texts = sorted(set(values))
            places = {text: place for place, text in enumerate(texts)}
            stored = np.fromiter(map(places.__getitem__, values), np.int32, len(values))
        elif kind is object:
            stored = np.array([_code(value) for value in values], np.int8)
        else:
            stored = np.array(values, np.int64 if kind is int else np.float64)
        whole = len(rows) == n_rows and np.array_equal(rows, np.arange(n_rows))
        return cls(kind, None if whole else np.array(rows, np.int64), stored, texts)

    def mark(self, condition: In | Compare | Exists, mask: Array) -> None:
        """Set the rows that fulfil a condition in a mask."""
        match condition:
            case In(_, options):
                chosen = _is_in(self.stored, self._find(options))
            case Compare(_, order, str(text)) if self.kind is str:
                place = (bisect_left if order in ("$gte", "$lt") else bisect_right)(self.texts, text)
                chosen = self.stored < place if order in ("$lt", "$lte") else self.stored >= place
            case Compare(_, order, int(number) | float(number)) if self.kind in (int, float):
                chosen = _compare_numbers(self.stored, order, number)
            case Compare():
                return
            case Exists():
                chosen = np.ones(len(self.stored), np.bool_)
        if self.rows is None:
            mask |= chosen
        else:
            mask[self.rows[chosen]] = True

    def _find(self, options: Iterable[Any]) -> list[int] | list[float]:
        """Return those options that a value here may equal, as such values are stored."""
        if self.kind is str:
            texts = [option for option in options if isinstance(option, str)]
            places = [(bisect_left(self.texts, text), text) for text in texts]
            return [place for place, text in places if self.texts[place : place + 1] == [text]]
        if self.kind is object:
            return [_code(option) for option in options if option is None or isinstance(option, bool)]
        numbers = [option for option in options if is_number(option)]
        if self.kind is float:
            return [float(number) for number in numbers if float(number) == number]
        return [int(n) for n in numbers if n == floor(n) and MIN_INTEGER <= n <= MAX_INTEGER]


def _make_column(metadata: Sequence[Mapping[str, Any]], name: str) -> list[_Values]:
    """Return the values of a metadata key in the rows of a segment, by type."""
    rows = [row for row, values in enumerate(metadata) if name in values]
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
    kinds = {kind: _kind_of(kind) for kind in types}
    if len(types) == 1:
        return [_Values.of(kinds[types.pop()], rows, values, len(metadata))]
    column = []
    for kind in dict.fromkeys(kinds.values()):
        places = [place for place, value in enumerate(values) if kinds[type(value)] is kind]
        some_rows, some_values = [rows[place] for place in places], [values[place] for place in places]
        column.append(_Values.of(kind, some_rows, some_values, len(metadata)))
    return column


def _kind_of(kind: type) -> type:
    if issubclass(kind, bool):  # which is a subclass of int
        return object
    return next((stored for stored in (int, float, str) if issubclass(kind, stored)), object)


def _code(value: Any) -> int:
    return _PLAIN.index(value) if value is None or isinstance(value, bool) else len(_PLAIN)


def _compare_numbers(values: Array, order: Ordering, number: int | float) -> Array:
    """Compare exactly: with the nearest number of the array's type, on the side where that is the same."""
    down = order in ("$gt", "$lte")  # x > 2.5 where x > 2, x >= 2.5 where x >= 3
    bound: int | float
    if values.dtype == np.int64:
        bound = floor(number) if down else ceil(number)
        if not MIN_INTEGER <= bound <= MAX_INTEGER:
            return np.full(len(values), (bound > 0) == (order in ("$lt", "$lte")))
    else:
        bound = float(number)
        if bound != number and (bound > number) == down:
            bound = nextafter(bound, -inf if down else inf)
    compared: Array = COMPARISONS[order](values, bound)
    return compared


def _is_in(array: Array, values: Sequence[int | float]) -> Array:
    if len(values) > _FEW:
        return np.isin(array, values)
    mask = np.zeros(len(array), np.bool_)
    for value in values:
        mask |= array == value
    return mask
