"""Tables 4 and 3 and Remark 1: filters compared, the time of their selection, and cosine against ℓ2."""

from __future__ import annotations

import platform
import time
from functools import partial
from typing import Any

from diptych.cca import Spectra
from diptych.cca.selection import Grid, Problem, make_grid, make_weights, regularization_path, textbook_ranks
from diptych.ranking import metric
from diptych.report import Row
from reproduction.experiment import (
    Experiment,
    Jobs,
    Kind,
    Part,
    Records,
    Results,
    blas_threads,
    count_threads,
    select,
    select_and_test,
)
from reproduction.features import Features
from reproduction.published import published
from reproduction.results import Result
from reproduction.setting import Setting
from reproduction.tables import ReportTable, head_row, mean_runs, published_row, recall_cells, recall_table

FILTERS = {"Tikhonov": "tikhonov", "T-SVD": "tsvd", "guided": "guided"}
SPACINGS = {"rank": "evenly spaced in rank, as in the paper", "log": "evenly spaced in log σ², our default"}
SIMILARITIES = {"cosine": "cosine", "l2": "ℓ2 distance"}
TIMED: dict[str, Kind] = {"T-SVD": "tsvd", "Tikhonov": "tikhonov"}


def _compare(
    setting: Setting, text: Features, filters: dict[str, str], spacing: str, similarity: str
) -> Result:
    image = setting.image

    def compute() -> Result:
        rows = {}
        for name, filter_name in filters.items():
            runs = [
                select_and_test(
                    setting, image, text, run.validation, [run.test], filter_name, spacing, similarity
                )[0]
                for run in setting.single_plan.runs
            ]
            rows[name] = mean_runs(runs)
        return {"rows": rows}

    inputs = {"filters": filters, "spacing": spacing, "similarity": similarity, "grid": setting.options.grid}
    return setting.fetch(f"regularization {spacing} {similarity}", (image, text), inputs, compute)


def _filter_jobs(setting: Setting) -> Jobs:
    return {
        spacing: partial(_compare, setting, setting.mean_words, FILTERS, spacing, "cosine")
        for spacing in SPACINGS
    }


def _show_filters(setting: Setting, results: Results) -> list[Part]:
    theirs = published("regularization/flickr30k")
    body: list[Row | list[Any]] = []
    for spacing, words in SPACINGS.items():
        body.append(head_row(f"Ours: {setting.data.title}, {setting.image.name}; grid {words}"))
        body += [[name, *recall_cells(row, median=False)] for name, row in results[spacing]["rows"].items()]
    body.append(head_row(f"Published: {theirs.setting}"))
    body += [published_row([row.method], row.values) for row in theirs.rows]
    return [
        "Mean word vectors, asymmetric weighting. Guided Tikhonov uses γ = σ²_k at the k that truncated SVD "
        f"selected. Each filter is selected by r@1 on the validation images, on a {setting.options.grid} × "
        f"{setting.options.grid} grid.",
        recall_table("regularization", ["filter"], body, median=False),
    ]


def _similarity_jobs(setting: Setting) -> Jobs:
    guided = {"guided": "guided"}
    return {
        f"{text.name}, {similarity}": partial(_compare, setting, text, guided, "rank", similarity)
        for text in (setting.mean_words, setting.hkse)
        for similarity in SIMILARITIES
    }


def _show_similarity(setting: Setting, results: Results) -> list[Part]:
    body: list[Row | list[Any]] = []
    for text in (setting.mean_words, setting.hkse):
        body.append(head_row(f"{setting.image.name}, {text.name}, guided"))
        body += [
            [words, *recall_cells(results[f"{text.name}, {similarity}"]["rows"]["guided"])]
            for similarity, words in SIMILARITIES.items()
        ]
    return [
        "The same vectors compared by cosine or by Euclidean distance (Remark 1), each with filters selected "
        "for it. The paper gives no figures.",
        recall_table("similarity", ["compared by"], body, bold=False),
    ]


def _time(setting: Setting, text: Features) -> Result:
    image, options, threads = setting.image, setting.options, blas_threads()

    def compute() -> Result:
        spectra = setting.spectra(image, text)
        problem = setting.problem(image, text, setting.run.validation)
        rows = {}
        for name, kind in TIMED.items():
            grid = make_grid(kind, ("rank", options.grid), spectra)
            # Every point of Tikhonov's grid needs an SVD of the same size; T-SVD's sizes vary over the grid.
            per_side = options.timed_points if kind == "tsvd" else min(2, options.timed_points)
            seconds, timed = _textbook_seconds(problem, spectra, grid, per_side)
            ours = select(setting, image, text, setting.run.validation, kind, "rank")
            if ours["threads"] != threads:
                # The stored selection was timed with another number of threads.
                path = regularization_path(problem, spectra, grid, metric("r@1"))
                ours = {"seconds": path.seconds, "route": path.route}
            rows[name] = {
                "textbook": seconds,
                "timed": timed,
                "ours": ours["seconds"],
                "points": grid.shape[0] * grid.shape[1],
                "route": ours["route"],
            }
        shape = [image.dimension, text.dimension]
        return {"rows": rows, "shape": shape, "validation": [len(problem.a), len(problem.b)]}

    inputs = {
        "grid": options.grid,
        "timed": options.timed_points,
        "machine": platform.machine(),
        "threads": threads,
    }
    return {**setting.fetch("timing", (image, text), inputs, compute), "threads": threads}


def _textbook_seconds(problem: Problem, spectra: Spectra, grid: Grid, per_side: int) -> tuple[float, int]:
    """Extrapolate the time of the textbook route from points spread over the grid."""
    w_x, w_y = make_weights(problem, spectra, grid)
    # Middles of equal parts: the ends of the grid must not count more often than they occur.
    rows, columns = (
        sorted({int(size * (i + 0.5) / per_side) for i in range(min(size, per_side))}) for size in grid.shape
    )
    start = time.perf_counter()
    for i in rows:
        for j in columns:
            next(textbook_ranks(problem, w_x.rows[i], w_y.rows[j]))
    timed = len(rows) * len(columns)
    return (time.perf_counter() - start) / timed * grid.shape[0] * grid.shape[1], timed


def _timing_jobs(setting: Setting) -> Jobs:
    return {text.name: partial(_time, setting, text) for text in (setting.mean_words, setting.hkse)}


def _show_timing(setting: Setting, results: Results) -> list[Part]:
    theirs = published("timing/coco")
    body: list[Row | list[Any]] = []
    for text, result in results.items():
        shape, pairs, rows = result["shape"], result["validation"], result["rows"]
        body.append(
            head_row(
                f"Ours: {setting.image.name} × {text} ({shape[0]} × {shape[1]}), validation {pairs[0]:,} × "
                f"{pairs[1]:,}, {rows['T-SVD']['points']} points, {count_threads(result['threads'])}"
            )
        )
        for name, row in rows.items():
            hours = f"{row['textbook'] / 3600:.3g}"
            body.append(
                [
                    name,
                    hours if row["timed"] == row["points"] else f"≈ {hours}",
                    f"{row['ours'] / 3600:.2g}",
                    f"{row['ours']:.1f}",
                    f"{row['textbook'] / row['ours']:.0f}×",
                    f"{rows['Tikhonov']['textbook'] / row['textbook']:.1f}×",
                ]
            )
    body.append(head_row(f"Published: {theirs.setting}"))
    hours_of = {(row.text, row.method): row.values[0] for row in theirs.rows}
    for published_time in theirs.rows:
        slower, own = hours_of[published_time.text, "Tikhonov"], published_time.values[0]
        ratio = f"{slower / own:.1f}×" if slower and own else None
        sizes = " × ".join(map(str, published_time.shape))
        name = f"{published_time.method}, {published_time.images} × {published_time.text} ({sizes})"
        body.append(Row([name, f"{own}", None, None, None, ratio], "quiet"))
    rows = next(iter(results.values()))["rows"]
    points = " and ".join(f"{row['timed']} ({name})" for name, row in rows.items())
    columns = ["filter", "textbook, hours", "ours, hours", "ours, seconds", "textbook ÷ ours"]
    return [
        "The whole regularisation path of both tasks. The textbook computes one SVD and ranks both tasks at "
        f"every grid point; ≈ marks times extrapolated from {points} points spread over the grid.",
        ReportTable(
            "timing",
            [*columns, "Tikhonov ÷ this"],
            body,
            note="Times are those of this machine during the run; both routes of a ratio ran side by side.",
        ),
    ]


def _timing_tables(results: Results) -> dict[str, Records]:
    return {
        "timing": [
            {
                "text": text,
                "shape": " × ".join(map(str, result["shape"])),
                "filter": name,
                "textbook seconds (extrapolated)": row["textbook"],
                "our seconds": row["ours"],
                "ratio": row["textbook"] / row["ours"],
                "threads": result["threads"],
                "timed points": row["timed"],
                "grid points": row["points"],
            }
            for text, result in results.items()
            for name, row in result["rows"].items()
        ]
    }


REGULARIZATION = Experiment(
    "regularization", ("Table 4",), "Regularisation: Tikhonov, T-SVD, guided", _filter_jobs, _show_filters
)
TIMING = Experiment(
    "timing", ("Table 3",), "How long selection takes", _timing_jobs, _show_timing, _timing_tables
)
SIMILARITY = Experiment("similarity", ("Remark 1",), "Cosine against ℓ2", _similarity_jobs, _show_similarity)
