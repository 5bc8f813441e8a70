"""Tables of word vectors, and learning word vectors from captions."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diptych._arrays import Array, move_like, namespace, to_numpy
from diptych._checks import InputError, check_count, check_view
from diptych._model_folder import read_model_folder, write_model_folder
from diptych._persistence import Schema, Tensors, take_array
from diptych.encoders._fourier import make_generator
from diptych.encoders._words import Corpus, Text, Tokenizer, tokenize

KIND = "word-vectors"


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


class QueryWords:
    """The row of each word that queries may use: the vocabulary, and then further words of the same vectors.

    ``words`` and ``matrix`` return the further words and their vectors. They are functions, because most
    queries need neither: a saved model reads the words when a query has one that is not in the vocabulary,
    and the vectors when it is one of these.
    """

    def __init__(
        self,
        vocabulary: Mapping[str, int],
        words: Callable[[], Sequence[str]],
        matrix: Callable[[], Array],
    ) -> None:
        self._vocabulary, self._words, self._matrix = vocabulary, words, matrix

    @classmethod
    def of(cls, vocabulary: Mapping[str, int], words: Sequence[str], matrix: Array) -> QueryWords:
        """Return further words with their vectors, one row for each."""
        return cls(vocabulary, lambda: words, lambda: matrix)

    @functools.cached_property
    def index(self) -> dict[str, int]:
        """The row of each further word among their vectors, as a dict."""
        words = self._words()
        index = {word: i for i, word in enumerate(words)}
        if len(index) != len(words):
            raise InputError(f"A word occurs twice among the {len(words)} words for queries; fit again.")
        return index

    @functools.cached_property
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

    def take(self, rows: np.ndarray[Any, Any], like: Array) -> Array:
        """Return the vectors of some further words, with the dtype of ``like``."""
        return namespace(like).astype(self.matrix[move_like(rows, like), :], like.dtype)


def halve_vectors(matrix: Array) -> Array:
    """Return vectors as float16, in half the space, or as they are if that would not be precise enough.

    float16 has 11 bits for each number, which is more than word vectors need. It has too few if all numbers
    of a vector are very large or very small.
    """
    with np.errstate(over="ignore"):
        halved = to_numpy(matrix).astype(np.float16)
    errors, sizes = np.abs(halved - to_numpy(matrix)).max(axis=1), np.abs(to_numpy(matrix)).max(axis=1)
    return halved if bool(np.all(errors <= sizes / 1024)) else matrix


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
    raw, ends = tensors.get(f"{name}_bytes"), tensors.get(f"{name}_ends")
    whole = (
        raw is not None
        and ends is not None
        and (raw.dtype, raw.ndim, ends.dtype, ends.ndim) == (np.uint8, 1, np.int64, 1)
        and len(ends) > 0
        and bool(np.all(np.diff(ends, prepend=0) > 0))
        and int(ends[-1]) == len(raw)
    )
    if not whole or raw is None or ends is None:
        raise InputError(f"{path} has a damaged list of words; save it again.")

    def decode() -> list[str]:
        content, stops = raw.tobytes(), ends.tolist()
        try:
            return [
                content[start:stop].decode("utf-8", "surrogatepass")
                for start, stop in itertools.pairwise([0, *stops])
            ]
        except UnicodeDecodeError as error:
            message = f"{path} has words that are not UTF-8 ({error.reason}); save it again."
            raise InputError(message) from None

    return decode


DEFAULT_DIMENSIONS = 300
CONTEXT_POWER = 0.75
MAX_VOCABULARY = 200_000


def learn_word_vectors(
    texts: Iterable[Text],
    dimensions: int = DEFAULT_DIMENSIONS,
    *,
    min_count: int = 2,
    tokenizer: Tokenizer = tokenize,
    random_state: Any = 0,
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
    tokenizer
        Function that splits a string into words.
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
    corpus = Corpus.of(texts, tokenizer)
    return learn_from_corpus(corpus, dimensions, min_count=min_count, random_state=random_state)


def learn_from_corpus(
    corpus: Corpus, dimensions: int = DEFAULT_DIMENSIONS, *, min_count: int = 2, random_state: Any = 0
) -> WordVectors:
    """Learn word vectors from a corpus; see ``learn_word_vectors``."""
    check_count(dimensions, "dimensions")
    counts = corpus.counts()
    frequent = np.flatnonzero(counts >= check_count(min_count, "min_count"))
    chosen = frequent[np.argsort(-counts[frequent], kind="stable")][:MAX_VOCABULARY]
    if len(chosen) < 2:
        raise InputError(
            f"The texts have {len(chosen)} words that occur {min_count} times or more; pass more texts, a "
            "lower min_count, or a file of word vectors."
        )
    information = positive_information(count_cooccurrences(corpus.presence()[:, chosen]))
    if information.nnz == 0:
        import scipy.sparse

        # All texts have the same words, which tells nothing about any of them.
        information = scipy.sparse.identity(len(chosen), np.float32, "csr")
    rank = min(dimensions, len(chosen))
    vectors = _factorize(information, rank, make_generator(random_state, 2))
    return WordVectors([corpus.words[i] for i in chosen], vectors)


def count_cooccurrences(presence: Any) -> Any:
    """Count, for each pair of words, the texts that have both (sparse, symmetric).

    A word occurs with itself too. Otherwise words that can replace each other (numbers or colours, where
    captions follow a pattern) would have the same contexts, and so the same vector.
    """
    return (presence.T @ presence).tocsr()


def positive_information(together: Any) -> Any:
    r"""Return the positive pointwise mutual information :math:`\max(0, \log\frac{p(w,c)}{p(w)\,q(c)})`.

    The context probability q is raised to the power ¾, so that rare contexts do not dominate.
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
    import scipy.sparse

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
