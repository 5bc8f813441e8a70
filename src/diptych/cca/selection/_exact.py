"""The exact path: ranks of every validation query at every grid point, without one SVD.

Any metric, any backend. The truth's own scores come first, for a whole row of the grid at once; then
blocks of the numerator are made, what belongs to the truth is taken out, and the others that reach it
are counted, for both tasks from the same block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from array_api_compat import device, is_numpy_array

from diptych._arrays import Array, count_true, group_max, namespace
from diptych._threads import map_parallel
from diptych.cca.selection._problem import Problem, Weights, annotate_norms, products
from diptych.ranking import tie_slack

CPU_TILE_BYTES = 2**19
DEVICE_TILE_BYTES = 2**29


@dataclass(frozen=True, eq=False)
class Row:
    """One x value of the grid: what both tasks compare against, for every y value."""

    mapped: Array  # images mapped into the eigenbasis of the captions
    search_scale: Array  # y values × images
    annotate_scale: Array  # y values × captions
    search_truth: Array  # y values × captions: the truth's score
    search_slack: Array  # y values × captions: how far below it a score still ties with it
    annotate_truth: Array  # y values × images; +∞ for an image without captions
    annotate_slack: Array  # y values × images
    finite: Array  # y values: whether all of it is finite


def exact_rows(
    problem: Problem, w_x: Weights, w_y: Weights, norms: Array | None = None
) -> Iterator[tuple[int, Array, Array, Array]]:
    """``(x index, search ranks, annotate ranks, finite)`` for each x value.

    Ranks are y values × queries; ``finite`` says for which y values the arithmetic held.
    """
    xp = namespace(problem.a)
    norms = annotate_norms(problem, w_x, w_y) if norms is None else norms
    lengths = caption_lengths(problem, w_y)
    for i, mapped in products(problem.a, w_x, problem.t0):
        row = make_row(problem, mapped, norms[i, :, :], w_y, lengths)
        search, annotate = count_others(problem, row, w_y)
        yield i, 1 + search, 1 + xp.take(annotate, problem.truth.described, axis=1), row.finite


def make_row(
    problem: Problem, mapped: Array, norms: Array, w_y: Weights, lengths: Array, own: Array | None = None
) -> Row:
    """The truth's scores and both tasks' scales, for one x value and every y value.

    ``lengths`` are the ``caption_lengths``; ``own`` the ``own_scores``, where they are known already.
    """
    xp = namespace(problem.a)
    pairing = problem.truth.pairing
    dimension = sum(int(size) for size in problem.t0.shape)
    own = own_scores(problem, mapped, w_y) if own is None else own
    image_norms = w_y.rows @ (mapped * mapped).T
    if problem.similarity == "cosine":
        search_scale, annotate_scale = _inverse_root(image_norms), _inverse_root(norms)
        search_truth = own * xp.take(search_scale, pairing, axis=1)
        own_annotate = own * annotate_scale
    else:
        search_scale, annotate_scale = 0.5 * image_norms, 0.5 * norms
        search_truth = own - xp.take(search_scale, pairing, axis=1)
        own_annotate = own - annotate_scale
    own_lengths = xp.sqrt(xp.take(image_norms, pairing, axis=1))
    search_slack = tie_slack(lengths, own_lengths, dimension, problem.similarity)
    # The same numerator, hence the same rounding, over another length.
    roots = xp.sqrt(norms)
    queries = own_lengths * lengths / xp.where(roots > 0, roots, xp.ones_like(roots))
    annotate_slack = tie_slack(queries, roots, dimension, problem.similarity)
    best, slack = (_best(problem, values) for values in (own_annotate, annotate_slack))
    # By Cauchy-Schwarz finite norms bound every score.
    finite = xp.isfinite(xp.sum(own, axis=1) + xp.sum(image_norms, axis=1) + xp.sum(norms, axis=1))
    undescribed = best == -xp.inf
    best, slack = xp.where(undescribed, xp.inf, best), xp.where(undescribed, 0.0, slack)
    return Row(mapped, search_scale, annotate_scale, search_truth, search_slack, best, slack, finite)


def _best(problem: Problem, values: Array) -> Array:
    """The largest value among each image's captions: y values × images."""
    xp = namespace(values)
    truth = problem.truth
    return xp.stack([group_max(values[j, :], truth.pairing, truth.n_images) for j in range(values.shape[0])])


def caption_lengths(problem: Problem, w_y: Weights) -> Array:
    """Lengths of the captions as queries, ‖Vᵀy‖: y values × captions."""
    xp = namespace(problem.b)
    # Squares of extreme values would be infinite where the values are not.
    largest = xp.max(xp.abs(problem.b), axis=1)
    largest = xp.where(largest > 0, largest, xp.ones_like(largest))
    unit = problem.b / largest[:, None]
    return xp.sqrt(w_y.rows @ (unit * unit).T) * largest


def own_scores(problem: Problem, mapped: Array, w_y: Weights, rows: int = 4096) -> Array:
    """The numerator of every caption with its own image: y values × captions."""
    xp = namespace(problem.a)
    parts = []
    for start in range(0, problem.b.shape[0], rows):
        images = xp.take(mapped, problem.truth.pairing[start : start + rows], axis=0)
        parts.append(w_y.rows @ (images * problem.b[start : start + rows, :]).T)
    return xp.concat(parts, axis=1)


def count_others(problem: Problem, row: Row, w_y: Weights) -> tuple[Array, Array]:
    """How many others reach the truth: y values × captions, and y values × images."""
    xp = namespace(problem.a)
    n_images, n_captions = problem.a.shape[0], problem.b.shape[0]
    n_y = w_y.rows.shape[0]
    search_floor = row.search_truth - row.search_slack
    annotate_floor = row.annotate_truth - row.annotate_slack

    def tile(start: int, stop: int) -> tuple[Array, Array]:
        own = problem.truth.pairing[start:stop]
        lines = xp.arange(stop - start, device=device(own))
        searched, annotated = [], []
        for j, numerator in products(problem.b[start:stop, :], w_y, row.mapped.T):
            # Nested products build on this one: minus infinity stays minus infinity.
            numerator[lines, own] = -xp.inf
            scores = rescale(problem, numerator, row.search_scale[j, None, :])
            searched.append(count_true(scores >= search_floor[j, start:stop, None], axis=1))
            scores = rescale(problem, numerator, row.annotate_scale[j, start:stop, None])
            annotated.append(count_true(scores >= annotate_floor[j, None, :], axis=0))
        return xp.stack(searched), xp.stack(annotated)

    size = CPU_TILE_BYTES if is_numpy_array(problem.a) else DEVICE_TILE_BYTES
    width = max(1, size // (n_images * problem.b.dtype.itemsize))
    tiles = [(start, min(start + width, n_captions)) for start in range(0, n_captions, width)]
    found = map_parallel(lambda bounds: tile(*bounds), tiles, problem.a)
    annotate = xp.zeros((n_y, n_images), dtype=found[0][1].dtype, device=device(problem.a))
    for _, part in found:
        annotate = annotate + part
    return xp.concat([part for part, _ in found], axis=1), annotate


def rescale(problem: Problem, numerator: Array, scale: Array) -> Array:
    """Scores from a numerator: cosine but for the query's own norm, or ℓ2 but for a constant per query."""
    return numerator * scale if problem.similarity == "cosine" else numerator - scale


def _inverse_root(squares: Array) -> Array:
    xp = namespace(squares)
    return xp.where(squares > 0, 1.0 / xp.sqrt(xp.where(squares > 0, squares, 1.0)), 1.0)
