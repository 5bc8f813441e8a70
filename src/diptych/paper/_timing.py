"""Experiment 5: how long selection takes, by the textbook and by the SVD-free path."""

from __future__ import annotations

import platform
import time
from typing import Any

from diptych.cca import Spectra
from diptych.cca.selection import Grid, Problem, make_grid, make_weights, regularization_path, textbook_ranks
from diptych.paper._cache import Result, digest
from diptych.paper._claims import published
from diptych.paper._experiment import Experiment, Job, Part, Results, Table, head_row
from diptych.paper._selecting import Kind, blas_threads, select
from diptych.paper._setting import Setting
from diptych.paper._sources import Source
from diptych.paper._tables import ReportTable
from diptych.ranking import metric
from diptych.report._page import Row

VERSION = 2
KINDS: dict[str, Kind] = {"T-SVD": "tsvd", "Tikhonov": "tikhonov"}


def _timed(setting: Setting, image: Source, text: Source) -> Result:
    def compute() -> Result:
        spectra = setting.spectra(image, text)
        problem = setting.problem(image, text, setting.run.validation)
        rows = {}
        for name, kind in KINDS.items():
            grid = make_grid(kind, ("rank", setting.options.grid), spectra)
            # Every point of Tikhonov's grid takes an SVD of the same size; T-SVD's sizes vary over the grid.
            per_side = (
                setting.options.timed_points if kind == "tsvd" else min(2, setting.options.timed_points)
            )
            seconds, points = textbook_seconds(problem, spectra, grid, per_side)
            ours = select(setting, image, text, setting.run.validation, kind, "rank")
            if ours["threads"] != blas_threads():
                # The selection at hand was timed on another number of threads.
                path = regularization_path(problem, spectra, grid, metric("r@1"))
                ours = {"seconds": path.seconds, "route": path.route}
            rows[name] = {
                "textbook": seconds,
                "timed": points,
                "ours": ours["seconds"],
                "points": grid.shape[0] * grid.shape[1],
                "route": ours["route"],
            }
        shape = [image.dimension, text.dimension]
        return {"rows": rows, "shape": shape, "validation": [len(problem.a), len(problem.b)]}

    options, threads = setting.options, blas_threads()
    inputs = {
        "grid": options.grid,
        "timed": options.timed_points,
        "validation": digest(setting.run.validation),
        "machine": platform.machine(),
        "threads": threads,
    }
    found = setting.remember("timing", VERSION, (image, text), inputs, compute)
    return {**found, "threads": threads}


def textbook_seconds(problem: Problem, spectra: Spectra, grid: Grid, per_side: int) -> tuple[float, int]:
    """Time of one SVD and the ranks of both tasks per grid point, from a sample spread over the grid."""
    w_x, w_y = make_weights(problem, spectra, grid)
    places = [_spread(len(side), per_side) for side in (grid.x, grid.y)]
    start = time.perf_counter()
    for i in places[0]:
        for j in places[1]:
            next(textbook_ranks(problem, w_x.rows[i], w_y.rows[j]))
    timed = len(places[0]) * len(places[1])
    return (time.perf_counter() - start) / timed * grid.shape[0] * grid.shape[1], timed


def _spread(size: int, points: int) -> list[int]:
    """Middles of ``points`` equal parts: no end is counted twice as often as it occurs."""
    return sorted({int(size * (i + 0.5) / points) for i in range(min(size, points))})


def _texts(setting: Setting) -> list[Source]:
    return [setting.mean_words, setting.hkse]


def _jobs(setting: Setting) -> list[Job]:
    return [
        Job(f"timing: {text.name}", lambda text=text: _timed(setting, setting.image, text))  # type: ignore[misc]
        for text in _texts(setting)
    ]


def _show(setting: Setting, results: Results) -> list[Part]:
    theirs = published("timing/coco")
    body: list[Row | list[Any]] = []
    for text in _texts(setting):
        found = results[f"timing: {text.name}"]
        shape, pairs = found["shape"], found["validation"]
        body.append(
            head_row(
                f"Ours: {setting.image.name} × {text.name} ({shape[0]} × {shape[1]}), validation "
                f"{pairs[0]:,} × {pairs[1]:,}, {next(iter(found['rows'].values()))['points']} points, "
                f"{found['threads']} thread{'s' if found['threads'] > 1 else ''}"
            )
        )
        for name, row in found["rows"].items():
            whole = row["timed"] == row["points"]
            hours = f"{row['textbook'] / 3600:.3g}"
            body.append(
                [
                    name,
                    hours if whole else f"≈ {hours}",
                    f"{row['ours'] / 3600:.2g}",
                    f"{row['ours']:.1f}",
                    f"{row['textbook'] / row['ours']:.0f}×",
                    f"{found['rows']['Tikhonov']['textbook'] / row['textbook']:.1f}×",
                ]
            )
    body.append(head_row(f"Published: {theirs.setting}"))
    hours_of = {(row.text, row.method): row.values[0] for row in theirs.rows}
    for row in theirs.rows:
        slower, own = hours_of[row.text, "Tikhonov"], row.values[0]
        ratio = f"{slower / own:.1f}×" if slower and own else None
        name = f"{row.method}, {row.images} × {row.text} ({row.shape[0]} × {row.shape[1]})"
        body.append(Row([name, f"{own}", None, None, None, ratio], "quiet"))
    timed = next(iter(results.values()))["rows"]
    points = " and ".join(f"{row['timed']} ({name})" for name, row in timed.items())
    columns = [
        "filter",
        "textbook, hours",
        "ours, hours",
        "ours, seconds",
        "textbook ÷ ours",
        "Tikhonov ÷ this",
    ]
    return [
        "The whole regularisation path of both tasks. The textbook takes one SVD and one ranking of each "
        f"task per grid point; ≈ marks times extrapolated from {points} points spread over the grid.",
        ReportTable(
            "timing",
            columns,
            body,
            note="Times are of this machine as it was during the run; the ratios are measured side by side.",
        ),
    ]


def _tables(results: Results) -> dict[str, Table]:
    return {
        "timing": [
            {
                "text": label.removeprefix("timing: "),
                "shape": " × ".join(map(str, result["shape"])),
                "filter": name,
                "textbook seconds (extrapolated)": row["textbook"],
                "our seconds": row["ours"],
                "ratio": row["textbook"] / row["ours"],
                "threads": result["threads"],
                "timed points": row["timed"],
                "grid points": row["points"],
            }
            for label, result in results.items()
            for name, row in result["rows"].items()
        ]
    }


TIMING = Experiment("timing", "How long selection takes", _jobs, _show, _tables)
