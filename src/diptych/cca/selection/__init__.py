"""Model selection: every regularisation on a grid, scored by retrieval, exactly and fast."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.cca.selection._grids import Grid, Path, best_point, hold_out, holdout_size, make_grid
    from diptych.cca.selection._path import (
        NumericalFailureWarning,
        choose_route,
        exact_points,
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
    "best_point",
    "choose_route",
    "exact_points",
    "hold_out",
    "holdout_size",
    "make_grid",
    "make_problem",
    "make_weights",
    "narrow_grid",
    "regularization_path",
    "textbook_ranks",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_grids": ["Grid", "Path", "best_point", "hold_out", "holdout_size", "make_grid"],
        "_path": [
            "NumericalFailureWarning",
            "choose_route",
            "exact_points",
            "narrow_grid",
            "regularization_path",
        ],
        "_problem": ["Problem", "make_problem", "make_weights"],
        "_textbook": ["textbook_ranks"],
    },
)
