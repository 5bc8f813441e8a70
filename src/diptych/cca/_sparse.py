r"""Sparse views: products and a decomposition that never make a large one dense.

A sparse view is a ``csr_array`` of SciPy. It is not centred, which would fill it: the mean is subtracted from
sums of products instead. That costs accuracy where the mean is large beside the standard deviation. For a
column with a share d < 1 of entries that are not zero, :math:`\mu^2/\sigma^2 \le d/(1-d)`, so it is harmless
unless the column is full. Full columns can be centred without filling anything, and are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diptych._arrays import Array, group_max, is_sparse, replace_entries
from diptych._checks import InputError
from diptych._threads import multiply, multiply_transposed

MAX_SIDE = 20_000
"""The most rows of a Gram matrix of a sparse view; it takes 3.2 GB, its decomposition a few times that."""

DENSE_SHARE = 0.1
"""The share of entries that are not zero from about which on a dense product of a block takes less time."""


def check_side(view: Array, side: int, name: str) -> None:
    """Raise an error if the Gram matrix of a sparse view, of the size ``side``, would be too large."""
    if is_sparse(view) and side > MAX_SIDE:
        raise InputError(
            f"{name} is sparse with {view.shape[0]:,} rows and {view.shape[1]:,} columns; the smaller number "
            f"may be at most {MAX_SIDE:,} (with blocks, an engine or solver='gram', the columns): use fewer, "
            "for example by sklearn.decomposition.TruncatedSVD."
        )


def is_mostly_zero(view: Array) -> bool:
    """Return whether ``view`` is sparse and so empty that sparse products take less time than dense ones."""
    return is_sparse(view) and view.nnz < DENSE_SHARE * view.shape[0] * view.shape[1]


def shift_full_columns(view: Array, shift: Array) -> tuple[Array, Array]:
    """Return a sparse view minus ``shift`` in the columns without zeros, and what was subtracted."""
    full = np.bincount(view.indices, minlength=view.shape[1]) == view.shape[0]
    shift = np.where(full, shift, 0.0).astype(view.dtype, copy=False)
    return replace_entries(view, view.data - shift[view.indices]) if full.any() else view, shift


def row_of_entries(view: Array) -> Array:
    return np.repeat(np.arange(view.shape[0]), np.diff(view.indptr))


def scale_rows(view: Array, factors: Array) -> Array:
    return replace_entries(view, view.data * np.repeat(factors, np.diff(view.indptr)))


def sparse_to_unit_length(view: Array) -> Array:
    """Return the rows of a sparse view scaled to Euclidean length 1; rows of zeros stay zero."""
    rows, n = row_of_entries(view), view.shape[0]
    if not view.nnz:
        return view
    # Dividing by the largest entry first keeps the squares of very long or very short rows in range.
    largest = np.maximum(group_max(np.abs(view.data), rows, n), 0.0)
    scaled = view.data / np.where(largest > 0, largest, 1.0)[rows]
    lengths = np.sqrt(np.bincount(rows, scaled * scaled, minlength=n)).astype(view.dtype)
    return replace_entries(view, scaled / np.where(lengths > 0, lengths, 1.0)[rows])


def dual_gram(view: Array, mean: Array) -> Array:
    """Return the inner products of the centred rows of a sparse view."""
    columns = view.T
    (gram,) = multiply_transposed([(columns, columns)])
    along = view @ mean
    gram -= along[:, None]
    gram -= along
    gram += mean @ mean
    return gram


@dataclass(frozen=True, eq=False)
class SparseVectors:
    r"""Right singular vectors of a sparse view with fewer rows than columns, kept as a product.

    With rows R of mean :math:`\mu`, weighted by c, and :math:`\sqrt{c}(R - \mu) = U S V^\top`, they are
    :math:`V = (R - \mu)^\top L` with :math:`L = \sqrt{c}\, U S^{-1}`. Written out, V would take as much
    memory as the dense view. What becomes of it is much smaller: ``v @ matrix`` is the weights of a model,
    and ``multiply_any(features, v)`` the coordinates of some rows. ``np.asarray(v)`` writes it out.
    """

    rows: Array  # sparse
    mean: Array
    left: Array  # L, rows × directions

    @property
    def shape(self) -> tuple[int, int]:
        """Features × directions."""
        return int(self.rows.shape[1]), int(self.left.shape[1])

    @property
    def dtype(self) -> Any:
        return self.left.dtype

    ndim = 2
    __array_ufunc__ = None  # so that NumPy leaves ``array @ v`` to this class

    def __getitem__(self, at: tuple[slice, Any]) -> SparseVectors:
        """Return some directions: ``v[:, columns]``."""
        if at[0] != slice(None):
            raise TypeError("only directions can be chosen, v[:, columns]; use np.asarray(v) for others")
        return replace(self, left=self.left[:, at[1]])

    def __mul__(self, factors: Any) -> SparseVectors:
        """Return the directions multiplied by a number each."""
        return replace(self, left=self.left * factors)

    def __truediv__(self, divisors: Any) -> SparseVectors:
        """Return the directions divided by a number each."""
        return replace(self, left=self.left / divisors)

    def __matmul__(self, matrix: Any) -> Any:
        """Return combinations of the directions, features × columns of ``matrix``, dense."""
        inner = multiply(self.left, np.asarray(matrix))
        return self.rows.T @ inner - np.multiply.outer(self.mean, inner.sum(axis=0))

    def __rmatmul__(self, features: Any) -> Any:
        """Return the coordinates of dense or sparse ``features`` along the directions."""
        products = features @ self.rows.T
        products = products.toarray() if is_sparse(products) else products
        return multiply(products - (features @ self.mean)[:, None], self.left)

    @property
    def T(self) -> Any:  # noqa: N802
        """The directions as rows, dense."""
        return np.asarray(self).T

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """Return the directions as a dense array, which may be very large."""
        return np.asarray(self @ np.eye(self.left.shape[1]), dtype=dtype)


def multiply_any(features: Array, weights: Any) -> Any:
    """Return ``features @ weights`` as a dense array, where either may be sparse or kept as a product."""
    if isinstance(weights, SparseVectors):
        # SciPy would write the vectors out.
        return weights.__rmatmul__(features)
    return features @ weights if is_sparse(features) else multiply(features, weights)
