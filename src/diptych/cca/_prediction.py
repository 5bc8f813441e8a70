r"""From one view to the other, and from vectors back to features: regressions that the spectra contain.

Both are least squares, so nothing is read but the spectra of the training data.
"""

from __future__ import annotations

from dataclasses import replace

from diptych._arrays import Array, move_like, namespace, svd
from diptych._checks import Task
from diptych._threads import map_lapack, multiply
from diptych.cca._filters import AnyFilter, Isotropic
from diptych.cca._models import Models
from diptych.cca._projector import ViewKey
from diptych.cca._spectra import Spectra


def prediction_maps(
    models: Models, spectra: Spectra, view: ViewKey, task: Task
) -> tuple[Array, Array, Array]:
    """Return A and B of the regression of the other view on ``view``, and the mean of the other view."""
    filters = models.filters[task]
    if view == "y":
        spectra, filters = exchange_views(spectra), filters[::-1]
    if not isinstance(filters[0], Isotropic) and task in models.full and keeps_all(filters[1], spectra.s_y):
        return *ridge_maps(spectra, filters[0]), spectra.y_mean
    model = models[task]
    weights = model.x_weights if view == "x" else model.y_weights
    maps = least_squares_maps if isinstance(filters[0], Isotropic) else reduced_rank_maps
    return *maps(spectra, weights), spectra.y_mean


def map_back(vectors: Array, onto: Array, mean: Array) -> Array:
    """Return features from vectors, in their backend and precision: times ``onto``, plus the mean."""
    onto, mean = (move_like(part, vectors, dtype=vectors.dtype) for part in (onto, mean))
    return multiply(vectors, onto) + mean


def exchange_views(spectra: Spectra) -> Spectra:
    """Return the spectra of the same pairs with X and Y exchanged."""
    return replace(
        spectra,
        x_mean=spectra.y_mean,
        y_mean=spectra.x_mean,
        s_x=spectra.s_y,
        v_x=spectra.v_y,
        s_y=spectra.s_x,
        v_y=spectra.v_x,
        t0=spectra.t0.T,
    )


def keeps_all(filter: AnyFilter, s: Array) -> bool:
    """Return whether a filter drops none of the directions of its view."""
    xp = namespace(s)
    denominators = filter.denominators(s)
    return bool(denominators.shape[0] == s.shape[0]) and bool(xp.all(xp.isfinite(denominators)))


def ridge_maps(spectra: Spectra, filter_x: AnyFilter) -> tuple[Array, Array]:
    r"""Return A and B of the regression of Y on X, :math:`\hat y = \bar y + (x - \bar x) A B`.

    .. math:: AB = V_x D_x^{-1} V_x^\top X^\top Y = V_x D_x^{-1} T_0 V_y^\top

    For Tikhonov, :math:`D_x = S_x^2 + \gamma_x`, this is ridge regression with the penalty :math:`\gamma_x`.
    For the truncated SVD it is regression on the first principal components.
    """
    denominators = filter_x.denominators(spectra.s_x)
    kept = int(denominators.shape[0])
    onto = multiply(spectra.v_y, spectra.t0[:kept, :].T).T
    return spectra.v_x[:, :kept] / denominators, _drop_rounding(onto)


def reduced_rank_maps(spectra: Spectra, x_weights: Array) -> tuple[Array, Array]:
    r"""Return A and B of the regression of Y on the canonical variates XU of a model.

    U is orthonormal in the metric that the model's own penalty defines, :math:`U^\top (X^\top X + \gamma_x I)
    U = I`, so least squares with that penalty has the coefficients

    .. math:: B = U^\top X^\top Y = (U^\top V_x)\, T_0 V_y^\top, \qquad A = U

    for every feature of Y, also in directions that the filter of Y drops. If U has all components this is
    ``ridge_maps``; with the first k it is reduced-rank ridge regression.
    """
    inner = multiply(x_weights.T, spectra.v_x)
    return x_weights, _drop_rounding(multiply(spectra.v_y, multiply(inner, spectra.t0).T).T)


def least_squares_maps(spectra: Spectra, x_weights: Array) -> tuple[Array, Array]:
    """Return A and B of the least-squares regression of Y on the variates XU, whatever the weights U."""
    xp = namespace(spectra.t0)
    inner = spectra.s_x[:, None] * multiply(x_weights.T, spectra.v_x).T
    onto = multiply(spectra.v_y, (xp.linalg.pinv(inner) @ (spectra.t0 / spectra.s_x[:, None])).T).T
    return x_weights, _drop_rounding(onto)


def reconstruction_map(s: Array, v: Array, weights: Array) -> Array:
    r"""Return C of the regression of a view on its own vectors: :math:`\hat x = \bar x + zC`, z of rows.

    With the vectors :math:`Z = XM` of the training rows and :math:`X = USV^\top`,

    .. math:: C = (Z^\top Z)^{+} Z^\top X = (S V^\top M)^{+} S V^\top .

    ``weights`` are M, the map of a view for a task, which contains its weighting and polish. Where M has as
    many columns as the view has directions, the features come back as they were.
    """
    xp = namespace(s)
    inner = s[:, None] * multiply(weights.T, v).T
    # Columns that a weighting has made small are as good as the others.
    lengths = xp.linalg.vector_norm(inner, axis=0)
    lengths = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    left, values, right = map_lapack(svd, [inner / lengths], inner)[0]
    kept = int(xp.count_nonzero(values > max(inner.shape) * float(xp.finfo(values.dtype).eps) * values[0]))
    inverse = right[:kept, :].T / values[:kept] / lengths[:, None]
    return _drop_rounding(multiply(v, (multiply(inverse, left[:, :kept].T) * s).T).T)


def _drop_rounding(onto: Array) -> Array:
    """Return a map onto features with zeros for those that are rounding error, so that they keep their mean.

    A feature that is constant in training is then constant in predictions. scikit-learn's R² counts it as 1
    if it is exact and as 0 otherwise.
    """
    xp = namespace(onto)
    lengths = xp.linalg.vector_norm(onto, axis=0)
    least = max(onto.shape) * float(xp.finfo(onto.dtype).eps) * xp.max(lengths)
    return xp.where(lengths > least, onto, xp.zeros_like(onto))
