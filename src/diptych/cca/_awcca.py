"""AWCCA: the estimator, and how a fitted one is saved."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Literal, TypeAlias, overload

import msgspec
import numpy as np
from array_api_compat import is_array_api_obj
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, TransformerTags
from sklearn.utils.validation import check_is_fitted, validate_data

from diptych._arrays import Array, fields_to_numpy, to_numpy
from diptych._checks import (
    TASKS,
    DataWarning,
    InputError,
    Similarity,
    Task,
    check_choice,
    check_count,
    check_matrix,
    check_seed,
    check_similarity,
    check_task,
)
from diptych._persistence import Schema, Tensors, read_model_folder, take_array, write_model_folder
from diptych._threads import progress_bar
from diptych.cca._canonical import CanonicalModel, keep_components, regularized_cca, variate_correlations
from diptych.cca._filters import (
    AnyFilter,
    CustomFilter,
    SpectralFilter,
    Tikhonov,
    TruncatedSVD,
    check_filter,
    make_filters,
)
from diptych.cca._fit import (
    SELECTIONS,
    ByTask,
    Fit,
    FitResult,
    Params,
    Selection,
    check_selection,
    params_by_task,
    params_of_models,
    scale_params,
)
from diptych.cca._moments import PRECISIONS, Moments, Precision
from diptych.cca._polish import carry_polish, take_polish
from diptych.cca._spectra import SOLVERS, Solver, Spectra, spectra_from_moments
from diptych.cca._streaming import Block, Engine, are_blocks
from diptych.cca._weighting import (
    Projection,
    Weighting,
    check_normalization,
    check_weighting,
    maps,
    model_factors,
)
from diptych.cca.selection import Path
from diptych.cca.selection._grids import check_grid, check_share
from diptych.ranking import metric, ranks

KIND = "awcca"
_MEASURED = ("train_correlations", "validation_correlations")

Number: TypeAlias = int | float
Side: TypeAlias = str | int | list[float]


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


class TaskConfig(Schema, frozen=True):
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
        AWCCA(**self.unpack())._check_parameters()

    @classmethod
    def pack(cls, model: AWCCA) -> ParamsConfig:
        """Return the config of a model's parameters."""
        params: dict[str, Any] = model.get_params(deep=False)
        unsaved = [name for name in ("filter", "metric") if not isinstance(params[name], str)]
        return cls(**params | dict.fromkeys(unsaved))

    def unpack(self) -> dict[str, Any]:
        """Return the parameters that were stored."""
        params = msgspec.structs.asdict(self)
        return {
            name: value
            for name, value in params.items()
            if value is not None or name not in ("filter", "metric")
        }


class AWCCAConfig(Schema, frozen=True, tag_field="kind", tag=KIND):
    """What ``config.json`` says of a fitted AWCCA."""

    params: ParamsConfig
    models: dict[Task, TaskConfig]
    path: Path | None

    def __post_init__(self) -> None:
        """Refuse a model without one of the tasks, and a path that does not fit its grid."""
        if set(self.models) != set(TASKS):
            raise InputError(f"models has the tasks {sorted(self.models)}; expected {', '.join(TASKS)}")
        if self.path is None:
            return
        shape, scores = self.path.grid.shape, self.path.scores
        if any(set(part) != set(TASKS) for part in (scores, self.path.exact, self.path.choice)):
            raise InputError("path: the regularisation path lacks a task")
        tables = [*self.path.exact.values(), *(table for own in scores.values() for table in own.values())]
        points = [*self.path.choice.values(), *self.path.failed]
        if any(table.shape != shape for table in tables) or not all(
            0 <= i < shape[0] and 0 <= j < shape[1] for i, j in points
        ):
            raise InputError(f"path: a table or a point does not fit the grid of the shape {shape}")


class AWCCA(BaseEstimator):  # type: ignore[misc]
    r"""Asymmetrically weighted, regularised canonical correlation analysis of two paired views.

    One model per task: ``"search"`` finds rows of X (images) for a row of Y (a caption), ``"annotate"`` finds
    rows of Y for a row of X. Each solves

    .. math:: \max_{U, V} \mathrm{tr}(U^\top X^\top Y V) \quad \text{subject to} \quad
              U^\top (X^\top X + \gamma_x I) U = I, \; V^\top (Y^\top Y + \gamma_y I) V = I

    with its own regularisation. The canonical correlations Σ weight the view that is searched: a search
    compares :math:`\Sigma U^\top x` with :math:`V^\top y` by cosine (Table 1).

    Parameters
    ----------
    filter : {"tikhonov", "tsvd", "guided"}, SpectralFilter or callable
        Regularisation: Tikhonov (γ added to the squared singular values), truncated SVD (the first k
        directions), Tikhonov with γ = σ²_k at the k of a truncated SVD, or your own ``SpectralFilter``.
    params : pair, dict or None
        ``(p_x, p_y)`` for both tasks, or ``{"search": (p_x, p_y), "annotate": (p_x, p_y)}``: γ's for
        ``"tikhonov"``, k's for ``"tsvd"`` and ``"guided"``. γ is in units of XᵀX, a sum over pairs. None
        selects them for each task.
    selection : {"validation", "leave-one-out", "ledoit-wolf", "oas"}
        How ``params`` are selected: by retrieval on validation pairs; by retrieval among training images that
        are each left out in turn (Tikhonov, asymmetric weighting); or, if there is too little data for
        either, from theory by shrinkage (Tikhonov). The last three take no validation pairs.
    grid : int, pair
        The parameters to try: points per side; ``("log", n)`` or ``("rank", n)``, evenly spaced in log σ² or
        in rank; or one array of parameters for each view. A number means ``"log"``. If the best point is on
        the edge, a grid that was not given as arrays is extended; see ``path_.extended``.
    metric : str or callable
        What the selection maximises and ``score`` returns: ``"r@1"`` (any k), ``"mean_recall"``,
        ``"median_rank"``, ``"mean_rank"``, or a function of ranks.
    weighting : str or pair
        ``"asymmetric"``, ``"search-generation"``, ``"symmetric"``, ``"none"``, or powers of Σ on X and Y (see
        ``diptych.cca.powers``), or ``"residual"`` (in units of the variance that the item does not explain).
    similarity : {"cosine", "l2"}
        How vectors are compared.
    n_components : int, "auto" or None
        Dimension of the vectors; None keeps every component above rounding error, ``"auto"`` takes the
        dimension that is best on the validation pairs, per task.
    validation_fraction : float
        Without validation pairs, the share of X's rows that is held out to select on, at most 5,000 rows. The
        final model is then refitted on everything, with γ scaled by the number of pairs. If that leaves too
        few to choose on, γ comes from theory (Ledoit-Wolf), with a ``DataWarning``.
    random_state : int or None
        Seeds the choice of the held-out rows.
    solver : {"auto", "gram", "svd"}
        How the spectra are computed; see ``diptych.cca.spectra``.
    precision : {"float64", "float32"}
        Of the products in the pass over the data; see ``diptych.cca.Moments``.
    path_metrics : {"metric", "all"}
        What ``path_`` keeps of every grid point: the metric, or also r@1, r@5, r@10 and the median rank.
    normalize : pair of str
        Normalisation of the rows of X and of Y: ``"none"``, ``"unit"`` (to length 1), ``"signed-sqrt"`` or
        ``"sqrt-unit"`` (both). It is saved with the model and applied to queries.
    verbose : bool or None
        Whether to show a progress bar on standard error: None, if the fit takes more than a few seconds and
        standard error is a terminal; True, at once, with a line for every step that is done; False, never.
    polish : bool
        Multiply the vectors of each view by a matrix that is learned from the training pairs with a
        contrastive loss (see ``diptych.cca._polish``), for as many epochs as are best on the validation
        pairs; if none is better than without, there is no matrix. A polished model has at most 512
        components. Views must be arrays, compared by cosine.

    Attributes
    ----------
    models_ : dict
        ``CanonicalModel`` of each task.
    x_mean_, y_mean_ : array
        Means over training pairs.
    spectra_ : Spectra
        What the fit keeps of the training data; not saved with the model.
    path_ : Path or None
        Grid, scores, choices and time of the selection; None if ``params`` were given.

    References
    ----------
    Mroueh, Marcheret and Goel (2016), "Asymmetric Regularized CCA and Hierarchical Kernel Sentence Embedding
    for Image & Text Retrieval".

    Examples
    --------
    >>> import numpy as np
    >>> from diptych import AWCCA
    >>> rng = np.random.default_rng(0)
    >>> hidden = rng.normal(size=(200, 4))
    >>> x = hidden @ rng.normal(size=(4, 10)) + 0.1 * rng.normal(size=(200, 10))
    >>> y = hidden @ rng.normal(size=(4, 8)) + 0.1 * rng.normal(size=(200, 8))
    >>> model = AWCCA().fit(x[:150], y[:150])
    >>> images, captions = model.transform(x[150:], y[150:], task="search")
    >>> model.score(x[150:], y[150:]) > 50
    True
    """

    def __init__(
        self,
        filter: str | SpectralFilter | Callable[[Array, float], Array] = "tikhonov",
        params: Params | None = None,
        grid: int | tuple[str, int] | tuple[Sequence[float], Sequence[float]] = 20,
        metric: str | Callable[[Array], float] = "r@1",
        weighting: Weighting = "asymmetric",
        similarity: Similarity = "cosine",
        n_components: int | Literal["auto"] | None = None,
        validation_fraction: float = 0.15,
        random_state: int | None = 0,
        solver: Solver = "auto",
        precision: Precision = "float64",
        path_metrics: str = "metric",
        normalize: tuple[str, str] = ("none", "none"),
        verbose: bool | None = None,
        selection: Selection = "validation",
        polish: bool = False,
    ) -> None:
        self.filter = filter
        self.params = params
        self.grid = grid
        self.metric = metric
        self.weighting = weighting
        self.similarity = similarity
        self.n_components = n_components
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.solver = solver
        self.precision = precision
        self.path_metrics = path_metrics
        self.normalize = normalize
        self.verbose = verbose
        self.selection = selection
        self.polish = polish

    def fit(
        self,
        X: Array | Iterable[Block],
        Y: Array | None = None,
        pairing: Array | None = None,
        *,
        validation: tuple[Array, ...] | None = None,
        engine: Engine | None = None,
        device: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> AWCCA:
        """Fit one model per task.

        Parameters
        ----------
        X, Y
            The two views, rows × features, in memory or mapped from disk: where there are more rows than
            columns they are read and normalised one block at a time. A one-dimensional Y is one feature, as
            in scikit-learn. Or, as X alone, an iterable of *blocks*, each ``(x, y)``, ``(x, y, pairing)``, or
            an object whose ``load()`` returns that; each is read once.
        pairing
            Row j of Y belongs to row ``pairing[j]`` of X; None pairs row with row.
        validation
            ``(X, Y)`` or ``(X, Y, pairing)`` to select on; the model is not fitted on them. None holds out a
            share of the training rows. If ``params`` are given, they only measure
            ``validation_correlations``.
        engine
            Sums the blocks and scores the rows of the grid (except on the screened route); None: this
            process.
        device
            A torch device to compute on, such as ``"cuda"``; blocks are copied to it during the computation.
            The model is returned in NumPy.
        checkpoint
            File for the sum of the blocks: after an interruption, run the same fit again, and it resumes and
            ends with the same numbers. The file is removed after the fit. Blocks without a ``fingerprint``
            are trusted to be the same as before. Views that are decomposed as a whole use none.
        """
        self.check_parameters()
        fit = Fit(self, engine, device, checkpoint)
        with progress_bar("fitting", self.verbose):
            if Y is None and are_blocks(X):
                if pairing is not None:
                    raise InputError("blocks contain their own pairing; leave it out.")
                result = fit.fit_blocks(X, validation)
            else:
                second = _second_view(Y)
                validate_data(self, X, skip_check_array=True)
                result = fit.fit_views(X, second, pairing, validation)
            self._set_models(result, fit, as_numpy=device is not None)
        _warn_of_ones(self.models_, self.spectra_)
        if checkpoint is not None:
            pathlib.Path(checkpoint).unlink(missing_ok=True)
        return self

    def fit_moments(self, moments: Moments, *, validation: tuple[Array, ...] | None = None) -> AWCCA:
        """Fit the ``Moments`` of normalised training pairs.

        ``validation`` is as in ``fit``, not normalised; it is needed unless ``params`` are given. With
        ``polish``, a model that is fitted already keeps its polish as in ``refit_moments``.
        """
        self.check_parameters()
        before = getattr(self, "models_", None)
        if self.polish and before is None:
            raise InputError("polish=True learns from pairs, which moments do not contain; use fit().")
        fit = Fit(self)
        with progress_bar("fitting", self.verbose):
            self._set_models(fit.fit_moments(moments, validation), fit)
        self._carry_polish(before or {}, moments)
        _warn_of_ones(self.models_, self.spectra_)
        return self

    def refit_moments(self, moments: Moments, count: int) -> AWCCA:
        """Fit other moments with the selected parameters; ``count`` pairs were fitted before.

        γ is scaled by the number of pairs, k stays, and a guided γ is read from the new spectra. A polish is
        carried over to the new components, not learned again.
        """
        check_is_fitted(self, "models_")
        if self.filter == "guided" and self.params is None:
            params: ByTask = {task: self.path_.params(task) for task in TASKS}  # type: ignore[union-attr]
        elif self.filter == "guided":
            params = params_by_task(self.params)
        else:
            params = scale_params(params_of_models(self.models_), self.filter, moments.count / count)
        before = self.models_
        sizes = {
            task: int(model.correlations.shape[0])
            if self.n_components is not None or model.polish is not None
            else None
            for task, model in before.items()
        }
        path = self.path_
        self._set_models(FitResult(spectra_from_moments(moments), params, sizes, path), Fit(self))
        self._carry_polish(before, moments)
        return self

    def _carry_polish(self, before: Mapping[Task, CanonicalModel], moments: Moments) -> None:
        """Give the models the polish of those before, carried over to their components."""
        for task, old in before.items():
            if old.polish is not None:
                new = keep_components(self.models_[task], int(old.correlations.shape[0]))
                pair = (maps(replace(model, polish=None), self.weighting, task) for model in (new, old))
                self.models_[task] = replace(new, polish=carry_polish(old.polish, moments, *pair))

    @overload
    def transform(
        self, X: Array, Y: None = None, *, task: Task = "search", device: str | None = None
    ) -> Array: ...
    @overload
    def transform(
        self, X: None = None, *, Y: Array, task: Task = "search", device: str | None = None
    ) -> Array: ...
    @overload
    def transform(
        self, X: Array, Y: Array, *, task: Task = "search", device: str | None = None
    ) -> tuple[Array, Array]: ...
    def transform(
        self,
        X: Array | None = None,
        Y: Array | None = None,
        *,
        task: Task = "search",
        device: str | None = None,
    ) -> Array | tuple[Array, Array]:
        """Return the vectors of one view, or of both as a pair, for a task; cosine (or ℓ2) ranks them.

        The arrays choose backend and precision. With a torch ``device``, rows are copied to it one block at a
        time and the vectors are NumPy, so that a view may be larger than the memory of the device.
        """
        check_is_fitted(self, "models_")
        task = check_task(task)
        if X is None and Y is None:
            raise InputError("transform got neither X nor Y; give at least one view.")
        vectors = []
        for view, name in ((X, "X"), (None if Y is None else _second_view(Y), "Y")):
            if view is None:
                continue
            check_matrix(view, name)
            if name == "X":
                validate_data(self, X, reset=False, skip_check_array=True)
            projection = self._projection(task, name)
            vectors.append(projection(view) if device is None else projection.on_device(device, view))
        return vectors[0] if len(vectors) == 1 else tuple(vectors)

    def score(self, X: Array, Y: Array, pairing: Array | None = None, *, task: Task | None = None) -> float:
        """Return the ``metric`` of a task, or the mean of both, with ranks negated: greater is better."""
        check_is_fitted(self, "models_")
        chosen = metric(self.metric)
        tasks = TASKS if task is None else (check_task(task),)
        values = []
        for each in tasks:
            x, y = self.transform(X, Y, task=each)
            values.append(chosen(ranks(x, y, pairing, task=each, similarity=self.similarity)))
        return chosen.signed(sum(values) / len(values))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``, atomically."""
        write_model_folder(folder, KIND, *self.pack())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> AWCCA:
        """Read what ``save`` wrote; nothing in the folder is executed."""
        return cls.unpack(*read_model_folder(folder, KIND, AWCCAConfig))

    def pack(self) -> tuple[AWCCAConfig, Tensors]:
        """Return the fitted model as a config and named arrays."""
        check_is_fitted(self, "models_")
        tensors = {"x_mean": to_numpy(self.x_mean_), "y_mean": to_numpy(self.y_mean_)}
        models: dict[Task, TaskConfig] = {}
        for task, model in self.models_.items():
            # Both tasks often share one model; it is written once.
            first = next(name for name, other in self.models_.items() if other is model)
            epochs = 0
            if model.polish is not None:
                epochs = model.polish.epochs
                tensors |= {
                    f"{task}.polish_{view}": to_numpy(getattr(model.polish, view)) for view in ("x", "y")
                }
            models[task] = TaskConfig(
                first, FilterConfig.pack(model.filter_x), FilterConfig.pack(model.filter_y), epochs
            )
            for name in ("correlations", "x_weights", "y_weights", *_MEASURED) if first == task else ():
                if (array := getattr(model, name)) is not None:
                    tensors[f"{task}.{name}"] = to_numpy(array)
        path = self.path_
        if path is not None and path.grid.filter is not None:  # a function cannot be stored
            path = replace(path, grid=replace(path.grid, filter=None))
        return AWCCAConfig(ParamsConfig.pack(self), models, path), tensors

    @classmethod
    def unpack(cls, config: AWCCAConfig, tensors: Tensors, source: FilePath) -> AWCCA:
        """Return the model that ``pack`` packed; ``source`` is where the arrays were read, for messages."""
        model = cls(**config.params.unpack())
        model.x_mean_ = take_array(tensors, "x_mean", (None,), source)
        model.y_mean_ = take_array(tensors, "y_mean", (None,), source)
        model.models_ = {}
        for task in TASKS:
            name = config.models[task].tensors
            if name in model.models_:
                model.models_[task] = model.models_[name]
                continue
            correlations = take_array(tensors, f"{name}.correlations", (None,), source)
            measured = {
                each: take_array(tensors, f"{name}.{each}", (None,), source)
                for each in _MEASURED
                if f"{name}.{each}" in tensors
            }
            model.models_[task] = CanonicalModel(
                correlations,
                take_array(tensors, f"{name}.x_weights", (len(model.x_mean_), len(correlations)), source),
                take_array(tensors, f"{name}.y_weights", (len(model.y_mean_), len(correlations)), source),
                config.models[task].filter_x.unpack(),
                config.models[task].filter_y.unpack(),
                polish=take_polish(tensors, name, config.models[task].epochs, len(correlations), source),
                **measured,
            )
        if config.params.filter is None:
            chosen = model.models_["search"].filter_x
            if not isinstance(chosen, CustomFilter):
                raise InputError(
                    f"{source.parent} contradicts itself about the filter; save the model again."
                )
            model.filter = chosen.filter
        model.path_ = config.path
        model.n_features_in_ = int(model.x_mean_.shape[0])
        return model

    def __sklearn_tags__(self) -> Tags:
        """Declare a required second view, which is a matrix."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags = TransformerTags(preserves_dtype=["float64", "float32"])
        tags.target_tags.required = True
        tags.target_tags.two_d_labels = True
        tags.array_api_support = True
        return tags

    def check_parameters(self) -> None:
        """Raise an error for wrong settings; ``fit`` calls this first."""
        self._check_parameters()
        check_share(self.validation_fraction)
        if self.params is None:
            check_grid(self.grid)
            return
        pairs = params_by_task(self.params).values()
        if isinstance(self.filter, str):
            for value in (value for pair in pairs for value in pair):
                Tikhonov(value) if self.filter == "tikhonov" else TruncatedSVD(value)

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

    def _projection(self, task: Task, view: str) -> Projection:
        model = self.models_[task]
        for_x, for_y = model_factors(model, self.weighting, task)
        if view == "X":
            return Projection(view, self.normalize[0], self.x_mean_, model.x_weights, for_x)
        return Projection(view, self.normalize[1], self.y_mean_, model.y_weights, for_y)

    def _set_models(self, result: FitResult, work: Fit, *, as_numpy: bool = False) -> None:
        def fit(spectra: Spectra, params: ByTask, dimension: int | None) -> CanonicalModel:
            filters = make_filters(self.filter, params[task], spectra.s_x, spectra.s_y)
            return regularized_cca(spectra, *filters, dimension)

        spectra, params, sizes, unseen = result.spectra, result.params, result.dimensions, result.unseen
        made: dict[Task, tuple[CanonicalModel, CanonicalModel]] = {}
        for task in TASKS:
            same = [t for t in made if (params[t], sizes[t]) == (params[task], sizes[task])]
            if same:
                made[task] = made[same[0]]
                continue
            model = without = fit(spectra, params, sizes[task])
            if unseen is not None:
                # Held-out pairs are among those of the final model: measure the model without them.
                if unseen.spectra is not spectra:
                    without = fit(unseen.spectra, unseen.params, None)
                measured = variate_correlations(without, unseen.spectra, *unseen.pairs)
                model = replace(model, validation_correlations=measured[: int(model.correlations.shape[0])])
            made[task] = model, without
        models = {task: work.polish_model(result, *pair, task) for task, pair in made.items()}
        if as_numpy:
            spectra = fields_to_numpy(spectra)
            models = {task: fields_to_numpy(model) for task, model in models.items()}
        self.path_, self.spectra_, self.models_ = result.path, spectra, models
        self.x_mean_, self.y_mean_ = spectra.x_mean, spectra.y_mean
        self.n_features_in_ = int(spectra.x_mean.shape[0])


def _warn_of_ones(models: Mapping[Task, CanonicalModel], spectra: Spectra) -> None:
    """Warn about correlations that are 1 because there are more directions than pairs."""
    for model in models.values():
        directions = [
            min(rank, getattr(own, "k", rank))
            for own, rank in zip((model.filter_x, model.filter_y), spectra.ranks, strict=True)
        ]
        ones = int((to_numpy(model.correlations) > 1.0 - 1e-6).sum())
        if ones and sum(directions) >= spectra.count:
            warnings.warn(
                f"{ones} of {int(model.correlations.shape[0])} canonical correlations are 1 whatever the "
                f"data: {directions[0]} and {directions[1]} directions are too many for {spectra.count} "
                "pairs; regularise more (params=None selects how much).",
                DataWarning,
                stacklevel=4,
            )
            return


def _second_view(Y: Any) -> Any:
    if Y is None:
        raise InputError("AWCCA requires y to be passed, but the target y is None; give the second view, Y.")
    y = Y if is_array_api_obj(Y) or not hasattr(Y, "__len__") else np.asarray(Y)
    return y[:, None] if getattr(y, "ndim", 2) == 1 else y
