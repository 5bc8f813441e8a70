"""One block of paired features in files, read when and where it is needed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from diptych.data.sharded.matrix import Matrix

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
