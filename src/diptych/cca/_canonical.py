"""Björck-Golub canonical correlation analysis, plain and regularised (Algorithm 1, Theorem 1)."""

from __future__ import annotations

from dataclasses import dataclass

from diptych._arrays import Array, count_groups, group_sum, move_like, namespace, svd
from diptych._checks import InputError
from diptych.cca._filters import AnyFilter, TruncatedSVD
from diptych.cca._spectra import Spectra


@dataclass(frozen=True, eq=False)
class CanonicalModel:
    """A fitted model: canonical correlations Σ and canonical weights U, V, for centred data.

    Attributes
    ----------
    correlations
        Σ, descending, in [0, 1]: the singular values of the regularised T, as in the paper. They weigh the
        side that is searched. They are the correlations of no data: regularisation shrinks them (a true
        correlation of 0.98 may stand as 0.49), chance raises them (views that have nothing to do with each
        other may have 0.7), and without regularisation all are 1 as soon as features outnumber pairs.
    x_weights, y_weights
        U and V, features × components. The entry of largest magnitude in each column of U is positive.
    filter_x, filter_y
        The filters it was made with.
    train_correlations
        How each pair of canonical variates correlates over the training pairs; chance raises these too.
    validation_correlations
        The same over validation pairs, which the model has not seen: the correlations to believe. Where
        training pairs were held out, those of the model without them, before it was refitted on all. None if
        there were no such pairs.
    """

    correlations: Array
    x_weights: Array
    y_weights: Array
    filter_x: AnyFilter
    filter_y: AnyFilter
    train_correlations: Array | None = None
    validation_correlations: Array | None = None


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
    inner_x, inner_y = root_x[:, None] * p_x[:, :keep], root_y[:, None] * p_y[:keep, :].T
    x_weights, y_weights = spectra.v_x[:, :k_x] @ inner_x, spectra.v_y[:, :k_y] @ inner_y
    signs = _signs(x_weights)
    ones = xp.ones_like(sigma[:keep])
    correlations = xp.minimum(sigma[:keep], ones)
    # uᵀXᵀYv = σ, and ‖Xu‖ = ‖S_x D_x^-½ p‖.
    lengths = [
        xp.linalg.vector_norm(s[:k, None] * inner, axis=0)
        for s, k, inner in ((spectra.s_x, k_x, inner_x), (spectra.s_y, k_y, inner_y))
    ]
    train = xp.minimum(sigma[:keep] / (lengths[0] * lengths[1]), ones)
    return CanonicalModel(correlations, x_weights * signs, y_weights * signs, filter_x, filter_y, train)


def variate_correlations(
    model: CanonicalModel, spectra: Spectra, x: Array, y: Array, pairing: Array
) -> Array:
    """Return the correlation of each pair of canonical variates over the given pairs; 0 for a constant one.

    ``spectra`` are those that ``model`` was made from; row j of ``y`` belongs to row ``pairing[j]`` of ``x``.
    """
    xp = namespace(x, y)
    n_images, n = x.shape[0], y.shape[0]
    counts = xp.astype(count_groups(pairing, n_images), x.dtype)
    u, v = (
        (view - move_like(mean, view, dtype=view.dtype)) @ move_like(weights, view, dtype=view.dtype)
        for view, mean, weights in (
            (x, spectra.x_mean, model.x_weights),
            (y, spectra.y_mean, model.y_weights),
        )
    )
    u, v = u - (counts @ u) / n, v - xp.mean(v, axis=0)
    products = xp.sum(u * xp.astype(group_sum(v, pairing, n_images), u.dtype, copy=False), axis=0)
    lengths = xp.sqrt(counts @ (u * u)) * xp.linalg.vector_norm(v, axis=0)
    found = xp.where(lengths > 0, products / xp.where(lengths > 0, lengths, xp.ones_like(lengths)), 0.0)
    return xp.clip(found, -1.0, 1.0)


def _signs(weights: Array) -> Array:
    xp = namespace(weights)
    largest = xp.argmax(xp.abs(weights), axis=0)
    return xp.sign(xp.take_along_axis(weights, largest[None, :], axis=0))
