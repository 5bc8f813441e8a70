"""A Dask cluster as the engine of a fit: ``AWCCA().fit(blocks, engine=DaskEngine(...))``."""

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
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import threadpoolctl

from diptych._checks import DataWarning, InputError, check_count, missing_package_error
from diptych._threads import progress_bar

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["DaskEngine"]

T = TypeVar("T")
S = TypeVar("S")

_FAN_IN = 2  # more would send more results between workers before any are merged
_CHECK_EVERY = 1.0
_CLOSE_SECONDS = 1.0  # for a worker to close by itself
_PENDING_STATES = ("waiting", "no-worker", "queued", "processing", "erred")


@dataclass(frozen=True, eq=False)
class PendingMap(Generic[T, S]):
    """A function and the items to apply it to; ``DaskEngine.reduce`` does that."""

    function: Callable[[T], S]
    items: Sequence[T]


class DaskEngine:
    """Map and reduce on a Dask cluster, with a result that does not depend on the workers.

    Results are merged in a tree whose shape depends only on the number of items, so any number of workers,
    lost workers and repeated tasks give the same bits (on machines of one kind).

    Parameters
    ----------
    client
        A ``distributed.Client``; the address of a scheduler (``"tcp://10.0.0.1:8786"``); None: a cluster of
        processes on this machine, which ends with the engine.
    workers
        Processes of a cluster on this machine, each with one thread; None: one for each core.
    retries
        How often a failing task is tried again before its error is raised here.
    patience
        Seconds after which a worker may count as hanging: it is removed if it has been silent, or busy with
        one task, for so long and for ``slowness`` times the mean task. Its tasks go to other workers, and
        its nanny, if it has one, replaces it. None: only Dask's own rules.
    slowness
        See ``patience``.
    timeout
        Seconds to wait for a scheduler that does not answer.
    verbose
        Whether to show a progress bar, as in ``AWCCA``.

    Examples
    --------
    With its own cluster, in a script under ``if __name__ == "__main__":``, because new processes start by
    importing the script::

        with DaskEngine(workers=4) as engine:
            model = AWCCA().fit(shards("x-*.npy", "y-*.npy"), validation=validation, engine=engine)
    """

    def __init__(
        self,
        client: Client | str | None = None,
        *,
        workers: int | None = None,
        retries: int = 2,
        patience: float | None = 60.0,
        slowness: float = 10.0,
        timeout: float = 30.0,
        verbose: bool | None = None,
    ) -> None:
        if client is not None and workers is not None:
            raise InputError("workers= is for a cluster on this machine; leave out workers or client.")
        if workers is not None:
            check_count(workers, "workers")
        if retries < 0:
            raise InputError(f"retries={retries} is below 0; give how often a failing task is tried again.")
        for name, value in (("patience", patience), ("slowness", slowness), ("timeout", timeout)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(f"{name}={value} is not above 0; give a positive number.")
        self.retries, self.patience, self.slowness, self.verbose = retries, patience, slowness, verbose
        self._cluster: Any = None
        self._owns_client = not hasattr(client, "run_on_scheduler")
        library = _import_distributed()
        self.client: Any = client
        if client is None:
            self._cluster = _start_cluster(library, workers)
            # On one machine a result need not pass through the scheduler.
            self.client = library.Client(self._cluster, set_as_default=False, direct_to_workers=True)
        elif self._owns_client:
            self.client = _connect(library, client, timeout)
        elif getattr(client, "asynchronous", False):
            raise InputError("the client is asynchronous; give one made with asynchronous=False.")

    def map(self, function: Callable[[T], S], items: Iterable[T]) -> PendingMap[T, S]:
        """Keep a function and its items for ``reduce``."""
        return PendingMap(function, items if isinstance(items, Sequence) else list(items))

    def reduce(self, function: Callable[[S, S], S], mapped: PendingMap[Any, S]) -> S:
        """Apply the function of ``map`` to its items, and merge neighbouring results into one."""
        if not mapped.items:
            raise InputError("there is nothing to reduce; give at least one item.")
        import dask

        graph, result_key = _make_graph(mapped, function)
        # Dask warns of large graphs, but arrays in memory here have no other way to the workers.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 PiB"}):
            future = self.client.get(graph, result_key, sync=False, retries=self.retries)
        groups = [key[0] for key in graph if isinstance(key, tuple)]
        del graph
        try:
            with progress_bar("on the cluster", self.verbose) as progress:
                result = self._wait(future, set(groups), lambda done: progress(done / len(groups)))
                progress(1.0)
        except BaseException:
            future.cancel()
            raise
        for text in result.warnings:
            warnings.warn(text, DataWarning, stacklevel=2)
        return result.value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Close the cluster and the connection, if the engine made them."""
        if self._owns_client:
            self.client.close()
        if self._cluster is not None:
            self._cluster.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _wait(self, future: Any, groups: set[str], progress: Callable[[int], None]) -> TaskResult:
        """Return the result of a run, and replace workers that hang meanwhile."""
        library = _import_distributed()
        gathering = self.client.gather(future, asynchronous=True)
        waiting = asyncio.run_coroutine_threadsafe(gathering, self.client.loop.asyncio_loop)
        idle = False
        try:
            while not concurrent.futures.wait([waiting], _CHECK_EVERY).done:
                status: ClusterStatus = self.client.run_on_scheduler(
                    check_workers, groups, self.patience, self.slowness
                )
                progress(status.done)
                for address, reason in status.removed.items():
                    warnings.warn(f"the worker {address} was {reason} and is replaced.", stacklevel=3)
                if status.workers == 0 and not idle:
                    warnings.warn("the cluster has no workers; waiting for one to join.", stacklevel=3)
                idle = status.workers == 0
            return waiting.result()  # type: ignore[no-any-return]
        except library.scheduler.KilledWorker as error:
            raise InputError(
                f"{error.allowed_failures + 1} workers died one after another on the same block, most "
                "likely because they ran out of memory; make blocks smaller or give workers more memory."
            ) from None
        except (library.client.FutureCancelledError, OSError) as error:
            if isinstance(error, OSError) and self.client.status == "running":
                raise
            raise InputError(
                "the connection to the Dask scheduler was lost; check the scheduler and run again."
            ) from None


def _make_graph(mapped: PendingMap[Any, Any], merge: Callable[[Any, Any], Any]) -> tuple[dict[Any, Any], Any]:
    """Return all tasks of a run and the key of its result.

    What tasks have in common is in nodes of its own, which are sent to each worker once and, unlike
    scattered data, can be computed again if the worker that had them is lost.
    """
    run = uuid.uuid4().hex
    function_key, merge_key = f"function-{run}", f"merge-function-{run}"
    graph: dict[Any, Any] = {function_key: LazyPickle(mapped.function), merge_key: LazyPickle(merge)}
    shared_keys: dict[int, str] = {}
    level: list[Any] = []
    for number, item in enumerate(mapped.items):
        own, shared = split_shared(item)
        task: tuple[Any, ...] = (run_task, function_key, LazyPickle(own))
        if shared is not None:
            key = shared_keys.setdefault(id(shared), f"shared-{run}-{len(shared_keys)}")
            if key not in graph:
                graph[key] = LazyPickle(shared)
            task += (key,)
        level.append((f"map-{run}", number))
        graph[level[-1]] = task
    depth = 0
    while len(level) > 1:
        neighbours = [level[i : i + _FAN_IN] for i in range(0, len(level), _FAN_IN)]
        level = [(f"merge-{run}", depth, number) for number in range(len(neighbours))]
        tasks = ((merge_results, merge_key, group) for group in neighbours)
        graph.update(zip(level, tasks, strict=True))
        depth += 1
    return graph, level[0]


def _connect(library: Any, address: object, timeout: float) -> Any:
    if not isinstance(address, str):
        raise InputError(
            f"a {type(address).__name__} is not a Dask client; give a distributed.Client, the address of a "
            'scheduler ("tcp://…"), or nothing for a cluster on this machine.'
        )
    try:
        return library.Client(address, timeout=timeout, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        reason = "it did not answer" if isinstance(error, OSError) else str(error).splitlines()[0]
        raise InputError(
            f"no Dask scheduler answers at {address!r} within {timeout:g} s ({reason}); start one with "
            "dask scheduler, or check the address."
        ) from None


def _start_cluster(library: Any, workers: int | None) -> Any:
    try:
        return library.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.CRITICAL,  # errors are raised here
        )
    except RuntimeError as error:
        raise InputError(
            f"the workers of a local cluster did not start ({error}); in a script, put the code under "
            'if __name__ == "__main__": because new processes start by importing it.'
        ) from None


def _import_distributed() -> Any:
    try:
        import distributed
    except ImportError:
        raise missing_package_error("a Dask cluster needs", "dask", "dask") from None
    return distributed


@dataclass(frozen=True)
class ClusterStatus:
    """The state of a run: finished tasks, number of workers, and removed workers with the reason."""

    done: int
    workers: int
    removed: dict[str, str]


async def check_workers(
    groups: Collection[str], patience: float | None, slowness: float, dask_scheduler: Any = None
) -> ClusterStatus:
    """Count the finished tasks of ``groups``, and remove workers that hang. Runs on the scheduler.

    A worker hangs if it has been silent, or busy with one task, for ``patience`` seconds and ``slowness``
    times the mean task. Dask's own timeout (``distributed.scheduler.worker-ttl``) does not serve here: it
    removes only silent workers, after 5 minutes unless the whole scheduler is configured otherwise, and
    never one that sends heartbeats while its task hangs. Silence is measured against the worker heard from
    last, so a scheduler that was busy itself removes nobody, and no task counts as slow before another one
    has finished. The last worker is never removed.
    """
    known = [group for name in groups if (group := dask_scheduler.task_groups.get(name)) is not None]
    finished = {group: len(group) - sum(group.states[state] for state in _PENDING_STATES) for group in known}
    means = [group.all_durations["compute"] / n for group, n in finished.items() if n]
    removed: dict[str, str] = {}
    workers = list(dask_scheduler.workers.values())
    if patience is not None and workers:
        limit = max(patience, slowness * max(means, default=0.0))
        latest = max(worker.last_seen for worker in workers)
        for worker in workers:
            silence = latest - worker.last_seen
            running = [seconds for task, seconds in worker.executing.items() if task.group in finished]
            busy = silence + max(running, default=0.0)
            if silence > limit:
                removed[worker.address] = f"silent for {silence:.0f} s"
            elif any(means) and busy > limit:
                removed[worker.address] = f"busy with one task for {busy:.0f} s"
        removed = dict(list(removed.items())[: len(workers) - 1])
        hanging = [worker for worker in workers if worker.address in removed]
        await asyncio.gather(*(_replace_worker(dask_scheduler, worker) for worker in hanging))
    return ClusterStatus(sum(finished.values()), len(dask_scheduler.workers), removed)


async def _replace_worker(scheduler: Any, worker: Any) -> None:
    reason = "diptych-watchdog"
    if worker.nanny is not None:
        core = importlib.import_module("distributed.core")
        # The nanny starts a new worker when the old one has died. Only then is the old one removed from the
        # scheduler: a worker that learns it is unknown closes for good, together with its nanny.
        with suppress(OSError, TimeoutError):
            async with core.rpc(worker.nanny, connection_args=scheduler.connection_args) as nanny:
                await asyncio.wait_for(nanny.kill(timeout=_CLOSE_SECONDS, reason=reason), 5 * _CLOSE_SECONDS)
    if scheduler.workers.get(worker.address) is worker:
        # "expected": a task that hangs does not count as one that kills its workers.
        await scheduler.remove_worker(worker.address, stimulus_id=reason, expected=True)


class LazyPickle:
    """An object that travels as bytes, and is unpickled once in each process that uses it.

    The scheduler, which only passes it on, never unpickles it and needs no memory map, network or model.
    """

    def __init__(self, value: Any) -> None:
        try:
            self._bytes: bytes = _import_cloudpickle().dumps(value)
        except (TypeError, AttributeError, pickle.PicklingError) as error:
            raise InputError(
                f"a {type(value).__name__} cannot be sent to another process ({error}); use one that can be "
                "pickled."
            ) from None
        self._lock = threading.Lock()

    def load(self) -> Any:
        """Return the object, the same one each time."""
        with self._lock:
            if not hasattr(self, "_value"):
                self._value = _import_cloudpickle().loads(self._bytes)
            return self._value

    def __getstate__(self) -> bytes:
        return self._bytes

    def __setstate__(self, state: bytes) -> None:
        self._bytes, self._lock = state, threading.Lock()

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + len(self._bytes)


def _import_cloudpickle() -> Any:
    # Comes with Dask, and can also pickle functions that are defined in a script.
    return importlib.import_module("cloudpickle")


@dataclass(frozen=True, eq=False)
class TaskResult:
    """The result of a task, and the texts of its warnings in the order of the items."""

    value: Any
    warnings: tuple[str, ...] = ()

    def __sizeof__(self) -> int:
        # Dask runs a task where most of its input is, and does not look inside objects itself.
        from dask.sizeof import sizeof

        return int(sizeof(getattr(self.value, "__dict__", self.value)))


def split_shared(item: Any) -> tuple[Any, Any]:
    """Return an item without its field ``shared``, and that field, which many items have in common."""
    shared = getattr(item, "shared", None)
    if shared is None or not is_dataclass(item) or isinstance(item, type):
        return item, None
    return replace(item, shared=None), shared


def run_task(function: LazyPickle, item: LazyPickle, shared: LazyPickle | None = None) -> TaskResult:
    """Apply a function to an item. Runs on a worker."""
    call, value = function.load(), item.load()
    if shared is not None:
        value = replace(value, shared=shared.load())
    with _task_environment() as texts:
        value = call(value)
    return TaskResult(value, tuple(texts))


def merge_results(function: LazyPickle, results: Sequence[TaskResult]) -> TaskResult:
    """Merge neighbouring results from left to right. Runs on a worker."""
    with _task_environment():
        value = functools.reduce(function.load(), (result.value for result in results))
    return TaskResult(value, tuple(text for result in results for text in result.warnings))


_lock = threading.Lock()
_running_tasks = 0
_restore = ExitStack()
_local = threading.local()


@contextmanager
def _task_environment() -> Iterator[list[str]]:
    """Run a task with one BLAS thread, and give the list of the texts of its ``DataWarning``s.

    Worker threads share the cores, and sums must keep their order. Both settings hold for the process, so the
    first of several simultaneous tasks makes them and the last one restores what was before.
    """
    global _running_tasks
    with _lock:
        _running_tasks += 1
        if _running_tasks == 1:
            # Not cached: an object that was just unpickled may have loaded another BLAS library.
            blas = threadpoolctl.ThreadpoolController().select(user_api="blas")
            _restore.enter_context(blas.limit(limits=1))
            _restore.enter_context(warnings.catch_warnings())
            warnings.simplefilter("always", DataWarning)
            warnings.showwarning = functools.partial(_handle_warning, warnings.showwarning)
    _local.texts = []
    try:
        yield _local.texts
    finally:
        del _local.texts
        with _lock:
            _running_tasks -= 1
            if _running_tasks == 0:
                _restore.close()


def _handle_warning(
    show: Callable[..., None], message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any
) -> None:
    if issubclass(category, DataWarning) and hasattr(_local, "texts"):
        _local.texts.append(str(message))
    else:
        show(message, category, *args, **kwargs)
