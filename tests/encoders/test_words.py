import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych.encoders import tokenize
from diptych.encoders._words import (
    find_ignored_words,
)


@pytest.mark.parametrize(
    ("text", "words"),
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
def test_tokenize_returns_runs_of_letters_digits_and_marks_in_lower_case(text, words):
    assert tokenize(text) == words


@given(st.text())
def test_tokenizing_words_again_gives_the_same_words(text):
    words = tokenize(text)
    again = tokenize(" ".join(words))
    # A bigram of Chinese or Japanese characters gives these once more.
    assert set(again) == set(words)
    assert again == words or len(again) > len(words)
    assert all(words)


@pytest.mark.parametrize(
    ("text", "words"),
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
def test_chinese_and_japanese_give_characters_and_bigrams(text, words):
    assert tokenize(text) == words


@pytest.mark.parametrize(
    ("text", "known", "ignored"),
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
def test_find_ignored_words_returns_the_words_that_are_not_known(text, known, ignored):
    assert find_ignored_words(text, known) == ignored


def test_find_ignored_words_uses_the_tokenizer():
    assert find_ignored_words("黑狗|大象", {"黑狗"}, lambda text: text.split("|")) == ("大象",)


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_ascii_texts_give_the_same_words_as_other_texts(text):
    assert tokenize(text) == tokenize(text + " é")[:-1]


texts = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), min_size=1, max_size=8)
