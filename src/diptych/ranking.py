"""Ranks of the true items, recall and the other retrieval metrics.

The protocol is that of the paper's appendix (``eval_rank`` of skip-thoughts), for any number of captions per
image. The rank of the truth is 1 plus the number of *other* items that score at least as high: ties count
against the model, so a constant score never gives a hit. Scores that differ by rounding only are ties (the
same caption under two images, say), so that no order of summation decides a rank; see ``tie_slack``. Items
are counted, never sorted.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from array_api_compat import device

from diptych._arrays import Array, count_groups, count_true, group_max, group_sum, namespace, to_numpy
from diptych._checks import InputError, Similarity, Task, check_pair_of_views, check_similarity, check_task
from diptych._threads import multiply

__all__ = [
    "Metric",
    "mean_rank",
    "mean_recall",
    "median_rank",
    "metric",
    "ranks",
    "recall_at_k",
    "retrieval_scores",
    "summary",
]

DEFAULT_BLOCK_BYTES = 64 * 2**20

_RECALL = re.compile(r"r@([1-9][0-9]*)")


@dataclass(frozen=True)
class Metric:
    """A function of ranks, called as ``metric(ranks)``; ``cutoff`` is the k of recall at k, else None."""

    name: str
    function: Callable[[Array], float]
    greater_is_better: bool = True
    cutoff: int | None = None

    def __call__(self, ranks: Array) -> float:
        """Return the metric of ``ranks``."""
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


@dataclass(frozen=True)
class Truth:
    """Which captions belong to which image: caption j to image ``pairing[j]``.

    ``described`` are the images that have a caption, ascending; only they are queries of ``"annotate"``.
    """

    pairing: Array
    n_images: int
    described: Array

    @classmethod
    def of(cls, pairing: Array, n_images: int) -> Truth:
        """Return the truth of a checked ``pairing``."""
        counts = count_groups(pairing, n_images)
        return cls(pairing, n_images, namespace(pairing).nonzero(counts > 0)[0])


def ranks(
    x: Array,
    y: Array,
    pairing: Array | None = None,
    *,
    task: Task = "search",
    similarity: Similarity = "cosine",
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> Array:
    """Return the rank of the truth for every query; 1 is the best.

    Parameters
    ----------
    x, y
        Vectors of the images and of the captions, in one common space.
    pairing
        Caption j belongs to image ``pairing[j]``; None pairs row with row.
    task
        ``"search"``: each caption ranks all images. ``"annotate"``: each image that has captions ranks
        all captions; the rank is that of its best own caption, and its other captions are not counted.
    similarity
        ``"cosine"`` or ``"l2"`` (smaller distance first).
    block_bytes
        Scores are computed in blocks of at most this size (at least one query).

    >>> import numpy as np
    >>> images = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> captions = np.array([[0.9, 0.1], [0.8, 0.2], [0.6, 0.4]])
    >>> ranks(images, captions, pairing=[0, 0, 1], task="search")
    array([1, 1, 2])
    """
    task, similarity = check_task(task), check_similarity(similarity)
    x, y, pairing = check_pair_of_views(x, y, pairing)
    if x.shape[1] != y.shape[1]:
        raise InputError(
            f"X has {x.shape[1]} columns and Y has {y.shape[1]}; expected vectors in one common space, "
            "such as those of transform()."
        )
    if block_bytes <= 0:
        raise InputError(f"block_bytes={block_bytes} is not positive; give the bytes of a block of scores.")
    xp = namespace(x, y)
    x, y = (xp.astype(v, xp.result_type(x.dtype, y.dtype), copy=False) for v in (x, y))
    truth = Truth.of(pairing, x.shape[0])
    queries, items = (y, x) if task == "search" else (x[truth.described, :], y)
    _check_range(queries, items)
    # Lengths of the true items; for an image, the length of its longest caption.
    norms = xp.linalg.vector_norm(items, axis=1)
    if task == "search":
        own_norms = xp.take(norms, pairing, axis=0)
    else:
        own_norms = group_max(norms, pairing, x.shape[0])[truth.described]
    query_norms = xp.linalg.vector_norm(queries, axis=1)
    slack = tie_slack(query_norms, own_norms, items.shape[1], similarity)
    items, offset = _scale_items(items, norms, similarity)
    # Each score also needs one byte for its comparison.
    rows = max(1, block_bytes // (items.shape[0] * (items.dtype.itemsize + 1)))
    parts = []
    for start in range(0, queries.shape[0], rows):
        scores = multiply(queries[start : start + rows, :], items.T)
        scores = scores if offset is None else scores + offset
        if task == "search":
            own = truth.pairing[start : start + rows]
            parts.append(search_ranks(scores, own, slack[start : start + rows]))
        else:
            images = truth.described[start : start + rows]
            parts.append(annotate_ranks(scores, truth, images, slack[start : start + rows]))
    return xp.concat(parts)


def _scale_items(items: Array, norms: Array, similarity: str) -> tuple[Array, Array | None]:
    """Return ``items, offset`` such that ``queries @ items.T + offset`` ranks by ``similarity``.

    The length of the query is left out: it is constant for a query and changes no ranking.
    """
    xp = namespace(items)
    if similarity == "cosine":
        return items / xp.where(norms > 0, norms, 1.0)[:, None], None
    return items, -0.5 * xp.sum(items * items, axis=1)[None, :]


def tie_slack(queries: Array, items: Array | float, dimension: int, similarity: str = "cosine") -> Array:
    r"""Return how far below the truth's score another score still counts as a tie.

    Summing the products of two vectors of length d in another order changes their inner product by about
    :math:`\varepsilon\sqrt d\,\|item\|\,\|query\|`, however small the inner product itself is. Division by
    a length adds the error of that length, which is of the same size, and a few roundings that do not depend
    on d. So an inner product has the slack :math:`\varepsilon\,(\sqrt d + 2)\,\|item\|\,\|query\|`. A
    cosine without the length of the query has that divided by the length of the item; an ℓ2 score, which is
    :math:`\langle item, query\rangle - \tfrac12\|item\|^2`, has that of both of its terms.

    ``queries`` are the lengths of the queries, ``items`` those of their true items (cosines do not need
    them), and ``dimension`` is d.
    """
    xp = namespace(queries)
    scale = queries if similarity == "cosine" else items * (queries + 0.5 * items)
    return scale * (float(xp.finfo(queries.dtype).eps) * (dimension**0.5 + 2.0))


def search_ranks(scores: Array, own: Array, slack: Array) -> Array:
    """Return the ranks in a block of ``scores``, captions × images.

    ``own`` are the true images of the captions, ``slack`` is the ``tie_slack`` of each caption.
    """
    xp = namespace(scores)
    true = xp.take_along_axis(scores, own[:, None], axis=1) - slack[:, None]
    # The count includes the truth itself, which is the 1 of "1 + others".
    return count_true(scores >= true, axis=1)


def annotate_ranks(scores: Array, truth: Truth, images: Array, slack: Array) -> Array:
    """Return the ranks in a block of ``scores``, ``images`` × all captions.

    The rank of an image is that of its best own caption; ``slack`` is the ``tie_slack`` of each image.
    """
    xp = namespace(scores)
    row_of = xp.full((truth.n_images,), -1, dtype=xp.int64, device=device(scores))
    row_of[images] = xp.arange(images.shape[0], dtype=xp.int64, device=device(scores))
    captions = xp.nonzero(row_of[truth.pairing] >= 0)[0]
    rows = row_of[truth.pairing[captions]]
    own = scores[rows, captions]
    best = group_max(own, rows, images.shape[0]) - slack
    reached = xp.astype(own >= best[rows], scores.dtype)
    own_reached = group_sum(reached[:, None], rows, images.shape[0])[:, 0]
    everyone = count_true(scores >= best[:, None], axis=1)
    return 1 + everyone - xp.astype(own_reached, everyone.dtype)


def _check_range(queries: Array, items: Array) -> None:
    # Below this limit no score, norm or partial sum can overflow.
    xp = namespace(queries, items)
    largest = max(float(xp.max(xp.abs(v))) for v in (queries, items))
    if largest * (items.shape[1] * largest) > float(xp.finfo(items.dtype).max):
        raise InputError(
            f"vectors with entries as large as {largest:.3g} give scores beyond the range of {items.dtype}; "
            "scale them down, or give float64."
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


def retrieval_scores(
    x: Array,
    y: Array,
    pairing: Array | None = None,
    *,
    task: Task = "search",
    similarity: Similarity = "cosine",
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> dict[str, float]:
    """Return recall at 1, 5 and 10 (percent), median and mean rank of one task.

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
    return summary(ranks(x, y, pairing, task=task, similarity=similarity, block_bytes=block_bytes))


def _count(ranks: Array) -> int:
    count = int(ranks.shape[0])
    if count == 0:
        raise InputError("there are no ranks; give at least one query.")
    return count
