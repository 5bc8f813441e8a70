"""Spectral filters: the two shapes, and what the selected ones do to real spectra."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from diptych.cca import g_hard, g_soft
from diptych.report.drawing import BLUE, GREEN, VERMILLION, new_figure
from diptych.report.weighting import tidy


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
