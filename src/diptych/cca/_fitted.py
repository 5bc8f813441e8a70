"""A fitted AWCCA without the estimator: what a loaded model needs, and how it is saved.

scikit-learn is not imported here, because its import takes longer than a search.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, overload

import msgspec
import numpy as np
from array_api_compat import is_array_api_obj

from diptych._arrays import Array, fields_to_numpy, is_sparse, to_numpy
from diptych._checks import (
    TASKS,
    InputError,
    Similarity,
    Task,
    check_choice,
    check_count,
    check_seed,
    check_similarity,
    check_task,
)
from diptych._model_folder import read_model_folder, write_model_folder
from diptych._persistence import Schema, Tensors, take_array
from diptych.cca._canonical import CanonicalModel
from diptych.cca._description import check_path
from diptych.cca._filters import (
    SHRINKAGES,
    AnyFilter,
    CustomFilter,
    Shrinkage,
    SpectralFilter,
    Tikhonov,
    TruncatedSVD,
    check_filter,
)
from diptych.cca._moments import PRECISIONS, Moments, Precision
from diptych.cca._polish import take_polish
from diptych.cca._projector import VIEWS, BlockUse, PartMaps, Projector, ViewKey, ViewMap
from diptych.cca._spectra import SOLVERS, Spectra
from diptych.cca._weighting import (
    Projection,
    Weighting,
    check_normalization,
    check_weighting,
    maps,
    model_factors,
    normalize,
)
from diptych.cca.selection._grids import Path
from diptych.ranking import metric

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA

KIND = "awcca"
_MEASURED = ("train_correlations", "validation_correlations")
_SPECTRA = ("s_x", "v_x", "s_y", "v_y", "t0")  # the means are those of the model

Number: TypeAlias = int | float
View: TypeAlias = Literal["X", "Y"]
Side: TypeAlias = str | int | list[float]
Selection: TypeAlias = Literal["validation", "leave-one-out"] | Shrinkage
SELECTIONS: tuple[Selection, ...] = ("validation", "leave-one-out", *SHRINKAGES)


class FilterConfig(Schema, frozen=True):
    """A chosen filter: γ, k, or the parameter of a custom filter, whose function is not stored."""

    kind: Literal["tikhonov", "tsvd", "custom"]
    parameter: Number
    name: str = ""
    per_pair: bool = False

    def __post_init__(self) -> None:
        """Refuse what is no filter."""
        self.unpack()

    @classmethod
    def pack(cls, chosen: AnyFilter) -> FilterConfig:
        """Return the config of a filter."""
        if isinstance(chosen, CustomFilter):
            return cls("custom", chosen.parameter, chosen.filter.name, chosen.filter.per_pair)
        return cls("tikhonov", chosen.gamma) if isinstance(chosen, Tikhonov) else cls("tsvd", chosen.k)

    def unpack(self) -> AnyFilter:
        """Return the filter."""
        if self.kind == "custom":
            # The name is for people: nothing is looked up or run by it.
            return CustomFilter(SpectralFilter(None, name=self.name, per_pair=self.per_pair), self.parameter)
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

    def __post_init__(self) -> None:
        """Refuse settings that AWCCA refuses."""
        FittedAWCCA(**self.unpack())._check_parameters()

    @classmethod
    def pack(cls, model: FittedAWCCA) -> ParamsConfig:
        """Return the config of a model's parameters."""
        params: dict[str, Any] = {name: getattr(model, name) for name in cls.__struct_fields__}
        unsaved = [name for name in ("filter", "metric") if not isinstance(params[name], str)]
        return cls(**params | dict.fromkeys(unsaved))

    def unpack(self) -> dict[str, Any]:
        """Return the parameters, with AWCCA's defaults in place of functions."""
        params = msgspec.structs.asdict(self)
        defaults = {"filter": "tikhonov", "metric": "r@1"}
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
    """What ``config.json`` says of a fitted AWCCA."""

    params: ParamsConfig
    models: dict[Task, ModelConfig]
    path: Path | None
    spectra: SpectraConfig | None = None
    x_names: list[str] | None = None
    y_names: list[str] | None = None
    y_is_vector: bool = False

    def __post_init__(self) -> None:
        """Refuse a model without one of the tasks, and a path that does not fit its grid."""
        if set(self.models) != set(TASKS):
            raise InputError(f"models has the tasks {sorted(self.models)}; expected {', '.join(TASKS)}")
        check_path(self.path)


def check_selection(selection: str, filter: Any, weighting: Any, n_components: Any) -> None:
    """Raise an error for settings that cannot be selected without validation pairs."""
    if selection == "validation":
        return
    if filter != "tikhonov" or n_components == "auto":
        raise InputError(
            f"selection={selection!r} selects Tikhonov's γ and no dimension; use filter='tikhonov' and a "
            "number for n_components, or selection='validation'."
        )
    if selection == "leave-one-out" and (weighting != "asymmetric" or n_components is not None):
        raise InputError(
            "selection='leave-one-out' supports the asymmetric weighting at full dimension only; use "
            "selection='validation' for others."
        )


class FittedAWCCA:
    """A fitted ``AWCCA`` that embeds, scores and is saved, but not fitted; see there for its attributes.

    A loaded retriever holds one. ``make_estimator`` returns it as an ``AWCCA``.
    """

    filter: Any
    params: Any
    grid: Any
    metric: Any
    weighting: Weighting
    similarity: Similarity
    n_components: Any
    validation_fraction: float
    random_state: int | None
    solver: Any
    precision: Precision
    path_metrics: str
    normalize: tuple[str, str]
    verbose: bool | None
    selection: Selection
    polish: bool
    models_: Mapping[Task, CanonicalModel]
    x_mean_: Array
    y_mean_: Array
    path_: Path | None
    spectra_: Spectra
    n_features_in_: int
    _y_is_vector: bool = False

    def __init__(self, **params: Any) -> None:
        self.__dict__.update(params)

    def make_estimator(self) -> AWCCA:
        """Return an ``AWCCA`` with the same parameters and models."""
        from diptych.cca._awcca import AWCCA

        estimator = AWCCA()
        estimator.__dict__.update(self.__dict__)
        return estimator

    @overload
    def transform(
        self, X: Array, y: None = None, *, task: Task = "search", device: str | None = None
    ) -> Array: ...
    @overload
    def transform(
        self, X: None = None, *, y: Array, task: Task = "search", device: str | None = None
    ) -> Array: ...
    @overload
    def transform(
        self, X: Array, y: Array, *, task: Task = "search", device: str | None = None
    ) -> tuple[Array, Array]: ...
    def transform(
        self,
        X: Array | None = None,
        y: Array | None = None,
        *,
        task: Task = "search",
        device: str | None = None,
    ) -> Array | tuple[Array, Array]:
        """Return the vectors of one view, or of both as a pair, for a task; cosine (or ℓ2) ranks them.

        The arrays choose backend and precision. With a torch ``device``, rows are copied to it one block at a
        time and the vectors are NumPy, so that a view may be larger than the memory of the device. After
        ``set_output(transform="pandas")`` the vectors of each view are a data frame with the index of the
        view.

        >>> import numpy as np
        >>> from diptych import AWCCA
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> model = AWCCA(params=(1.0, 1.0)).fit(x, x[:, :3])
        >>> model.transform(x).shape, model.transform(y=x[:5, :3]).shape
        ((50, 3), (5, 3))
        """
        self._check_fitted()
        task = check_task(task)
        if X is None and y is None:
            raise InputError("transform got neither X nor y; give at least one view.")
        views: list[tuple[Any, View]] = [(X, "X"), (None if y is None else second_view(y), "Y")]
        vectors = [
            self._label_vectors(self._embed_view(view, name, task, device), X if name == "X" else y)
            for view, name in views
            if view is not None
        ]
        return vectors[0] if len(vectors) == 1 else tuple(vectors)

    def projector(self, task: str = "search") -> Projector:
        """Return what turns features into the vectors of a task, without the estimator."""
        self._check_fitted()
        name = check_task(task)
        linear_maps = maps(fields_to_numpy(self.models_[name]), self.weighting, name)
        x, y = (
            ViewMap((BlockUse(view, how),), *(np.ascontiguousarray(to_numpy(a), np.float32) for a in arrays))
            for view, how, *arrays in zip(
                VIEWS, self.normalize, (self.x_mean_, self.y_mean_), linear_maps, strict=True
            )
        )
        return Projector(
            name, (PartMaps("x × y", x, y),), self.block_widths(), euclidean=self.similarity == "l2"
        )

    def block_widths(self) -> dict[ViewKey, dict[str, int]]:
        """Return the number of features of both views, each of which is one block."""
        return {"x": {"x": len(self.x_mean_)}, "y": {"y": len(self.y_mean_)}}

    def make_moments(self, X: Array, y: Array, pairing: Any = None) -> Moments:
        """Return the moments of more pairs, as the model's are: of normalised features."""
        x, y = normalize(X, self.normalize[0]), normalize(y, self.normalize[1])
        return Moments.of(x, y, pairing, precision=self.precision)

    def moment_widths(self) -> dict[str, int]:
        """Return the numbers of columns of both views in the model's moments."""
        return {"x": len(self.x_mean_), "y": len(self.y_mean_)}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``, atomically.

        The spectra are written too, so that a loaded model predicts; not those of a large sparse view with
        fewer rows than columns, which contain its rows.

        >>> import tempfile
        >>> import numpy as np
        >>> from diptych import AWCCA
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> model = AWCCA(params=(1.0, 1.0)).fit(x, x[:, :3])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(folder)
        ...     AWCCA.load(folder).predict(x).shape
        (50, 3)
        """
        config, tensors = self.pack()
        spectra: Spectra | None = getattr(self, "spectra_", None)
        if spectra is not None and spectra.is_dense:
            numbers = SpectraConfig(spectra.count, spectra.resolution, spectra.weight)
            config = msgspec.structs.replace(config, spectra=numbers)
            tensors |= {f"spectra.{name}": to_numpy(getattr(spectra, name)) for name in _SPECTRA}
        write_model_folder(folder, KIND, config, tensors)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read what ``save`` wrote; nothing in the folder is executed. See there for an example."""
        return cls.unpack(*read_model_folder(folder, KIND, AWCCAConfig))

    def pack(self) -> tuple[AWCCAConfig, Tensors]:
        """Return the fitted model as a config and named arrays."""
        self._check_fitted()
        tensors = {"x_mean": to_numpy(self.x_mean_), "y_mean": to_numpy(self.y_mean_)}
        models: dict[Task, ModelConfig] = {}
        for task, model in self.models_.items():
            # Both tasks often share one model; it is written once.
            first = next(name for name, shared in self.models_.items() if shared is model)
            epochs = 0
            if model.polish is not None:
                epochs = model.polish.epochs
                tensors |= {
                    f"{task}.polish_{view}": to_numpy(getattr(model.polish, view)) for view in ("x", "y")
                }
            models[task] = ModelConfig(
                first, FilterConfig.pack(model.filter_x), FilterConfig.pack(model.filter_y), epochs
            )
            for name in ("correlations", "x_weights", "y_weights", *_MEASURED) if first == task else ():
                if (array := getattr(model, name)) is not None:
                    tensors[f"{task}.{name}"] = to_numpy(array)
        path = self.path_
        if path is not None and path.grid.filter is not None:  # a function cannot be stored
            path = replace(path, grid=replace(path.grid, filter=None))
        names = (getattr(self, name, None) for name in ("feature_names_in_", "y_feature_names_in_"))
        x_names, y_names = (None if labels is None else [str(name) for name in labels] for labels in names)
        config = AWCCAConfig(
            ParamsConfig.pack(self),
            models,
            path,
            x_names=x_names,
            y_names=y_names,
            y_is_vector=self._y_is_vector,
        )
        return config, tensors

    @classmethod
    def unpack(cls, config: AWCCAConfig, tensors: Tensors, source: FilePath) -> Self:
        """Return the model that ``pack`` packed; ``source`` is where the arrays were read, for messages."""
        model = cls(**config.params.unpack())
        model.x_mean_ = take_array(tensors, "x_mean", (None,), source)
        model.y_mean_ = take_array(tensors, "y_mean", (None,), source)
        models: dict[Task, CanonicalModel] = {}
        for task in TASKS:
            name = config.models[task].tensors
            if name in models:
                models[task] = models[name]
                continue
            correlations = take_array(tensors, f"{name}.correlations", (None,), source)
            measured = {
                measure: take_array(tensors, f"{name}.{measure}", (None,), source)
                for measure in _MEASURED
                if f"{name}.{measure}" in tensors
            }
            models[task] = CanonicalModel(
                correlations,
                take_array(tensors, f"{name}.x_weights", (len(model.x_mean_), len(correlations)), source),
                take_array(tensors, f"{name}.y_weights", (len(model.y_mean_), len(correlations)), source),
                config.models[task].filter_x.unpack(),
                config.models[task].filter_y.unpack(),
                polish=take_polish(tensors, name, config.models[task].epochs, len(correlations), source),
                **measured,
            )
        if config.params.filter is None:
            chosen = models["search"].filter_x
            if not isinstance(chosen, CustomFilter):
                raise InputError(
                    f"{source.parent} contradicts itself about the filter; save the model again."
                )
            model.filter = chosen.filter
        model.models_, model.path_ = models, config.path
        model.n_features_in_ = int(model.x_mean_.shape[0])
        model._take_names(config, source)
        if config.spectra is not None:
            model.spectra_ = _take_spectra(tensors, config.spectra, model.x_mean_, model.y_mean_, source)
        return model

    def __sklearn_is_fitted__(self) -> bool:
        """Return whether there are models."""
        return hasattr(self, "models_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            from sklearn.exceptions import NotFittedError

            raise NotFittedError(f"this {type(self).__name__} is not fitted; call fit() first.")

    def _embed_view(self, view: Any, name: View, task: Task, device: str | None = None) -> Array:
        """Return the vectors of one view."""
        self._check_columns(view, name)
        projection = self._projection(task, name)
        return projection(view) if device is None else projection.on_device(device, view)

    def _check_columns(self, view: Any, name: View) -> None:
        """Raise an error for columns other than in fit; the estimator knows their names."""

    def _label_vectors(self, vectors: Array, view: Any) -> Any:
        """Return vectors as ``set_output`` asks for, which the estimator has."""
        return vectors

    def _take_names(self, config: AWCCAConfig, source: FilePath) -> None:
        """Set the names of the features as they are in a config."""
        self._y_is_vector = config.y_is_vector
        for attribute, names, mean in (
            ("feature_names_in_", config.x_names, self.x_mean_),
            ("y_feature_names_in_", config.y_names, self.y_mean_),
        ):
            if names is None:
                continue
            if len(names) != len(mean):
                raise InputError(
                    f"{source.parent} has {len(names)} names for {len(mean)} features; save the model again."
                )
            setattr(self, attribute, np.asarray(names, dtype=object))

    def _check_parameters(self) -> None:
        check_filter(self.filter)
        check_choice(self.solver, SOLVERS, "solver")
        check_choice(self.precision, PRECISIONS, "precision")
        check_similarity(self.similarity)
        check_choice(self.path_metrics, ("metric", "all"), "path_metrics")
        check_weighting(self.weighting)
        check_choice(self.selection, SELECTIONS, "selection")
        if self.params is None:
            check_selection(self.selection, self.filter, self.weighting, self.n_components)
        metric(self.metric)
        if self.polish and (self.similarity != "cosine" or self.selection != "validation"):
            raise InputError(
                "polish=True learns cosines, and chooses its epochs on validation pairs; use "
                "similarity='cosine' and selection='validation'."
            )
        check_seed(self.random_state)
        if self.n_components not in (None, "auto"):
            check_count(self.n_components, "n_components")
        if not isinstance(self.normalize, (tuple, list)) or len(self.normalize) != 2:
            raise InputError(
                f"normalize={self.normalize!r} is not a pair; give one name for X and one for Y."
            )
        for name in self.normalize:
            check_normalization(name)

    def _projection(self, task: Task, view: View) -> Projection:
        model = self.models_[task]
        for_x, for_y = model_factors(model, self.weighting, task)
        if view == "X":
            return Projection(view, self.normalize[0], self.x_mean_, model.x_weights, for_x)
        return Projection(view, self.normalize[1], self.y_mean_, model.y_weights, for_y)


def second_view(Y: Any) -> Any:
    """Return Y as a matrix: a Y of one axis is one feature. A data frame keeps the names of its columns."""
    if Y is None:
        raise InputError("AWCCA requires y to be passed, but the target y is None; give the second view, Y.")
    if is_sparse(Y) or hasattr(Y, "columns"):
        return Y
    readable = hasattr(Y, "__len__") or hasattr(Y, "__array__")
    y = np.asarray(Y) if readable and not is_array_api_obj(Y) else Y
    return y[:, None] if getattr(y, "ndim", 2) == 1 else y


def _take_spectra(
    tensors: Tensors, config: SpectraConfig, x_mean: Array, y_mean: Array, source: FilePath
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
