r"""The kernels that HKSE approximates: computed exactly, and by random Fourier features.

The word kernel is the paper's (Section 4), :math:`k_\gamma(a, b) = \exp(-\tfrac{\gamma}{2}\|a-b\|^2)`; the
frequencies of its features therefore come from :math:`\mathcal N(0, \gamma I)`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from array_api_compat import device, is_numpy_array

from diptych._arrays import Array, group_sum, move_like, namespace, to_numpy
from diptych._checks import InputError, check_choice, check_count, check_seed, check_view

Kind: TypeAlias = Literal["lin", "rbf"]
KINDS: tuple[Kind, ...] = ("lin", "rbf")
Seed: TypeAlias = int | np.random.Generator | None
Constants: TypeAlias = Literal["hoeffding", "paper"]
_CONSTANTS = {"hoeffding": (8.0, 4.0), "paper": (0.5, 3.0)}
"""The factor of the number of features, and c, of Proposition 1."""

_BLOCK_ENTRIES = 2**23
EXACT_MEDIAN_ROWS = 2048
"""Up to this many rows, the median is over all pairs; beyond, over the pairs of a random sample of rows."""


def word_kernel(a: Any, b: Any, *, kind: Kind = "rbf", gamma: float = 1.0) -> Array:
    r"""Return the Gram matrix of two sets of word vectors, the rows of ``a`` and ``b``.

    The kernel is :math:`k_\gamma(a, b) = \exp(-\frac\gamma2\|a-b\|^2)` (Section 4) for ``"rbf"``, ⟨a, b⟩ for
    ``"lin"``.

    Examples
    --------
    >>> import numpy as np
    >>> word_kernel(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]]), gamma=0.08).round(4)
    array([[0.3679]])
    """
    check_choice(kind, KINDS, "kind")
    a, b = check_view(a, "a"), check_view(b, "b")
    xp = namespace(a, b)
    if kind == "lin":
        return a @ b.T
    check_gamma(gamma, median=False)
    return xp.exp(-0.5 * gamma * _squared_distances(a, b))


def sentence_kernel(
    sentences: Sequence[Any],
    others: Sequence[Any] | None = None,
    *,
    word: Kind = "rbf",
    sentence: Kind = "rbf",
    gamma: float = 1.0,
    eta: float = 0.01,
) -> Array:
    r"""Return the Gram matrix of the kernel K between sentences (Section 4 of the paper), computed exactly.

    A sentence with words :math:`a_1, \dots, a_n` is the distribution that gives each of them weight 1/n. With
    the word kernel k, two sentences have

    .. math:: K(\rho_1, \rho_2) = \exp\big(-\tfrac\eta2 \|\mu_{n_1}(\rho_1) - \mu_{n_2}(\rho_2)\|^2\big),

    and the squared distance of the means is

    .. math:: \frac1{n_1^2}\sum_{i,j} k(a_i, a_j) + \frac1{n_2^2}\sum_{i,j} k(b_i, b_j)
              - \frac2{n_1 n_2}\sum_{i,j} k(a_i, b_j).

    With a linear sentence kernel, K is the mean of :math:`k(a_i, b_j)`. The cost is the number of words of
    ``sentences`` times that of ``others``, so this is for tests and small data; ``HKSE`` is for the rest.

    Parameters
    ----------
    sentences, others
        For each sentence, the matrix of its word vectors, words × dimensions. Without ``others``, the
        sentences are compared with each other.
    word, sentence
        Kernel at either level, ``"lin"`` or ``"rbf"``.
    gamma, eta
        Parameters of the word and of the sentence kernel.

    Examples
    --------
    >>> import numpy as np
    >>> first, second = np.array([[0.0], [1.0]]), np.array([[1.0], [0.0], [1.0], [0.0]])
    >>> sentence_kernel([first], [second]).round(6)
    array([[1.]])
    """
    check_choice(word, KINDS, "word")
    check_choice(sentence, KINDS, "sentence")
    check_gamma(eta, "eta", median=False)
    rows = _check_sentences(sentences, "sentences")
    columns = rows if others is None else _check_sentences(others, "others")
    cross = _mean_kernel(rows, columns, word, gamma)
    if sentence == "lin":
        return cross
    xp = namespace(cross)
    row_norms = _squared_norms(rows, word, gamma)
    column_norms = row_norms if others is None else _squared_norms(columns, word, gamma)
    squares = row_norms[:, None] + column_norms[None, :] - 2.0 * cross
    return xp.exp(-0.5 * eta * xp.clip(squares, 0.0, None))


def gaussian_product(mean_a: Any, mean_b: Any, *, variance: float, normalized: bool = True) -> Array:
    r"""Return the product kernel :math:`\int p\,q` of isotropic Gaussians around the rows of two matrices.

    This is the Gaussian reading of HKSE(lin, rbf) (the paper's appendix "HKSE as a Gaussian Embedding of
    Sentences"): a sentence is the Gaussian :math:`\mathcal N(\mu, \sigma^2 I)` around its mean word vector,
    and two sentences are compared by

    .. math:: \int \mathcal N(x; \mu_1, \sigma^2 I)\,\mathcal N(x; \mu_2, \sigma^2 I)\,dx
              = (4\pi\sigma^2)^{-d/2} \exp\!\Big(-\frac{\|\mu_1-\mu_2\|^2}{4\sigma^2}\Big).

    Without the factor in front, which is the same for all pairs and which ``normalized`` leaves out, it is
    the kernel of HKSE(lin, rbf) with :math:`\eta = 1/(2\sigma^2)`. In hundreds of dimensions, the factor is
    outside the range of floats.

    Examples
    --------
    >>> import numpy as np
    >>> a, b = np.array([[0.0, 1.0]]), np.array([[2.0, 1.0]])
    >>> eta = 0.3
    >>> product = gaussian_product(a, b, variance=1 / (2 * eta))
    >>> bool(np.allclose(product, sentence_kernel([a], [b], word="lin", eta=eta)))
    True
    """
    check_gamma(variance, "variance", median=False)
    a, b = check_view(mean_a, "mean_a"), check_view(mean_b, "mean_b")
    xp = namespace(a, b)
    exponent = -_squared_distances(a, b) / (4.0 * variance)
    if not normalized:
        exponent = exponent - 0.5 * a.shape[1] * math.log(4.0 * math.pi * variance)
    return xp.exp(exponent)


class Dimensions(NamedTuple):
    """The numbers of features m and m' of Proposition 1."""

    word_features: int
    sentence_features: int


def hkse_dimensions(
    vocabulary: int, max_length: int, delta: float, epsilon: float, constants: Constants = "hoeffding"
) -> Dimensions:
    r"""Return the numbers of features that bound the error of every kernel value (Proposition 1).

    With so many features, with probability at least 1 − 2ε, for all sentences of at most ``max_length``
    words,

    .. math:: e^{-c\eta\delta/2} K - \delta \;\le\; \hat K \;\le\; e^{c\eta\delta/2} K + \delta .

    Parameters
    ----------
    vocabulary
        Number of words :math:`|A|`.
    max_length
        Number of words of the longest sentence, s.
    delta
        Error at each level.
    epsilon
        Probability at each level that the error is larger.
    constants
        ``"hoeffding"``: :math:`m \ge \frac{8}{\delta^2}\log\frac{|A|^2}{\epsilon}` and
        :math:`m' \ge \frac{8}{\delta^2}\log\frac{|A|^{2s}}{\epsilon}`, with c = 4, which follow from
        Hoeffding's inequality. ``"paper"``: :math:`\frac{1}{2\delta^2}` in place of
        :math:`\frac{8}{\delta^2}`, with c = 3, as printed in the paper; its proof does not show these, and
        real word vectors violate them.

    Examples
    --------
    >>> hkse_dimensions(vocabulary=7745, max_length=38, delta=0.1, epsilon=0.05)
    Dimensions(word_features=16725, sentence_features=546849)
    >>> hkse_dimensions(7745, 38, 0.1, 0.05, constants="paper")
    Dimensions(word_features=1046, sentence_features=34179)
    """
    constant, _ = _CONSTANTS[check_choice(constants, tuple(_CONSTANTS), "constants")]
    check_count(vocabulary, "vocabulary")
    check_count(max_length, "max_length")
    check_gamma(delta, "delta", median=False)
    if not 0.0 < epsilon < 1.0:
        raise InputError(f"epsilon={epsilon!r}; pass a probability between 0 and 1.")
    factor = constant / delta**2
    words, certainty = math.log(vocabulary), -math.log(epsilon)
    return Dimensions(
        math.ceil(factor * (2.0 * words + certainty)),
        math.ceil(factor * (2.0 * max_length * words + certainty)),
    )


def hkse_factor(eta: float, delta: float, constants: Constants = "hoeffding") -> float:
    r"""Return the factor :math:`e^{c\eta\delta/2}` of Proposition 1; see ``hkse_dimensions`` for c.

    Examples
    --------
    >>> round(hkse_factor(eta=0.01, delta=0.1), 6)
    1.002002
    """
    _, c = _CONSTANTS[check_choice(constants, tuple(_CONSTANTS), "constants")]
    return math.exp(c * eta * delta / 2.0)


def _check_sentences(sentences: Sequence[Any], name: str) -> list[Array]:
    if len(sentences) == 0:
        raise InputError(f"{name} is empty; pass at least one sentence.")
    matrices = [check_view(words, f"{name}[{i}]") for i, words in enumerate(sentences)]
    if len({matrix.shape[1] for matrix in matrices}) > 1:
        raise InputError(f"{name} has word vectors of different lengths; pass vectors of one table.")
    xp = namespace(matrices[0])
    return [xp.astype(matrix, xp.float64) for matrix in matrices]


def _squared_distances(a: Array, b: Array) -> Array:
    xp = namespace(a, b)
    # A common shift keeps the distances and makes the cancellation smaller.
    centre = xp.mean(a, axis=0)
    a, b = a - centre, b - centre
    squares = xp.sum(a * a, axis=1)[:, None] + xp.sum(b * b, axis=1)[None, :] - 2.0 * (a @ b.T)
    return xp.clip(squares, 0.0, None)


def _mean_kernel(rows: list[Array], columns: list[Array], kind: Kind, gamma: float) -> Array:
    """Return the mean of the word kernel over the pairs of words of each pair of sentences."""
    xp = namespace(rows[0], columns[0])
    a, b = xp.concat(rows), xp.concat(columns)
    (groups_a, lengths_a), (groups_b, lengths_b) = _group_words(rows), _group_words(columns)
    # In blocks of words, so that the Gram matrix of all pairs of words is never in memory.
    step = max(1, _BLOCK_ENTRIES // b.shape[0])
    parts = []
    for start in range(0, a.shape[0], step):
        gram = word_kernel(a[start : start + step, :], b, kind=kind, gamma=gamma)
        parts.append(group_sum(gram.T, groups_b, len(columns)).T)
    sums = group_sum(xp.concat(parts), groups_a, len(rows))
    return sums / lengths_a[:, None] / lengths_b[None, :]


def _squared_norms(matrices: list[Array], kind: Kind, gamma: float) -> Array:
    """Return the mean of the word kernel over the pairs of words within each sentence: its mean's norm²."""
    xp = namespace(matrices[0])
    means = [float(xp.mean(word_kernel(matrix, matrix, kind=kind, gamma=gamma))) for matrix in matrices]
    return move_like(xp.asarray(means, dtype=matrices[0].dtype), matrices[0])


def _group_words(matrices: list[Array]) -> tuple[Array, Array]:
    """Return the sentence of each word, and the length of each sentence."""
    xp, place = namespace(matrices[0]), device(matrices[0])
    lengths = xp.asarray([matrix.shape[0] for matrix in matrices], device=place)
    groups = xp.repeat(xp.arange(len(matrices), device=place), lengths)
    return groups, xp.astype(lengths, matrices[0].dtype)


class Fourier(NamedTuple):
    """The draws of random Fourier features: frequencies W, inputs × features, and phases b."""

    weights: Array
    offsets: Array


def fourier_features(x: Array, weights: Array, offsets: Array) -> Array:
    r"""Return :math:`\Phi(x) = \sqrt{2/m}\,\cos(xW + b)` for each row, as in Section 4 of the paper.

    Parameters
    ----------
    x
        Rows to map, n × d.
    weights
        Frequencies :math:`w_1, \dots, w_m` as columns, d × m.
    offsets
        Phases b, m.
    """
    features = x @ weights
    features += offsets
    in_place = {"out": features} if is_numpy_array(features) else {}
    features = namespace(features).cos(features, **in_place)
    features *= (2.0 / weights.shape[1]) ** 0.5
    return features


def draw_fourier(n_inputs: int, n_features: int, gamma: float, rng: np.random.Generator) -> Fourier:
    r"""Draw frequencies :math:`W \sim \mathcal N(0, \gamma I)`, inputs × features, and phases in [0, 2π)."""
    weights = rng.standard_normal((n_inputs, n_features), dtype=np.float32)
    weights *= np.float32(gamma**0.5)
    return Fourier(weights, rng.uniform(0.0, 2.0 * np.pi, n_features).astype(np.float32))


def median_gamma(x: Array, rng: np.random.Generator) -> float:
    """Return 1 / median² of the distances between different rows, or between those of a random sample."""
    if x.shape[0] > EXACT_MEDIAN_ROWS:
        sample = np.sort(rng.choice(x.shape[0], size=EXACT_MEDIAN_ROWS, replace=False))
        x = x[move_like(sample, x), :]
    rows = to_numpy(x)
    if len(rows) < 2:
        raise InputError(
            f"The median distance needs at least 2 vectors, and there is {len(rows)}; pass a number as gamma."
        )
    rows = rows.astype(np.float64) - rows.mean(axis=0, dtype=np.float64)
    norms = np.einsum("ij,ij->i", rows, rows)
    squares = norms[:, None] + norms[None, :] - 2.0 * (rows @ rows.T)
    median = float(np.median(squares[np.triu_indices(len(rows), k=1)]))
    # Rounding errors make the distance between equal rows slightly larger than 0.
    if median <= 1e-12 * float(norms.max(initial=0.0)):
        raise InputError("Most of the vectors are equal: their median distance is 0; pass a number as gamma.")
    return 1.0 / median


def find_gamma(gamma: object, x: Array, rng: np.random.Generator) -> float:
    """Return γ: the number that was given, or that of ``"median"`` for the rows of ``x``."""
    checked = check_gamma(gamma)
    return median_gamma(x, rng) if checked == "median" else checked


def check_gamma(gamma: object, name: str = "gamma", *, median: bool = True) -> float | Literal["median"]:
    """Return ``gamma`` if it is a positive number, or ``"median"`` where that is allowed."""
    if median and isinstance(gamma, str) and gamma == "median":
        return "median"
    if isinstance(gamma, Real) and not isinstance(gamma, bool) and 0.0 < float(gamma) < float("inf"):
        return float(gamma)
    raise InputError(f"{name}={gamma!r}; pass a positive number{' or median' if median else ''}.")


def make_generator(random_state: Seed, *key: int) -> np.random.Generator:
    """Return the generator of ``key``; generators of different keys are independent. One is used as it is."""
    if isinstance(random_state, np.random.Generator):
        return random_state
    return np.random.default_rng(np.random.SeedSequence(check_seed(random_state), spawn_key=key))
