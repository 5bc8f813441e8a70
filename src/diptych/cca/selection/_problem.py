r"""The validation pairs in the eigenbases of the training data: all that scoring a grid point needs.

For any pair of spectral filters with inverse denominators :math:`w = 1/D` (0 for a dropped direction),
writing a and b for centred validation rows in the eigenbases,

.. math::
    N_{ij} = a_i^\top W_x T_0 W_y b_j, \qquad
    \|\Sigma U^\top x_i\|^2 = (W_x a_i)^\top T_0 W_y T_0^\top (W_x a_i)

and the mirror image for :math:`\|\Sigma V^\top y_j\|`. No singular value decomposition appears: a
search item is mapped into the query space by ridge regression and compared by whitened cosine. The same
numerator N serves both tasks; only the norms differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import device, is_numpy_array

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import InputError, check_pair_of_views
from diptych._threads import map_parallel
from diptych.cca._spectra import Spectra
from diptych.cca.selection._grids import Grid
from diptych.ranking import Truth

CPU_BLOCK_BYTES = 2**22
DEVICE_BLOCK_BYTES = 2**28


@dataclass(frozen=True, eq=False)
class Problem:
    """Validation images ``a`` and captions ``b`` in the eigenbases, and the spectra they are scored with.

    Everything is scaled so that the largest singular value of either view is 1, which changes no ranking
    and keeps float32 in range.
    """

    a: Array
    b: Array
    t0: Array
    truth: Truth
    similarity: str


@dataclass(frozen=True, eq=False)
class Step:
    """From one grid value to the next: only directions ``start`` to ``stop`` change, by ``change``.

    A ``fresh`` step does not build on the value before: ``change`` is then the weight itself.
    """

    start: int
    stop: int
    change: Array
    fresh: bool


@dataclass(frozen=True, eq=False)
class Weights:
    """Inverse denominators of every grid value of one view (values × directions), whole and as steps.

    Truncated SVDs are nested, so each step touches only the directions it adds, and a whole row of the
    grid costs one product. Tikhonov's steps touch every direction.
    """

    rows: Array
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, rows: np.ndarray[Any, Any], like: Array) -> Weights:
        """Find the steps of ``rows``; the arrays go where ``like`` is, in its precision."""
        steps = []
        for index, row in enumerate(rows):
            before = rows[index - 1] if index else np.zeros_like(row)
            touched = np.flatnonzero(row != before)
            start, stop = (int(touched[0]), int(touched[-1]) + 1) if touched.size else (0, 0)
            support = int(np.flatnonzero(row)[-1]) + 1
            fresh = index == 0 or stop - start >= support
            if fresh:
                start, stop = 0, support
            change = row[start:stop] if fresh else row[start:stop] - before[start:stop]
            steps.append(Step(start, stop, move_like(change, like, dtype=like.dtype), fresh))
        return cls(move_like(rows, like, dtype=like.dtype), tuple(steps))


def make_problem(
    spectra: Spectra, validation: tuple[Any, ...], similarity: str = "cosine", dtype: Any = None
) -> Problem:
    """Project validation pairs ``(X, Y)`` or ``(X, Y, pairing)`` into the eigenbases.

    The arithmetic runs in ``dtype``, by default the validation arrays' own.
    """
    if not isinstance(validation, (tuple, list)) or len(validation) not in (2, 3):
        raise InputError("validation is not (X, Y) or (X, Y, pairing); give the validation pairs like that.")
    x, y, pairing = check_pair_of_views(*validation)
    xp = namespace(x, y)
    check_widths(spectra, x, y)
    dtype = xp.result_type(x.dtype, y.dtype) if dtype is None else dtype
    top_x, top_y = float(spectra.s_x[0]), float(spectra.s_y[0])

    def project(view: Array, mean: Array, vectors: Array, top: float) -> Array:
        centred = xp.astype(view, dtype, copy=False) - move_like(mean, view, dtype=dtype)
        return centred @ (move_like(vectors, view, dtype=dtype) / top)

    t0 = move_like(spectra.t0 / (top_x * top_y), x, dtype=dtype)
    a = project(x, spectra.x_mean, spectra.v_x, top_x)
    b = project(y, spectra.y_mean, spectra.v_y, top_y)
    return Problem(a, b, t0, Truth.of(pairing, x.shape[0]), similarity)


def check_widths(spectra: Spectra, x: Array, y: Array) -> None:
    """Refuse validation views that have other features than the training views."""
    for view, mean, name in ((x, spectra.x_mean, "X"), (y, spectra.y_mean, "Y")):
        if view.shape[1] != mean.shape[0]:
            raise InputError(
                f"validation {name} has {view.shape[1]} features, but training has {int(mean.shape[0])}; "
                "encode both alike."
            )


def make_weights(problem: Problem, spectra: Spectra, grid: Grid) -> tuple[Weights, Weights]:
    """Inverse denominators of a grid, scaled as the problem is."""

    def side(values: Array, singular: Array) -> Weights:
        top = float(singular[0])
        s = to_numpy(singular) / top
        if grid.filter is not None:
            squares = to_numpy(singular).astype(np.float64) ** 2
            rows = np.stack([grid.filter.evaluate(squares, float(value)) for value in values])
            return Weights.of(rows * top**2, problem.a)
        if grid.kind == "tikhonov":
            return Weights.of(1.0 / (s * s + values[:, None] / top**2), problem.a)
        return Weights.of(np.where(np.arange(len(s)) < values[:, None], 1.0 / (s * s), 0.0), problem.a)

    return side(grid.x, spectra.s_x), side(grid.y, spectra.s_y)


def products(left: Array, weights: Weights, right: Array) -> Iterator[tuple[int, Array]]:
    """``(left · diag(w)) @ right`` for every grid value w in turn, each from the one before where it can.

    A nested step adds to the array it gave before, in place: copy what is to be kept.
    """
    current = None
    for index, step in enumerate(weights.steps):
        part = (left[:, step.start : step.stop] * step.change) @ right[step.start : step.stop, :]
        if step.fresh:
            current = part
        else:
            current += part
        yield index, current


def annotate_norms(problem: Problem, w_x: Weights, w_y: Weights) -> Array:
    """Squared norms ‖ΣVᵀy‖² of every caption at every grid point: x values × y values × captions."""
    xp = namespace(problem.a)
    n, width = problem.b.shape[0], problem.t0.shape[0]
    size = CPU_BLOCK_BYTES if is_numpy_array(problem.a) else DEVICE_BLOCK_BYTES
    rows = max(1, size // (width * problem.b.dtype.itemsize))
    found = xp.empty(
        (w_x.rows.shape[0], w_y.rows.shape[0], n), dtype=problem.b.dtype, device=device(problem.b)
    )

    def block(start: int) -> None:
        captions = problem.b[start : start + rows, :]
        for j, mapped in products(captions, w_y, problem.t0.T):
            found[:, j, start : start + rows] = w_x.rows @ (mapped * mapped).T

    map_parallel(block, list(range(0, n, rows)), problem.a)
    return found
