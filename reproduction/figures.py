"""Figures that only the reproduction draws."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from diptych import InputError
from diptych.cca import g_hard, g_soft

# Okabe and Ito's colours, which the colour-blind can tell apart.
BLACK, BLUE, GREEN, SKY, VERMILLION = "#000000", "#0072B2", "#009E73", "#56B4E9", "#D55E00"
MOST_LABELS = 6
CURVES = {
    "search": ("image search", BLUE, "o", 1.0),
    "annotate": ("image annotation", VERMILLION, "s", 0.0),
}
"""Name, colour, marker and the α of query generation of each task."""
ERROR_LINES = (
    ("largest", "largest error", BLUE, "-", "o"),
    ("rms", "rms error", SKY, "-", "s"),
    ("paper", "bound δ, the paper's constants", VERMILLION, (0, (5, 2)), None),
    ("hoeffding", "bound δ, Hoeffding's constants", BLACK, (0, (1.2, 1.4)), None),
)
THUMBNAIL_SIDE = 56


def new_figure(width: float, height: float) -> Any:
    """Create a figure of ``width`` × ``height`` inches without a window or global state."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("the report needs matplotlib; install diptych[report].") from None
    return Figure(figsize=(width, height), dpi=160, layout="constrained")


def draw_generation_curve(curve: Mapping[str, Sequence[float]]) -> Any:
    """Draw r@10 of both tasks against ``alpha``; a ring marks each task's query generation."""
    figure = new_figure(5.2, 3.4)
    axes = figure.subplots()
    alphas = list(curve["alpha"])
    middle = len(alphas) // 2
    for task, (name, color, marker, special) in CURVES.items():
        axes.plot(alphas, curve[task], color=color, marker=marker, markersize=4.5, linewidth=1.6)
        at = alphas.index(special)
        axes.plot(special, curve[task][at], marker="o", markersize=12, fillstyle="none", color=color)
        # The name is above the line, on the side where the line falls away from it.
        axes.annotate(
            name,
            (alphas[middle], curve[task][middle]),
            textcoords="offset points",
            xytext=(0, 8),
            ha="left" if curve[task][-1] < curve[task][0] else "right",
            color=color,
            fontsize=9,
        )
    axes.margins(x=0.06, y=0.16)
    _finish(axes, "α, in (Σ$^{α}$Uᵀx, Σ$^{1−α}$Vᵀy)", "r@10 on validation, %")
    return figure


def draw_approximation(levels: Mapping[str, Sequence[Mapping[str, float]]]) -> Any:
    """Draw errors and bounds against the number of features, one panel per level.

    ``levels`` has for each title rows with ``features``, ``rms``, ``largest``, ``paper`` and ``hoeffding``.
    """
    figure = new_figure(7.6, 3.4)
    panels = figure.subplots(1, len(levels), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(panels, levels.items(), strict=True):
        features = [row["features"] for row in rows]
        for key, name, color, style, marker in ERROR_LINES:
            line = {"color": color, "linestyle": style, "marker": marker, "markersize": 4, "linewidth": 1.5}
            axes.plot(features, [row[key] for row in rows], label=name, **line)
        axes.set(xscale="log", yscale="log")
        axes.set_title(title, fontsize=9)
        axes.set_xticks(features[:: 1 if len(features) < 5 else 2])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.minorticks_off()
        _finish(axes, "number of random features", "error of a kernel value" if axes is panels[0] else "")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def draw_filter_shapes(threshold: float) -> Any:
    """Draw g_hard and g_soft at one threshold."""
    figure = new_figure(4.6, 3.0)
    axes = figure.subplots()
    sigma = np.linspace(0.0, 5 * threshold, 1001)
    axes.plot(sigma, g_hard(sigma, threshold), color=VERMILLION, linestyle=(0, (5, 2)), linewidth=1.6)
    axes.plot(sigma, g_soft(sigma, threshold), color=BLUE, linewidth=1.6)
    axes.annotate("$g_{hard}$", (1.15 * threshold, 1.03), color=VERMILLION, fontsize=9)
    axes.annotate("$g_{soft}$", (2.1 * threshold, 0.83), color=BLUE, fontsize=9)
    axes.set_ylim(-0.03, 1.14)
    _finish(axes, f"σ (threshold α = {threshold:g})", "g(σ)")
    return figure


def draw_selected_filters(views: Mapping[str, Any], task: str = "search") -> Any:
    """Draw the singular values of both views, and how much each selected filter keeps of them.

    ``views`` has for ``images`` and ``texts``: ``ranks``, ``values``, and of each task ``k``, ``guided``,
    ``tikhonov``.
    """
    figure = new_figure(7.6, 3.9)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (name, view) in zip(panels, views.items(), strict=True):
        ranks, values, chosen = np.array(view["ranks"]), np.array(view["values"]), view[task]
        axes.fill_between(ranks, values / values[0], color="0.85", linewidth=0)
        guided, tikhonov = (g_soft(values, chosen[kind] ** 0.5) for kind in ("guided", "tikhonov"))
        lines = {
            f"T-SVD, k = {chosen['k']}": ((ranks <= chosen["k"]).astype(float), VERMILLION, (0, (5, 2))),
            f"guided, γ = {chosen['guided']:.2g}": (guided, BLUE, "-"),
            f"Tikhonov, γ = {chosen['tikhonov']:.2g}": (tikhonov, GREEN, (0, (1.2, 1.4))),
        }
        for label, (response, color, style) in lines.items():
            axes.plot(ranks, response, color=color, linestyle=style, linewidth=1.6, label=label)
        axes.set_title(name, fontsize=9)
        axes.set_ylim(-0.03, 1.06)
        # Below the axes, where there are no curves.
        axes.legend(fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        _finish(axes, "singular direction", "share kept" if axes is panels[0] else "")
    return figure


def draw_maps(maps: Mapping[str, Any]) -> Any:
    """Draw the maps of truncated SVD and of Tikhonov over the same places, each with its own colour scale.

    ``maps`` has ``tsvd`` and ``tikhonov``, scores over ``k_x`` × ``k_y``, and ``choice``, the best place of
    each.
    """
    figure = new_figure(8.4, 3.5)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"tsvd": "truncated SVD at $(k_x, k_y)$", "tikhonov": "Tikhonov at $(σ^2_{k_x}, σ^2_{k_y})$"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        scores = np.array(maps[name], dtype=float)
        # A few very low corners would use up the colours; the differences that matter are near the top.
        low = float(np.quantile(scores, 0.05))
        heat_map = axes.imshow(scores.T, origin="lower", aspect="auto", cmap="viridis", vmin=low)
        if name == "tikhonov":
            i, j = maps["choice"]["tsvd"]
            axes.plot(i, j, marker="X", markersize=9, color="white", markeredgecolor="black", clip_on=False)
        # A ring in two colours is visible on every background; at a border it is half outside.
        for size, color, width in ((9, "white", 2), (12, "black", 1)):
            ring = {"markersize": size, "fillstyle": "none", "color": color, "markeredgewidth": width}
            axes.plot(*maps["choice"][name], marker="o", clip_on=False, **ring)
        axes.set_title(f"{title}\nbest r@1 {scores[tuple(maps['choice'][name])]:.1f}", fontsize=9)
        _label_axis(axes, "x", maps["k_x"], "$k_x$, images")
        if name == "tsvd":
            _label_axis(axes, "y", maps["k_y"], "$k_y$, texts")
        bar = figure.colorbar(heat_map, ax=[axes])
        bar.set_label("r@1", fontsize=9)
        bar.ax.tick_params(labelsize=8)
    return figure


def _label_axis(axes: Any, side: str, values: Sequence[float], title: str) -> None:
    """Label an axis of a heat map with at most ``MOST_LABELS`` of its values, evenly spaced."""
    ticks = range(0, len(values), -(-len(values) // MOST_LABELS))
    getattr(axes, f"set_{side}ticks")(ticks, [f"{int(values[tick])}" for tick in ticks], fontsize=8)
    getattr(axes, f"set_{side}label")(title, fontsize=9)


def draw_planes(
    panels: Mapping[str, Mapping[str, Any]], load_image: Callable[[int], Image.Image | None]
) -> Any:
    """Draw a caption and the images around it, one panel per weighting.

    ``panels`` has for each title: ``rows`` (images), ``places`` (n × 2), ``query`` (the caption's place),
    ``truth`` (the row of the right image) and ``rank`` (its rank), which are None for a text that is no
    caption. Images without a file are drawn as dots.
    """
    from matplotlib.offsetbox import AnnotationBbox, OffsetImage

    figure = new_figure(11.4, 4.3)
    for axes, (title, panel) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        places, query = np.array(panel["places"], dtype=float), np.array(panel["query"], dtype=float)
        # The right image is drawn last, above the others.
        for row, place in sorted(
            zip(panel["rows"], places, strict=True), key=lambda each: bool(each[0] == panel["truth"])
        ):
            right = row == panel["truth"]
            image = load_image(row)
            if image is None:
                axes.plot(*place, marker="o", color=BLUE if right else "0.6", markersize=9 if right else 6)
                continue
            small = image.copy()
            small.thumbnail((THUMBNAIL_SIDE, THUMBNAIL_SIDE))
            frame = {"edgecolor": BLUE if right else "0.7", "linewidth": 3.2 if right else 0.4}
            content = OffsetImage(np.asarray(small.convert("RGB")), zoom=0.62)
            axes.add_artist(AnnotationBbox(content, place, pad=0.22 if right else 0.02, bboxprops=frame))
        axes.plot(*query, marker="*", markersize=19, color=VERMILLION, markeredgecolor="white", zorder=10)
        points = np.vstack([places, query])
        low, high = points.min(axis=0), points.max(axis=0)
        margin = 0.1 * (high - low) + 1e-9
        axes.set_xlim(low[0] - margin[0], high[0] + margin[0])
        axes.set_ylim(low[1] - margin[1], high[1] + margin[1])
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_color("0.8")
        rank = "" if panel["rank"] is None else f"\nthe right image has rank {panel['rank']}"
        axes.set_title(title + rank, fontsize=9)
    return figure


def _finish(axes: Any, x_label: str, y_label: str) -> None:
    """Label the axes, and leave only the left and lower frame and a faint grid."""
    axes.set_xlabel(x_label, fontsize=9)
    if y_label:
        axes.set_ylabel(y_label, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.9", linewidth=0.7)
    axes.set_axisbelow(True)
