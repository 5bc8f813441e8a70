"""Rows of features that are almost equal: copies across splits, and groups of near-duplicates.

Similarities are cosines of centred rows: all features of some encoders point in about the same direction, and
only what differs from it tells items apart. All pairs are compared, a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych._threads import multiply
from diptych.cca._weighting import to_unit_length
from diptych.data._feature_store import Features, RowNumbers
from diptych.ranking._ranks import tie_slack

FEW_ROWS = 50
"""Below this number of rows nothing is learned from their distances."""

SAFE_SIMILARITY = 0.999
"""The threshold where there are few rows."""

LEAST_SIMILARITY = 0.8
"""The smallest threshold: items of a small collection that are less similar than this are only alike."""

SAME_SIMILARITY = 0.9999
"""What is as similar as this is a copy, whatever else there is."""

CHANCE_PAIRS = 0.01
"""Pairs beyond the threshold that are expected in a collection without duplicates."""

_CHECKED, _ROWS = 2000, 8192
_SAMPLE = 2048  # rows whose neighbours tell how close different items come
_NEIGHBOURS = 20  # more than most groups of duplicates have members; fewer if there are few rows
_AT_MEAN = 1e-4  # distance from the mean below which a row differs from it by rounding
_EDGES = 2**20  # pairs that are collected before groups are joined


def find_near_duplicates(
    training: NDArray[Any], held_out: NDArray[Any], *, random_state: int = 0
) -> RowNumbers:
    """Return the rows of ``held_out`` that are almost equal to a row of ``training``.

    Such rows make recalls too good. Of more than 2,000 held-out rows, a seeded sample is checked.
    """
    rows = np.arange(len(held_out))
    if len(rows) > _CHECKED:
        rows = np.sort(np.random.default_rng(random_state).choice(rows, _CHECKED, replace=False))
    mean = np.asarray(training[:_ROWS], np.float32).mean(axis=0)
    queries = to_unit_length(np.asarray(held_out[rows], np.float32) - mean)
    nearest = np.full(len(rows), -1.0, np.float32)
    for start in range(0, len(training), _ROWS):
        block = to_unit_length(np.asarray(training[start : start + _ROWS], np.float32) - mean)
        nearest = np.maximum(nearest, np.max(queries @ block.T, axis=1))
    return rows[nearest > SAME_SIMILARITY]


def center_rows(rows: Features) -> None:
    """Subtract the mean of rows of length 1 from each, and scale them to length 1 again, in place.

    The mean of few rows tells nothing, so these stay as they are.
    """
    n = len(rows)
    if n < FEW_ROWS:
        return
    mean = np.mean(rows, axis=0, dtype=np.float64)
    for start in range(0, n, _ROWS):
        block = rows[start : start + _ROWS] - mean
        at_mean = np.linalg.norm(block, axis=1) < _AT_MEAN
        block[at_mean] = mean  # otherwise rounding would tell copies of the mean apart
        rows[start : start + _ROWS] = to_unit_length(block)


def choose_threshold(rows: Features, *, random_state: int = 0) -> float:
    r"""Return a similarity that two different items of a collection hardly reach, given centred rows.

    Around an item, the number of other items within a distance d grows as :math:`k\,(d/r)^D`, where r is the
    distance of its k-th neighbour and D the local dimension of the data. So a collection of n different items
    has about

    .. math:: \frac n2 \cdot k \, \operatorname{mean}_i \left(\frac d{r_i}\right)^D

    pairs closer than d by chance. The threshold is the d for which these are ``CHANCE_PAIRS``. The k-th
    neighbour lies beyond the duplicates of an item unless it has k of them, and D is the median growth from
    neighbour k/2 to neighbour k, so duplicates hardly change either. Items with k neighbours nearer than the
    threshold that the median r would give are left out of the mean: those are duplicates. The threshold is
    never below ``LEAST_SIMILARITY`` nor above ``SAME_SIMILARITY``.
    """
    n = len(rows)
    if n < FEW_ROWS:
        return SAFE_SIMILARITY
    chosen = np.random.default_rng(random_state).permutation(n)[:_SAMPLE]
    k = 2 * min(_NEIGHBOURS // 2, n // 24)
    far, near = _neighbour_distances(rows, np.sort(chosen), k)
    usable = near**2 / 2 > _rounding(rows)
    if np.count_nonzero(usable) < FEW_ROWS / 2:
        return SAFE_SIMILARITY
    far, near = far[usable], near[usable]
    growth = max(float(np.median(np.log(far / near))), np.log(2) / rows.shape[1])
    dimension = np.log(2) / growth
    factor = (2 * CHANCE_PAIRS / (n * k)) ** (1 / dimension)
    middle = float(np.median(far))
    ratios = (middle / far[far > factor * middle]) ** dimension
    distance = factor * middle * float(np.mean(ratios)) ** (-1 / dimension)
    return min(max(float(1 - distance**2 / 2), LEAST_SIMILARITY), SAME_SIMILARITY)


def _neighbour_distances(rows: Features, chosen: RowNumbers, k: int) -> tuple[Features, Features]:
    """Return the distances of some rows to their nearest other rows number k and k/2."""
    queries = np.asarray(rows[chosen])
    best = np.full((len(chosen), k + 1), -1.0, np.float32)  # each row is its own neighbour too
    for start in range(0, len(rows), _ROWS):
        scores = np.hstack([best, multiply(queries, np.asarray(rows[start : start + _ROWS]).T)])
        best = -np.partition(-scores, k, axis=1)[:, : k + 1]
    best = -np.sort(-best, axis=1)
    far, near = (np.sqrt(np.maximum(2 - 2 * best[:, number], 0)) for number in (k, k // 2))
    return far, near


def group_rows(rows: Features, threshold: float, progress: Callable[[float], None]) -> RowNumbers:
    """Return a number for each row: equal for rows that similarities of at least ``threshold`` connect."""
    n, limit = len(rows), threshold - _rounding(rows)
    labels, pairs = np.arange(n), list[RowNumbers]()
    for left in range(0, n, _ROWS // 4):
        block = np.asarray(rows[left : left + _ROWS // 4])
        for right in range(left, n, _ROWS):
            rights = slice(right, right + _ROWS)
            if np.all(np.append(labels[left : left + len(block)], labels[rights]) == labels[left]):
                continue  # they are one group already
            similar = multiply(block, np.asarray(rows[rights]).T) >= limit
            for part in _cut(np.count_nonzero(similar, axis=1)):
                first, second = np.nonzero(similar[part])
                first, second = labels[first + left + part.start], labels[second + right]
                new = first != second
                pairs.append(np.unique(first[new] * n + second[new]))
                if sum(map(len, pairs)) > _EDGES // 4:
                    labels, pairs = _join(labels, np.concatenate(pairs)), []
        progress(1 - (max(0, n - left - len(block)) / n) ** 2)
    return _join(labels, np.concatenate(pairs)) if pairs else labels


def _cut(counts: RowNumbers) -> list[slice]:
    """Return slices of rows that have about ``_EDGES`` similar pairs each, given their number in each row."""
    _, starts = np.unique(np.cumsum(counts) // _EDGES, return_index=True)
    return [slice(int(a), int(b)) for a, b in zip(starts, [*starts[1:], len(counts)], strict=True)]


def least_similarity(rows: Features, chosen: RowNumbers) -> float:
    """Return the smallest similarity of any two of the chosen rows; 1 for one row."""
    parts = [chosen[start : start + _ROWS // 4] for start in range(0, len(chosen), _ROWS // 4)]
    least = 1.0
    for number, part in enumerate(parts):
        block = np.asarray(rows[part])
        for later_part in parts[number:]:
            least = min(least, float(multiply(block, np.asarray(rows[later_part]).T).min()))
    return least if len(chosen) > 1 else 1.0


def _rounding(rows: Features) -> float:
    """Return how far the similarity of equal rows may be from 1."""
    return float(tie_slack(np.ones(1, rows.dtype), 1.0, rows.shape[1])[0])


def _join(labels: RowNumbers, pairs: RowNumbers) -> RowNumbers:
    """Return the labels with those of each pair made equal; a pair a, b is the number a · n + b."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n = len(labels)
    graph = coo_array((np.ones(len(pairs), bool), np.divmod(pairs, n)), (n, n))
    return np.asarray(connected_components(graph, directed=False)[1][labels], np.int64)
