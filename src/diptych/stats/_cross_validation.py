"""Correlations of canonical variates over pairs that were held out of the fit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych._arrays import Array, Floats, to_numpy
from diptych._checks import (
    InputError,
    Task,
    check_count,
    check_pair_of_views,
    check_seed,
    check_task,
    count,
    order_rows,
    second_view,
)
from diptych._progress import progress_bar
from diptych.cca import AWCCA, Engine
from diptych.cca._covariates import Sides, check_covariates, take_rows
from diptych.cca._settings import params_by_task, plain_pair, scale_params
from diptych.cca.selection._grids import PairRows, select_rows
from diptych.stats._pairs import (
    Ints,
    block_codes,
    check_given,
    check_unweighted,
    count_components,
    is_pair,
)
from diptych.stats._tables import component_frame, format_components

FEWEST = 3
"""Rows of X of a fold that has a correlation: that of two pairs is 1 or −1 whatever they are."""


@dataclass(frozen=True, eq=False)
class CrossValidatedCorrelations:
    """Correlations of canonical variates over held-out pairs; see ``cross_validated_correlations``.

    ``print`` shows a table, and ``to_frame`` returns one.

    Attributes
    ----------
    folds
        Correlations over the held-out pairs of each fold, folds × components. NaN for fewer than three rows
        of X.
    mean
        Mean over the folds of three rows of X or more, one per component; NaN if there are none, as with
        ``LeaveOneOut``, where ``pooled`` is what to read.
    pooled
        Correlations of the held-out variates of all folds together.
    in_sample
        Mean over folds of the correlations over the training pairs: the difference is overfitting.
    """

    folds: Floats
    mean: Floats
    pooled: Floats
    in_sample: Floats

    def __str__(self) -> str:
        large = self._large_folds()
        columns = {"in-sample": self.in_sample, "held-out mean": self.mean, "pooled": self.pooled}
        note, small = "", len(self.folds) - len(large)
        if small:
            verbs = ("has", "it counts") if small == 1 else ("have", "they count")
            note = (
                f"\n{count(small, 'fold')} {verbs[0]} fewer than three rows of X: {verbs[1]} in pooled only."
            )
        if len(large):
            columns |= {"lowest": np.min(large, axis=0), "highest": np.max(large, axis=0)}
        else:
            del columns["held-out mean"]
        table = format_components(columns)
        return f"Cross-validated correlations, {len(self.folds)} folds\n{table}{note}"

    def _large_folds(self) -> Floats:
        return self.folds[~np.isnan(self.folds).all(axis=1)]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each component."""
        folds = {f"fold_{number}": fold for number, fold in enumerate(self.folds, 1)}
        return component_frame(
            {"in_sample": self.in_sample, "mean": self.mean, "pooled": self.pooled, **folds}
        )


def cross_validated_correlations(
    model: Any,
    X: Any,
    y: Any,
    pairing: Any = None,
    *,
    covariates: Any = None,
    cv: Any = 5,
    random_state: int | None = 0,
    n_components: int | None = None,
    blocks: Any = None,
    task: Task = "search",
    engine: Engine | None = None,
    device: str | None = None,
    verbose: bool | None = None,
) -> CrossValidatedCorrelations:
    """Return the correlations of canonical variates over pairs that the model has not seen.

    For each fold a copy of the model is fitted on the other folds, with its own selection of the
    regularisation there (nested), and its variates are correlated over the held-out pairs. On unrelated views
    the result is around 0, where in-sample correlations may be near 1. A component is the one with this
    number in each fold's own model; where correlations are nearly equal, the order may differ between folds,
    so read the first few together.

    Parameters
    ----------
    model
        A ``CCA``, ``PLS`` or ``AWCCA``, fitted or not, whose parameters are used; or ``(γ_x, γ_y)``. A γ that
        is given in ``params`` is scaled to the number of pairs of a fold.
    X, y, pairing
        The pairs, as in ``AWCCA.fit``. Rows of Y stay with their row of X.
    covariates
        What both views may depend on, such as age, sex or motion: rows of X × covariates, numbers. In each
        fold both views are regressed on them over the training pairs, and these regressions are applied to
        the held-out pairs: to regress them out of all pairs beforehand lets each row know of the others. Or a
        pair, as in ``AWCCA.fit``. Needed if the model was fitted with covariates.
    cv
        Number of folds; a splitter of scikit-learn, which splits the rows of X; or a list of splits, each the
        row numbers of the training part and of the part that is held out.
    random_state
        Shuffles the rows before they are cut into folds, if ``cv`` is a number and there are no blocks.
    n_components
        The first components; None: at most 10.
    blocks
        One label per row of X, such as the subject: the rows of a block are in one fold (``GroupKFold``).
    task
        Whose model of an ``AWCCA``: each task has its own regularisation, unless ``params`` was one pair. A
        ``CCA`` or ``PLS`` has one model.
    engine, device, verbose
        As in ``AWCCA``.

    References
    ----------
    Varma and Simon (2006), "Bias in error estimation when using cross-validation for model selection".

    Examples
    --------
    >>> import numpy as np
    >>> from diptych.stats import cross_validated_correlations
    >>> x, y = np.random.default_rng(0).normal(size=(2, 100, 20))  # unrelated
    >>> result = cross_validated_correlations((1.0, 1.0), x, y)
    >>> bool(result.in_sample[0] > 0.7), bool(abs(result.pooled[0]) < 0.2)
    (True, True)
    """
    estimator = _make_estimator(model, verbose, covariates)
    task = check_task(task)
    x, y, pairing = check_pair_of_views(X, second_view(y), pairing)
    sides = check_covariates(covariates, X, int(x.shape[0]))
    blocks = order_rows(blocks, X, "blocks", "X")
    if n_components is not None:
        check_count(n_components, "n_components")
    variates_x, variates_y, in_sample, sizes = [], [], [], []
    with progress_bar("cross-validating", verbose) as progress:
        splits = list(_split(cv, pairing, int(x.shape[0]), blocks, random_state))
        for number, (train, test) in enumerate(splits):
            fold = _fit_fold(estimator, x, y, train, sides, engine, device)
            canonical = fold.models_[task]
            z_x, z_y = (None, None) if sides is None else take_rows(sides, test.x)
            z_y = None if z_y is None else z_y[to_numpy(test.pairing)]
            u = fold.project(x[test.x, :], "x", canonical.x_weights, covariates=z_x)
            v = fold.project(y[test.y, :], "y", canonical.y_weights, covariates=z_y)
            scale = fold.spectra_.count**0.5  # variates of folds of any size have the same scale
            variates_x.append(to_numpy(u)[to_numpy(test.pairing)] * scale)
            variates_y.append(to_numpy(v) * scale)
            in_sample.append(to_numpy(canonical.train_correlations))
            sizes.append(int(u.shape[0]))
            progress((number + 1) / len(splits))
    kept = count_components(n_components, min(map(len, in_sample)))
    variates_x, variates_y = ([u[:, :kept] for u in views] for views in (variates_x, variates_y))
    folds = np.stack([_correlate_columns(u, v) for u, v in zip(variates_x, variates_y, strict=True)])
    folds[np.asarray(sizes) < FEWEST] = np.nan
    large = folds[np.asarray(sizes) >= FEWEST]
    return CrossValidatedCorrelations(
        folds,
        np.mean(large, axis=0) if len(large) else np.full(kept, np.nan),
        _correlate_columns(np.concatenate(variates_x), np.concatenate(variates_y)),
        np.mean([correlations[:kept] for correlations in in_sample], axis=0),
    )


def _make_estimator(model: Any, verbose: bool | None, covariates: Any) -> AWCCA:
    """Return an estimator with the parameters of a model, not fitted."""
    from sklearn.base import clone

    if is_pair(model):
        return AWCCA(params=plain_pair(model), verbose=verbose)
    if not isinstance(model, AWCCA):
        raise InputError(
            f"{type(model).__name__} is not an estimator; give a CCA, PLS or AWCCA, or (γ_x, γ_y)."
        )
    check_unweighted(model)
    check_given(model, covariates)
    estimator: AWCCA = clone(model)
    if verbose is not None:
        estimator.verbose = verbose
    return estimator


def _fit_fold(
    estimator: AWCCA,
    x: Array,
    y: Array,
    rows: PairRows,
    covariates: Sides | None,
    engine: Engine | None,
    device: str | None,
) -> AWCCA:
    """Return the estimator fitted on a training part of the pairs."""
    from sklearn.base import clone

    fold: AWCCA = clone(estimator)
    if fold.params is not None:
        share = int(rows.y.shape[0]) / int(y.shape[0])
        fold.params = scale_params(params_by_task(fold.params), fold.filter, share)
    inside = None if covariates is None else take_rows(covariates, rows.x)
    views = x[rows.x, :], y[rows.y, :]
    return fold.fit(*views, rows.pairing, covariates=inside, engine=engine, device=device)


def _split(
    cv: Any, pairing: Array, n_x: int, blocks: Any, random_state: int | None
) -> Iterator[tuple[PairRows, PairRows]]:
    """Yield the training part and the held-out part of each fold: rows of X that have a pair, with those."""
    from sklearn.model_selection import GroupKFold, KFold

    paired = np.unique(to_numpy(pairing))
    codes = None if blocks is None else block_codes(blocks, n_x)
    groups = None if codes is None else codes[paired]
    is_list = isinstance(cv, Iterable) and not isinstance(cv, str | bytes)
    if not is_list and (isinstance(cv, str | bytes) or not hasattr(cv, "split")):
        parts, noun = (len(paired), "row") if groups is None else (len(np.unique(groups)), "block")
        if check_count(cv, "cv", minimum=2) > parts:
            raise InputError(f"cv={cv} folds need as many {noun}s, but there are {parts}; give fewer folds.")
        shuffled = KFold(cv, shuffle=True, random_state=check_seed(random_state))
        cv = shuffled if groups is None else GroupKFold(cv)
    splits = (
        _read_splits(cv, n_x)
        if is_list
        else ((paired[train], paired[test]) for train, test in cv.split(paired, groups=groups))
    )
    has_pair = np.isin(np.arange(n_x), paired)
    for number, fold in enumerate(splits, 1):
        masks = np.zeros((2, n_x), dtype=bool)
        for mask, rows in zip(masks, fold, strict=True):
            mask[rows] = has_pair[rows]
        if not masks.any(axis=1).all():
            raise InputError(f"split {number} of cv has a part without pairs; give rows to both parts.")
        if masks.all(axis=0).any():
            raise InputError(f"split {number} of cv has rows that are in both parts; hold them out of one.")
        if codes is not None and len(np.intersect1d(codes[masks[0]], codes[masks[1]])):
            raise InputError(
                f"split {number} of cv has rows of one block in both parts; give splits of whole blocks, "
                "such as GroupKFold, or leave blocks out."
            )
        yield select_rows(pairing, masks[0]), select_rows(pairing, masks[1])


def _read_splits(splits: Iterable[Any], n_x: int) -> Iterator[tuple[Ints, Ints]]:
    """Yield splits that are given as rows of X: those of the training part and those that are held out."""
    number = 0
    for number, split in enumerate(splits, 1):
        try:
            train, test = (np.asarray(rows) for rows in split)
            valid = all(
                rows.ndim == 1 and rows.dtype.kind in "iu" and rows.min() >= 0 and rows.max() < n_x
                for rows in (train, test)
            )
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise InputError(
                f"split {number} of cv is not (training rows, held-out rows); give row numbers of X, from 0 "
                f"to {n_x - 1}."
            )
        yield train, test
    if number == 0:
        raise InputError("cv has no splits; give at least one, or a number of folds.")


def _correlate_columns(u: Floats, v: Floats) -> Floats:
    """Return the correlation of each pair of columns; 0 for a constant one."""
    u, v = u - u.mean(axis=0), v - v.mean(axis=0)
    lengths = np.linalg.norm(u, axis=0) * np.linalg.norm(v, axis=0)
    products: Floats = np.sum(u * v, axis=0)
    return products / np.where(lengths > 0, lengths, 1.0)
