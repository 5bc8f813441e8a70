import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from diptych import InputError
from diptych._arrays import to_numpy
from diptych.encoders import RandomFourier, word_kernel
from diptych.encoders._kernels import draw_fourier, fourier_features, make_generator, median_gamma
from tolerance import assert_close


def test_features_follow_the_formula_of_the_paper(rng):
    x, w, b = rng.normal(size=(5, 3)), rng.normal(size=(3, 8)), rng.uniform(0, 6, size=8)
    expected = [[np.sqrt(2 / 8) * np.cos(w[:, j] @ a + b[j]) for j in range(8)] for a in x]
    np.testing.assert_allclose(fourier_features(x, w, b), expected, atol=1e-12)


def test_frequencies_and_phases_have_the_stated_distributions(rng):
    weights, offsets = draw_fourier(300, 2000, 0.25, rng)
    assert weights.dtype == offsets.dtype == np.float32
    assert abs(weights.mean()) < 5 * 0.5 / np.sqrt(weights.size)
    assert abs(weights.var() - 0.25) < 0.01 * 0.25
    assert 0.0 <= offsets.min() < 0.05
    assert 6.2 < offsets.max() < 6.2832
    assert abs(offsets.mean() - np.pi) < 5 * 1.82 / np.sqrt(2000)


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
    errors = [np.sqrt(np.mean([(gram(x, m, seed) - exact) ** 2 for seed in range(8)])) for m in sizes]
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert -0.56 < slope < -0.44


def gram(x, m, seed):
    features = RandomFourier(m, gamma=0.5, random_state=seed).fit_transform(x)
    return features @ features.T


@given(st.floats(0.01, 100))
def test_the_median_scales_as_a_distance(scale):
    x = np.random.default_rng(3).normal(size=(30, 4))
    assert median_gamma(scale * x, make_generator(0)) == pytest.approx(
        median_gamma(x, make_generator(0)) / scale**2
    )


def test_the_median_is_over_pairs_of_different_rows():
    x = np.array([[0.0], [1.0], [3.0]])  # distances 1, 2, 3
    assert median_gamma(x, make_generator(0)) == pytest.approx(1 / 4)
    # Adding a constant must not matter, even a large one in float32.
    assert median_gamma((x + 1000).astype(np.float32), make_generator(0)) == pytest.approx(1 / 4)


def test_the_median_of_many_rows_uses_a_random_sample(rng):
    x = rng.normal(size=(5000, 6))
    exact = median_gamma(x, make_generator(0), max_rows=5000)
    sampled = median_gamma(x, make_generator(0))
    assert sampled != exact
    assert sampled == pytest.approx(exact, rel=0.05)
    assert sampled == median_gamma(x, make_generator(0))
    assert sampled != median_gamma(x, make_generator(1))


@pytest.mark.parametrize("x", [np.ones((1, 3)), np.ones((9, 3)), np.full((9, 3), 0.1, dtype=np.float32)])
def test_a_median_of_zero_is_refused(x):
    with pytest.raises(InputError, match="pass a number as gamma"):
        median_gamma(x, make_generator(0))


def test_generators_of_different_keys_are_independent_and_repeatable():
    assert make_generator(5, 1).random() == make_generator(5, 1).random()
    assert len({make_generator(seed, key).random() for seed in (0, 1) for key in (0, 1, 2)}) == 6
    assert (
        make_generator(np.random.RandomState(0), 1).random()
        == make_generator(np.random.RandomState(0), 1).random()
    )
    for wrong in (-1, 1.5, "0"):
        with pytest.raises(InputError, match="random_state"):
            make_generator(wrong)


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
    for wrong in (
        {"gamma": -1.0},
        {"gamma": "mean"},
        {"gamma": np.inf},
        {"n_features": 0},
        {"n_features": 2.5},
    ):
        with pytest.raises(InputError, match=next(iter(wrong))):
            RandomFourier(**wrong).fit(x)


def test_the_transformer_uses_the_backend_of_its_input(rng, backend):
    x = rng.normal(size=(50, 4))
    expected = RandomFourier(64).fit_transform(x)
    result = RandomFourier(64).fit_transform(backend(x))
    assert type(result) is type(backend(x))
    # Cosines of sums of four products and an offset.
    assert_close(to_numpy(result), expected, 5, dtype=np.float32, magnitude=1.0)
