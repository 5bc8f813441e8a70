"""The models of both tasks after a fit: T is decomposed when a model is first read.

Fitting, selecting and scoring need no decomposition of T (see ``ranking_maps``); correlations, canonical
weights and vectors do.
"""

from __future__ import annotations

import threading
from collections.abc import ItemsView, Iterator, Mapping, ValuesView
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias, TypeVar

from array_api_compat import is_numpy_array

from diptych._arrays import Array, fields_to_numpy, is_sparse, namespace
from diptych._checks import TASKS, Task
from diptych._devices import copy_to_device
from diptych._threads import map_lapack
from diptych.cca._canonical import (
    CanonicalModel,
    check_components,
    check_correlated,
    correlate_moments,
    regularized_cca,
    variate_correlations,
)
from diptych.cca._filters import AnyFilter
from diptych.cca._moments import Moments
from diptych.cca._spectra import Spectra

Filters: TypeAlias = tuple[AnyFilter, AnyFilter]
Record = TypeVar("Record", bound=Any)


@dataclass(frozen=True, eq=False)
class KeptPairs:
    """Normalised pairs of validation, or only their moments where those take less memory."""

    x: Array | None = None
    y: Array | None = None
    pairing: Array | None = None
    moments: Moments | None = None

    @classmethod
    def of(cls, x: Array, y: Array, pairing: Array) -> KeptPairs:
        """Return the moments of pairs, or a copy of the pairs, which the caller may change later."""
        (n_x, m_x), (n_y, m_y) = x.shape, y.shape
        if n_x * m_x + n_y * m_y > m_x * m_x + m_x * m_y + m_y * m_y:
            return cls(moments=Moments.of(x, y, pairing))
        xp = namespace(x, y)
        return cls(*(a.copy() if is_sparse(a) else xp.asarray(a, copy=True) for a in (x, y, pairing)))

    def correlate(self, model: CanonicalModel, spectra: Spectra) -> Array:
        """Return the correlation of each pair of variates of a model, which has these spectra."""
        if self.moments is not None:
            return correlate_moments(model, self.moments)
        return variate_correlations(model, spectra, self.x, self.y, self.pairing)


@dataclass(frozen=True, eq=False)
class ChosenPoint:
    """What a model is made from: spectra, the filters of both views, and its dimension (None: all).

    ``validation`` are pairs that measure its ``validation_correlations``. If they are among the pairs of
    ``spectra``, ``without`` are the spectra without them and ``filters_without`` the filters chosen there.
    """

    spectra: Spectra
    filters: Filters
    dimension: int | None = None
    validation: KeptPairs | None = None
    without: Spectra | None = None
    filters_without: Filters | None = None

    def check(self) -> None:
        """Raise the errors of ``make`` that need no decomposition."""
        check_components(self.spectra, *self.filters, self.dimension)
        check_correlated(self.spectra, *self.filters)

    def make(self, most: int | None = None) -> CanonicalModel:
        """Return the model, of at most so many components."""
        model = self._fit(self.spectra, self.filters, most)
        if self.validation is None:
            return model
        if self.without is None:
            return replace(model, validation_correlations=self.validation.correlate(model, self.spectra))
        # Held-out pairs are among those of the model: measure the model without them.
        without = self.make_without(int(model.correlations.shape[0]))
        return replace(model, validation_correlations=self.validation.correlate(without, self.without))

    def make_without(self, most: int | None = None) -> CanonicalModel:
        """Return the model that has not seen the validation pairs, of at most so many components."""
        return self._fit(self.without or self.spectra, self.filters_without or self.filters, most)

    def _fit(self, spectra: Spectra, filters: Filters, most: int | None) -> CanonicalModel:
        limits = [limit for limit in (most, self.dimension) if limit is not None]
        size = min(*limits, check_components(spectra, *filters, None)) if limits else None
        return regularized_cca(spectra, *filters, size)


def filters_of(models: Mapping[Task, CanonicalModel]) -> dict[Task, Filters]:
    """Return the filters of the models of both tasks, without making a model for that."""
    if isinstance(models, DeferredModels):
        return models.filters
    return {task: (model.filter_x, model.filter_y) for task, model in models.items()}


class DeferredModels(Mapping[Task, CanonicalModel]):
    """The models of both tasks, each made from its ``ChosenPoint`` when it is first read, and then kept.

    ``made`` are models that exist already. With a torch ``device``, the decomposition is computed there; the
    arrays before and after it are NumPy. A pickled copy computes with NumPy.
    """

    def __init__(
        self,
        points: Mapping[Task, ChosenPoint],
        made: Mapping[Task, CanonicalModel] | None = None,
        device: str | None = None,
    ) -> None:
        made = made or {}
        self.filters = {task: points[task].filters for task in TASKS}
        self.full = {task: points[task].dimension is None and task not in made for task in TASKS}
        self.made: dict[Task, CanonicalModel] = dict(made)
        self._points = {task: points[task] for task in TASKS if task not in made}
        self._device = device
        self._lock = threading.Lock()

    def __getitem__(self, task: Task) -> CanonicalModel:
        """Return the model of a task."""
        if task not in self.made and task in self.filters:
            self._make([task])
        return self.made[task]

    def __iter__(self) -> Iterator[Task]:
        """Iterate over the tasks."""
        return iter(TASKS)

    def __contains__(self, task: object) -> bool:
        """Return whether this is a task; its model is not made for that."""
        return task in TASKS

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(TASKS)

    def items(self) -> ItemsView[Task, CanonicalModel]:
        """Return the tasks with their models, made side by side."""
        self._make(TASKS)
        return super().items()

    def values(self) -> ValuesView[CanonicalModel]:
        """Return the models, made side by side."""
        self._make(TASKS)
        return super().values()

    def _make(self, tasks: Any) -> None:
        with self._lock:
            # Both tasks often share one point, and then one model.
            points = {id(point): point for task in tasks if (point := self._points.get(task)) is not None}
            if not points:
                return
            if self._device is None:
                like = next(iter(points.values())).spectra.t0
                made = map_lapack(ChosenPoint.make, list(points.values()), like)
            else:
                made = [_make_on_device(point, self._device) for point in points.values()]
            models = dict(zip(points, made, strict=True))
            for task in [task for task, point in self._points.items() if id(point) in models]:
                self.made[task] = models[id(self._points.pop(task))]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock, and the device, which another process may not have."""
        with self._lock:
            made, points = dict(self.made), dict(self._points)
        return {**vars(self), "made": made, "_points": points, "_device": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled copy."""
        self.__dict__.update(state)
        self._lock = threading.Lock()


def points_to_numpy(points: Mapping[Task, ChosenPoint], spectra: Spectra) -> dict[Task, ChosenPoint]:
    """Return points in NumPy, with ``spectra`` in place of theirs; what they share is copied once."""
    copies: dict[int, Any] = {}

    def copy(record: Record) -> Record:
        if id(record) not in copies:
            copies[id(record)] = None if record is None else fields_to_numpy(record)
        return copies[id(record)]  # type: ignore[no-any-return]

    made = {
        id(point): replace(
            point, spectra=spectra, validation=copy(point.validation), without=copy(point.without)
        )
        for point in points.values()
    }
    return {task: made[id(point)] for task, point in points.items()}


def _make_on_device(point: ChosenPoint, device: str) -> CanonicalModel:
    return fields_to_numpy(_copy_fields(point, device).make())


def _copy_fields(record: Record, device: str) -> Record:
    """Return a dataclass with its NumPy arrays, and those of dataclasses in it, on a torch device."""
    changed: dict[str, Any] = {}
    for field in fields(record):
        value: Any = getattr(record, field.name)
        if is_numpy_array(value):
            changed[field.name] = copy_to_device(value, device)
        elif is_dataclass(value) and not isinstance(value, type):
            changed[field.name] = _copy_fields(value, device)
    return replace(record, **changed)
