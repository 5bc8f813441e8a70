r"""Regularisation from theory, for when nothing can be selected: covariances shrunk towards a sphere.

Shrinkage estimates the covariance of p features from n rows as :math:`(1-\delta) S + \delta\mu I`, with S the
empirical covariance (divided by n) and :math:`\mu = \mathrm{tr}\,S / p`. Up to a factor, which changes no
correlation, that is Tikhonov with

.. math:: \gamma = N \mu \frac{\delta}{1-\delta}

in units of a sum over N pairs. Theory gives δ from the data alone: Ledoit and Wolf (2004) for any
distribution, Chen, Wiesel and Hero (2010) better still for a Gaussian (OAS). Both aim at a covariance that is
near the true one, not at retrieval.

The spectra: all that anyone needs of the training data after the one pass over it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from diptych._arrays import Array, count_groups, eigh_descending, group_sum, namespace, svd
from diptych._checks import InputError, check_choice, check_pair_of_views
from diptych.cca._moments import Moments, Precision

Shrinkage: TypeAlias = Literal["ledoit-wolf", "oas"]
SHRINKAGES: tuple[Shrinkage, ...] = ("ledoit-wolf", "oas")


def ledoit_wolf(rows: Array) -> float:
    r"""Ledoit and Wolf's δ of ``rows``.

    .. math:: \delta = \min\Big(1, \frac{\tfrac1{n^2}\sum_i \|x_i x_i^\top - S\|^2}{\|S - \mu I\|^2}\Big)
    """
    xp = namespace(rows)
    n, p = rows.shape
    centred = rows - xp.mean(rows, axis=0)
    squares = xp.sum(centred * centred, axis=1)
    trace = float(xp.sum(squares)) / n
    frobenius = _gram_square(centred) / n**2
    distance = frobenius - trace**2 / p
    noise = (float(xp.sum(squares * squares)) / n - frobenius) / n
    return 0.0 if noise <= 0 else min(1.0, noise / distance) if distance > 0 else 1.0


def oas(trace: float, square: float, n: int, p: int) -> float:
    r"""The oracle-approximating δ, from ``trace`` = tr S and ``square`` = tr S² alone.

    .. math:: \delta = \min\Big(1, \frac{\alpha + \mu^2}{(n+1)(\alpha - \mu^2/p)}\Big),
              \qquad \alpha = \mathrm{tr}S^2/p^2, \quad \mu = \mathrm{tr}S/p
    """
    alpha, mu = square / p**2, trace / p
    denominator = (n + 1.0) * (alpha - mu**2 / p)
    return min(1.0, (alpha + mu**2) / denominator) if denominator > 0 else 1.0


def shrunk_gammas(x: Array, y: Array, pairing: Array, kind: str) -> tuple[float, float]:
    """γ's of both views by shrinkage; δ is that of the rows of each view, an image counting once."""
    check_choice(kind, SHRINKAGES, "selection")
    xp = namespace(x, y)
    described = count_groups(pairing, x.shape[0]) > 0
    pairs = int(y.shape[0])
    return _gamma(x[xp.nonzero(described)[0], :], pairs, kind), _gamma(y, pairs, kind)


def _gamma(rows: Array, pairs: int, kind: str) -> float:
    xp = namespace(rows)
    n, p = (int(size) for size in rows.shape)
    rows = xp.astype(rows, xp.float64, copy=False)
    centred = rows - xp.mean(rows, axis=0)
    trace = float(xp.sum(centred * centred)) / n
    square = _gram_square(centred) / n**2
    delta = oas(trace, square, n, p) if kind == "oas" else ledoit_wolf(rows)
    # δ = 1 is a sphere and γ = ∞; from here on a larger γ ranks no differently.
    delta = min(delta, 1.0 - 1e-6)
    return pairs * trace / p * delta / (1.0 - delta)


def _gram_square(centred: Array) -> float:
    """‖XᵀX‖², through whichever of XᵀX and XXᵀ is the smaller: their norms are equal."""
    xp = namespace(centred)
    gram = centred.T @ centred if centred.shape[1] <= centred.shape[0] else centred @ centred.T
    return float(xp.sum(gram * gram))


Solver: TypeAlias = Literal["auto", "gram", "svd"]
SOLVERS: tuple[Solver, ...] = ("auto", "gram", "svd")

_SMALL = 2**20  # entries of a view below which the SVD costs nothing worth saving


@dataclass(frozen=True, eq=False)
class Spectra:
    r"""Singular values and right singular vectors of both centred views, and their cross product.

    With thin decompositions :math:`X = U_x S_x V_x^\top` and :math:`Y = U_y S_y V_y^\top` over pairs,

    .. math:: T_0 = V_x^\top X^\top Y V_y = S_x U_x^\top U_y S_y .

    Directions in which a view does not vary (constant or repeated columns, fewer pairs than columns)
    are left out: they carry no weight in any model.

    Attributes
    ----------
    count
        Number of pairs.
    x_mean, y_mean
        Means over pairs; they centre validation data and queries too.
    s_x, s_y
        Singular values, descending, one per kept direction.
    v_x, v_y
        Right singular vectors as columns, features × directions.
    t0
        The cross product :math:`T_0`, directions of X × directions of Y.
    resolution
        Relative rounding error of ``t0``; 0 where each of its rows and columns is as exact as its own
        scale (the SVD solver).
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

    @property
    def ranks(self) -> tuple[int, int]:
        """Number of directions in which each view varies."""
        return int(self.s_x.shape[0]), int(self.s_y.shape[0])


def spectra(
    x: Any, y: Any, pairing: Any = None, *, solver: Solver = "auto", precision: Precision = "float64"
) -> Spectra:
    """Spectra of two paired views.

    ``solver="gram"`` accumulates ``Moments`` and takes two eigendecompositions: one pass, memory bounded
    by the dimensions. ``"svd"`` decomposes the views themselves, which keeps singular values below
    1e-8 of the largest and costs more time and memory. ``"auto"`` takes the SVD when a view has fewer
    rows than columns, or when both have under a million entries, and the Gram matrices otherwise.
    """
    check_choice(solver, SOLVERS, "solver")
    x, y, pairing = check_pair_of_views(x, y, pairing)
    if resolve_solver(solver, tuple(x.shape), tuple(y.shape)) == "svd":
        return spectra_from_arrays(x, y, pairing)
    return spectra_from_moments(Moments.of(x, y, pairing, precision=precision))


def resolve_solver(solver: Solver, x_shape: tuple[int, int], y_shape: tuple[int, int]) -> Solver:
    """The solver that ``"auto"`` stands for at these shapes."""
    if solver != "auto":
        return solver
    wide = any(rows < columns for rows, columns in (x_shape, y_shape))
    small = all(rows * columns <= _SMALL for rows, columns in (x_shape, y_shape))
    return "svd" if wide or small else "gram"


def spectra_from_moments(moments: Moments) -> Spectra:
    """Spectra by two eigendecompositions of Gram matrices, in the precision of the moments."""
    if moments.count == 0:
        raise InputError("the moments hold no pairs; update them with data first.")
    xp = namespace(moments.xx)
    dtype = getattr(xp, moments.precision)
    epsilon = float(xp.finfo(dtype).eps)
    xx, yy, xy = (xp.astype(gram, dtype, copy=False) for gram in (moments.xx, moments.yy, moments.xy))
    for gram, name in ((xx, "X"), (yy, "Y")):
        _check_range(float(xp.max(xp.abs(gram))) ** 0.5, gram, name)
    s_x, v_x = _from_gram(xx, epsilon, "X")
    s_y, v_y = _from_gram(yy, epsilon, "Y")
    t0 = (v_x.T @ xy) @ v_y
    return Spectra(moments.count, moments.x_mean, moments.y_mean, s_x, v_x, s_y, v_y, t0, epsilon)


def moments_from_spectra(spectra: Spectra, precision: Precision = "float64") -> Moments:
    r"""The moments that ``spectra`` came from, to rounding: :math:`X^\top X = V_x S_x^2 V_x^\top`.

    Directions without variance contribute nothing, so a model of these can be merged with new pairs.
    """
    xp = namespace(spectra.t0)
    v_x, v_y, s_x, s_y, t0 = (
        xp.astype(part, xp.float64)
        for part in (spectra.v_x, spectra.v_y, spectra.s_x, spectra.s_y, spectra.t0)
    )
    wide = xp.astype(spectra.x_mean, xp.float64), xp.astype(spectra.y_mean, xp.float64)
    grams = (v_x * s_x**2) @ v_x.T, (v_y * s_y**2) @ v_y.T, v_x @ t0 @ v_y.T
    return Moments(spectra.count, *wide, *grams, precision)


def spectra_from_arrays(x: Any, y: Any, pairing: Any = None) -> Spectra:
    """Spectra by singular value decompositions of the views themselves (float64)."""
    x, y, pairing = check_pair_of_views(x, y, pairing)
    xp = namespace(x, y)
    x, y = xp.astype(x, xp.float64), xp.astype(y, xp.float64)
    n_images, n = x.shape[0], y.shape[0]
    for view, name in ((x, "X"), (y, "Y")):
        _check_range(float(xp.max(xp.abs(view))), view, name)
    weights = xp.astype(count_groups(pairing, n_images), xp.float64)
    described = weights > 0
    x_mean, y_mean = (weights @ x) / n, xp.mean(y, axis=0)
    # A second subtraction takes away what rounding left of a large mean.
    x, y = x - x_mean, y - y_mean
    x_rest, y_rest = (weights @ x) / n, xp.mean(y, axis=0)
    x, y, x_mean, y_mean = x - x_rest, y - y_rest, x_mean + x_rest, y_mean + y_rest
    root = xp.sqrt(weights)[:, None]
    u_x, s_x, v_x = _from_view(x * root, x_mean, "X")
    u_y, s_y, v_y = _from_view(y, y_mean, "Y")
    # Row i of √C·U_x stands for c_i equal rows of U over pairs, each 1/√c_i of it.
    u_x = xp.where(described[:, None], u_x / xp.where(described[:, None], root, 1.0), 0.0)
    t0 = s_x[:, None] * (u_x.T @ group_sum(u_y, pairing, n_images)) * s_y
    return Spectra(n, x_mean, y_mean, s_x, v_x, s_y, v_y, t0, 0.0)


def _from_gram(gram: Array, epsilon: float, name: str) -> tuple[Array, Array]:
    xp = namespace(gram)
    values, vectors = eigh_descending(gram)
    _check_varies(float(values[0]), name)
    # In float32 only rounding of whole sums is at stake, which grows far slower than the dimension.
    slack = gram.shape[0] if epsilon < 1e-10 else 16
    rank = int(xp.count_nonzero(values > slack * epsilon * values[0]))
    return xp.sqrt(values[:rank]), vectors[:, :rank]


def _from_view(view: Array, mean: Array, name: str) -> tuple[Array, Array, Array]:
    xp = namespace(view)
    u, s, vt = svd(view)
    epsilon = float(xp.finfo(view.dtype).eps)
    # Centring leaves rounding noise of the size of the mean.
    noise = epsilon * float(xp.max(xp.abs(mean))) * view.shape[0] ** 0.5
    top = float(s[0])
    _check_varies(top if top > 4 * noise else 0.0, name)
    rank = int(xp.count_nonzero(s > max(max(view.shape) * epsilon * top, 4 * noise)))
    return u[:, :rank], s[:rank], vt[:rank, :].T


def _check_range(largest: float, like: Array, name: str) -> None:
    # Singular values are squared, multiplied with the other view's and divided by: leave them room.
    limit = 1e-8 * float(namespace(like).finfo(like.dtype).max) ** 0.5
    if not largest < limit:
        raise InputError(
            f"{name} has values so large that their squares overflow; keep them below {limit:.0e}, for "
            "example by dividing the whole view by a constant."
        )


def _check_varies(top: float, name: str) -> None:
    if not top > 0.0:
        raise InputError(
            f"every row of {name} is the same, so nothing can correlate with it; give rows that vary."
        )
