"""Rows of features that are almost equal: copies across splits, and groups of near-duplicates.

Similarities are cosines of rows of length 1. All pairs are compared, a block at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from diptych._threads import multiply
from diptych.cca._weighting import to_unit_length
from diptych.ranking._ranks import tie_slack

RowNumbers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[Any]

FEW_ROWS = 50
"""Below this number of rows nothing is learned from their distances."""

SAFE_SIMILARITY = 0.999
"""The threshold where there are few rows."""

LEAST_SIMILARITY = 0.9
"""The smallest threshold: items of a small collection that are less similar than this are only alike."""

SAME_SIMILARITY = 0.9999
"""What is as similar as this is a copy, whatever else there is."""

CHANCE_PAIRS = 0.01
"""Pairs beyond the threshold that are expected in a collection without duplicates."""

_CHECKED, _ROWS = 2000, 8192
_SAMPLE = 2048  # rows whose neighbours tell how close different items come
_NEIGHBOURS = 20  # more than most groups of duplicates have members; fewer if there are few rows
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


def choose_threshold(rows: Floats, *, random_state: int = 0) -> float:
    r"""Return a similarity that two different items of a collection hardly reach, given rows of length 1.

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


def _neighbour_distances(rows: Floats, chosen: RowNumbers, k: int) -> tuple[Floats, Floats]:
    """Return the distances of some rows to their nearest other rows number k and k/2."""
    queries = np.asarray(rows[chosen])
    best = np.full((len(chosen), k + 1), -1.0, np.float32)  # each row is its own neighbour too
    for start in range(0, len(rows), _ROWS):
        scores = np.hstack([best, multiply(queries, np.asarray(rows[start : start + _ROWS]).T)])
        best = -np.partition(-scores, k, axis=1)[:, : k + 1]
    best = -np.sort(-best, axis=1)
    far, near = (np.sqrt(np.maximum(2 - 2 * best[:, number], 0)) for number in (k, k // 2))
    return far, near


def group_rows(rows: Floats, threshold: float, progress: Callable[[float], None]) -> RowNumbers:
    """Return a number for each row: equal for rows that similarities of at least ``threshold`` connect."""
    n = len(rows)
    labels, firsts, seconds, waiting = np.arange(n), list[RowNumbers](), list[RowNumbers](), 0
    limit = threshold - _rounding(rows)
    for left in range(0, n, _ROWS // 4):
        block = np.asarray(rows[left : left + _ROWS // 4])
        for right in range(left, n, _ROWS):
            scores = multiply(block, np.asarray(rows[right : right + _ROWS]).T)
            first, second = np.nonzero(scores >= limit)
            first, second = labels[first + left], labels[second + right]
            new = first != second
            if np.any(new):
                pairs = np.unique(np.stack([first[new], second[new]]), axis=1)
                firsts.append(pairs[0])
                seconds.append(pairs[1])
                waiting += len(pairs[0])
            if waiting > _EDGES:
                labels = _join(labels, np.concatenate(firsts), np.concatenate(seconds))
                firsts, seconds, waiting = [], [], 0
        done = min(left + _ROWS // 4, n)
        progress(1 - ((n - done) / n) ** 2)
    return _join(labels, np.concatenate(firsts), np.concatenate(seconds)) if firsts else labels


def least_similarity(rows: Floats) -> float:
    """Return the smallest similarity of any two rows; 1 for one row."""
    step = _ROWS // 4
    smallest = (
        float(multiply(np.asarray(rows[i : i + step]), np.asarray(rows[j : j + step]).T).min())
        for i in range(0, len(rows), step)
        for j in range(i, len(rows), step)
    )
    return min(1.0, *smallest) if len(rows) > 1 else 1.0


def _rounding(rows: Floats) -> float:
    """Return how far the similarity of equal rows may be from 1."""
    return float(tie_slack(np.ones(1, rows.dtype), 1.0, rows.shape[1])[0])


def _join(labels: RowNumbers, first: RowNumbers, second: RowNumbers) -> RowNumbers:
    """Return the labels with those of each pair made equal."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    graph = coo_array((np.ones(len(first), bool), (first, second)), (len(labels), len(labels)))
    return np.asarray(connected_components(graph, directed=False)[1][labels], np.int64)
