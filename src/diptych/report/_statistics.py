"""Figures of a canonical correlation analysis: correlations, loadings and canonical variates."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from diptych._arrays import Array, to_numpy
from diptych._checks import InputError, Task, check_count, check_pairing, check_task
from diptych.cca import AWCCA
from diptych.cca._fitted import second_view
from diptych.cca._weighting import Projection
from diptych.report._figures import (
    BLUE,
    COLORS,
    MARKERS,
    TEXT_SIZE,
    VERMILLION,
    WIDTH,
    new_figure,
    shorten,
    text_width,
    write_figure,
)
from diptych.stats import Bootstrap, CrossValidatedCorrelations, Interval, Loadings, PermutationTest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_FEATURES = 60
MOST_LABELS = 20
"""So many labels have room on one side of a biplot."""
LONGEST_FEATURE, PANEL, LINE = 1.5, 2.8, 0.14
"""Inches: the longest name of a feature, the width of a panel, and the height of a line of text."""
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
    the median and the 5th to 95th percentile of what permuted pairs have. With ``bootstrap`` or
    ``cross_validated`` a right panel has the correlations of the canonical variates, over the training pairs
    with their interval, and over held-out pairs: every fold, and the mean. Without regularisation both
    panels have the same correlations over the training pairs.

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
    _check_type(test, PermutationTest, "permutation_test")
    sizes = [len(test.correlations)]
    if bootstrap is not None:
        _check_type(bootstrap, Bootstrap, "bootstrap")
        sizes.append(len(bootstrap.correlations.estimate))
    if cross_validated is not None:
        _check_type(cross_validated, CrossValidatedCorrelations, "cross_validated_correlations")
        sizes.append(len(cross_validated.mean))
    two = len(sizes) > 1
    figure = new_figure(WIDTH if two else 0.6 * WIDTH, 3.4)
    panels = figure.subplots(1, 2 if two else 1, squeeze=False)[0]
    drawn = _draw_test(panels[0], test)
    if two:
        drawn += _draw_sizes(panels[1], bootstrap, cross_validated)
    for axes, size in zip(panels, (sizes[0], max(sizes[1:], default=0)), strict=False):
        # One or two components would be drawn very wide.
        margin = 0.6 + max(0, 3 - size) / 2
        axes.set_xlim(1 - margin, size + margin)
        axes.set_xticks(range(1, size + 1, -(-size // 10)))
        axes.set_xlabel("component", fontsize=TEXT_SIZE)
        axes.tick_params(labelsize=TEXT_SIZE, length=3)
        _finish(axes)
        axes.axhline(0.0, color="0.6", linewidth=0.6, zorder=0)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.0), max(1.02, min(high, 1.05)))
    panels[0].set_ylabel("correlation", fontsize=TEXT_SIZE)
    _add_legend(figure, drawn, [each.get_label() for each in drawn], columns=2)
    if file is not None:
        write_figure(figure, file)
    return figure


def _draw_test(axes: Any, test: PermutationTest) -> list[Any]:
    """Draw the test; return what the legend shows."""
    sigma, p_values, null = (
        _check_finite(getattr(test, name), f"test.{name}") for name in ("correlations", "p_corrected", "null")
    )
    places = np.arange(1, len(sigma) + 1)
    drawn: list[Any] = []
    significant = p_values <= LEVEL
    for chosen, fill, sign in ((significant, "black", "≤"), (~significant, "white", ">")):
        if chosen.any():
            style = {"markerfacecolor": fill, "markersize": 6.0 if len(sigma) <= 25 else 3.0}
            words = f"observed, corrected p {sign} {LEVEL}"
            drawn += axes.plot(places[chosen], sigma[chosen], "o", color="black", label=words, **style)
    low, middle, high = np.quantile(null, (0.05, 0.5, 0.95), axis=0)
    band = {"color": "0.85", "edgecolor": "0.6", "linewidth": 0.6, "label": "permuted pairs, 5% to 95%"}
    drawn.append(axes.bar(places, high - low, bottom=low, width=0.8, zorder=1, **band))
    line = {"color": "0.45", "linewidth": 1.2, "label": "permuted pairs, median"}
    drawn.append(axes.hlines(middle, places - 0.4, places + 0.4, zorder=1, **line))
    labels = [f"{p:.3f}" if p >= 0.0005 else f"{p:.0e}" for p in p_values]
    width, slot = max(text_width(label, TEXT_SIZE - 1) for label in labels), PANEL / (len(sigma) + 0.2)
    title, above = "test of the regularised correlation", 0.0
    if slot > LINE:
        upright = width + 0.05 > slot
        above = width + 0.05 if upright else LINE
        title += "\ncorrected p-values:"
        for place, label in zip(places, labels, strict=True):
            text = {"fontsize": TEXT_SIZE - 1, "rotation": 90 if upright else 0}
            axes.text(place, 1.02, label, ha="center", transform=axes.get_xaxis_transform(), **text)
    axes.set_title(title, fontsize=TEXT_SIZE, pad=4 + 72 * above)
    return drawn


def _draw_sizes(
    axes: Any, bootstrap: Bootstrap | None, cross_validated: CrossValidatedCorrelations | None
) -> list[Any]:
    """Draw the correlations of the variates; return what the legend shows."""
    drawn: list[Any] = []
    shift = 0.15 if bootstrap is not None and cross_validated is not None else 0.0
    if bootstrap is not None:
        estimate = _check_finite(bootstrap.correlations.estimate, "bootstrap.correlations")
        bars = _error_bars(bootstrap.correlations)
        style = {"color": BLUE, "markersize": 5, "linewidth": 1.4, "capsize": 2.5}
        words = "training pairs, bootstrap interval"
        places = np.arange(1, len(estimate) + 1) - shift
        drawn.append(axes.errorbar(places, estimate, bars, fmt="o", label=words, **style))
    if cross_validated is not None:
        folds, mean = cross_validated.folds, cross_validated.mean  # NaN for tiny folds: not drawn
        places = np.arange(1, len(mean) + 1) + shift
        style = {"color": VERMILLION, "linestyle": "none"}
        drawn += axes.plot(places, mean, "D", markersize=5, label="held-out pairs, mean", **style)
        each = {"markersize": 6, "alpha": 0.7, "label": "held-out pairs, one fold"}
        drawn += axes.plot(np.tile(places, len(folds)), folds.ravel(), "_", **each, **style)
    axes.set_title("correlation of the variates", fontsize=TEXT_SIZE)
    return drawn


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
    _check_type(loadings, Loadings, "loadings")
    most = check_count(most, "most")
    if most > MOST_FEATURES:
        raise InputError(f"most={most} features do not fit into one figure; give at most {MOST_FEATURES}.")
    titles = _check_titles(views)
    (component,) = _check_components((component,), np.asarray(loadings.x).shape[1])
    intervals: list[Interval | None] = [None, None]
    if bootstrap is not None:
        _check_type(bootstrap, Bootstrap, "bootstrap")
        _check_components((component,), np.asarray(bootstrap.x_loadings.estimate).shape[1], "the bootstrap")
        intervals = [bootstrap.x_loadings, bootstrap.y_loadings]
    sides = []
    for (matrix, rows, names), interval in zip(_views_of(loadings), intervals, strict=True):
        if interval is not None and len(interval.estimate) != len(names):
            raise InputError(
                f"the bootstrap has {len(interval.estimate)} features and the loadings {len(names)}; give "
                "those of the same model."
            )
        shown = rows[_largest(np.abs(matrix[rows, component]), most)]
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
        axes.set_ylim(height - 0.4, -0.6)
        axes.set_xlim(-1.05, 1.05)
        axes.set_xticks([-1, -0.5, 0, 0.5, 1], ["−1", "−0.5", "0", "0.5", "1"])
        axes.tick_params(labelsize=TEXT_SIZE, length=3)
        axes.axvline(0.0, color="black", linewidth=0.8)
        axes.set_title(title, fontsize=TEXT_SIZE, parse_math=False)
        words = f"loading on component {component + 1}"
        if len(shown) < len(names):
            words += f"\n(the {len(shown)} largest of {len(names):,})"
        axes.set_xlabel(words, fontsize=TEXT_SIZE)
        _finish(axes)
    if file is not None:
        write_figure(figure, file)
    return figure


def draw_biplot(
    loadings: Loadings,
    components: tuple[int, int] = (0, 1),
    file: str | os.PathLike[str] | None = None,
    *,
    variates: Array | None = None,
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
    variates
        Rows × components, such as ``model.transform(X)``: adds the rows as grey points. Their scale is of no
        meaning; the farthest is on the outer circle.
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
    >>> draw_biplot(loadings(model), variates=model.transform(x)).axes[0].get_xlabel()
    'component 1 →'
    """
    _check_type(loadings, Loadings, "loadings")
    most = check_count(most, "most", minimum=0)
    if most > MOST_LABELS:
        raise InputError(f"most={most} names do not fit into the figure; give at most {MOST_LABELS}.")
    titles = _check_titles(views)
    if not isinstance(components, tuple | list) or len(components) != 2 or components[0] == components[1]:
        raise InputError(f"components={components!r} are not two components; give two, such as (0, 1).")
    first, second = _check_components(components, np.asarray(loadings.x).shape[1])
    figure = new_figure(WIDTH, 4.6)
    axes = figure.subplots()
    angles = np.linspace(0.0, 2.0 * np.pi, 181)
    for radius, style in ((1.0, "-"), (0.5, ":")):
        axes.plot(radius * np.cos(angles), radius * np.sin(angles), style, color="0.6", linewidth=0.8)
    axes.axhline(0.0, color="0.85", linewidth=0.6, zorder=0)
    axes.axvline(0.0, color="0.85", linewidth=0.6, zorder=0)
    drawn: list[Any] = []
    if variates is not None:
        cloud = _check_finite(variates, "variates")
        if cloud.ndim != 2:
            raise InputError(f"variates has shape {cloud.shape}; expected rows × components.")
        _check_components((first, second), cloud.shape[1], "variates")
        cloud = cloud[:, [first, second]] - cloud[:, [first, second]].mean(axis=0)
        spread = cloud.std(axis=0)
        cloud = cloud / np.where(spread > 0, spread, 1.0)
        cloud = cloud / (float(np.linalg.norm(cloud, axis=1).max()) or 1.0)
        drawn += axes.plot(*cloud.T, ".", color="0.72", markersize=3, rasterized=len(cloud) > 2000)
        titles = ["rows", *titles]
    points, names = [], []
    for kind, (matrix, rows, own) in enumerate(_views_of(loadings)):
        place = matrix[rows][:, [first, second]]
        size = 5.0 if len(place) <= 100 else 2.5
        drawn += axes.plot(
            *place.T,
            MARKERS[kind],
            color=(BLUE, VERMILLION)[kind],
            markersize=size,
            linestyle="none",
            rasterized=len(place) > 2000,
        )
        points.append(place)
        names += [own[row] for row in rows]
    _label_points(axes, np.concatenate(points), names, most)
    axes.set_aspect("equal")
    axes.set(xlim=(-1.04, 1.04), ylim=(-1.04, 1.04), xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.set_xlabel(f"component {first + 1} →", fontsize=TEXT_SIZE)
    axes.set_title(f"component {second + 1} ↑", fontsize=TEXT_SIZE)
    _add_legend(figure, drawn, titles, columns=len(drawn))
    if file is not None:
        write_figure(figure, file)
    return figure


def _label_points(axes: Any, points: Any, names: Sequence[str], most: int) -> None:
    """Write names of the farthest points to the left and right of the circle, with a line to each point."""
    shown = _largest(np.linalg.norm(points, axis=1), most)
    gap = 0.105  # a line of text, where the circle has a height of 2
    for side in (-1.0, 1.0):
        own = [i for i in shown if (points[i, 0] < 0) == (side < 0)]
        own.sort(key=lambda i: points[i, 1])
        heights: list[float] = []
        for i in own:
            heights.append(max(float(points[i, 1]), heights[-1] + gap if heights else -1.04))
        top = 1.04
        for place in reversed(range(len(own))):
            heights[place] = top = min(heights[place], top)
            top -= gap
        for i, height in zip(own, heights, strict=True):
            end = (1.14 * side, height)
            axes.plot(*zip(points[i], end, strict=True), color="0.7", linewidth=0.5, clip_on=False, zorder=1)
            axes.text(
                1.17 * side,
                height,
                shorten(names[i], LONGEST_FEATURE),
                fontsize=TEXT_SIZE - 1,
                ha="left" if side > 0 else "right",
                va="center",
                parse_math=False,
            )


def draw_variates(
    model: AWCCA,
    X: Array,
    y: Array,
    pairing: Array | None = None,
    file: str | os.PathLike[str] | None = None,
    *,
    component: int = 0,
    held_out: tuple[Array, ...] | None = None,
    groups: Sequence[object] | None = None,
    task: Task = "search",
) -> Figure:
    """Draw the canonical variates of both views against each other; write the figure if a file is named.

    One point per pair, in standard deviations over ``X`` and ``y``, and their correlation. Over training
    pairs chance raises it; over held-out pairs it does not.

    Parameters
    ----------
    model
        A fitted ``AWCCA``.
    X, y, pairing
        As in ``AWCCA.fit``; usually the training pairs.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    component
        Its number, counted from 0.
    held_out
        ``(X, y)`` or ``(X, y, pairing)`` that the model was not fitted on, drawn in the same axes.
    groups
        One label per row of y, such as a diagnosis; up to 7 are drawn in colours and markers of their own.
    task
        Whose model: an ``AWCCA`` that selected its regularisation has one for each task.

    Examples
    --------
    >>> from diptych import AWCCA
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 3))
    >>> model = AWCCA(params=(1.0, 1.0)).fit(x, x)
    >>> figure = draw_variates(model, x, x)
    >>> figure.legends[0].get_texts()[0].get_text()
    '50 pairs: r = 1.00'
    """
    if held_out is not None and groups is not None:
        raise InputError("colours show either groups or held-out pairs; draw two figures.")
    u, v = _variates(model, (X, y, pairing), component, task)
    scales = [float(np.std(each)) or 1.0 for each in (u, v)]
    shown: list[tuple[Any, Any, str]] = []
    if held_out is not None:
        if not isinstance(held_out, tuple) or len(held_out) not in (2, 3):
            raise InputError("held_out is not (X, y) or (X, y, pairing); give the views as a tuple.")
        shown = [(u, v, "training pairs"), (*_variates(model, held_out, component, task), "held-out pairs")]
    elif groups is None:
        shown = [(u, v, "pairs")]
    else:
        labels = np.asarray([str(label) for label in groups])
        if len(labels) != len(v):
            raise InputError(f"got {len(labels)} groups for {len(v)} rows of y; give one label per row.")
        different = list(dict.fromkeys(labels.tolist()))
        if len(different) > len(COLORS):
            raise InputError(
                f"groups has {len(different)} labels; the figure can show at most {len(COLORS)}."
            )
        shown = [(u[labels == each], v[labels == each], shorten(each, LONGEST_FEATURE)) for each in different]
    figure = new_figure(4.6, 3.9 + 0.17 * len(shown))
    axes = figure.subplots()
    drawn, words = [], []
    for i, (across, up, name) in enumerate(shown):
        many = len(across) > 500
        drawn += axes.plot(
            across / scales[0],
            up / scales[1],
            MARKERS[i % len(MARKERS)],
            color=COLORS[i],
            # Later ones are hollow, so that they can be told apart without colour and do not hide the first.
            markerfacecolor=COLORS[i] if i == 0 else "none",
            markersize=2.5 if many else 4.5,
            alpha=0.5 if many else 0.85,
            rasterized=len(across) > 5000,
            zorder=2.0 + 1.0 / len(across),  # few points are not hidden by many
        )
        words.append(
            f"{len(across):,} {name}: r = {_correlate(across, up):.2f}"
            if groups is None
            else f"{name} ({len(across):,})"
        )
    if groups is not None:
        axes.set_title(f"r = {_correlate(u, v):.2f}", fontsize=TEXT_SIZE)
    for side, name in (("x", "X"), ("y", "Y")):
        label = f"variate {component + 1} of {name} (standard deviations)"
        getattr(axes, f"set_{side}label")(label, fontsize=TEXT_SIZE)
    axes.tick_params(labelsize=TEXT_SIZE, length=3)
    _finish(axes)
    _add_legend(figure, drawn, words)
    if file is not None:
        write_figure(figure, file)
    return figure


def _variates(model: AWCCA, pairs: tuple[Any, ...], component: int, task: Task) -> tuple[Any, Any]:
    """Return one canonical variate of each view over pairs, not weighted by its correlation."""
    if not isinstance(model, AWCCA):
        raise InputError(f"{type(model).__name__} has no canonical variates; give a fitted AWCCA.")
    model._check_fitted()
    own = model.models_[check_task(task)]
    (component,) = _check_components((component,), int(own.correlations.shape[0]), "the model")
    x, y, pairing = (*pairs, None)[:3]
    column = slice(component, component + 1)
    u, v = (
        to_numpy(Projection(name, how, mean, weights[:, column], None)(view))[:, 0]
        for name, how, mean, weights, view in (
            ("X", model.normalize[0], model.x_mean_, own.x_weights, x),
            ("Y", model.normalize[1], model.y_mean_, own.y_weights, second_view(y)),
        )
    )
    return u[check_pairing(pairing, len(u), v)], v


def _correlate(u: Any, v: Any) -> float:
    u, v = u - u.mean(), v - v.mean()
    lengths = float(np.linalg.norm(u) * np.linalg.norm(v))
    return float(u @ v) / lengths if lengths > 0 else 0.0


def _views_of(loadings: Loadings) -> list[tuple[Any, Any, list[str]]]:
    """Return the loadings of each view, the features that vary, and the names of all."""
    views = []
    for prefix, values, names in (
        ("x", loadings.x, loadings.feature_names_x),
        ("y", loadings.y, loadings.feature_names_y),
    ):
        matrix = np.asarray(values, dtype=np.float64)
        varying = np.flatnonzero(np.isfinite(matrix).all(axis=1))
        views.append((matrix, varying, [str(name) for name in names or _count(prefix, len(matrix))]))
    return views


def _count(prefix: str, total: int) -> list[str]:
    return [f"{prefix}{i}" for i in range(total)]


def _largest(sizes: Any, most: int) -> Any:
    return np.argsort(-sizes, kind="stable")[:most]


def _error_bars(interval: Interval, place: Any = slice(None)) -> Any:
    """Return the distances from the estimate to both ends of an interval, as matplotlib takes them."""
    estimate, low, high = (
        _check_finite(part, "the bootstrap")[place]
        for part in (interval.estimate, interval.low, interval.high)
    )
    # The estimate may be outside a percentile interval; matplotlib refuses negative lengths.
    return np.clip([estimate - low, high - estimate], 0.0, None)


def _check_type(value: object, kind: type, function: str) -> None:
    if not isinstance(value, kind):
        raise InputError(
            f"got {type(value).__name__} in place of a {kind.__name__}; give what {function}() returns."
        )


def _check_finite(values: Any, name: str) -> Any:
    array = np.asarray(to_numpy(values), dtype=np.float64)
    if not np.all(np.isfinite(array)):
        raise InputError(f"{name} contains NaN or infinity, which cannot be drawn.")
    return array


def _check_components(components: Sequence[int], count: int, owner: str = "the loadings") -> list[int]:
    for component in components:
        if check_count(component, "component", minimum=0) >= count:
            raise InputError(
                f"component={component} is beyond the last of {owner}; components are counted from 0 to "
                f"{count - 1}."
            )
    return [int(component) for component in components]


def _check_titles(views: object) -> list[str]:
    if not isinstance(views, tuple | list) or len(views) != 2 or not all(isinstance(v, str) for v in views):
        raise InputError(f'views={views!r} is not a pair of names; give two, such as ("brain", "behaviour").')
    return [shorten(name, LONGEST_FEATURE) for name in views]


def _add_legend(figure: Figure, drawn: Sequence[Any], words: Sequence[str], columns: int = 1) -> None:
    # The words are set afterwards: matplotlib leaves out labels that begin with an underscore.
    numbers = [str(i) for i in range(len(drawn))]
    legend = figure.legend(
        drawn, numbers, loc="outside lower center", ncols=columns, fontsize=TEXT_SIZE - 1, frameon=False
    )
    for text, own in zip(legend.get_texts(), words, strict=True):
        text.set_parse_math(False)
        text.set_text(own)


def _finish(axes: Any) -> None:
    axes.grid(color="0.9", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
