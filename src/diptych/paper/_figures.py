"""How near random features come to a kernel, beside the bounds that promise it.

Spectral filters: the two shapes, and what the selected ones do to real spectra.

A sentence and the pictures nearest to it, laid out in the plane.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from diptych.cca import g_hard, g_soft
from diptych.paper._curves import tidy
from diptych.report._figures import BLACK, BLUE, GREEN, SKY, VERMILLION, new_figure

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


def draw_filters(alpha: float) -> Any:
    """Draw g_hard and g_soft at one threshold."""
    figure = new_figure(4.6, 3.0)
    axes = figure.subplots()
    sigma = np.linspace(0.0, 5 * alpha, 1001)
    axes.plot(sigma, g_hard(sigma, alpha), color=VERMILLION, linestyle=(0, (5, 2)), linewidth=1.6)
    axes.plot(sigma, g_soft(sigma, alpha), color=BLUE, linewidth=1.6)
    axes.annotate("$g_{hard}$", (1.15 * alpha, 1.03), color=VERMILLION, fontsize=9)
    axes.annotate("$g_{soft}$", (2.1 * alpha, 0.83), color=BLUE, fontsize=9)
    axes.set_xlabel(f"σ (threshold α = {alpha:g})", fontsize=9)
    axes.set_ylabel("g(σ)", fontsize=9)
    axes.set_ylim(-0.03, 1.14)
    axes.tick_params(labelsize=8)
    tidy(axes)
    return figure


def draw_chosen_filters(found: Mapping[str, Any], task: str = "search") -> Any:
    """Draw the singular values of both views, and what each selected filter lets through of them.

    Parameters
    ----------
    found
        For ``images`` and ``texts``: ``ranks``, ``values``, and of each task ``k``, ``guided``, ``tikhonov``.
    task
        Which task's filters.
    """
    figure = new_figure(7.6, 3.9)
    both = figure.subplots(1, 2, sharey=True)
    for axes, view in zip(both, ("images", "texts"), strict=True):
        ranks, values = np.array(found[view]["ranks"]), np.array(found[view]["values"])
        chosen = found[view][task]
        axes.fill_between(ranks, values / values[0], color="0.85", linewidth=0)
        lines = {
            f"T-SVD, k = {chosen['k']}": ((ranks <= chosen["k"]).astype(float), VERMILLION, (0, (5, 2))),
            f"guided, γ = {chosen['guided']:.2g}": (g_soft(values, chosen["guided"] ** 0.5), BLUE, "-"),
            f"Tikhonov, γ = {chosen['tikhonov']:.2g}": (
                g_soft(values, chosen["tikhonov"] ** 0.5),
                GREEN,
                (0, (1.2, 1.4)),
            ),
        }
        for name, (response, color, style) in lines.items():
            axes.plot(ranks, response, color=color, linestyle=style, linewidth=1.6, label=name)
        axes.set_title(view, fontsize=9)
        axes.set_xlabel("singular direction", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.set_ylim(-0.03, 1.06)
        # Below the axes, where no curve runs.
        axes.legend(fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        tidy(axes)
    both[0].set_ylabel("let through", fontsize=9)
    return figure


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
