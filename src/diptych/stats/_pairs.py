"""What tests and intervals compute with: checked pairs, blocks of their rows, and random draws of either."""

from __future__ import annotations

import math
import secrets
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from operator import add
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from array_api_compat import is_array_api_obj, is_torch_array
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array, Floats, map_arrays, to_numpy
from diptych._checks import (
    DataWarning,
    InputError,
    Task,
    are_missing,
    check_count,
    check_pair_of_views,
    check_task,
    count,
    second_view,
)
from diptych._devices import copy_to_device
from diptych._threads import map_parallel
from diptych.cca import AWCCA, Engine, Spectra, normalize, spectra
from diptych.cca._covariates import check_covariates, regress_out, subtract_block_means
from diptych.cca._filters import Filters, make_filters, scale_filter
from diptych.cca._settings import params_by_task
from diptych.cca._sklearn import find_names, order_pairs
from diptych.stats._transformers import TransformedViews, read_views

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Result = TypeVar("Result")
Record = TypeVar("Record", bound=Any)

COMPONENTS = 10
"""Components that a test or an interval is computed for, unless it is told otherwise."""


@dataclass(frozen=True, eq=False)
class PreparedPairs:
    """Normalised pairs, their spectra, the filters of both views, and the names of the features, if any.

    With covariates, views are what these leave, and ``scores`` are the orthonormal combinations of those of X
    and of Y, a row for each row of X; see ``CovariateBasis``. With blocks, the views have lost their means in
    each. ``views`` are those that were transformed before they were normalised, if any were.
    """

    x: Array
    y: Array
    pairing: Array
    spectra: Spectra
    filters: Filters
    names_x: list[str] | None
    names_y: list[str] | None
    scores: tuple[Floats, Floats]
    n_blocks: int = 1
    views: TransformedViews | None = None
    normalization: tuple[str, str] = ("none", "none")

    @property
    def n_covariates(self) -> tuple[int, int]:
        """The dimensions that covariates take from X and from Y, beside the intercept."""
        return self.scores[0].shape[1], self.scores[1].shape[1]

    @property
    def n_shared(self) -> int:
        """The dimensions that covariates take from both views: those that the spans of their scores share."""
        if self.scores[0] is self.scores[1]:
            return self.n_covariates[0]
        x, y = (rows[to_numpy(self.pairing)] for rows in self.scores)
        return int(np.count_nonzero(np.linalg.svd(x.T @ y, compute_uv=False) > 1 - 1e-8))

    @property
    def free_spectra(self) -> Spectra:
        """The spectra with as many pairs as are left: n, less what covariates and block means take."""
        return replace(self.spectra, count=self.spectra.count - self.n_shared - self.n_blocks + 1)


def count_components(n_components: int | None, most: int) -> int:
    """Return the number of components to compute: ``n_components``, or the first ``COMPONENTS``."""
    if n_components is None:
        return min(COMPONENTS, most)
    if check_count(n_components, "n_components") > most:
        raise InputError(f"n_components={n_components} is not possible here; give 1 to {most}, or None.")
    return n_components


def prepare_pairs(
    model: Any,
    X: Any,
    y: Any,
    pairing: Any,
    task: Task,
    device: str | None = None,
    covariates: Any = None,
    blocks: Any = None,
    preprocess: Any = None,
) -> PreparedPairs:
    """Return the pairs, normalised as those of ``model`` and on ``device``, with its filters of a task.

    With ``preprocess``, transformers are first fitted on the rows of each view that have pairs.
    ``model`` is a fitted ``AWCCA`` or a pair ``(γ_x, γ_y)``. γ is in units of a sum over pairs, so the γ of a
    model that was fitted on another number of pairs is scaled. Covariates, or the
    means of blocks, are regressed out of the normalised views.
    """
    task = check_task(task)
    labelled, views = X, None
    if preprocess is not None:
        views, pairing = read_views(X, y, pairing, preprocess)
        X, y = views.fit(np.unique(to_numpy(pairing)), np.arange(len(pairing)))
    if isinstance(model, AWCCA):
        check_is_fitted(model)
        check_unweighted(model)
        check_given(model, covariates)
        if model.scale and preprocess is not None:
            raise InputError(
                "the model divides columns by the scales of what it was fitted on (scale=True), and "
                "preprocess changes these; give one with scale=False, or (γ_x, γ_y)."
            )
        X, y = order_pairs(vars(model), X, y)
    elif not is_pair(model):
        raise InputError(
            f"{type(model).__name__} is not a model; give a fitted CCA, PLS or AWCCA, or (γ_x, γ_y)."
        )
    names_x, names_y = name_features(model, find_names(X, y))
    x, y, pairing = check_pair_of_views(X, second_view(y), pairing)
    sides = check_covariates(covariates, labelled, int(x.shape[0]))
    if device is not None:
        x, y, pairing = (copy_to_device(array, device) for array in (x, y, pairing))
    none: Floats = np.empty((int(x.shape[0]), 0))
    scores = none, none
    how = model.normalize if isinstance(model, AWCCA) else ("none", "none")
    x, y = normalize(x, how[0]), normalize(y, how[1])
    if sides is not None:
        regressions, (x, y) = regress_out(x, y, pairing, sides)
        scores = regressions.scores(sides)
    if isinstance(model, AWCCA):
        x, y = model.divide_scales(x, "x"), model.divide_scales(y, "y")
    n_blocks = 1
    if blocks is not None:
        codes = block_codes(blocks, int(x.shape[0]))
        paired = np.unique(to_numpy(pairing))
        n_blocks = len(np.unique(codes[paired]))
        if n_blocks < len(paired):  # otherwise there is nothing to exchange
            x, y = subtract_block_means(x, y, pairing, codes)
    if not isinstance(model, AWCCA):
        of_pairs = spectra(x, y, pairing)
        filters = make_filters("tikhonov", params_by_task(model)[task], of_pairs.s_x, of_pairs.s_y)
        return PreparedPairs(x, y, pairing, of_pairs, filters, names_x, names_y, scores, n_blocks, views, how)
    for view, name, mean in ((x, "X", model.x_mean_), (y, "Y", model.y_mean_)):
        if view.shape[1] != mean.shape[0]:
            raise InputError(
                f"{name} has {view.shape[1]} features, but the model was fitted on {mean.shape[0]}; give the "
                "same features as in fit."
            )
    of_pairs = spectra(x, y, pairing, solver=model.solver, precision=model.precision)
    fitted_on = getattr(model, "spectra_", None)  # a model of a retriever's folder has none
    factor = 1.0 if fitted_on is None else of_pairs.count / fitted_on.count
    filter_x, filter_y = model.models_.filters[task]
    filters = scale_filter(filter_x, factor), scale_filter(filter_y, factor)
    return PreparedPairs(x, y, pairing, of_pairs, filters, names_x, names_y, scores, n_blocks, views, how)


def is_pair(model: Any) -> bool:
    """Return whether a model is given by its parameters ``(γ_x, γ_y)``."""
    return isinstance(model, tuple | list | np.ndarray)


def check_unweighted(model: Any) -> None:
    """Raise an error for a model that was fitted with weights of pairs, which would be ignored."""
    spectra = getattr(model, "spectra_", None)
    if spectra is not None and spectra.weight is not None:
        raise InputError(
            "the model was fitted with sample weights, which resampling does not take; fit it without, or "
            "give (γ_x, γ_y)."
        )


def check_given(model: AWCCA, covariates: Any) -> None:
    """Raise an error for a model that was fitted with covariates, if there are none."""
    if covariates is None and model.regressions_ is not None:
        raise InputError("the model was fitted with covariates; give them.")


def make_seed(random_state: int | None) -> int:
    """Return the seed of all draws; with None, another one each time."""
    return secrets.randbits(128) if random_state is None else random_state


def name_features(model: Any, names: Mapping[str, Any]) -> list[list[str] | None]:
    """Return the ``names`` of the features of X and of Y, or else those that a model was fitted on."""
    labels = (
        names.get(key, getattr(model, key, None)) for key in ("feature_names_in_", "y_feature_names_in_")
    )
    return [None if columns is None else [str(name) for name in columns] for columns in labels]


HALVINGS = 6
"""Steps of a chain permute all rows, a half, a quarter … of them in turn: so many sizes."""

_FEW = 20  # arrangements; with fewer, no p-value can be below 0.05


def block_codes(blocks: Any, n_x: int, name: str = "blocks") -> Ints:
    """Return the number of the block of each row of X; without ``blocks``, each row is its own."""
    if blocks is None:
        return np.arange(n_x)
    labels = to_numpy(blocks) if is_array_api_obj(blocks) else np.asarray(blocks)
    if labels.dtype.kind in "US":
        labels = np.asarray(blocks, dtype=object)  # or else a missing label among strings becomes one
    if labels.shape != (n_x,):
        raise InputError(
            f"{name} has shape {labels.shape}; expected one label for each of the {n_x} rows of X."
        )
    missing = np.flatnonzero(are_missing(labels))
    if len(missing):
        raise InputError(
            f"{name} has no label for {count(len(missing), 'row')} of X, the first of them row {missing[0]}; "
            "give a label for every row."
        )
    try:
        return _number(labels)
    except TypeError:
        kinds = " and ".join(sorted({type(label).__name__ for label in labels}))
        raise InputError(f"{name} has labels of different types ({kinds}); give labels of one.") from None


def _number(labels: Any) -> Ints:
    """Return labels, or rows of them, as numbers from 0 in their order."""
    axis = None if labels.ndim == 1 else 0  # with an axis, NumPy takes no labels of any other kind
    return np.unique(labels, axis=axis, return_inverse=True)[1].reshape(-1).astype(np.int64)


Exchange: TypeAlias = Literal["rows", "shift", "blocks"]
EXCHANGES: tuple[Exchange, ...] = ("rows", "shift", "blocks")

_ALONE = {
    "rows": "no two rows of X may change places: each is alone in its block with its number of rows of Y; "
    "give larger blocks.",
    "shift": "no row of X can be shifted: each is alone in its block; give larger blocks.",
    "blocks": "no two blocks may change places: each has another number of rows of X or of Y; give blocks of "
    "equal size.",
}


@dataclass(frozen=True, eq=False)
class ExchangeBlocks:
    """How rows may change places: those with the same label, or by shifts within it, or whole labels.

    ``sizes`` are the numbers of rows of Y of the rows of X; they matter to whole blocks.
    """

    labels: Ints
    exchange: Exchange = "rows"
    sizes: Ints | None = None

    @classmethod
    def of_pairs(cls, blocks: Any, pairing: Array, n_x: int, exchange: Exchange = "rows") -> ExchangeBlocks:
        """Return those of the rows of X that have pairs; rows have the places of those with as many of Y."""
        codes = np.zeros(n_x, dtype=np.int64) if blocks is None else block_codes(blocks, n_x)
        counts = np.bincount(to_numpy(pairing), minlength=n_x).astype(np.int64)
        both = _number(np.stack([codes, counts], axis=1)[counts > 0])
        if exchange == "rows":
            return cls(both)
        labels = _number(codes[counts > 0])
        if exchange == "shift" and both.max() > labels.max():
            raise InputError(
                "rows of X with different numbers of rows of Y cannot take the places of each other; give "
                "each as many, or exchange='rows'."
            )
        return cls(labels, exchange, counts[counts > 0])

    def check(self) -> None:
        """Raise an error if there is one arrangement, and warn if there are few."""
        if self.exchange == "shift":
            logs = [math.log(len(rows)) for rows in self._split()]
        else:
            sizes = np.bincount(self.labels) if self.exchange == "rows" else map(len, self._alike())
            logs = [math.lgamma(size + 1) for size in sizes]
        if sum(logs) == 0.0:
            raise InputError(_ALONE[self.exchange])
        arrangements = math.exp(min(50.0, sum(logs)))
        if arrangements < _FEW:
            warnings.warn(
                f"there are only {arrangements:.0f} arrangements, so no p-value can be much below "
                f"{1 / arrangements:.2g}; give more rows or larger blocks.",
                DataWarning,
                stacklevel=3,
            )

    def permute(self, rng: np.random.Generator) -> Ints:
        """Return a random permutation of the rows."""
        order = np.arange(len(self.labels))
        if self.exchange == "rows":
            return self.permute_part(order, order, rng)
        if self.exchange == "shift":
            for rows in self._split():
                order[rows] = np.roll(rows, int(rng.integers(len(rows))))
            return order
        for members in self._alike():
            for place, block in enumerate(rng.permutation(len(members))):
                order[members[place]] = members[block]
        return order

    def _split(self) -> list[Ints]:
        """Return the rows of each label, in their order."""
        by_label = np.argsort(self.labels, kind="stable")
        return np.split(by_label, np.cumsum(np.bincount(self.labels))[:-1])

    def _alike(self) -> list[list[Ints]]:
        """Return the rows of whole blocks that may change places: with as many rows of X and of Y."""
        assert self.sizes is not None
        groups: dict[bytes, list[Ints]] = {}
        for rows in self._split():
            groups.setdefault(self.sizes[rows].tobytes(), []).append(rows)
        return list(groups.values())

    def permute_part(self, order: Ints, part: Ints, rng: np.random.Generator) -> Ints:
        """Return ``order`` with the entries at ``part`` permuted at random within their labels."""
        labels = self.labels[part]
        changed = order.copy()
        shuffled = np.lexsort((rng.random(len(part)), labels))
        changed[part[np.argsort(labels, kind="stable")]] = order[part[shuffled]]
        return changed

    def propose(self, order: Ints, step: int, rng: np.random.Generator) -> Ints:
        """Return the permutation with a random part of it permuted again; the reverse step is as likely."""
        by_label = np.lexsort((rng.random(len(order)), self.labels))
        size = max(2, len(order) >> (step % HALVINGS))
        # Neighbours here have the same label, so that also a small part has rows that may change places.
        part = by_label[(int(rng.integers(len(order))) + np.arange(size)) % len(order)]
        return self.permute_part(order, part, rng)


@dataclass(frozen=True, eq=False)
class ResampledBlocks:
    """Blocks to draw with replacement: ``codes`` has that of each row of X, −1 for a row without pairs."""

    codes: Ints
    seed: int

    @classmethod
    def of_pairs(cls, blocks: Any, pairing: Array, n_x: int, seed: int) -> ResampledBlocks:
        """Return those of the rows of X that have pairs."""
        codes = np.full(n_x, -1, dtype=np.int64)
        has_pair = np.isin(np.arange(n_x), to_numpy(pairing))
        codes[has_pair] = _number(block_codes(blocks, n_x)[has_pair])
        if codes.max() < 1:
            raise InputError(
                "all rows are in one block, so there is nothing to resample; give several blocks."
            )
        return cls(codes, seed)

    def draw(self, number: int) -> Floats:
        """Return how often each row of X is in a resample."""
        n_blocks = int(self.codes.max()) + 1
        chosen = np.random.default_rng([self.seed, number]).integers(n_blocks, size=n_blocks)
        counts = np.bincount(chosen, minlength=n_blocks).astype(np.float64)
        return np.where(self.codes >= 0, counts[self.codes], 0.0)


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
        shared = _move_tensors(shared, "cpu")
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
    shared = piece.shared if piece.device is None else _move_tensors(piece.shared, piece.device)
    return piece.draw(shared, piece.numbers)


def _move_tensors(record: Record, device: str) -> Record:
    """Return a dataclass with its torch arrays on another device; rows that NumPy drew stay its own."""
    return map_arrays(record, lambda array: array.to(device) if is_torch_array(array) else array)
