"""Bootstrap intervals of canonical correlations, weights and loadings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych._arrays import Floats, to_numpy
from diptych._checks import InputError, Task, check_count, check_number, check_seed, order_rows
from diptych._progress import progress_bar
from diptych._threads import map_parallel, one_blas_thread
from diptych.cca import Engine, Spectra, regularized_cca
from diptych.cca._canonical import check_components
from diptych.stats._loadings import make_loadings
from diptych.stats._pairs import count_components, make_seed, prepare_pairs, run_pieces
from diptych.stats._resampling import (
    BLOCK_BYTES,
    RefittedView,
    ResampledView,
    prepare_resamples,
    refit_resamples,
)
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


@dataclass(frozen=True, eq=False)
class Interval:
    """An estimate and the limits of its interval, arrays of one shape."""

    estimate: Floats
    low: Floats
    high: Floats


@dataclass(frozen=True, eq=False)
class Bootstrap:
    """Intervals of a model over resampled pairs; see ``bootstrap``.

    ``print`` shows a table of the correlations, and ``to_frames`` returns everything as pandas DataFrames.

    Attributes
    ----------
    correlations
        Canonical correlations in the population, one per component, in the order of the model: the estimate
        is corrected for the bias that the resamples show, and the interval is around it.
    in_sample
        Correlations of the variates over the pairs, which chance raises.
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
    in_sample: Floats
    n_resamples: int
    confidence: float
    random_state: int | None
    feature_names_x: list[str] | None = None
    feature_names_y: list[str] | None = None

    def __str__(self) -> str:
        interval = self.correlations
        columns = {
            "in-sample": self.in_sample,
            "corrected": interval.estimate,
            "low": interval.low,
            "high": interval.high,
            "features of X": _count_nonzero(self.x_loadings),
            "features of Y": _count_nonzero(self.y_loadings),
        }
        return (
            f"Bootstrap, {self.n_resamples:,} resamples, intervals of {100 * self.confidence:g} %\n"
            f"{format_components(columns)}\n"
            "Features: those whose loading has an interval without 0. Chance raises in-sample correlations; "
            "intervals are around the corrected ones."
        )

    def to_frames(self) -> dict[str, Any]:
        """Return a DataFrame for each attribute; those of features have a row for each component of each."""
        pandas = import_pandas()
        frames = {"correlations": component_frame(vars(self.correlations) | {"in_sample": self.in_sample})}
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
    preprocess: Any = None,
    covariates: Any = None,
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
    r"""Return intervals of correlations, weights and loadings, over resampled pairs.

    Rows of X are drawn with replacement, each with its rows of Y, and the model is fitted again at the same
    regularisation (γ scaled by the number of pairs). Each component of a resample is matched with one of the
    model: those whose variates correlate most over the original pairs, one to one, with signs to match. A
    Procrustes rotation would align more closely, but it also removes real uncertainty: see Notes.

    **In-sample correlations are too high.** A resample contains rows several times, so it is overfitted even
    more than the model; the difference corrects the correlations. Where there are as many features as pairs,
    it corrects too little (see Notes). Weights and loadings have percentile intervals. How strongly the
    variates correlate on other pairs is measured by ``cross_validated_correlations``, whether the views are
    related at all by ``permutation_test``.

    Parameters
    ----------
    model
        A fitted ``CCA``, ``PLS`` or ``AWCCA``, or ``(γ_x, γ_y)`` as ``AWCCA(params=…)`` takes them.
    X, y, pairing
        The pairs, as in ``AWCCA.fit``; usually those that the model was fitted on.
    preprocess
        A transformer of scikit-learn for both views, such as ``StandardScaler()`` or a pipeline that starts
        with an imputer, or a pair ``(for_x, for_y)``, with None for a view that stays as it is. A copy is
        fitted on each resample. Weights and loadings are of the features as transformed over all pairs: the
        weights of a resample are those that give its variates by least squares. So there are intervals also
        with ``PCA``, whose components differ between resamples. A fitted model is one of the transformed
        views.
    covariates
        What both views may depend on, such as age, sex or motion: rows of X × covariates, numbers. They are
        regressed out of both views in each resample, as in the estimate, so that correlations and loadings
        are partial ones. Or a pair, as in ``AWCCA.fit``. Needed if the model was fitted with covariates.
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
        Whose model of an ``AWCCA``: each task has its own regularisation, unless ``params`` was one pair. A
        ``CCA`` or ``PLS`` has one model.
    engine, device, verbose
        As in ``AWCCA``.

    Notes
    -----
    Where two correlations are nearly equal, their components can mix freely, and only the plane that they
    span is determined. Matching shows that as wide intervals. For correlations of 0.7 and 0.68 and 400 pairs,
    the 95 % intervals of loadings contain the truth in 92 % of cases with matching, and in 53 % with a
    Procrustes rotation (``python benchmarks/bootstrap.py coverage``).

    Percentiles of the resampled correlations would lie above the correlation of the population, often above
    that of the sample. On Fisher's scale :math:`z = \operatorname{artanh} \rho` a correlation has nearly the
    same spread and bias whatever it is. With :math:`\bar z^*` and :math:`s` the mean and standard deviation
    over resamples, the bias is :math:`\bar z^* - z`, and

    .. math:: \hat\rho = \tanh(2 z - \bar z^*), \qquad
              \tanh(2 z - \bar z^* \pm \Phi^{-1}(\tfrac{1 + c}{2})\, s)

    are, or 0 if they are negative, the corrected estimate (Efron and Tibshirani, 1993, chapter 10) and the
    limits of an interval of confidence c. ``python benchmarks/bootstrap.py correlations`` measures how often
    it contains the correlation of the population, or with regularisation that of the regularised variates.

    A resample of a view is the view with integer weights. It is decomposed in the coordinates of the view's
    singular directions, through the smaller of its Gram matrices, so that the number of features does not
    matter where rows are fewer.

    References
    ----------
    Efron and Tibshirani (1993), "An Introduction to the Bootstrap", chapters 10 and 13. Fisher (1921), "On
    the probable error of a coefficient of correlation deduced from a small sample", Metron 1.

    Examples
    --------
    >>> from sklearn.datasets import load_linnerud
    >>> from diptych.stats import bootstrap
    >>> exercises, physiology = load_linnerud(return_X_y=True)
    >>> result = bootstrap((0, 0), physiology, exercises, n_resamples=200)
    >>> result.in_sample.round(2)
    array([0.8 , 0.2 , 0.07])
    >>> bool(0.6 < result.correlations.estimate[0] < 0.8)
    True
    """
    check_count(n_resamples, "n_resamples", minimum=2)
    check_seed(random_state)
    confidence = check_number(confidence, "confidence")
    if not 0.0 < confidence < 1.0:
        raise InputError(f"confidence={confidence} is not between 0 and 1; give for example 0.95.")
    with one_blas_thread(), progress_bar("bootstrap", verbose):
        pairs = prepare_pairs(model, X, y, pairing, task, device, covariates, preprocess=preprocess)
        n_components = count_components(n_components, check_components(pairs.spectra, *pairs.filters, None))
        _check_memory(pairs.spectra, n_resamples, n_components)
        estimate = regularized_cca(pairs.spectra, *pairs.filters, n_components)
        blocks = order_rows(blocks, X, "blocks", "X")
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
        correct_correlations(loadings.correlations, np.stack(correlations), confidence),
        x_weights,
        y_weights,
        x_loadings,
        y_loadings,
        loadings.correlations,
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


def correct_correlations(correlations: Floats, resampled: Floats, confidence: float) -> Interval:
    """Return correlations corrected for their bias, and their intervals; see ``bootstrap``.

    >>> interval = correct_correlations(np.array([0.5]), np.array([[0.6], [0.7]]), 0.9)
    >>> interval.estimate.round(3), interval.low.round(3), interval.high.round(3)
    (array([0.308]), array([0.115]), array([0.478]))
    """
    from scipy.stats import norm

    limit = 1.0 - np.finfo(np.float64).eps  # where artanh is finite
    z, resampled_z = (np.arctanh(np.clip(values, -limit, limit)) for values in (correlations, resampled))
    has_values = (~np.isnan(resampled_z)).sum(axis=0) >= 2  # some resamples have no component to match
    mean, spread = np.full((2, len(z)), np.nan)
    mean[has_values] = np.nanmean(resampled_z[:, has_values], axis=0)
    spread[has_values] = np.nanstd(resampled_z[:, has_values], axis=0, ddof=1)
    corrected, half = 2.0 * z - mean, norm.ppf((1.0 + confidence) / 2.0) * spread
    # A canonical correlation is 0 at least, as a singular value is.
    values = (np.clip(np.tanh(ends), 0.0, None) for ends in (corrected, corrected - half, corrected + half))
    return Interval(*values)


def _quantiles(values: Floats, ends: tuple[float, float]) -> Floats:
    """Return two quantiles over the first axis, without NaN; NaN where all are."""
    if not np.isnan(values).any():
        return np.quantile(values, ends, axis=0)
    quantiles = np.full((2, *values.shape[1:]), np.nan)
    has_values = ~np.isnan(values).all(axis=0)
    quantiles[:, has_values] = np.nanquantile(values[:, has_values], ends, axis=0)
    return quantiles
