"""HKSE (Section 4 of the paper), and the random Fourier features it is made of, as estimators."""

from __future__ import annotations

import copy
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec
import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from diptych._arrays import Array, move_like, namespace
from diptych._checks import InputError, check_count, check_seed, check_view
from diptych._model_folder import Version, read_current, write_version
from diptych.encoders._hkse_encoder import (
    BLOCK_ROWS,
    INSIDE,
    KIND,
    QUERY_WORDS,
    HKSEEncoder,
    ParametersConfig,
    Unknown,
    map_features,
    read_hkse,
    split_table,
    write_hkse,
)
from diptych.encoders._kernels import (
    Fourier,
    Kind,
    Seed,
    draw_fourier,
    find_gamma,
    fourier_features,
    make_generator,
)
from diptych.encoders._vector_files import read_word_vectors
from diptych.encoders._word_vectors import WordVectors, learn_word_vectors
from diptych.encoders._words import (
    Corpus,
    Coverage,
    Text,
    Tokenizer,
    text_lengths,
    token_weights,
    tokenize,
)

_FOURIER_BLOCK_ROWS = 4096
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
        None: word vectors are learned from the training texts.
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
        Function that splits a string into words; by default ``diptych.encoders.tokenize``.
    query_words
        Queries may use the words of the training texts and, of a file or folder of word vectors, this many
        words from its start (most files have frequent words first). With a table, they may use every word
        of it; with learned vectors, there are no further words.

    Attributes
    ----------
    vocabulary_
        Words of the training texts that have a vector.
    gamma_
        The value of γ; None if the word level is linear.
    coverage_
        ``Coverage`` of the training texts: vocabulary size, share of unknown tokens, most frequent unknown
        words, texts without a known word.
    encoder_
        What a search needs of it: an encoder with the word vectors, their features, and the draws of both
        levels, which is what ``save`` writes.

    Notes
    -----
    Unknown words are skipped. A training text without a known word (in ``fit_transform``, or in
    ``transform(..., unknown="mean")``) gets the training mean at the word level, which is then mapped like
    any other text. A query without a known word (in ``transform``) is an error that names its words.

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
        random_state: Seed = 0,
        tokenizer: Tokenizer = tokenize,
        query_words: int = QUERY_WORDS,
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
        self.query_words = query_words

    def fit(self, texts: Iterable[Text], y: None = None) -> HKSE:
        """Find the vocabulary of texts (strings, or lists of words), set γ, and draw the random features."""
        return self._take(self._make_encoder(self._read(texts)))

    def fit_transform(self, texts: Iterable[Text], y: None = None) -> Array:
        """Fit, and return the features of the training texts; one without a known word gets their mean."""
        corpus = self._read(texts)
        encoder = self._take(self._make_encoder(corpus)).encoder_
        rows, ends = corpus.lookup(encoder.vectors.index)
        edges = [*range(0, len(ends), BLOCK_ROWS), len(ends)]
        parts = []
        for first, last in itertools.pairwise(edges):
            start = ends[first - 1] if first else 0
            parts.append(encoder.embed(rows[start : ends[last - 1]], ends[first:last] - start))
        return namespace(parts[0]).concat(parts)

    def transform(self, texts: Iterable[Text], *, unknown: Unknown = "error") -> Array:
        """Return the features of texts: float32, one row per text.

        For a text without a known word, ``unknown`` raises an ``"error"`` or uses the training ``"mean"``.
        """
        check_is_fitted(self)
        return self.encoder_.encode(texts, unknown=unknown)

    def transform_blocks(
        self, texts: Iterable[Text], block_rows: int = BLOCK_ROWS, *, unknown: Unknown = "error"
    ) -> Iterator[Array]:
        """Return the features of a stream of texts block by block; one block is in memory at a time."""
        check_is_fitted(self)
        return self.encoder_.encode_blocks(texts, block_rows, unknown=unknown)

    def coverage(self, texts: Iterable[Text]) -> Coverage:
        """Return how much of these texts is known."""
        check_is_fitted(self)
        return Corpus.of(texts, self.tokenizer).coverage(self.encoder_.query_words)

    def to(self, device: Any) -> HKSE:
        """Return a copy whose arrays, and whose features, are torch tensors on ``device``."""
        check_is_fitted(self)
        return copy.copy(self)._take(self.encoder_.to(device))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the model to a folder, as safetensors and JSON, atomically."""
        check_is_fitted(self)
        write_version(folder, KIND, lambda path: write_hkse(self.encoder_, path))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, tokenizer: Tokenizer | None = None) -> HKSE:
        """Read a model that ``save`` wrote, or the text encoder in the model folder of a retriever.

        A model with its own tokenizer needs that tokenizer here, because functions are not saved.
        """

        def read(version: Version) -> HKSEEncoder:
            inside = version.path / INSIDE
            return read_hkse(inside if inside.is_dir() else version.path, tokenizer)

        encoder: HKSEEncoder = read_current(folder, read)
        parameters = msgspec.structs.asdict(encoder.parameters)
        tables = encoder.join_tables()  # for a clone that is fitted again
        model = cls(tables, **parameters, random_state=encoder.random_state, tokenizer=encoder.tokenizer)
        return model._take(encoder)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.two_d_array = False
        return tags

    def _take(self, encoder: HKSEEncoder) -> HKSE:
        self.encoder_ = encoder
        self.vocabulary_, self.gamma_ = list(encoder.vectors.words), encoder.gamma
        self.coverage_, self._n_features_out = encoder.coverage, encoder.dimension
        return self

    def _read(self, texts: Iterable[Text]) -> Corpus:
        self._check_parameters()
        if not callable(self.tokenizer):
            raise InputError(
                f"tokenizer={self.tokenizer!r}; pass a function that splits a string into words."
            )
        corpus = Corpus.of(texts, self.tokenizer)
        if len(corpus) == 0:
            raise InputError("There are no texts; pass at least one.")
        return corpus

    def _check_parameters(self) -> ParametersConfig:
        values = {name: getattr(self, name) for name in ParametersConfig.__struct_fields__}
        return ParametersConfig(
            **{name: v.item() if isinstance(v, np.generic) else v for name, v in values.items()}
        )

    def _make_encoder(self, corpus: Corpus) -> HKSEEncoder:
        """Return the encoder of these training texts."""
        table = self._find_table(corpus)
        vocabulary = [word for word in corpus.words if word in table]
        if not vocabulary:
            raise InputError(
                f"None of the {len(corpus.words)} words of the texts has a vector; "
                "check the language and the letter case of the vectors."
            )
        # A file gives up to 50,000 further words, most of which no query has; they take half the space.
        halve = not isinstance(self.vectors, WordVectors)
        vectors, query_words = split_table(table.first(vocabulary), len(vocabulary), halve=halve)
        matrix, gamma, word_map, sentence_map = vectors.matrix, None, None, None
        if self.word == "rbf":
            gamma = find_gamma(self.gamma, matrix, make_generator(self.random_state, _GAMMA_STREAM))
            word_map = self._draw(matrix, vectors.dimensions, self.word_features, gamma, _WORD_STREAM)
        word_table = map_features(word_map, matrix)
        if self.sentence == "rbf":
            # HKSE(lin, rbf) and HKSE(rbf, rbf) side by side must not share frequencies, even if m equals
            # the length of the word vectors.
            key = _SENTENCE_STREAM if self.word == "rbf" else _SENTENCE_OF_LINEAR_WORDS_STREAM
            width = word_table.shape[1]
            sentence_map = self._draw(matrix, width, self.sentence_features, float(self.eta), key)
        # The mean of the texts' means is one weighted sum of the table's rows.
        rows, ends = corpus.lookup(vectors.index)
        n_texts = np.count_nonzero(text_lengths(ends))
        weights = np.bincount(rows, token_weights(ends), len(vocabulary)) / n_texts
        has_seed = not isinstance(self.random_state, np.random.Generator)
        return HKSEEncoder(
            vectors=vectors,
            query_words=query_words,
            word_map=word_map,
            sentence_map=sentence_map,
            mean=move_like(weights, matrix, dtype=matrix.dtype) @ word_table,
            parameters=self._check_parameters(),
            random_state=check_seed(self.random_state) if has_seed else None,
            tokenizer=self.tokenizer,
            gamma=gamma,
            coverage=corpus.coverage(vectors.index),
            word_table=word_table,
        )

    def _find_table(self, corpus: Corpus) -> WordVectors:
        """Return the vectors of the words of the training texts, and of the further words of queries."""
        if self.vectors is None:
            return learn_word_vectors(corpus, random_state=self.random_state)
        if isinstance(self.vectors, WordVectors):
            table = self.vectors
            xp = namespace(table.matrix)
            return WordVectors(table.words, xp.astype(table.matrix, xp.float32, copy=False))
        if isinstance(self.vectors, str | os.PathLike):
            if os.path.isdir(self.vectors):
                table = WordVectors.load(self.vectors)
            else:
                table = read_word_vectors(self.vectors, corpus.words, first=self.query_words)
            frequent = table.words[: self.query_words]
            if self.tokenizer is tokenize:
                frequent = tuple(word for word in frequent if word in tokenize(word))
            return table.only([*corpus.words, *frequent])
        raise InputError(
            f"vectors is a {type(self.vectors).__name__}; pass the path of a word-vector file, a WordVectors "
            "table, or None to learn vectors from the texts."
        )

    def _draw(self, like: Array, n_inputs: int, n_features: int, gamma: float, key: int) -> Fourier:
        # The width is part of the key, so that HKSE of different widths do not share frequencies.
        generator = make_generator(self.random_state, key, n_inputs)
        weights, offsets = draw_fourier(n_inputs, n_features, gamma, generator)
        return Fourier(move_like(weights, like), move_like(offsets, like))


class RandomFourier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    r"""Random Fourier features, whose inner products approximate :math:`\exp(-\tfrac{\gamma}{2}\|a-b\|^2)`.

    CCA on mapped views approximates kernel CCA with that kernel. scikit-learn's ``RBFSampler`` does the same
    for the kernel without the ½, and for NumPy only; this class uses the paper's γ, can set it from the
    median distance, and works on the device of its input.

    Parameters
    ----------
    n_features
        Number of features m.
    gamma
        A positive number, or ``"median"``: 1 / median² of the distances between the fitted rows (a random
        sample of them when there are more than 2048).
    random_state
        Seed of the random features.

    Attributes
    ----------
    gamma_
        The value of γ.
    weights_, offsets_
        Frequencies (inputs × features) and phases, float32.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.random.default_rng(0).normal(size=(50, 4))
    >>> features = RandomFourier(5000, gamma=0.5).fit_transform(x)
    >>> exact = np.exp(-0.25 * ((x[0] - x[1]) ** 2).sum())
    >>> bool(abs(features[0] @ features[1] - exact) < 0.05)
    True
    """

    def __init__(
        self, n_features: int = 2000, *, gamma: float | Literal["median"] = "median", random_state: Seed = 0
    ) -> None:
        self.n_features = n_features
        self.gamma = gamma
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> RandomFourier:
        """Set γ and draw the frequencies."""
        x = check_view(X)
        n_features = check_count(self.n_features, "n_features")
        self.gamma_ = find_gamma(self.gamma, x, make_generator(self.random_state, 0))
        generator = make_generator(self.random_state, 1)
        self.weights_, self.offsets_ = draw_fourier(x.shape[1], n_features, self.gamma_, generator)
        self.n_features_in_, self._n_features_out = x.shape[1], n_features
        return self

    def transform(self, X: Any) -> Array:
        """Return the features of each row, float32."""
        check_is_fitted(self)
        x = check_view(X, n_features=self.n_features_in_)
        xp, weights, offsets = namespace(x), move_like(self.weights_, x), move_like(self.offsets_, x)
        features = xp.empty((x.shape[0], weights.shape[1]), dtype=xp.float32, device=weights.device)
        for start in range(0, x.shape[0], _FOURIER_BLOCK_ROWS):
            rows = slice(start, start + _FOURIER_BLOCK_ROWS)
            features[rows, :] = fourier_features(
                xp.astype(x[rows, :], xp.float32, copy=False), weights, offsets
            )
        return features
