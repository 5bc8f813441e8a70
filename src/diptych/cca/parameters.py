"""The parameters of both tasks: as given, what may select them, and as more data would have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from diptych.cca.canonical import CanonicalModel
from diptych.cca.filters import AnyFilter, CustomFilter, Tikhonov, custom_filter
from diptych.cca.shrinkage import SHRINKAGES, Shrinkage
from diptych.checks import TASKS, InputError, Task, check_choice

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
