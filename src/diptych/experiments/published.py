"""The figures that the paper published, to stand beside ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from diptych.checks import InputError


@dataclass(frozen=True)
class PublishedRow:
    """One row of a published table; ``values`` follow the table's columns, None where it gives no number."""

    method: str
    values: tuple[float | None, ...]
    images: str = ""
    text: str = ""
    by: str = "the paper"
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class PublishedTable:
    """A published table: its columns, its rows, and in words what it was measured on."""

    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    setting: str = ""


def published(name: str) -> PublishedTable:
    """A table of the paper by name, such as ``"main/flickr8k"``.

    A table that stands in the paper's source without having been published is refused: it must not be shown
    as published.

    >>> published("main/flickr8k").rows[1].values[0]
    18.62
    """
    tables = _content()["tables"]
    known = ", ".join(name for name in tables if tables[name]["published"])
    if name not in tables:
        raise InputError(f"the paper has no table {name!r} here; choose one of {known}.")
    table = tables[name]
    if not table["published"]:
        raise InputError(f"the table {name!r} is {table['status']}; choose one of {known}.")
    rows = tuple(PublishedRow(**{**row, **_tuples(row)}) for row in table["rows"])
    return PublishedTable(tuple(table["columns"]), rows, table.get("setting", ""))


def source() -> str:
    """The publication that the tables are from."""
    return str(_content()["source"])


def _tuples(row: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(row[name]) for name in ("values", "shape") if name in row}


@cache
def _content() -> dict[str, Any]:
    content = files("diptych.experiments").joinpath("published.json").read_text("utf-8")
    return dict(json.loads(content))
