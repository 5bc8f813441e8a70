"""Filters: which items a search may return, as a small tree of conditions on metadata.

A filter is written as plain data (``{"year": {"$gte": 2010}, "tag": ["beach", "sea"]}``) or as an expression
(``year >= 2010 and tag in ["beach", "sea"]``); both are read into the same tree. ``Filter.matches`` says what
the tree means. A store evaluates it in its own way, with the same result.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from heapq import nsmallest
from math import isfinite
from operator import ge, gt, le, lt
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych._checks import InputError
from diptych.retrieval._items import Item, unknown_item

Plain: TypeAlias = str | int | float | None
Ordering: TypeAlias = Literal["$gt", "$gte", "$lt", "$lte"]

KEY_OPERATORS = ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$exists", "$not")
GROUP_OPERATORS = ("$and", "$or", "$not")

MAX_DEPTH = 16
"""Of groups within groups."""

MAX_CONDITIONS = 256
MAX_VALUES = 100_000
"""Of all lists of a filter together."""

MAX_CHARACTERS = 2**16
"""Of a filter that is written as a string."""

MOST_KEYS = 20
"""Metadata keys that an error lists."""

MOST_COMPARED = 200
"""Metadata keys among which an error looks for the one that was meant; for more it would take too long."""

MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
"""Integers in metadata and filters have 64 bits."""

COMPARISONS: dict[Ordering, Callable[[Any, Any], Any]] = {"$gt": gt, "$gte": ge, "$lt": lt, "$lte": le}

_SHOWN = 60  # characters of a wrong filter that an error repeats

Where: TypeAlias = Mapping[str, Any] | str | Callable[[Item], bool] | Iterable[str]
"""What users filter by: conditions on metadata as plain data or as an expression, a function of an item, or
a list of ids."""


class FilterError(InputError):
    """A filter is wrong; the message says where."""


@dataclass(frozen=True)
class In:
    """The value, or one element of a list, is one of these."""

    key: str
    values: tuple[Plain, ...]


@dataclass(frozen=True)
class Compare:
    """The value, or one element of a list, is a number (or string) that compares so with this one."""

    key: str
    operator: Ordering
    value: str | int | float


@dataclass(frozen=True)
class Exists:
    """There is a value, whatever it is."""

    key: str


@dataclass(frozen=True)
class And:
    """All of these hold; with none of them, always."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Or:
    """One of these holds; with none of them, never."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True)
class Not:
    """The part does not hold; so this also matches items without its key."""

    part: Condition


Condition: TypeAlias = In | Compare | Exists | And | Or | Not


@dataclass(frozen=True)
class Filter:
    """Which items a search may return, as plain data."""

    ids: frozenset[str] | None = None  # only items with one of these ids
    condition: Condition | None = None  # and only items whose metadata fulfil this
    all_stored: bool = False  # whether an id that no item has is an error

    def matches(self, item: Item) -> bool:
        """Return whether an item passes the filter."""
        if self.ids is not None and item.id not in self.ids:
            return False
        return self.condition is None or holds(self.condition, item.metadata)

    def check_stored(self, stored: Container[str]) -> None:
        """Refuse an id that no item has, if all must be stored."""
        for item_id in self.ids or () if self.all_stored else ():
            if item_id not in stored:
                raise unknown_item(item_id)


def parse_filter(where: Mapping[str, Any] | str) -> Filter:
    """Read a filter on metadata from plain data, from JSON, or from an expression; else a ``FilterError``.

    >>> parse_filter("year >= 2010").condition == parse_filter({"year": {"$gte": 2010}}).condition
    True
    """
    condition = _Parser().parse(where, 0)
    return Filter(condition=None if condition == And(()) else condition)


def required_keys(condition: Condition | None, wanted: bool = True) -> Iterator[str]:
    """Iterate over the keys without which no item fulfils some part of a condition.

    A key that is only negated (``$ne``, ``$nin``, ``$not``) is not one of them, since those also match items
    without the key.
    """
    match condition:
        case In(key, _) | Compare(key, _, _) | Exists(key):
            yield from [key] if wanted else []
        case Not(part):
            yield from required_keys(part, not wanted)
        case And(parts) | Or(parts):
            for part in parts:
                yield from required_keys(part, wanted)


def check_metadata_keys(where: Filter, names: Iterable[str], argument: str = "where") -> None:
    """Refuse a filter with a metadata key that no item has; ``names`` are the keys of all items.

    This is called when nothing matched, to tell a misspelt key from a value that no item has. ``argument`` is
    what named the key.
    """
    keys = set(names)
    unknown = next((key for key in required_keys(where.condition) if key not in keys), None)
    if unknown is None:
        return
    if not keys:
        raise FilterError(
            f"{argument} names the key {unknown!r}, but no item has metadata; give it when items are added, "
            "for example columns of a table with --metadata (in Python: read_pairs(..., metadata=...))."
        )
    compared = [key for key in (unknown, *keys) if len(key) <= _SHOWN] if len(keys) <= MOST_COMPARED else []
    near = difflib.get_close_matches(unknown, compared[1:], 1) if unknown in compared else []
    listed = ", ".join(map(_show, nsmallest(MOST_KEYS, keys))) + (", …" if len(keys) > MOST_KEYS else "")
    raise FilterError(
        f"{argument} names the key {_show(unknown)}, which no item has in its metadata"
        + (f"; did you mean {near[0]!r}?" if near else ".")
        + f" The keys there are: {listed}."
    )


def iso_string(value: date) -> str:
    """Return a date or time as a string of ISO 8601; the order of such strings is their order in time.

    Times with a zone are written in UTC, and always with microseconds: ``Z`` sorts after ``.``.

    >>> iso_string(date(2019, 5, 1)), iso_string(datetime(2019, 5, 1, 9, 30))
    ('2019-05-01', '2019-05-01T09:30:00')
    """
    if isinstance(value, datetime) and value.tzinfo is not None:
        try:
            value = value.astimezone(UTC)
        except OverflowError:
            raise InputError(
                f"{value} is outside of the years 1 to 9999 in UTC; give another time."
            ) from None
        return value.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    return value.isoformat()


def plain_number(value: int | float) -> int | float:
    """Return a finite number as it is stored and compared: an int64 or a float64; else a ``ValueError``.

    Floats from 2⁵³ on are integers, and become such ones within 64 bits. So a database that reads decimal
    numbers compares them exactly: 2⁶⁰ as a float is written 1.152921504606847e18, which is not 2⁶⁰.

    >>> plain_number(2.0**60), plain_number(0.5)
    (1152921504606846976, 0.5)
    """
    fits = MIN_INTEGER <= value <= MAX_INTEGER
    if isinstance(value, int) and not fits:
        raise ValueError("an integer has more than 64 bits; write it as a float or as text")
    return int(value) if fits and abs(value) >= 2**53 else value


def is_number(value: Any) -> bool:
    """Return whether a plain value is a number; in JSON, true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def elements(value: Any) -> Iterable[Any]:
    """Return what a condition compares of a stored value: the elements of a list, or the value."""
    return value if isinstance(value, list | tuple) else (value,)


def holds(condition: Condition, metadata: Mapping[str, Any]) -> bool:
    """Return whether metadata fulfil a condition."""
    match condition:
        case And(parts):
            return all(holds(part, metadata) for part in parts)
        case Or(parts):
            return any(holds(part, metadata) for part in parts)
        case Not(part):
            return not holds(part, metadata)
        case Exists(key):
            return key in metadata
        case In(key, values):
            stored = elements(metadata[key]) if key in metadata else ()
            return any(_equal(element, value) for element in stored for value in values)
        case Compare(key, operator, value):
            stored = elements(metadata[key]) if key in metadata else ()
            return any(_compare(element, operator, value) for element in stored)


def _equal(stored: Any, value: Plain) -> bool:
    # True equals 1 in Python; in a filter, as in JSON, it must not.
    return isinstance(stored, bool) == isinstance(value, bool) and bool(stored == value)


def _compare(stored: Any, operator: Ordering, value: Any) -> bool:
    is_ordered = is_number(value) if is_number(stored) else isinstance(stored, str) and isinstance(value, str)
    return is_ordered and bool(COMPARISONS[operator](stored, value))


class _Parser:
    """Reads one filter; counts its conditions and values."""

    def __init__(self) -> None:
        self.conditions = self.values = 0

    def parse(self, where: Any, depth: int) -> Condition:
        if isinstance(where, str):
            if len(where) > MAX_CHARACTERS:
                raise FilterError(f"the filter has {len(where)} characters; at most {MAX_CHARACTERS}.")
            if not where.lstrip().startswith("{"):
                return _Expression(where, self).parse(depth)
            where = _read_json(where)
        if not isinstance(where, Mapping):
            raise FilterError(
                f"{_show(where)} is not a filter; give an object such as {{'year': {{'$gte': 2010}}}} or an "
                "expression such as 'year >= 2010'."
            )
        self.check(depth, max(1, len(where)))
        return _join(And, [self.entry(key, value, depth) for key, value in where.items()])

    def check(self, depth: int, conditions: int) -> None:
        """Count conditions; refuse a filter that is too deep or has too many of them."""
        self.conditions += conditions
        if depth > MAX_DEPTH:
            raise FilterError(f"the filter is nested more than {MAX_DEPTH} deep; write it more simply.")
        if self.conditions > MAX_CONDITIONS:
            raise FilterError(f"the filter has more than {MAX_CONDITIONS} conditions; use $in for lists.")

    def entry(self, key: Any, value: Any, depth: int) -> Condition:
        if not isinstance(key, str):
            raise FilterError(f"{_show(key)} is not a metadata key; keys are strings.")
        if key in ("$and", "$or"):
            if not isinstance(value, list | tuple):
                raise FilterError(f"{key} takes a list of filters; got {_show(value)}.")
            return _join(And if key == "$and" else Or, [self.parse(part, depth + 1) for part in value])
        if key == "$not":
            return Not(self.parse(value, depth + 1))
        _check_key(key)
        return self.key_conditions(key, value, depth)

    def key_conditions(self, key: str, value: Any, depth: int) -> Condition:
        """Return the conditions on one key: operators with their values, a list, or a value."""
        if not isinstance(value, Mapping):
            return self.one_of(key, value if _is_list(value) else [value])
        if not value:
            raise FilterError(f"there is no operator for the key {key!r}. {_list_operators(KEY_OPERATORS)}")
        self.check(depth, len(value) - 1)
        return _join(And, [self.operation(key, name, operand, depth) for name, operand in value.items()])

    def operation(self, key: str, operator: Any, value: Any, depth: int) -> Condition:
        """Return one condition on a key."""
        match operator:
            case "$eq":
                return self.one_of(key, [value])
            case "$ne":
                return Not(self.one_of(key, [value]))
            case "$in" | "$nin":
                if not _is_list(value):
                    raise FilterError(f"{operator} of the key {key!r} takes a list; got {_show(value)}.")
                condition = self.one_of(key, value)
                return condition if operator == "$in" else Not(condition)
            case "$gt" | "$gte" | "$lt" | "$lte":
                return Compare(key, operator, _check_ordered(key, operator, _plain_value(key, value)))
            case "$exists":
                if not isinstance(value, bool):
                    raise FilterError(f"$exists of the key {key!r} takes true or false; got {_show(value)}.")
                return Exists(key) if value else Not(Exists(key))
            case "$not":
                return Not(self.key_conditions(key, value, depth + 1))
        near = difflib.get_close_matches(str(operator), KEY_OPERATORS, 1)
        raise FilterError(
            f"{_show(operator)} of the key {key!r} is not an operator"
            + (f"; did you mean {near[0]}? " if near else ". ")
            + _list_operators(KEY_OPERATORS)
        )

    def one_of(self, key: str, values: Iterable[Any]) -> Condition:
        plain = tuple(_plain_value(key, value) for value in values)
        self.values += len(plain)
        if self.values > MAX_VALUES:
            raise FilterError(f"the filter has more than {MAX_VALUES} values; filter by ids or a function.")
        return In(key, plain)


def _join(group: type[And] | type[Or], parts: list[Condition]) -> Condition:
    """Return conditions as a group, or the only one by itself."""
    return parts[0] if len(parts) == 1 else group(tuple(parts))


def _is_list(value: Any) -> bool:
    """Return whether a value stands for several."""
    return isinstance(value, list | tuple | set | frozenset)


def _check_key(key: str) -> None:
    """Refuse an operator where a metadata key is expected."""
    if not key.startswith("$"):
        return
    if key in KEY_OPERATORS:
        raise FilterError(f"{key} belongs to a metadata key, as in {{'year': {{'{key}': …}}}}.")
    near = difflib.get_close_matches(key, GROUP_OPERATORS, 1)
    raise FilterError(
        f"{_show(key)} is not an operator between conditions"
        + (f"; did you mean {near[0]}? " if near else ". ")
        + _list_operators(GROUP_OPERATORS)
    )


def _plain_value(key: str, value: Any) -> Plain:
    """Return a value to compare with; dates become strings."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, date):
        return iso_string(value)
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int) or (isinstance(value, float) and isfinite(value)):
        try:
            return plain_number(value)
        except ValueError as error:
            raise FilterError(f"the filter compares the key {key!r} wrongly: {error}.") from None
    raise FilterError(
        f"{_show(value)} of the key {key!r} is not a plain value; give a string, a finite number, a date, "
        "true, false or None, or a list of these."
    )


def _check_ordered(key: str, operator: str, value: Plain) -> str | int | float:
    """Refuse a value that has no order."""
    if value is None or isinstance(value, bool):
        raise FilterError(
            f"{operator} of the key {key!r} compares numbers, strings and dates; got {_show(value)}."
        )
    # Databases cannot compare with such a string, and no item there has one.
    if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
        raise FilterError(
            f"{operator} of the key {key!r} compares with a NUL character or an unpaired surrogate; leave "
            "it out."
        )
    return value


def _list_operators(operators: Iterable[str]) -> str:
    return f"The operators are {', '.join(operators)}."


def _show(value: Any) -> str:
    if isinstance(value, str) and len(value) > _SHOWN:
        return repr(value[:_SHOWN]) + "…"
    try:
        shown = repr(value)
    except ValueError:  # of an integer of thousands of digits
        return "a value that is too long"
    return shown if len(shown) <= _SHOWN else shown[:_SHOWN] + "…"


def _read_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise FilterError(f"the filter is not JSON: {error.msg} at character {error.pos + 1}.") from None
    except (ValueError, RecursionError):
        raise FilterError("the filter cannot be read: it is too deep, or a number is too long.") from None


_TOKEN = re.compile(
    r"""(?P<date> \d{4}-\d\d [\w:.+-]* )
    | (?P<number> [+-]? (?: \d+\.?\d* | \.\d+ ) (?: [eE][+-]?\d+ )? )
    | (?P<string> "[^"\\]*(?:\\.[^"\\]*)*" | '[^'\\]*(?:\\.[^'\\]*)*' )
    | (?P<operator> == | = | != | <> | <= | >= | < | > )
    | (?P<mark> [()\[\],] )
    | (?P<word> [^\W\d][\w.-]* )""",
    re.VERBOSE | re.DOTALL,
)

_OPERATORS = {
    **{"=": "$eq", "==": "$eq", "!=": "$ne", "<>": "$ne"},
    **{"<": "$lt", "<=": "$lte", ">": "$gt", ">=": "$gte"},
}
_CONSTANTS = {"true": True, "false": False, "null": None}
_RESERVED = {"and", "or", "not", "in", "exists", *_CONSTANTS}


@dataclass(frozen=True)
class _Token:
    kind: Literal["date", "number", "string", "operator", "mark", "word", "end"]
    text: str
    place: int

    def is_word(self, *words: str) -> bool:
        return self.kind == "word" and self.text.lower() in words


class _Expression:
    """Reads an expression such as ``year >= 2010 and not (tag in ["beach", "sea"] or exists draft)``."""

    def __init__(self, text: str, parser: _Parser) -> None:
        self.text, self.parser = text, parser
        self.tokens, self.next = list(self._split()), 0

    def parse(self, depth: int) -> Condition:
        condition = self._either(depth)
        if self._token.kind != "end":
            raise self._error(self._token.place, "expected 'and', 'or', or the end")
        return condition

    def _split(self) -> Iterator[_Token]:
        place = 0
        while True:
            while place < len(self.text) and self.text[place].isspace():
                place += 1
            if place == len(self.text):
                yield _Token("end", "", place)
                return
            match = _TOKEN.match(self.text, place)
            if match is None:
                quoted = self.text[place] in "\"'"
                raise self._error(
                    place, "the quote does not end" if quoted else "this character has no meaning"
                )
            kind: Any = match.lastgroup
            yield _Token(kind, match[0], place)
            place = match.end()

    @property
    def _token(self) -> _Token:
        return self.tokens[self.next]

    def _take(self) -> _Token:
        token = self._token
        self.next += 1
        return token

    def _accept(self, *words: str) -> bool:
        """Skip the next token if it is one of these."""
        token = self._token
        if token.is_word(*words) or (token.kind == "mark" and token.text in words):
            self.next += 1
            return True
        return False

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise self._error(self._token.place, f"expected {mark!r}")

    def _error(self, place: int, message: str) -> FilterError:
        rest = self.text[place : place + 20]
        at = f"at character {place + 1} ({rest!r})" if rest else "at its end"
        if not re.search(r"[=<>]|\b(in|exists)\b", self.text):
            message += ". To choose items by their ids, give a list of ids"
        return FilterError(f"the filter {_show(self.text)} is wrong {at}: {message}.")

    def _either(self, depth: int) -> Condition:
        self.parser.check(depth, 0)
        parts = [self._both(depth)]
        while self._accept("or"):
            parts.append(self._both(depth))
        return _join(Or, parts)

    def _both(self, depth: int) -> Condition:
        parts = [self._negated(depth)]
        while self._accept("and"):
            parts.append(self._negated(depth))
        return _join(And, parts)

    def _negated(self, depth: int) -> Condition:
        self.parser.check(depth, 1)
        if self._accept("not"):
            return Not(self._negated(depth + 1))
        if self._accept("("):
            condition = self._either(depth + 1)
            self._expect(")")
            return condition
        if self._accept("exists"):
            return self.parser.operation(self._key(), "$exists", True, depth)
        key = self._key()
        negative = self._accept("not")
        if self._accept("in"):
            return self.parser.operation(key, "$nin" if negative else "$in", self._list(), depth)
        token = self._token
        if negative or token.kind != "operator":
            raise self._error(
                self._token.place,
                "expected 'in'" if negative else "expected =, !=, <, <=, >, >=, 'in' or 'not in'",
            )
        self._take()
        return self.parser.operation(key, _OPERATORS[token.text], self._value(), depth)

    def _key(self) -> str:
        token = self._take()
        if token.kind == "string":
            key = _unquote(token.text)
            if not key.startswith("$"):
                return key
        elif token.kind == "word" and not token.is_word(*_RESERVED):
            return token.text
        raise self._error(
            token.place,
            "expected a metadata key, as in year >= 2010; put keys that are not plain words into quotes",
        )

    def _list(self) -> list[Any]:
        closing = "]" if self._token.text == "[" else ")"
        if not self._accept("[", "("):
            raise self._error(self._token.place, "expected a list such as [1, 2]")
        values: list[Any] = []
        while not self._accept(closing):
            if values:
                self._expect(",")
            values.append(self._value())
        return values

    def _value(self) -> Any:
        token = self._take()
        try:
            match token.kind:
                case "string":
                    return _unquote(token.text)
                case "number":
                    return float(token.text) if re.search("[.eE]", token.text) else int(token.text)
                case "date":
                    return _read_date(token.text)
        except ValueError:
            raise self._error(token.place, f"there is no such {token.kind}") from None
        if token.is_word(*_CONSTANTS):
            return _CONSTANTS[token.text.lower()]
        if token.kind == "word":
            raise self._error(token.place, f'expected a value; put text into quotes: "{token.text}"')
        raise self._error(token.place, "expected a number, a date, a text in quotes, true, false or null")


def _unquote(text: str) -> str:
    return re.sub(r"\\([\"'\\])", r"\1", text[1:-1])


def _read_date(text: str) -> str:
    """Return a date of an expression as Python's dates are written; a month stays as it is."""
    if len(text) > len("2019-05-01T09:30:00.000000+00:00"):
        raise ValueError  # Python ignores further digits of a second
    if len(text) == len("2019-05"):
        return iso_string(date.fromisoformat(text + "-01"))[: len(text)]
    return iso_string(datetime.fromisoformat(text) if "T" in text else date.fromisoformat(text))
