"""What runs on a worker: things opened where they are used, one BLAS thread to a task, warnings kept.

Workers that hang: Dask waits for them for ever, so somebody has to look.

Dask as an engine: one graph for a pass, a tree of fixed shape, and an eye on workers that hang.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import importlib
import logging
import math
import pickle
import threading
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, is_dataclass, replace
from types import TracebackType
from typing import Any, TypeVar

import threadpoolctl

from diptych._checks import DataWarning, InputError, missing_package_error
from diptych._threads import progress_bar


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


_POLITE = 1.0  # seconds that a worker has to close by itself
_PENDING = ("waiting", "no-worker", "queued", "processing", "erred")


@dataclass(frozen=True)
class Glance:
    """What was seen of a run.

    Attributes
    ----------
    done
        Tasks that have ended.
    workers
        How many there are.
    dismissed
        Addresses of those that were just taken off, with the reason.
    """

    done: int
    workers: int
    dismissed: dict[str, str]


async def look(
    groups: Collection[str], patience: float | None, slowness: float, dask_scheduler: Any = None
) -> Glance:
    """Look at the tasks of ``groups`` on the scheduler, and take workers that hang off it.

    A worker hangs that was not heard of, or has been busy with one task, for ``patience`` seconds and
    ``slowness`` times the mean task. Silence is measured against the worker heard of last, so that a
    scheduler that was busy itself accuses nobody; no task is called slow before another one has ended.
    The last worker stays.
    """
    found = [group for name in groups if (group := dask_scheduler.task_groups.get(name)) is not None]
    ended = {group: len(group) - sum(group.states[state] for state in _PENDING) for group in found}
    means = [group.all_durations["compute"] / n for group, n in ended.items() if n]
    dismissed: dict[str, str] = {}
    workers = list(dask_scheduler.workers.values())
    if patience is not None and workers:
        limit = max(patience, slowness * max(means, default=0.0))
        latest = max(worker.last_seen for worker in workers)
        for worker in workers:
            silence = latest - worker.last_seen
            spent = [seconds for task, seconds in worker.executing.items() if task.group in ended]
            busy = silence + max(spent, default=0.0)
            if silence > limit:
                dismissed[worker.address] = f"not heard of for {silence:.0f} s"
            elif any(means) and busy > limit:
                dismissed[worker.address] = f"busy with one task for {busy:.0f} s"
        for address in list(dismissed)[len(workers) - 1 :]:
            del dismissed[address]
        hanging = [worker for worker in workers if worker.address in dismissed]
        await asyncio.gather(*(_replace(dask_scheduler, worker) for worker in hanging))
    return Glance(sum(ended.values()), len(dask_scheduler.workers), dismissed)


async def _replace(scheduler: Any, worker: Any) -> None:
    """Have a worker's nanny, if it has one, put another in its place; its tasks go to others either way."""
    why = "diptych-watchdog"
    if worker.nanny is not None:
        core = importlib.import_module("distributed.core")
        # A nanny starts a new worker when the old one has died. Off the scheduler it goes only then: one
        # that finds itself unknown would leave for good, and take its nanny along.
        with suppress(OSError, TimeoutError):
            async with core.rpc(worker.nanny, connection_args=scheduler.connection_args) as nanny:
                await asyncio.wait_for(nanny.kill(timeout=_POLITE, reason=why), 5 * _POLITE)
    if scheduler.workers.get(worker.address) is worker:
        # "Expected": a task that hangs is not held against itself, as one that kills its workers is.
        await scheduler.remove_worker(worker.address, stimulus_id=why, expected=True)


T = TypeVar("T")
S = TypeVar("S")

_FAN_IN = 2  # more would send more from worker to worker before anything is merged
_LOOK_EVERY = 1.0


@dataclass(frozen=True, eq=False)
class Mapped:
    """A function and the items it is to be applied to; ``DaskEngine.reduce`` does it."""

    function: Callable[[Any], Any]
    items: Sequence[Any]


class DaskEngine:
    """Map and reduce on a Dask cluster; the result does not depend on who computed what.

    Results are merged in a tree whose shape follows from the number of items alone, so any number of
    workers, lost ones and repeated tasks give the same bits (on machines of one kind).

    Parameters
    ----------
    client
        A ``distributed.Client``; the address of a scheduler (``"tcp://10.0.0.1:8786"``); None: a cluster of
        processes on this machine, which ends with the engine.
    workers
        Processes of a cluster on this machine, each with one thread; None: one for each core.
    retries
        How often a task that fails is tried again before its error is raised here.
    patience
        Seconds after which a worker may count as hanging: it is taken off if nothing was heard of it, or
        if one task has kept it busy, for so long and for ``slowness`` times the mean task. Its tasks go to
        others, and where it has a nanny it is replaced. None: Dask's own rules only.
    slowness
        See ``patience``.
    timeout
        Seconds to wait for a scheduler that does not answer.
    verbose
        Show a progress bar.

    Examples
    --------
    With a cluster of its own, in a script under ``if __name__ == "__main__":``, since new processes begin
    by reading the script::

        with DaskEngine(workers=4) as engine:
            model = AWCCA().fit(shards("x-*.npy", "y-*.npy"), validation=validation, engine=engine)
    """

    def __init__(
        self,
        client: Any = None,
        *,
        workers: int | None = None,
        retries: int = 2,
        patience: float | None = 60.0,
        slowness: float = 10.0,
        timeout: float = 30.0,
        verbose: bool = False,
    ) -> None:
        if client is not None and workers is not None:
            raise InputError("workers= is for a cluster on this machine; leave it out, or leave out client.")
        if workers is not None and workers < 1:
            raise InputError(f"workers={workers} is below 1; give the number of worker processes.")
        if retries < 0:
            raise InputError(f"retries={retries} is below 0; give how often a failing task is tried again.")
        for name, value in (("patience", patience), ("slowness", slowness), ("timeout", timeout)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name}={value} is not above 0; give a positive number.")
        self.retries, self.patience, self.slowness, self.verbose = retries, patience, slowness, verbose
        self._cluster: Any = None
        self._own = not hasattr(client, "run_on_scheduler")
        library = _distributed()
        if not self._own:
            if client.asynchronous:
                raise InputError("the client is asynchronous; give one made with asynchronous=False.")
            self.client = client
        elif client is None:
            self._cluster = _local_cluster(library, workers)
            # On one machine a result need not take the way through the scheduler.
            self.client = library.Client(self._cluster, set_as_default=False, direct_to_workers=True)
        else:
            self.client = _connected(library, client, timeout)

    def map(self, function: Callable[[T], S], items: Iterable[T]) -> Mapped:
        """Keep a function and its items for ``reduce``."""
        return Mapped(function, items if isinstance(items, Sequence) else list(items))

    def reduce(self, function: Callable[[S, S], S], mapped: Mapped) -> S:
        """Compute, and merge neighbours into one result."""
        if not mapped.items:
            raise InputError("there is nothing to reduce; give at least one item.")
        import dask

        graph, result = _graph(mapped, function)
        # Arrays that are in memory here have to travel; Dask would rather have them read over there.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"}):
            future = self.client.get(graph, result, sync=False, retries=self.retries)
        tasks = [key[0] for key in graph if isinstance(key, tuple)]
        del graph
        try:
            with progress_bar("on the cluster", self.verbose) as progress:
                part = self._waited(future, set(tasks), lambda done: progress(done / len(tasks)))
                progress(1.0)
        except BaseException:
            future.cancel()  # nothing of this run goes on
            raise
        for text in part.warned:
            warnings.warn(text, DataWarning, stacklevel=2)
        return part.value  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the cluster if it is the engine's own, and the connection if the engine made it."""
        if self._own:
            self.client.close()
        if self._cluster is not None:
            self._cluster.close()

    def __enter__(self) -> DaskEngine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _waited(self, future: Any, groups: set[str], progress: Callable[[int], None]) -> Part:
        """The result, once it is here; until then, somebody looks after the workers."""
        gathering = self.client.gather(future, asynchronous=True)
        waiting = asyncio.run_coroutine_threadsafe(gathering, self.client.loop.asyncio_loop)
        idle = False
        try:
            while not concurrent.futures.wait([waiting], _LOOK_EVERY).done:
                seen: Glance = self.client.run_on_scheduler(look, groups, self.patience, self.slowness)
                progress(seen.done)
                for address, reason in seen.dismissed.items():
                    warnings.warn(f"the worker {address} was {reason} and is replaced.", stacklevel=3)
                if seen.workers == 0 and not idle:
                    warnings.warn("the cluster has no workers; waiting for one to join.", stacklevel=3)
                idle = seen.workers == 0
            return waiting.result()  # type: ignore[no-any-return]
        except _distributed().scheduler.KilledWorker as error:
            raise InputError(
                f"{error.allowed_failures + 1} workers died one after another over the same block, most "
                "likely for want of memory; make blocks smaller or give workers more of it."
            ) from None
        except (_distributed().client.FutureCancelledError, OSError) as error:
            if isinstance(error, OSError) and self.client.status == "running":
                raise
            raise InputError(
                "the connection to the Dask scheduler was lost; see to it and run again."
            ) from None


def _graph(mapped: Mapped, merge: Callable[[Any, Any], Any]) -> tuple[dict[Any, Any], Any]:
    """All tasks of a run and the key of its result.

    What tasks have in common stands in nodes of its own, which are sent to each worker once and, unlike
    scattered data, can be made again when the worker that held them is gone.
    """
    run = uuid.uuid4().hex
    function_key, merge_key = f"function-{run}", f"merge-function-{run}"
    graph: dict[Any, Any] = {function_key: Packed(mapped.function), merge_key: Packed(merge)}
    shared_keys: dict[int, str] = {}
    level: list[Any] = []
    for number, item in enumerate(mapped.items):
        own, shared = without_shared(item)
        task: tuple[Any, ...] = (applied, function_key, Packed(own))
        if shared is not None:
            key = shared_keys.setdefault(id(shared), f"shared-{run}-{len(shared_keys)}")
            if key not in graph:
                graph[key] = Packed(shared)
            task += (key,)
        level.append((f"map-{run}", number))
        graph[level[-1]] = task
    depth = 0
    while len(level) > 1:
        neighbours = [level[i : i + _FAN_IN] for i in range(0, len(level), _FAN_IN)]
        level = [(f"merge-{run}", depth, number) for number in range(len(neighbours))]
        graph.update({key: (merged, merge_key, group) for key, group in zip(level, neighbours, strict=True)})
        depth += 1
    return graph, level[0]


def _connected(library: Any, address: Any, timeout: float) -> Any:
    if not isinstance(address, str):
        raise InputError(
            f"a {type(address).__name__} is no Dask client; give a distributed.Client, the address of a "
            'scheduler ("tcp://…"), or nothing for a cluster on this machine.'
        )
    try:
        return library.Client(address, timeout=timeout, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        reason = "it did not answer" if isinstance(error, OSError) else str(error).splitlines()[0]
        raise InputError(
            f"no Dask scheduler was found at {address!r} within {timeout:g} s ({reason}); start one with "
            "dask scheduler, or check the address."
        ) from None


def _local_cluster(library: Any, workers: int | None) -> Any:
    try:
        return library.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,  # what fails is raised here, in one sentence
        )
    except RuntimeError as error:
        raise InputError(
            f"the workers of a local cluster did not start ({error}); in a script, put what it does under "
            'if __name__ == "__main__": since new processes begin by reading it.'
        ) from None


def _distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise missing_package_error("a Dask cluster needs", "dask", "dask") from None
    return distributed
