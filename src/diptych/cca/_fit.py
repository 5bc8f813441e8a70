"""One fit of AWCCA: from views, blocks or moments to the spectra and the parameters of each task."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from diptych._arrays import Array, is_sparse, move_like, namespace, to_numpy
from diptych._checks import (
    TASKS,
    DataWarning,
    InputError,
    Task,
    check_choice,
    check_count,
    check_matrix,
    check_number,
    check_pair_of_views,
    check_pairing,
    check_same_backend,
    check_sample_weight,
    check_seed,
    check_similarity,
)
from diptych._devices import copy_to_device
from diptych._progress import progress_bar
from diptych.cca._canonical import (
    CanonicalModel,
    forced_ones,
    keep_components,
    ranking_maps,
    regularized_cca,
)
from diptych.cca._filters import (
    SHRINKAGES,
    AnyFilter,
    CustomFilter,
    Filters,
    Shrinkage,
    Tikhonov,
    check_filter,
    custom_filter,
    make_filters,
    shrinkage_gammas,
)
from diptych.cca._models import ChosenPoint, ValidationPairs
from diptych.cca._moments import DEVICE_BLOCK_BYTES, PRECISIONS, Moments
from diptych.cca._polish import (
    COMPONENTS,
    EPOCHS,
    Polish,
    carry_polish,
    choose_epochs,
    polish_for,
    polish_vectors,
    sample_pairs,
)
from diptych.cca._spectra import (
    SOLVERS,
    Spectra,
    check_some_weight,
    resolve_solver,
    spectra,
    spectra_from_moments,
)
from diptych.cca._streaming import ArrayBlocks, Checkpoint, Engine, PairBlock, Preparation, sum_blocks
from diptych.cca._weighting import check_normalization, check_weighting, maps, normalize, project
from diptych.cca.selection._grids import Kind, Path, hold_out, holdout_size, make_grid
from diptych.cca.selection._leave_one_out import left_out
from diptych.cca.selection._path import leave_one_out_path, regularization_path
from diptych.cca.selection._problem import check_validation, check_widths, make_problem
from diptych.cca.selection._textbook import best_dimension
from diptych.ranking import metric, ranks

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA

ByTask: TypeAlias = dict[Task, tuple[Any, Any]]
Params: TypeAlias = tuple[float, float] | Mapping[Task, tuple[float, float]]
Dimensions: TypeAlias = dict[Task, int | None]
Pairs: TypeAlias = tuple[Array, Array, Array]

Selection: TypeAlias = Literal["validation", "leave-one-out"] | Shrinkage
SELECTIONS: tuple[Selection, ...] = ("validation", "leave-one-out", *SHRINKAGES)

FEW = 20
"""With fewer rows of X than this, there may be too few to hold some out."""


def check_settings(settings: Any) -> None:
    """Raise an error for wrong settings of an ``AWCCA``; its grid and params are not looked at."""
    check_filter(settings.filter)
    check_choice(settings.solver, SOLVERS, "solver")
    check_choice(settings.precision, PRECISIONS, "precision")
    check_similarity(settings.similarity)
    check_choice(settings.path_metrics, ("metric", "all"), "path_metrics")
    check_weighting(settings.weighting)
    check_choice(settings.selection, SELECTIONS, "selection")
    if settings.params is None:
        _check_selection(settings)
    metric(settings.metric)
    if settings.polish and (settings.similarity != "cosine" or settings.selection != "validation"):
        raise InputError(
            "polish=True learns cosines, and chooses its epochs on validation pairs; use "
            "similarity='cosine' and selection='validation'."
        )
    check_seed(settings.random_state)
    if settings.n_components not in (None, "auto"):
        check_count(settings.n_components, "n_components")
    if not isinstance(settings.normalize, (tuple, list)) or len(settings.normalize) != 2:
        raise InputError(
            f"normalize={settings.normalize!r} is not a pair; give one name for X and one for Y."
        )
    for name in settings.normalize:
        check_normalization(name)


def _check_selection(settings: Any) -> None:
    """Raise an error for settings that cannot be selected without validation pairs."""
    selection = settings.selection
    if selection == "validation":
        return
    if settings.filter != "tikhonov" or settings.n_components == "auto":
        raise InputError(
            f"selection={selection!r} selects Tikhonov's γ and no dimension; use filter='tikhonov' and a "
            "number for n_components, or selection='validation'."
        )
    if selection == "leave-one-out" and (
        settings.weighting != "asymmetric" or settings.n_components is not None
    ):
        raise InputError(
            "selection='leave-one-out' supports the asymmetric weighting at full dimension only; use "
            "selection='validation' for others."
        )


def params_by_task(params: Any) -> ByTask:
    """Return ``AWCCA(params=…)``, one pair or one pair for each task, as one pair for each task."""
    pairs = params if isinstance(params, Mapping) else dict.fromkeys(TASKS, params)
    if set(pairs) != set(TASKS):
        raise InputError(f"params has the keys {sorted(map(str, pairs))}; expected 'search' and 'annotate'.")
    for pair in pairs.values():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InputError(f"params={pair!r} is not a pair; give (p_x, p_y), or one such pair per task.")
    return {task: tuple(pairs[task]) for task in TASKS}


def scale_params(params: ByTask, filter: Any, factor: float) -> ByTask:
    """Return ``params`` for ``factor`` times as many pairs: γ is in units of a sum over pairs, k is not."""
    custom = custom_filter(filter)
    if not (filter == "tikhonov" if custom is None else custom.per_pair):
        return params
    return {task: (params[task][0] * factor, params[task][1] * factor) for task in TASKS}


def params_of_filters(filters: Mapping[Task, Filters]) -> ByTask:
    """Return the parameters of the filters of each task."""

    def value(filter: AnyFilter) -> float:
        if isinstance(filter, CustomFilter):
            return filter.parameter
        return filter.gamma if isinstance(filter, Tikhonov) else filter.k

    return {task: (value(filters[task][0]), value(filters[task][1])) for task in TASKS}


@dataclass(frozen=True, eq=False)
class Training:
    """The pairs to polish with, and the rows of Y that are not held out; None: all of them."""

    x: Any
    y: Any
    pairing: Array
    normalized: bool
    y_rows: Array | None = None


@dataclass(frozen=True, eq=False)
class FitResult:
    """Spectra, parameters and dimensions of the models to make; the path and the pairs that chose them.

    If the models are made of the ``validation`` pairs too, ``unseen`` is the result without those. Without
    ``training`` nothing is polished.
    """

    spectra: Spectra
    params: ByTask
    dimensions: Dimensions
    path: Path | None = None
    validation: Pairs | None = None
    unseen: FitResult | None = None
    training: Training | None = None


@dataclass(frozen=True, eq=False)
class Fit:
    """One fit with the parameters of an estimator; see ``AWCCA.fit`` for the other attributes."""

    settings: AWCCA
    engine: Engine | None = None
    device: str | None = None
    checkpoint: str | os.PathLike[str] | None = None

    def fit_blocks(self, blocks: Iterable[PairBlock], validation: tuple[Any, ...] | None) -> FitResult:
        """Fit blocks, in one pass."""
        if self.settings.selection != "validation" and self.settings.params is None:
            raise InputError(
                f"selection={self.settings.selection!r} needs a second pass over the pairs, which blocks do "
                "not allow; give validation pairs, or params."
            )
        self._check_solver("blocks")
        if self.settings.polish:
            raise InputError("polish=True reads the pairs again, which blocks do not allow; give arrays.")
        self._check_selectable(validation, "blocks are read once, so none can be held out")
        return self.fit_moments(self._sum(blocks), validation)

    def fit_moments(self, moments: Moments, validation: tuple[Any, ...] | None) -> FitResult:
        """Fit the moments of pairs."""
        self._check_selectable(validation, "moments contain no pairs")
        if moments.count < 2:
            raise InputError(f"found {moments.count} pair(s); a correlation needs at least two.")
        return self._select(self._spectra(moments), validation)

    def fit_views(
        self, X: Any, Y: Any, pairing: Any, validation: tuple[Any, ...] | None, sample_weight: Any = None
    ) -> FitResult:
        """Fit whole views. With the Gram solver, rows are read and normalised one block at a time."""
        settings = self.settings
        x, y = check_matrix(X, "X", sparse=True), check_matrix(Y, "Y", sparse=True)
        check_same_backend(x, y)
        if is_sparse(x) or is_sparse(y):
            self._check_sparse()
        pairing = check_pairing(pairing, x.shape[0], y)
        weights = check_sample_weight(sample_weight, y)
        if weights is not None:
            self._check_weighted()
            check_some_weight(weights)
            if bool(namespace(weights).any(weights == 0)):
                # A pair without weight must not be held out either.
                kept = namespace(weights).nonzero(weights)[0]
                y, pairing, weights = y[kept, :], pairing[kept], weights[kept]
        if y.shape[0] < 2:
            raise InputError(
                "found 1 sample pair; a correlation needs at least two, and many more to be useful."
            )
        if settings.selection != "validation" and validation is not None:
            raise InputError(f"selection={settings.selection!r} takes no validation pairs; leave them out.")
        solver = resolve_solver(settings.solver, tuple(x.shape), tuple(y.shape))
        if self.engine is not None:
            self._check_solver("an engine")
            solver = "gram"
        substitute = self._substitute(pairing, validation)
        if substitute is not None:
            # A sparse view has few rows here: with more of them, it is refused.
            x, y = (view.toarray() if is_sparse(view) else view for view in (x, y))
        in_memory = solver == "svd" or substitute is not None
        if in_memory:
            x, y, pairing = self._prepare((x, y, pairing))
            weights = check_sample_weight(weights, y)  # on the device, too
        if substitute is not None:
            whole = self._decompose(x, y, pairing, weights)
            params, path = self._select_without_validation(whole, x, y, pairing, weights, substitute)
            return FitResult(whole, params, self._fixed_dimensions(), path)
        training = Training(x, y, pairing, in_memory) if settings.polish else None
        if not self._selects() or validation is not None:
            if in_memory:
                result = self._select(self._decompose(x, y, pairing, weights), validation)
            else:
                moments = self._sum(self._blocks(x, y, pairing, weights))
                result = self._select(self._spectra(moments), validation)
            return replace(result, training=training)
        train, held = hold_out(pairing, x.shape[0], settings.validation_fraction, settings.random_state)
        pairs = x[held.x, :], y[held.y, :], held.pairing
        kept, left = (None if weights is None else weights[rows.y] for rows in (train, held))
        if in_memory:
            part = self._decompose(x[train.x, :], y[train.y, :], train.pairing, kept)
            whole = self._decompose(x, y, pairing, weights)
        else:
            moments = self._sum(self._blocks(x, y, pairing, weights, train.y))
            pairs = self._prepare(pairs)
            part = self._spectra(moments)
            rest = Moments.of(*pairs, precision=settings.precision, sample_weight=left)
            whole = self._spectra(moments + rest)
        result = self._select_and_refit(part, pairs, whole, int(x.shape[0]))
        return replace(result, training=training and replace(training, y_rows=train.y))

    def choose_points(self, result: FitResult) -> dict[Task, ChosenPoint]:
        """Return what the models are made from; both tasks share one point where they chose the same."""
        validation = None if result.validation is None else ValidationPairs.of(*result.validation)
        points: dict[tuple[Any, ...], ChosenPoint] = {}
        chosen = {task: (result.params[task], result.dimensions[task]) for task in TASKS}
        for task in TASKS:
            if chosen[task] not in points:
                unseen = None if result.unseen is None else self._point(result.unseen, task)
                point = replace(self._point(result, task), validation=validation, unseen=unseen)
                point.check()
                points[chosen[task]] = point
        return {task: points[chosen[task]] for task in TASKS}

    def make_points(
        self, result: FitResult, polished: Mapping[Task, CanonicalModel], moments: Moments | None = None
    ) -> tuple[dict[Task, ChosenPoint], dict[Task, CanonicalModel]]:
        """Return what the models are made from, and the models that are polished.

        The polish of the ``polished`` ones, fitted before, is carried over to the models of ``moments``.
        """
        points, models = self.choose_points(result), {}
        for task, point in points.items():
            if task in polished:
                models[task] = self._carry_polish(polished[task], point, moments, task)
            elif (model := self.polish_point(result, point, task)) is not None:
                models[task] = model
        return points, models

    def _carry_polish(
        self, previous: CanonicalModel, point: ChosenPoint, moments: Moments | None, task: Task
    ) -> CanonicalModel:
        assert moments is not None
        assert previous.polish is not None
        model = point.make(int(previous.correlations.shape[0]))
        plain = (replace(one, polish=None) for one in (model, previous))
        pair = (maps(one, self.settings.weighting, task) for one in plain)
        return replace(model, polish=carry_polish(previous.polish, moments, *pair))

    def _point(self, result: FitResult, task: Task) -> ChosenPoint:
        spectra = result.spectra
        filters = make_filters(self.settings.filter, result.params[task], spectra.s_x, spectra.s_y)
        return ChosenPoint(spectra, filters, result.dimensions[task])

    def polish_point(self, result: FitResult, point: ChosenPoint, task: Task) -> CanonicalModel | None:
        """Return the model of a task with the polish that is best on validation pairs; None if none helps.

        It is chosen with the model that has not seen those. If that of ``point`` has, it is polished for as
        many epochs as are best for the other.
        """
        settings, training = self.settings, result.training
        if training is None or result.validation is None:
            return None
        unseen = point.unseen or replace(point, validation=None)
        spectra, (x, y, pairing) = unseen.spectra, result.validation
        by = metric(settings.metric)

        def value(x_map: Array, y_map: Array) -> float:
            vectors = project(x, spectra.x_mean, x_map), project(y, spectra.y_mean, y_map)
            return by.signed(by(ranks(*vectors, pairing, task=task)))

        if settings.weighting == "asymmetric" and point.dimension is None:
            least = value(*ranking_maps(spectra, *unseen.filters, task))
            leading = unseen.make(COMPONENTS)
        else:
            whole = unseen.make()
            least, leading = value(*maps(whole, settings.weighting, task)), keep_components(whole, COMPONENTS)
        vectors = self._embed(training, training.y_rows, spectra, leading, task)
        with progress_bar(f"polishing for {task}") as progress:

            def try_epoch(polish: Polish) -> float:
                progress(polish.epochs / EPOCHS)
                return value(*maps(replace(leading, polish=polish), settings.weighting, task))

            epochs = polish_vectors(*vectors, settings.random_state)
            best = choose_epochs(epochs, try_epoch, least)
            progress(1.0)
            if best is None:
                return None
            model = point.make(COMPONENTS)
            if point.unseen is not None:
                vectors = self._embed(training, None, result.spectra, model, task)
                best = polish_for(*vectors, best.epochs, settings.random_state)
        return replace(model, polish=best)

    def _embed(
        self, training: Training, y_rows: Array | None, spectra: Spectra, model: CanonicalModel, task: Task
    ) -> Pairs:
        """Return float32 vectors of training pairs, of all or of a sample if they are very many."""
        pairing = training.pairing if y_rows is None else training.pairing[y_rows]
        if (sample := sample_pairs(pairing, self.settings.random_state)) is not None:
            y_rows = sample if y_rows is None else y_rows[sample]
            pairing = pairing[sample]
        x_rows, pairing = np.unique(to_numpy(pairing), return_inverse=True)
        rows = x_rows, None if y_rows is None else to_numpy(y_rows)
        how = ("none", "none") if training.normalized else self.settings.normalize
        x_map, y_map = maps(model, self.settings.weighting, task)
        x = self._project(training.x, rows[0], str(how[0]), spectra.x_mean, x_map)
        y = self._project(training.y, rows[1], str(how[1]), spectra.y_mean, y_map)
        return x, y, move_like(pairing, x)

    def _project(self, view: Any, rows: Any, how: str, mean: Array, weights: Array) -> Array:
        xp, parts = namespace(weights), []
        rows = np.arange(view.shape[0]) if rows is None else rows
        step = max(1, DEVICE_BLOCK_BYTES // (8 * int(view.shape[1])))
        for start in range(0, len(rows), step):
            block = view[move_like(rows[start : start + step], view), :]
            block = block if self.device is None else copy_to_device(block, self.device)
            features = xp.astype(check_matrix(block, "a view"), xp.float32, copy=False)
            parts.append(project(normalize(features, how), mean, weights))
        return parts[0] if len(parts) == 1 else xp.concat(parts, axis=0)

    def _select_and_refit(self, part: Spectra, held: Pairs, whole: Spectra, n_x: int) -> FitResult:
        """Select on held-out pairs; return the result for all pairs, with γ scaled by their number."""
        chosen = self._select_on(part, held)
        params = chosen.params
        if chosen.path is not None:
            chosen.path.held_out = (
                f"{int(held[0].shape[0])} of {n_x} rows of X with their rows of Y "
                f"(random_state={self.settings.random_state}); the model was refitted on all"
            )
            params = scale_params(params, self.settings.filter, whole.total / part.total)
        return replace(chosen, spectra=whole, params=params, unseen=chosen)

    def _select(self, spectra: Spectra, validation: tuple[Any, ...] | None) -> FitResult:
        """Select what the settings leave open, on the given validation pairs."""
        pairs = None
        if validation is not None:
            pairs = self._prepare(check_validation(validation))
            check_widths(spectra, *pairs[:2])
        if self._selects():
            assert pairs is not None
            return self._select_on(spectra, pairs)
        params = params_by_task(self.settings.params)
        return FitResult(spectra, params, self._fixed_dimensions(), None, pairs)

    def _select_on(self, spectra: Spectra, validation: Pairs) -> FitResult:
        """Select parameters (Algorithms 2 to 4) and dimensions, unless they are given."""
        settings = self.settings
        problem = make_problem(spectra, validation, settings.similarity)
        by = metric(settings.metric)
        dimensions, path = self._fixed_dimensions(), None
        if settings.params is not None:
            params = params_by_task(settings.params)
        else:
            kind: Kind = "tikhonov" if settings.filter == "tikhonov" else "tsvd"
            with progress_bar("selecting") as progress:
                path = regularization_path(
                    problem,
                    spectra,
                    make_grid(kind, settings.grid, spectra, custom_filter(settings.filter)),
                    by,
                    weighting=settings.weighting,
                    n_components=dimensions["search"],
                    path_metrics=settings.path_metrics,
                    engine=self.engine,
                    extend=True,
                    progress=progress,
                )
            params = {task: path.params(task) for task in TASKS}
        if settings.n_components == "auto":
            for task in TASKS:
                filters = make_filters(settings.filter, params[task], spectra.s_x, spectra.s_y)
                model = regularized_cca(spectra, *filters)
                dimensions[task] = best_dimension(problem, spectra, model, settings.weighting, task, by)
        return FitResult(spectra, params, dimensions, path, validation)

    def _substitute(self, pairing: Array, validation: tuple[Any, ...] | None) -> Selection | None:
        """Return the selection that replaces validation pairs; None if there are some or none are needed."""
        settings = self.settings
        if settings.params is not None:
            return None
        if settings.selection != "validation":
            return settings.selection
        if validation is not None or settings.filter != "tikhonov" or settings.n_components == "auto":
            return None
        items = len(np.unique(to_numpy(pairing)))
        share = check_number(settings.validation_fraction, "validation_fraction")
        if items >= FEW or not 0.0 < share < 1.0 or holdout_size(items, share) is not None:
            return None
        warnings.warn(
            f"{items} items are too few to hold some out, so γ comes from theory (Ledoit-Wolf), which "
            "retrieves worse; give params, validation pairs, or more data.",
            DataWarning,
            stacklevel=4,
        )
        return "ledoit-wolf"

    def _select_without_validation(
        self,
        spectra: Spectra,
        x: Array,
        y: Array,
        pairing: Array,
        weights: Array | None,
        selection: Selection,
    ) -> tuple[ByTask, Path | None]:
        settings = self.settings
        if selection != "leave-one-out":
            return params_by_task(shrinkage_gammas(x, y, pairing, selection, weights)), None
        rows = left_out(
            spectra, x, y, pairing, random_state=settings.random_state, similarity=settings.similarity
        )
        grid = make_grid("tikhonov", settings.grid, spectra)
        with progress_bar("leaving one out") as progress:
            path = leave_one_out_path(
                rows, grid, metric(settings.metric), path_metrics=settings.path_metrics, progress=progress
            )
        return {task: path.params(task) for task in TASKS}, path

    def _decompose(self, x: Array, y: Array, pairing: Array, weights: Array | None) -> Spectra:
        if self.engine is not None:
            return self._spectra(self._sum(self._blocks(x, y, pairing, weights), normalized=True))
        solver, precision = self.settings.solver, self.settings.precision
        with progress_bar("decomposing"):
            return spectra(x, y, pairing, solver=solver, precision=precision, sample_weight=weights)

    def _spectra(self, moments: Moments) -> Spectra:
        with progress_bar("decomposing"):
            return spectra_from_moments(moments)

    def _sum(self, blocks: Iterable[PairBlock], *, normalized: bool = False) -> Moments:
        settings = self.settings
        how = ("none", "none") if normalized else (str(settings.normalize[0]), str(settings.normalize[1]))
        prepare = Preparation(how, settings.precision, self.device)
        checkpoint = None
        if self.checkpoint is not None:
            identity = f"{getattr(blocks, 'fingerprint', '')} {how} {settings.precision}"
            checkpoint = Checkpoint(self.checkpoint, identity)
        with progress_bar("summing") as progress:
            return sum_blocks(blocks, prepare, engine=self.engine, checkpoint=checkpoint, progress=progress)

    def _blocks(
        self, x: Array, y: Array, pairing: Array, weights: Array | None, y_rows: Array | None = None
    ) -> ArrayBlocks:
        block_bytes = None if self.device is None else DEVICE_BLOCK_BYTES
        return ArrayBlocks(x, y, pairing, y_rows, block_bytes, weights)

    def _prepare(self, pairs: tuple[Any, ...]) -> Pairs:
        """Return whole pairs on the device, checked and normalised; a Y of one axis is one feature."""
        y = pairs[1][:, None] if getattr(pairs[1], "ndim", 2) == 1 else pairs[1]
        x, y = check_matrix(pairs[0], "X", sparse=True), check_matrix(y, "Y", sparse=True)
        if is_sparse(x) or is_sparse(y):
            self._check_sparse()
        pairing = check_pairing(pairs[2] if len(pairs) == 3 else None, x.shape[0], y)
        if self.device is not None:
            x, y, pairing = (copy_to_device(array, self.device) for array in (x, y, pairing))
        x, y, pairing = check_pair_of_views(x, y, pairing, sparse=True)
        how = self.settings.normalize
        return normalize(x, how[0]), normalize(y, how[1]), pairing

    def _fixed_dimensions(self) -> Dimensions:
        fixed = self.settings.n_components
        return dict.fromkeys(TASKS, None if isinstance(fixed, str) else fixed)

    def _selects(self) -> bool:
        settings = self.settings
        return settings.params is None or settings.n_components == "auto" or settings.polish

    def _check_weighted(self) -> None:
        """Raise an error for settings that take no sample weights."""
        settings = self.settings
        if settings.polish:
            raise InputError("polish=True learns from pairs without weights; leave sample_weight or it out.")
        if settings.params is None and settings.selection == "leave-one-out":
            raise InputError(
                "selection='leave-one-out' takes no sample_weight; use another selection, or give params."
            )

    def _check_sparse(self) -> None:
        """Raise an error for settings that take no sparse views."""
        settings, wrong = self.settings, None
        if self.device is not None:
            wrong = f"device={self.device!r}"
        elif settings.polish:
            wrong = "polish=True"
        elif settings.params is None and settings.selection != "validation":
            wrong = f"selection={settings.selection!r}"
        elif settings.solver == "svd":
            wrong = "solver='svd'"
        if wrong:
            raise InputError(f"{wrong} takes dense views; leave it out, or make the sparse ones dense.")

    def _check_selectable(self, validation: tuple[Any, ...] | None, why: str) -> None:
        if self._selects() and validation is None:
            raise InputError(f"{why} to select on; give validation pairs, or params.")

    def _check_solver(self, source: str) -> None:
        if self.settings.solver == "svd":
            raise InputError(f"solver='svd' needs both views in memory, not {source}; give solver='gram'.")


def warn_of_ones(filters: Mapping[Task, Filters], spectra: Spectra) -> None:
    """Warn about correlations that are 1 because there are more directions than pairs."""
    for pair in filters.values():
        ones, *directions = forced_ones(spectra, *pair)
        if ones:
            warnings.warn(
                f"{ones} of {min(directions)} canonical correlations are 1 whatever the data: "
                f"{directions[0]} and {directions[1]} directions are too many for {spectra.count} pairs; "
                "regularise more (params=None selects how much).",
                DataWarning,
                stacklevel=4,  # past the context manager that decorates fit
            )
            return
