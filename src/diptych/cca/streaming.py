"""One pass over blocks, in this process or on an engine, that can be interrupted and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice
from operator import add

import numpy as np

from diptych.cca.blocks import Block, Preparation
from diptych.cca.checkpoint import Checkpoint
from diptych.cca.engine import Engine
from diptych.cca.moments import Moments
from diptych.checks import InputError
from diptych.transfer import on_device

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
        See ``diptych.cca.blocks``.
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
