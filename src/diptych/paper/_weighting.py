"""Experiments 2 and 3: which power of the correlations each side should carry."""

from __future__ import annotations

from typing import Any

import numpy as np

from diptych._checks import TASKS, Task
from diptych._threads import map_parallel
from diptych.cca import TruncatedSVD
from diptych.cca._filters import make_filters
from diptych.cca.selection import make_grid
from diptych.paper._cache import Result, digest
from diptych.paper._claims import published
from diptych.paper._curves import draw_generation_curve
from diptych.paper._experiment import (
    Experiment,
    Job,
    Part,
    Results,
    Table,
    head_row,
    published_row,
    recall_cells,
    recall_record,
    recall_table,
)
from diptych.paper._setting import Setting
from diptych.paper._sources import Rows, Source
from diptych.paper._weighted import Pair, canonical, weighted_ranks
from diptych.ranking import mean_recall, recall_at_k, summary
from diptych.report._page import Row, figure

VERSION, TABLE_VERSION = 1, 2
SYMMETRIC: tuple[Pair, ...] = tuple((float(a), float(a)) for a in range(7))
ASYMMETRIC: dict[Task, Pair] = {"search": (1.0, 0.0), "annotate": (0.0, 1.0)}
"""Query generation: Σ on the side that is searched."""


def path_between(points: int) -> tuple[Pair, ...]:
    """(α, 1 − α) for α from 0 to 1."""
    return tuple((float(a), float(1 - a)) for a in np.linspace(0, 1, points).round(6))


def sweep(
    setting: Setting, image: Source, text: Source, validation: Rows, pairs: tuple[Pair, ...], grid: Any
) -> Result:
    """For every weighting, the truncated SVD that is best on validation images by r@1 and by r@10.

    One SVD per grid point serves all weightings.
    """

    def compute() -> Result:
        spectra = setting.spectra(image, text)
        x, y, pairing = setting.views(image, text, validation)
        places = make_grid("tsvd", grid, spectra)
        points = [(int(k_x), int(k_y)) for k_x in places.x for k_y in places.y]

        def at(point: tuple[int, int]) -> dict[Task, list[tuple[float, ...]]]:
            embedded = canonical(spectra, (TruncatedSVD(point[0]), TruncatedSVD(point[1])), x, y)
            found = weighted_ranks(*embedded, pairing, pairs)
            return {
                task: [(recall_at_k(r, 1), recall_at_k(r, 10), mean_recall(r)) for r in found[task]]
                for task in TASKS
            }

        # Small SVDs gain nothing from several threads each: whole points run side by side.
        found = map_parallel(at, points, x)
        best: Result = {}
        for task in TASKS:
            for column, cut in enumerate((1, 10)):
                entries = []
                for which in range(len(pairs)):
                    scores = [each[task][which] for each in found]
                    # Ties go to the better mean recall, then to the stronger regularisation.
                    i = max(
                        range(len(points)), key=lambda i: (scores[i][column], scores[i][2], -sum(points[i]))
                    )
                    entries.append({"score": scores[i][column], "params": points[i]})
                best[f"{task} {cut}"] = entries
        return best

    inputs = {"pairs": pairs, "grid": grid, "validation": digest(validation)}
    return setting.remember("weighting sweep", VERSION, (image, text), inputs, compute)


def all_pairs(setting: Setting) -> tuple[Pair, ...]:
    """Every weighting of both experiments."""
    return (*path_between(setting.options.alphas), *SYMMETRIC)


def _swept(setting: Setting) -> Result:
    grid = ("rank", setting.options.grid)
    return sweep(setting, setting.image, setting.mean_words, setting.run.validation, all_pairs(setting), grid)


def _tested(setting: Setting) -> Result:
    """Test scores of every weighting of the table, guided Tikhonov at its own best k."""
    pairs, best = all_pairs(setting), _swept(setting)

    def compute() -> Result:
        image, text = setting.image, setting.mean_words
        spectra = setting.spectra(image, text)
        x, y, pairing = setting.views(image, text, setting.run.test)
        at: dict[str, dict[Task, Any]] = {}
        found: dict[str, Result] = {}
        for name, by_task in _named(pairs).items():
            found[name] = {"query_ranks": {}}
            for task, which in by_task.items():
                params = best[f"{task} 1"][which]["params"]
                if str(params) not in at:
                    filters = make_filters("guided", tuple(params), spectra.s_x, spectra.s_y)
                    at[str(params)] = weighted_ranks(*canonical(spectra, filters, x, y), pairing, pairs)
                ranks = at[str(params)][task][which]
                found[name][task] = {**summary(ranks), "params": params}
                found[name]["query_ranks"][task] = [ranks]
        return {"rows": found}

    inputs = {"pairs": pairs, "best": best, "test": digest(setting.run.test)}
    return setting.remember(
        "weighting table", TABLE_VERSION, (setting.image, setting.mean_words), inputs, compute
    )


def _named(pairs: tuple[Pair, ...]) -> dict[str, dict[Task, int]]:
    """Rows of the table: which weighting each task takes."""
    first = len(pairs) - len(SYMMETRIC)
    rows: dict[str, dict[Task, int]] = {
        f"symmetric α = {a}{' (CCA)' if a == 0 else ''}": dict.fromkeys(TASKS, first + a)
        for a in range(len(SYMMETRIC))
    }
    rows["search generation"] = {task: pairs.index(ASYMMETRIC[task][::-1]) for task in TASKS}
    rows["asymmetric (task dependent)"] = {task: pairs.index(ASYMMETRIC[task]) for task in TASKS}
    return rows


def jobs(setting: Setting) -> list[Job]:
    """The sweep, and the test of what it chose."""
    return [
        Job("weighting: sweep", lambda: _swept(setting)),
        Job("weighting: test", lambda: _tested(setting)),
    ]


def show(setting: Setting, results: Results) -> list[Part]:
    """The table, published figures beside ours."""
    theirs = published("weighting/coco-5k")
    body: list[Row | list[Any]] = [
        head_row(f"Ours: {setting.materials.title}, {setting.image.name}, mean word vectors")
    ]
    for name, row in results["weighting: test"]["rows"].items():
        body.append([name, *recall_cells(row, median=False)])
    body.append(head_row(f"Published: {theirs.setting}"))
    body += [published_row([row.method], row.values) for row in theirs.rows]
    return [
        "Embeddings (Σ^α Uᵀx, Σ^α Vᵀy) for α = 0 to 6, against the task-dependent asymmetric weighting: Σ on "
        "the images for search, on the captions for annotation. For every weighting, k is chosen by r@1 on "
        "validation images by truncated SVD, and the model is guided Tikhonov there.",
        recall_table("weighting", ["weighting"], body, median=False),
    ]


def tables(results: Results) -> dict[str, Table]:
    """Test scores of every weighting."""
    rows = results["weighting: test"]["rows"]
    return {
        "weighting": [
            {"weighting": name, **{k: v for k, v in recall_record(row).items() if "params" not in k}}
            for name, row in rows.items()
        ]
    }


def curve(setting_alphas: int, swept: Result) -> dict[str, list[float]]:
    """α and the best validation r@10 of both tasks."""
    path = path_between(setting_alphas)
    found: dict[str, list[float]] = {"alpha": [a for a, _ in path]}
    for task in TASKS:
        found[task] = [entry["score"] for entry in swept[f"{task} 10"][: len(path)]]
    return found


def _generation(setting: Setting) -> Result:
    """The curve, and the ranks of the validation queries at each α's best truncated SVD by r@10."""
    pairs, best = path_between(setting.options.alphas), _swept(setting)

    def compute() -> Result:
        image, text = setting.image, setting.mean_words
        spectra = setting.spectra(image, text)
        x, y, pairing = setting.views(image, text, setting.run.validation)
        at: dict[tuple[int, int], dict[Task, Any]] = {}
        ranks: dict[str, list[Any]] = {task: [] for task in TASKS}
        for task in TASKS:
            for which in range(len(pairs)):
                k_x, k_y = best[f"{task} 10"][which]["params"]
                if (k_x, k_y) not in at:
                    embedded = canonical(spectra, (TruncatedSVD(k_x), TruncatedSVD(k_y)), x, y)
                    at[k_x, k_y] = weighted_ranks(*embedded, pairing, pairs)
                ranks[task].append(at[k_x, k_y][task][which])
        return {"curve": curve(setting.options.alphas, best), "query_ranks": ranks}

    chosen = {task: best[f"{task} 10"][: len(pairs)] for task in TASKS}
    inputs = {"pairs": pairs, "best": chosen, "validation": digest(setting.run.validation)}
    return setting.remember("generation curve", VERSION, (setting.image, setting.mean_words), inputs, compute)


def _show_generation(setting: Setting, results: Results) -> list[Part]:
    found = results["generation: curve"]["curve"]
    last = len(found["alpha"]) - 1
    return [
        "r@10 on the validation images for image embeddings Σ^α Uᵀx and caption embeddings Σ^(1−α) Vᵀy, each "
        f"α with its own best truncated SVD ({setting.image.name}, mean word vectors). Query generation is "
        "α = 1 for search and α = 0 for annotation. Filters are chosen on the same images, as in the paper.",
        figure(
            draw_generation_curve(found),
            f"Search: {found['search'][last]:.1f} at α = 1, {found['search'][0]:.1f} at α = 0. Annotation: "
            f"{found['annotate'][0]:.1f} at α = 0, {found['annotate'][last]:.1f} at α = 1.",
            "Validation r@10 against α for both tasks",
        ),
    ]


def _generation_tables(results: Results) -> dict[str, Table]:
    found = results["generation: curve"]["curve"]
    return {
        "generation": [
            {"alpha": a, **{f"{task} r@10 (validation)": found[task][i] for task in TASKS}}
            for i, a in enumerate(found["alpha"])
        ]
    }


WEIGHTING = Experiment("weighting", "Weighting: symmetric against asymmetric", jobs, show, tables)
GENERATION = Experiment(
    "generation",
    "Query generation against search generation",
    lambda setting: [Job("generation: curve", lambda: _generation(setting))],
    _show_generation,
    _generation_tables,
)
