"""Experiment 7: the two spectral filters, and what the selected ones let through of real spectra."""

from __future__ import annotations

from typing import Any

import numpy as np

from diptych._checks import TASKS
from diptych.cca import Tikhonov
from diptych.cca._filters import make_filters
from diptych.paper._cache import Result
from diptych.paper._experiment import Experiment, Job, Part, Results, Table
from diptych.paper._figures import draw_chosen_filters, draw_filters
from diptych.paper._selecting import Kind, select
from diptych.paper._setting import Setting
from diptych.paper._tables import ReportTable
from diptych.report._page import figure

VERSION = 1
ALPHA = 20.0
"""Where the paper draws its two filters."""
SINGULAR_VALUES = 400


def _filtered(setting: Setting) -> Result:
    image, text = setting.image, setting.hkse
    kinds: tuple[Kind, ...] = ("tsvd", "tikhonov")
    choice = {kind: select(setting, image, text, setting.run.validation, kind, "rank") for kind in kinds}

    def compute() -> Result:
        spectra = setting.spectra(image, text)
        found: Result = {}
        for side, singular in enumerate((spectra.s_x, spectra.s_y)):
            # Enough of them to draw the spectrum, evenly in rank, the first and the last included.
            places = np.unique(
                np.linspace(0, len(singular) - 1, min(len(singular), SINGULAR_VALUES)).round().astype(int)
            )
            entry: Result = {"ranks": places + 1, "values": singular[places]}
            for task in TASKS:
                k = choice["tsvd"][task]["params"]
                guided = make_filters("guided", tuple(k), spectra.s_x, spectra.s_y)[side]
                assert isinstance(guided, Tikhonov)
                entry[task] = {
                    "k": k[side],
                    "guided": guided.gamma,
                    "tikhonov": choice["tikhonov"][task]["params"][side],
                }
            found["images" if side == 0 else "texts"] = entry
        return found

    return setting.remember("filters", VERSION, (image, text), {"choice": choice}, compute)


def _filter_jobs(setting: Setting) -> list[Job]:
    return [Job("filters: chosen", lambda: _filtered(setting))]


def _show_filters(setting: Setting, results: Results) -> list[Part]:
    found = results["filters: chosen"]
    columns = ["view", "task", "k (T-SVD)", "γ (guided)", "γ (Tikhonov)"]
    rows: list[list[Any]] = [
        [
            view,
            task,
            found[view][task]["k"],
            f"{found[view][task]['guided']:.3g}",
            f"{found[view][task]['tikhonov']:.3g}",
        ]
        for view in ("images", "texts")
        for task in TASKS
    ]
    return [
        figure(
            draw_filters(ALPHA),
            f"g_hard (truncated SVD) and g_soft (Tikhonov) at α = {ALPHA:g}, as in the paper.",
            "The two spectral filters",
        ),
        figure(
            draw_chosen_filters(found),
            f"What the filters selected for search let through of each direction ({setting.image.name}, "
            f"{setting.hkse.name}), beside the singular values (grey, relative to the largest).",
            "Singular values and the selected filters",
        ),
        ReportTable("filters", columns, rows),
    ]


def _filter_tables(results: Results) -> dict[str, Table]:
    found = results["filters: chosen"]
    return {
        "filters": [
            {"view": view, "task": task, **found[view][task]}
            for view in ("images", "texts")
            for task in TASKS
        ],
        "singular_values": [
            {"view": view, "rank": rank, "value": value}
            for view in ("images", "texts")
            for rank, value in zip(found[view]["ranks"], found[view]["values"], strict=True)
        ],
    }


FILTERS = Experiment("filters", "Spectral filters", _filter_jobs, _show_filters, _filter_tables)
