r"""Polishing: two matrices that multiply the vectors of a fitted model, learned from its training pairs.

A canonical model fits second moments, which know nothing of the items that a query is compared with. Started
at the identity, K × K matrices A and B on the vectors of X and of Y lower the contrastive loss (InfoNCE) of
batches of pairs, in which the other items of the batch are the rivals: a few steps, which validation pairs
count. The vectors :math:`A^\top x` and :math:`B^\top y` are still compared by their cosine, so nothing that
stores or searches them changes.

The gradient is written out, so that NumPy is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import device

from diptych._arrays import Array, move_like, namespace, svd, to_numpy
from diptych._checks import Task, check_matrix
from diptych._devices import copy_to_device
from diptych._persistence import Tensors, take_array
from diptych._progress import progress_bar
from diptych._threads import map_parallel
from diptych.cca._canonical import CanonicalModel, keep_components, ranking_maps
from diptych.cca._models import ChosenPoint
from diptych.cca._moments import DEVICE_BLOCK_BYTES, Moments
from diptych.cca._view_map import BlockUse, ViewMap
from diptych.cca._weighting import Weighting, maps, project
from diptych.ranking import metric, ranks

if TYPE_CHECKING:
    from diptych.cca._awcca import AWCCA

COMPONENTS = 512
"""The most components that are polished; those of smaller correlations are dropped."""

PAIRS = 500_000
"""The most training pairs that are learned from; of more, a random sample."""

TEMPERATURE = 0.07
"""By which cosines are divided: the smaller, the more the nearest rivals count."""

EPOCHS = 20
"""The most epochs that are tried."""

PATIENCE = 2
"""Epochs that are worse than the best on validation, after which no more are tried."""

_BATCH = 512
_FEWEST_BATCHES, _MOST_BATCHES = 10, 100  # in an epoch
_RATE, _FIRST, _SECOND = 5e-4, 0.9, 0.999  # of Adam (Kingma and Ba, 2015)


@dataclass(frozen=True, eq=False)
class Polish:
    """The matrices that multiply vectors of X and of Y (rows, from the right), after some epochs."""

    x: Array
    y: Array
    epochs: int


def contrast(
    x: Array, y: Array, x_rows: Array, temperature: float = TEMPERATURE
) -> tuple[float, Array, Array]:
    r"""Return the contrastive loss of pairs of vectors, and its gradients with respect to them.

    Row j of ``y`` belongs to row j of ``x``, which is a vector of the row of X ``x_rows[j]``. With the unit
    vectors P and Q of both, the logits are :math:`L = P Q^\top / \tau`, and the loss is the mean of
    :math:`-\log \mathrm{softmax}(L)_{jj}` along rows and along columns. Other pairs of the same row of X are
    left out, because they are no rivals. With the two softmaxes R and C, and n pairs,

    .. math:: \frac{\partial}{\partial L} = \frac{R + C - 2I}{2n}, \qquad
              \frac{\partial}{\partial x} = \frac{g - P\,(P \cdot g)}{\lVert x \rVert}
              \quad\text{with}\quad g = \frac1\tau \frac{\partial}{\partial L} Q.

    >>> import numpy as np
    >>> loss, *_ = contrast(np.eye(3), np.eye(3), np.arange(3), temperature=1.0)
    >>> round(loss, 4)  # log(1 + 2/e)
    0.5514
    """
    xp = namespace(x, y)
    n = int(x.shape[0])
    (p, x_lengths), (q, y_lengths) = map_parallel(_normalize, [x, y], x)
    logits = p @ q.T / temperature
    identity = xp.eye(n, dtype=xp.bool, device=device(x))
    logits = xp.where((x_rows[:, None] == x_rows[None, :]) & ~identity, -xp.inf, logits)

    def share(axis: int) -> tuple[float, Array]:
        shifted = xp.exp(logits - xp.max(logits, axis=axis, keepdims=True))
        shares = shifted / xp.sum(shifted, axis=axis, keepdims=True)
        diagonal = xp.linalg.diagonal(shares)
        return -float(xp.mean(xp.log(xp.clip(diagonal, xp.finfo(x.dtype).tiny, None)))), shares

    (by_column, columns), (by_row, rows) = map_parallel(share, [0, 1], x)
    gradient = (columns + rows - 2.0 * xp.astype(identity, x.dtype)) / (2 * n * temperature)
    sides = [(p, x_lengths, gradient, q), (q, y_lengths, gradient.T, p)]
    slopes = map_parallel(lambda side: _tangent(side[0], side[2] @ side[3]) / side[1], sides, x)
    return (by_column + by_row) / 2, slopes[0], slopes[1]


def polish_vectors(x: Array, y: Array, pairing: Array, random_state: int | None = 0) -> Iterator[Polish]:
    """Yield the matrices after each epoch of Adam on vectors of training pairs, until the caller stops.

    Row j of ``y`` belongs to row ``pairing[j]`` of ``x``. An epoch is a pass over the pairs in a random order
    that ``random_state`` determines, in batches of 512; it has at least 10 batches and at most 100.
    """
    xp = namespace(x, y)
    rng = np.random.default_rng(random_state)
    count = int(y.shape[0])
    batch = min(_BATCH, count)
    learned = [xp.eye(int(x.shape[1]), dtype=x.dtype, device=device(x)) for _ in "xy"]
    first, second = ([xp.zeros_like(matrix) for matrix in learned] for _ in range(2))
    batches = _draw_batches(rng, count, batch)
    steps = min(max(count // batch, _FEWEST_BATCHES), _MOST_BATCHES)
    step = epochs = 0

    def turn(pair: tuple[Array, Array]) -> Array:
        return pair[0] @ pair[1]

    def learn(side: tuple[int, Array, Array]) -> None:
        at, vectors, gradient = side
        slope = vectors.T @ gradient
        first[at] = _FIRST * first[at] + (1 - _FIRST) * slope
        second[at] = _SECOND * second[at] + (1 - _SECOND) * slope * slope
        mean, spread = first[at] / (1 - _FIRST**step), second[at] / (1 - _SECOND**step)
        learned[at] = learned[at] - _RATE * mean / (xp.sqrt(spread) + 1e-8)

    while True:
        for _ in range(steps):
            rows = move_like(next(batches), pairing)
            x_rows = xp.take(pairing, rows, axis=0)
            vectors = xp.take(x, x_rows, axis=0), xp.take(y, rows, axis=0)
            turned = map_parallel(turn, [*zip(vectors, learned, strict=True)], x)
            _, *gradients = contrast(turned[0], turned[1], x_rows)
            step += 1
            map_parallel(learn, [*zip((0, 1), vectors, gradients, strict=True)], x)
        epochs += 1
        yield Polish(learned[0], learned[1], epochs)


def polish_for(x: Array, y: Array, pairing: Array, epochs: int, random_state: int | None = 0) -> Polish:
    """Return the matrices after a number of epochs."""
    return next(polish for polish in polish_vectors(x, y, pairing, random_state) if polish.epochs == epochs)


def choose_epochs(
    polishes: Iterable[Polish], value: Callable[[Polish], float], least: float
) -> Polish | None:
    """Return the polish of the largest ``value``, the earliest of equals; None if none exceeds ``least``.

    It stops after some epochs that are worse than the best.
    """
    best, worse = None, 0
    for polish in polishes:
        reached = value(polish)
        if reached > least:
            best, least, worse = polish, reached, 0
        worse += reached < least
        if polish.epochs >= EPOCHS or worse >= PATIENCE:
            break
    return best


def sample_pairs(pairing: Array, random_state: int | None = 0) -> Array | None:
    """Return the rows of Y to learn from, in order, if there are more than ``PAIRS``; None otherwise."""
    count = int(pairing.shape[0])
    if count <= PAIRS:
        return None
    rows = np.random.default_rng(random_state).choice(count, PAIRS, replace=False)
    return move_like(np.sort(rows), pairing)


def carry_polish(
    polish: Polish, moments: Moments, new: tuple[Array, Array], old: tuple[Array, Array]
) -> Polish:
    """Return a polish of the maps ``old`` (of X and of Y, before it) for the maps ``new``.

    ``new`` come from the ``moments`` of other pairs, so their components are slightly turned. The orthogonal
    matrix nearest to the regression of the old components on the new ones, of both views together, turns the
    learned change (the matrices less the identity), and what the new pairs changed in the maps remains.
    """
    regressions = [
        _regress(
            to_numpy(covariance), to_numpy(mapped).astype(np.float64), to_numpy(previous).astype(np.float64)
        )
        for covariance, mapped, previous in zip((moments.xx, moments.yy), new, old, strict=True)
    ]
    left, _, right = svd(regressions[0] + regressions[1])
    turn = left @ right

    def carry(matrix: Array) -> Array:
        change = to_numpy(matrix).astype(np.float64) - np.eye(turn.shape[1])
        return move_like(np.eye(turn.shape[0]) + turn @ change @ turn.T, matrix, dtype=matrix.dtype)

    return Polish(carry(polish.x), carry(polish.y), polish.epochs)


def take_polish(tensors: Tensors, name: str, epochs: int, size: int, source: Path) -> Polish | None:
    """Return the polish that was saved as ``NAME.polish_x`` and ``NAME.polish_y``; None after 0 epochs."""
    if not epochs:
        return None
    x, y = (take_array(tensors, f"{name}.polish_{view}", (size, size), source) for view in ("x", "y"))
    return Polish(x, y, epochs)


@dataclass(frozen=True, eq=False)
class Training:
    """The pairs to polish with, and the rows of Y that are not held out; None: all of them."""

    x: Any
    y: Any
    pairing: Array
    normalize: tuple[str, str]
    y_rows: Array | None = None


def polish_point(
    point: ChosenPoint,
    task: Task,
    settings: AWCCA,
    training: Training,
    validation: tuple[Array, Array, Array],
    device: str | None,
) -> CanonicalModel | None:
    """Return the model of a point with the polish that is best on validation pairs; None if none helps.

    It is chosen with the model that has not seen those. If that of ``point`` has, it is polished for as many
    epochs as are best for the other.
    """
    unseen, seed, by = point.unseen or replace(point, validation=None), settings.random_state, settings.metric
    (x, y, pairing), spectra, weighting = validation, unseen.spectra, settings.weighting

    def value(x_map: Array, y_map: Array) -> float:
        vectors = project(x, spectra.x_mean, x_map), project(y, spectra.y_mean, y_map)
        chosen = metric(by)
        return chosen.signed(chosen(ranks(*vectors, pairing, task=task)))

    if weighting == "asymmetric" and point.dimension is None:
        least = value(*ranking_maps(spectra, *unseen.filters, task))
        leading = unseen.make(COMPONENTS)
    else:
        whole = unseen.make()
        least, leading = value(*maps(whole, weighting, task)), keep_components(whole, COMPONENTS)
    vectors = _embed(training, unseen, maps(leading, weighting, task), seed, device)
    with progress_bar(f"polishing for {task}") as progress:

        def try_epoch(polish: Polish) -> float:
            progress(polish.epochs / EPOCHS)
            return value(*maps(replace(leading, polish=polish), weighting, task))

        best = choose_epochs(polish_vectors(*vectors, seed), try_epoch, least)
        progress(1.0)
        if best is None:
            return None
        model = point.make(COMPONENTS)
        if point.unseen is not None:
            everything = replace(training, y_rows=None)
            vectors = _embed(everything, point, maps(model, weighting, task), seed, device)
            best = polish_for(*vectors, best.epochs, seed)
    return replace(model, polish=best)


def carry_polishes(
    polished: Mapping[Task, CanonicalModel],
    points: Mapping[Task, ChosenPoint],
    moments: Moments,
    weighting: Weighting,
) -> dict[Task, CanonicalModel]:
    """Return the models of ``points``, of new ``moments``, with the polish of previous ones carried over."""
    carried = {}
    for task, previous in polished.items():
        assert previous.polish is not None
        model = points[task].make(int(previous.correlations.shape[0]))
        new, old = (maps(replace(one, polish=None), weighting, task) for one in (model, previous))
        carried[task] = replace(model, polish=carry_polish(previous.polish, moments, new, old))
    return carried


def _embed(
    training: Training, point: ChosenPoint, linear: tuple[Array, Array], seed: int | None, device: str | None
) -> tuple[Array, Array, Array]:
    """Return float32 vectors of training pairs, of all or of a sample if they are very many."""
    y_rows = np.arange(training.y.shape[0]) if training.y_rows is None else to_numpy(training.y_rows)
    pairing = to_numpy(training.pairing)[y_rows]
    if (sample := sample_pairs(pairing, seed)) is not None:
        y_rows, pairing = y_rows[sample], pairing[sample]
    x_rows, pairing = np.unique(pairing, return_inverse=True)
    means = point.spectra.x_mean, point.spectra.y_mean
    x, y = (
        _embed_rows(view, rows, ViewMap((BlockUse("view", how),), mean, weights), device)
        for view, rows, how, mean, weights in zip(
            (training.x, training.y), (x_rows, y_rows), training.normalize, means, linear, strict=True
        )
    )
    return x, y, move_like(pairing, x)


def _embed_rows(view: Any, rows: Any, view_map: ViewMap, device: str | None) -> Array:
    xp, parts = namespace(view_map.map), []
    step = max(1, DEVICE_BLOCK_BYTES // (8 * int(view.shape[1])))
    for start in range(0, len(rows), step):
        block = view[move_like(rows[start : start + step], view), :]
        block = block if device is None else copy_to_device(block, device)
        features = xp.astype(check_matrix(block, "a view"), xp.float32, copy=False)
        parts.append(view_map.project({"view": features}))
    return parts[0] if len(parts) == 1 else xp.concat(parts, axis=0)


def _regress(covariance: Array, new: Array, old: Array) -> Array:
    """Return the matrix R for which vectors of the map ``new`` times R are nearest to those of ``old``."""
    seen = covariance @ new
    return np.linalg.lstsq(new.T @ seen, seen.T @ old, rcond=1e-10)[0]


def _normalize(vectors: Array) -> tuple[Array, Array]:
    xp = namespace(vectors)
    lengths = xp.linalg.vector_norm(vectors, axis=1, keepdims=True)
    lengths = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    return vectors / lengths, lengths


def _tangent(unit: Array, gradient: Array) -> Array:
    """Return the part of a gradient that turns unit vectors."""
    return gradient - unit * namespace(unit).sum(unit * gradient, axis=1, keepdims=True)


def _draw_batches(rng: np.random.Generator, count: int, batch: int) -> Iterator[np.ndarray[Any, Any]]:
    """Yield batches of row numbers: pass after pass, each in another order, the rest of a pass left out."""
    while True:
        order = rng.permutation(count)
        for start in range(0, count - batch + 1, batch):
            yield order[start : start + batch]
