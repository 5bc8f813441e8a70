"""What is known of a fitted model, for people: it is stored beside the projectors, which search."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec
import numpy as np

from diptych._arrays import to_numpy
from diptych._checks import TASKS, InputError, Task
from diptych._persistence import Schema
from diptych.cca.selection._grids import Path

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA

SHOWN_CORRELATIONS = 5
SPECTRUM_POINTS = 512

_Count = Annotated[int, msgspec.Meta(ge=0)]
_Plain: TypeAlias = bool | int | float | str | None


class Spectrum(Schema, frozen=True):
    """Some canonical correlations, evenly spaced, with their numbers."""

    number: list[_Count]
    correlation: list[float]

    @classmethod
    def thin(cls, correlations: Any) -> Spectrum:
        """Return at most ``SPECTRUM_POINTS`` of all correlations."""
        n = len(correlations)
        chosen = np.unique(np.linspace(0, n - 1, min(n, SPECTRUM_POINTS)).round().astype(int))
        return cls((chosen + 1).tolist(), np.asarray(correlations)[chosen].astype(float).tolist())


class PartDescription(Schema, frozen=True):
    """One part of a fusion: its name, the weight of its cosine in the score, and how it is used, in words."""

    name: str
    weight: float
    use: str
    components: _Count


class CorrectionDescription(Schema, frozen=True):
    """A hubness correction; ``gated`` if queries that are unlike the training queries get less of it."""

    kind: str
    strength: float
    neighbours: int
    gated: bool


class ModelDescription(Schema, frozen=True):
    """What is known of a fitted ``AWCCA`` or ``Fusion``, as plain data.

    ``filters`` are those of both views, or of every part; ``components`` counts the coordinates. ``params``
    are the settings that people want to see, and ``weighting`` is a name or the powers of both views. Only an
    AWCCA has ``correlations`` (the first few, by kind, where measured), ``spectrum``, ``epochs`` of its
    polish and the regularisation ``path``; only a fusion has ``parts`` and ``corrections``. ``metric`` and
    ``best`` are what selected the regularisation, and its best value; ``theory`` names the estimator of γ
    where none was selected by retrieval.
    """

    kind: str
    filters: dict[Task, list[str]]
    components: dict[Task, _Count]
    params: dict[str, _Plain | list[_Plain | list[_Plain]]]
    weighting: str | tuple[float, float]
    epochs: dict[Task, _Count] = msgspec.field(default_factory=dict)
    correlations: dict[Task, dict[str, list[float] | None]] = msgspec.field(default_factory=dict)
    spectrum: dict[Task, Spectrum] = msgspec.field(default_factory=dict)
    parts: dict[Task, list[PartDescription]] = msgspec.field(default_factory=dict)
    corrections: dict[Task, CorrectionDescription] = msgspec.field(default_factory=dict)
    metric: str | None = None
    best: dict[Task, float] = msgspec.field(default_factory=dict)
    theory: str | None = None
    path: Path | None = None

    def check(self) -> ModelDescription:
        """Return it, or refuse what lacks a task. A search does not read it, so loading does not check it."""
        by_task = (self.filters, self.components, self.epochs, self.correlations, self.spectrum, self.parts)
        if not self.filters or any(
            part and set(part) != set(TASKS) for part in (*by_task, self.corrections, self.best)
        ):
            raise InputError(f"the description of the model lacks one of the tasks {', '.join(TASKS)}")
        if self.spectrum and any(len(pair) != 2 for pair in self.filters.values()):
            raise InputError("the description of the model lacks the filter of a view")
        check_path(self.path)
        return self

    @property
    def title(self) -> str:
        if "preset" in self.params:
            return f"{self.kind}, preset {self.params['preset']}"
        filters = (f"{task} {' and '.join(self.filters[task])}" for task in TASKS)
        return f"{self.kind}, {', '.join(filters)}"


def describe_model(model: AWCCA) -> ModelDescription:
    """Return what people want to know of a fitted ``AWCCA``."""
    models, path = model.models_, without_filter(model.path_)

    def first(task: Task, name: str) -> list[float] | None:
        values = getattr(models[task], name)
        return None if values is None else [round(float(v), 6) for v in values[:SHOWN_CORRELATIONS]]

    epochs = {task: models[task].epochs for task in TASKS}
    names = ("filter", "weighting", "similarity", "normalize", "metric", "grid")
    extra = {f"{task} model": describe_polish(n) for task, n in epochs.items() if n}
    kinds = ("correlations", "train_correlations", "validation_correlations")
    if model.regressions_ is not None:
        extra["covariates"] = str(model.regressions_)
    weighting = model.weighting
    if not isinstance(weighting, str):
        weighting = float(weighting[0]), float(weighting[1])
    theory = None
    if path is None and model.params is None:
        theory = "ledoit-wolf" if model.selection == "validation" else model.selection
    return ModelDescription(
        "AWCCA",
        {task: [str(models[task].filter_x), str(models[task].filter_y)] for task in TASKS},
        {task: int(models[task].correlations.shape[0]) for task in TASKS},
        plain_params({name: getattr(model, name) for name in names} | extra),
        weighting,
        epochs,
        {task: {kind: first(task, kind) for kind in kinds} for task in TASKS},
        {task: Spectrum.thin(to_numpy(models[task].correlations)) for task in TASKS},
        metric=None if path is None else path.metric,
        best={} if path is None else {task: path.best(task) for task in TASKS},
        theory=theory,
        path=path,
    )


def describe_polish(epochs: int) -> str:
    """Describe that a model was polished; command line, card and page show this.

    >>> describe_polish(3)
    'polished for 3 epochs'
    """
    return f"polished for {epochs} epoch{'s' if epochs != 1 else ''}"


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as plain data: functions and filters by their names."""

    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple | np.ndarray):
            return [plain(part) for part in value]
        if value is None or isinstance(value, str | bool | int | float):
            return value
        return value.item() if isinstance(value, np.generic) else getattr(value, "__name__", str(value))

    return {name: plain(value) for name, value in params.items()}


def without_filter(path: Path | None) -> Path | None:
    """Return a path as it is stored: without the function of a custom filter."""
    if path is None or path.grid.filter is None:
        return path
    return replace(path, grid=replace(path.grid, filter=None))


def check_path(path: Path | None) -> None:
    """Refuse a regularisation path whose tables or points do not fit its grid."""
    if path is None:
        return
    shape, scores = path.grid.shape, path.scores
    if any(set(part) != set(TASKS) for part in (scores, path.exact, path.choice)):
        raise InputError("path: the regularisation path lacks a task")
    tables = [*path.exact.values(), *(table for metrics in scores.values() for table in metrics.values())]
    points = [*path.choice.values(), *path.failed]
    if any(table.shape != shape for table in tables) or not all(
        0 <= i < shape[0] and 0 <= j < shape[1] for i, j in points
    ):
        raise InputError(f"path: a table or a point does not fit the grid of the shape {shape}")
