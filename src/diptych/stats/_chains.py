"""The statistic of a test under permutations, which are drawn in chains where they are not equally likely."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import Array, Floats, move_like, namespace, to_numpy
from diptych.cca import Engine
from diptych.stats._pairs import ExchangeBlocks, Ints, run_pieces

Statistic: TypeAlias = Literal["roy", "wilks"]
STATISTICS: tuple[Statistic, ...] = ("roy", "wilks")

LEAD = 40
"""Steps of a chain until its permutations count. All chains of a component start from one permutation."""

STEPS = 80
"""Permutations of a chain that count."""

MIN_CHAINS = 4
"""Chains of a component, whose means differ by the Monte Carlo error."""

TIE = 1e-8
"""Statistics are equal if they differ by no more than this share: a tie counts as at least as large."""

_SMALL = 64  # size of a matrix up to which all eigenvalues take no longer than the largest
_ENTRIES_AT_ONCE = 2**18  # of permuted rows and their products, on a CPU
_ENTRIES_ON_DEVICE = 2**26
_VECTORS_AT_ONCE = 64  # enough for efficient products
_MOST_STEPS = 300  # of Lanczos' algorithm


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
    statistic: Statistic = "roy"

    def evaluate(self, orders: Ints) -> tuple[Floats, Floats]:
        """Return the statistic and the log weight for each permutation of the rows of ``a``."""
        if self.needs_largest:
            return np.sqrt(largest_squares(self.a, self.b, orders)), np.zeros(len(orders))
        squares = all_squares(self.a, self.b, self.fixed, orders)
        values = np.sqrt(squares[:, -1]) if self.statistic == "roy" else log_wilks(squares).sum(axis=1)
        if self.removed is None:
            return values, np.zeros(len(orders))
        shares = 1.0 - squares[:, :, None] / self.removed
        possible = squares[:, -1] < self.removed[-1]
        logs = np.log(np.where(possible[:, None, None], shares, 1.0)).sum(axis=1) @ self.powers
        return values, np.where(possible, logs, -np.inf)

    @property
    def needs_largest(self) -> bool:
        """Whether the largest correlation is enough, without the others."""
        return self.removed is None and self.statistic == "roy"

    def walk(
        self, state: ChainState, lengths: list[int], steps: Iterable[int], rngs: list[np.random.Generator]
    ) -> list[Floats]:
        """Return the statistics along one chain for each row of ``state``, and leave it at their ends.

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
    """Where chains are: permutations with their statistics and log weights."""

    orders: Ints
    values: Floats
    logs: Floats

    def repeat(self, times: int) -> ChainState:
        """Return ``times`` chains where this one is."""
        orders = np.repeat(self.orders, times, axis=0)
        return ChainState(orders, np.repeat(self.values, times), np.repeat(self.logs, times))


@dataclass(frozen=True, eq=False)
class _Chains:
    """Chains of which so many permutations count, from one start; without it, single permutations.

    ``seed`` is that of all.
    """

    remainder: Remainder
    seed: list[int]
    lengths: list[int]
    start: ChainState | None = None


def draw_statistics(
    remainder: Remainder,
    n_permutations: int,
    seed: list[int],
    engine: Engine | None = None,
    device: str | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Floats]:
    """Return the statistics of what remains, under permutations with their weights, by chain.

    Permutations of equal weight are drawn one by one, each a chain of its own.
    """
    passed: list[Floats] = []
    if remainder.removed is None:
        chains = _Chains(remainder, seed, [1] * n_permutations)
    else:
        start, passed, lengths = _start_chains(remainder, n_permutations, np.random.default_rng([*seed, 0]))
        chains = _Chains(remainder, seed, lengths, start)
    at_once = count_at_once(remainder.a, remainder.b, largest=remainder.needs_largest)
    size = len(chains.lengths)
    return passed + run_pieces(_walk_chains, chains, size, at_once, remainder.a, engine, device, progress)


def standard_error(chains: list[Floats], least: float) -> float:
    r"""Return the Monte Carlo standard error of the p-value of a statistic of ``least``.

    Chains that start from one permutation and have forgotten it are independent: with :math:`m_c` the share
    of statistics of at least this in chain c of C, which has the share :math:`w_c` of all permutations, and
    m that in all, the variance is :math:`\frac{C}{C-1}\sum_c w_c^2 (m_c - m)^2`. It is no less than that of
    independent permutations, :math:`p(1-p)/N`.
    """
    sizes = np.array([len(values) for values in chains])
    above = np.array([np.count_nonzero(values >= least) for values in chains])
    total, n_chains = sizes.sum(), len(chains)
    p = (1 + above.sum()) / (1 + total)
    deviations = (above - sizes * above.sum() / total) / total
    variance = n_chains / max(1, n_chains - 1) * np.sum(deviations**2)
    return float(np.sqrt(max(variance, p * (1 - p) / total)))


def _start_chains(
    remainder: Remainder, n_permutations: int, rng: np.random.Generator
) -> tuple[ChainState, list[Floats], list[int]]:
    """Return the start of all chains, the observed chain without the observed permutation, and other lengths.

    Chains start from one permutation; after ``LEAD`` steps, to forget it, their permutations count. The
    observed one is put at a random place among those that count, of which all are as likely, and its chain is
    walked from there to its end and back to the start. As the steps are reversible, it is then exchangeable
    with the others, which makes the p-value valid.
    """
    size = min(STEPS, -(-(n_permutations + 1) // MIN_CHAINS))
    lengths = [min(size, n_permutations + 1 - first) for first in range(0, n_permutations + 1, size)]
    orders = np.arange(len(remainder.blocks.labels))[None, :]
    values, logs = remainder.evaluate(orders)
    # Two equal correlations have the weight 0, and a chain must be able to leave that.
    state = ChainState(orders, values, np.maximum(logs, -1e300))
    chain, place = divmod(int(rng.integers(n_permutations + 1)), size)
    end = LEAD + lengths.pop(chain)
    after = remainder.walk(state.repeat(1), [end], range(LEAD + place + 1, end), [rng])
    before = remainder.walk(state, [end], range(LEAD + place, -1, -1), [rng])
    return state, [np.concatenate([after[0], before[0][:place]])], lengths


def _walk_chains(chains: _Chains, numbers: range) -> list[Floats]:
    remainder = chains.remainder
    rngs = [np.random.default_rng([*chains.seed, 1 + number]) for number in numbers]
    if chains.start is None:
        orders = np.stack([remainder.blocks.permute(rng) for rng in rngs])
        return list(remainder.evaluate(orders)[0][:, None])
    lengths = [LEAD + chains.lengths[number] for number in numbers]
    passed = remainder.walk(chains.start.repeat(len(rngs)), lengths, range(max(lengths)), rngs)
    return [values[LEAD:] for values in passed]


def log_wilks(squares: Floats) -> Floats:
    """Return −log(1 − r²) of squared correlations r², whose sum is −log Λ (Wilks); finite also for 1.

    >>> log_wilks(np.array([0.0, 0.5])).round(3)
    array([0.   , 0.693])
    """
    terms: Floats = -np.log1p(-np.clip(squares, 0.0, 1.0 - np.finfo(np.float64).eps))
    return np.maximum(terms, 0.0)


def is_large(a: Array, b: Array) -> bool:
    """Return whether the largest singular value of ``a.T @ b`` takes less time than all of them."""
    return min(int(a.shape[1]), int(b.shape[1])) > _SMALL


def count_at_once(a: Array, b: Array, *, largest: bool) -> int:
    """Return for how many permutations to compute at a time: all singular values, or the largest."""
    on_cpu = is_numpy_array(a)
    if largest and is_large(a, b):
        return _VECTORS_AT_ONCE if on_cpu else 16 * _VECTORS_AT_ONCE
    (rows, columns), others = a.shape, b.shape[1]
    return max(1, (_ENTRIES_AT_ONCE if on_cpu else _ENTRIES_ON_DEVICE) // int(columns * (rows + others)))


def all_squares(a: Array, b: Array, fixed: Array | None, orders: Ints) -> Floats:
    """Return the squared singular values of ``a[order].T @ b + fixed`` for each permutation, ascending."""
    xp = namespace(a)
    t = xp.permute_dims(a[move_like(orders, a)], (0, 2, 1)) @ b
    if fixed is not None:
        t = t + fixed
    transposed = xp.permute_dims(t, (0, 2, 1))
    gram = t @ transposed if t.shape[1] <= t.shape[2] else transposed @ t
    squares: Floats = np.maximum(to_numpy(xp.linalg.eigvalsh(gram)), 0.0)
    return squares


def largest_squares(a: Array, b: Array, orders: Ints) -> Floats:
    """Return the largest squared singular value of ``a[order].T @ b`` for each permutation."""
    if not is_large(a, b):
        return all_squares(a, b, None, orders)[:, -1]
    squares = _iterate_largest(a, b, orders)
    if squares is not None:
        return squares
    # One by one, because each is a large matrix.
    return np.concatenate([all_squares(a, b, None, order[None, :])[:, -1] for order in orders])


def _iterate_largest(a: Array, b: Array, orders: Ints) -> Floats | None:
    """Return the same by Lanczos' algorithm; None if it does not converge.

    It runs for all permutations at a time: its products are then those of matrices, and none of the permuted
    matrices is formed. Without reorthogonalisation it repeats eigenvalues, but the largest stays exact.
    """
    xp = namespace(a)
    order_rows, restore_rows = (move_like(rows.T, a) for rows in (np.argsort(orders, axis=1), orders))
    start = np.random.default_rng(0).normal(size=(int(b.shape[1]), 1))
    v = move_like(np.repeat(start / np.linalg.norm(start), len(orders), axis=1), b)
    previous, length = xp.zeros_like(v), xp.zeros_like(v[0, :])
    gram = a @ a.T if a.shape[0] <= 2 * a.shape[1] else None
    diagonal: list[Floats] = []
    beside: list[Floats] = []
    last: Floats = np.zeros(len(orders))
    for step in range(1, _MOST_STEPS + 1):
        rows = xp.take_along_axis(b @ v, order_rows, axis=0)
        products = a @ (a.T @ rows) if gram is None else gram @ rows
        w = b.T @ xp.take_along_axis(products, restore_rows, axis=0) - length * previous
        along = xp.sum(v * w, axis=0)
        w = w - along * v
        diagonal.append(to_numpy(along))
        if step >= 40 and step % 20 == 0:
            tridiagonal = np.zeros((len(orders), step, step))
            at = np.arange(step)
            tridiagonal[:, at, at] = np.stack(diagonal, axis=1)
            tridiagonal[:, at[1:], at[:-1]] = np.stack(beside, axis=1)  # eigvalsh reads the lower triangle
            largest = to_numpy(np.linalg.eigvalsh(tridiagonal))[:, -1]
            if np.all(largest - last <= TIE / 10 * largest):
                return largest
            last = largest
        length = xp.linalg.vector_norm(w, axis=0)
        beside.append(to_numpy(length))
        previous, v = v, w / xp.where(length > 0, length, xp.ones_like(length))
    return None
