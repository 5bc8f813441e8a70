"""Generalised CCA: what three or more views of the same rows have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.model_selection import train_test_split
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import (
    FEW_PAIRS,
    InputError,
    check_choice,
    check_count,
    check_same_backend,
    check_seed,
    check_view,
    order_rows,
    second_view,
)
from diptych._threads import map_lapack, multiply, multiply_transposed, one_blas_thread
from diptych.cca._canonical import UNCORRELATED, leading_eigenvectors
from diptych.cca._filters import SHRINKAGES, Tikhonov, shrinkage_gammas
from diptych.cca._moments import Moments
from diptych.cca._sklearn import name_columns, order_by_name
from diptych.cca._spectra import Axes, decompose_gram, decompose_view, resolve_solver
from diptych.cca._weighting import project

SHARES = 10.0 ** np.arange(-3.0, 3.5, 0.5)  # γ to select from, by a view's mean squared singular value
SCORED = 10  # components whose correlations are averaged, if there is no n_components


@dataclass(frozen=True, eq=False)
class ViewSpectra:
    r"""Singular values and vectors of centred views :math:`X_v = U_v S_v V_v^\top`, and their cross products.

    ``cross`` is one matrix of the blocks :math:`V_v^\top X_v^\top X_w V_w`, with 0 where v = w, and
    ``resolution`` its relative rounding error, as in ``Spectra``.
    """

    count: int
    means: list[Array]
    axes: list[Axes]
    cross: Array
    resolution: float

    @classmethod
    def of(cls, views: Sequence[Array]) -> ViewSpectra:
        """Decompose views, or their Gram matrices where that is less work, as ``spectra`` does."""
        xp, n = namespace(*views), int(views[0].shape[0])
        names = [f"view {number}" for number in range(1, len(views) + 1)]
        sizes = [int(view.shape[1]) for view in views]
        if resolve_solver("auto", (n, max(sizes)), (n, min(sizes))) == "svd":
            ones, matrices = move_like(np.ones(n), views[0]), [xp.astype(view, xp.float64) for view in views]
            items = [(view, ones, name) for view, name in zip(matrices, names, strict=True)]
            parts = map_lapack(lambda item: decompose_view(*item), items, ones)
            means, axes = [part[0] for part in parts], [part[2:] for part in parts]
            rows = xp.concat([part[1] for part in parts], axis=1)
            cross, resolution = multiply_transposed([(rows, rows)])[0], 0.0
        else:
            moments = Moments.of(xp.concat(views, axis=1), views[0][:, :1])
            gram, places = moments.xx, find_places(sizes)
            grams = [(gram[at, at], "float64", name) for at, name in zip(places, names, strict=True)]
            axes = map_lapack(lambda item: decompose_gram(*item), grams, gram)
            means, located = [moments.x_mean[at] for at in places], list(zip(places, axes, strict=True))
            gram = xp.concat([multiply(gram[:, at], v) for at, (_, v) in located], axis=1)
            cross = xp.concat([multiply(v.T, gram[at, :]) for at, (_, v) in located])
            resolution = float(xp.finfo(cross.dtype).eps)
        for at in find_places([int(s.shape[0]) for s, _ in axes]):
            cross[at, at] = 0.0
        return cls(n, means, axes, cross, resolution)

    def roots(self, gammas: Sequence[float]) -> list[Array]:
        r"""Return the diagonal of :math:`D_v^{-1/2} = (S_v^2 + \gamma_v)^{-1/2}` of each view."""
        denominators = [Tikhonov(g).denominators(s) for g, (s, _) in zip(gammas, self.axes, strict=True)]
        return [1.0 / namespace(d).sqrt(d) for d in denominators]

    def scale_gammas(self, share: float) -> list[float]:
        """Return γ of each view: a share of its mean squared singular value."""
        return [share * float(namespace(s).mean(s * s)) for s, _ in self.axes]


def find_places(sizes: Sequence[int]) -> list[slice]:
    """Return where each of several parts of these sizes is in a whole."""
    return [slice(start, end) for start, end in pairwise(np.cumsum([0, *sizes]).tolist())]


def generalized_cca(
    spectra: ViewSpectra, gammas: Sequence[float], most: int | None = None
) -> tuple[Array, list[Array]]:
    r"""Return eigenvalues, descending, and the weights of each view, of regularised MAXVAR; ``most`` of them.

    Kettenring (1971) maximises the largest eigenvalue λ of the correlation matrix of one variate of each
    view; without regularisation its group configuration consists of eigenvectors of
    :math:`\sum_v X_v (X_v^\top X_v)^{-1} X_v^\top`. Regularisation adds :math:`\sqrt{\gamma_v} I` to the rows
    of view v, where all other views are 0, so that :math:`D_v = S_v^2 + \gamma_v` in place of
    :math:`S_v^2`, as in CCA. Those are then eigenvectors of the matrix of the blocks I where v = w, and
    :math:`T_{vw} = D_v^{-1/2} V_v^\top X_v^\top X_w V_w D_w^{-1/2}` elsewhere, which has no side of n rows.

    With parts :math:`p_v` of an eigenvector of length 1, the weights are
    :math:`\sqrt{m} V_v D_v^{-1/2} p_v` for m views. For two, :math:`λ = 1 + σ`, and they are those of
    ``regularized_cca``. Components with λ ≤ 1 have no positive correlation and are left out.
    """
    xp = namespace(spectra.cross)
    roots = spectra.roots(gammas)
    root = xp.concat(roots)
    size = int(root.shape[0])
    wanted = size if most is None else min(most, size)
    values, vectors = leading_eigenvectors(root[:, None] * spectra.cross * root, wanted)
    magnified = max(float(s[0] * xp.max(root)) for (s, _), root in zip(spectra.axes, roots, strict=True))
    tolerance = max(size * float(xp.finfo(values.dtype).eps), spectra.resolution * magnified**2)
    keep = int(xp.count_nonzero(values > tolerance))
    if keep == 0:
        raise InputError(UNCORRELATED.replace("two ", ""))
    places = find_places([int(root.shape[0]) for root in roots])
    weights = [
        len(roots) ** 0.5 * multiply(v, root[:, None] * vectors[at, :keep])
        for root, at, (_, v) in zip(roots, places, spectra.axes, strict=True)
    ]
    largest = xp.argmax(xp.abs(weights[0]), axis=0)
    signs = xp.sign(xp.take_along_axis(weights[0], largest[None, :], axis=0))
    return 1.0 + values[:keep], [view * signs for view in weights]


def correlate_variates(variates: Sequence[Array]) -> Array:
    """Return the correlations of each component between views: components × views × views."""
    xp = namespace(*variates)
    rows = xp.permute_dims(xp.stack(list(variates)), (2, 0, 1))
    rows = rows - xp.mean(rows, axis=2, keepdims=True)
    lengths = xp.linalg.vector_norm(rows, axis=2, keepdims=True)
    rows = rows / xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    return rows @ xp.permute_dims(rows, (0, 2, 1))


class GCCA(BaseEstimator):  # type: ignore[misc]
    r"""Regularised generalised CCA of two or more views of the same rows (MAXVAR).

    It finds one variate of each view, :math:`X_v u_v`, such that all of them correlate with each other: the
    correlation matrix of the variates has the largest eigenvalue λ that is possible. Later components are
    uncorrelated with the earlier ones over all views together. For two views this is regularised CCA, with
    the weights of ``AWCCA`` and λ = 1 + correlation.

    Parameters
    ----------
    n_components : int or None
        Components to keep, the first; None keeps all with λ above 1, that is, with a positive correlation.
    params : sequence of float, {"ledoit-wolf", "oas"} or None
        Regularisation: γ of each view, in units of XᵀX, a sum over rows. Or a γ of each view from theory, by
        shrinkage, which does not depend on which rows belong together. None selects on a fifth of the rows,
        which are held out at random: γ is one multiple, from 0.001 to 1000, of each view's mean squared
        singular value, the one whose variates correlate most in these rows, on average over pairs of views
        and ``n_components`` (or else the first 10). The model is then fitted on all rows.
    random_state : int or None
        Seeds the choice of the held-out rows.

    Attributes
    ----------
    weights_ : list of array
        Canonical weights of each view, features × components. The entry of largest magnitude in each column
        of the first view's is positive.
    means_ : list of array
        Means of each view.
    eigenvalues_ : array
        λ of each component, descending: m if the variates of all m views are equal, 1 if no two correlate.
    correlations_ : array
        Correlations of the variates of the training rows, components × views × views; chance raises them.
    params_ : list of float
        γ of each view.
    feature_names_, n_rows_ : list, int
        Names of the columns of each view, None where it was no data frame with names; number of rows.

    References
    ----------
    Kettenring (1971), "Canonical analysis of several sets of variables", Biometrika 58.

    Examples
    --------
    >>> import numpy as np
    >>> from diptych import GCCA
    >>> rng = np.random.default_rng(0)
    >>> hidden = rng.normal(size=(200, 2))
    >>> views = [hidden @ rng.normal(size=(2, m)) + rng.normal(size=(200, m)) for m in (8, 6, 5)]
    >>> model = GCCA(n_components=2).fit(views)
    >>> model.correlations_.shape
    (2, 3, 3)
    >>> first, second, third = model.transform([views[0], None, views[2]])
    >>> first.shape, second
    ((200, 2), None)
    """

    def __init__(
        self,
        n_components: int | None = None,
        params: Sequence[float] | str | None = None,
        random_state: int | None = 0,
    ) -> None:
        self.n_components = n_components
        self.params = params
        self.random_state = random_state

    def fit(self, views: Sequence[Any]) -> GCCA:
        """Fit on views with the same rows, in a list; row i of each belongs to row i of the others.

        Data frames whose rows have the same labels in another order are matched by label, with a
        ``DataWarning``; labels that do not agree are refused.
        """
        self._fit(views)
        return self

    def transform(self, views: Sequence[Any]) -> list[Any]:
        """Return the variates of each view, rows × components, in a list; None for a view that is None.

        Views need not have the same rows.
        """
        check_is_fitted(self)
        if not isinstance(views, (list, tuple)) or len(views) != len(self.means_):
            fitted = f"the model was fitted on {len(self.means_)} views"
            raise InputError(f"{fitted}; give a list of as many, with None for a view that is missing.")
        checked = list(views)
        for at, (view, names, mean) in enumerate(zip(views, self.feature_names_, self.means_, strict=True)):
            if view is not None:
                rows = order_by_name(second_view(view), names, f"view {at + 1}")
                checked[at] = check_view(rows, f"view {at + 1}", n_features=len(mean))
        return self._project(checked)

    def fit_transform(self, views: Sequence[Any]) -> list[Any]:
        """Fit, and return the variates of each view."""
        return self._project(self._fit(views))

    def _fit(self, views: Sequence[Any]) -> list[Array]:
        """Fit, and return the views as matrices."""
        wanted = None if self.n_components is None else check_count(self.n_components, "n_components")
        check_seed(self.random_state)
        names, matrices = check_views(views)
        with one_blas_thread():
            spectra = ViewSpectra.of(matrices)
            params = self._choose_params(matrices, spectra)
            values, weights = generalized_cca(spectra, params, wanted)
            if wanted is not None and wanted > len(values):
                most = f"give 1 to {len(values)}, or None"
                raise InputError(f"n_components={wanted} is not possible here; {most}.")
            self.eigenvalues_, self.weights_, self.params_ = values, weights, params
            self.means_, self.n_rows_, self.feature_names_ = spectra.means, spectra.count, names
            self.correlations_ = correlate_variates(self._project(matrices))
        return matrices

    def _project(self, views: Sequence[Any]) -> list[Any]:
        parts = zip(views, self.means_, self.weights_, strict=True)
        return [None if view is None else project(view, mean, weights) for view, mean, weights in parts]

    def _choose_params(self, views: Sequence[Array], spectra: ViewSpectra) -> list[float]:
        """Return γ of each view as ``params`` says."""
        n, params = spectra.count, self.params
        if isinstance(params, str):
            check_choice(params, SHRINKAGES, "params")
            rows = move_like(np.arange(n), views[0])
            return [shrinkage_gammas(view, view, rows, params)[0] for view in views]
        if params is not None:
            return check_gammas(params, len(views))
        if n < FEW_PAIRS:
            advice = "give params='ledoit-wolf', or one γ for each view"
            raise InputError(f"{n} rows are too few to select γ on some of them; {advice}.")
        split = train_test_split(np.arange(n), test_size=0.2, random_state=self.random_state)
        fitted, held_out = ([view[move_like(rows, view), :] for view in views] for rows in split)
        of_fitted = ViewSpectra.of(fitted)
        between = ~np.eye(len(views), dtype=bool)

        def score(share: float) -> float:
            gammas = of_fitted.scale_gammas(share)
            _, weights = generalized_cca(of_fitted, gammas, self.n_components or SCORED)
            variates = map(project, held_out, of_fitted.means, weights)
            return float(to_numpy(correlate_variates(list(variates)))[:, between].mean())

        return spectra.scale_gammas(max(SHARES.tolist(), key=score))


def check_gammas(gammas: Any, n_views: int) -> list[float]:
    """Return γ of each view, if there is one for each."""
    if not isinstance(gammas, (list, tuple, np.ndarray)) or len(gammas) != n_views:
        raise InputError(f"{gammas!r} is not a γ for each of {n_views} views; give {n_views} numbers.")
    return [Tikhonov(gamma).gamma for gamma in gammas]


def check_views(views: Any) -> tuple[list[Any], list[Array]]:
    """Return the names of the columns of each view (None without names), and the views as matrices.

    Rows have the order of those of the first view, by their labels.
    """
    if not isinstance(views, (list, tuple)) or len(views) < 2:
        raise InputError("GCCA takes a list of two or more views, as in fit([x1, x2, x3]).")
    names: list[Any] = []
    matrices: list[Array] = []
    for number, view in enumerate(views, 1):
        name = f"view {number}"
        if view is None:
            raise InputError(f"{name} is None; give all views (only transform takes None for one).")
        rows = order_rows(second_view(view), views[0], name, "view 1")
        names.append(name_columns(rows, name))
        matrices.append(check_view(rows, name))
        check_same_backend(matrices[0], matrices[-1], "view 1", name)
        if len(matrices[-1]) != len(matrices[0]):
            sizes = f"{name} has {len(matrices[-1]):,} rows and view 1 has {len(matrices[0]):,}"
            raise InputError(f"{sizes}; give views of the same rows.")
    return names, matrices
