"""A Dask cluster as the engine of a fit: ``AWCCA().fit(blocks, engine=DaskEngine(...))``."""

from __future__ import annotations

import functools
import importlib
import logging
import math
import pickle
import threading
import uuid
import warnings
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from diptych._checks import InputError, check_count, import_package
from diptych._progress import progress_bar
from diptych._threads import run_alone

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["DaskEngine"]

T = TypeVar("T")
S = TypeVar("S")

_FAN_IN = 2  # more would send more results between workers before any are merged
_CHECK_EVERY = 1.0  # seconds
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
        timeout: float = 30.0,
        verbose: bool | None = None,
    ) -> None:
        if client is not None and workers is not None:
            raise InputError("workers= is for a cluster on this machine; leave out workers or client.")
        if workers is not None:
            check_count(workers, "workers")
        if retries < 0:
            raise InputError(f"retries={retries} is below 0; give how often a failing task is tried again.")
        if not (math.isfinite(timeout) and timeout > 0):
            raise InputError(f"timeout={timeout} is not above 0; give a number of seconds.")
        self.retries, self.verbose = retries, verbose
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
            if self.client.status == "running":
                future.cancel()
            raise
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
        """Return the result of a run, and report its progress meanwhile."""
        library = _import_distributed()
        done, had_workers = threading.Event(), True
        future.add_done_callback(lambda _: done.set())
        try:
            while not done.wait(_CHECK_EVERY):
                finished, workers = self.client.run_on_scheduler(count_finished, groups)
                progress(finished)
                if not workers and had_workers:
                    warnings.warn("the cluster has no workers; waiting for one to join.", stacklevel=3)
                had_workers = workers > 0
            return future.result()  # type: ignore[no-any-return]
        except library.scheduler.KilledWorker as error:
            raise InputError(
                f"{error.allowed_failures + 1} workers died one after another on the same block, most "
                "likely because they ran out of memory; make blocks smaller or give workers more memory."
            ) from None
        except (CancelledError, OSError) as error:
            if isinstance(error, OSError) and self.client.status == "running":
                raise
            raise InputError(
                "the connection to the Dask scheduler was lost; check the scheduler and run again."
            ) from None


def _make_graph(mapped: PendingMap[Any, Any], merge: Callable[[Any, Any], Any]) -> tuple[dict[Any, Any], Any]:
    """Return all tasks of a run and the key of its result.

    What tasks have in common is in nodes of its own, which are sent to each worker once and, unlike
    scattered data, can be computed again if the worker that had them is lost. Everything travels as bytes
    that only workers unpickle: the scheduler needs no memory map, network or model.
    """
    run = uuid.uuid4().hex
    function_key, merge_key = f"function-{run}", f"merge-function-{run}"
    graph: dict[Any, Any] = {
        function_key: (unpickle, _pickle(mapped.function)),
        merge_key: (unpickle, _pickle(merge)),
    }
    shared_keys: dict[int, str] = {}
    level: list[Any] = []
    for number, item in enumerate(mapped.items):
        item, shared = split_shared(item)
        task: tuple[Any, ...] = (run_task, function_key, _pickle(item))
        if shared is not None:
            key = shared_keys.setdefault(id(shared), f"shared-{run}-{len(shared_keys)}")
            if key not in graph:
                graph[key] = (unpickle, _pickle(shared))
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
    return import_package("distributed", "a Dask cluster needs", "dask", "dask")


def count_finished(groups: Collection[str], dask_scheduler: Any = None) -> tuple[int, int]:
    """Return the number of finished tasks of ``groups``, and of workers. Runs on the scheduler."""
    task_groups = [dask_scheduler.task_groups[name] for name in groups if name in dask_scheduler.task_groups]
    pending = sum(group.states[state] for group in task_groups for state in _PENDING_STATES)
    return sum(map(len, task_groups)) - pending, len(dask_scheduler.workers)


def _pickle(value: Any) -> bytes:
    # It comes with Dask, and can also pickle functions that are defined in a script.
    cloudpickle = importlib.import_module("cloudpickle")
    try:
        return cloudpickle.dumps(value)  # type: ignore[no-any-return]
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise InputError(
            f"a {type(value).__name__} cannot be sent to another process ({error}); use one that can be "
            "pickled."
        ) from None


def unpickle(content: bytes) -> Any:
    """Return what this program pickled for its workers. Runs on a worker."""
    return pickle.loads(content)  # noqa: S301


@dataclass(frozen=True, eq=False)
class TaskResult:
    """The result of a task."""

    value: Any

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


def run_task(function: Callable[[Any], Any], item: bytes, shared: Any = None) -> TaskResult:
    """Apply a function to a pickled item. Runs on a worker."""
    value = unpickle(item)
    if shared is not None:
        value = replace(value, shared=shared)
    with run_alone():
        return TaskResult(function(value))


def merge_results(function: Callable[[Any, Any], Any], results: Sequence[TaskResult]) -> TaskResult:
    """Merge neighbouring results from left to right. Runs on a worker."""
    with run_alone():
        return TaskResult(functools.reduce(function, (result.value for result in results)))
