r"""Hubness: some items are near every query. A number per item, from training queries alone, corrects that.

A *bank* of training queries is compared with the items: ``similarities`` are bank queries × items. What an
item collects there beyond others is taken off its score, so that a corrected score is an inner product with
one more coordinate, minus the correction on the item and 1 on the query, and any inner-product index searches
by it exactly. No query that is being answered is ever looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych._checks import InputError, check_choice

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.floating[Any]]]
Kind: TypeAlias = Literal["none", "csls", "inverted-softmax"]
KINDS: tuple[Kind, ...] = ("none", "csls", "inverted-softmax")

BLOCK_BYTES = 2**27


@dataclass(frozen=True)
class Correction:
    """A correction of scores and how strong it is.

    Attributes
    ----------
    kind
        ``"csls"``: the mean similarity to the nearest bank queries. ``"inverted-softmax"``: the logarithm of
        the softmax's denominator over the bank, divided by its inverse temperature. ``"none"``: nothing.
    strength
        What share of it is taken off. Full CSLS (Lample et al., 2018), 2·cos − r, is ½ here.
    parameter
        How many nearest queries (CSLS), or the inverse temperature β (inverted softmax).
    """

    kind: Kind = "none"
    strength: float = 0.0
    parameter: float = 10.0

    def __post_init__(self) -> None:
        """Refuse what is no correction."""
        check_choice(self.kind, KINDS, "hubness")
        numbers = (self.strength, self.parameter)
        if not all(isinstance(v, (int, float)) and 0.0 <= v < float("inf") for v in numbers):
            raise InputError(f"a hubness correction of {numbers} is not possible; give numbers, 0 or above.")
        if (self.kind != "none" and self.parameter <= 0) or (self.kind == "csls" and self.parameter < 1):
            raise InputError(f"hubness {self.kind} with the parameter {self.parameter}; give at least 1.")


def csls_offsets(similarities: Floats, k: int) -> Floats:
    """Mean similarity of every item to its ``k`` nearest bank queries (all of them if there are fewer)."""
    return nearest_means(similarities, [k])[0]


def nearest_means(similarities: Floats, counts: list[int]) -> list[Floats]:
    """``csls_offsets`` for several k at once."""
    rows = similarities.shape[0]
    most = min(max(counts), rows)
    nearest = np.partition(similarities, rows - most, axis=0)[rows - most :]
    nearest = np.sort(nearest, axis=0)[::-1]
    return [nearest[: min(k, rows)].mean(axis=0) for k in counts]


def inverted_softmax_offsets(similarities: Floats, beta: float) -> Floats:
    r""":math:`\frac1\beta\log\frac1n\sum_q e^{\beta s_{qi}}` for every item i, over the n bank queries q.

    Dividing :math:`e^{\beta s}` by the sum over queries, as the inverted softmax does, is subtracting this.
    """
    top = similarities.max(axis=0)
    total: Floats = np.log(np.exp(beta * (similarities - top)).mean(axis=0)) / beta + top
    return total


def offsets(items: Floats, bank: Floats, correction: Correction, block_bytes: int = BLOCK_BYTES) -> Floats:
    """What ``correction`` takes off the score of every item; inner products compare items and ``bank``."""
    if correction.kind == "none" or correction.strength == 0.0:
        return np.zeros(len(items), dtype=items.dtype)
    width = max(1, block_bytes // (len(bank) * items.dtype.itemsize))
    parts = [_offsets(bank @ items[i : i + width].T, correction) for i in range(0, len(items), width)]
    return np.asarray(correction.strength * np.concatenate(parts), dtype=items.dtype)


def _offsets(similarities: Floats, correction: Correction) -> Floats:
    if correction.kind == "csls":
        return csls_offsets(similarities, int(correction.parameter))
    return inverted_softmax_offsets(similarities, correction.parameter)


def corrected_items(items: Floats, taken_off: Floats) -> Floats:
    """Items with one more coordinate: minus what is taken off."""
    return np.concatenate([items, -taken_off[:, None]], axis=1)


def corrected_queries(queries: Floats) -> Floats:
    """Queries with one more coordinate, 1, to meet that of the items."""
    return np.concatenate([queries, np.ones((len(queries), 1), dtype=queries.dtype)], axis=1)


def activated(similarities: Floats, k: int = 1) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which items are among the ``k`` nearest of some bank query: QB-Norm's activation set."""
    found = np.zeros(similarities.shape[1], dtype=bool)
    k = min(k, similarities.shape[1])
    found[np.argpartition(-similarities, k - 1, axis=1)[:, :k].reshape(-1)] = True
    return found


def gated(scores: Floats, taken_off: Floats, active: np.ndarray[Any, np.dtype[np.bool_]]) -> Floats:
    """QB-Norm's dynamic gate (Bogolin et al., 2022), after a search: queries × items.

    A query is corrected only where its best uncorrected item is ``active``.
    """
    through = active[scores.argmax(axis=1)]
    return scores - np.where(through[:, None], taken_off, 0.0).astype(scores.dtype)
