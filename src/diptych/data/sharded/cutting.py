"""Files of two views cut alike, so that what is paired stays together."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from diptych.checks import InputError
from diptych.data.sharded.matrices import open_matrix
from diptych.data.sharded.matrix import DEFAULT_MAX_BYTES, Matrix
from diptych.data.sharded.remote import Names, Options, expanded, is_remote, read_bytes, reading
from diptych.data.sharded.shard import Piece, Shard
from diptych.storage import map_npy

BLOCK_BYTES = 2**27
"""Of a block in float32, unless the caller says how many rows."""


def matrices_of(given: Names, key: str | None, view: str, options: Options, max_bytes: int) -> list[Matrix]:
    found = [open_matrix(name, key, options, max_bytes) for name in expanded(given, options)]
    for matrix in found:
        if matrix.width != found[0].width:
            raise InputError(
                f"{matrix.name} has {matrix.width} columns and {found[0].name} has {found[0].width}; all "
                f"files of {view} must have the same features."
            )
    if not any(matrix.rows for matrix in found):
        raise InputError(f"the files of {view} have no rows ({found[0].name}); give at least one row.")
    return found


def in_step(xs: list[Matrix], ys: list[Matrix], captions: int, rows: int | None) -> Iterator[Shard]:
    """Blocks of views that run side by side, ``captions`` rows of y to each row of x."""
    if captions < 1:
        raise InputError(f"pairing={captions} is below 1; give the rows of y to each row of x.")
    _check_step(xs, ys, captions)
    widths = xs[0].width / captions + ys[0].width
    images = max(1, (rows or int(BLOCK_BYTES / 4 / widths)) // captions)
    starts = [0, *accumulate(y.rows for y in ys)]
    before = 0
    for x in xs:
        for a, b in _ranges(x.rows, images, (x.grain, *(max(1, y.grain // captions) for y in ys[:1]))):
            first, last = (before + a) * captions, (before + b) * captions
            pieces = (
                Piece(y, max(first - start, 0), min(last - start, y.rows))
                for y, start in zip(ys, starts, strict=False)
                if start < last and first < start + y.rows
            )
            yield Shard((Piece(x, a, b),), tuple(pieces), captions)
        before += x.rows


def _check_step(xs: list[Matrix], ys: list[Matrix], captions: int) -> None:
    pairs = [(x.name, x.rows, y.name, y.rows) for x, y in zip(xs, ys, strict=False)]
    if len(xs) != len(ys):
        total_x, total_y = sum(x.rows for x in xs), sum(y.rows for y in ys)
        pairs = [(f"x in {len(xs)} file(s)", total_x, f"y in {len(ys)}", total_y)]
    for x, n_x, y, n_y in pairs:
        if n_x * captions != n_y:
            each = "one" if captions == 1 else str(captions)
            raise InputError(
                f"{x} has {n_x} rows and {y} has {n_y}; expected {n_x * captions}, {each} to each row of x. "
                "Give pairing, the rows of y to each row of x or the row of x for each row of y."
            )


def by_number(
    xs: list[Matrix], ys: list[Matrix], pairings: list[np.ndarray[Any, Any]], rows: int | None
) -> Iterator[Shard]:
    """Blocks of rows of y, each with the rows of x that its pairing names."""
    if len(xs) not in (1, len(ys)):
        raise InputError(
            f"x has {len(xs)} files and y {len(ys)}; with a pairing of row numbers give as many of "
            "both, or one file of x."
        )
    for number, (y, pairing) in enumerate(zip(ys, pairings, strict=True)):
        x = xs[number if len(xs) > 1 else 0]
        if y.rows == 0:
            continue
        if pairing.ndim != 1 or pairing.dtype.kind not in "iu" or len(pairing) != y.rows:
            raise InputError(
                f"the pairing of {y.name} is {pairing.dtype}{list(pairing.shape)}; expected {y.rows} whole "
                "numbers, one for each row."
            )
        low, high = int(pairing.min()), int(pairing.max())
        if low < 0 or high >= x.rows:
            raise InputError(
                f"the pairing of {y.name} reaches from {low} to {high}, but {x.name} has rows 0 to "
                f"{x.rows - 1}; every entry must be a row of it."
            )
        widths = x.width * min(1.0, x.rows / y.rows) + y.width
        for a, b in _ranges(y.rows, rows or max(1, int(BLOCK_BYTES / 4 / widths)), (y.grain,)):
            own = np.array(pairing[a:b], np.int64)
            yield Shard((Piece(x, 0, x.rows),), (Piece(y, a, b),), own)


def _ranges(rows: int, most: int, grains: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Ranges of about equal length, ``most`` at most, that keep to the grains as far as they can."""
    if rows == 0:
        return
    grain = math.lcm(*grains)
    if grain > most:
        grain = max((each for each in grains if each <= most), default=1)
    step = -(-rows // -(-rows // most))
    step = min(-(-step // grain) * grain, most // grain * grain)
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def pairings_of(given: Any, n_files: int, options: Options) -> list[np.ndarray[Any, Any]]:
    if isinstance(given, np.ndarray) or (n_files == 1 and _is_numbers(given)):
        given = [given]
    elif isinstance(given, str) or hasattr(given, "__fspath__"):
        given = expanded(given, options)
    found = [_numbers(each, options) for each in given]
    if len(found) != n_files:
        raise InputError(f"there are {len(found)} pairings for {n_files} files of y; give one for each.")
    return found


def _is_numbers(given: Any) -> bool:
    return isinstance(given, Sequence) and bool(given) and isinstance(given[0], int | np.integer)


def _numbers(given: Any, options: Options) -> np.ndarray[Any, Any]:
    if not isinstance(given, str) and not hasattr(given, "__fspath__"):
        return np.asarray(given)
    (name,) = expanded(given, options)
    if not is_remote(name):
        return map_npy(name)
    with reading(name):
        content = io.BytesIO(read_bytes(name, 0, DEFAULT_MAX_BYTES, options))
        return np.load(content, allow_pickle=False)  # type: ignore[no-any-return]
