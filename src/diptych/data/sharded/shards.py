"""Paired features in many files, on any storage, as blocks that are read where they are used."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np

from diptych.checks import InputError
from diptych.data.sharded.cutting import by_number, in_step, matrices_of, pairings_of
from diptych.data.sharded.matrix import DEFAULT_MAX_BYTES
from diptych.data.sharded.remote import Names, Options
from diptych.data.sharded.shard import Piece, Shard


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
