"""A fitted HKSE: the encoder that searches use, and its files.

It needs neither scikit-learn nor SciPy, which are slow to import; the estimator ``HKSE`` makes it.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

import numpy as np

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import InputError, check_choice, check_count, import_package
from diptych._persistence import (
    TENSORS,
    Schema,
    Tensors,
    parse_tensors,
    read_config,
    take_array,
    write_model_files,
    write_tensors,
)
from diptych.encoders._kernels import KINDS, Fourier, Kind, check_gamma, fourier_features
from diptych.encoders._word_vectors import (
    WordVectors,
    table_from_tensors,
    table_tensors,
    take_words,
    word_tensors,
)
from diptych.encoders._words import (
    TOKENIZER,
    Corpus,
    Coverage,
    Ints,
    Text,
    Tokenizer,
    find_ignored_words,
    iterate_texts,
    mean_rows,
    no_known_word,
    split_blocks,
    text_lengths,
    tokenize,
)

if TYPE_CHECKING:
    from diptych.encoders._hkse import HKSE

Unknown: TypeAlias = Literal["error", "mean"]
UNKNOWN: tuple[Unknown, ...] = ("error", "mean")

KIND = "hkse"
CUSTOM = "custom"
INSIDE = "text-encoder"
"""The folder of the text encoder within that of a retriever."""
WORDS = "words.safetensors"
"""The file with the vectors of the words that only queries use; it is large, and most queries need none."""
QUERY_WORDS = 50_000
BLOCK_ROWS = 2048


class QueryWords:
    """The row of each word that queries may use: the vocabulary, and then further words of the same vectors.

    ``words`` and ``matrix`` return the further words and their vectors. They are functions, because most
    queries need neither: a saved model reads the words when a query has one that is not in the vocabulary,
    and the vectors when it is one of these.
    """

    def __init__(
        self, vocabulary: Mapping[str, int], words: Callable[[], Sequence[str]], matrix: Callable[[], Array]
    ) -> None:
        self._vocabulary, self._words, self._matrix = vocabulary, words, matrix

    @classmethod
    def of(cls, vocabulary: Mapping[str, int], words: Sequence[str], matrix: Array) -> QueryWords:
        """Return further words with their vectors, one row for each."""
        return cls(vocabulary, lambda: words, lambda: matrix)

    @cached_property
    def index(self) -> dict[str, int]:
        """The row of each further word among their vectors, as a dict."""
        words = self._words()
        index = {word: i for i, word in enumerate(words)}
        if len(index) != len(words):
            raise InputError(f"A word occurs twice among the {len(words)} words for queries; fit again.")
        return index

    @cached_property
    def matrix(self) -> Array:
        """The vectors of the further words; float16 where that is precise enough."""
        return self._matrix()

    def get(self, word: str, default: int = -1, /) -> int:
        """Return the row of a word, or ``default``."""
        row = self._vocabulary.get(word)
        if row is None and (row := self.index.get(word)) is not None:
            row += len(self._vocabulary)
        return default if row is None else row

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self.get(word) >= 0

    def __reduce__(self) -> tuple[Any, ...]:
        return QueryWords.of, (self._vocabulary, list(self.index), self.matrix)

    def take(self, rows: Ints, like: Array) -> Array:
        """Return the vectors of some further words, with the dtype of ``like``."""
        return namespace(like).astype(self.matrix[move_like(rows, like), :], like.dtype)


class ParametersConfig(Schema, frozen=True, omit_defaults=True):
    """The parameters of ``HKSE`` that a saved model needs."""

    word: Kind
    sentence: Kind
    word_features: int
    sentence_features: int
    gamma: float | Literal["median"]
    eta: float
    query_words: int = QUERY_WORDS

    def __post_init__(self) -> None:
        """Refuse parameters that HKSE cannot use."""
        check_choice(self.word, KINDS, "word")
        check_choice(self.sentence, KINDS, "sentence")
        check_count(self.word_features, "word_features")
        check_count(self.sentence_features, "sentence_features")
        check_gamma(self.gamma)
        check_gamma(self.eta, "eta", median=False)
        check_count(self.query_words, "query_words", minimum=0)


class HKSEConfig(Schema, frozen=True):
    """What ``config.json`` says of a fitted HKSE; its draws are stored as arrays.

    The draws are stored, and not only the seed, because random streams change between NumPy versions.
    """

    parameters: ParametersConfig
    random_state: int | None
    tokenizer: str
    gamma: float | None
    vocabulary_size: int
    coverage: Coverage

    def __post_init__(self) -> None:
        """Refuse a γ that does not belong to the word kernel."""
        if self.parameters.word == "rbf":
            check_gamma(self.gamma, median=False)


@dataclass(eq=False)
class HKSEEncoder:
    """Encodes texts with a fitted HKSE, without scikit-learn; a ``SentenceEncoder``."""

    vectors: WordVectors  # of the vocabulary: the words of the training texts
    query_words: QueryWords
    word_map: Fourier | None  # the random features of each level; None if it is linear
    sentence_map: Fourier | None
    mean: Array  # of the training texts, at the word level
    parameters: ParametersConfig
    random_state: int | None
    tokenizer: Tokenizer
    gamma: float | None
    coverage: Coverage  # of the training texts
    word_table: Array | None = None  # the features of the vocabulary, once they would have been used
    _looked_up: int = field(default=0, init=False)  # words whose features were computed without the table

    @property
    def dimension(self) -> int:
        """Number of columns of the features."""
        return int((self.mean if self.sentence_map is None else self.sentence_map.offsets).shape[0])

    @cached_property
    def fingerprint(self) -> str:
        """A digest of words, vectors and draws, which takes a while, and which a search does not need."""
        levels = self.parameters.word, self.parameters.sentence
        digest = hashlib.sha256(repr((*levels, len(self.vectors), self._tokenizer_name)).encode())
        for name, tensor in sorted(self._tensors(self.join_tables()).items()):
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(tensor).data)
        return f"hkse:{digest.hexdigest()[:32]}"

    def encode(self, texts: Iterable[Text], *, unknown: Unknown = "mean") -> Array:
        """Return the features of texts: float32, one row per text.

        For a text without a known word, ``unknown`` raises an ``"error"`` or uses the training ``"mean"``.
        """
        parts = list(self.encode_blocks(texts, unknown=unknown))
        if not parts:
            raise InputError("There are no texts; pass at least one.")
        return namespace(parts[0]).concat(parts)

    def encode_blocks(
        self, texts: Iterable[Text], block_rows: int = BLOCK_ROWS, *, unknown: Unknown = "mean"
    ) -> Iterator[Array]:
        """Return the features of a stream of texts block by block; one block is in memory at a time."""
        check_choice(unknown, UNKNOWN, "unknown")
        check_count(block_rows, "block_rows")
        blocks = enumerate(split_blocks(iterate_texts(texts), block_rows))
        return (self._encode_block(block, number * block_rows, unknown) for number, block in blocks)

    def encode_queries(self, texts: Iterable[str]) -> tuple[Array, list[tuple[str, ...]]]:
        """Return the features of queries, one row per query, and the ignored (unknown) words of each.

        A query without a known word is an error that names its words.
        """
        parts, ignored = [], list[tuple[str, ...]]()
        for block in split_blocks(iterate_texts(texts), BLOCK_ROWS):
            corpus = Corpus.of(block, self.tokenizer)
            rows, ends = corpus.lookup(self.query_words)
            n_found, n_words = text_lengths(ends).tolist(), text_lengths(corpus.ends).tolist()
            for text, n_in_text, total in zip(block, n_found, n_words, strict=True):
                complete = n_in_text == total
                words = () if complete else find_ignored_words(text, self.query_words, self.tokenizer)
                if n_in_text == 0:
                    raise no_known_word(repr(text[:60]), words)
                ignored.append(words)
            parts.append(self.embed(rows, ends))
        return namespace(parts[0]).concat(parts), ignored

    def embed(self, rows: Ints, ends: Ints) -> Array:
        """Return the features of texts of known words, as ``Corpus.lookup`` returns them."""
        means = mean_rows(*self._find_features(rows), ends)
        empty = np.flatnonzero(text_lengths(ends) == 0)
        if len(empty):
            means[empty] = self.mean
        return map_features(self.sentence_map, means)

    def to(self, device: Any) -> HKSEEncoder:
        """Return a copy whose arrays, and whose features, are torch tensors on ``device``."""
        torch = import_package("torch", "HKSE.to() needs", "torch")

        def move(array: Array) -> Array:
            return torch.as_tensor(array, device=device)

        vectors, further = WordVectors(self.vectors.words, move(self.vectors.matrix)), self.query_words
        return replace(
            self,
            vectors=vectors,
            query_words=QueryWords.of(vectors.index, list(further.index), move(further.matrix)),
            word_map=self.word_map and Fourier(*map(move, self.word_map)),
            sentence_map=self.sentence_map and Fourier(*map(move, self.sentence_map)),
            mean=move(self.mean),
            word_table=None if self.word_table is None else move(self.word_table),
        )

    def join_tables(self) -> WordVectors:
        """Return the vectors of all words that queries may use, those of the vocabulary first."""
        further, matrix = self.query_words, self.vectors.matrix
        if not further.index:
            return self.vectors
        matrix = namespace(matrix).concat([matrix, further.take(np.arange(len(further.index)), matrix)])
        return WordVectors((*self.vectors.words, *further.index), matrix)

    def _encode_block(self, texts: list[Text], first: int, unknown: Unknown) -> Array:
        corpus = Corpus.of(texts, self.tokenizer, first)
        rows, ends = corpus.lookup(self.query_words)
        empty = np.flatnonzero(text_lengths(ends) == 0)
        if unknown == "error" and len(empty):
            words, remedy = corpus.words_of(empty[0]), ', or pass unknown="mean"'
            raise no_known_word(f"texts[{first + empty[0]}]", words, remedy)
        return self.embed(rows, ends)

    def _find_features(self, rows: Ints) -> tuple[Array, Ints]:
        """Return features of words, and the row of each of these words among them."""
        vectors, count = self.vectors.matrix, len(self.vectors)
        if self.word_table is None:
            # The table of all words takes longer than a few queries, and pays once it would have been used.
            self._looked_up += len(rows)
            if self._looked_up > count:
                self.word_table = map_features(self.word_map, vectors)
        if self.word_table is not None and bool(np.all(rows < count)):
            return self.word_table, rows
        used, positions = np.unique(rows, return_inverse=True)
        in_vocabulary = move_like(used[used < count], vectors)
        if self.word_table is None:
            features = map_features(self.word_map, vectors[in_vocabulary, :])
        else:
            features = self.word_table[in_vocabulary, :]
        if len(further := used[used >= count]):
            # Not kept, because hardly any query has the same ones.
            others = map_features(self.word_map, self.query_words.take(further - count, vectors))
            features = namespace(features).concat([features, others])
        return features, positions

    @property
    def _tokenizer_name(self) -> str:
        return TOKENIZER if self.tokenizer is tokenize else CUSTOM

    def _tensors(self, table: WordVectors) -> Tensors:
        tensors = {**table_tensors(table), "mean": to_numpy(self.mean)}
        for level, features in (("word", self.word_map), ("sentence", self.sentence_map)):
            if features is not None:
                tensors[f"{level}_weights"] = to_numpy(features.weights)
                tensors[f"{level}_offsets"] = to_numpy(features.offsets)
        return tensors


def map_features(features: Fourier | None, x: Array) -> Array:
    """Return the rows of ``x`` as they are, or their random features."""
    return x if features is None else fourier_features(x, *features)


def is_hkse(value: object) -> TypeGuard[HKSE]:
    """Return whether a value is the estimator ``HKSE``; there is none before its module is imported."""
    estimator = getattr(sys.modules.get("diptych.encoders._hkse"), "HKSE", None)
    return estimator is not None and isinstance(value, estimator)


def split_table(table: WordVectors, count: int, *, halve: bool) -> tuple[WordVectors, QueryWords]:
    """Return the first ``count`` words of a table as the vocabulary; only queries use the others.

    ``halve`` stores the vectors of these as float16 where that is precise enough.
    """
    if count == len(table):
        return table, QueryWords.of(table.index, (), table.matrix[count:, :])
    vectors, further = WordVectors(table.words[:count], table.matrix[:count, :]), table.matrix[count:, :]
    return vectors, QueryWords.of(vectors.index, table.words[count:], _halve(further) if halve else further)


def _halve(matrix: Array) -> Array:
    """Return vectors as float16, in half the space, or as they are if that would not be precise enough.

    float16 has 11 bits for each number, which is more than word vectors need. It has too few if all numbers
    of a vector are very large or very small.
    """
    vectors = to_numpy(matrix)
    with np.errstate(over="ignore"):
        halved = vectors.astype(np.float16)
    errors, sizes = np.abs(halved - vectors).max(axis=1), np.abs(vectors).max(axis=1)
    return halved if bool(np.all(errors <= sizes / 1024)) else matrix


def write_hkse(encoder: HKSEEncoder, folder: Path) -> None:
    """Write the files of a fitted HKSE."""
    config = HKSEConfig(
        encoder.parameters,
        encoder.random_state,
        encoder._tokenizer_name,
        encoder.gamma,
        len(encoder.vectors),
        encoder.coverage,
    )
    tensors, further = encoder._tensors(encoder.vectors), encoder.query_words
    if further.index:
        tensors |= word_tensors(further.index, "query_word")
        write_tensors(folder / WORDS, {"vectors": to_numpy(further.matrix)})
    write_model_files(folder, KIND, config, tensors)


def read_hkse(path: Path, tokenizer: Tokenizer | None = None, *, mmap: bool = False) -> HKSEEncoder:
    """Read the files that ``write_hkse`` wrote; with ``mmap``, the arrays stay on disk.

    The vectors of words that only queries use are then read when a query first has one of these words.
    """
    if path.is_symlink():
        raise InputError(f"{path} is a link; expected the text encoder's folder.")
    config, files = read_config(path, KIND, HKSEConfig)
    tensors, source, parameters = files.read_tensors(mmap=mmap), path / TENSORS, config.parameters
    if config.tokenizer != TOKENIZER and tokenizer is None:
        which = "of its own" if config.tokenizer == CUSTOM else f"called {config.tokenizer[:60]!r}"
        raise InputError(
            f"{path} was fitted with a tokenizer {which}, which is not stored; give it again: "
            "HKSE.load(folder, tokenizer=...)."
        )
    vectors = table_from_tensors(tensors, source)
    if config.vocabulary_size != len(vectors):
        raise InputError(
            f"{path} has {len(vectors)} words for a vocabulary of {config.vocabulary_size}; save the model "
            "again."
        )
    query_words = QueryWords.of(vectors.index, (), vectors.matrix[:0, :])
    if WORDS in files:
        words, read, place = take_words(tensors, source, "query_word"), files.defer(WORDS), path / WORDS
        shape = (len(tensors["query_word_ends"]), vectors.dimensions)
        query_words = QueryWords(
            vectors.index, words, lambda: take_array(parse_tensors(read(), place), "vectors", shape, place)
        )
        if not mmap:
            _ = query_words.index, query_words.matrix

    def take(name: str, *shape: int) -> Any:
        return take_array(tensors, name, shape, source).astype(np.float32, copy=False)

    def take_map(level: str, kind: Kind, width: int, size: int) -> Fourier | None:
        if kind == "lin":
            return None
        return Fourier(take(f"{level}_weights", width, size), take(f"{level}_offsets", size))

    word_map = take_map("word", parameters.word, vectors.dimensions, parameters.word_features)
    width = vectors.dimensions if word_map is None else parameters.word_features
    return HKSEEncoder(
        vectors=vectors,
        query_words=query_words,
        word_map=word_map,
        sentence_map=take_map("sentence", parameters.sentence, width, parameters.sentence_features),
        mean=take("mean", width),
        parameters=parameters,
        random_state=config.random_state,
        tokenizer=tokenizer or tokenize,
        gamma=config.gamma,
        coverage=config.coverage,
    )
