"""What scikit-learn asks beside fitting: names of features and components, data frames, a notebook's view."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils._set_output import _get_container_adapter
from sklearn.utils.validation import _get_feature_names, validate_data

from diptych._arrays import Array, to_numpy
from diptych._checks import (
    TASKS,
    InputError,
    Task,
    check_column_names,
    check_matrix,
    count,
    second_view,
)
from diptych.cca._canonical import CanonicalModel
from diptych.cca._covariates import split_sides
from diptych.cca._projector import ViewKey

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA

SHOWN = 5
"""Components in the table of correlations."""

# Colours are those of the notebook, so that light and dark ones are both readable.
_STYLE = (
    "<style>.diptych-fit{font-size:90%}.diptych-fit table{border-collapse:collapse;margin:.4em 0;"
    "color:inherit;background:none;font-size:inherit}"
    ".diptych-fit :is(th,td){padding:.15em .9em .15em 0;text-align:left;font-weight:normal;"
    "border-bottom:1px solid rgba(128,128,128,.4);background:none}"
    ".diptych-fit th{opacity:.75}</style>"
)


def find_names(X: Any, y: Any) -> dict[str, Any]:
    """Return the names of both views' features, and whether y has one axis, as attributes of the model."""
    plain = not hasattr(y, "columns") and not hasattr(y, "ndim")
    is_vector = getattr(np.asarray(y) if plain else y, "ndim", 2) == 1
    x_names, y_names = name_columns(X, "X"), name_columns(y, "Y")
    if is_vector and isinstance(getattr(y, "name", None), str):
        y_names = np.asarray([y.name], dtype=object)
    names = {"feature_names_in_": x_names, "y_feature_names_in_": y_names}
    return {name: array for name, array in names.items() if array is not None} | {"_y_is_vector": is_vector}


def name_columns(view: Any, name: str) -> Any:
    """Return the names of the columns of a data frame; None if they are not strings, or if it is none."""
    check_column_names(view, name)
    return _get_feature_names(view)


def order_covariates(names: Mapping[str, Any], covariates: Any) -> tuple[Any, Any]:
    """Return the covariates of X and of Y with their columns in the order of ``names``, those of a fit."""
    fitted = names.get("covariate_names_in_", (None, None))
    x, y = (order_by_name(*side, "covariates") for side in zip(split_sides(covariates), fitted, strict=True))
    return x, y


def name_covariates(covariates: Any) -> dict[str, Any]:
    """Return the names of the covariates of X and of Y as an attribute of the model."""
    return {"covariate_names_in_": tuple(name_columns(z, "covariates") for z in split_sides(covariates))}


NAME_KEYS: dict[ViewKey, str] = {"x": "feature_names_in_", "y": "y_feature_names_in_"}
"""The attributes with the names of the columns of both views."""


def order_columns(model: AWCCA, rows: Any, view: ViewKey) -> Any:
    """Return the rows of a view with their columns in the order of fit; other columns are an error."""
    rows = rows if view == "x" else second_view(rows)
    check_matrix(rows, view.upper(), sparse=True)
    fitted: Sequence[str] | None = getattr(model, NAME_KEYS[view], None)
    if view == "y":
        return order_by_name(rows, fitted, "y")
    if fitted is not None and _has_names(rows, fitted):
        rows = rows[list(fitted)]
    validate_data(model, rows, reset=False, skip_check_array=True)  # which words errors as scikit-learn does
    return rows


def order_pairs(names: Mapping[str, Any], x: Any, y: Any, kind: str = "") -> tuple[Any, Any]:
    """Return two views with their columns in the order of ``names``, those of a fit; others are an error."""
    x = order_by_name(x, names.get(NAME_KEYS["x"]), f"{kind}X")
    return x, order_by_name(second_view(y), names.get(NAME_KEYS["y"]), f"{kind}y")


def order_by_name(rows: Any, fitted: Sequence[str] | None, owner: str) -> Any:
    """Return a data frame with its columns in the order of fit; other columns are an error."""
    names = name_columns(rows, owner)
    if names is None or fitted is None:
        return rows
    if _has_names(rows, fitted):
        return rows[list(fitted)]
    raise InputError(
        f"{owner} has the columns {_shorten(names)}, but {_shorten(fitted)} in fit; give the same columns."
    )


def _has_names(rows: Any, fitted: Sequence[str]) -> bool:
    """Return whether a data frame has columns with these names, in any order."""
    names = _get_feature_names(rows)
    return names is not None and sorted(names) == sorted(fitted)


def label_vectors(model: AWCCA, vectors: Array, view: Any) -> Any:
    """Return the vectors of a view as they are, or as the data frame that ``set_output`` asks for."""
    adapter = _get_container_adapter("transform", model)
    if adapter is None:
        return vectors
    columns = name_components(model, vectors.shape[1])
    return adapter.create_container(to_numpy(vectors), view, columns=columns)


def name_components(model: AWCCA, count: int) -> np.ndarray[Any, Any]:
    return np.asarray([f"{model._kind.lower()}{at}" for at in range(count)], dtype=object)


def _shorten(names: Sequence[str]) -> str:
    listed = ", ".join(map(repr, names[:5]))
    return listed if len(names) <= 5 else f"{listed} and {len(names) - 5:,} more"


def describe_fit(model: AWCCA, computed: dict[Task, CanonicalModel]) -> str:
    """Return the fit of a model as HTML, with the correlations of the models that are ``computed``."""
    sizes = f"X has {count(len(model.x_mean_), 'feature')}, Y {len(model.y_mean_):,}."
    if (spectra := getattr(model, "spectra_", None)) is not None:
        sizes = f"Fitted on {spectra.count:,} pairs. {sizes}"
    if model.regressions_ is not None:
        sizes += f" Without covariates: {model.regressions_}."
    path = model.path_
    how = "Regularisation was given." if model.params is not None else f"Selection: {model.selection}."
    if path is not None:
        points = " × ".join(str(side) for side in path.grid.shape)
        how = f"Regularisation was selected among {points} points by {path.metric} on {path.held_out}."
    filters = model.models_.filters
    digits = 3 if path is not None and path.metric == "correlation" else 1
    tasks = TASKS if model._kind == "AWCCA" else TASKS[:1]
    head = ["task", "filter of X", "filter of Y"] + ([] if path is None else [path.metric])
    rows = [
        [task if len(tasks) > 1 else "both", *map(str, filters[task])]
        + ([] if path is None else [f"{path.best(task):.{digits}f}"])
        for task in tasks
    ]
    parts = [f"<p>{escape(sizes)} {escape(how)}</p>", _table(head, rows)]
    shared = len(computed) == len(TASKS) and computed["search"] is computed["annotate"]
    for task in TASKS[:1] if shared else [task for task in TASKS if task in computed]:
        parts.append(_correlations("both tasks" if shared else task, computed[task]))
    if not computed:
        parts.append("<p>Correlations are computed when <code>models_</code> is first read.</p>")
    return f'{_STYLE}<div class="diptych-fit">{"".join(parts)}</div>'


def _correlations(title: str, model: CanonicalModel) -> str:
    columns = {
        "regularised": model.correlations,
        "training pairs": model.train_correlations,
        "validation pairs": model.validation_correlations,
    }
    measured = {name: to_numpy(values) for name, values in columns.items() if values is not None}
    total = len(measured["regularised"])
    rows = [
        [str(k + 1), *(f"{values[k]:.3f}" for values in measured.values())] for k in range(min(SHOWN, total))
    ]
    words = f"Correlations, {title}" + (f" (the first {SHOWN} of {total:,})" if total > SHOWN else "")
    return f"<p>{escape(words)}:</p>" + _table(["component", *measured], rows)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{body}</table>"
