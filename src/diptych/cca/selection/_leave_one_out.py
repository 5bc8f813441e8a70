r"""Selection without a validation set: each image is mapped by the model without it, in closed form.

In the identity of ``_problem`` an item is mapped into the space of the query by ridge regression, and the
predictions of a ridge regression without some rows follow from those of the regression with them. With
:math:`w = 1/(\sigma^2+\gamma)`, an image i with :math:`c_i` captions of mean :math:`\bar y_i`, and N pairs,

.. math::
    \hat y_i^{(-i)} = \frac{\hat y_i - h_i \bar y_i}{1 - h_i}, \qquad
    h_i = c_i \Big(\sum_k w_k a_{ik}^2 + \tfrac1N\Big)

where 1/N is the share of the mean, which is fitted too. The captions g of an image are left out together:

.. math::
    \hat X_g^{(-g)} = X_g - (I - H_{gg})^{-1} (X_g - \hat X_g), \qquad
    H_{gg} = B_g W_y B_g^\top + \tfrac1N .

These maps are exactly those of the refitted models. Rivals are mapped without their own image, but their maps
still contain the image of the query, which pulls them towards it; with many features that alone would make
strong regularisation look best. So the image of the query is removed from the maps of the rivals too, to
first order in the influence of the two images on each other: for an image i' and a query of image i,

.. math::
    \hat y_{i'}^{(-i'-i)} \approx \hat y_{i'}^{(-i')} - \frac{h_{i'i}}{1-h_{i'}}\,
    \frac{\bar y_i - \hat y_i}{1 - h_i} .

The whitening of the query is downdated by its own image, exactly: it multiplies the captions of an image by
:math:`(I - H_{gg})^{-1}`, and an image by a constant. The lengths of the items are those under the whitening
of all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from array_api_compat import device

from diptych._arrays import Array, count_groups, group_max, group_sum, move_like, namespace, to_numpy
from diptych._checks import InputError, Task
from diptych._threads import multiply
from diptych.cca._spectra import Spectra
from diptych.cca.selection._grids import Grid, select_rows
from diptych.cca.selection._problem import Problem, make_problem, make_weights
from diptych.ranking._ranks import annotate_ranks, search_ranks, tie_slack

SAMPLE = 500
"""Images that are left out in turn; as queries and items they cost about as much as validation pairs."""

_MIN_ROUNDINGS = 64  # 1 − h below so many roundings: the fit of a row depends on that row alone


@dataclass(frozen=True, eq=False)
class LeftOut:
    """A sample of the training images, to be left out in turn with their captions."""

    problem: Problem  # the sampled rows, as if they were validation rows
    spectra: Spectra  # of all training pairs
    description: str  # which images were sampled, in words


def left_out(
    spectra: Spectra,
    x: Array,
    y: Array,
    pairing: Array,
    *,
    random_state: int | None = 0,
    similarity: str = "cosine",
    sample: int = SAMPLE,
) -> LeftOut:
    """Return a seeded sample of the training images of ``spectra``, with all their captions."""
    described = np.unique(to_numpy(pairing))
    if len(described) < 3:
        raise InputError(
            f"{len(described)} items are too few to choose on by leaving one out; give params or more data."
        )
    chosen = np.random.default_rng(random_state).permutation(described)[:sample]
    mask = np.zeros(x.shape[0], dtype=bool)
    mask[chosen] = True
    part = select_rows(pairing, mask)
    rows = x[part.x, :], y[part.y, :], part.pairing
    description = (
        f"each of {len(chosen)} of {int(x.shape[0])} rows of X left out in turn with its rows of Y "
        f"(random_state={random_state}), from the maps and from the whitening of the query"
    )
    return LeftOut(make_problem(spectra, rows, similarity), spectra, description)


def leave_one_out_ranks(rows: LeftOut, grid: Grid) -> Iterator[tuple[int, int, dict[Task, Array]]]:
    """Yield ``(x index, y index, ranks)`` of every grid point; no ranks if an image cannot be left out."""
    problem, count = rows.problem, rows.spectra.count
    truth = problem.truth
    w_x, w_y = make_weights(problem, rows.spectra, grid)
    # The maps of the images are kept rather than those of the captions, because images are fewer.
    x_rows = [map_x(problem, w_x.rows[i, :], count) for i in range(grid.shape[0])]
    for j in range(grid.shape[1]):
        y_rows = map_y(problem, w_y.rows[j, :], count)
        for i, mapped in enumerate(x_rows):
            if mapped is None or y_rows is None:
                yield i, j, {}
                continue
            search = search_scores(problem, mapped, y_rows, w_y.rows[j, :])
            annotate = annotate_scores(problem, y_rows, w_x.rows[i, :])[truth.described, :]
            if not _is_finite(search) or not _is_finite(annotate):
                yield i, j, {}
                continue
            slack = _slacks(problem, mapped, y_rows, w_x.rows[i, :], w_y.rows[j, :])
            ranks: dict[Task, Array] = {
                "search": to_numpy(search_ranks(search, truth.pairing, slack["search"])),
                "annotate": to_numpy(annotate_ranks(annotate, truth, truth.described, slack["annotate"])),
            }
            yield i, j, ranks


@dataclass(frozen=True, eq=False)
class Mapped:
    """Rows mapped by the models without their own image, and the influence of other images on them."""

    rows: Array  # in the eigenbasis of the other view
    residuals: Array  # truth − rows
    influence: Array  # how much each row (down) depends on each sampled training row (across)


def map_x(problem: Problem, w_x: Array, count: int) -> Mapped | None:
    """Return images mapped to the captions' eigenbasis, each by the model without it; None if impossible."""
    xp = namespace(problem.a)
    counts = xp.astype(count_groups(problem.truth.pairing, problem.truth.x_count), problem.a.dtype)
    means = group_sum(problem.b, problem.truth.pairing, problem.truth.x_count) / counts[:, None]
    hat = (multiply(problem.a * w_x, problem.a.T) + 1.0 / count) * counts
    leverage = xp.linalg.diagonal(hat)[:, None]
    if float(xp.min(1.0 - leverage)) < _MIN_ROUNDINGS * float(xp.finfo(hat.dtype).eps):
        return None
    mapped = (multiply(problem.a * w_x, problem.t0) - leverage * means) / (1.0 - leverage)
    return Mapped(mapped, means - mapped, hat / (1.0 - leverage))


def map_y(problem: Problem, w_y: Array, count: int) -> Mapped | None:
    """Return captions mapped to the images' eigenbasis, without their image; None if impossible."""
    xp = namespace(problem.b)
    hat = multiply(problem.b * w_y, problem.b.T) + 1.0 / count
    truth = problem.a[problem.truth.pairing, :]
    residuals = truth - multiply(problem.b * w_y, problem.t0.T)
    influence = hat
    for at in _rows_by_size(problem):
        free = xp.eye(at.shape[1], dtype=hat.dtype, device=device(hat)) - hat[at[:, :, None], at[:, None, :]]
        if float(xp.min(xp.linalg.eigvalsh(free))) < _MIN_ROUNDINGS * float(xp.finfo(free.dtype).eps):
            return None
        flat = xp.reshape(at, (-1,))
        residuals[flat, :] = xp.reshape(xp.linalg.solve(free, residuals[at, :]), (flat.shape[0], -1))
        # In place: a block of the hat matrix is read before its own rows change.
        influence[flat, :] = xp.reshape(xp.linalg.solve(free, influence[at, :]), (flat.shape[0], -1))
    return Mapped(truth - residuals, residuals, influence)


def _rows_by_size(problem: Problem) -> Iterator[Array]:
    """Yield, for each number of captions per image, the captions of such images: images × captions."""
    pairing = to_numpy(problem.truth.pairing)
    order = np.argsort(pairing, kind="stable")
    sizes = np.bincount(pairing, minlength=problem.truth.x_count)
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):
        x_rows = np.flatnonzero(sizes == size)
        yield move_like(order[starts[x_rows][:, None] + np.arange(size)], problem.truth.pairing)


def search_scores(problem: Problem, x_rows: Mapped, y_rows: Mapped, w_y: Array) -> Array:
    """Return scores, captions × images, with images mapped without themselves and the query's image."""
    xp = namespace(problem.b)
    pairing = problem.truth.pairing
    queries = problem.b * w_y
    scores = multiply(queries, x_rows.rows.T)
    # The effect of the query's image on the rivals: one number per caption, times its influence on each
    # rival.
    effect = xp.sum(queries * x_rows.residuals[pairing, :], axis=1)
    correction = x_rows.influence.T[pairing, :] * effect[:, None]
    correction[xp.arange(pairing.shape[0], device=device(pairing)), pairing] = 0.0
    return _scale(problem, _without_own_pair(problem, y_rows, scores - correction), x_rows.rows, w_y)


def _without_own_pair(problem: Problem, y_rows: Mapped, rows: Array) -> Array:
    """Return ``rows``, one per caption, multiplied by the :math:`(I - H_{gg})^{-1}` of each image."""
    xp = namespace(rows)
    # (I − H)⁻¹ = I + (I − H)⁻¹H, and the latter is the influence of the captions.
    mixed = rows + 0.0
    for at in _rows_by_size(problem):
        influence = y_rows.influence[at[:, :, None], at[:, None, :]]
        mixed[xp.reshape(at, (-1,)), :] += xp.reshape(influence @ rows[at, :], (-1, rows.shape[1]))
    return mixed


def _slacks(problem: Problem, x_rows: Mapped, y_rows: Mapped, w_x: Array, w_y: Array) -> dict[Task, Array]:
    """Return the ``tie_slack`` of every query of both tasks."""
    xp = namespace(problem.a)
    pairing, x_count = problem.truth.pairing, problem.truth.x_count
    dimension = sum(int(size) for size in problem.t0.shape)

    def lengths(rows: Array, weights: Array) -> Array:
        return xp.sqrt((rows * rows) @ weights)

    queries = lengths(_without_own_pair(problem, y_rows, problem.b), w_y)
    true_lengths = xp.take(lengths(x_rows.rows, w_y), pairing, axis=0)
    search = tie_slack(queries, true_lengths, dimension, problem.similarity)
    true_lengths = group_max(lengths(y_rows.rows, w_x), pairing, x_count)
    annotate = tie_slack(lengths(problem.a, w_x), true_lengths, dimension, problem.similarity)
    return {"search": search, "annotate": annotate[problem.truth.described]}


def annotate_scores(problem: Problem, y_rows: Mapped, w_x: Array) -> Array:
    """Return scores, images × captions, with captions mapped without their image and the query."""
    xp = namespace(problem.a)
    pairing = problem.truth.pairing
    queries = problem.a * w_x
    scores = multiply(queries, y_rows.rows.T)
    effect = xp.sum(queries[pairing, :] * y_rows.residuals, axis=1)
    correction = group_sum((y_rows.influence * effect).T, pairing, problem.truth.x_count)
    correction[pairing, xp.arange(pairing.shape[0], device=device(pairing))] = 0.0
    return _scale(problem, scores - correction, y_rows.rows, w_x)


def _scale(problem: Problem, products: Array, items: Array, weights: Array) -> Array:
    """Return the cosine, or ℓ2, up to a constant of the query."""
    xp = namespace(products)
    norms = (items * items) @ weights
    if problem.similarity == "cosine":
        return products / xp.sqrt(xp.where(norms > 0, norms, xp.ones_like(norms)))
    return products - 0.5 * norms


def _is_finite(scores: Array) -> bool:
    xp = namespace(scores)
    return bool(xp.all(xp.isfinite(scores)))
