"""Bootstrap intervals of canonical correlations, weights and loadings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from diptych._arrays import Array, Floats, count_groups, group_sum, move_like, namespace, to_numpy
from diptych._checks import InputError, Task, check_count, check_number, check_seed
from diptych._progress import progress_bar
from diptych._threads import map_parallel, multiply, one_blas_thread
from diptych.cca import CanonicalModel, Engine, Spectra, Tikhonov, TruncatedSVD, regularized_cca
from diptych.cca._canonical import check_components, forced_ones
from diptych.cca._filters import AnyFilter, Filters, scale_filter
from diptych.cca._spectra import decompose_gram
from diptych.cca.selection._grids import select_rows
from diptych.stats._loadings import make_loadings
from diptych.stats._pairs import Ints, PreparedPairs, ResampledBlocks, make_seed, prepare_pairs, run_pieces
from diptych.stats._tables import (
    component_frame,
    feature_frame,
    format_components,
    import_pandas,
    make_labels,
)

RESAMPLES_AT_ONCE = 8
"""Resamples of one piece of work: between two of them an interruption is noticed and a bar moves."""

MOST_BYTES = 2**31
"""Memory for the weights and loadings of all resamples."""

BLOCK_BYTES = 2**26
"""Memory for some features of all resamples, or of all rows."""

_SPARE_COMPONENTS = 5  # beyond those asked for, because the order may change from resample to resample
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
        interval = self.correlations
        columns = {
            "correlation": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "features of X": _count_nonzero(self.x_loadings),
            "features of Y": _count_nonzero(self.y_loadings),
        }
        return (
            f"Bootstrap, {self.n_resamples:,} resamples, intervals of {100 * self.confidence:g} %\n"
            f"{format_components(columns)}\n"
            "Features: those whose loading has an interval without 0. Correlations are in-sample, and chance "
            "raises them."
        )

    def to_frames(self) -> dict[str, Any]:
        """Return a DataFrame for each attribute; those of features have a row for each component of each."""
        pandas = import_pandas()
        frames = {"correlations": component_frame(vars(self.correlations))}
        for name, names in (
            ("x_weights", self.feature_names_x),
            ("y_weights", self.feature_names_y),
            ("x_loadings", self.feature_names_x),
            ("y_loadings", self.feature_names_y),
        ):
            interval = vars(getattr(self, name))
            labels = make_labels(name[0], len(interval["estimate"]), names)
            columns = {end: feature_frame(values, labels).stack() for end, values in interval.items()}
            frames[name] = pandas.DataFrame(columns)
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
        pairs = prepare_pairs(model, X, y, pairing, task, device)
        n_components = pairs.count_components(n_components)
        _check_memory(pairs.spectra, n_resamples, n_components)
        estimate = regularized_cca(pairs.spectra, *pairs.filters, n_components)
        resampled = prepare_resamples(pairs, estimate, blocks, make_seed(random_state))
        with progress_bar("resampling") as progress:
            like, at_once = resampled.x.rows, RESAMPLES_AT_ONCE
            refits = run_pieces(
                refit_resamples, resampled, n_resamples, at_once, like, engine, device, progress
            )
        correlations, refits_x, refits_y = zip(*refits, strict=True)
        ends = (1 - confidence) / 2, (1 + confidence) / 2
        loadings = make_loadings(pairs.spectra, estimate)
        weights = to_numpy(estimate.x_weights), to_numpy(estimate.y_weights)
        x_weights, x_loadings = _view_intervals(resampled.x, weights[0], loadings.x, refits_x, ends)
        y_weights, y_loadings = _view_intervals(resampled.y, weights[1], loadings.y, refits_y, ends)
    return Bootstrap(
        Interval(loadings.correlations, *_quantiles(np.stack(correlations), ends)),
        x_weights,
        y_weights,
        x_loadings,
        y_loadings,
        n_resamples,
        confidence,
        random_state,
        pairs.names_x,
        pairs.names_y,
    )


def _check_memory(spectra: Spectra, n_resamples: int, components: int) -> None:
    n_features = int(spectra.x_mean.shape[0] + spectra.y_mean.shape[0])
    size = 8 * n_resamples * (2 * sum(spectra.ranks) * components + n_features)
    if size > MOST_BYTES:
        raise InputError(
            f"{n_resamples:,} resamples of {components} components take {size / 2**30:.1f} GiB, more than "
            f"{MOST_BYTES / 2**30:.0f} GiB; give fewer n_components or n_resamples."
        )


def _count_nonzero(loadings: Interval) -> Any:
    """Return for how many features the interval of each component is without 0."""
    return np.count_nonzero((loadings.low > 0) | (loadings.high < 0), axis=0)


def _view_intervals(
    view: ResampledView,
    weights: Floats,
    loadings: Floats,
    refits: Sequence[RefittedView],
    ends: tuple[float, float],
) -> tuple[Interval, Interval]:
    """Return the intervals of the weights and of the loadings of one view, some features at a time."""
    to_weights, to_features = to_numpy(view.to_weights), to_numpy(view.to_features)
    n_features, n_components = weights.shape
    step = max(1, BLOCK_BYTES // (8 * len(refits) * n_components))
    refitted, products, lengths = map(np.stack, zip(*refits, strict=True))

    def find_quantiles(start: int) -> tuple[Floats, Floats]:
        part = slice(start, start + step)
        resampled = np.matmul(to_features[part], products) / lengths[:, part, None]
        resampled[:, np.isnan(loadings[part])] = np.nan
        return _quantiles(np.matmul(to_weights[part], refitted), ends), _quantiles(resampled, ends)

    parts = map_parallel(find_quantiles, list(range(0, n_features, step)), weights)
    limits = [np.concatenate(blocks, axis=1) for blocks in zip(*parts, strict=True)]
    return Interval(weights, *limits[0]), Interval(loadings, *limits[1])


def _quantiles(values: Floats, ends: tuple[float, float]) -> Floats:
    """Return two quantiles over the first axis, without NaN; NaN where all are."""
    if not np.isnan(values).any():
        return np.quantile(values, ends, axis=0)
    quantiles = np.full((2, *values.shape[1:]), np.nan)
    has_values = ~np.isnan(values).all(axis=0)
    quantiles[:, has_values] = np.nanquantile(values[:, has_values], ends, axis=0)
    return quantiles


@dataclass(frozen=True, eq=False)
class ResampledView:
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
class ResampledPairs:
    """Two views whose pairs are resampled by block."""

    x: ResampledView
    y: ResampledView
    pairing: Array
    blocks: ResampledBlocks


class RefittedView(NamedTuple):
    """Weights and products with the variates in the coordinates of a view; lengths of its features."""

    weights: Floats
    products: Floats
    lengths: Floats


class RefittedModel(NamedTuple):
    """The aligned model of one resample; NaN where it has no component to match."""

    correlations: Floats
    x: RefittedView
    y: RefittedView


def prepare_resamples(
    pairs: PreparedPairs, estimate: CanonicalModel, blocks: Any, seed: int
) -> ResampledPairs:
    """Return the pairs as they are resampled, with the variates of the estimate to align with."""
    spectra, (filter_x, filter_y) = pairs.spectra, pairs.filters
    resampled_blocks = ResampledBlocks.of_pairs(blocks, pairs.pairing, int(pairs.x.shape[0]), seed)
    _check_distinct(spectra, pairs.filters)
    return ResampledPairs(
        _prepare_view(pairs.x, spectra.x_mean, spectra.s_x, spectra.v_x, filter_x, estimate.x_weights),
        _prepare_view(pairs.y, spectra.y_mean, spectra.s_y, spectra.v_y, filter_y, estimate.y_weights),
        pairs.pairing,
        resampled_blocks,
    )


def _prepare_view(
    view: Array, mean: Array, s: Array, v: Array, filter: AnyFilter, weights: Array
) -> ResampledView:
    xp = namespace(view)
    s, v, mean = (xp.astype(array, xp.float64) for array in (s, v, mean))
    centred = xp.astype(view, xp.float64) - mean
    variates = s[:, None] * (v.T @ xp.astype(weights, xp.float64))
    reference = variates / xp.linalg.vector_norm(variates, axis=0)
    keeps_all = isinstance(filter, TruncatedSVD) and filter.k == int(s.shape[0])
    if keeps_all or (isinstance(filter, Tikhonov) and filter.gamma == 0.0):
        # Without regularisation the scale of a direction is arbitrary: at length 1, no resample loses one to
        # rounding, however different the units of the features are.
        rows = multiply(centred, v / s)
        return ResampledView(centred, rows, xp.ones_like(s), v / s, v * s, Tikhonov(0.0), reference)
    return ResampledView(centred, multiply(centred, v), s, v, v, filter, reference)


def _check_distinct(spectra: Spectra, filters: Filters) -> None:
    """Raise an error if correlations of the model, or of its resamples, are 1 whatever the data."""
    distinct = _SHARE_DISTINCT * spectra.count
    ones, free_x, free_y = forced_ones(spectra, *filters)
    if ones or free_x + free_y > distinct - 1:
        raise InputError(
            f"a resample of {spectra.count} pairs has about {distinct:.0f} different ones, too few for "
            f"{free_x} and {free_y} directions without regularisation: correlations would be 1 whatever the "
            "data; regularise more."
        )


def refit_resamples(pairs: ResampledPairs, numbers: range) -> list[RefittedModel]:
    """Return the models of the resamples with these numbers."""
    counts = np.stack([pairs.blocks.draw(number) for number in numbers])
    owners = to_numpy(pairs.pairing)
    pairs_per_row = np.bincount(owners, minlength=counts.shape[1])
    lengths_x = _feature_lengths(pairs.x.centred, counts * pairs_per_row)
    lengths_y = _feature_lengths(pairs.y.centred, counts[:, owners])
    return [_refit(pairs, *resample) for resample in zip(counts, lengths_x, lengths_y, strict=True)]


def _feature_lengths(centred: Array, weights: Floats) -> Floats:
    """Return the lengths of the features, centred, for each row of weights; NaN for a constant feature."""
    weights = move_like(weights, centred)
    step = max(1, BLOCK_BYTES // (8 * int(centred.shape[0])))
    parts = []
    for start in range(0, int(centred.shape[1]), step):
        part = centred[:, start : start + step]
        sums, squares = to_numpy(multiply(weights, part)), to_numpy(multiply(weights, part * part))
        spread = squares - sums * sums / to_numpy(weights).sum(axis=1)[:, None]
        parts.append(np.sqrt(np.where(spread > 1e-12 * squares, spread, np.nan)))
    return np.concatenate(parts, axis=1)


def _refit(pairs: ResampledPairs, counts: Floats, lengths_x: Floats, lengths_y: Floats) -> RefittedModel:
    """Fit the pairs of rows of X that are drawn ``counts`` times, and align the model with the estimate.

    ``lengths_x`` and ``lengths_y`` are those of the features.
    """
    x, y = pairs.x, pairs.y
    xp = namespace(x.rows)
    rows_x, rows_y, pairing = select_rows(pairs.pairing, counts > 0)
    n_x = int(rows_x.shape[0])
    times = move_like(counts, x.rows)
    pairs_per_row = xp.astype(count_groups(pairing, n_x), xp.float64)
    weights_x, weights_y = times[rows_x] * pairs_per_row, times[pairs.pairing[rows_y]]
    count = float(xp.sum(weights_y))
    s_x, v_x, left_x, turn_x = _decompose(x.rows[rows_x, :], weights_x, count, "X")
    s_y, v_y, left_y, turn_y = _decompose(y.rows[rows_y, :], weights_y, count, "Y")
    if not np.array_equal(to_numpy(pairing), np.arange(n_x)):
        # Row i of X stands for c pairs: √(wc) x and √w y, so w·x·y is their product by √c.
        left_x = left_x / xp.sqrt(pairs_per_row)[:, None]
        left_y = group_sum(left_y, pairing, n_x)
    t0 = left_x.T @ left_y
    t0 = t0 if turn_x is None else turn_x.T @ t0
    t0 = t0 if turn_y is None else t0 @ turn_y
    no_mean = xp.zeros_like(s_x[:0])
    resolution = float(xp.finfo(t0.dtype).eps)
    spectra = Spectra(round(count), no_mean, no_mean, s_x, v_x, s_y, v_y, t0, resolution)
    factor = count / int(pairs.pairing.shape[0])
    filters = scale_filter(x.filter, factor), scale_filter(y.filter, factor)
    n_components = int(x.reference.shape[1]) + _SPARE_COMPONENTS
    model = regularized_cca(spectra, *filters, min(n_components, check_components(spectra, *filters, None)))
    assert model.train_correlations is not None
    matched, signs = match_components(
        _cosines(x.reference, x.s[:, None] * model.x_weights)
        + _cosines(y.reference, y.s[:, None] * model.y_weights)
    )

    def align(values: Array, factors: Floats | float = 1.0) -> Floats:
        """Return the matched components of an array, in the order of the estimate."""
        return np.where(matched < 0, np.nan, to_numpy(values)[..., matched] * factors)

    def align_view(s: Array, v: Array, weights: Array, lengths: Floats) -> RefittedView:
        inner = s[:, None] * (v.T @ weights)
        products = (v @ (s[:, None] * inner)) / xp.linalg.vector_norm(inner, axis=0)
        # Weights are of the order 1/√n, where n is the number of pairs.
        return RefittedView(align(weights, signs * factor**0.5), align(products, signs), lengths)

    return RefittedModel(
        align(model.train_correlations),
        align_view(s_x, v_x, model.x_weights, lengths_x),
        align_view(s_y, v_y, model.y_weights, lengths_y),
    )


def _decompose(
    rows: Array, weights: Array, count: float, name: str
) -> tuple[Array, Array, Array, Array | None]:
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


def match_components(cosines: Floats) -> tuple[Ints, Floats]:
    """Return the component of a resample for each of the estimate, −1 if there is none, and its sign."""
    from scipy.optimize import linear_sum_assignment

    rows, columns = linear_sum_assignment(-np.abs(cosines))
    matched = np.full(len(cosines), -1, dtype=np.int64)
    matched[rows] = columns
    signs = np.ones(len(cosines))
    signs[rows] = np.where(cosines[rows, columns] < 0, -1.0, 1.0)
    return matched, signs
