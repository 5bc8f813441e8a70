"""From sentences to words: one stated rule, and one door for whoever brings words of their own.

Sentences as bags of words: numbers in place of strings, and means of table rows.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
import unicodedata
from array import array
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse
from array_api_compat import is_numpy_array

from diptych._arrays import Array, move_like
from diptych._checks import InputError

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


MOST_FREQUENT = 20

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, eq=False)
class Corpus:
    """Sentences with numbers for words: sentence i holds ``rows[ends[i-1]:ends[i]]``.

    Attributes
    ----------
    words
        Distinct words, in the order in which they first occur.
    rows
        The number of every token's word.
    ends
        Where each sentence ends in ``rows``.
    """

    words: list[str]
    rows: Ints
    ends: Ints

    @classmethod
    def of(cls, sentences: Iterable[Any], tokenizer: Tokenizer = tokenize, before: int = 0) -> Corpus:
        """Read sentences, strings or lists of words, once; ``before`` others were read earlier."""
        index: defaultdict[str, int] = defaultdict()
        index.default_factory = index.__len__
        rows, ends = array("q"), array("q")
        for words in words_of(sentences, tokenizer, before):
            rows.extend([index[word] for word in words])
            ends.append(len(rows))
        return cls(list(index), np.frombuffer(rows, dtype=np.int64), np.frombuffer(ends, dtype=np.int64))

    def __len__(self) -> int:
        return len(self.ends)

    def counts(self) -> Ints:
        """How often each word occurs."""
        return np.bincount(self.rows, minlength=len(self.words))

    def bag(self, *, presence: bool = False) -> Any:
        """Sentences × words, sparse: how often each word occurs in each sentence, or whether it does."""
        starts = np.concatenate([[0], self.ends])
        values = np.ones(len(self.rows), dtype=np.float32)
        bag = scipy.sparse.csr_matrix((values, self.rows, starts), shape=(len(self), len(self.words)))
        bag.sum_duplicates()
        if presence:
            bag.data[:] = 1.0
        return bag

    def known(self, index: Mapping[str, int]) -> tuple[Ints, Ints]:
        """``rows`` and ``ends`` with the numbers that ``index`` gives; words it lacks are left out."""
        numbers = np.array([index.get(word, -1) for word in self.words] or [-1], dtype=np.int64)
        rows = numbers[self.rows]
        kept = rows >= 0
        # Position 0 stands before the first token, for sentences that hold none.
        kept_before = np.concatenate([[0], np.cumsum(kept)])
        return rows[kept], kept_before[self.ends]

    def coverage(self, index: Mapping[str, int]) -> Coverage:
        """What ``index`` knows of these sentences."""
        counts = self.counts()
        unknown = [(int(counts[i]), word) for i, word in enumerate(self.words) if word not in index]
        _, ends = self.known(index)
        often = sorted(unknown, key=lambda entry: (-entry[0], entry[1]))[:MOST_FREQUENT]
        return Coverage(
            sentences=len(self),
            sentences_without_known_word=int(np.count_nonzero(sentence_lengths(ends) == 0)),
            tokens=len(self.rows),
            unknown_tokens=sum(count for count, _ in unknown),
            words=len(self.words),
            known_words=len(self.words) - len(unknown),
            most_frequent_unknown=[(word, count) for count, word in often],
        )


@dataclass(frozen=True)
class Coverage:
    """How much of some sentences is known.

    Attributes
    ----------
    sentences, sentences_without_known_word
        Number of sentences, and of those without a single known word.
    tokens, unknown_tokens
        Number of words with repetition, and of unknown ones among them.
    words, known_words
        Number of distinct words, and of known ones: the size of the vocabulary.
    most_frequent_unknown
        Unknown words and how often they occur, most frequent first.
    """

    sentences: int
    sentences_without_known_word: int
    tokens: int
    unknown_tokens: int
    words: int
    known_words: int
    most_frequent_unknown: list[tuple[str, int]]

    @property
    def unknown_share(self) -> float:
        """Share of the tokens that are unknown, 0 to 1."""
        return self.unknown_tokens / max(1, self.tokens)

    def as_dict(self) -> dict[str, Any]:
        """The same as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        often = ", ".join(f"{word} ({count})" for word, count in self.most_frequent_unknown[:10])
        return (
            f"vocabulary: {self.known_words} of {self.words} distinct words have a vector; "
            f"{100 * self.unknown_share:.1f} % of {self.tokens} tokens do not"
            + (f", most often {often}" if often else "")
            + f"; {self.sentences_without_known_word} of {self.sentences} sentences have no known word"
        )


def sentence_lengths(ends: Ints) -> Ints:
    """Number of tokens in each sentence."""
    return np.diff(ends, prepend=0)


def token_weights(ends: Ints) -> np.ndarray[Any, np.dtype[np.float64]]:
    """For each token 1/n, n being the length of its sentence."""
    lengths = sentence_lengths(ends)
    return np.repeat(1.0 / np.maximum(lengths, 1), lengths)


def mean_rows(table: Array, rows: Ints, ends: Ints, beyond: Callable[[Ints], Array]) -> Array:
    """Mean of the ``table``'s ``rows`` of each sentence; zero for a sentence without any.

    Rows past the end of the table come from ``beyond``, which is asked once for each of them.
    """
    weights = token_weights(ends)
    inside = rows < table.shape[0]
    if inside.all():
        return _sum_rows(table, rows, ends, weights)
    others, places = np.unique(rows[~inside], return_inverse=True)
    ends_inside = np.concatenate([[0], np.cumsum(inside)])[ends]
    means = _sum_rows(table, rows[inside], ends_inside, weights[inside])
    means += _sum_rows(beyond(others), places, ends - ends_inside, weights[~inside])
    return means


def _sum_rows(table: Array, rows: Ints, ends: Ints, weights: np.ndarray[Any, Any]) -> Array:
    starts = np.concatenate([[0], ends])
    if is_numpy_array(table):
        values = weights.astype(table.dtype)
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


def check_known(corpus: Corpus, ends: Ints, before: int = 0, remedy: str = "") -> None:
    """Refuse a sentence whose known words, by ``ends``, are none; ``before`` others were read earlier."""
    nothing = np.flatnonzero(sentence_lengths(ends) == 0)
    if len(nothing) == 0:
        return
    first = int(nothing[0])
    start = corpus.ends[first - 1] if first else 0
    words = list(dict.fromkeys(corpus.words[row] for row in corpus.rows[start : corpus.ends[first]]))
    raise no_known_word(f"sentences[{before + first}]", words, remedy)


def no_known_word(name: str, words: Sequence[str], remedy: str = "") -> InputError:
    """The sentence ``name`` has no known word; its ``words`` are."""
    if not words:
        return InputError(f"{name} holds no word; give a sentence with words in it.")
    named = ", ".join(map(repr, words[:10])) + (f" and {len(words) - 10} more" if len(words) > 10 else "")
    return InputError(
        f"{name} has no word that the model knows: {named}; use other words, or fit with vectors that know "
        f"these{remedy}."
    )


def blocks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of ``size`` items, the last one shorter."""
    block: list[Any] = []
    for item in items:
        block.append(item)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block
