"""Views made of several named feature blocks, each with its own normalisation and scale."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np

from diptych._arrays import Floats, to_numpy
from diptych._checks import InputError, check_pairing, check_view
from diptych.cca._moments import DEVICE_BLOCK_BYTES, Moments, Precision
from diptych.cca._spectra import Axes, Spectra, decompose_gram, spectra_from_moments
from diptych.cca._streaming import ArrayBlocks, Checkpoint, Engine, Preparation, sum_blocks
from diptych.cca._view_map import BlockUse
from diptych.cca._weighting import check_normalization, to_unit_length
from diptych.cca.selection import hold_out

Blocks: TypeAlias = dict[str, Floats]
Pairs: TypeAlias = tuple[Blocks, Blocks, np.ndarray[Any, np.dtype[np.int64]]]
"""Blocks of X, blocks of Y, and for each row of Y the row of X that it belongs to."""

MOST_ITEMS = 1000
"""Rows of X that parts, weights and corrections are chosen on; of more, a seeded sample."""

NORMALIZATIONS = ("none", "unit", "sqrt-unit")


@dataclass(frozen=True)
class Block:
    """How the rows of a feature block may be normalised.

    Parameters
    ----------
    normalize
        The name of a normalisation, as in ``AWCCA(normalize=…)``, or several to choose from on validation.
    pieces
        Each of this many equal slices of the columns is normalised by itself: two for DINOv2's class token
        and mean patch token side by side.

    Examples
    --------
    >>> Block("unit", pieces=2).candidates
    ('unit',)
    """

    normalize: str | tuple[str, ...] = NORMALIZATIONS
    pieces: int = 1

    def __post_init__(self) -> None:
        if not self.candidates:
            raise InputError("a block needs at least one normalisation; name one.")
        for name in self.candidates:
            check_normalization(name)
        if not isinstance(self.pieces, int) or isinstance(self.pieces, bool) or self.pieces < 1:
            raise InputError(f"pieces={self.pieces!r}; give a whole number of slices, 1 or above.")

    @property
    def candidates(self) -> tuple[str, ...]:
        return (self.normalize,) if isinstance(self.normalize, str) else tuple(self.normalize)


class Geometry(BlockUse, frozen=True):
    """How a block is normalised and scaled, to a total variance of 1, and its number of features."""

    width: int = 1

    @classmethod
    def fit(cls, block: Block, normalize: str, features: Floats, name: str) -> Geometry:
        """Return the geometry that gives ``features`` a total variance of 1."""
        plain = cls(name, normalize, block.pieces, width=features.shape[1])
        variance = float(np.sum(np.var(plain.apply(features), axis=0, dtype=np.float64)))
        if not variance > 0.0:
            raise InputError(f"all rows of block {name!r} are the same; give rows that vary.")
        return msgspec.structs.replace(plain, scale=variance**-0.5)

    def apply(self, features: Floats) -> Floats:
        """Normalise and scale the features of the block."""
        if features.shape[1] != self.width or self.width % self.slices:
            raise InputError(
                f"block {self.name!r} has {features.shape[1]} features in {self.slices} equal piece(s); "
                f"expected {self.width}, as in fit, and equal pieces."
            )
        return np.asarray(super().apply(features))

    def use(self) -> BlockUse:
        """Return what a projector does with the block."""
        return BlockUse(self.name, self.normalize, self.slices, self.scale)


Side: TypeAlias = dict[str, Geometry]
"""The geometry of each block of a view."""


@dataclass(frozen=True, eq=False)
class JointMoments:
    """The moments of all blocks of both views side by side, and of any of them, without another pass.

    ``widths`` are those of the blocks of X and of Y, in order. Parts that see the same columns of a view
    share its decomposition.
    """

    moments: Moments
    widths: tuple[dict[str, int], dict[str, int]]
    _axes: dict[tuple[int, tuple[str, ...]], Axes] = field(default_factory=dict)

    def __add__(self, other: JointMoments) -> JointMoments:
        return JointMoments(self.moments + other.moments, self.widths)

    def take(self, x: tuple[str, ...], y: tuple[str, ...]) -> Moments:
        return self.moments.take(self._columns(0, x), self._columns(1, y))

    def spectra(self, x: tuple[str, ...], y: tuple[str, ...]) -> Spectra:
        part = self.take(x, y)
        for at, names, gram, view in ((0, x, part.xx, "X"), (1, y, part.yy, "Y")):
            if (at, names) not in self._axes:
                self._axes[at, names] = decompose_gram(gram, part.precision, view)
        return spectra_from_moments(part, x=self._axes[0, x], y=self._axes[1, y])

    def _columns(self, at: int, names: tuple[str, ...]) -> list[int]:
        widths = self.widths[at]
        stops = dict(zip(widths, np.cumsum(list(widths.values())).tolist(), strict=True))
        return [column for name in names for column in range(stops[name] - widths[name], stops[name])]


def as_blocks(view: Any, name: str) -> Blocks:
    """Return a view as named blocks; one array is one block called ``name``."""
    if not isinstance(view, Mapping):
        view = {name: view}
    if not view or not all(isinstance(key, str) and key for key in view):
        raise InputError(f"the blocks of {name} are called {list(view)}; give at least one, with a name.")
    blocks = {key: to_numpy(check_view(features, f"{name}[{key!r}]")) for key, features in view.items()}
    lengths = {key: len(features) for key, features in blocks.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"the blocks of {name} have {lengths} rows; give every item in every block.")
    return blocks


def as_pairs(x: Any, y: Any, pairing: Any = None) -> Pairs:
    """Return views and their pairing as blocks, checked."""
    x, y = as_blocks(x, "x"), as_blocks(y, "y")
    return x, y, cast(Any, to_numpy(check_pairing(pairing, count_rows(x), next(iter(y.values())))))


def count_rows(blocks: Blocks) -> int:
    """Return the number of rows, which is the same in every block."""
    return len(next(iter(blocks.values())))


def take_rows(blocks: Blocks, rows: Any) -> Blocks:
    return {name: features[rows] for name, features in blocks.items()}


def sample_items(pairs: Pairs, random_state: int | None) -> Pairs:
    """Return at most ``MOST_ITEMS`` rows of X with their rows of Y."""
    x, y, pairing = pairs
    described = np.unique(pairing)
    if len(described) <= MOST_ITEMS:
        return pairs
    part = hold_out(pairing, count_rows(x), MOST_ITEMS / len(described), random_state)[1]
    return take_rows(x, part.x), take_rows(y, part.y), part.pairing


def sum_pairs(
    pairs: Pairs,
    precision: Precision,
    *,
    engine: Engine | None = None,
    device: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> tuple[JointMoments, Pairs]:
    """Return the moments of all blocks, and the same pairs with the blocks of a view in one matrix.

    ``engine``, ``device`` and ``checkpoint`` are those of ``AWCCA.fit``.
    """
    (x, x_blocks), (y, y_blocks) = map(_side_by_side, pairs[:2])
    blocks = ArrayBlocks(x, y, pairs[2], block_bytes=None if device is None else DEVICE_BLOCK_BYTES)
    saved = None if checkpoint is None else Checkpoint(checkpoint, f"{blocks.fingerprint} {precision}")
    prepare = Preparation(precision=precision, device=device)
    moments = sum_blocks(blocks, prepare, engine=engine, checkpoint=saved, progress=progress)
    x_widths, y_widths = (
        {name: features.shape[1] for name, features in view.items()} for view in (x_blocks, y_blocks)
    )
    return JointMoments(moments, (x_widths, y_widths)), (x_blocks, y_blocks, pairs[2])


def _side_by_side(blocks: Blocks) -> tuple[Floats, Blocks]:
    """Return all blocks as one matrix, and each as some columns of it, which takes no more memory."""
    if len(blocks) == 1:
        return next(iter(blocks.values())), blocks
    matrix = np.concatenate(list(blocks.values()), axis=1)
    starts = np.cumsum([features.shape[1] for features in blocks.values()])[:-1]
    return matrix, dict(zip(blocks, np.split(matrix, starts, axis=1), strict=True))


def unit_key(name: str) -> str:
    """Return where ``apply_geometry`` puts the rows of a block as encoded, with unit length."""
    return f"{name}\0unit"


def apply_geometry(side: Side, blocks: Blocks, unit: Collection[str] = ()) -> Blocks:
    """Return blocks as the models take them; those named in ``unit`` also as an identity part takes them."""
    shaped = {name: geometry.apply(blocks[name]) for name, geometry in side.items()}
    names = [name for name in side if name in unit]
    return shaped | {unit_key(name): np.asarray(to_unit_length(blocks[name])) for name in names}
