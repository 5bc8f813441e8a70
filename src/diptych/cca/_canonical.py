"""Björck-Golub canonical correlation analysis, plain and regularised (Algorithm 1, Theorem 1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from array_api_compat import is_numpy_array

from diptych._arrays import Array, count_groups, eigh_descending, group_sum, namespace, svd
from diptych._checks import InputError, Task
from diptych._threads import map_lapack, multiply, multiply_transposed
from diptych.cca._filters import AnyFilter, Isotropic, TruncatedSVD
from diptych.cca._spectra import Spectra

if TYPE_CHECKING:
    from diptych.cca._polish import Polish


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

    @property
    def epochs(self) -> int:
        """The epochs of the polish; 0 if there is none."""
        return 0 if self.polish is None else self.polish.epochs


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


UNCORRELATED = "the two views are not correlated at all; check that the pairing is right."

SMALL = 256
"""The size of T up to which its SVD takes no noticeable time."""


def decompose_t(t0: Array, root_x: Array, root_y: Array) -> tuple[Array, Array, Array]:
    r"""Return :math:`P_x, \Sigma, P_y` of :math:`T = D_x^{-1/2} T_0 D_y^{-1/2} = P_x \Sigma P_y^\top`.

    This is the one SVD of Algorithms 1 to 4. ``root_x`` and ``root_y`` are the diagonals of
    :math:`D^{-1/2}`; where they are shorter than a side of ``t0``, the remaining directions are dropped, so
    that a truncated SVD decomposes the submatrix of equation 9. P are returned as columns.
    """
    p_x, sigma, p_y = svd(whiten_t(t0, root_x, root_y))
    return p_x, sigma, p_y.T


def whiten_t(t0: Array, root_x: Array, root_y: Array) -> Array:
    r"""Return :math:`T = D_x^{-1/2} T_0 D_y^{-1/2}`; see ``decompose_t``."""
    return root_x[:, None] * t0[: root_x.shape[0], : root_y.shape[0]] * root_y


def leading_components(t: Array, most: int | None = None) -> tuple[Array, Array, Array]:
    r"""Return :math:`P_x, \Sigma, P_y` of :math:`T = P_x \Sigma P_y^\top`, or their first columns.

    They are eigenvectors of :math:`TT^\top` or :math:`T^\top T`, whichever is smaller, which takes less
    time than an SVD. Squaring T costs accuracy: with the rounding error ε, the vectors of a singular
    value σ are wrong by :math:`ε (σ_1/σ)^2` at most. So this route gives the components above
    :math:`ε^{1/4} σ_1`, whose error is at most :math:`\sqrt ε`. The others are those of the SVD of what
    remains of T without them, if they are few, and all are those of an SVD of T otherwise.
    """
    xp = namespace(t)
    size = min(t.shape)
    wanted = size if most is None else min(most, size)
    # The bound on σ is so high in float32 that hardly any matrix would be above it as a whole.
    if size <= SMALL or (wanted > size // 2 and t.dtype != xp.float64):
        return _first_of_svd(t, wanted)
    wide = t.shape[0] <= t.shape[1]
    far_of = t.T if wide else t
    squares, near = leading_eigenvectors(multiply_transposed([(far_of, far_of)])[0], wanted)
    sigma = xp.sqrt(xp.clip(squares, 0.0, None))
    firm = int(xp.count_nonzero(sigma > float(xp.finfo(t.dtype).eps) ** 0.25 * sigma[0]))
    if firm < wanted and (wanted < size or size - firm > size // 2):
        return _first_of_svd(t, wanted)
    far = multiply(far_of, near[:, :firm]) / sigma[:firm]
    if firm < wanted:
        rest = multiply(far_of, near[:, firm:])
        rest = rest - multiply(far, multiply(far.T, rest))
        rest_far, rest_sigma, turn = map_lapack(svd, [rest], rest)[0]
        sigma = xp.concat([sigma[:firm], rest_sigma])
        near = xp.concat([near[:, :firm], near[:, firm:] @ turn.T], axis=1)
        far = xp.concat([far, rest_far], axis=1)
    return (near, sigma, far) if wide else (far, sigma, near)


def _first_of_svd(t: Array, wanted: int) -> tuple[Array, Array, Array]:
    p_x, sigma, p_y = map_lapack(svd, [t], t)[0]
    return p_x[:, :wanted], sigma[:wanted], p_y.T[:, :wanted]


def leading_eigenvectors(gram: Array, wanted: int) -> tuple[Array, Array]:
    """Return the largest eigenvalues of a symmetric matrix, descending, and their vectors; it may change."""
    size = int(gram.shape[0])
    # For more than a third of the vectors, the subset takes longer than all of them.
    if not is_numpy_array(gram) or wanted > size // 3:
        values, vectors = map_lapack(eigh_descending, [gram], gram)[0]
        return values[:wanted], vectors[:, :wanted]
    from scipy.linalg import eigh

    eigh_last = partial(eigh, subset_by_index=(size - wanted, size - 1), overwrite_a=True, check_finite=False)
    values, vectors = map_lapack(eigh_last, [gram], gram)[0]
    return values[::-1], vectors[:, ::-1]


def _roots(spectra: Spectra, filter_x: AnyFilter, filter_y: AnyFilter) -> tuple[Array, Array]:
    r"""Return the diagonals of :math:`D_x^{-1/2}` and :math:`D_y^{-1/2}`."""
    xp = namespace(spectra.t0)
    d_x, d_y = filter_x.denominators(spectra.s_x), filter_y.denominators(spectra.s_y)
    return 1.0 / xp.sqrt(d_x), 1.0 / xp.sqrt(d_y)


def check_correlated(spectra: Spectra, filter_x: AnyFilter, filter_y: AnyFilter) -> None:
    """Raise an error if all of T is rounding error; its Frobenius norm is at least its first correlation."""
    roots = _roots(spectra, filter_x, filter_y)
    norm = namespace(spectra.t0).linalg.matrix_norm(whiten_t(spectra.t0, *roots))
    if not float(norm) > _rounding_of_t(spectra, *roots):
        raise InputError(UNCORRELATED)


def _rounding_of_t(spectra: Spectra, root_x: Array, root_y: Array) -> float:
    """Return the rounding error of T: that of T0, as far as the filters magnify it."""
    xp = namespace(root_x)
    return spectra.resolution * float(spectra.s_x[0] * spectra.s_y[0] * xp.max(root_x) * xp.max(root_y))


def check_components(
    spectra: Spectra, filter_x: AnyFilter, filter_y: AnyFilter, n_components: int | None
) -> int:
    """Return the most components that a model may have; raise an error if more are wanted."""
    most = min(int(root.shape[0]) for root in _roots(spectra, filter_x, filter_y))
    if n_components is not None and not 1 <= n_components <= most:
        raise InputError(f"n_components={n_components} is not possible here; give 1 to {most}, or None.")
    return most


def forced_ones(spectra: Spectra, filter_x: AnyFilter, filter_y: AnyFilter) -> tuple[int, int, int]:
    """Return how many correlations are 1 whatever the data, and the unregularised directions of both views.

    Centred views of n pairs span subspaces of n − 1 dimensions. If their directions are more than that
    together, the subspaces share some, and there the correlation is 1. A filter that leaves a direction as it
    is does not change that.
    """
    xp = namespace(spectra.t0)
    free = []
    for filter, s in ((filter_x, spectra.s_x), (filter_y, spectra.s_y)):
        d = filter.denominators(s)
        s = s[: d.shape[0]]
        is_free = s * s > (1.0 - 1e-6) * d
        free.append(0 if isinstance(filter, Isotropic) else int(xp.count_nonzero(is_free)))
    return max(0, sum(free) - spectra.count + 1), free[0], free[1]


def ranking_maps(
    spectra: Spectra, filter_x: AnyFilter, filter_y: AnyFilter, task: Task, *, short: bool = False
) -> tuple[Array, Array]:
    r"""Return maps of X and of Y, features × directions, that rank as AW-CCA does at full dimension.

    They are those of ``maps`` with the asymmetric weighting, up to a rotation, and need no decomposition of
    T. With :math:`\alpha = D_x^{-1/2} V_x^\top x` and :math:`\beta = D_y^{-1/2} V_y^\top y`, search compares
    :math:`\Sigma P_x^\top \alpha` with :math:`P_y^\top \beta`. Multiplied by :math:`P_y` these are
    :math:`T^\top \alpha` and, if :math:`P_y` is square, :math:`\beta`. Otherwise :math:`\beta` is longer,
    which scales all scores of the query alike.

    With ``short``, X of fewer directions than Y (for ``"annotate"``, the reverse) gives vectors of as many,
    and the same cosines: :math:`R\alpha` and :math:`Q^\top\beta`, where :math:`T^\top = QR`.
    """
    roots = _roots(spectra, filter_x, filter_y)
    whitened = [
        v[:, : root.shape[0]] * root for v, root in zip((spectra.v_x, spectra.v_y), roots, strict=True)
    ]
    t = whiten_t(spectra.t0, *roots)
    item, query = (0, 1) if task == "search" else (1, 0)
    across = t if task == "search" else t.T
    if short and across.shape[0] < across.shape[1]:
        q, r = map_lapack(namespace(t).linalg.qr, [across.T], t)[0]
        whitened[item], whitened[query] = multiply(whitened[item], r.T), multiply(whitened[query], q)
    else:
        whitened[item] = multiply(whitened[item], across)
    return whitened[0], whitened[1]


def regularized_cca(
    spectra: Spectra,
    filter_x: AnyFilter,
    filter_y: AnyFilter,
    n_components: int | None = None,
    *,
    tolerance: float | None = None,
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
        Components to compute, the first; None keeps those whose correlation is above rounding error.
    tolerance
        Largest correlation that counts as rounding error; None computes it from the precision of the
        spectra and from how far the filters magnify it.

    >>> import numpy as np
    >>> from diptych.cca import Tikhonov, regularized_cca, spectra
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> model = regularized_cca(spectra(x, x[:, :2]), Tikhonov(5.0), Tikhonov(5.0))
    >>> bool(model.correlations[0] < 1)
    True
    """
    check_components(spectra, filter_x, filter_y, n_components)
    root_x, root_y = _roots(spectra, filter_x, filter_y)
    k_x, k_y = int(root_x.shape[0]), int(root_y.shape[0])
    xp = namespace(root_x)
    p_x, sigma, p_y = leading_components(whiten_t(spectra.t0, root_x, root_y), n_components)
    if tolerance is None:
        rounding = float(xp.finfo(sigma.dtype).eps) * max(k_x, k_y) * float(sigma[0])
        tolerance = max(rounding, _rounding_of_t(spectra, root_x, root_y))
    keep = int(xp.count_nonzero(sigma > tolerance))
    if keep == 0:
        raise InputError(UNCORRELATED)
    sigma, inner_x, inner_y = sigma[:keep], root_x[:, None] * p_x[:, :keep], root_y[:, None] * p_y[:, :keep]
    x_weights, y_weights = multiply(spectra.v_x[:, :k_x], inner_x), multiply(spectra.v_y[:, :k_y], inner_y)
    # The correlation of Xu and Yv: uᵀXᵀYv = σ, and ‖Xu‖ = ‖S_x D_x^-½ p‖.
    lengths_x, lengths_y = (
        xp.linalg.vector_norm(s[:k, None] * inner, axis=0)
        for s, k, inner in ((spectra.s_x, k_x, inner_x), (spectra.s_y, k_y, inner_y))
    )
    ones = xp.ones_like(sigma)
    train = xp.minimum(sigma / (lengths_x * lengths_y), ones)
    largest = xp.argmax(xp.abs(x_weights), axis=0)
    signs = xp.sign(xp.take_along_axis(x_weights, largest[None, :], axis=0))
    correlations = sigma if isinstance(filter_x, Isotropic) else xp.minimum(sigma, ones)
    return CanonicalModel(correlations, x_weights * signs, y_weights * signs, filter_x, filter_y, train)


def correlate_variates(u: Array, v: Array, pairing: Array) -> Array:
    """Return the correlation of each column of u with that of v over pairs; 0 where one is constant.

    Row j of v belongs to row ``pairing[j]`` of u.

    >>> import numpy as np
    >>> correlate_variates(np.array([[1.0], [2.0]]), np.array([[5.0], [3.0]]), np.array([0, 1])).round(3)
    array([-1.])
    """
    xp, n_x = namespace(u, v), int(u.shape[0])
    counts = xp.astype(count_groups(pairing, n_x), u.dtype)
    u, v = u - (counts @ u) / v.shape[0], v - xp.mean(v, axis=0)
    products = xp.sum(u * xp.astype(group_sum(v, pairing, n_x), u.dtype, copy=False), axis=0)
    return divide_lengths(products, xp.sqrt(counts @ (u * u)) * xp.linalg.vector_norm(v, axis=0))


def divide_lengths(products: Array, lengths: Array) -> Array:
    """Return products divided by lengths, between −1 and 1; 0 where a length is."""
    xp = namespace(products)
    safe = xp.where(lengths > 0, lengths, xp.ones_like(lengths))
    return xp.clip(xp.where(lengths > 0, products / safe, 0.0), -1.0, 1.0)


def mean_correlation(u: Array, v: Array, pairing: Array, n_components: int | None) -> float:
    """Return the mean correlation of the first ``n_components`` (None: the first) of variates over pairs.

    A component that the variates lack counts as 0.
    """
    n = n_components or 1
    return float(namespace(u).sum(correlate_variates(u[:, :n], v[:, :n], pairing))) / n
