"""What an engine is: anything that can map a function over things and reduce the results."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar, runtime_checkable

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
