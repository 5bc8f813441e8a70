"""Björck-Golub canonical correlation analysis, plain and regularised (Algorithm 1, Theorem 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from array_api_compat import is_numpy_array

from diptych._arrays import Array, count_groups, eigh_descending, group_sum, namespace, svd
from diptych._checks import InputError
from diptych.cca._filters import AnyFilter, TruncatedSVD
from diptych.cca._polish import Polish
from diptych.cca._spectra import Spectra
from diptych.cca._weighting import project


@dataclass(frozen=True, eq=False)
class CanonicalModel:
    """A fitted model: canonical correlations Σ and canonical weights U, V, for centred features.

    Attributes
    ----------
    correlations
        Σ, descending, in [0, 1]: the singular values of the regularised T, as in the paper. They weight the
        view that is searched. They are not the correlations of any data: regularisation lowers them (a true
        correlation of 0.98 may become 0.49), chance raises them (unrelated views may have 0.7), and without
        regularisation all of them are 1 as soon as features outnumber pairs.
    x_weights, y_weights
        U and V, features × components. The entry of largest magnitude in each column of U is positive.
    filter_x, filter_y
        The filters of the model.
    train_correlations
        Correlation of each pair of canonical variates over the training pairs; chance raises these too.
    validation_correlations
        The same over validation pairs, which the model has not seen: the ones to trust. If the validation
        pairs were held out of the training pairs, they are those of the model fitted without them, before it
        was refitted on all pairs. None without validation pairs.
    polish
        Matrices that multiply the weighted vectors; see ``AWCCA(polish=…)``. None if there are none.

    >>> import numpy as np
    >>> from diptych.cca import bjorck_golub, spectra
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> bjorck_golub(spectra(x, x[:, :2])).correlations.round(3)
    array([1., 1.])
    """

    correlations: Array
    x_weights: Array
    y_weights: Array
    filter_x: AnyFilter
    filter_y: AnyFilter
    train_correlations: Array | None = None
    validation_correlations: Array | None = None
    polish: Polish | None = None


def keep_components(model: CanonicalModel, most: int) -> CanonicalModel:
    """Return the model with at most so many of its components, the first."""
    if int(model.correlations.shape[0]) <= most:
        return model
    measured: dict[str, Any] = {
        name: None if (array := getattr(model, name)) is None else array[:most]
        for name in ("train_correlations", "validation_correlations")
    }
    x_weights, y_weights = model.x_weights[:, :most], model.y_weights[:, :most]
    return replace(
        model, correlations=model.correlations[:most], x_weights=x_weights, y_weights=y_weights, **measured
    )


def bjorck_golub(spectra: Spectra, n_components: int | None = None) -> CanonicalModel:
    """Return the plain CCA model (Algorithm 1): ``regularized_cca`` with every direction kept as it is.

    >>> import numpy as np
    >>> from diptych.cca import bjorck_golub, spectra
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> bjorck_golub(spectra(x, -x), n_components=2).x_weights.shape
    (3, 2)
    """
    rank_x, rank_y = spectra.ranks
    return regularized_cca(spectra, TruncatedSVD(rank_x), TruncatedSVD(rank_y), n_components)


def decompose_t(
    t0: Array, root_x: Array, root_y: Array, leading: int | None = None
) -> tuple[Array, Array, Array]:
    r"""Return :math:`P_x, \Sigma, P_y` of :math:`T = D_x^{-1/2} T_0 D_y^{-1/2} = P_x \Sigma P_y^\top`.

    This is the one SVD of Algorithms 1 to 4. ``root_x`` and ``root_y`` are the diagonals of
    :math:`D^{-1/2}`; where they are shorter than a side of ``t0``, the remaining directions are dropped, so
    that a truncated SVD decomposes the submatrix of equation 9. P are returned as columns.

    With ``leading``, only so many components are computed, as eigenvectors of TTᵀ or TᵀT, whichever is
    smaller: several times faster where they are few. Squaring T loses correlations below the square root of
    the rounding error, which are not among the first; components that small are left out.
    """
    t = root_x[:, None] * t0[: root_x.shape[0], : root_y.shape[0]] * root_y
    if leading is None:
        p_x, sigma, p_y = svd(t)
        return p_x, sigma, p_y.T
    xp = namespace(t)
    wide = t.shape[0] <= t.shape[1]
    gram = t @ t.T if wide else t.T @ t
    if is_numpy_array(gram):
        import scipy.linalg

        size = gram.shape[0]
        squares, vectors = scipy.linalg.eigh(
            gram, subset_by_index=(size - leading, size - 1), overwrite_a=True, check_finite=False
        )
        squares, near = squares[::-1], vectors[:, ::-1]
    else:
        squares, near = (part[..., :leading] for part in eigh_descending(gram))
    sigma = xp.sqrt(xp.clip(squares, 0.0, None))
    keep = int(xp.count_nonzero(sigma > float(xp.finfo(t.dtype).eps) ** 0.5 * sigma[0]))
    sigma, near = sigma[:keep], near[:, :keep]
    far = (t.T @ near if wide else t @ near) / sigma
    return (near, sigma, far) if wide else (far, sigma, near)


def regularized_cca(
    spectra: Spectra,
    filter_x: AnyFilter,
    filter_y: AnyFilter,
    n_components: int | None = None,
    *,
    tolerance: float | None = None,
    leading: bool = False,
) -> CanonicalModel:
    r"""Return the regularised CCA model at fixed parameters (Theorem 1).

    It maximises :math:`\mathrm{tr}(U^\top X^\top Y V)` with U and V orthonormal in the regularised
    covariances (equations 6 and 7). The solution is

    .. math:: T = D_x^{-1/2} T_0 D_y^{-1/2} = P_x \Sigma P_y^\top, \qquad
              U = V_x D_x^{-1/2} P_x, \quad V = V_y D_y^{-1/2} P_y

    where :math:`D = S^2 + \gamma` for Tikhonov (Theorem 1.1), :math:`D = S^2` on the first k directions for
    the truncated SVD (Theorem 1.2), and :math:`D = 1/g(S^2)` for any other spectral filter (Theorem 1.3).

    Parameters
    ----------
    spectra
        Of the training pairs.
    filter_x, filter_y
        The filters of both views.
    n_components
        Components to keep; None keeps those whose correlation is above rounding error.
    tolerance
        Largest correlation that counts as rounding error; None computes it from the precision of the
        spectra and from how far the filters magnify it.
    leading
        Compute the first ``n_components`` alone, which is several times faster where they are few; see
        ``decompose_t``.

    >>> import numpy as np
    >>> from diptych.cca import Tikhonov, regularized_cca, spectra
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> model = regularized_cca(spectra(x, x[:, :2]), Tikhonov(5.0), Tikhonov(5.0))
    >>> bool(model.correlations[0] < 1)
    True
    """
    d_x, d_y = filter_x.denominators(spectra.s_x), filter_y.denominators(spectra.s_y)
    k_x, k_y = int(d_x.shape[0]), int(d_y.shape[0])
    if n_components is not None and not 1 <= n_components <= min(k_x, k_y):
        raise InputError(
            f"n_components={n_components} is not possible here; give 1 to {min(k_x, k_y)}, or None."
        )
    xp = namespace(d_x)
    root_x, root_y = 1.0 / xp.sqrt(d_x), 1.0 / xp.sqrt(d_y)
    p_x, sigma, p_y = decompose_t(spectra.t0, root_x, root_y, n_components if leading else None)
    if tolerance is None:
        rounding = float(xp.finfo(sigma.dtype).eps) * max(k_x, k_y) * float(sigma[0])
        magnified = float(spectra.s_x[0] * spectra.s_y[0] * xp.max(root_x) * xp.max(root_y))
        tolerance = max(rounding, spectra.resolution * magnified)
    keep = int(xp.count_nonzero(sigma > tolerance))
    if keep == 0:
        raise InputError("the two views are not correlated at all; check that the pairing is right.")
    keep = keep if n_components is None else min(keep, n_components)
    sigma, inner_x, inner_y = sigma[:keep], root_x[:, None] * p_x[:, :keep], root_y[:, None] * p_y[:, :keep]
    x_weights, y_weights = spectra.v_x[:, :k_x] @ inner_x, spectra.v_y[:, :k_y] @ inner_y
    # The correlation of Xu and Yv: uᵀXᵀYv = σ, and ‖Xu‖ = ‖S_x D_x^-½ p‖.
    lengths_x, lengths_y = (
        xp.linalg.vector_norm(s[:k, None] * inner, axis=0)
        for s, k, inner in ((spectra.s_x, k_x, inner_x), (spectra.s_y, k_y, inner_y))
    )
    ones = xp.ones_like(sigma)
    train = xp.minimum(sigma / (lengths_x * lengths_y), ones)
    largest = xp.argmax(xp.abs(x_weights), axis=0)
    signs = xp.sign(xp.take_along_axis(x_weights, largest[None, :], axis=0))
    return CanonicalModel(
        xp.minimum(sigma, ones), x_weights * signs, y_weights * signs, filter_x, filter_y, train
    )


def variate_correlations(
    model: CanonicalModel, spectra: Spectra, x: Array, y: Array, pairing: Array
) -> Array:
    """Return the correlation of each pair of canonical variates over some pairs; 0 for a constant one.

    ``spectra`` are those of ``model``; row j of ``y`` belongs to row ``pairing[j]`` of ``x``.
    """
    xp = namespace(x, y)
    n_images, n = x.shape[0], y.shape[0]
    counts = xp.astype(count_groups(pairing, n_images), x.dtype)
    u, v = project(x, spectra.x_mean, model.x_weights), project(y, spectra.y_mean, model.y_weights)
    u, v = u - (counts @ u) / n, v - xp.mean(v, axis=0)
    products = xp.sum(u * xp.astype(group_sum(v, pairing, n_images), u.dtype, copy=False), axis=0)
    lengths = xp.sqrt(counts @ (u * u)) * xp.linalg.vector_norm(v, axis=0)
    safe = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    return xp.clip(xp.where(lengths > 0, products / safe, 0.0), -1.0, 1.0)
