"""Figures of a canonical correlation analysis: correlations of components and of features, loadings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.cluster.hierarchy import dendrogram, linkage

from diptych._arrays import Array, to_numpy
from diptych._checks import InputError, check_count, check_pair_of_views, second_view
from diptych.cca._covariates import check_covariates, regress_out
from diptych.cca._sklearn import find_names
from diptych.report._figures import (
    BLUE,
    MARKERS,
    TEXT_SIZE,
    VERMILLION,
    WIDTH,
    add_legend,
    finish_figure,
    new_figure,
    shorten,
    style_axes,
    text_width,
)
from diptych.stats import Bootstrap, CrossValidatedCorrelations, Interval, Loadings, PermutationTest
from diptych.stats._pairs import name_features
from diptych.stats._tables import make_labels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_FEATURES = 60
MOST_LABELS = 20
"""So many labels have room on one side of a biplot."""
LONGEST_FEATURE, PANEL, LINE = 1.5, 2.8, 0.14
"""Inches: the longest name of a feature, the width of a panel, and the height of a line of text."""
CELL, TREE = 0.15, 0.5
"""Inches: a row or column of a heat map, and the trees beside it."""
LEVEL = 0.05
"""Components with a corrected p-value of at most this have a filled marker."""


def draw_correlations(
    test: PermutationTest,
    file: str | os.PathLike[str] | None = None,
    *,
    bootstrap: Bootstrap | None = None,
    cross_validated: CrossValidatedCorrelations | None = None,
) -> Figure:
    """Draw canonical correlations beside those of permuted pairs; write the figure if a file is named.

    The left panel is the test: the regularised correlation of each component, its corrected p-value, and
    the median and the 5th to 95th percentile of what permuted pairs have (not of ``statistic="wilks"``, which
    is no correlation). With ``bootstrap`` or
    ``cross_validated`` a right panel has the correlations of the canonical variates, corrected by
    the bootstrap with their interval, and over held-out pairs: every fold, and the mean.

    Parameters
    ----------
    test
        From ``diptych.stats.permutation_test``.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    bootstrap, cross_validated
        From the functions of ``diptych.stats`` for the same model and pairs.

    Examples
    --------
    >>> from diptych.stats import permutation_test
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 3))
    >>> test = permutation_test((1.0, 1.0), x, x + rng.normal(size=x.shape), n_permutations=99)
    >>> draw_correlations(test).axes[0].get_ylabel()
    'correlation'
    """
    _check_type(test, PermutationTest)
    sizes = [len(test.correlations)]
    if bootstrap is not None:
        _check_type(bootstrap, Bootstrap)
        sizes.append(len(bootstrap.correlations.estimate))
    if cross_validated is not None:
        _check_type(cross_validated, CrossValidatedCorrelations)
        sizes.append(len(cross_validated.mean))
    has_two_panels = len(sizes) > 1
    figure = new_figure(WIDTH if has_two_panels else 0.6 * WIDTH, 3.4)
    panels = figure.subplots(1, 1 + has_two_panels, squeeze=False)[0]
    artists = _draw_test(panels[0], test)
    if has_two_panels:
        artists += _draw_sizes(panels[1], bootstrap, cross_validated)
    for axes, size in zip(panels, (sizes[0], max(sizes[1:], default=0)), strict=False):
        # One or two components would be drawn very wide.
        margin = 0.6 + max(0, 3 - size) / 2
        axes.set_xlim(1 - margin, size + margin)
        axes.set_xticks(range(1, size + 1, -(-size // 10)))
        axes.set_xlabel("component", fontsize=TEXT_SIZE)
        style_axes(axes)
        axes.axhline(0.0, color="0.6", linewidth=0.6, zorder=0)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.0), max(1.02, min(high, 1.05)))
    panels[0].set_ylabel("correlation", fontsize=TEXT_SIZE)
    add_legend(figure, artists, [artist.get_label() for artist in artists], ncols=2, fontsize=TEXT_SIZE - 1)
    return finish_figure(figure, file)


def _draw_test(axes: Any, test: PermutationTest) -> list[Any]:
    """Draw the test; return what the legend shows."""
    sigma, p_values, null = (
        _check_finite(getattr(test, name), f"test.{name}") for name in ("correlations", "p_corrected", "null")
    )
    places = np.arange(1, len(sigma) + 1)
    artists: list[Any] = []
    significant = p_values <= LEVEL
    for mask, fill, sign in ((significant, "black", "≤"), (~significant, "white", ">")):
        if mask.any():
            style = {"markerfacecolor": fill, "markersize": 6.0 if len(sigma) <= 25 else 3.0}
            label = f"observed, corrected p {sign} {LEVEL}"
            artists += axes.plot(places[mask], sigma[mask], "o", color="black", label=label, **style)
    if test.statistic == "roy":  # the null distribution is then of correlations
        low, middle, high = np.quantile(null, (0.05, 0.5, 0.95), axis=0)
        band = {"color": "0.85", "edgecolor": "0.6", "linewidth": 0.6, "label": "permuted pairs, 5% to 95%"}
        artists.append(axes.bar(places, high - low, bottom=low, width=0.8, zorder=1, **band))
        line = {"color": "0.45", "linewidth": 1.2, "label": "permuted pairs, median"}
        artists.append(axes.hlines(middle, places - 0.4, places + 0.4, zorder=1, **line))
    labels = [f"{p:.3f}" if p >= 0.0005 else f"{p:.0e}" for p in p_values]
    width, room = max(text_width(label, TEXT_SIZE - 1) for label in labels), PANEL / (len(sigma) + 0.2)
    title, above = "test of the regularised correlation", 0.0
    if room > LINE:
        upright = width + 0.05 > room
        above = width + 0.05 if upright else LINE
        title += "\ncorrected p-values:"
        text = {"fontsize": TEXT_SIZE - 1, "rotation": 90 if upright else 0, "ha": "center"}
        for place, label in zip(places, labels, strict=True):
            axes.text(place, 1.02, label, transform=axes.get_xaxis_transform(), **text)
    axes.set_title(title, fontsize=TEXT_SIZE, pad=4 + 72 * above)
    return artists


def _draw_sizes(
    axes: Any, bootstrap: Bootstrap | None, cross_validated: CrossValidatedCorrelations | None
) -> list[Any]:
    """Draw the correlations of the variates; return what the legend shows."""
    artists: list[Any] = []
    shift = 0.15 if bootstrap is not None and cross_validated is not None else 0.0
    if bootstrap is not None:
        estimate = _check_finite(bootstrap.correlations.estimate, "bootstrap.correlations")
        style = {"color": BLUE, "markersize": 5, "linewidth": 1.4, "capsize": 2.5}
        places, bars = np.arange(1, len(estimate) + 1) - shift, _error_bars(bootstrap.correlations)
        label = "corrected, with interval"
        artists.append(axes.errorbar(places, estimate, bars, fmt="o", label=label, **style))
    if cross_validated is not None:
        folds, mean = cross_validated.folds, cross_validated.mean  # NaN for tiny folds: not drawn
        places = np.arange(1, len(mean) + 1) + shift
        style = {"color": VERMILLION, "linestyle": "none"}
        artists += axes.plot(places, mean, "D", markersize=5, label="held-out pairs, mean", **style)
        style |= {"markersize": 6, "alpha": 0.7, "label": "held-out pairs, one fold"}
        artists += axes.plot(np.tile(places, len(folds)), folds.ravel(), "_", **style)
    axes.set_title("correlation of the variates", fontsize=TEXT_SIZE)
    return artists


def draw_loadings(
    loadings: Loadings,
    component: int = 0,
    file: str | os.PathLike[str] | None = None,
    *,
    bootstrap: Bootstrap | None = None,
    most: int = 12,
    views: tuple[str, str] = ("X", "Y"),
) -> Figure:
    """Draw the loadings of one component as bars; write the figure if a file is named.

    A loading is the correlation of a feature with the canonical variate of its own view.

    Parameters
    ----------
    loadings
        From ``diptych.stats.loadings``.
    component
        Its number, counted from 0.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    bootstrap
        From ``diptych.stats.bootstrap``: adds the intervals of the loadings.
    most
        How many features of each view are shown: those with the largest loadings, of either sign.
    views
        What the titles call the views.

    Examples
    --------
    >>> from diptych import AWCCA
    >>> from diptych.stats import loadings
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> model = AWCCA(params=(1.0, 1.0)).fit(x, x[:, :2] + 1)
    >>> figure = draw_loadings(loadings(model), views=("exercise", "body"))
    >>> [axes.get_title() for axes in figure.axes]
    ['exercise', 'body']
    """
    titles = _check_options(loadings, most, 1, MOST_FEATURES, views)
    (component,) = check_components((component,), np.asarray(loadings.x).shape[1])
    intervals: list[Interval | None] = [None, None]
    if bootstrap is not None:
        _check_type(bootstrap, Bootstrap)
        check_components((component,), bootstrap.x_loadings.estimate.shape[1], "the bootstrap")
        intervals = [bootstrap.x_loadings, bootstrap.y_loadings]
    sides = []
    for (matrix, varying, names), interval in zip(_tables(loadings), intervals, strict=True):
        if interval is not None and len(interval.estimate) != len(names):
            raise InputError(
                f"the bootstrap has {len(interval.estimate)} features and the loadings {len(names)}; give "
                "those of the same model."
            )
        shown = varying[np.argsort(-np.abs(matrix[varying, component]), kind="stable")[:most]]
        # From top to bottom as in a table: the largest first, the negative ones last.
        shown = shown[np.argsort(-matrix[shown, component], kind="stable")]
        bars = None if interval is None else _error_bars(interval, (shown, component))
        sides.append((names, shown, matrix[shown, component], bars))
    height = max(len(shown) for _, shown, *_ in sides)
    figure = new_figure(WIDTH, 1.1 + 0.21 * height)
    for axes, title, color, (names, shown, values, bars) in zip(
        figure.subplots(1, 2), titles, (BLUE, VERMILLION), sides, strict=True
    ):
        places = np.arange(len(shown))
        axes.barh(places, values, height=0.66, color=color, alpha=0.75)
        if bars is not None:
            axes.errorbar(values, places, xerr=bars, fmt="none", ecolor="black", elinewidth=1.0, capsize=2.0)
        axes.set_yticks(places, [shorten(names[i], LONGEST_FEATURE) for i in shown], parse_math=False)
        axes.set(ylim=(height - 0.4, -0.6), xlim=(-1.05, 1.05))
        axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_title(title, fontsize=TEXT_SIZE, parse_math=False)
        label = f"loading on component {component + 1}"
        if len(shown) < len(names):
            label += f"\n(the {len(shown)} largest of {len(names):,})"
        axes.set_xlabel(label, fontsize=TEXT_SIZE)
        style_axes(axes)
    return finish_figure(figure, file)


def draw_biplot(
    loadings: Loadings,
    components: tuple[int, int] = (0, 1),
    file: str | os.PathLike[str] | None = None,
    *,
    most: int = 16,
    views: tuple[str, str] = ("X", "Y"),
) -> Figure:
    """Draw the loadings of two components in the correlation circle; write the figure if a file is named.

    Features that point the same way go together; one near the outer circle is explained by the two
    components, one near the centre is not.

    Parameters
    ----------
    loadings
        From ``diptych.stats.loadings``.
    components
        Two numbers, counted from 0.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    most
        How many features get a name: those farthest from the centre, of both views together. All have a
        point.
    views
        What the legend calls the views.

    Examples
    --------
    >>> from diptych import AWCCA
    >>> from diptych.stats import loadings
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> model = AWCCA(params=(1.0, 1.0)).fit(x, x[:, :2] + 1)
    >>> draw_biplot(loadings(model)).axes[0].get_xlabel()
    'component 1 →'
    """
    titles = _check_options(loadings, most, 0, MOST_LABELS, views)
    columns = check_plane(components, np.asarray(loadings.x).shape[1])
    figure = new_figure(WIDTH, 4.6)
    axes = figure.subplots()
    angles = np.linspace(0.0, 2.0 * np.pi, 181)
    for radius, style in ((1.0, "-"), (0.5, ":")):
        axes.plot(radius * np.cos(angles), radius * np.sin(angles), style, color="0.6", linewidth=0.8)
    axes.axhline(0.0, color="0.85", linewidth=0.6, zorder=0)
    axes.axvline(0.0, color="0.85", linewidth=0.6, zorder=0)
    artists: list[Any] = []
    points, labels = [], []
    for marker, color, (matrix, varying, names) in zip(
        MARKERS, (BLUE, VERMILLION), _tables(loadings), strict=False
    ):
        place = matrix[varying][:, columns]
        size, many = 5.0 if len(place) <= 100 else 2.5, len(place) > 2000
        artists += axes.plot(
            *place.T, marker, color=color, markersize=size, linestyle="none", rasterized=many
        )
        points.append(place)
        labels += [names[row] for row in varying]
    _label_points(axes, np.concatenate(points), labels, most)
    axes.set_aspect("equal")
    axes.set(xlim=(-1.04, 1.04), ylim=(-1.04, 1.04), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"component {columns[0] + 1} →", fontsize=TEXT_SIZE)
    axes.set_title(f"component {columns[1] + 1} ↑", fontsize=TEXT_SIZE)
    add_legend(figure, artists, titles, ncols=len(artists), fontsize=TEXT_SIZE - 1)
    return finish_figure(figure, file)


def _label_points(axes: Any, points: Any, names: Sequence[str], most: int) -> None:
    """Write names of the farthest points to the left and right of the circle, with a line to each point."""
    farthest = np.argsort(-np.linalg.norm(points, axis=1), kind="stable")[:most]
    gap = 0.105  # a line of text, where the circle has a height of 2
    for side, alignment in ((-1.0, "right"), (1.0, "left")):
        rows = sorted((i for i in farthest if (points[i, 0] < 0) == (side < 0)), key=lambda i: points[i, 1])
        heights: list[float] = []
        for i in rows:
            heights.append(max(float(points[i, 1]), heights[-1] + gap if heights else -1.04))
        top = 1.04
        for place in reversed(range(len(rows))):
            heights[place] = top = min(heights[place], top)
            top -= gap
        text = {"fontsize": TEXT_SIZE - 1, "ha": alignment, "va": "center", "parse_math": False}
        for i, height in zip(rows, heights, strict=True):
            end = (1.14 * side, height)
            axes.plot(*zip(points[i], end, strict=True), color="0.7", linewidth=0.5, clip_on=False, zorder=1)
            axes.text(1.17 * side, height, shorten(names[i], LONGEST_FEATURE), **text)


def draw_cross_correlations(
    X: Any,
    y: Any,
    pairing: Any = None,
    file: str | os.PathLike[str] | None = None,
    *,
    covariates: Any = None,
    most: int = 30,
    views: tuple[str, str] = ("X", "Y"),
) -> Figure:
    """Draw the correlations of features of X with features of Y; write the figure if a file is named.

    Rows and columns are in the order of trees of a hierarchical clustering (average linkage of the Euclidean
    distance), so that features with similar correlations are neighbours.

    Parameters
    ----------
    X, y, pairing
        As in ``AWCCA.fit``.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    covariates
        As in ``diptych.stats.permutation_test``: what both views may depend on. The correlations are then
        partial ones.
    most
        How many features of each view are shown: those with the largest correlations, of either sign.
    views
        What the axes call the views.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(50, 3)), rng.normal(size=(50, 2))
    >>> draw_cross_correlations(x, y, views=("brain", "behaviour")).axes[0].get_xlabel()
    'behaviour'
    """
    titles = check_views(views)
    _check_most(most, 1, MOST_FEATURES)
    named = name_features(None, find_names(X, y))
    x, y, pairing = check_pair_of_views(X, second_view(y), pairing)
    columns = check_covariates(covariates, X, int(x.shape[0]))
    if columns is not None:
        *_, (x, y) = regress_out(x, y, pairing, columns)
    names = [make_labels(*side) for side in zip("xy", (x.shape[1], y.shape[1]), named, strict=True)]
    (x, varying_x), (y, varying_y) = _standardize(x[pairing, :], "X"), _standardize(y, "Y")
    table = x.T @ y
    shown = [np.argsort(-np.abs(table).max(axis=axis), kind="stable")[:most] for axis in (1, 0)]
    table = table[np.ix_(*shown)]
    labels = [
        [shorten(all_names[i], LONGEST_FEATURE) for i in varying[rows]]
        for all_names, varying, rows in zip(names, (varying_x, varying_y), shown, strict=True)
    ]
    height, width = (max(2.0, CELL * len(side)) for side in labels)
    room = [max(text_width(name, TEXT_SIZE - 1) for name in side) + 0.4 for side in labels]
    figure = new_figure(width + TREE + room[0] + 1.0, height + TREE + room[1])
    figure.get_layout_engine().set(wspace=0.0, hspace=0.0)
    grid = figure.add_gridspec(2, 2, height_ratios=(TREE, height), width_ratios=(width, TREE))
    axes = figure.add_subplot(grid[1, 0])
    order = [
        _draw_tree(figure.add_subplot(place), rows, side)
        for place, rows, side in ((grid[1, 1], table, "right"), (grid[0, 0], table.T, "top"))
    ]
    limit = float(np.abs(table).max())
    table = table[np.ix_(*order)]
    image = axes.imshow(table, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", origin="lower")
    text = {"fontsize": TEXT_SIZE - 1, "parse_math": False}
    axes.set_yticks(range(len(order[0])), [labels[0][i] for i in order[0]], **text)
    axes.set_xticks(range(len(order[1])), [labels[1][i] for i in order[1]], rotation=90, **text)
    axes.tick_params(length=0)
    for setter, title, side, varying in zip(
        (axes.set_ylabel, axes.set_xlabel), titles, labels, (varying_x, varying_y), strict=True
    ):
        if len(side) < len(varying):
            title += f"\n(the {len(side)} strongest of {len(varying):,})"
        setter(title, fontsize=TEXT_SIZE, parse_math=False)
    bar = figure.colorbar(image, ax=figure.axes, shrink=0.6, pad=0.02)
    bar.set_label("correlation" if columns is None else "partial correlation", fontsize=TEXT_SIZE)
    bar.ax.tick_params(labelsize=TEXT_SIZE - 1)
    return finish_figure(figure, file)


def _standardize(view: Array, name: str) -> tuple[Any, Any]:
    """Return the features that vary, with mean 0 and length 1, and their numbers."""
    values = to_numpy(view).astype(np.float64)
    centred = values - values.mean(axis=0)
    lengths = np.linalg.norm(centred, axis=0)
    varying = np.flatnonzero(lengths > 1e-12 * np.linalg.norm(values, axis=0))
    if len(varying) == 0:
        raise InputError(f"no feature of {name} varies, so there are no correlations to draw.")
    return centred[:, varying] / lengths[varying], varying


def _draw_tree(axes: Any, rows: Any, side: str) -> list[int]:
    """Draw the clustering of rows on one side of a heat map, and return their order."""
    axes.axis("off")
    if len(rows) == 1:
        return [0]
    tree = linkage(rows, "average", optimal_ordering=True)
    style = {"no_labels": True, "link_color_func": lambda _: "0.4"}
    leaves: list[int] = dendrogram(tree, ax=axes, orientation=side, **style)["leaves"]
    axes.collections[0].set_linewidth(0.8)
    return leaves


def _tables(loadings: Loadings) -> list[tuple[Any, Any, list[str]]]:
    """Return the loadings of each view, the features that vary, and the names of all."""
    tables = []
    for prefix, values, names in (
        ("x", loadings.x, loadings.feature_names_x),
        ("y", loadings.y, loadings.feature_names_y),
    ):
        matrix = np.asarray(values, dtype=np.float64)
        varying = np.flatnonzero(np.isfinite(matrix).all(axis=1))
        tables.append((matrix, varying, make_labels(prefix, len(matrix), names)))
    return tables


def _error_bars(interval: Interval, place: Any = slice(None)) -> Any:
    """Return the distances from the estimate to both ends of an interval, as matplotlib takes them."""
    estimate, low, high = (
        _check_finite(part, "the bootstrap")[place]
        for part in (interval.estimate, interval.low, interval.high)
    )
    # The estimate may be outside a percentile interval; matplotlib refuses negative lengths.
    return np.clip([estimate - low, high - estimate], 0.0, None)


def _check_type(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise InputError(f"got {type(value).__name__}; give a {kind.__name__} of diptych.stats.")


def _check_options(loadings: object, most: object, minimum: int, limit: int, views: object) -> list[str]:
    """Check what both figures of loadings are given, and return the names of the views."""
    _check_type(loadings, Loadings)
    _check_most(most, minimum, limit)
    return check_views(views)


def _check_most(most: object, minimum: int, limit: int) -> None:
    if check_count(most, "most", minimum) > limit:
        raise InputError(f"most={most} features do not fit into one figure; give at most {limit}.")


def check_views(views: object) -> list[str]:
    """Return the names of the views, short enough for a figure."""
    if not isinstance(views, tuple | list) or len(views) != 2 or not all(isinstance(v, str) for v in views):
        raise InputError(f'views={views!r} is not a pair of names; give two, such as ("brain", "behaviour").')
    return [shorten(name, LONGEST_FEATURE) for name in views]


def _check_finite(values: Any, name: str) -> Any:
    array = np.asarray(to_numpy(values), dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name} contains NaN or infinity, which cannot be drawn.")
    return array


def check_plane(components: Any, count: int, owner: str = "the loadings") -> list[int]:
    """Return the two components of a plane, counted from 0, that ``owner`` has."""
    if not isinstance(components, tuple | list) or len(components) != 2 or components[0] == components[1]:
        raise InputError(f"components={components!r} are not two components; give two, such as (0, 1).")
    return check_components(components, count, owner)


def check_components(components: Sequence[int], count: int, owner: str = "the loadings") -> list[int]:
    """Return components, counted from 0, that ``owner`` has."""
    for component in components:
        if check_count(component, "component", minimum=0) >= count:
            raise InputError(
                f"component={component} is beyond the last of {owner}; components are counted from 0 to "
                f"{count - 1}."
            )
    return [int(component) for component in components]
