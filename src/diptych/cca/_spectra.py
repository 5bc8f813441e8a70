"""Spectra of two paired views: all that selection and models need of the training data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from array_api_compat import device

from diptych._arrays import (
    Array,
    as_dtype,
    count_groups,
    eigh_descending,
    group_sum,
    is_sparse,
    namespace,
    svd,
)
from diptych._checks import InputError, check_choice, check_pair_of_views, check_sample_weight, order_rows
from diptych._threads import map_lapack, multiply
from diptych.cca._moments import Moments, Precision
from diptych.cca._sparse import (
    SparseVectors,
    check_side,
    dual_gram,
    multiply_any,
    row_of_entries,
    scale_rows,
    shift_full_columns,
)
from diptych.cca._weighting import project

Solver: TypeAlias = Literal["auto", "gram", "svd"]
SOLVERS: tuple[Solver, ...] = ("auto", "gram", "svd")

_SMALL = 2**20  # entries of a view up to which the SVD is as good as free


@dataclass(frozen=True, eq=False)
class Spectra:
    r"""Singular values and right singular vectors of both centred views, and their cross product.

    With thin decompositions :math:`X = U_x S_x V_x^\top` and :math:`Y = U_y S_y V_y^\top` over pairs,

    .. math:: T_0 = V_x^\top X^\top Y V_y = S_x U_x^\top U_y S_y .

    Directions in which a view does not vary (constant or repeated columns, fewer pairs than columns) are
    left out: they have no weight in any model.

    Attributes
    ----------
    count
        Number of pairs.
    x_mean, y_mean
        Means over pairs; they also centre validation data and queries.
    s_x, s_y
        Singular values, descending, one per kept direction.
    v_x, v_y
        Right singular vectors as columns, features × directions; of a large sparse view with fewer rows than
        columns, ``SparseVectors``.
    t0
        The cross product :math:`T_0`, directions of X × directions of Y.
    resolution
        Relative rounding error of ``t0``; 0 for the SVD solver, whose rows and columns are each exact
        relative to their own scale.
    weight
        Total weight of the pairs; None if no weights were given.

    >>> import numpy as np
    >>> from diptych.cca import spectra
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> spectra(x, np.hstack([x, x])).ranks
    (3, 3)
    """

    count: int
    x_mean: Array
    y_mean: Array
    s_x: Array
    v_x: Array
    s_y: Array
    v_y: Array
    t0: Array
    resolution: float
    weight: float | None = None

    @property
    def total(self) -> float:
        """Total weight of the pairs: their number, if no weights were given."""
        return self.count if self.weight is None else self.weight

    @property
    def is_dense(self) -> bool:
        """Whether all singular vectors are arrays; those of a large sparse view are not."""
        return not any(isinstance(vectors, SparseVectors) for vectors in (self.v_x, self.v_y))

    @property
    def ranks(self) -> tuple[int, int]:
        """The number of directions in which each view varies."""
        return int(self.s_x.shape[0]), int(self.s_y.shape[0])


def spectra(
    x: Any,
    y: Any,
    pairing: Any = None,
    *,
    solver: Solver = "auto",
    precision: Precision = "float64",
    sample_weight: Any = None,
) -> Spectra:
    """Return the spectra of two paired views (lines 1 to 3 of Algorithm 2).

    Parameters
    ----------
    x, y, pairing
        Row j of ``y`` belongs to row ``pairing[j]`` of ``x``; None pairs row with row. A view may be sparse
        (``scipy.sparse``).
    solver
        ``"gram"`` accumulates ``Moments`` and decomposes two Gram matrices: one pass, and memory that depends
        on the number of features only. ``"svd"`` decomposes the views themselves, which resolves singular
        values below 1e-8 of the largest and costs more time and memory. ``"auto"`` takes ``"svd"`` if a view
        has fewer rows than columns or both have under a million entries, and ``"gram"`` otherwise.
    precision
        Of the moments; see ``Moments``.
    sample_weight
        One weight for each pair, that is, for each row of ``y``: 2 is the same as the pair twice, and 0 as
        without it. None: every pair has weight 1.

    >>> import numpy as np
    >>> from diptych.cca import spectra
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> bool(np.allclose(spectra(x, x).s_x, spectra(x, x, solver="gram").s_x))
    True
    """
    check_choice(solver, SOLVERS, "solver")
    sample_weight = order_rows(sample_weight, y, "sample_weight", "Y")
    x, y, pairing = check_pair_of_views(x, y, pairing, sparse=True)
    weights = check_sample_weight(sample_weight, y)
    check_some_weight(weights)
    if solver == "svd" and (is_sparse(x) or is_sparse(y)):
        raise InputError("solver='svd' decomposes dense views; give solver='auto' for a sparse one.")
    if resolve_solver(solver, tuple(x.shape), tuple(y.shape)) == "svd":
        return _spectra_from_views(x, y, pairing, weights)
    return spectra_from_moments(Moments.of(x, y, pairing, precision=precision, sample_weight=weights))


def check_some_weight(weights: Array | None) -> None:
    if weights is not None and not bool(namespace(weights).any(weights > 0)):
        raise InputError("every sample weight is zero, so no pair is left; give some a weight above zero.")


def resolve_solver(solver: Solver, x_shape: tuple[int, int], y_shape: tuple[int, int]) -> Solver:
    """Return the solver that ``"auto"`` stands for at these shapes."""
    if solver != "auto":
        return solver
    wide = any(rows < columns for rows, columns in (x_shape, y_shape))
    small = all(rows * columns <= _SMALL for rows, columns in (x_shape, y_shape))
    return "svd" if wide or small else "gram"


Axes: TypeAlias = tuple[Array, Array]
"""Singular values and right singular vectors of one view, as in ``Spectra``."""


def spectra_from_moments(moments: Moments, *, x: Axes | None = None, y: Axes | None = None) -> Spectra:
    """Return spectra by two eigendecompositions of Gram matrices, in the precision of the moments.

    ``x`` and ``y`` are those of ``decompose_gram``, if they are known already.

    >>> import numpy as np
    >>> from diptych.cca import Moments, spectra_from_moments
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> spectra_from_moments(Moments.of(x, x[:, :2])).t0.shape
    (3, 2)
    """
    if moments.count == 0:
        raise InputError("the moments contain no pairs; update them with data first.")

    def decompose(view: tuple[Axes | None, Array, str]) -> Axes:
        axes, gram, name = view
        return axes or decompose_gram(gram, moments.precision, name)

    views = [(x, moments.xx, "X"), (y, moments.yy, "Y")]
    (s_x, v_x), (s_y, v_y) = map_lapack(decompose, views, moments.xx)
    xp = namespace(v_x)
    t0 = multiply(multiply(v_x.T, xp.astype(moments.xy, v_x.dtype, copy=False)), v_y)
    epsilon = float(xp.finfo(v_x.dtype).eps)
    means = moments.x_mean, moments.y_mean
    return Spectra(moments.count, *means, s_x, v_x, s_y, v_y, t0, epsilon, moments.weight)


def decompose_gram(gram: Array, precision: Precision, name: str) -> Axes:
    """Return singular values and right singular vectors of the view ``name`` from its Gram matrix."""
    xp = namespace(gram)
    gram = xp.astype(gram, getattr(xp, precision), copy=False)
    _check_range(float(xp.max(xp.abs(gram))) ** 0.5, gram, name)
    return _from_gram(gram, float(xp.finfo(gram.dtype).eps), name)


def moments_from_spectra(spectra: Spectra, precision: Precision = "float64") -> Moments:
    r"""Return the moments of ``spectra``, up to rounding: :math:`X^\top X = V_x S_x^2 V_x^\top`.

    Directions without variance contribute nothing, so the result can be merged with the moments of new pairs.

    >>> import numpy as np
    >>> from diptych.cca import Moments, moments_from_spectra, spectra
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> bool(np.allclose(moments_from_spectra(spectra(x, x)).xx, Moments.of(x, x).xx))
    True
    """
    xp = namespace(spectra.t0)
    v_x, v_y, s_x, s_y, t0 = (
        xp.astype(xp.asarray(part), xp.float64)
        for part in (spectra.v_x, spectra.v_y, spectra.s_x, spectra.s_y, spectra.t0)
    )
    means = xp.astype(spectra.x_mean, xp.float64), xp.astype(spectra.y_mean, xp.float64)
    grams = (multiply(v_x * s_x**2, v_x.T), multiply(v_y * s_y**2, v_y.T), multiply(multiply(v_x, t0), v_y.T))
    return Moments(spectra.count, *means, *grams, precision, spectra.weight)


def _spectra_from_views(x: Array, y: Array, pairing: Array, weights: Array | None) -> Spectra:
    """Return spectra by singular value decompositions of the views themselves, in float64.

    A large sparse view is decomposed by its Gram matrix or by its inner products, whichever is smaller.
    """
    xp = namespace(x, y)
    x, y = (_dense_if_small(as_dtype(view, xp.float64)) for view in (x, y))
    x_count, n = x.shape[0], y.shape[0]
    y_weights = xp.ones(n, dtype=xp.float64, device=device(pairing)) if weights is None else weights
    x_weights = xp.astype(count_groups(pairing, x_count, weights), xp.float64)
    views = [(x, x_weights, "X"), (y, y_weights, "Y")]
    (x_mean, a, s_x, v_x), (y_mean, b, s_y, v_y) = map_lapack(
        lambda view: decompose_view(*view), views, y_weights
    )
    a = project(x, x_mean, v_x) if a is None else a
    if b is None:
        # The coordinates of many rows of Y would take as much memory as the dense view.
        rows, shift = shift_full_columns(y, y_mean)
        sums = multiply_any(group_sum(scale_rows(rows, y_weights), pairing, x_count), v_y)
        sums = sums - xp.multiply.outer(x_weights, (y_mean - shift) @ v_y)
    else:
        sums = group_sum(b if weights is None else b * y_weights[:, None], pairing, x_count)
    t0 = multiply(a.T, sums)
    count = n if weights is None else int(xp.count_nonzero(weights))
    total = None if weights is None else float(xp.sum(weights))
    resolution = float(xp.finfo(t0.dtype).eps) if is_sparse(x) or is_sparse(y) else 0.0
    return Spectra(count, x_mean, y_mean, s_x, v_x, s_y, v_y, t0, resolution, total)


def _dense_if_small(view: Array) -> Array:
    return view.toarray() if is_sparse(view) and view.shape[0] * view.shape[1] <= _SMALL else view


def _from_gram(gram: Array, epsilon: float, name: str, uncentred: float = 0.0) -> tuple[Array, Array]:
    """Return singular values and vectors; ``uncentred``: the largest entry before centring."""
    xp = namespace(gram)
    values, vectors = eigh_descending(gram)
    # float32 moments are rounded once per sum, so their error grows far slower than the dimension.
    slack = gram.shape[0] if epsilon < 1e-10 else 16
    noise = slack * epsilon * max(float(values[0]), uncentred)
    _check_varies(float(values[0]) if float(values[0]) > noise else 0.0, name)
    rank = int(xp.count_nonzero(values > noise))
    return xp.sqrt(values[:rank]), vectors[:, :rank]


def decompose_view(view: Array, weights: Array, name: str) -> tuple[Array, Array | None, Array, Array]:
    """Return the mean, the coordinates of the rows (or None), singular values and right singular vectors.

    They are those of the centred rows, multiplied by the roots of their weights; coordinates are
    ``(view − mean) @ vectors``, and 0 for a row without weight.
    """
    if is_sparse(view):
        return _from_sparse_view(view, weights, name)
    xp = namespace(view)
    _check_range(float(xp.max(xp.abs(view))), view, name)
    total = xp.sum(weights)
    mean = (weights @ view) / total
    # A second subtraction removes what rounding left of a large mean.
    view = view - mean
    rest = (weights @ view) / total
    root = xp.sqrt(weights)[:, None]
    view, mean = (view - rest) * root, mean + rest
    u, s, vt = svd(view)
    epsilon = float(xp.finfo(view.dtype).eps)
    # Centring leaves rounding noise of the size of the mean.
    noise = epsilon * float(xp.max(xp.abs(mean))) * float(total) ** 0.5
    top = float(s[0])
    _check_varies(top if top > 4 * noise else 0.0, name)
    rank = int(xp.count_nonzero(s > max(max(view.shape) * epsilon * top, 4 * noise)))
    u, s = xp.where(root > 0, u[:, :rank] / xp.where(root > 0, root, 1.0), 0.0), s[:rank]
    return mean, u * s, s, vt[:rank, :].T


def _from_sparse_view(view: Array, weights: Array, name: str) -> tuple[Array, Array | None, Array, Any]:
    _check_range(float(np.max(np.abs(view.data), initial=0.0)), view, name)
    if view.shape[1] <= view.shape[0]:
        moments = Moments.of(view, view[:, :1], sample_weight=weights)
        return moments.x_mean, None, *decompose_gram(moments.xx, "float64", name)
    check_side(view, view.shape[0], name)
    total = np.sum(weights)
    # Rows without weight might lack an entry in a column that is full otherwise.
    used = weights > 0
    rows, shift = shift_full_columns(view[used, :], (weights @ view) / total)
    mean, root = (weights[used] @ rows) / total, np.sqrt(weights[used])[:, None]
    gram = dual_gram(rows, mean)
    gram *= root
    gram *= root.T
    squares = np.bincount(row_of_entries(rows), rows.data**2, minlength=len(root)) * weights[used]
    s, u = _from_gram(gram, float(np.finfo(np.float64).eps), name, float(np.max(squares)))
    coordinates = np.zeros((view.shape[0], len(s)))
    coordinates[used, :] = u * s / root
    return shift + mean, coordinates, s, SparseVectors(rows, mean, root * u / s)


def _check_range(largest: float, like: Array, name: str) -> None:
    # Singular values are squared, multiplied by those of the other view and divided by: leave room for that.
    limit = 1e-8 * float(namespace(like).finfo(like.dtype).max) ** 0.5
    if not largest < limit:
        raise InputError(
            f"{name} has values so large that their squares overflow; keep them below {limit:.0e}, for "
            "example by dividing the whole view by a constant."
        )
    if 0.0 < largest < 1.0 / limit:
        raise InputError(
            f"{name} has only values so small that their squares are rounded to 0; bring the largest above "
            f"{1.0 / limit:.0e}, for example by multiplying the whole view by a constant."
        )


def _check_varies(top: float, name: str) -> None:
    if not top > 0.0:
        raise InputError(
            f"every row of {name} is the same, so nothing can correlate with it; give rows that differ."
        )
