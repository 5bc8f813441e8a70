"""The paper's curve between search generation and query generation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diptych.report._figures import BLUE, VERMILLION, new_figure

LINES = {
    "search": ("image search", BLUE, "o", 1.0),
    "annotate": ("image annotation", VERMILLION, "s", 0.0),
}
"""Of each task: its name, colour, marker, and the α of query generation."""


def draw_generation_curve(found: Mapping[str, Sequence[float]]) -> Any:
    """Draw r@10 of both tasks against ``alpha``; a ring marks each task's query generation."""
    figure = new_figure(5.2, 3.4)
    axes = figure.subplots()
    alphas = list(found["alpha"])
    for task, (name, color, marker, special) in LINES.items():
        axes.plot(alphas, found[task], color=color, marker=marker, markersize=4.5, linewidth=1.6)
        at = alphas.index(special)
        axes.plot(special, found[task][at], marker="o", markersize=12, fillstyle="none", color=color)
        middle = len(alphas) // 2
        # The name stands above the line on the side that falls away from it.
        axes.annotate(
            name,
            (alphas[middle], found[task][middle]),
            textcoords="offset points",
            xytext=(0, 8),
            ha="left" if found[task][-1] < found[task][0] else "right",
            color=color,
            fontsize=9,
        )
    axes.set_xlabel("α, in (Σ$^{α}$Uᵀx, Σ$^{1−α}$Vᵀy)", fontsize=9)
    axes.set_ylabel("r@10 on validation, %", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.margins(x=0.06, y=0.16)
    tidy(axes)
    return figure


def tidy(axes: Any) -> None:
    """Take away what says nothing: the frame above and to the right; a faint grid stays."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.7)
    axes.set_axisbelow(True)
