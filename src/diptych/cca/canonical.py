"""Björck-Golub canonical correlation analysis, plain and regularised (Algorithm 1, Theorem 1)."""

from __future__ import annotations

from dataclasses import dataclass

from diptych.arrays import Array, namespace, svd
from diptych.cca.filters import AnyFilter, TruncatedSVD
from diptych.cca.spectra import Spectra
from diptych.checks import InputError


@dataclass(frozen=True, eq=False)
class CanonicalModel:
    """A fitted model: canonical correlations Σ and canonical weights U, V, for centred data.

    Attributes
    ----------
    correlations
        Σ, descending, in [0, 1].
    x_weights, y_weights
        U and V, features × components. The entry of largest magnitude in each column of U is positive.
    filter_x, filter_y
        The filters it was made with.
    """

    correlations: Array
    x_weights: Array
    y_weights: Array
    filter_x: AnyFilter
    filter_y: AnyFilter


def bjorck_golub(spectra: Spectra, n_components: int | None = None) -> CanonicalModel:
    """Plain CCA (Algorithm 1): the regularised model that keeps every direction as it is."""
    rank_x, rank_y = spectra.ranks
    return regularized_cca(spectra, TruncatedSVD(rank_x), TruncatedSVD(rank_y), n_components)


def regularized_cca(
    spectra: Spectra,
    filter_x: AnyFilter,
    filter_y: AnyFilter,
    n_components: int | None = None,
    *,
    tolerance: float | None = None,
) -> CanonicalModel:
    r"""Regularised CCA at fixed parameters (Theorem 1).

    .. math:: T = D_x^{-1/2} T_0 D_y^{-1/2} = P_x \Sigma P_y^\top, \qquad
              U = V_x D_x^{-1/2} P_x, \quad V = V_y D_y^{-1/2} P_y

    where :math:`D = S^2 + \gamma` for Tikhonov and :math:`D = S^2` on the first k directions for the
    truncated SVD.

    Parameters
    ----------
    n_components
        Components to keep; None keeps those whose correlation rises above rounding error.
    tolerance
        Smallest correlation that counts as more than rounding error; None works it out from the
        precision of the spectra and from how far the filters magnify it.
    """
    d_x, d_y = filter_x.denominators(spectra.s_x), filter_y.denominators(spectra.s_y)
    k_x, k_y = int(d_x.shape[0]), int(d_y.shape[0])
    xp = namespace(d_x)
    root_x, root_y = 1.0 / xp.sqrt(d_x), 1.0 / xp.sqrt(d_y)
    t = root_x[:, None] * spectra.t0[:k_x, :k_y] * root_y
    p_x, sigma, p_y = svd(t)
    if tolerance is None:
        magnified = spectra.resolution * float(
            spectra.s_x[0] * spectra.s_y[0] * xp.max(root_x) * xp.max(root_y)
        )
        tolerance = max(float(xp.finfo(t.dtype).eps) * max(k_x, k_y) * float(sigma[0]), magnified)
    keep = int(xp.count_nonzero(sigma > tolerance))
    if keep == 0:
        raise InputError("the two views are not correlated at all; check that the pairing is right.")
    if n_components is not None:
        if not 1 <= n_components <= sigma.shape[0]:
            raise InputError(
                f"n_components={n_components} is not possible here; give 1 to {int(sigma.shape[0])}, or None."
            )
        keep = min(keep, n_components)
    x_weights = spectra.v_x[:, :k_x] @ (root_x[:, None] * p_x[:, :keep])
    y_weights = spectra.v_y[:, :k_y] @ (root_y[:, None] * p_y[:keep, :].T)
    signs = _signs(x_weights)
    correlations = xp.minimum(sigma[:keep], xp.ones_like(sigma[:keep]))
    return CanonicalModel(correlations, x_weights * signs, y_weights * signs, filter_x, filter_y)


def _signs(weights: Array) -> Array:
    xp = namespace(weights)
    largest = xp.argmax(xp.abs(weights), axis=0)
    return xp.sign(xp.take_along_axis(weights, largest[None, :], axis=0))
