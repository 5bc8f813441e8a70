"""CCA and PLS: one model of two views, for those who analyse them rather than search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NoReturn

from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array
from diptych._checks import InputError
from diptych.cca._awcca import AWCCA
from diptych.cca._canonical import CanonicalModel
from diptych.cca._settings import Params, params_of_filters


class CCA(AWCCA):
    r"""Canonical correlation analysis, regularised as much as is best on held-out samples.

    It maximises :math:`\mathrm{tr}(U^\top X^\top Y V)` subject to :math:`U^\top (X^\top X + \gamma_x I) U =
    I` and :math:`V^\top (Y^\top Y + \gamma_y I) V = I`. It is an ``AWCCA`` whose components are not weighted:
    both tasks of that class are then one model, and ``task`` changes nothing.

    Parameters
    ----------
    n_components : int or None
        The number of components; None: all.
    params : pair or None
        ``(γ_x, γ_y)``, in units of XᵀX, a sum over samples; ``(0, 0)`` is the CCA of the textbooks. None
        selects both by ``metric="correlation"``, as in ``AWCCA``: the mean correlation of the first
        ``n_components`` (None: of the first) over held-out samples.
    scale : bool
        Divide the columns of both views by their standard deviations over samples, so that units do not
        matter.
    grid, validation_fraction, random_state, verbose
        As in ``AWCCA``; more is held out, because a correlation of few samples says little.

    Attributes
    ----------
    correlations_ : array
        Correlations of the variates over the training samples, which chance raises; ``score`` and
        ``diptych.stats.cross_validated_correlations`` measure them on others.
    x_weights_, y_weights_ : array
        Canonical weights, features × components: those of standardised columns if ``scale``, so that
        ``transform(X)`` is ``(X / x_scale_ - x_mean_) @ x_weights_``.
    x_mean_, y_mean_, x_scale_, y_scale_ : array
        Means of the columns, after their division by their scales; the scales, if ``scale``.
    path_ : Path or None
        Grid and scores of the selection; None if ``params`` were given.

    Examples
    --------
    >>> from sklearn.datasets import load_linnerud
    >>> from diptych import CCA
    >>> exercises, physiology = load_linnerud(return_X_y=True)
    >>> model = CCA(params=(0, 0)).fit(exercises, physiology)
    >>> model.correlations_.round(4)
    array([0.7956, 0.2006, 0.0726])
    >>> u, v = model.transform(exercises, physiology)
    """

    filter = "tikhonov"
    metric = "correlation"
    weighting = "none"
    similarity = "cosine"
    solver = "auto"
    precision = "float64"
    path_metrics = "metric"
    normalize = ("none", "none")
    selection = "validation"
    polish = False
    _kind: Literal["AWCCA", "CCA", "PLS"] = "CCA"

    def __init__(
        self,
        n_components: int | None = None,
        params: Params | None = None,
        *,
        scale: bool = True,
        grid: int | tuple[str, int] | tuple[Sequence[float], Sequence[float]] = 10,
        validation_fraction: float = 0.35,
        random_state: int | None = 0,
        verbose: bool | None = None,
    ) -> None:
        self.n_components = n_components
        self.params = params
        self.scale = scale
        self.grid = grid
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.verbose = verbose

    @property
    def correlations_(self) -> Array:
        """Correlations of the variates over the training samples."""
        return self._model.train_correlations

    @property
    def x_weights_(self) -> Array:
        """Canonical weights of X, features × components."""
        return self._model.x_weights

    @property
    def y_weights_(self) -> Array:
        """Canonical weights of Y, features × components."""
        return self._model.y_weights

    @property
    def _model(self) -> CanonicalModel:
        check_is_fitted(self)
        return self.models_["search"]

    def projector(self, task: str = "search") -> NoReturn:
        """Raise an error: a search needs an ``AWCCA``."""
        raise InputError(f"a {self._kind} analyses two views and does not search; use AWCCA.")

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.sparse and not self.scale
        return tags


class PLS(CCA):
    r"""Partial least squares correlation (PLSC, PLS-SVD): the directions in which two views covary most.

    Weights are the singular vectors of XᵀY, of length 1. It is what ``CCA`` becomes for γ → ∞. Parameters are
    those of ``CCA``, without anything to select.

    Attributes
    ----------
    covariances_ : array
        Covariances of the variates: the singular values of XᵀY / n.
    correlations_, x_weights_, y_weights_, x_mean_, y_mean_, x_scale_, y_scale_ : array
        As in ``CCA``.

    References
    ----------
    McIntosh and Lobaugh (2004), "Partial least squares analysis of neuroimaging data: applications and
    advances", NeuroImage 23.

    Examples
    --------
    >>> from sklearn.datasets import load_linnerud
    >>> from diptych import PLS
    >>> exercises, physiology = load_linnerud(return_X_y=True)
    >>> PLS().fit(exercises, physiology).covariances_.round(4)
    array([1.128 , 0.0752, 0.0333])
    """

    filter = "pls"
    params = (1.0, 1.0)
    grid = 1
    validation_fraction = 0.35
    random_state = None
    _kind = "PLS"

    def __init__(
        self, n_components: int | None = None, *, scale: bool = True, verbose: bool | None = None
    ) -> None:
        self.n_components = n_components
        self.scale = scale
        self.verbose = verbose

    @property
    def covariances_(self) -> Array:
        """Covariances of the variates over the training samples: the singular values of XᵀY / n."""
        values, total = self._model.correlations, self._check_spectra("covariances_").total
        return values * params_of_filters(self.models_.filters)["search"][0] / total
