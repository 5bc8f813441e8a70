r"""Selection with no validation set: every image is mapped by the model fitted without it, in closed form.

In the asymmetric identity a search item is mapped into the space of the query by ridge regression, and the
predictions of a ridge regression that leaves rows out follow from the one that does not. With
:math:`w = 1/(\sigma^2+\gamma)`, an image i with :math:`c_i` captions of mean :math:`\bar y_i`, and N pairs,

.. math::
    \hat y_i^{(-i)} = \frac{\hat y_i - h_i \bar y_i}{1 - h_i}, \qquad
    h_i = c_i \Big(\sum_k w_k a_{ik}^2 + \tfrac1N\Big)

where 1/N is the share of the mean, which is fitted too. The captions g of an image leave together:

.. math::
    \hat X_g^{(-g)} = X_g - (I - H_{gg})^{-1} (X_g - \hat X_g), \qquad
    H_{gg} = B_g W_y B_g^\top + \tfrac1N .

These maps are those of the refitted models exactly. Rivals are mapped without their own image, but would
still be mapped with the query's: what the query taught them pulls them towards it, and with many features
that alone would make strong regularisation look best. So the query's image leaves the rivals' maps too, to
first order in how far the two images pull each other: for an image i' and a query of image i,

.. math::
    \hat y_{i'}^{(-i'-i)} \approx \hat y_{i'}^{(-i')} - \frac{h_{i'i}}{1-h_{i'}}\,
    \frac{\bar y_i - \hat y_i}{1 - h_i} .

The whitening of the query is downdated by its own image, exactly: it takes the captions of an image to
:math:`(I - H_{gg})^{-1}` times themselves, and an image to a multiple of itself. The lengths of the items are
measured by the whitening of all pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from array_api_compat import device

from diptych._arrays import Array, count_groups, group_max, group_sum, move_like, namespace, to_numpy
from diptych._checks import InputError, Task
from diptych.cca._spectra import Spectra
from diptych.cca.selection._grids import Grid, taken_with_captions
from diptych.cca.selection._problem import Problem, make_problem, make_weights
from diptych.ranking import annotate_ranks, search_ranks, tie_slack

SAMPLE = 500
"""Images that are left out in turn: as queries and gallery they cost about what a validated path costs."""

_TOO_FREE = 64  # roundings: below so small a 1 − h a row is fitted by itself alone, and cannot be left out


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Training images that are left out in turn, with their captions, in the eigenbases.

    Attributes
    ----------
    problem
        The sampled rows, as validation rows would be.
    spectra
        Of all training pairs.
    said
        In words, what was left out.
    """

    problem: Problem
    spectra: Spectra
    said: str


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
    """A seeded sample of the training images that ``spectra`` were made of, with all their captions."""
    described = np.unique(to_numpy(pairing))
    if len(described) < 3:
        raise InputError(
            f"leaving one out of {len(described)} items is too little to choose on; give params or more data."
        )
    chosen = np.random.default_rng(random_state).permutation(described)[:sample]
    is_taken = np.zeros(x.shape[0], dtype=bool)
    is_taken[chosen] = True
    taken = taken_with_captions(pairing, is_taken)
    rows = x[taken.images, :], y[taken.captions, :], taken.pairing
    said = (
        f"each of {len(chosen)} of {int(x.shape[0])} rows of X left out in turn with its rows of Y "
        f"(random_state={random_state}), from the maps and from the whitening of the query"
    )
    return LeftOut(make_problem(spectra, rows, similarity), spectra, said)


def leave_one_out_ranks(rows: LeftOut, grid: Grid) -> Iterator[tuple[int, int, dict[Task, Array]]]:
    """``(x index, y index, ranks)`` over the grid; no ranks where an image cannot be left out."""
    problem, count = rows.problem, rows.spectra.count
    truth = problem.truth
    w_x, w_y = make_weights(problem, rows.spectra, grid)
    # Images are fewer than captions: their maps are the ones to keep.
    images = [mapped_images(problem, w_x.rows[i, :], count) for i in range(grid.shape[0])]
    for j in range(grid.shape[1]):
        captions = mapped_captions(problem, w_y.rows[j, :], count)
        for i, mapped in enumerate(images):
            if mapped is None or captions is None:
                yield i, j, {}
                continue
            search = search_scores(problem, mapped, captions, w_y.rows[j, :])
            annotate = annotate_scores(problem, captions, w_x.rows[i, :])[truth.described, :]
            if not bool(_finite(search)) or not bool(_finite(annotate)):
                yield i, j, {}
                continue
            slack = _slacks(problem, mapped, captions, w_x.rows[i, :], w_y.rows[j, :])
            found: dict[Task, Array] = {
                "search": to_numpy(search_ranks(search, truth.pairing, slack["search"])),
                "annotate": to_numpy(annotate_ranks(annotate, truth, truth.described, slack["annotate"])),
            }
            yield i, j, found


@dataclass(frozen=True, eq=False)
class Mapped:
    """Rows mapped by the models without their own image, and what other images do to those maps.

    Attributes
    ----------
    rows
        In the eigenbasis of the other view.
    missed
        The truth less ``rows``.
    pull
        How far each row (down) follows each row (across) of those that taught it.
    """

    rows: Array
    missed: Array
    pull: Array


def mapped_images(problem: Problem, w_x: Array, count: int) -> Mapped | None:
    """Images in the eigenbasis of the captions, each by the model without it, where there is one."""
    xp = namespace(problem.a)
    counts = xp.astype(count_groups(problem.truth.pairing, problem.truth.n_images), problem.a.dtype)
    means = group_sum(problem.b, problem.truth.pairing, problem.truth.n_images) / counts[:, None]
    hat = ((problem.a * w_x) @ problem.a.T + 1.0 / count) * counts
    own = xp.linalg.diagonal(hat)[:, None]
    if float(xp.min(1.0 - own)) < _TOO_FREE * float(xp.finfo(hat.dtype).eps):
        return None
    mapped = ((problem.a * w_x) @ problem.t0 - own * means) / (1.0 - own)
    return Mapped(mapped, means - mapped, hat / (1.0 - own))


def mapped_captions(problem: Problem, w_y: Array, count: int) -> Mapped | None:
    """Captions in the eigenbasis of the images, each by the model without its image, where there is one."""
    xp = namespace(problem.b)
    hat = (problem.b * w_y) @ problem.b.T + 1.0 / count
    truth = problem.a[problem.truth.pairing, :]
    missed = truth - (problem.b * w_y) @ problem.t0.T
    pull = hat
    for at in groups(problem):
        free = xp.eye(at.shape[1], dtype=hat.dtype, device=device(hat)) - hat[at[:, :, None], at[:, None, :]]
        if float(xp.min(xp.linalg.eigvalsh(free))) < _TOO_FREE * float(xp.finfo(free.dtype).eps):
            return None
        flat = xp.reshape(at, (-1,))
        missed[flat, :] = xp.reshape(xp.linalg.solve(free, missed[at, :]), (flat.shape[0], -1))
        # A block of the hat matrix is read before its own rows change, so this may be done in place.
        pull[flat, :] = xp.reshape(xp.linalg.solve(free, pull[at, :]), (flat.shape[0], -1))
    return Mapped(truth - missed, missed, pull)


def groups(problem: Problem) -> Iterator[Array]:
    """Captions of each image, images × captions, for each number of captions that an image has."""
    pairing = to_numpy(problem.truth.pairing)
    order = np.argsort(pairing, kind="stable")
    sizes = np.bincount(pairing, minlength=problem.truth.n_images)
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):
        images = np.flatnonzero(sizes == size)
        yield move_like(order[starts[images][:, None] + np.arange(size)], problem.truth.pairing)


def search_scores(problem: Problem, images: Mapped, captions: Mapped, w_y: Array) -> Array:
    """Captions × images, each caption asking images that were mapped without either's image."""
    xp = namespace(problem.b)
    pairing = problem.truth.pairing
    queries = problem.b * w_y
    scores = queries @ images.rows.T
    # What the query's image taught the rivals: one number per caption, times how far each rival follows it.
    taught = xp.sum(queries * images.missed[pairing, :], axis=1)
    lesson = images.pull.T[pairing, :] * taught[:, None]
    lesson[xp.arange(pairing.shape[0], device=device(pairing)), pairing] = 0.0
    scores = scores - lesson
    return _compared(problem, _without_own_image(problem, captions, scores), images.rows, w_y)


def _without_own_image(problem: Problem, captions: Mapped, rows: Array) -> Array:
    """``rows``, one per caption, times the :math:`(I - H_{gg})^{-1}` of each image's captions."""
    xp = namespace(rows)
    # (I − H)⁻¹ = I + (I − H)⁻¹H, and the latter stands in the captions' pull.
    mixed = rows + 0.0
    for at in groups(problem):
        own = captions.pull[at[:, :, None], at[:, None, :]]
        mixed[xp.reshape(at, (-1,)), :] += xp.reshape(own @ rows[at, :], (-1, rows.shape[1]))
    return mixed


def _slacks(problem: Problem, images: Mapped, captions: Mapped, w_x: Array, w_y: Array) -> dict[Task, Array]:
    """The ``tie_slack`` of every query, by the lengths of what its scores compare."""
    xp = namespace(problem.a)
    pairing, n_images = problem.truth.pairing, problem.truth.n_images
    dimension = sum(int(size) for size in problem.t0.shape)

    def lengths(rows: Array, weights: Array) -> Array:
        return xp.sqrt((rows * rows) @ weights)

    asked = lengths(_without_own_image(problem, captions, problem.b), w_y)
    own = xp.take(lengths(images.rows, w_y), pairing, axis=0)
    search = tie_slack(asked, own, dimension, problem.similarity)
    own = group_max(lengths(captions.rows, w_x), pairing, n_images)
    annotate = tie_slack(lengths(problem.a, w_x), own, dimension, problem.similarity)
    return {"search": search, "annotate": annotate[problem.truth.described]}


def annotate_scores(problem: Problem, captions: Mapped, w_x: Array) -> Array:
    """Images × captions, each image asking captions that were mapped without either's image."""
    xp = namespace(problem.a)
    pairing = problem.truth.pairing
    queries = problem.a * w_x
    scores = queries @ captions.rows.T
    taught = xp.sum(queries[pairing, :] * captions.missed, axis=1)
    lesson = group_sum((captions.pull * taught).T, pairing, problem.truth.n_images)
    lesson[pairing, xp.arange(pairing.shape[0], device=device(pairing))] = 0.0
    return _compared(problem, scores - lesson, captions.rows, w_x)


def _compared(problem: Problem, products: Array, items: Array, weights: Array) -> Array:
    """Cosine, or ℓ2, but for what is constant for a query."""
    xp = namespace(products)
    norms = (items * items) @ weights
    if problem.similarity == "cosine":
        return products / xp.sqrt(xp.where(norms > 0, norms, xp.ones_like(norms)))
    return products - 0.5 * norms


def _finite(scores: Array) -> Array:
    xp = namespace(scores)
    return xp.all(xp.isfinite(scores))
