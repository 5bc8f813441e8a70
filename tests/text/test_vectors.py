import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych._persistence import TENSORS
from diptych.text import WordVectors
from diptych.text._word_vectors import table_from_tensors, table_tensors
from saved_files import files_of, seal


def test_rows_belong_to_words(table):
    assert len(table) == 12
    assert "dog" in table
    assert "unicorn" not in table
    np.testing.assert_array_equal(table["cat"], table.matrix[1])
    with pytest.raises(InputError, match="'unicorn' has no vector"):
        table["unicorn"]


def test_first_reorders_and_only_selects(table):
    first = table.first(["snow", "unicorn", "dog", "snow"])
    assert first.words[:3] == ("snow", "dog", "cat")
    assert set(first.words) == set(table.words)
    only = table.only(["snow", "unicorn", "dog"])
    assert only.words == ("snow", "dog")
    for other in (first, only):
        for word in other.words:
            np.testing.assert_array_equal(other[word], table[word])
    with pytest.raises(InputError, match="none of the words"):
        table.only(["unicorn"])


@pytest.mark.parametrize(
    ("words", "rows", "message"),
    [
        (["a", "b"], 3, "2 words come with 3 vectors"),
        (["a", "b", "a"], 3, "'a' occurs more than once"),
        (["a", "", "b"], 3, r"words\[1\] is ''"),
        (["a", 5, "b"], 3, r"words\[1\] is 5"),
    ],
)
def test_a_wrong_table_is_refused(words, rows, message):
    with pytest.raises(InputError, match=message):
        WordVectors(words, np.ones((rows, 2)))


def test_vectors_must_be_finite():
    with pytest.raises(InputError, match="NaN or infinity"):
        WordVectors(["a"], np.array([[np.nan]]))


@given(st.lists(st.text(min_size=1), min_size=1, max_size=9, unique=True))
def test_any_words_survive_being_taken_apart(words):
    table = WordVectors(words, np.arange(len(words), dtype=np.float32)[:, None])
    again = table_from_tensors(table_tensors(table), "here")
    assert again.words == table.words
    np.testing.assert_array_equal(again.matrix, table.matrix)


def test_save_and_load(table, tmp_path):
    table.save(tmp_path / "table")
    again = WordVectors.load(tmp_path / "table")
    assert again.words == table.words
    np.testing.assert_array_equal(again.matrix, table.matrix)


def test_a_damaged_file_is_an_input_error(table, tmp_path):
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
def test_tensors_that_do_not_fit_are_refused(table, change):
    tensors = table_tensors(table)
    change(tensors)
    with pytest.raises(InputError, match="here"):
        table_from_tensors(tensors, "here")
