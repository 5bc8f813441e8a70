import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych._arrays import to_numpy
from diptych.text._words import Corpus, blocks, mean_rows

sentences = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), min_size=1, max_size=8)


@given(sentences)
def test_a_corpus_holds_its_sentences(words):
    corpus = Corpus.of(words)
    starts = [0, *corpus.ends[:-1]]
    again = [
        [corpus.words[i] for i in corpus.rows[start:end]]
        for start, end in zip(starts, corpus.ends, strict=True)
    ]
    assert again == words
    assert corpus.counts().sum() == sum(map(len, words))
    assert corpus.bag().sum() == sum(map(len, words))
    assert corpus.bag(presence=True).sum() == sum(len(set(sentence)) for sentence in words)


@given(sentences, st.sets(st.sampled_from("abcdefgh")))
def test_coverage_counts_what_an_index_knows(words, known):
    report = Corpus.of(words).coverage(dict.fromkeys(known, 0))
    tokens = [word for sentence in words for word in sentence]
    assert report.tokens == len(tokens)
    assert report.unknown_tokens == sum(word not in known for word in tokens)
    assert report.known_words == len(set(tokens) & known)
    assert report.sentences_without_known_word == sum(not set(sentence) & known for sentence in words)
    assert all(word not in known for word, _ in report.most_frequent_unknown)


@settings(deadline=None)
@given(sentences, st.integers(1, 8), st.sampled_from(["numpy", "torch"]))
def test_means_of_rows_within_and_beyond_the_table(words, size, where):
    index = {word: i for i, word in enumerate("abcdef")}  # g and h are not known
    every = np.random.default_rng(0).normal(size=(8, 3))
    moved = every if where == "numpy" else pytest.importorskip("torch").as_tensor(every)
    rows, ends = Corpus.of(words).known(index)
    found = to_numpy(mean_rows(moved[:size], rows, ends, lambda others: moved[others]))
    for sentence, mean in zip(words, found, strict=True):
        own = [every[index[word]] for word in sentence if word in index]
        np.testing.assert_allclose(mean, np.mean(own, axis=0) if own else np.zeros(3), atol=1e-12)


@given(st.integers(0, 20), st.integers(1, 7))
def test_blocks_are_full_but_the_last(n, size):
    parts = list(blocks(iter(range(n)), size))
    assert [item for part in parts for item in part] == list(range(n))
    assert all(len(part) == size for part in parts[:-1])
