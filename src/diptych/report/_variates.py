"""Figures of canonical variates: against each other, held out, and as arrows between the views."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import linregress, t
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import to_numpy
from diptych._checks import InputError, Task, check_task, order_rows
from diptych.cca import AWCCA
from diptych.report._figures import (
    COLORS,
    MARKERS,
    TEXT_SIZE,
    add_legend,
    finish_figure,
    new_figure,
    shorten,
    style_axes,
    text_width,
)
from diptych.report._statistics import LONGEST_FEATURE, check_components, check_plane, check_views
from diptych.stats import CrossValidatedCorrelations
from diptych.stats._pairs import block_codes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ARROW_WIDTH = 5.4
"""Inches."""


def draw_variates(
    model: AWCCA | CrossValidatedCorrelations,
    X: Any = None,
    y: Any = None,
    pairing: Any = None,
    file: str | os.PathLike[str] | None = None,
    *,
    component: int = 0,
    held_out: tuple[Any, ...] | None = None,
    covariates: Any = None,
    task: Task = "search",
    views: tuple[str, str] = ("X", "Y"),
) -> Figure:
    """Draw the canonical variates of both views against each other; write the figure if a file is named.

    One point per pair, in standard deviations over ``X`` and ``y``, and their correlation. Over training
    pairs chance raises it; over held-out pairs it does not. A cross-validation has held-out variates of all
    pairs: they are drawn in the colours of their folds, with the regression line of Y on X and the 95 %
    confidence band of this line (Student's t), which takes pairs as independent.

    Parameters
    ----------
    model
        A fitted ``AWCCA``; or the result of ``diptych.stats.cross_validated_correlations``, which has
        pairs and a task of its own.
    X, y, pairing
        As in ``AWCCA.fit``; usually the training pairs.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    component
        Its number, counted from 0.
    held_out
        ``(X, y)`` or ``(X, y, pairing)`` that the model was not fitted on, drawn in the same axes; of a model
        with covariates ``(X, y, pairing, covariates)``.
    covariates
        Those of the rows of X, as in the fit.
    task
        Whose model: an ``AWCCA`` that selected its regularisation has one for each task.
    views
        What the axes call the views.

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
    names = check_views(views)
    figure = new_figure(4.6, 4.2)
    axes = figure.subplots()
    if isinstance(model, CrossValidatedCorrelations):
        if any(value is not None for value in (X, y, pairing, held_out, covariates)) or task != "search":
            raise InputError(
                "cross-validated correlations have pairs and a task of their own; give them without X, y, "
                "pairing, held_out, covariates and task."
            )
        artists, labels = _draw_folds(axes, model, component)
    elif X is None or y is None:
        raise InputError("a model needs pairs, whose variates are drawn; give X and y.")
    else:
        artists, labels = _draw_pairs(axes, model, (X, y, pairing, covariates), held_out, component, task)
    axes.set_xlabel(_name_axis(component, names[0]), fontsize=TEXT_SIZE, parse_math=False)
    axes.set_ylabel(_name_axis(component, names[1]), fontsize=TEXT_SIZE, parse_math=False)
    style_axes(axes)
    add_legend(figure, artists, labels, fontsize=TEXT_SIZE - 1)
    return finish_figure(figure, file)


def _name_axis(component: int, view: str) -> str:
    return f"variate {component + 1} of {view} (standard deviations)"


def _draw_pairs(
    axes: Any, model: AWCCA, pairs: tuple[Any, ...], held_out: Any, component: int, task: Task
) -> tuple[list[Any], list[str]]:
    """Draw the variates of pairs, and of held-out ones if there are any; return what the legend shows."""
    clouds = [(*_variates(model, pairs, (component,), task)[:2], "pairs")]
    if held_out is not None:
        if not isinstance(held_out, tuple) or len(held_out) not in (2, 3, 4):
            raise InputError(
                "held_out is not (X, y), (X, y, pairing) or (X, y, pairing, covariates); give it as a tuple."
            )
        clouds = [
            (*clouds[0][:2], "training pairs"),
            (*_variates(model, held_out, (component,), task)[:2], "held-out pairs"),
        ]
    scale_u, scale_v = (_scale(variates) for variates in clouds[0][:2])
    artists: list[Any] = []
    labels = []
    for (u, v, name), marker, color in zip(clouds, MARKERS, COLORS, strict=False):
        many = len(u) > 500
        artists += axes.plot(
            u / scale_u,
            v / scale_v,
            marker,
            color=color,
            # Held-out pairs are hollow, so that they can be told apart without colour and hide nothing.
            markerfacecolor="none" if artists else color,
            markersize=2.5 if many else 4.5,
            alpha=0.5 if many else 0.85,
            rasterized=len(u) > 5000,
            zorder=2.0 + 1.0 / len(u),  # few points are not hidden by many
        )
        labels.append(f"{len(u):,} {name}: r = {_correlate(u[:, 0], v[:, 0]):.2f}")
    return artists, labels


def _draw_folds(axes: Any, result: CrossValidatedCorrelations, component: int) -> tuple[list[Any], list[str]]:
    """Draw held-out variates with their regression line and its band; return what the legend shows."""
    check_components((component,), result.held_out_x.shape[1], "the cross-validation")
    is_held_out = result.fold_of >= 0
    u, v = (view[is_held_out, component] for view in (result.held_out_x, result.held_out_y))
    if len(u) < 3 or not np.ptp(u) > 0:
        raise InputError(
            "a regression line needs three or more held-out pairs, whose variates differ; give folds with "
            "more pairs."
        )
    u, v = u / _scale(u), v / _scale(v)
    colors = [COLORS[fold % len(COLORS)] for fold in result.fold_of[is_held_out]]
    size = 6.0 if len(u) > 500 else 18.0
    points = axes.scatter(u, v, size, colors, alpha=0.8, linewidths=0, rasterized=len(u) > 5000)
    line, across = linregress(u, v), np.linspace(u.min(), u.max(), 101)
    up = line.intercept + line.slope * across
    # The variance of u is 1, so that of the line at its mean is that of its slope.
    half = t.ppf(0.975, len(u) - 2) * line.stderr * np.hypot(1.0, across - u.mean())
    band = axes.fill_between(across, up - half, up + half, color="0.5", alpha=0.3, linewidth=0, zorder=0.5)
    (drawn,) = axes.plot(across, up, color="black", linewidth=1.4)
    n_folds = len(np.unique(result.fold_of[is_held_out]))
    pairs = f"{len(u):,} held-out pairs, coloured by their {n_folds:,} folds: r = {_correlate(u, v):.2f}"
    return [points, (band, drawn)], [pairs, "regression line, with its confidence band (95%)"]


def draw_arrows(
    model: AWCCA,
    X: Any,
    y: Any,
    pairing: Any = None,
    file: str | os.PathLike[str] | None = None,
    *,
    components: tuple[int, int] = (0, 1),
    groups: Any = None,
    covariates: Any = None,
    task: Task = "search",
    views: tuple[str, str] = ("X", "Y"),
) -> Figure:
    """Draw each pair as an arrow from its variates of X to those of Y; write the figure if a file is named.

    Variates of both views are in standard deviations. The shorter an arrow, the better the views agree on
    this pair.

    Parameters
    ----------
    model
        A fitted ``AWCCA``.
    X, y, pairing
        As in ``AWCCA.fit``.
    file
        ``.png``, ``.svg`` or ``.pdf``.
    components
        Two numbers, counted from 0.
    groups
        One label for each row of X, such as a diagnosis or a diet: each group has a colour.
    covariates
        Those of the rows of X, as in the fit.
    task
        Whose model: an ``AWCCA`` that selected its regularisation has one for each task.
    views
        What the title calls the views.

    Examples
    --------
    >>> from diptych import AWCCA
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(50, 3))
    >>> model = AWCCA(params=(1.0, 1.0)).fit(x, x + rng.normal(size=x.shape))
    >>> draw_arrows(model, x, x).axes[0].get_title()
    'from X (marker) to Y (tip)'
    """
    names = check_views(views)
    u, v, owners = _variates(model, (X, y, pairing, covariates), components, task)
    u, v = u / _scale(u), v / _scale(v)
    codes, labels = np.zeros(len(u), dtype=np.int64), [f"{len(u):,} pairs"]
    if groups is not None:
        ordered = order_rows(groups, X, "groups", "X")
        row_codes = block_codes(ordered, np.shape(X)[0], "groups")
        n_groups = int(row_codes.max()) + 1
        if n_groups > len(COLORS):
            raise InputError(f"groups has {n_groups:,} labels; give at most {len(COLORS)}, one for a colour.")
        labels = [str(np.asarray(ordered)[row_codes == code][0]) for code in range(n_groups)]
        codes = row_codes[owners]
    figure = new_figure(ARROW_WIDTH, ARROW_WIDTH)
    axes = figure.subplots()
    artists: list[Any] = []
    style = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "units": "inches", "width": 0.012}
    for code, color in zip(range(len(labels)), COLORS, strict=False):
        start, end = u[codes == code], v[codes == code]
        marker = {"marker": MARKERS[code % len(MARKERS)], "markersize": 3.0, "linestyle": "none"}
        artists += axes.plot(*start.T, color=color, alpha=0.85, **marker)
        axes.quiver(*start.T, *(end - start).T, color=color, alpha=0.7, headwidth=6, headlength=7, **style)
        axes.update_datalim(end)
    axes.autoscale_view()
    axes.set_aspect("equal", adjustable="datalim")
    for axis, component in zip((axes.xaxis, axes.yaxis), components, strict=True):
        axis.set_label_text(f"component {component + 1} (standard deviations)", fontsize=TEXT_SIZE)
    title = f"from {names[0]} (marker) to {names[1]} (tip)"
    axes.set_title(title, fontsize=TEXT_SIZE, parse_math=False)
    style_axes(axes)
    labels = [shorten(label, LONGEST_FEATURE) for label in labels]
    per_row = int(ARROW_WIDTH / (max(text_width(label, TEXT_SIZE - 1) for label in labels) + 0.6))
    n_columns = math.ceil(len(labels) / math.ceil(len(labels) / per_row))
    add_legend(figure, artists, labels, ncols=n_columns, fontsize=TEXT_SIZE - 1)
    return finish_figure(figure, file)


def _variates(
    model: AWCCA, pairs: tuple[Any, ...], components: Sequence[int], task: Task
) -> tuple[Any, Any, Any]:
    """Return variates of both views over pairs, not weighted by correlations, and the row of X of each."""
    if not isinstance(model, AWCCA):
        raise InputError(f"{type(model).__name__} has no canonical variates; give a fitted AWCCA.")
    check_is_fitted(model)
    canonical = model.models_[check_task(task)]
    check = check_plane if len(components) == 2 else check_components
    columns = check(components, int(canonical.correlations.shape[0]), "the model")
    x, y, pairing, covariates = (*pairs, None, None)[:4]
    weights = canonical.x_weights[:, columns], canonical.y_weights[:, columns]
    u, v, owners = map(to_numpy, model.project_pairs(x, y, pairing, weights, covariates))
    return u[owners], v, owners


def _scale(variates: Any) -> Any:
    """Return the standard deviation of each variate; 1 for a constant one."""
    scale = np.std(variates, axis=0)
    return np.where(scale > 0, scale, 1.0)


def _correlate(u: Any, v: Any) -> float:
    u, v = u - u.mean(), v - v.mean()
    lengths = float(np.linalg.norm(u) * np.linalg.norm(v))
    return float(u @ v) / lengths if lengths > 0 else 0.0
