"""One block of paired features in files, read when and where it is needed.

Files of two views cut alike, so that what is paired stays together.

Paired features in many files, on any storage, as blocks that are read where they are used.
"""

from __future__ import annotations

import hashlib
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias, overload

import numpy as np

from diptych._checks import InputError
from diptych._persistence import map_npy
from diptych.data._matrix_files import DEFAULT_MAX_BYTES, Matrix, open_matrix
from diptych.data._remote import Names, Options, expanded, is_remote, read_bytes, reading

Rows: TypeAlias = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Piece:
    """Neighbouring rows of a matrix."""

    matrix: Matrix
    start: int
    stop: int

    @property
    def name(self) -> str:
        """Where they are."""
        key = "" if self.matrix.key is None else f" {self.matrix.key!r}"
        return f"{self.matrix.name}{key}[{self.start}:{self.stop}]"

    def read(self) -> Rows:
        """The rows."""
        return self.matrix.read(self.start, self.stop)


@dataclass(frozen=True, eq=False)
class Shard:
    """A block that is read when it is needed; it can be sent to another process.

    Attributes
    ----------
    x, y
        Where the rows of either view are.
    pairing
        Rows of ``y`` to each row of ``x``, or the row of the file of ``x`` for each row of ``y``.
    """

    x: tuple[Piece, ...]
    y: tuple[Piece, ...]
    pairing: int | np.ndarray[Any, np.dtype[np.int64]]

    @property
    def name(self) -> str:
        """Where its rows are."""
        return " + ".join(piece.name for piece in self.x) + " with " + " + ".join(p.name for p in self.y)

    def load(self) -> tuple[Rows, ...]:
        """``(x, y)``, or ``(x, y, pairing)`` where a row of x has several of y or none."""
        y = _joined(self.y)
        if not isinstance(self.pairing, int):
            images, local = np.unique(self.pairing, return_inverse=True)
            return _taken(self.x[0].matrix, images), y, local
        x = _joined(self.x)
        return (x, y) if self.pairing == 1 else (x, y, np.repeat(np.arange(len(x)), self.pairing))

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the files do, or what is taken of them."""
        digest = hashlib.sha256(np.asarray(self.pairing).tobytes())
        for view in (self.x, self.y):
            for piece in view:
                m = piece.matrix
                facts = (m.name, m.key, m.version, m.rows, m.width, m.dtype, piece.start, piece.stop)
                digest.update(repr(facts).encode())
        return digest.hexdigest()[:32]


def _joined(pieces: tuple[Piece, ...]) -> Rows:
    parts = [piece.read() for piece in pieces]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _taken(matrix: Matrix, images: np.ndarray[Any, Any]) -> Rows:
    """Some rows, ascending; where they lie apart, no more than as many again are held at a time."""
    first, end, step = int(images[0]), int(images[-1]) + 1, len(images)
    parts = []
    for start in range(first, end, step):
        stop = min(start + step, end)
        inside = images[np.searchsorted(images, start) : np.searchsorted(images, stop)]
        if len(inside) == stop - start:
            parts.append(matrix.read(start, stop))
        elif len(inside):
            parts.append(np.asarray(matrix.read(start, stop)[inside - start]))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


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


def shards(
    x: Names,
    y: Names,
    pairing: Any = None,
    *,
    x_key: str | None = None,
    y_key: str | None = None,
    rows: int | None = None,
    storage_options: Options = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Shards:
    """Paired features in files, cut into blocks for ``AWCCA.fit``; only headers are read here.

    Parameters
    ----------
    x, y
        A path, a URL that fsspec knows (``s3://…``, ``gs://…``, ``memory://…``), a pattern
        (``"x-*.npy"``, in alphabetical order) or a list. ``.npy``, Parquet (a column of lists of equal
        length) and Zarr arrays of format 2 or 3 anywhere; on a local disk also what ``open_features``
        reads. Local ``.npy`` files are mapped; of others only the rows of a block are fetched.
    pairing
        Which row of ``x`` a row of ``y`` belongs to. None: the same. An integer: so many rows of ``y`` to
        each row of ``x``, in order. Or arrays or ``.npy`` files, one to each file of ``y``, with row
        numbers within the file of ``x`` beside it (or within the only one).
    x_key, y_key
        Name of the column or array, where a file has several; both views may be columns of one file.
    rows
        Most rows of ``y`` in a block; None: as many as make 128 MB in float32 with their rows of ``x``.
    storage_options
        What the file system asks for, access keys for one.
    max_bytes
        A row group or a chunk that unpacks to more is refused.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> folder = Path(mkdtemp())
    >>> for part in range(2):
    ...     np.save(folder / f"x-{part}.npy", np.ones((10, 3), np.float16))
    ...     np.save(folder / f"y-{part}.npy", np.ones((50, 2), np.float16))
    >>> blocks = shards(folder / "x-*.npy", folder / "y-*.npy", 5, rows=25)
    >>> len(blocks), blocks.n_x, blocks.n_y, blocks.widths
    (4, 20, 100, (3, 2))
    """
    if rows is not None and rows < 1:
        raise InputError(f"rows={rows} is below 1; give the most rows of y in a block.")
    xs = matrices_of(x, x_key, "x", storage_options, max_bytes)
    ys = matrices_of(y, y_key, "y", storage_options, max_bytes)
    if pairing is None or isinstance(pairing, int | np.integer):
        return Shards(tuple(in_step(xs, ys, 1 if pairing is None else int(pairing), rows)))
    return Shards(tuple(by_number(xs, ys, pairings_of(pairing, len(ys), storage_options), rows)))


@dataclass(frozen=True, eq=False)
class Shards(Sequence[Shard]):
    """Blocks in the order of their files; a slice of them is of the same kind.

    Attributes
    ----------
    blocks
        The blocks.
    """

    blocks: tuple[Shard, ...]

    def __len__(self) -> int:
        return len(self.blocks)

    @overload
    def __getitem__(self, index: int) -> Shard: ...

    @overload
    def __getitem__(self, index: slice) -> Shards: ...

    def __getitem__(self, index: int | slice) -> Shard | Shards:
        return Shards(self.blocks[index]) if isinstance(index, slice) else self.blocks[index]

    @property
    def n_x(self) -> int:
        """Rows of x, together; one whose rows of y fall into two blocks counts in both."""
        numbered = (len(np.unique(b.pairing)) for b in self.blocks if not isinstance(b.pairing, int))
        return sum(numbered) + sum(_rows(b.x) for b in self.blocks if isinstance(b.pairing, int))

    @property
    def n_y(self) -> int:
        """Rows of y, together: the number of pairs."""
        return sum(_rows(block.y) for block in self.blocks)

    @property
    def widths(self) -> tuple[int, int]:
        """Features of x and of y."""
        first = self.blocks[0]
        return first.x[0].matrix.width, first.y[0].matrix.width

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the files do, or how they are cut."""
        return hashlib.sha256("".join(b.fingerprint for b in self.blocks).encode()).hexdigest()[:32]


def _rows(pieces: tuple[Piece, ...]) -> int:
    return sum(piece.stop - piece.start for piece in pieces)
