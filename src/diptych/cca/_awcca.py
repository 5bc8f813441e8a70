"""A fitted AWCCA as a folder: ``model.safetensors`` for the numbers, ``config.json`` for the rest.

AWCCA: the estimator, a thin shell over the functions beside it.
"""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any, Literal

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
from diptych._persistence import CONFIG, TENSORS, load_model, save_model, take
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
from diptych.cca.selection._grids import check_grid
from diptych.ranking import metric, ranks

FORMAT_VERSION = 1
KIND = "awcca"
MEASURED = ("train_correlations", "validation_correlations")
"""What a model may know of itself beside what it needs."""

Loaded = tuple[dict[str, Any], dict[Task, CanonicalModel], Array, Array, Path | None]
Tensors = dict[str, np.ndarray[Any, Any]]


def pack(
    params: Mapping[str, Any],
    models: Mapping[Task, CanonicalModel],
    x_mean: Array,
    y_mean: Array,
    path: Path | None,
) -> tuple[Tensors, dict[str, Any]]:
    """A model as named arrays and plain JSON."""
    tensors = {"x_mean": to_numpy(x_mean), "y_mean": to_numpy(y_mean)}
    stored: dict[str, Any] = {}
    for task, model in models.items():
        # Both tasks often share one model; it is written once.
        first = next(name for name, other in models.items() if other is model)
        stored[task] = {
            "tensors": first,
            "filter_x": _filter_to_json(model.filter_x),
            "filter_y": _filter_to_json(model.filter_y),
        }
        if first == task:
            tensors[f"{task}.correlations"] = to_numpy(model.correlations)
            tensors[f"{task}.x_weights"] = to_numpy(model.x_weights)
            tensors[f"{task}.y_weights"] = to_numpy(model.y_weights)
            for name in MEASURED:
                if (measured := getattr(model, name)) is not None:
                    tensors[f"{task}.{name}"] = to_numpy(measured)
    config = {
        "params": {name: _to_json(value) for name, value in params.items()},
        "models": stored,
        "path": None if path is None else _path_to_json(path),
    }
    return tensors, config


def unpack(tensors: Tensors, config: Mapping[str, Any], folder: FilePath) -> Loaded:
    """What ``pack`` packed: constructor parameters, models, means and regularisation path.

    ``folder`` is where it was read, for messages.
    """
    path = folder / TENSORS
    x_mean = take(tensors, "x_mean", (None,), path)
    y_mean = take(tensors, "y_mean", (None,), path)
    models: dict[Task, CanonicalModel] = {}
    stored, params = config.get("models"), config.get("params")
    if not isinstance(stored, dict) or not isinstance(params, dict):
        raise InputError(f"{folder / CONFIG} lacks 'models' or 'params'; save the model again.")
    for task in TASKS:
        entry = stored.get(task)
        name = entry.get("tensors") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or name not in TASKS:
            raise InputError(f"{folder / CONFIG} does not describe the {task} model; save it again.")
        correlations = take(tensors, f"{name}.correlations", (None,), path)
        models[task] = CanonicalModel(
            correlations,
            take(tensors, f"{name}.x_weights", (len(x_mean), len(correlations)), path),
            take(tensors, f"{name}.y_weights", (len(y_mean), len(correlations)), path),
            _filter_from_json(entry.get("filter_x")),
            _filter_from_json(entry.get("filter_y")),
            *(
                take(tensors, f"{name}.{measured}", (None,), path)
                if f"{name}.{measured}" in tensors
                else None
                for measured in MEASURED
            ),
        )
    kept = {name: _from_json(value) for name, value in params.items() if not _is_unsaved(value)}
    if _is_unsaved(params.get("filter")):
        chosen = models["search"].filter_x
        if not isinstance(chosen, CustomFilter):
            raise InputError(f"{folder / CONFIG} contradicts itself about the filter; save it again.")
        kept["filter"] = chosen.filter
    path_ = None if config.get("path") is None else _path_from_json(config["path"], folder / CONFIG)
    return kept, models, x_mean, y_mean, path_


def save(folder: str | os.PathLike[str], tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Write a packed model; a crash on the way leaves the folder as it was."""
    save_model(folder, KIND, FORMAT_VERSION, tensors, config)


def load(folder: str | os.PathLike[str]) -> Loaded:
    """Read what ``save`` wrote."""
    return unpack(*load_model(folder, KIND, FORMAT_VERSION))


def _path_to_json(path: Path) -> dict[str, Any]:
    return {
        "kind": path.grid.kind,
        "x": path.grid.x.tolist(),
        "y": path.grid.y.tolist(),
        "metric": path.metric,
        "scores": {
            task: {name: _grid_to_json(values) for name, values in named.items()}
            for task, named in path.scores.items()
        },
        "exact": {task: values.astype(int).tolist() for task, values in path.exact.items()},
        "choice": {task: list(point) for task, point in path.choice.items()},
        "route": path.route,
        "seconds": path.seconds,
        "failed": [list(point) for point in path.failed],
        "held_out": path.held_out,
        "extended": {side: list(counts) for side, counts in path.extended.items()},
        "automatic": path.grid.automatic,
    }


def _grid_to_json(values: np.ndarray[Any, Any]) -> list[list[float | None]]:
    # JSON has no NaN: a point that failed is null.
    return [[None if np.isnan(value) else float(value) for value in row] for row in values]


def _path_from_json(stored: Any, path: Any) -> Path:
    try:
        grid = Grid(
            stored["kind"],
            np.asarray(stored["x"], dtype=float),
            np.asarray(stored["y"], dtype=float),
            automatic=bool(stored["automatic"]),
        )

        def whole(values: Any, dtype: type) -> np.ndarray[Any, Any]:
            array: np.ndarray[Any, Any] = np.asarray(values, dtype=dtype)
            if array.shape != grid.shape:
                raise ValueError(f"a table of shape {array.shape} on a grid of {grid.shape}")
            return array

        return Path(
            grid,
            str(stored["metric"]),
            {t: {str(k): whole(v, float) for k, v in stored["scores"][t].items()} for t in TASKS},
            {t: whole(stored["exact"][t], bool) for t in TASKS},
            {t: (int(stored["choice"][t][0]), int(stored["choice"][t][1])) for t in TASKS},
            stored["route"],
            float(stored["seconds"]),
            [(int(i), int(j)) for i, j in stored["failed"]],
            str(stored["held_out"]),
            {s: (int(stored["extended"][s][0]), int(stored["extended"][s][1])) for s in ("x", "y")},
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(
            f"{path} has a damaged regularisation path ({error}); save the model again."
        ) from None


def _filter_to_json(chosen: AnyFilter) -> dict[str, Any]:
    if isinstance(chosen, CustomFilter):
        return {"name": chosen.filter.name, "parameter": chosen.parameter, "per_pair": chosen.filter.per_pair}
    return {"gamma": chosen.gamma} if isinstance(chosen, Tikhonov) else {"k": chosen.k}


def _filter_from_json(stored: Any) -> AnyFilter:
    if isinstance(stored, dict) and set(stored) == {"gamma"}:
        return Tikhonov(stored["gamma"])
    if isinstance(stored, dict) and set(stored) == {"k"}:
        return TruncatedSVD(stored["k"])
    if isinstance(stored, dict) and set(stored) == {"name", "parameter", "per_pair"}:
        # The name is for people: nothing is looked up or run by it.
        family = SpectralFilter(None, name=str(stored["name"]), per_pair=stored["per_pair"] is True)
        return CustomFilter(family, stored["parameter"])
    raise InputError(f"a saved model names the filter {stored!r}; expected {{'gamma': …}} or {{'k': …}}.")


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_json(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_json(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    # A function cannot be stored without storing code; the name says what it was.
    return {"unsaved": getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__)}


def _is_unsaved(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"unsaved"}


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(each) for each in value)
    if isinstance(value, dict):
        return {key: _from_json(each) for key, each in value.items()}
    return value


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
        save(folder, *self.packed())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> AWCCA:
        """Read what ``save`` wrote; nothing in the folder is executed."""
        return cls.unpacked(load(folder))

    def packed(self) -> tuple[Tensors, dict[str, Any]]:
        """The fitted model as named arrays and plain JSON; see ``diptych.cca._awcca``."""
        check_is_fitted(self, "models_")
        parts = self.models_, self.x_mean_, self.y_mean_, self.path_
        return pack(self.get_params(deep=False), *parts)

    @classmethod
    def unpacked(cls, loaded: Loaded) -> AWCCA:
        """The model of which these are the parts."""
        params, models, x_mean, y_mean, path = loaded
        known = cls._get_param_names()
        model = cls(**{name: value for name, value in params.items() if name in known})
        model._check_parameters()
        model.models_, model.x_mean_, model.y_mean_, model.path_ = models, x_mean, y_mean, path
        model.n_features_in_ = int(x_mean.shape[0])
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
