"""One fit of AWCCA: from views, blocks or moments to the spectra and the parameters of each task."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from diptych._arrays import Array, count_groups, is_sparse, namespace, to_numpy
from diptych._checks import (
    TASKS,
    DataWarning,
    InputError,
    Task,
    check_matrix,
    check_number,
    check_pair_of_views,
    check_pairing,
    check_same_backend,
    check_sample_weight,
    check_view,
)
from diptych._devices import copy_to_device
from diptych._progress import progress_bar
from diptych.cca._canonical import CanonicalModel, forced_ones, regularized_cca
from diptych.cca._covariates import (
    Regressions,
    Sides,
    check_covariates,
    match_sides,
    regress_out,
    take_rows,
)
from diptych.cca._filters import Filters, custom_filter, make_filters, shrinkage_gammas
from diptych.cca._models import ChosenPoint, ValidationPairs
from diptych.cca._moments import DEVICE_BLOCK_BYTES, Moments
from diptych.cca._polish import Training, polish_point
from diptych.cca._settings import ByTask, Selection, params_by_task, scale_params, selection_metric
from diptych.cca._spectra import Spectra, check_some_weight, resolve_solver, spectra, spectra_from_moments
from diptych.cca._streaming import ArrayBlocks, Checkpoint, Engine, PairBlock, Preparation, sum_blocks
from diptych.cca._weighting import normalize, standardize
from diptych.cca.selection._grids import Kind, Path, hold_out, holdout_size, make_grid
from diptych.cca.selection._leave_one_out import left_out
from diptych.cca.selection._path import leave_one_out_path, regularization_path
from diptych.cca.selection._problem import check_validation, check_widths, make_problem
from diptych.cca.selection._textbook import best_dimension

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA

Dimensions: TypeAlias = dict[Task, int | None]
Pairs: TypeAlias = tuple[Array, Array, Array]

FEW = 20
"""With fewer rows of X than this, there may be too few to hold some out."""


class Chosen(NamedTuple):
    """The parameters and dimension of each task, and the path that chose them, if one did."""

    params: ByTask
    dimensions: Dimensions
    path: Path | None = None


@dataclass(frozen=True, eq=False)
class FitResult:
    """What the models are made from: spectra and a point for each task; and those that are made already.

    ``regressions`` say what covariates explained of the views, where there were some; ``scales`` are the
    standard deviations that the columns of both views were then divided by, if they were.
    """

    spectra: Spectra
    path: Path | None
    points: dict[Task, ChosenPoint]
    made: dict[Task, CanonicalModel]
    regressions: Regressions | None = None
    scales: tuple[Array, Array] | None = None


@dataclass(frozen=True, eq=False)
class Fit:
    """One fit with the parameters of an estimator; see ``AWCCA.fit`` for the other attributes.

    With ``covariates``, views are residuals, which lose those again where a share is held out.
    """

    settings: AWCCA
    engine: Engine | None = None
    device: str | None = None
    checkpoint: str | os.PathLike[str] | None = None
    covariates: Sides | None = None

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
        self._check_source(validation, "blocks are read once, so none can be held out")
        return self.fit_moments(self._sum(blocks), validation)

    def fit_moments(self, moments: Moments, validation: tuple[Any, ...] | None) -> FitResult:
        self._check_source(validation, "moments contain no pairs")
        if moments.count < 2:
            raise InputError(f"found {moments.count} pair(s); a correlation needs at least two.")
        return self._select(self._spectra(moments), validation)

    def fit_partial(
        self,
        X: Any,
        Y: Any,
        pairing: Any,
        validation: tuple[Any, ...] | None,
        sample_weight: Any,
        covariates: Any,
    ) -> FitResult:
        """Fit what covariates leave of both normalised views; validation pairs have theirs as well."""
        self._check_partial()
        x, y, pairing = check_pair_of_views(X, Y, pairing)
        sides = check_covariates(covariates, X, int(x.shape[0]))
        assert sides is not None
        weights = check_sample_weight(sample_weight, y)
        check_some_weight(weights)
        how = self.settings.normalize
        plain_weights = None if weights is None else to_numpy(weights)
        x, y = normalize(x, how[0]), normalize(y, how[1])
        regressions, (left_x, left_y) = regress_out(x, y, pairing, sides, plain_weights)
        if validation is not None:
            held_covariates = match_sides(regressions, validation[3])
            held_x = check_view(validation[0], "validation X", n_features=int(x.shape[1]))
            held_y = check_view(validation[1], "validation Y", n_features=int(y.shape[1]))
            held_pairing = check_pairing(validation[2], held_x.shape[0], held_y)
            widths = (None if z is None else int(z.shape[1]) for z in sides)
            held_sides = check_covariates(held_covariates, validation[0], int(held_x.shape[0]), *widths)
            assert held_sides is not None
            held_x, held_y = normalize(held_x, how[0]), normalize(held_y, how[1])
            validation = *regressions.residuals(held_x, held_y, held_pairing, held_sides), held_pairing
        plain = copy.copy(self.settings)
        plain.normalize = ("none", "none")  # residuals are not normalised again
        fit = replace(self, settings=plain, covariates=sides)
        return replace(fit.fit_views(left_x, left_y, pairing, validation, weights), regressions=regressions)

    def fit_views(
        self, X: Any, Y: Any, pairing: Any, validation: tuple[Any, ...] | None, sample_weight: Any = None
    ) -> FitResult:
        """Fit whole views. With the Gram solver, rows are read and normalised one block at a time."""
        if not self.settings.scale:
            return self._fit_prepared(X, Y, pairing, validation, sample_weight)
        x, y, pairing = check_pair_of_views(check_view(X, "X"), check_view(Y, "Y"), pairing)
        weights = check_sample_weight(sample_weight, y)
        if weights is not None:
            check_some_weight(weights)
        counts = count_groups(pairing, int(x.shape[0]), weights)
        (x, x_scale), (y, y_scale) = standardize(x, counts), standardize(y, weights)
        if validation is not None:
            held_x, held_y, *order = check_validation(validation)
            held_x = check_view(held_x, "validation X", n_features=int(x.shape[1])) / x_scale
            held_y = check_view(held_y, "validation Y", n_features=int(y.shape[1])) / y_scale
            validation = held_x, held_y, *order
        result = self._fit_prepared(x, y, pairing, validation, weights)
        return replace(result, scales=(x_scale, y_scale))

    def _fit_prepared(
        self, X: Any, Y: Any, pairing: Any, validation: tuple[Any, ...] | None, sample_weight: Any
    ) -> FitResult:
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
        in_memory = solver == "svd" or substitute is not None or self.covariates is not None
        if in_memory:
            x, y, pairing = self._prepare((x, y, pairing))
            weights = check_sample_weight(weights, y)  # on the device, too
        if substitute is not None:
            whole = self._decompose(x, y, pairing, weights, in_memory)
            params, path = self._select_without_validation(whole, x, y, pairing, weights, substitute)
            return self.make_result(whole, Chosen(params, self._fixed_dimensions(), path))
        how = ("none", "none") if in_memory else (str(settings.normalize[0]), str(settings.normalize[1]))
        training = Training(x, y, pairing, how) if settings.polish else None
        if not self._selects() or validation is not None:
            whole = self._decompose(x, y, pairing, weights, in_memory)
            return self._select(whole, validation, training)
        return self._select_on_held_out(x, y, pairing, weights, in_memory, training)

    def _select_on_held_out(
        self,
        x: Array,
        y: Array,
        pairing: Array,
        weights: Array | None,
        in_memory: bool,
        training: Training | None,
    ) -> FitResult:
        """Select on a share of the pairs that is held out; the models are then fitted on all."""
        settings = self.settings
        train, held = hold_out(pairing, x.shape[0], settings.validation_fraction, settings.random_state)
        pairs = x[held.x, :], y[held.y, :], held.pairing
        kept, left = (None if weights is None else weights[rows.y] for rows in (train, held))
        if in_memory:
            part_x, part_y = x[train.x, :], y[train.y, :]
            if self.covariates is not None:
                # What a part regresses out of residuals of all pairs leaves what it would leave of the views.
                inside, outside = (take_rows(self.covariates, rows.x) for rows in (train, held))
                plain = None if kept is None else to_numpy(kept)
                regressions, (part_x, part_y) = regress_out(part_x, part_y, train.pairing, inside, plain)
                pairs = *regressions.residuals(*pairs, outside), held.pairing
            part = self._decompose(part_x, part_y, train.pairing, kept, in_memory)
            whole = self._decompose(x, y, pairing, weights, in_memory)
        else:
            moments = self._sum(self._blocks(x, y, pairing, weights, train.y))
            pairs = self._prepare(pairs)
            part = self._spectra(moments)
            rest = Moments.of(*pairs, precision=settings.precision, sample_weight=left)
            whole = self._spectra(moments + rest)
        chosen = unseen = self._choose(part, pairs)
        if chosen.path is not None:
            chosen.path.held_out = (
                f"{int(held.x.shape[0])} of {int(x.shape[0])} rows of X with their rows of Y "
                f"(random_state={settings.random_state}); the model was refitted on all"
            )
            scaled = scale_params(chosen.params, settings.filter, whole.total / part.total)
            chosen = chosen._replace(params=scaled)
        training = training and replace(training, y_rows=train.y)
        return self.make_result(whole, chosen, pairs, (part, unseen), training)

    def make_result(
        self,
        spectra: Spectra,
        chosen: Chosen,
        validation: Pairs | None = None,
        unseen: tuple[Spectra, Chosen] | None = None,
        training: Training | None = None,
    ) -> FitResult:
        """Return the points of both tasks, one for both if they chose the same, and models that are polished.

        If ``validation`` pairs are among those of the spectra, ``unseen`` is what was chosen without them.
        Without ``training`` pairs nothing is polished.
        """
        kept = None if validation is None else ValidationPairs.of(*validation)
        shared: dict[tuple[Any, ...], ChosenPoint] = {}
        points: dict[Task, ChosenPoint] = {}
        for task in TASKS:
            choice = chosen.params[task], chosen.dimensions[task]
            if choice not in shared:
                before = None if unseen is None else self._make_point(*unseen, task)
                shared[choice] = self._make_point(spectra, chosen, task, kept, before)
                shared[choice].check()
            points[task] = shared[choice]
        made: dict[Task, CanonicalModel] = {}
        if training is not None and validation is not None:
            for task, point in points.items():
                model = polish_point(point, task, self.settings, training, validation, self.device)
                if model is not None:
                    made[task] = model
        return FitResult(spectra, chosen.path, points, made)

    def _make_point(self, spectra: Spectra, chosen: Chosen, task: Task, *pairs: Any) -> ChosenPoint:
        filters = make_filters(self.settings.filter, chosen.params[task], spectra.s_x, spectra.s_y)
        return ChosenPoint(spectra, filters, chosen.dimensions[task], *pairs)

    def _select(
        self, spectra: Spectra, validation: tuple[Any, ...] | None, training: Training | None = None
    ) -> FitResult:
        """Return the models of these spectra; what the settings leave open is chosen on validation pairs."""
        pairs = None
        if validation is not None:
            pairs = self._prepare(check_validation(validation))
            check_widths(spectra, *pairs[:2])
        if not self._selects():
            chosen = Chosen(params_by_task(self.settings.params), self._fixed_dimensions())
            return self.make_result(spectra, chosen, pairs)
        assert pairs is not None
        return self.make_result(spectra, self._choose(spectra, pairs), pairs, training=training)

    def _choose(self, spectra: Spectra, validation: Pairs) -> Chosen:
        """Choose parameters (Algorithms 2 to 4) and dimensions, unless they are given."""
        settings = self.settings
        problem = make_problem(spectra, validation, settings.similarity)
        by = selection_metric(settings.metric)
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
        return Chosen(params, dimensions, path)

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
                rows,
                grid,
                selection_metric(settings.metric),
                path_metrics=settings.path_metrics,
                progress=progress,
            )
        return {task: path.params(task) for task in TASKS}, path

    def _decompose(
        self, x: Array, y: Array, pairing: Array, weights: Array | None, in_memory: bool
    ) -> Spectra:
        """Return the spectra of views, which are normalised already where they are ``in_memory``."""
        if self.engine is not None or not in_memory:
            return self._spectra(self._sum(self._blocks(x, y, pairing, weights), normalized=in_memory))
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

    def _check_partial(self) -> None:
        """Raise an error for settings that take no covariates."""
        settings, wrong = self.settings, None
        if self.checkpoint is not None:
            wrong = "checkpoint"
        elif settings.polish:
            wrong = "polish=True"
        elif settings.params is None and settings.selection == "leave-one-out":
            wrong = "selection='leave-one-out'"
        if wrong:
            raise InputError(f"{wrong} and covariates are not supported together; leave one of them out.")

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

    def _check_source(self, validation: tuple[Any, ...] | None, why: str) -> None:
        if self.settings.scale:
            raise InputError("scale=True takes whole views, not blocks or moments; give scale=False.")
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
