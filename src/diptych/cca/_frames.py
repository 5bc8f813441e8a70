"""Data frames: the names of a model's features and components, as scikit-learn has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils._set_output import _get_container_adapter
from sklearn.utils.validation import _get_feature_names, validate_data

from diptych._arrays import Array, to_numpy
from diptych._checks import InputError, check_matrix
from diptych.cca._projector import ViewKey

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA


def find_names(X: Any, y: Any) -> dict[str, Any]:
    """Return the names of both views' features, and whether y has one axis, as attributes of the model."""
    plain = not hasattr(y, "columns") and not hasattr(y, "ndim")
    is_vector = getattr(np.asarray(y) if plain else y, "ndim", 2) == 1
    y_names = _get_feature_names(y)
    if is_vector and isinstance(getattr(y, "name", None), str):
        y_names = np.asarray([y.name], dtype=object)
    names = {"feature_names_in_": _get_feature_names(X), "y_feature_names_in_": y_names}
    return {name: array for name, array in names.items() if array is not None} | {"_y_is_vector": is_vector}


def check_columns(model: AWCCA, rows: Any, view: ViewKey) -> None:
    """Raise an error for columns of a view other than in fit."""
    check_matrix(rows, view.upper(), sparse=True)
    if view == "x":
        validate_data(model, rows, reset=False, skip_check_array=True)
        return
    names, fitted = _get_feature_names(rows), getattr(model, "y_feature_names_in_", None)
    if names is not None and fitted is not None and list(names) != list(fitted):
        raise InputError(
            f"y has the columns {_shorten(names)}, but {_shorten(fitted)} in fit; give the same columns in "
            "the same order."
        )


def label_vectors(model: AWCCA, vectors: Array, view: Any) -> Any:
    """Return the vectors of a view as they are, or as the data frame that ``set_output`` asks for."""
    adapter = _get_container_adapter("transform", model)
    if adapter is None:
        return vectors
    return adapter.create_container(to_numpy(vectors), view, columns=name_components(vectors.shape[1]))


def name_components(count: int) -> np.ndarray[Any, Any]:
    """Return the names of so many components."""
    return np.asarray([f"awcca{at}" for at in range(count)], dtype=object)


def _shorten(names: Sequence[str]) -> str:
    listed = ", ".join(map(repr, names[:5]))
    return listed if len(names) <= 5 else f"{listed} and {len(names) - 5:,} more"
