"""Threads: work done before its result is needed, and work beside BLAS and onnxruntime."""

from __future__ import annotations

import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import numpy as np
import threadpoolctl
from array_api_compat import is_numpy_array

from diptych._arrays import Array, is_sparse
from diptych._checks import InputError

Item = TypeVar("Item")
Result = TypeVar("Result")

_MAX_THREADS = 8
_LARGE = 2**28
"""Multiplications in a product from which on it pays to have several threads."""


def thread_count(workers: int | None) -> int:
    """Return ``workers``, or, for None, one thread per core, at most 8."""
    if workers is not None and workers < 1:
        raise InputError(f"workers={workers} is below 1; give the number of threads.")
    return workers or min(_MAX_THREADS, count_cores())


@cache
def count_cores() -> int:
    """Return the number of cores that this process may use, with its affinity and its container's quota."""
    from joblib import cpu_count  # scikit-learn's own, but importing it takes a while

    return cpu_count()  # type: ignore[no-any-return]


def prefetch(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int, window: int
) -> Generator[Result, None, None]:
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

    The threads take one item after another, so a core that is busy with another program just takes fewer.
    (BLAS gives each of its threads an equal part and waits for the last of them at every product.) A call
    from inside another one runs on its caller's thread alone. NumPy releases the interpreter lock while it
    computes. If ``like`` is an array of another backend, the items run one after another: those backends use
    all cores themselves.
    """
    if not is_numpy_array(like) or len(items) < 2 or _is_at_work():
        return [function(item) for item in items]
    results: list[Any] = [None] * len(items)
    waiting = deque(range(len(items)))

    def work() -> None:
        _set_at_work()
        try:
            while True:
                try:
                    number = waiting.popleft()
                except IndexError:
                    return
                results[number] = function(items[number])
        except BaseException:
            waiting.clear()
            raise
        finally:
            _this_thread.at_work = False

    with one_blas_thread() as threads:
        futures = [_pool().submit(work) for _ in range(min(len(items), threads) - 1)]
        try:
            work()
        finally:
            for future in futures:
                # One that has not started yet, because another call uses the pool, has nothing left to do.
                if not future.cancel():
                    future.result()
    return results


def map_lapack(function: Callable[[Any], Result], items: list[Any], like: Array) -> list[Result]:
    """Return ``function(item)`` for each of a few items whose matrices are decomposed, all at once.

    A decomposition consists of thousands of small products, and if BLAS has more threads than there are idle
    cores, each waits for a thread that does not run: beside one busy program it takes many times as long.
    So the items share half of the threads of BLAS; on two cores each has one.
    """
    if not is_numpy_array(like) or _is_at_work():
        return [function(item) for item in items]
    with one_blas_thread() as threads:
        share = min(_MAX_THREADS, threads // (2 * len(items)))
        if share < 2:
            return map_parallel(function, items, like)
        with _blas().limit(limits=share), ThreadPoolExecutor(len(items), initializer=_set_at_work) as pool:
            return list(pool.map(function, items))


def multiply(left: Array, right: Array) -> Array:
    """Return ``left @ right``, by tiles on several threads if they are large matrices of NumPy."""
    if not is_numpy_array(left) or not is_numpy_array(right) or left.ndim + right.ndim != 4 or _is_at_work():
        return left @ right
    (rows, inner), columns = left.shape, right.shape[1]
    if rows * inner * columns < _LARGE:
        return left @ right
    out = np.empty((rows, columns), dtype=np.result_type(left, right))

    def fill(tile: slice) -> None:
        if rows >= columns:
            np.matmul(left[tile, :], right, out=out[tile, :])
        else:
            np.matmul(left, right[:, tile], out=out[:, tile])

    map_parallel(fill, make_tiles(max(rows, columns)), left)
    return out


def make_tiles(length: int) -> list[slice]:
    """Return slices of ``length`` rows, of 64 to 512 each, and equally many for every thread of BLAS."""
    with one_blas_thread() as threads:
        count = threads * max(2, -(-length // (512 * threads)))
    step = max(64, -(-length // count))
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]


def multiply_transposed(pairs: list[tuple[Array, Array]]) -> list[Array]:
    """Return ``left.T @ right`` of each pair, by tiles; of a matrix with itself, half is computed.

    Either may be sparse; the product is dense.
    """
    if any(is_sparse(matrix) for pair in pairs for matrix in pair):
        return [_multiply_sparse(*pair) for pair in pairs]
    if not is_numpy_array(pairs[0][0]):
        return [left.T @ right for left, right in pairs]
    with one_blas_thread() as threads:
        sides = math.ceil(threads**0.5)
    results = [
        np.empty((left.shape[1], right.shape[1]), dtype=np.result_type(left, right)) for left, right in pairs
    ]

    def cut(width: int) -> list[slice]:
        step = max(64, -(-width // max(sides, -(-width // 1024))))
        return [slice(start, min(start + step, width)) for start in range(0, width, step)]

    def fill(tile: tuple[int, slice, slice]) -> None:
        number, rows, columns = tile
        (left, right), out = pairs[number], results[number]
        with np.errstate(over="ignore", invalid="ignore"):
            np.matmul(left[:, rows].T, right[:, columns], out=out[rows, columns])
        if left is right and rows != columns:
            out[columns, rows] = out[rows, columns].T

    every = [
        (number, rows, columns)
        for number, (left, right) in enumerate(pairs)
        for rows in cut(left.shape[1])
        for columns in cut(right.shape[1])
        if left is not right or columns.start >= rows.start
    ]
    map_parallel(fill, every, results[0])
    return results


def _multiply_sparse(left: Array, right: Array) -> Array:
    """Return ``left.T @ right``, of which one is sparse at least, by tiles of columns."""
    if not is_sparse(left):
        return multiply(left.T, right) if not is_sparse(right) else _multiply_sparse(right, left).T
    rows, columns = left.T.tocsr(), right.tocsc() if is_sparse(right) else right
    out = np.empty((left.shape[1], right.shape[1]), dtype=np.result_type(left.dtype, right.dtype))

    def fill(tile: slice) -> None:
        product = rows @ columns[:, tile]
        out[:, tile] = product.toarray() if is_sparse(product) else product

    map_parallel(fill, make_tiles(right.shape[1]), out)
    return out


@contextmanager
def one_blas_thread() -> Iterator[int]:
    """Give BLAS one thread, and yield the number it had; for work that is spread over threads of its own.

    Any number of threads may be inside at a time; the last to leave restores the number. A product of two
    matrices that is not made by ``map_parallel`` or ``multiply`` runs on one core in here.
    """
    with _limit.lock:
        if _limit.callers == 0:
            _limit.threads = min(_blas_threads(), count_cores())
        if (blas := _blas()) is not _limit.limited:  # or one was imported since
            _limit.limiters.append(blas.limit(limits=1))
            _limit.limited = blas
        _limit.callers += 1
    try:
        yield _limit.threads
    finally:
        with _limit.lock:
            _limit.callers -= 1
            if _limit.callers == 0:
                while _limit.limiters:
                    _limit.limiters.pop().restore_original_limits()
                _limit.limited = None


class _Limit:
    """The limit that all callers of ``one_blas_thread`` share."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.callers = 0
        self.threads = 1
        self.limited: Any = None  # the BLAS libraries that are limited
        self.limiters: list[Any] = []


_limit = _Limit()
_this_thread = threading.local()


def _set_at_work() -> None:
    _this_thread.at_work = True


@contextmanager
def run_alone() -> Iterator[None]:
    """Run a block on this thread and one of BLAS, because other threads of a pool have the other cores."""
    with one_blas_thread():
        _set_at_work()
        try:
            yield
        finally:
            _this_thread.at_work = False


def _is_at_work() -> bool:
    """Return whether this thread works on one of several items at once: the other cores are taken."""
    return getattr(_this_thread, "at_work", False)


@cache
def _pool() -> ThreadPoolExecutor:
    # The caller works too.
    return ThreadPoolExecutor(max(1, count_cores() - 1), thread_name_prefix="tiles")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has no threads of its parent


def set_session_options(options: Any) -> None:
    """Set the options of an onnxruntime session that runs beside threads that decode images."""
    options.log_severity_level = 3
    # Interrupted encoding must resume with the same bits.
    options.use_deterministic_compute = True
    # onnxruntime keeps a memory pattern per input size, and images and texts come in many sizes.
    options.enable_mem_pattern = False
    # Spinning threads would take the cores from the threads that decode images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")


def _blas() -> Any:
    # SciPy and torch bring a BLAS of their own, which is there once they are imported.
    return _find_blas(*(name in sys.modules for name in ("scipy.linalg", "torch")))


@cache
def _find_blas(*loaded: bool) -> Any:
    # Finding the libraries takes milliseconds, so it is done once.
    return threadpoolctl.ThreadpoolController().select(user_api="blas")


def _blas_threads() -> int:
    return max((library["num_threads"] for library in _blas().info()), default=count_cores())
