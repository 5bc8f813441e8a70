"""AWCCA: the estimator."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self, overload

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import Tags, TransformerTags, estimator_html_repr
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from diptych._arrays import Array, as_dtype, fields_to_numpy, is_sparse, map_arrays, move_like, to_numpy
from diptych._checks import (
    TASKS,
    InputError,
    NotFiniteError,
    Similarity,
    Task,
    check_matrix,
    check_pairing,
    check_task,
    check_view,
    order_rows,
    pair_rows,
    second_view,
)
from diptych._model_folder import read_model_folder, write_model_folder
from diptych._persistence import Tensors
from diptych._progress import progress_bar
from diptych._threads import one_blas_thread
from diptych.cca._canonical import SMALL, mean_correlation, ranking_maps
from diptych.cca._covariates import Regressions, check_rows, match_sides, split_sides
from diptych.cca._description import ModelDescription, describe_model
from diptych.cca._filters import SpectralFilter
from diptych.cca._fit import Chosen, Fit, FitResult, Pairs, warn_of_ones
from diptych.cca._models import Models
from diptych.cca._moments import Moments, Precision
from diptych.cca._polish import carry_polishes
from diptych.cca._prediction import map_back, prediction_maps, reconstruction_map
from diptych.cca._projector import VIEWS, PartMaps, Projector, ViewKey
from diptych.cca._saved import KIND, AWCCAConfig, pack_model, unpack_model
from diptych.cca._settings import (
    ByTask,
    Params,
    Selection,
    check_settings,
    params_by_task,
    params_of_filters,
    scale_params,
    selection_metric,
)
from diptych.cca._sklearn import (
    describe_fit,
    find_names,
    label_vectors,
    name_components,
    name_covariates,
    order_columns,
    order_covariates,
    order_pairs,
)
from diptych.cca._spectra import Solver, Spectra, moments_from_spectra, spectra_from_moments
from diptych.cca._streaming import (
    ArrayBlocks,
    Engine,
    PairBlock,
    Preparation,
    are_blocks,
    remove_checkpoint,
    sum_blocks,
)
from diptych.cca._view_map import BlockUse, ViewMap
from diptych.cca._weighting import Weighting, maps, normalize, powers
from diptych.cca.selection._grids import hold_out
from diptych.cca.selection._path import CORRELATION
from diptych.cca.selection._problem import check_validation
from diptych.ranking import ranks

UNSEEN_SHARE = 0.2
"""Share of the rows of X that ``fit_unseen`` holds out."""


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
        ``(p_x, p_y)``, a tuple, list or array, for both tasks, or ``{"search": (p_x, p_y), "annotate": (p_x,
        p_y)}``: γ's for ``"tikhonov"``, k's for ``"tsvd"`` and ``"guided"``. γ is in units of XᵀX, a sum over
        pairs. None selects them for each task.
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
        ``"median_rank"``, ``"mean_rank"``, or a function of ranks; or ``"correlation"``, the mean correlation
        of the first ``n_components`` pairs of variates (None: of the first) over the validation pairs.
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
        What the fit keeps of the training data. ``AWCCA.save`` writes it; the folder of a retriever does not
        have it.
    n_features_in_ : int
        Features of X.
    feature_names_in_, y_feature_names_in_ : array of str
        Names of the columns of X and of y, if they were data frames with names; ``covariate_names_in_`` has
        those of the covariates of X and of y.
    regressions_ : Regressions or None
        What covariates explain of each view; None if the model was fitted without.
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

    takes_blocks = False
    learned_validation = False
    scale = False  # that of ``CCA``
    _kind: Literal["AWCCA", "CCA", "PLS"] = "AWCCA"
    _y_is_vector = False
    regressions_: Regressions | None = None

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
        X: Array | Iterable[PairBlock],
        y: Array | None = None,
        pairing: Array | None = None,
        *,
        validation: tuple[Array, ...] | None = None,
        sample_weight: Array | None = None,
        covariates: Any = None,
        engine: Engine | None = None,
        device: str | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Fit one model per task.

        Parameters
        ----------
        X, y
            The two views, rows × features, in memory or mapped from disk: where there are more rows than
            columns they are read and normalised one block at a time. A one-dimensional y is one feature, as
            in scikit-learn. Data frames whose rows have the same labels in another order are paired by label,
            with a ``DataWarning``; labels that do not agree are refused, here and wherever both views are
            passed. Their columns may be in another order later. Either may be sparse (``scipy.sparse``) and
            is not made dense; it has at most 20,000 columns, or, given as a whole, rows. Or, as X alone, an
            iterable of *blocks*, each ``(x, y)``, ``(x, y, pairing)``, ``(x, y, pairing, sample_weight)``, or
            an object whose ``load()`` returns that; each is read once. NaN and infinity are refused: fill
            them in with an imputer (``sklearn.impute``), or leave those rows out of both views.
        pairing
            Row j of y belongs to row ``pairing[j]`` of X, by number; None pairs row with row.
        validation
            ``(X, Y)`` or ``(X, Y, pairing)`` to select on; the model is not fitted on them. None holds out a
            share of the training rows. If ``params`` are given, they only measure
            ``validation_correlations``. With ``covariates``, ``(X, Y, pairing, covariates)``.
        sample_weight
            One weight, 0 or above, for each pair, that is, for each row of y: 2 is the same as the pair
            twice, 0 as without it. Means and XᵀX are weighted sums, so a γ has less effect if all weights are
            multiplied by a number above 1, as in ``sklearn.linear_model.Ridge``. Pairs that are held out, or
            given as ``validation``, all count the same when ranks are measured. None: every weight is 1.
        covariates
            What both views may depend on, such as age, sex or motion: rows of X × covariates, numbers. The
            normalised views are regressed on them, and the residuals are fitted: partial CCA. A pair
            ``(z_x, z_y)``, a tuple of two such arrays, is that of X and that of Y; None in place of one
            leaves this view as it is (part CCA). Pairs that are held out lose what the others say. The model
            keeps the regressions, and needs the covariates of all rows that it is given later. Both views
            must be dense and in memory.
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

        Examples
        --------
        Two views that share nothing but a confound:

        >>> import numpy as np
        >>> from diptych import AWCCA
        >>> x, y, z = np.random.default_rng(0).normal(size=(3, 100, 1))
        >>> model = AWCCA(params=(0, 0)).fit(x + z, y + z)
        >>> partial = AWCCA(params=(0, 0)).fit(x + z, y + z, covariates=z)
        >>> [own.models_["search"].correlations.round(1).tolist() for own in (model, partial)]
        [[0.6], [0.1]]
        """
        self.check_parameters()
        fit = Fit(self, engine, device, checkpoint)
        with one_blas_thread(), progress_bar("fitting", self.verbose):
            if y is None and are_blocks(X):
                if pairing is not None:
                    raise InputError("blocks contain their own pairing; leave it out.")
                if sample_weight is not None:
                    raise InputError("blocks contain their own sample_weight; leave it out.")
                if covariates is not None:
                    raise InputError("blocks are read once, which covariates do not allow; give arrays.")
                names: dict[str, Any] = {}
                result = fit.fit_blocks(X, validation)
            else:
                second = second_view(y)
                names = find_names(X, y)
                if covariates is not None:
                    names |= name_covariates(covariates)
                pairing = pair_rows(X, second, pairing)
                sample_weight = order_rows(sample_weight, second, "sample_weight", "Y")
                held_covariates: tuple[Any, ...] = ()
                if validation is not None:
                    if covariates is not None:
                        validation, held = _split_validation(validation)
                        held_covariates = (order_covariates(names, held),)
                    held_x, held_y, order = check_validation(validation)
                    held_x, held_y = order_pairs(names, held_x, held_y, "validation ")
                    validation = held_x, held_y, order, *held_covariates
                views = X, second, pairing, validation, sample_weight
                try:
                    if covariates is None:
                        result = fit.fit_views(*views)
                    else:
                        result = fit.fit_partial(*views, covariates)
                except NotFiniteError:
                    # It was found in a block of rows: describe the whole view, by the names of its columns.
                    check_view(X, "X", sparse=True)
                    check_view(second, "Y", sparse=True)
                    raise
            self._set_models(result, device)
            self._set_names(names)
        removed = 0 if self.regressions_ is None else self.regressions_.n_shared
        warn_of_ones(self.models_.filters, replace(self.spectra_, count=self.spectra_.count - removed))
        if checkpoint is not None:
            remove_checkpoint(checkpoint)
        return self

    def fit_transform(
        self, X: Array, y: Array | None = None, pairing: Array | None = None, **fit_params: Any
    ) -> Array:
        """Fit, and return the vectors of X for ``"search"``, so that a pipeline may go on with them.

        Those of both views are ``fit(X, y).transform(X, y)``. ``fit_params`` are further arguments of
        ``fit``.

        >>> from sklearn.datasets import load_linnerud
        >>> from sklearn.linear_model import LinearRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> from diptych import AWCCA
        >>> exercises, physiology = load_linnerud(return_X_y=True)
        >>> steps = AWCCA(params=(1, 1), n_components=2), LinearRegression()
        >>> make_pipeline(*steps).fit(physiology, exercises).predict(physiology).shape
        (20, 3)
        """
        if y is None and are_blocks(X):
            raise InputError("fit_transform needs both views as arrays, not blocks; use fit, then transform.")
        covariates = split_sides(fit_params.get("covariates"))[0]
        return self.fit(X, y, pairing, **fit_params).transform(X, covariates=covariates)

    @overload
    def transform(
        self,
        X: Array,
        y: None = None,
        *,
        task: Task = "search",
        device: str | None = None,
        covariates: Any = None,
    ) -> Array: ...
    @overload
    def transform(
        self,
        X: None = None,
        *,
        y: Array,
        task: Task = "search",
        device: str | None = None,
        covariates: Any = None,
    ) -> Array: ...
    @overload
    def transform(
        self,
        X: Array,
        y: Array,
        *,
        task: Task = "search",
        device: str | None = None,
        covariates: Any = None,
    ) -> tuple[Array, Array]: ...
    def transform(
        self,
        X: Array | None = None,
        y: Array | None = None,
        *,
        task: Task = "search",
        device: str | None = None,
        covariates: Any = None,
    ) -> Array | tuple[Array, Array]:
        """Return the vectors of one view, or of both as a pair, for a task; cosine (or ℓ2) ranks them.

        If both are data frames, the vectors of y are in the order of the rows of X, by their labels. The
        arrays choose backend and precision. With a torch ``device``, rows are copied to it one block at a
        time and the vectors are NumPy, so that a view may be larger than the memory of the device. After
        ``set_output(transform="pandas")`` the vectors of each view are a data frame with the index of the
        view. A model that was fitted with ``covariates`` needs those of the rows: one array, or a pair with
        a row for each row of X and of y.

        >>> import numpy as np
        >>> from diptych import AWCCA
        >>> x = np.random.default_rng(0).normal(size=(50, 4))
        >>> model = AWCCA(params=(1.0, 1.0)).fit(x, x[:, :3])
        >>> model.transform(x).shape, model.transform(y=x[:5, :3]).shape
        ((50, 3), (5, 3))
        """
        check_is_fitted(self)
        task = check_task(task)
        if X is None and y is None:
            raise InputError("transform got neither X nor y; give at least one view.")
        if X is not None and y is not None:
            y = order_rows(second_view(y), X, "Y", "X")
        linear = maps(self.models_[task], self.weighting, task)
        given = [name for view, name in zip((X, y), VIEWS, strict=True) if view is not None]
        sides = self._split_covariates(covariates, given)
        vectors = [
            label_vectors(self, self.project(view, name, weights, device, columns), view)
            for view, name, weights, columns in zip((X, y), VIEWS, linear, sides, strict=True)
            if view is not None
        ]
        return vectors[0] if len(vectors) == 1 else tuple(vectors)

    def projector(self, task: str = "search") -> Projector:
        """Return what turns features into the vectors of a task, without the estimator."""
        check_is_fitted(self)
        self.check_plain("a search")
        name = check_task(task)
        linear = maps(fields_to_numpy(self.models_[name]), self.weighting, name)
        x, y = (
            map_arrays(part, lambda array: np.ascontiguousarray(to_numpy(array), np.float32))
            for part in (self._view_map(view, weights) for view, weights in zip(VIEWS, linear, strict=True))
        )
        blocks: dict[ViewKey, dict[str, int]] = {"x": {"x": len(x.mean)}, "y": {"y": len(y.mean)}}
        return Projector(name, (PartMaps("x × y", x, y),), blocks, euclidean=self.similarity == "l2")

    def predict(self, X: Array, *, task: Task = "search", covariates: Any = None) -> Array:
        """Return what the model expects of y for rows of X.

        It is least squares onto the model's components, with the model's own penalty: at full dimension ridge
        regression with γ_x (for ``"tsvd"``, regression on principal components), with ``n_components`` set
        reduced-rank ridge regression. Only the filter of X matters at full dimension. ``"search"`` is the
        task whose γ_x is chosen so that what is expected of y finds y.

        With ``normalize``, what is predicted are normalised rows of y. The result is an array; it has one
        axis if y had one in ``fit``. A model that was fitted with ``covariates`` needs those of the rows, and
        adds what these explain of y to what the residuals of X do.

        >>> import numpy as np
        >>> from sklearn.linear_model import Ridge
        >>> from diptych import AWCCA
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.normal(size=(50, 4)), rng.normal(size=(50, 3))
        >>> model = AWCCA(params=(2.0, 1.0)).fit(x, y)
        >>> bool(np.allclose(model.predict(x), Ridge(alpha=2.0).fit(x, y).predict(x)))
        True
        """
        predicted = self._predict(X, "x", task, covariates)
        return predicted[:, 0] if self._y_is_vector else predicted

    def predict_x(self, y: Array, *, task: Task = "annotate", covariates: Any = None) -> Array:
        """Return what the model expects of X for rows of y; see ``predict``.

        ``"annotate"`` is the task whose γ_y is chosen so that what is expected of X finds X.
        """
        return self._predict(y, "y", task, covariates)

    def inverse_transform(
        self,
        X: Array | None = None,
        y: Array | None = None,
        *,
        task: Task = "search",
        covariates: Any = None,
    ) -> Array | tuple[Array, Array]:
        """Return the features that vectors of X, of y, or of both as a pair, stand for.

        It is the least-squares regression of a view on its own vectors over the training pairs: exact if
        there are as many components as the view has directions, otherwise the best that so many can do.
        ``task`` and ``covariates`` are those of ``transform``. With ``normalize``, the result are normalised
        rows.

        >>> import numpy as np
        >>> from diptych import AWCCA
        >>> rng = np.random.default_rng(0)
        >>> x, y = rng.normal(size=(50, 3)), rng.normal(size=(50, 5))
        >>> model = AWCCA(params=(1.0, 1.0)).fit(x, y)
        >>> bool(np.allclose(model.inverse_transform(model.transform(x)), x))
        True
        """
        check_is_fitted(self)
        if X is None and y is None:
            raise InputError("inverse_transform got neither X nor y; give the vectors of at least one view.")
        spectra = self._check_spectra("inverse_transform")
        x_map, y_map = maps(self.models_[check_task(task)], self.weighting, task)
        given = [name for view, name in zip((X, y), VIEWS, strict=True) if view is not None]
        sides = self._split_covariates(covariates, given)
        features = []
        for vectors, name, s, v, mean, weights, columns in (
            (X, "X", spectra.s_x, spectra.v_x, spectra.x_mean, x_map, sides[0]),
            (y, "y", spectra.s_y, spectra.v_y, spectra.y_mean, y_map, sides[1]),
        ):
            if vectors is not None:
                checked = check_view(vectors, f"the array of vectors of {name}")
                if checked.shape[1] != weights.shape[1]:
                    raise InputError(
                        f"the vectors of {name} have {checked.shape[1]} components, but those of this model "
                        f"{weights.shape[1]}; give what transform returns."
                    )
                rows = map_back(checked, reconstruction_map(s, v, weights), mean)
                features.append(self._restore(rows, "x" if name == "X" else "y", columns, vectors))
        if y is not None and self._y_is_vector:
            features[-1] = features[-1][:, 0]
        return features[0] if len(features) == 1 else (features[0], features[1])

    def score(
        self,
        X: Array,
        y: Array,
        pairing: Array | None = None,
        *,
        task: Task | None = None,
        metric: str | Callable[[Array], float] | None = None,
        covariates: Any = None,
    ) -> float:
        """Return how good the model is on given pairs: greater is better.

        By default this is the estimator's ``metric`` of a task, or the mean of both tasks, with ranks
        negated. Another ``metric`` is measured in its place; ``"correlation"`` is the mean correlation of the
        first ``n_components`` pairs of variates (None: of the first) over these pairs, and ``"r2"`` is
        scikit-learn's R² of ``predict(X)``, the mean over the columns of y (by default with the filters of
        ``"search"``). ``covariates`` are those of the rows of X, as in ``fit``.
        """
        check_is_fitted(self)
        if metric == "r2":
            name = "search" if task is None else check_task(task)
            return self._score_prediction(X, y, pairing, name, covariates)
        chosen = selection_metric(self.metric if metric is None else metric)
        pairing = pair_rows(X, second_view(y), pairing)  # once, because it may warn
        values = []
        for name in TASKS if task is None else (check_task(task),):
            if chosen is CORRELATION:
                weights = self.models_[name].x_weights, self.models_[name].y_weights
                views = self.project_pairs(X, y, pairing, weights, covariates)
                kept = None if self.n_components == "auto" else self.n_components
                values.append(mean_correlation(*views, kept))
            else:
                u, v, rows = self.project_pairs(X, y, pairing, self._ranking_maps(name), covariates)
                values.append(chosen(ranks(u, v, rows, task=name, similarity=self.similarity)))
        return chosen.signed(sum(values) / len(values))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray[Any, Any]:
        """Return the names of the components of a search, for ``set_output`` and pipelines.

        ``input_features`` are compared with the names in ``fit``, as everywhere in scikit-learn.
        """
        check_is_fitted(self)
        _check_feature_names_in(self, input_features, generate_names=False)
        return name_components(self, int(self.models_["search"].correlations.shape[0]))

    def set_output(self, *, transform: str | None = None) -> AWCCA:
        """Choose what ``transform`` returns: ``"pandas"``, ``"polars"`` or ``"default"``; None: as before.

        scikit-learn's own wrapper of ``transform`` knows neither the index of the second view, nor that the
        tasks may differ in dimension.
        """
        if transform is not None:
            self._sklearn_output_config = {"transform": transform}
        return self

    def fit_moments(self, moments: Moments, *, validation: tuple[Array, ...] | None = None) -> AWCCA:
        """Fit the ``Moments`` of normalised training pairs.

        ``validation`` is as in ``fit``, not normalised; it is needed unless ``params`` are given. With
        ``polish``, a model that is fitted already keeps its polish as in ``refit_moments``.
        """
        self.check_parameters()
        if self.polish and not hasattr(self, "models_"):
            raise InputError("polish=True learns from pairs, which moments do not contain; use fit().")
        polished = self.models_.polished if hasattr(self, "models_") else {}
        with one_blas_thread(), progress_bar("fitting", self.verbose):
            result = Fit(self).fit_moments(moments, validation)
            result.made.update(carry_polishes(polished, result.points, moments, self.weighting))
            self._set_models(result)
            self._set_names({})
        warn_of_ones(self.models_.filters, self.spectra_)
        return self

    def refit_moments(self, moments: Moments, count: float) -> AWCCA:
        """Fit other moments with the selected parameters; ``count`` pairs were fitted before.

        γ is scaled by the number of pairs, k stays, and a guided γ is read from the new spectra. A polish is
        carried over to the new components, not learned again.
        """
        check_is_fitted(self)
        self.check_plain("a refit from moments")
        if self.filter == "guided" and self.params is None:
            params: ByTask = {task: self.path_.params(task) for task in TASKS}  # type: ignore[union-attr]
        elif self.filter == "guided":
            params = params_by_task(self.params)
        else:
            fitted = params_of_filters(self.models_.filters)
            params = scale_params(fitted, self.filter, moments.total / count)
        polished = self.models_.polished
        sizes = {
            task: int(self.models_[task].correlations.shape[0])
            if self.n_components is not None or task in polished
            else None
            for task in TASKS
        }
        result = Fit(self).make_result(spectra_from_moments(moments), Chosen(params, sizes, self.path_))
        result.made.update(carry_polishes(polished, result.points, moments, self.weighting))
        self._set_models(result)
        return self

    def refit_copy(
        self, moments: Moments, total: float, validation: tuple[Array, ...] | None = None
    ) -> AWCCA:
        """Return a copy fitted on other moments, without its spectra; it was fitted on a ``total`` of pairs.

        γ is scaled by the number of pairs; with ``validation`` pairs, everything is selected on them again.
        """
        model = copy.copy(self)
        if validation is not None:
            model.params = None
            model.fit_moments(moments, validation=validation)
        else:
            model.refit_moments(moments, total)
        return model._drop_spectra()

    def fit_unseen(
        self, training: Pairs, validation: Pairs | None, *, fewest: int = 0, **options: Any
    ) -> Callable[[], tuple[AWCCA, Pairs]]:
        """Fit, and return a function that returns a model and pairs which that model has not seen.

        Without ``validation`` pairs, that is a model of the same parameters, fitted on the training pairs
        without a share that is held out, if these have the ``fewest`` rows of X at least. ``options`` are as
        ``fit`` takes them.
        """
        # With given parameters, validation pairs still measure the correlations.
        uses = self.params is not None or self.selection == "validation" or self.n_components == "auto"
        self.fit(*training, validation=validation if uses else None, **options)
        self.models_.values()  # decomposes them, which a search needs

        def make_unseen() -> tuple[AWCCA, Pairs]:
            if validation is not None:
                return self, validation
            x, y, pairing = training
            rest, held_out = hold_out(pairing, len(x), UNSEEN_SHARE, 0)
            pairs = x[held_out.x], y[held_out.y], held_out.pairing
            if len(held_out.x) < fewest:
                return self, pairs
            prepare = Preparation(self.normalize, self.precision, options.get("device"))
            moments = sum_blocks(ArrayBlocks(x, y, pairing, rest.y), prepare, engine=options.get("engine"))
            with one_blas_thread():
                return self.refit_copy(moments, self.spectra_.total), pairs

        return make_unseen

    def split_moments(self) -> tuple[AWCCA, Moments | None]:
        """Return a copy in NumPy without the spectra, and the moments of the pairs it was fitted on.

        These are None where the spectra are not at hand, or have no moments because a view is sparse.
        """
        spectra, moments = getattr(self, "spectra_", None), None
        if spectra is not None and spectra.is_dense:
            moments = fields_to_numpy(moments_from_spectra(spectra, self.precision))
        return self._drop_spectra(), moments

    def _drop_spectra(self) -> AWCCA:
        """Return a copy in NumPy, with models that are made and without the spectra."""
        copied = copy.copy(self)
        copied.__dict__.pop("spectra_", None)
        # Both tasks often share one model.
        models = {id(model): fields_to_numpy(model) for model in self.models_.values()}
        copied.models_ = Models({task: models[id(model)] for task, model in self.models_.items()})
        copied.x_mean_, copied.y_mean_ = to_numpy(self.x_mean_), to_numpy(self.y_mean_)
        return copied

    def describe(self) -> ModelDescription:
        """Return what people want to know of the fitted model, as plain data."""
        check_is_fitted(self)
        return describe_model(self)

    def make_moments(self, X: Array, y: Array, pairing: Any = None) -> Moments:
        """Return the moments of more pairs, as the model's are: of normalised features."""
        self.check_plain("a refit from moments")
        x, y = normalize(X, self.normalize[0]), normalize(y, self.normalize[1])
        return Moments.of(x, y, pairing, precision=self.precision)

    def moment_widths(self) -> dict[str, int]:
        """Return the numbers of columns of both views in the model's moments."""
        return {"x": len(self.x_mean_), "y": len(self.y_mean_)}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write ``model.safetensors`` and ``config.json`` into ``folder``, atomically.

        The spectra are written too, so that a loaded model predicts; not those of a large sparse view with
        fewer rows than columns, which contain its rows.
        """
        check_is_fitted(self)
        write_model_folder(folder, KIND, *pack_model(self, getattr(self, "spectra_", None)))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Self:
        """Read what ``save`` wrote; nothing in the folder is executed."""
        return cls.unpack(*read_model_folder(folder, KIND, AWCCAConfig))

    def pack(self) -> tuple[AWCCAConfig, Tensors]:
        """Return the fitted model, without its spectra, as a config and named arrays."""
        check_is_fitted(self)
        return pack_model(self)

    @classmethod
    def unpack(cls, config: AWCCAConfig, tensors: Tensors, source: Path) -> Self:
        """Return the model that ``pack`` packed; ``source`` is where the arrays were read, for messages."""
        if config.estimator != cls._kind:
            name = config.estimator
            raise InputError(f"{source.parent} holds a fitted {name}, no {cls._kind}; use {name}.load.")
        model = cls()
        unpack_model(model, config, tensors, source)
        return model

    def _view_map(self, view: ViewKey, weights: Array) -> ViewMap:
        """Return the map of a view: its normalisation and mean, and the given weights."""
        how, mean = (self.normalize[0], self.x_mean_) if view == "x" else (self.normalize[1], self.y_mean_)
        return ViewMap((BlockUse(view, how),), mean, weights)

    def project(
        self,
        rows: Any,
        view: ViewKey,
        weights: Array,
        device: str | None = None,
        covariates: Any = None,
    ) -> Array:
        """Return one view times ``weights`` of its features, in its own backend and precision."""
        ordered, linear = order_columns(self, rows, view), self._view_map(view, weights)
        regression = getattr(self.regressions_, view, None)
        if regression is not None:
            checked = check_view(ordered, view.upper(), n_features=int(linear.mean.shape[0]))
            columns = check_rows(covariates, rows, len(checked), view.upper(), regression.width)
            ordered = regression.residuals(linear.blocks[0].apply(checked), columns)
            linear = replace(linear, blocks=(BlockUse(view),))
        return linear.embed(self.divide_scales(ordered, view), view.upper(), device)

    def project_pairs(
        self, X: Any, y: Any, pairing: Any, weights: tuple[Array, Array], covariates: Any = None
    ) -> tuple[Array, Array, Array]:
        """Return both views times their weights, and the row of X of each row of y.

        ``covariates`` are those of the rows of X, also for y.
        """
        second = second_view(y)
        pairing = pair_rows(X, second, pairing)
        z_x, z_y = self._split_covariates(covariates)
        if z_y is not None:
            n_x = len(check_matrix(X, "X"))
            rows = check_pairing(pairing, n_x, check_matrix(second, "Y"))
            z_y = check_rows(z_y, X, n_x, "X")[to_numpy(rows)]
        u = self.project(X, "x", weights[0], covariates=z_x)
        v = self.project(y, "y", weights[1], covariates=z_y)
        return u, v, check_pairing(pairing, int(u.shape[0]), v)

    def _split_covariates(self, covariates: Any, views: Sequence[ViewKey] = VIEWS) -> tuple[Any, Any]:
        """Return the covariates of X and of Y; those of ``views`` must be as in the fit."""
        return order_covariates(vars(self), match_sides(self.regressions_, covariates, views))

    def _restore(self, features: Array, view: ViewKey, covariates: Any, rows: Any) -> Array:
        """Return features of a view, made from ``rows``, in its units, plus what their covariates explain."""
        if self.scale:
            features = features * self._scale_like(features, view)
        regression = getattr(self.regressions_, view, None)
        if regression is None:
            return features
        columns = check_rows(covariates, rows, len(features), "its input", regression.width)
        return features + as_dtype(regression.predict(columns, features), features.dtype)

    def check_plain(self, what: str) -> None:
        """Raise an error for a model that was fitted with covariates, which ``what`` does not have."""
        if self.regressions_ is not None:
            raise InputError(
                f"the model was fitted with covariates, which {what} does not have; fit without."
            )

    def divide_scales(self, rows: Any, view: ViewKey) -> Any:
        """Return rows of a view with their columns divided by the scales of the model, if it has some."""
        if not self.scale:
            return rows
        rows = check_view(rows, view.upper(), n_features=self.moment_widths()[view])
        return rows / self._scale_like(rows, view)

    def _scale_like(self, features: Array, view: ViewKey) -> Array:
        """Return the scales of the columns of a view, in the backend and precision of features."""
        return move_like(self.x_scale_ if view == "x" else self.y_scale_, features, dtype=features.dtype)

    def _ranking_maps(self, task: Task) -> tuple[Array, Array]:
        """Return maps that rank as those of ``transform``; where they can, they need no decomposition."""
        models = self.models_
        asymmetric = self.weighting != "residual" and (
            powers(self.weighting, task) == powers("asymmetric", task)
        )
        if asymmetric and task in models.full and hasattr(self, "spectra_"):
            return ranking_maps(self.spectra_, *models.filters[task], task)
        return maps(models[task], self.weighting, task)

    def _predict(self, rows: Any, view: ViewKey, task: Task, covariates: Any) -> Array:
        """Return the other view as it is expected for rows of ``view``."""
        check_is_fitted(self)
        spectra = self._check_spectra("predict")
        sides = dict(zip(VIEWS, self._split_covariates(covariates), strict=True))
        into, onto, mean = prediction_maps(self.models_, spectra, view, check_task(task))
        other: ViewKey = "y" if view == "x" else "x"
        predicted = map_back(self.project(rows, view, into, covariates=sides[view]), onto, mean)
        return self._restore(predicted, other, sides[other], rows)

    def _score_prediction(self, X: Any, y: Any, pairing: Any, task: Task, covariates: Any) -> float:
        from sklearn.metrics import r2_score  # which takes long to import

        second = order_columns(self, y, "y")
        pairing = pair_rows(X, second, pairing)
        predicted = self._predict(X, "x", task, covariates)
        if is_sparse(second):
            second = second.toarray()  # as large as the predictions
        expected = normalize(check_view(second, "Y", n_features=int(predicted.shape[1])), self.normalize[1])
        rows = to_numpy(check_pairing(pairing, int(predicted.shape[0]), expected))
        return float(r2_score(to_numpy(expected), to_numpy(predicted)[rows]))

    def _check_spectra(self, what: str) -> Spectra:
        if not hasattr(self, "spectra_"):
            raise InputError(
                f"{what} needs the spectra of the training pairs, which the folder of a retriever does not "
                "contain; fit the model again, or save it with AWCCA.save."
            )
        return self.spectra_

    def _set_names(self, names: Mapping[str, Any]) -> None:
        for name in ("feature_names_in_", "y_feature_names_in_", "covariate_names_in_", "_y_is_vector"):
            self.__dict__.pop(name, None)
        self.__dict__.update(names)

    def _html_repr(self) -> str:  # scikit-learn's hook for notebooks
        """Return a model as HTML, escaped and without scripts or addresses of its own.

        Correlations are left out where reading them would take a large decomposition.
        """
        if not hasattr(self, "models_"):
            return str(estimator_html_repr(self))
        # A small model takes no noticeable time to make.
        is_small = hasattr(self, "spectra_") and min(self.spectra_.t0.shape) <= SMALL
        shown, computed = copy.copy(self), dict(self.models_ if is_small else self.models_.computed)
        if "search" not in computed:
            # The diagram lists the names of the components, and would count them by making the model.
            shown.__dict__.update(get_feature_names_out=None)
        return f"{estimator_html_repr(shown)}{describe_fit(self, computed)}"

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "models_")

    def __sklearn_tags__(self) -> Tags:
        """Declare a required second view, which is a matrix."""
        tags = super().__sklearn_tags__()
        tags.transformer_tags = TransformerTags(preserves_dtype=["float64", "float32"])
        tags.target_tags.required = True
        tags.target_tags.two_d_labels = True
        tags.target_tags.multi_output = True
        tags.array_api_support = True
        tags.input_tags.sparse = not (self.params is None and self.selection != "validation")
        return tags

    def check_parameters(self) -> None:
        """Raise an error for wrong settings; ``fit`` calls this first."""
        check_settings(self)

    def _set_models(self, result: FitResult, device: str | None = None) -> None:
        """Set what a fit found."""
        spectra, points, made = result.spectra, result.points, result.made
        if device is not None:
            copies: dict[int, Any] = {}
            spectra = fields_to_numpy(spectra, copies)
            points = {task: fields_to_numpy(point, copies) for task, point in points.items()}
            made = {task: fields_to_numpy(model) for task, model in made.items()}
        self.path_, self.spectra_, self.regressions_ = result.path, spectra, result.regressions
        self.models_ = Models(made, points, device)
        self.x_mean_, self.y_mean_ = spectra.x_mean, spectra.y_mean
        if result.scales is not None:
            self.x_scale_, self.y_scale_ = result.scales
        self.n_features_in_ = int(spectra.x_mean.shape[0])


def _split_validation(validation: Any) -> tuple[Any, Any]:
    """Return validation pairs without and with their covariates, which come last."""
    if not isinstance(validation, tuple | list) or len(validation) != 4:
        raise InputError(
            "with covariates, validation is (X, Y, pairing, covariates), where pairing may be None; give the "
            "covariates of the validation pairs as well."
        )
    return tuple(validation[:3]), validation[3]
