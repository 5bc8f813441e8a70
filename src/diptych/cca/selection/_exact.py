"""The exact route: ranks of every validation query at every grid point, without an SVD (see ``_problem``).

For any metric and backend. The scores of the true items are computed first, for a whole row of the grid at
once. Then the numerator is computed tile by tile, the true pairs are taken out, and the other items that
score at least as high are counted, for both tasks from the same tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from array_api_compat import device, is_numpy_array

from diptych._arrays import Array, count_true, group_max, namespace
from diptych._threads import map_parallel
from diptych.cca.selection._problem import Problem, Weights, annotate_norms, products
from diptych.ranking._ranks import tie_slack

CPU_TILE_BYTES = 2**19
DEVICE_TILE_BYTES = 2**29


@dataclass(frozen=True, eq=False)
class Truths:
    """The scales of the items and the scores of the true ones, for both tasks and some points of the grid."""

    search_scale: Array  # points × images
    annotate_scale: Array  # points × captions
    search_truth: Array  # points × captions: the score of the true image
    search_slack: Array  # points × captions: its ``tie_slack``
    annotate_truth: Array  # points × images; +∞ for an image without captions
    annotate_slack: Array  # points × images
    finite: Array  # points: whether all scores are finite


def exact_rows(
    problem: Problem, w_x: Weights, w_y: Weights, norms: Array | None = None
) -> Iterator[tuple[int, Array, Array, Array]]:
    """Yield ``(x index, search ranks, annotate ranks, finite)`` of each x value of the grid.

    Ranks are y values × queries; ``finite`` is False for the y values whose scores are not finite.
    """
    xp = namespace(problem.a)
    norms = annotate_norms(problem, w_x, w_y) if norms is None else norms
    lengths = y_lengths(problem, w_y)
    for i, mapped in products(problem.a, w_x, problem.t0):
        x_norms, true_scores = w_y.rows @ (mapped * mapped).T, score_truth(problem, mapped, w_y)
        truths = score_truths(problem, x_norms, norms[i, :, :], lengths, true_scores)
        search, annotate = count_others(problem, mapped, w_y, truths)
        yield i, 1 + search, 1 + xp.take(annotate, problem.truth.described, axis=1), truths.finite


def score_truths(
    problem: Problem, x_norms: Array, norms: Array, lengths: Array, true_scores: Array
) -> Truths:
    """Return the ``Truths`` of some points.

    ``x_norms`` are ‖ΣUᵀx‖² (points × images); ``norms``, ‖ΣVᵀy‖², ``lengths``, ‖Vᵀy‖, and ``true_scores``,
    the numerators with the true images, are points × captions.
    """
    xp = namespace(problem.a)
    pairing = problem.truth.pairing
    dimension = sum(int(size) for size in problem.t0.shape)
    if problem.similarity == "cosine":
        search_scale, annotate_scale = _inverse_root(x_norms), _inverse_root(norms)
        search_truth = true_scores * xp.take(search_scale, pairing, axis=1)
        annotate_true = true_scores * annotate_scale
    else:
        search_scale, annotate_scale = 0.5 * x_norms, 0.5 * norms
        search_truth = true_scores - xp.take(search_scale, pairing, axis=1)
        annotate_true = true_scores - annotate_scale
    true_lengths = xp.sqrt(xp.take(x_norms, pairing, axis=1))
    search_slack = tie_slack(lengths, true_lengths, dimension, problem.similarity)
    # The same numerator, and so the same rounding error, divided by another length.
    roots = xp.sqrt(norms)
    queries = true_lengths * lengths / xp.where(roots > 0, roots, xp.ones_like(roots))
    annotate_slack = tie_slack(queries, roots, dimension, problem.similarity)
    best, slack = (_max_by_x(problem, values) for values in (annotate_true, annotate_slack))
    # By Cauchy-Schwarz every score is finite if the norms are.
    finite = xp.isfinite(xp.sum(true_scores, axis=1) + xp.sum(x_norms, axis=1) + xp.sum(norms, axis=1))
    undescribed = best == -xp.inf
    best, slack = xp.where(undescribed, xp.inf, best), xp.where(undescribed, 0.0, slack)
    return Truths(search_scale, annotate_scale, search_truth, search_slack, best, slack, finite)


def _max_by_x(problem: Problem, values: Array) -> Array:
    """Return the largest value among the captions of each image: points × images."""
    return group_max(values.T, problem.truth.pairing, problem.truth.x_count).T


def y_lengths(problem: Problem, w_y: Weights) -> Array:
    """Return the lengths of the captions as queries, ‖Vᵀy‖: y values × captions."""
    xp = namespace(problem.b)
    rows = 256 if is_numpy_array(problem.b) else 4096

    def measure(start: int) -> Array:
        y_rows = problem.b[start : start + rows, :]
        # Dividing by the largest entry first keeps the squares of extreme values finite.
        largest = xp.max(xp.abs(y_rows), axis=1)
        largest = xp.where(largest > 0, largest, xp.ones_like(largest))
        unit = y_rows / largest[:, None]
        return xp.sqrt(w_y.rows @ (unit * unit).T) * largest

    return xp.concat(map_parallel(measure, list(range(0, problem.b.shape[0], rows)), problem.b), axis=1)


def score_truth(problem: Problem, mapped: Array, w_y: Weights, rows: int = 4096) -> Array:
    """Return the numerator of every caption with its own image: y values × captions."""
    xp = namespace(problem.a)
    parts = []
    for start in range(0, problem.b.shape[0], rows):
        x_rows = xp.take(mapped, problem.truth.pairing[start : start + rows], axis=0)
        parts.append(w_y.rows @ (x_rows * problem.b[start : start + rows, :]).T)
    return xp.concat(parts, axis=1)


def count_others(problem: Problem, mapped: Array, w_y: Weights, truths: Truths) -> tuple[Array, Array]:
    """Count the other items that score at least as high as the truth, for all y values of one x value.

    ``mapped`` are the images in the eigenbasis of the captions. Returns y values × captions for search and
    y values × images for annotate.
    """
    xp = namespace(problem.a)
    x_count, y_count = problem.a.shape[0], problem.b.shape[0]
    n_y = w_y.rows.shape[0]
    search_floor = truths.search_truth - truths.search_slack
    annotate_floor = truths.annotate_truth - truths.annotate_slack

    def tile(start: int, stop: int) -> tuple[Array, Array]:
        owners = problem.truth.pairing[start:stop]
        lines = xp.arange(stop - start, device=device(owners))
        searched, annotated = [], []
        for j, numerator in products(problem.b[start:stop, :], w_y, mapped.T):
            # The true pairs are taken out. Nested products add to this array: −∞ stays −∞.
            numerator[lines, owners] = -xp.inf
            scores = rescale(problem, numerator, truths.search_scale[j, None, :])
            searched.append(count_true(scores >= search_floor[j, start:stop, None], axis=1))
            scores = rescale(problem, numerator, truths.annotate_scale[j, start:stop, None])
            annotated.append(count_true(scores >= annotate_floor[j, None, :], axis=0))
        return xp.stack(searched), xp.stack(annotated)

    size = CPU_TILE_BYTES if is_numpy_array(problem.a) else DEVICE_TILE_BYTES
    width = max(1, size // (x_count * problem.b.dtype.itemsize))
    tiles = [(start, min(start + width, y_count)) for start in range(0, y_count, width)]
    counts = map_parallel(lambda bounds: tile(*bounds), tiles, problem.a)
    annotate = xp.zeros((n_y, x_count), dtype=counts[0][1].dtype, device=device(problem.a))
    for _, part in counts:
        annotate = annotate + part
    return xp.concat([part for part, _ in counts], axis=1), annotate


def rescale(problem: Problem, numerator: Array, scale: Array) -> Array:
    """Return scores from a numerator: the cosine, or ℓ2, up to a constant of the query."""
    return numerator * scale if problem.similarity == "cosine" else numerator - scale


def _inverse_root(squares: Array) -> Array:
    xp = namespace(squares)
    return xp.where(squares > 0, 1.0 / xp.sqrt(xp.where(squares > 0, squares, 1.0)), 1.0)
