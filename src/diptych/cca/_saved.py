"""A fitted AWCCA as a config and named arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec
import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import TASKS, InputError, Task
from diptych._persistence import Schema, Tensors, take_array
from diptych.cca._canonical import CanonicalModel
from diptych.cca._covariates import CovariateBasis, Regression, Regressions
from diptych.cca._description import check_path, without_filter
from diptych.cca._filters import (
    AnyFilter,
    CustomFilter,
    Isotropic,
    SpectralFilter,
    Tikhonov,
    TruncatedSVD,
)
from diptych.cca._models import Models
from diptych.cca._polish import take_polish
from diptych.cca._projector import VIEWS, ViewKey
from diptych.cca._settings import check_settings, params_by_task, plain_pair
from diptych.cca._spectra import Spectra
from diptych.cca.selection._grids import Path

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA

KIND = "awcca"
_MEASURED = ("train_correlations", "validation_correlations")
_SPECTRA = ("s_x", "v_x", "s_y", "v_y", "t0")  # the means are those of the model

Number: TypeAlias = int | float
Side: TypeAlias = str | int | list[float]


class FilterConfig(Schema, frozen=True):
    """A chosen filter: γ, k, or the parameter of a custom filter, whose function is not stored."""

    kind: Literal["tikhonov", "tsvd", "custom", "pls"]
    parameter: Number
    name: str = ""
    per_pair: bool = False

    def __post_init__(self) -> None:
        self.unpack()

    @classmethod
    def pack(cls, chosen: AnyFilter) -> FilterConfig:
        if isinstance(chosen, CustomFilter):
            return cls("custom", chosen.parameter, chosen.filter.name, chosen.filter.per_pair)
        if isinstance(chosen, Tikhonov):
            return cls("pls" if isinstance(chosen, Isotropic) else "tikhonov", chosen.gamma)
        return cls("tsvd", chosen.k)

    def unpack(self) -> AnyFilter:
        if self.kind == "custom":
            # The name is for people: nothing is looked up or run by it.
            return CustomFilter(SpectralFilter(None, name=self.name, per_pair=self.per_pair), self.parameter)
        if self.kind == "pls":
            return Isotropic(self.parameter)
        return Tikhonov(self.parameter) if self.kind == "tikhonov" else TruncatedSVD(self.parameter)  # type: ignore[arg-type]


class ModelConfig(Schema, frozen=True):
    """The model of a task; ``tensors`` names the task whose arrays it uses, ``epochs`` is of its polish."""

    tensors: Task
    filter_x: FilterConfig
    filter_y: FilterConfig
    epochs: int = 0


class ParamsConfig(Schema, frozen=True):
    """The constructor's parameters; None where a function was given, which cannot be stored."""

    filter: str | None
    params: tuple[Number, Number] | dict[Task, tuple[Number, Number]] | None
    grid: int | tuple[Side, Side]
    metric: str | None
    weighting: str | tuple[Number, Number]
    similarity: str
    n_components: int | str | None
    validation_fraction: float
    random_state: int | None
    solver: str
    precision: str
    path_metrics: str
    normalize: tuple[str, str]
    verbose: bool | None
    selection: str
    polish: bool = False
    scale: bool = False

    def __post_init__(self) -> None:
        check_settings(SimpleNamespace(**self.unpack()))

    @classmethod
    def pack(cls, model: AWCCA) -> ParamsConfig:
        params: dict[str, Any] = {name: getattr(model, name) for name in cls.__struct_fields__}
        if (pairs := params["params"]) is not None:
            is_mapping = isinstance(pairs, Mapping)
            params["params"] = params_by_task(pairs) if is_mapping else plain_pair(pairs)
        unsaved = [name for name in ("filter", "metric") if not isinstance(params[name], str)]
        return cls(**params | dict.fromkeys(unsaved))

    def unpack(self) -> dict[str, Any]:
        """Return the parameters; in place of functions, an empty filter and the default metric."""
        params = msgspec.structs.asdict(self)
        defaults: dict[str, Any] = {"filter": SpectralFilter(None), "metric": "r@1"}
        return params | {name: value for name, value in defaults.items() if params[name] is None}


class SpectraConfig(Schema, frozen=True):
    """The numbers of ``Spectra``, whose arrays are stored beside those of the models."""

    count: int
    resolution: float
    weight: Number | None = None

    def __post_init__(self) -> None:
        """Refuse numbers that no spectra have."""
        total = self.count if self.weight is None else self.weight
        if not self.count > 0 or not 0 < total < float("inf") or not 0.0 <= self.resolution < 1.0:
            raise InputError(f"spectra of {self.count} pairs with the rounding error {self.resolution}")


class AWCCAConfig(Schema, frozen=True, tag_field="kind", tag=KIND):
    """What ``config.json`` says of a fitted AWCCA; ``covariates`` names the views that have some."""

    params: ParamsConfig
    models: dict[Task, ModelConfig]
    path: Path | None
    spectra: SpectraConfig | None = None
    x_names: list[str] | None = None
    y_names: list[str] | None = None
    y_is_vector: bool = False
    covariates: list[ViewKey] = msgspec.field(default_factory=list)
    covariate_names: tuple[list[str] | None, list[str] | None] = (None, None)
    estimator: Literal["AWCCA", "CCA", "PLS"] = "AWCCA"

    def __post_init__(self) -> None:
        """Refuse a model without one of the tasks, and a path that does not fit its grid."""
        if set(self.models) != set(TASKS):
            raise InputError(f"models has the tasks {sorted(self.models)}; expected {', '.join(TASKS)}")
        check_path(self.path)


def pack_model(model: AWCCA, spectra: Spectra | None = None) -> tuple[AWCCAConfig, Tensors]:
    """Return a fitted model as a config and named arrays, with ``spectra`` among them if they are dense."""
    tensors = {"x_mean": to_numpy(model.x_mean_), "y_mean": to_numpy(model.y_mean_)}
    models: dict[Task, ModelConfig] = {}
    for task, of_task in model.models_.items():
        # Both tasks often share one model; it is written once.
        first = next(name for name, shared in model.models_.items() if shared is of_task)
        arrays: dict[str, Any] = {}
        if first == task:
            stored = ("correlations", "x_weights", "y_weights", *_MEASURED)
            arrays = {name: getattr(of_task, name) for name in stored}
            if of_task.polish is not None:
                arrays |= {"polish_x": of_task.polish.x, "polish_y": of_task.polish.y}
        tensors |= {f"{task}.{name}": to_numpy(part) for name, part in arrays.items() if part is not None}
        filters = FilterConfig.pack(of_task.filter_x), FilterConfig.pack(of_task.filter_y)
        models[task] = ModelConfig(first, *filters, of_task.epochs)
    numbers = None
    if spectra is not None and spectra.is_dense:
        numbers = SpectraConfig(spectra.count, spectra.resolution, spectra.weight)
        tensors |= {f"spectra.{name}": to_numpy(getattr(spectra, name)) for name in _SPECTRA}
    views: list[ViewKey] = []
    for view in VIEWS:
        regression: Regression | None = getattr(model.regressions_, view, None)
        if regression is not None:
            views.append(view)
            parts = {**vars(regression.basis), "intercept": regression.intercept, "slopes": regression.slopes}
            tensors |= {f"covariates.{view}.{name}": part for name, part in parts.items()}
    names = [getattr(model, name, None) for name in ("feature_names_in_", "y_feature_names_in_")]
    names += getattr(model, "covariate_names_in_", (None, None))
    x_names, y_names, *z_names = (None if own is None else [str(name) for name in own] for own in names)
    path = without_filter(model.path_)
    params, is_vector = ParamsConfig.pack(model), model._y_is_vector
    if model.scale:
        tensors |= {"x_scale": to_numpy(model.x_scale_), "y_scale": to_numpy(model.y_scale_)}
    labels = x_names, y_names, is_vector, views, (z_names[0], z_names[1]), model._kind
    return AWCCAConfig(params, models, path, numbers, *labels), tensors


def unpack_model(model: AWCCA, config: AWCCAConfig, tensors: Tensors, source: FilePath) -> None:
    """Set the parameters and attributes that were packed; ``source`` is where the arrays were read."""
    settings, names_of = config.params.unpack(), model.get_params()
    model.set_params(**{name: value for name, value in settings.items() if name in names_of})
    x_mean, y_mean = (take_array(tensors, name, (None,), source) for name in ("x_mean", "y_mean"))
    models: dict[Task, CanonicalModel] = {}
    for task in TASKS:
        first = config.models[task].tensors
        models[task] = (
            models[first]
            if first in models
            else _take_model(tensors, first, config.models[task], (len(x_mean), len(y_mean)), source)
        )
    if config.params.filter is None:
        chosen = models["search"].filter_x
        if not isinstance(chosen, CustomFilter):
            raise InputError(f"{source.parent} contradicts itself about the filter; save the model again.")
        model.filter = chosen.filter
    model.models_, model.path_ = Models(models), config.path
    model.x_mean_, model.y_mean_, model.n_features_in_ = x_mean, y_mean, len(x_mean)
    if model.scale:
        model.x_scale_ = take_array(tensors, "x_scale", (len(x_mean),), source)
        model.y_scale_ = take_array(tensors, "y_scale", (len(y_mean),), source)
    model._y_is_vector = config.y_is_vector
    for attribute, names, mean in (
        ("feature_names_in_", config.x_names, x_mean),
        ("y_feature_names_in_", config.y_names, y_mean),
    ):
        if names is not None and len(names) != len(mean):
            raise InputError(
                f"{source.parent} has {len(names)} names for {len(mean)} features; save the model again."
            )
        if names is not None:
            setattr(model, attribute, np.asarray(names, dtype=object))
    model.regressions_ = _take_regressions(tensors, config.covariates, (len(x_mean), len(y_mean)), source)
    if config.covariates:
        model.covariate_names_in_ = config.covariate_names
    if config.spectra is not None:
        model.spectra_ = _take_spectra(tensors, config.spectra, x_mean, y_mean, source)


def _take_model(
    tensors: Tensors, name: Task, config: ModelConfig, widths: tuple[int, int], source: FilePath
) -> CanonicalModel:
    correlations = take_array(tensors, f"{name}.correlations", (None,), source)
    size = len(correlations)
    x_weights, y_weights = (
        take_array(tensors, f"{name}.{view}_weights", (width, size), source)
        for view, width in zip("xy", widths, strict=True)
    )
    measured: dict[str, Any] = {
        measure: take_array(tensors, f"{name}.{measure}", (None,), source)
        for measure in _MEASURED
        if f"{name}.{measure}" in tensors
    }
    filters = config.filter_x.unpack(), config.filter_y.unpack()
    polish = take_polish(tensors, name, config.epochs, size, source)
    return CanonicalModel(correlations, x_weights, y_weights, *filters, **measured, polish=polish)


def _take_regressions(
    tensors: Tensors, views: list[ViewKey], widths: tuple[int, int], source: FilePath
) -> Regressions | None:
    """Return the regressions of the views that have covariates."""

    def take(view: ViewKey, width: int) -> Regression | None:
        if view not in views:
            return None
        name = f"covariates.{view}"
        mean = take_array(tensors, f"{name}.mean", (None,), source)
        directions = take_array(tensors, f"{name}.directions", (len(mean), None), source)
        intercept = take_array(tensors, f"{name}.intercept", (width,), source)
        slopes = take_array(tensors, f"{name}.slopes", (directions.shape[1], width), source)
        return Regression(CovariateBasis(mean, directions), intercept, slopes)

    return Regressions(take("x", widths[0]), take("y", widths[1])) if views else None


def _take_spectra(
    tensors: Tensors, config: SpectraConfig, x_mean: Any, y_mean: Any, source: FilePath
) -> Spectra:
    s_x, s_y = (take_array(tensors, f"spectra.{name}", (None,), source) for name in ("s_x", "s_y"))
    return Spectra(
        config.count,
        x_mean,
        y_mean,
        s_x,
        take_array(tensors, "spectra.v_x", (len(x_mean), len(s_x)), source),
        s_y,
        take_array(tensors, "spectra.v_y", (len(y_mean), len(s_y)), source),
        take_array(tensors, "spectra.t0", (len(s_x), len(s_y)), source),
        config.resolution,
        config.weight,
    )
