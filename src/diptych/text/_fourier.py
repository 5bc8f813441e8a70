r"""Random Fourier features: an explicit map whose inner products approximate a Gaussian kernel.

The convention is the paper's: :math:`k_\gamma(a, b) = \exp(-\tfrac{\gamma}{2}\|a-b\|^2)`, so that the
frequencies are drawn from :math:`\mathcal N(0, \gamma I)`.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from array_api_compat import is_numpy_array
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import InputError, check_count, check_view

EXACT_MEDIAN_ROWS = 2048
"""Up to this many rows the median is over all pairs; beyond, over a seeded sample of as many rows."""

_BLOCK_ROWS = 4096


def fourier_features(x: Array, weights: Array, offsets: Array) -> Array:
    r""":math:`\Phi(x) = \sqrt{2/m}\,\cos(xW + b)`, row by row.

    Parameters
    ----------
    x
        Rows to map, n × d.
    weights
        Frequencies :math:`w_1, \dots, w_m` as columns, d × m.
    offsets
        Phases b, m.
    """
    features = x @ weights
    features += offsets
    in_place = {"out": features} if is_numpy_array(features) else {}
    features = namespace(features).cos(features, **in_place)
    features *= (2.0 / weights.shape[1]) ** 0.5
    return features


def draw_fourier(
    n_inputs: int, n_features: int, gamma: float, rng: np.random.Generator
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    r"""Frequencies :math:`W \sim \mathcal N(0, \gamma I)` (inputs × features) and phases b in [0, 2π)."""
    weights = rng.standard_normal((n_inputs, n_features), dtype=np.float32)
    weights *= np.float32(gamma**0.5)
    return weights, rng.uniform(0.0, 2.0 * np.pi, n_features).astype(np.float32)


def median_gamma(x: Array, rng: np.random.Generator, max_rows: int = EXACT_MEDIAN_ROWS) -> float:
    """1 / median² of the distances between different rows: all pairs, or those of a random sample of rows."""
    rows = to_numpy(x) if x.shape[0] <= max_rows else _sample(x, rng, max_rows)
    if len(rows) < 2:
        raise InputError(
            f"the median distance needs at least 2 different vectors, and there is {len(rows)}; "
            "give gamma a number."
        )
    rows = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    norms = np.einsum("ij,ij->i", rows, rows)
    squares = norms[:, None] + norms[None, :] - 2.0 * (rows @ rows.T)
    median = float(np.median(squares[np.triu_indices(len(rows), k=1)]))
    # Rounding leaves a trace of distance between equal rows.
    if median <= 1e-12 * float(norms.max(initial=0.0)):
        raise InputError("most of the vectors are equal, so their median distance is 0; give gamma a number.")
    return 1.0 / median


def check_gamma(gamma: object, name: str = "gamma", *, median: bool = True) -> float | Literal["median"]:
    """``gamma`` if it is a positive number, or ``"median"`` where that is allowed."""
    if median and isinstance(gamma, str) and gamma == "median":
        return "median"
    if isinstance(gamma, Real) and not isinstance(gamma, bool) and 0.0 < float(gamma) < float("inf"):
        return float(gamma)
    raise InputError(f"{name}={gamma!r}; give a positive number{' or median' if median else ''}.")


def stream(random_state: Any, *key: int) -> np.random.Generator:
    """A stream of random numbers of its own for each ``key``, all following from ``random_state``."""
    if random_state is None or (isinstance(random_state, Integral) and int(random_state) >= 0):
        seed = None if random_state is None else int(random_state)
        return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    raise InputError(
        f"random_state={random_state!r}; give a whole number of at least 0, a NumPy generator, or None."
    )


def _sample(x: Array, rng: np.random.Generator, size: int) -> np.ndarray[Any, Any]:
    rows = np.sort(rng.choice(x.shape[0], size=size, replace=False))
    return to_numpy(x[move_like(rows, x), :])


class RandomFourier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Map any view so that inner products approximate :math:`\exp(-\tfrac{\gamma}{2}\|a-b\|^2)`.

    Kernel CCA with that kernel is then plain CCA on the mapped view. scikit-learn's ``RBFSampler`` writes
    the kernel without the ½ and keeps to NumPy; this one keeps the paper's γ, takes it from the median
    distance, and works where the array is.

    Parameters
    ----------
    n_features
        Number of features m.
    gamma
        A positive number, or ``"median"``: 1 / median² of the distances between the rows that are fitted
        (of a seeded sample when there are more than 2048).
    random_state
        Seed of the draw.

    Attributes
    ----------
    gamma_
        The γ in use.
    weights_, offsets_
        Frequencies (inputs × features) and phases, float32.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(50, 4))
    >>> features = RandomFourier(5000, gamma=0.5).fit_transform(x)
    >>> exact = np.exp(-0.25 * ((x[0] - x[1]) ** 2).sum())
    >>> bool(abs(features[0] @ features[1] - exact) < 0.05)
    True
    """

    def __init__(
        self, n_features: int = 2000, *, gamma: float | Literal["median"] = "median", random_state: Any = 0
    ) -> None:
        self.n_features = n_features
        self.gamma = gamma
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> RandomFourier:
        """Choose γ and draw the frequencies."""
        x = check_view(X)
        n_features, gamma = check_count(self.n_features, "n_features"), check_gamma(self.gamma)
        self.gamma_ = median_gamma(x, stream(self.random_state, 0)) if gamma == "median" else gamma
        weights, offsets = draw_fourier(x.shape[1], n_features, self.gamma_, stream(self.random_state, 1))
        self.weights_, self.offsets_ = weights, offsets
        self.n_features_in_, self._n_features_out = x.shape[1], n_features
        return self

    def transform(self, X: Any) -> Array:
        """The features of every row, float32, in blocks."""
        check_is_fitted(self)
        x = check_view(X, n_features=self.n_features_in_)
        xp = namespace(x)
        weights = move_like(self.weights_, x)
        offsets = move_like(self.offsets_, x)
        features = xp.empty((x.shape[0], weights.shape[1]), dtype=xp.float32, device=weights.device)
        for start in range(0, x.shape[0], _BLOCK_ROWS):
            block = xp.astype(x[start : start + _BLOCK_ROWS, :], xp.float32, copy=False)
            features[start : start + _BLOCK_ROWS, :] = fourier_features(block, weights, offsets)
        return features
