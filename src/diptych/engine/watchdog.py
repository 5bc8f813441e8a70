"""Workers that hang: Dask waits for them for ever, so somebody has to look."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

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
