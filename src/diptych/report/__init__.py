"""Figures, pages and model cards about fitted models."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.report._figures import draw_recall_curves, draw_regularization_path, draw_reliability
    from diptych.report._page import (
        Html,
        Row,
        ShownHit,
        best_cells,
        bullets,
        code,
        figure,
        format_cell,
        heading,
        join,
        page,
        paragraph,
        section,
        show_hits,
        table,
        verdict,
    )
    from diptych.report._statistics import (
        draw_biplot,
        draw_correlations,
        draw_cross_correlations,
        draw_loadings,
    )
    from diptych.report._variates import draw_arrows, draw_variates

__all__ = [
    "Html",
    "Row",
    "ShownHit",
    "best_cells",
    "bullets",
    "code",
    "draw_arrows",
    "draw_biplot",
    "draw_correlations",
    "draw_cross_correlations",
    "draw_loadings",
    "draw_recall_curves",
    "draw_regularization_path",
    "draw_reliability",
    "draw_variates",
    "figure",
    "format_cell",
    "heading",
    "join",
    "page",
    "paragraph",
    "section",
    "show_hits",
    "table",
    "verdict",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_figures": ["draw_recall_curves", "draw_regularization_path", "draw_reliability"],
        "_page": [
            "Html",
            "Row",
            "ShownHit",
            "best_cells",
            "bullets",
            "code",
            "figure",
            "format_cell",
            "heading",
            "join",
            "page",
            "paragraph",
            "section",
            "show_hits",
            "table",
            "verdict",
        ],
        "_statistics": ["draw_biplot", "draw_correlations", "draw_cross_correlations", "draw_loadings"],
        "_variates": ["draw_arrows", "draw_variates"],
    },
)
