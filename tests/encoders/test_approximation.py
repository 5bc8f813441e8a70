"""The error of the random features and Proposition 1, on real word vectors and Flickr8k's captions."""

import numpy as np
import pytest

from diptych.encoders import (
    HKSE,
    hkse_dimensions,
    hkse_factor,
    read_word_vectors,
    sentence_kernel,
    tokenize,
    word_kernel,
)
from diptych.encoders._kernels import draw_fourier, fourier_features, make_generator, median_gamma

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def sample(news_vectors, flickr_captions):
    """Return 250 captions, 5 of each of 50 images, and the vectors of their words."""
    captions = flickr_captions[:250]
    vectors = read_word_vectors(news_vectors, {word for caption in captions for word in tokenize(caption)})
    gamma = median_gamma(vectors.matrix, make_generator(0))
    words = [np.array([vectors[w] for w in tokenize(c) if w in vectors]) for c in captions]
    return captions, vectors, gamma, words


def word_grams(vectors, gamma, m, seeds):
    for seed in seeds:
        features = fourier_features(vectors.matrix, *draw_fourier(300, m, gamma, make_generator(seed)))
        yield features @ features.T


def test_the_corrected_word_bound_holds_and_that_of_the_paper_does_not(sample):
    _, vectors, gamma, _ = sample
    exact = word_kernel(vectors.matrix, vectors.matrix, gamma=gamma)
    delta, epsilon = 0.2, 0.05
    broken = {}
    for constants in ("hoeffding", "paper"):
        m = hkse_dimensions(len(vectors), 1, delta, epsilon, constants).word_features
        worst = [np.abs(gram - exact).max() for gram in word_grams(vectors, gamma, m, range(10))]
        broken[constants] = np.mean(np.array(worst) > delta)
    assert broken["hoeffding"] == 0.0
    # The paper allows 5 % of the draws to fail; nearly all do.
    assert broken["paper"] > 0.5


def test_proposition_1_holds_for_sentences_with_the_corrected_constants(sample):
    captions, vectors, gamma, words = sample
    captions, words = captions[:60], words[:60]
    length = max(map(len, words))
    delta, epsilon, eta = 0.5, 0.05, 1.0
    m, m2 = hkse_dimensions(len(vectors), length, delta, epsilon)
    exact = sentence_kernel(words, gamma=gamma, eta=eta)
    factor = hkse_factor(eta, delta)
    for seed in range(2):
        model = HKSE(vectors, word_features=m, sentence_features=m2, gamma=gamma, eta=eta, random_state=seed)
        features = model.fit_transform(captions)
        kernel = features @ features.T
        assert np.all(kernel <= factor * exact + delta)
        assert np.all(kernel >= exact / factor - delta)


def test_the_coverage_of_flickr8k_is_as_expected(news_vectors, flickr_captions):
    model = HKSE(news_vectors, word="lin", sentence="lin").fit(flickr_captions)
    report = model.coverage_
    stop_words = sum(count for _, count in report.most_frequent_unknown[:4])
    assert 5600 < len(model.vocabulary_) == report.known_words < 5900
    assert [word for word, _ in report.most_frequent_unknown[:4]] == ["a", "and", "of", "to"]
    assert {"frisbee", "skateboarder", "grey", "surfboard"} <= {w for w, _ in report.most_frequent_unknown}
    share = (report.unknown_tokens - stop_words) / (report.tokens - stop_words)
    assert share == pytest.approx(0.03, abs=0.01)
    assert report.texts_without_known_word < 10
