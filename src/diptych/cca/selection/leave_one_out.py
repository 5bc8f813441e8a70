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

The maps are those of the refitted models exactly. The whitening that compares them with the query, and the
mean that queries are centred by, are those of all pairs: they depend on either view alone, not on who
belongs to whom, and one image of many hardly moves them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from diptych.arrays import Array, count_groups, group_sum, move_like, namespace, to_numpy
from diptych.cca.selection.grids import Grid
from diptych.cca.selection.holdout import taken_with_captions
from diptych.cca.selection.problem import Problem, Weights, make_problem, make_weights
from diptych.cca.spectra import Spectra
from diptych.checks import InputError, Task
from diptych.ranking import annotate_ranks, search_ranks

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
            f"leaving one out of {len(described)} items is too little to choose on; give params, or more data."
        )
    chosen = np.random.default_rng(random_state).permutation(described)[:sample]
    is_taken = np.zeros(x.shape[0], dtype=bool)
    is_taken[chosen] = True
    taken = taken_with_captions(pairing, is_taken)
    rows = x[taken.images, :], y[taken.captions, :], taken.pairing
    said = (
        f"each of {len(chosen)} of {int(x.shape[0])} rows of X left out in turn with its rows of Y "
        f"(random_state={random_state}); the whitening is that of all pairs"
    )
    return LeftOut(make_problem(spectra, rows, similarity), spectra, said)


def leave_one_out_ranks(rows: LeftOut, grid: Grid) -> Iterator[tuple[int, int, dict[Task, Array]]]:
    """``(x index, y index, ranks)`` over the grid; no ranks where an image cannot be left out."""
    problem = rows.problem
    xp = namespace(problem.a)
    w_x, w_y = make_weights(problem, rows.spectra, grid)
    # Images are fewer than captions: their maps are the ones to keep.
    images = [mapped_images(problem, w_x.rows[i, :], rows.spectra.count) for i in range(grid.shape[0])]
    for j in range(grid.shape[1]):
        captions = mapped_captions(problem, w_y.rows[j, :], rows.spectra.count)
        for i, mapped in enumerate(images):
            if mapped is None or captions is None:
                yield i, j, {}
                continue
            search = _scores(problem, problem.b, w_y, j, mapped)
            annotate = _scores(problem, problem.a[problem.truth.described, :], w_x, i, captions)
            if not bool(xp.all(xp.isfinite(search))) or not bool(xp.all(xp.isfinite(annotate))):
                yield i, j, {}
                continue
            yield (
                i,
                j,
                {
                    "search": to_numpy(search_ranks(search, problem.truth.pairing)),
                    "annotate": to_numpy(annotate_ranks(annotate, problem.truth, problem.truth.described)),
                },
            )


def mapped_images(problem: Problem, w_x: Array, count: int) -> Array | None:
    """Images in the eigenbasis of the captions, each by the model without it, where there is one."""
    xp = namespace(problem.a)
    counts = xp.astype(count_groups(problem.truth.pairing, problem.truth.n_images), problem.a.dtype)
    sums = group_sum(problem.b, problem.truth.pairing, problem.truth.n_images)
    leverage = (problem.a * problem.a) @ w_x + 1.0 / count
    rest = 1.0 - counts * leverage
    if float(xp.min(rest)) < _TOO_FREE * float(xp.finfo(rest.dtype).eps):
        return None
    mapped = (problem.a * w_x) @ problem.t0
    return (mapped - leverage[:, None] * sums) / rest[:, None]


def mapped_captions(problem: Problem, w_y: Array, count: int) -> Array | None:
    """Captions in the eigenbasis of the images, each by the model without its image, where there is one."""
    xp = namespace(problem.b)
    mapped = (problem.b * w_y) @ problem.t0.T
    pairing = to_numpy(problem.truth.pairing)
    order = np.argsort(pairing, kind="stable")
    sizes = np.bincount(pairing, minlength=problem.truth.n_images)
    starts = np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]):
        images = np.flatnonzero(sizes == size)
        members = order[starts[images][:, None] + np.arange(size)]
        at = move_like(members.reshape(-1), problem.truth.pairing)
        shape = (len(images), int(size), -1)
        own = xp.reshape(problem.b[at, :], shape)
        hat = (own * w_y) @ xp.matrix_transpose(own) + 1.0 / count
        free = move_like(np.eye(int(size)), problem.b, dtype=problem.b.dtype) - hat
        if float(xp.min(xp.linalg.eigvalsh(free))) < _TOO_FREE * float(xp.finfo(free.dtype).eps):
            return None
        truth = problem.a[move_like(images, problem.truth.pairing), :][:, None, :]
        missed = truth - xp.reshape(mapped[at, :], shape)
        mapped[at, :] = xp.reshape(truth - xp.linalg.solve(free, missed), (len(images) * int(size), -1))
    return mapped


def _scores(problem: Problem, queries: Array, weights: Weights, at: int, mapped: Array) -> Array:
    """Queries × items: whitened cosine, or ℓ2, but for what is constant for a query."""
    xp = namespace(mapped)
    row = weights.rows[at, :]
    norms = (mapped * mapped) @ row
    if problem.similarity == "cosine":
        mapped = mapped / xp.sqrt(xp.where(norms > 0, norms, xp.ones_like(norms)))[:, None]
        return (queries * row) @ mapped.T
    return (queries * row) @ mapped.T - 0.5 * norms
