"""Many random draws, some at a time: on the threads of this machine, on a device, or on an engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import chain
from operator import add
from typing import Any, TypeVar

from array_api_compat import is_torch_array

from diptych._arrays import Array
from diptych._threads import map_parallel
from diptych.cca import Engine

Result = TypeVar("Result")
Record = TypeVar("Record", bound=Any)


@dataclass(frozen=True, eq=False)
class DrawPiece:
    """Some draws, by their numbers; an engine sends ``shared`` to each worker once."""

    shared: Any
    draw: Callable[[Any, range], list[Any]]
    numbers: range
    device: str | None


def run_pieces(
    draw: Callable[[Record, range], list[Result]],
    shared: Record,
    total: int,
    at_once: int,
    like: Array,
    engine: Engine | None,
    device: str | None,
    progress: Callable[[float], None],
) -> list[Result]:
    """Return the results of ``draw(shared, numbers)`` for the numbers 0 to ``total`` − 1, in one list.

    A draw takes its seed from its number, so that neither the size of the pieces nor where they run changes
    it. Arrays like NumPy's run on several threads. With an engine, each worker copies the torch arrays of
    ``shared``, a dataclass, to its own ``device``.
    """
    worker_device = None if engine is None else device
    if worker_device is not None:
        shared = _move_arrays(shared, "cpu")
    pieces = [
        DrawPiece(shared, draw, range(start, min(start + at_once, total)), worker_device)
        for start in range(0, total, at_once)
    ]
    if engine is not None:
        return engine.reduce(add, engine.map(_run_piece, pieces)) if pieces else []
    finished: list[DrawPiece] = []  # counted by appending, because several threads do

    def run(piece: DrawPiece) -> list[Result]:
        results = _run_piece(piece)
        finished.append(piece)
        progress(len(finished) / len(pieces))
        return results

    return list(chain.from_iterable(map_parallel(run, pieces, like)))


def _run_piece(piece: DrawPiece) -> list[Any]:
    shared = piece.shared if piece.device is None else _move_arrays(piece.shared, piece.device)
    return piece.draw(shared, piece.numbers)


def _move_arrays(record: Record, device: str) -> Record:
    """Return a dataclass with its torch arrays, and those of dataclasses in it, on another device."""
    changed: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        if is_torch_array(value):
            changed[field.name] = value.to(device)
        elif is_dataclass(value) and not isinstance(value, type):
            changed[field.name] = _move_arrays(value, device)
    return replace(record, **changed)
