import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.text import tokenize
from diptych.text._words import ignored_words, words_of


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
    again = tokenize(" ".join(words))
    # A bigram of Chinese or Japanese characters gives these once more.
    assert set(again) == set(words)
    assert again == words or len(again) > len(words)
    assert all(words)


@pytest.mark.parametrize(
    ("sentence", "words"),
    [
        ("一只黑狗。", ["一", "只", "黑", "狗", "一只", "只黑", "黑狗"]),
        ("赤い犬", ["赤", "い", "犬", "赤い", "い犬"]),
        (
            "ボール、コーヒー",
            ["ボ", "ー", "ル", "ボー", "ール", "コ", "ー", "ヒ", "ー", "コー", "ーヒ", "ヒー"],
        ),
        ("ﾎﾞｰﾙ", ["ボ", "ー", "ル", "ボー", "ール"]),
        ("人々", ["人", "々", "人々"]),
        ("犬", ["犬"]),
        ("T恤xl 3只", ["t", "恤", "xl", "3", "只"]),
        ("𠮷野家", ["𠮷", "野", "家", "𠮷野", "野家"]),
        ("か\u309a犬", ["か\u309a", "犬", "か\u309a犬"]),
        ("검은 개가 달린다", ["검은", "개가", "달린다"]),
        ("สุนัขสีดำ", ["สุนัขสีดํา"]),
    ],
)
def test_chinese_and_japanese_are_cut_into_characters_and_bigrams(sentence, words):
    assert tokenize(sentence) == words


@pytest.mark.parametrize(
    ("sentence", "known", "ignored"),
    [
        ("A quokka, a Cat and a quokka", {"a", "and"}, ("quokka", "cat")),
        ("a dog", {"a", "dog"}, ()),
        ("das süße Quokka", {"das"}, ("süße", "quokka")),
        ("黑狗", {"黑", "狗"}, ()),
        ("黑狗", {"黑狗"}, ()),
        ("黑色的大象", {"黑", "色", "的"}, ("大象",)),
        ("大象的鼻子 quokka", {"的"}, ("大象", "鼻子", "quokka")),
        ("大象象", {"大象"}, ("象",)),
    ],
)
def test_ignored_words_are_what_no_known_word_covers(sentence, known, ignored):
    assert ignored_words(sentence, known) == ignored


def test_another_tokenizer_says_what_a_word_is():
    assert ignored_words("黑狗|大象", {"黑狗"}, lambda sentence: sentence.split("|")) == ("大象",)


def test_english_is_cut_as_before():
    # The rule of the experiments: ASCII runs in lower case, whatever stands beside them.
    sentence = "Two dogs (one's brown), playing in the snow-covered yard; 3 kids watch."
    expected = re.findall("[a-z0-9]+", sentence.lower())
    assert tokenize(sentence) == expected
    assert tokenize(sentence + "犬") == [*expected, "犬"]


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
