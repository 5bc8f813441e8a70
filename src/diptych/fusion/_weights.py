"""Choosing weights and a hubness correction for one task, on score matrices that are made once.

The criterion is the mean of r@1, r@5 and r@10: with a thousand images r@1 alone moves by a point and more by
chance, and what is best by chance is not best next time. Single parts are always among the candidates, so
on validation the result is never worse than any of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych._checks import Task
from diptych.fusion._blocks import Floats
from diptych.fusion._hubness import Correction, inverted_softmax_offsets, nearest_means
from diptych.ranking import Truth, annotate_ranks, mean_recall, recall_at_k, search_ranks, tie_slack

WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""What a weight may be, beside the largest."""

STRENGTHS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
NEIGHBOURS = (10, 30, 100)
BETAS = (10.0, 20.0, 40.0)

_PROVISIONAL = (10, 0.3)  # CSLS while weights are looked for; k and strength are chosen after
_GAIN = 0.05  # percentage points below which a change is not worth making
_SWEEPS = 3


@dataclass(frozen=True, eq=False)
class Scored:
    """One part on validation: its scores (queries × items), and those of the bank (bank × items)."""

    scores: Floats
    bank: Floats


@dataclass(frozen=True, eq=False)
class Chosen:
    """Weights of the parts, a correction, and what they are worth on validation."""

    weights: tuple[float, ...]
    correction: Correction
    value: float
    recall: dict[str, float]


class Judge:
    """Ranks score matrices of one task against the truth.

    ``dimension`` is that of the embeddings whose cosines are judged, the largest where there are several.
    """

    def __init__(
        self, task: Task, pairing: np.ndarray[Any, np.dtype[np.int64]], n_images: int, dimension: int
    ) -> None:
        self.truth = Truth.of(pairing, n_images)
        self.task = task
        self.dimension = dimension

    def ranks(self, scores: Floats, total: float = 1.0) -> Any:
        """Rank of the truth for each query; rows of ``scores`` are captions, or images that have captions.

        ``scores`` are cosines, or sums of cosines with weights of this ``total``.
        """
        lengths = np.full(scores.shape[0], total, dtype=scores.dtype)
        slack = tie_slack(lengths, 1.0, self.dimension)
        if self.task == "search":
            return search_ranks(scores, self.truth.pairing, slack)
        return annotate_ranks(scores, self.truth, self.truth.described, slack)

    def value(self, scores: Floats, total: float = 1.0) -> float:
        """The criterion."""
        return mean_recall(self.ranks(scores, total))

    def recall(self, scores: Floats) -> dict[str, float]:
        """r@1, r@5 and r@10."""
        found = self.ranks(scores)
        return {f"r@{k}": recall_at_k(found, k) for k in (1, 5, 10)}


def corrections(bank: Floats, kinds: Sequence[str]) -> list[tuple[Correction, Floats]]:
    """Every correction to try, the weaker first, and what it takes off each item."""
    found = [(Correction(), np.zeros(bank.shape[1], dtype=bank.dtype))] if "none" in kinds else []
    if "csls" in kinds:
        counts = [k for k in NEIGHBOURS if k <= len(bank)] or [len(bank)]
        for k, off in zip(counts, nearest_means(bank, counts), strict=True):
            found += [(Correction("csls", s, float(k)), s * off) for s in STRENGTHS]
    if "inverted-softmax" in kinds:
        for beta in BETAS:
            off = inverted_softmax_offsets(bank, beta)
            found += [(Correction("inverted-softmax", s, beta), s * off) for s in (0.25, 0.5, 1.0)]
    return found


def best_correction(judge: Judge, scored: Scored, kinds: Sequence[str]) -> tuple[Correction, float, Floats]:
    """The best correction, its value and the corrected scores; the weaker on a tie."""
    best: tuple[Correction, float, Floats] | None = None
    for correction, off in corrections(scored.bank, kinds):
        scores = scored.scores - off.astype(scored.scores.dtype)
        value = judge.value(scores)
        if best is None or value > best[1]:
            best = correction, value, scores
    assert best is not None
    return best


def choose(judge: Judge, parts: Sequence[Scored], kinds: Sequence[str], search: bool = True) -> Chosen:
    """The best of every part alone, all in equal shares, and weights found by coordinate search."""
    singles = [tuple(float(i == j) for j in range(len(parts))) for i in range(len(parts))]
    candidates = list(singles)
    if len(parts) > 1:
        candidates.append((1.0,) * len(parts))
        if search:
            candidates.append(_searched(judge, parts, candidates, any(kind != "none" for kind in kinds)))
    best: Chosen | None = None
    for weights in dict.fromkeys(candidates):
        share = tuple(w / sum(weights) for w in weights)
        mixed = Scored(*(_mixed([getattr(p, of) for p in parts], share) for of in ("scores", "bank")))
        correction, value, scores = best_correction(judge, mixed, kinds)
        if best is None or value > best.value:
            best = Chosen(share, correction, value, judge.recall(scores))
    assert best is not None
    return best


def _searched(
    judge: Judge, parts: Sequence[Scored], starts: list[tuple[float, ...]], corrected: bool
) -> tuple[float, ...]:
    """Weights by coordinate search from the best start, each part corrected by itself for the time being."""
    k, strength = _PROVISIONAL
    own = [
        p.scores - strength * nearest_means(p.bank, [k])[0].astype(p.scores.dtype) if corrected else p.scores
        for p in parts
    ]
    value, weights = max(((judge.value(_mixed(own, w), sum(w)), w) for w in starts), key=lambda pair: pair[0])
    total = _mixed(own, weights)
    for _ in range(_SWEEPS):
        before = value
        for i, scores in enumerate(own):
            unit = max(weights)
            for weight in (unit * w for w in WEIGHTS):
                moved = tuple(weight if i == j else w for j, w in enumerate(weights))
                if weight == weights[i] or not any(moved):
                    continue
                changed = total + np.float32(weight - weights[i]) * scores
                if (reached := judge.value(changed, sum(moved))) > value + _GAIN:
                    value, weights, total = reached, moved, changed
        if value == before:
            break
    return weights


def _mixed(matrices: Sequence[Floats], weights: Sequence[float]) -> Floats:
    used = [(m, w) for m, w in zip(matrices, weights, strict=True) if w != 0.0]
    total = used[0][0] * np.float32(used[0][1])
    for matrix, weight in used[1:]:
        total += np.float32(weight) * matrix
    return total
