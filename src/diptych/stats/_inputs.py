"""What tests and intervals compute with: checked pairs, the filters of a model, and blocks of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from array_api_compat import is_array_api_obj

from diptych._arrays import Array, to_numpy
from diptych._checks import InputError, Task, check_count, check_pair_of_views, check_task
from diptych._devices import copy_to_device
from diptych.cca._canonical import check_components
from diptych.cca._deferred import Filters, filters_of
from diptych.cca._filters import AnyFilter, CustomFilter, Tikhonov, make_filters
from diptych.cca._fit import params_by_task
from diptych.cca._fitted import FittedAWCCA, second_view
from diptych.cca._spectra import Spectra, spectra
from diptych.cca._weighting import normalize

COMPONENTS = 10
"""Components that a test or an interval is computed for, unless it is told otherwise."""

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Problem:
    """Normalised pairs, their spectra, the filters of both views, and the names of the features, if any."""

    x: Array
    y: Array
    pairing: Array
    spectra: Spectra
    filters: Filters
    names_x: list[str] | None
    names_y: list[str] | None

    def count_components(self, n_components: int | None) -> int:
        """Return the number of components to compute: ``n_components``, or the first ``COMPONENTS``."""
        wanted = None if n_components is None else check_count(n_components, "n_components")
        most = check_components(self.spectra, *self.filters, wanted)
        return min(COMPONENTS, most) if wanted is None else wanted


def prepare(model: Any, X: Any, y: Any, pairing: Any, task: Task, device: str | None = None) -> Problem:
    """Return the pairs, normalised as those of ``model`` and on ``device``, with its filters of a task.

    ``model`` is a fitted ``AWCCA`` or a pair ``(γ_x, γ_y)``. γ is in units of a sum over pairs, so the γ of a
    model that was fitted on another number of pairs is scaled.
    """
    task = check_task(task)
    fitted = isinstance(model, FittedAWCCA)
    if fitted:
        model._check_fitted()
    elif not isinstance(model, tuple | list):
        raise InputError(
            f"{type(model).__name__} is not a model; give a fitted AWCCA, or (γ_x, γ_y) as AWCCA(params=…)."
        )
    names_x = feature_names(X) or names_of(model, "feature_names_in_")
    names_y = feature_names(y) or names_of(model, "y_feature_names_in_")
    x, y, pairing = check_pair_of_views(X, second_view(y), pairing)
    if device is not None:
        x, y, pairing = (copy_to_device(array, device) for array in (x, y, pairing))
    if not fitted:
        found = spectra(x, y, pairing)
        filters = make_filters("tikhonov", params_by_task(model)[task], found.s_x, found.s_y)
        return Problem(x, y, pairing, found, filters, names_x, names_y)
    x, y = normalize(x, model.normalize[0]), normalize(y, model.normalize[1])
    for view, name, mean in ((x, "X", model.x_mean_), (y, "Y", model.y_mean_)):
        if view.shape[1] != mean.shape[0]:
            raise InputError(
                f"{name} has {view.shape[1]} features, but the model was fitted on {mean.shape[0]}; give the "
                "same features as in fit."
            )
    found = spectra(x, y, pairing, solver=model.solver, precision=model.precision)
    check_unweighted(model)
    before = getattr(model, "spectra_", None)  # a model of a retriever's folder has none
    factor = 1.0 if before is None else found.count / before.count
    filter_x, filter_y = (scale_filter(own, factor) for own in filters_of(model.models_)[task])
    return Problem(x, y, pairing, found, (filter_x, filter_y), names_x, names_y)


def check_unweighted(model: Any) -> None:
    """Raise an error for a model that was fitted with weights of pairs, which would be ignored."""
    spectra = getattr(model, "spectra_", None)
    if spectra is not None and spectra.weight is not None:
        raise InputError(
            "the model was fitted with sample weights, which resampling does not take; fit it without, or "
            "give (γ_x, γ_y)."
        )


def scale_filter(filter: AnyFilter, factor: float) -> AnyFilter:
    """Return a filter for ``factor`` times as many pairs: γ is in units of a sum over pairs, k is not."""
    if factor == 1.0:
        return filter
    if isinstance(filter, Tikhonov):
        return Tikhonov(filter.gamma * factor)
    if isinstance(filter, CustomFilter) and filter.filter.per_pair:
        return replace(filter, parameter=filter.parameter * factor)
    return filter


def block_codes(blocks: Any, pairing: Array, n_x: int) -> Ints:
    """Return the number of the block of each row of X; without ``blocks``, each row is its own.

    ``blocks`` has one label per row of X, or one per pair, where the pairs of a row must agree.
    """
    if blocks is None:
        return np.arange(n_x)
    labels = to_numpy(blocks) if is_array_api_obj(blocks) else np.asarray(blocks)
    owners = to_numpy(pairing)
    if labels.ndim != 1 or len(labels) not in (n_x, len(owners)):
        raise InputError(
            f"blocks has shape {labels.shape}; expected one label for each of the {n_x} rows of X."
        )
    if labels.dtype.kind == "f" and not np.all(np.isfinite(labels)):
        raise InputError("blocks contains NaN or infinity; give a label for every row.")
    codes = np.unique(labels, return_inverse=True)[1].reshape(-1).astype(np.int64)
    if len(labels) == n_x:
        return codes
    by_row = np.full(n_x, -1, dtype=np.int64)
    by_row[owners] = codes
    if not np.array_equal(by_row[owners], codes):
        raise InputError("blocks has different labels for pairs with the same row of X; give one per row.")
    return by_row


def feature_names(view: Any) -> list[str] | None:
    """Return the names of the columns of a data frame; None if they are not all strings, or for an array."""
    columns = getattr(view, "columns", None)
    if columns is None and hasattr(view, "to_frame") and isinstance(getattr(view, "name", None), str):
        columns = [view.name]  # a column of a data frame
    names = None if columns is None else list(columns)
    return names if names and all(isinstance(name, str) for name in names) else None


def names_of(model: Any, attribute: str) -> list[str] | None:
    """Return the names of features that a model was fitted on."""
    names = getattr(model, attribute, None)
    return None if names is None else [str(name) for name in names]
