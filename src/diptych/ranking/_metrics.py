"""Recall and the other metrics of ranks, and their bootstrap intervals."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import Array, namespace, to_numpy
from diptych._checks import InputError, Similarity, Task, check_count, check_number, check_seed, count
from diptych.ranking._ranks import DEFAULT_BLOCK_BYTES, number_in_group, pair_ranks

Vector: TypeAlias = np.ndarray[Any, Any]

METRICS = ("r@1", "r@5", "r@10", "median_rank", "mean_rank", "mrr", "ndcg@10", "map@r")
"""What ``retrieval_scores`` returns; all but the ranks are in percent."""

_RECALL = re.compile(r"r@([1-9][0-9]*)")


@dataclass(frozen=True)
class Metric:
    """A function of ranks, called as ``metric(ranks)``; ``cutoff`` is the k of recall at k, else None."""

    name: str
    function: Callable[[Array], float]
    greater_is_better: bool = True
    cutoff: int | None = None

    def __call__(self, ranks: Array) -> float:
        return self.function(ranks)

    def signed(self, value: float) -> float:
        """Return ``value`` with the sign that makes greater better."""
        return value if self.greater_is_better else -value


def metric(name: str | Callable[[Array], float]) -> Metric:
    """Return the metric of this name.

    Parameters
    ----------
    name
        ``"r@k"`` for any k, ``"mean_recall"`` (of r@1, r@5 and r@10), ``"median_rank"``, ``"mean_rank"``, or
        a function of ranks for which greater is better.

    >>> import numpy as np
    >>> metric("r@3")(np.array([1, 3, 7, 9]))
    50.0
    """
    if callable(name):
        return Metric(getattr(name, "__name__", "callable"), name)
    if isinstance(name, str):
        if match := _RECALL.fullmatch(name):
            k = int(match[1])
            return Metric(name, lambda ranks: recall_at_k(ranks, k), cutoff=k)
        if name == "mean_recall":
            return Metric(name, mean_recall)
        if name in ("median_rank", "mean_rank"):
            return Metric(name, median_rank if name == "median_rank" else mean_rank, False)
    raise InputError(
        f"metric={name!r} is unknown; choose 'r@1' (any number after @), 'mean_recall', 'median_rank', "
        "'mean_rank', or give a function of ranks for which greater is better."
    )


def recall_at_k(ranks: Array, k: int) -> float:
    """Return the percentage of queries whose truth is among the first ``k`` items.

    >>> import numpy as np
    >>> recall_at_k(np.array([1, 3, 12, 2]), 2)
    50.0
    """
    if k < 1:
        raise InputError(f"k={k} is below 1; recall at k counts the true items among the first k.")
    xp = namespace(ranks)
    return 100.0 * float(xp.count_nonzero(ranks <= k)) / _count(ranks)


def mean_recall(ranks: Array) -> float:
    """Return the mean of recall at 1, 5 and 10.

    >>> import numpy as np
    >>> mean_recall(np.array([1, 7, 20, 4]))
    50.0
    """
    return (recall_at_k(ranks, 1) + recall_at_k(ranks, 5) + recall_at_k(ranks, 10)) / 3.0


def median_rank(ranks: Array) -> float:
    """Return the median rank as in the reference protocol: floor of the median zero-based rank, plus 1.

    >>> import numpy as np
    >>> median_rank(np.array([1, 2, 5, 9]))
    3.0
    """
    _count(ranks)
    return float(int(np.median(to_numpy(ranks) - 1)) + 1)


def mean_rank(ranks: Array) -> float:
    """Return the mean rank; 1 is the best.

    >>> import numpy as np
    >>> mean_rank(np.array([1, 2, 6]))
    3.0
    """
    return float(to_numpy(ranks).sum()) / _count(ranks)


def summary(ranks: Array) -> dict[str, float]:
    """Return recall at 1, 5 and 10 (percent), median and mean rank, as the paper's tables report them.

    >>> import numpy as np
    >>> summary(np.array([1, 2, 6, 30]))
    {'r@1': 25.0, 'r@5': 50.0, 'r@10': 75.0, 'median_rank': 4.0, 'mean_rank': 9.75}
    """
    return {
        "r@1": recall_at_k(ranks, 1),
        "r@5": recall_at_k(ranks, 5),
        "r@10": recall_at_k(ranks, 10),
        "median_rank": median_rank(ranks),
        "mean_rank": mean_rank(ranks),
    }


def mean_reciprocal_rank(ranks: Array) -> float:
    """Return the mean of 1 / rank, in percent.

    >>> import numpy as np
    >>> mean_reciprocal_rank(np.array([1, 2, 4, 4]))
    50.0
    """
    _count(ranks)
    return 100.0 * float(np.mean(1.0 / to_numpy(ranks)))


def ndcg_at_k(pair_ranks: Array, queries: Array | None = None, k: int = 10) -> float:
    r"""Return the mean nDCG of the first ``k`` items, in percent; items are right or wrong.

    An item at place r gains :math:`1 / \log_2(1 + r)`. The gain of a query is divided by that of a list
    with all of its right items at the top.

    Parameters
    ----------
    pair_ranks
        The place of every right item, as ``pair_ranks`` returns it.
    queries
        The number of its query, for each; None: every query has one right item.
    k
        How many items count.

    >>> import numpy as np
    >>> round(ndcg_at_k(np.array([1, 3, 2, 30])), 2)
    53.27
    """
    _count(pair_ranks)
    return 100.0 * float(np.mean(_query_ndcg(*_sort_by_query(pair_ranks, queries)[1:], k)))


def map_at_r(pair_ranks: Array, queries: Array | None = None) -> float:
    r"""Return the mean average precision at R, in percent.

    R is the number of right items of a query, and its average precision
    :math:`\frac1R \sum_{i \le R} P(i)\,[\text{item } i \text{ is right}]`, where P(i) is the share of right
    items among the first i (Musgrave, Belongie, Lim, 2020). With one right item it is recall at 1.

    Parameters
    ----------
    pair_ranks, queries
        As ``ndcg_at_k`` takes them.

    >>> import numpy as np
    >>> map_at_r(np.array([1, 3, 2, 1]), queries=np.array([0, 0, 1, 1]))
    75.0
    """
    _count(pair_ranks)
    return 100.0 * float(np.mean(_query_precision(*_sort_by_query(pair_ranks, queries)[1:])))


def retrieval_scores(
    x: Array,
    y: Array,
    pairing: Array | None = None,
    *,
    task: Task = "search",
    similarity: Similarity = "cosine",
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> dict[str, float]:
    """Return recall at 1, 5 and 10, median and mean rank, MRR, nDCG@10 and mAP@R of one task.

    All but the ranks are in percent.

    Parameters
    ----------
    x, y, pairing, task, similarity, block_bytes
        See ``ranks``.

    >>> import numpy as np
    >>> images = np.eye(3)
    >>> captions = np.repeat(images, 2, axis=0)
    >>> retrieval_scores(images, captions, pairing=[0, 0, 1, 1, 2, 2], task="annotate")["r@1"]
    100.0
    """
    places = pair_ranks(x, y, pairing, task=task, similarity=similarity, block_bytes=block_bytes)
    return summarize_pairs(places, pairing if task == "annotate" else None)


def summarize_pairs(pair_ranks: Array, queries: Array | None = None) -> dict[str, float]:
    """Return the metrics of ``retrieval_scores``, given the places of all right items and their queries."""
    _, places, groups = _sort_by_query(pair_ranks, queries)
    ranks = places[number_in_group(groups) == 0]
    return summary(ranks) | {
        "mrr": mean_reciprocal_rank(ranks),
        "ndcg@10": ndcg_at_k(places, groups),
        "map@r": map_at_r(places, groups),
    }


def bootstrap_intervals(
    pair_ranks: Array,
    queries: Array | None = None,
    units: Array | None = None,
    *,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int | None = 0,
) -> dict[str, tuple[float, float]]:
    """Return percentile intervals of the metrics of ``retrieval_scores`` over resampled queries.

    The items that are searched stay the same.

    Parameters
    ----------
    pair_ranks, queries
        As ``ndcg_at_k`` takes them.
    units
        What is resampled, with all of its queries: the number of its unit, for each pair. For
        ``"search"``, the image of each caption, because captions of one image are alike; None: the queries.
    n_resamples
        How many resamples are drawn.
    confidence
        The share of resamples within the interval.
    random_state
        Seed: the same seed gives the same intervals.

    >>> import numpy as np
    >>> low, high = bootstrap_intervals(np.array([1, 1, 3, 1, 2, 8]))["r@1"]
    >>> round(low, 1), round(high, 1)
    (16.7, 83.3)
    """
    check_count(n_resamples, "n_resamples")
    if not 0 < check_number(confidence, "confidence") < 1:
        raise InputError(f"confidence={confidence} is not between 0 and 1; give a share, such as 0.95.")
    _count(pair_ranks)
    if units is None:
        units = np.arange(len(pair_ranks)) if queries is None else queries
    order, places, groups = _sort_by_query(pair_ranks, queries)
    is_first = number_in_group(groups) == 0
    ranks, unit = places[is_first], np.unique(to_numpy(units)[order][is_first], return_inverse=True)[1]
    means = {
        **{f"r@{k}": 100.0 * (ranks <= k) for k in (1, 5, 10)},
        "mean_rank": ranks,
        "mrr": 100.0 / ranks,
        "ndcg@10": 100.0 * _query_ndcg(places, groups, 10),
        "map@r": 100.0 * _query_precision(places, groups),
    }
    sizes = np.bincount(unit)
    # A mean over resampled units is a ratio of sums; only the median needs the queries themselves.
    sums = np.stack([np.bincount(unit, values) for values in means.values()], axis=1)
    by_rank = np.argsort(ranks)
    rng = np.random.default_rng(check_seed(random_state))
    samples: dict[str, list[float]] = {name: [] for name in (*means, "median_rank")}
    for _ in range(n_resamples):
        weights = np.bincount(rng.integers(len(sizes), size=len(sizes)), minlength=len(sizes))
        total = int(weights @ sizes)
        for name, value in zip(means, (weights @ sums / total).tolist(), strict=True):
            samples[name].append(value)
        reached = np.cumsum(weights[unit[by_rank]])
        middle = ranks[by_rank][np.searchsorted(reached, [(total - 1) // 2, total // 2], side="right")]
        samples["median_rank"].append(median_rank(middle))
    tail = (1.0 - confidence) / 2.0
    limits = {name: np.quantile(samples[name], [tail, 1.0 - tail]).tolist() for name in METRICS}
    return {name: (low, high) for name, (low, high) in limits.items()}


def _sort_by_query(pair_ranks: Array, queries: Array | None) -> tuple[Vector, Vector, Vector]:
    """Return the order that sorts places by query and then by place, and with it both, in NumPy."""
    places = to_numpy(pair_ranks)
    groups = np.arange(len(places)) if queries is None else to_numpy(queries)
    if groups.shape != places.shape:
        raise InputError(f"got {len(groups)} queries for {count(len(places), 'place')}; pass one for each.")
    order = np.lexsort((places, groups))
    return order, places[order], groups[order]


def _query_ndcg(places: Vector, groups: Vector, k: int) -> Vector:
    """Return the nDCG of each query, given places that are sorted by query."""
    check_count(k, "k")
    numbers = number_in_group(groups)
    query = np.cumsum(numbers == 0) - 1
    gains, ideal = (np.where(at <= k, 1.0 / np.log2(1.0 + at), 0.0) for at in (places, 1 + numbers))
    return np.asarray(np.bincount(query, gains) / np.bincount(query, ideal))


def _query_precision(places: Vector, groups: Vector) -> Vector:
    """Return the average precision at R of each query, given places that are sorted by query and place."""
    numbers = number_in_group(groups)
    query = np.cumsum(numbers == 0) - 1
    right = np.bincount(query)
    precision = np.where(places <= right[query], (1 + numbers) / places, 0.0)
    return np.asarray(np.bincount(query, precision) / right)


def _count(ranks: Array) -> int:
    n_ranks = int(ranks.shape[0])
    if n_ranks == 0:
        raise InputError("there are no ranks; give at least one query.")
    return n_ranks
