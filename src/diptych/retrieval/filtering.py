"""Which items count: by their metadata, by a function, or by their ids."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, TypeAlias

from diptych.checks import InputError
from diptych.retrieval.items import Item

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
