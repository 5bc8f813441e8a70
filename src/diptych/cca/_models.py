"""The models of both tasks: a fit chooses points, and the model of a point is made when it is first read.

Fitting, selecting and scoring need no decomposition of T (see ``ranking_maps``); correlations, canonical
weights and vectors do.
"""

from __future__ import annotations

import threading
from collections.abc import ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, replace
from typing import Any, cast

from array_api_compat import is_numpy_array

from diptych._arrays import (
    Array,
    fields_to_numpy,
    is_sparse,
    map_arrays,
    move_like,
    namespace,
)
from diptych._checks import TASKS, Task
from diptych._devices import copy_to_device
from diptych._threads import map_lapack
from diptych.cca._canonical import (
    CanonicalModel,
    check_components,
    check_correlated,
    correlate_variates,
    divide_lengths,
    regularized_cca,
)
from diptych.cca._filters import Filters
from diptych.cca._moments import Moments
from diptych.cca._spectra import Spectra
from diptych.cca._weighting import project


@dataclass(frozen=True, eq=False)
class ValidationPairs:
    """Normalised pairs that measure a model, or only their moments where those take less memory."""

    x: Array | None = None
    y: Array | None = None
    pairing: Array | None = None
    moments: Moments | None = None

    @classmethod
    def of(cls, x: Array, y: Array, pairing: Array) -> ValidationPairs:
        """Return the moments of pairs, or a copy of the pairs, which the caller may change later."""
        (n_x, m_x), (n_y, m_y) = x.shape, y.shape
        if n_x * m_x + n_y * m_y > m_x * m_x + m_x * m_y + m_y * m_y:
            return cls(moments=Moments.of(x, y, pairing))
        xp = namespace(x, y)
        return cls(*(a.copy() if is_sparse(a) else xp.asarray(a, copy=True) for a in (x, y, pairing)))

    def correlate(self, model: CanonicalModel, spectra: Spectra) -> Array:
        """Return the correlation of each pair of variates of a model, which has these spectra.

        It is 0 where a variate is constant.
        """
        if self.moments is None:
            x, y, pairing = (cast(Array, part) for part in (self.x, self.y, self.pairing))
            u, v = project(x, spectra.x_mean, model.x_weights), project(y, spectra.y_mean, model.y_weights)
            return correlate_variates(u, v, pairing)
        xx, yy, xy = self.moments.xx, self.moments.yy, self.moments.xy
        xp = namespace(xy)
        u, v = (move_like(view, xy, dtype=xp.float64) for view in (model.x_weights, model.y_weights))
        squares = xp.sum(u * (xx @ u), axis=0) * xp.sum(v * (yy @ v), axis=0)
        return divide_lengths(xp.sum(u * (xy @ v), axis=0), xp.sqrt(xp.clip(squares, 0.0, None)))


@dataclass(frozen=True, eq=False)
class ChosenPoint:
    """What a model is made from: spectra, the filters of both views, and its dimension (None: all).

    ``validation`` are pairs that measure its ``validation_correlations``. If they are among the pairs of
    ``spectra``, ``unseen`` is the point of the pairs without them.
    """

    spectra: Spectra
    filters: Filters
    dimension: int | None = None
    validation: ValidationPairs | None = None
    unseen: ChosenPoint | None = None

    def check(self) -> None:
        """Raise the errors of ``make`` that need no decomposition."""
        check_components(self.spectra, *self.filters, self.dimension)
        check_correlated(self.spectra, *self.filters)

    def make(self, most: int | None = None) -> CanonicalModel:
        """Return the model, of at most so many components."""
        limits = [limit for limit in (most, self.dimension) if limit is not None]
        size = min(*limits, check_components(self.spectra, *self.filters, None)) if limits else None
        model = regularized_cca(self.spectra, *self.filters, size)
        if self.validation is None:
            return model
        measured, spectra = model, self.spectra
        if self.unseen is not None:
            measured, spectra = self.unseen.make(int(model.correlations.shape[0])), self.unseen.spectra
        return replace(model, validation_correlations=self.validation.correlate(measured, spectra))


class Models(Mapping[Task, CanonicalModel]):
    """The models of both tasks: those that are ``computed``, and those made of ``points`` when first read.

    ``filters`` are those of both tasks, and ``full`` says which models have every component and need not be
    made to rank (see ``ranking_maps``). With a torch ``device``, decompositions are computed there; the
    arrays before and after are NumPy. A pickled copy computes with NumPy.
    """

    def __init__(
        self,
        computed: Mapping[Task, CanonicalModel],
        points: Mapping[Task, ChosenPoint] | None = None,
        device: str | None = None,
    ) -> None:
        self.computed = dict(computed)
        self._points = {task: point for task, point in (points or {}).items() if task not in computed}
        self.filters: dict[Task, Filters] = {
            task: (model.filter_x, model.filter_y) for task, model in self.computed.items()
        } | {task: point.filters for task, point in self._points.items()}
        self.full = {task for task, point in self._points.items() if point.dimension is None}
        self._device = device
        self._lock = threading.Lock()

    @property
    def polished(self) -> dict[Task, CanonicalModel]:
        """The models with a polish, which are computed."""
        return {task: model for task, model in self.computed.items() if model.polish is not None}

    def __getitem__(self, task: Task) -> CanonicalModel:
        if task not in self.computed and task in self.filters:
            self._make([task])
        return self.computed[task]

    def __iter__(self) -> Iterator[Task]:
        return iter(TASKS)

    def __contains__(self, task: object) -> bool:
        """Return whether this is a task; its model is not made for that."""
        return task in TASKS

    def __len__(self) -> int:
        return len(TASKS)

    def items(self) -> ItemsView[Task, CanonicalModel]:
        """Return the tasks with their models, made side by side."""
        self._make(TASKS)
        return super().items()

    def values(self) -> ValuesView[CanonicalModel]:
        """Return the models, made side by side."""
        self._make(TASKS)
        return super().values()

    def _make(self, tasks: Iterable[Task]) -> None:
        with self._lock:
            # Both tasks often share one point, and then one model.
            points = {id(point): point for task in tasks if (point := self._points.get(task)) is not None}
            if not points:
                return
            if self._device is None:
                like = next(iter(points.values())).spectra.t0
                models = map_lapack(ChosenPoint.make, list(points.values()), like)
            else:
                models = [_make_on_device(point, self._device) for point in points.values()]
            by_point = dict(zip(points, models, strict=True))
            for task in [task for task, point in self._points.items() if id(point) in by_point]:
                self.computed[task] = by_point[id(self._points.pop(task))]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the lock, and the device, which another process may not have."""
        with self._lock:
            computed, points = dict(self.computed), dict(self._points)
        return {**vars(self), "computed": computed, "_points": points, "_device": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _make_on_device(point: ChosenPoint, device: str) -> CanonicalModel:
    def copy(array: Array) -> Array:
        return copy_to_device(array, device) if is_numpy_array(array) else array

    return fields_to_numpy(map_arrays(point, copy).make())
