"""Loadings (structure coefficients) of canonical variates, the variance they extract, and redundancy."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array, Floats, namespace, to_numpy
from diptych._checks import InputError, Task, check_task
from diptych.cca import AWCCA, CanonicalModel, Spectra
from diptych.cca._canonical import keep_components
from diptych.cca._sparse import SparseVectors, multiply_any
from diptych.stats._pairs import COMPONENTS, count_components, name_features
from diptych.stats._tables import component_frame, feature_frame, format_table, make_labels

_TABLES = {
    "x": "Loadings of X",
    "y": "Loadings of Y",
    "x_cross": "Cross loadings of X, on the variates of Y",
    "y_cross": "Cross loadings of Y, on the variates of X",
}
SHOWN_FEATURES = 30
"""Features that a printed table shows; data frames have all."""

_DIRECTIONS = 256  # of a view, whose lengths are added up at a time

_MEASURES = ("correlations", "x_variance", "x_redundancy", "y_variance", "y_redundancy")


@dataclass(frozen=True, eq=False)
class Loadings:
    """Correlations of features with canonical variates, and what they explain; see ``loadings``.

    ``print`` shows tables, and ``to_frames`` returns them as pandas DataFrames.

    Attributes
    ----------
    x, y
        Loadings: correlation of each feature with the variates of its own view, features × components. A
        DataFrame if the model was fitted on one. NaN for a feature that does not vary.
    x_cross, y_cross
        Cross loadings: correlation of each feature with the variates of the other view.
    x_variance, y_variance
        Variance extracted: the mean square of a component's loadings, that is the share of the standardised
        view's variance that the component explains. Variates of a regularised model are correlated, so their
        shares overlap and may add up to more than 1.
    x_redundancy, y_redundancy
        Variance extracted × squared correlation: what the other view's variate explains of this view (Stewart
        and Love, 1968).
    correlations
        Of the variates over the training pairs (``train_correlations``), not the regularised Σ.
    feature_names_x, feature_names_y
        Names of the features; None if the model was fitted on arrays.
    """

    x: Any
    y: Any
    x_cross: Any
    y_cross: Any
    x_variance: Floats
    y_variance: Floats
    x_redundancy: Floats
    y_redundancy: Floats
    correlations: Floats
    feature_names_x: list[str] | None = None
    feature_names_y: list[str] | None = None

    def to_frames(self) -> dict[str, Any]:
        """Return DataFrames: "x", "y", "x_cross", "y_cross", and "components" with the other measures."""
        frames = {name: feature_frame(*self._table(name)) for name in _TABLES}
        measures = {name.removesuffix("s"): getattr(self, name) for name in _MEASURES}
        return frames | {"components": component_frame(measures)}

    def __str__(self) -> str:
        shown = min(COMPONENTS, len(self.correlations))
        numbers = [str(number + 1) for number in range(shown)]
        measures = [
            [
                name.removesuffix("s").replace("_", " "),
                *(f"{value:.3f}" for value in getattr(self, name)[:shown]),
                "" if name == "correlations" else f"{getattr(self, name).sum():.3f}",
            ]
            for name in _MEASURES
        ]
        parts = [format_table(["component", *numbers, "all"], measures)]
        for name in _TABLES:
            values, labels = self._table(name)
            cells = [
                [label, *(f"{value:.3f}" for value in row[:shown])]
                for label, row in zip(labels[:SHOWN_FEATURES], values, strict=False)
            ]
            cut = [["…", *[""] * shown]] if len(labels) > SHOWN_FEATURES else []
            parts.append(f"{_TABLES[name]}\n{format_table(['feature', *numbers], cells + cut)}")
        return "\n\n".join(parts)

    def _table(self, name: str) -> tuple[Floats, list[str]]:
        values = np.asarray(getattr(self, name))
        names = self.feature_names_x if name.startswith("x") else self.feature_names_y
        return values, make_labels(name[0], len(values), names)


def loadings(model: Any, *, task: Task = "search", n_components: int | None = None) -> Loadings:
    r"""Return how each feature correlates with the canonical variates of a fitted model.

    They are computed from the spectra that a fit keeps, without the data: with weights u and v of a
    component, the features of X have the covariances :math:`X^\top X u = V_x S_x^2 V_x^\top u` with the
    variate :math:`Xu`, and :math:`X^\top Y v = V_x T_0 V_y^\top v` with :math:`Yv`. Loadings are what
    scientists interpret: unlike weights, they do not depend on which other features are in the view. Of a
    model that was fitted with covariates, the features are what these leave of them.

    Correlations, and with them redundancy, are those of the variates over the training pairs. Chance raises
    them; ``cross_validated_correlations`` measures them on other pairs.

    Parameters
    ----------
    model
        A fitted ``CCA``, ``PLS`` or ``AWCCA``.
    task
        Whose model of an ``AWCCA``: each task has its own regularisation, unless ``params`` was one pair. A
        ``CCA`` or ``PLS`` has one model.
    n_components
        The first components; None: all of the model.

    References
    ----------
    Stewart and Love (1968), "A general canonical correlation index".

    Examples
    --------
    >>> from sklearn.datasets import load_linnerud
    >>> from diptych import AWCCA
    >>> from diptych.stats import loadings
    >>> exercises, physiology = load_linnerud(return_X_y=True)
    >>> model = AWCCA(params=(0, 0)).fit(physiology, exercises)
    >>> result = loadings(model)
    >>> abs(result.x[:, 0]).round(4)
    array([0.6206, 0.9254, 0.3328])
    >>> float(result.x_redundancy[0].round(4))
    0.2854
    """
    task = check_task(task)
    if not isinstance(model, AWCCA):
        raise InputError(f"{type(model).__name__} is not a model; give a fitted CCA, PLS or AWCCA.")
    check_is_fitted(model)
    spectra = getattr(model, "spectra_", None)
    if spectra is None:
        raise InputError(
            "this model was saved without the spectra of its training pairs, which loadings need; fit it "
            "again."
        )
    canonical = model.models_[task]
    if n_components is not None:
        most = int(canonical.correlations.shape[0])
        canonical = keep_components(canonical, count_components(n_components, most))
    return make_loadings(spectra, canonical, *name_features(model, {}))


def make_loadings(
    spectra: Spectra,
    model: CanonicalModel,
    names_x: list[str] | None = None,
    names_y: list[str] | None = None,
) -> Loadings:
    """Return the loadings of a model that has these spectra; see ``loadings``."""
    xp = namespace(spectra.t0)
    # Weights in the coordinates of the singular directions; a variate is a combination of those alone.
    u, v = (
        multiply_any(xp.astype(weights, directions.dtype).T, directions).T
        for directions, weights in ((spectra.v_x, model.x_weights), (spectra.v_y, model.y_weights))
    )
    t0, s_x, s_y = spectra.t0, spectra.s_x, spectra.s_y
    variates_x, variates_y = s_x[:, None] * u, s_y[:, None] * v
    x = _correlate(s_x, spectra.v_x, s_x[:, None] * variates_x, variates_x, spectra)
    y = _correlate(s_y, spectra.v_y, s_y[:, None] * variates_y, variates_y, spectra)
    x_cross = _correlate(s_x, spectra.v_x, t0 @ v, variates_y, spectra)
    y_cross = _correlate(s_y, spectra.v_y, t0.T @ u, variates_x, spectra)
    lengths = xp.linalg.vector_norm(variates_x, axis=0) * xp.linalg.vector_norm(variates_y, axis=0)
    correlations = np.minimum(to_numpy(xp.sum(u * (t0 @ v), axis=0) / lengths), 1.0)
    x_variance, y_variance = (np.nanmean(table**2, axis=0) for table in (x, y))
    return Loadings(
        as_table(x, names_x),
        as_table(y, names_y),
        as_table(x_cross, names_x),
        as_table(y_cross, names_y),
        x_variance,
        y_variance,
        x_variance * correlations**2,
        y_variance * correlations**2,
        correlations,
        names_x,
        names_y,
    )


def _correlate(s: Array, directions: Array, products: Array, variates: Array, spectra: Spectra) -> Floats:
    """Return correlations of features with variates, of which both are given in singular directions."""
    xp = namespace(s)
    deviations = _row_lengths(directions * s)
    # Of a feature with less than the resolution of the spectra, only rounding error is left.
    n, p = spectra.count, int(directions.shape[0])
    epsilon = float(xp.finfo(xp.float64).eps)
    limit = max(n, p) * epsilon if spectra.resolution == 0 else (max(16, p) * spectra.resolution) ** 0.5
    varies = deviations > limit * s[0]
    safe = xp.where(varies, deviations, xp.ones_like(deviations))
    table = (directions @ products) / (safe[:, None] * xp.linalg.vector_norm(variates, axis=0))
    return np.where(to_numpy(varies)[:, None], np.clip(to_numpy(table), -1.0, 1.0), np.nan)


def _row_lengths(scaled: Array) -> Array:
    """Return the lengths of the rows of V S, some directions at a time: a sparse view's may be too large."""
    total = 0.0
    xp = namespace(scaled) if not isinstance(scaled, SparseVectors) else np
    for start in range(0, int(scaled.shape[1]), _DIRECTIONS):
        part = xp.asarray(scaled[:, start : start + _DIRECTIONS])
        total = total + xp.sum(part * part, axis=1)
    return xp.sqrt(total)


def as_table(values: Floats, names: list[str] | None) -> Any:
    """Return features × components as a DataFrame if the features have names and there is pandas."""
    # Without pandas, the names are those of another library's data frame.
    if names is None or find_spec("pandas") is None:
        return values
    return feature_frame(values, names)
