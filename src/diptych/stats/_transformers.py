"""Transformers of scikit-learn that every fold, and every resample, fits again on its own rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych._arrays import Array, to_numpy
from diptych._checks import (
    InputError,
    check_column_names,
    check_matrix,
    check_pair_of_views,
    check_pairing,
    pair_rows,
    second_view,
)


@dataclass(frozen=True, eq=False)
class TransformedViews:
    """Two views, and the transformer of each: None for a view that stays as it is.

    If one has a transformer, both are data frames, or arrays of NumPy, and not checked.
    """

    x: Any
    y: Any
    transformers: tuple[Any, Any] = (None, None)

    def fit(self, rows_x: Any, rows_y: Any) -> tuple[Any, Any]:
        """Return all rows of both views, by transformers that are fitted on the given rows.

        Data frames stay data frames, if the transformer can name its features.
        """
        fitted = (
            view if transformer is None else _fit_transformer(transformer, view, rows, name)
            for transformer, view, rows, name in zip(
                self.transformers, (self.x, self.y), (rows_x, rows_y), "XY", strict=True
            )
        )
        x, y = fitted
        return x, y


def read_views(X: Any, y: Any, pairing: Any, preprocess: Any) -> tuple[TransformedViews, Array]:
    """Return the views of the pairs, with their transformers, and the pairing."""
    y = second_view(y)
    if preprocess is None:
        x, y, pairing = check_pair_of_views(X, y, pairing)
        return TransformedViews(x, y), pairing
    transformers = _check_transformers(preprocess)
    pairing = pair_rows(X, y, pairing)
    x, y = _read_table(X, "X"), _read_table(y, "Y")
    return TransformedViews(x, y, transformers), check_pairing(pairing, len(x), np.empty((len(y), 0)))


def _check_transformers(preprocess: Any) -> tuple[Any, Any]:
    pair = tuple(preprocess) if isinstance(preprocess, tuple | list) else (preprocess, preprocess)
    if len(pair) != 2 or pair == (None, None) or not all(map(_is_transformer, pair)):
        raise InputError(
            f"preprocess={preprocess!r} is not a transformer; give one of scikit-learn for both views, such "
            "as StandardScaler(), or a pair for X and for Y, with None for a view that stays as it is."
        )
    return pair[0], pair[1]


def _is_transformer(value: Any) -> bool:
    is_unfitted = hasattr(value, "fit") and hasattr(value, "transform") and not isinstance(value, type)
    return value is None or is_unfitted


def _read_table(view: Any, name: str) -> Any:
    """Return a data frame as it is, and anything else as an array of NumPy."""
    if check_column_names(view, name) is not None:
        return view
    return to_numpy(check_matrix(view, name))


def _fit_transformer(transformer: Any, view: Any, rows: Any, name: str) -> Any:
    """Return all rows of a view, by a copy of the transformer that is fitted on some."""
    from sklearn.base import clone
    from sklearn.utils import _safe_indexing

    try:
        fitted = clone(transformer)
        if hasattr(view, "columns"):
            with suppress(AttributeError, ValueError):  # a transformer that cannot name its features
                fitted.set_output(transform="pandas")
        return fitted.fit(_safe_indexing(view, to_numpy(rows))).transform(view)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"preprocess: {type(transformer).__name__} could not transform {name} ({error}); give a "
            "transformer that needs only the features of that view."
        ) from None
