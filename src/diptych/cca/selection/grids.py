"""Grids of regularisation parameters, drawn from the spectra."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych.arrays import Array, to_numpy
from diptych.cca.filters import Tikhonov, TruncatedSVD, as_number
from diptych.cca.spectra import Spectra
from diptych.checks import InputError

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Kind: TypeAlias = Literal["tikhonov", "tsvd"]

SPACINGS = ("log", "rank")


@dataclass(frozen=True, eq=False)
class Grid:
    """The grid of one regularisation: its parameters on both sides, weakest regularisation last."""

    kind: Kind
    x: Floats
    y: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """Points per side."""
        return len(self.x), len(self.y)

    def params(self, i: int, j: int) -> tuple[float, float] | tuple[int, int]:
        """The parameters at a point, as ``AWCCA(params=…)`` takes them."""
        if self.kind == "tsvd":
            return int(self.x[i]), int(self.y[j])
        return float(self.x[i]), float(self.y[j])


def make_grid(kind: Kind, grid: Any, spectra: Spectra) -> Grid:
    """The grid that ``AWCCA(grid=…)`` asks for.

    ``grid`` is a number of points per side, a pair ``("log", n)`` or ``("rank", n)`` that says how they
    are spaced, or a pair of arrays. ``"log"`` spaces σ² evenly on a logarithmic scale between the largest
    and the smallest, ``"rank"`` takes the σ² of evenly spaced ranks, as the paper does. A plain number
    means ``"log"``, which found the better models (``benchmarks/results/selection_quality.md``).
    """
    sides = to_numpy(spectra.s_x), to_numpy(spectra.s_y)
    check_grid(grid)
    if _is_spaced(grid):
        spacing, points = grid
        x, y = (_spaced(kind, s, spacing, _points(points)) for s in sides)
    elif isinstance(grid, (tuple, list)) and len(grid) == 2:
        x, y = (_explicit(kind, values, s) for values, s in zip(grid, sides, strict=True))
    else:
        x, y = (_spaced(kind, s, "log", _points(grid)) for s in sides)
    return Grid(kind, x, y)


def check_grid(grid: Any) -> None:
    """Refuse what is no grid, before there are spectra to lay it over."""
    if _is_spaced(grid):
        if grid[0] not in SPACINGS:
            raise InputError(f"grid=({grid[0]!r}, …) is unknown; choose 'log' or 'rank'.")
        _points(grid[1])
    elif not (isinstance(grid, (tuple, list)) and len(grid) == 2):
        _points(grid)


def _is_spaced(grid: Any) -> bool:
    return isinstance(grid, (tuple, list)) and len(grid) == 2 and isinstance(grid[0], str)


def _points(points: Any) -> int:
    number = as_number(points, "grid")
    if not 1 <= number <= 10_000 or number != int(number):
        raise InputError(
            f"grid={points!r} is not a number of points; give 1 to 10000, a pair ('log', n) or ('rank', n), "
            "or one array of parameters for each view."
        )
    return int(number)


def _spaced(kind: Kind, s: Array, spacing: str, points: int) -> Floats:
    rank = len(s)
    if spacing == "rank":
        first = max(min(2, rank), round(rank / points))
        ks = np.unique(np.linspace(first, rank, points).round().astype(int))
        return _descending(s[ks - 1] ** 2) if kind == "tikhonov" else ks.astype(np.float64)
    gammas = np.geomspace(s[0] ** 2, s[-1] ** 2, points) if points > 1 else s[-1:] ** 2
    if kind == "tikhonov":
        return _descending(gammas)
    # The number of directions above each level; at k = 1 every cosine is 1 or −1, and all is ties.
    above = np.searchsorted(-(s**2), -gammas * (1 - 1e-9), side="right")
    return np.unique(above.clip(min(2, rank), rank)).astype(np.float64)


def _explicit(kind: Kind, values: Any, s: Array) -> Floats:
    try:
        given = np.unique(np.asarray(values, dtype=np.float64).reshape(-1))
    except (TypeError, ValueError):
        given = np.empty(0)
    if given.size == 0:
        raise InputError(f"grid holds {values!r}; give numbers, one array of parameters for each view.")
    for value in given:
        if kind == "tikhonov":
            Tikhonov(float(value))
        else:
            TruncatedSVD(value).denominators(s)
    return _descending(given) if kind == "tikhonov" else given


def _descending(values: Array) -> Floats:
    return np.unique(values)[::-1].copy()
