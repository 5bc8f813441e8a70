"""Array functions that the array API standard lacks.

The arrays choose the backend: NumPy in, NumPy out; torch in (CPU or CUDA), torch out, on the same device.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
from array_api_compat import array_namespace, device, is_numpy_array, is_torch_array

Array: TypeAlias = Any
"""An array of any backend that follows the array API standard; NumPy and torch are tested."""

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.floating[Any]]]
"""Floating-point numbers as NumPy."""

Record = TypeVar("Record", bound=Any)

_COUNTED_ROWS = 2**15  # rows of a mask that are converted to numbers at a time, to bound the memory


def is_sparse(array: Any) -> bool:
    """Return whether ``array`` is a sparse matrix or array of SciPy."""
    # There is none unless somebody has imported the module, which another thread may be about to do.
    issparse = getattr(sys.modules.get("scipy.sparse"), "issparse", None)
    return issparse is not None and bool(issparse(array))


def dense_like(array: Array) -> Array:
    """Return ``array``, or in place of a sparse one an empty array of NumPy: their backend is the same."""
    return np.empty(0) if is_sparse(array) else array


def replace_entries(sparse: Array, entries: Array) -> Array:
    """Return a sparse array in CSR format with other entries in the same places."""
    return type(sparse)((entries, sparse.indices, sparse.indptr), shape=sparse.shape)


def as_dtype(array: Array, dtype: Any) -> Array:
    """Return ``array``, dense or sparse, with this type of numbers, without a copy if it has it."""
    if is_sparse(array):
        return array.astype(dtype, copy=False)
    return namespace(array).astype(array, dtype, copy=False)


def namespace(*arrays: Array) -> Any:
    """Return the array API namespace of ``arrays`` (None are skipped), which must share one backend."""
    dense = [dense_like(a) for a in arrays if a is not None]
    # NumPy has followed the standard since 2.1, but for two things: ask for a stable argsort, which cannot be
    # descending, and sort unique_values. array_api_compat's copy of it imports all of its modules, f2py and
    # testing too.
    if hasattr(np, "astype") and dense and all(map(is_numpy_array, dense)):
        return np
    return array_namespace(*dense)


def move_like(array: Array, reference: Array, dtype: Any = None) -> Array:
    """Return ``array`` in the backend and on the device of ``reference``, without a copy if it is there."""
    reference = dense_like(reference)
    xp = namespace(reference)
    if not is_numpy_array(reference) and is_numpy_array(array):
        array = np.ascontiguousarray(array)
    elif is_numpy_array(reference) and not is_numpy_array(array):
        array = to_numpy(array)
    return xp.asarray(array, dtype=dtype, device=device(reference))


def to_numpy(array: Array) -> np.ndarray[Any, Any]:
    """Return ``array`` as NumPy, in host memory."""
    if is_torch_array(array):
        return array.detach().cpu().numpy()  # type: ignore[no-any-return]
    return np.asarray(array)


def map_arrays(
    record: Record, function: Callable[[Array], Array], copies: dict[int, Any] | None = None
) -> Record:
    """Return a dataclass with ``function`` of its arrays, and of those of dataclasses in it.

    What several records share is copied once if they are given the same ``copies``.
    """
    copies = {} if copies is None else copies
    if id(record) not in copies:
        changed: dict[str, Any] = {}
        for field in fields(record):
            value: Any = getattr(record, field.name)
            if is_numpy_array(value) or is_torch_array(value):
                changed[field.name] = function(value)
            elif is_dataclass(value) and not isinstance(value, type):
                changed[field.name] = map_arrays(value, function, copies)
        copies[id(record)] = replace(record, **changed)
    return copies[id(record)]  # type: ignore[no-any-return]


def fields_to_numpy(record: Record, copies: dict[int, Any] | None = None) -> Record:
    """Return a dataclass with its torch arrays, and those of dataclasses in it, as NumPy in host memory."""
    return map_arrays(record, lambda array: to_numpy(array) if is_torch_array(array) else array, copies)


def group_sum(values: Array, groups: Array, n_groups: int) -> Array:
    """Sum the rows of ``values`` by group: row g of the result is the sum of the rows of group g."""
    if is_torch_array(values):
        out = values.new_zeros((n_groups, values.shape[1]))
        return out.index_add_(0, groups, values)
    import scipy.sparse  # here and below: a search needs none of scipy, and should not wait for it

    ones = np.ones(len(groups), dtype=values.dtype)
    rows = scipy.sparse.csr_array((ones, (groups, np.arange(len(groups)))), (n_groups, len(groups)))
    return rows @ values


def group_max(values: Array, groups: Array, n_groups: int) -> Array:
    """Return the largest of the ``values`` (numbers, or rows) in each group; −∞ for an empty group."""
    xp = namespace(values)
    out = xp.full((n_groups, *values.shape[1:]), -xp.inf, dtype=values.dtype, device=device(values))
    if is_torch_array(values):
        at = groups if values.ndim == 1 else groups[:, None].expand_as(values)
        return out.scatter_reduce_(0, at, values, reduce="amax")
    order, present, starts = _sort_by_group(groups)
    out[present] = np.maximum.reduceat(values[order], starts, axis=0)
    return out


def _sort_by_group(groups: Array) -> tuple[Array, Array, Array]:
    """Return the order that sorts ``groups``, the groups that have members, and where each begins."""
    order = np.argsort(groups, kind="stable")
    return order, *np.unique(groups[order], return_index=True)


def add_group_counts(counts: Array, mask: Array, groups: Array) -> None:
    """Add to ``counts`` (groups × columns) the true entries of ``mask``, whose rows belong to ``groups``."""
    if is_torch_array(mask):
        for start in range(0, mask.shape[0], _COUNTED_ROWS):
            rows = slice(start, start + _COUNTED_ROWS)
            counts.index_add_(0, groups[rows], mask[rows].to(counts.dtype))
        return
    order, present, starts = _sort_by_group(groups)
    counts[present] += np.add.reduceat(mask[order].view(np.uint8), starts, axis=0, dtype=counts.dtype)


def largest_columns(values: Array, count: int) -> Array:
    """Return the columns of the ``count`` largest entries of each row, in no order."""
    if is_torch_array(values):
        return values.topk(count, dim=1, sorted=False).indices
    return np.argpartition(values, values.shape[1] - count, axis=1)[:, values.shape[1] - count :]


def count_groups(groups: Array, n_groups: int, weights: Array | None = None) -> Array:
    """Count the members of each of ``n_groups`` groups, or sum their ``weights``."""
    return namespace(groups).bincount(groups, weights=weights, minlength=n_groups)


def count_true(mask: Array, axis: int) -> Array:
    """Count the true entries of a boolean matrix along ``axis``."""
    if is_numpy_array(mask):
        # Summing the bytes is several times faster than counting booleans along an axis.
        return np.add.reduce(mask.view(np.uint8), axis=axis, dtype=np.uint32).astype(np.int64)
    return namespace(mask).count_nonzero(mask, axis=axis)


def eigh_descending(matrix: Array) -> tuple[Array, Array]:
    """Return the eigenvalues of a symmetric ``matrix``, largest first, and its eigenvectors as columns."""
    if is_numpy_array(matrix):
        # Divide and conquer ("evd" here, "gesdd" below) is several times faster than LAPACK's other drivers.
        # NumPy's releases the interpreter lock, so that two can run at a time; in float32 SciPy's is faster.
        if matrix.dtype == np.float64:
            values, vectors = np.linalg.eigh(matrix)
        else:
            import scipy.linalg

            values, vectors = scipy.linalg.eigh(matrix, driver="evd", check_finite=False)
        return values[::-1].copy(), np.ascontiguousarray(vectors[:, ::-1])
    xp = namespace(matrix)
    values, vectors = xp.linalg.eigh(matrix)
    return xp.flip(values), xp.flip(vectors, axis=1)


def svd(matrix: Array) -> tuple[Array, Array, Array]:
    """Return the thin SVD ``P, sigma, Qt`` with ``matrix = P @ diag(sigma) @ Qt``."""
    if is_numpy_array(matrix):
        import scipy.linalg

        try:
            if matrix.dtype == np.float64:
                return np.linalg.svd(matrix, full_matrices=False)
            return scipy.linalg.svd(matrix, full_matrices=False, check_finite=False)  # type: ignore[no-any-return]
        except np.linalg.LinAlgError:
            # gesdd fails to converge on rare matrices; gesvd is slower but converges.
            return scipy.linalg.svd(  # type: ignore[no-any-return]
                matrix, full_matrices=False, check_finite=False, lapack_driver="gesvd"
            )
    xp = namespace(matrix)
    return xp.linalg.svd(matrix, full_matrices=False)  # type: ignore[no-any-return]
