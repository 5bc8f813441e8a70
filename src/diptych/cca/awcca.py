"""AWCCA: the estimator, a thin shell over the functions beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
from array_api_compat import is_array_api_obj
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, TransformerTags
from sklearn.utils.validation import check_is_fitted, validate_data

from diptych.arrays import Array, move_like, namespace
from diptych.cca import persistence
from diptych.cca.canonical import CanonicalModel, regularized_cca
from diptych.cca.engine import Engine, moments_on
from diptych.cca.filters import named_filters
from diptych.cca.moments import PRECISIONS, Moments, Precision
from diptych.cca.parameters import (
    ByTask,
    Selection,
    check_alone,
    check_selection,
    grown,
    params_by_task,
    params_in_use,
)
from diptych.cca.progress import progress_bar
from diptych.cca.selection import (
    Path,
    best_dimension,
    hold_out,
    leave_one_out_path,
    left_out,
    make_grid,
    make_problem,
    regularization_path,
)
from diptych.cca.shrinkage import shrunk_gammas
from diptych.cca.spectra import SOLVERS, Solver, Spectra, spectra, spectra_from_moments
from diptych.cca.weighting import Weighting, check_weighting, weighted
from diptych.checks import (
    TASKS,
    InputError,
    Similarity,
    Task,
    check_choice,
    check_pair_of_views,
    check_similarity,
    check_task,
    check_view,
)
from diptych.normalize import check_normalization, normalize
from diptych.ranking import metric, ranks


class AWCCA(BaseEstimator):  # type: ignore[misc]
    """Asymmetrically weighted, regularised canonical correlation analysis of two paired views.

    One model per task: ``"search"`` finds rows of X (pictures) for a row of Y (a sentence),
    ``"annotate"`` finds rows of Y for a row of X. Items that are searched are mapped into the space of
    the query by weighting their canonical weights with the canonical correlations.

    Parameters
    ----------
    filter : {"tikhonov", "tsvd", "guided"}
        Regularisation: Tikhonov (γ added to the squared singular values), truncated SVD (the first k
        directions), or Tikhonov with γ = σ²_k at a truncated SVD's k.
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
        or in rank; or one array of parameters for each view. A plain number means ``"log"``.
    metric : str or callable
        What the search maximises and ``score`` returns: ``"r@1"`` (any k), ``"mean_recall"``,
        ``"median_rank"``, ``"mean_rank"``, or a function of ranks.
    weighting : str or pair
        ``"asymmetric"``, ``"search-generation"``, ``"symmetric"``, ``"none"``, or powers of Σ on X and Y;
        ``"residual"`` (in units of what the item leaves open of the query), ``"csa"`` (canonical similarity
        of Li et al., 2025); see ``diptych.cca.weighting``.
    similarity : {"cosine", "l2"}
        How embeddings are compared.
    n_components : int, "auto" or None
        Dimension of the embeddings; None keeps every component above rounding error, ``"auto"`` takes the
        dimension that is best on the validation pairs, per task.
    validation_fraction : float
        Without validation pairs, the share of X's rows that is held out to select on. The final model is
        then refitted on everything, with γ scaled by the number of pairs.
    random_state : int or None
        Seeds the choice of the held-out rows.
    solver : {"auto", "gram", "svd"}
        How the spectra are computed; see ``diptych.cca.spectra``.
    precision : {"float64", "float32"}
        Of the products in the pass over the data; see ``diptych.cca.Moments``.
    path_metrics : {"metric", "all"}
        What ``path_`` keeps of every grid point: the metric, or r@1, r@5, r@10 and median rank as well.
    normalize : pair of str
        How the rows of X and of Y are normalised before anything else: ``"none"``, ``"unit"``,
        ``"signed-sqrt"`` or ``"sqrt-unit"``; see ``diptych.normalize``. Saved and applied with the model.
    verbose : bool
        Show a progress bar while selecting.

    Attributes
    ----------
    models_ : dict
        ``CanonicalModel`` of each task: correlations, x_weights, y_weights, filter_x, filter_y.
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
        filter: str = "tikhonov",
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
        Y: Any,
        pairing: Any = None,
        *,
        validation: tuple[Any, ...] | None = None,
        engine: Engine | None = None,
    ) -> AWCCA:
        """Fit one model per task.

        Parameters
        ----------
        X, Y
            The two views, rows × features. A one-dimensional Y is one feature, as in scikit-learn.
        pairing
            Row j of Y belongs to row ``pairing[j]`` of X; None pairs row with row.
        validation
            ``(X, Y)`` or ``(X, Y, pairing)`` to select on; nothing is fitted on them. None holds out a
            share of the training rows. Not needed when ``params`` are given.
        engine
            Where the pass over the data runs; None is this process.
        """
        self._check_parameters()
        x, y, pairing = check_pair_of_views(X, _second_view(Y), pairing)
        validate_data(self, X, skip_check_array=True)
        if y.shape[0] < 2:
            raise InputError(
                "found 1 sample pair; a correlation needs at least two, and many more to be useful."
            )
        x, y = normalize(x, self.normalize[0]), normalize(y, self.normalize[1])
        self.path_: Path | None = None
        dimensions: dict[Task, int | None] = dict.fromkeys(TASKS, self.n_components)  # type: ignore[arg-type]
        chosen = None if self.params is None else params_by_task(self.params)
        if chosen is not None and self.n_components != "auto":
            self.spectra_ = self._spectra(x, y, pairing, engine)
        elif self.selection != "validation":
            if validation is not None:
                raise InputError(f"selection={self.selection!r} takes no validation pairs; leave them out.")
            self.spectra_ = self._spectra(x, y, pairing, engine)
            chosen = self._select_alone(x, y, pairing)
        elif validation is not None:
            self.spectra_ = self._spectra(x, y, pairing, engine)
            chosen, dimensions = self._select(self.spectra_, self._normalized(validation), chosen)
        else:
            chosen, dimensions = self._select_held_out(x, y, pairing, engine, chosen)
        self._keep(chosen, dimensions)
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
        self._check_parameters()
        chosen = None if self.params is None else params_by_task(self.params)
        selects = chosen is None or self.n_components == "auto"
        if selects and validation is None:
            raise InputError("moments hold no pairs to select on; give validation pairs, or params.")
        self.path_ = None
        self._take(moments)
        dimensions: dict[Task, int | None] = dict.fromkeys(TASKS, self.n_components)  # type: ignore[arg-type]
        if selects:
            chosen, dimensions = self._select(self.spectra_, self._normalized(validation), chosen)
        assert chosen is not None
        self._keep(chosen, dimensions)
        return self

    def refit_moments(self, moments: Moments, count: int) -> AWCCA:
        """Fit again from other moments with what was selected; ``count`` pairs were fitted on before.

        γ grows with the number of pairs; k stays; a guided γ is read again from the new spectra.
        """
        check_is_fitted(self, "models_")
        if self.filter == "guided":
            given = params_by_task(self.params) if self.params is not None else None
            chosen = given or {task: self.path_.params(task) for task in TASKS}  # type: ignore[union-attr]
        elif self.filter == "tikhonov":
            chosen = grown(params_in_use(self.models_), moments.count / count)
        else:
            chosen = params_in_use(self.models_)
        limited = self.n_components is not None
        kept = {t: int(self.models_[t].correlations.shape[0]) if limited else None for t in TASKS}
        self._take(moments)
        self._keep(chosen, kept)
        return self

    def transform(self, X: Any = None, Y: Any = None, *, task: str = "search") -> Any:
        """Embed one view, or both as a pair, for a task; cosine between embeddings ranks.

        (With ``similarity="l2"``, the distance between them ranks.) The given array chooses where the
        arithmetic runs and its precision.
        """
        check_is_fitted(self, "models_")
        task = check_task(task)
        if X is None and Y is None:
            raise InputError("transform was given neither X nor Y; give at least one view.")
        model, embedded = self.models_[task], []
        if X is not None:
            x = check_view(X, "X")
            validate_data(self, X, reset=False, skip_check_array=True)
            coordinates = _embed(normalize(x, self.normalize[0]), self.x_mean_, model.x_weights)
            embedded.append(self._weighted(coordinates, task, "x"))
        if Y is not None:
            y = check_view(_second_view(Y), "Y", n_features=int(self.y_mean_.shape[0]))
            coordinates = _embed(normalize(y, self.normalize[1]), self.y_mean_, model.y_weights)
            embedded.append(self._weighted(coordinates, task, "y"))
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
        persistence.save(folder, *self.packed())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> AWCCA:
        """Read what ``save`` wrote; nothing in the folder is executed."""
        return cls.unpacked(persistence.load(folder))

    def packed(self) -> tuple[persistence.Tensors, dict[str, Any]]:
        """The fitted model as named arrays and plain JSON; see ``diptych.cca.persistence``."""
        check_is_fitted(self, "models_")
        parts = self.models_, self.x_mean_, self.y_mean_, self.path_
        return persistence.pack(self.get_params(deep=False), *parts)

    @classmethod
    def unpacked(cls, loaded: persistence.Loaded) -> AWCCA:
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

    def _check_parameters(self) -> None:
        check_choice(self.filter, ("tikhonov", "tsvd", "guided"), "filter")
        check_choice(self.solver, SOLVERS, "solver")
        check_choice(self.precision, PRECISIONS, "precision")
        check_similarity(self.similarity)
        check_choice(self.path_metrics, ("metric", "all"), "path_metrics")
        check_weighting(self.weighting)
        check_selection(self.selection)
        if self.selection != "validation" and self.params is None:
            check_alone(self.selection, self.filter, self.weighting, self.n_components)
        metric(self.metric)
        if not isinstance(self.normalize, (tuple, list)) or len(self.normalize) != 2:
            raise InputError(
                f"normalize={self.normalize!r} is not a pair; give one name for X and one for Y."
            )
        for name in self.normalize:
            check_normalization(name)

    def _normalized(self, pairs: Any) -> Any:
        """Validation pairs as they go into the model."""
        if not isinstance(pairs, (tuple, list)) or len(pairs) not in (2, 3):
            return pairs
        x, y = check_view(pairs[0], "X"), check_view(_second_view(pairs[1]), "Y")
        return (normalize(x, self.normalize[0]), normalize(y, self.normalize[1]), *pairs[2:])

    def _spectra(self, x: Array, y: Array, pairing: Array, engine: Engine | None) -> Spectra:
        if engine is None:
            return spectra(x, y, pairing, solver=self.solver, precision=self.precision)
        return spectra_from_moments(moments_on(engine, x, y, pairing, self.precision))

    def _take(self, moments: Moments) -> None:
        self.spectra_ = spectra_from_moments(moments)
        self.n_features_in_ = int(moments.x_mean.shape[0])

    def _weighted(self, coordinates: Array, task: Task, view: str) -> Array:
        correlations = move_like(self.models_[task].correlations, coordinates, dtype=coordinates.dtype)
        return weighted(coordinates, correlations, self.weighting, task, view)

    def _select_alone(self, x: Array, y: Array, pairing: Array) -> ByTask:
        """Parameters with no validation pairs; the spectra are those of the given views."""
        if self.selection != "leave-one-out":
            return params_by_task(shrunk_gammas(x, y, pairing, self.selection))
        rows = left_out(
            self.spectra_, x, y, pairing, random_state=self.random_state, similarity=self.similarity
        )
        grid = make_grid("tikhonov", self.grid, self.spectra_)
        with progress_bar("leaving one out", self.verbose) as progress:
            self.path_ = leave_one_out_path(
                rows, grid, metric(self.metric), path_metrics=self.path_metrics, progress=progress
            )
        return {task: self.path_.params(task) for task in TASKS}

    def _select(
        self, spectra: Spectra, validation: tuple[Any, ...], chosen: ByTask | None
    ) -> tuple[ByTask, dict[Task, int | None]]:
        """Parameters, unless they are given, and dimensions, on validation pairs."""
        problem = make_problem(spectra, validation, self.similarity)
        by, fixed = metric(self.metric), self.n_components if self.n_components != "auto" else None
        if chosen is None:
            grid = make_grid("tikhonov" if self.filter == "tikhonov" else "tsvd", self.grid, spectra)
            with progress_bar(f"selecting {self.filter}", self.verbose) as progress:
                self.path_ = regularization_path(
                    problem,
                    spectra,
                    grid,
                    by,
                    weighting=self.weighting,
                    n_components=fixed,
                    path_metrics=self.path_metrics,
                    progress=progress,
                )
            chosen = {task: self.path_.params(task) for task in TASKS}
        dimensions: dict[Task, int | None] = dict.fromkeys(TASKS, fixed)
        if self.n_components == "auto":
            for task in TASKS:
                filters = named_filters(self.filter, chosen[task], spectra.s_x, spectra.s_y)
                model = regularized_cca(spectra, *filters)
                dimensions[task] = best_dimension(problem, spectra, model, self.weighting, task, by)
        return chosen, dimensions

    def _select_held_out(
        self, x: Array, y: Array, pairing: Array, engine: Engine | None, chosen: ByTask | None
    ) -> tuple[ByTask, dict[Task, int | None]]:
        """Select on a share of the training rows; leave the spectra of everything behind."""
        train, held = hold_out(pairing, x.shape[0], self.validation_fraction, self.random_state)
        parts = [(x[p.images, :], y[p.captions, :], p.pairing) for p in (train, held)]
        given = chosen is not None
        part = self._spectra(*parts[0], engine)
        chosen, dimensions = self._select(part, parts[1], chosen)
        if self.path_ is not None:
            self.path_.held_out = (
                f"{int(held.images.shape[0])} of {int(x.shape[0])} rows of X with their rows of Y "
                f"(random_state={self.random_state}); the model was refitted on all"
            )
        self.spectra_ = self._spectra(x, y, pairing, engine)
        if self.filter == "tikhonov" and not given:
            chosen = grown(chosen, self.spectra_.count / part.count)
        return chosen, dimensions

    def _keep(self, params: ByTask, dimensions: Mapping[Task, int | None]) -> None:
        models: dict[Task, CanonicalModel] = {}
        for task in TASKS:
            filters = named_filters(self.filter, params[task], self.spectra_.s_x, self.spectra_.s_y)
            key = (*filters, dimensions[task])
            same = [m for t, m in models.items() if (m.filter_x, m.filter_y, dimensions[t]) == key]
            models[task] = same[0] if same else regularized_cca(self.spectra_, *filters, dimensions[task])
        self.models_ = models
        self.x_mean_, self.y_mean_ = self.spectra_.x_mean, self.spectra_.y_mean


def _second_view(Y: Any) -> Any:
    if Y is None:
        raise InputError("AWCCA requires y to be passed, but the target y is None; give the second view, Y.")
    y = Y if is_array_api_obj(Y) or not hasattr(Y, "__len__") else np.asarray(Y)
    return y[:, None] if getattr(y, "ndim", 2) == 1 else y


def _embed(view: Array, mean: Array, weights: Array) -> Array:
    xp = namespace(view)
    centred = view - move_like(mean, view, dtype=view.dtype)
    return centred @ xp.astype(move_like(weights, view), view.dtype, copy=False)
