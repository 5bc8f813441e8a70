"""Model selection: every regularisation on a grid, scored by retrieval, exactly and fast."""

from diptych.cca.selection._grids import Grid, HoldOut, Kind, hold_out, holdout_size, make_grid
from diptych.cca.selection._leave_one_out import LeftOut, left_out
from diptych.cca.selection._path import (
    NumericalFailureWarning,
    Path,
    choose_route,
    leave_one_out_path,
    regularization_path,
)
from diptych.cca.selection._problem import Problem, check_widths, make_problem, make_weights
from diptych.cca.selection._textbook import best_dimension, components_path, dimensions_up_to, textbook_ranks

__all__ = [
    "Grid",
    "HoldOut",
    "Kind",
    "LeftOut",
    "NumericalFailureWarning",
    "Path",
    "Problem",
    "best_dimension",
    "check_widths",
    "choose_route",
    "components_path",
    "dimensions_up_to",
    "hold_out",
    "holdout_size",
    "leave_one_out_path",
    "left_out",
    "make_grid",
    "make_problem",
    "make_weights",
    "regularization_path",
    "textbook_ranks",
]
