"""Blocks of host arrays carried to another device ahead of their use, so that copying and computing overlap.

A thread takes the blocks (which may mean reading a disk), puts them into page-locked memory and starts their
copy on a stream of its own, while the caller computes with the blocks before. What arrives keeps its type:
float16 crosses the bus as float16 and is widened on the card.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np

from diptych.arrays import Array
from diptych.checks import InputError

Arrays: TypeAlias = tuple[Array | None, ...]

AHEAD = 2
"""Blocks that are on their way while one is being computed with: two fill the card's copy engine."""

_COPIERS = 8  # threads that fill page-locked memory: one alone is slower than the bus
_SHARE = 2**24  # bytes below which another of them is not worth starting


def torch_device(device: str) -> Any:
    """The torch device of this name, if there is one here."""
    try:
        import torch
    except ImportError:
        raise InputError(
            f'the device {device!r} needs torch; install it with: pip install "diptych[torch]"'
        ) from None
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
        target, rows = locked.numpy(), len(array)
        parts = max(1, min(_COPIERS, array.nbytes // _SHARE))
        bounds = [rows * part // parts for part in range(parts + 1)]

        def fill(part: int) -> None:
            target[bounds[part] : bounds[part + 1]] = array[bounds[part] : bounds[part + 1]]

        list(self._pool.map(fill, range(parts)))
        return locked
