"""Paired features in many files, on any storage, as blocks that are read when they are needed."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from diptych._checks import InputError
from diptych._persistence import map_npy
from diptych.data._feature_store import Features, RowNumbers
from diptych.data._files import Names, StorageOptions, expand_names, explain_errors, is_remote, read_bytes
from diptych.data._matrix_files import LARGEST_PIECE, Matrix, open_matrix

_BLOCK_BYTES = 2**27
"""Size of a block in float32, unless the caller gives its rows."""

Pairing: TypeAlias = (
    int | Names | NDArray[np.integer[Any]] | Sequence[int] | Sequence[NDArray[np.integer[Any]]]
)


def shards(
    x: Names,
    y: Names,
    pairing: Pairing | None = None,
    *,
    x_key: str | None = None,
    y_key: str | None = None,
    rows: int | None = None,
    storage_options: StorageOptions = None,
    max_bytes: int = LARGEST_PIECE,
) -> Shards:
    """Cut paired features in files into blocks for ``AWCCA.fit``; only headers are read here.

    Parameters
    ----------
    x, y
        A path, a URL that fsspec knows (``s3://…``, ``gs://…``, ``memory://…``), a pattern
        (``"x-*.npy"``, in alphabetical order) or a list. ``.npy``, Parquet (a column of lists of equal
        length) and Zarr arrays of format 2 or 3 anywhere; on a local disk also what ``open_features``
        reads. Local ``.npy`` files are mapped; of others only the rows of a block are fetched.
    pairing
        Which row of ``x`` a row of ``y`` belongs to. None: the same. An integer: so many rows of ``y`` for
        each row of ``x``, in order. Or arrays or ``.npy`` files, one for each file of ``y``, with row
        numbers within the file of ``x`` beside it (or within the only one).
    x_key, y_key
        Name of the column or array in a file that has several; both views may be columns of one file.
    rows
        Most rows of ``y`` in a block; None: as many as make 128 MB in float32 with their rows of ``x``.
    storage_options
        Settings of the file system, such as access keys.
    max_bytes
        A row group or a chunk that unpacks to more raises an ``InputError``.

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
    xs = _open_view(x, x_key, "x", storage_options, max_bytes)
    ys = _open_view(y, y_key, "y", storage_options, max_bytes)
    if pairing is None or isinstance(pairing, int | np.integer):
        return Shards(tuple(_cut_in_order(xs, ys, 1 if pairing is None else int(pairing), rows)))
    return Shards(tuple(_cut_by_number(xs, ys, _read_pairings(pairing, len(ys), storage_options), rows)))


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of a matrix."""

    matrix: Matrix
    start: int
    stop: int

    @property
    def name(self) -> str:
        """File, key and rows, for messages."""
        key = "" if self.matrix.key is None else f" {self.matrix.key!r}"
        return f"{self.matrix.name}{key}[{self.start}:{self.stop}]"

    def read(self) -> Features:
        """Read the rows."""
        return self.matrix.read(self.start, self.stop)


@dataclass(frozen=True, eq=False)
class Shard:
    """A block that is read when it is needed; it can be sent to another process."""

    x: Piece
    y: tuple[Piece, ...]
    pairing: int | RowNumbers  # rows of y for each row of x, or the row of x's file for each row of y

    @property
    def name(self) -> str:
        """The pieces of both views, for messages."""
        return f"{self.x.name} with {' + '.join(piece.name for piece in self.y)}"

    def load(self) -> tuple[Features, Features] | tuple[Features, Features, RowNumbers]:
        """Return ``(x, y)``, or ``(x, y, pairing)`` where a row of x has several rows of y or none."""
        y = _concatenate([piece.read() for piece in self.y])
        if not isinstance(self.pairing, int):
            images, pairing = np.unique(self.pairing, return_inverse=True)
            return _read_rows(self.x.matrix, images), y, pairing
        x = self.x.read()
        return (x, y) if self.pairing == 1 else (x, y, np.repeat(np.arange(len(x)), self.pairing))

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the files do, or the rows of them."""
        digest = hashlib.sha256(np.asarray(self.pairing).tobytes())
        for piece in (self.x, *self.y):
            m = piece.matrix
            facts = (m.name, m.key, m.version, m.rows, m.width, m.dtype, piece.start, piece.stop)
            digest.update(repr(facts).encode())
        return digest.hexdigest()[:32]


@dataclass(frozen=True, eq=False)
class Shards(Sequence[Shard]):
    """Blocks in the order of their files, and a slice of them; see ``shards``."""

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
        """Number of rows of x; one whose rows of y fall into two blocks counts in both."""
        return sum(
            block.x.stop - block.x.start if isinstance(block.pairing, int) else len(np.unique(block.pairing))
            for block in self.blocks
        )

    @property
    def n_y(self) -> int:
        """Number of rows of y, which is the number of pairs."""
        return sum(piece.stop - piece.start for block in self.blocks for piece in block.y)

    @property
    def widths(self) -> tuple[int, int]:
        """Number of features of x and of y."""
        first = self.blocks[0]
        return first.x.matrix.width, first.y[0].matrix.width

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the files do, or how they are cut."""
        return hashlib.sha256("".join(b.fingerprint for b in self.blocks).encode()).hexdigest()[:32]


def _concatenate(parts: list[Features]) -> Features:
    # A single part may be mapped, and stays so.
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _read_rows(matrix: Matrix, rows: RowNumbers) -> Features:
    """Read some rows, ascending; if they are far apart, at most twice as many are in memory at a time."""
    first, end, step = int(rows[0]), int(rows[-1]) + 1, len(rows)
    parts = []
    for start in range(first, end, step):
        stop = min(start + step, end)
        inside = rows[np.searchsorted(rows, start) : np.searchsorted(rows, stop)]
        if len(inside) == stop - start:
            parts.append(matrix.read(start, stop))
        elif len(inside):
            parts.append(np.asarray(matrix.read(start, stop)[inside - start]))
    return _concatenate(parts)


def _open_view(
    names: Names, key: str | None, view: str, options: StorageOptions, max_bytes: int
) -> list[Matrix]:
    matrices = [open_matrix(name, key, options, max_bytes) for name in expand_names(names, options)]
    first = matrices[0]
    for matrix in matrices:
        if matrix.width != first.width:
            raise InputError(
                f"{matrix.name} has {matrix.width} columns and {first.name} has {first.width}; all files of "
                f"{view} must have the same features."
            )
    if not any(matrix.rows for matrix in matrices):
        raise InputError(f"the files of {view} have no rows ({first.name}); give at least one row.")
    return matrices


def _cut_in_order(xs: list[Matrix], ys: list[Matrix], captions: int, rows: int | None) -> Iterator[Shard]:
    """Yield blocks of views that run side by side, ``captions`` rows of y for each row of x."""
    if captions < 1:
        raise InputError(f"pairing={captions} is below 1; give the rows of y for each row of x.")
    _check_row_counts(xs, ys, captions)
    block_rows = rows or int(_BLOCK_BYTES / 4 / (xs[0].width / captions + ys[0].width))
    images = max(1, block_rows // captions)
    starts = [0, *accumulate(y.rows for y in ys)]
    previous_rows = 0
    for x in xs:
        for low, high in _cut_range(x.rows, images):
            first, last = (previous_rows + low) * captions, (previous_rows + high) * captions
            pieces = (
                Piece(y, max(first - start, 0), min(last - start, y.rows))
                for y, start in zip(ys, starts, strict=False)
                if max(first, start) < min(last, start + y.rows)
            )
            yield Shard(Piece(x, low, high), tuple(pieces), captions)
        previous_rows += x.rows


def _check_row_counts(xs: list[Matrix], ys: list[Matrix], captions: int) -> None:
    pairs = [(x.name, x.rows, y.name, y.rows) for x, y in zip(xs, ys, strict=False)]
    if len(xs) != len(ys):
        total_x, total_y = sum(x.rows for x in xs), sum(y.rows for y in ys)
        pairs = [(f"x in {len(xs)} file(s)", total_x, f"y in {len(ys)}", total_y)]
    for x, n_x, y, n_y in pairs:
        if n_x * captions != n_y:
            rows = "one" if captions == 1 else str(captions)
            raise InputError(
                f"{x} has {n_x} rows and {y} has {n_y}; expected {n_x * captions}, {rows} for each row of x. "
                "Give pairing, the rows of y for each row of x or the row of x for each row of y."
            )


def _cut_by_number(
    xs: list[Matrix], ys: list[Matrix], pairings: list[NDArray[Any]], rows: int | None
) -> Iterator[Shard]:
    """Yield blocks of rows of y, each with the rows of x that its pairing names."""
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
        width = x.width * min(1.0, x.rows / y.rows) + y.width
        for start, stop in _cut_range(y.rows, rows or max(1, int(_BLOCK_BYTES / 4 / width))):
            block_pairing = np.array(pairing[start:stop], np.int64)
            yield Shard(Piece(x, 0, x.rows), (Piece(y, start, stop),), block_pairing)


def _cut_range(rows: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of about equal length, ``most`` at most."""
    if rows == 0:
        return
    step = -(-rows // -(-rows // most))
    for start in range(0, rows, step):
        yield start, min(start + step, rows)


def _read_pairings(pairing: Any, n_files: int, options: StorageOptions) -> list[NDArray[Any]]:
    """Return one array of row numbers for each file of y."""
    numbers = isinstance(pairing, Sequence) and pairing and isinstance(pairing[0], int | np.integer)
    if isinstance(pairing, np.ndarray) or (n_files == 1 and numbers):
        pairing = [pairing]
    elif isinstance(pairing, str | os.PathLike):
        pairing = expand_names(pairing, options)
    arrays = [_read_pairing(entry, options) for entry in pairing]
    if len(arrays) != n_files:
        raise InputError(f"there are {len(arrays)} pairings for {n_files} files of y; give one for each.")
    return arrays


def _read_pairing(pairing: Any, options: StorageOptions) -> NDArray[Any]:
    if not isinstance(pairing, str | os.PathLike):
        return np.asarray(pairing)
    (name,) = expand_names(pairing, options)
    if not is_remote(name):
        return map_npy(name)
    with explain_errors(name):
        content = io.BytesIO(read_bytes(name, 0, LARGEST_PIECE, options))
        return np.load(content, allow_pickle=False)  # type: ignore[no-any-return]
