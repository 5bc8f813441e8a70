import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.text import tokenize
from diptych.text.tokens import words_of


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("A black dog, after a WHITE dog .", ["a", "black", "dog", "after", "a", "white", "dog"]),
        ("man's t-shirt snake_case 3rd", ["man", "s", "t", "shirt", "snake", "case", "3rd"]),
        ("Müllers Straße", ["müllers", "straße"]),
        ("caf\u0065\u0301", ["caf\u00e9"]),
        ("\ufb01sh ½", ["fish", "1", "2"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        ("Собака бежит", ["собака", "бежит"]),
        ("  \t\n .,;!? ", []),
        ("", []),
    ],
)
def test_words_are_runs_of_letters_digits_and_marks_in_lower_case(sentence, words):
    assert tokenize(sentence) == words


@given(st.text())
def test_words_stay_the_same_words(sentence):
    words = tokenize(sentence)
    assert tokenize(" ".join(words)) == words
    assert all(words)


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_takes_the_short_way_to_the_same_words(sentence):
    assert tokenize(sentence) == tokenize(sentence + " é")[:-1]


def test_lists_of_words_are_taken_as_they_are():
    assert list(words_of([["A", "Dog's"], ("x y",), "A Dog's"])) == [
        ["A", "Dog's"],
        ["x y"],
        ["a", "dog", "s"],
    ]


@pytest.mark.parametrize(
    ("sentences", "message"),
    [
        ("a dog", "one str"),
        (7, "int"),
        (["a dog", None], r"sentences\[1\] is a NoneType"),
        (["a dog", float("nan")], r"sentences\[1\] is a float"),
        ([["a", 3]], r"sentences\[0\] is a list"),
        ([b"a dog"], r"sentences\[0\] is a bytes"),
    ],
)
def test_what_is_no_sentence_is_named(sentences, message):
    with pytest.raises(InputError, match=message):
        list(words_of(sentences))
