"""The largest correlation under permutations that are not equally likely, drawn in chains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from diptych._arrays import Array
from diptych.cca import Engine
from diptych.cca._filters import Floats
from diptych.stats._pieces import run_pieces
from diptych.stats._row_blocks import ExchangeBlocks, Ints
from diptych.stats._singular_values import all_squares, count_at_once, largest_squares

STEPS = 40
"""Length of a chain of permutations. All chains of a component start from one permutation."""


@dataclass(frozen=True, eq=False)
class Remainder:
    """What remains of T = ``a.T @ b + fixed`` without the components whose squares are ``removed``.

    ``powers`` are those of their factors in the weight of a permutation. Without ``removed``, all
    permutations have the same weight.
    """

    a: Array
    b: Array
    blocks: ExchangeBlocks
    fixed: Array | None = None
    removed: Floats | None = None
    powers: Floats | None = None

    def evaluate(self, orders: Ints) -> tuple[Floats, Floats]:
        """Return the largest correlation and the log weight for each permutation of the rows of ``a``."""
        if self.removed is None:
            return np.sqrt(largest_squares(self.a, self.b, orders)), np.zeros(len(orders))
        squares = all_squares(self.a, self.b, self.fixed, orders)
        shares = 1.0 - squares[:, :, None] / self.removed
        possible = squares[:, -1] < self.removed[-1]
        logs = np.log(np.where(possible[:, None, None], shares, 1.0)).sum(axis=1) @ self.powers
        return np.sqrt(squares[:, -1]), np.where(possible, logs, -np.inf)

    def walk(
        self, state: ChainState, lengths: list[int], steps: Iterable[int], rngs: list[np.random.Generator]
    ) -> list[Floats]:
        """Return the correlations along one chain for each row of ``state``, and leave it at their ends.

        ``steps`` are the numbers of the steps, from the start of a chain; towards the start they descend.
        """
        passed: list[list[float]] = [[] for _ in lengths]
        for walked, step in enumerate(steps):
            moving = [chain for chain, length in enumerate(lengths) if length > walked]
            orders = np.stack(
                [self.blocks.propose(state.orders[chain], step, rngs[chain]) for chain in moving]
            )
            for chain, order, value, log in zip(moving, orders, *self.evaluate(orders), strict=True):
                if math.log1p(-rngs[chain].random()) <= log - state.logs[chain]:
                    state.orders[chain], state.values[chain], state.logs[chain] = order, value, log
                passed[chain].append(float(state.values[chain]))
        return [np.array(values) for values in passed]


@dataclass(eq=False)
class ChainState:
    """Where chains are: permutations with their largest correlations and log weights."""

    orders: Ints
    values: Floats
    logs: Floats

    def repeat(self, times: int) -> ChainState:
        """Return ``times`` chains where this one is."""
        orders = np.repeat(self.orders, times, axis=0)
        return ChainState(orders, np.repeat(self.values, times), np.repeat(self.logs, times))


@dataclass(frozen=True, eq=False)
class _Chains:
    """Chains of these lengths from one start; without it, single permutations. ``seed`` is that of all."""

    remainder: Remainder
    seed: list[int]
    lengths: list[int]
    start: ChainState | None = None


def draw_largest(
    remainder: Remainder,
    n_permutations: int,
    seed: list[int],
    engine: Engine | None = None,
    device: str | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> Floats:
    """Return the largest correlations of what remains, under permutations with their weights."""
    passed: list[Floats] = []
    if remainder.removed is None:
        chains = _Chains(remainder, seed, [1] * n_permutations)
    else:
        start, passed, lengths = _start_chains(remainder, n_permutations, np.random.default_rng([*seed, 0]))
        chains = _Chains(remainder, seed, lengths, start)
    at_once = count_at_once(remainder.a, remainder.b, largest=remainder.removed is None)
    size = len(chains.lengths)
    passed += run_pieces(_walk_chains, chains, size, at_once, remainder.a, engine, device, progress)
    return np.concatenate(passed)


def _start_chains(
    remainder: Remainder, n_permutations: int, rng: np.random.Generator
) -> tuple[ChainState, list[Floats], list[int]]:
    """Return the start of all chains, what is passed on the way there, and the lengths of the chains to walk.

    Chains of ``STEPS`` permutations start from one. The observed one is put at a random place, of which all
    are as likely: at the start, or inside a chain, whose two parts are walked from there. As the steps are
    reversible, it is then exchangeable with the others, which makes the p-value valid.
    """
    lengths = [min(STEPS, n_permutations - first) for first in range(0, n_permutations, STEPS)]
    orders = np.arange(len(remainder.blocks.labels))[None, :]
    values, logs = remainder.evaluate(orders)
    # Two equal correlations have the weight 0, and a chain must be able to leave that.
    state = ChainState(orders, values, np.maximum(logs, -1e300))
    place = int(rng.integers(n_permutations + 1))
    if place == 0:
        return state, [], lengths
    chain, depth = divmod(place - 1, STEPS)
    end = lengths.pop(chain)
    passed = remainder.walk(state.repeat(1), [end], range(depth + 1, end), [rng])
    return state, passed + remainder.walk(state, [end], range(depth, -1, -1), [rng]), lengths


def _walk_chains(chains: _Chains, numbers: range) -> list[Floats]:
    remainder = chains.remainder
    rngs = [np.random.default_rng([*chains.seed, 1 + number]) for number in numbers]
    if chains.start is None:
        orders = np.stack([remainder.blocks.permute(rng) for rng in rngs])
        return [remainder.evaluate(orders)[0]]
    lengths = [chains.lengths[number] for number in numbers]
    return remainder.walk(chains.start.repeat(len(rngs)), lengths, range(max(lengths)), rngs)
