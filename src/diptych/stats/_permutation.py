"""Permutation tests of canonical correlations, one after the other."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from operator import add
from typing import Any

import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import Array, count_groups, fields_to_numpy, group_sum, move_like, namespace, to_numpy
from diptych._checks import DataWarning, InputError, Task, check_count, check_seed
from diptych._devices import copy_to_device
from diptych._threads import map_lapack, map_parallel, multiply, one_blas_thread, progress_bar
from diptych.cca import Engine
from diptych.cca._canonical import forced_ones
from diptych.cca._filters import AnyFilter, Floats
from diptych.stats._inputs import COMPONENTS, Ints, Problem, block_codes, prepare
from diptych.stats._tables import format_p, format_table, import_pandas

STEPS = 40
"""Length of a chain of permutations. All chains of a component start from one permutation."""

HALVINGS = 6
"""Steps of a chain permute all rows, a half, a quarter … of them in turn: so many sizes."""

TIE = 1e-8
"""Correlations are equal if they differ by no more than this share: a tie counts as at least as large."""

REAL = 0.05
"""A removed component counts as real, not as due to chance, if its corrected p-value is at most this."""

_FEW = 20  # arrangements; with fewer, no p-value can be below 0.05
_SMALL = 64  # size of a matrix up to which all eigenvalues take no longer than the largest
_ENTRIES_AT_ONCE = 2**18  # of permuted rows and their products, on a CPU
_ENTRIES_ON_DEVICE = 2**26
_VECTORS_AT_ONCE = 64  # enough for efficient products
_MOST_STEPS = 300  # of Lanczos' algorithm


@dataclass(frozen=True, eq=False)
class PermutationTest:
    """p-values of canonical correlations; see ``permutation_test``.

    ``print`` shows a table, and ``to_frame`` returns it as a pandas DataFrame.

    Attributes
    ----------
    correlations
        The observed correlations Σ: the singular values of the regularised T, descending.
    p_values
        Of each correlation, with the earlier components removed.
    p_corrected
        The largest p-value up to each component. If the components are taken in order up to the first one
        above α, the probability that any of them is a false discovery is α at most.
    null
        Permutations × components: the largest correlation of what remains, under permutation.
    n_permutations, random_state
        As given.
    """

    correlations: Floats
    p_values: Floats
    p_corrected: Floats
    null: Floats
    n_permutations: int
    random_state: int | None

    def __str__(self) -> str:
        header = ["component", "correlation", "null mean", "null 95 %", "p", "p corrected"]
        rows = (
            [str(k + 1), *(f"{value:.4f}" for value in values[:3]), *map(format_p, values[3:])]
            for k, values in enumerate(zip(*self._columns().values(), strict=True))
        )
        return f"Permutation test, {self.n_permutations:,} permutations\n{format_table(header, rows)}"

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each component."""
        pandas = import_pandas()
        index = pandas.RangeIndex(1, len(self.correlations) + 1, name="component")
        return pandas.DataFrame(self._columns(), index)

    def _columns(self) -> dict[str, Floats]:
        return {
            "correlation": self.correlations,
            "null_mean": self.null.mean(axis=0),
            "null_95": np.quantile(self.null, 0.95, axis=0),
            "p_value": self.p_values,
            "p_corrected": self.p_corrected,
        }


def permutation_test(
    model: Any,
    X: Any,
    y: Any,
    pairing: Any = None,
    *,
    n_permutations: int = 1000,
    random_state: int | None = 0,
    blocks: Any = None,
    n_components: int | None = None,
    task: Task = "search",
    engine: Engine | None = None,
    device: str | None = None,
    verbose: bool | None = None,
) -> PermutationTest:
    r"""Test whether each canonical correlation is larger than chance makes it, by permuting the pairs.

    The regularisation stays that of the model. It does not depend on who is paired with whom, so a
    permutation costs one product and its singular values, not a fit. The first p-value tests whether the
    views are related at all, the second whether they are beyond the first component, and so on.

    Parameters
    ----------
    model
        A fitted ``AWCCA``, or ``(γ_x, γ_y)`` as ``AWCCA(params=…)`` takes them. A γ that was selected by
        retrieval on the same pairs has seen the pairing, which the test does not account for; one that was
        given, or comes from ``selection="ledoit-wolf"``, has not.
    X, y, pairing
        The pairs, as in ``AWCCA.fit``. A row of X keeps its rows of Y together, and changes places only with
        rows of X that have as many.
    n_permutations
        Number of permutations; the smallest possible p-value is 1 / (n_permutations + 1).
    random_state
        Seeds the permutations, which are the same whatever the engine.
    blocks
        One label per row of X, such as the subject: rows change places only within their block. For repeated
        measures. Whole blocks are not exchanged with each other.
    n_components
        The first components; None: at most 10.
    task
        Whose model: each task has its own regularisation, unless ``params`` was one pair.
    engine, device, verbose
        As in ``AWCCA``.

    Notes
    -----
    Let A and B be the whitened views over pairs, so that :math:`T = A^\top B = P_x \Sigma P_y^\top`, and
    rotate them to :math:`A P_x` and :math:`B P_y`. The earlier components are removed by leaving out their
    columns: what remains of T has the later correlations, and no others (Winkler et al., 2020). The statistic
    is the largest of them (Roy). For the first component, rows of A are permuted: the test is exact.

    What remains of A is orthogonal to the removed variates v of Y, and what remains of B to those of X, u,
    with any regularisation. To permute rows as if they were free would spread them over dimensions that are
    fixed, and reject too often. So the parts along 1, u and v stay as they are, and the other parts are
    permuted in an orthonormal basis whose rows stand for rows of the data (Theil, 1965).

    The removed components were the largest, and what remains is smaller than that: permutations whose largest
    correlation exceeds the last removed one are impossible, and the others are not equally likely. The joint
    density of the squared correlations of unrelated views contains the factors :math:`σ_i^2 - λ_j`; hence,
    given the removed :math:`σ_i`, a permutation whose squared correlations are :math:`λ_j` has the weight
    :math:`\prod_i \prod_j (σ_i^2 - λ_j)`. For a component that is real, the power of its factors is ½ (Glynn
    and Muirhead, 1978); one whose corrected p-value is at most 0.05 counts as real here. If the removed ones
    are far above, the weights are equal. Without weights, the p-values of later components are too large if
    the earlier ones are due to chance.

    Permutations are drawn with these weights by Metropolis steps, in chains around the observed one, which
    keeps p-values valid however slowly the chains mix (Besag and Clifford, 1989). The weights are exact for
    unrelated Gaussian views without regularisation; with heavy tails or small blocks, p-values of later
    components are too small, but not the corrected ones. ``benchmarks/permutation.py calibrate`` measures how
    p-values are distributed.

    References
    ----------
    Winkler, Renaud, Smith and Nichols (2020), "Permutation inference for canonical correlation analysis",
    NeuroImage 220. Glynn and Muirhead (1978), "Inference in canonical correlation analysis", Journal of
    Multivariate Analysis 8. Besag and Clifford (1989), "Generalized Monte Carlo significance tests",
    Biometrika 76.

    Examples
    --------
    >>> from sklearn.datasets import load_linnerud
    >>> from diptych.stats import permutation_test
    >>> exercises, physiology = load_linnerud(return_X_y=True)
    >>> test = permutation_test((0, 0), physiology, exercises)
    >>> test.correlations.round(2)
    array([0.8 , 0.2 , 0.07])
    >>> bool(0.03 < test.p_values[0] < 0.1)
    True
    """
    check_count(n_permutations, "n_permutations")
    check_seed(random_state)
    with one_blas_thread(), progress_bar("permutation test", verbose):
        problem = prepare(model, X, y, pairing, task, device)
        units = _make_units(problem, blocks)
        _check_free(problem, len(units.labels))
        units.warn_of_few()
        xp = namespace(units.a)
        p_x, sigma, p_yt = map_lapack(xp.linalg.svd, [multiply(units.a.T, units.b)], units.a)[0]
        rotated = _Units(multiply(units.a, p_x), multiply(units.b, p_yt.T), units.mean, units.labels)
        observed = to_numpy(sigma)
        wanted = _count_components(observed, len(units.labels), n_components)
        seed = int(np.random.SeedSequence().entropy if random_state is None else random_state)  # type: ignore[arg-type]
        null, p_values = np.empty((n_permutations, wanted)), np.empty(wanted)
        with progress_bar("permuting") as progress:
            for k in range(wanted):
                remainder = _remove(rotated, observed, np.maximum.accumulate(p_values[:k]))
                null[:, k] = _sample(
                    remainder,
                    n_permutations,
                    [seed, k],
                    engine,
                    device,
                    lambda share, k=k: progress((k + share) / wanted),  # type: ignore[misc]
                )
                above = np.count_nonzero(null[:, k] >= observed[k] * (1 - TIE))
                p_values[k] = (1 + above) / (1 + n_permutations)
    return PermutationTest(
        observed[:wanted], p_values, np.maximum.accumulate(p_values), null, n_permutations, random_state
    )


def permuted_correlations(
    model: Any, X: Any, y: Any, orders: Any, pairing: Any = None, *, task: Task = "search"
) -> Floats:
    """Return the first correlation for each of the given permutations of the rows of X that have pairs.

    Row i of such a permuted X is row ``order[i]`` of X. For comparisons with other programs.
    """
    units = _make_units(prepare(model, X, y, pairing, task), None)
    remainder = _Remainder(units.a, units.b, None, units.labels, np.empty(0), np.empty(0))
    return np.concatenate([remainder.evaluate(np.asarray(order)[None, :])[0] for order in orders])


def _check_free(problem: Problem, units: int) -> None:
    """Raise an error if the correlations would be the same whatever the pairing."""
    ones, free_x, free_y = forced_ones(problem.spectra, *problem.filters)
    pairs = problem.spectra.count
    # A view without regularisation that spans all there is, is only rotated by a permutation.
    if ones or free_x >= units - 1 or free_y >= pairs - 1:
        raise InputError(
            f"the correlations are the same whatever the pairing, so there is nothing to test: {free_x} and "
            f"{free_y} directions without regularisation are too many for {pairs} pairs; regularise, or give "
            "fewer features."
        )


def _count_components(sigma: Floats, rows: int, n_components: int | None) -> int:
    """Return the number of components to test: above rounding error, and with rows left to permute."""
    firm = int(np.count_nonzero(sigma > sigma[0] * 1e-10))
    most = max(1, min(firm, (rows - 1) // 2))
    if n_components is None:
        return min(COMPONENTS, most)
    if check_count(n_components, "n_components") > most:
        raise InputError(f"n_components={n_components} is not possible here; give 1 to {most}, or None.")
    return n_components


@dataclass(frozen=True, eq=False)
class _Units:
    """Whitened views, one row for each row of X that has pairs, such that T = ``a.T @ b``.

    Row i of X has c rows of Y: ``a`` has √c times the row, and ``b`` the sum of the others over √c. Both are
    orthogonal to ``mean``, the √c of all rows at length 1. Rows with the same ``labels`` may change places.
    """

    a: Array
    b: Array
    mean: Array
    labels: Ints

    def warn_of_few(self) -> None:
        """Raise an error if there is one arrangement, and warn if there are few."""
        sizes = np.bincount(self.labels)
        if sizes.max() < 2:
            raise InputError(
                "no two rows of X may change places: each is alone in its block with its number of rows of "
                "Y; give larger blocks."
            )
        arrangements = math.exp(min(50.0, sum(math.lgamma(size + 1) for size in sizes)))
        if arrangements < _FEW:
            warnings.warn(
                f"there are only {arrangements:.0f} arrangements, so no p-value can be much below "
                f"{1 / arrangements:.2g}; give more rows or larger blocks.",
                DataWarning,
                stacklevel=3,
            )


def _make_units(problem: Problem, blocks: Any) -> _Units:
    found, n_x = problem.spectra, int(problem.x.shape[0])
    xp = namespace(problem.x)
    sides = []
    for own, view, mean, s, v in (
        (problem.filters[0], problem.x, found.x_mean, found.s_x, found.v_x),
        (problem.filters[1], problem.y, found.y_mean, found.s_y, found.v_y),
    ):
        sides.append(_whiten(own, view, mean, s, v))
    counts = count_groups(problem.pairing, n_x)
    described = xp.nonzero(counts > 0)[0]
    root = xp.sqrt(xp.astype(counts[described], xp.float64))
    a = sides[0][described, :] * root[:, None]
    b = group_sum(sides[1], problem.pairing, n_x)[described, :] / root[:, None]
    kept = to_numpy(described)
    codes = np.zeros(n_x, dtype=np.int64) if blocks is None else block_codes(blocks, problem.pairing, n_x)
    together = np.stack([codes, to_numpy(counts)], axis=1)[kept]
    labels = np.unique(together, axis=0, return_inverse=True)[1].reshape(-1)
    return _Units(a, b, root / xp.linalg.vector_norm(root), labels)


def _whiten(filter: AnyFilter, view: Array, mean: Array, s: Array, v: Array) -> Array:
    r"""Return :math:`(X - \mu) V D^{-1/2}` in float64."""
    xp = namespace(view)
    root = 1.0 / xp.sqrt(xp.astype(filter.denominators(s), xp.float64))
    weights = xp.astype(v[:, : root.shape[0]], xp.float64) * root
    return multiply(xp.astype(view, xp.float64) - xp.astype(mean, xp.float64), weights)


@dataclass(frozen=True, eq=False)
class _Remainder:
    """What remains of T = ``a.T @ b + fixed`` without the components whose squares are ``removed``.

    ``powers`` are those of their factors in the weight of a permutation.
    """

    a: Array
    b: Array
    fixed: Array | None
    labels: Ints
    removed: Floats
    powers: Floats

    @property
    def is_first(self) -> bool:
        """Whether nothing is removed: all permutations have the same weight."""
        return not len(self.removed)

    @property
    def is_large(self) -> bool:
        """Whether only the largest correlation is of interest, and takes less time than all of them."""
        return self.is_first and min(self.a.shape[1], self.b.shape[1]) > _SMALL

    def evaluate(self, orders: Ints) -> tuple[Floats, Floats]:
        """Return the largest correlation and the log weight for each permutation of the rows of ``a``."""
        if self.is_first:
            return np.sqrt(self._largest_squares(orders)), np.zeros(len(orders))
        squares = self._all_squares(orders)
        shares = 1.0 - squares[:, :, None] / self.removed
        possible = squares[:, -1] < self.removed[-1]
        logs = np.log(np.where(possible[:, None, None], shares, 1.0)).sum(axis=1) @ self.powers
        return np.sqrt(squares[:, -1]), np.where(possible, logs, -np.inf)

    def _largest_squares(self, orders: Ints) -> Floats:
        if not self.is_large:
            return self._all_squares(orders)[:, -1]
        squares = _iterate_largest(self.a, self.b, orders)
        if squares is None:  # one by one, because each is a large matrix
            squares = np.concatenate([self._all_squares(order[None, :])[:, -1] for order in orders])
        return squares

    def _all_squares(self, orders: Ints) -> Floats:
        """Return the squared correlations for each permutation, ascending."""
        xp = namespace(self.a)
        t = xp.permute_dims(self.a[move_like(orders, self.a)], (0, 2, 1)) @ self.b
        if self.fixed is not None:
            t = t + self.fixed
        across = xp.permute_dims(t, (0, 2, 1))
        gram = t @ across if t.shape[1] <= t.shape[2] else across @ t
        squares: Floats = np.maximum(to_numpy(xp.linalg.eigvalsh(gram)), 0.0)
        return squares

    def propose(self, order: Ints, step: int, rng: np.random.Generator) -> Ints:
        """Return the permutation with a random part of it permuted again; the reverse step is as likely."""
        by_label = np.lexsort((rng.random(len(order)), self.labels))
        size = max(2, len(order) >> (step % HALVINGS))
        # Neighbours here have the same label, so that also a small part has rows that may change places.
        part = by_label[(int(rng.integers(len(order))) + np.arange(size)) % len(order)]
        return permute_within(order, part, self.labels, rng)

    def walk(
        self, state: _State, lengths: list[int], steps: Iterable[int], rngs: list[np.random.Generator]
    ) -> list[Floats]:
        """Return the correlations along one chain for each row of ``state``, and leave it at their ends.

        ``steps`` are the numbers of the steps, from the start of a chain; towards the start they descend.
        """
        passed: list[list[float]] = [[] for _ in lengths]
        for done, step in enumerate(steps):
            moving = [at for at, length in enumerate(lengths) if length > done]
            orders = np.stack([self.propose(state.orders[at], step, rngs[at]) for at in moving])
            for at, order, value, log in zip(moving, orders, *self.evaluate(orders), strict=True):
                if math.log1p(-rngs[at].random()) <= log - state.logs[at]:
                    state.orders[at], state.values[at], state.logs[at] = order, value, log
                passed[at].append(float(state.values[at]))
        return [np.array(each) for each in passed]


@dataclass(eq=False)
class _State:
    """Where chains are: permutations with their largest correlations and log weights."""

    orders: Ints
    values: Floats
    logs: Floats

    def repeat(self, times: int) -> _State:
        """Return ``times`` chains where this one is."""
        return _State(
            np.repeat(self.orders, times, axis=0), np.repeat(self.values, times), np.repeat(self.logs, times)
        )


def permute_within(order: Ints, part: Ints, labels: Ints, rng: np.random.Generator) -> Ints:
    """Return ``order`` with the entries at ``part`` permuted at random among those with the same label."""
    own = labels[part]
    before, after = np.argsort(own, kind="stable"), np.lexsort((rng.random(len(part)), own))
    new = order.copy()
    new[part[before]] = order[part[after]]
    return new


def _remove(units: _Units, sigma: Floats, p_corrected: Floats) -> _Remainder:
    r"""Return what remains of rotated views without the first components, which have these p-values.

    With Z an orthonormal basis of 1, u and v, the other parts of the views are permuted in the basis
    :math:`Q = M S (S^\top M S)^{-1/2}`, :math:`M = I - ZZ^\top`, where S leaves out as many rows as Z has
    columns: those by which it is best determined. Then :math:`Q^\top A = (S^\top M S)^{-1/2} S^\top M A`.
    """
    k = len(p_corrected)
    if k == 0:
        return _Remainder(units.a, units.b, None, units.labels, np.empty(0), np.empty(0))
    import scipy.linalg

    xp = namespace(units.a)
    nuisance = xp.concat([units.mean[:, None], units.a[:, :k], units.b[:, :k]], axis=1)
    z = xp.linalg.qr(nuisance / xp.linalg.vector_norm(nuisance, axis=0))[0]
    pivots = scipy.linalg.qr(to_numpy(z).T, mode="r", pivoting=True)[1]
    kept = np.sort(pivots[z.shape[1] :])
    rows = move_like(kept, units.a)
    z_kept = z[rows, :]
    values, vectors = xp.linalg.eigh(z_kept.T @ z_kept)
    values = xp.clip(values, 0.0, 1.0 - 1e-12)
    # (I − WWᵀ)^-½ = I + W f(WᵀW) Wᵀ, where f(e) = ((1 − e)^-½ − 1)/e = 1/(r(1 + r)) with r = (1 − e)^½.
    r = xp.sqrt(1.0 - values)
    turn = (vectors / (r * (1.0 + r))) @ vectors.T
    parts, along = [], []
    for own in (units.a[:, k:], units.b[:, k:]):
        fixed = z.T @ own
        rest = own[rows, :] - multiply(z_kept, fixed)
        parts.append(rest + multiply(z_kept, turn @ (z_kept.T @ rest)))
        along.append(fixed)
    powers = np.where(p_corrected <= REAL, 0.5, 1.0)
    return _Remainder(parts[0], parts[1], along[0].T @ along[1], units.labels[kept], sigma[:k] ** 2, powers)


@dataclass(frozen=True, eq=False)
class _Piece:
    """Permutations or chains of one component, by their numbers; ``shared`` is sent to each worker once."""

    shared: _Remainder
    numbers: range
    seed: list[int]
    start: _State | None
    lengths: list[int]
    device: str | None = None


def _sample(
    remainder: _Remainder,
    n_permutations: int,
    seed: list[int],
    engine: Engine | None,
    device: str | None,
    progress: Callable[[float], None],
) -> Floats:
    """Return the largest correlations of what remains, under permutations with their weights."""
    if not remainder.is_first:
        start, passed, lengths = _start_chains(remainder, n_permutations, np.random.default_rng([*seed, 0]))
    else:
        start, passed, lengths = None, [], [1] * n_permutations
    width = _count_at_once(remainder)
    steps = [range(at, min(at + width, len(lengths))) for at in range(0, len(lengths), width)]
    there = remainder if engine is None or device is None else fields_to_numpy(remainder)
    own_device = None if engine is None else device
    pieces = [
        _Piece(there, numbers, seed, start, [lengths[at] for at in numbers], own_device) for numbers in steps
    ]
    if engine is not None:
        return np.concatenate(
            [*passed, *(engine.reduce(add, engine.map(_walk_piece, pieces)) if pieces else [])]
        )
    done: list[None] = []

    def walk(piece: _Piece) -> list[Floats]:
        values = _walk_piece(piece)
        done.append(None)
        progress(len(done) / len(pieces))
        return values

    for values in map_parallel(walk, pieces, remainder.a):
        passed += values
    return np.concatenate(passed)


def _count_at_once(remainder: _Remainder) -> int:
    """Return how many permutations, or chains, are computed at a time."""
    if remainder.is_large:
        return _VECTORS_AT_ONCE if is_numpy_array(remainder.a) else 16 * _VECTORS_AT_ONCE
    (rows, columns), others = remainder.a.shape, int(remainder.b.shape[1])
    entries = int(rows) * int(columns) + int(columns) * others
    limit = _ENTRIES_AT_ONCE if is_numpy_array(remainder.a) else _ENTRIES_ON_DEVICE
    return max(1, limit // entries)


def _start_chains(
    remainder: _Remainder, n_permutations: int, rng: np.random.Generator
) -> tuple[_State, list[Floats], list[int]]:
    """Return the start of all chains, what is passed on the way there, and the lengths of the chains to walk.

    Chains of ``STEPS`` permutations start from one. The observed one is put at a random place, of which all
    are as likely: at the start, or inside a chain, whose two parts are walked from there. As the steps are
    reversible, it is then exchangeable with the others, which makes the p-value valid.
    """
    lengths = [min(STEPS, n_permutations - at) for at in range(0, n_permutations, STEPS)]
    orders = np.arange(len(remainder.labels))[None, :]
    values, logs = remainder.evaluate(orders)
    # Two equal correlations have the weight 0, and a chain must be able to leave that.
    state = _State(orders, values, np.maximum(logs, -1e300))
    place = int(rng.integers(n_permutations + 1))
    if place == 0:
        return state, [], lengths
    chain, depth = divmod(place - 1, STEPS)
    end = lengths.pop(chain)
    passed = remainder.walk(state.repeat(1), [end], range(depth + 1, end), [rng])
    return state, passed + remainder.walk(state, [end], range(depth, -1, -1), [rng]), lengths


def _walk_piece(piece: _Piece) -> list[Floats]:
    remainder = piece.shared
    if piece.device is not None:
        parts = {"a": remainder.a, "b": remainder.b, "fixed": remainder.fixed}
        there = {name: copy_to_device(part, piece.device) for name, part in parts.items() if part is not None}
        remainder = replace(remainder, **there)
    rngs = [np.random.default_rng([*piece.seed, 1 + number]) for number in piece.numbers]
    if piece.start is not None:
        return remainder.walk(piece.start.repeat(len(rngs)), piece.lengths, range(max(piece.lengths)), rngs)
    every = np.arange(len(remainder.labels))
    orders = np.stack([permute_within(every, every, remainder.labels, rng) for rng in rngs])
    return [remainder.evaluate(orders)[0]]


def _iterate_largest(a: Array, b: Array, orders: Ints) -> Floats | None:
    """Return the largest squared singular value of ``a[order].T @ b`` for each permutation.

    Lanczos' algorithm runs for all of them at a time: its products are then those of matrices, and none of
    the permuted matrices is formed. Without reorthogonalisation it repeats eigenvalues, but the largest stays
    exact. None if it does not converge.
    """
    xp = namespace(a)
    back, there = move_like(orders.T, a), move_like(np.argsort(orders, axis=1).T, a)
    start = np.random.default_rng(0).normal(size=(int(b.shape[1]), 1))
    v = move_like(np.repeat(start / np.linalg.norm(start), len(orders), axis=1), b)
    before, length = xp.zeros_like(v), xp.zeros_like(v[0, :])
    gram = a @ a.T if a.shape[0] <= 2 * a.shape[1] else None
    diagonal: list[Floats] = []
    beside: list[Floats] = []
    last: Floats = np.zeros(len(orders))
    for step in range(1, _MOST_STEPS + 1):
        rows = xp.take_along_axis(b @ v, there, axis=0)
        products = a @ (a.T @ rows) if gram is None else gram @ rows
        w = b.T @ xp.take_along_axis(products, back, axis=0) - length * before
        along = xp.sum(v * w, axis=0)
        w = w - along * v
        diagonal.append(to_numpy(along))
        if step >= 40 and step % 20 == 0:
            tridiagonal = np.zeros((len(orders), step, step))
            at = np.arange(step)
            tridiagonal[:, at, at] = np.stack(diagonal, axis=1)
            tridiagonal[:, at[1:], at[:-1]] = np.stack(beside, axis=1)  # eigvalsh reads the lower triangle
            largest: Floats = to_numpy(np.linalg.eigvalsh(tridiagonal))[:, -1]
            if np.all(largest - last <= TIE / 10 * largest):
                return largest
            last = largest
        length = xp.linalg.vector_norm(w, axis=0)
        beside.append(to_numpy(length))
        before, v = v, w / xp.where(length > 0, length, xp.ones_like(length))
    return None
