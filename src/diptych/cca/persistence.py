"""A fitted AWCCA as a folder: ``model.safetensors`` for the numbers, ``config.json`` for the rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

import numpy as np

from diptych import folders, storage
from diptych.arrays import Array, to_numpy
from diptych.cca.canonical import CanonicalModel
from diptych.cca.filters import AnyFilter, CustomFilter, SpectralFilter, Tikhonov, TruncatedSVD
from diptych.cca.selection import Grid, Path
from diptych.checks import TASKS, InputError, Task

FORMAT_VERSION = 1
KIND = "awcca"
MEASURED = ("train_correlations", "validation_correlations")
"""What a model may know of itself beside what it needs."""

Loaded = tuple[dict[str, Any], dict[Task, CanonicalModel], Array, Array, Path | None]
Tensors = dict[str, np.ndarray[Any, Any]]


def pack(
    params: Mapping[str, Any],
    models: Mapping[Task, CanonicalModel],
    x_mean: Array,
    y_mean: Array,
    path: Path | None,
) -> tuple[Tensors, dict[str, Any]]:
    """A model as named arrays and plain JSON."""
    tensors = {"x_mean": to_numpy(x_mean), "y_mean": to_numpy(y_mean)}
    stored: dict[str, Any] = {}
    for task, model in models.items():
        # Both tasks often share one model; it is written once.
        first = next(name for name, other in models.items() if other is model)
        stored[task] = {
            "tensors": first,
            "filter_x": _filter_to_json(model.filter_x),
            "filter_y": _filter_to_json(model.filter_y),
        }
        if first == task:
            tensors[f"{task}.correlations"] = to_numpy(model.correlations)
            tensors[f"{task}.x_weights"] = to_numpy(model.x_weights)
            tensors[f"{task}.y_weights"] = to_numpy(model.y_weights)
            for name in MEASURED:
                if (measured := getattr(model, name)) is not None:
                    tensors[f"{task}.{name}"] = to_numpy(measured)
    config = {
        "params": {name: _to_json(value) for name, value in params.items()},
        "models": stored,
        "path": None if path is None else _path_to_json(path),
    }
    return tensors, config


def unpack(tensors: Tensors, config: Mapping[str, Any], folder: FilePath) -> Loaded:
    """What ``pack`` packed: constructor parameters, models, means and regularisation path.

    ``folder`` is where it was read, for messages.
    """
    path = folder / storage.TENSORS
    x_mean = storage.take(tensors, "x_mean", (None,), path)
    y_mean = storage.take(tensors, "y_mean", (None,), path)
    models: dict[Task, CanonicalModel] = {}
    stored, params = config.get("models"), config.get("params")
    if not isinstance(stored, dict) or not isinstance(params, dict):
        raise InputError(f"{folder / storage.CONFIG} lacks 'models' or 'params'; save the model again.")
    for task in TASKS:
        entry = stored.get(task)
        name = entry.get("tensors") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or name not in TASKS:
            raise InputError(f"{folder / storage.CONFIG} does not describe the {task} model; save it again.")
        correlations = storage.take(tensors, f"{name}.correlations", (None,), path)
        models[task] = CanonicalModel(
            correlations,
            storage.take(tensors, f"{name}.x_weights", (len(x_mean), len(correlations)), path),
            storage.take(tensors, f"{name}.y_weights", (len(y_mean), len(correlations)), path),
            _filter_from_json(entry.get("filter_x")),
            _filter_from_json(entry.get("filter_y")),
            *(
                storage.take(tensors, f"{name}.{measured}", (None,), path)
                if f"{name}.{measured}" in tensors
                else None
                for measured in MEASURED
            ),
        )
    kept = {name: _from_json(value) for name, value in params.items() if not _is_unsaved(value)}
    if _is_unsaved(params.get("filter")):
        chosen = models["search"].filter_x
        if not isinstance(chosen, CustomFilter):
            raise InputError(f"{folder / storage.CONFIG} contradicts itself about the filter; save it again.")
        kept["filter"] = chosen.filter
    path_ = None if config.get("path") is None else _path_from_json(config["path"], folder / storage.CONFIG)
    return kept, models, x_mean, y_mean, path_


def save(folder: str | os.PathLike[str], tensors: Tensors, config: Mapping[str, Any]) -> None:
    """Write a packed model; a crash on the way leaves the folder as it was."""
    folders.save_model(folder, KIND, FORMAT_VERSION, tensors, config)


def load(folder: str | os.PathLike[str]) -> Loaded:
    """Read what ``save`` wrote."""
    return unpack(*folders.load_model(folder, KIND, FORMAT_VERSION))


def _path_to_json(path: Path) -> dict[str, Any]:
    return {
        "kind": path.grid.kind,
        "x": path.grid.x.tolist(),
        "y": path.grid.y.tolist(),
        "metric": path.metric,
        "scores": {
            task: {name: _grid_to_json(values) for name, values in named.items()}
            for task, named in path.scores.items()
        },
        "exact": {task: values.astype(int).tolist() for task, values in path.exact.items()},
        "choice": {task: list(point) for task, point in path.choice.items()},
        "route": path.route,
        "seconds": path.seconds,
        "failed": [list(point) for point in path.failed],
        "held_out": path.held_out,
        "extended": {side: list(counts) for side, counts in path.extended.items()},
        "automatic": path.grid.automatic,
    }


def _grid_to_json(values: np.ndarray[Any, Any]) -> list[list[float | None]]:
    # JSON has no NaN: a point that failed is null.
    return [[None if np.isnan(value) else float(value) for value in row] for row in values]


def _path_from_json(stored: Any, path: Any) -> Path:
    try:
        grid = Grid(
            stored["kind"],
            np.asarray(stored["x"], dtype=float),
            np.asarray(stored["y"], dtype=float),
            automatic=bool(stored["automatic"]),
        )

        def whole(values: Any, dtype: type) -> np.ndarray[Any, Any]:
            array: np.ndarray[Any, Any] = np.asarray(values, dtype=dtype)
            if array.shape != grid.shape:
                raise ValueError(f"a table of shape {array.shape} on a grid of {grid.shape}")
            return array

        return Path(
            grid,
            str(stored["metric"]),
            {t: {str(k): whole(v, float) for k, v in stored["scores"][t].items()} for t in TASKS},
            {t: whole(stored["exact"][t], bool) for t in TASKS},
            {t: (int(stored["choice"][t][0]), int(stored["choice"][t][1])) for t in TASKS},
            stored["route"],
            float(stored["seconds"]),
            [(int(i), int(j)) for i, j in stored["failed"]],
            str(stored["held_out"]),
            {s: (int(stored["extended"][s][0]), int(stored["extended"][s][1])) for s in ("x", "y")},
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise InputError(
            f"{path} has a damaged regularisation path ({error}); save the model again."
        ) from None


def _filter_to_json(chosen: AnyFilter) -> dict[str, Any]:
    if isinstance(chosen, CustomFilter):
        return {"name": chosen.filter.name, "parameter": chosen.parameter, "per_pair": chosen.filter.per_pair}
    return {"gamma": chosen.gamma} if isinstance(chosen, Tikhonov) else {"k": chosen.k}


def _filter_from_json(stored: Any) -> AnyFilter:
    if isinstance(stored, dict) and set(stored) == {"gamma"}:
        return Tikhonov(stored["gamma"])
    if isinstance(stored, dict) and set(stored) == {"k"}:
        return TruncatedSVD(stored["k"])
    if isinstance(stored, dict) and set(stored) == {"name", "parameter", "per_pair"}:
        # The name is for people: nothing is looked up or run by it.
        family = SpectralFilter(None, name=str(stored["name"]), per_pair=stored["per_pair"] is True)
        return CustomFilter(family, stored["parameter"])
    raise InputError(f"a saved model names the filter {stored!r}; expected {{'gamma': …}} or {{'k': …}}.")


def _to_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _to_json(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_to_json(each) for each in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    # A function cannot be stored without storing code; the name says what it was.
    return {"unsaved": getattr(value, "name", None) or getattr(value, "__name__", type(value).__name__)}


def _is_unsaved(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"unsaved"}


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_from_json(each) for each in value)
    if isinstance(value, dict):
        return {key: _from_json(each) for key, each in value.items()}
    return value
