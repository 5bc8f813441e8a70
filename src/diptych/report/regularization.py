"""The paper's regularisation maps: a metric over the whole grid, for both tasks, the choice marked."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from diptych import storage
from diptych.cca.selection import Path
from diptych.checks import TASKS, InputError

TITLES = {"search": "search: sentence → images", "annotate": "annotate: image → sentences"}


def draw_regularization_path(
    path: Path, file: str | os.PathLike[str] | None = None, *, metric: str | None = None
) -> Any:
    """Draw heat maps of ``path`` and return the matplotlib figure; write it to ``file`` if one is given.

    Parameters
    ----------
    path
        ``AWCCA(...).fit(...).path_``.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    metric
        Which of the path's metrics; None: the one that chose.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError('figures need matplotlib; install it with: pip install "diptych[report]"') from None
    name = path.metric if metric is None else metric
    if name not in path.scores["search"]:
        known = ", ".join(sorted(path.scores["search"]))
        raise InputError(
            f"the path holds no {name!r}; it holds {known} (fit with path_metrics='all' for more)."
        )
    figure = Figure(figsize=(9.0, 3.9), layout="constrained")
    for axes, task in zip(figure.subplots(1, 2), TASKS, strict=True):
        scores = path.scores[task][name]
        # Strong regularisation at the lower left, as in the paper.
        image = axes.imshow(scores.T, origin="lower", aspect="auto", cmap="viridis")
        i, j = path.choice[task]
        axes.plot(i, j, marker="o", markersize=9, fillstyle="none", color="white", markeredgewidth=2)
        axes.plot(i, j, marker="o", markersize=12, fillstyle="none", color="black", markeredgewidth=1)
        axes.set_title(
            f"{TITLES[task]}\nchosen {_label(path, *path.choice[task])}: {scores[i, j]:.1f}", fontsize=9
        )
        for side, values in (("x", path.grid.x), ("y", path.grid.y)):
            ticks = np.unique(np.linspace(0, len(values) - 1, min(6, len(values))).round().astype(int))
            labels = [_number(path, values[t]) for t in ticks]
            getattr(axes, f"set_{side}ticks")(ticks, labels, fontsize=8)
            symbol = "k" if path.grid.kind == "tsvd" else "γ"
            getattr(axes, f"set_{side}label")(f"{symbol} of {side.upper()}", fontsize=9)
        bar = figure.colorbar(image, ax=axes)
        bar.set_label(name, fontsize=9)
        bar.ax.tick_params(labelsize=8)
    if file is not None:
        suffix = os.path.splitext(os.fspath(file))[1].lower().lstrip(".")
        if suffix not in ("png", "svg", "pdf"):
            raise InputError(
                f"{file} is not a picture that can be written; give a name in .png, .svg or .pdf."
            )
        with storage.replacing_file(file) as staged:
            figure.savefig(staged, format=suffix, dpi=160)
    return figure


def _number(path: Path, value: float) -> str:
    return f"{int(value)}" if path.grid.kind == "tsvd" else f"{value:.2g}"


def _label(path: Path, i: int, j: int) -> str:
    return f"({_number(path, path.grid.x[i])}, {_number(path, path.grid.y[j])})"
