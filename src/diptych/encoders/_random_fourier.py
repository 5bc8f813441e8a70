"""Random Fourier features as an estimator."""

from __future__ import annotations

from typing import Any, Literal

from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array, move_like, namespace
from diptych._checks import check_count, check_view
from diptych.encoders._fourier import (
    check_gamma,
    draw_fourier,
    fourier_features,
    make_generator,
    median_gamma,
)

_BLOCK_ROWS = 4096


class RandomFourier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Random Fourier features, whose inner products approximate :math:`\exp(-\tfrac{\gamma}{2}\|a-b\|^2)`.

    CCA on mapped views approximates kernel CCA with that kernel. scikit-learn's ``RBFSampler`` does the same
    for the kernel without the ½, and for NumPy only; this class uses the paper's γ, can set it from the
    median distance, and works on the device of its input.

    Parameters
    ----------
    n_features
        Number of features m.
    gamma
        A positive number, or ``"median"``: 1 / median² of the distances between the fitted rows (a random
        sample of them when there are more than 2048).
    random_state
        Seed of the random features.

    Attributes
    ----------
    gamma_
        The value of γ.
    weights_, offsets_
        Frequencies (inputs × features) and phases, float32.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(50, 4))
    >>> features = RandomFourier(5000, gamma=0.5).fit_transform(x)
    >>> exact = np.exp(-0.25 * ((x[0] - x[1]) ** 2).sum())
    >>> bool(abs(features[0] @ features[1] - exact) < 0.05)
    True
    """

    def __init__(
        self, n_features: int = 2000, *, gamma: float | Literal["median"] = "median", random_state: Any = 0
    ) -> None:
        self.n_features = n_features
        self.gamma = gamma
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> RandomFourier:
        """Set γ and draw the frequencies."""
        x = check_view(X)
        n_features, gamma = check_count(self.n_features, "n_features"), check_gamma(self.gamma)
        self.gamma_ = median_gamma(x, make_generator(self.random_state, 0)) if gamma == "median" else gamma
        weights, offsets = draw_fourier(
            x.shape[1], n_features, self.gamma_, make_generator(self.random_state, 1)
        )
        self.weights_, self.offsets_ = weights, offsets
        self.n_features_in_, self._n_features_out = x.shape[1], n_features
        return self

    def transform(self, X: Any) -> Array:
        """Return the features of each row, float32."""
        check_is_fitted(self)
        x = check_view(X, n_features=self.n_features_in_)
        xp = namespace(x)
        weights = move_like(self.weights_, x)
        offsets = move_like(self.offsets_, x)
        features = xp.empty((x.shape[0], weights.shape[1]), dtype=xp.float32, device=weights.device)
        for start in range(0, x.shape[0], _BLOCK_ROWS):
            block = xp.astype(x[start : start + _BLOCK_ROWS, :], xp.float32, copy=False)
            features[start : start + _BLOCK_ROWS, :] = fourier_features(block, weights, offsets)
        return features
