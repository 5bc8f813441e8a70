"""Tables of results: plain text to paste, and data frames."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from diptych._arrays import Floats
from diptych._checks import import_package


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


def format_components(columns: Mapping[str, Iterable[Any]]) -> str:
    """Return columns with an entry for each component as plain text; floats have four decimals.

    >>> print(format_components({"correlation": [0.79561, 0.2], "p": ["0.06", "0.9"]}))
    component  correlation     p
    1               0.7956  0.06
    2               0.2000   0.9
    """
    rows = (
        [str(number), *(f"{cell:.4f}" if isinstance(cell, float) else str(cell) for cell in cells)]
        for number, cells in enumerate(zip(*columns.values(), strict=True), 1)
    )
    return format_table(["component", *columns], rows)


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


def component_frame(columns: Mapping[str, Floats]) -> Any:
    """Return columns with an entry for each component as a DataFrame; components are numbered from 1."""
    frame = import_pandas().DataFrame(dict(columns))
    frame.index = _number_components(len(frame))
    return frame


def feature_frame(values: Floats, labels: list[str]) -> Any:
    """Return features × components as a DataFrame."""
    return import_pandas().DataFrame(values, labels, _number_components(values.shape[1]))


def _number_components(count: int) -> Any:
    return import_pandas().RangeIndex(1, count + 1, name="component")


def import_pandas() -> Any:
    """Return pandas, or say how to install it."""
    return import_package("pandas", "a data frame needs", "pandas")
