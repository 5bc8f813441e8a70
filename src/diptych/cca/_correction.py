"""Hubness corrections of scores: one number for an item, and the share of it that a query gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from diptych._arrays import Floats
from diptych._checks import InputError, check_choice
from diptych._persistence import Schema
from diptych._threads import multiply

BLOCK_BYTES = 2**27

Kind: TypeAlias = Literal["none", "csls"]
KINDS: tuple[Kind, ...] = ("none", "csls")


class Correction(Schema, frozen=True):
    """A hubness correction of the scores of one task.

    Parameters
    ----------
    kind
        ``"csls"``: the mean similarity to the nearest bank queries. ``"none"``: nothing.
    strength
        The share of it that is subtracted. Full CSLS, 2·cos − r, is ½ here.
    neighbours
        The number k of nearest bank queries.

    Examples
    --------
    >>> Correction("csls", strength=0.5, neighbours=10).kind
    'csls'
    """

    kind: Kind = "none"
    strength: float = 0.0
    neighbours: int = 10

    def __post_init__(self) -> None:
        check_choice(self.kind, KINDS, "hubness")
        if not isinstance(self.strength, (int, float)) or not 0.0 <= self.strength < float("inf"):
            raise InputError(
                f"strength={self.strength!r} of a hubness correction; give a number, 0 or above."
            )
        if not isinstance(self.neighbours, int) or self.neighbours < 1:
            raise InputError(f"neighbours={self.neighbours!r}; give a whole number of queries, 1 or above.")

    @property
    def has_effect(self) -> bool:
        """Whether it subtracts anything."""
        return self.kind != "none" and self.strength != 0.0


@dataclass(frozen=True, eq=False)
class Gate:
    r"""The share of the correction that a query gets: all of it, unless it is far from the training queries.

    The correction is measured on training queries, such as captions. On others, such as single words, it does
    harm. The distance of a query is :math:`\sum_i r_i p_i^2`, where p are its coordinates before they are
    scaled to unit length. The rates r make it 1 on average over the training queries, and give every
    coordinate of a model the same share in it, whatever its spread. A query gets all of the correction up to
    the distance ``low``, none from ``high`` on, and a linear share in between.
    """

    rates: Floats
    low: float
    high: float

    def compute(self, projected: Floats) -> Floats:
        """Return the shares of queries, given before they are scaled to unit length."""
        shares = (self.high - measure_distances(projected, self.rates)) / (self.high - self.low)
        return np.asarray(np.clip(shares, 0.0, 1.0))


@dataclass(frozen=True, eq=False)
class Hubness:
    """A correction with the bank of training queries that it is measured on, and the gate of queries."""

    correction: Correction
    bank: Floats
    gate: Gate | None = None

    def item_coordinates(self, vectors: Floats) -> Floats:
        """Return the further coordinate of items."""
        return -compute_offsets(vectors, self.bank, self.correction)

    def query_coordinates(self, projected: Sequence[Floats]) -> Floats:
        """Return the further coordinate of queries, whose parts are not yet of unit length."""
        if self.gate is None:
            return np.ones(len(projected[0]), dtype=projected[0].dtype)
        return self.gate.compute(np.concatenate(projected, axis=1))


def csls_offsets(similarities: Floats, counts: Sequence[int]) -> list[Floats]:
    """Return the mean similarity of every item to its k nearest bank queries, for each k of ``counts``.

    Where the bank has fewer queries, the mean is over all of them.
    """
    size = similarities.shape[1]
    most = min(max(counts), size)
    nearest = np.partition(similarities, size - most, axis=1)[:, size - most :]
    nearest = np.sort(nearest, axis=1)
    return [nearest[:, -min(k, size) :].mean(axis=1) for k in counts]


def compute_offsets(
    items: Floats, bank: Floats, correction: Correction, block_bytes: int = BLOCK_BYTES
) -> Floats:
    """Return what ``correction`` subtracts from the score of every item, a block of items at a time."""
    if not correction.has_effect:
        return np.zeros(len(items), dtype=items.dtype)
    width = max(1, block_bytes // (len(bank) * items.dtype.itemsize))
    offsets = [
        csls_offsets(multiply(items[i : i + width], bank.T), [correction.neighbours])[0]
        for i in range(0, len(items), width)
    ]
    return np.asarray(correction.strength * np.concatenate(offsets), dtype=items.dtype)


def measure_distances(projected: Floats, rates: Floats) -> Floats:
    """Return the distances of queries, given before they are scaled to unit length."""
    with np.errstate(over="ignore"):  # infinitely far is far
        return np.asarray(np.square(projected) @ rates)
