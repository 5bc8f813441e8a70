"""The parameters of both tasks: however they were given, and as more data would have them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

from diptych.cca.canonical import CanonicalModel
from diptych.cca.filters import Tikhonov, TruncatedSVD
from diptych.checks import TASKS, InputError, Task

ByTask: TypeAlias = dict[Task, tuple[Any, Any]]


def params_by_task(params: Any) -> ByTask:
    """One pair of parameters for each task, whichever way they were given."""
    given = params if isinstance(params, Mapping) else dict.fromkeys(TASKS, params)
    if set(given) != set(TASKS):
        raise InputError(f"params has the keys {sorted(map(str, given))}; expected 'search' and 'annotate'.")
    for pair in given.values():
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise InputError(f"params={pair!r} is not a pair; give (p_x, p_y), or one such pair per task.")
    return {task: tuple(given[task]) for task in TASKS}


def grown(params: ByTask, factor: float) -> ByTask:
    """γ's for ``factor`` times as many pairs: γ is in units of a sum over pairs."""
    return {task: (params[task][0] * factor, params[task][1] * factor) for task in TASKS}


def params_in_use(models: Mapping[Task, CanonicalModel]) -> ByTask:
    """What the filters of fitted models hold: γ's or k's."""
    return {task: (_value(models[task].filter_x), _value(models[task].filter_y)) for task in TASKS}


def _value(chosen: Tikhonov | TruncatedSVD) -> float:
    return chosen.gamma if isinstance(chosen, Tikhonov) else chosen.k
