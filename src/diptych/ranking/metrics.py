"""Metrics by name: what model selection maximises and ``score`` returns."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from diptych.arrays import Array
from diptych.checks import InputError
from diptych.ranking.scores import mean_rank, median_rank, recall_at_k

RECALL = re.compile(r"r@([1-9][0-9]*)")


@dataclass(frozen=True)
class Metric:
    """A number made of ranks, and which way is better.

    ``cutoff`` is k where the metric is recall at k: then a rank need only be known to be within k.
    """

    name: str
    of: Callable[[Array], float]
    greater_is_better: bool = True
    cutoff: int | None = None

    def signed(self, value: float) -> float:
        """``value`` with the sign that makes greater better."""
        return value if self.greater_is_better else -value


def mean_recall(ranks: Array) -> float:
    """Mean of recall at 1, 5 and 10."""
    return (recall_at_k(ranks, 1) + recall_at_k(ranks, 5) + recall_at_k(ranks, 10)) / 3.0


def metric(given: str | Callable[[Array], float]) -> Metric:
    """The metric of that name, or a callable on ranks for which greater is better.

    Names: ``"r@k"`` for any k, ``"mean_recall"`` (of r@1, r@5 and r@10), ``"median_rank"``,
    ``"mean_rank"``.

    >>> import numpy as np
    >>> metric("r@3").of(np.array([1, 3, 7, 9]))
    50.0
    """
    if callable(given):
        return Metric(getattr(given, "__name__", "callable"), given)
    if isinstance(given, str):
        match = RECALL.fullmatch(given)
        if match:
            k = int(match[1])
            return Metric(given, lambda ranks: recall_at_k(ranks, k), cutoff=k)
        if given == "mean_recall":
            return Metric(given, mean_recall)
        if given in ("median_rank", "mean_rank"):
            return Metric(given, median_rank if given == "median_rank" else mean_rank, False)
    raise InputError(
        f"metric={given!r} is unknown; choose 'r@1' (any number after @), 'mean_recall', 'median_rank', "
        "'mean_rank', or give a function of ranks for which greater is better."
    )
