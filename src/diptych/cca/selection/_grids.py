"""Grids of regularisation parameters, the scores on them, and validation pairs held out of training pairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from diptych._arrays import Array, Floats, move_like, to_numpy
from diptych._checks import InputError, Task, check_number
from diptych.cca._filters import SpectralFilter, Tikhonov, TruncatedSVD
from diptych.cca._spectra import Spectra

Kind: TypeAlias = Literal["tikhonov", "tsvd", "custom"]
Route: TypeAlias = Literal["screened", "exact", "textbook", "leave-one-out"]

SPACINGS = ("log", "rank")

GAMMA_LIMIT = 1e3
"""A γ this many times above σ²₁ or below the smallest σ² changes no direction's weight by more than 0.1 %, up
to a factor that all directions share."""

MAX_ADDED = 5
"""Most values that one extension adds to a side."""

TIE = 1e-9
"""Scores that differ by less are equal."""

MAX_HELD_OUT = 5000
"""Most rows of X that are held out: the time of scoring grows with their square, and more change little."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Parameters to try for X and for Y, strongest regularisation first."""

    kind: Kind
    x: Floats
    y: Floats
    automatic: bool = False  # computed from the spectra rather than given by the user
    filter: SpectralFilter | None = None  # for the kind "custom"

    @property
    def shape(self) -> tuple[int, int]:
        """The number of values of X and of Y."""
        return len(self.x), len(self.y)

    def params(self, i: int, j: int) -> tuple[float, float] | tuple[int, int]:
        """Return the parameters at a point, as ``AWCCA(params=…)`` takes them."""
        if self.kind == "tsvd":
            return int(self.x[i]), int(self.y[j])
        return float(self.x[i]), float(self.y[j])

    def edge(self, side: str, end: str) -> float:
        """Return the ``"strongest"`` or ``"weakest"`` value of ``"x"`` or ``"y"``."""
        values = self.x if side == "x" else self.y
        return float(values[0 if end == "strongest" else -1])

    def edges_at(self, point: tuple[int, int]) -> list[tuple[str, str]]:
        """Return the ends of both sides that a point is on; a side with one value has none."""
        return [
            (side, "strongest" if at == 0 else "weakest")
            for side, at, length in zip(("x", "y"), point, self.shape, strict=True)
            if length > 1 and at in (0, length - 1)
        ]

    def beyond(self, side: str, end: str, spectra: Spectra) -> Floats:
        """Return values to add beyond an end of a side, in order; none if they would change nothing.

        For Tikhonov one decade, with the spacing of the values there, up to ``GAMMA_LIMIT`` times σ²₁, where
        the model is that of partial least squares up to 0.1 %, and down to the smallest σ² divided by
        ``GAMMA_LIMIT``, where it is that of no regularisation. For a truncated SVD down to 2 directions, or
        up to the rank.
        """
        values, s = (self.x, spectra.s_x) if side == "x" else (self.y, spectra.s_y)
        squares = to_numpy(s).astype(np.float64) ** 2
        strongest, last = end == "strongest", self.edge(side, end)
        if self.kind == "custom" or len(values) < 2:
            return np.empty(0)
        if self.kind == "tsvd":
            limit = min(2, len(squares)) if strongest else len(squares)
            ks = np.unique(np.geomspace(last, limit, MAX_ADDED + 1).round())
            return np.asarray(ks[ks != last])
        limit = squares[0] * GAMMA_LIMIT if strongest else squares[-1] / GAMMA_LIMIT
        if (last >= limit * (1 - 1e-9)) if strongest else (last <= limit * (1 + 1e-9)):
            return np.empty(0)
        reached = min(10 * last, limit) if strongest else max(last / 10, limit)
        spacing = abs(np.log(values[0] / values[1] if strongest else values[-1] / values[-2]))
        count = int(np.clip(np.round(abs(np.log(reached / last)) / spacing), 1, MAX_ADDED))
        new = np.asarray(np.geomspace(last, reached, count + 1)[1:])
        return new[::-1] if strongest else new

    def is_limit(self, side: str, end: str, spectra: Spectra) -> bool:
        """Return whether values beyond that end would change nothing."""
        return self.kind != "custom" and len(self.beyond(side, end, spectra)) == 0


@dataclass(eq=False)
class Path:
    """Scores over a grid, and the choice for each task.

    Attributes
    ----------
    grid
        Parameters of both views, strongest regularisation first.
    metric
        Name of the metric that chose.
    scores
        For each task and metric, x values × y values; NaN where a point failed.
    exact
        For each task, where ``scores`` are exact. Elsewhere (screened route) they are upper bounds, none
        above the best exact value: enough to choose by, but often above the exact value.
    choice
        For each task, the chosen point (x index, y index).
    route
        How it was computed: ``"screened"``, ``"exact"``, ``"textbook"`` or ``"leave-one-out"``.
    seconds
        Time it took.
    failed
        Points that failed numerically.
    held_out
        Which pairs scored it, in words.
    extended
        For ``"x"`` and ``"y"``, how many stronger and how many weaker values were added to an automatic grid
        whose best point was on its edge.
    """

    grid: Grid
    metric: str
    scores: dict[Task, dict[str, Floats]]
    exact: dict[Task, np.ndarray[Any, np.dtype[np.bool_]]]
    choice: dict[Task, tuple[int, int]]
    route: Route
    seconds: float
    failed: list[tuple[int, int]] = field(default_factory=list)
    held_out: str = "the given validation pairs"
    extended: dict[str, tuple[int, int]] = field(default_factory=lambda: {"x": (0, 0), "y": (0, 0)})

    def params(self, task: Task) -> tuple[float, float] | tuple[int, int]:
        """Return the chosen parameters of a task."""
        return self.grid.params(*self.choice[task])

    def best(self, task: Task) -> float:
        """Return the metric at the chosen point."""
        return float(self.scores[task][self.metric][self.choice[task]])

    def edges(self, task: Task) -> list[str]:
        """Return the edges of the grid that the chosen point is on, such as ``"strongest of X"``."""
        return [f"{end} of {side.upper()}" for side, end in self.grid.edges_at(self.choice[task])]

    def describe_extension(self) -> str:
        """Return in words how the grid was extended; empty if it was not."""
        added = [
            f"{count} {end} value{'s' if count > 1 else ''} of {side.upper()}"
            for side, counts in self.extended.items()
            for count, end in zip(counts, ("stronger", "weaker"), strict=True)
            if count
        ]
        return f"the best point was on the edge of the grid, so it got {', '.join(added)}" if added else ""


def best_point(scores: Floats, ages: Any = 0) -> tuple[int, ...]:
    """Return the place of the highest score on a grid whose strongest regularisation comes first.

    Ties go to the lower age, which counts the extensions of the grid before a point was added: a value that
    was added is chosen only if it is better. Then they go to the stronger regularisation: to the smaller sum
    of places, then to the smaller place on the first side. NaN is never chosen.

    >>> best_point(np.array([[0.0, 7.0, 9.0], [7.0, 9.0, 9.0]]))
    (0, 2)
    >>> best_point(np.array([[9.0, 9.0], [7.0, 9.0]]), np.array([[1, 1], [0, 0]]))
    (1, 1)
    """
    if not np.any(np.isfinite(scores)):
        raise InputError("every grid point failed numerically; check the data for extreme values.")
    oldest = np.where(scores >= np.nanmax(scores) - TIE, ages, np.inf)
    tied = np.argwhere(oldest == oldest.min())
    # Places come in their order, so the first of those with the smallest sum is the one.
    return tuple(tied[np.argmin(tied.sum(axis=1))].tolist())


def make_grid(kind: Kind, grid: Any, spectra: Spectra, filter: SpectralFilter | None = None) -> Grid:
    """Return the grid of ``AWCCA(grid=…)``.

    ``grid`` is a number of points per side, a pair ``("log", n)`` or ``("rank", n)`` that says how they are
    spaced, or a pair of arrays. ``"log"`` spaces σ² evenly on a logarithmic scale between the largest and the
    smallest, ``"rank"`` takes the σ² of evenly spaced ranks, as the paper does (Algorithms 2 and 3). A plain
    number means ``"log"``, which is about as accurate (``benchmarks/results/selection_grids.md``). A
    custom ``filter`` computes its own values, which are ordered by how much variance they keep.
    """
    sides = to_numpy(spectra.s_x), to_numpy(spectra.s_y)
    check_grid(grid)
    if filter is not None:
        x, y = _custom_values(filter, grid, sides)
        return Grid("custom", x, y, filter=filter)
    if not _is_spaced(grid) and isinstance(grid, (tuple, list)):
        x, y = (_check_values(kind, values, s) for values, s in zip(grid, sides, strict=True))
        return Grid(kind, x, y)
    spacing, points = grid if _is_spaced(grid) else ("log", grid)
    x, y = (_spaced_values(kind, s, spacing, _check_points(points)) for s in sides)
    return Grid(kind, x, y, automatic=True)


def _custom_values(filter: SpectralFilter, grid: Any, sides: tuple[Array, Array]) -> tuple[Floats, Floats]:
    filter.check_function()
    squares = [s.astype(np.float64) ** 2 for s in sides]
    if isinstance(grid, (tuple, list)) and len(grid) == 2 and not _is_spaced(grid):
        values = [_check_numbers(numbers) for numbers in grid]
    elif filter.grid is None:
        raise InputError(
            f"grid={grid!r} is not enough for the filter {filter.name!r}; give one array of parameters for "
            "each view, or a SpectralFilter with a grid function."
        )
    else:
        points = _check_points(grid)
        values = [_check_numbers(filter.grid(s, points)) for s in squares]

    def order(numbers: Floats, squares: Floats) -> Floats:
        # The strongest regularisation is the one that keeps the least variance.
        kept = [float(np.sum(filter.evaluate(squares, float(number)) * squares)) for number in numbers]
        return numbers[np.argsort(kept, kind="stable")]

    return order(values[0], squares[0]), order(values[1], squares[1])


def check_grid(grid: Any) -> None:
    """Raise an error unless ``grid`` is one that ``make_grid`` takes."""
    if _is_spaced(grid):
        if grid[0] not in SPACINGS:
            raise InputError(f"grid=({grid[0]!r}, …) is unknown; choose 'log' or 'rank'.")
        _check_points(grid[1])
    elif not (isinstance(grid, (tuple, list)) and len(grid) == 2):
        _check_points(grid)


def _is_spaced(grid: Any) -> bool:
    return isinstance(grid, (tuple, list)) and len(grid) == 2 and isinstance(grid[0], str)


def _check_points(points: Any) -> int:
    number = check_number(points, "grid")
    if not 1 <= number <= 10_000 or number != int(number):
        raise InputError(
            f"grid={points!r} is not a number of points; give 1 to 10000, a pair ('log', n) or ('rank', n), "
            "or one array of parameters for each view."
        )
    return int(number)


def _spaced_values(kind: Kind, s: Array, spacing: str, points: int) -> Floats:
    rank = len(s)
    if spacing == "rank":
        first = max(min(2, rank), round(rank / points))
        ks = np.unique(np.linspace(first, rank, points).round().astype(int))
        return _descending(s[ks - 1] ** 2) if kind == "tikhonov" else ks.astype(np.float64)
    gammas = np.geomspace(s[0] ** 2, s[-1] ** 2, points) if points > 1 else s[-1:] ** 2
    if kind == "tikhonov":
        return _descending(gammas)
    # The number of directions above each level, at least 2: at k = 1 every cosine is 1 or −1, a tie.
    above = np.searchsorted(-(s**2), -gammas * (1 - 1e-9), side="right")
    return np.unique(above.clip(min(2, rank), rank)).astype(np.float64)


def _check_numbers(values: Any) -> Floats:
    try:
        numbers = np.unique(np.asarray(values, dtype=np.float64).reshape(-1))
    except (TypeError, ValueError):
        numbers = np.empty(0)
    if numbers.size == 0:
        raise InputError(f"grid contains {values!r}; give numbers, one array of parameters for each view.")
    return numbers


def _check_values(kind: Kind, values: Any, s: Array) -> Floats:
    numbers = _check_numbers(values)
    for number in numbers:
        if kind == "tikhonov":
            Tikhonov(float(number))
        else:
            TruncatedSVD(number).denominators(s)
    return _descending(numbers) if kind == "tikhonov" else numbers


def _descending(values: Array) -> Floats:
    return np.unique(values)[::-1].copy()


class PairRows(NamedTuple):
    """Some pairs: their rows of X and of Y, and the pairing of these with those."""

    x: Array
    y: Array
    pairing: Array


def check_share(fraction: object) -> float:
    """Return ``validation_fraction`` if it is a number between 0 and 1."""
    share = check_number(fraction, "validation_fraction")
    if not 0.0 < share < 1.0:
        raise InputError(f"validation_fraction={fraction} is not between 0 and 1; give a share such as 0.15.")
    return share


def hold_out(
    pairing: Array, n_images: int, fraction: float, random_state: int | None
) -> tuple[PairRows, PairRows]:
    """Split rows of X with their rows of Y at random; returns the training part and the validation part.

    At most ``MAX_HELD_OUT`` rows of X are held out. Those without a row of Y stay with training, where they
    have no weight.
    """
    share = check_share(fraction)
    paired = np.unique(to_numpy(pairing))
    size = holdout_size(len(paired), share)
    if size is None:
        raise InputError(
            f"validation_fraction={fraction} of {len(paired)} items leaves too few to choose on; "
            "give params, a larger fraction, validation pairs, or more data."
        )
    is_held_out = np.zeros(n_images, dtype=bool)
    is_held_out[np.random.default_rng(random_state).permutation(paired)[:size]] = True
    return select_rows(pairing, ~is_held_out), select_rows(pairing, is_held_out)


def holdout_size(n: int, share: float) -> int | None:
    """Return how many of ``n`` rows are held out; None if that leaves too few in either part."""
    size = min(round(share * n), MAX_HELD_OUT)
    return None if size < 2 or n - size < 2 else size


def select_rows(pairing: Array, mask: np.ndarray[Any, np.dtype[np.bool_]]) -> PairRows:
    """Return the pairs of the rows of X where ``mask`` is true."""
    owners = to_numpy(pairing)
    x, y = np.flatnonzero(mask), np.flatnonzero(mask[owners])
    return PairRows(*(move_like(rows, pairing) for rows in (x, y, np.searchsorted(x, owners[y]))))
