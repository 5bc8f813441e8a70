"""A fitted HKSE: the features of texts, and its files. It needs no scikit-learn, which is slow to import."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, TypeVar

import msgspec
import numpy as np

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import InputError, check_choice, check_count, import_package, missing_package_error
from diptych._model_folder import Version, read_current, write_version
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
from diptych.encoders._kernels import KINDS, Kind, check_gamma, fourier_features
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
    mean_rows,
    no_known_word,
    split_blocks,
    split_texts,
    text_lengths,
    tokenize,
)

FittedKind = TypeVar("FittedKind", bound="FittedHKSE")
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

_ARRAYS = ("_word_table", "mean_", "word_weights_", "word_offsets_", "sentence_weights_", "sentence_offsets_")


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


class FittedHKSE:
    """What a fitted ``HKSE`` does; ``HKSE`` adds the constructor, ``fit`` and scikit-learn's interface."""

    vectors: Any
    word: Kind
    sentence: Kind
    word_features: int
    sentence_features: int
    gamma: float | Literal["median"]
    eta: float
    random_state: Any
    tokenizer: Tokenizer
    query_words: int

    vocabulary_: list[str]
    gamma_: float | None
    coverage_: Coverage
    vectors_: WordVectors
    mean_: Array
    word_weights_: Array | None
    word_offsets_: Array | None
    sentence_weights_: Array | None
    sentence_offsets_: Array | None

    _n_features_out: int
    _word_table: Array | None = None
    _looked_up = 0  # words that were computed while there was no table
    _query_words: QueryWords

    @property
    def word_table_(self) -> Array:
        """The features of each word of the vocabulary."""
        self._check_fitted()
        if self._word_table is None:
            self._word_table = self._word_level(self.vectors_.matrix)
        return self._word_table

    def transform(self, texts: Iterable[Text], *, unknown: Unknown = "error") -> Array:
        """Return the features of texts: float32, one row per text.

        For a text without a known word, ``unknown`` raises an ``"error"`` or uses the training ``"mean"``.
        """
        parts = list(self.transform_blocks(texts, unknown=unknown))
        if not parts:
            raise InputError("There are no texts; pass at least one.")
        return namespace(parts[0]).concat(parts)

    def transform_blocks(
        self, texts: Iterable[Text], block_rows: int = BLOCK_ROWS, *, unknown: Unknown = "error"
    ) -> Iterator[Array]:
        """Return the features of a stream of texts block by block; one block is in memory at a time."""
        self._check_fitted()
        check_choice(unknown, UNKNOWN, "unknown")
        check_count(block_rows, "block_rows")
        split_texts(texts)  # raises an error for a wrong type now, not at the first block
        return self._blocks(texts, block_rows, unknown)

    def coverage(self, texts: Iterable[Text]) -> Coverage:
        """Return how much of these texts is known."""
        self._check_fitted()
        return Corpus.of(texts, self.tokenizer).coverage(self._query_words)

    def to(self, device: Any) -> Self:
        """Return a copy whose arrays, and whose features, are torch tensors on ``device``."""
        self._check_fitted()
        torch = import_package("torch", missing_package_error("HKSE.to() needs", "torch"))
        moved, further = copy.copy(self), self._query_words
        for name in _ARRAYS:
            array = getattr(self, name)
            setattr(moved, name, None if array is None else torch.as_tensor(array, device=device))
        moved.vectors_ = WordVectors(
            self.vectors_.words, torch.as_tensor(self.vectors_.matrix, device=device)
        )
        matrix = torch.as_tensor(further.matrix, device=device)
        moved._query_words = QueryWords.of(moved.vectors_.index, list(further.index), matrix)
        return moved

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model to a folder, as safetensors and JSON, atomically."""
        self._check_fitted()
        write_version(folder, KIND, lambda path: write_hkse(self, path))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None) -> Self:
        """Read a model that ``save`` wrote, or the text encoder in the model folder of a retriever.

        A model with its own tokenizer needs that tokenizer here, because functions are not saved.
        """

        def read(version: Version) -> Any:
            inside = version.path / INSIDE
            model = read_hkse(cls, inside if inside.is_dir() else version.path, tokenizer)
            model.vectors = model._join_tables()  # for a clone that is fitted again
            return model

        return read_current(folder, read)  # type: ignore[no-any-return]

    def _check_fitted(self) -> None:
        if not hasattr(self, "vectors_"):
            from sklearn.utils.validation import check_is_fitted

            check_is_fitted(self)

    def _take_table(self, table: WordVectors, count: int, *, halve: bool = False) -> None:
        """Take the first ``count`` words of a table as the vocabulary; only queries use the others."""
        words, matrix = table.words, table.matrix
        self.vocabulary_ = list(words[:count])
        self.vectors_ = table if count == len(table) else WordVectors(words[:count], matrix[:count, :])
        further = _halve(matrix[count:, :]) if halve else matrix[count:, :]
        self._query_words = QueryWords.of(self.vectors_.index, words[count:], further)

    def _join_tables(self) -> WordVectors:
        """Return the vectors of all words that queries may use, those of the vocabulary first."""
        further, matrix = self._query_words, self.vectors_.matrix
        if not further.index:
            return self.vectors_
        matrix = namespace(matrix).concat([matrix, further.take(np.arange(len(further.index)), matrix)])
        return WordVectors((*self.vocabulary_, *further.index), matrix)

    def _word_level(self, vectors: Array) -> Array:
        if self.word_weights_ is None:
            return vectors
        return fourier_features(vectors, self.word_weights_, self.word_offsets_)

    def _compute_rows(self, rows: Ints) -> Array:
        # Words that are not in the table: their features are computed for one block, and not kept. The rows
        # ascend, so those of further words come last.
        table, count = self.vectors_.matrix, len(self.vocabulary_)
        beyond = rows >= count
        vectors = table[move_like(rows[~beyond], table), :]
        if beyond.any():
            further = self._query_words.take(rows[beyond] - count, table)
            vectors = namespace(table).concat([vectors, further])
        return self._word_level(vectors)

    def _blocks(self, texts: Iterable[Text], block_rows: int, unknown: Unknown) -> Iterator[Array]:
        first = 0
        for block in split_blocks(texts, block_rows):
            corpus = Corpus.of(block, self.tokenizer, first)
            rows, ends = corpus.lookup(self._query_words)
            empty = np.flatnonzero(text_lengths(ends) == 0)
            if unknown == "error" and len(empty):
                words, remedy = corpus.words_of(empty[0]), ', or pass unknown="mean"'
                raise no_known_word(f"texts[{first + empty[0]}]", words, remedy)
            yield self._embed(rows, ends)
            first += len(block)

    def _embed(self, rows: Ints, ends: Ints) -> Array:
        table = self._word_table
        if table is None:
            # The table of all words takes longer than a few queries, and pays once it would have been used.
            self._looked_up += len(rows)
            table = self.word_table_ if self._looked_up > len(self.vocabulary_) else None
        means = mean_rows(table, rows, ends, self._compute_rows)
        empty = np.flatnonzero(text_lengths(ends) == 0)
        if len(empty):
            means[empty] = self.mean_
        if self.sentence_weights_ is None:
            return means
        return fourier_features(means, self.sentence_weights_, self.sentence_offsets_)


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


class ParametersConfig(Schema, frozen=True, omit_defaults=True):
    """The constructor's parameters that a saved model needs."""

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

    @classmethod
    def of(cls, model: FittedHKSE) -> ParametersConfig:
        """Return the parameters of a model, fitted or not."""
        values = {name: getattr(model, name) for name in cls.__struct_fields__}
        return cls(**{n: v.item() if isinstance(v, np.generic) else v for n, v in values.items()})


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


def write_hkse(model: FittedHKSE, folder: Path) -> None:
    """Write the files of a fitted model."""
    config = HKSEConfig(
        ParametersConfig.of(model),
        int(model.random_state) if isinstance(model.random_state, Integral) else None,
        _tokenizer_name(model),
        model.gamma_,
        len(model.vocabulary_),
        model.coverage_,
    )
    tensors, further = _tensors(model, model.vectors_), model._query_words
    if further.index:
        tensors |= word_tensors(further.index, "query_word")
        write_tensors(folder / WORDS, {"vectors": to_numpy(further.matrix)})
    write_model_files(folder, KIND, config, tensors)


def hkse_fingerprint(model: FittedHKSE) -> str:
    """Return a digest of a fitted model's words, vectors and draws, which identifies it."""
    identity = (model.word, model.sentence, len(model.vocabulary_), _tokenizer_name(model))
    digest = hashlib.sha256(repr(identity).encode())
    for name, tensor in sorted(_tensors(model, model._join_tables()).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return f"hkse:{digest.hexdigest()[:32]}"


def read_hkse(
    kind: type[FittedKind], path: Path, tokenizer: Tokenizer | None = None, *, mmap: bool = False
) -> FittedKind:
    """Read the files that ``write_hkse`` wrote; with ``mmap``, the arrays stay on disk.

    The vectors of words that only queries use are then read when a query first has one of these words.
    """
    if path.is_symlink():
        raise InputError(f"{path} is a link; expected the text encoder's folder.")
    config, files = read_config(path, KIND, HKSEConfig)
    tensors, source = files.read_tensors(mmap=mmap), path / TENSORS
    if config.tokenizer != TOKENIZER and tokenizer is None:
        which = "of its own" if config.tokenizer == CUSTOM else f"called {config.tokenizer[:60]!r}"
        raise InputError(
            f"{path} was fitted with a tokenizer {which}, which is not stored; give it again: "
            "HKSE.load(folder, tokenizer=...)."
        )
    table, size = table_from_tensors(tensors, source), config.vocabulary_size
    if not 1 <= size <= len(table):
        raise InputError(f"{path} has a vocabulary of {size} among {len(table)} words; save the model again.")
    model = kind.__new__(kind)
    # Before there was a file of their own, words that only queries use followed those of the vocabulary.
    model._take_table(table, size)
    vars(model).update(msgspec.structs.asdict(config.parameters), vectors=model.vectors_)
    model.random_state, model.tokenizer = config.random_state, tokenizer or tokenize
    if WORDS in files:
        words, read, place = take_words(tensors, source, "query_word"), files.defer(WORDS), path / WORDS
        shape = (len(tensors["query_word_ends"]), table.dimensions)
        model._query_words = QueryWords(
            model.vectors_.index,
            words,
            lambda: take_array(parse_tensors(read(), place), "vectors", shape, place),
        )
        if not mmap:
            _ = model._query_words.index, model._query_words.matrix
    model.gamma_, model.coverage_ = config.gamma, config.coverage

    def take(name: str, *shape: int) -> Any:
        return take_array(tensors, name, shape, source).astype(np.float32, copy=False)

    width = table.dimensions
    model.word_weights_ = model.word_offsets_ = model.sentence_weights_ = model.sentence_offsets_ = None
    if model.word == "rbf":
        model.word_weights_ = take("word_weights", width, model.word_features)
        width = model.word_features
        model.word_offsets_ = take("word_offsets", width)
    model.mean_ = take("mean", width)
    if model.sentence == "rbf":
        model.sentence_weights_ = take("sentence_weights", width, model.sentence_features)
        width = model.sentence_features
        model.sentence_offsets_ = take("sentence_offsets", width)
    model._n_features_out = width
    return model


def _tensors(model: FittedHKSE, table: WordVectors) -> Tensors:
    tensors = {**table_tensors(table), "mean": to_numpy(model.mean_)}
    for level in ("word", "sentence"):
        weights, offsets = getattr(model, f"{level}_weights_"), getattr(model, f"{level}_offsets_")
        if weights is not None:
            tensors |= {f"{level}_weights": to_numpy(weights), f"{level}_offsets": to_numpy(offsets)}
    return tensors


def _tokenizer_name(model: FittedHKSE) -> str:
    return TOKENIZER if model.tokenizer is tokenize else CUSTOM
