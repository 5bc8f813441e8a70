"""Dask as an engine: one graph for a pass, a tree of fixed shape, and an eye on workers that hang."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import uuid
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from diptych.cca.progress import progress_bar
from diptych.checks import DataWarning, InputError, not_installed
from diptych.engine.tasks import Packed, Part, applied, merged, without_shared
from diptych.engine.watchdog import Glance, look

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
        raise not_installed("a Dask cluster needs", "dask", "dask") from None
    return distributed
