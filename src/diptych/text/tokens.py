"""From sentences to words: one stated rule, and one door for whoever brings words of their own."""

from __future__ import annotations

import functools
import re
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from diptych.checks import InputError

Tokenizer: TypeAlias = Callable[[str], list[str]]
"""Anything that cuts a sentence into words."""

_ASCII_WORD = re.compile(r"[a-z0-9]+")


def tokenize(sentence: str) -> list[str]:
    """The words of ``sentence``: runs of letters, digits and the marks they carry, in lower case.

    The text is first brought to Unicode's compatibility form (NFKC), so that one word has one spelling.
    Everything else separates words: spaces, punctuation, hyphens, underscores and apostrophes. A
    script written without spaces comes out in long runs; give such text as lists of words, or give a
    tokenizer of your own.

    Examples
    --------
    >>> tokenize("A man's T-shirt, size ½ — très bien!")
    ['a', 'man', 's', 't', 'shirt', 'size', '1', '2', 'très', 'bien']
    """
    if sentence.isascii():
        return _ASCII_WORD.findall(sentence.lower())
    # Either of the two steps can undo the other for a few letters, so the normal form is taken twice.
    lowered = unicodedata.normalize("NFKC", sentence).lower()
    return _unicode_word().findall(unicodedata.normalize("NFKC", lowered))


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


@functools.cache
def _unicode_word() -> re.Pattern[str]:
    # Python's \w leaves out combining marks, which would cut Hindi or Thai words into pieces.
    marks = "".join(chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c))[0] == "M")
    return re.compile(rf"(?:[^\W_]|[{marks}])+")
