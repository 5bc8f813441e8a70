"""Weighting: which power of the canonical correlations each side's embedding carries (Table 1)."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from diptych.arrays import Array
from diptych.cca.canonical import CanonicalModel
from diptych.cca.filters import as_number
from diptych.checks import InputError, check_task

Weighting: TypeAlias = Literal["asymmetric", "search-generation", "symmetric", "none"] | tuple[float, float]

NAMES = ("asymmetric", "search-generation", "symmetric", "none")


def powers(weighting: Weighting, task: str) -> tuple[float, float]:
    r"""The powers of Σ on (X, Y) for one task.

    ===================== ==================== ==================== =================================
    weighting             search               annotate             meaning
    ===================== ==================== ==================== =================================
    ``"asymmetric"``      (1, 0)               (0, 1)               query generation: Σ on the side
                                                                    that is searched (the paper's)
    ``"search-generation"`` (0, 1)             (1, 0)               Σ on the side of the query
    ``"symmetric"``       (1, 1)               (1, 1)               Σ on both (Gong et al.)
    ``"none"``            (0, 0)               (0, 0)               plain CCA
    ``(a, b)``            (a, b)               (a, b)               Σ^a on X and Σ^b on Y: (α, α) is
                                                                    symmetric, (α, 1−α) the paper's
                                                                    path between the two generations
    ===================== ==================== ==================== =================================

    >>> powers("asymmetric", "annotate")
    (0.0, 1.0)
    """
    check_task(task)
    if isinstance(weighting, str):
        if weighting == "asymmetric":
            return (1.0, 0.0) if task == "search" else (0.0, 1.0)
        if weighting == "search-generation":
            return (0.0, 1.0) if task == "search" else (1.0, 0.0)
        if weighting in ("symmetric", "none"):
            return (1.0, 1.0) if weighting == "symmetric" else (0.0, 0.0)
    elif isinstance(weighting, (tuple, list)) and len(weighting) == 2:
        a, b = (as_number(power, "a power of Σ") for power in weighting)
        if 0.0 <= a < float("inf") and 0.0 <= b < float("inf"):
            return a, b
    raise InputError(
        f"weighting={weighting!r} is unknown; choose one of {', '.join(map(repr, NAMES))}, or a pair of "
        "powers of Σ, 0 or above, on X and on Y."
    )


def maps(model: CanonicalModel, weighting: Weighting, task: str) -> tuple[Array, Array]:
    """The two linear maps of a task, features × components: centred views times these are embeddings."""
    a, b = powers(weighting, task)
    return _scaled(model.x_weights, model.correlations, a), _scaled(model.y_weights, model.correlations, b)


def _scaled(weights: Array, correlations: Any, power: float) -> Array:
    return weights if power == 0 else weights * correlations**power
