"""Ranks along the rows of a grid, here or in another process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from diptych.arrays import Array, in_numpy, to_numpy
from diptych.cca.selection.exact import exact_rows
from diptych.cca.selection.problem import Problem, Weights, annotate_norms
from diptych.cca.selection.textbook import textbook_path
from diptych.cca.weighting import Weighting
from diptych.checks import Task

Ranks: TypeAlias = np.ndarray[Any, Any]


def exact_points(
    problem: Problem, weights: tuple[Weights, Weights], norms: Array | None = None
) -> Iterator[tuple[int, int, dict[Task, Ranks]]]:
    """``(x index, y index, ranks of both tasks)``; no ranks where a point failed numerically."""
    for i, search, annotate, finite in exact_rows(problem, *weights, norms):
        search, annotate, finite = to_numpy(search), to_numpy(annotate), to_numpy(finite)
        for j in range(len(finite)):
            yield i, j, {"search": search[j], "annotate": annotate[j]} if finite[j] else {}


@dataclass(frozen=True, eq=False)
class RowScorer:
    """Ranks at every point of one row of the grid; it can be sent to another process.

    Attributes
    ----------
    problem, weights
        See ``diptych.cca.selection.problem``.
    norms
        Of the exact route, the captions' norms at every point, which all rows share.
    weighting, n_components
        Of the textbook route.
    """

    problem: Problem
    weights: tuple[Weights, Weights]
    norms: Any
    weighting: Weighting
    n_components: int | None

    @classmethod
    def of(
        cls,
        problem: Problem,
        weights: tuple[Weights, Weights],
        route: str,
        weighting: Weighting,
        n_components: int | None,
    ) -> RowScorer:
        """For ``route``, in NumPy wherever the problem is."""
        norms = to_numpy(annotate_norms(problem, *weights)) if route == "exact" else None
        truth = in_numpy(problem.truth)
        here = replace(in_numpy(problem), truth=truth)
        x, y = (Weights.of(to_numpy(each.rows), here.a) for each in weights)
        return cls(here, (x, y), norms, weighting, n_components)

    def __call__(self, i: int) -> list[tuple[int, int, dict[Task, Ranks]]]:
        """The points of row ``i``."""
        row = Weights.of(self.weights[0].rows[i : i + 1], self.problem.a)
        if self.norms is not None:
            points = exact_points(self.problem, (row, self.weights[1]), self.norms[i : i + 1])
        else:
            points = textbook_path(self.problem, row, self.weights[1], self.weighting, self.n_components)
        return [(i, j, ranks) for _, j, ranks in points]
