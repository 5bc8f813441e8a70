"""Spectral filters: how much of each singular direction a regularised model believes (Theorem 1.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

from diptych.arrays import Array, namespace
from diptych.checks import InputError


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
        gamma = as_number(self.gamma, "γ (Tikhonov)")
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
        k = as_number(self.k, "k (truncated SVD)")
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


AnyFilter: TypeAlias = Tikhonov | TruncatedSVD


def as_number(value: Any, name: str) -> float:
    """``value`` as a float."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InputError(f"{name} is {value!r}; give a number.") from None


def named_filters(name: str, params: tuple[Any, Any], s_x: Array, s_y: Array) -> tuple[AnyFilter, AnyFilter]:
    """The filters of both views at ``params``, by the name of the regularisation.

    ``"guided"`` reads the γ that stands for a truncated SVD at k off the spectra: γ = σ²_k (Algorithm 4).
    """
    if name == "tikhonov":
        return Tikhonov(params[0]), Tikhonov(params[1])
    hard = TruncatedSVD(params[0]), TruncatedSVD(params[1])
    smallest = float(hard[0].denominators(s_x)[-1]), float(hard[1].denominators(s_y)[-1])
    return hard if name == "tsvd" else (Tikhonov(smallest[0]), Tikhonov(smallest[1]))
