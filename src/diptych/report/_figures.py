"""Figures about models, and what all figures share: colours, sizes and writing to a file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from diptych._arrays import Array, to_numpy
from diptych._checks import IMAGE_AND_TEXT, TASKS, InputError, Task, check_view_names, import_package
from diptych._persistence import replace_file
from diptych.cca.selection import Path
from diptych.ranking import recall_at_k
from diptych.report._page import TITLES, one_line, task_titles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("png", "svg", "pdf")
DOTS_PER_INCH = 160

# Okabe and Ito's colours, which the colour-blind can tell apart; their yellow is too pale for lines.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
BLACK = "#000000"

COLORS = (BLUE, VERMILLION, GREEN, PURPLE, BLACK, ORANGE, SKY)
STYLES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 2, 1.2, 2)))
MARKERS = ("o", "s", "^", "D", "v")
MOST_LINES = len(STYLES) * len(MARKERS)
"""Each of so many lines has its own combination of style and marker, visible without colour."""
WIDTH, TEXT_SIZE, LONGEST_NAME, MAP_WIDTH = 7.2, 9.0, 6.2, 2.4
"""Inches, and points for text."""


def new_figure(width: float, height: float, *, layout: Literal["constrained"] | None = "constrained") -> Any:
    """Create a figure of ``width`` × ``height`` inches without a window or global state."""
    return _matplotlib("figure").Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout=layout)


def finish_figure(figure: Figure, file: str | os.PathLike[str] | None) -> Figure:
    """Return a figure; if a file is named, write it in the format of its suffix, replacing it as a whole."""
    if file is None:
        return figure
    suffix = os.path.splitext(os.fspath(file))[1].lower().lstrip(".")
    if suffix not in FORMATS:
        raise InputError(f"{file} has no format for figures; use a name in .png, .svg or .pdf.")
    with replace_file(file) as staged:
        figure.savefig(staged, format=suffix, dpi=DOTS_PER_INCH)
    return figure


def style_axes(axes: Any) -> None:
    """Leave only the left and lower frame, and a faint grid behind the data."""
    axes.tick_params(labelsize=TEXT_SIZE, length=3)
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def add_legend(figure: Figure, artists: Sequence[Any], labels: Sequence[str], **style: Any) -> None:
    """Add a legend below the axes, whatever the labels begin with."""
    # They are set afterwards: matplotlib leaves out those that begin with an underscore.
    numbers = [str(i) for i in range(len(artists))]
    legend = figure.legend(artists, numbers, loc="outside lower center", frameon=False, **style)
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def text_width(text: str, size: float) -> float:
    """Return an upper bound of the width of ``text`` in inches, in the figures' font at ``size`` points."""
    font = _matplotlib("font_manager").FontProperties(size=size)
    width, _, _ = _matplotlib("textpath").text_to_path.get_text_width_height_descent(text, font, False)
    # Outlines are measured; pixels round every letter by at most half a pixel.
    return float(width) / 72.0 + 0.5 * len(text) / DOTS_PER_INCH


def _matplotlib(module: str) -> Any:
    # Imported on first use: matplotlib is optional and slow to import.
    return import_package(f"matplotlib.{module}", "figures need", "report")


def draw_recall_curves(
    ranks_by_name: Mapping[str, Mapping[Task, Array]],
    file: str | os.PathLike[str] | None = None,
    *,
    depth: int = 100,
) -> Figure:
    """Draw recall at k against k for several models and both tasks; write the figure if a file is named.

    Parameters
    ----------
    ranks_by_name
        For each model's name and each task, the ranks of the right items, from ``diptych.ranking.ranks``.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    depth
        The largest k.

    Examples
    --------
    >>> ranks = {"search": np.array([1, 1, 4]), "annotate": np.array([2, 1])}
    >>> figure = draw_recall_curves({"my model": ranks}, depth=10)
    >>> [axes.get_title() for axes in figure.axes]
    ['search: text → images', 'annotate: image → texts']
    """
    checked = _check_ranks(ranks_by_name)
    if depth < 2:
        raise InputError(f"depth={depth} leaves no curve to draw; pass the largest k, 2 or more.")
    names = [shorten(name) or "model" for name in checked]
    per_row = max(1, int(WIDTH / (max(text_width(name, TEXT_SIZE) for name in names) + 0.75)))
    legend_rows = math.ceil(len(names) / per_row)
    figure = new_figure(WIDTH, 2.9 + 0.19 * legend_rows)
    depths = np.arange(1, depth + 1)
    # Markers are at round numbers; with a large depth there is room for the powers of ten only.
    tens = [10**power for power in range(len(str(depth)))]
    marked = [k for ten in tens for n in (1, 2, 5) if (k := n * ten) <= depth]
    ticks = marked if depth <= 200 else tens
    panels = figure.subplots(1, 2, sharey=True)
    for axes, task in zip(panels, TASKS, strict=True):
        for i, by_task in enumerate(checked.values()):
            axes.plot(
                depths,
                [recall_at_k(by_task[task], int(k)) for k in depths],
                color=COLORS[i % len(COLORS)],
                linestyle=STYLES[i % len(STYLES)],
                marker=MARKERS[i % len(MARKERS)],
                markersize=4.0,
                markevery=[k - 1 for k in marked],
                linewidth=1.6,
            )
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{k:,}" for k in ticks], fontsize=TEXT_SIZE)
        axes.set_xticks([], minor=True)
        axes.set(xlim=(0.93, depth * 1.07), ylim=(0, 102), yticks=range(0, 101, 20))
        axes.set_xlabel("number of hits k", fontsize=TEXT_SIZE)
        axes.set_title(TITLES[task], fontsize=TEXT_SIZE + 1)
        style_axes(axes)
    panels[0].set_ylabel("recall at k (%)", fontsize=TEXT_SIZE)
    style = {"fontsize": TEXT_SIZE, "handlelength": 3.4, "columnspacing": 1.6}
    add_legend(figure, panels[0].lines, names, ncols=math.ceil(len(names) / legend_rows), **style)
    return finish_figure(figure, file)


def shorten(name: str, longest: float = LONGEST_NAME) -> str:
    """Return a name on one line of at most ``longest`` inches."""
    name = one_line(name)
    while text_width(name, TEXT_SIZE) > longest:
        name = name.rstrip("…")[:-1] + "…"
    return name


def _check_ranks(ranks_by_name: Mapping[str, Mapping[Task, Array]]) -> dict[str, dict[Task, Any]]:
    if not 1 <= len(ranks_by_name) <= MOST_LINES:
        raise InputError(f"got {len(ranks_by_name)} models; one figure can show from 1 to {MOST_LINES}.")
    checked: dict[str, dict[Task, Any]] = {}
    for name, by_task in ranks_by_name.items():
        checked[name] = {}
        for task in TASKS:
            if task not in by_task:
                raise InputError(f"{name!r} has no ranks for {task!r}; pass the ranks of both tasks.")
            ranks = np.asarray(to_numpy(by_task[task]))
            if ranks.ndim != 1 or ranks.shape[0] == 0 or ranks.dtype.kind not in "iu" or ranks.min() < 1:
                raise InputError(
                    f"the {task!r} ranks of {name!r} are {ranks.dtype}{list(ranks.shape)}; expected one "
                    "dimension of whole numbers, 1 or above, as ranks() returns."
                )
            checked[name][task] = ranks
    return checked


def draw_regularization_path(
    path: Path,
    file: str | os.PathLike[str] | None = None,
    *,
    metric: str | None = None,
    views: tuple[str, str] = IMAGE_AND_TEXT,
) -> Figure:
    """Draw the scores of a selection as heat maps, one per task; write the figure if a file is named.

    Parameters increase to the right and upwards, and a ring marks the choice. Only exact scores are drawn:
    where the path has bounds (see ``Path.exact``; ``AWCCA(path_metrics="all")`` scores every point exactly)
    or failed, the map is hatched.

    Parameters
    ----------
    path
        ``AWCCA(...).fit(...).path_``.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    metric
        One of the path's metrics; None: the one that the choice was made by.
    views
        What the titles and axes call an item of each view.

    Examples
    --------
    >>> from diptych import AWCCA
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(60, 4))
    >>> y = x + rng.normal(size=x.shape)
    >>> model = AWCCA(grid=3).fit(x[:40], y[:40], validation=(x[40:], y[40:]))
    >>> figure = draw_regularization_path(model.path_)
    >>> figure.axes[0].get_title().splitlines()[0]
    'search: text → images'
    """
    if not isinstance(path, Path):
        raise InputError(
            "there is no regularisation path to draw: path_ is None if params were given or γ came from "
            "theory; fit with params=None and selection='validation'."
        )
    name, view_names = path.metric if metric is None else metric, check_view_names(views)
    titles = task_titles(view_names)
    if name not in path.scores["search"]:
        names = ", ".join(sorted(path.scores["search"]))
        raise InputError(f"the path has no {name!r}; it has {names} (fit with path_metrics='all' for more).")
    figure = new_figure(9.0, 3.9)
    symbol = {"tsvd": "k", "tikhonov": "γ"}.get(path.grid.kind, "parameter")
    # The grid begins with the strongest regularisation, which is the largest γ or the smallest k.
    order = np.argsort(path.grid.x), np.argsort(path.grid.y)
    hatched = False
    for axes, task in zip(figure.subplots(1, 2), TASKS, strict=True):
        exact = path.exact[task] & np.isfinite(path.scores[task][name])
        scores = np.where(exact, path.scores[task][name], np.nan)
        heat_map = axes.imshow(scores[np.ix_(*order)].T, origin="lower", aspect="auto", cmap="viridis")
        if not exact.all():
            hatched = True
            axes.patch.set(facecolor="0.94", edgecolor="0.75", hatch="////", linewidth=0)
        i, j = path.choice[task]
        place = np.argsort(order[0])[i], np.argsort(order[1])[j]
        # A ring in two colours is visible on every background; at a border it is half outside.
        for size, color, width in ((9, "white", 2), (12, "black", 1)):
            ring = {"markersize": size, "fillstyle": "none", "color": color, "markeredgewidth": width}
            axes.plot(*place, marker="o", clip_on=False, **ring)
        chosen = f"({_format(path, path.grid.x[i])}, {_format(path, path.grid.y[j])})"
        axes.set_title(f"{titles[task]}\nselected {chosen}: {scores[i, j]:.1f}", fontsize=9)
        sides = zip("xy", (path.grid.x[order[0]], path.grid.y[order[1]]), view_names, strict=True)
        for side, values, view in sides:
            _label_axis(axes, side, [_format(path, value) for value in values], f"{symbol} of {view}")
        bar = figure.colorbar(heat_map, ax=[axes])
        bar.set_label(name, fontsize=9)
        bar.ax.tick_params(labelsize=8)
    if hatched:
        figure.supxlabel(f"hatched: not scored exactly, because {name} is below the best there", fontsize=8)
    return finish_figure(figure, file)


def draw_reliability(
    calibration: Mapping[str, Any],
    file: str | os.PathLike[str] | None = None,
    *,
    views: tuple[str, str] = IMAGE_AND_TEXT,
) -> Figure:
    """Draw how often hits are right against their probability, for both tasks; write it if a file is named.

    On the diagonal, of all hits with the probability 0.3 three in ten are right. Bars show the number of hits
    in each bin, on a logarithmic scale.

    Parameters
    ----------
    calibration
        ``retriever.info()["calibration"]``.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    views
        What the titles call an item of each view.

    Examples
    --------
    >>> measured = {"bins": [(0.1, 0.12, 900), (0.8, 0.75, 100)], "ece": 0.02}
    >>> figure = draw_reliability({"search": measured, "annotate": measured})
    >>> figure.axes[0].get_title().splitlines()[1]
    'expected calibration error 0.020'
    """
    if "absent" in calibration:
        raise InputError(f"there are no probabilities to draw, because {calibration['absent']}.")
    titles, figure = task_titles(check_view_names(views)), new_figure(7.6, 4.4)
    upper, lower = figure.subplots(2, 2, sharex=True, sharey="row", height_ratios=(3, 1))
    for task, axes, below in zip(TASKS, upper, lower, strict=True):
        means, shares, hits = map(np.array, zip(*calibration[task]["bins"], strict=True))
        errors = np.sqrt(np.maximum(shares * (1 - shares), 1e-9) / hits)
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=STYLES[1])
        axes.errorbar(means, shares, errors, color=BLUE, marker="o", markersize=4, linewidth=1.2, capsize=2)
        error = f"expected calibration error {calibration[task]['ece']:.3f}"
        axes.set_title(f"{titles[task]}\n{error}", fontsize=TEXT_SIZE)
        below.bar(means, hits, width=0.04, color=BLUE)
        below.set(yscale="log", xlim=(-0.02, 1.02), xlabel="probability of a hit")
        axes.spines[["top", "right"]].set_visible(False)
        below.spines[["top", "right"]].set_visible(False)
    upper[0].set(ylabel="share that is right", ylim=(-0.02, 1.02))
    lower[0].set_ylabel("hits")
    return finish_figure(figure, file)


def _label_axis(axes: Any, side: str, labels: Sequence[str], title: str) -> None:
    """Label an axis of a heat map with as many of the labels, evenly spaced, as there is room for."""
    room = max(text_width(label, 8) for label in labels) + 0.12 if side == "x" else 0.3
    most = max(1, min(6, int(MAP_WIDTH / room)))
    ticks = range(0, len(labels), -(-len(labels) // most))
    getattr(axes, f"set_{side}ticks")(ticks, [labels[t] for t in ticks], fontsize=8)
    getattr(axes, f"set_{side}label")(title, fontsize=9)


def _format(path: Path, value: float) -> str:
    return f"{int(value)}" if path.grid.kind == "tsvd" else f"{value:.2g}"
