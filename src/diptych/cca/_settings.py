"""The settings of an ``AWCCA``: their checks, and the parameters of both tasks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from diptych._arrays import Array
from diptych._checks import TASKS, InputError, Task, check_choice, check_count, check_seed, check_similarity
from diptych.cca._filters import (
    SHRINKAGES,
    AnyFilter,
    CustomFilter,
    Filters,
    Shrinkage,
    Tikhonov,
    TruncatedSVD,
    check_filter,
    custom_filter,
)
from diptych.cca._moments import PRECISIONS
from diptych.cca._spectra import SOLVERS
from diptych.cca._weighting import check_normalization, check_weighting
from diptych.cca.selection._grids import check_grid, check_share
from diptych.cca.selection._path import CORRELATION
from diptych.ranking import Metric, metric

ByTask: TypeAlias = dict[Task, tuple[Any, Any]]
Params: TypeAlias = tuple[float, float] | Array | Mapping[Task, tuple[float, float] | Array]

Selection: TypeAlias = Literal["validation", "leave-one-out"] | Shrinkage
SELECTIONS: tuple[Selection, ...] = ("validation", "leave-one-out", *SHRINKAGES)


def check_settings(settings: Any) -> None:
    """Raise an error for wrong settings of an ``AWCCA``."""
    check_filter(settings.filter)
    check_choice(settings.solver, SOLVERS, "solver")
    check_choice(settings.precision, PRECISIONS, "precision")
    check_similarity(settings.similarity)
    check_choice(settings.path_metrics, ("metric", "all"), "path_metrics")
    check_weighting(settings.weighting)
    check_choice(settings.selection, SELECTIONS, "selection")
    check_share(settings.validation_fraction)
    if settings.params is None:
        if settings.filter == "pls":
            raise InputError("filter='pls' has nothing to select; use diptych.PLS.")
        _check_selection(settings)
        check_grid(settings.grid)
    else:
        values = [value for pair in params_by_task(settings.params).values() for value in pair]
        for value in values if isinstance(settings.filter, str) else ():
            Tikhonov(value) if settings.filter in ("tikhonov", "pls") else TruncatedSVD(value)
    if selection_metric(settings.metric) is CORRELATION:
        _check_correlation(settings)
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


def selection_metric(name: Any) -> Metric:
    """Return ``AWCCA(metric=…)``: held-out correlation, or a metric of ranks."""
    return CORRELATION if isinstance(name, str) and name == "correlation" else metric(name)


def _check_correlation(settings: Any) -> None:
    """Raise an error for settings that held-out correlation does not go with."""
    for name, value, why in (
        ("n_components", "auto", "the first component correlates most"),
        ("selection", "leave-one-out", "one pair has no correlation"),
        ("path_metrics", "all", "it needs no ranks"),
        ("polish", True, "it is learned for ranks"),
    ):
        if getattr(settings, name) == value:
            raise InputError(
                f"metric='correlation' does not go with {name}={value!r}, because {why}; change one of them."
            )


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
    return {task: plain_pair(pairs[task]) for task in TASKS}


def plain_pair(pair: Any) -> tuple[Any, Any]:
    """Return a pair of parameters, which may be an array, as a tuple.

    >>> import numpy as np
    >>> plain_pair(np.array([1.0, 2.0]))
    (1.0, 2.0)
    """
    values = pair.tolist() if hasattr(pair, "tolist") else pair
    if not isinstance(values, (tuple, list)) or len(values) != 2:
        raise InputError(f"params={pair!r} is not a pair; give (p_x, p_y), or one such pair per task.")
    return values[0], values[1]


def scale_params(params: ByTask, filter: Any, factor: float) -> ByTask:
    """Return ``params`` for ``factor`` times as many pairs: γ is in units of a sum over pairs, k is not."""
    custom = custom_filter(filter)
    if not (filter in ("tikhonov", "pls") if custom is None else custom.per_pair):
        return params
    return {task: (params[task][0] * factor, params[task][1] * factor) for task in TASKS}


def params_of_filters(filters: Mapping[Task, Filters]) -> ByTask:
    """Return the parameters of the filters of each task."""

    def value(filter: AnyFilter) -> float:
        if isinstance(filter, CustomFilter):
            return filter.parameter
        return filter.gamma if isinstance(filter, Tikhonov) else filter.k

    return {task: (value(filters[task][0]), value(filters[task][1])) for task in TASKS}
