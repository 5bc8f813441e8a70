"""The exact kernels, Proposition 1, and random Fourier features."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from diptych import InputError
from diptych._arrays import to_numpy
from diptych.encoders import (
    RandomFourier,
    _kernels,
    gaussian_product,
    hkse_dimensions,
    hkse_factor,
    sentence_kernel,
    word_kernel,
)
from diptych.encoders._kernels import draw_fourier, fourier_features, make_generator, median_gamma
from tolerance import assert_close


def sentences(rng, n=6, d=4):
    return [rng.normal(size=(rng.integers(1, 7), d)) for _ in range(n)]


def k(a, b, gamma):
    return math.exp(-gamma / 2 * sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def test_word_kernel_follows_the_paper(rng):
    a, b = rng.normal(size=(3, 4)), rng.normal(size=(5, 4))
    expected = [[k(x, y, 0.7) for y in b] for x in a]
    np.testing.assert_allclose(word_kernel(a, b, gamma=0.7), expected, rtol=1e-12)
    np.testing.assert_allclose(word_kernel(a, b, kind="lin"), a @ b.T)
    with pytest.raises(InputError, match="kind='poly'"):
        word_kernel(a, b, kind="poly")


def test_sentence_kernel_follows_the_double_sum_of_the_paper(rng):
    first, second = sentences(rng), sentences(rng, 4)
    gamma, eta = 0.4, 0.9
    expected = np.empty((6, 4))
    for i, a in enumerate(first):
        for j, b in enumerate(second):
            delta = (
                2 * sum(k(x, y, gamma) for x in a for y in b) / (len(a) * len(b))
                - sum(k(x, y, gamma) for x in a for y in a) / len(a) ** 2
                - sum(k(x, y, gamma) for x in b for y in b) / len(b) ** 2
            )
            expected[i, j] = math.exp(eta / 2 * delta)
    np.testing.assert_allclose(sentence_kernel(first, second, gamma=gamma, eta=eta), expected, rtol=1e-10)


def test_linear_kernels_are_inner_products_of_means(rng):
    first = sentences(rng)
    means = np.array([words.mean(axis=0) for words in first])
    lin_lin = sentence_kernel(first, word="lin", sentence="lin")
    np.testing.assert_allclose(lin_lin, means @ means.T, atol=1e-12)
    lin_rbf = sentence_kernel(first, word="lin", eta=0.3)
    np.testing.assert_allclose(lin_rbf, word_kernel(means, means, gamma=0.3), atol=1e-12)
    rbf_lin = sentence_kernel(first, sentence="lin", gamma=0.3)
    assert rbf_lin[0, 1] == pytest.approx(word_kernel(first[0], first[1], gamma=0.3).mean())


@pytest.mark.parametrize("word", ["lin", "rbf"])
@pytest.mark.parametrize("sentence", ["lin", "rbf"])
def test_gram_matrices_are_symmetric_and_positive(rng, word, sentence):
    gram = sentence_kernel(sentences(rng, 20), word=word, sentence=sentence, eta=0.5)
    np.testing.assert_allclose(gram, gram.T, atol=1e-12)
    assert np.linalg.eigvalsh(gram).min() > -1e-10
    if sentence == "rbf":
        np.testing.assert_allclose(np.diag(gram), 1.0, atol=1e-12)


def test_kernels_use_the_backend_of_their_arrays(rng, backend):
    first = sentences(rng)
    result = sentence_kernel([backend(words) for words in first], gamma=0.4, eta=0.9)
    assert type(result) is type(backend(first[0]))
    np.testing.assert_allclose(to_numpy(result), sentence_kernel(first, gamma=0.4, eta=0.9), rtol=1e-10)


def test_the_sentence_kernel_does_not_depend_on_the_block_size(rng, monkeypatch):
    first = sentences(rng, 9)
    whole = sentence_kernel(first, gamma=0.4)
    monkeypatch.setattr("diptych.encoders._kernels._BLOCK_ENTRIES", 100)
    np.testing.assert_allclose(sentence_kernel(first, gamma=0.4), whole, rtol=1e-12)


def test_wrong_sentences_are_refused(rng):
    with pytest.raises(InputError, match="empty"):
        sentence_kernel([])
    with pytest.raises(InputError, match=r"sentences\[1\]"):
        sentence_kernel([np.ones((2, 3)), np.ones((0, 3))])
    with pytest.raises(InputError, match="different lengths"):
        sentence_kernel([np.ones((2, 3)), np.ones((2, 4))])
    with pytest.raises(InputError, match="eta=0"):
        sentence_kernel([np.ones((2, 3))], eta=0)


# HKSE(lin, rbf) read as a Gaussian embedding of sentences


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(0.2, 4))
def test_gaussian_product_agrees_with_numerical_integration(mean_a, mean_b, variance):
    def density(x, mean):
        return math.exp(-((x - mean) ** 2) / (2 * variance)) / math.sqrt(2 * math.pi * variance)

    middle, width = (mean_a + mean_b) / 2, 12 * math.sqrt(variance)
    integral, _ = quad(lambda x: density(x, mean_a) * density(x, mean_b), middle - width, middle + width)
    product = gaussian_product([[mean_a]], [[mean_b]], variance=variance, normalized=False)
    assert product[0, 0] == pytest.approx(integral, rel=1e-6)


@pytest.mark.parametrize("eta", [0.01, 0.5, 3.0])
def test_hkse_lin_rbf_compares_sentences_as_gaussians(rng, eta):
    first, second = sentences(rng), sentences(rng, 4)
    means = [np.array([words.mean(axis=0) for words in group]) for group in (first, second)]
    product = gaussian_product(*means, variance=1 / (2 * eta))
    np.testing.assert_allclose(product, sentence_kernel(first, second, word="lin", eta=eta), rtol=1e-10)
    norms = gaussian_product(means[0], means[0], variance=1 / (2 * eta), normalized=False)
    raw = gaussian_product(*means, variance=1 / (2 * eta), normalized=False)
    np.testing.assert_allclose(raw / norms[0, 0], product, rtol=1e-10)


# Proposition 1


def test_hkse_dimensions_follow_the_bounds():
    m, m2 = hkse_dimensions(1000, 10, 0.2, 0.1)
    assert m == math.ceil(8 / 0.04 * math.log(1000**2 / 0.1))
    assert m2 == math.ceil(8 / 0.04 * math.log(1000**20 / 0.1))
    paper = hkse_dimensions(1000, 10, 0.2, 0.1, constants="paper")
    assert paper.word_features == math.ceil(1 / (2 * 0.04) * math.log(1000**2 / 0.1))
    assert paper.sentence_features == math.ceil(1 / (2 * 0.04) * math.log(1000**20 / 0.1))
    # |A|^2s is far beyond floats here; its logarithm is not.
    assert hkse_dimensions(21_975, 60, 0.1, 0.01).sentence_features == pytest.approx(
        800 * (120 * math.log(21_975) + math.log(100)), abs=1
    )


def test_hkse_factor_follows_its_formula():
    assert hkse_factor(0.5, 0.1) == pytest.approx(math.exp(0.1))
    assert hkse_factor(0.5, 0.1, "paper") == pytest.approx(math.exp(0.075))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 5, 0.1, 0.1), "vocabulary=0"),
        ((5, 0, 0.1, 0.1), "max_length=0"),
        ((5, 5, 0.0, 0.1), "delta=0"),
        ((5, 5, 0.1, 0.0), "epsilon=0"),
        ((5, 5, 0.1, 1.0), "epsilon=1"),
        ((5, 5, 0.1, 0.1, "mine"), "constants='mine'"),
    ],
)
def test_wrong_arguments_of_hkse_dimensions_are_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        hkse_dimensions(*arguments)


# Random Fourier features


def test_inner_products_are_unbiased(rng):
    x = rng.normal(size=(6, 4))
    exact = word_kernel(x, x, gamma=0.3)
    draws = []
    for seed in range(400):
        features = fourier_features(
            x, *(a.astype(float) for a in draw_fourier(4, 50, 0.3, make_generator(seed)))
        )
        draws.append(features @ features.T)
    error = np.std(draws, axis=0) / np.sqrt(len(draws))
    assert np.all(np.abs(np.mean(draws, axis=0) - exact) < 4.5 * error)


def test_the_error_falls_like_one_over_root_m(rng):
    x = rng.normal(size=(40, 5))
    exact = word_kernel(x, x, gamma=0.5)
    sizes = np.array([100, 400, 1600, 6400])

    def gram(m, seed):
        features = RandomFourier(m, gamma=0.5, random_state=seed).fit_transform(x)
        return features @ features.T

    errors = [np.sqrt(np.mean([(gram(m, seed) - exact) ** 2 for seed in range(8)])) for m in sizes]
    assert -0.56 < np.polyfit(np.log(sizes), np.log(errors), 1)[0] < -0.44


def test_the_median_is_over_pairs_of_different_rows():
    x = np.array([[0.0], [1.0], [3.0]])  # distances 1, 2, 3
    assert median_gamma(x, make_generator(0)) == pytest.approx(1 / 4)
    # Adding a constant must not matter, even a large one in float32.
    assert median_gamma((x + 1000).astype(np.float32), make_generator(0)) == pytest.approx(1 / 4)


def test_the_median_of_many_rows_uses_a_random_sample(rng, monkeypatch):
    x = rng.normal(size=(1500, 6))
    exact = median_gamma(x, make_generator(0))
    monkeypatch.setattr(_kernels, "EXACT_MEDIAN_ROWS", 700)
    sampled = median_gamma(x, make_generator(0))
    assert sampled != exact
    assert sampled == pytest.approx(exact, rel=0.05)
    assert sampled == median_gamma(x, make_generator(0))
    assert sampled != median_gamma(x, make_generator(1))


@pytest.mark.parametrize("x", [np.ones((1, 3)), np.ones((9, 3)), np.full((9, 3), 0.1, dtype=np.float32)])
def test_a_median_of_zero_is_refused(x):
    with pytest.raises(InputError, match="pass a number as gamma"):
        median_gamma(x, make_generator(0))


def test_transformer_follows_scikit_learn(rng):
    x = rng.normal(size=(30, 4))
    estimator = RandomFourier(16, gamma=2.0, random_state=3)
    assert clone(estimator).get_params() == {"n_features": 16, "gamma": 2.0, "random_state": 3}
    features = make_pipeline(StandardScaler(), estimator).fit_transform(x)
    assert features.shape == (30, 16)
    assert features.dtype == np.float32
    assert list(estimator.get_feature_names_out()[:2]) == ["randomfourier0", "randomfourier1"]
    assert RandomFourier(8).fit(x).gamma_ == pytest.approx(median_gamma(x, make_generator(0)))
    with pytest.raises(InputError, match="5 features"):
        estimator.transform(rng.normal(size=(3, 5)))
    for name, value in (("gamma", -1.0), ("gamma", "mean"), ("gamma", np.inf), ("n_features", 0)):
        with pytest.raises(InputError, match=name):
            RandomFourier(**{name: value}).fit(x)


def test_the_transformer_uses_the_backend_of_its_input(rng, backend):
    x = rng.normal(size=(50, 4))
    expected = RandomFourier(64).fit_transform(x)
    result = RandomFourier(64).fit_transform(backend(x))
    assert type(result) is type(backend(x))
    # Cosines of sums of four products and an offset.
    assert_close(to_numpy(result), expected, 5, dtype=np.float32, magnitude=1.0)
