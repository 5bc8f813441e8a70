"""Spectral filters: how much of each singular direction a regularised model believes (Theorem 1.3)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import InputError, check_number

Floats: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

NAMES = ("tikhonov", "tsvd", "guided")


def g_soft(sigma: Array, alpha: float) -> Array:
    r"""Soft filter :math:`\sigma / \sqrt{\sigma^2 + \alpha^2}`: Tikhonov with :math:`\gamma = \alpha^2`."""
    xp = namespace(sigma)
    scale = xp.sqrt(sigma * sigma + alpha * alpha)
    return sigma / xp.where(scale > 0, scale, 1.0)


def g_hard(sigma: Array, alpha: float) -> Array:
    r"""Hard filter, 1 where :math:`\sigma \ge \alpha` and 0 elsewhere: truncated SVD."""
    xp = namespace(sigma)
    return xp.astype(sigma >= alpha, sigma.dtype)


@runtime_checkable
class Filter(Protocol):
    """A regularisation of one view, in terms of that view's singular values."""

    def denominators(self, s: Array) -> Array:
        """What takes the place of σ² in the inverse covariance, for the directions that are kept."""
        ...

    def response(self, s: Array) -> Array:
        """The filter on every singular value: how much of each direction is kept, from 0 to 1."""
        ...


@dataclass(frozen=True)
class Tikhonov:
    """Soft filter: σ² becomes σ² + γ in every direction. γ is in units of XᵀX, a sum over pairs."""

    gamma: float

    def __post_init__(self) -> None:
        """Refuse what is not a regularisation."""
        gamma = check_number(self.gamma, "γ (Tikhonov)")
        if not 0.0 <= gamma < float("inf"):
            raise InputError(f"γ={self.gamma} is not a Tikhonov parameter; give a finite number, 0 or above.")
        object.__setattr__(self, "gamma", gamma)

    def __str__(self) -> str:
        """For tables."""
        return f"γ = {self.gamma:.4g}"

    def denominators(self, s: Array) -> Array:
        """σ² + γ."""
        return s * s + self.gamma

    def response(self, s: Array) -> Array:
        """``g_soft`` at α = √γ."""
        return g_soft(s, self.gamma**0.5)


@dataclass(frozen=True)
class TruncatedSVD:
    """Hard filter: the first k directions are kept as they are, the others dropped."""

    k: int

    def __post_init__(self) -> None:
        """Refuse what is not a number of directions."""
        k = check_number(self.k, "k (truncated SVD)")
        if not 1 <= k < float("inf") or k != int(k):
            raise InputError(f"k={self.k} is not a number of directions; give a whole number, 1 or above.")
        object.__setattr__(self, "k", int(k))

    def __str__(self) -> str:
        """For tables."""
        return f"k = {self.k}"

    def denominators(self, s: Array) -> Array:
        """σ² of the first k directions."""
        self._check(s)
        return s[: self.k] * s[: self.k]

    def response(self, s: Array) -> Array:
        """1 for the first k directions, 0 for the others: ``g_hard`` at α = σ_k."""
        self._check(s)
        xp = namespace(s)
        return xp.astype(xp.arange(s.shape[0]) < self.k, s.dtype)

    def _check(self, s: Array) -> None:
        if self.k > s.shape[0]:
            raise InputError(f"k={self.k} is beyond the rank of its view, {s.shape[0]}; give at most that.")


@dataclass(frozen=True)
class SpectralFilter:
    r"""A family of spectral filters, one for each value of a parameter (Theorem 1.3).

    A regularised model has :math:`V g_p(S^2) V^\top` in the place of the inverse :math:`(X^\top X)^{-1} =
    V S^{-2} V^\top`, and :math:`V \sqrt{g_p(S^2)}` in the place of its root. Tikhonov is
    :math:`g_\gamma(\sigma^2) = 1/(\sigma^2+\gamma)`. ``AWCCA(filter=…)`` takes one of these, or the function
    ``weights`` alone; everything but ``selection="leave-one-out"`` works with any of them.

    Parameters
    ----------
    weights
        ``weights(squares, parameter)`` gives :math:`g_p(\sigma^2)` for the squared singular values of a view
        (NumPy, descending): finite numbers, 0 or above, not all of them 0.
    grid
        ``grid(squares, points)`` gives the parameters to try. Without it ``AWCCA(grid=…)`` needs one array of
        parameters for each view.
    name
        What the filter is called in tables and in saved models; by default the name of ``weights``.
    per_pair
        Whether the parameter is in units of XᵀX, as γ is, and so has to grow with the number of pairs when a
        model is refitted on more of them.

    Notes
    -----
    A saved model keeps its canonical weights, the name and the parameters, but not the function: it
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
        """Refuse what is no filter."""
        if not all(each is None or callable(each) for each in (self.weights, self.grid)):
            raise InputError("a SpectralFilter needs functions for weights and grid; see its documentation.")
        if not self.name:
            object.__setattr__(self, "name", getattr(self.weights, "__name__", "filter"))

    def __str__(self) -> str:
        """For tables."""
        return self.name

    def function(self) -> Callable[[Floats, float], Any]:
        """Return ``weights``, which a loaded model does not have."""
        if self.weights is None:
            raise InputError(
                f"the function of the filter {self.name!r} is not saved with a model; to fit it again, give "
                "the filter again: model.set_params(filter=…)."
            )
        return self.weights

    def weigh(self, squares: Floats, parameter: float) -> Floats:
        """Return the checked weights of a parameter."""
        weights = self.function()
        found = np.asarray(weights(squares, parameter), dtype=np.float64)
        if found.shape != squares.shape:
            raise InputError(
                f"the filter {self.name!r} gave weights of shape {found.shape} for {len(squares)} squared "
                "singular values; give one weight for each."
            )
        if not np.all(np.isfinite(found)) or np.any(found < 0.0) or not np.any(found):
            raise InputError(
                f"the filter {self.name!r} at {parameter:g} gave weights that are negative, not finite or "
                "all 0; a weight takes the place of 1/σ²."
            )
        return found


@dataclass(frozen=True)
class CustomFilter:
    """A ``SpectralFilter`` at one value of its parameter."""

    filter: SpectralFilter
    parameter: float

    def __post_init__(self) -> None:
        """Refuse what is not a number."""
        object.__setattr__(self, "parameter", check_number(self.parameter, f"the parameter of {self.filter}"))

    def __str__(self) -> str:
        """For tables."""
        return f"{self.filter} at {self.parameter:.4g}"

    def denominators(self, s: Array) -> Array:
        """Return 1/g(σ²), infinite for a direction that is dropped."""
        weights = self._weights(s)
        infinite = np.full_like(weights, np.inf)
        return move_like(np.divide(1.0, weights, out=infinite, where=weights > 0), s, dtype=s.dtype)

    def response(self, s: Array) -> Array:
        """Return σ·√g(σ²)."""
        return s * move_like(np.sqrt(self._weights(s)), s, dtype=s.dtype)

    def _weights(self, s: Array) -> Floats:
        return self.filter.weigh(to_numpy(s).astype(np.float64) ** 2, self.parameter)


AnyFilter: TypeAlias = Tikhonov | TruncatedSVD | CustomFilter


def check_filter(given: Any) -> None:
    """Refuse what is neither the name of a filter nor a filter."""
    if not isinstance(given, SpectralFilter) and not callable(given) and given not in NAMES:
        raise InputError(
            f"filter={given!r} is unknown; choose one of {', '.join(map(repr, NAMES))}, or give a "
            "SpectralFilter or a function of squared singular values and a parameter."
        )


def custom_filter(given: Any) -> SpectralFilter | None:
    """Return ``AWCCA(filter=…)`` as a ``SpectralFilter``; None if it is a name."""
    if isinstance(given, str):
        return None
    return given if isinstance(given, SpectralFilter) else SpectralFilter(given)


def named_filters(name: Any, params: tuple[Any, Any], s_x: Array, s_y: Array) -> tuple[AnyFilter, AnyFilter]:
    """The filters of both views at ``params``, by the name of the regularisation, or of a ``SpectralFilter``.

    ``"guided"`` reads the γ that stands for a truncated SVD at k off the spectra: γ = σ²_k (Algorithm 4).
    """
    custom = custom_filter(name)
    if custom is not None:
        return CustomFilter(custom, params[0]), CustomFilter(custom, params[1])
    if name == "tikhonov":
        return Tikhonov(params[0]), Tikhonov(params[1])
    hard = TruncatedSVD(params[0]), TruncatedSVD(params[1])
    smallest = float(hard[0].denominators(s_x)[-1]), float(hard[1].denominators(s_y)[-1])
    return hard if name == "tsvd" else (Tikhonov(smallest[0]), Tikhonov(smallest[1]))
