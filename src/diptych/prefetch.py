"""Work done ahead by threads, in order and within bounds."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from diptych.checks import InputError

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
