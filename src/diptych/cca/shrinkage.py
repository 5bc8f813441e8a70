r"""Regularisation from theory, for when nothing can be selected: covariances shrunk towards a sphere.

Shrinkage estimates the covariance of p features from n rows as :math:`(1-\delta) S + \delta\mu I`, with S the
empirical covariance (divided by n) and :math:`\mu = \mathrm{tr}\,S / p`. Up to a factor, which changes no
correlation, that is Tikhonov with

.. math:: \gamma = N \mu \frac{\delta}{1-\delta}

in units of a sum over N pairs. Theory gives δ from the data alone: Ledoit and Wolf (2004) for any
distribution, Chen, Wiesel and Hero (2010) better still for a Gaussian (OAS). Both aim at a covariance that is
near the true one, not at retrieval.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from diptych.arrays import Array, count_groups, namespace
from diptych.checks import check_choice

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
