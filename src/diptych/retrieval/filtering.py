"""Which items count: by their metadata, by a function, or by their ids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Any, TypeAlias

from diptych.checks import InputError
from diptych.retrieval.items import Item

Plain: TypeAlias = str | int | float | None
Where: TypeAlias = Mapping[str, Any] | Callable[[Item], bool] | Iterable[str]
"""Values of metadata, of a list one of them; a function of an item; or ids."""


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
