"""Copies between host memory and a torch device, at the same time as the computation.

One thread reads the blocks, puts them into page-locked memory and starts their copy on a CUDA stream of its
own, while the caller computes with earlier blocks. Arrays keep their type: float16 crosses the bus as float16
and is converted on the device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import Array
from diptych._checks import InputError, import_package
from diptych._threads import prefetch

Arrays: TypeAlias = tuple[Array | None, ...]
HostArray: TypeAlias = np.ndarray[Any, Any]

BLOCKS_IN_FLIGHT = 2
"""Blocks being copied while another is computed with; two keep the copy engine of a card busy."""

_COPY_THREADS = 8
_BYTES_PER_THREAD = 2**24  # a smaller share is not worth another thread


def check_device(device: str) -> Any:
    """Return the torch device of this name if there is one here."""
    torch = import_package("torch", f"the device {device!r} needs", "torch")
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"there is no device {device!r} here ({str(error).splitlines()[0]}).") from None


def copy_to_device(array: Array, device: str) -> Array:
    """Return one array on a torch ``device``."""
    return next(copy_blocks([(array,)], device))[0]


def copy_blocks(blocks: Iterable[Arrays], device: str, in_flight: int = BLOCKS_IN_FLIGHT) -> Iterator[Arrays]:
    """Yield the arrays of each block on a torch ``device``, in order; None stays None."""
    source, target = iter(blocks), check_device(device)
    with ThreadPoolExecutor(_COPY_THREADS, "copy") as pool:
        copier = _Copier(target, pool)

        def start(_: int) -> tuple[Arrays, Any, Arrays] | None:
            # The worker takes the next block itself, so that reading it does not wait for the caller.
            block = next(source, None)
            return None if block is None else copier.start(block)

        for copy in prefetch(start, count(), workers=1, window=in_flight + 1):
            if copy is None:
                return
            yield copier.wait(copy)


def collect_rows(parts: Iterable[Array], rows: int) -> HostArray:
    """Return ``rows`` rows as NumPy from torch arrays that belong below each other.

    Each part is copied from its device while the next is computed.
    """
    result: HostArray | None = None
    with ThreadPoolExecutor(_COPY_THREADS, "copy") as pool, ThreadPoolExecutor(1, "collect") as in_order:

        def finish(target: HostArray, source: HostArray, wait: Callable[[], Any]) -> None:
            wait()
            _copy(target, source, pool)

        waiting: deque[Future[None]] = deque()
        start = 0
        for part in parts:
            source, wait = _start_copy_to_host(part)
            if result is None:
                result = np.empty((rows, *source.shape[1:]), source.dtype)
            stop = start + len(source)
            waiting.append(in_order.submit(finish, result[start:stop], source, wait))
            if len(waiting) > BLOCKS_IN_FLIGHT:
                waiting.popleft().result()
            start = stop
        for future in waiting:
            future.result()
    assert result is not None
    return result


def _start_copy_to_host(part: Array) -> tuple[HostArray, Callable[[], Any]]:
    """Return the host array that ``part`` is being copied to, and a function that waits for the copy."""
    if part.device.type != "cuda":
        return part.numpy(), lambda: None
    import torch

    locked = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
    locked.copy_(part, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(part.device))
    return locked.numpy(), event.synchronize


def _copy(target: HostArray, source: HostArray, pool: ThreadPoolExecutor) -> None:
    # Several threads, because one alone copies slower than the bus.
    parts = max(1, min(_COPY_THREADS, source.nbytes // _BYTES_PER_THREAD))
    bounds = [len(source) * part // parts for part in range(parts + 1)]

    def copy(part: int) -> None:
        target[bounds[part] : bounds[part + 1]] = source[bounds[part] : bounds[part + 1]]

    list(pool.map(copy, range(parts)))


class _Copier:
    """Copies blocks to one device; to CUDA on a stream of its own, from page-locked memory."""

    def __init__(self, device: Any, pool: ThreadPoolExecutor) -> None:
        import torch

        self._torch, self._device, self._pool = torch, device, pool
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def start(self, block: Arrays) -> tuple[Arrays, Any, Arrays]:
        """Return the arrays on the device, the event of their arrival, and the sources to keep until then."""
        if self._stream is None:
            return tuple(self._on_cpu(array) for array in block), None, ()
        with self._torch.cuda.stream(self._stream):
            locked = tuple(self._page_locked(array) for array in block)
            there = tuple(
                None if array is None else array.to(self._device, non_blocking=True) for array in locked
            )
            event = self._torch.cuda.Event()
            event.record(self._stream)
        return there, event, locked

    def wait(self, copy: tuple[Arrays, Any, Arrays]) -> Arrays:
        """Return the arrays of a started copy, ready to compute with."""
        arrays, event, _ = copy
        if event is not None:
            current = self._torch.cuda.current_stream(self._device)
            current.wait_event(event)
            for array in arrays:
                if array is not None:
                    array.record_stream(current)
        return arrays

    def _on_cpu(self, array: Array | None) -> Array | None:
        if array is None:
            return None
        if self._torch.is_tensor(array):
            return array.to(self._device)
        # A copy, because torch cannot promise not to write to a read-only array.
        return self._torch.as_tensor(np.array(array), device=self._device)

    def _page_locked(self, array: Array | None) -> Array | None:
        if array is None or self._torch.is_tensor(array):
            return array
        empty = self._torch.from_numpy(np.empty(0, array.dtype))
        locked = self._torch.empty(array.shape, dtype=empty.dtype, pin_memory=True)
        _copy(locked.numpy(), array, self._pool)
        return locked
