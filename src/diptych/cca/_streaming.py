"""One pass over paired data of any size: blocks of pairs summed to moments, here or by an engine.

A *block* is ``(x, y)``, ``(x, y, pairing)`` or ``(x, y, pairing, sample_weight)``, where the pairing refers
to rows of its own x and the weights are of the rows of y (None, for either: row by row; weight 1), or any
object whose ``load()`` returns that: such a block can be sent elsewhere and read by the process that sums it.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from array_api_compat import is_array_api_obj

from diptych._arrays import Array, is_sparse, move_like, to_numpy
from diptych._checks import InputError, check_pair_of_views, check_sample_weight, order_rows
from diptych._devices import copy_blocks, copy_to_device
from diptych._persistence import read_metadata
from diptych._threads import one_blas_thread, prefetch
from diptych.cca._moments import Moments, Precision, Products, block_rows, paired_blocks, products
from diptych.cca._weighting import normalize

PairBlock: TypeAlias = Any

BLOCKS_AT_ONCE = 2
"""One block is read and converted while another is multiplied; they are added in order."""

BLOCKS_PER_CHECKPOINT = 64
"""Blocks that an engine sums between two checkpoints."""

SECONDS_PER_CHECKPOINT = 60.0

_FINGERPRINT_ROWS = 64

T = TypeVar("T")
S = TypeVar("S")


@runtime_checkable
class Engine(Protocol):
    """Where the pass over the data and the rows of the grid run: anything with ``map`` and ``reduce``.

    >>> from functools import reduce
    >>> class Here:
    ...     def map(self, function, items):
    ...         return map(function, items)
    ...
    ...     def reduce(self, function, mapped):
    ...         return reduce(function, mapped)
    >>> from diptych.cca import Engine
    >>> isinstance(Here(), Engine)
    True
    """

    def map(self, function: Callable[[T], S], items: Iterable[T]) -> Any:
        """Apply ``function`` to every item; the result can be anything that ``reduce`` accepts."""
        ...

    def reduce(self, function: Callable[[S, S], S], mapped: Any) -> S:
        """Combine the results of ``map`` into one, in order, as any tree."""
        ...


def are_blocks(data: Any) -> bool:
    """Return whether ``data`` is an iterable of blocks rather than a view."""
    if (
        is_array_api_obj(data)
        or is_sparse(data)
        or hasattr(data, "__array__")
        or isinstance(data, str | bytes)
    ):
        return False
    if isinstance(data, Sequence) and not hasattr(data, "fingerprint"):
        return bool(data) and _is_block(data[0])
    return isinstance(data, Iterable) and not hasattr(data, "columns")


def _is_block(data: Any) -> bool:
    if hasattr(data, "load"):
        return True
    return isinstance(data, tuple) and len(data) in (2, 3, 4) and getattr(data[0], "ndim", 0) == 2


def load_block(block: PairBlock) -> tuple[Any, Any, Any, Any]:
    """Return ``x, y, pairing, sample_weight`` of a block, unchecked; the last two may be None."""
    parts = block.load() if hasattr(block, "load") else block
    if not isinstance(parts, tuple | list) or len(parts) not in (2, 3, 4):
        raise InputError(
            f"a block is a {type(parts).__name__}; expected (x, y), (x, y, pairing) or (x, y, pairing, "
            "sample_weight), or an object whose load() returns that."
        )
    x, y, pairing, weights = (*parts, None, None)[:4]
    return x, y, pairing, weights


@dataclass(frozen=True)
class Preparation:
    """The steps from a block to its products; it can be sent to another process."""

    normalize: tuple[str, str] = ("none", "none")
    precision: Precision = "float64"
    device: str | None = None  # a torch device; None: where the arrays are

    def stream(self, blocks: Iterable[PairBlock], first: int = 0) -> Iterator[Products]:
        """Yield the products of each block, while the next block is being read or copied.

        ``first`` is the number of the first block, for messages.
        """
        whole = isinstance(blocks, ArrayBlocks)
        if self.device is not None:
            copies = copy_blocks((_as_arrays(load_block(block)) for block in blocks), self.device)
            for number, arrays in enumerate(copies, first):
                yield self._products(arrays, "" if whole else f"block {number}")
            return

        reading = threading.Lock()  # blocks may share an encoder that is not safe for two threads

        def compute(numbered: tuple[int, PairBlock]) -> Products:
            number, block = numbered
            return self._products(block, "" if whole else getattr(block, "name", f"block {number}"), reading)

        with one_blas_thread():
            yield from prefetch(compute, enumerate(blocks, first), BLOCKS_AT_ONCE, BLOCKS_AT_ONCE)

    def moments(self, block: PairBlock) -> Moments:
        """Return the moments of one block; if they were computed on a device, as NumPy."""
        arrays = block
        if self.device is not None:
            arrays = next(copy_blocks([_as_arrays(load_block(block))], self.device))
        part = self._products(arrays, getattr(block, "name", "a block"))
        total = self._zero(part)
        total.merge(part)
        return total if self.device is None else total.to_backend_of(np.empty(0))

    def add(
        self, blocks: Iterable[PairBlock], total: Moments | None, first: int
    ) -> Iterator[tuple[Moments, int]]:
        """Add the blocks to ``total`` one by one; yield the sum and the number of blocks added, 1."""
        for part in self.stream(blocks, first):
            total = self._zero(part) if total is None else total
            total.merge(part)
            yield total, 1

    def _zero(self, part: Products) -> Moments:
        return Moments.zero(*part.sums.xy.shape, precision=self.precision, like=part.sums.xy)

    def _products(
        self, block: PairBlock, name: str, reading: AbstractContextManager[Any] | None = None
    ) -> Products:
        try:
            with reading or nullcontext():
                parts = load_block(block)
            x, y, pairing = check_pair_of_views(*parts[:3], sparse=True)
            weights = check_sample_weight(order_rows(parts[3], parts[1], "sample_weight", "Y"), y)
        except InputError as error:
            raise InputError(f"{name}: {error}" if name else str(error)) from None
        x, y = normalize(x, self.normalize[0]), normalize(y, self.normalize[1])
        return products(x, y, pairing, weights, self.precision)


@dataclass(frozen=True, eq=False)
class ArrayBlocks:
    """Two arrays, in memory or mapped from disk, as blocks of pairs; a block is copied when it is read."""

    x: Array
    y: Array
    pairing: Array
    y_rows: Array | None = None  # rows of y to use, ascending; None: all
    block_bytes: int | None = None  # approximate size of a block; None: chosen for the backend
    weights: Array | None = None  # of each row of y

    def __len__(self) -> int:
        n = self.pairing.shape[0] if self.y_rows is None else self.y_rows.shape[0]
        return -(-int(n) // block_rows(self.x, self.y, self.block_bytes))

    def __iter__(self) -> Iterator[tuple[Array, Array, Array, Array | None]]:
        for block in paired_blocks(self.x, self.y, self.pairing, self.block_bytes, self.y_rows, self.weights):
            yield block
            for view in (self.x, self.y):
                _release_pages(view)

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the shapes, of a sample of rows, and of all weights."""
        digest = hashlib.sha256()
        for array in (self.x, self.y, self.pairing, self.y_rows):
            if array is not None:
                rows = np.unique(np.linspace(0, array.shape[0] - 1, _FINGERPRINT_ROWS).astype(np.int64))
                digest.update(f"{tuple(array.shape)} {array.dtype}".encode())
                chosen = array[move_like(rows, array)]
                for part in (chosen.indptr, chosen.indices, chosen.data) if is_sparse(chosen) else (chosen,):
                    digest.update(np.ascontiguousarray(to_numpy(part)).tobytes())
        if self.weights is not None:
            digest.update(np.ascontiguousarray(to_numpy(self.weights)).tobytes())
        return digest.hexdigest()


def _as_arrays(block: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(part if part is None or is_array_api_obj(part) else np.asarray(part) for part in block)


def _release_pages(view: Array) -> None:
    """Release the pages of a mapped file, which count as memory in use once they are read."""
    # A private copy ("c") may have changes, which would be lost.
    mapped = getattr(view, "_mmap", None) if getattr(view, "mode", "") in ("r", "r+") else None
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


class Checkpoint:
    """A file with the sum so far and the number of blocks in it, replaced every so many seconds.

    ``identity`` describes the data and the settings; a checkpoint of another identity is refused.
    """

    def __init__(
        self, path: str | os.PathLike[str], identity: str, every: float = SECONDS_PER_CHECKPOINT
    ) -> None:
        self.path, self.every = Path(path), every
        self._identity = hashlib.sha256(identity.encode()).hexdigest()
        self._last_write = time.monotonic()

    def read(self) -> tuple[Moments | None, int]:
        """Return the sum and the number of blocks in it; None and 0 if there is no file."""
        if not self.path.exists():
            return None, 0
        notes = read_metadata(self.path)
        moments, blocks = Moments.load(self.path), notes.get("blocks", "")
        if notes.get("of") != self._identity or not blocks.isdecimal():
            raise InputError(
                f"{self.path} is a checkpoint of other data or of another normalisation or precision; give "
                "another file, or remove it to start again."
            )
        return moments, int(blocks)

    def is_due(self) -> bool:
        return time.monotonic() - self._last_write >= self.every

    def write(self, moments: Moments, blocks: int) -> None:
        """Replace the file by the sum of the first ``blocks`` blocks."""
        moments.save(self.path, {"of": self._identity, "blocks": str(blocks)})
        self._last_write = time.monotonic()


def remove_checkpoint(path: str | os.PathLike[str]) -> None:
    """Remove a checkpoint; a file that is none stays."""
    with suppress(InputError):
        if os.path.isfile(path) and "blocks" in read_metadata(path):
            os.unlink(path)


def sum_blocks(
    blocks: Iterable[PairBlock],
    prepare: Preparation,
    *,
    engine: Engine | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Moments:
    """Return the moments of all blocks together; two or three blocks are in memory at a time.

    An ``engine`` sums the blocks, or this process, one after another. ``checkpoint`` saves the sum from time
    to time: after an interruption the result is the same to the last bit (on an engine, if both runs had a
    checkpoint). ``progress`` is called with the share that is done, if the number of blocks is known.
    """
    total, done = (None, 0) if checkpoint is None else checkpoint.read()
    count = len(blocks) if isinstance(blocks, Sized) else 0
    if total is not None and prepare.device is not None:
        total = total.to_backend_of(copy_to_device(np.empty(0), prepare.device))
    rest = _skip(blocks, done)
    if engine is None:
        sums = prepare.add(rest, total, done)
    else:
        at_once = None if checkpoint is None else BLOCKS_PER_CHECKPOINT
        sums = _sum_on_engine(rest, prepare, total, engine, at_once)
    for total, added in sums:
        done += added
        if count:
            progress(min(1.0, done / count))
        if checkpoint is not None and checkpoint.is_due():
            checkpoint.write(total, done)
    if total is None:
        raise InputError("there are no blocks to fit on; give at least one (x, y) or (x, y, pairing).")
    # The steps after this one may be interrupted too; a short pass, which wrote no file, is not worth one.
    if checkpoint is not None and checkpoint.path.exists():
        checkpoint.write(total, done)
    return total


def _sum_on_engine(
    blocks: Iterable[PairBlock],
    prepare: Preparation,
    total: Moments | None,
    engine: Engine,
    at_once: int | None,
) -> Iterator[tuple[Moments, int]]:
    waiting = iter(blocks)
    while part := list(islice(waiting, at_once)):
        moments = engine.reduce(add, engine.map(prepare.moments, part))
        total = moments if total is None else total + moments
        yield total, len(part)


def _skip(blocks: Iterable[PairBlock], done: int) -> Iterable[PairBlock]:
    """Return the blocks after the first ``done``; blocks with ``load()`` are skipped without reading them."""
    if done == 0:
        return blocks
    if isinstance(blocks, Sequence):
        return (blocks[number] for number in range(done, len(blocks)))
    return islice(blocks, done, None)
