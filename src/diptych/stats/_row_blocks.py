"""Blocks of rows: which rows are drawn together, and which may change places."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from diptych._arrays import Array, to_numpy
from diptych._checks import DataWarning, InputError
from diptych.cca._filters import Floats

HALVINGS = 6
"""Steps of a chain permute all rows, a half, a quarter … of them in turn: so many sizes."""

Ints = np.ndarray[Any, np.dtype[np.int64]]

_FEW = 20  # arrangements; with fewer, no p-value can be below 0.05


def block_codes(blocks: Any, pairing: Array, n_x: int) -> Ints:
    """Return the number of the block of each row of X; without ``blocks``, each row is its own.

    ``blocks`` has one label per row of X, or one per pair, where the pairs of a row must agree.
    """
    if blocks is None:
        return np.arange(n_x)
    labels = to_numpy(blocks) if is_array_api_obj(blocks) else np.asarray(blocks)
    owners = to_numpy(pairing)
    if labels.ndim != 1 or len(labels) not in (n_x, len(owners)):
        raise InputError(
            f"blocks has shape {labels.shape}; expected one label for each of the {n_x} rows of X."
        )
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        raise InputError("blocks contains NaN or infinity; give a label for every row.")
    codes = _number(labels)
    if len(labels) == n_x:
        return codes
    by_row = np.full(n_x, -1, dtype=np.int64)
    by_row[owners] = codes
    if not np.array_equal(by_row[owners], codes):
        raise InputError("blocks has different labels for pairs with the same row of X; give one per row.")
    return by_row


def _number(labels: Any) -> Ints:
    """Return labels, or rows of them, as numbers from 0 in their order."""
    axis = None if labels.ndim == 1 else 0  # with an axis, NumPy takes no labels of any other kind
    return np.unique(labels, axis=axis, return_inverse=True)[1].reshape(-1).astype(np.int64)


@dataclass(frozen=True, eq=False)
class ExchangeBlocks:
    """Which rows may change places: those with the same label."""

    labels: Ints

    @classmethod
    def of_pairs(cls, blocks: Any, pairing: Array, n_x: int) -> ExchangeBlocks:
        """Return those of the rows of X that have pairs: the same block, and as many rows of Y."""
        codes = np.zeros(n_x, dtype=np.int64) if blocks is None else block_codes(blocks, pairing, n_x)
        counts = np.bincount(to_numpy(pairing), minlength=n_x)
        return cls(_number(np.stack([codes, counts], axis=1)[counts > 0]))

    def check(self) -> None:
        """Raise an error if there is one arrangement, and warn if there are few."""
        sizes = np.bincount(self.labels)
        if sizes.max() < 2:
            raise InputError(
                "no two rows of X may change places: each is alone in its block with its number of rows of "
                "Y; give larger blocks."
            )
        arrangements = math.exp(min(50.0, sum(math.lgamma(size + 1) for size in sizes)))
        if arrangements < _FEW:
            warnings.warn(
                f"there are only {arrangements:.0f} arrangements, so no p-value can be much below "
                f"{1 / arrangements:.2g}; give more rows or larger blocks.",
                DataWarning,
                stacklevel=3,
            )

    def permute(self, rng: np.random.Generator) -> Ints:
        """Return a random permutation of the rows."""
        rows = np.arange(len(self.labels))
        return self.permute_part(rows, rows, rng)

    def permute_part(self, order: Ints, part: Ints, rng: np.random.Generator) -> Ints:
        """Return ``order`` with the entries at ``part`` permuted at random within their labels."""
        labels = self.labels[part]
        changed = order.copy()
        shuffled = np.lexsort((rng.random(len(part)), labels))
        changed[part[np.argsort(labels, kind="stable")]] = order[part[shuffled]]
        return changed

    def propose(self, order: Ints, step: int, rng: np.random.Generator) -> Ints:
        """Return the permutation with a random part of it permuted again; the reverse step is as likely."""
        by_label = np.lexsort((rng.random(len(order)), self.labels))
        size = max(2, len(order) >> (step % HALVINGS))
        # Neighbours here have the same label, so that also a small part has rows that may change places.
        part = by_label[(int(rng.integers(len(order))) + np.arange(size)) % len(order)]
        return self.permute_part(order, part, rng)


@dataclass(frozen=True, eq=False)
class ResampledBlocks:
    """Blocks to draw with replacement: ``codes`` has that of each row of X, −1 for a row without pairs."""

    codes: Ints
    seed: int

    @classmethod
    def of_pairs(cls, blocks: Any, pairing: Array, n_x: int, seed: int) -> ResampledBlocks:
        """Return those of the rows of X that have pairs."""
        codes = np.full(n_x, -1, dtype=np.int64)
        has_pair = np.isin(np.arange(n_x), to_numpy(pairing))
        codes[has_pair] = _number(block_codes(blocks, pairing, n_x)[has_pair])
        if codes.max() < 1:
            raise InputError(
                "all rows are in one block, so there is nothing to resample; give several blocks."
            )
        return cls(codes, seed)

    def draw(self, number: int) -> Floats:
        """Return how often each row of X is in a resample."""
        n_blocks = int(self.codes.max()) + 1
        chosen = np.random.default_rng([self.seed, number]).integers(n_blocks, size=n_blocks)
        counts = np.bincount(chosen, minlength=n_blocks).astype(np.float64)
        return np.where(self.codes >= 0, counts[self.codes], 0.0)
