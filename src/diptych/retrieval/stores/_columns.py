"""Metadata in columns: which items fulfil a condition, without looking at each of them in Python.

The items of a view have consecutive rows. The column of a metadata key holds pairs of row and value in
arrays, one for each type, since values of different types are never equal nor ordered. A list has a pair for
each element. A column is made when a filter first names its key. Later items are appended to it at the next
filter, and the rows of removed items are only marked, until half of them are.
"""

from __future__ import annotations

import operator
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import ceil, floor
from typing import Any, TypeAlias

import numpy as np

from diptych.retrieval._filters import (
    EXACT_FLOATS,
    And,
    Compare,
    Condition,
    Exists,
    In,
    Not,
    Or,
    Ordering,
    elements,
    exact_number,
    is_number,
)
from diptych.retrieval._items import Item, StoredItem, View

Array: TypeAlias = np.ndarray[Any, Any]
Items: TypeAlias = Mapping[int, Item | StoredItem]

_COMPARISONS: dict[Ordering, Callable[[Any, Any], Any]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_INT64 = np.iinfo(np.int64)

_FEW = 8  # values that are compared one after the other
_TAIL = 1000  # new strings that are compared one by one before all are sorted again
_REMOVED = 1000  # rows of removed items that are kept in any case


class Columns:
    """The metadata of one view's items, read by any number of threads while one writes to the items."""

    def __init__(self, view: View, items: Items) -> None:
        self._view, self._items = view, items
        self._lock = threading.Lock()
        self._clear()

    def find(self, condition: Condition, next_key: int) -> Array:
        """Return the keys of the items that fulfil a condition, ascending.

        ``next_key`` is that of the next item; all before it are considered.
        """
        with self._lock:
            self._append(next_key)
            mask = self._evaluate(condition)
            mask &= self._present.values
            found: Array = self._keys.values[mask]
            return found

    def has(self, name: str, next_key: int) -> bool:
        """Return whether an item has a metadata key."""
        with self._lock:
            self._append(next_key)
            return bool(self._present.values[self._column(name).rows.values].any())

    def remove(self, keys: Array) -> None:
        """Forget items, after they were removed."""
        with self._lock:
            own = self._keys.values
            keys = keys[keys <= own[-1]] if len(own) else keys[:0]
            rows = np.searchsorted(own, keys)
            rows = rows[own[rows] == keys]  # the others are of the other view
            self._present.values[rows] = False
            self._removed += len(rows)
            if self._removed > max(_REMOVED, len(own) // 2):
                self._clear()

    def _clear(self) -> None:
        self._keys, self._present = _Array(np.int64), _Array(np.bool_)
        self._columns: dict[str, _Column] = {}
        self._next_key = self._removed = 0

    def _append(self, next_key: int) -> None:
        """Add the items that were added since."""
        # An item that was removed meanwhile is not there, or ``remove`` waits for the lock.
        new = [
            key
            for key in range(self._next_key, next_key)
            if (item := self._items.get(key)) is not None and item.view == self._view
        ]
        self._next_key = max(next_key, self._next_key)
        first = len(self._keys.values)
        self._keys.extend(new)
        self._present.extend(np.ones(len(new), np.bool_))
        for name, column in self._columns.items():
            column.extend(first, self._metadata(new), name)

    def _column(self, name: str) -> _Column:
        if name not in self._columns:
            column = _Column()
            column.extend(0, self._metadata(self._keys.values.tolist()), name)
            self._columns[name] = column
        return self._columns[name]

    def _metadata(self, keys: list[int]) -> list[Mapping[str, Any]]:
        """Return the metadata of some items, empty where they were removed meanwhile."""
        return [{} if item is None else item.metadata for item in map(self._items.get, keys)]

    def _evaluate(self, condition: Condition) -> Array:
        """Return a mask of the rows that fulfil a condition, those of removed items included."""
        rows = len(self._keys.values)
        match condition:
            case And(parts):
                mask = np.ones(rows, np.bool_)
                for part in parts:
                    mask &= self._evaluate(part)
                return mask
            case Not(part):
                return ~self._evaluate(part)
        mask = np.zeros(rows, np.bool_)
        match condition:
            case Or(parts):
                for part in parts:
                    mask |= self._evaluate(part)
            case Exists(key):
                mask[self._column(key).rows.values] = True
            case In(key, values):
                self._column(key).mark_equal(values, mask)
            case Compare(key, order, value):
                self._column(key).mark_ordered(order, value, mask)
        return mask


class _Array:
    """An array that grows at its end."""

    def __init__(self, dtype: Any) -> None:
        self._room = np.empty(0, dtype)
        self.values = self._room

    def extend(self, more: Any) -> None:
        used, needed = len(self.values), len(self.values) + len(more)
        if needed > len(self._room):
            room = np.empty(max(needed, 3 * used // 2), self._room.dtype)
            room[:used] = self.values
            self._room = room
        self._room[used:needed] = more
        self.values = self._room[:needed]


class _Pairs:
    """Rows and their values."""

    def __init__(self, dtype: Any) -> None:
        self.rows, self._values = _Array(np.int64), _Array(dtype)
        self._is_whole = True  # whether every row, in order, has one value

    def extend(self, rows: Any, values: Any) -> None:
        first = len(self.rows.values)
        self._is_whole &= np.array_equal(rows, np.arange(first, first + len(rows)))
        self.rows.extend(rows)
        self._values.extend(values)

    @property
    def values(self) -> Array:
        return self._values.values

    def mark(self, chosen: Array, mask: Array) -> None:
        """Set the rows of the chosen pairs in a mask of all rows."""
        if self._is_whole:
            mask[: len(chosen)] |= chosen
        else:
            mask[self.rows.values[chosen]] = True


class _Column:
    """The values of one metadata key."""

    def __init__(self) -> None:
        self.rows = _Array(np.int64)  # that have the key
        self._constants = {value: _Array(np.int64) for value in (None, True, False)}
        self._integers = _Pairs(np.int64)
        self._floats = _Pairs(np.float64)  # of which large ones are integers
        self._large: list[tuple[int, int]] = []  # integers of more than 64 bits
        self._strings = _Pairs(np.int32)  # as codes, in order of their first use
        self._codes: dict[str, int] = {}
        self._texts: list[str] = []  # by code
        self._order: list[int] = []  # the first codes, in the order of their strings
        self._ranks: Array = np.empty(0, np.int32)  # of the first codes

    def extend(self, first: int, metadata: Sequence[Mapping[str, Any]], name: str) -> None:
        """Add the metadata of further rows, from the row ``first`` on."""
        if all(name in own for own in metadata):
            rows = list(range(first, first + len(metadata)))
            values = [own[name] for own in metadata]
        else:
            rows = [row for row, own in enumerate(metadata, first) if name in own]
            values = [own[name] for own in metadata if name in own]
        self.rows.extend(rows)
        kinds = set(map(type, values))
        if len(kinds) == 1 and not kinds & {list, tuple}:
            self._extend_type(kinds.pop(), rows, values)
            return
        by_type: dict[type, tuple[list[int], list[Any]]] = {}
        for row, value in zip(rows, values, strict=True):
            for each in elements(value):
                own_rows, own_values = by_type.setdefault(type(each), ([], []))
                own_rows.append(row)
                own_values.append(each)
        for kind, pairs in by_type.items():
            self._extend_type(kind, *pairs)

    def _extend_type(self, kind: type, rows: list[int], values: list[Any]) -> None:
        if issubclass(kind, str):
            for text in dict.fromkeys(values):
                if text not in self._codes:
                    self._codes[text] = len(self._texts)
                    self._texts.append(text)
            codes = np.fromiter(map(self._codes.__getitem__, values), np.int32, len(values))
            self._strings.extend(rows, codes)
        elif issubclass(kind, bool | None.__class__):
            for value, own in self._constants.items():
                own.extend([row for row, each in zip(rows, values, strict=True) if each is value])
        elif issubclass(kind, float):
            numbers = np.array(values, np.float64)
            large = (np.abs(numbers) >= EXACT_FLOATS) & np.isfinite(numbers)
            if large.any():
                places = np.flatnonzero(large).tolist()
                exact = [int(exact_number(values[place])) for place in places]
                self._extend_type(int, [rows[place] for place in places], exact)
            self._floats.extend(np.array(rows)[~large], numbers[~large])
        elif issubclass(kind, int):
            fits = [_INT64.min <= value <= _INT64.max for value in values]
            pairs = list(zip(rows, values, fits, strict=True))
            self._large += [(row, value) for row, value, own in pairs if not own]
            if not all(fits):
                rows = [row for row, _, own in pairs if own]
                values = [value for _, value, own in pairs if own]
            self._integers.extend(rows, values)

    def mark_equal(self, options: Iterable[Any], mask: Array) -> None:
        """Set the rows with one of these values in a mask."""
        values = set(map(_with_type, options))
        for constant, rows in self._constants.items():
            if _with_type(constant) in values:
                mask[rows.values] = True
        codes = [
            code for kind, value in values if kind is str and (code := self._codes.get(value)) is not None
        ]
        if len(codes) > 1:
            fits = np.zeros(len(self._texts), np.bool_)
            fits[codes] = True
            self._strings.mark(fits[self._strings.values], mask)
        elif codes:
            self._strings.mark(self._strings.values == codes[0], mask)
        numbers = [value for kind, value in values if kind is float]
        integers = [int(n) for n in numbers if n == floor(n) and _INT64.min <= n <= _INT64.max]
        floats = [float(n) for n in numbers if abs(n) <= EXACT_FLOATS]
        if integers:
            self._integers.mark(_is_in(self._integers.values, integers), mask)
        if floats:
            self._floats.mark(_is_in(self._floats.values, floats), mask)
        if self._large:
            large = set(numbers)
            mask[[row for row, value in self._large if value in large]] = True

    def mark_ordered(self, order: Ordering, value: str | int | float, mask: Array) -> None:
        """Set the rows with a number or a string that compares so in a mask."""
        if isinstance(value, str):
            self._strings.mark(self._compare_strings(order, value)[self._strings.values], mask)
            return
        compare, is_less = _COMPARISONS[order], order in ("$lt", "$lte")
        # Between integers: x > 2.5 where x > 2, x >= 2.5 where x >= 3.
        bound = floor(value) if order in ("$gt", "$lte") else ceil(value)
        if _INT64.min <= bound <= _INT64.max:
            self._integers.mark(compare(self._integers.values, bound), mask)
        elif (bound > 0) == is_less:
            mask[self._integers.rows.values] = True
        limited = float(max(-EXACT_FLOATS, min(EXACT_FLOATS, value)))
        self._floats.mark(compare(self._floats.values, limited), mask)
        mask[[row for row, own in self._large if compare(own, value)]] = True

    def _compare_strings(self, order: Ordering, value: str) -> Array:
        """Return which of all strings, by code, compare so."""
        if len(self._texts) - len(self._order) > max(_TAIL, len(self._order) // 8):
            # Sorting is fast where most strings are in order.
            self._order += range(len(self._order), len(self._texts))
            self._order.sort(key=self._texts.__getitem__)
            self._ranks = np.empty(len(self._order), np.int32)
            self._ranks[self._order] = np.arange(len(self._order))
        bisect = bisect_left if order in ("$gte", "$lt") else bisect_right
        bound = bisect(self._order, value, key=self._texts.__getitem__)
        sorted_part = self._ranks < bound if order in ("$lt", "$lte") else self._ranks >= bound
        tail = [_COMPARISONS[order](text, value) for text in self._texts[len(self._order) :]]
        return np.concatenate([sorted_part, np.array(tail, np.bool_)])


def _with_type(value: Any) -> tuple[Any, Any]:
    # True equals 1 in Python, and so would a set of both.
    return (float if is_number(value) else str if isinstance(value, str) else bool), value


def _is_in(array: Array, values: Sequence[int | float]) -> Array:
    if len(values) > _FEW:
        return np.isin(array, values)
    mask = np.zeros(len(array), np.bool_)
    for value in values:
        mask |= array == value
    return mask
