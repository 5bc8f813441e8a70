"""Model selection: every regularisation on a grid, scored by retrieval, exactly and fast."""

from diptych.cca.selection._grids import Grid, hold_out, holdout_size, make_grid
from diptych.cca.selection._path import (
    NumericalFailureWarning,
    Path,
    choose_route,
    narrow_grid,
    regularization_path,
)
from diptych.cca.selection._problem import Problem, make_problem, make_weights
from diptych.cca.selection._textbook import textbook_ranks

__all__ = [
    "Grid",
    "NumericalFailureWarning",
    "Path",
    "Problem",
    "choose_route",
    "hold_out",
    "holdout_size",
    "make_grid",
    "make_problem",
    "make_weights",
    "narrow_grid",
    "regularization_path",
    "textbook_ranks",
]
