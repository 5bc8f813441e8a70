import time

import numpy as np
import pytest
import scipy.sparse

from diptych import InputError
from diptych.text import learn_word_vectors
from diptych.text._word_vectors import cooccurrences, positive_information
from diptych.text._words import Corpus


def test_cooccurrences_count_sentences_that_hold_both():
    corpus = Corpus.of(["a b", "b a a", "b c", "d"])
    together = cooccurrences(corpus.bag(presence=True)).toarray()
    a, b, c, d = range(4)
    assert together[a, b] == together[b, a] == 2
    assert together[b, c] == 1
    assert together[a, c] == together[d].sum() == 0
    assert np.all(np.diag(together) == 0)


def test_positive_information_is_its_formula():
    together = np.array([[0.0, 4.0, 1.0], [4.0, 0.0, 2.0], [1.0, 2.0, 0.0]])
    total, sums = together.sum(), together.sum(axis=1)
    q = sums**0.75 / (sums**0.75).sum()
    with np.errstate(divide="ignore"):
        expected = np.maximum(0.0, np.log(together / total / (sums[:, None] / total * q[None, :])))
    found = positive_information(scipy.sparse.csr_matrix(together)).toarray()
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def topics(rng, n=3000):
    """Sentences about two topics whose words never meet, and words that go with either."""
    sentences = []
    for _ in range(n):
        topic = rng.integers(2)
        own = rng.choice([f"{'ab'[topic]}{i}" for i in range(10)], size=4)
        sentences.append(" ".join([*own, *rng.choice(["the", "of", "in"], size=2)]))
    return sentences


def test_words_that_keep_the_same_company_are_near(rng):
    vectors = learn_word_vectors(topics(rng), dimensions=8)
    np.testing.assert_allclose(np.linalg.norm(vectors.matrix, axis=1), 1.0, rtol=1e-5)
    similarity = vectors.matrix @ vectors.matrix.T
    kind = np.array([word[0] if word[1:].isdigit() else "-" for word in vectors.words])
    a, b = kind == "a", kind == "b"
    assert similarity[np.ix_(a, a)].mean() > similarity[np.ix_(a, b)].mean() + 0.3


def test_the_same_seed_gives_the_same_vectors(rng):
    sentences = topics(rng, 300)
    first, second = learn_word_vectors(sentences, 5), learn_word_vectors(iter(sentences), 5)
    assert first.words == second.words
    np.testing.assert_array_equal(first.matrix, second.matrix)


def test_rare_words_get_no_vector_and_few_words_few_dimensions():
    sentences = ["red car", "red car", "blue car", "blue sky", "once"]
    vectors = learn_word_vectors(sentences, dimensions=300)
    assert vectors.words == ("car", "red", "blue")
    assert vectors.dimensions == 2
    assert "once" in learn_word_vectors(sentences, min_count=1)


@pytest.mark.parametrize("sentences", [[], ["a b c"], ["", " "], ["a", "a"]])
def test_too_little_to_learn_from_is_told(sentences):
    with pytest.raises(InputError, match="give more sentences"):
        learn_word_vectors(sentences)


def test_words_that_never_meet_are_told():
    with pytest.raises(InputError, match="no more often than by chance"):
        learn_word_vectors(["a", "a", "b", "b"])


@pytest.mark.data
def test_half_a_million_captions_take_seconds(flickr_captions):
    start = time.process_time()
    vectors = learn_word_vectors(flickr_captions * 13)
    assert time.process_time() - start < 30
    assert len(vectors) > 5000
