"""A sentence and the pictures nearest to it, laid out in the plane."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from diptych.report.drawing import BLUE, VERMILLION, new_figure

THUMBNAIL = 56


def draw_planes(panels: Mapping[str, Mapping[str, Any]], picture: Callable[[int], Any]) -> Any:
    """Draw one panel for each way of embedding.

    Parameters
    ----------
    panels
        For each title: ``rows`` (images), ``places`` (their points, n × 2), ``query`` (the sentence's point),
        ``truth`` (the image row that is right) and ``rank`` (its rank).
    picture
        Gives an image row's picture, or None; then a dot is drawn.
    """
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    figure = new_figure(11.4, 4.3)
    for axes, (title, panel) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        places = np.array(panel["places"], dtype=float)
        query = np.array(panel["query"], dtype=float)
        order = sorted(range(len(places)), key=lambda i: panel["rows"][i] == panel["truth"])
        for i in order:
            right = panel["rows"][i] == panel["truth"]
            shown = picture(panel["rows"][i])
            if shown is None:
                axes.plot(
                    *places[i], marker="o", color=BLUE if right else "0.6", markersize=9 if right else 6
                )
                continue
            small = shown.copy()
            small.thumbnail((THUMBNAIL, THUMBNAIL))
            box = AnnotationBbox(
                OffsetImage(np.asarray(small.convert("RGB")), zoom=0.62),
                places[i],
                pad=0.22 if right else 0.02,
                bboxprops={"edgecolor": BLUE if right else "0.7", "linewidth": 3.2 if right else 0.4},
            )
            axes.add_artist(box)
        axes.plot(*query, marker="*", markersize=19, color=VERMILLION, markeredgecolor="white", zorder=10)
        everything = np.vstack([places, query])
        low, high = everything.min(axis=0), everything.max(axis=0)
        margin = 0.1 * (high - low) + 1e-9
        axes.set(
            xlim=(low[0] - margin[0], high[0] + margin[0]), ylim=(low[1] - margin[1], high[1] + margin[1])
        )
        axes.set_xticks([])
        axes.set_yticks([])
        axes.spines[:].set_color("0.8")
        axes.set_title(f"{title}\nthe right picture is number {panel['rank']}", fontsize=9)
    return figure
