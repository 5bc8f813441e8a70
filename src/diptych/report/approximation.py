"""How near random features come to a kernel, beside the bounds that promise it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diptych.report.drawing import BLACK, BLUE, SKY, VERMILLION, new_figure
from diptych.report.weighting import tidy

LINES = (
    ("largest", "largest error", BLUE, "-", "o"),
    ("rms", "rms error", SKY, "-", "s"),
    ("paper", "bound δ, the paper's constants", VERMILLION, (0, (5, 2)), None),
    ("hoeffding", "bound δ, Hoeffding's constants", BLACK, (0, (1.2, 1.4)), None),
)


def draw_approximation(levels: Mapping[str, Sequence[Mapping[str, float]]]) -> Any:
    """Draw errors and bounds against the number of features, one panel for each level.

    Parameters
    ----------
    levels
        For each title, rows with ``features``, ``rms``, ``largest``, ``paper`` and ``hoeffding``.
    """
    figure = new_figure(7.6, 3.4)
    both = figure.subplots(1, len(levels), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(both, levels.items(), strict=True):
        features = [row["features"] for row in rows]
        for key, name, color, style, marker in LINES:
            axes.plot(
                features,
                [row[key] for row in rows],
                color=color,
                linestyle=style,
                marker=marker,
                markersize=4,
                linewidth=1.5,
                label=name,
            )
        axes.set(xscale="log", yscale="log")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("number of random features", fontsize=9)
        axes.set_xticks(features[:: 1 if len(features) < 5 else 2])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.minorticks_off()
        axes.tick_params(labelsize=8)
        tidy(axes)
    both[0].set_ylabel("error of a kernel value", fontsize=9)
    handles, names = both[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure
