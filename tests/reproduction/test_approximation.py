"""Exact kernel CCA, and HKSE in its place."""

import numpy as np

from diptych.cca import Tikhonov, regularized_cca, spectra
from diptych.encoders import HKSE, WordVectors, sentence_kernel
from reproduction.approximation import decompose_gram, kernel_correlations


def test_with_linear_kernels_it_is_the_regularised_cca_of_the_features(rng):
    hidden = rng.normal(size=(60, 3))
    x, y = (hidden @ rng.normal(size=(3, width)) + rng.normal(size=(60, width)) for width in (8, 100))
    gammas = (4.0, 9.0)
    exact = kernel_correlations(decompose_gram(x @ x.T), decompose_gram(y @ y.T), gammas)
    expected = regularized_cca(spectra(x, y), *map(Tikhonov, gammas)).correlations
    np.testing.assert_allclose(exact[: len(expected)], expected, atol=1e-10)


def test_hkse_approaches_exact_kernel_cca(rng):
    names = [f"word{i}" for i in range(80)]
    vectors = WordVectors(names, rng.normal(size=(80, 12)).astype(np.float32))
    sentences = [rng.choice(80, size=rng.integers(3, 9), replace=False) for _ in range(150)]
    captions = [" ".join(names[i] for i in each) for each in sentences]
    images = np.array([vectors.matrix[each].mean(axis=0) for each in sentences]) + 0.2 * rng.normal(
        size=(150, 12)
    )
    encoder = HKSE(vectors, eta=0.5).fit(captions)
    exact = decompose_gram(
        sentence_kernel([vectors.matrix[each] for each in sentences], gamma=encoder.gamma_, eta=0.5)
    )
    x = decompose_gram(images @ images.T)
    gammas = x[0][15], exact[0][15]
    correlations = kernel_correlations(x, exact, gammas)
    errors = []
    for m in (100, 400, 1600, 6400):
        features = HKSE(vectors, eta=0.5, word_features=m, sentence_features=m).fit_transform(captions)
        y = decompose_gram(features.astype(float) @ features.T.astype(float))
        errors.append(np.abs(kernel_correlations(x, y, gammas) - correlations).max())
    assert (np.diff(errors) < 0).all()
    assert errors[-1] < 0.1 * errors[0]
