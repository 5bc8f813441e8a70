"""Covariates, and blocks of rows: what they explain of both views is regressed out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import Array, Floats, group_sum, move_like, namespace, to_numpy
from diptych._checks import InputError, check_view, order_rows, second_view

Sides: TypeAlias = tuple[Floats | None, Floats | None]
"""The covariates of X and of Y, checked; None for a view without."""

_EXPLAINED = 16
"""A feature is explained if no more of it is left than so many times the rounding error of its values."""


def check_covariates(
    covariates: Any, X: Any, n_x: int, width_x: int | None = None, width_y: int | None = None
) -> Sides | None:
    """Return the covariates of both views for each row of X, by its labels; None if there are none.

    ``covariates`` are one array for both views, which is then one object, or a pair; the widths are those
    that they must have.
    """
    if covariates is None:
        return None
    first, second = split_sides(covariates)
    if first is None and second is None:
        raise InputError("covariates has neither those of X nor those of Y; give at least one of them.")
    z_x = None if first is None else check_rows(first, X, n_x, "X", width_x)
    if second is first:
        return z_x, z_x
    z_y = None if second is None else check_rows(second, X, n_x, "X", width_y)
    return z_x, z_x if z_x is not None and np.array_equal(z_x, z_y) else z_y  # type: ignore[arg-type]


def split_sides(covariates: Any) -> tuple[Any, Any]:
    """Return what is given for X and for Y: the parts of a tuple, or one array for both."""
    if not isinstance(covariates, tuple):
        return covariates, covariates
    if len(covariates) != 2:
        raise InputError(
            f"covariates is a tuple of {len(covariates)}; give one array, or a pair: that of X and that of Y."
        )
    return covariates


def check_rows(covariates: Any, view: Any, n: int, name: str, n_columns: int | None = None) -> Floats:
    """Return covariates in float64, a row for each of the n rows of a view, by the labels of the view."""
    ordered = second_view(order_rows(covariates, view, "covariates", name))
    values: Floats = to_numpy(check_view(ordered, "covariates", n_features=n_columns)).astype(np.float64)
    if len(values) != n:
        several = ", also where several rows of Y belong to one row of X" if name == "X" else ""
        raise InputError(
            f"covariates has {len(values)} rows; expected one for each of the {n} rows of {name}{several}."
        )
    return values


def take_rows(covariates: Sides, rows: Array) -> Sides:
    """Return the covariates of some rows of X."""
    z_x, z_y = (None if columns is None else columns[to_numpy(rows)] for columns in covariates)
    return z_x, z_x if covariates[0] is covariates[1] else z_y


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
    """The regression of a view on an intercept and the scores of covariates; NumPy whatever the view."""

    basis: CovariateBasis
    intercept: Floats
    slopes: Floats

    @property
    def width(self) -> int:
        """The number of covariates."""
        return len(self.basis.mean)

    @classmethod
    def fit(
        cls, view: Array, covariates: Floats, weights: Floats, basis: CovariateBasis, name: str
    ) -> tuple[Regression, Array]:
        """Return the regression of rows with these weights, and its residuals; 0 for what is explained."""
        xp = namespace(view)
        epsilon = float(xp.finfo(view.dtype).eps)
        view = xp.astype(view, xp.float64)
        scores = basis.scores(covariates)
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
        residuals = xp.where(is_left, residuals, xp.zeros_like(residuals))
        return cls(basis, to_numpy(intercept), to_numpy(slopes)), residuals

    def predict(self, covariates: Floats, like: Array) -> Array:
        """Return what is expected of rows of the view with these covariates, in the backend of an array."""
        expected = self.intercept + self.basis.scores(covariates) @ self.slopes
        return move_like(expected, like, dtype=namespace(like).float64)

    def residuals(self, view: Array, covariates: Floats) -> Array:
        """Return what the regression leaves of other rows of the view, in their precision."""
        xp = namespace(view)
        return xp.astype(xp.astype(view, xp.float64) - self.predict(covariates, view), view.dtype)


@dataclass(frozen=True, eq=False)
class Regressions:
    """What covariates explain of both views; None for a view without covariates."""

    x: Regression | None
    y: Regression | None

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of independent covariates of X and of Y."""
        x, y = (0 if own is None else own.basis.directions.shape[1] for own in (self.x, self.y))
        return x, y

    @property
    def n_shared(self) -> int:
        """The dimensions that the same covariates take from both views."""
        bases = [(own.basis.mean, own.basis.directions) for own in (self.x, self.y) if own is not None]
        same = len(bases) == 2 and all(map(np.array_equal, *bases))
        return self.sizes[0] if same else 0

    def residuals(self, x: Array, y: Array, pairing: Array, covariates: Sides) -> tuple[Array, Array]:
        """Return what is left of other pairs, whose rows of X have these covariates."""
        z_x, z_y = covariates
        return (
            x if self.x is None or z_x is None else self.x.residuals(x, z_x),
            y if self.y is None or z_y is None else self.y.residuals(y, z_y[to_numpy(pairing)]),
        )

    def scores(self, covariates: Sides) -> tuple[Floats, Floats]:
        """Return the orthonormal combinations of the covariates of X and of Y, without columns for None."""
        n = next(len(columns) for columns in covariates if columns is not None)
        x, y = (
            np.empty((n, 0)) if own is None or columns is None else own.basis.scores(columns)
            for own, columns in zip((self.x, self.y), covariates, strict=True)
        )
        return x, x if self.n_shared else y

    def __str__(self) -> str:
        """Return how many covariates each view has: ``"3 of both views"``, ``"3 of X"``."""
        if self.n_shared:
            return f"{self.n_shared} of both views"
        sides = zip(self.sizes, ("X", "Y"), (self.x, self.y), strict=True)
        return " and ".join(f"{size} of {name}" for size, name, own in sides if own is not None)


def match_sides(regressions: Regressions | None, covariates: Any, views: Iterable[str] = "xy") -> Any:
    """Return the covariates of X and of Y that are given; those of ``views`` must be as in the fit."""
    if covariates is not None and regressions is None:
        raise InputError("the model was fitted without covariates; leave them out, or fit it with them.")
    sides = split_sides(covariates)
    for view in views:
        given, expected = sides["xy".index(view)], getattr(regressions, view, None)
        if expected is not None and given is None:
            raise InputError(f"the model was fitted with covariates of {view.upper()}; give them.")
        if expected is None and given is not None:
            raise InputError(
                f"the model was fitted without covariates of {view.upper()}; give a pair with None for these."
            )
    return sides


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
    x: Array, y: Array, pairing: Array, covariates: Sides, weights: Floats | None = None
) -> tuple[Regressions, tuple[Array, Array]]:
    r"""Regress the covariates of the rows of X out of both views, over pairs, which may have weights.

    Row j of Y has the covariates of its row of X, which counts once for each of its c rows of Y. The
    residuals of X, those of the mean of each c rows of Y, and the scores are then those of a regression with
    the weights c. Returns the regressions, and the residuals of both views.
    """
    owners = to_numpy(pairing)
    weights = np.ones(len(owners)) if weights is None else weights
    row_weights: Floats = np.bincount(owners, weights, int(x.shape[0])).astype(np.float64)
    (z_x, z_y), of_x, of_y = covariates, None, None
    if z_x is not None:
        of_x, x = Regression.fit(x, z_x, row_weights, _fit_basis(z_x, row_weights), "X")
    if z_y is not None:
        basis = of_x.basis if of_x is not None and z_y is z_x else _fit_basis(z_y, row_weights)
        of_y, y = Regression.fit(y, z_y[owners], weights, basis, "Y")
    return Regressions(of_x, of_y), (x, y)


def _fit_basis(covariates: Floats, weights: Floats) -> CovariateBasis:
    """Return the basis of rows with these weights; raise an error if it leaves nothing of them."""
    basis = CovariateBasis.fit(covariates, weights)
    n_dimensions, n_rows = basis.directions.shape[1], int(np.count_nonzero(weights))
    if n_dimensions + 1 >= n_rows:
        raise InputError(
            f"an intercept and {n_dimensions} independent covariates leave nothing of {n_rows} rows of X; "
            "give fewer covariates."
        )
    return basis
