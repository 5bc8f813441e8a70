"""Spectral filters: how much of each singular direction a regularised model keeps (Theorem 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
from array_api_compat import device

from diptych._arrays import Array, Floats, count_groups, move_like, namespace, to_numpy
from diptych._checks import InputError, check_number

NAMES = ("tikhonov", "tsvd", "guided")

Shrinkage: TypeAlias = Literal["ledoit-wolf", "oas"]
SHRINKAGES: tuple[Shrinkage, ...] = ("ledoit-wolf", "oas")


def g_soft(sigma: Array, alpha: float) -> Array:
    r"""Return the soft filter :math:`\sigma / \sqrt{\sigma^2 + \alpha^2}`.

    It is Tikhonov regularisation with :math:`\gamma = \alpha^2` (equation 8).

    >>> import numpy as np
    >>> g_soft(np.array([4.0, 3.0]), 3.0).round(3)
    array([0.8  , 0.707])
    """
    xp = namespace(sigma)
    scale = xp.sqrt(sigma * sigma + alpha * alpha)
    return sigma / xp.where(scale > 0, scale, 1.0)


def g_hard(sigma: Array, alpha: float) -> Array:
    r"""Return the hard filter, 1 where :math:`\sigma \ge \alpha` and 0 elsewhere.

    It is the truncated SVD at the k with :math:`\sigma_k = \alpha` (equation 9).

    >>> import numpy as np
    >>> g_hard(np.array([4.0, 3.0, 1.0]), 3.0)
    array([1., 1., 0.])
    """
    return namespace(sigma).astype(sigma >= alpha, sigma.dtype)


@dataclass(frozen=True)
class Tikhonov:
    """Soft filter: σ² becomes σ² + γ in every direction (Theorem 1.1).

    γ is in units of XᵀX, a sum over pairs, so it grows with the number of pairs.

    >>> import numpy as np
    >>> Tikhonov(2.0).denominators(np.array([3.0, 1.0]))
    array([11.,  3.])
    """

    gamma: float

    def __post_init__(self) -> None:
        gamma = check_number(self.gamma, "γ (Tikhonov)")
        if not 0.0 <= gamma < float("inf"):
            raise InputError(f"γ={self.gamma} is not a Tikhonov parameter; give a finite number, 0 or above.")
        object.__setattr__(self, "gamma", gamma)

    def __str__(self) -> str:
        return f"γ = {self.gamma:.4g}"

    def denominators(self, s: Array) -> Array:
        """Return σ² + γ, which replaces σ² in the inverse covariance."""
        return s * s + self.gamma


@dataclass(frozen=True)
class Isotropic(Tikhonov):
    """The limit of Tikhonov's filter for large γ: every σ² becomes γ, which leaves partial least squares.

    >>> import numpy as np
    >>> Isotropic(2.0).denominators(np.array([3.0, 1.0]))
    array([2., 2.])
    """

    def __str__(self) -> str:
        return "γ → ∞"

    def denominators(self, s: Array) -> Array:
        """Return γ for every direction."""
        return namespace(s).full_like(s, self.gamma)


@dataclass(frozen=True)
class TruncatedSVD:
    """Hard filter: the first k directions are kept unchanged, the others dropped (Theorem 1.2).

    >>> import numpy as np
    >>> TruncatedSVD(1).denominators(np.array([3.0, 1.0]))
    array([9.])
    """

    k: int

    def __post_init__(self) -> None:
        k = check_number(self.k, "k (truncated SVD)")
        if not 1 <= k < float("inf") or k != int(k):
            raise InputError(f"k={self.k} is not a number of directions; give a whole number, 1 or above.")
        object.__setattr__(self, "k", int(k))

    def __str__(self) -> str:
        return f"k = {self.k}"

    def denominators(self, s: Array) -> Array:
        """Return σ² of the first k directions."""
        if self.k > s.shape[0]:
            raise InputError(f"k={self.k} is beyond the rank of its view, {s.shape[0]}; give at most that.")
        return s[: self.k] * s[: self.k]


@dataclass(frozen=True)
class SpectralFilter:
    r"""A family of spectral filters, one for each value of a parameter (Theorem 1.3).

    A regularised model has :math:`V g_p(S^2) V^\top` in place of the inverse :math:`(X^\top X)^{-1} =
    V S^{-2} V^\top`, and :math:`V \sqrt{g_p(S^2)}` in place of its root. Tikhonov is
    :math:`g_\gamma(\sigma^2) = 1/(\sigma^2+\gamma)`. Pass one to ``AWCCA(filter=…)``, or the function
    ``weights`` alone; everything but ``selection="leave-one-out"`` works with it.

    Parameters
    ----------
    weights
        ``weights(squares, parameter)`` returns :math:`g_p(\sigma^2)` for the squared singular values of a
        view (NumPy, descending): finite numbers, 0 or above, not all of them 0.
    grid
        ``grid(squares, points)`` returns the parameters to try. Without it ``AWCCA(grid=…)`` needs one array
        of parameters for each view.
    name
        Name in tables and in saved models; by default the name of ``weights``.
    per_pair
        Whether the parameter is in units of XᵀX, as γ is, and so has to grow with the number of pairs when a
        model is refitted on more of them.

    Notes
    -----
    A saved model contains its canonical weights, the name and the parameters, but not the function: it
    transforms and searches; to fit it again, give the filter again with ``set_params(filter=…)``.

    Examples
    --------
    Landweber iteration, that is gradient descent on least squares, stopped after t steps of the size 1/σ₁²:

    >>> import numpy as np
    >>> from diptych import AWCCA
    >>> from diptych.cca import SpectralFilter
    >>> def landweber(squares, t):
    ...     return (1 - (1 - squares / squares[0]) ** t) / squares
    >>> early_stopping = SpectralFilter(landweber, grid=lambda squares, points: 2 ** np.arange(points))
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(100, 6))
    >>> model = AWCCA(filter=early_stopping, grid=8).fit(x, x[:, :4] + 0.1)
    >>> print(model.models_["search"].filter_x)  # doctest: +SKIP
    landweber at 128
    """

    weights: Callable[[Floats, float], Any] | None
    grid: Callable[[Floats, int], Any] | None = None
    name: str = ""
    per_pair: bool = False

    def __post_init__(self) -> None:
        if not all(function is None or callable(function) for function in (self.weights, self.grid)):
            raise InputError("a SpectralFilter needs functions for weights and grid; see its documentation.")
        if not self.name:
            object.__setattr__(self, "name", getattr(self.weights, "__name__", "filter"))

    def __str__(self) -> str:
        return self.name

    def check_function(self) -> Callable[[Floats, float], Any]:
        """Return ``weights``; raise an error for the filter of a loaded model, which has no function."""
        if self.weights is None:
            raise InputError(
                f"the function of the filter {self.name!r} is not saved with a model; to fit it again, give "
                "the filter again: model.set_params(filter=…)."
            )
        return self.weights

    def evaluate(self, squares: Floats, parameter: float) -> Floats:
        """Return the weights at a parameter, checked."""
        weights = np.asarray(self.check_function()(squares, parameter), dtype=np.float64)
        if weights.shape != squares.shape:
            raise InputError(
                f"the filter {self.name!r} returned weights of shape {weights.shape} for {len(squares)} "
                "squared singular values; return one weight for each."
            )
        if not np.all(np.isfinite(weights)) or np.any(weights < 0.0) or not np.any(weights):
            raise InputError(
                f"the filter {self.name!r} at {parameter:g} returned weights that are negative, not finite "
                "or all 0; return weights that can replace 1/σ²."
            )
        return weights


@dataclass(frozen=True)
class CustomFilter:
    """A ``SpectralFilter`` at one value of its parameter."""

    filter: SpectralFilter
    parameter: float

    def __post_init__(self) -> None:
        number = check_number(self.parameter, f"the parameter of {self.filter}")
        object.__setattr__(self, "parameter", number)

    def __str__(self) -> str:
        return f"{self.filter} at {self.parameter:.4g}"

    def denominators(self, s: Array) -> Array:
        """Return 1/g(σ²); infinite for a direction that is dropped."""
        weights = self.filter.evaluate(to_numpy(s).astype(np.float64) ** 2, self.parameter)
        infinite = np.full_like(weights, np.inf)
        return move_like(np.divide(1.0, weights, out=infinite, where=weights > 0), s, dtype=s.dtype)


AnyFilter: TypeAlias = Tikhonov | TruncatedSVD | CustomFilter
Filters: TypeAlias = tuple[AnyFilter, AnyFilter]
"""Those of X and of Y."""


def scale_filter(filter: AnyFilter, factor: float) -> AnyFilter:
    """Return a filter for ``factor`` times as many pairs: γ is in units of a sum over pairs, k is not."""
    if isinstance(filter, Tikhonov):
        return replace(filter, gamma=filter.gamma * factor)
    if isinstance(filter, CustomFilter) and filter.filter.per_pair:
        return replace(filter, parameter=filter.parameter * factor)
    return filter


def check_filter(filter: Any) -> None:
    """Raise an error unless ``filter`` is the name of a filter, a ``SpectralFilter`` or a function."""
    if not isinstance(filter, SpectralFilter) and not callable(filter) and filter not in (*NAMES, "pls"):
        raise InputError(
            f"filter={filter!r} is unknown; choose one of {', '.join(map(repr, NAMES))}, or give a "
            "SpectralFilter or a function of squared singular values and a parameter."
        )


def custom_filter(filter: Any) -> SpectralFilter | None:
    """Return ``AWCCA(filter=…)`` as a ``SpectralFilter``; None if it is a name."""
    if isinstance(filter, str):
        return None
    return filter if isinstance(filter, SpectralFilter) else SpectralFilter(filter)


def make_filters(filter: Any, params: tuple[Any, Any], s_x: Array, s_y: Array) -> Filters:
    """Return the filters of both views for ``AWCCA(filter=…, params=…)``.

    For ``"guided"`` the params are the k of a truncated SVD, and γ = σ²_k is read from the singular values
    (line 2 of Algorithm 4).
    """
    custom = custom_filter(filter)
    if custom is not None:
        return CustomFilter(custom, params[0]), CustomFilter(custom, params[1])
    if filter == "tikhonov":
        return Tikhonov(params[0]), Tikhonov(params[1])
    if filter == "pls":  # that of ``PLS``
        return Isotropic(params[0]), Isotropic(params[1])
    hard_x, hard_y = TruncatedSVD(params[0]), TruncatedSVD(params[1])
    squares_x, squares_y = hard_x.denominators(s_x), hard_y.denominators(s_y)
    if filter == "tsvd":
        return hard_x, hard_y
    return Tikhonov(float(squares_x[-1])), Tikhonov(float(squares_y[-1]))


def shrinkage_gammas(
    x: Array, y: Array, pairing: Array, kind: str, weights: Array | None = None
) -> tuple[float, float]:
    r"""Return Tikhonov's γ of both views from theory, for data that is too small to select on.

    Shrinkage estimates the covariance of p features from n rows as :math:`(1-\delta) S + \delta\mu I`, with S
    the empirical covariance (divided by n) and :math:`\mu = \mathrm{tr}\,S / p`. Up to a factor, which
    changes no correlation, that is Tikhonov with :math:`\gamma = N \mu\, \delta/(1-\delta)` in units of a
    sum over N pairs. δ aims at a covariance that is near the true one, not at retrieval. It is computed from
    the rows of each view, where a row of X counts once; see ``shrinkage``. With ``weights`` of pairs, N is
    their total, and a row of X counts with the mean weight of its rows of Y.
    """
    xp = namespace(x, y)
    counts = count_groups(pairing, x.shape[0])
    described = xp.nonzero(counts > 0)[0]
    pairs = int(y.shape[0]) if weights is None else float(xp.sum(weights))
    x_weights = None
    if weights is not None:
        x_weights = count_groups(pairing, x.shape[0], weights)[described] / counts[described]

    def gamma(rows: Array, weights: Array | None) -> float:
        delta, mu = shrinkage(rows, kind, weights)
        # δ = 1 is a sphere, where γ = ∞; a γ beyond this limit gives the same ranking.
        delta = min(delta, 1.0 - 1e-6)
        return pairs * mu * delta / (1.0 - delta)

    return gamma(x[described, :], x_weights), gamma(y, weights)


def shrinkage(rows: Array, kind: str, weights: Array | None = None) -> tuple[float, float]:
    r"""Return the shrinkage δ of ``rows``, and μ = tr S / p; see ``shrinkage_gammas``.

    Ledoit and Wolf (2004), for any distribution, and Chen, Wiesel and Hero (2010), for a Gaussian (OAS):

    .. math:: \delta = \min\Big(1, \frac{\tfrac1{n^2}\sum_i \|x_i x_i^\top - S\|^2}{\|S - \mu I\|^2}\Big),
              \qquad
              \delta = \min\Big(1, \frac{\mathrm{tr}S^2/p^2 + \mu^2}
                                      {(n+1)(\mathrm{tr}S^2 - \mu^2 p)/p^2}\Big).

    These are scikit-learn's ``ledoit_wolf_shrinkage`` and ``oas``, on any backend and through the smaller of
    XᵀX and XXᵀ, which is far less work where features outnumber rows. A row with a weight w counts as w rows.
    """
    xp = namespace(rows)
    height, p = (int(size) for size in rows.shape)
    rows = xp.astype(rows, xp.float64, copy=False)
    if weights is None:
        weights = xp.ones(height, dtype=xp.float64, device=device(rows))
    n = float(xp.sum(weights))
    rows = rows - (weights @ rows) / n
    squares = xp.sum(rows * rows, axis=1)
    rows = rows * xp.sqrt(weights)[:, None]
    gram = rows.T @ rows if p <= height else rows @ rows.T
    mu = float(weights @ squares) / n / p
    square = float(xp.sum(gram * gram)) / n**2  # tr S² = ‖XᵀX‖²/n² = ‖XXᵀ‖²/n²
    if kind == "oas":
        noise, distance = (square + mu**2 * p**2) / (n + 1.0), square - mu**2 * p
    else:
        noise, distance = (float(weights @ (squares * squares)) / n - square) / n, square - mu**2 * p
    if noise <= 0:
        return 0.0, mu
    return (min(1.0, noise / distance) if distance > 0 else 1.0), mu
