r"""Hubness, the tendency of some items to be near every query, and the weights of models that are summed.

A *bank* of training queries is compared with the items: ``similarities`` are items × bank queries. CSLS
(Lample et al., 2018) subtracts from an item's score its mean similarity to the k nearest bank queries. That
is one number per item, so a corrected score is an inner product with one more coordinate: minus the
correction on the item, 1 on the query. Any index for inner products searches by it exactly, and no query
influences the answer to another. A query far from the training queries has less than 1 there: see ``Gate``.

Weights and corrections are chosen for one task on validation, from score matrices that are computed once. The
criterion is the mean of r@1, r@5 and r@10: on a thousand images r@1 alone varies by more than a point by
chance. Single models are always among the candidates. The best candidate wins, except that a part that was
not fitted is left only for one that is clearly better.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych._arrays import Floats
from diptych._checks import Task
from diptych._threads import multiply
from diptych.cca._correction import Correction as Correction  # exported by this package
from diptych.cca._correction import csls_offsets, measure_distances
from diptych.cca._weighting import to_unit_length
from diptych.ranking import mean_recall, recall_at_k
from diptych.ranking._ranks import Truth, annotate_ranks, search_ranks, tie_slack

STRENGTHS, STRONGER = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6), (0.75, 0.9, 1.05)
NEIGHBOURS, MORE_NEIGHBOURS = (10, 30, 100), (250,)
"""Strengths and numbers of neighbours to try; further ones only where the largest is best: on a few
validation pairs, far too strong a correction may seem best by chance."""

WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0)
"""The weights to try for a model, relative to the largest."""

STANDARD_ERRORS = 1.5
"""By how many a choice must exceed a part that was not fitted, on validation."""

_PROVISIONAL = (10, 0.3)  # k and strength while weights are searched; both are chosen afterwards
_GAIN = 0.05  # percentage points below which a change is not worth making
_SWEEPS = 3

FAR = (90.0, 99.0)
"""Percentiles of the distances of validation queries between which a gate closes."""


def make_rates(squares: Floats, weight: float = 1.0) -> Floats:
    """Return the rates of one model's coordinates from their mean squares over the training queries."""
    least = 1e-6 * max(float(squares.max()), 1e-30)  # a coordinate that never varied must not decide alone
    return np.asarray(weight / len(squares) / np.maximum(squares, least), dtype=np.float32)


@dataclass(frozen=True, eq=False)
class PartScores:
    """Scores of one model on validation, queries × items and items × bank, and the queries' distances."""

    scores: Floats
    bank: Floats
    distances: Floats

    @classmethod
    def of(cls, queries: Floats, items: Floats, bank: Floats) -> PartScores:
        """Return the scores of vectors that are given before they are scaled to unit length."""
        distances = measure_distances(queries, make_rates(np.square(bank).mean(axis=0)))
        queries, items, bank = (np.asarray(to_unit_length(rows)) for rows in (queries, items, bank))
        return cls(multiply(queries, items.T), multiply(items, bank.T), distances)


@dataclass(frozen=True, eq=False)
class TaskChoice:
    """Weights of the models, a correction, the distances between which its gate closes, and their value."""

    weights: tuple[float, ...]
    correction: Correction
    limits: tuple[float, float]
    value: float
    recall: dict[str, float]


class Evaluator:
    """Ranks of the true items in score matrices of one task, and metrics of them.

    ``dimension`` is that of the vectors whose cosines the scores are, the largest where there are several.
    """

    def __init__(
        self, task: Task, pairing: np.ndarray[Any, np.dtype[np.int64]], x_count: int, dimension: int
    ) -> None:
        self.truth = Truth.of(pairing, x_count)
        self.task = task
        self.dimension = dimension

    def ranks(self, scores: Floats, total: float = 1.0) -> Any:
        """Return the rank of the true item of each query; rows are captions, or images that have captions.

        ``scores`` are cosines, or sums of cosines with weights that add up to ``total``.
        """
        lengths = np.full(scores.shape[0], total, dtype=scores.dtype)
        slack = tie_slack(lengths, 1.0, self.dimension)
        if self.task == "search":
            return search_ranks(scores, self.truth.pairing, slack)
        return annotate_ranks(scores, self.truth, self.truth.described, slack)

    def value(self, scores: Floats, total: float = 1.0) -> float:
        """Return the criterion."""
        return mean_recall(self.ranks(scores, total))

    def values(self, scores: Floats) -> Floats:
        """Return the criterion of each query; ``value`` is their mean."""
        ranks = self.ranks(scores)
        return np.asarray(np.mean([100.0 * (ranks <= k) for k in (1, 5, 10)], axis=0))

    def recall(self, scores: Floats) -> dict[str, float]:
        ranks = self.ranks(scores)
        return {f"r@{k}": recall_at_k(ranks, k) for k in (1, 5, 10)}


def choose_correction(
    evaluator: Evaluator, part: PartScores, kinds: Sequence[str]
) -> tuple[Correction, float, Floats]:
    """Return the best correction, its value and the corrected scores; the weaker one on a tie."""
    size = part.bank.shape[1]
    counts = [k for k in NEIGHBOURS + MORE_NEIGHBOURS if k <= size] or [size]
    offsets = dict(zip(counts, csls_offsets(part.bank, counts), strict=True)) if "csls" in kinds else {}
    corrected = np.empty_like(part.scores)

    def correct(correction: Correction) -> Floats:
        if correction.kind == "none":
            return part.scores
        offset = correction.strength * offsets[correction.neighbours]
        return np.subtract(part.scores, offset.astype(part.scores.dtype), out=corrected)

    def best_of(corrections: Iterable[Correction]) -> tuple[float, Correction]:
        return max(
            ((evaluator.value(correct(correction)), correction) for correction in corrections),
            key=lambda pair: pair[0],
        )

    usual = [k for k in offsets if k not in MORE_NEIGHBOURS]
    grid = [Correction("csls", s, k) for k in usual for s in STRENGTHS]
    value, best = best_of([Correction(), *grid] if "none" in kinds else grid)
    strengths = STRENGTHS + STRONGER * (best.strength == STRENGTHS[-1])
    further = usual + [k for k in offsets if k in MORE_NEIGHBOURS and best.neighbours == NEIGHBOURS[-1]]
    wider = [Correction("csls", s, k) for k in further for s in strengths]
    if len(wider) > len(grid):
        value, best = max((value, best), best_of(c for c in wider if c not in grid), key=lambda pair: pair[0])
    return best, value, correct(best)


def choose_weights(
    evaluator: Evaluator,
    parts: Sequence[PartScores],
    kinds: Sequence[str],
    unfitted: Sequence[int] = (),
) -> TaskChoice:
    """Return the best of each model alone, all with equal weights, and searched weights.

    The best of the ``unfitted`` parts is kept alone unless the best choice exceeds it by more than
    ``STANDARD_ERRORS``: on a few validation pairs a good dual encoder finds nearly all, and a model that is
    much worse on more items may exceed it by chance.
    """
    candidates = [tuple(float(i == j) for j in range(len(parts))) for i in range(len(parts))]
    if len(parts) > 1:
        candidates.append((1.0,) * len(parts))
        corrected = any(kind != "none" for kind in kinds)
        candidates.append(_search_weights(evaluator, parts, candidates, corrected))
    choices: list[tuple[TaskChoice, Floats]] = []
    for weights in dict.fromkeys(candidates):
        shares = tuple(w / sum(weights) for w in weights)
        mixed = PartScores(
            *(
                _mix([getattr(part, name) for part in parts], shares)
                for name in ("scores", "bank", "distances")
            )
        )
        correction, value, scores = choose_correction(evaluator, mixed, kinds)
        low, high = map(float, np.percentile(mixed.distances, FAR))
        limits = low, max(high, 1.01 * low + 1e-6)  # apart, even where all distances are the same
        choices.append((TaskChoice(shares, correction, limits, value, evaluator.recall(scores)), scores))
    best = max(choices, key=lambda choice: choice[0].value)
    if unfitted:
        plain = max((choices[at] for at in unfitted), key=lambda choice: choice[0].value)
        gains = evaluator.values(best[1]) - evaluator.values(plain[1])
        if gains.mean() <= STANDARD_ERRORS * gains.std() / np.sqrt(len(gains)):
            return plain[0]
    return best[0]


def _search_weights(
    evaluator: Evaluator, parts: Sequence[PartScores], starts: list[tuple[float, ...]], corrected: bool
) -> tuple[float, ...]:
    """Return weights by coordinate search from the best start, each model with a provisional correction."""
    k, strength = _PROVISIONAL
    matrices = [
        part.scores - strength * csls_offsets(part.bank, [k])[0].astype(part.scores.dtype)
        if corrected
        else part.scores
        for part in parts
    ]
    value, weights = max(
        ((evaluator.value(_mix(matrices, w), sum(w)), w) for w in starts), key=lambda pair: pair[0]
    )
    total = _mix(matrices, weights)
    for _ in range(_SWEEPS):
        previous = value
        for i, scores in enumerate(matrices):
            largest = max(weights)
            for weight in (largest * w for w in WEIGHTS):
                trial = tuple(weight if i == j else w for j, w in enumerate(weights))
                if weight == weights[i] or not any(trial):
                    continue
                mixed = total + np.float32(weight - weights[i]) * scores
                if (trial_value := evaluator.value(mixed, sum(trial))) > value + _GAIN:
                    value, weights, total = trial_value, trial, mixed
        if value == previous:
            break
    return weights


def _mix(matrices: Sequence[Floats], weights: Sequence[float]) -> Floats:
    used = [(matrix, weight) for matrix, weight in zip(matrices, weights, strict=True) if weight != 0.0]
    total = used[0][0] * np.float32(used[0][1])
    for matrix, weight in used[1:]:
        total += np.float32(weight) * matrix
    return total
