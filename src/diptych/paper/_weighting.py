"""Experiments 2 and 3: which power of the correlations Σ to put on each side."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import group_max
from diptych._checks import TASKS, Task
from diptych._threads import map_parallel
from diptych.cca import Spectra, TruncatedSVD, regularized_cca
from diptych.cca._filters import AnyFilter, make_filters
from diptych.cca._weighting import project
from diptych.cca.selection import make_grid
from diptych.cca.selection._exact import Truths, count_others, own_scores
from diptych.cca.selection._problem import Problem, Weights
from diptych.paper._experiment import Experiment, Jobs, Part, Records, Results
from diptych.paper._features import Features, Floats, Result, Rows, digest
from diptych.paper._figures import draw_generation_curve
from diptych.paper._setting import Setting
from diptych.paper._tables import head_row, published, published_row, recall_cells, recall_table
from diptych.ranking import mean_recall, recall_at_k, summary
from diptych.ranking._ranks import Truth, tie_slack
from diptych.report._page import Row, figure

Powers: TypeAlias = tuple[float, float]
"""Powers of Σ on the image vectors and on the caption vectors."""

SYMMETRIC: tuple[Powers, ...] = tuple((float(a), float(a)) for a in range(7))
ASYMMETRIC: dict[Task, Powers] = {"search": (1.0, 0.0), "annotate": (0.0, 1.0)}
"""Query generation: Σ on the side that is searched."""


def canonical_vectors(
    spectra: Spectra, filters: tuple[AnyFilter, AnyFilter], x: Floats, y: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the unweighted canonical vectors of both views, and the canonical correlations."""
    model = regularized_cca(spectra, *filters)
    u, v = project(x, spectra.x_mean, model.x_weights), project(y, spectra.y_mean, model.y_weights)
    return u, v, np.asarray(model.correlations)


def weighted_ranks(
    u: Floats, v: Floats, correlations: Floats, pairing: Any, pairs: Sequence[Powers]
) -> dict[Task, Floats]:
    r"""Rank both tasks by cosine for each pair of powers (a on X, b on Y): weightings × queries.

    With unweighted canonical vectors u and v, the weighting (Σ^a, Σ^b) compares

    .. math:: \frac{u^\top \Sigma^{a+b} v}{\|\Sigma^a u\|} \quad\text{(search)}, \qquad
              \frac{u^\top \Sigma^{a+b} v}{\|\Sigma^b v\|} \quad\text{(annotate)};

    the norm of the query is constant and changes no rank. The numerator depends on a + b alone, so every
    point of the path (α, 1 − α) shares one product, and one SVD serves all weightings.
    """
    truth = Truth.of(np.asarray(pairing), len(u))
    # Weightings with the same a + b are neighbours, so that their numerator is computed once.
    order = sorted(range(len(pairs)), key=lambda i: sum(pairs[i]))
    weights = Weights.of(np.stack([correlations ** sum(pairs[i]) for i in order]), u)
    problem = Problem(u, v, np.empty((0, 0), dtype=u.dtype), truth, "cosine")
    own = own_scores(problem, u, weights)
    search_scale, annotate_scale = (
        _inverse_norms(view, np.stack([correlations ** (2 * pairs[i][side]) for i in order]))
        for side, view in enumerate((u, v))
    )
    own_annotate = own * annotate_scale
    best = group_max(own_annotate.T, truth.pairing, truth.n_images).T
    best = np.where(best == -np.inf, np.inf, best)
    # The norms of one task's queries are those of the other task's items.
    search_slack = tie_slack(1.0 / annotate_scale, 1.0, u.shape[1])
    annotate_slack = tie_slack(1.0 / search_scale, 1.0, u.shape[1])
    search_truth = own * search_scale[:, truth.pairing]
    finite = np.ones(len(pairs), dtype=bool)
    truths = Truths(search_scale, annotate_scale, search_truth, search_slack, best, annotate_slack, finite)
    search, annotate = count_others(problem, u, weights, truths)
    back = np.argsort(order)
    return {"search": 1 + search[back], "annotate": 1 + annotate[back][:, truth.described]}


def _inverse_norms(view: Floats, squares: Floats) -> Floats:
    norms = np.sqrt(squares.astype(view.dtype) @ (view * view).T)
    return np.asarray(1.0 / np.where(norms > 0, norms, 1.0), dtype=view.dtype)


def sweep(
    setting: Setting, image: Features, text: Features, validation: Rows, pairs: Sequence[Powers], grid: Any
) -> Result:
    """Find for every weighting the truncated SVD that is best on validation images, by r@1 and by r@10."""

    def compute() -> Result:
        spectra = setting.spectra(image, text)
        x, y, pairing = setting.views(image, text, validation)
        ks = make_grid("tsvd", grid, spectra)
        points = [(int(k_x), int(k_y)) for k_x in ks.x for k_y in ks.y]

        def score(point: tuple[int, int]) -> dict[Task, list[tuple[float, ...]]]:
            vectors = canonical_vectors(spectra, (TruncatedSVD(point[0]), TruncatedSVD(point[1])), x, y)
            ranks = weighted_ranks(*vectors, pairing, pairs)
            return {
                task: [(recall_at_k(r, 1), recall_at_k(r, 10), mean_recall(r)) for r in ranks[task]]
                for task in TASKS
            }

        # Small SVDs gain nothing from several threads, so whole points run in parallel.
        scores = map_parallel(score, points, x)

        def best(task: Task, which: int, column: int) -> Result:
            own = [each[task][which] for each in scores]
            # Ties go to the better mean recall, then to the stronger regularisation.
            i = max(range(len(points)), key=lambda i: (own[i][column], own[i][2], -sum(points[i])))
            return {"score": own[i][column], "params": points[i]}

        return {
            f"{task} {k}": [best(task, which, column) for which in range(len(pairs))]
            for task in TASKS
            for column, k in enumerate((1, 10))
        }

    inputs = {"pairs": pairs, "grid": grid, "validation": digest(validation)}
    return setting.fetch("weighting sweep", (image, text), inputs, compute)


def _path(setting: Setting) -> tuple[Powers, ...]:
    """Return (α, 1 − α) for α from 0 to 1."""
    return tuple((float(a), float(1 - a)) for a in np.linspace(0, 1, setting.options.alphas).round(6))


def _sweep_all(setting: Setting) -> Result:
    """Sweep the weightings of both experiments together: one SVD per grid point serves them all."""
    pairs = (*_path(setting), *SYMMETRIC)
    grid = ("rank", setting.options.grid)
    return sweep(setting, setting.image, setting.mean_words, setting.run.validation, pairs, grid)


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
        x, y, pairing = setting.views(setting.image, setting.mean_words, setting.run.test)

        @cache
        def ranks_at(k_x: int, k_y: int) -> dict[Task, Floats]:
            filters = make_filters("guided", (k_x, k_y), spectra.s_x, spectra.s_y)
            return weighted_ranks(*canonical_vectors(spectra, filters, x, y), pairing, pairs)

        rows: dict[str, Result] = {}
        for name, by_task in weightings.items():
            rows[name] = {"query_ranks": {}}
            for task, which in by_task.items():
                params = best[f"{task} 1"][which]["params"]
                ranks = ranks_at(*params)[task][which]
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
        x, y, pairing = setting.views(setting.image, setting.mean_words, setting.run.validation)

        @cache
        def ranks_at(k_x: int, k_y: int) -> dict[Task, Floats]:
            vectors = canonical_vectors(spectra, (TruncatedSVD(k_x), TruncatedSVD(k_y)), x, y)
            return weighted_ranks(*vectors, pairing, pairs)

        ranks = {
            task: [ranks_at(*each["params"])[task][which] for which, each in enumerate(choice[task])]
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
    "weighting", "Weighting: symmetric against asymmetric", _weighting_jobs, _show_weighting
)
GENERATION = Experiment(
    "generation",
    "Query generation against search generation",
    lambda setting: {"curve": partial(_generation, setting)},
    _show_generation,
    _generation_tables,
)
