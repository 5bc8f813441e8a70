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
strong regularisation look best. So the image of the query is removed from the maps of the rivals too. With
:math:`r_i = (\bar y_i - \hat y_i)/(1 - h_i)`, the influence :math:`f_{i'i} = h_{i'i}/(1 - h_{i'})` and
:math:`\delta = 1/(1 - f_{i'i} f_{ii'})`, for an image i' and a query of image i,

.. math::
    \hat y_{i'}^{(-i'-i)} = \bar y_{i'} - \delta\,(r_{i'} + f_{i'i}\, r_i) ,

which is the second row of :math:`(I - H_{SS})^{-1}` times the residuals of both. A model also subtracts the
mean of the pairs that it was fitted on, which without both images is smaller by
:math:`(c_i \bar y_i + c_{i'} \bar y_{i'})/(N - c_i - c_{i'})`. Strong regularisation maps everything close to
that mean, so both matter most there. For items that are captions, f is a sum over the captions of image i,
and their lengths take the mean of those, which is exact where each image has one.

The whitening of the query is downdated by its own image, exactly: it multiplies the captions of an image by
:math:`(I - H_{gg})^{-1}`, and an image by a constant. The lengths of the items, as mapped for the query, are
those under the whitening of all pairs.
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
"""Images that are left out in turn; as queries and items they cost a few times what validation pairs do."""

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
            search = search_scores(problem, mapped, y_rows, w_y.rows[j, :], count)
            annotate = annotate_scores(problem, y_rows, w_x.rows[i, :], count)[truth.described, :]
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


def search_scores(problem: Problem, x_rows: Mapped, y_rows: Mapped, w_y: Array, count: int) -> Array:
    """Return scores, captions × images, with images mapped without themselves and the query's image."""
    xp = namespace(problem.b)
    pairing = problem.truth.pairing
    images = xp.arange(problem.truth.x_count, device=device(pairing))
    queries = problem.b * w_y
    means = x_rows.rows + x_rows.residuals
    rows = _centre(problem, x_rows.rows, means, images, count)
    products = multiply(queries, rows.T)
    effect = xp.take_along_axis(products, pairing[:, None], axis=1)
    learned = x_rows.influence.T[pairing, :] * effect
    products = products, learned, multiply(queries, means.T)
    scores, norms = _leave_both_out(problem, x_rows.influence, rows, images, pairing, products, w_y, count)
    return _scale(problem, _without_own_pair(problem, y_rows, scores), norms[pairing, :])


def annotate_scores(problem: Problem, y_rows: Mapped, w_x: Array, count: int) -> Array:
    """Return scores, images × captions, with captions mapped without their image and the query."""
    xp = namespace(problem.a)
    pairing = problem.truth.pairing
    queries = problem.a * w_x
    rows = _centre(problem, y_rows.rows, problem.a, pairing, count)
    products = multiply(queries, rows.T)
    effect = xp.take_along_axis(products, pairing[None, :], axis=0)
    learned = group_sum((y_rows.influence * effect).T, pairing, problem.truth.x_count)
    products = products, learned, multiply(queries, problem.a.T)
    images = xp.arange(problem.truth.x_count, device=device(pairing))
    scores, norms = _leave_both_out(problem, y_rows.influence, rows, pairing, images, products, w_x, count)
    return _scale(problem, scores, norms)


def _count_captions(problem: Problem) -> Array:
    xp = namespace(problem.a)
    return xp.astype(count_groups(problem.truth.pairing, problem.truth.x_count), problem.a.dtype)


def _centre(problem: Problem, rows: Array, truth: Array, images: Array, count: int) -> Array:
    """Return mapped rows relative to the mean without their image, whose row of ``truth`` is their target."""
    counts = _count_captions(problem)
    return rows + (truth * (counts / (count - counts))[:, None])[images, :]


def _leave_both_out(
    problem: Problem,
    influence: Array,
    rows: Array,
    images: Array,
    owners: Array,
    products: tuple[Array, Array, Array],
    weights: Array,
    count: int,
) -> tuple[Array, Array]:
    r"""Return products of queries and items, and the squared lengths of items for the queries of an image.

    Items are mapped without their own image and that of the query; ``images`` are those of the items and
    ``owners`` those of the queries. With the centred ``rows`` u, the target t of an image and
    :math:`1 + a = N/(N - c)`, :math:`r = (1 + a)\,t - u`, so that an item of image k is, for image i,

    .. math:: \delta\,(u_k + f u_i) + \big(1 + \tfrac{c_k}{N'} - \delta (1 + a_k)\big)\,t_k +
              \big(\tfrac{c_i}{N'} - \delta f (1 + a_i)\big)\,t_i, \qquad N' = N - c_i - c_k

    where under strong regularisation all terms are small. ``products`` are those of the queries with the
    rows, with the rows of their own image times its influence, and with the targets.
    """
    xp = namespace(rows)
    n, there = problem.truth.x_count, device(images)
    places = xp.arange(n, device=there)
    counts = _count_captions(problem)
    own = places[:, None] == images[None, :]
    with_rows, learned, with_targets = products

    def average(values: Array, groups: Array) -> Array:
        sizes = xp.astype(count_groups(groups, n), values.dtype)
        return group_sum(values, groups, n) / sizes[:, None]

    f = group_sum(influence.T, images, n)  # of an image (down) on an item (across)
    echo = group_sum(influence.T * f[images, :].T, images, n)
    zero = xp.zeros_like(f)
    f, echo = xp.where(own, zero, f), xp.where(own, zero, echo)
    rest = 1.0 - echo
    smallest = _MIN_ROUNDINGS * float(xp.finfo(rest.dtype).eps)
    delta = 1.0 / xp.where(rest > smallest, rest, xp.nan * zero)  # such points are not scored
    n_rest = count - counts[:, None] - xp.where(own, zero, counts[images][None, :] + zero)
    raised = count / (count - counts)  # 1 + a
    of_item = 1.0 + counts[images][None, :] / n_rest - delta * raised[images][None, :]
    of_query = xp.where(own, zero, counts[:, None] / n_rest) - delta * f * raised[:, None]

    own_target = xp.take_along_axis(with_targets, owners[:, None], axis=1)
    learned = xp.where(own[owners, :], xp.zeros_like(learned), learned)
    scores = delta[owners, :] * (with_rows + learned)
    scores = scores + of_item[owners, :] * with_targets[:, images] + of_query[owners, :] * own_target

    # Squared lengths, with the mean of the rows of an image in the place of each of them.
    by_image = average(rows, images)
    targets_rows, targets = average(with_rows, owners), average(with_targets, owners)
    means_rows = multiply(by_image * weights, rows.T)
    means_targets = average(targets_rows.T, images)
    target_lengths = xp.linalg.diagonal(targets)
    rows_own_target = xp.take_along_axis(targets_rows, images[None, :], axis=0)
    norms = delta**2 * (
        ((rows * rows) @ weights)[None, :] + 2 * f * means_rows + f**2 * ((by_image**2) @ weights)[:, None]
    )
    norms = norms + of_item**2 * target_lengths[images][None, :] + of_query**2 * target_lengths[:, None]
    norms = norms + 2 * of_item * of_query * targets[:, images]
    norms = norms + 2 * delta * of_item * (rows_own_target + f * means_targets[:, images])
    norms = norms + 2 * delta * of_query * (targets_rows + f * xp.linalg.diagonal(means_targets)[:, None])
    return scores, norms


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


def _scale(problem: Problem, products: Array, norms: Array) -> Array:
    """Return the cosine, or ℓ2, up to a constant of the query; ``norms`` are squared lengths of the items."""
    xp = namespace(products)
    if problem.similarity == "cosine":
        return products / xp.sqrt(xp.where(norms > 0, norms, xp.ones_like(norms)))
    return products - 0.5 * norms


def _is_finite(scores: Array) -> bool:
    xp = namespace(scores)
    return bool(xp.all(xp.isfinite(scores)))
