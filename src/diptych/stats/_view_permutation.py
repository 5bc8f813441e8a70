"""A permutation test of what several views have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.sparse.linalg import LinearOperator, eigsh
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array, Floats, to_numpy
from diptych._checks import InputError, check_count, check_seed
from diptych._progress import progress_bar
from diptych.cca import GCCA
from diptych.cca._filters import Tikhonov
from diptych.cca._generalized import ViewSpectra, check_gammas, check_views
from diptych.stats._chains import TIE, standard_error
from diptych.stats._pairs import make_seed
from diptych.stats._permutation import PermutationTest


def permutation_test_views(
    model: Any,
    views: Sequence[Any],
    *,
    n_permutations: int = 1000,
    random_state: int | None = 0,
    verbose: bool | None = None,
) -> PermutationTest:
    r"""Test whether several views are related at all, by permuting the rows of every view but the first.

    The statistic is the largest eigenvalue λ of ``GCCA``. The result shows (λ − 1) / (m − 1) for m views: 1
    if their variates are equal, and for two views the correlation. If no view is related to any other, and
    rows are independent and alike in distribution, the p-value is right for any number of features. A small
    one says that at least two views are related; which ones, ``permutation_test`` says of each pair.

    Parameters
    ----------
    model
        A fitted ``GCCA``, or γ of each view as ``GCCA(params=…)`` takes them. The test does not account for
        a γ that was selected on held-out rows, because that has seen which rows belong together; one that was
        given, or comes from ``params="ledoit-wolf"``, has not.
    views
        The views, as in ``GCCA.fit``.
    n_permutations
        Number of permutations; the smallest possible p-value is 1 / (n_permutations + 1).
    random_state
        Seeds the permutations.
    verbose
        As in ``AWCCA``.

    Returns
    -------
    PermutationTest
        With one component.

    Examples
    --------
    >>> import numpy as np
    >>> from diptych.stats import permutation_test_views
    >>> rng = np.random.default_rng(0)
    >>> hidden = rng.normal(size=(50, 1))
    >>> views = [hidden + rng.normal(size=(50, m)) for m in (4, 3, 2)]
    >>> permutation_test_views((1, 1, 1), views).p_values
    array([0.000999])
    """
    check_count(n_permutations, "n_permutations")
    check_seed(random_state)
    _, matrices = check_views(views)
    if isinstance(model, GCCA):
        check_is_fitted(model)
        model = [gamma * len(matrices[0]) / model.n_rows_ for gamma in model.params_]
    gammas = check_gammas(model, len(matrices))
    spectra = ViewSpectra.of(matrices)
    rows = [
        to_numpy(view - mean).astype(np.float64) @ to_numpy(v * root)
        for view, mean, (_, v), root in zip(
            matrices, spectra.means, spectra.axes, spectra.roots(gammas), strict=True
        )
    ]
    seed, first = make_seed(random_state), rows[0]
    observed = scaled_eigenvalue(rows)
    null = np.empty(n_permutations)
    with progress_bar("permutation test", verbose) as progress:
        for number in range(n_permutations):
            rng = np.random.default_rng([seed, number])
            null[number] = scaled_eigenvalue([first, *(rng.permutation(view) for view in rows[1:])])
            progress((number + 1) / n_permutations)
    least = observed * (1 - TIE)
    if np.all(np.abs(null - observed) <= observed - least):
        raise InputError(
            "the correlations are the same whatever rows belong together, so there is nothing to test; "
            "regularise, or give fewer features."
        )
    p_values = np.array([(1 + np.count_nonzero(null >= least)) / (1 + n_permutations)])
    error = standard_error([null[at : at + 1] for at in range(n_permutations)], least)
    return PermutationTest(
        np.array([observed]),
        p_values,
        np.array([error]),
        p_values,
        np.array([observed]),
        null[:, None],
        n_permutations,
        random_state,
        "stepwise",
        "roy",
        (0, 0),
        spectra.count,
        tuple(int(view.shape[1]) for view in matrices),
        tuple(map(Tikhonov, gammas)),
        False,
        "rows",
    )


def scaled_eigenvalue(whitened: Sequence[Floats]) -> float:
    """Return (λ − 1) / (m − 1) for the largest eigenvalue of m whitened views with orthogonal columns.

    The matrix of ``generalized_cca`` is not formed, which is less work where it is large.
    """
    rows: Floats = np.hstack(list(whitened))
    within = np.sum(rows * rows, axis=0)
    size = len(within)

    def multiply_by_matrix(vector: Floats) -> Array:
        return rows.T @ (rows @ vector) - within * vector

    between = LinearOperator((size, size), matvec=multiply_by_matrix, dtype=np.float64)
    start = np.random.default_rng(0).normal(size=size)
    value = eigsh(between, k=1, which="LA", v0=start, tol=TIE / 10, return_eigenvectors=False)[0]
    return float(value) / (len(whitened) - 1)
