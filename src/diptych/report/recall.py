"""Recall against the number of answers one looks at, both tasks side by side, a line for each model."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from diptych.arrays import to_numpy
from diptych.checks import TASKS, InputError, Task
from diptych.ranking import recall_at_k
from diptych.report.drawing import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    fit_lines,
    new_figure,
    text_width,
    write_figure,
)
from diptych.report.wording import TITLES

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
        For each model's name and each task, the ranks of the truths, as ``diptych.ranking.ranks`` gives them.
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
