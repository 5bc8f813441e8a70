"""Recall at k over a whole grid from a few rivals of each query, verified exactly where it matters.

The images that can beat the true image of a caption are nearly the same all over the grid. So the whole
numerator is computed only at a few *anchor* points, where the highest scoring rivals of every query are
noted; those pairs alone are then scored at every grid point. A rival that scores at least as high as the
truth proves that the rank is larger, so the result is an upper bound on recall at every point (often well
above recall itself, above all for truncated SVDs). Points are then verified in the order of their bounds,
with every item counted, until no other bound reaches the best verified value: the choice is that of the exact
route.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from diptych._checks import TASKS, Task
from diptych._threads import map_parallel
from diptych.cca.selection._exact import Row, caption_lengths, count_others, make_row, rescale
from diptych.cca.selection._problem import Problem, Weights, annotate_norms, products

Floats: TypeAlias = np.ndarray[Any, Any]
Progress: TypeAlias = Callable[[float], None]

ANCHORS_PER_SIDE = 3
RIVALS = 5
TILE_BYTES = 2**21


@dataclass(frozen=True, eq=False)
class Screen:
    """Upper bounds on recall at every grid point, and what is needed to compute the exact ranks at any.

    A bound is NaN where scores are not finite.
    """

    table: _Table
    own: Floats
    bounds: dict[Task, Floats]

    def exact(self, i: int, j: int) -> dict[Task, Floats]:
        """Return the exact ranks of both tasks at one grid point."""
        table, problem = self.table, self.table.problem
        alone = Weights.of(np.asarray(table.w_y.rows[j : j + 1, :], dtype=np.float64), problem.a)
        row = table.row(i, slice(j, j + 1), self.own[i, j : j + 1], alone)
        search, annotate = count_others(problem, row, alone)
        return {"search": 1 + search[0], "annotate": 1 + annotate[0, problem.truth.described]}


def screen_bytes(problem: Problem, w_x: Weights, w_y: Weights) -> int:
    """Return the memory that screening takes in addition to the problem."""
    n_x, n_y = w_x.rows.shape[0], w_y.rows.shape[0]
    images, captions = problem.a.shape[0], problem.b.shape[0]
    rivals = (images + captions) * RIVALS * ANCHORS_PER_SIDE**2 // 3 + captions
    per_row = images * problem.b.shape[1]
    return int(problem.b.dtype.itemsize * (n_x * per_row + n_x * n_y * (2 * rivals + captions)))


def screen(
    problem: Problem, w_x: Weights, w_y: Weights, cutoff: int, progress: Progress = lambda share: None
) -> Screen:
    """Return upper bounds on recall at ``cutoff`` over the grid."""
    norms = annotate_norms(problem, w_x, w_y)
    progress(0.35)
    mapped = [product.copy() for _, product in products(problem.a, w_x, problem.t0)]
    progress(0.45)
    table = _Table(problem, w_y, mapped, norms, caption_lengths(problem, w_y))
    images, captions = _candidates(table, _anchors(w_x), cutoff)
    progress(0.75)
    numerators = _pair_numerators(table, images, captions)
    progress(0.95)
    own = np.swapaxes(numerators[:, _own_pairs(problem, images, captions), :], 1, 2)
    return Screen(table, own, _bounds(table, numerators, own, images, captions, cutoff))


@dataclass(frozen=True, eq=False)
class _Table:
    """The parts of the scores that every step needs."""

    problem: Problem
    w_y: Weights
    mapped: list[Floats]  # for each x value, the images in the eigenbasis of the captions
    norms: Floats  # ``annotate_norms``
    lengths: Floats  # ``caption_lengths``

    def row(self, i: int, columns: Any, own: Floats, w_y: Weights) -> Row:
        """Return the ``Row`` of x value ``i`` at the y values ``columns``, whose weights are ``w_y``."""
        return make_row(self.problem, self.mapped[i], self.norms[i, columns], w_y, self.lengths[columns], own)


def _anchors(weights: Weights) -> list[int]:
    """Return the first, the last and other grid values, evenly spaced in the logarithm of their weight.

    Of few values it is the one in the middle.
    """
    if weights.rows.shape[0] < 2 * ANCHORS_PER_SIDE:
        return [weights.rows.shape[0] // 2]
    total = np.log(np.asarray(weights.rows, dtype=np.float64).sum(axis=1))
    targets = np.linspace(total[0], total[-1], ANCHORS_PER_SIDE)
    return sorted({int(np.argmin(np.abs(total - target))) for target in targets})


def _candidates(table: _Table, rows: list[int], cutoff: int) -> tuple[Floats, Floats]:
    """Return the pairs (image, caption) to score at every point: the true ones and the rivals."""
    problem = table.problem
    n_images, n_captions = problem.a.shape[0], problem.b.shape[0]
    columns = _anchors(table.w_y)
    anchors = Weights.of(np.asarray(table.w_y.rows[columns, :], dtype=np.float64), problem.a)
    keep = RIVALS + cutoff - 1
    width = max(1, TILE_BYTES // (n_images * problem.b.dtype.itemsize))
    tiles = [(start, min(start + width, n_captions)) for start in range(0, n_captions, width)]
    codes = [problem.truth.pairing * n_captions + np.arange(n_captions)]
    # Rivals are compared with each other, so the scores of the truth are not needed yet.
    unknown = np.zeros((len(columns), n_captions), dtype=problem.b.dtype)
    for i in rows:
        row = table.row(i, columns, unknown, anchors)
        parts = map_parallel(partial(_tile_rivals, problem, row, anchors, keep), tiles, problem.a)
        codes += [searched for searched, _, _ in parts]
        best = np.concatenate([scores for _, scores, _ in parts], axis=2)
        which = np.concatenate([places for _, _, places in parts], axis=2)
        for scores, places in zip(best, which, strict=True):
            chosen = np.take_along_axis(places, _largest(scores, keep), axis=1)
            codes.append((np.arange(n_images)[:, None] * n_captions + chosen).reshape(-1))
    pairs = np.unique(np.concatenate(codes))
    return pairs // n_captions, pairs % n_captions


def _tile_rivals(
    problem: Problem, row: Row, anchors: Weights, keep: int, bounds: tuple[int, int]
) -> tuple[Floats, Floats, Floats]:
    start, stop = bounds
    n_captions = problem.b.shape[0]
    own, lines = problem.truth.pairing[start:stop], np.arange(stop - start)
    codes, best, which = [], [], []
    for j, numerator in products(problem.b[start:stop, :], anchors, row.mapped.T):
        numerator[lines, own] = -np.inf
        scores = rescale(problem, numerator, row.search_scale[j, None, :])
        codes.append((_largest(scores, keep) * n_captions + (start + lines)[:, None]).reshape(-1))
        scores = np.ascontiguousarray(rescale(problem, numerator, row.annotate_scale[j, start:stop, None]).T)
        top = _largest(scores, keep)
        best.append(np.take_along_axis(scores, top, axis=1))
        which.append(top + start)
    return np.concatenate(codes), np.stack(best), np.stack(which)


def _largest(scores: Floats, keep: int, groups: int = 16) -> Floats:
    """Return the columns of the ``keep`` largest entries of each row, in no order.

    They lie in the groups with the largest maxima, so only those few groups are partitioned.
    """
    rows, n = scores.shape
    if n <= keep:
        return np.broadcast_to(np.arange(n), scores.shape)
    stride = n // groups
    if stride <= 2 * keep:
        return np.argpartition(scores, n - keep, axis=1)[:, n - keep :]
    maxima = scores[:, : stride * groups].reshape(rows, groups, stride).max(axis=1)
    best = np.argpartition(maxima, stride - keep, axis=1)[:, stride - keep :]
    places = (best[:, None, :] + stride * np.arange(groups)[:, None]).reshape(rows, -1)
    remainder = np.broadcast_to(np.arange(stride * groups, n), (rows, n - stride * groups))
    places = np.concatenate([places, remainder], axis=1)
    top = np.argpartition(np.take_along_axis(scores, places, axis=1), places.shape[1] - keep, axis=1)
    return np.take_along_axis(places, top[:, places.shape[1] - keep :], axis=1)


def _pair_numerators(table: _Table, images: Floats, captions: Floats) -> Floats:
    """Return the numerators of the pairs (sorted by image): x values × pairs × y values."""
    problem, mapped, w_y = table.problem, table.mapped, table.w_y
    numerators = np.empty((len(mapped), len(images), w_y.rows.shape[0]), dtype=problem.b.dtype)
    bounds = np.searchsorted(images, np.arange(problem.a.shape[0] + 1))
    nested = not all(step.fresh for step in w_y.steps)

    def fill(image: int) -> None:
        pairs = slice(bounds[image], bounds[image + 1])
        rows = np.stack([product[image] for product in mapped])
        own = problem.b[captions[pairs], :]
        if nested:
            for j, numerator in products(rows, w_y, own.T):
                numerators[:, pairs, j] = numerator
        else:
            # One large product is faster than one for each y value.
            items = (rows[:, None, :] * w_y.rows).reshape(-1, rows.shape[1])
            numerators[:, pairs, :] = (own @ items.T).reshape(len(own), len(rows), -1).transpose(1, 0, 2)

    map_parallel(fill, list(range(problem.a.shape[0])), problem.a)
    return numerators


def _bounds(
    table: _Table, numerators: Floats, own: Floats, images: Floats, captions: Floats, cutoff: int
) -> dict[Task, Floats]:
    problem = table.problem
    rival = (problem.truth.pairing[captions] != images)[:, None]
    by_caption = np.argsort(captions, kind="stable")
    grouped = captions[by_caption]
    bounds: dict[Task, Floats] = {task: np.empty(table.norms.shape[:2]) for task in TASKS}

    def beat_truth(i: int, scale: Floats, floor: Floats, items: Floats, queries: Floats) -> Floats:
        # Transposed, because rows of a few numbers are indexed fast: pairs × y values.
        scores = rescale(problem, numerators[i], np.ascontiguousarray(scale.T)[items])
        return np.asarray((scores >= np.ascontiguousarray(floor.T)[queries]) & rival)

    def fill(i: int) -> None:
        row = table.row(i, slice(None), own[i], table.w_y)
        # Half of the slack: these scores are summed in another order than the exact ones, and a rival that
        # counts here must count there.
        beaten = beat_truth(i, row.search_scale, row.search_truth - row.search_slack / 2, images, captions)
        others = _count_by(beaten[by_caption], grouped, problem.b.shape[0])
        bounds["search"][i] = np.where(row.finite, 100.0 * (others < cutoff).mean(axis=0), np.nan)
        floor = row.annotate_truth - row.annotate_slack / 2
        beaten = beat_truth(i, row.annotate_scale, floor, captions, images)
        others = _count_by(beaten, images, problem.a.shape[0])[problem.truth.described]
        bounds["annotate"][i] = np.where(row.finite, 100.0 * (others < cutoff).mean(axis=0), np.nan)

    map_parallel(fill, list(range(len(table.mapped))), problem.a)
    return bounds


def _own_pairs(problem: Problem, images: Floats, captions: Floats) -> Floats:
    """Return the position of each caption with its own image among the pairs, in the order of captions."""
    own = np.flatnonzero(problem.truth.pairing[captions] == images)
    return own[np.argsort(captions[own], kind="stable")]


def _count_by(mask: Floats, groups: Floats, n_groups: int) -> Floats:
    """Count the true entries of ``mask`` (pairs × values) in each group of pairs; ``groups`` ascends."""
    counts = np.zeros((n_groups, mask.shape[1]), dtype=np.uint32)
    present, starts = np.unique(groups, return_index=True)
    counts[present] = np.add.reduceat(mask.view(np.uint8), starts, axis=0, dtype=np.uint32)
    return counts
