"""From features to vectors: row normalisation, weighting by the correlations (Table 1), and projection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import Array, as_dtype, is_sparse, move_like, namespace, replace_entries
from diptych._checks import InputError, check_choice, check_number, check_task
from diptych.cca._sparse import SparseVectors, multiply_any, shift_full_columns, sparse_to_unit_length

if TYPE_CHECKING:
    from diptych.cca._canonical import CanonicalModel


Normalization: TypeAlias = Literal["none", "unit", "signed-sqrt", "sqrt-unit"]
NORMALIZATIONS: tuple[Normalization, ...] = ("none", "unit", "signed-sqrt", "sqrt-unit")


def check_normalization(name: object) -> Normalization:
    """Return ``name`` if it is a normalisation."""
    return cast(Normalization, check_choice(name, NORMALIZATIONS, "normalize"))


def normalize(view: Array, how: str = "unit") -> Array:
    r"""Return the rows of ``view``, normalised.

    ``"none"``: unchanged. ``"unit"``: scaled to length 1. ``"signed-sqrt"``: each entry becomes
    :math:`\mathrm{sign}(v)\sqrt{|v|}`, which reduces the weight of a few large entries. ``"sqrt-unit"``:
    ``"signed-sqrt"``, then ``"unit"``. Rows of zeros stay zero.

    >>> import numpy as np
    >>> normalize(np.array([[9.0, -16.0]]), "sqrt-unit")
    array([[ 0.6, -0.8]])
    """
    how = check_normalization(how)
    if is_sparse(view):
        if how in ("signed-sqrt", "sqrt-unit"):
            view = replace_entries(view, np.sign(view.data) * np.sqrt(np.abs(view.data)))
        return sparse_to_unit_length(view) if how in ("unit", "sqrt-unit") else view
    if how in ("signed-sqrt", "sqrt-unit"):
        xp = namespace(view)
        view = xp.sign(view) * xp.sqrt(xp.abs(view))
    return to_unit_length(view) if how in ("unit", "sqrt-unit") else view


def to_unit_length(view: Array) -> Array:
    """Return the rows of ``view`` scaled to Euclidean length 1; rows of zeros stay zero."""
    xp = namespace(view)
    # Dividing by the largest entry first keeps the squares of very long or very short rows in range.
    largest = xp.max(xp.abs(view), axis=1, keepdims=True)
    scaled = view / xp.where(largest > 0, largest, xp.ones_like(largest))
    lengths = xp.linalg.vector_norm(scaled, axis=1, keepdims=True)
    return scaled / xp.where(lengths > 0, lengths, xp.ones_like(lengths))


def standardize(view: Array, weights: Array | None = None) -> tuple[Array, Array]:
    """Return the columns of ``view`` divided by their standard deviations (over n), and those.

    Rows may have ``weights``. A constant column stays as it is.

    >>> import numpy as np
    >>> standardize(np.array([[1.0, 5.0], [5.0, 5.0]]))
    (array([[0.5, 5. ],
           [2.5, 5. ]]), array([2., 1.]))
    """
    xp = namespace(view)
    weights = xp.ones_like(view[:, 0]) if weights is None else xp.astype(weights, view.dtype)
    shares = weights / xp.sum(weights)
    mean = shares @ view
    centred = view - mean
    centred = centred - shares @ centred  # what rounding left of a large mean
    deviations = xp.sqrt(shares @ (centred * centred))
    varies = deviations > 16 * float(xp.finfo(view.dtype).eps) * xp.abs(mean)
    scale = xp.where(varies, deviations, xp.ones_like(deviations))
    return view / scale, scale


Weighting: TypeAlias = (
    Literal["asymmetric", "search-generation", "symmetric", "none", "residual"] | tuple[float, float]
)

POWERS = {
    "asymmetric": ((1.0, 0.0), (0.0, 1.0)),
    "search-generation": ((0.0, 1.0), (1.0, 0.0)),
    "symmetric": ((1.0, 1.0), (1.0, 1.0)),
    "none": ((0.0, 0.0), (0.0, 0.0)),
}
"""The powers of Σ on X and on Y, for search and for annotate."""

RESIDUAL_FLOOR = 1e-3
"""Lower limit of 1 − σ² in the residual weighting, so that no component outweighs all others."""


def powers(weighting: Weighting, task: str) -> tuple[float, float]:
    r"""Return the powers of Σ on X and on Y for a task (Table 1 is the first row).

    ===================== ==================== ==================== =================================
    weighting             search               annotate             meaning
    ===================== ==================== ==================== =================================
    ``"asymmetric"``      (1, 0)               (0, 1)               query generation: Σ on the view
                                                                    that is searched (the paper's)
    ``"search-generation"`` (0, 1)             (1, 0)               Σ on the view of the query
    ``"symmetric"``       (1, 1)               (1, 1)               Σ on both (Gong et al.)
    ``"none"``            (0, 0)               (0, 0)               plain CCA
    ``(a, b)``            (a, b)               (a, b)               Σ^a on X and Σ^b on Y: (α, α) is
                                                                    symmetric, (α, 1−α) the paper's
                                                                    path between the two generations
    ===================== ==================== ==================== =================================

    >>> powers("asymmetric", "annotate")
    (0.0, 1.0)
    """
    check_task(task)
    if isinstance(weighting, str) and weighting in POWERS:
        return POWERS[weighting][task == "annotate"]
    if isinstance(weighting, (tuple, list)) and len(weighting) == 2:
        a, b = (check_number(power, "a power of Σ") for power in weighting)
        if 0.0 <= a < float("inf") and 0.0 <= b < float("inf"):
            return a, b
    raise InputError(
        f"weighting={weighting!r} is unknown; choose one of {', '.join(map(repr, POWERS))}, 'residual', or a "
        "pair of powers of Σ, 0 or above, for X and for Y."
    )


def check_weighting(weighting: Any) -> None:
    """Raise an error unless ``weighting`` is one that ``weight_factors`` takes."""
    if not (isinstance(weighting, str) and weighting == "residual"):
        powers(weighting, "search")


def weight_factors(correlations: Array, weighting: Weighting, task: str) -> tuple[Array | None, Array | None]:
    r"""Return the factors of the canonical components of X and of Y for a task; None means all are 1.

    They are powers of Σ (see ``powers``), or, for ``"residual"``, :math:`\Sigma/\sqrt{1-\Sigma^2}` on the
    view that is searched and :math:`1/\sqrt{1-\Sigma^2}` on the view of the query. Given an item with
    components u, component i of its query has mean :math:`\sigma_i u_i` and variance
    :math:`1-\sigma_i^2`: ``"residual"`` measures the query's distance from its prediction in units of that
    variance, ``"asymmetric"`` in units of the query's whole variance.

    Σ on the searched view is the regression of the query on the item. With :math:`D_x = S_x^2 + \gamma_x`,
    the ridge regression of the captions' components :math:`YV` on X (equation 2 with Tikhonov's γ) is

    .. math::
        W_x = (X^\top X + \gamma_x I)^{-1} X^\top Y V
            = V_x D_x^{-1} V_x^\top \, X^\top Y \, V_y D_y^{-1/2} P_y
            = V_x D_x^{-1/2} \big(D_x^{-1/2} T_0 D_y^{-1/2}\big) P_y
            = V_x D_x^{-1/2} P_x \Sigma = U \Sigma

    because :math:`X^\top Y = V_x T_0 V_y^\top` and :math:`T = D_x^{-1/2} T_0 D_y^{-1/2} = P_x \Sigma
    P_y^\top` (Theorem 1). The same with X and Y exchanged gives :math:`W_y = V\Sigma` (equation 3).

    That Σ belongs on the searched view is the *query generation* of Appendix A. Let r say whether a query q
    and an item s belong together. Items are ranked by the log-odds, which Bayes' rule gives in two ways:

    .. math::
        \log\frac{P(r=1 \mid q, s)}{P(r=0 \mid q, s)}
          &= \log\frac{P(s \mid q, r=1)}{P(s \mid q, r=0)} + \log\frac{P(r=1 \mid q)}{P(r=0 \mid q)}
             \quad\text{(search generation)} \\
          &= \log\frac{P(q \mid s, r=1)}{P(q \mid s, r=0)} + \log\frac{P(r=1 \mid s)}{P(r=0 \mid s)}
             \quad\text{(query generation)}

    The last term of the first line is constant for a query, but items that do not belong to it must be
    modelled too. In the second line this falls away if a query is independent of the items that it does not
    belong to, :math:`P(q \mid s, r=0) = P(q \mid r=0)`, and no item is relevant more often than another,
    :math:`P(r \mid s) = P(r)`: then :math:`\log P(q \mid s, r=1)` ranks alike. With the Gaussian model
    :math:`q = V^\top y \sim \mathcal N(W_x^\top x, \sigma^2 I)` its likelihood is greatest at
    :math:`W_x = U\Sigma` (equation 2), and

    .. math:: \log P(q \mid s, r=1) = -\frac{\|V^\top y - \Sigma U^\top x\|^2}{2\sigma^2} + \mathrm{const}

    so that items are ranked by the ℓ2 distance of the asymmetric vectors, whatever σ is.
    """
    check_task(task)
    if weighting == "residual":
        xp = namespace(correlations)
        query = 1.0 / xp.sqrt(xp.clip(1.0 - correlations * correlations, RESIDUAL_FLOOR, None))
        item = correlations * query
        return (item, query) if task == "search" else (query, item)
    a, b = powers(weighting, task)
    return (None if a == 0 else correlations**a), (None if b == 0 else correlations**b)


def weight_columns(columns: Array, factors: Array | None) -> Array:
    """Return columns (weights or vectors) multiplied by their ``weight_factors``."""
    return columns if factors is None else columns * factors


def maps(model: CanonicalModel, weighting: Weighting, task: str) -> tuple[Array, Array]:
    """Return the linear maps of a task for X and Y, features × components, for centred features.

    >>> import numpy as np
    >>> from diptych.cca import bjorck_golub, maps, spectra
    >>> x = np.random.default_rng(0).normal(size=(50, 3))
    >>> model = bjorck_golub(spectra(x, x[:, :2]))
    >>> x_map, y_map = maps(model, "asymmetric", "search")
    >>> bool(np.allclose(x_map, model.x_weights * model.correlations))
    True
    """
    factors = weight_factors(model.correlations, weighting, task)
    x_map, y_map = map(weight_columns, (model.x_weights, model.y_weights), factors)
    if model.polish is not None:
        x_map, y_map = (
            columns @ move_like(matrix, columns, dtype=columns.dtype)
            for columns, matrix in ((x_map, model.polish.x), (y_map, model.polish.y))
        )
    return x_map, y_map


def project(features: Array, mean: Array, weights: Array) -> Array:
    r"""Return the vectors of normalised ``features`` of one view, such as :math:`\Sigma U^\top(x - \mu_x)`.

    These are the embeddings of Table 1 if ``weights`` are the ``maps`` of a task. Backend and precision are
    those of ``features``. Equal rows get equal vectors, so that they tie in every ranking.
    """
    mean = move_like(mean, features, dtype=features.dtype)
    if not isinstance(weights, SparseVectors):
        weights = move_like(weights, features, dtype=features.dtype)
    if is_sparse(features):
        # Subtracting the mean would fill the view with numbers.
        features, shift = shift_full_columns(features, mean)
        vectors = multiply_any(features, weights) - multiply_any((mean - shift)[None, :], weights)
    else:
        vectors = multiply_any(features - mean, weights)
        if is_numpy_array(features):
            _repeat_vectors(features, vectors)
    return as_dtype(vectors, features.dtype)


def _repeat_vectors(features: Array, vectors: Array) -> None:
    """Give equal rows of ``features`` the vector of the first of them.

    BLAS rounds a row by its place in the matrix, in proportion to the row and not to its vector. Where most
    of a row is orthogonal to the weights, as with more features than training pairs, the vectors of equal
    rows can differ by more than the ``tie_slack`` of a ranking, which knows the vectors alone.
    """
    _, group, sizes = np.unique(features.sum(axis=1), return_inverse=True, return_counts=True)
    first: dict[bytes, int] = {}
    for row in np.flatnonzero(sizes[group] > 1).tolist():
        vectors[row] = vectors[first.setdefault(features[row].tobytes(), row)]
