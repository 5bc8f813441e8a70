r"""Random Fourier features: an explicit map whose inner products approximate a Gaussian kernel.

The kernel is the paper's (Section 4), :math:`k_\gamma(a, b) = \exp(-\tfrac{\gamma}{2}\|a-b\|^2)`; the
frequencies therefore come from :math:`\mathcal N(0, \gamma I)`.
"""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Literal

import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import InputError

EXACT_MEDIAN_ROWS = 2048
"""Up to this many rows, the median is over all pairs; beyond, over the pairs of a random sample of rows."""


def fourier_features(x: Array, weights: Array, offsets: Array) -> Array:
    r"""Return :math:`\Phi(x) = \sqrt{2/m}\,\cos(xW + b)` for each row, as in Section 4 of the paper.

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
    r"""Draw frequencies :math:`W \sim \mathcal N(0, \gamma I)`, inputs × features, and phases in [0, 2π)."""
    weights = rng.standard_normal((n_inputs, n_features), dtype=np.float32)
    weights *= np.float32(gamma**0.5)
    return weights, rng.uniform(0.0, 2.0 * np.pi, n_features).astype(np.float32)


def median_gamma(x: Array, rng: np.random.Generator, max_rows: int = EXACT_MEDIAN_ROWS) -> float:
    """Return 1 / median² of the distances between different rows, or between those of a random sample."""
    if x.shape[0] > max_rows:
        sample = np.sort(rng.choice(x.shape[0], size=max_rows, replace=False))
        x = x[move_like(sample, x), :]
    rows = to_numpy(x)
    if len(rows) < 2:
        raise InputError(
            f"The median distance needs at least 2 vectors, and there is {len(rows)}; pass a number as gamma."
        )
    rows = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    norms = np.einsum("ij,ij->i", rows, rows)
    squares = norms[:, None] + norms[None, :] - 2.0 * (rows @ rows.T)
    median = float(np.median(squares[np.triu_indices(len(rows), k=1)]))
    # Rounding errors make the distance between equal rows slightly larger than 0.
    if median <= 1e-12 * float(norms.max(initial=0.0)):
        raise InputError("Most of the vectors are equal: their median distance is 0; pass a number as gamma.")
    return 1.0 / median


def check_gamma(gamma: object, name: str = "gamma", *, median: bool = True) -> float | Literal["median"]:
    """Return ``gamma`` if it is a positive number, or ``"median"`` where that is allowed."""
    if median and isinstance(gamma, str) and gamma == "median":
        return "median"
    if isinstance(gamma, Real) and not isinstance(gamma, bool) and 0.0 < float(gamma) < float("inf"):
        return float(gamma)
    raise InputError(f"{name}={gamma!r}; pass a positive number{' or median' if median else ''}.")


def make_generator(random_state: Any, *key: int) -> np.random.Generator:
    """Return the generator of ``key``; generators of different keys are independent."""
    if random_state is None or (isinstance(random_state, Integral) and int(random_state) >= 0):
        seed = None if random_state is None else int(random_state)
        return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))
    if isinstance(random_state, np.random.Generator):
        return random_state
    if isinstance(random_state, np.random.RandomState):
        return np.random.default_rng(random_state.randint(2**31, size=4))
    raise InputError(
        f"random_state={random_state!r}; pass an integer of at least 0, a NumPy generator, or None."
    )
