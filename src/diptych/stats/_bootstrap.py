"""Bootstrap intervals of canonical correlations, weights and loadings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from operator import add
from typing import Any

import numpy as np

from diptych._arrays import Array, count_groups, fields_to_numpy, group_sum, move_like, namespace, to_numpy
from diptych._checks import InputError, Task, check_count, check_number, check_seed
from diptych._threads import map_parallel, multiply, one_blas_thread, progress_bar
from diptych.cca import CanonicalModel, Engine, Spectra, Tikhonov, TruncatedSVD, regularized_cca
from diptych.cca._canonical import forced_ones
from diptych.cca._deferred import Filters, copy_fields
from diptych.cca._filters import AnyFilter, Floats
from diptych.cca._spectra import decompose_gram
from diptych.stats._inputs import Ints, Problem, block_codes, prepare, scale_filter
from diptych.stats._loadings import make_loadings
from diptych.stats._tables import format_table, import_pandas, make_frame, make_labels

RESAMPLES_AT_ONCE = 32
"""Resamples of one piece of work: between two of them an interruption is noticed and a bar moves."""

MOST_BYTES = 2**31
"""Memory for the weights and loadings of all resamples."""

_SPARE_COMPONENTS = 5  # beyond those asked for, because the order may change from resample to resample
_BLOCK_BYTES = 2**26  # of weights or loadings of some features, of which the intervals are computed
_SHARE_DISTINCT = 1 - 1 / math.e  # of n rows in a resample of n


@dataclass(frozen=True, eq=False)
class Interval:
    """An estimate and the limits of its interval, arrays of one shape."""

    estimate: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Percentile intervals of a model over resampled pairs; see ``bootstrap``.

    ``print`` shows a table of the correlations, and ``to_frames`` returns everything as pandas DataFrames.

    Attributes
    ----------
    correlations
        Of the variates over the pairs, one per component, in the order of the model.
    x_weights, y_weights
        Canonical weights, features × components.
    x_loadings, y_loadings
        Correlations of the features with the variates of their own view, features × components. NaN for a
        feature that does not vary.
    n_resamples, confidence, random_state
        As given.
    feature_names_x, feature_names_y
        Names of the features; None if there are none.
    """

    correlations: Interval
    x_weights: Interval
    y_weights: Interval
    x_loadings: Interval
    y_loadings: Interval
    n_resamples: int
    confidence: float
    random_state: int | None
    feature_names_x: list[str] | None = None
    feature_names_y: list[str] | None = None

    def __str__(self) -> str:
        own = self.correlations
        sides = [
            np.count_nonzero((side.low > 0) | (side.high < 0), axis=0)
            for side in (self.x_loadings, self.y_loadings)
        ]
        rows = (
            [str(k + 1), f"{own.estimate[k]:.4f}", f"{own.low[k]:.4f}", f"{own.high[k]:.4f}"]
            + [str(side[k]) for side in sides]
            for k in range(len(own.estimate))
        )
        header = ["component", "correlation", "low", "high", "features of X", "features of Y"]
        return (
            f"Bootstrap, {self.n_resamples:,} resamples, intervals of {100 * self.confidence:g} %\n"
            f"{format_table(header, rows)}\n"
            "Features: those whose loading has an interval without 0. Correlations are in-sample, and chance "
            "raises them."
        )

    def to_frames(self) -> dict[str, Any]:
        """Return a DataFrame for each attribute; those of features have a row for each component of each."""
        pandas = import_pandas()
        parts = ("estimate", "low", "high")
        own = self.correlations
        index = pandas.RangeIndex(1, len(own.estimate) + 1, name="component")
        frames = {"correlations": pandas.DataFrame({part: getattr(own, part) for part in parts}, index)}
        for name in ("x_weights", "y_weights", "x_loadings", "y_loadings"):
            interval = getattr(self, name)
            names = self.feature_names_x if name.startswith("x") else self.feature_names_y
            labels = make_labels(name[0], len(interval.estimate), names)
            frames[name] = pandas.DataFrame(
                {part: make_frame(pandas, getattr(interval, part), labels).stack() for part in parts}
            )
        return frames


def bootstrap(
    model: Any,
    X: Any,
    y: Any,
    pairing: Any = None,
    *,
    n_resamples: int = 1000,
    confidence: float = 0.95,
    random_state: int | None = 0,
    n_components: int | None = None,
    blocks: Any = None,
    task: Task = "search",
    engine: Engine | None = None,
    device: str | None = None,
    verbose: bool | None = None,
) -> Bootstrap:
    r"""Return percentile intervals of correlations, weights and loadings, over resampled pairs.

    Rows of X are drawn with replacement, each with its rows of Y, and the model is fitted again at the same
    regularisation (γ scaled by the number of pairs). Each component of a resample is matched with one of the
    model: those whose variates correlate most over the original pairs, one to one, with signs to match. A
    Procrustes rotation would align more closely, but it also removes real uncertainty: see Notes.

    **In-sample correlations are too high, and so are their intervals**: a resample contains rows several
    times, so it is overfitted even more than the model, and an interval may lie above its estimate. The
    intervals describe how stable the fit is. How strongly the views correlate beyond these pairs is measured
    by ``cross_validated_correlations``, whether they do at all by ``permutation_test``.

    Parameters
    ----------
    model
        A fitted ``AWCCA``, or ``(γ_x, γ_y)`` as ``AWCCA(params=…)`` takes them.
    X, y, pairing
        The pairs, as in ``AWCCA.fit``; usually those that the model was fitted on.
    n_resamples
        Number of resamples.
    confidence
        Coverage of each interval. They are not corrected for their number.
    random_state
        Seeds the resamples; each has its own seed, whatever the engine.
    n_components
        The first components; None: at most 10.
    blocks
        One label per row of X, such as the subject: whole blocks are resampled. For repeated measures.
    task
        Whose model: each task has its own regularisation, unless ``params`` was one pair.
    engine, device, verbose
        As in ``AWCCA``.

    Notes
    -----
    Where two correlations are nearly equal, their components can mix freely, and only the plane that they
    span is determined. Matching shows that as wide intervals. For correlations of 0.7 and 0.68 and 400 pairs,
    the 95 % intervals of loadings contain the truth in 92 % of cases with matching, and in 53 % with a
    Procrustes rotation (``python benchmarks/bootstrap.py coverage``).

    A resample of a view is the view with integer weights. It is decomposed in the coordinates of the view's
    singular directions, through the smaller of its Gram matrices, so that the number of features does not
    matter where rows are fewer.

    References
    ----------
    Efron and Tibshirani (1993), "An Introduction to the Bootstrap", chapter 13.

    Examples
    --------
    >>> from sklearn.datasets import load_linnerud
    >>> from diptych.stats import bootstrap
    >>> exercises, physiology = load_linnerud(return_X_y=True)
    >>> result = bootstrap((0, 0), physiology, exercises, n_resamples=200)
    >>> result.correlations.estimate.round(2)
    array([0.8 , 0.2 , 0.07])
    >>> bool(result.correlations.low[0] > 0.6)
    True
    """
    check_count(n_resamples, "n_resamples", minimum=2)
    check_seed(random_state)
    confidence = check_number(confidence, "confidence")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence={confidence} is not between 0 and 1; give for example 0.95.")
    with one_blas_thread(), progress_bar("bootstrap", verbose):
        problem = prepare(model, X, y, pairing, task, device)
        wanted = problem.count_components(n_components)
        _check_memory(problem.spectra, n_resamples, wanted)
        estimate = regularized_cca(problem.spectra, *problem.filters, wanted)
        seed = np.random.SeedSequence().entropy if random_state is None else random_state
        sample = _make_sample(problem, estimate, blocks, int(seed))  # type: ignore[arg-type]
        refits = _refit(sample, n_resamples, engine, device)
        ends = (1 - confidence) / 2, (1 + confidence) / 2
        measured = make_loadings(problem.spectra, estimate)
        sides = [
            _side_intervals(*side, ends)
            for side in (
                (sample.x, to_numpy(estimate.x_weights), measured.x, [refit.x for refit in refits]),
                (sample.y, to_numpy(estimate.y_weights), measured.y, [refit.y for refit in refits]),
            )
        ]
        correlations = np.stack([refit.correlations for refit in refits])
    return Bootstrap(
        Interval(measured.correlations, *_quantiles(correlations, ends)),
        sides[0][0],
        sides[1][0],
        sides[0][1],
        sides[1][1],
        n_resamples,
        confidence,
        random_state,
        problem.names_x,
        problem.names_y,
    )


@dataclass(frozen=True, eq=False)
class _View:
    """One view to resample.

    ``rows`` are in coordinates whose columns are orthogonal, of lengths ``s``: those of the singular
    directions. ``to_weights`` turns weights of the coordinates into weights of the features, ``to_features``
    products with the coordinates into products with the features. ``reference`` are the variates of the
    estimate, of length 1, as combinations of the columns at length 1.
    """

    centred: Array
    rows: Array
    s: Array
    to_weights: Array
    to_features: Array
    filter: AnyFilter
    reference: Array


@dataclass(frozen=True, eq=False)
class _Sample:
    """Two views whose pairs are resampled by block."""

    x: _View
    y: _View
    pairing: Array
    blocks: Ints  # of rows of X; −1 for rows without a pair
    seed: int

    def draw(self, number: int) -> Floats:
        """Return how often each row of X is in a resample."""
        n_blocks = int(self.blocks.max()) + 1
        drawn = np.random.default_rng([self.seed, number]).integers(n_blocks, size=n_blocks)
        counts = np.bincount(drawn, minlength=n_blocks).astype(np.float64)
        return np.where(self.blocks >= 0, counts[self.blocks], 0.0)


@dataclass(frozen=True, eq=False)
class _RefittedView:
    """Weights and products with the variates in the coordinates of a view; lengths of its features."""

    weights: Floats
    products: Floats
    lengths: Floats


@dataclass(frozen=True, eq=False)
class _Refit:
    """The aligned model of one resample; NaN where it has no component to match."""

    correlations: Floats
    x: _RefittedView
    y: _RefittedView


@dataclass(frozen=True, eq=False)
class _Piece:
    """Some resamples, by their numbers; ``shared`` is sent to each worker once."""

    shared: _Sample
    numbers: range
    device: str | None


def _make_sample(problem: Problem, estimate: CanonicalModel, blocks: Any, seed: int) -> _Sample:
    found, (filter_x, filter_y) = problem.spectra, problem.filters
    n_x, owners = int(problem.x.shape[0]), to_numpy(problem.pairing)
    described = np.zeros(n_x, dtype=bool)
    described[owners] = True
    codes = np.full(n_x, -1, dtype=np.int64)
    labels = block_codes(blocks, problem.pairing, n_x)[described]
    codes[described] = np.unique(labels, return_inverse=True)[1].reshape(-1)
    n_blocks = int(codes.max()) + 1
    if n_blocks < 2:
        raise InputError("all rows are in one block, so there is nothing to resample; give several blocks.")
    _check_distinct(found, problem.filters)
    return _Sample(
        _make_view(problem.x, found.x_mean, found.s_x, found.v_x, filter_x, estimate.x_weights),
        _make_view(problem.y, found.y_mean, found.s_y, found.v_y, filter_y, estimate.y_weights),
        problem.pairing,
        codes,
        seed,
    )


def _make_view(view: Array, mean: Array, s: Array, v: Array, filter: AnyFilter, weights: Array) -> _View:
    xp = namespace(view)
    s, v, mean = (xp.astype(own, xp.float64) for own in (s, v, mean))
    centred = xp.astype(view, xp.float64) - mean
    variates = s[:, None] * (v.T @ xp.astype(weights, xp.float64))
    reference = variates / xp.linalg.vector_norm(variates, axis=0)
    plain = isinstance(filter, TruncatedSVD) and filter.k == int(s.shape[0])
    if plain or (isinstance(filter, Tikhonov) and filter.gamma == 0.0):
        # Without regularisation the scale of a direction is arbitrary: at length 1, no resample loses one to
        # rounding, however different the units of the features are.
        rows = multiply(centred, v / s)
        return _View(centred, rows, xp.ones_like(s), v / s, v * s, Tikhonov(0.0), reference)
    return _View(centred, multiply(centred, v), s, v, v, filter, reference)


def _check_distinct(spectra: Spectra, filters: Filters) -> None:
    """Raise an error if correlations of the model, or of its resamples, are 1 whatever the data."""
    pairs = _SHARE_DISTINCT * spectra.count
    ones, free_x, free_y = forced_ones(spectra, *filters)
    if ones or free_x + free_y > pairs - 1:
        raise InputError(
            f"a resample of {spectra.count} pairs has about {pairs:.0f} different ones, too few for {free_x} "
            f"and {free_y} directions without regularisation: correlations would be 1 whatever the data; "
            "regularise more."
        )


def _check_memory(spectra: Spectra, n_resamples: int, components: int) -> None:
    size = 8 * n_resamples * (2 * sum(spectra.ranks) * components + _n_features(spectra))
    if size > MOST_BYTES:
        raise InputError(
            f"{n_resamples:,} resamples of {components} components take {size / 2**30:.1f} GiB, more than "
            f"{MOST_BYTES / 2**30:.0f} GiB; give fewer n_components or n_resamples."
        )


def _n_features(spectra: Spectra) -> int:
    return int(spectra.x_mean.shape[0] + spectra.y_mean.shape[0])


def _refit(sample: _Sample, n_resamples: int, engine: Engine | None, device: str | None) -> list[_Refit]:
    """Return the models of all resamples, in order."""
    steps = [
        range(start, min(start + RESAMPLES_AT_ONCE, n_resamples))
        for start in range(0, n_resamples, RESAMPLES_AT_ONCE)
    ]
    if engine is not None:
        # Workers copy the sample to their device themselves.
        there = sample if device is None else fields_to_numpy(sample)
        pieces = [_Piece(there, numbers, device) for numbers in steps]
        return engine.reduce(add, engine.map(_refit_piece, pieces))
    refits: list[_Refit] = []
    with progress_bar("resampling") as progress:
        for numbers in steps:
            refits += _refit_piece(_Piece(sample, numbers, None))
            progress(numbers.stop / n_resamples)
    return refits


def _refit_piece(piece: _Piece) -> list[_Refit]:
    sample = piece.shared if piece.device is None else copy_fields(piece.shared, piece.device)

    counts = np.stack([sample.draw(number) for number in piece.numbers])
    owners = to_numpy(sample.pairing)
    captions = np.bincount(owners, minlength=counts.shape[1])
    lengths = zip(
        _feature_lengths(sample.x.centred, counts * captions),
        _feature_lengths(sample.y.centred, counts[:, owners]),
        strict=True,
    )
    items = list(zip(counts, lengths, strict=True))
    return map_parallel(lambda item: _refit_one(sample, *item), items, sample.x.rows)


def _feature_lengths(centred: Array, weights: Floats) -> Floats:
    """Return the lengths of the features, centred, for each row of weights; NaN for a constant feature."""
    weights = move_like(weights, centred)
    step = max(1, _BLOCK_BYTES // (8 * int(centred.shape[0])))
    parts = []
    for start in range(0, int(centred.shape[1]), step):
        part = centred[:, start : start + step]
        sums, squares = to_numpy(multiply(weights, part)), to_numpy(multiply(weights, part * part))
        spread = squares - sums * sums / to_numpy(weights).sum(axis=1)[:, None]
        parts.append(np.sqrt(np.where(spread > 1e-12 * squares, spread, np.nan)))
    return np.concatenate(parts, axis=1)


def _refit_one(sample: _Sample, counts: Floats, lengths: tuple[Floats, Floats]) -> _Refit:
    """Fit the pairs of rows of X that are drawn ``counts`` times, and align the model with the estimate.

    ``lengths`` are those of the features of both views.
    """
    x, y = sample.x, sample.y
    xp = namespace(x.rows)
    owners = to_numpy(sample.pairing)
    images, captions = np.flatnonzero(counts), np.flatnonzero(counts[owners])
    local = move_like(np.searchsorted(images, owners[captions]), x.rows)
    images, captions = (move_like(rows, x.rows) for rows in (images, captions))
    times = move_like(counts, x.rows)
    per_image = xp.astype(count_groups(local, images.shape[0]), xp.float64)
    weights_x, weights_y = times[images] * per_image, times[sample.pairing[captions]]
    count = float(xp.sum(weights_y))
    s_x, v_x, rows_x, turn_x = _decompose(x.rows[images, :], weights_x, count, "X")
    s_y, v_y, rows_y, turn_y = _decompose(y.rows[captions, :], weights_y, count, "Y")
    if not np.array_equal(to_numpy(local), np.arange(images.shape[0])):
        # Row i of X stands for the c_i pairs of an image: √(wc) x and √w y, so w·x·y is their product by √c.
        rows_x = rows_x / xp.sqrt(per_image)[:, None]
        rows_y = group_sum(rows_y, local, images.shape[0])
    t0 = rows_x.T @ rows_y
    t0 = t0 if turn_x is None else turn_x.T @ t0
    t0 = t0 if turn_y is None else t0 @ turn_y
    nothing = xp.zeros_like(s_x[:0])
    found = Spectra(round(count), nothing, nothing, s_x, v_x, s_y, v_y, t0, float(xp.finfo(t0.dtype).eps))
    factor = count / int(sample.pairing.shape[0])
    filters = scale_filter(x.filter, factor), scale_filter(y.filter, factor)
    wanted = int(x.reference.shape[1])
    most = min(int(own.denominators(s).shape[0]) for own, s in zip(filters, (s_x, s_y), strict=True))
    model = regularized_cca(found, *filters, min(wanted + _SPARE_COMPONENTS, most))
    assert model.train_correlations is not None
    at, signs = _match(
        _cosines(x.reference, x.s[:, None] * model.x_weights)
        + _cosines(y.reference, y.s[:, None] * model.y_weights)
    )

    def take(values: Array, along: Floats | float = 1.0) -> Floats:
        """Return the matched components of an array, in the order of the estimate."""
        return np.where(at < 0, np.nan, to_numpy(values)[..., at] * along)

    def view(s: Array, v: Array, weights: Array, lengths: Floats) -> _RefittedView:
        inner = s[:, None] * (v.T @ weights)
        products = (v @ (s[:, None] * inner)) / xp.linalg.vector_norm(inner, axis=0)
        # Weights are of the order 1/√n, where n is the number of pairs.
        return _RefittedView(take(weights, signs * factor**0.5), take(products, signs), lengths)

    return _Refit(
        take(model.train_correlations),
        view(s_x, v_x, model.x_weights, lengths[0]),
        view(s_y, v_y, model.y_weights, lengths[1]),
    )


def _decompose(rows: Array, weights: Array, count: float, name: str) -> tuple[Array, Array, Array, Array]:
    """Return singular values and right singular vectors of weighted, centred rows, from the smaller Gram.

    And ``left`` and ``turn``: the rows in the singular directions are ``left @ turn``, or ``left`` if turn is
    None. ``rows`` are changed in place.
    """
    xp = namespace(rows)
    rows -= (weights @ rows) / count
    rows *= xp.sqrt(weights)[:, None]
    if rows.shape[0] < rows.shape[1]:
        s, u = decompose_gram(rows @ rows.T, "float64", name)
        return s, (rows.T @ u) / s, u * s, None
    s, v = decompose_gram(rows.T @ rows, "float64", name)
    return s, v, rows, v


def _cosines(reference: Array, variates: Array) -> Floats:
    lengths = namespace(variates).linalg.vector_norm(variates, axis=0)
    return to_numpy(reference.T @ (variates / lengths))


def _match(cosines: Floats) -> tuple[Ints, Floats]:
    """Return the component of a resample for each of the estimate, −1 if there is none, and its sign."""
    from scipy.optimize import linear_sum_assignment

    own, others = linear_sum_assignment(-np.abs(cosines))
    at = np.full(len(cosines), -1, dtype=np.int64)
    at[own] = others
    signs = np.ones(len(cosines))
    signs[own] = np.where(cosines[own, others] < 0, -1.0, 1.0)
    return at, signs


def _side_intervals(
    view: _View, weights: Floats, loadings: Floats, refits: list[_RefittedView], ends: tuple[float, float]
) -> tuple[Interval, Interval]:
    """Return the intervals of the weights and of the loadings of one view, some features at a time."""
    to_weights, to_features = to_numpy(view.to_weights), to_numpy(view.to_features)
    n_features, wanted = weights.shape
    step = max(1, _BLOCK_BYTES // (8 * len(refits) * wanted))
    own_weights, own_products = (
        np.stack([getattr(refit, name) for refit in refits]) for name in ("weights", "products")
    )
    lengths = np.stack([refit.lengths for refit in refits])

    def intervals(start: int) -> tuple[Floats, Floats]:
        part = slice(start, start + step)
        resampled = np.matmul(to_features[part], own_products) / lengths[:, part, None]
        resampled[:, np.isnan(loadings[part])] = np.nan
        return _quantiles(np.matmul(to_weights[part], own_weights), ends), _quantiles(resampled, ends)

    parts = map_parallel(intervals, list(range(0, n_features, step)), weights)
    of_weights, of_loadings = (np.concatenate(own, axis=1) for own in zip(*parts, strict=True))
    return Interval(weights, *of_weights), Interval(loadings, *of_loadings)


def _quantiles(values: Floats, ends: tuple[float, float]) -> Floats:
    """Return two quantiles over the first axis, without NaN; NaN where all are."""
    if not np.isnan(values).any():
        return np.quantile(values, ends, axis=0)
    result = np.full((2, *values.shape[1:]), np.nan)
    known = ~np.isnan(values).all(axis=0)
    result[:, known] = np.nanquantile(values[:, known], ends, axis=0)
    return result
