"""Recall at k over a whole grid from a few rivals per query, and exact where it matters.

The images that can beat the truth of a sentence are much the same all over the grid. So the numerator is
made whole only at a few *anchor* points, where the strongest rivals of every query are noted; those pairs
alone are then scored at every grid point. A rival that reaches the truth proves that the rank is larger,
so what comes out is an upper bound on recall, everywhere, and almost always recall itself. Points are then
verified in the order of their bounds, with every item counted, until no bound is left that reaches the
best verified value: what is selected is what the exact path selects.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from diptych.cca.selection.exact import Row, count_others, make_row, rescale
from diptych.cca.selection.parallel import in_parallel
from diptych.cca.selection.problem import Problem, Weights, annotate_norms, products
from diptych.checks import TASKS, Task

Floats: TypeAlias = np.ndarray[Any, Any]
Progress: TypeAlias = Callable[[float], None]

ANCHORS_PER_SIDE = 3
RIVALS = 5
TILE_BYTES = 2**22


@dataclass(frozen=True, eq=False)
class Screen:
    """Upper bounds on recall at every grid point, and the means to know it exactly at any."""

    problem: Problem
    w_y: Weights
    mapped: list[Floats]
    norms: Floats
    bounds: dict[Task, Floats]

    def exact(self, i: int, j: int) -> dict[Task, Floats]:
        """Exact ranks of both tasks at one grid point."""
        alone = Weights.of(np.asarray(self.w_y.rows[j : j + 1, :], dtype=np.float64), self.problem.a)
        row = make_row(self.problem, self.mapped[i], self.norms[i, j : j + 1, :], alone)
        search, annotate = count_others(self.problem, row, alone)
        return {"search": 1 + search[0], "annotate": 1 + annotate[0, self.problem.truth.described]}


def screen_bytes(problem: Problem, w_x: Weights, w_y: Weights) -> int:
    """Memory that screening takes beside the problem itself."""
    n_x, n_y = w_x.rows.shape[0], w_y.rows.shape[0]
    images, captions = problem.a.shape[0], problem.b.shape[0]
    rivals = (images + captions) * RIVALS * ANCHORS_PER_SIDE**2 // 3 + captions
    per_row = images * problem.b.shape[1]
    return int(problem.b.dtype.itemsize * (n_x * per_row + n_x * n_y * (2 * rivals + captions)))


def screen(
    problem: Problem, w_x: Weights, w_y: Weights, cutoff: int, progress: Progress = lambda share: None
) -> Screen:
    """Bound recall at ``cutoff`` over the grid."""
    norms = annotate_norms(problem, w_x, w_y)
    progress(0.35)
    mapped = [product for _, product in products(problem.a, w_x, problem.t0)]
    progress(0.45)
    images, captions = _candidates(problem, mapped, norms, w_y, cutoff)
    progress(0.75)
    numerators = _pair_numerators(problem, mapped, w_y, images, captions)
    progress(0.95)
    bounds = _bounds(problem, mapped, norms, w_y, numerators, images, captions, cutoff)
    return Screen(problem, w_y, mapped, norms, bounds)


def _anchors(points: int) -> list[int]:
    return sorted({round(i) for i in np.linspace(0, points - 1, min(points, ANCHORS_PER_SIDE))})


def _candidates(
    problem: Problem, mapped: list[Floats], norms: Floats, w_y: Weights, cutoff: int
) -> tuple[Floats, Floats]:
    """Pairs (image, caption) to score everywhere: every caption with its own image, and rivals."""
    n_images, n_captions = problem.a.shape[0], problem.b.shape[0]
    columns = _anchors(w_y.rows.shape[0])
    anchors = Weights.of(np.asarray(w_y.rows[columns, :], dtype=np.float64), problem.a)
    keep = RIVALS + cutoff - 1
    width = max(1, TILE_BYTES // (n_images * problem.b.dtype.itemsize))
    tiles = [(start, min(start + width, n_captions)) for start in range(0, n_captions, width)]
    codes = [problem.truth.pairing * n_captions + np.arange(n_captions)]
    for i in _anchors(len(mapped)):
        row = make_row(problem, mapped[i], norms[i, columns, :], anchors)
        parts = in_parallel(partial(_tile_rivals, problem, row, anchors, keep), tiles, problem.a)
        codes += [searched for searched, _, _ in parts]
        best = np.concatenate([scores for _, scores, _ in parts], axis=2)
        which = np.concatenate([places for _, _, places in parts], axis=2)
        top = _largest(best, keep)
        chosen = np.take_along_axis(which, top, axis=2)
        codes.append((np.arange(n_images)[None, :, None] * n_captions + chosen).reshape(-1))
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


def _largest(scores: Floats, keep: int) -> Floats:
    """Places of the ``keep`` largest along the last axis, in no order."""
    n = scores.shape[-1]
    if n <= keep:
        return np.broadcast_to(np.arange(n), scores.shape)
    return np.argpartition(scores, n - keep, axis=-1)[..., n - keep :]


def _pair_numerators(
    problem: Problem, mapped: list[Floats], w_y: Weights, images: Floats, captions: Floats
) -> Floats:
    """Numerators of the pairs (sorted by image) at every grid point: x values × y values × pairs."""
    found = np.empty((len(mapped), w_y.rows.shape[0], len(images)), dtype=problem.b.dtype)
    bounds = np.searchsorted(images, np.arange(problem.a.shape[0] + 1))

    nested = not all(step.fresh for step in w_y.steps)

    def of_image(image: int) -> None:
        pairs = slice(bounds[image], bounds[image + 1])
        rows = np.stack([product[image] for product in mapped])
        columns = problem.b[captions[pairs], :].T
        if nested:
            for j, numerator in products(rows, w_y, columns):
                found[:, j, pairs] = numerator
        else:
            # One large product is faster than one per y value.
            weighted = (rows[:, None, :] * w_y.rows).reshape(-1, rows.shape[1])
            found[:, :, pairs] = (weighted @ columns).reshape(len(rows), -1, columns.shape[1])

    in_parallel(of_image, list(range(problem.a.shape[0])), problem.a)
    return found


def _bounds(
    problem: Problem,
    mapped: list[Floats],
    norms: Floats,
    w_y: Weights,
    numerators: Floats,
    images: Floats,
    captions: Floats,
    cutoff: int,
) -> dict[Task, Floats]:
    truth = problem.truth
    own = truth.pairing[captions] == images
    by_caption = np.argsort(captions, kind="stable")
    own_of_caption = by_caption[own[by_caption]]
    described = truth.described
    found: dict[Task, Floats] = {task: np.empty(numerators.shape[:2]) for task in TASKS}

    def of_row(i: int) -> None:
        row = make_row(problem, mapped[i], norms[i, :, :], w_y, numerators[i][:, own_of_caption])
        scores = rescale(problem, numerators[i], row.search_scale[:, images])
        reached = (scores >= _raised(row.search_truth)[:, captions]) & ~own
        ranks = _count_by(reached[:, by_caption], captions[by_caption], problem.b.shape[0])
        found["search"][i] = 100.0 * (ranks < cutoff).mean(axis=1)
        scores = rescale(problem, numerators[i], row.annotate_scale[:, captions])
        reached = (scores >= _raised(row.annotate_truth)[:, images]) & ~own
        ranks = _count_by(reached, images, problem.a.shape[0])[:, described]
        found["annotate"][i] = 100.0 * (ranks < cutoff).mean(axis=1)

    in_parallel(of_row, list(range(len(mapped))), problem.a)
    return found


def _raised(truth: Floats) -> Floats:
    # A rival proves something only if it reaches the truth by more than rounding error.
    slack: float = 64 * float(np.finfo(truth.dtype).eps)
    return np.asarray(truth + slack * np.abs(truth))


def _count_by(reached: Floats, groups: Floats, n_groups: int) -> Floats:
    """Count true entries (values × pairs) within each group; ``groups`` ascends."""
    counts = np.zeros((reached.shape[0], n_groups), dtype=np.int32)
    present, starts = np.unique(groups, return_index=True)
    counts[:, present] = np.add.reduceat(reached, starts, axis=1, dtype=np.int32)
    return counts
