"""A table of word vectors: words, and one row for each.

Word vectors from the captions themselves, when no file of vectors is at hand.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.utils.extmath import randomized_svd

from diptych._arrays import Array, to_numpy
from diptych._checks import InputError, check_count, check_view
from diptych._persistence import Schema, read_model_folder, take_array, write_model_folder
from diptych.text._fourier import stream
from diptych.text._words import Corpus, Tokenizer, tokenize

KIND = "word-vectors"


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors; row i of ``matrix`` belongs to ``words[i]``.

    Parameters
    ----------
    words
        Distinct words.
    matrix
        One row per word; float32 is what the readers give. A torch tensor, on any device, is kept
        where it is, and whatever is made from it stays there.

    Examples
    --------
    >>> import numpy as np
    >>> table = WordVectors(["dog", "cat"], np.eye(2, dtype=np.float32))
    >>> "dog" in table, len(table), table.dimensions
    (True, 2, 2)
    >>> table["cat"]
    array([0., 1.], dtype=float32)
    """

    words: Sequence[str]
    matrix: Array

    def __post_init__(self) -> None:
        matrix = check_view(self.matrix, "matrix")
        words = tuple(self.words)
        if len(words) != matrix.shape[0]:
            raise InputError(f"{len(words)} words come with {matrix.shape[0]} vectors; give one for each.")
        for i, word in enumerate(words):
            if not isinstance(word, str) or not word:
                raise InputError(f"words[{i}] is {word!r}; expected a word, a string that is not empty.")
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "matrix", matrix)
        if len(self.index) != len(words):
            twice = next(word for i, word in enumerate(words) if self.index[word] != i)
            raise InputError(f"the word {twice!r} occurs more than once; keep one vector for each word.")

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """The row of each word."""
        return {word: i for i, word in enumerate(self.words)}

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return int(self.matrix.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return word in self.index

    def __getitem__(self, word: str) -> Array:
        row = self.index.get(word)
        if row is None:
            raise InputError(f"{word!r} has no vector here; ask with `word in vectors` first.")
        return self.matrix[row, :]

    def __sklearn_clone__(self) -> WordVectors:
        # A table never changes, so a clone of an estimator shares it instead of copying it.
        return self

    def first(self, words: Iterable[str]) -> WordVectors:
        """The same table with the known ones of ``words`` first, in their order, then the others."""
        chosen = dict.fromkeys(row for word in words if (row := self.index.get(word)) is not None)
        order = [*chosen, *(row for row in range(len(self)) if row not in chosen)]
        if order == list(range(len(self))):
            return self
        return WordVectors([self.words[row] for row in order], self.matrix[order, :])

    def only(self, words: Iterable[str]) -> WordVectors:
        """The known ones of ``words``, in their order."""
        rows = list(dict.fromkeys(row for word in words if (row := self.index.get(word)) is not None))
        if not rows:
            raise InputError("none of the words has a vector here; check the language and the letter case.")
        return WordVectors([self.words[row] for row in rows], self.matrix[rows, :])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write to a folder, safetensors and JSON, atomically."""
        write_model_folder(folder, KIND, Schema(), table_tensors(self))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> WordVectors:
        """Read what ``save`` wrote."""
        _, tensors, path = read_model_folder(folder, KIND, Schema)
        return table_from_tensors(tensors, path)


def table_tensors(table: WordVectors) -> dict[str, np.ndarray[Any, Any]]:
    """``table`` as plain arrays: the vectors, the words' UTF-8 bytes in a row, and where each word ends."""
    encoded = [word.encode("utf-8", "surrogatepass") for word in table.words]
    return {
        "vectors": to_numpy(table.matrix),
        "word_bytes": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        "word_ends": np.cumsum([len(word) for word in encoded], dtype=np.int64),
    }


def table_from_tensors(tensors: dict[str, np.ndarray[Any, Any]], path: Path) -> WordVectors:
    """The table that ``table_tensors`` took apart; ``path`` is named when something is wrong."""
    vectors = take_array(tensors, "vectors", (None, None), path)
    raw, ends = tensors.get("word_bytes"), tensors.get("word_ends")
    whole = (
        raw is not None
        and ends is not None
        and (raw.dtype, raw.ndim, ends.dtype, ends.ndim) == (np.uint8, 1, np.int64, 1)
        and len(ends) == len(vectors) > 0
        and bool(np.all(np.diff(ends, prepend=0) > 0))
        and int(ends[-1]) == len(raw)
    )
    if not whole or raw is None or ends is None:
        raise InputError(f"{path} holds {len(vectors)} vectors and a damaged list of words; save it again.")
    content = raw.tobytes()
    starts = [0, *ends[:-1].tolist()]
    try:
        words = [
            content[start:end].decode("utf-8", "surrogatepass")
            for start, end in zip(starts, ends.tolist(), strict=True)
        ]
    except UnicodeDecodeError as error:
        raise InputError(f"{path} holds words that are not UTF-8 ({error.reason}); save it again.") from None
    return WordVectors(words, vectors)


DEFAULT_DIMENSIONS = 300
CONTEXT_POWER = 0.75
MAX_VOCABULARY = 200_000


def learn_word_vectors(
    sentences: Iterable[Any],
    dimensions: int = DEFAULT_DIMENSIONS,
    *,
    min_count: int = 2,
    tokenizer: Tokenizer = tokenize,
    random_state: Any = 0,
) -> WordVectors:
    """Word vectors by positive pointwise mutual information within sentences, and a truncated SVD.

    Words that keep the same company get similar vectors. Captions are short, so the company of a word is
    its whole sentence. Everything is sparse: half a million captions take seconds.

    Parameters
    ----------
    sentences
        Strings, or lists of words.
    dimensions
        Length of the vectors, at most the number of words less one.
    min_count
        Words that occur less often get no vector.
    tokenizer
        Cuts strings into words.
    random_state
        Seed of the randomised SVD.

    Returns
    -------
    WordVectors
        Vectors of unit length, frequent words first.

    Examples
    --------
    >>> captions = ["a dog runs", "a dog jumps", "a cat sleeps", "a cat sits", "the cat sits", "the dog runs"]
    >>> vectors = learn_word_vectors(captions, dimensions=3)
    >>> vectors.words
    ('a', 'dog', 'cat', 'runs', 'sits', 'the')
    """
    corpus = Corpus.of(sentences, tokenizer)
    return vectors_of_corpus(corpus, dimensions, min_count=min_count, random_state=random_state)


def vectors_of_corpus(
    corpus: Corpus, dimensions: int = DEFAULT_DIMENSIONS, *, min_count: int = 2, random_state: Any = 0
) -> WordVectors:
    """What ``learn_word_vectors`` does, on sentences that are read already."""
    check_count(dimensions, "dimensions")
    counts = corpus.counts()
    frequent = np.flatnonzero(counts >= check_count(min_count, "min_count"))
    chosen = frequent[np.argsort(-counts[frequent], kind="stable")][:MAX_VOCABULARY]
    if len(chosen) < 2:
        raise InputError(
            f"the sentences hold {len(chosen)} words that occur {min_count} times or more; give more "
            "sentences, a lower min_count, or a file of word vectors."
        )
    bag = corpus.bag(presence=True)[:, chosen]
    information = positive_information(cooccurrences(bag))
    if information.nnz == 0:
        raise InputError(
            "the words meet no more often than by chance, so their company teaches nothing; "
            "give more sentences, or a file of word vectors."
        )
    rank = min(dimensions, len(chosen) - 1)
    vectors = factor(information, rank, stream(random_state, 2))
    return WordVectors([corpus.words[i] for i in chosen], vectors)


def cooccurrences(bag: Any) -> Any:
    """How many sentences hold both words, for each pair of different words (sparse, symmetric)."""
    together = (bag.T @ bag).tocsr()
    together.setdiag(0)
    together.eliminate_zeros()
    return together


def positive_information(together: Any) -> Any:
    r"""Positive pointwise mutual information :math:`\max(0, \log\frac{p(w,c)}{p(w)\,q(c)})`, sparse.

    The context probability q is raised to the power ¾, which keeps rare contexts from dominating.
    """
    together = together.tocoo()
    if together.nnz == 0:
        return together.tocsr()
    sums = np.asarray(together.sum(axis=1), dtype=np.float64).ravel()
    contexts = sums**CONTEXT_POWER
    total = sums.sum()
    expected = sums[together.row] / total * contexts[together.col] / contexts.sum()
    values = np.log(together.data / total / expected)
    kept = values > 0.0
    entries = (values[kept].astype(np.float32), (together.row[kept], together.col[kept]))
    return scipy.sparse.csr_matrix(entries, shape=together.shape)


def factor(matrix: Any, rank: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    r"""Rows of :math:`U S^{1/2}` of the truncated SVD, each brought to unit length."""
    seed = int(rng.integers(2**31))
    u, s, _ = randomized_svd(matrix, rank, n_iter=4, random_state=seed)
    vectors = u * np.sqrt(s)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)  # type: ignore[no-any-return]
