"""The parameters of both tasks: as given, what may select them, and as more data would have them.

One fit: from views, blocks or moments to spectra and to what was selected for each task.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from diptych._arrays import Array, to_numpy
from diptych._checks import (
    TASKS,
    DataWarning,
    InputError,
    Task,
    check_choice,
    check_matrix,
    check_number,
    check_pair_of_views,
    check_pairing,
    check_together,
)
from diptych._devices import on_device
from diptych._normalize import normalize
from diptych._threads import progress_bar
from diptych.cca._canonical import CanonicalModel, regularized_cca
from diptych.cca._filters import AnyFilter, CustomFilter, Tikhonov, custom_filter, named_filters
from diptych.cca._moments import DEVICE_BLOCK_BYTES, Moments
from diptych.cca._spectra import (
    SHRINKAGES,
    Shrinkage,
    Spectra,
    resolve_solver,
    shrunk_gammas,
    spectra,
    spectra_from_moments,
)
from diptych.cca._streaming import ArrayBlocks, Block, Checkpoint, Engine, Preparation, moments_of_blocks
from diptych.cca.selection import (
    Kind,
    Path,
    best_dimension,
    check_widths,
    held_out_size,
    hold_out,
    leave_one_out_path,
    left_out,
    make_grid,
    make_problem,
    regularization_path,
)
from diptych.ranking import metric

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA


ByTask: TypeAlias = dict[Task, tuple[Any, Any]]
Selection: TypeAlias = Literal["validation", "leave-one-out"] | Shrinkage
SELECTIONS: tuple[Selection, ...] = ("validation", "leave-one-out", *SHRINKAGES)


def check_selection(selection: Any) -> None:
    """Refuse what is no way of selecting."""
    check_choice(selection, SELECTIONS, "selection")


def check_alone(selection: str, filter: Any, weighting: Any, n_components: Any) -> None:
    """Refuse what cannot be selected without validation pairs."""
    if filter != "tikhonov" or n_components == "auto":
        raise InputError(
            f"selection={selection!r} selects Tikhonov's γ and no dimension; take filter='tikhonov' and a "
            "number for n_components, or selection='validation'."
        )
    if selection == "leave-one-out" and (weighting != "asymmetric" or n_components is not None):
        raise InputError(
            "selection='leave-one-out' knows the asymmetric weighting at full dimension only; take "
            "selection='validation' for others."
        )


def params_by_task(params: Any) -> ByTask:
    """One pair of parameters for each task, whichever way they were given."""
    given = params if isinstance(params, Mapping) else dict.fromkeys(TASKS, params)
    if set(given) != set(TASKS):
        raise InputError(f"params has the keys {sorted(map(str, given))}; expected 'search' and 'annotate'.")
    for pair in given.values():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InputError(f"params={pair!r} is not a pair; give (p_x, p_y), or one such pair per task.")
    return {task: tuple(given[task]) for task in TASKS}


def grows_with_pairs(filter: Any) -> bool:
    """Whether the parameters of ``AWCCA(filter=…)`` are in units of a sum over pairs."""
    custom = custom_filter(filter)
    return filter == "tikhonov" if custom is None else custom.per_pair


def grown(params: ByTask, factor: float) -> ByTask:
    """γ's for ``factor`` times as many pairs: γ is in units of a sum over pairs."""
    return {task: (params[task][0] * factor, params[task][1] * factor) for task in TASKS}


def params_in_use(models: Mapping[Task, CanonicalModel]) -> ByTask:
    """What the filters of fitted models hold: γ's, k's or parameters of a filter of one's own."""
    return {task: (_value(models[task].filter_x), _value(models[task].filter_y)) for task in TASKS}


def _value(chosen: AnyFilter) -> float:
    if isinstance(chosen, CustomFilter):
        return chosen.parameter
    return chosen.gamma if isinstance(chosen, Tikhonov) else chosen.k


FEW = 20
"""Images below which there may be too few to hold some out, whatever share is asked for."""

Pairs: TypeAlias = tuple[Array, Array, Array]
Dimensions: TypeAlias = dict[Task, int | None]


@dataclass(frozen=True, eq=False)
class Selected:
    """What a fit leaves behind for the models to be made from."""

    spectra: Spectra
    params: ByTask
    dimensions: Dimensions
    path: Path | None = None
    unseen: Unseen | None = None


@dataclass(frozen=True, eq=False)
class Unseen:
    """Pairs that nothing was fitted on, as far as ``spectra`` and ``params`` go; normalised already."""

    pairs: Pairs
    spectra: Spectra
    params: ByTask


@dataclass(frozen=True, eq=False)
class Fitting:
    """Where one fit of an estimator runs.

    Attributes
    ----------
    settings
        The estimator, for its parameters.
    engine
        What sums blocks and scores rows of the grid; None: this process.
    device
        A torch device for all arithmetic; None: where the arrays are.
    checkpoint
        File that keeps the sum of a pass, where there is one; None: an interrupted pass begins anew.
    """

    settings: AWCCA
    engine: Engine | None = None
    device: str | None = None
    checkpoint: str | os.PathLike[str] | None = None

    def of_blocks(self, blocks: Iterable[Block], validation: tuple[Any, ...] | None) -> Selected:
        """Fit on blocks, which are seen once."""
        if self.settings.selection != "validation" and self.settings.params is None:
            raise InputError(
                f"selection={self.settings.selection!r} looks at all pairs again, which blocks do not allow; "
                "give validation pairs, or params."
            )
        self._refuse_svd("blocks")
        self._check_selectable(validation, "blocks are seen once, and none is kept")
        return self.of_moments(self._moments(blocks), validation)

    def of_moments(self, moments: Moments, validation: tuple[Any, ...] | None) -> Selected:
        """Fit on what is left of pairs after a pass over them."""
        self._check_selectable(validation, "moments hold no pairs")
        if moments.count < 2:
            raise InputError(f"found {moments.count} pair(s); a correlation needs at least two.")
        return self._selected(spectra_from_moments(moments), validation)

    def of_views(self, X: Any, Y: Any, pairing: Any, validation: tuple[Any, ...] | None) -> Selected:
        """Fit on whole views. Where Gram matrices serve, rows are read and normalised a block at a time."""
        settings = self.settings
        x, y = check_matrix(X, "X"), check_matrix(Y, "Y")
        check_together(x, y)
        pairing = check_pairing(pairing, x.shape[0], y)
        if y.shape[0] < 2:
            raise InputError(
                "found 1 sample pair; a correlation needs at least two, and many more to be useful."
            )
        if settings.selection != "validation" and validation is not None:
            raise InputError(f"selection={settings.selection!r} takes no validation pairs; leave them out.")
        solver = resolve_solver(settings.solver, tuple(x.shape), tuple(y.shape))
        if self.engine is not None:
            self._refuse_svd("an engine")
            solver = "gram"
        alone = self._alone(pairing, validation)
        if solver == "svd" or alone is not None:
            return self._of_whole(*self._prepared((x, y, pairing)), validation, alone)
        if not self._selects() or validation is not None:
            return self.of_moments(self._moments(self._blocks(x, y, pairing)), validation)
        train, held = hold_out(pairing, x.shape[0], settings.validation_fraction, settings.random_state)
        moments = self._moments(self._blocks(x, y, pairing, train.captions))
        pairs = self._prepared((x[held.images, :], y[held.captions, :], held.pairing))
        total = moments + Moments.of(*pairs, precision=settings.precision)
        return self._after_holding_out(
            spectra_from_moments(moments), pairs, spectra_from_moments(total), x.shape[0]
        )

    def _of_whole(
        self,
        x: Array,
        y: Array,
        pairing: Array,
        validation: tuple[Any, ...] | None,
        alone: Selection | None,
    ) -> Selected:
        """Fit on prepared views that are in memory."""
        settings = self.settings

        def decomposed(*pairs: Array) -> Spectra:
            if self.engine is not None:
                return spectra_from_moments(self._moments(self._blocks(*pairs), as_they_are=True))
            return spectra(*pairs, solver=settings.solver, precision=settings.precision)

        if alone is not None:
            whole = decomposed(x, y, pairing)
            params, path = self._select_alone(whole, x, y, pairing, alone)
            return Selected(whole, params, dict.fromkeys(TASKS, settings.n_components), path)  # type: ignore[arg-type]
        if not self._selects() or validation is not None:
            return self._selected(decomposed(x, y, pairing), validation)
        train, held = hold_out(pairing, x.shape[0], settings.validation_fraction, settings.random_state)
        parts = [(x[p.images, :], y[p.captions, :], p.pairing) for p in (train, held)]
        return self._after_holding_out(decomposed(*parts[0]), parts[1], decomposed(x, y, pairing), x.shape[0])

    def _after_holding_out(self, part: Spectra, held: Pairs, whole: Spectra, n_images: int) -> Selected:
        """Select on pairs that were held out; the model is that of all pairs, with γ grown as they did."""
        found = self._select(part, held)
        params = found.params
        if found.path is not None:
            found.path.held_out = (
                f"{int(held[0].shape[0])} of {n_images} rows of X with their rows of Y "
                f"(random_state={self.settings.random_state}); the model was refitted on all"
            )
            if grows_with_pairs(self.settings.filter):
                params = grown(params, whole.count / part.count)
        return Selected(whole, params, found.dimensions, found.path, found.unseen)

    def _selected(self, spectra: Spectra, validation: tuple[Any, ...] | None) -> Selected:
        if not self._selects():
            params = params_by_task(self.settings.params)
            dimensions = dict.fromkeys(TASKS, self.settings.n_components)
            unseen = None
            if validation is not None:
                unseen = Unseen(self._validation(validation, spectra), spectra, params)
            return Selected(spectra, params, dimensions, None, unseen)  # type: ignore[arg-type]
        assert validation is not None
        return self._select(spectra, self._validation(validation, spectra))

    def _select(self, spectra: Spectra, validation: Pairs) -> Selected:
        """Parameters, unless they are given, and dimensions, on validation pairs."""
        settings = self.settings
        problem = make_problem(spectra, validation, settings.similarity)
        by = metric(settings.metric)
        fixed = settings.n_components if settings.n_components != "auto" else None
        chosen, path = None if settings.params is None else params_by_task(settings.params), None
        if chosen is None:
            kind: Kind = "tikhonov" if settings.filter == "tikhonov" else "tsvd"
            grid = make_grid(kind, settings.grid, spectra, custom_filter(settings.filter))
            with progress_bar(f"selecting {settings.filter}", settings.verbose) as progress:
                path = regularization_path(
                    problem,
                    spectra,
                    grid,
                    by,
                    weighting=settings.weighting,
                    n_components=fixed,
                    path_metrics=settings.path_metrics,
                    engine=self.engine,
                    extend=True,
                    progress=progress,
                )
            chosen = {task: path.params(task) for task in TASKS}
        dimensions: Dimensions = dict.fromkeys(TASKS, fixed)
        if settings.n_components == "auto":
            for task in TASKS:
                filters = named_filters(settings.filter, chosen[task], spectra.s_x, spectra.s_y)
                model = regularized_cca(spectra, *filters)
                dimensions[task] = best_dimension(problem, spectra, model, settings.weighting, task, by)
        return Selected(spectra, chosen, dimensions, path, Unseen(validation, spectra, chosen))

    def _validation(self, validation: tuple[Any, ...], spectra: Spectra) -> Pairs:
        """Validation pairs as given, checked and prepared."""
        if not isinstance(validation, tuple | list) or len(validation) not in (2, 3):
            raise InputError(
                "validation is not (X, Y) or (X, Y, pairing); give the validation pairs like that."
            )
        pairs = self._prepared(tuple(validation))
        check_widths(spectra, *pairs[:2])
        return pairs

    def _alone(self, pairing: Array, validation: tuple[Any, ...] | None) -> Selection | None:
        """What takes the place of validation pairs; None if there are some, or nothing is selected."""
        settings = self.settings
        if settings.params is not None or settings.selection != "validation":
            return None if settings.params is not None else settings.selection
        if validation is not None or settings.filter != "tikhonov" or settings.n_components == "auto":
            return None
        images = len(np.unique(to_numpy(pairing)))
        share = check_number(settings.validation_fraction, "validation_fraction")
        if images >= FEW or not 0.0 < share < 1.0 or held_out_size(images, share) is not None:
            return None
        warnings.warn(
            f"{images} items are too few to hold some out: γ was taken from theory (Ledoit-Wolf), which "
            "retrieves worse; give params, validation pairs, or more data.",
            DataWarning,
            stacklevel=4,
        )
        return "ledoit-wolf"

    def _select_alone(
        self, spectra: Spectra, x: Array, y: Array, pairing: Array, kind: Selection
    ) -> tuple[ByTask, Path | None]:
        """Parameters with no validation pairs; the spectra are those of the given views."""
        settings = self.settings
        if kind != "leave-one-out":
            return params_by_task(shrunk_gammas(x, y, pairing, kind)), None
        seeded = {"random_state": settings.random_state, "similarity": settings.similarity}
        rows = left_out(spectra, x, y, pairing, **seeded)  # type: ignore[arg-type]
        grid = make_grid("tikhonov", settings.grid, spectra)
        with progress_bar("leaving one out", settings.verbose) as progress:
            path = leave_one_out_path(
                rows, grid, metric(settings.metric), path_metrics=settings.path_metrics, progress=progress
            )
        return {task: path.params(task) for task in TASKS}, path

    def _moments(self, blocks: Iterable[Block], *, as_they_are: bool = False) -> Moments:
        settings = self.settings
        how = ("none", "none") if as_they_are else (str(settings.normalize[0]), str(settings.normalize[1]))
        prepare = Preparation(how, settings.precision, self.device)
        kept = None
        if self.checkpoint is not None:
            named = getattr(blocks, "fingerprint", "")
            kept = Checkpoint(self.checkpoint, f"{named} {how} {settings.precision}")
        with progress_bar("summing", settings.verbose) as progress:
            return moments_of_blocks(blocks, prepare, engine=self.engine, checkpoint=kept, progress=progress)

    def _blocks(self, x: Array, y: Array, pairing: Array, captions: Array | None = None) -> ArrayBlocks:
        size = None if self.device is None else DEVICE_BLOCK_BYTES
        return ArrayBlocks(x, y, pairing, captions, size)

    def _prepared(self, pairs: tuple[Any, ...]) -> Pairs:
        """Pairs that are looked at as a whole: on the device, checked and normalised."""
        how = self.settings.normalize
        x, y = check_matrix(pairs[0], "X"), check_matrix(_as_matrix(pairs[1]), "Y")
        pairing = check_pairing(pairs[2] if len(pairs) == 3 else None, x.shape[0], y)
        if self.device is not None:
            x, y, pairing = (on_device(each, self.device) for each in (x, y, pairing))
        x, y, pairing = check_pair_of_views(x, y, pairing)
        return normalize(x, how[0]), normalize(y, how[1]), pairing

    def _selects(self) -> bool:
        return self.settings.params is None or self.settings.n_components == "auto"

    def _check_selectable(self, validation: tuple[Any, ...] | None, why: str) -> None:
        if self._selects() and validation is None:
            raise InputError(f"{why} to select on; give validation pairs, or params.")

    def _refuse_svd(self, what: str) -> None:
        if self.settings.solver == "svd":
            raise InputError(f"solver='svd' takes both views in memory, not {what}; give solver='gram'.")


def _as_matrix(view: Any) -> Any:
    """One feature given as a plain column of numbers, as scikit-learn allows it for Y."""
    return view[:, None] if getattr(view, "ndim", 2) == 1 else view
