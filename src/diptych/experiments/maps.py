"""Experiment 6: maps of r@1 over dense grids, for truncated SVD and for Tikhonov."""

from __future__ import annotations

import numpy as np

from diptych.cca import Spectra
from diptych.cca.selection import Grid, Problem, make_grid, regularization_path
from diptych.checks import TASKS, Task
from diptych.experiments.cache import Result, digest
from diptych.experiments.experiment import Experiment, Job, Results, Table
from diptych.experiments.setting import Setting
from diptych.ranking import metric
from diptych.report.page import Html, figure, table
from diptych.report.regularization import draw_regularization_maps

VERSION = 1
WORDS = {"search": "search", "annotate": "annotate", "packs": "annotate with packs of captions"}


def dense_grids(spectra: Spectra, shape: tuple[int, int]) -> tuple[Grid, Grid]:
    """Ranks k from 10 % to 100 % of the rank on both sides, and Tikhonov's γ = σ²_k at the same places."""
    ks = [
        np.unique(np.linspace(max(1, rank / 10), rank, points).round())
        for rank, points in zip(spectra.ranks, shape, strict=True)
    ]
    gammas = [s[k.astype(int) - 1] ** 2 for s, k in zip((spectra.s_x, spectra.s_y), ks, strict=True)]
    return make_grid("tsvd", tuple(ks), spectra), make_grid("tikhonov", tuple(gammas), spectra)


def _mapped(setting: Setting, packs: bool) -> Result:
    image, text = setting.image, setting.hkse

    def compute() -> Result:
        spectra = setting.spectra(image, text)
        problem = setting.problem(image, text, setting.run.validation, packs=packs)
        tasks: tuple[Task, ...] = ("annotate",) if packs else TASKS
        maps = _maps(problem, spectra, setting.options.map_shape, tasks)
        return {"packs" if packs else task: maps[task] for task in tasks}

    inputs = {"shape": setting.options.map_shape, "packs": packs, "rows": digest(setting.run.validation)}
    return setting.remember(f"maps packs {packs}", VERSION, (image, text), inputs, compute)


def _maps(
    problem: Problem, spectra: Spectra, shape: tuple[int, int], tasks: tuple[Task, ...]
) -> dict[Task, Result]:
    hard, soft = dense_grids(spectra, shape)
    # The truncated SVD's grid is nested and exact; Tikhonov's is screened where that pays.
    paths = {
        "tsvd": regularization_path(problem, spectra, hard, metric("r@1"), route="exact"),
        "tikhonov": regularization_path(problem, spectra, soft, metric("r@1")),
    }
    return {
        task: {
            "k_x": hard.x,
            "k_y": hard.y,
            "gamma_x": soft.x,
            "gamma_y": soft.y,
            **{name: path.scores[task]["r@1"].round(3) for name, path in paths.items()},
            "choice": {name: path.choice[task] for name, path in paths.items()},
            "route": paths["tikhonov"].route,
            "verified": int(paths["tikhonov"].exact[task].sum()),
        }
        for task in tasks
    }


def agreement(found: Result) -> dict[str, float]:
    """Where the truncated SVD's choice stands on Tikhonov's map.

    ``above`` is the share of Tikhonov's map that is below it (percent), ``loss`` what it gives away in r@1,
    ``correlation`` that of the two maps.
    """
    soft, hard = np.array(found["tikhonov"], dtype=float), np.array(found["tsvd"], dtype=float)
    at = soft[tuple(found["choice"]["tsvd"])]
    correlation = np.corrcoef(soft.ravel(), hard.ravel())[0, 1] if soft.std() and hard.std() else 0.0
    return {
        "above": float(100 * np.mean(soft < at)),
        "loss": float(soft.max() - at),
        "correlation": float(correlation),
    }


def _jobs(setting: Setting) -> list[Job]:
    return [
        Job("maps: search and annotate", lambda: _mapped(setting, packs=False)),
        Job("maps: packs", lambda: _mapped(setting, packs=True)),
    ]


def all_maps(results: Results) -> dict[str, Result]:
    """The maps by task, packs last."""
    return {name: found for result in results.values() for name, found in result.items()}


def _show(setting: Setting, results: Results) -> list[str | Html]:
    maps = all_maps(results)
    shape = " × ".join(map(str, np.shape(next(iter(maps.values()))["tsvd"])))
    parts: list[str | Html] = [
        f"r@1 on the validation images over a {shape} grid from 10 % to 100 % of the rank of either view "
        f"({setting.image.name}, {setting.hkse.name}), for truncated SVD at (k_x, k_y) and for Tikhonov at "
        "(γ_x, γ_y) = (σ²_kx, σ²_ky), so that both maps share their places. A pack is all captions of one "
        "image, represented by their mean; the models are trained on single captions.",
    ]
    for name, found in maps.items():
        parts.append(
            figure(
                draw_regularization_maps(found),
                f"{WORDS[name].capitalize()}. ○ the best of each map; × on Tikhonov's, the choice of "
                "truncated SVD. " + _exactness(found),
                f"Heat maps of r@1 for {WORDS[name]}",
                raster=True,
            )
        )
    rows = [[WORDS[name], *agreement(found).values()] for name, found in maps.items()]
    columns = ["task", "Tikhonov's map below T-SVD's choice, %", "r@1 given away", "correlation of the maps"]
    return [*parts, table(columns, rows)]


def _exactness(found: Result) -> str:
    if found["route"] != "screened":
        return "Both maps are exact."
    points = int(np.size(found["tikhonov"]))
    return (
        f"T-SVD's map is exact; on Tikhonov's, {found['verified']} of {points} points, the best among them, "
        "are verified, and the others are upper bounds that are nearly always the value itself."
    )


def _tables(results: Results) -> dict[str, Table]:
    return {
        "maps": [
            {
                "task": name,
                "k_x": int(k_x),
                "k_y": int(k_y),
                "T-SVD r@1": found["tsvd"][i][j],
                "Tikhonov r@1": found["tikhonov"][i][j],
            }
            for name, found in all_maps(results).items()
            for i, k_x in enumerate(found["k_x"])
            for j, k_y in enumerate(found["k_y"])
        ]
    }


MAPS = Experiment("maps", "Regularisation paths", _jobs, _show, _tables)
