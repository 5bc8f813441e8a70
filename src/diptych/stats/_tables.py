"""Tables of results: plain text to paste, and data frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from diptych._checks import import_package, missing_package_error
from diptych.cca._filters import Floats

SHOWN_FEATURES = 30
"""Features that a printed table shows; data frames have all."""


def format_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells as plain text, with columns aligned to the right, but for the first.

    >>> print(format_table(["k", "p"], [["1", "0.0635"], ["2", "0.9"]]))
    k       p
    1  0.0635
    2     0.9
    """
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(header))]

    def align(line: list[str]) -> str:
        cells = [cell.rjust(width) for cell, width in zip(line, widths, strict=True)]
        return "  ".join([line[0].ljust(widths[0]), *cells[1:]]).rstrip()

    return "\n".join(map(align, lines))


def format_p(value: float) -> str:
    """Return a p-value with four decimals.

    >>> format_p(0.06353), format_p(3e-7)
    ('0.0635', '<0.0001')
    """
    return "<0.0001" if value < 5e-5 else f"{value:.4f}"


def format_number(value: float) -> str:
    """Return degrees of freedom: whole numbers without decimals.

    >>> format_number(9.0), format_number(34.2229)
    ('9', '34.22')
    """
    return f"{value:.0f}" if math.isclose(value, round(value), abs_tol=1e-9) else f"{value:.2f}"


def make_labels(prefix: str, count: int, names: list[str] | None) -> list[str]:
    """Return the names of features, or numbers if they have none.

    >>> make_labels("x", 2, None)
    ['x0', 'x1']
    """
    return [f"{prefix}{number}" for number in range(count)] if names is None else names


def make_frame(pandas: Any, values: Floats, labels: list[str]) -> Any:
    """Return features × components as a DataFrame; components are numbered from 1."""
    columns = pandas.RangeIndex(1, values.shape[1] + 1, name="component")
    return pandas.DataFrame(values, labels, columns)


def import_pandas() -> Any:
    """Return pandas, or say how to install it."""
    return import_package("pandas", missing_package_error("a data frame needs", "pandas", "pandas"))
