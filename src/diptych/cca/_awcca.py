"""AWCCA: the estimator."""

from __future__ import annotations

import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from sklearn.base import BaseEstimator
from sklearn.utils import Tags, TransformerTags
from sklearn.utils.validation import validate_data

from diptych._arrays import Array, fields_to_numpy
from diptych._checks import (
    TASKS,
    DataWarning,
    InputError,
    Similarity,
    Task,
    check_matrix,
)
from diptych._threads import one_blas_thread, progress_bar
from diptych.cca._canonical import CanonicalModel, forced_ones, ranking_maps
from diptych.cca._deferred import DeferredModels, Filters, filters_of, points_to_numpy
from diptych.cca._filters import (
    SpectralFilter,
    Tikhonov,
    TruncatedSVD,
)
from diptych.cca._fit import (
    ByTask,
    Fit,
    FitResult,
    Params,
    params_by_task,
    params_of_filters,
    scale_params,
)
from diptych.cca._fitted import FittedAWCCA, Selection, second_view
from diptych.cca._moments import Moments, Precision
from diptych.cca._polish import carry_polish
from diptych.cca._spectra import Solver, Spectra, spectra_from_moments
from diptych.cca._streaming import Block, Engine, are_blocks
from diptych.cca._weighting import (
    Projection,
    Weighting,
    maps,
    powers,
)
from diptych.cca.selection._grids import check_grid, check_share


class AWCCA(FittedAWCCA, BaseEstimator):  # type: ignore[misc]
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
    models_ : Mapping
        ``CanonicalModel`` of each task: correlations and canonical weights. Neither ``fit`` nor ``score``
        needs them (at full dimension with the asymmetric weighting), so a model is computed, which takes a
        decomposition as large as those of the fit, when it is first read, and then kept. ``transform`` and
        ``save`` read it.
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
        with one_blas_thread(), progress_bar("fitting", self.verbose):
            if Y is None and are_blocks(X):
                if pairing is not None:
                    raise InputError("blocks contain their own pairing; leave it out.")
                result = fit.fit_blocks(X, validation)
            else:
                second = second_view(Y)
                validate_data(self, X, skip_check_array=True)
                result = fit.fit_views(X, second, pairing, validation)
            self._set_models(result, fit)
        _warn_of_ones(filters_of(self.models_), self.spectra_)
        if checkpoint is not None:
            pathlib.Path(checkpoint).unlink(missing_ok=True)
        return self

    def fit_moments(self, moments: Moments, *, validation: tuple[Array, ...] | None = None) -> AWCCA:
        """Fit the ``Moments`` of normalised training pairs.

        ``validation`` is as in ``fit``, not normalised; it is needed unless ``params`` are given. With
        ``polish``, a model that is fitted already keeps its polish as in ``refit_moments``.
        """
        self.check_parameters()
        before = _polished(getattr(self, "models_", {}))
        if self.polish and not hasattr(self, "models_"):
            raise InputError("polish=True learns from pairs, which moments do not contain; use fit().")
        fit = Fit(self)
        with one_blas_thread(), progress_bar("fitting", self.verbose):
            self._set_models(fit.fit_moments(moments, validation), fit, before, moments)
        _warn_of_ones(filters_of(self.models_), self.spectra_)
        return self

    def refit_moments(self, moments: Moments, count: int) -> AWCCA:
        """Fit other moments with the selected parameters; ``count`` pairs were fitted before.

        γ is scaled by the number of pairs, k stays, and a guided γ is read from the new spectra. A polish is
        carried over to the new components, not learned again.
        """
        self._check_fitted()
        if self.filter == "guided" and self.params is None:
            params: ByTask = {task: self.path_.params(task) for task in TASKS}  # type: ignore[union-attr]
        elif self.filter == "guided":
            params = params_by_task(self.params)
        else:
            before = params_of_filters(filters_of(self.models_))
            params = scale_params(before, self.filter, moments.total / count)
        polished = _polished(self.models_)
        sizes = {
            task: int(self.models_[task].correlations.shape[0])
            if self.n_components is not None or task in polished
            else None
            for task in TASKS
        }
        result = FitResult(spectra_from_moments(moments), params, sizes, self.path_)
        self._set_models(result, Fit(self), polished, moments)
        return self

    def _embed(self, X: Array, Y: Array, task: Task) -> tuple[Array, Array]:
        models = self.models_
        if not (
            isinstance(models, DeferredModels)
            and models.full[task]
            and hasattr(self, "spectra_")
            and self.weighting != "residual"
            and powers(self.weighting, task) == powers("asymmetric", task)
        ):
            return super()._embed(X, Y, task)
        check_matrix(X, "X")
        self._check_columns(X)
        x_map, y_map = ranking_maps(self.spectra_, *models.filters[task], task)
        for_x = Projection("X", self.normalize[0], self.x_mean_, x_map, None)
        for_y = Projection("Y", self.normalize[1], self.y_mean_, y_map, None)
        return for_x(X), for_y(second_view(Y))

    def _check_columns(self, X: Any) -> None:
        validate_data(self, X, reset=False, skip_check_array=True)

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

    def _set_models(
        self,
        result: FitResult,
        fit: Fit,
        polished: Mapping[Task, CanonicalModel] | None = None,
        moments: Moments | None = None,
    ) -> None:
        """Set what a fit found; the polish of models before is carried over to those of ``moments``."""
        points = fit.choose_points(result)
        made: dict[Task, CanonicalModel] = {}
        for task in TASKS:
            if (old := (polished or {}).get(task)) is not None:
                assert moments is not None
                assert old.polish is not None
                new = points[task].make(int(old.correlations.shape[0]))
                pair = (maps(replace(model, polish=None), self.weighting, task) for model in (new, old))
                made[task] = replace(new, polish=carry_polish(old.polish, moments, *pair))
            elif (model := fit.polish_point(result, points[task], task)) is not None:
                made[task] = model
        spectra = result.spectra
        if fit.device is not None:
            spectra = fields_to_numpy(spectra)
            points = points_to_numpy(points, spectra)
            made = {task: fields_to_numpy(model) for task, model in made.items()}
        self.path_, self.spectra_ = result.path, spectra
        self.models_ = DeferredModels(points, made, fit.device)
        self.x_mean_, self.y_mean_ = spectra.x_mean, spectra.y_mean
        self.n_features_in_ = int(spectra.x_mean.shape[0])


def _polished(models: Mapping[Task, CanonicalModel]) -> dict[Task, CanonicalModel]:
    """Return the models that are polished; a polished one has been made already."""
    made = models.made if isinstance(models, DeferredModels) else models
    return {task: model for task, model in made.items() if model.polish is not None}


def _warn_of_ones(filters: Mapping[Task, Filters], spectra: Spectra) -> None:
    """Warn about correlations that are 1 because there are more directions than pairs."""
    for own in filters.values():
        ones, *directions = forced_ones(spectra, *own)
        if ones:
            warnings.warn(
                f"{ones} of {min(directions)} canonical correlations are 1 whatever the data: "
                f"{directions[0]} and {directions[1]} directions are too many for {spectra.count} pairs; "
                "regularise more (params=None selects how much).",
                DataWarning,
                stacklevel=4,  # past the context manager that decorates fit
            )
            return
