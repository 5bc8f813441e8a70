"""Weighting: how the canonical correlations enter each side's embedding (Table 1, and two more).

From the rows of one view to their embeddings for a task: normalise, centre, project, weight.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np

from diptych._arrays import Array, move_like, namespace
from diptych._checks import InputError, Task, check_matrix, check_task, check_view
from diptych._devices import carried, gathered
from diptych._normalize import normalize, unit_length
from diptych.cca._canonical import CanonicalModel
from diptych.cca._filters import as_number

Weighting: TypeAlias = (
    Literal["asymmetric", "search-generation", "symmetric", "none", "residual", "csa"] | tuple[float, float]
)

NAMES = ("asymmetric", "search-generation", "symmetric", "none")
"""The weightings that are powers of Σ."""

RESIDUAL_FLOOR = 1e-3
"""The least share of a component that counts as unexplained, so that none outweighs all others."""


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


def check_weighting(weighting: Any) -> None:
    """Refuse what is no weighting."""
    if not (isinstance(weighting, str) and weighting in ("residual", "csa")):
        powers(weighting, "search")


def factors(correlations: Array, weighting: Weighting, task: str) -> tuple[Array | None, Array | None]:
    r"""What each canonical coordinate is multiplied by, on X and on Y; None leaves them as they are.

    Powers of Σ, or, with ``"residual"``, :math:`\Sigma/\sqrt{1-\Sigma^2}` on the side that is searched and
    :math:`1/\sqrt{1-\Sigma^2}` on the side of the query. Given the item, the query's coordinate i has mean
    :math:`\sigma_i u_i` and variance :math:`1-\sigma_i^2`, so this compares the query with its prediction in
    units of what the prediction leaves open, where ``"asymmetric"`` takes the query's whole variance.
    """
    check_task(task)
    if weighting == "csa":
        raise InputError("weighting='csa' is no scaling of coordinates; transform() embeds with it.")
    if weighting == "residual":
        xp = namespace(correlations)
        rest = xp.clip(1.0 - correlations * correlations, RESIDUAL_FLOOR, None)
        query = 1.0 / xp.sqrt(rest)
        item = correlations * query
        return (item, query) if task == "search" else (query, item)
    a, b = powers(weighting, task)
    return (None if a == 0 else correlations**a), (None if b == 0 else correlations**b)


def maps(model: CanonicalModel, weighting: Weighting, task: str) -> tuple[Array, Array]:
    """The two linear maps of a task, features × components: centred views times these are embeddings."""
    for_x, for_y = factors(model.correlations, weighting, task)
    return _scaled(model.x_weights, for_x), _scaled(model.y_weights, for_y)


def weighted(coordinates: Array, correlations: Array, weighting: Weighting, task: str, view: str) -> Array:
    r"""Embeddings of one view, ``"x"`` or ``"y"``, from its canonical coordinates; cosine ranks.

    ``"csa"`` is the canonical similarity of Li et al. (ICLR 2025), the correlation of unit-length canonical
    coordinates weighted by Σ, :math:`\sum_i \sigma_i \hat u_i \hat v_i`. One more coordinate brings every
    item :math:`\Sigma\hat u` to length 1, so that a cosine ranks by it too.
    """
    xp = namespace(coordinates)
    if weighting != "csa":
        factor = factors(correlations, weighting, task)[0 if view == "x" else 1]
        return _scaled(coordinates, factor)
    searched = (view == "x") == (check_task(task) == "search")
    unit = unit_length(coordinates)
    if searched:
        unit = unit * correlations
    rest = 1.0 - xp.sum(unit * unit, axis=1, keepdims=True)
    filler = xp.sqrt(xp.clip(rest, 0.0, None)) if searched else xp.zeros_like(rest)
    return xp.concat([unit, filler], axis=1)


def _scaled(weights: Array, factor: Array | None) -> Array:
    return weights if factor is None else weights * factor


BLOCK_BYTES = 2**28
"""Of the rows that are carried to a device at a time."""


@dataclass(frozen=True, eq=False)
class Projection:
    """What a fitted model does with one view.

    Attributes
    ----------
    name
        ``"X"`` or ``"Y"``.
    normalize
        How its rows are normalised.
    mean, weights
        What centres them, and the canonical weights of the task.
    correlations, weighting, task
        What their coordinates are weighted by.
    """

    name: str
    normalize: str
    mean: Array
    weights: Array
    correlations: Array
    weighting: Weighting
    task: Task

    def __call__(self, view: Any) -> Array:
        """Embeddings of ``view``, in its own backend and precision."""
        rows = check_view(view, self.name, n_features=int(self.mean.shape[0]))
        rows = normalize(rows, self.normalize)
        xp = namespace(rows)
        centred = rows - move_like(self.mean, rows, dtype=rows.dtype)
        coordinates = centred @ xp.astype(move_like(self.weights, rows), rows.dtype, copy=False)
        correlations = move_like(self.correlations, rows, dtype=rows.dtype)
        return weighted(coordinates, correlations, self.weighting, self.task, self.name.lower())

    def on(self, device: str, view: Any) -> np.ndarray[Any, Any]:
        """The same on a torch device, a block of rows at a time, back in NumPy."""
        matrix = check_matrix(view, self.name, n_features=int(self.mean.shape[0]))
        n, width = int(matrix.shape[0]), int(matrix.shape[1])
        step = max(1, BLOCK_BYTES // (4 * width))

        def parts() -> Iterator[Array]:
            here: Projection | None = None
            blocks = ((matrix[start : start + step],) for start in range(0, n, step))
            for (raw,) in carried(blocks, device):
                rows = check_view(raw, self.name)
                if here is None:
                    # Once for all blocks: the weights stay on the device.
                    own = {name: getattr(self, name) for name in ("mean", "weights", "correlations")}
                    here = replace(self, **{k: move_like(v, rows, dtype=rows.dtype) for k, v in own.items()})
                yield here(rows)

        return gathered(parts(), n)
