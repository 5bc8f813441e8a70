"""Figures 4 to 6 and Figure 1: maps of r@1 over dense grids, and the selected filters on the real spectra."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from diptych.cca import Spectra, g_hard, g_soft
from diptych.cca.selection import Grid, Problem, best_point, exact_points, make_grid, make_weights
from diptych.report import figure
from reproduction.experiment import (
    BLUE,
    GREEN,
    VERMILLION,
    Content,
    Experiment,
    Jobs,
    Kind,
    Results,
    finish_axes,
    guided_gammas,
    new_figure,
    select,
)
from reproduction.results import TASKS, Floats, Result, Task
from reproduction.setting import Setting
from reproduction.tables import ReportTable
from reproduction.verdicts import Interval, draw_images, make_intervals

TITLES = {"search": "search", "annotate": "annotate", "packs": "annotate with packs of captions"}
PAPER_RANKS = ((400, 4000, 100), (200, 2000, 20))
"""First rank, last rank and step of the paper's maps, for images (VGG-19, 4096) and texts (HKSE, 2000)."""
FEWEST_RANKS = 4
"""If the features reach fewer of the paper's ranks, the map uses fractions of their rank instead."""
THRESHOLD = 20.0
"""The threshold α at which the paper draws its two filters."""
SINGULAR_VALUES = 400
"""So many singular values are stored and drawn, evenly spaced in rank."""


def dense_grids(spectra: Spectra, shape: tuple[int, int]) -> tuple[Grid, Grid]:
    """Return a grid of ranks k for truncated SVD, and Tikhonov's grid γ = σ²_k at the same places."""
    ks = [
        map_ranks(rank, points, *ranks)
        for rank, points, ranks in zip(spectra.ranks, shape, PAPER_RANKS, strict=True)
    ]
    gammas = [s[k.astype(int) - 1] ** 2 for s, k in zip((spectra.s_x, spectra.s_y), ks, strict=True)]
    return make_grid("tsvd", tuple(ks), spectra), make_grid("tikhonov", tuple(gammas), spectra)


def map_ranks(rank: int, points: int, first: int, last: int, step: int) -> Floats:
    """Return at most ``points`` of the paper's ranks that the features reach, or fractions of their rank.

    >>> map_ranks(2048, 37, 400, 4000, 100)[[0, -1]]
    array([ 400., 2000.])
    >>> map_ranks(300, 4, 400, 4000, 100)
    array([ 30., 120., 210., 300.])
    """
    values = np.arange(first, min(last, rank) + 1, step, dtype=float)
    if len(values) < FEWEST_RANKS:
        values = np.linspace(max(1.0, rank / 10), rank, points)
    places = np.linspace(0, len(values) - 1, min(points, len(values))).round().astype(int)
    return np.unique(values[places].round())


def _compute_maps(setting: Setting, packs: bool) -> Result:
    image, text, shape = setting.image, setting.hkse, setting.options.map_shape

    def compute() -> Result:
        spectra = setting.spectra(image, text)
        problem = setting.problem(image, text, setting.run.validation, packs=packs)
        tasks: tuple[Task, ...] = ("annotate",) if packs else TASKS
        tsvd, tikhonov = dense_grids(spectra, shape)
        hard, soft = (_score_grid(problem, spectra, grid, tasks) for grid in (tsvd, tikhonov))
        return {
            "packs" if packs else task: {
                "k_x": tsvd.x,
                "k_y": tsvd.y,
                "gamma_x": tikhonov.x,
                "gamma_y": tikhonov.y,
                "tsvd": hard[task].recall.round(3),
                "tikhonov": soft[task].recall.round(3),
                "choice": {"tsvd": hard[task].best, "tikhonov": soft[task].best},
                "resampled": _resample_share(hard[task], soft[task]).round(3),
            }
            for task in tasks
        }

    return setting.fetch(f"maps packs {packs}", (image, text), {"shape": shape, "packs": packs}, compute)


@dataclass(frozen=True, eq=False)
class _GridScores:
    """Scores of a grid: ``recall`` (r@1) over x × y, the ``best`` point, and ``hits``, points × images."""

    recall: Floats
    best: tuple[int, ...]
    hits: Floats


def _score_grid(
    problem: Problem, spectra: Spectra, grid: Grid, tasks: tuple[Task, ...]
) -> dict[Task, _GridScores]:
    """Score every point of a grid exactly, for each task."""
    n = len(problem.a)
    owners = {"search": problem.truth.pairing, "annotate": problem.truth.described}
    recall = {task: np.full(grid.shape, -1.0) for task in tasks}
    hits = {task: np.zeros((*grid.shape, n), dtype=np.float32) for task in tasks}
    for i, j, ranks in exact_points(problem, make_weights(problem, spectra, grid)):
        for task in tasks if ranks else ():
            right = ranks[task] <= 1
            recall[task][i, j] = 100.0 * right.mean()
            hits[task][i, j] = np.bincount(owners[task], right, n)
    return {
        task: _GridScores(recall[task], best_point(recall[task]), hits[task].reshape(-1, n)) for task in tasks
    }


def _resample_share(hard: _GridScores, soft: _GridScores) -> Floats:
    """Return the percentage of Tikhonov's map below T-SVD's choice in each resample, which chooses again."""
    shape, shares = hard.recall.shape, []
    for weights in np.array_split(draw_images(hard.hits.shape[1]), 20):
        hard_sums, soft_sums = (weights.astype(np.float32) @ scores.hits.T for scores in (hard, soft))
        chosen = [np.ravel_multi_index(best_point(sums.reshape(shape)), shape) for sums in hard_sums]
        at = np.take_along_axis(soft_sums, np.array(chosen)[:, None], axis=1)
        # The sums are whole numbers of hits; half a hit is more than the rounding of float32.
        shares.append(100.0 * np.mean(soft_sums < at - 0.5, axis=1))
    return np.concatenate(shares)


def shares_below(results: Results) -> dict[str, Interval]:
    """Return for each task the percentage of Tikhonov's map below T-SVD's choice, with its intervals."""
    maps = maps_by_task(results)
    values = [agreement(task_maps)["above"] for task_maps in maps.values()]
    resampled = [task_maps["resampled"] for task_maps in maps.values()]
    return dict(zip(maps, make_intervals(values, resampled), strict=True))


def agreement(maps: Result) -> dict[str, float]:
    """Compare the two maps of a task.

    ``above`` is the percentage of Tikhonov's map below T-SVD's choice, ``loss`` what this choice costs in
    r@1, ``correlation`` that of the two maps.
    """
    soft, hard = np.array(maps["tikhonov"], dtype=float), np.array(maps["tsvd"], dtype=float)
    at = soft[tuple(maps["choice"]["tsvd"])]
    correlation = np.corrcoef(soft.ravel(), hard.ravel())[0, 1] if soft.std() and hard.std() else 0.0
    return {
        "above": float(100 * np.mean(soft < at)),
        "loss": float(soft.max() - at),
        "correlation": float(correlation),
    }


def _map_jobs(setting: Setting) -> Jobs:
    return {
        "search and annotate": partial(_compute_maps, setting, packs=False),
        "packs": partial(_compute_maps, setting, packs=True),
    }


def maps_by_task(results: Results) -> dict[str, Result]:
    """Return the maps of search, annotate and packs."""
    return {task: maps for result in results.values() for task, maps in result.items()}


MOST_LABELS = 6


def draw_maps(maps: Mapping[str, Any]) -> Any:
    """Draw the maps of truncated SVD and of Tikhonov over the same places, each with its own colour scale.

    ``maps`` has ``tsvd`` and ``tikhonov``, scores over ``k_x`` × ``k_y``, and ``choice``, the best place of
    each.
    """
    figure = new_figure(8.4, 3.5)
    panels = figure.subplots(1, 2, sharey=True)
    titles = {"tsvd": "truncated SVD at $(k_x, k_y)$", "tikhonov": "Tikhonov at $(σ^2_{k_x}, σ^2_{k_y})$"}
    for axes, (name, title) in zip(panels, titles.items(), strict=True):
        scores = np.array(maps[name], dtype=float)
        # A few very low corners would use up the colours; the differences that matter are near the top.
        low = float(np.quantile(scores, 0.05))
        heat_map = axes.imshow(scores.T, origin="lower", aspect="auto", cmap="viridis", vmin=low)
        if name == "tikhonov":
            i, j = maps["choice"]["tsvd"]
            axes.plot(i, j, marker="X", markersize=9, color="white", markeredgecolor="black", clip_on=False)
        # A ring in two colours is visible on every background; at a border it is half outside.
        for size, color, width in ((9, "white", 2), (12, "black", 1)):
            ring = {"markersize": size, "fillstyle": "none", "color": color, "markeredgewidth": width}
            axes.plot(*maps["choice"][name], marker="o", clip_on=False, **ring)
        axes.set_title(f"{title}\nbest r@1 {scores[tuple(maps['choice'][name])]:.1f}", fontsize=9)
        _label_axis(axes, "x", maps["k_x"], "$k_x$, images")
        if name == "tsvd":
            _label_axis(axes, "y", maps["k_y"], "$k_y$, texts")
        bar = figure.colorbar(heat_map, ax=[axes])
        bar.set_label("r@1", fontsize=9)
        bar.ax.tick_params(labelsize=8)
    return figure


def _label_axis(axes: Any, side: str, values: Sequence[float], title: str) -> None:
    """Label an axis of a heat map with at most ``MOST_LABELS`` of its values, evenly spaced."""
    ticks = range(0, len(values), -(-len(values) // MOST_LABELS))
    getattr(axes, f"set_{side}ticks")(ticks, [f"{int(values[tick])}" for tick in ticks], fontsize=8)
    getattr(axes, f"set_{side}label")(title, fontsize=9)


def _show_maps(setting: Setting, results: Results) -> list[Content]:
    by_task, shares = maps_by_task(results), shares_below(results)
    first = next(iter(by_task.values()))
    shape = " × ".join(map(str, np.shape(first["tsvd"])))
    parts: list[Content] = [
        f"r@1 on the validation images over a {shape} grid ({setting.image.name}, {setting.hkse.name}), for "
        "truncated SVD at (k_x, k_y) and for Tikhonov at (γ_x, γ_y) = (σ²_kx, σ²_ky), so that both maps have "
        f"the same axes. {_describe_ranks(first)} Every point is exact. A pack is all captions of one image, "
        "represented by their mean; the models are trained on single captions.",
    ]
    rows = []
    for task, maps in by_task.items():
        parts.append(
            figure(
                draw_maps(maps),
                f"{TITLES[task].capitalize()}. ○ is the best point of each map; × on Tikhonov's map is the "
                f"choice of truncated SVD.{_describe_edges(maps)}",
                f"Heat maps of r@1 for {TITLES[task]}",
                raster=True,
            )
        )
        above = shares[task]
        share = f"{above.value:.0f} [{above.low:.0f}, {above.high:.0f}]"
        rows.append([TITLES[task], share, *list(agreement(maps).values())[1:]])
    columns = ["task", "Tikhonov's map below T-SVD's choice, %", "r@1 lost", "correlation of the maps"]
    note = (
        "In brackets, 95 % of the resamples of the validation images; T-SVD's choice is made again in each."
    )
    return [*parts, ReportTable("maps_agreement", columns, rows, note=note)]


def _describe_edges(maps: Result) -> str:
    """Say which of the best points are at the edge of the map, so that a better one may be outside."""
    last = [size - 1 for size in np.shape(maps["tsvd"])]
    at_edge = [
        name
        for kind, name in (("tsvd", "T-SVD's"), ("tikhonov", "Tikhonov's"))
        if any(place in (0, end) for place, end in zip(maps["choice"][kind], last, strict=True))
    ]
    return f" The best point of {' and of '.join(at_edge)} map is at its edge." if at_edge else ""


def _describe_ranks(maps: Result) -> str:
    ranges, missing = [], []
    for side, view, (first, last, step) in zip("xy", ("images", "texts"), PAPER_RANKS, strict=True):
        ks = maps[f"k_{side}"]
        ranges.append(f"k_{side} runs from {ks[0]:.0f} to {ks[-1]:.0f} in {len(ks)} steps")
        if ks[0] != first or ks[-1] != last or len(ks) != (last - first) // step + 1:
            missing.append(f"{first} to {last} by {step} for {view}")
    words = " and ".join(ranges) + ". "
    if not missing:
        return words + "These are the paper's values."
    return words + (
        f"The paper's run from {' and from '.join(missing)}: values above the rank of these features are "
        "left out, a quick run takes a few of them, and where hardly any remain, fractions of the rank "
        "replace them."
    )


def _select_filters(setting: Setting) -> Result:
    image, text = setting.image, setting.hkse
    kinds: tuple[Kind, ...] = ("tsvd", "tikhonov")
    choice = {kind: select(setting, image, text, setting.run.validation, kind, "rank") for kind in kinds}

    def compute() -> Result:
        spectra = setting.spectra(image, text)
        ks: dict[Task, Sequence[int]] = {task: choice["tsvd"][task]["params"] for task in TASKS}
        s_x, s_y = spectra.s_x, spectra.s_y
        guided = {task: guided_gammas(spectra, ks[task]) for task in TASKS}
        result: Result = {}
        for side, (view, singular) in enumerate((("images", s_x), ("texts", s_y))):
            number = min(len(singular), SINGULAR_VALUES)
            places = np.unique(np.linspace(0, len(singular) - 1, number).round().astype(int))
            result[view] = {"ranks": places + 1, "values": singular[places]}
            for task in TASKS:
                gamma = choice["tikhonov"][task]["params"][side]
                result[view][task] = {"k": ks[task][side], "guided": guided[task][side], "tikhonov": gamma}
        return result

    return setting.fetch("filters", (image, text), {"choice": choice}, compute)


def draw_filter_shapes(threshold: float) -> Any:
    """Draw g_hard and g_soft at one threshold."""
    figure = new_figure(4.6, 3.0)
    axes = figure.subplots()
    sigma = np.linspace(0.0, 5 * threshold, 1001)
    axes.plot(sigma, g_hard(sigma, threshold), color=VERMILLION, linestyle=(0, (5, 2)), linewidth=1.6)
    axes.plot(sigma, g_soft(sigma, threshold), color=BLUE, linewidth=1.6)
    axes.annotate("$g_{hard}$", (1.15 * threshold, 1.03), color=VERMILLION, fontsize=9)
    axes.annotate("$g_{soft}$", (2.1 * threshold, 0.83), color=BLUE, fontsize=9)
    axes.set_ylim(-0.03, 1.14)
    finish_axes(axes, f"σ (threshold α = {threshold:g})", "g(σ)")
    return figure


def draw_selected_filters(views: Mapping[str, Any], task: str = "search") -> Any:
    """Draw the singular values of both views, and how much each selected filter keeps of them.

    ``views`` has for ``images`` and ``texts``: ``ranks``, ``values``, and of each task ``k``, ``guided``,
    ``tikhonov``.
    """
    figure = new_figure(7.6, 3.9)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (name, view) in zip(panels, views.items(), strict=True):
        ranks, values, chosen = np.array(view["ranks"]), np.array(view["values"]), view[task]
        axes.fill_between(ranks, values / values[0], color="0.85", linewidth=0)
        guided, tikhonov = (g_soft(values, chosen[kind] ** 0.5) for kind in ("guided", "tikhonov"))
        lines = {
            f"T-SVD, k = {chosen['k']}": ((ranks <= chosen["k"]).astype(float), VERMILLION, (0, (5, 2))),
            f"guided, γ = {chosen['guided']:.2g}": (guided, BLUE, "-"),
            f"Tikhonov, γ = {chosen['tikhonov']:.2g}": (tikhonov, GREEN, (0, (1.2, 1.4))),
        }
        for label, (response, color, style) in lines.items():
            axes.plot(ranks, response, color=color, linestyle=style, linewidth=1.6, label=label)
        axes.set_title(name, fontsize=9)
        axes.set_ylim(-0.03, 1.06)
        # Below the axes, where there are no curves.
        axes.legend(fontsize=7.5, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        finish_axes(axes, "singular direction", "share kept" if axes is panels[0] else "")
    return figure


def _show_filters(setting: Setting, results: Results) -> list[Content]:
    views = results["selected"]
    rows = [
        [view, task, *(views[view][task][name] for name in ("k", "guided", "tikhonov"))]
        for view in views
        for task in TASKS
    ]
    return [
        figure(
            draw_filter_shapes(THRESHOLD),
            f"g_hard (truncated SVD) and g_soft (Tikhonov) at α = {THRESHOLD:g}, as in the paper.",
            "The two spectral filters",
        ),
        figure(
            draw_selected_filters(views),
            f"How much the filters selected for search keep of each direction ({setting.image.name}, "
            f"{setting.hkse.name}); in grey, the singular values relative to the largest.",
            "Singular values and the selected filters",
        ),
        ReportTable("filters", ["view", "task", "k (T-SVD)", "γ (guided)", "γ (Tikhonov)"], rows),
    ]


MAPS = Experiment(
    "maps",
    ("Figure 4", "Figure 5", "Figure 6"),
    "Regularisation paths",
    _map_jobs,
    _show_maps,
)
FILTERS = Experiment(
    "filters",
    ("Figure 1",),
    "Spectral filters",
    lambda setting: {"selected": partial(_select_filters, setting)},
    _show_filters,
)
