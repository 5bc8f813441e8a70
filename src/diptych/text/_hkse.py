"""HKSE, the hierarchical kernel sentence embedding (Section 4 of the paper), and its files."""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
from collections.abc import Iterable, Iterator
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import InputError, check_choice, check_count, missing_package_error
from diptych._persistence import (
    Schema,
    Tensors,
    Version,
    new_version,
    read_current,
    read_model_files,
    take_array,
    write_model_files,
)
from diptych.text._fourier import check_gamma, draw_fourier, fourier_features, make_generator, median_gamma
from diptych.text._kernels import KINDS, Kind
from diptych.text._vector_files import read_word_vectors
from diptych.text._word_vectors import WordVectors, learn_from_corpus, table_from_tensors, table_tensors
from diptych.text._words import (
    TOKENIZER,
    Corpus,
    Coverage,
    Ints,
    Text,
    Tokenizer,
    check_known,
    mean_rows,
    split_blocks,
    split_texts,
    text_lengths,
    token_weights,
    tokenize,
)

KIND = "hkse"
CUSTOM = "custom"
INSIDE = "text-encoder"
"""The folder of the text encoder within that of a retriever."""


class ParametersConfig(Schema, frozen=True):
    """The constructor's parameters that a saved model needs."""

    word: Kind
    sentence: Kind
    word_features: int
    sentence_features: int
    gamma: float | Literal["median"]
    eta: float

    def __post_init__(self) -> None:
        """Refuse settings that HKSE refuses."""
        HKSE(**msgspec.structs.asdict(self))._check_parameters()


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


def save_hkse(model: HKSE, folder: str | os.PathLike[str]) -> None:
    """Write a fitted model to a model folder."""
    with new_version(folder, KIND) as draft:
        write_hkse(model, draft.path)


def write_hkse(model: HKSE, folder: Path) -> None:
    """Write the files of a fitted model."""
    names = ParametersConfig.__struct_fields__
    values = {name: getattr(model, name) for name in names}
    config = HKSEConfig(
        ParametersConfig(**{n: v.item() if isinstance(v, np.generic) else v for n, v in values.items()}),
        int(model.random_state) if isinstance(model.random_state, Integral) else None,
        _tokenizer_name(model),
        model.gamma_,
        len(model.vocabulary_),
        model.coverage_,
    )
    write_model_files(folder, KIND, config, _tensors(model))


def hkse_fingerprint(model: HKSE) -> str:
    """Return a digest of a fitted model's words, vectors and draws, which identifies it."""
    identity = (model.word, model.sentence, len(model.vocabulary_), _tokenizer_name(model))
    digest = hashlib.sha256(repr(identity).encode())
    for name, tensor in sorted(_tensors(model).items()):
        digest.update(name.encode() + np.ascontiguousarray(tensor).tobytes())
    return f"hkse:{digest.hexdigest()[:32]}"


def load_hkse(kind: type[HKSE], folder: str | os.PathLike[str], tokenizer: Tokenizer | None = None) -> HKSE:
    """Read a model that ``save_hkse`` wrote, or the text encoder in the folder of a retriever."""

    def read(version: Version) -> HKSE:
        inside = version.path / INSIDE
        return read_hkse(kind, inside if inside.is_dir() else version.path, tokenizer)

    return read_current(folder, read)


def read_hkse(kind: type[HKSE], path: Path, tokenizer: Tokenizer | None = None) -> HKSE:
    """Read the files that ``write_hkse`` wrote."""
    if path.is_symlink():
        raise InputError(f"{path} is a link; expected the text encoder's folder.")
    config, tensors, source = read_model_files(path, KIND, HKSEConfig)
    if config.tokenizer != TOKENIZER and tokenizer is None:
        which = "of its own" if config.tokenizer == CUSTOM else f"called {config.tokenizer[:60]!r}"
        raise InputError(
            f"{path} was fitted with a tokenizer {which}, which is not stored; give it again: "
            "HKSE.load(folder, tokenizer=...)."
        )
    table, size = table_from_tensors(tensors, source), config.vocabulary_size
    if not 1 <= size <= len(table):
        raise InputError(f"{path} has a vocabulary of {size} among {len(table)} words; save the model again.")
    parameters = msgspec.structs.asdict(config.parameters)
    model = kind(table, **parameters, random_state=config.random_state, tokenizer=tokenizer or tokenize)
    model.vectors_, model.vocabulary_ = table, list(table.words[:size])
    model.gamma_, model.coverage_ = config.gamma, config.coverage
    width = table.dimensions
    for level, features in (("word", model.word_features), ("sentence", model.sentence_features)):
        weights = offsets = None
        if getattr(model, level) == "rbf":
            weights = _take_float32(tensors, f"{level}_weights", (width, features), source)
            offsets = _take_float32(tensors, f"{level}_offsets", (features,), source)
            width = features
        setattr(model, f"{level}_weights_", weights)
        setattr(model, f"{level}_offsets_", offsets)
        if level == "word":
            model.word_table_ = model._word_level(table.matrix[:size])
            model.mean_ = _take_float32(tensors, "mean", (width,), source)
    model._n_features_out = width
    return model


def _tensors(model: HKSE) -> Tensors:
    tensors = {**table_tensors(model.vectors_), "mean": to_numpy(model.mean_)}
    for level in ("word", "sentence"):
        weights, offsets = getattr(model, f"{level}_weights_"), getattr(model, f"{level}_offsets_")
        if weights is not None:
            tensors |= {f"{level}_weights": to_numpy(weights), f"{level}_offsets": to_numpy(offsets)}
    return tensors


def _tokenizer_name(model: HKSE) -> str:
    return TOKENIZER if model.tokenizer is tokenize else CUSTOM


def _take_float32(tensors: Tensors, name: str, shape: tuple[int, ...], source: Path) -> Any:
    return take_array(tensors, name, shape, source).astype(np.float32, copy=False)


Unknown: TypeAlias = Literal["error", "mean"]
UNKNOWN: tuple[Unknown, ...] = ("error", "mean")

BLOCK_ROWS = 2048
_ARRAYS = ("mean_", "word_weights_", "word_offsets_", "sentence_weights_", "sentence_offsets_")
_GAMMA_STREAM, _WORD_STREAM, _SENTENCE_STREAM, _SENTENCE_OF_LINEAR_WORDS_STREAM = range(4)


class HKSE(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Hierarchical kernel sentence embedding: :math:`\Phi_\eta\big(\frac1n\sum_i \Phi_\gamma(a_i)\big)`.

    A text is the distribution of its words' vectors :math:`a_i`. Inner products of the features approximate
    the kernel K between such distributions (Section 4 of the paper); ``sentence_kernel`` computes K exactly,
    and Proposition 1 (``hkse_dimensions``) bounds the error. At each level, ``"rbf"`` uses random Fourier
    features and ``"lin"`` changes nothing, so HKSE(lin, lin) is the mean word vector.

    :math:`\Phi_\gamma` depends on the word alone. It is computed once per word of the vocabulary, and the
    means of a block of texts are then one sparse matrix product.

    The paper's best text features are two HKSE side by side: scikit-learn's ``FeatureUnion``, as in the
    example.

    Parameters
    ----------
    vectors
        Path of a word-vector file (see ``read_word_vectors``), a ``WordVectors`` table or its folder, or
        None: word vectors are learned from the training texts. With a table, queries may use every word of
        it; otherwise, the words of the training texts.
    word, sentence
        Kernel at the word level and at the sentence level, ``"lin"`` or ``"rbf"``.
    word_features, sentence_features
        Number of random features m and m' at the level that is ``"rbf"``.
    gamma
        Parameter of the word kernel :math:`\exp(-\frac\gamma2\|a-b\|^2)`, or ``"median"``: 1 / median² of
        the distances between words of the vocabulary (a random sample of them if there are more than 2048).
    eta
        Parameter of the sentence kernel.
    random_state
        Seed of the random features.
    tokenizer
        Function that splits a string into words; by default ``diptych.text.tokenize``.

    Attributes
    ----------
    vocabulary_
        Words of the training texts that have a vector.
    gamma_
        The value of γ; None if the word level is linear.
    coverage_
        ``Coverage`` of the training texts: vocabulary size, share of unknown tokens, most frequent unknown
        words, texts without a known word.
    vectors_
        The word vectors, those of the vocabulary first.
    word_table_
        The features :math:`\Phi_\gamma` of each word of the vocabulary.
    mean_
        Mean of the training texts at the word level.
    word_weights_, word_offsets_, sentence_weights_, sentence_offsets_
        Frequencies and phases at each level; None if it is linear.

    Notes
    -----
    Unknown words are skipped. A training text without a known word (in ``fit_transform``, or in
    ``transform(..., unknown="mean")``) gets ``mean_`` at the word level, which is then mapped like any other
    text. A query without a known word (in ``transform``) is an error that names its words.

    Examples
    --------
    >>> captions = ["a dog runs", "a dog jumps", "a cat sleeps", "a cat sits", "the cat sits", "the dog runs"]
    >>> hkse = HKSE(word_features=64, sentence_features=32).fit(captions)
    >>> hkse.transform(["the dog sits"]).shape
    (1, 32)

    >>> from sklearn.pipeline import FeatureUnion
    >>> both = FeatureUnion([
    ...     ("lin_rbf", HKSE(word="lin", sentence_features=32)),
    ...     ("rbf_rbf", HKSE(word_features=64, sentence_features=32)),
    ... ])
    >>> both.fit_transform(captions).shape
    (6, 64)
    """

    def __init__(
        self,
        vectors: str | os.PathLike[str] | WordVectors | None = None,
        word: Kind = "rbf",
        sentence: Kind = "rbf",
        word_features: int = 2000,
        sentence_features: int = 2000,
        gamma: float | Literal["median"] = "median",
        eta: float = 0.01,
        random_state: Any = 0,
        tokenizer: Tokenizer = tokenize,
    ) -> None:
        self.vectors = vectors
        self.word = word
        self.sentence = sentence
        self.word_features = word_features
        self.sentence_features = sentence_features
        self.gamma = gamma
        self.eta = eta
        self.random_state = random_state
        self.tokenizer = tokenizer

    def fit(self, texts: Iterable[Text], y: None = None) -> HKSE:
        """Find the vocabulary of texts (strings, or lists of words), set γ, and draw the random features."""
        self._fit(self._read(texts))
        return self

    def fit_transform(self, texts: Iterable[Text], y: None = None) -> Array:
        """Fit, and return the features of the training texts; a text without a known word gets ``mean_``."""
        corpus = self._read(texts)
        self._fit(corpus)
        rows, ends = corpus.lookup(self.vectors_.index)
        edges = [*range(0, len(ends), BLOCK_ROWS), len(ends)]
        parts = []
        for first, last in itertools.pairwise(edges):
            start = ends[first - 1] if first else 0
            parts.append(self._embed(rows[start : ends[last - 1]], ends[first:last] - start))
        return namespace(parts[0]).concat(parts)

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
        check_is_fitted(self)
        check_choice(unknown, UNKNOWN, "unknown")
        check_count(block_rows, "block_rows")
        split_texts(texts)  # raises an error for a wrong type now, not at the first block
        return self._blocks(texts, block_rows, unknown)

    def coverage(self, texts: Iterable[Text]) -> Coverage:
        """Return how much of these texts is known."""
        check_is_fitted(self)
        return Corpus.of(texts, self.tokenizer).coverage(self.vectors_.index)

    def to(self, device: Any) -> HKSE:
        """Return a copy whose arrays, and whose features, are torch tensors on ``device``."""
        check_is_fitted(self)
        try:
            import torch
        except ImportError:
            raise missing_package_error("HKSE.to() needs", "torch") from None
        moved = copy.copy(self)
        for name in (*_ARRAYS, "word_table_"):
            array = getattr(self, name)
            setattr(moved, name, None if array is None else torch.as_tensor(array, device=device))
        matrix = torch.as_tensor(self.vectors_.matrix, device=device)
        moved.vectors_ = WordVectors(self.vectors_.words, matrix)
        return moved

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model to a folder, as safetensors and JSON, atomically."""
        check_is_fitted(self)
        save_hkse(self, folder)

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None) -> HKSE:
        """Read a model that ``save`` wrote, or the text encoder in the model folder of a retriever.

        A model with its own tokenizer needs that tokenizer here, because functions are not saved.
        """
        return load_hkse(cls, folder, tokenizer)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    def _check_parameters(self) -> None:
        check_choice(self.word, KINDS, "word")
        check_choice(self.sentence, KINDS, "sentence")
        check_count(self.word_features, "word_features")
        check_count(self.sentence_features, "sentence_features")
        check_gamma(self.gamma)
        check_gamma(self.eta, "eta", median=False)
        if not callable(self.tokenizer):
            raise InputError(
                f"tokenizer={self.tokenizer!r}; pass a function that splits a string into words."
            )

    def _read(self, texts: Iterable[Text]) -> Corpus:
        self._check_parameters()
        corpus = Corpus.of(texts, self.tokenizer)
        if len(corpus) == 0:
            raise InputError("There are no texts; pass at least one.")
        return corpus

    def _fit(self, corpus: Corpus) -> None:
        table = self._table(corpus)
        self.vocabulary_ = [word for word in corpus.words if word in table]
        if not self.vocabulary_:
            raise InputError(
                f"None of the {len(corpus.words)} words of the texts has a vector; "
                "check the language and the letter case of the vectors."
            )
        self.vectors_ = table.first(self.vocabulary_)
        self.coverage_ = corpus.coverage(self.vectors_.index)
        vectors = self.vectors_.matrix[: len(self.vocabulary_), :]
        self.gamma_ = None
        self.word_weights_ = self.word_offsets_ = self.sentence_weights_ = self.sentence_offsets_ = None
        if self.word == "rbf":
            gamma = check_gamma(self.gamma)
            generator = make_generator(self.random_state, _GAMMA_STREAM)
            self.gamma_ = median_gamma(vectors, generator) if gamma == "median" else gamma
            self.word_weights_, self.word_offsets_ = self._draw(
                vectors, vectors.shape[1], self.word_features, self.gamma_, _WORD_STREAM
            )
        self.word_table_ = self._word_level(vectors)
        width = self.word_table_.shape[1]
        if self.sentence == "rbf":
            # HKSE(lin, rbf) and HKSE(rbf, rbf) side by side must not share frequencies, even if m equals
            # the length of the word vectors.
            key = _SENTENCE_STREAM if self.word == "rbf" else _SENTENCE_OF_LINEAR_WORDS_STREAM
            self.sentence_weights_, self.sentence_offsets_ = self._draw(
                vectors, width, self.sentence_features, float(self.eta), key
            )
        # The mean of the texts' means is one weighted sum of the table's rows.
        rows, ends = corpus.lookup(self.vectors_.index)
        n_texts = np.count_nonzero(text_lengths(ends))
        weights = np.bincount(rows, token_weights(ends), len(self.vocabulary_)) / n_texts
        self.mean_ = move_like(weights, vectors, dtype=vectors.dtype) @ self.word_table_
        self._n_features_out = int(width if self.sentence == "lin" else self.sentence_features)

    def _table(self, corpus: Corpus) -> WordVectors:
        if self.vectors is None:
            return learn_from_corpus(corpus, random_state=self.random_state)
        if isinstance(self.vectors, WordVectors):
            table = self.vectors
            xp = namespace(table.matrix)
            return WordVectors(table.words, xp.astype(table.matrix, xp.float32, copy=False))
        if isinstance(self.vectors, str | os.PathLike):
            if os.path.isdir(self.vectors):
                return WordVectors.load(self.vectors).only(corpus.words)
            return read_word_vectors(self.vectors, corpus.words)
        raise InputError(
            f"vectors is a {type(self.vectors).__name__}; pass the path of a word-vector file, a WordVectors "
            "table, or None to learn vectors from the texts."
        )

    def _draw(
        self, like: Array, n_inputs: int, n_features: int, gamma: float, key: int
    ) -> tuple[Array, Array]:
        # The width is part of the key, so that HKSE of different widths do not share frequencies.
        generator = make_generator(self.random_state, key, n_inputs)
        weights, offsets = draw_fourier(n_inputs, n_features, gamma, generator)
        return move_like(weights, like), move_like(offsets, like)

    def _word_level(self, vectors: Array) -> Array:
        if self.word_weights_ is None:
            return vectors
        return fourier_features(vectors, self.word_weights_, self.word_offsets_)

    def _rows_beyond_table(self, rows: Ints) -> Array:
        # Words that only queries use: their features are computed for one block, and not kept.
        return self._word_level(self.vectors_.matrix[move_like(rows, self.word_table_), :])

    def _blocks(self, texts: Iterable[Text], block_rows: int, unknown: Unknown) -> Iterator[Array]:
        first = 0
        for block in split_blocks(texts, block_rows):
            corpus = Corpus.of(block, self.tokenizer, first)
            rows, ends = corpus.lookup(self.vectors_.index)
            if unknown == "error":
                check_known(corpus, ends, first, ', or pass unknown="mean"')
            yield self._embed(rows, ends)
            first += len(block)

    def _embed(self, rows: Ints, ends: Ints) -> Array:
        means = mean_rows(self.word_table_, rows, ends, self._rows_beyond_table)
        empty = np.flatnonzero(text_lengths(ends) == 0)
        if len(empty):
            means[empty] = self.mean_
        if self.sentence_weights_ is None:
            return means
        return fourier_features(means, self.sentence_weights_, self.sentence_offsets_)
