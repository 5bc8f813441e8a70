"""What runs on a worker: things opened where they are used, one BLAS thread to a task, warnings kept."""

from __future__ import annotations

import functools
import importlib
import pickle
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, is_dataclass, replace
from typing import Any

import threadpoolctl

from diptych.checks import DataWarning, InputError


class Packed:
    """Something that travels as bytes, and is opened once in each process that uses it.

    Whoever passes it on never opens it: a scheduler needs no memory map, network or model to plan with.
    """

    def __init__(self, thing: Any) -> None:
        try:
            self._bytes: bytes = _cloudpickle().dumps(thing)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise InputError(
                f"a {type(thing).__name__} cannot be sent to another process ({error}); use one that can be "
                "pickled."
            ) from None
        self._lock = threading.Lock()

    def open(self) -> Any:
        """The thing; the same one each time."""
        with self._lock:
            if not hasattr(self, "_thing"):
                self._thing = _cloudpickle().loads(self._bytes)
            return self._thing

    def __getstate__(self) -> bytes:
        return self._bytes

    def __setstate__(self, state: bytes) -> None:
        self._bytes, self._lock = state, threading.Lock()

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + len(self._bytes)


@dataclass(frozen=True, eq=False)
class Part:
    """A result, and what was warned of on the way to it.

    Attributes
    ----------
    value
        The result.
    warned
        In the order of the items.
    """

    value: Any
    warned: tuple[str, ...] = ()

    def __sizeof__(self) -> int:
        # Dask sends work to where most of its input lies, and does not look into objects by itself.
        from dask.sizeof import sizeof

        return int(sizeof(getattr(self.value, "__dict__", self.value)))


def without_shared(item: Any) -> tuple[Any, Any]:
    """An item and its field ``shared``, apart: what many items have in common is sent once."""
    shared = getattr(item, "shared", None)
    if shared is None or not is_dataclass(item) or isinstance(item, type):
        return item, None
    return replace(item, shared=None), shared


def applied(function: Packed, item: Packed, shared: Packed | None = None) -> Part:
    """A function of an item."""
    call, thing = function.open(), item.open()
    if shared is not None:
        thing = replace(thing, shared=shared.open())
    with _alone(), _remembered() as warned:
        value = call(thing)
    return Part(value, tuple(warned))


def merged(function: Packed, parts: Sequence[Part]) -> Part:
    """Neighbouring results as one, from left to right."""
    with _alone():
        value = functools.reduce(function.open(), (part.value for part in parts))
    return Part(value, tuple(text for part in parts for text in part.warned))


_lock = threading.Lock()
_running = 0
_restore = ExitStack()
_local = threading.local()


@contextmanager
def _alone() -> Iterator[None]:
    """One BLAS thread for every task: the threads of the workers share the cores, and sums keep their order.

    The limit and the catching of warnings hold for a whole process; the last task to end lifts both.
    """
    global _running
    with _lock:
        _running += 1
        if _running == 1:
            # Looked for each time: what was opened last may have brought another library.
            blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
            _restore.enter_context(blas.limit(limits=1))
            _restore.enter_context(warnings.catch_warnings())
            warnings.simplefilter("always", DataWarning)
            warnings.showwarning = _kept(warnings.showwarning)
    try:
        yield
    finally:
        with _lock:
            _running -= 1
            if _running == 0:
                _restore.close()


@contextmanager
def _remembered() -> Iterator[list[str]]:
    """What this thread warns of."""
    _local.warned = []
    try:
        yield _local.warned
    finally:
        del _local.warned


def _kept(show: Callable[..., None]) -> Callable[..., None]:
    def keep(message: Warning | str, category: type[Warning], *rest: Any, **named: Any) -> None:
        if issubclass(category, DataWarning) and hasattr(_local, "warned"):
            _local.warned.append(str(message))
        else:
            show(message, category, *rest, **named)

    return keep


def _cloudpickle() -> Any:
    # It comes with Dask, and takes along functions that are defined in a script.
    return importlib.import_module("cloudpickle")
