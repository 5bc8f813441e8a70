"""Blocks of host arrays carried to another device ahead of their use, and results back, beside computing.

A thread takes the blocks (which may mean reading a disk), puts them into page-locked memory and starts their
copy on a stream of its own, while the caller computes with the blocks before. What arrives keeps its type:
float16 crosses the bus as float16 and is widened on the card.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from diptych._arrays import Array
from diptych._checks import InputError, not_installed

Arrays: TypeAlias = tuple[Array | None, ...]

AHEAD = 2
"""Blocks that are on their way while one is being computed with: two fill the card's copy engine."""

_COPIERS = 8  # threads that copy within host memory
_SHARE = 2**24  # bytes below which another of them is not worth starting


def torch_device(device: str) -> Any:
    """The torch device of this name, if there is one here."""
    try:
        import torch
    except ImportError:
        raise not_installed(f"the device {device!r} needs", "torch") from None
    try:
        torch.empty(0, device=device)
        return torch.device(device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"there is no device {device!r} here ({str(error).splitlines()[0]}).") from None


def on_device(array: Array, device: str) -> Array:
    """One array on a torch ``device``."""
    return next(carried([(array,)], device))[0]


def carried(blocks: Iterable[Arrays], device: str, ahead: int = AHEAD) -> Iterator[Arrays]:
    """The arrays of each block on a torch ``device``, in order; None stays None."""
    carrier = _Carrier(torch_device(device))
    waiting: queue.Queue[Any] = queue.Queue(maxsize=ahead)
    stopped = threading.Event()

    def put(thing: Any) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                waiting.put(thing, timeout=0.1)
                return

    def carry() -> None:
        try:
            for block in blocks:
                if stopped.is_set():
                    return
                put(carrier.sent(block))
            put(None)
        except BaseException as error:  # raised where the blocks are used
            put(error)

    thread = threading.Thread(target=carry, name="carry", daemon=True)
    thread.start()
    try:
        while (found := waiting.get()) is not None:
            if isinstance(found, BaseException):
                raise found
            yield carrier.received(found)
    finally:
        stopped.set()
        thread.join()
        carrier.close()


def gathered(parts: Iterable[Array], rows: int) -> np.ndarray[Any, Any]:
    """``rows`` rows in NumPy, from torch arrays that belong one below the other.

    Each leaves its device while the next is computed.
    """
    found: np.ndarray[Any, Any] | None = None
    with ThreadPoolExecutor(_COPIERS, "copy") as pool, ThreadPoolExecutor(1, "gather") as one_by_one:
        waiting: deque[Future[None]] = deque()
        start = 0
        for part in parts:
            there, arrived = _leaving(part)
            if found is None:
                found = np.empty((rows, *there.shape[1:]), there.dtype)
            stop = start + len(there)
            waiting.append(one_by_one.submit(_arrive, found[start:stop], there, arrived, pool))
            if len(waiting) > AHEAD:
                waiting.popleft().result()
            start = stop
        for future in waiting:
            future.result()
    assert found is not None
    return found


def _leaving(part: Array) -> tuple[np.ndarray[Any, Any], Callable[[], Any]]:
    """An array's place in host memory, and what to wait for before it is there."""
    if part.device.type != "cuda":
        return part.numpy(), lambda: None
    import torch

    locked = torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
    locked.copy_(part, non_blocking=True)
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(part.device))
    return locked.numpy(), event.synchronize


def _arrive(
    target: np.ndarray[Any, Any],
    there: np.ndarray[Any, Any],
    arrived: Callable[[], Any],
    pool: ThreadPoolExecutor,
) -> None:
    arrived()
    _fill(target, there, pool)


def _fill(target: np.ndarray[Any, Any], source: np.ndarray[Any, Any], pool: ThreadPoolExecutor) -> None:
    """Copy by several threads: one alone is slower than the bus."""
    parts = max(1, min(_COPIERS, source.nbytes // _SHARE))
    bounds = [len(source) * part // parts for part in range(parts + 1)]

    def fill(part: int) -> None:
        target[bounds[part] : bounds[part + 1]] = source[bounds[part] : bounds[part + 1]]

    list(pool.map(fill, range(parts)))


class _Carrier:
    """Copies to one device; to CUDA on a stream of its own, from page-locked memory."""

    def __init__(self, device: Any) -> None:
        import torch

        self._torch, self._device = torch, device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pool = ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy")

    def sent(self, block: Arrays) -> tuple[Arrays, Any, Arrays]:
        """The arrays on the device, the event that says they are there, and what must live until then."""
        if self._stream is None:
            return tuple(self._plain(array) for array in block), None, ()
        with self._torch.cuda.stream(self._stream):
            locked = tuple(self._locked(array) for array in block)
            there = tuple(
                None if array is None else array.to(self._device, non_blocking=True) for array in locked
            )
            event = self._torch.cuda.Event()
            event.record(self._stream)
        return there, event, locked

    def received(self, sent: tuple[Arrays, Any, Arrays]) -> Arrays:
        """The arrays, safe to compute with."""
        arrays, event, _ = sent
        if event is not None:
            current = self._torch.cuda.current_stream(self._device)
            current.wait_event(event)
            for array in arrays:
                if array is not None:
                    array.record_stream(current)
        return arrays

    def close(self) -> None:
        self._pool.shutdown()

    def _plain(self, array: Array | None) -> Array | None:
        if array is None or self._torch.is_tensor(array):
            return None if array is None else array.to(self._device)
        # A copy: torch cannot promise to leave a read-only array alone.
        return self._torch.as_tensor(np.array(array), device=self._device)

    def _locked(self, array: Array | None) -> Array | None:
        if array is None or self._torch.is_tensor(array):
            return array
        empty = self._torch.from_numpy(np.empty(0, array.dtype))
        locked = self._torch.empty(array.shape, dtype=empty.dtype, pin_memory=True)
        _fill(locked.numpy(), array, self._pool)
        return locked
