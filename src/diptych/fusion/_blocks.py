"""Views of several named feature blocks, each with its own geometry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import InputError, check_view
from diptych._normalize import check_normalization, normalize

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.floating[Any]]]
Blocks: TypeAlias = dict[str, Floats]

GEOMETRIES = ("none", "unit", "sqrt-unit")


@dataclass(frozen=True)
class Block:
    """How the rows of a feature block are normalised.

    Attributes
    ----------
    normalize
        A name of ``diptych._normalize``, or several to choose from on validation.
    pieces
        Each of so many equal slices of the columns is normalised by itself: DINOv2's class token and mean
        patch token, side by side, are two.
    """

    normalize: str | tuple[str, ...] = GEOMETRIES
    pieces: int = 1

    def __post_init__(self) -> None:
        """Refuse what cannot be done."""
        if not self.candidates:
            raise InputError("a block has no way to be normalised; name at least one.")
        for name in self.candidates:
            check_normalization(name)
        if not isinstance(self.pieces, int) or isinstance(self.pieces, bool) or self.pieces < 1:
            raise InputError(f"pieces={self.pieces!r}; give a whole number of slices, 1 or above.")

    @property
    def candidates(self) -> tuple[str, ...]:
        """The names to choose from."""
        return (self.normalize,) if isinstance(self.normalize, str) else tuple(self.normalize)


@dataclass(frozen=True)
class Geometry:
    """What is done to a block: normalised so, in so many pieces, and scaled to a total variance of 1."""

    normalize: str
    pieces: int
    scale: float
    width: int

    @classmethod
    def of(cls, block: Block, normalize: str, rows: Floats, name: str) -> Geometry:
        """The geometry whose scale gives ``rows`` a total variance of 1."""
        plain = cls(normalize, block.pieces, 1.0, rows.shape[1]).apply(rows, name)
        variance = float(np.sum(np.var(plain, axis=0, dtype=np.float64)))
        if not variance > 0.0:
            raise InputError(f"every row of block {name!r} is the same; give rows that vary.")
        return cls(normalize, block.pieces, variance**-0.5, rows.shape[1])

    def apply(self, rows: Floats, name: str) -> Floats:
        """The block as the models take it."""
        if rows.shape[1] != self.width or self.width % self.pieces:
            raise InputError(
                f"block {name!r} has {rows.shape[1]} features in {self.pieces} equal piece(s); expected "
                f"{self.width}, as in fit, and equal pieces."
            )
        parts = [normalize(part, self.normalize) for part in np.split(rows, self.pieces, axis=1)]
        whole = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return np.asarray(whole * whole.dtype.type(self.scale))


def as_blocks(view: Any, name: str) -> Blocks:
    """A view as named blocks; one array is one block called ``name``."""
    if not isinstance(view, Mapping):
        view = {name: view}
    if not view or not all(isinstance(key, str) and key for key in view):
        raise InputError(f"{name} names its blocks {list(view)}; give at least one, named by text.")
    blocks = {key: to_numpy(check_view(rows, f"{name}[{key!r}]")) for key, rows in view.items()}
    lengths = {key: len(rows) for key, rows in blocks.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"the blocks of {name} have {lengths} rows; give every item in every block.")
    return blocks


def taken(blocks: Blocks, rows: Any) -> Blocks:
    """Some rows of every block."""
    return {name: values[rows] for name, values in blocks.items()}


def side_by_side(blocks: Blocks, names: tuple[str, ...], scales: tuple[float, ...]) -> Floats:
    """Blocks next to each other, each times its scale."""
    parts = [
        blocks[n] if s == 1.0 else blocks[n] * blocks[n].dtype.type(s)
        for n, s in zip(names, scales, strict=True)
    ]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
