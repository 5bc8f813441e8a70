"""Threads: work done before its result is needed, work beside BLAS and onnxruntime, and a progress bar."""

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

_MAX_THREADS = 8


def thread_count(workers: int | None) -> int:
    """Return ``workers``, or, for None, one thread per core, at most 8."""
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} is below 1; give the number of threads.")
    return workers or min(_MAX_THREADS, os.cpu_count() or 1)


def prefetch(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, window: int
) -> Iterator[Result]:
    """Yield ``function(item)`` in order, computed by threads up to ``window`` items before it is needed."""
    with ThreadPoolExecutor(workers, thread_name_prefix="prefetch") as pool:
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


def map_parallel(function: Callable[[Any], Result], items: list[Any], like: Array) -> list[Result]:
    """Return ``function(item)`` for each item, on as many threads as BLAS has, each with one BLAS thread.

    Small tiles then stay in a core's cache; NumPy releases the interpreter lock while it computes. If
    ``like`` is an array of another backend, the items run one after another: those backends use all cores
    themselves.
    """
    if not is_numpy_array(like) or len(items) < 2:
        return [function(item) for item in items]
    blas = _blas()
    threads = min(len(items), _blas_threads(default=os.cpu_count() or 1))
    with blas.limit(limits=1), ThreadPoolExecutor(threads) as pool:
        return list(pool.map(function, items))


@contextmanager
def share_blas(callers: int) -> Iterator[None]:
    """Divide the threads of BLAS among ``callers`` threads that call it at the same time."""
    with _blas().limit(limits=max(1, _blas_threads() // callers)):
        yield


def set_session_options(options: Any) -> None:
    """Set the options of an onnxruntime session that runs beside threads that decode images."""
    options.log_severity_level = 3
    # Interrupted encoding must resume with the same bits.
    options.use_deterministic_compute = True
    # onnxruntime keeps a memory pattern per input size, and images and texts come in many sizes.
    options.enable_mem_pattern = False
    # Spinning threads would take the cores from the threads that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")


@cache
def _blas() -> Any:
    # Finding the libraries takes milliseconds, so it is done once.
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def _blas_threads(default: int = 1) -> int:
    return max((library["num_threads"] for library in _blas().info()), default=default)


@contextmanager
def progress_bar(title: str, shown: bool) -> Iterator[Callable[[float], None]]:
    """Show a progress bar on standard error; yields a function to call with the share that is done."""
    if not shown:
        yield lambda share: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)
