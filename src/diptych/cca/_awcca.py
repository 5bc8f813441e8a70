"""AWCCA: the estimator, and how a fitted one is saved."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from array_api_compat import is_array_api_obj
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, TransformerTags
from sklearn.utils.validation import check_is_fitted, validate_data

from diptych._arrays import Array, in_numpy, to_numpy
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
from diptych._normalize import check_normalization
from diptych._persistence import Schema, Tensors, read_model_folder, take_array, write_model_folder
from diptych.cca._canonical import CanonicalModel, regularized_cca, variate_correlations
from diptych.cca._filters import (
    AnyFilter,
    CustomFilter,
    SpectralFilter,
    Tikhonov,
    TruncatedSVD,
    check_filter,
    named_filters,
)
from diptych.cca._fit import (
    ByTask,
    Fitting,
    Selected,
    Selection,
    Unseen,
    check_alone,
    check_selection,
    grown,
    grows_with_pairs,
    params_by_task,
    params_in_use,
)
from diptych.cca._moments import PRECISIONS, Moments, Precision
from diptych.cca._spectra import SOLVERS, Solver, Spectra, spectra_from_moments
from diptych.cca._streaming import Engine, are_blocks
from diptych.cca._weighting import Projection, Weighting, check_weighting, weight_factors
from diptych.cca.selection import Grid, Path
from diptych.cca.selection._grids import Kind as GridKind
from diptych.cca.selection._grids import check_grid
from diptych.cca.selection._path import Route
from diptych.ranking import metric, ranks

KIND = "awcca"
_MEASURED = ("train_correlations", "validation_correlations")

Number: TypeAlias = int | float
Side: TypeAlias = str | int | list[float]
Table: TypeAlias = list[list[float | None]]


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
    """The model of a task; ``tensors`` names the task whose arrays it uses."""

    tensors: Task
    filter_x: FilterConfig
    filter_y: FilterConfig


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
    verbose: bool
    selection: str

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


class PathConfig(Schema, frozen=True):
    """A regularisation path; scores are None at points that failed, because JSON has no NaN."""

    kind: GridKind
    x: list[float]
    y: list[float]
    automatic: bool
    metric: str
    scores: dict[Task, dict[str, Table]]
    exact: dict[Task, list[list[bool]]]
    choice: dict[Task, tuple[int, int]]
    route: Route
    seconds: float
    failed: list[tuple[int, int]]
    held_out: str
    extended: dict[Literal["x", "y"], tuple[int, int]]

    def __post_init__(self) -> None:
        """Refuse tables that do not fit the grid, and tasks or sides without an entry."""
        shape = (len(self.x), len(self.y))
        tables: list[list[list[Any]]] = [*self.exact.values()]
        tables += [table for named in self.scores.values() for table in named.values()]
        if any((len(table), *map(len, table)) != (shape[0], *[shape[1]] * shape[0]) for table in tables):
            raise InputError(
                f"a table of the regularisation path does not have the shape {shape} of its grid"
            )
        for part in (self.scores, self.exact, self.choice):
            if set(part) != set(TASKS):
                raise InputError(f"the regularisation path has the tasks {sorted(part)}")
        if set(self.extended) != {"x", "y"} or any(
            not 0 <= index < n
            for point in (*self.choice.values(), *self.failed)
            for index, n in zip(point, shape, strict=True)
        ):
            raise InputError("the regularisation path names points outside its grid")

    @classmethod
    def pack(cls, path: Path) -> PathConfig:
        """Return the config of a path."""

        def table(values: np.ndarray[Any, Any]) -> Table:
            return [[None if np.isnan(value) else float(value) for value in row] for row in values]

        return cls(
            kind=path.grid.kind,
            x=path.grid.x.tolist(),
            y=path.grid.y.tolist(),
            automatic=path.grid.automatic,
            metric=path.metric,
            scores={t: {name: table(each) for name, each in own.items()} for t, own in path.scores.items()},
            exact={t: each.astype(bool).tolist() for t, each in path.exact.items()},
            choice={t: (int(i), int(j)) for t, (i, j) in path.choice.items()},
            route=path.route,
            seconds=path.seconds,
            failed=[(int(i), int(j)) for i, j in path.failed],
            held_out=path.held_out,
            extended={"x": path.extended["x"], "y": path.extended["y"]},
        )

    def unpack(self) -> Path:
        """Return the path."""
        return Path(
            Grid(self.kind, np.array(self.x, float), np.array(self.y, float), automatic=self.automatic),
            self.metric,
            {
                t: {name: np.array(each, float) for name, each in own.items()}
                for t, own in self.scores.items()
            },
            {t: np.array(each, bool) for t, each in self.exact.items()},
            dict(self.choice),
            self.route,
            self.seconds,
            list(self.failed),
            self.held_out,
            {"x": self.extended["x"], "y": self.extended["y"]},
        )


class AWCCAConfig(Schema, frozen=True, tag_field="kind", tag=KIND):
    """What ``config.json`` says of a fitted AWCCA."""

    params: ParamsConfig
    models: dict[Task, TaskConfig]
    path: PathConfig | None

    def __post_init__(self) -> None:
        """Refuse a model without one of the tasks."""
        if set(self.models) != set(TASKS):
            raise InputError(f"models has the tasks {sorted(self.models)}; expected {', '.join(TASKS)}")


class AWCCA(BaseEstimator):  # type: ignore[misc]
    """Asymmetrically weighted, regularised canonical correlation analysis of two paired views.

    One model per task: ``"search"`` finds rows of X (pictures) for a row of Y (a sentence),
    ``"annotate"`` finds rows of Y for a row of X. Items that are searched are mapped into the space of
    the query by weighting their canonical weights with the canonical correlations.

    Parameters
    ----------
    filter : {"tikhonov", "tsvd", "guided"}, SpectralFilter or callable
        Regularisation: Tikhonov (γ added to the squared singular values), truncated SVD (the first k
        directions), Tikhonov with γ = σ²_k at a truncated SVD's k, or a spectral filter of your own; see
        ``diptych.cca.SpectralFilter``.
    params : pair, dict or None
        ``(p_x, p_y)`` for both tasks, or ``{"search": (p_x, p_y), "annotate": (p_x, p_y)}``: γ's for
        ``"tikhonov"``, k's for ``"tsvd"`` and ``"guided"``. γ is in units of XᵀX, a sum over pairs. None
        selects them for each task, by exhaustive search unless ``selection`` says otherwise.
    selection : {"validation", "leave-one-out", "ledoit-wolf", "oas"}
        What selects ``params``: retrieval on validation pairs; retrieval among training images that are
        each left out in turn (Tikhonov, asymmetric weighting); or no search at all but shrinkage from
        theory (Tikhonov), for when there is too little to select on. The last three take no validation.
    grid : int, pair
        Where the search looks: points per side; ``("log", n)`` or ``("rank", n)``, evenly spaced in log σ²
        or in rank; or one array of parameters for each view. A plain number means ``"log"``. Where the best
        point lies on the edge, a grid that was not given as arrays is extended; see ``path_.extended``.
    metric : str or callable
        What the search maximises and ``score`` returns: ``"r@1"`` (any k), ``"mean_recall"``,
        ``"median_rank"``, ``"mean_rank"``, or a function of ranks.
    weighting : str or pair
        ``"asymmetric"``, ``"search-generation"``, ``"symmetric"``, ``"none"``, or powers of Σ on X and Y;
        or ``"residual"``; see ``diptych.cca.powers`` and ``diptych.cca.weight_factors``.
    similarity : {"cosine", "l2"}
        How embeddings are compared.
    n_components : int, "auto" or None
        Dimension of the embeddings; None keeps every component above rounding error, ``"auto"`` takes the
        dimension that is best on the validation pairs, per task.
    validation_fraction : float
        Without validation pairs, the share of X's rows that is held out to select on, 5,000 at most. The
        final model is then refitted on everything, with γ scaled by the number of pairs. Where that leaves
        too few to choose on, γ is taken from theory (Ledoit-Wolf), with a ``DataWarning``.
    random_state : int or None
        Seeds the choice of the held-out rows.
    solver : {"auto", "gram", "svd"}
        How the spectra are computed; see ``diptych.cca._spectra``.
    precision : {"float64", "float32"}
        Of the products in the pass over the data; see ``diptych.cca.Moments``.
    path_metrics : {"metric", "all"}
        What ``path_`` keeps of every grid point: the metric, or r@1, r@5, r@10 and median rank as well.
    normalize : pair of str
        How the rows of X and of Y are normalised before anything else: ``"none"``, ``"unit"``,
        ``"signed-sqrt"`` or ``"sqrt-unit"``; see ``diptych._normalize``. Saved and applied with the model.
    verbose : bool
        Show a progress bar while selecting.

    Attributes
    ----------
    models_ : dict
        ``CanonicalModel`` of each task: correlations (of the regularised model, which weigh the search),
        train_correlations and validation_correlations (of its variates), x_weights, y_weights, filter_x,
        filter_y.
    x_mean_, y_mean_ : array
        Means over training pairs.
    spectra_ : Spectra
        All that is kept of the training data; not saved with the model.
    path_ : Path or None
        Grids, scores of every grid point, the choices and the time they took; None when ``params`` were
        given.

    Notes
    -----
    A view is an array of features. What comes before, a scikit-learn ``Pipeline`` or any other
    transformer, is fitted and applied to its own view first, and AWCCA takes what comes out::

        images, texts = make_pipeline(Normalizer(), StandardScaler()), HKSE()
        model = AWCCA().fit(images.fit_transform(photos), texts.fit_transform(captions), pairing)
        found = model.transform(Y=texts.transform(["a dog in the snow"]))

    Examples
    --------
    >>> import numpy as np
    >>> from diptych import AWCCA
    >>> rng = np.random.default_rng(0)
    >>> hidden = rng.normal(size=(200, 4))
    >>> x = hidden @ rng.normal(size=(4, 10)) + 0.1 * rng.normal(size=(200, 10))
    >>> y = hidden @ rng.normal(size=(4, 8)) + 0.1 * rng.normal(size=(200, 8))
    >>> model = AWCCA().fit(x[:150], y[:150])
    >>> images, sentences = model.transform(x[150:], y[150:], task="search")
    >>> model.score(x[150:], y[150:]) > 50
    True
    """

    def __init__(
        self,
        filter: str | SpectralFilter | Callable[[Any, float], Any] = "tikhonov",
        params: Any = None,
        grid: Any = 20,
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
        verbose: bool = False,
        selection: Selection = "validation",
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

    def fit(
        self,
        X: Any,
        Y: Any = None,
        pairing: Any = None,
        *,
        validation: tuple[Any, ...] | None = None,
        engine: Engine | None = None,
        device: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> AWCCA:
        """Fit one model per task.

        Parameters
        ----------
        X, Y
            The two views, rows × features, in memory or mapped from disk: where there are more rows than
            columns they are read, widened and normalised a block at a time. A one-dimensional Y is one
            feature, as in scikit-learn. Or, as X alone, an iterable of *blocks*, each ``(x, y)``,
            ``(x, y, pairing)``, or an object whose ``load()`` gives that; each is looked at once.
        pairing
            Row j of Y belongs to row ``pairing[j]`` of X; None pairs row with row.
        validation
            ``(X, Y)`` or ``(X, Y, pairing)`` to select on; nothing is fitted on them. None holds out a
            share of the training rows. Not needed when ``params`` are given; then they serve to measure
            ``validation_correlations``.
        engine
            What sums the blocks, and scores the rows of the grid where screening does not serve (see
            ``docs/selection.md``); None is this process.
        device
            A torch device, such as ``"cuda"``, to compute on, whatever the arrays are; blocks are copied to
            it while it computes with those before. The model comes back in NumPy.
        checkpoint
            File to keep the sum in while it grows: run the same fit again after an interruption, and it goes
            on from there and ends with the same numbers. It is removed when the fit is done. Blocks without
            a ``fingerprint`` are trusted to be the same as before. Views so small or wide that they are
            decomposed as a whole need none.
        """
        self.check_parameters()
        fitting = Fitting(self, engine, device, checkpoint)
        if Y is None and are_blocks(X):
            if pairing is not None:
                raise InputError("blocks carry their own pairing; leave it out.")
            self._take(fitting.of_blocks(X, validation), device)
        else:
            second = _second_view(Y)
            validate_data(self, X, skip_check_array=True)
            self._take(fitting.of_views(X, second, pairing, validation), device)
        if checkpoint is not None:
            pathlib.Path(checkpoint).unlink(missing_ok=True)
        return self

    def fit_moments(self, moments: Moments, *, validation: tuple[Any, ...] | None = None) -> AWCCA:
        """Fit from ``Moments`` of views that were normalised already, wherever they were computed.

        Parameters
        ----------
        moments
            Of the training pairs.
        validation
            As in ``fit``, as the views are before normalisation; needed unless ``params`` are given.
        """
        self.check_parameters()
        self._take(Fitting(self).of_moments(moments, validation))
        return self

    def refit_moments(self, moments: Moments, count: int) -> AWCCA:
        """Fit again from other moments with what was selected; ``count`` pairs were fitted on before.

        γ grows with the number of pairs; k stays; a guided γ is read again from the new spectra.
        """
        check_is_fitted(self, "models_")
        if self.filter == "guided":
            given = params_by_task(self.params) if self.params is not None else None
            chosen = given or {task: self.path_.params(task) for task in TASKS}  # type: ignore[union-attr]
        elif grows_with_pairs(self.filter):
            chosen = grown(params_in_use(self.models_), moments.count / count)
        else:
            chosen = params_in_use(self.models_)
        limited = self.n_components is not None
        kept = {t: int(self.models_[t].correlations.shape[0]) if limited else None for t in TASKS}
        self._keep(spectra_from_moments(moments), chosen, kept)
        return self

    def transform(
        self, X: Any = None, Y: Any = None, *, task: str = "search", device: str | None = None
    ) -> Any:
        """Embed one view, or both as a pair, for a task; cosine between embeddings ranks.

        (With ``similarity="l2"``, the distance between them ranks.) The given array chooses where the
        arithmetic runs and its precision. With a ``device``, rows are carried to it a block at a time and
        their embeddings come back in NumPy, so that a view may be larger than the device's memory.
        """
        check_is_fitted(self, "models_")
        task = check_task(task)
        if X is None and Y is None:
            raise InputError("transform was given neither X nor Y; give at least one view.")
        embedded = []
        for view, name in ((X, "X"), (None if Y is None else _second_view(Y), "Y")):
            if view is None:
                continue
            check_matrix(view, name)
            if name == "X":
                validate_data(self, X, reset=False, skip_check_array=True)
            projection = self._projection(task, name)
            embedded.append(projection(view) if device is None else projection.on_device(device, view))
        return embedded[0] if len(embedded) == 1 else tuple(embedded)

    def score(self, X: Any, Y: Any, pairing: Any = None, *, task: str | None = None) -> float:
        """``metric`` on the given pairs; the mean of both tasks when ``task`` is None.

        Greater is better, as scikit-learn expects: ranks are negated.
        """
        check_is_fitted(self, "models_")
        chosen = metric(self.metric)
        tasks = TASKS if task is None else (check_task(task),)
        values = []
        for each in tasks:
            x, y = self.transform(X, Y, task=each)
            values.append(chosen.of(ranks(x, y, pairing, task=each, similarity=self.similarity)))
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
            models[task] = TaskConfig(
                first, FilterConfig.pack(model.filter_x), FilterConfig.pack(model.filter_y)
            )
            for name in ("correlations", "x_weights", "y_weights", *_MEASURED) if first == task else ():
                if (array := getattr(model, name)) is not None:
                    tensors[f"{task}.{name}"] = to_numpy(array)
        path = None if self.path_ is None else PathConfig.pack(self.path_)
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
            model.models_[task] = CanonicalModel(
                correlations,
                take_array(tensors, f"{name}.x_weights", (len(model.x_mean_), len(correlations)), source),
                take_array(tensors, f"{name}.y_weights", (len(model.y_mean_), len(correlations)), source),
                config.models[task].filter_x.unpack(),
                config.models[task].filter_y.unpack(),
                *(
                    take_array(tensors, f"{name}.{each}", (None,), source)
                    if f"{name}.{each}" in tensors
                    else None
                    for each in _MEASURED
                ),
            )
        if config.params.filter is None:
            chosen = model.models_["search"].filter_x
            if not isinstance(chosen, CustomFilter):
                raise InputError(
                    f"{source.parent} contradicts itself about the filter; save the model again."
                )
            model.filter = chosen.filter
        model.path_ = None if config.path is None else config.path.unpack()
        model.n_features_in_ = int(model.x_mean_.shape[0])
        return model

    def __sklearn_tags__(self) -> Tags:
        """Two views: the second is required, and is a matrix."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags = TransformerTags(preserves_dtype=["float64", "float32"])
        tags.target_tags.required = True
        tags.target_tags.two_d_labels = True
        tags.array_api_support = True
        return tags

    def check_parameters(self) -> None:
        """Refuse wrong settings before any data is looked at; ``fit`` begins with this."""
        self._check_parameters()
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
        check_selection(self.selection)
        if self.selection != "validation" and self.params is None:
            check_alone(self.selection, self.filter, self.weighting, self.n_components)
        metric(self.metric)
        check_seed(self.random_state)
        if self.n_components not in (None, "auto"):
            check_count(self.n_components, "n_components")
        if not isinstance(self.normalize, (tuple, list)) or len(self.normalize) != 2:
            raise InputError(
                f"normalize={self.normalize!r} is not a pair; give one name for X and one for Y."
            )
        for name in self.normalize:
            check_normalization(name)

    def _take(self, found: Selected, device: str | None = None) -> None:
        self.path_ = found.path
        self._keep(found.spectra, found.params, found.dimensions, found.unseen, home=device is not None)
        _warn_of_ones(self.models_, self.spectra_)

    def _projection(self, task: Task, view: str) -> Projection:
        model = self.models_[task]
        for_x, for_y = weight_factors(model.correlations, self.weighting, task)
        if view == "X":
            return Projection(view, self.normalize[0], self.x_mean_, model.x_weights, for_x)
        return Projection(view, self.normalize[1], self.y_mean_, model.y_weights, for_y)

    def _keep(
        self,
        spectra: Spectra,
        params: ByTask,
        dimensions: Mapping[Task, int | None],
        unseen: Unseen | None = None,
        *,
        home: bool = False,
    ) -> None:
        def fitted(where: Spectra, params: ByTask, dimension: int | None) -> CanonicalModel:
            filters = named_filters(self.filter, params[task], where.s_x, where.s_y)
            return regularized_cca(where, *filters, dimension)

        models: dict[Task, CanonicalModel] = {}
        for task in TASKS:
            same = [t for t in models if (params[t], dimensions[t]) == (params[task], dimensions[task])]
            if same:
                models[task] = models[same[0]]
                continue
            model = fitted(spectra, params, dimensions[task])
            if unseen is not None:
                # The pairs may be among those that the model is fitted on in the end.
                other = unseen.spectra is not spectra
                without = fitted(unseen.spectra, unseen.params, None) if other else model
                measured = variate_correlations(without, unseen.spectra, *unseen.pairs)
                kept = int(model.correlations.shape[0])
                model = replace(model, validation_correlations=measured[:kept])
            models[task] = model
        if home:
            spectra, models = in_numpy(spectra), {task: in_numpy(model) for task, model in models.items()}
        self.spectra_, self.models_ = spectra, models
        self.x_mean_, self.y_mean_ = spectra.x_mean, spectra.y_mean
        self.n_features_in_ = int(spectra.x_mean.shape[0])


def _warn_of_ones(models: Mapping[Task, CanonicalModel], spectra: Spectra) -> None:
    """Warn of correlations that are 1 because there are more directions than pairs."""
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
