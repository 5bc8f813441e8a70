"""Table 2 and Figure 2: which power of the correlations Σ to put on each side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from diptych.cca.selection import Grid, best_point, make_grid, make_weights, textbook_ranks
from diptych.ranking import recall_at_k, summary
from diptych.report import Row, figure
from reproduction.experiment import Experiment, Jobs, Part, Records, Results, make_point
from reproduction.features import Features
from reproduction.figures import draw_generation_curve
from reproduction.published import published
from reproduction.results import TASKS, Floats, Result, Rows, Task, digest
from reproduction.setting import Setting
from reproduction.tables import head_row, published_row, recall_cells, recall_table

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

        return {f"{task} {k}": [choose(each) for each in values] for (task, k), values in recalls.items()}

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
        spectra = setting.spectra(setting.image, setting.mean_words)

        @cache
        def ranks_at(k_x: int, k_y: int) -> list[dict[Task, Floats]]:
            point = make_point(spectra, "guided", (k_x, k_y))
            return rank_weightings(setting, setting.mean_words, setting.run.test, point, pairs, (0, 0))

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


def _show_weighting(setting: Setting, results: Results) -> list[Part]:
    theirs = published("weighting/coco-5k")
    body: list[Row | list[Any]] = [
        head_row(f"Ours: {setting.data.title}, {setting.image.name}, mean word vectors")
    ]
    body += [[name, *recall_cells(row, median=False)] for name, row in results["test"]["rows"].items()]
    body.append(head_row(f"Published: {theirs.setting}"))
    body += [published_row([row.method], row.values) for row in theirs.rows]
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
        spectra = setting.spectra(setting.image, setting.mean_words)

        @cache
        def ranks_at(k_x: int, k_y: int) -> list[dict[Task, Floats]]:
            point = make_point(spectra, "tsvd", (k_x, k_y))
            rows = setting.run.validation
            return rank_weightings(setting, setting.mean_words, rows, point, pairs, (0, 0))

        ranks = {
            task: [ranks_at(*each["params"])[which][task] for which, each in enumerate(choice[task])]
            for task in TASKS
        }
        scores = {task: [each["score"] for each in choice[task]] for task in TASKS}
        return {"curve": {"alpha": [a for a, _ in pairs], **scores}, "query_ranks": ranks}

    inputs = {"pairs": pairs, "best": choice}
    return setting.fetch("generation curve", (setting.image, setting.mean_words), inputs, compute)


def _show_generation(setting: Setting, results: Results) -> list[Part]:
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


def _generation_tables(results: Results) -> dict[str, Records]:
    curve = results["curve"]["curve"]
    return {
        "generation": [
            {"alpha": a, **{f"{task} r@10 (validation)": curve[task][i] for task in TASKS}}
            for i, a in enumerate(curve["alpha"])
        ]
    }


WEIGHTING = Experiment(
    "weighting", ("Table 2",), "Weighting: symmetric against asymmetric", _weighting_jobs, _show_weighting
)
GENERATION = Experiment(
    "generation",
    ("Figure 2",),
    "Query generation against search generation",
    lambda setting: {"curve": partial(_generation, setting)},
    _show_generation,
    _generation_tables,
)
