"""Texts as words: tokenisation, a corpus of word numbers, and means over words."""

from __future__ import annotations

import functools
import itertools
import re
import sys
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

import numpy as np
from array_api_compat import is_numpy_array

from diptych._arrays import Array, move_like
from diptych._checks import InputError

T = TypeVar("T")
Ints = np.ndarray[Any, np.dtype[np.int64]]
Text: TypeAlias = str | Sequence[str]
"""A string, or the list of its words."""
Tokenizer: TypeAlias = Callable[[str], list[str]]
"""Splits a text into words."""

TOKENIZER = "words, and characters and bigrams of CJK"
"""Name of the rule of ``tokenize``. A saved model stores it, so that queries are split by the same rule."""

MOST_FREQUENT = 20

FEW_TOKENS = 256
"""Up to this many, a product with a dense matrix is quicker than to import scipy.sparse."""

_ASCII_WORD = re.compile(r"[a-z0-9]+")

# Chinese characters, hiragana and katakana with their repetition and length marks.
_CJK = (
    "\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3038-\u303c\u3041-\u3096\u309d-\u309f\u30a1-\u30fa"
    "\u30fc-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00016ff0-\U00016ff6"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"
)


def tokenize(text: str) -> list[str]:
    """Split a text into words: runs of letters, digits and combining marks, in lower case.

    The text is first brought to Unicode's compatibility form (NFKC), so that a word has one spelling.
    Everything else separates words: spaces, punctuation, hyphens, underscores and apostrophes.

    Chinese and Japanese have no spaces between words. A run of Chinese characters, hiragana and katakana
    gives its characters, followed by its bigrams. Other scripts without spaces (Thai, Lao, Khmer, Burmese)
    give long runs; pass such texts as lists of words, or use another tokenizer.

    Examples
    --------
    >>> tokenize("A man's T-shirt, size ½ — très bien!")
    ['a', 'man', 's', 't', 'shirt', 'size', '1', '2', 'très', 'bien']
    >>> tokenize("一只黑狗 (dog)")
    ['一', '只', '黑', '狗', '一只', '只黑', '黑狗', 'dog']
    """
    if text.isascii():
        return _ASCII_WORD.findall(text.lower())
    words: list[str] = []
    for characters, word in _split_runs(text):
        words += [*characters, *_bigrams(characters)] if characters else [word]
    return words


def find_ignored_words(
    text: str, vocabulary: Container[str], tokenizer: Tokenizer = tokenize
) -> tuple[str, ...]:
    """Return the words of ``text`` that are not in ``vocabulary``, in order and without repetition.

    A Chinese or Japanese character counts as known if it, or a bigram with it, is there. Neighbouring
    unknown characters are returned together.
    """
    if tokenizer is not tokenize or text.isascii():
        return tuple(dict.fromkeys(word for word in tokenizer(text) if word not in vocabulary))
    ignored: list[str] = []
    for characters, word in _split_runs(text):
        if not characters:
            ignored += [] if word in vocabulary else [word]
            continue
        pairs = [pair in vocabulary for pair in _bigrams(characters)]
        covered = [
            character in vocabulary or left or right
            for character, left, right in zip(characters, [False, *pairs], [*pairs, False], strict=True)
        ]
        for is_covered, group in itertools.groupby(zip(covered, characters, strict=True), lambda c: c[0]):
            ignored += [] if is_covered else ["".join(character for _, character in group)]
    return tuple(dict.fromkeys(ignored))


def split_texts(
    texts: Iterable[Text], tokenizer: Tokenizer = tokenize, first: int = 0
) -> Iterator[list[str]]:
    """Return the words of each text; ``first`` is the position of the first text, for error messages."""
    return (_split_text(text, i, tokenizer) for i, text in enumerate(iterate_texts(texts), start=first))


def iterate_texts(texts: Iterable[T]) -> Iterator[T]:
    """Return an iterator of texts; refuse one text in place of a list of them."""
    kind = type(texts).__name__
    if isinstance(texts, str | bytes):
        raise InputError(f"texts is one {kind}; pass a list of texts: [text].")
    try:
        return iter(texts)
    except TypeError:
        raise InputError(f"texts is a {kind}; pass a list of strings, or of lists of words.") from None


def _split_text(text: Any, position: int, tokenizer: Tokenizer) -> list[str]:
    if isinstance(text, str):
        return tokenizer(text)
    if isinstance(text, list | tuple) and all(isinstance(word, str) for word in text):
        return list(text)
    raise InputError(
        f"texts[{position}] is a {type(text).__name__} ({str(text)[:40]!r}); "
        "expected a string or a list of words."
    )


def _split_runs(text: str) -> Iterator[tuple[list[str], str]]:
    """Split a text into runs: the characters of a Chinese or Japanese run, or else one word."""
    # For a few letters, lower case undoes NFKC, so it is applied a second time.
    lowered = unicodedata.normalize("NFKC", text).lower()
    run, character = _patterns()
    for match in run.finditer(unicodedata.normalize("NFKC", lowered)):
        yield character.findall(match[1]) if match[1] else [], match[0]


def _bigrams(characters: list[str]) -> list[str]:
    return [left + right for left, right in itertools.pairwise(characters)]


@functools.cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    # Python's \w excludes combining marks, which are part of words in Hindi or Thai.
    marks = "".join(chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c))[0] == "M")
    character = rf"[{_CJK}][{marks}]*"
    return re.compile(rf"((?:{character})+)|(?:[^\W_{_CJK}]|[{marks}])+"), re.compile(character)


class WordRows(Protocol):
    """The row of each known word in a table of word vectors, such as a dict."""

    def get(self, word: str, default: int, /) -> int: ...

    def __contains__(self, word: object, /) -> bool: ...


@dataclass(frozen=True, eq=False)
class Corpus:
    """Texts as numbers of words: text i has the words with numbers ``rows[ends[i-1]:ends[i]]``.

    ``words`` are the distinct words, in the order of their first occurrence.
    """

    words: list[str]
    rows: Ints
    ends: Ints

    @classmethod
    def of(cls, texts: Iterable[Text], tokenizer: Tokenizer = tokenize, first: int = 0) -> Corpus:
        """Read texts, strings or lists of words, once; ``first`` is the position of the first text."""
        index: defaultdict[str, int] = defaultdict()
        index.default_factory = index.__len__
        rows, ends = array("q"), array("q")
        for words in split_texts(texts, tokenizer, first):
            rows.extend([index[word] for word in words])
            ends.append(len(rows))
        return cls(list(index), np.frombuffer(rows, dtype=np.int64), np.frombuffer(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def counts(self) -> Ints:
        """Return how often each word occurs."""
        return np.bincount(self.rows, minlength=len(self.words))

    def presence(self) -> Any:
        """Return the sparse matrix, texts × words, that is 1 where the text has the word."""
        import scipy.sparse

        starts = np.concatenate([[0], self.ends])
        values = np.ones(len(self.rows), dtype=np.float32)
        matrix = scipy.sparse.csr_matrix((values, self.rows, starts), shape=(len(self), len(self.words)))
        matrix.sum_duplicates()
        matrix.data[:] = 1.0
        return matrix

    def lookup(self, index: WordRows) -> tuple[Ints, Ints]:
        """Return ``rows`` and ``ends`` with the numbers that ``index`` has; other words are left out."""
        numbers = np.array([index.get(word, -1) for word in self.words] or [-1], dtype=np.int64)
        rows = numbers[self.rows]
        inside = rows >= 0
        # The leading 0 is the end of empty texts at the start.
        counts = np.concatenate([[0], np.cumsum(inside)])
        return rows[inside], counts[self.ends]

    def words_of(self, i: int) -> list[str]:
        """Return the distinct words of text i."""
        start = self.ends[i - 1] if i else 0
        return [self.words[row] for row in dict.fromkeys(self.rows[start : self.ends[i]].tolist())]

    def coverage(self, index: WordRows) -> Coverage:
        """Return how much of these texts is in ``index``."""
        counts = self.counts()
        unknown = [(int(counts[i]), word) for i, word in enumerate(self.words) if word not in index]
        _, ends = self.lookup(index)
        frequent = sorted(unknown, key=lambda entry: (-entry[0], entry[1]))[:MOST_FREQUENT]
        return Coverage(
            texts=len(self),
            texts_without_known_word=int(np.count_nonzero(text_lengths(ends) == 0)),
            tokens=len(self.rows),
            unknown_tokens=sum(count for count, _ in unknown),
            words=len(self.words),
            known_words=len(self.words) - len(unknown),
            most_frequent_unknown=[(word, count) for count, word in frequent],
        )


@dataclass(frozen=True)
class Coverage:
    """How much of a set of texts has word vectors; ``HKSE.coverage_`` and ``HKSE.coverage`` return it.

    Attributes
    ----------
    texts, texts_without_known_word
        Number of texts, and of texts without any known word.
    tokens, unknown_tokens
        Number of words with repetition, and of unknown words among them.
    words, known_words
        Number of distinct words, and of known words among them (the size of the vocabulary).
    most_frequent_unknown
        Unknown words and how often they occur, the most frequent first.

    Examples
    --------
    >>> captions = ["a dog runs", "a dog jumps", "a cat sleeps", "a cat sits", "the cat sits", "the dog runs"]
    >>> from diptych.encoders import HKSE
    >>> hkse = HKSE(word_features=64, sentence_features=32).fit(captions)
    >>> hkse.coverage(["a dog and a quokka"]).most_frequent_unknown
    [('and', 1), ('quokka', 1)]
    """

    texts: int
    texts_without_known_word: int
    tokens: int
    unknown_tokens: int
    words: int
    known_words: int
    most_frequent_unknown: list[tuple[str, int]]

    @property
    def unknown_share(self) -> float:
        """Share of the tokens that are unknown, from 0 to 1."""
        return self.unknown_tokens / max(1, self.tokens)

    def __str__(self) -> str:
        frequent = ", ".join(f"{word} ({count})" for word, count in self.most_frequent_unknown[:10])
        return (
            f"vocabulary: {self.known_words} of {self.words} distinct words have a vector; "
            f"{100 * self.unknown_share:.1f} % of {self.tokens} tokens do not"
            + (f", most often {frequent}" if frequent else "")
            + f"; {self.texts_without_known_word} of {self.texts} texts have no known word"
        )


def text_lengths(ends: Ints) -> Ints:
    """Return the number of tokens of each text."""
    return np.diff(ends, prepend=0)


def token_weights(ends: Ints) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return 1/n for each token, where n is the length of its text."""
    lengths = text_lengths(ends)
    return np.repeat(1.0 / np.maximum(lengths, 1), lengths)


def mean_rows(table: Array, rows: Ints, ends: Ints) -> Array:
    r"""Return the mean of the rows of each text, :math:`\frac1n\sum_i \Phi(a_i)` (Section 4).

    It is 0 for a text without rows.
    """
    weights = token_weights(ends)
    starts = np.concatenate([[0], ends])
    if is_numpy_array(table):
        values = weights.astype(table.dtype)
        if len(rows) <= FEW_TOKENS:
            shares = np.zeros((len(ends), len(rows)), table.dtype)
            shares[np.repeat(np.arange(len(ends)), text_lengths(ends)), np.arange(len(rows))] = values
            return shares @ table[rows]
        import scipy.sparse

        return scipy.sparse.csr_matrix((values, rows, starts), shape=(len(ends), table.shape[0])) @ table
    from torch.nn.functional import embedding_bag

    like = table[:0, 0]
    return embedding_bag(
        move_like(rows, like),
        table,
        move_like(starts[:-1], like),
        mode="sum",
        per_sample_weights=move_like(weights, like, dtype=table.dtype),
    )


def no_known_word(name: str, words: Sequence[str], remedy: str = "") -> InputError:
    """Return the error for the text ``name``, which has ``words`` but none that the model knows."""
    if not words:
        return InputError(f"{name} contains no word; pass a text with words in it.")
    listed = ", ".join(map(repr, words[:10])) + (f" and {len(words) - 10} more" if len(words) > 10 else "")
    return InputError(
        f"{name} has no word that the model knows: {listed}; use other words, or fit with vectors that "
        f"include these{remedy}."
    )


def split_blocks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Split ``items`` into lists of ``size``; the last one may be shorter."""
    iterator = iter(items)
    while block := list(itertools.islice(iterator, size)):
        yield block
