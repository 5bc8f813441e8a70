"""Tables 2 to 4, Figure 2 and Remark 1: weightings, filters, similarities, and the time of selection."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from diptych.cca import Spectra
from diptych.cca.selection import (
    Grid,
    Problem,
    best_point,
    make_grid,
    make_weights,
    regularization_path,
    textbook_ranks,
)
from diptych.ranking import metric, recall_at_k, summary
from diptych.report import Row, figure
from reproduction.experiment import (
    BLUE,
    VERMILLION,
    Content,
    Experiment,
    Jobs,
    Kind,
    Results,
    blas_threads,
    count_threads,
    finish_axes,
    make_point,
    new_figure,
    select,
    select_and_test,
)
from reproduction.features import Features
from reproduction.results import TASKS, Floats, Result, Rows, Task, digest
from reproduction.setting import Setting
from reproduction.tables import (
    ReportTable,
    head_row,
    mean_runs,
    published,
    published_row,
    recall_cells,
    recall_table,
)

Powers: TypeAlias = tuple[float, float]
"""Powers of Σ on the image vectors and on the caption vectors."""

SYMMETRIC: tuple[Powers, ...] = tuple((float(a), float(a)) for a in range(7))
ASYMMETRIC: dict[Task, Powers] = {"search": (1.0, 0.0), "annotate": (0.0, 1.0)}
"""Query generation: Σ on the side that is searched."""
CUTS = (1, 10)


def rank_weightings(
    setting: Setting, texts: Features, rows: Rows, grid: Grid, pairs: Sequence[Powers], at: tuple[int, int]
) -> list[dict[Task, Floats]]:
    """Return the ranks of both tasks at one point of a grid for each weighting, which share one SVD."""
    spectra = setting.spectra(setting.image, texts)
    problem = setting.problem(setting.image, texts, rows)
    w_x, w_y = make_weights(problem, spectra, grid)
    return list(textbook_ranks(problem, w_x.rows[at[0]], w_y.rows[at[1]], pairs))


def sweep(setting: Setting, texts: Features, validation: Rows, pairs: Sequence[Powers], grid: Any) -> Result:
    """Find for every weighting the truncated SVD that is best on validation images, by r@1 and by r@10."""

    def compute() -> Result:
        ks = make_grid("tsvd", grid, setting.spectra(setting.image, texts))
        recalls = {(task, k): np.zeros((len(pairs), *ks.shape)) for task in TASKS for k in CUTS}
        for at in np.ndindex(ks.shape):
            ranked = rank_weightings(setting, texts, validation, ks, pairs, at)
            for (task, k), values in recalls.items():
                values[:, *at] = [recall_at_k(ranks[task], k) for ranks in ranked]

        def choose(scores: Floats) -> Result:
            i, j = best_point(scores)
            return {"score": float(scores[i, j]), "params": ks.params(i, j)}

        return {f"{task} {k}": [choose(scores) for scores in values] for (task, k), values in recalls.items()}

    inputs = {"pairs": pairs, "grid": grid, "validation": digest(validation)}
    return setting.fetch("weighting sweep", (setting.image, texts), inputs, compute)


def _path(setting: Setting) -> tuple[Powers, ...]:
    """Return (α, 1 − α) for α from 0 to 1."""
    return tuple((float(a), float(1 - a)) for a in np.linspace(0, 1, setting.options.alphas).round(6))


def _sweep_all(setting: Setting) -> Result:
    """Sweep the weightings of both experiments together: one SVD per grid point serves them all."""
    pairs = (*_path(setting), *SYMMETRIC)
    grid = ("rank", setting.options.grid)
    return sweep(setting, setting.mean_words, setting.run.validation, pairs, grid)


def _rank_points(
    setting: Setting, name: str, rows: Rows, pairs: Sequence[Powers]
) -> Callable[[int, int], list[dict[Task, Floats]]]:
    """Return a function of the k of both views, whose ranks are those of a filter for each weighting."""
    spectra = setting.spectra(setting.image, setting.mean_words)

    @cache
    def ranks_at(k_x: int, k_y: int) -> list[dict[Task, Floats]]:
        point = make_point(spectra, name, (k_x, k_y))
        return rank_weightings(setting, setting.mean_words, rows, point, pairs, (0, 0))

    return ranks_at


def _test(setting: Setting) -> Result:
    """Score every weighting of the table on the test images, with guided Tikhonov at its own best k."""
    pairs, best = (*_path(setting), *SYMMETRIC), _sweep_all(setting)
    symmetric = len(pairs) - len(SYMMETRIC)
    weightings: dict[str, dict[Task, int]] = {
        f"symmetric α = {a}{' (CCA)' if a == 0 else ''}": dict.fromkeys(TASKS, symmetric + a)
        for a in range(len(SYMMETRIC))
    }
    weightings["search generation"] = {task: pairs.index(ASYMMETRIC[task][::-1]) for task in TASKS}
    weightings["asymmetric (task dependent)"] = {task: pairs.index(ASYMMETRIC[task]) for task in TASKS}

    def compute() -> Result:
        ranks_at = _rank_points(setting, "guided", setting.run.test, pairs)
        rows: dict[str, Result] = {}
        for name, by_task in weightings.items():
            rows[name] = {"query_ranks": {}}
            for task, which in by_task.items():
                params = best[f"{task} 1"][which]["params"]
                ranks = ranks_at(*params)[which][task]
                rows[name][task] = {**summary(ranks), "params": params}
                rows[name]["query_ranks"][task] = [ranks]
        return {"rows": rows}

    inputs = {"pairs": pairs, "best": best}
    return setting.fetch("weighting table", (setting.image, setting.mean_words), inputs, compute)


def _weighting_jobs(setting: Setting) -> Jobs:
    return {"sweep": partial(_sweep_all, setting), "test": partial(_test, setting)}


def _show_weighting(setting: Setting, results: Results) -> list[Content]:
    table = published("weighting/coco-5k")
    body: list[Row | list[Any]] = [
        head_row(f"Ours: {setting.data.title}, {setting.image.name}, mean word vectors")
    ]
    body += [[name, *recall_cells(row, median=False)] for name, row in results["test"]["rows"].items()]
    body.append(head_row(f"Published: {table.setting}"))
    body += [published_row([row.method], row.values) for row in table.rows]
    return [
        "Vectors (Σ^α Uᵀx, Σ^α Vᵀy) for α = 0 to 6, compared with the task-dependent asymmetric weighting: Σ "
        "on the images for search, on the captions for annotation. For every weighting, k is selected by r@1 "
        "on the validation images with truncated SVD, and the model is guided Tikhonov at that k.",
        recall_table("weighting", ["weighting"], body, median=False),
    ]


def _generation(setting: Setting) -> Result:
    """Return the curve, and the ranks of the validation queries at each α's best truncated SVD by r@10."""
    pairs, best = _path(setting), _sweep_all(setting)
    choice = {task: best[f"{task} 10"][: len(pairs)] for task in TASKS}

    def compute() -> Result:
        ranks_at = _rank_points(setting, "tsvd", setting.run.validation, pairs)
        ranks = {
            task: [ranks_at(*point["params"])[which][task] for which, point in enumerate(choice[task])]
            for task in TASKS
        }
        scores = {task: [point["score"] for point in choice[task]] for task in TASKS}
        return {"curve": {"alpha": [a for a, _ in pairs], **scores}, "query_ranks": ranks}

    inputs = {"pairs": pairs, "best": choice}
    return setting.fetch("generation curve", (setting.image, setting.mean_words), inputs, compute)


CURVES = {
    "search": ("image search", BLUE, "o", 1.0),
    "annotate": ("image annotation", VERMILLION, "s", 0.0),
}
"""Name, colour, marker and the α of query generation of each task."""


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
    finish_axes(axes, "α, in (Σ$^{α}$Uᵀx, Σ$^{1−α}$Vᵀy)", "r@10 on validation, %")
    return figure


def _show_generation(setting: Setting, results: Results) -> list[Content]:
    curve = results["curve"]["curve"]
    return [
        "r@10 on the validation images for image vectors Σ^α Uᵀx and caption vectors Σ^(1−α) Vᵀy, each α "
        f"with its own best truncated SVD ({setting.image.name}, mean word vectors). Query generation is "
        "α = 1 for search and α = 0 for annotation. Filters are selected on these images too.",
        figure(
            draw_generation_curve(curve),
            f"Search: {curve['search'][-1]:.1f} at α = 1, {curve['search'][0]:.1f} at α = 0. Annotation: "
            f"{curve['annotate'][0]:.1f} at α = 0, {curve['annotate'][-1]:.1f} at α = 1.",
            "Validation r@10 against α for both tasks",
        ),
    ]


WEIGHTING = Experiment(
    "weighting", ("Table 2",), "Weighting: symmetric against asymmetric", _weighting_jobs, _show_weighting
)
GENERATION = Experiment(
    "generation",
    ("Figure 2",),
    "Query generation against search generation",
    lambda setting: {"curve": partial(_generation, setting)},
    _show_generation,
)


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


def _show_filters(setting: Setting, results: Results) -> list[Content]:
    table = published("regularization/flickr30k")
    body: list[Row | list[Any]] = []
    for spacing, words in SPACINGS.items():
        body.append(head_row(f"Ours: {setting.data.title}, {setting.image.name}; grid {words}"))
        body += [[name, *recall_cells(row, median=False)] for name, row in results[spacing]["rows"].items()]
    body.append(head_row(f"Published: {table.setting}"))
    body += [published_row([row.method], row.values) for row in table.rows]
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


def _show_similarity(setting: Setting, results: Results) -> list[Content]:
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
            selection = select(setting, image, text, setting.run.validation, kind, "rank")
            if selection["threads"] != threads:
                # The stored selection was timed with another number of threads.
                path = regularization_path(problem, spectra, grid, metric("r@1"))
                selection = {"seconds": path.seconds, "route": path.route}
            rows[name] = {
                "textbook": seconds,
                "timed": timed,
                "ours": selection["seconds"],
                "points": grid.shape[0] * grid.shape[1],
                "route": selection["route"],
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


def _show_timing(setting: Setting, results: Results) -> list[Content]:
    table = published("timing/coco")
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
    body.append(head_row(f"Published: {table.setting}"))
    hours_of = {(row.text, row.method): row.values[0] for row in table.rows}
    for published_time in table.rows:
        slower, faster = hours_of[published_time.text, "Tikhonov"], published_time.values[0]
        ratio = f"{slower / faster:.1f}×" if slower and faster else None
        sizes = " × ".join(map(str, published_time.shape))
        name = f"{published_time.method}, {published_time.images} × {published_time.text} ({sizes})"
        body.append(Row([name, f"{faster}", None, None, None, ratio], "quiet"))
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


REGULARIZATION = Experiment(
    "regularization", ("Table 4",), "Regularisation: Tikhonov, T-SVD, guided", _filter_jobs, _show_filters
)
TIMING = Experiment("timing", ("Table 3",), "How long selection takes", _timing_jobs, _show_timing)
SIMILARITY = Experiment("similarity", ("Remark 1",), "Cosine against ℓ2", _similarity_jobs, _show_similarity)
