"""Tables of word vectors."""

from __future__ import annotations

import functools
import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from diptych._arrays import Array, to_numpy
from diptych._checks import InputError, check_view
from diptych._model_folder import read_model_folder, write_model_folder
from diptych._persistence import Schema, Tensors, take_array

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
