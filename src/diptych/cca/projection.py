"""From the rows of one view to their embeddings for a task: normalise, centre, project, weight."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from diptych.arrays import Array, move_like, namespace
from diptych.cca.weighting import Weighting, weighted
from diptych.checks import Task, check_matrix, check_view
from diptych.normalize import normalize
from diptych.transfer import carried, gathered

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
