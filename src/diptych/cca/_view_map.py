"""From the features of a view to its vectors: the one projection of this package, on any backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from diptych._arrays import Array, move_like, namespace
from diptych._checks import InputError, check_matrix, check_view
from diptych._devices import collect_rows, copy_blocks
from diptych._persistence import Schema
from diptych.cca._weighting import check_normalization, normalize, project

DEVICE_BLOCK_BYTES = 2**28
"""Size of a block of rows that is copied to a device."""


class BlockUse(Schema, frozen=True):
    """What a part does with a block of features: it normalises each of some equal slices, and scales."""

    name: str
    normalize: str = "none"
    slices: int = 1
    scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what no block can be used like."""
        check_normalization(self.normalize)
        if self.slices < 1 or not 0.0 < self.scale < float("inf"):
            raise InputError(f"the block {self.name!r} has {self.slices} slices and the scale {self.scale}")

    def apply(self, features: Array) -> Array:
        """Return the features of the block as the part sees them."""
        if self.slices == 1:
            whole = normalize(features, self.normalize)
        else:
            width = features.shape[1] // self.slices
            slices = (features[:, at * width : (at + 1) * width] for at in range(self.slices))
            whole = _put_side_by_side([normalize(part, self.normalize) for part in slices])
        return whole if self.scale == 1.0 else whole * self.scale


@dataclass(frozen=True, eq=False)
class ViewMap:
    """How a model projects one view: the blocks that it sees, their mean, and the map of their columns.

    Vectors have the backend and the precision of the features, whatever those of the mean and the map.
    """

    blocks: tuple[BlockUse, ...]
    mean: Array
    map: Array

    @property
    def dimension(self) -> int:
        """The length of the vectors."""
        return int(self.map.shape[1])

    def project(self, features: Mapping[str, Array], shaped: dict[BlockUse, Array] | None = None) -> Array:
        """Return the vectors of blocks; ``shaped`` keeps those that other maps see in the same way."""
        shaped = {} if shaped is None else shaped
        for use in self.blocks:
            if use not in shaped:
                shaped[use] = use.apply(features[use.name])
        return project(_put_side_by_side([shaped[use] for use in self.blocks]), self.mean, self.map)

    def embed(self, view: Any, name: str, device: str | None = None) -> Array:
        """Return the vectors of a view that is one block, which messages call ``name``; it may be sparse.

        With a torch ``device``, rows are copied to it one block at a time, and the vectors are NumPy.
        """
        (use,), width = self.blocks, int(self.mean.shape[0])
        if device is None:
            return self.project({use.name: check_view(view, name, n_features=width, sparse=True)})
        matrix = check_matrix(view, name, n_features=width)
        n, step = int(matrix.shape[0]), max(1, DEVICE_BLOCK_BYTES // (4 * width))

        def parts() -> Iterator[Array]:
            there: ViewMap | None = None
            for (block,) in copy_blocks(((matrix[i : i + step],) for i in range(0, n, step)), device):
                rows = check_view(block, name)
                if there is None:  # copied once, for all blocks
                    mean = move_like(self.mean, rows, dtype=rows.dtype)
                    there = ViewMap(self.blocks, mean, move_like(self.map, rows, dtype=rows.dtype))
                yield there.project({use.name: rows})

        return collect_rows(parts(), n)


def _put_side_by_side(blocks: list[Array]) -> Array:
    return blocks[0] if len(blocks) == 1 else namespace(*blocks).concat(blocks, axis=1)
