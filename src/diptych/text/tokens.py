"""From sentences to words: one stated rule, and one door for whoever brings words of their own."""

from __future__ import annotations

import functools
import itertools
import re
import sys
import unicodedata
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, TypeAlias

from diptych.checks import InputError

Tokenizer: TypeAlias = Callable[[str], list[str]]
"""Anything that cuts a sentence into words."""

TOKENIZER = "words, and characters and bigrams of CJK"
"""The rule of ``tokenize``: a saved model names it, so that no other rule is ever applied to its queries."""

_ASCII_WORD = re.compile(r"[a-z0-9]+")

# Chinese characters, hiragana and katakana with their repetition and length marks: no spaces between words.
_CJK = (
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u3096\u309d-\u309f\u30a1-\u30fa"
    "\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00016ff0-\U00016ff6"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)


def tokenize(sentence: str) -> list[str]:
    """The words of ``sentence``: runs of letters, digits and the marks they carry, in lower case.

    The text is first brought to Unicode's compatibility form (NFKC), so that one word has one spelling.
    Everything else separates words: spaces, punctuation, hyphens, underscores and apostrophes.

    Chinese and Japanese are written without spaces, so a run of Chinese characters, hiragana and katakana
    gives its characters, then its bigrams. Other scripts without spaces (Thai, Lao, Khmer, Burmese) come
    out in long runs: give such text as lists of words, or give a tokenizer of your own.

    Examples
    --------
    >>> tokenize("A man's T-shirt, size ½ — très bien!")
    ['a', 'man', 's', 't', 'shirt', 'size', '1', '2', 'très', 'bien']
    >>> tokenize("一只黑狗 (dog)")
    ['一', '只', '黑', '狗', '一只', '只黑', '黑狗', 'dog']
    """
    if sentence.isascii():
        return _ASCII_WORD.findall(sentence.lower())
    words: list[str] = []
    for characters, word in _runs(sentence):
        words += [*characters, *_bigrams(characters)] if characters else [word]
    return words


def ignored_words(sentence: str, known: Container[str], tokenizer: Tokenizer = tokenize) -> tuple[str, ...]:
    """What of ``sentence`` no ``known`` word covers, in its order and each once.

    A Chinese or Japanese character is covered by itself or by a bigram it is part of; what is left of a run
    is told in one piece.

    Examples
    --------
    >>> ignored_words("a quokka and a dog", {"a", "dog", "and"})
    ('quokka',)
    """
    if tokenizer is not tokenize or sentence.isascii():
        return tuple(dict.fromkeys(word for word in tokenizer(sentence) if word not in known))
    ignored: list[str] = []
    for characters, word in _runs(sentence):
        if not characters:
            ignored += [] if word in known else [word]
            continue
        pairs = [pair in known for pair in _bigrams(characters)]
        covered = [
            each in known or left or right
            for each, left, right in zip(characters, [False, *pairs], [*pairs, False], strict=True)
        ]
        for lost, group in itertools.groupby(zip(covered, characters, strict=True), lambda pair: not pair[0]):
            ignored += ["".join(each for _, each in group)] if lost else []
    return tuple(dict.fromkeys(ignored))


def words_of(
    sentences: Iterable[Any], tokenizer: Tokenizer = tokenize, before: int = 0
) -> Iterator[list[str]]:
    """The words of each sentence; a sentence that is a list of words already is taken as it is.

    ``before`` is the number of sentences that were read earlier; it counts when one is named in an error.
    """
    kind = type(sentences).__name__
    if isinstance(sentences, str | bytes):
        raise InputError(f"sentences is one {kind}; give a list of sentences: [sentence].")
    try:
        pieces = iter(sentences)
    except TypeError:
        raise InputError(f"sentences is a {kind}; give strings, or lists of words.") from None
    return (_words(sentence, i, tokenizer) for i, sentence in enumerate(pieces, start=before))


def _words(sentence: Any, position: int, tokenizer: Tokenizer) -> list[str]:
    if isinstance(sentence, str):
        return tokenizer(sentence)
    if isinstance(sentence, list | tuple) and all(isinstance(word, str) for word in sentence):
        return list(sentence)
    raise InputError(
        f"sentences[{position}] is a {type(sentence).__name__} ({str(sentence)[:40]!r}); "
        "expected a string or a list of words."
    )


def _runs(sentence: str) -> Iterator[tuple[list[str], str]]:
    """Runs of letters in their order: the characters of a Chinese or Japanese one, or another word."""
    # Either of the two steps can undo the other for a few letters, so the normal form is taken twice.
    lowered = unicodedata.normalize("NFKC", sentence).lower()
    run, character = _patterns()
    for found in run.finditer(unicodedata.normalize("NFKC", lowered)):
        yield character.findall(found[1]) if found[1] else [], found[0]


def _bigrams(characters: list[str]) -> list[str]:
    return [left + right for left, right in itertools.pairwise(characters)]


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    # Python's \w leaves out combining marks, which would cut Hindi or Thai words into pieces.
    marks = "".join(chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c))[0] == "M")
    character = rf"[{_CJK}][{marks}]*"
    return re.compile(rf"((?:{character})+)|(?:[^\W_{_CJK}]|[{marks}])+"), re.compile(character)
