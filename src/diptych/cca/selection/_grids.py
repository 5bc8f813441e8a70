"""Grids of regularisation parameters, drawn from the spectra.

Validation pairs taken from the training pairs, by image: an image's captions are never split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych._arrays import Array, move_like, to_numpy
from diptych._checks import InputError, check_number
from diptych.cca._filters import SpectralFilter, Tikhonov, TruncatedSVD
from diptych.cca._spectra import Spectra

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Kind: TypeAlias = Literal["tikhonov", "tsvd", "custom"]

SPACINGS = ("log", "rank")

LIMIT = 1e3
"""γ's beyond σ²₁ or below the smallest σ² by this factor change no direction's weight by more than 0.1 %, but
for a factor that all directions share."""

MOST_ADDED = 5
"""Values that one extension adds to a side at most."""


@dataclass(frozen=True, eq=False)
class Grid:
    """The grid of one regularisation: its parameters on both sides, weakest regularisation last.

    ``automatic`` says that the values were drawn from the spectra and not given; ``filter`` is the one of the
    kind ``"custom"``.
    """

    kind: Kind
    x: Floats
    y: Floats
    automatic: bool = False
    filter: SpectralFilter | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Points per side."""
        return len(self.x), len(self.y)

    def params(self, i: int, j: int) -> tuple[float, float] | tuple[int, int]:
        """The parameters at a point, as ``AWCCA(params=…)`` takes them."""
        if self.kind == "tsvd":
            return int(self.x[i]), int(self.y[j])
        return float(self.x[i]), float(self.y[j])

    def edge(self, side: str, end: str) -> float:
        """The ``"strongest"`` or ``"weakest"`` value of ``"x"`` or ``"y"``."""
        values = self.x if side == "x" else self.y
        return float(values[0 if end == "strongest" else -1])

    def beyond(self, side: str, end: str, spectra: Spectra) -> Floats:
        """Return values to add beyond an end of a side, in their order; none where they could change nothing.

        For Tikhonov one decade, spaced as the values are there, up to ``LIMIT`` times σ²₁, where the model is
        that of partial least squares but for 0.1 %, and down to the smallest σ² over ``LIMIT``, where it is
        that of no regularisation. For a truncated SVD everything down to 2 directions, or up to the rank.
        """
        values, s = (self.x, spectra.s_x) if side == "x" else (self.y, spectra.s_y)
        squares = to_numpy(s).astype(np.float64) ** 2
        strongest, last = end == "strongest", self.edge(side, end)
        if self.kind == "custom" or len(values) < 2:
            return np.empty(0)
        if self.kind == "tsvd":
            limit = min(2, len(squares)) if strongest else len(squares)
            ks = np.unique(np.geomspace(last, limit, MOST_ADDED + 1).round())
            return np.asarray(ks[ks != last])
        limit = squares[0] * LIMIT if strongest else squares[-1] / LIMIT
        if (last >= limit * (1 - 1e-9)) if strongest else (last <= limit * (1 + 1e-9)):
            return np.empty(0)
        reached = min(10 * last, limit) if strongest else max(last / 10, limit)
        spacing = abs(np.log(values[0] / values[1] if strongest else values[-1] / values[-2]))
        count = int(np.clip(np.round(abs(np.log(reached / last)) / spacing), 1, MOST_ADDED))
        new = np.asarray(np.geomspace(last, reached, count + 1)[1:])
        return new[::-1] if strongest else new

    def is_limit(self, side: str, end: str, spectra: Spectra) -> bool:
        """Whether values beyond that end could change nothing."""
        return self.kind != "custom" and len(self.beyond(side, end, spectra)) == 0


def make_grid(kind: Kind, grid: Any, spectra: Spectra, filter: SpectralFilter | None = None) -> Grid:
    """The grid that ``AWCCA(grid=…)`` asks for.

    ``grid`` is a number of points per side, a pair ``("log", n)`` or ``("rank", n)`` that says how they
    are spaced, or a pair of arrays. ``"log"`` spaces σ² evenly on a logarithmic scale between the largest
    and the smallest, ``"rank"`` takes the σ² of evenly spaced ranks, as the paper does. A plain number
    means ``"log"``, which found the better models (``benchmarks/results/selection_quality.md``). A ``filter``
    of the kind ``"custom"`` spaces its own values, and orders all by how much they let through.
    """
    sides = to_numpy(spectra.s_x), to_numpy(spectra.s_y)
    check_grid(grid)
    if filter is not None:
        x, y = _custom(filter, grid, sides)
        return Grid("custom", x, y, filter=filter)
    if _is_spaced(grid):
        spacing, points = grid
        x, y = (_spaced(kind, s, spacing, _points(points)) for s in sides)
    elif isinstance(grid, (tuple, list)) and len(grid) == 2:
        x, y = (_explicit(kind, values, s) for values, s in zip(grid, sides, strict=True))
        return Grid(kind, x, y)
    else:
        x, y = (_spaced(kind, s, "log", _points(grid)) for s in sides)
    return Grid(kind, x, y, automatic=True)


def _custom(filter: SpectralFilter, grid: Any, sides: tuple[Array, Array]) -> tuple[Floats, Floats]:
    """The parameters of both views, strongest regularisation first: what lets the least through."""
    filter.function()
    if isinstance(grid, (tuple, list)) and len(grid) == 2 and not _is_spaced(grid):
        given = [_numbers(values) for values in grid]
    elif filter.grid is None:
        raise InputError(
            f"grid={grid!r} says nothing about the filter {filter.name!r}; give one array of parameters for "
            "each view, or a SpectralFilter with a grid function."
        )
    else:
        points = _points(grid)
        given = [_numbers(filter.grid(s.astype(np.float64) ** 2, points)) for s in sides]
    found = []
    for values, s in zip(given, sides, strict=True):
        squares = s.astype(np.float64) ** 2
        passed = [float(np.sum(filter.weigh(squares, float(value)) * squares)) for value in values]
        found.append(values[np.argsort(passed, kind="stable")])
    return found[0], found[1]


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
    number = check_number(points, "grid")
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


def _numbers(values: Any) -> Floats:
    try:
        given = np.unique(np.asarray(values, dtype=np.float64).reshape(-1))
    except (TypeError, ValueError):
        given = np.empty(0)
    if given.size == 0:
        raise InputError(f"grid holds {values!r}; give numbers, one array of parameters for each view.")
    return given


def _explicit(kind: Kind, values: Any, s: Array) -> Floats:
    given = _numbers(values)
    for value in given:
        if kind == "tikhonov":
            Tikhonov(float(value))
        else:
            TruncatedSVD(value).denominators(s)
    return _descending(given) if kind == "tikhonov" else given


def _descending(values: Array) -> Floats:
    return np.unique(values)[::-1].copy()


MOST = 5000
"""Images that are held out of any number: scoring takes time with their square, and more decide little."""


@dataclass(frozen=True, eq=False)
class HoldOut:
    """Rows of either part: images and captions, and a pairing that counts the part's own images."""

    images: Array
    captions: Array
    pairing: Array


def hold_out(
    pairing: Array, n_images: int, fraction: float, random_state: int | None
) -> tuple[HoldOut, HoldOut]:
    """Split images at random into training and validation, at most ``MOST``; returns both parts.

    Images without captions stay with training, where they weigh nothing.
    """
    share = check_number(fraction, "validation_fraction")
    if not 0.0 < share < 1.0:
        raise InputError(f"validation_fraction={fraction} is not between 0 and 1; give a share such as 0.15.")
    host = to_numpy(pairing)
    described = np.unique(host)
    size = held_out_size(len(described), share)
    if size is None:
        raise InputError(
            f"validation_fraction={fraction} of {len(described)} items leaves too few to choose on; "
            "give params, a larger fraction, validation pairs, or more data."
        )
    chosen = np.random.default_rng(random_state).permutation(described)[:size]
    is_held = np.zeros(n_images, dtype=bool)
    is_held[chosen] = True

    return taken_with_captions(pairing, ~is_held), taken_with_captions(pairing, is_held)


def held_out_size(n: int, share: float) -> int | None:
    """How many of ``n`` images are held out; None if that leaves too few on either side."""
    size = min(round(share * n), MOST)
    return None if size < 2 or n - size < 2 else size


def taken_with_captions(pairing: Array, is_taken: np.ndarray[Any, np.dtype[np.bool_]]) -> HoldOut:
    """The images that are marked, and all their captions."""
    host = to_numpy(pairing)
    images = np.flatnonzero(is_taken)
    captions = np.flatnonzero(is_taken[host])
    local = np.searchsorted(images, host[captions])
    return HoldOut(*(move_like(rows, pairing) for rows in (images, captions, local)))
