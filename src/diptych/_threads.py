"""Work done ahead by threads, in order and within bounds.

Work on the cores of one machine, beside the threads of BLAS.

A progress bar for whoever is watching.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import threadpoolctl
from array_api_compat import is_numpy_array

from diptych._arrays import Array
from diptych._checks import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_MOST_THREADS = 8


def thread_count(workers: int | None) -> int:
    """``workers``, or one thread for each core, 8 at most."""
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} is below 1; give the number of threads.")
    return workers or min(_MOST_THREADS, os.cpu_count() or 1)


def ahead(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, window: int
) -> Iterator[Result]:
    """Results of ``function`` in order, computed by threads up to ``window`` items ahead of their use."""
    with ThreadPoolExecutor(workers, thread_name_prefix="ahead") as pool:
        waiting: deque[Future[Result]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) >= window:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


T = TypeVar("T")


def in_parallel(function: Callable[[Any], T], items: list[Any], like: Array) -> list[T]:
    """Apply ``function`` to ``items``, on as many threads as BLAS has, each with one BLAS thread.

    Small tiles stay in a core's cache, and NumPy lets go of the interpreter lock while it computes. Other
    backends run in turn: they are parallel by themselves.
    """
    if not is_numpy_array(like) or len(items) < 2:
        return [function(item) for item in items]
    blas = _blas()
    threads = min(len(items), max((each["num_threads"] for each in blas.info()), default=os.cpu_count() or 1))
    with blas.limit(limits=1), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


@cache
def _blas() -> Any:
    # Looking for the libraries takes milliseconds, so it is done once.
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


@contextmanager
def sharing_blas(callers: int) -> Iterator[None]:
    """BLAS with its threads shared among so many threads that call it at the same time."""
    blas = _blas()
    threads = max((each["num_threads"] for each in blas.info()), default=1)
    with blas.limit(limits=max(1, threads // callers)):
        yield


@contextmanager
def progress_bar(title: str, shown: bool) -> Iterator[Callable[[float], None]]:
    """Give a function to call with the share that is done; the bar goes to standard error."""
    if not shown:
        yield lambda share: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)
