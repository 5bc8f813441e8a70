"""What an engine is: anything that can map a function over blocks and reduce the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import add
from typing import Any, Protocol, TypeVar, runtime_checkable

from diptych.arrays import Array
from diptych.cca.moments import Moments, Precision, paired_blocks

T = TypeVar("T")
S = TypeVar("S")


@runtime_checkable
class Engine(Protocol):
    """Where the pass over the data runs. ``reduce`` may merge in any order and in any tree."""

    def map(self, function: Callable[[T], S], items: Iterable[T]) -> Any:
        """Apply ``function`` to every item; the result is whatever ``reduce`` understands."""
        ...

    def reduce(self, function: Callable[[S, S], S], mapped: Any) -> S:
        """Merge what ``map`` gave into one result."""
        ...


def moments_on(engine: Engine, x: Array, y: Array, pairing: Array, precision: Precision) -> Moments:
    """The moments of checked views, block by block on ``engine``."""
    blocks = paired_blocks(x, y, pairing)
    total: Moments = engine.reduce(add, engine.map(partial(_block_moments, precision=precision), blocks))
    return total


def _block_moments(block: tuple[Array, Array, Array], precision: Precision) -> Moments:
    x, y, pairing = block
    return Moments.zero(x.shape[1], y.shape[1], precision=precision, like=x).update(x, y, pairing)
