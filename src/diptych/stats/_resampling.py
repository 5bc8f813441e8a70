"""The models of resampled pairs, aligned with the model of the pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from diptych._arrays import Array, Floats, count_groups, group_sum, move_like, namespace, to_numpy
from diptych._checks import InputError, check_pair_of_views, count
from diptych._threads import multiply
from diptych.cca import CanonicalModel, Spectra, Tikhonov, TruncatedSVD, normalize, regularized_cca
from diptych.cca._canonical import check_components, forced_ones
from diptych.cca._covariates import CovariateBasis
from diptych.cca._filters import AnyFilter, scale_filter
from diptych.cca._spectra import decompose_gram
from diptych.cca.selection._grids import select_rows
from diptych.stats._pairs import Ints, PreparedPairs, ResampledBlocks
from diptych.stats._transformers import TransformedViews

BLOCK_BYTES = 2**26
"""Memory for some features of all resamples, or of all rows."""

_SPARE_COMPONENTS = 5  # beyond those asked for, because the order may change from resample to resample
_SHARE_DISTINCT = 1 - 1 / math.e  # of n rows in a resample of n


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
    """Two views whose pairs are resampled by block, and both views' scores of covariates of the rows of X.

    With ``views``, each resample transforms these again, and then normalises them.
    """

    x: ResampledView
    y: ResampledView
    pairing: Array
    blocks: ResampledBlocks
    scores: tuple[Floats, Floats]
    views: TransformedViews | None
    normalization: tuple[str, str]


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
    _check_distinct(pairs)
    return ResampledPairs(
        _prepare_view(pairs.x, spectra.x_mean, spectra.s_x, spectra.v_x, filter_x, estimate.x_weights),
        _prepare_view(pairs.y, spectra.y_mean, spectra.s_y, spectra.v_y, filter_y, estimate.y_weights),
        pairs.pairing,
        resampled_blocks,
        pairs.scores,
        pairs.views,
        pairs.normalization,
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


def _check_distinct(pairs: PreparedPairs) -> None:
    """Raise an error if correlations of the model, or of its resamples, are 1 whatever the data."""
    distinct = _SHARE_DISTINCT * pairs.spectra.count
    ones, free_x, free_y = forced_ones(pairs.free_spectra, *pairs.filters)
    if ones or free_x + free_y > distinct - 1 - pairs.n_shared:
        removed = f" and {count(pairs.n_shared, 'covariate')}" if pairs.n_shared else ""
        raise InputError(
            f"a resample of {pairs.spectra.count} pairs has about {distinct:.0f} different ones, too few for "
            f"{free_x} and {free_y} directions without regularisation{removed}: correlations would be 1 "
            "whatever the data; regularise more."
        )


def refit_resamples(pairs: ResampledPairs, numbers: range) -> list[RefittedModel]:
    """Return the models of the resamples with these numbers."""
    counts = np.stack([pairs.blocks.draw(number) for number in numbers])
    owners = to_numpy(pairs.pairing)
    weights = counts * np.bincount(owners, minlength=counts.shape[1])
    # Each resample has a regression on the covariates of its own.
    first, second = pairs.scores
    scores_x = [CovariateBasis.fit(first, of_rows).scores(first) for of_rows in weights]
    scores_y = scores_x
    if second is not first:
        scores_y = [CovariateBasis.fit(second, of_rows).scores(second) for of_rows in weights]
    lengths_x = _feature_lengths(pairs.x.centred, weights, scores_x)
    lengths_y = _feature_lengths(pairs.y.centred, counts[:, owners], [rows[owners] for rows in scores_y])
    resamples = zip(counts, zip(scores_x, scores_y, strict=True), lengths_x, lengths_y, strict=True)
    return [_refit(pairs, *resample) for resample in resamples]


def _transform(pairs: ResampledPairs, counts: Floats) -> tuple[Array, Array]:
    """Return all rows of both views, by transformers that are fitted on a resample, if there are any."""
    if pairs.views is None:
        return pairs.x.rows, pairs.y.rows
    times = counts.astype(np.int64), counts[to_numpy(pairs.pairing)].astype(np.int64)
    rows = (np.repeat(np.arange(len(of_rows)), of_rows) for of_rows in times)
    x, y, _ = check_pair_of_views(*pairs.views.fit(*rows), pairs.pairing)
    x, y = (normalize(view, how) for view, how in zip((x, y), pairs.normalization, strict=True))
    like, dtype = pairs.x.rows, namespace(pairs.x.rows).float64
    return move_like(x, like, dtype), move_like(y, like, dtype)


def _feature_lengths(centred: Array, weights: Floats, scores: list[Floats]) -> Floats:
    """Return the lengths of what intercept and scores leave of the features, for each row of weights.

    NaN for a feature of which nothing is left.
    """
    products = [move_like(rows.T * of_rows, centred) for rows, of_rows in zip(scores, weights, strict=True)]
    weights = move_like(weights, centred)
    step = max(1, BLOCK_BYTES // (8 * int(centred.shape[0])))
    parts = []
    for start in range(0, int(centred.shape[1]), step):
        part = centred[:, start : start + step]
        sums, squares = to_numpy(multiply(weights, part)), to_numpy(multiply(weights, part * part))
        spread = squares - sums * sums / to_numpy(weights).sum(axis=1)[:, None]
        if scores[0].shape[1]:
            spread -= np.stack([(to_numpy(multiply(rows, part)) ** 2).sum(axis=0) for rows in products])
        parts.append(np.sqrt(np.where(spread > 1e-12 * squares, spread, np.nan)))
    return np.concatenate(parts, axis=1)


def _refit(
    pairs: ResampledPairs,
    counts: Floats,
    scores: tuple[Floats, Floats],
    lengths_x: Floats,
    lengths_y: Floats,
) -> RefittedModel:
    """Fit the pairs of rows of X that are drawn ``counts`` times, and align the model with the estimate.

    ``scores`` are those of the covariates of X and of Y in the resample, ``lengths_x`` and ``lengths_y``
    those of the features.
    """
    x, y = pairs.x, pairs.y
    xp = namespace(x.rows)
    all_x, all_y = _transform(pairs, counts)
    rows_x, rows_y, pairing = select_rows(pairs.pairing, counts > 0)
    n_x = int(rows_x.shape[0])
    times = move_like(counts, x.rows)
    pairs_per_row = xp.astype(count_groups(pairing, n_x), xp.float64)
    weights_x, weights_y = times[rows_x] * pairs_per_row, times[pairs.pairing[rows_y]]
    count = float(xp.sum(weights_y))
    scores_x, scores_y = (move_like(of_view, x.rows) for of_view in scores)
    scores_y = scores_y[pairs.pairing, :]
    s_x, v_x, left_x, turn_x = _decompose(all_x[rows_x, :], weights_x, scores_x[rows_x, :], "X")
    s_y, v_y, left_y, turn_y = _decompose(all_y[rows_y, :], weights_y, scores_y[rows_y, :], "Y")
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
    if pairs.views is None:
        in_x = model.x_weights, _find_products(s_x, v_x, model.x_weights)
        in_y = model.y_weights, _find_products(s_y, v_y, model.y_weights)
    else:
        times_y = times[pairs.pairing]
        per_row = xp.astype(count_groups(pairs.pairing, len(counts)), xp.float64)
        in_x = _express(x, all_x @ model.x_weights, per_row, times, scores_x)
        in_y = _express(y, all_y @ model.y_weights, xp.ones_like(times_y), times_y, scores_y)
    matched, signs = match_components(
        _cosines(x.reference, x.s[:, None] * in_x[0]) + _cosines(y.reference, y.s[:, None] * in_y[0])
    )

    def align(values: Array, factors: Floats | float = 1.0) -> Floats:
        """Return the matched components of an array, in the order of the estimate."""
        return np.where(matched < 0, np.nan, to_numpy(values)[..., matched] * factors)

    def align_view(weights: Array, products: Array, lengths: Floats) -> RefittedView:
        # Weights are of the order 1/√n, where n is the number of pairs.
        return RefittedView(align(weights, signs * factor**0.5), align(products, signs), lengths)

    return RefittedModel(
        align(model.train_correlations),
        align_view(*in_x, lengths_x),
        align_view(*in_y, lengths_y),
    )


def _find_products(s: Array, v: Array, weights: Array) -> Array:
    """Return the products of the coordinates with the variates of these weights, at length 1."""
    inner = s[:, None] * (v.T @ weights)
    return (v @ (s[:, None] * inner)) / namespace(s).linalg.vector_norm(inner, axis=0)


def _express(
    view: ResampledView, variates: Array, per_row: Array, times: Array, scores: Array
) -> tuple[Array, Array]:
    """Return the weights and products of the coordinates for variates of other features, over all rows.

    The weights give the variates by least squares over the pairs, of which a row has ``per_row``. The
    products are over a resample that has rows so many ``times``, without intercept and scores.
    """
    weights = times * per_row
    in_coordinates = (view.rows.T @ (per_row[:, None] * variates)) / view.s[:, None] ** 2
    left = variates - (weights @ variates) / namespace(weights).sum(weights)
    left = left - scores @ ((scores.T * weights) @ left)
    lengths = namespace(left).sqrt(weights @ (left * left))
    return in_coordinates, (view.rows.T @ (weights[:, None] * left)) / lengths


def _decompose(
    rows: Array, weights: Array, scores: Array, name: str
) -> tuple[Array, Array, Array, Array | None]:
    """Return singular values and right singular vectors of weighted rows, from the smaller Gram matrix.

    Rows are what is left by an intercept and by the ``scores`` of covariates, orthonormal with the weights.
    And ``left`` and ``turn``: the rows in the singular directions are ``left @ turn``, or ``left`` if turn is
    None. ``rows`` are changed in place.
    """
    xp = namespace(rows)
    rows -= (weights @ rows) / xp.sum(weights)
    if scores.shape[1]:
        rows -= scores @ ((scores.T * weights) @ rows)
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
