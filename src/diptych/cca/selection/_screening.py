"""Recall at k over a whole grid from a few rivals of each query, verified exactly where it matters.

The images that can beat the true image of a caption are nearly the same all over the grid. So the whole
numerator is computed only at a few *anchor* points, where the highest scoring rivals of every query are
noted; those pairs alone are then scored at every grid point. A rival that scores at least as high as the
truth proves that the rank is larger, so the result is an upper bound on recall at every point. Points are
then verified in the order of their bounds, among all items, until the best one is verified: the choice is
that of the exact route. Where the bound of a verified point was too high, the rivals that it missed are
scored at every point too, which lowers the other bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import device, is_numpy_array

from diptych._arrays import (
    Array,
    Floats,
    add_group_counts,
    count_groups,
    count_true,
    largest_columns,
    namespace,
    to_numpy,
)
from diptych._checks import TASKS, Task
from diptych._threads import map_parallel
from diptych.cca.selection._exact import rescale, score_truths, y_lengths
from diptych.cca.selection._problem import Problem, Weights, annotate_norms, products

Progress: TypeAlias = Callable[[float], None]

ANCHORS_PER_SIDE = 2
RIVALS = 2
"""Rivals of each query that are noted at an anchor, for r@1. Verified points bring in the others, where they
matter, so more of either cost more time than they save."""

CPU_TILE_BYTES = 2**21
DEVICE_TILE_BYTES = 2**26

MARKED_PAIRS = 2**17
"""Pairs that are compared with the truth at all points before they are counted; it bounds the memory."""


@dataclass(eq=False)
class Screen:
    """Upper bounds on recall at every grid point, and what is needed to compute the exact ranks at any.

    Arrays over "points" have the points of the grid in one axis, y value by y value.
    """

    problem: Problem
    w_y: Weights
    cutoff: int
    mapped: Array  # images × x values × directions: the images in the eigenbasis of the captions
    finite: Array  # points: whether all scores are finite
    scales: dict[Task, Array]  # items × points
    floors: dict[Task, Array]  # queries × points: a rival that scores this much surely counts
    margins: dict[Task, Array]  # queries × points: how far below it one counts in exact ranks
    others: dict[Task, Array]  # queries × points: how many rivals are known to count
    pairs: Array  # image · captions + caption of the rivals that were scored, ascending

    @property
    def bounds(self) -> dict[Task, Floats]:
        """Upper bounds on recall, x values × y values; NaN where scores are not finite."""
        n_x, n_y = self.mapped.shape[1], self.w_y.rows.shape[0]
        queries = {"search": slice(None), "annotate": self.problem.truth.described}
        finite, bounds = to_numpy(self.finite), {}
        for task in TASKS:
            others = self.others[task][queries[task]]
            hits = to_numpy(count_true(others < self.cutoff, axis=0))
            values = np.where(finite, 100.0 * hits / others.shape[0], np.nan)
            bounds[task] = values.reshape(n_y, n_x).T
        return bounds

    def verify(self, task: Task, i: int, j: int) -> float:
        """Return the exact recall of a task at one grid point, and lower the bounds by what is found.

        Only queries that the bound takes for hits are ranked, among all items; the others are no hits. If one
        is none either, its strongest rivals are scored at every point.
        """
        problem, xp = self.problem, namespace(self.problem.a)
        mapped, point = self.mapped[:, i, :], j * int(self.mapped.shape[1]) + i
        queries, items = (problem.b, mapped) if task == "search" else (mapped, problem.b)
        ranked = xp.arange(problem.b.shape[0], device=device(mapped))
        if task == "annotate":
            ranked = problem.truth.described
        possible = ranked[self.others[task][ranked, point] < self.cutoff]
        floor = self.floors[task][:, point] - self.margins[task][:, point]
        scale, weights = self.scales[task][:, point], _select(self.w_y, [j], problem)
        every = xp.arange(items.shape[0], device=device(possible))[None, :]

        def rank(start: int) -> Array:
            """Return the pairs of the queries that are no hits with their rivals."""
            rows = possible[start : start + width, None]
            x_rows, y_rows = (every, rows) if task == "search" else (rows, every)
            _, numerator = next(products(queries[rows[:, 0], :], weights, items.T))
            numerator = xp.where(problem.truth.pairing[y_rows] == x_rows, -xp.inf, numerator)
            scores = rescale(problem, numerator, scale[None, :])
            missed = xp.nonzero(count_true(scores >= floor[rows], axis=1) >= self.cutoff)[0]
            top = _largest(scores[missed, :], RIVALS + self.cutoff - 1)
            if task == "search":
                return top * problem.b.shape[0] + rows[missed, :]
            return rows[missed, :] * problem.b.shape[0] + top

        width = max(1, _tile_bytes(problem) // (items.shape[0] * problem.b.dtype.itemsize))
        parts = map_parallel(rank, list(range(0, possible.shape[0], width)), problem.a)
        misses = sum(int(part.shape[0]) for part in parts)
        if misses:
            self.add(xp.reshape(xp.concat(parts), (-1,)))
        return 100.0 * (int(possible.shape[0]) - misses) / int(ranked.shape[0])

    def add(self, pairs: Array) -> None:
        """Score pairs at every point, except known and true ones; count those that reach the truth."""
        problem, xp = self.problem, namespace(self.problem.a)
        y_count = problem.b.shape[0]
        pairs = xp.sort(xp.unique_values(pairs))  # which may be in any order
        pairs = pairs[problem.truth.pairing[pairs % y_count] != pairs // y_count]
        if self.pairs.shape[0]:
            places = xp.clip(xp.searchsorted(self.pairs, pairs), max=self.pairs.shape[0] - 1)
            pairs = pairs[self.pairs[places] != pairs]
        if not pairs.shape[0]:
            return
        self.pairs = xp.sort(xp.concat([self.pairs, pairs]))

        def beat(block: _PairTile) -> tuple[Array, Array]:
            numerators = _pair_numerators(problem, self.mapped, self.w_y, block)
            x_rows, y_rows = block.x_rows, block.y_rows
            scores = rescale(problem, numerators, self.scales["search"][x_rows, :][:, None, :])
            search = (scores >= self.floors["search"][y_rows, :]) & block.valid[:, :, None]
            scores = rescale(problem, numerators, self.scales["annotate"][y_rows, :])
            annotate = (scores >= self.floors["annotate"][x_rows, :][:, None, :]) & block.valid[:, :, None]
            counts = xp.astype(count_true(annotate, axis=1), xp.int32)
            return xp.reshape(search, (-1, search.shape[2])), counts

        for start in range(0, pairs.shape[0], MARKED_PAIRS):
            part = pairs[start : start + MARKED_PAIRS]
            blocks = _blocks(problem, self.w_y, self.mapped, part // y_count, part % y_count)
            results = map_parallel(beat, blocks, problem.a)
            for block, (_, annotate) in zip(blocks, results, strict=True):
                self.others["annotate"][block.x_rows, :] += annotate
            y_rows = xp.concat([xp.reshape(block.y_rows, (-1,)) for block in blocks])
            search = xp.concat([search for search, _ in results])
            add_group_counts(self.others["search"], search, y_rows)


def screen_bytes(problem: Problem, w_x: Weights, w_y: Weights) -> int:
    """Return the memory that screening takes in addition to the problem."""
    points = w_x.rows.shape[0] * w_y.rows.shape[0]
    x_rows, y_rows = problem.a.shape[0], problem.b.shape[0]
    rivals = (x_rows + y_rows) * RIVALS * ANCHORS_PER_SIDE**2 // 3
    mapped = w_x.rows.shape[0] * x_rows * problem.b.shape[1]
    return int(problem.b.dtype.itemsize * (mapped + 10 * points * (y_rows + x_rows)) + 2 * points * rivals)


def screen(
    problem: Problem, w_x: Weights, w_y: Weights, cutoff: int, progress: Progress = lambda share: None
) -> Screen:
    """Return upper bounds on recall at ``cutoff`` over the grid."""
    xp = namespace(problem.a)
    norms, lengths = annotate_norms(problem, w_x, w_y), y_lengths(problem, w_y)
    progress(0.4)
    mapped, x_norms = _map_x(problem, w_x, w_y)
    progress(0.5)
    n_x, n_y = norms.shape[0], norms.shape[1]
    true_scores = _true_numerators(problem, mapped, w_y)

    def table(rows: Array, dtype: Any = problem.b.dtype) -> Array:
        return xp.zeros((rows.shape[0], n_y, n_x), dtype=dtype, device=device(rows))

    scales: dict[Task, Array] = {"search": table(problem.a), "annotate": table(problem.b)}
    floors: dict[Task, Array] = {"search": table(problem.b), "annotate": table(problem.a)}
    margins: dict[Task, Array] = {"search": table(problem.b), "annotate": table(problem.a)}
    others: dict[Task, Array] = {"search": table(problem.b, xp.int32), "annotate": table(problem.a, xp.int32)}
    finite = xp.zeros((n_y, n_x), dtype=xp.bool, device=device(problem.a))
    for i in range(n_x):
        truths = score_truths(problem, x_norms[:, i, :], norms[i, :, :], lengths, true_scores[:, i, :])
        finite[:, i] = truths.finite
        scales["search"][:, :, i] = truths.search_scale.T
        scales["annotate"][:, :, i] = truths.annotate_scale.T
        # Half of the slack: these scores are summed in another order than the exact ones, and a rival that
        # counts here must count there.
        margins["search"][:, :, i] = truths.search_slack.T / 2
        margins["annotate"][:, :, i] = truths.annotate_slack.T / 2
        floors["search"][:, :, i] = (truths.search_truth - truths.search_slack / 2).T
        floors["annotate"][:, :, i] = (truths.annotate_truth - truths.annotate_slack / 2).T
    for tables in (scales, floors, margins, others):
        for task in TASKS:
            tables[task] = xp.reshape(tables[task], (-1, n_y * n_x))
    empty = xp.zeros((0,), dtype=problem.truth.pairing.dtype, device=device(problem.a))
    del norms, true_scores, x_norms
    finite = xp.reshape(finite, (-1,))
    result = Screen(problem, w_y, cutoff, mapped, finite, scales, floors, margins, others, empty)
    progress(0.55)
    rivals = _anchor_rivals(result, _anchors(w_x))
    progress(0.75)
    result.add(rivals)
    progress(0.95)
    return result


def _select(weights: Weights, values: list[int], problem: Problem) -> Weights:
    return Weights.of(to_numpy(weights.rows)[values].astype(np.float64), problem.a)


def _transpose(values: Array) -> Array:
    """Return the transpose with rows that are contiguous in memory, which are read fast."""
    xp = namespace(values)
    return xp.reshape(xp.reshape(values.T, (-1,)), (values.shape[1], values.shape[0]))


def _map_x(problem: Problem, w_x: Weights, w_y: Weights) -> tuple[Array, Array]:
    """Return the mapped images, and ‖ΣUᵀx‖²: y values × x values × images."""
    xp = namespace(problem.a)
    n, n_x, n_y, width = problem.a.shape[0], w_x.rows.shape[0], w_y.rows.shape[0], problem.t0.shape[1]
    mapped = xp.empty((n, n_x, width), dtype=problem.a.dtype, device=device(problem.a))
    norms = xp.empty((n_y, n_x, n), dtype=problem.a.dtype, device=device(problem.a))
    rows = max(1, _tile_bytes(problem) // (width * problem.a.dtype.itemsize))

    def fill(start: int) -> None:
        part = slice(start, start + rows)
        for i, product in products(problem.a[part, :], w_x, problem.t0):
            mapped[part, i, :] = product
            norms[:, i, part] = w_y.rows @ (product * product).T

    map_parallel(fill, list(range(0, n, rows)), problem.a)
    return mapped, norms


def _tile_bytes(problem: Problem) -> int:
    return CPU_TILE_BYTES if is_numpy_array(problem.a) else DEVICE_TILE_BYTES


def _is_nested(weights: Weights) -> bool:
    """Return whether pairs are scored step by step. Other backends gain more from one large product."""
    return is_numpy_array(weights.rows) and not all(step.fresh for step in weights.steps)


@dataclass(frozen=True, eq=False)
class _PairTile:
    """Some images, and the captions of their pairs, with repeated ones up to the same number for each."""

    x_rows: Array
    y_rows: Array  # images × pairs
    valid: Array  # images × pairs: False for the repeated ones


def _blocks(problem: Problem, w_y: Weights, mapped: Array, x_rows: Array, y_rows: Array) -> list[_PairTile]:
    """Return pairs, sorted by image, in blocks of images that have about as many pairs each."""
    xp = namespace(x_rows)
    counts = count_groups(x_rows, problem.a.shape[0])
    starts = xp.cumulative_sum(counts) - counts
    order = xp.argsort(-counts, stable=True)
    sizes = to_numpy(counts[order])
    n_x, n_y, width = int(mapped.shape[1]), int(w_y.rows.shape[0]), int(problem.b.shape[1])
    blocks, first, last = [], 0, int(np.count_nonzero(sizes))
    while first < last:
        most = int(sizes[first])
        weighted = most if _is_nested(w_y) else min(most, n_x) * n_y
        one = problem.b.dtype.itemsize * ((weighted + most) * width + 4 * most * n_x * n_y)
        # Each block has several steps, so on a device its tile is larger than that of one product.
        chosen = order[first : min(last, first + max(1, 2 * _tile_bytes(problem) // one))]
        first += int(chosen.shape[0])
        place = xp.arange(most, device=device(x_rows))[None, :]
        valid = place < counts[chosen][:, None]
        pairs = xp.where(valid, place, 0) + starts[chosen][:, None]
        blocks.append(_PairTile(chosen, y_rows[pairs], valid))
    return blocks


def _pair_numerators(problem: Problem, mapped: Array, w_y: Weights, block: _PairTile) -> Array:
    """Return the numerators of the pairs of a block: images × pairs × points."""
    xp = namespace(problem.a)
    rows, y_rows = mapped[block.x_rows, :, :], problem.b[block.y_rows, :]
    shape = (*block.y_rows.shape, w_y.rows.shape[0], mapped.shape[1])
    if not _is_nested(w_y) and shape[1] < shape[3]:
        # One large product is faster than one for each y value; the smaller side is weighted.
        queries = xp.reshape(y_rows[:, :, None, :] * w_y.rows, (shape[0], shape[1] * shape[2], -1))
        return xp.reshape(queries @ xp.permute_dims(rows, (0, 2, 1)), (shape[0], shape[1], -1))
    if not _is_nested(w_y):
        items = xp.reshape(w_y.rows[:, None, :] * rows[:, None, :, :], (shape[0], shape[2] * shape[3], -1))
        return y_rows @ xp.permute_dims(items, (0, 2, 1))
    numerators = xp.empty(shape, dtype=problem.b.dtype, device=device(problem.b))
    for j, numerator in products(y_rows, w_y, xp.permute_dims(rows, (0, 2, 1))):
        numerators[:, :, j, :] = numerator
    return xp.reshape(numerators, (shape[0], shape[1], -1))


def _true_numerators(problem: Problem, mapped: Array, w_y: Weights) -> Array:
    """Return the numerator of every caption with its own image: y values × x values × captions."""
    xp = namespace(problem.a)
    y_rows = xp.argsort(problem.truth.pairing, stable=True)
    blocks = _blocks(problem, w_y, mapped, problem.truth.pairing[y_rows], y_rows)
    parts = map_parallel(partial(_pair_numerators, problem, mapped, w_y), blocks, problem.a)
    numerators = xp.empty(
        (problem.b.shape[0], parts[0].shape[2]), dtype=problem.b.dtype, device=device(problem.b)
    )
    for block, part in zip(blocks, parts, strict=True):
        # Repeated pairs are written more than once, with the same value.
        numerators[xp.reshape(block.y_rows, (-1,)), :] = xp.reshape(part, (-1, part.shape[2]))
    return xp.permute_dims(xp.reshape(numerators, (numerators.shape[0], -1, mapped.shape[1])), (1, 2, 0))


def _anchors(weights: Weights) -> list[int]:
    """Return grid values, evenly spaced in the logarithm of their weight; of few values, the middle."""
    if weights.rows.shape[0] < 2 * ANCHORS_PER_SIDE:
        return [weights.rows.shape[0] // 2]
    total = np.log(to_numpy(weights.rows).astype(np.float64).sum(axis=1))
    targets = np.linspace(total[0], total[-1], 2 * ANCHORS_PER_SIDE + 1)[1::2]
    return sorted({int(np.argmin(np.abs(total - target))) for target in targets})


def _anchor_rivals(screen: Screen, x_values: list[int]) -> Array:
    """Return the pairs of each query of both tasks with its strongest rivals at the anchors."""
    problem, xp = screen.problem, namespace(screen.problem.a)
    x_count, y_count = problem.a.shape[0], problem.b.shape[0]
    y_values = _anchors(screen.w_y)
    weights = _select(screen.w_y, y_values, problem)
    keep = RIVALS + screen.cutoff - 1
    width = max(1, _tile_bytes(problem) // (x_count * problem.b.dtype.itemsize))
    tiles = [(start, min(start + width, y_count)) for start in range(0, y_count, width)]
    codes = []
    for i in x_values:
        points = [j * int(screen.mapped.shape[1]) + i for j in y_values]
        find = partial(_tile_rivals, screen, screen.mapped[:, i, :], weights, points, keep)
        parts = map_parallel(find, tiles, problem.a)
        codes += [searched for searched, _, _ in parts]
        scores = xp.concat([best for _, best, _ in parts], axis=2)
        places = xp.concat([which for _, _, which in parts], axis=2)
        for j in range(len(points)):
            chosen = xp.take_along_axis(places[j, :, :], _largest(scores[j, :, :], keep), axis=1)
            x_rows = xp.arange(x_count, device=device(chosen))[:, None]
            codes.append(xp.reshape(x_rows * y_count + chosen, (-1,)))
    return xp.concat(codes)


def _tile_rivals(
    screen: Screen, mapped: Array, weights: Weights, points: list[int], keep: int, bounds: tuple[int, int]
) -> tuple[Array, Array, Array]:
    problem, xp = screen.problem, namespace(screen.problem.a)
    start, stop = bounds
    y_count = problem.b.shape[0]
    owners = problem.truth.pairing[start:stop]
    lines = xp.arange(stop - start, device=device(owners))
    codes, best, which = [], [], []
    for j, numerator in products(problem.b[start:stop, :], weights, mapped.T):
        numerator[lines, owners] = -xp.inf
        scores = rescale(problem, numerator, screen.scales["search"][None, :, points[j]])
        codes.append(xp.reshape(_largest(scores, keep) * y_count + (start + lines)[:, None], (-1,)))
        scores = rescale(problem, numerator, screen.scales["annotate"][start:stop, points[j], None])
        scores = _transpose(scores)
        top = _largest(scores, keep)
        best.append(xp.take_along_axis(scores, top, axis=1))
        which.append(top + start)
    return xp.concat(codes), xp.stack(best), xp.stack(which)


def _largest(scores: Array, keep: int, groups: int = 16) -> Array:
    """Return the columns of the ``keep`` largest entries of each row, in no order.

    They lie in the groups with the largest maxima, so only those few groups are partitioned.
    """
    xp = namespace(scores)
    rows, n = scores.shape
    columns = xp.arange(n, device=device(scores))
    if n <= keep:
        return xp.broadcast_to(columns, (rows, n))
    stride = n // groups
    if stride <= 2 * keep:
        return largest_columns(scores, keep)
    maxima = xp.max(xp.reshape(scores[:, : stride * groups], (rows, groups, stride)), axis=1)
    best = largest_columns(maxima, keep)
    places = xp.reshape(
        best[:, None, :] + columns[: stride * groups : stride][:, None], (rows, keep * groups)
    )
    remainder = xp.broadcast_to(columns[stride * groups :], (rows, n - stride * groups))
    places = xp.concat([places, remainder], axis=1)
    top = largest_columns(xp.take_along_axis(scores, places, axis=1), keep)
    return xp.take_along_axis(places, top, axis=1)
