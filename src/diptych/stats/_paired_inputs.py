"""What tests and intervals compute with: checked pairs, and the filters of a model."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from diptych._arrays import Array
from diptych._checks import InputError, Task, check_count, check_pair_of_views, check_task
from diptych._devices import copy_to_device
from diptych.cca._canonical import check_components
from diptych.cca._deferred import Filters, filters_of
from diptych.cca._filters import AnyFilter, CustomFilter, Tikhonov, make_filters
from diptych.cca._fit import params_by_task
from diptych.cca._fitted import FittedAWCCA, second_view
from diptych.cca._spectra import Spectra, spectra
from diptych.cca._weighting import normalize
from diptych.cca.selection._grids import select_images

COMPONENTS = 10
"""Components that a test or an interval is computed for, unless it is told otherwise."""


@dataclass(frozen=True, eq=False)
class PreparedPairs:
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


def prepare_pairs(
    model: Any, X: Any, y: Any, pairing: Any, task: Task, device: str | None = None
) -> PreparedPairs:
    """Return the pairs, normalised as those of ``model`` and on ``device``, with its filters of a task.

    ``model`` is a fitted ``AWCCA`` or a pair ``(γ_x, γ_y)``. γ is in units of a sum over pairs, so the γ of a
    model that was fitted on another number of pairs is scaled.
    """
    task = check_task(task)
    if isinstance(model, FittedAWCCA):
        model._check_fitted()
        check_unweighted(model)
    elif not isinstance(model, tuple | list):
        raise InputError(
            f"{type(model).__name__} is not a model; give a fitted AWCCA, or (γ_x, γ_y) as AWCCA(params=…)."
        )
    names_x = feature_names(X) or names_of(model, "feature_names_in_")
    names_y = feature_names(y) or names_of(model, "y_feature_names_in_")
    x, y, pairing = check_pair_of_views(X, second_view(y), pairing)
    if device is not None:
        x, y, pairing = (copy_to_device(array, device) for array in (x, y, pairing))
    if not isinstance(model, FittedAWCCA):
        found = spectra(x, y, pairing)
        filters = make_filters("tikhonov", params_by_task(model)[task], found.s_x, found.s_y)
        return PreparedPairs(x, y, pairing, found, filters, names_x, names_y)
    x, y = normalize(x, model.normalize[0]), normalize(y, model.normalize[1])
    for view, name, mean in ((x, "X", model.x_mean_), (y, "Y", model.y_mean_)):
        if view.shape[1] != mean.shape[0]:
            raise InputError(
                f"{name} has {view.shape[1]} features, but the model was fitted on {mean.shape[0]}; give the "
                "same features as in fit."
            )
    found = spectra(x, y, pairing, solver=model.solver, precision=model.precision)
    fitted_on = getattr(model, "spectra_", None)  # a model of a retriever's folder has none
    factor = 1.0 if fitted_on is None else found.count / fitted_on.count
    filter_x, filter_y = filters_of(model.models_)[task]
    filters = scale_filter(filter_x, factor), scale_filter(filter_y, factor)
    return PreparedPairs(x, y, pairing, found, filters, names_x, names_y)


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


def select_rows(pairing: Array, mask: Any) -> tuple[Array, Array, Array]:
    """Return the rows of X where ``mask`` is true, the rows of Y that belong to them, and their pairing."""
    part = select_images(pairing, mask)
    return part.images, part.captions, part.pairing


def make_seed(random_state: int | None) -> int:
    """Return the seed of all draws; with None, another one each time."""
    return secrets.randbits(128) if random_state is None else random_state


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
