"""Work on the cores of one machine, beside the threads of BLAS."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import threadpoolctl
from array_api_compat import is_numpy_array

from diptych.arrays import Array

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
