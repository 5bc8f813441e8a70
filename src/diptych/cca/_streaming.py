"""Paired data of any length: blocks of pairs that come one after another, wherever they lie.

A *block* is ``(x, y)`` or ``(x, y, pairing)``, with a pairing that counts the rows of its own x; or any
object whose ``load()`` gives that: such a block can be named before it is read, and read by whoever sums it.

What an engine is: anything that can map a function over things and reduce the results.

A pass that was interrupted goes on from its last checkpoint, and ends with the same numbers.

One pass over blocks, in this process or on an engine, that can be interrupted and goes on.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from array_api_compat import is_array_api_obj

from diptych._arrays import Array, move_like, to_numpy
from diptych._checks import InputError, check_pair_of_views
from diptych._devices import carried, on_device
from diptych._normalize import normalize
from diptych._persistence import read_metadata
from diptych._threads import ahead, sharing_blas
from diptych.cca._moments import Moments, Precision, Products, block_rows, paired_blocks, products

Block: TypeAlias = Any

AT_ONCE = 2
"""Blocks in hand: one is read and widened while another is multiplied, and their sums stay in order."""

FEW = 4
"""Blocks below which they are taken one at a time, each with all threads of BLAS."""

_ROWS_LOOKED_AT = 64


def are_blocks(given: Any) -> bool:
    """Whether this is an iterable of blocks, rather than a view."""
    if is_array_api_obj(given) or hasattr(given, "__array__") or isinstance(given, str | bytes):
        return False
    if isinstance(given, Sequence) and not hasattr(given, "fingerprint"):
        return bool(given) and _is_block(given[0])
    return isinstance(given, Iterable) and not hasattr(given, "columns")


def loaded(block: Block) -> tuple[Any, Any, Any]:
    """``x, y, pairing`` of a block; pairing may be None. Nothing is checked but the form."""
    found = block.load() if hasattr(block, "load") else block
    if not isinstance(found, tuple | list) or len(found) not in (2, 3):
        raise InputError(
            f"a block is a {type(found).__name__}; expected (x, y) or (x, y, pairing), or an object whose "
            "load() gives that."
        )
    return found[0], found[1], found[2] if len(found) == 3 else None


@dataclass(frozen=True)
class Preparation:
    """What happens to a block on its way into the moments; it can be sent to another process.

    Attributes
    ----------
    normalize
        How the rows of X and of Y are normalised.
    precision
        Of the products.
    device
        A torch device to compute on; None: where the arrays are.
    """

    normalize: tuple[str, str] = ("none", "none")
    precision: Precision = "float64"
    device: str | None = None

    def stream(self, blocks: Iterable[Block], first: int = 0) -> Iterator[Products]:
        """The products of each block in turn; the next is read and widened, or on its way, meanwhile.

        ``first`` is the number of the first of them, for messages.
        """
        whole = isinstance(blocks, ArrayBlocks)
        if self.device is not None:
            there = carried((_as_arrays(loaded(block)) for block in blocks), self.device)
            for number, arrays in enumerate(there, first):
                yield self._products(arrays, "" if whole else f"block {number}")
            return

        reading = threading.Lock()  # blocks may share an encoder, which need not bear two threads

        def one(numbered: tuple[int, Block]) -> Products:
            number, block = numbered
            return self._products(block, "" if whole else getattr(block, "name", f"block {number}"), reading)

        if isinstance(blocks, Sized) and len(blocks) < FEW:
            yield from map(one, enumerate(blocks, first))
            return
        with sharing_blas(AT_ONCE):
            yield from ahead(one, enumerate(blocks, first), AT_ONCE, AT_ONCE)

    def moments(self, block: Block) -> Moments:
        """The moments of one block; of one that was computed on a device, in NumPy."""
        name, arrays = getattr(block, "name", "a block"), block
        if self.device is not None:
            arrays = next(carried([_as_arrays(loaded(block))], self.device))
        found = self._products(arrays, name)
        total = Moments.zero(*found.xy.shape, precision=self.precision, like=found.xy)
        total.merge(found)
        return total if self.device is None else total.moved(np.empty(0))

    def _products(
        self, block: Block, name: str, reading: AbstractContextManager[Any] | None = None
    ) -> Products:
        try:
            with reading or nullcontext():
                given = loaded(block)
            x, y, pairing = check_pair_of_views(*given)
        except InputError as error:
            raise InputError(f"{name}: {error}" if name else str(error)) from None
        x, y = normalize(x, self.normalize[0]), normalize(y, self.normalize[1])
        return products(x, y, pairing, self.precision)


@dataclass(frozen=True, eq=False)
class ArrayBlocks:
    """Two arrays, in memory or mapped from disk, cut into blocks of pairs; nothing is copied before its turn.

    Attributes
    ----------
    x, y, pairing
        The views; a checked pairing.
    captions
        Rows of y to take, ascending; None: all.
    block_bytes
        Of a block in the precision that is computed in, about; None: as suits the backend.
    """

    x: Array
    y: Array
    pairing: Array
    captions: Array | None = None
    block_bytes: int | None = None

    def __len__(self) -> int:
        n = self.pairing.shape[0] if self.captions is None else self.captions.shape[0]
        return -(-int(n) // block_rows(self.x, self.y, self.block_bytes))

    def __iter__(self) -> Iterator[tuple[Array, Array, Array]]:
        for block in paired_blocks(self.x, self.y, self.pairing, self.block_bytes, self.captions):
            yield block
            for view in (self.x, self.y):
                _let_go(view)

    @cached_property
    def fingerprint(self) -> str:
        """Changes when the content does, as far as a sample of rows shows it."""
        digest = hashlib.sha256()
        for array in (self.x, self.y, self.pairing, self.captions):
            if array is not None:
                rows = np.unique(np.linspace(0, array.shape[0] - 1, _ROWS_LOOKED_AT).astype(np.int64))
                digest.update(f"{tuple(array.shape)} {array.dtype}".encode())
                digest.update(np.ascontiguousarray(to_numpy(array[move_like(rows, array)])).tobytes())
        return digest.hexdigest()


def _is_block(given: Any) -> bool:
    if hasattr(given, "load"):
        return True
    return isinstance(given, tuple) and len(given) in (2, 3) and getattr(given[0], "ndim", 0) == 2


def _as_arrays(block: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(each if each is None or is_array_api_obj(each) else np.asarray(each) for each in block)


def _let_go(view: Array) -> None:
    """Pages of a mapped file that were read count as memory in use until they are given back."""
    # A private copy of a file ("c") may have been written to, and would lose that.
    mapped = getattr(view, "_mmap", None) if getattr(view, "mode", "") in ("r", "r+") else None
    if isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED)


T = TypeVar("T")
S = TypeVar("S")


@runtime_checkable
class Engine(Protocol):
    """Where the pass over the data and the grid's rows run. ``reduce`` may merge in any tree, in order."""

    def map(self, function: Callable[[T], S], items: Iterable[T]) -> Any:
        """Apply ``function`` to every item; the result is whatever ``reduce`` understands."""
        ...

    def reduce(self, function: Callable[[S, S], S], mapped: Any) -> S:
        """Merge what ``map`` gave into one result."""
        ...


EVERY = 60.0
"""Seconds between checkpoints."""


class Checkpoint:
    """The sum so far and how many blocks are in it, in one file that is replaced as a whole.

    Parameters
    ----------
    path
        The file; there need not be one yet.
    identity
        What is being summed and how; a file of something else is refused.
    every
        Seconds between two writes.
    """

    def __init__(self, path: str | os.PathLike[str], identity: str, every: float = EVERY) -> None:
        self.path, self.every = Path(path), every
        self._identity = hashlib.sha256(identity.encode()).hexdigest()
        self._written = time.monotonic()

    def resumed(self) -> tuple[Moments | None, int]:
        """The sum and the number of blocks in it; None and 0 at the beginning."""
        if not self.path.exists():
            return None, 0
        notes = read_metadata(self.path)
        moments, blocks = Moments.load(self.path), notes.get("blocks", "")
        if notes.get("of") != self._identity or not blocks.isdecimal():
            raise InputError(
                f"{self.path} is a checkpoint of other data or of another normalisation or precision; name "
                "another file, or remove it to begin anew."
            )
        return moments, int(blocks)

    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() - self._written >= self.every

    def write(self, moments: Moments, blocks: int) -> None:
        """Put the sum of the first ``blocks`` blocks in place of what was there."""
        moments.save(self.path, {"of": self._identity, "blocks": str(blocks)})
        self._written = time.monotonic()


WAVE = 64
"""Blocks that an engine sums between two checkpoints."""


def moments_of_blocks(
    blocks: Iterable[Block],
    prepare: Preparation,
    *,
    engine: Engine | None = None,
    checkpoint: Checkpoint | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Moments:
    """The moments of all blocks together; two or three blocks are held at a time.

    Parameters
    ----------
    blocks
        See ``diptych.cca._streaming``.
    prepare
        What is done to each.
    engine
        Where they are summed; None: here, one after another.
    checkpoint
        Where the sum is kept now and then. Without an engine the numbers after an interruption are the same
        to the last bit; on an engine, to the last bit if both runs had a checkpoint.
    progress
        Told the share that is done, where the number of blocks is known.
    """
    total, done = (None, 0) if checkpoint is None else checkpoint.resumed()
    count = len(blocks) if isinstance(blocks, Sized) else 0
    if total is not None and prepare.device is not None:
        total = total.moved(on_device(np.empty(0), prepare.device))
    rest = _after(blocks, done)
    if engine is None:
        sums = _here(rest, prepare, total, done)
    else:
        sums = _there(rest, prepare, total, engine, checkpoint)
    for total, more in sums:
        done += more
        if count:
            progress(min(1.0, done / count))
        if checkpoint is not None and checkpoint.due():
            checkpoint.write(total, done)
    if total is None:
        raise InputError("there are no blocks to fit on; give at least one (x, y) or (x, y, pairing).")
    # What follows may be interrupted too; a pass that was short is not worth keeping.
    if checkpoint is not None and checkpoint.path.exists():
        checkpoint.write(total, done)
    return total


def _here(
    blocks: Iterable[Block], prepare: Preparation, total: Moments | None, done: int
) -> Iterator[tuple[Moments, int]]:
    for block in prepare.stream(blocks, done):
        if total is None:
            total = Moments.zero(*block.xy.shape, precision=prepare.precision, like=block.xy)
        total.merge(block)
        yield total, 1


def _there(
    blocks: Iterable[Block],
    prepare: Preparation,
    total: Moments | None,
    engine: Engine,
    checkpoint: Checkpoint | None,
) -> Iterator[tuple[Moments, int]]:
    if checkpoint is None:
        everything = blocks if isinstance(blocks, Sequence) else list(blocks)
        if everything:
            yield engine.reduce(add, engine.map(prepare.moments, everything)), len(everything)
        return
    waiting = iter(blocks)
    while wave := list(islice(waiting, WAVE)):
        found = engine.reduce(add, engine.map(prepare.moments, wave))
        total = found if total is None else total + found
        yield total, len(wave)


def _after(blocks: Iterable[Block], done: int) -> Iterable[Block]:
    """The blocks that are not in the sum yet; lazy ones that are there already are not read."""
    if done == 0:
        return blocks
    if isinstance(blocks, Sequence):
        return (blocks[number] for number in range(done, len(blocks)))
    return islice(blocks, done, None)
