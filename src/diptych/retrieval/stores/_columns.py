"""Metadata in columns: which items fulfil a condition, without looking at each of them in Python.

The items of a view have consecutive rows. The column of a metadata key holds pairs of row and value in a
typed array, one for each type of value that occurs, since values of different types are never equal nor
ordered. A list has a pair for each element. A column is made when a filter first names its key, if an item
has it. Later items are appended to it at the next filter, and the rows of removed items are only marked,
until half of them are.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from math import ceil, floor, inf, nextafter
from types import NoneType
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
    is_number,
)
from diptych.retrieval._items import Item, StoredItem, View

Array: TypeAlias = np.ndarray[Any, Any]
Items: TypeAlias = Mapping[int, Item | StoredItem]

_DTYPES: dict[type, Any] = {
    NoneType: np.bool_,
    bool: np.bool_,  # before int, of which it is a subclass
    int: np.int64,
    float: np.float64,
    str: np.int32,  # codes
    object: np.bool_,  # dicts, and lists in lists or empty ones: no condition compares them
}

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

    def names(self, next_key: int) -> set[str]:
        """Return the metadata keys of all items."""
        with self._lock:
            self._append(next_key)
            return set(self._names)

    def remove(self, removed: Items) -> None:
        """Forget items, after they were removed."""
        with self._lock:
            keys = self._keys.values
            if not len(keys):
                return
            wanted = np.array(list(removed), np.int64)
            rows = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
            # Others are of the other view, or were removed before they were appended here.
            is_here = keys[rows] == wanted
            self._present.values[rows[is_here]] = False
            for name in chain.from_iterable(removed[key].metadata for key in wanted[is_here].tolist()):
                self._names[name] -= 1
                if not self._names[name]:
                    del self._names[name]
                    self._columns.pop(name, None)
            self._removed += int(np.count_nonzero(is_here))
            if self._removed > max(_REMOVED, len(keys) // 2):
                self._clear()

    def _clear(self) -> None:
        self._keys, self._present = _Array(np.int64), _Array(np.bool_)
        self._names: Counter[str] = Counter()  # how many items have each key
        self._columns: dict[str, _Column] = {}
        self._next_key = self._removed = 0

    def _append(self, next_key: int) -> None:
        """Add the items that were added since."""
        # An item that was removed meanwhile is not there, or ``remove`` waits for the lock.
        new = [
            (key, item)
            for key in range(self._next_key, next_key)
            if (item := self._items.get(key)) is not None and item.view == self._view
        ]
        self._next_key = max(next_key, self._next_key)
        if not new:
            return
        first, metadata = len(self._keys.values), [item.metadata for _, item in new]
        self._keys.extend([key for key, _ in new])
        self._present.extend(np.ones(len(new), np.bool_))
        self._names.update(chain.from_iterable(metadata))
        for name, column in self._columns.items():
            column.extend(first, metadata, name)

    def _column(self, name: str) -> _Column | None:
        """Return the column of a key; None if no item has it."""
        if name not in self._columns and name in self._names:
            items = map(self._items.get, self._keys.values.tolist())
            column = self._columns[name] = _Column()
            column.extend(0, [{} if item is None else item.metadata for item in items], name)
        return self._columns.get(name)

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
        if isinstance(condition, Or):
            for part in condition.parts:
                mask |= self._evaluate(part)
        elif (column := self._column(condition.key)) is not None:
            column.mark(condition, mask)
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
        self._rows, self._values = _Array(np.int64), _Array(dtype)
        self._is_whole = True  # whether every row, in order, has one value

    def extend(self, rows: Any, values: Any) -> None:
        first = len(self._rows.values)
        self._is_whole &= np.array_equal(rows, np.arange(first, first + len(rows)))
        self._rows.extend(rows)
        self._values.extend(values)

    @property
    def values(self) -> Array:
        return self._values.values

    def mark(self, chosen: Array, mask: Array) -> None:
        """Set the rows of the chosen pairs in a mask of all rows."""
        if self._is_whole:
            mask[: len(chosen)] |= chosen
        else:
            mask[self._rows.values[chosen]] = True


class _Column:
    """The values of one metadata key, by their type."""

    def __init__(self) -> None:
        self._pairs: dict[type, _Pairs] = {}
        self._strings = _Strings()

    def extend(self, first: int, metadata: Sequence[Mapping[str, Any]], name: str) -> None:
        """Add the metadata of further rows, from the row ``first`` on."""
        rows = [row for row, own in enumerate(metadata, first) if name in own]
        values = [own[name] for own in metadata if name in own]
        types = set(map(type, values))
        if len(types) == 1 and not types & {list, tuple}:
            self._extend_type(types.pop(), rows, values)
            return
        by_type: dict[type, tuple[list[int], list[Any]]] = {}
        for row, value in zip(rows, values, strict=True):
            for part in value if isinstance(value, list | tuple) and value else (value,):
                type_rows, type_values = by_type.setdefault(type(part), ([], []))
                type_rows.append(row)
                type_values.append(part)
        for kind, pairs in by_type.items():
            self._extend_type(kind, *pairs)

    def _extend_type(self, kind: type, rows: list[int], values: list[Any]) -> None:
        kind = next(known for known in _DTYPES if issubclass(kind, known))
        stored: Any = [True] * len(values) if kind is object else values
        if kind is str:
            stored = self._strings.encode(values)
        self._pairs.setdefault(kind, _Pairs(_DTYPES[kind])).extend(rows, stored)

    def mark(self, condition: In | Compare | Exists, mask: Array) -> None:
        """Set the rows that fulfil a condition in a mask."""
        for kind, pairs in self._pairs.items():
            match condition:
                case Exists():
                    pairs.mark(np.ones(len(pairs.values), np.bool_), mask)
                case In(_, options):
                    if stored := self._find_stored(kind, options):
                        pairs.mark(_is_in(pairs.values, stored), mask)
                case Compare(_, order, str(text)):
                    if kind is str:
                        pairs.mark(self._strings.compare(order, text)[pairs.values], mask)
                case Compare(_, order, int(number) | float(number)):
                    if kind in (int, float):
                        pairs.mark(_compare_numbers(pairs.values, order, number), mask)

    def _find_stored(self, kind: type, options: Iterable[Any]) -> list[Any]:
        """Return those options that values of a type may equal, as such values are stored."""
        if kind is float:
            return [float(option) for option in options if is_number(option) and float(option) == option]
        if kind is int:
            integers = (option for option in options if is_number(option) and option == floor(option))
            return [int(n) for n in integers if MIN_INTEGER <= n <= MAX_INTEGER]
        if kind is str:
            return self._strings.find(options)
        return [bool(option) for option in options if type(option) is kind]  # of null and booleans


class _Strings:
    """The different strings of a column, under codes in the order of their first use."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._texts: list[str] = []  # by code
        self._order: list[int] = []  # the first codes, in the order of their strings
        self._ranks: Array = np.empty(0, np.int32)  # of the first codes

    def encode(self, texts: list[str]) -> Array:
        """Return the codes of strings; new ones get one."""
        for text in dict.fromkeys(texts):
            if text not in self._codes:
                self._codes[text] = len(self._texts)
                self._texts.append(text)
        return np.fromiter(map(self._codes.__getitem__, texts), np.int32, len(texts))

    def find(self, options: Iterable[Any]) -> list[int]:
        """Return the codes of those options that have one."""
        codes = (self._codes.get(option) for option in options if isinstance(option, str))
        return [code for code in codes if code is not None]

    def compare(self, order: Ordering, value: str) -> Array:
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
        tail = [COMPARISONS[order](text, value) for text in self._texts[len(self._order) :]]
        return np.concatenate([sorted_part, np.array(tail, np.bool_)])


def _compare_numbers(values: Array, order: Ordering, value: int | float) -> Array:
    """Compare exactly: with the nearest number of the array's type, on the side where that is the same."""
    down = order in ("$gt", "$lte")  # x > 2.5 where x > 2, x >= 2.5 where x >= 3
    bound: int | float
    if values.dtype == np.int64:
        bound = floor(value) if down else ceil(value)
        if not MIN_INTEGER <= bound <= MAX_INTEGER:
            return np.full(len(values), (bound > 0) == (order in ("$lt", "$lte")))
    else:
        bound = float(value)
        if bound != value and (bound > value) == down:
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
