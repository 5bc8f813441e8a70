"""Experiment 6: maps of r@1 over dense grids, for truncated SVD and for Tikhonov."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from diptych._checks import TASKS, Task
from diptych.cca import Spectra
from diptych.cca.selection import Grid, Problem, make_grid, make_weights
from diptych.cca.selection._path import exact_points
from diptych.paper._bootstrap import Interval, draw_images, interval
from diptych.paper._cache import Result, digest
from diptych.paper._experiment import Experiment, Job, Part, Results, Table
from diptych.paper._setting import Setting
from diptych.paper._sources import Floats
from diptych.paper._tables import ReportTable
from diptych.ranking import mean_recall
from diptych.report._figures import draw_regularization_maps
from diptych.report._page import figure

VERSION = 2
WORDS = {"search": "search", "annotate": "annotate", "packs": "annotate with packs of captions"}


PAPER_RANKS = ((400, 4000, 100), (200, 2000, 20))
"""First and last rank and the step of the paper's maps, for images (VGG-19, 4096) and texts (HKSE, 2000)."""
FEWEST = 4
"""With fewer of the paper's ranks than these within reach, the map takes shares of the rank instead."""


def dense_grids(spectra: Spectra, shape: tuple[int, int]) -> tuple[Grid, Grid]:
    """Ranks k of both sides, and Tikhonov's γ = σ²_k at the same places."""
    ks = [
        map_ranks(rank, points, *values)
        for rank, points, values in zip(spectra.ranks, shape, PAPER_RANKS, strict=True)
    ]
    gammas = [s[k.astype(int) - 1] ** 2 for s, k in zip((spectra.s_x, spectra.s_y), ks, strict=True)]
    return make_grid("tsvd", tuple(ks), spectra), make_grid("tikhonov", tuple(gammas), spectra)


def map_ranks(rank: int, points: int, first: int, last: int, step: int) -> Floats:
    """The paper's ranks that the features reach, or shares of the rank; at most ``points`` of them.

    >>> map_ranks(2048, 37, 400, 4000, 100)[[0, -1]]
    array([ 400., 2000.])
    >>> map_ranks(300, 4, 400, 4000, 100)
    array([ 30., 120., 210., 300.])
    """
    values = np.arange(first, min(last, rank) + 1, step, dtype=float)
    if len(values) < FEWEST:
        values = np.linspace(max(1.0, rank / 10), rank, points)
    places = np.linspace(0, len(values) - 1, min(points, len(values))).round().astype(int)
    return np.unique(values[places].round())


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
    scored = {
        "tsvd": _score(problem, spectra, hard, tasks),
        "tikhonov": _score(problem, spectra, soft, tasks),
    }
    return {
        task: {
            "k_x": hard.x,
            "k_y": hard.y,
            "gamma_x": soft.x,
            "gamma_y": soft.y,
            **{name: each[task].recall.round(3) for name, each in scored.items()},
            "choice": {name: each[task].best for name, each in scored.items()},
            "above": asdict(_resampled_share(scored["tsvd"][task], scored["tikhonov"][task])),
        }
        for task in tasks
    }


@dataclass(frozen=True, eq=False)
class Scored:
    """r@1 over a grid, the best point, and what each image adds to it.

    Attributes
    ----------
    recall
        x values × y values.
    best
        The point of the highest r@1; ties go to the higher mean recall, then to the stronger regularisation.
    hits
        Points × images: the share of an image's queries that are answered right.
    """

    recall: Floats
    best: tuple[int, int]
    hits: Floats


def _score(problem: Problem, spectra: Spectra, grid: Grid, tasks: tuple[Task, ...]) -> dict[Task, Scored]:
    """Score every point of a grid exactly, for each task."""
    n = len(problem.a)
    owners = {"search": problem.truth.pairing, "annotate": problem.truth.described}
    recall = {task: np.full(grid.shape, -1.0) for task in tasks}
    tie = {task: np.zeros(grid.shape) for task in tasks}
    hits = {task: np.zeros((*grid.shape, n), dtype=np.float32) for task in tasks}
    for i, j, ranks in exact_points(problem, make_weights(problem, spectra, grid)):
        for task in tasks if ranks else ():
            right = ranks[task] <= 1
            recall[task][i, j] = 100.0 * right.mean()
            tie[task][i, j] = mean_recall(ranks[task])
            hits[task][i, j] = np.bincount(owners[task], right, n)
    found = {}
    for task in tasks:
        order = np.lexsort((np.arange(recall[task].size)[::-1], tie[task].ravel(), recall[task].ravel()))
        best = np.unravel_index(order[-1], grid.shape)
        found[task] = Scored(recall[task], (int(best[0]), int(best[1])), hits[task].reshape(-1, n))
    return found


def _resampled_share(hard: Scored, soft: Scored) -> Interval:
    """Percent of Tikhonov's map below T-SVD's choice; both maps and the choice anew in each resample."""
    value = 100.0 * np.mean(soft.recall < soft.recall[hard.best])
    shares = []
    for weights in np.array_split(draw_images(hard.hits.shape[1]), 20):
        hard_sums, soft_sums = (weights.astype(np.float32) @ each.hits.T for each in (hard, soft))
        at = np.take_along_axis(soft_sums, hard_sums.argmax(axis=1)[:, None], axis=1)
        # Whole numbers of hits, summed in float32.
        shares.append(100.0 * np.mean(soft_sums < at - 0.5, axis=1))
    return interval(float(value), np.concatenate(shares))


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


def _show(setting: Setting, results: Results) -> list[Part]:
    maps = all_maps(results)
    first = next(iter(maps.values()))
    shape = " × ".join(map(str, np.shape(first["tsvd"])))
    parts: list[Part] = [
        f"r@1 on the validation images over a {shape} grid ({setting.image.name}, {setting.hkse.name}), for "
        "truncated SVD at (k_x, k_y) and for Tikhonov at (γ_x, γ_y) = (σ²_kx, σ²_ky), so that both maps "
        f"share their places. {_range_words(first)} Every point is exact. A pack is all captions of one "
        "image, represented by their mean; the models are trained on single captions.",
    ]
    for name, found in maps.items():
        parts.append(
            figure(
                draw_regularization_maps(found),
                f"{WORDS[name].capitalize()}. ○ the best of each map; × on Tikhonov's, the choice of "
                f"truncated SVD.{_edge_words(found)}",
                f"Heat maps of r@1 for {WORDS[name]}",
                raster=True,
            )
        )
    rows = []
    for name, found in maps.items():
        above = found["above"]
        between = f"{above['value']:.0f} [{above['low']:.0f}, {above['high']:.0f}]"
        rows.append([WORDS[name], between, *list(agreement(found).values())[1:]])
    columns = ["task", "Tikhonov's map below T-SVD's choice, %", "r@1 given away", "correlation of the maps"]
    note = "In brackets, 95 % of the resamples of the validation images, T-SVD's choice made anew in each."
    return [*parts, ReportTable("maps_agreement", columns, rows, note=note)]


def _edge_words(found: Result) -> str:
    """Which of the best points lie at the edge of the map, where a better one may lie beyond it."""
    last = [size - 1 for size in np.shape(found["tsvd"])]
    names = {"tsvd": "T-SVD's", "tikhonov": "Tikhonov's"}
    at_edge = [
        name
        for kind, name in names.items()
        if any(place in (0, end) for place, end in zip(found["choice"][kind], last, strict=True))
    ]
    return f" The best of {' and of '.join(at_edge)} map lies at its edge." if at_edge else ""


def _range_words(found: Result) -> str:
    parts, short = [], []
    for side, view, (first, last, step) in zip("xy", ("images", "texts"), PAPER_RANKS, strict=True):
        ks = found[f"k_{side}"]
        parts.append(f"k_{side} runs from {ks[0]:.0f} to {ks[-1]:.0f} in {len(ks)} steps")
        if ks[0] != first or ks[-1] != last or len(ks) != (last - first) // step + 1:
            short.append(f"{first} to {last} by {step} for {view}")
    words = " and ".join(parts) + ". "
    if not short:
        return words + "These are the paper's values."
    return words + (
        f"The paper's run from {' and from '.join(short)}: values beyond the rank of these features are left "
        "out, and where hardly any are left (or --quick thins them), others take their place."
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
