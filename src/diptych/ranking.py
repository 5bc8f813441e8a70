"""Metrics by name: what model selection maximises and ``score`` returns.

Ranks of the true items, by counting and never by sorting.

The protocol is the one of the paper's appendix (``eval_rank`` of skip-thoughts), for any number of
captions per image. The rank of the truth is 1 plus the number of *other* items that score at least as
high: ties count against us, so a constant score never gives a hit. Scores that differ by rounding alone are
ties (the same caption under two images, say), so that no order of summation decides a rank. How much that is
follows from the vectors and not from the score, which near zero is all rounding; see ``tie_slack``.

Recall at k, median and mean rank, and the summary every table prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import device

from diptych._arrays import Array, count_groups, count_true, group_max, group_sum, namespace, to_numpy
from diptych._checks import InputError, check_pair_of_views, check_similarity, check_task

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


DEFAULT_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Truth:
    """Which captions belong to which image, prepared for ranking either way.

    Attributes
    ----------
    pairing
        Caption j belongs to image ``pairing[j]``.
    n_images
        Number of images, those without captions included.
    described
        Images that have a caption, ascending; only they can be annotation queries.
    """

    pairing: Array
    n_images: int
    described: Array

    @classmethod
    def of(cls, pairing: Array, n_images: int) -> Truth:
        """Prepare a checked ``pairing``."""
        xp = namespace(pairing)
        counts = count_groups(pairing, n_images)
        return cls(pairing, n_images, xp.nonzero(counts > 0)[0])


def ranks(
    x: Any,
    y: Any,
    pairing: Any = None,
    *,
    task: str = "search",
    similarity: str = "cosine",
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> Array:
    """Rank of the truth for every query, 1 being the best.

    Parameters
    ----------
    x, y
        Embeddings of the images and of the captions, in one common space.
    pairing
        Caption j belongs to image ``pairing[j]``; None pairs row with row.
    task
        ``"search"``: each caption ranks all images. ``"annotate"``: each image that has captions ranks
        all captions, and its best own caption counts; its other own captions are not counted.
    similarity
        ``"cosine"`` or ``"l2"`` (smaller distance first).
    block_bytes
        Scores are made in blocks of at most this size (one query at least).
    """
    task, similarity = check_task(task), check_similarity(similarity)
    x, y, pairing = check_pair_of_views(x, y, pairing)
    if x.shape[1] != y.shape[1]:
        raise InputError(
            f"X has {x.shape[1]} columns and Y has {y.shape[1]}; expected embeddings in one common space, "
            "as transform() gives them."
        )
    if block_bytes <= 0:
        raise InputError(f"block_bytes={block_bytes} is not positive; give the bytes that scores may take.")
    xp = namespace(x, y)
    x, y = (xp.astype(v, xp.result_type(x.dtype, y.dtype), copy=False) for v in (x, y))
    truth = Truth.of(pairing, x.shape[0])
    queries, items = (y, x) if task == "search" else (x[truth.described, :], y)
    _check_range(queries, items)
    # The lengths of the true items; of an image, that of its longest caption.
    norms = xp.linalg.vector_norm(items, axis=1)
    if task == "search":
        own_norms = xp.take(norms, pairing, axis=0)
    else:
        own_norms = group_max(norms, pairing, x.shape[0])[truth.described]
    query_norms = xp.linalg.vector_norm(queries, axis=1)
    slack = tie_slack(query_norms, own_norms, items.shape[1], similarity)
    queries, items, offset = _prepared(queries, items, norms, similarity)
    # Beside the scores stands one boolean matrix of comparisons.
    rows = max(1, block_bytes // (items.shape[0] * (items.dtype.itemsize + 1)))
    parts = []
    for start in range(0, queries.shape[0], rows):
        scores = queries[start : start + rows, :] @ items.T
        scores = scores if offset is None else scores + offset
        if task == "search":
            own = truth.pairing[start : start + rows]
            parts.append(search_ranks(scores, own, slack[start : start + rows]))
        else:
            images = truth.described[start : start + rows]
            parts.append(annotate_ranks(scores, truth, images, slack[start : start + rows]))
    return xp.concat(parts)


def _prepared(
    queries: Array, items: Array, norms: Array, similarity: str
) -> tuple[Array, Array, Array | None]:
    """``queries, items, offset`` such that ``queries @ items.T + offset`` ranks by ``similarity``.

    What is constant for a query changes no ranking and is left out: the query's own norm.
    """
    xp = namespace(queries, items)
    if similarity == "cosine":
        return queries, items / xp.where(norms > 0, norms, 1.0)[:, None], None
    return queries, items, -0.5 * xp.sum(items * items, axis=1)[None, :]


def tie_slack(queries: Array, items: Array | float, dimension: int, similarity: str = "cosine") -> Array:
    r"""Return how far below the truth's score another score still ties with it.

    Summing the products of two vectors of length d in another order moves their inner product by about
    :math:`\varepsilon\sqrt d\,\|item\|\,\|query\|`, however small the inner product itself is. Division by
    a length adds the error of that length, which is of the same kind, and a few roundings whatever d is. So
    an inner product has the slack :math:`\varepsilon\,(\sqrt d + 2)\,\|item\|\,\|query\|`. A cosine that
    leaves out the length of the query has that divided by the length of the item; an ℓ2 score, which is
    :math:`\langle item, query\rangle - \tfrac12\|item\|^2`, has that of both of its terms.

    Parameters
    ----------
    queries
        Lengths of the queries.
    items
        Lengths of their true items; an item that equals the truth is as long. Cosines do not need them.
    dimension
        How many products were summed up.
    similarity
        ``"cosine"`` or ``"l2"``.
    """
    xp = namespace(queries)
    scale = queries if similarity == "cosine" else items * (queries + 0.5 * items)
    return scale * (float(xp.finfo(queries.dtype).eps) * (dimension**0.5 + 2.0))


def search_ranks(scores: Array, own: Array, slack: Array) -> Array:
    """Ranks in a block of ``scores`` (queries × images) whose true images are ``own``.

    ``slack`` is the ``tie_slack`` of each query.
    """
    xp = namespace(scores)
    true = xp.take_along_axis(scores, own[:, None], axis=1) - slack[:, None]
    # The truth itself is among those that reach its score: that one is the 1 of "1 + others".
    return count_true(scores >= true, axis=1)


def annotate_ranks(scores: Array, truth: Truth, images: Array, slack: Array) -> Array:
    """Ranks in a block of ``scores`` (``images`` × all captions); each image's best own caption counts.

    ``slack`` is the ``tie_slack`` of each image.
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
    # No score, norm or partial sum of one can then overflow into infinity or NaN.
    xp = namespace(queries, items)
    largest = max(float(xp.max(xp.abs(v))) for v in (queries, items))
    if largest * (items.shape[1] * largest) > float(xp.finfo(items.dtype).max):
        raise InputError(
            f"embeddings with entries as large as {largest:.3g} give scores beyond {items.dtype}; "
            "scale them down, or give float64."
        )


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
