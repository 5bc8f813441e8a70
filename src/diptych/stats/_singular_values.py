"""Singular values of products of two matrices, one for each of many permutations of the rows of the first."""

from __future__ import annotations

import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych.cca._filters import Floats
from diptych.stats._row_blocks import Ints

TIE = 1e-8
"""Correlations are equal if they differ by no more than this share: a tie counts as at least as large."""

_SMALL = 64  # size of a matrix up to which all eigenvalues take no longer than the largest
_ENTRIES_AT_ONCE = 2**18  # of permuted rows and their products, on a CPU
_ENTRIES_ON_DEVICE = 2**26
_VECTORS_AT_ONCE = 64  # enough for efficient products
_MOST_STEPS = 300  # of Lanczos' algorithm


def is_large(a: Array, b: Array) -> bool:
    """Return whether the largest singular value of ``a.T @ b`` takes less time than all of them."""
    return min(int(a.shape[1]), int(b.shape[1])) > _SMALL


def count_at_once(a: Array, b: Array, *, largest: bool) -> int:
    """Return for how many permutations to compute at a time: all singular values, or the largest."""
    on_cpu = is_numpy_array(a)
    if largest and is_large(a, b):
        return _VECTORS_AT_ONCE if on_cpu else 16 * _VECTORS_AT_ONCE
    (rows, columns), others = a.shape, b.shape[1]
    return max(1, (_ENTRIES_AT_ONCE if on_cpu else _ENTRIES_ON_DEVICE) // int(columns * (rows + others)))


def all_squares(a: Array, b: Array, fixed: Array | None, orders: Ints) -> Floats:
    """Return the squared singular values of ``a[order].T @ b + fixed`` for each permutation, ascending."""
    xp = namespace(a)
    t = xp.permute_dims(a[move_like(orders, a)], (0, 2, 1)) @ b
    if fixed is not None:
        t = t + fixed
    transposed = xp.permute_dims(t, (0, 2, 1))
    gram = t @ transposed if t.shape[1] <= t.shape[2] else transposed @ t
    squares: Floats = np.maximum(to_numpy(xp.linalg.eigvalsh(gram)), 0.0)
    return squares


def largest_squares(a: Array, b: Array, orders: Ints) -> Floats:
    """Return the largest squared singular value of ``a[order].T @ b`` for each permutation."""
    if not is_large(a, b):
        return all_squares(a, b, None, orders)[:, -1]
    squares = _iterate_largest(a, b, orders)
    if squares is not None:
        return squares
    # One by one, because each is a large matrix.
    return np.concatenate([all_squares(a, b, None, order[None, :])[:, -1] for order in orders])


def _iterate_largest(a: Array, b: Array, orders: Ints) -> Floats | None:
    """Return the same by Lanczos' algorithm; None if it does not converge.

    It runs for all permutations at a time: its products are then those of matrices, and none of the permuted
    matrices is formed. Without reorthogonalisation it repeats eigenvalues, but the largest stays exact.
    """
    xp = namespace(a)
    order_rows, restore_rows = (move_like(rows.T, a) for rows in (np.argsort(orders, axis=1), orders))
    start = np.random.default_rng(0).normal(size=(int(b.shape[1]), 1))
    v = move_like(np.repeat(start / np.linalg.norm(start), len(orders), axis=1), b)
    previous, length = xp.zeros_like(v), xp.zeros_like(v[0, :])
    gram = a @ a.T if a.shape[0] <= 2 * a.shape[1] else None
    diagonal: list[Floats] = []
    beside: list[Floats] = []
    last: Floats = np.zeros(len(orders))
    for step in range(1, _MOST_STEPS + 1):
        rows = xp.take_along_axis(b @ v, order_rows, axis=0)
        products = a @ (a.T @ rows) if gram is None else gram @ rows
        w = b.T @ xp.take_along_axis(products, restore_rows, axis=0) - length * previous
        along = xp.sum(v * w, axis=0)
        w = w - along * v
        diagonal.append(to_numpy(along))
        if step >= 40 and step % 20 == 0:
            tridiagonal = np.zeros((len(orders), step, step))
            at = np.arange(step)
            tridiagonal[:, at, at] = np.stack(diagonal, axis=1)
            tridiagonal[:, at[1:], at[:-1]] = np.stack(beside, axis=1)  # eigvalsh reads the lower triangle
            largest = to_numpy(np.linalg.eigvalsh(tridiagonal))[:, -1]
            if np.all(largest - last <= TIE / 10 * largest):
                return largest
            last = largest
        length = xp.linalg.vector_norm(w, axis=0)
        beside.append(to_numpy(length))
        previous, v = v, w / xp.where(length > 0, length, xp.ones_like(length))
    return None
