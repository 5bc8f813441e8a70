"""The paper's regularisation maps: a metric over the whole grid, for both tasks, the choice marked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from diptych.cca.selection import Path
from diptych.checks import TASKS, InputError
from diptych.report.drawing import new_figure, text_width, write_figure
from diptych.report.wording import TITLES

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
