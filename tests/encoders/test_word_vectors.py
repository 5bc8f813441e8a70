import time

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych._persistence import TENSORS
from diptych.encoders import WordVectors, learn_word_vectors
from diptych.encoders._word_vectors import positive_information, table_from_tensors, table_tensors
from saved_files import files_of, seal


def test_a_word_gives_its_row(table):
    assert len(table) == 12
    assert "dog" in table
    assert "unicorn" not in table
    np.testing.assert_array_equal(table["cat"], table.matrix[1])
    with pytest.raises(InputError, match="'unicorn' has no vector"):
        table["unicorn"]


def test_first_reorders_the_words_and_only_selects_them(table):
    first = table.first(["snow", "unicorn", "dog", "snow"])
    assert first.words[:3] == ("snow", "dog", "cat")
    assert set(first.words) == set(table.words)
    only = table.only(["snow", "unicorn", "dog"])
    assert only.words == ("snow", "dog")
    for selected in (first, only):
        for word in selected.words:
            np.testing.assert_array_equal(selected[word], table[word])
    with pytest.raises(InputError, match="None of the words"):
        table.only(["unicorn"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a", "b"], "Got 3 vectors for 2 words"),
        (["a", "b", "a"], "'a' occurs more than once"),
        (["a", "", "b"], r"words\[1\] is ''"),
        (["a", 5, "b"], r"words\[1\] is 5"),
    ],
)
def test_a_wrong_table_is_refused(words, message):
    with pytest.raises(InputError, match=message):
        WordVectors(words, np.ones((3, 2)))
    with pytest.raises(InputError, match="NaN or infinity"):
        WordVectors(["a"], [[np.nan]])


@given(st.lists(st.text(min_size=1), min_size=1, max_size=9, unique=True))
def test_any_words_are_equal_after_a_round_trip_through_tensors(words):
    table = WordVectors(words, np.arange(len(words), dtype=np.float32)[:, None])
    again = table_from_tensors(table_tensors(table), "here")
    assert again.words == table.words
    np.testing.assert_array_equal(again.matrix, table.matrix)


def test_a_saved_table_is_read_back(table, tmp_path):
    table.save(tmp_path / "table")
    again = WordVectors.load(tmp_path / "table")
    assert again.words == table.words
    np.testing.assert_array_equal(again.matrix, table.matrix)


def test_a_damaged_file_is_refused(table, tmp_path):
    table.save(tmp_path / "table")
    file = files_of(tmp_path / "table") / TENSORS
    file.write_bytes(file.read_bytes()[:-40])
    seal(tmp_path / "table")
    with pytest.raises(InputError, match="damaged"):
        WordVectors.load(tmp_path / "table")


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("word_ends"),
        lambda t: t.update(word_ends=t["word_ends"][:-1]),
        lambda t: t.update(word_ends=t["word_ends"] - 50),
        lambda t: t.update(word_ends=np.full(12, 2**60, dtype=np.int64)),
        lambda t: t.update(word_bytes=np.full_like(t["word_bytes"], 255)),
        lambda t: t.update(vectors=t["vectors"] * np.nan),
        lambda t: t.update(vectors=t["vectors"][0]),
    ],
)
def test_inconsistent_tensors_are_refused(table, change):
    tensors = table_tensors(table)
    change(tensors)
    with pytest.raises(InputError, match="here"):
        table_from_tensors(tensors, "here")


def test_positive_information_follows_its_formula():
    together = np.array([[0.0, 4.0, 1.0], [4.0, 0.0, 2.0], [1.0, 2.0, 0.0]])
    total, sums = together.sum(), together.sum(axis=1)
    q = sums**0.75 / (sums**0.75).sum()
    with np.errstate(divide="ignore"):
        expected = np.maximum(0.0, np.log(together / total / (sums[:, None] / total * q[None, :])))
    information = positive_information(scipy.sparse.csr_matrix(together)).toarray()
    np.testing.assert_allclose(information, expected, rtol=1e-6)


def topics(rng, n):
    """Make texts about two topics without common words, and with words that occur in both."""
    texts = []
    for _ in range(n):
        topic = rng.integers(2)
        words = rng.choice([f"{'ab'[topic]}{i}" for i in range(10)], size=4)
        texts.append(" ".join([*words, *rng.choice(["the", "of", "in"], size=2)]))
    return texts


def test_words_that_occur_together_have_similar_vectors(rng):
    vectors = learn_word_vectors(topics(rng, 1000), dimensions=8)
    np.testing.assert_allclose(np.linalg.norm(vectors.matrix, axis=1), 1.0, rtol=1e-5)
    similarity = vectors.matrix @ vectors.matrix.T
    kind = np.array([word[0] if word[1:].isdigit() else "-" for word in vectors.words])
    a, b = kind == "a", kind == "b"
    assert similarity[np.ix_(a, a)].mean() > similarity[np.ix_(a, b)].mean() + 0.3


def test_the_same_seed_gives_the_same_vectors(rng):
    texts = topics(rng, 300)
    first, second = learn_word_vectors(texts, 5), learn_word_vectors(iter(texts), 5)
    assert first.words == second.words
    np.testing.assert_array_equal(first.matrix, second.matrix)


def test_rare_words_have_no_vector_and_few_words_give_few_dimensions():
    texts = ["red car", "red car", "blue car", "blue sky", "once"]
    vectors = learn_word_vectors(texts, dimensions=300)
    assert vectors.words == ("car", "red", "blue")
    assert vectors.dimensions == 3
    assert "once" in learn_word_vectors(texts, min_count=1)


@pytest.mark.parametrize("texts", [[], ["a b c"], ["", " "], ["a", "a"]])
def test_too_few_texts_are_refused(texts):
    with pytest.raises(InputError, match="pass more texts"):
        learn_word_vectors(texts)


@pytest.mark.parametrize("texts", [["a b", "b a", "a b"], ["a", "a", "b", "b"]])
def test_words_without_anything_in_common_have_vectors_of_their_own(texts):
    vectors = learn_word_vectors(texts)
    assert vectors.words == ("a", "b")
    assert float(vectors["a"] @ vectors["b"]) < 0.9


def test_words_that_can_replace_each_other_have_vectors_of_their_own():
    numbers, kinds = ("one", "two", "three", "four"), ("alcohol", "acid", "amine")
    vectors = learn_word_vectors([f"an {kind} with {n} carbon atoms" for kind in kinds for n in numbers])
    rows = vectors.only(numbers).matrix
    similarity = rows @ rows.T
    assert np.all(similarity[~np.eye(4, dtype=bool)] < 0.9)


@pytest.mark.slow
@pytest.mark.data
def test_half_a_million_captions_are_learned_in_seconds(flickr_captions):
    start = time.process_time()
    vectors = learn_word_vectors(flickr_captions * 13)
    assert time.process_time() - start < 30
    assert len(vectors) > 5000
