"""Tables of word vectors, and learning them from texts."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diptych._arrays import Array, to_numpy
from diptych._checks import InputError, check_count, check_view
from diptych._model_folder import read_model_folder, write_model_folder
from diptych._persistence import Schema, Tensors, take_array
from diptych.encoders._kernels import Seed, make_generator
from diptych.encoders._words import Corpus, Text

KIND = "word-vectors"

DEFAULT_DIMENSIONS = 300
CONTEXT_POWER = 0.75
MAX_VOCABULARY = 200_000


@dataclass(frozen=True, eq=False)
class WordVectors:
    """A table of word vectors; row i of ``matrix`` is the vector of ``words[i]``.

    Parameters
    ----------
    words
        Distinct words.
    matrix
        One row per word. It may be a torch tensor on any device; features made from it stay there.

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
            raise InputError(f"Got {matrix.shape[0]} vectors for {len(words)} words; pass one for each word.")
        for i, word in enumerate(words):
            if not isinstance(word, str) or not word:
                raise InputError(f"words[{i}] is {word!r}; expected a string that is not empty.")
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "matrix", matrix)
        if len(self.index) != len(words):
            repeated = next(word for i, word in enumerate(words) if self.index[word] != i)
            raise InputError(f"The word {repeated!r} occurs more than once; pass one vector for each word.")

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """The row of each word, as a dict."""
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
            raise InputError(f"{word!r} has no vector in this table; check with `word in table` first.")
        return self.matrix[row, :]

    def __sklearn_clone__(self) -> WordVectors:
        # Tables are immutable, so clones of an estimator can share one.
        return self

    def first(self, words: Iterable[str]) -> WordVectors:
        """Return this table with ``words`` first, in their order; words without a vector are left out."""
        rows = dict.fromkeys(self._rows_of(words))
        order = [*rows, *(row for row in range(len(self)) if row not in rows)]
        return self if order == list(range(len(self))) else self._select(order)

    def only(self, words: Iterable[str]) -> WordVectors:
        """Return the table of ``words`` alone, in their order; words without a vector are left out."""
        rows = list(dict.fromkeys(self._rows_of(words)))
        if not rows:
            raise InputError("None of the words has a vector; check the language and the letter case.")
        return self._select(rows)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the table to a folder, as safetensors and JSON, atomically."""
        write_model_folder(folder, KIND, Schema(), table_tensors(self))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> WordVectors:
        """Read a table that ``save`` wrote."""
        _, tensors, path = read_model_folder(folder, KIND, Schema)
        return table_from_tensors(tensors, path)

    def _rows_of(self, words: Iterable[str]) -> Iterator[int]:
        return (row for word in words if (row := self.index.get(word)) is not None)

    def _select(self, rows: list[int]) -> WordVectors:
        return WordVectors([self.words[row] for row in rows], self.matrix[rows, :])


def table_tensors(table: WordVectors) -> Tensors:
    """Return a table as arrays: the vectors, and the words."""
    return {"vectors": to_numpy(table.matrix), **word_tensors(table.words)}


def word_tensors(words: Iterable[str], name: str = "word") -> Tensors:
    """Return words as arrays: the UTF-8 bytes of all words, and where each word ends."""
    encoded = [word.encode("utf-8", "surrogatepass") for word in words]
    return {
        f"{name}_bytes": np.frombuffer(b"".join(encoded), dtype=np.uint8),
        f"{name}_ends": np.cumsum([len(word) for word in encoded], dtype=np.int64),
    }


def table_from_tensors(tensors: Tensors, path: Path) -> WordVectors:
    """Return the table of arrays that ``table_tensors`` made; ``path`` is for error messages."""
    vectors = take_array(tensors, "vectors", (None, None), path)
    words = take_words(tensors, path)()
    if len(words) != len(vectors):
        raise InputError(f"{path} has {len(vectors)} vectors for {len(words)} words; save it again.")
    return WordVectors(words, vectors)


def take_words(tensors: Tensors, path: Path, name: str = "word") -> Callable[[], list[str]]:
    """Check the arrays that ``word_tensors`` made, and return a function that returns their words."""
    raw, ends = (tensors.get(f"{name}_{part}", np.empty(0)) for part in ("bytes", "ends"))
    if (
        (raw.dtype, raw.ndim, ends.dtype, ends.ndim) != (np.uint8, 1, np.int64, 1)
        or not len(ends)
        or bool(np.any(np.diff(ends, prepend=0) <= 0))
        or int(ends[-1]) != len(raw)
    ):
        raise InputError(f"{path} has a damaged list of words; save it again.")

    def decode() -> list[str]:
        content, edges = raw.tobytes(), itertools.pairwise([0, *ends.tolist()])
        try:
            return [content[start:stop].decode("utf-8", "surrogatepass") for start, stop in edges]
        except UnicodeDecodeError as error:
            message = f"{path} has words that are not UTF-8 ({error.reason}); save it again."
            raise InputError(message) from None

    return decode


def learn_word_vectors(
    texts: Iterable[Text] | Corpus,
    dimensions: int = DEFAULT_DIMENSIONS,
    *,
    min_count: int = 2,
    random_state: Seed = 0,
) -> WordVectors:
    """Learn word vectors from texts, for example from captions when there is no file of word vectors.

    Words that occur together with the same words get similar vectors: the matrix of positive pointwise
    mutual information of words within a text is factorised by a truncated SVD. Captions are short, so the
    whole text is the context of each word. All matrices are sparse; half a million captions take seconds.

    Parameters
    ----------
    texts
        Strings, or lists of words.
    dimensions
        Length of the vectors; at most the number of words.
    min_count
        Words that occur less often get no vector.
    random_state
        Seed of the randomised SVD.

    Returns
    -------
    WordVectors
        Vectors of unit length, the most frequent words first.

    Examples
    --------
    >>> captions = ["a dog runs", "a dog jumps", "a cat sleeps", "a cat sits", "the cat sits", "the dog runs"]
    >>> vectors = learn_word_vectors(captions, dimensions=3)
    >>> vectors.words
    ('a', 'dog', 'cat', 'runs', 'sits', 'the')
    """
    corpus = texts if isinstance(texts, Corpus) else Corpus.of(texts)
    check_count(dimensions, "dimensions")
    counts = corpus.counts()
    frequent = np.flatnonzero(counts >= check_count(min_count, "min_count"))
    chosen = frequent[np.argsort(-counts[frequent], kind="stable")][:MAX_VOCABULARY]
    if len(chosen) < 2:
        raise InputError(
            f"The texts have {len(chosen)} words that occur {min_count} times or more; pass more texts, a "
            "lower min_count, or a file of word vectors."
        )
    presence = corpus.presence()[:, chosen]
    # How many texts have both of two words. A word occurs with itself too: otherwise words that can replace
    # each other (numbers or colours, where captions follow a pattern) would have the same contexts, and so
    # the same vector.
    information = positive_information(presence.T @ presence)
    if information.nnz == 0:
        import scipy.sparse

        # All texts have the same words, which tells nothing about any of them.
        information = scipy.sparse.identity(len(chosen), np.float32, "csr")
    rank = min(dimensions, len(chosen))
    vectors = _factorize(information, rank, make_generator(random_state, 2))
    return WordVectors([corpus.words[i] for i in chosen], vectors)


def positive_information(together: Any) -> Any:
    r"""Return the positive pointwise mutual information :math:`\max(0, \log\frac{p(w,c)}{p(w)\,q(c)})`.

    The context probability q is raised to the power ¾, so that rare contexts do not dominate.
    """
    import scipy.sparse

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


def _factorize(matrix: Any, rank: int, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    r"""Return the rows of :math:`U S^{1/2}` of the truncated SVD, scaled to unit length."""
    from sklearn.utils.extmath import randomized_svd

    seed = int(rng.integers(2**31))
    u, s, _ = randomized_svd(matrix, rank, n_iter=4, random_state=seed)
    vectors = u * np.sqrt(s)
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)  # type: ignore[no-any-return]
