"""Recall at k, median and mean rank, and the summary every table prints."""

from __future__ import annotations

from typing import Any

import numpy as np

from diptych.arrays import Array, namespace, to_numpy
from diptych.checks import InputError
from diptych.ranking.ranks import DEFAULT_BLOCK_BYTES, ranks


def recall_at_k(ranks: Array, k: int) -> float:
    """Percentage of queries whose truth is among the first ``k``.

    >>> import numpy as np
    >>> recall_at_k(np.array([1, 3, 12, 2]), 2)
    50.0
    """
    if k < 1:
        raise InputError(f"k={k} is below 1; recall at k counts truths among the first k items.")
    xp = namespace(ranks)
    return 100.0 * float(xp.count_nonzero(ranks <= k)) / _count(ranks)


def median_rank(ranks: Array) -> float:
    """Median rank as the reference protocol has it: floor of the median zero-based rank, plus 1.

    >>> import numpy as np
    >>> median_rank(np.array([1, 2, 5, 9]))
    3.0
    """
    _count(ranks)
    return float(int(np.median(to_numpy(ranks) - 1)) + 1)


def mean_rank(ranks: Array) -> float:
    """Mean rank, 1 being the best.

    >>> import numpy as np
    >>> mean_rank(np.array([1, 2, 6]))
    3.0
    """
    return float(to_numpy(ranks).sum()) / _count(ranks)


def summary(ranks: Array) -> dict[str, float]:
    """The five numbers that every table of the field reports."""
    return {
        "r@1": recall_at_k(ranks, 1),
        "r@5": recall_at_k(ranks, 5),
        "r@10": recall_at_k(ranks, 10),
        "median_rank": median_rank(ranks),
        "mean_rank": mean_rank(ranks),
    }


def retrieval_scores(
    x: Any,
    y: Any,
    pairing: Any = None,
    *,
    task: str = "search",
    similarity: str = "cosine",
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> dict[str, float]:
    """Recall at 1, 5 and 10 (percent), median and mean rank of one task; see ``ranking.ranks``.

    Examples
    --------
    >>> import numpy as np
    >>> images = np.eye(3)
    >>> captions = np.repeat(images, 2, axis=0)
    >>> retrieval_scores(images, captions, pairing=[0, 0, 1, 1, 2, 2], task="annotate")["r@1"]
    100.0
    """
    return summary(ranks(x, y, pairing, task=task, similarity=similarity, block_bytes=block_bytes))


def _count(ranks: Array) -> int:
    count = int(ranks.shape[0])
    if count == 0:
        raise InputError("there are no ranks to summarise; give at least one query.")
    return count
