"""What every figure shares: matplotlib when it is needed, files that are whole or not there, colours.

Recall against the number of answers one looks at, both tasks side by side, a line for each model.

The paper's regularisation maps: a metric over the whole grid, for both tasks, the choice marked.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import TASKS, InputError, Task, not_installed
from diptych._persistence import replace_file
from diptych.cca.selection import Path
from diptych.ranking import recall_at_k
from diptych.report._page import TITLES, one_line

FORMATS = ("png", "svg", "pdf")
DOTS_PER_INCH = 160

# Okabe and Ito's colours, which stay apart for the colour-blind; their yellow is too pale for lines.
BLUE = "#0072B2"
VERMILLION = "#D55E00"
GREEN = "#009E73"
PURPLE = "#CC79A7"
ORANGE = "#E69F00"
SKY = "#56B4E9"
BLACK = "#000000"


def new_figure(width: float, height: float, *, layout: Literal["constrained"] | None = "constrained") -> Any:
    """An empty matplotlib figure of ``width`` × ``height`` inches, which no window and no global state knows.

    Without ``layout``, whatever is put on the figure stays where it was put.
    """
    return _matplotlib("figure").Figure(figsize=(width, height), dpi=DOTS_PER_INCH, layout=layout)


def write_figure(figure: Any, file: str | os.PathLike[str]) -> None:
    """Write ``figure`` to ``file`` in the format its name asks for; never half of it."""
    suffix = os.path.splitext(os.fspath(file))[1].lower().lstrip(".")
    if suffix not in FORMATS:
        raise InputError(f"{file} is not a picture that can be written; give a name in .png, .svg or .pdf.")
    with replace_file(file) as staged:
        figure.savefig(staged, format=suffix, dpi=DOTS_PER_INCH)


def text_width(text: str, size: float) -> float:
    """The width of ``text`` in inches at most, in the font that figures have, at ``size`` points."""
    font = _matplotlib("font_manager").FontProperties(size=size)
    width, _, _ = _matplotlib("textpath").text_to_path.get_text_width_height_descent(text, font, False)
    # Outlines are measured; pixels round every letter, by half of one at the most.
    return float(width) / 72.0 + 0.5 * len(text) / DOTS_PER_INCH


def fit_lines(text: str, width: float, size: float, at_most: int) -> list[str]:
    """``text`` in lines no wider than ``width`` inches, at most so many; what is left out ends in "…"."""
    lines: list[str] = []
    rest = one_line(text, 120 * at_most)
    while rest and len(lines) < at_most:
        last = len(lines) == at_most - 1
        taken = _fitting(rest, width, size, "…" if last else "")
        if taken < len(rest) and not last:
            # A word longer than the line is cut where the line ends.
            space = rest.rfind(" ", 0, taken + 1)
            taken = space if space > 0 else taken
        line, rest = rest[:taken].rstrip(), rest[taken:].lstrip()
        lines.append(line + "…" if last and rest else line)
    return lines


def _fitting(text: str, width: float, size: float, ending: str) -> int:
    """How many letters of ``text`` fit: all of it, or so many with ``ending`` after them; one at least."""
    if text_width(text, size) <= width:
        return len(text)
    low, high = 1, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if text_width(text[:middle] + ending, size) <= width:
            low = middle
        else:
            high = middle
    return low


def _matplotlib(module: str) -> Any:
    """A module of matplotlib, imported here and not before: whoever draws nothing needs none."""
    try:
        return import_module(f"matplotlib.{module}")
    except ImportError:
        raise not_installed("figures need", "report") from None


COLORS = (BLUE, VERMILLION, GREEN, PURPLE, BLACK, ORANGE, SKY)
STYLES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.2, 1.4)), (0, (6, 2, 1.2, 2)))
MARKERS = ("o", "s", "^", "D", "v")
MOST_LINES = len(STYLES) * len(MARKERS)
"""So many lines have each their own style and marker, and are told apart without colour."""

WIDTH, TEXT_SIZE, LONGEST_NAME = 7.2, 9.0, 6.2


def draw_recall_curves(
    ranks_by_name: Mapping[str, Mapping[Task, Any]],
    file: str | os.PathLike[str] | None = None,
    *,
    depth: int = 100,
) -> Any:
    """Draw recall at k for every k up to ``depth`` and return the matplotlib figure; write it if asked to.

    Parameters
    ----------
    ranks_by_name
        For each model's name and each task, the ranks of the truths, as ``diptych.ranking`` gives them.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    depth
        The largest k.
    """
    checked = _check_ranks(ranks_by_name)
    if depth < 2:
        raise InputError(f"depth={depth} leaves no curve to draw; give the largest k, 2 or above.")
    names = [_shown(name) for name in checked]
    most = max(1, int(WIDTH / (max(text_width(name, TEXT_SIZE) for name in names) + 0.75)))
    legend_rows = math.ceil(len(names) / most)
    figure = new_figure(WIDTH, 2.9 + 0.19 * legend_rows)
    depths = np.arange(1, depth + 1)
    # Markers stand on round numbers, where one reads the curve off; more than a few cannot all be written.
    tens = [10**power for power in range(len(str(depth)))]
    marked = [k for ten in tens for n in (1, 2, 5) if (k := n * ten) <= depth]
    ticks = marked if depth <= 200 else tens
    both = figure.subplots(1, 2, sharey=True)
    for axes, task in zip(both, TASKS, strict=True):
        for place, ranks in enumerate(by_task[task] for by_task in checked.values()):
            axes.plot(
                depths,
                [recall_at_k(ranks, int(k)) for k in depths],
                color=COLORS[place % len(COLORS)],
                linestyle=STYLES[place % len(STYLES)],
                marker=MARKERS[place % len(MARKERS)],
                markersize=4.0,
                markevery=[k - 1 for k in marked],
                linewidth=1.6,
            )
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{k:,}" for k in ticks], fontsize=TEXT_SIZE)
        axes.set_xticks([], minor=True)
        axes.set_xlim(0.93, depth * 1.07)
        axes.set_ylim(0, 102)
        axes.set_yticks(range(0, 101, 20))
        axes.tick_params(labelsize=TEXT_SIZE, length=3)
        axes.set_xlabel("answers looked at, k", fontsize=TEXT_SIZE)
        axes.set_title(TITLES[task], fontsize=TEXT_SIZE + 1)
        axes.grid(color="0.88", linewidth=0.6)
        axes.set_axisbelow(True)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    both[0].set_ylabel("recall at k (%)", fontsize=TEXT_SIZE)
    legend = figure.legend(
        both[0].lines,
        # Names are set below: as labels, those that begin with _ would be left out.
        [f"model {place}" for place in range(len(names))],
        loc="outside lower center",
        ncols=math.ceil(len(names) / legend_rows),
        fontsize=TEXT_SIZE,
        frameon=False,
        handlelength=3.4,
        columnspacing=1.6,
    )
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_parse_math(False)
        text.set_text(name)
    if file is not None:
        write_figure(figure, file)
    return figure


def _check_ranks(ranks_by_name: Mapping[str, Mapping[Task, Any]]) -> dict[str, dict[Task, Any]]:
    if not 1 <= len(ranks_by_name) <= MOST_LINES:
        raise InputError(
            f"{len(ranks_by_name)} models were given to draw; give from 1 to {MOST_LINES}, which can be "
            "told apart."
        )
    checked: dict[str, dict[Task, Any]] = {}
    for name, by_task in ranks_by_name.items():
        checked[name] = {}
        for task in TASKS:
            if task not in by_task:
                raise InputError(f"{name!r} has no ranks for {task!r}; give the ranks of both tasks.")
            ranks = np.asarray(to_numpy(by_task[task]))
            if ranks.ndim != 1 or ranks.shape[0] == 0 or ranks.dtype.kind not in "iu" or ranks.min() < 1:
                raise InputError(
                    f"the {task!r} ranks of {name!r} are {ranks.dtype}{list(ranks.shape)}; expected a row of "
                    "whole numbers, 1 or above, as ranks() gives."
                )
            checked[name][task] = ranks
    return checked


def _shown(name: str) -> str:
    return " ".join(fit_lines(name, LONGEST_NAME, TEXT_SIZE, 1)) or "model"


_WIDTH = 2.4
"""Inches that a map is wide and high, at least."""


def draw_regularization_path(
    path: Path, file: str | os.PathLike[str] | None = None, *, metric: str | None = None
) -> Any:
    """Draw heat maps of ``path`` and return the matplotlib figure; write it to ``file`` if one is given.

    Parameters grow to the right and upwards. Only exact scores are drawn: where the path holds bounds (see
    ``Path.exact``; ``AWCCA(path_metrics="all")`` scores every point exactly) or failed, the map is hatched.

    Parameters
    ----------
    path
        ``AWCCA(...).fit(...).path_``.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    metric
        Which of the path's metrics; None: the one that chose.
    """
    name = path.metric if metric is None else metric
    if name not in path.scores["search"]:
        known = ", ".join(sorted(path.scores["search"]))
        raise InputError(
            f"the path holds no {name!r}; it holds {known} (fit with path_metrics='all' for more)."
        )
    figure = new_figure(9.0, 3.9)
    symbol = {"tsvd": "k", "tikhonov": "γ"}.get(path.grid.kind, "parameter")
    # The grid begins with the strongest regularisation, which is the largest γ and the smallest k.
    order = np.argsort(path.grid.x), np.argsort(path.grid.y)
    hatched = False
    for axes, task in zip(figure.subplots(1, 2), TASKS, strict=True):
        exact = path.exact[task] & np.isfinite(path.scores[task][name])
        scores = np.where(exact, path.scores[task][name], np.nan)
        image = _draw_map(axes, scores[np.ix_(*order)])
        if not exact.all():
            hatched = True
            axes.patch.set(facecolor="0.94", edgecolor="0.75", hatch="////", linewidth=0)
        i, j = path.choice[task]
        _mark(axes, (int(np.flatnonzero(order[0] == i)[0]), int(np.flatnonzero(order[1] == j)[0])))
        best = scores[i, j]
        axes.set_title(f"{TITLES[task]}\nchosen {_label(path, i, j)}: {best:.1f}", fontsize=9)
        for side, values in (("x", path.grid.x[order[0]]), ("y", path.grid.y[order[1]])):
            _label_side(axes, side, [_number(path, value) for value in values], f"{symbol} of {side.upper()}")
        _add_bar(figure, image, [axes], name)
    if hatched:
        figure.supxlabel(f"hatched: not scored exactly, as {name} is below the best there", fontsize=8)
    if file is not None:
        write_figure(figure, file)
    return figure


def draw_regularization_maps(found: Mapping[str, Any]) -> Any:
    """Draw truncated SVD's and Tikhonov's map over the same places side by side, each in its own colours.

    Parameters
    ----------
    found
        ``tsvd`` and ``tikhonov``, scores over ``k_x`` × ``k_y``, and ``choice``, the best place of each.
    """
    maps = {name: np.array(found[name], dtype=float) for name in ("tsvd", "tikhonov")}
    figure = new_figure(8.4, 3.5)
    both = figure.subplots(1, 2, sharey=True)
    names = {"tsvd": "truncated SVD at $(k_x, k_y)$", "tikhonov": "Tikhonov at $(σ^2_{k_x}, σ^2_{k_y})$"}
    for axes, (name, scores) in zip(both, maps.items(), strict=True):
        # A few very low corners would take all the colours; what is told apart is the upper part.
        image = _draw_map(axes, scores, float(np.quantile(scores, 0.05)))
        if name == "tikhonov":
            i, j = found["choice"]["tsvd"]
            axes.plot(i, j, marker="X", markersize=9, color="white", markeredgecolor="black", clip_on=False)
        _mark(axes, found["choice"][name])
        best = scores[tuple(found["choice"][name])]
        axes.set_title(f"{names[name]}\nbest r@1 {best:.1f}", fontsize=9)
        _label_side(axes, "x", [f"{int(k)}" for k in found["k_x"]], "$k_x$, images")
        if name == "tsvd":
            _label_side(axes, "y", [f"{int(k)}" for k in found["k_y"]], "$k_y$, texts")
        _add_bar(figure, image, [axes], "r@1")
    return figure


def _draw_map(axes: Any, scores: Any, low: float | None = None) -> Any:
    return axes.imshow(scores.T, origin="lower", aspect="auto", cmap="viridis", vmin=low)


def _mark(axes: Any, place: Sequence[int]) -> None:
    # A ring in both colours is seen on every ground; at a border it stands half outside.
    for size, color, width in ((9, "white", 2), (12, "black", 1)):
        axes.plot(
            *place,
            marker="o",
            markersize=size,
            fillstyle="none",
            color=color,
            markeredgewidth=width,
            clip_on=False,
        )


def _label_side(axes: Any, side: str, labels: Sequence[str], title: str) -> None:
    # Evenly many cells apart, and as many as there is room for: _WIDTH inches and labels side by side on the
    # one side, lines on the other.
    room = max(text_width(label, 8) for label in labels) + 0.12 if side == "x" else 0.3
    most = max(1, min(6, int(_WIDTH / room)))
    ticks = range(0, len(labels), -(-len(labels) // most))
    getattr(axes, f"set_{side}ticks")(ticks, [labels[t] for t in ticks], fontsize=8)
    getattr(axes, f"set_{side}label")(title, fontsize=9)


def _add_bar(figure: Any, image: Any, axes: Any, name: str) -> None:
    bar = figure.colorbar(image, ax=axes)
    bar.set_label(name, fontsize=9)
    bar.ax.tick_params(labelsize=8)


def _number(path: Path, value: float) -> str:
    return f"{int(value)}" if path.grid.kind == "tsvd" else f"{value:.2g}"


def _label(path: Path, i: int, j: int) -> str:
    return f"({_number(path, path.grid.x[i])}, {_number(path, path.grid.y[j])})"
