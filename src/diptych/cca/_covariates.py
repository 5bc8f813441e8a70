"""Covariates, and blocks of rows: what they explain of both views is regressed out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych._arrays import Array, Floats, group_sum, move_like, namespace, to_numpy
from diptych._checks import InputError, check_view, order_rows, second_view

_EXPLAINED = 16
"""A feature is explained if no more of it is left than so many times the rounding error of its values."""


def check_covariates(covariates: Any, X: Any, n_x: int) -> Floats | None:
    """Return the covariates of each row of X in float64, by the labels of X; None if there are none."""
    if covariates is None:
        return None
    ordered = second_view(order_rows(covariates, X, "covariates", "X"))
    values: Floats = to_numpy(check_view(ordered, "covariates")).astype(np.float64)
    if len(values) != n_x:
        raise InputError(
            f"covariates has {len(values)} rows; expected one for each of the {n_x} rows of X, also where "
            "several rows of Y belong to one row of X."
        )
    return values


@dataclass(frozen=True, eq=False)
class CovariateBasis:
    r"""Orthonormal combinations of centred covariates Z.

    ``scores(covariates)`` are :math:`(Z - \mu) D`, one column for each dimension that Z spans beside the
    intercept: with the weights w of the rows, :math:`\sum_i w_i\, s_i s_i^\top = I` and
    :math:`\sum_i w_i s_i = 0`. Constant columns and combinations of others add no dimension.
    """

    mean: Floats
    directions: Floats

    @classmethod
    def fit(cls, covariates: Floats, weights: Floats) -> CovariateBasis:
        """Return the basis of rows with these weights, by an SVD of the standardised covariates."""
        epsilon, total = np.finfo(np.float64).eps, weights.sum()
        mean = weights @ covariates / total
        mean = mean + weights @ (covariates - mean) / total  # what rounding left of a large mean
        centred = (covariates - mean) * np.sqrt(weights)[:, None]
        lengths = np.linalg.norm(centred, axis=0)
        noise = 4 * epsilon * np.abs(mean) * total**0.5
        varies = lengths > noise
        lengths = np.where(varies, lengths, 1.0)
        _, s, vt = np.linalg.svd(np.where(varies, centred / lengths, 0.0), full_matrices=False)
        limit = max(centred.shape) * epsilon * np.max(s, initial=0.0) + np.max(
            noise / lengths, where=varies, initial=0.0
        )
        kept = s > limit
        return cls(mean, vt[kept].T / s[kept] / lengths[:, None])

    def scores(self, covariates: Floats) -> Floats:
        """Return the orthonormal combinations for rows of covariates."""
        scores: Floats = (covariates - self.mean) @ self.directions
        return scores


@dataclass(frozen=True, eq=False)
class Regression:
    """The regression of a view on an intercept and the scores of covariates."""

    intercept: Array
    slopes: Array

    @classmethod
    def fit(cls, view: Array, scores: Floats, weights: Floats, name: str) -> tuple[Regression, Array]:
        """Return the regression of rows with these weights, and its residuals; 0 for what is explained."""
        xp = namespace(view)
        epsilon = float(xp.finfo(view.dtype).eps)
        view = xp.astype(view, xp.float64)
        scores_, weights_ = move_like(scores, view), move_like(weights, view)
        products, total = scores_.T * weights_, float(weights.sum())
        intercept, slopes, residuals = 0.0, 0.0, view
        for _ in range(2):  # the second time removes what rounding left
            mean = (weights_ @ residuals) / total
            residuals = residuals - mean
            slope = products @ residuals
            residuals = residuals - scores_ @ slope
            intercept, slopes = intercept + mean, slopes + slope
        tolerance = epsilon * (1 + scores.shape[1]) ** 0.5
        is_left = _find_left(view, residuals, weights_, tolerance)
        if not bool(xp.any(is_left)):
            raise InputError(
                f"the covariates explain {name} completely, so nothing is left to correlate; give fewer "
                "covariates, or other features."
            )
        return cls(intercept, slopes), xp.where(is_left, residuals, xp.zeros_like(residuals))

    def residuals(self, view: Array, scores: Floats) -> Array:
        """Return what the regression leaves of other rows of the view."""
        xp = namespace(view)
        return (
            xp.astype(view, xp.float64) - self.intercept - move_like(scores, view, xp.float64) @ self.slopes
        )


def _find_left(view: Array, residuals: Array, weights: Array, tolerance: float) -> Array:
    """Return which features have residuals beyond rounding error, relative to their size."""
    xp = namespace(view)
    size, left = (xp.sqrt(weights @ (rows * rows)) for rows in (view, residuals))
    return left > _EXPLAINED * tolerance * size


def subtract_block_means(
    x: Array, y: Array, pairing: Array, codes: np.ndarray[Any, np.dtype[np.int64]]
) -> tuple[Array, Array]:
    """Subtract the means of blocks of rows of X from both views, over pairs: a regression on the blocks."""
    owners = to_numpy(pairing)
    counts = np.bincount(owners, minlength=len(codes)).astype(np.float64)
    return (
        _subtract_means(x, codes, counts, "X"),
        _subtract_means(y, codes[owners], np.ones(len(owners)), "Y"),
    )


def _subtract_means(
    view: Array, codes: np.ndarray[Any, np.dtype[np.int64]], weights: Floats, name: str
) -> Array:
    xp = namespace(view)
    epsilon = float(xp.finfo(view.dtype).eps)
    view = xp.astype(view, xp.float64)
    n_blocks = int(codes.max()) + 1
    totals = np.bincount(codes, weights=weights, minlength=n_blocks)
    totals_ = move_like(np.where(totals > 0, totals, 1.0), view)[:, None]
    blocks, weights_ = move_like(codes, view), move_like(weights, view)
    residuals = view
    for _ in range(2):  # the second time removes what rounding left
        sums = group_sum(residuals * weights_[:, None], blocks, n_blocks)
        residuals = residuals - (sums / totals_)[blocks, :]
    is_left = _find_left(view, residuals, weights_, epsilon)
    if not bool(xp.any(is_left)):
        raise InputError(
            f"{name} is constant within every block, so exchanges within blocks change nothing; average each "
            "block, and test without blocks."
        )
    return xp.where(is_left, residuals, xp.zeros_like(residuals))


def regress_out(
    x: Array, y: Array, pairing: Array, covariates: Floats
) -> tuple[tuple[Regression, Regression], CovariateBasis, tuple[Array, Array]]:
    r"""Regress the covariates of the rows of X out of both views, over pairs.

    Row j of Y has the covariates of its row of X, which counts once for each of its c rows of Y. The
    residuals of X, those of the mean of each c rows of Y, and the scores are then those of a regression with
    the weights c. Returns the regressions of both views, the basis, and the residuals of both views.
    """
    owners = to_numpy(pairing)
    counts = np.bincount(owners, minlength=len(covariates)).astype(np.float64)
    basis = CovariateBasis.fit(covariates, counts)
    n_dimensions, n_rows = basis.directions.shape[1], int(np.count_nonzero(counts))
    if n_dimensions + 1 >= n_rows:
        raise InputError(
            f"an intercept and {n_dimensions} independent covariates leave nothing of {n_rows} rows of X; "
            "give fewer covariates."
        )
    scores = basis.scores(covariates)
    of_x, left_x = Regression.fit(x, scores, counts, "X")
    of_y, left_y = Regression.fit(y, scores[owners], np.ones(len(owners)), "Y")
    return (of_x, of_y), basis, (left_x, left_y)
