"""Ranks of the true items.

The protocol is that of the paper's appendix (``eval_rank`` of skip-thoughts), for any number of captions per
image. The rank of the truth is 1 plus the number of *other* items that score at least as high: ties count
against the model, so a constant score never gives a hit. Scores that differ by rounding only are ties (the
same caption under two images, say), so that no order of summation decides a rank; see ``tie_slack``. Items
are counted, never sorted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from array_api_compat import device

from diptych._arrays import Array, count_groups, count_true, group_max, group_sum, largest_columns, namespace
from diptych._checks import InputError, Similarity, Task, check_pair_of_views, check_similarity, check_task
from diptych._threads import multiply

DEFAULT_BLOCK_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Truth:
    """Which captions belong to which image: row j of Y to row ``pairing[j]`` of X.

    ``described`` are the images that have a caption, ascending; only they are queries of ``"annotate"``.
    """

    pairing: Array
    x_count: int
    described: Array

    @classmethod
    def of(cls, pairing: Array, x_count: int) -> Truth:
        """Return the truth of a checked ``pairing``."""
        counts = count_groups(pairing, x_count)
        return cls(pairing, x_count, namespace(pairing).nonzero(counts > 0)[0])


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
    truth, blocks = _score_blocks(x, y, pairing, task, similarity, block_bytes)
    parts = []
    for at, scores, slack in blocks:
        if task == "search":
            parts.append(search_ranks(scores, truth.pairing[at], slack))
        else:
            parts.append(annotate_ranks(scores, truth, truth.described[at], slack))
    return namespace(truth.pairing).concat(parts)


def pair_ranks(
    x: Array,
    y: Array,
    pairing: Array | None = None,
    *,
    task: Task = "search",
    similarity: Similarity = "cosine",
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> Array:
    """Return for every pair the place of its item in the list of its query; one for each row of ``y``.

    For ``"search"`` these are the ``ranks``. For ``"annotate"``, all captions of an image have their places
    in its list, and ``ranks`` has the first of them. A caption of another image with an equal score comes
    first.

    Parameters
    ----------
    x, y, pairing, task, similarity, block_bytes
        As ``ranks`` takes them.

    >>> import numpy as np
    >>> images = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> captions = np.array([[0.9, 0.1], [0.5, 0.5], [0.6, 0.4]])
    >>> pair_ranks(images, captions, pairing=[0, 0, 1], task="annotate")
    array([1, 3, 2])
    """
    truth, blocks = _score_blocks(x, y, pairing, task, similarity, block_bytes)
    if task == "search":
        parts = [search_ranks(scores, truth.pairing[at], slack) for at, scores, slack in blocks]
        return namespace(truth.pairing).concat(parts)
    result = namespace(truth.pairing).zeros_like(truth.pairing)
    for at, scores, slack in blocks:
        y_rows, places = _rank_rows(scores, truth, truth.described[at], slack)
        result[y_rows] = places
    return result


def best_items(
    x: Array,
    y: Array,
    pairing: Array,
    depth: int,
    *,
    task: Task,
    similarity: Similarity,
    block_bytes: int = DEFAULT_BLOCK_BYTES,
) -> Iterator[tuple[Array, Array]]:
    """Iterate over blocks of queries: the rows of their ``depth`` best items, best first, and the scores.

    Scores are cosines, or distances with a minus sign. The rest is as in ``ranks``; the queries of
    ``"annotate"`` are the images that have captions.
    """
    truth, blocks = _score_blocks(x, y, pairing, task, similarity, block_bytes)
    queries = y if task == "search" else x[truth.described, :]
    for at, scores, _ in blocks:
        xp = namespace(scores)
        columns = xp.sort(largest_columns(scores, min(depth, scores.shape[1])), axis=1)
        best = xp.take_along_axis(scores, columns, axis=1)
        order = xp.argsort(-best, axis=1, stable=True)
        best, columns = xp.take_along_axis(best, order, axis=1), xp.take_along_axis(columns, order, axis=1)
        norms = xp.linalg.vector_norm(xp.astype(queries[at, :], best.dtype, copy=False), axis=1)[:, None]
        if similarity == "cosine":
            best = best / xp.where(norms > 0, norms, 1.0)
        else:
            squares = norms * norms - 2.0 * best
            best = -xp.sqrt(xp.where(squares > 0, squares, 0.0))
        yield columns, best


def _score_blocks(
    x: Array, y: Array, pairing: Array | None, task: Task, similarity: Similarity, block_bytes: int
) -> tuple[Truth, Iterator[tuple[slice, Array, Array]]]:
    """Return the truth, and an iterator over blocks of queries: which they are, their scores and slack."""
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
        true_norms = xp.take(norms, pairing, axis=0)
    else:
        true_norms = group_max(norms, pairing, x.shape[0])[truth.described]
    query_norms = xp.linalg.vector_norm(queries, axis=1)
    slack = tie_slack(query_norms, true_norms, items.shape[1], similarity)
    items, offset = _scale_items(items, norms, similarity)
    # Each score also needs one byte for its comparison.
    rows = max(1, block_bytes // (items.shape[0] * (items.dtype.itemsize + 1)))

    def score() -> Iterator[tuple[slice, Array, Array]]:
        for start in range(0, queries.shape[0], rows):
            at = slice(start, start + rows)
            scores = multiply(queries[at, :], items.T)
            yield at, scores if offset is None else scores + offset, slack[at]

    return truth, score()


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


def search_ranks(scores: Array, owners: Array, slack: Array) -> Array:
    """Return the ranks in a block of ``scores``, captions × images.

    ``owners`` are the true images of the captions, ``slack`` is the ``tie_slack`` of each caption.
    """
    xp = namespace(scores)
    true = xp.take_along_axis(scores, owners[:, None], axis=1) - slack[:, None]
    # The count includes the truth itself, which is the 1 of "1 + others".
    return count_true(scores >= true, axis=1)


def annotate_ranks(scores: Array, truth: Truth, x_rows: Array, slack: Array) -> Array:
    """Return the ranks in a block of ``scores``, ``x_rows`` × all captions.

    The rank of an image is that of its best own caption; ``slack`` is the ``tie_slack`` of each image.
    """
    xp = namespace(scores)
    rows, y_rows = _true_rows(truth, x_rows)
    true_scores = scores[rows, y_rows]
    best = group_max(true_scores, rows, x_rows.shape[0]) - slack
    reached = xp.astype(true_scores >= best[rows], scores.dtype)
    true_reached = group_sum(reached[:, None], rows, x_rows.shape[0])[:, 0]
    everyone = count_true(scores >= best[:, None], axis=1)
    return 1 + everyone - xp.astype(true_reached, everyone.dtype)


def _rank_rows(scores: Array, truth: Truth, x_rows: Array, slack: Array) -> tuple[Array, Array]:
    """Return the captions of ``x_rows`` and their places, given a block of ``scores``, which is changed.

    An own caption comes after the captions of other images that score at least as high, and after the better
    captions of its own image. One caption of each image is compared at a time, to bound the memory.
    """
    xp = namespace(scores)
    rows, y_rows = _true_rows(truth, x_rows)
    true_scores = scores[rows, y_rows]
    scores[rows, y_rows] = -xp.inf
    order = xp.argsort(-true_scores, stable=True)
    order = order[xp.argsort(rows[order], stable=True)]  # by image, the best caption first
    rows, y_rows, true_scores = rows[order], y_rows[order], true_scores[order]
    number = number_in_group(rows)
    places = xp.zeros_like(y_rows)
    for step in range(int(xp.max(number)) + 1):
        at = xp.nonzero(number == step)[0]
        # Where all images have as many captions as this, the rows need not be copied.
        compared = scores if at.shape[0] == scores.shape[0] else scores[rows[at], :]
        others = count_true(compared >= (true_scores[at] - slack[rows[at]])[:, None], axis=1)
        places[at] = xp.astype(others, places.dtype) + (step + 1)
    return y_rows, places


def number_in_group(groups: Array) -> Array:
    """Number the members of each group from 0, given ``groups`` in ascending order."""
    xp = namespace(groups)
    at = xp.arange(groups.shape[0], dtype=xp.int64, device=device(groups))
    return at - xp.searchsorted(groups, groups)


def _true_rows(truth: Truth, x_rows: Array) -> tuple[Array, Array]:
    """Return the captions of ``x_rows``, after the place of each caption's image among these."""
    xp = namespace(x_rows)
    row_of = xp.full((truth.x_count,), -1, dtype=xp.int64, device=device(x_rows))
    row_of[x_rows] = xp.arange(x_rows.shape[0], dtype=xp.int64, device=device(x_rows))
    y_rows = xp.nonzero(row_of[truth.pairing] >= 0)[0]
    return row_of[truth.pairing[y_rows]], y_rows


def _check_range(queries: Array, items: Array) -> None:
    # Below this limit no score, norm or partial sum can overflow.
    xp = namespace(queries, items)
    largest = max(float(xp.max(xp.abs(v))) for v in (queries, items))
    if largest * (items.shape[1] * largest) > float(xp.finfo(items.dtype).max):
        raise InputError(
            f"vectors with entries as large as {largest:.3g} give scores beyond the range of {items.dtype}; "
            "scale them down, or give float64."
        )
