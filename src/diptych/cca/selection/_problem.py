r"""Scoring a grid point without an SVD: the identity, and the validation pairs it needs.

Write a, b for centred rows x, y in the eigenbases, :math:`a = V_x^\top x` and :math:`b = V_y^\top y`. By
Theorem 1, :math:`T = D_x^{-1/2} T_0 D_y^{-1/2} = P_x \Sigma P_y^\top`, :math:`U = V_x D_x^{-1/2} P_x` and
:math:`V = V_y D_y^{-1/2} P_y`. Search compares :math:`\Sigma U^\top x` with :math:`V^\top y` by cosine
(equation 4). If T keeps all its components, its factors multiply back to T in the numerator,

.. math::
    N = \langle \Sigma U^\top x, V^\top y \rangle
      = a^\top D_x^{-1/2} \, P_x \Sigma P_y^\top \, D_y^{-1/2} b = a^\top D_x^{-1} T_0 D_y^{-1} b ,

and to :math:`T T^\top = P_x \Sigma^2 P_x^\top` in the length of the item,

.. math::
    \|\Sigma U^\top x\|^2 = a^\top D_x^{-1/2} \, P_x \Sigma^2 P_x^\top \, D_x^{-1/2} a
      = (D_x^{-1} a)^\top \, T_0 D_y^{-1} T_0^\top \, (D_x^{-1} a) .

The length of the query, :math:`\|V^\top y\|`, is constant for a query and changes no ranking. So no SVD is
needed for a ranking at full dimension: an item is mapped into the space of the query by ridge regression,
:math:`T_0^\top D_x^{-1} a`, and compared by a whitened cosine. Annotate is the mirror image (equation 5): it
has the same numerator and :math:`\|\Sigma V^\top y\|^2 = (D_y^{-1} b)^\top T_0^\top D_x^{-1} T_0 (D_y^{-1}
b)`. The squared ℓ2 distance is the squared length of the item − 2N + a constant of the query. In the code,
:math:`w = 1/D`, which is 0 for a direction that is dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import device, is_numpy_array

from diptych._arrays import Array, as_dtype, move_like, namespace, to_numpy
from diptych._checks import InputError, check_pair_of_views, pair_rows, second_view
from diptych._threads import map_parallel, multiply
from diptych.cca._spectra import Spectra
from diptych.cca._weighting import project
from diptych.cca.selection._grids import Grid
from diptych.ranking._ranks import Truth

CPU_BLOCK_BYTES = 2**22
DEVICE_BLOCK_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class Problem:
    """Validation images ``a`` and captions ``b`` in the eigenbases, T0, the truth and the similarity.

    All are scaled so that the largest singular value of each view is 1, which changes no ranking and keeps
    float32 in range.
    """

    a: Array
    b: Array
    t0: Array
    truth: Truth
    similarity: str


@dataclass(frozen=True, eq=False)
class Step:
    """The change of w from one grid value to the next, in directions ``start`` to ``stop``.

    A ``fresh`` step does not build on the value before: ``change`` is then w itself.
    """

    start: int
    stop: int
    change: Array
    fresh: bool


@dataclass(frozen=True, eq=False)
class Weights:
    """w of every grid value of one view (values × directions), as ``rows`` and as steps between them.

    Truncated SVDs are nested, so each step changes only the directions it adds, and a whole row of the grid
    costs one product. Tikhonov's steps change every direction.
    """

    rows: Array
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, rows: np.ndarray[Any, Any], like: Array) -> Weights:
        """Return the weights of ``rows``, with arrays in the backend and precision of ``like``."""
        steps = []
        for index, row in enumerate(rows):
            previous = rows[index - 1] if index else np.zeros_like(row)
            changed = np.flatnonzero(row != previous)
            start, stop = (int(changed[0]), int(changed[-1]) + 1) if changed.size else (0, 0)
            support = int(np.flatnonzero(row)[-1]) + 1
            fresh = index == 0 or stop - start >= support
            if fresh:
                start, stop = 0, support
            change = row[start:stop] if fresh else row[start:stop] - previous[start:stop]
            steps.append(Step(start, stop, move_like(change, like, dtype=like.dtype), fresh))
        return cls(move_like(rows, like, dtype=like.dtype), tuple(steps))


def make_problem(
    spectra: Spectra, validation: tuple[Any, ...], similarity: str = "cosine", dtype: Any = None
) -> Problem:
    """Return the problem of scoring validation pairs ``(X, Y)`` or ``(X, Y, pairing)``.

    The arithmetic runs in ``dtype``, by default that of the validation arrays.
    """
    x, y, pairing = check_pair_of_views(*check_validation(validation), sparse=True)
    xp = namespace(x, y)
    check_widths(spectra, x, y)
    dtype = xp.result_type(x.dtype, y.dtype) if dtype is None else dtype
    top_x, top_y = float(spectra.s_x[0]), float(spectra.s_y[0])
    a = project(as_dtype(x, dtype), spectra.x_mean, spectra.v_x / top_x)
    b = project(as_dtype(y, dtype), spectra.y_mean, spectra.v_y / top_y)
    t0 = move_like(spectra.t0 / (top_x * top_y), x, dtype=dtype)
    return Problem(a, b, t0, Truth.of(pairing, x.shape[0]), similarity)


def check_validation(validation: Any) -> tuple[Any, ...]:
    """Return ``(X, Y)`` or ``(X, Y, pairing)`` as the latter; Y has two axes."""
    if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
        raise InputError("validation is not (X, Y) or (X, Y, pairing); give the validation pairs like that.")
    x, y, *pairing = validation
    y = second_view(y)
    return x, y, pair_rows(x, y, *pairing)


def check_widths(spectra: Spectra, x: Array, y: Array) -> None:
    """Raise an error if validation views have other numbers of features than the training views."""
    for view, mean, name in ((x, spectra.x_mean, "X"), (y, spectra.y_mean, "Y")):
        if view.shape[1] != mean.shape[0]:
            raise InputError(
                f"validation {name} has {view.shape[1]} features, but training {name} has "
                f"{int(mean.shape[0])}; use the same encoder for both."
            )


def make_weights(problem: Problem, spectra: Spectra, grid: Grid) -> tuple[Weights, Weights]:
    """Return w of a grid for X and for Y, scaled as the problem is."""

    def make(values: Array, singular: Array) -> Weights:
        top = float(singular[0])
        s = to_numpy(singular) / top
        if grid.filter is not None:
            squares = to_numpy(singular).astype(np.float64) ** 2
            rows = np.stack([grid.filter.evaluate(squares, float(value)) for value in values]) * top**2
        elif grid.kind == "tikhonov":
            rows = 1.0 / (s * s + values[:, None] / top**2)
        else:
            rows = np.where(np.arange(len(s)) < values[:, None], 1.0 / (s * s), 0.0)
        return Weights.of(rows, problem.a)

    return make(grid.x, spectra.s_x), make(grid.y, spectra.s_y)


def products(left: Array, weights: Weights, right: Array) -> Iterator[tuple[int, Array]]:
    """Yield the index and ``(left · diag(w)) @ right`` of every grid value w.

    A nested step adds to the array that was yielded before, in place: copy what you keep.
    """
    current = None
    for index, step in enumerate(weights.steps):
        scaled = left[..., step.start : step.stop] * step.change
        part = multiply(scaled, right[..., step.start : step.stop, :])
        if step.fresh:
            current = part
        else:
            current += part
        yield index, current


def annotate_norms(problem: Problem, w_x: Weights, w_y: Weights) -> Array:
    """Return ‖ΣVᵀy‖² of every caption at every grid point: x values × y values × captions."""
    xp = namespace(problem.a)
    n, width = problem.b.shape[0], problem.t0.shape[0]
    size = CPU_BLOCK_BYTES if is_numpy_array(problem.a) else DEVICE_BLOCK_BYTES
    rows = max(1, size // (width * problem.b.dtype.itemsize))
    shape = (w_x.rows.shape[0], w_y.rows.shape[0], n)
    norms = xp.empty(shape, dtype=problem.b.dtype, device=device(problem.b))

    def fill(start: int) -> None:
        y_rows = problem.b[start : start + rows, :]
        for j, mapped in products(y_rows, w_y, problem.t0.T):
            norms[:, j, start : start + rows] = w_x.rows @ (mapped * mapped).T

    map_parallel(fill, list(range(0, n, rows)), problem.a)
    return norms
