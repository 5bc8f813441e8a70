"""Features of either view behind one verb, ``take(rows)``, whether they lie on disk or are computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np

from diptych._normalize import normalize
from diptych.paper._cache import digest, digest_array
from diptych.text import HKSE, WordVectors
from diptych.text._words import Corpus, Coverage

Floats: TypeAlias = np.ndarray[Any, Any]
Rows: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

KEPT_BYTES = 2**30
"""Embedded captions up to this size are kept in memory; larger ones are embedded again when asked for."""


class Source(Protocol):
    """Rows of features of one view."""

    @property
    def name(self) -> str:
        """What the paper would call it, or the file's own name."""
        ...

    @property
    def seeded(self) -> bool:
        """Whether other seeds give other features."""
        ...

    @property
    def fingerprint(self) -> str:
        """What the features follow from, known without computing them."""
        ...

    @property
    def dimension(self) -> int:
        """Numbers in a row."""
        ...

    def take(self, rows: Rows) -> Floats:
        """The features of some rows, float32."""
        ...


@dataclass(eq=False)
class Stored:
    """Features that are an array, or become one when first asked for, with a normalisation of rows."""

    name: str
    open: Callable[[], Floats]
    normalization: str = "none"
    origin: str = ""
    seeded: bool = False
    kept: Rows | None = None
    """Rows of the array that are used, where the file has more captions than the protocol."""

    @cached_property
    def _array(self) -> Floats:
        return self.open()

    @cached_property
    def fingerprint(self) -> str:
        """The origin where it determines the numbers; else the numbers themselves."""
        kept = [] if self.kept is None else [self.kept]
        return digest([self.origin or digest_array(self._array), self.normalization, *kept])

    @property
    def dimension(self) -> int:
        """Numbers in a row."""
        return int(self._array.shape[1])

    def take(self, rows: Rows) -> Floats:
        """Rows, normalised."""
        rows = rows if self.kept is None else self.kept[rows]
        return np.asarray(normalize(np.asarray(self._array[rows], dtype=np.float32), self.normalization))


@dataclass(eq=False)
class Words:
    """Captions and the vectors of their words: what every HKSE starts from."""

    captions: Sequence[str]
    training: Rows
    read: Callable[[Sequence[str], Sequence[str]], WordVectors]
    kind: str

    @cached_property
    def training_captions(self) -> list[str]:
        """The captions that HKSE may see when it is fitted."""
        return [self.captions[j] for j in self.training]

    @cached_property
    def vectors(self) -> WordVectors:
        """Vectors of the words of all captions, or learned from the training captions."""
        return self.read(self.training_captions, self.captions)

    def coverage(self, rows: Rows) -> Coverage:
        """How many words of some captions have a vector."""
        return Corpus.of([self.captions[j] for j in rows]).coverage(self.vectors.index)

    @cached_property
    def have_unit_length(self) -> bool:
        """Whether every vector has length 1."""
        norms = np.linalg.norm(np.asarray(self.vectors.matrix, dtype=np.float64), axis=1)
        return bool(np.all(np.abs(norms - 1) < 1e-3))

    @cached_property
    def fingerprint(self) -> str:
        """Of the captions and of the vectors that are used."""
        table = self.vectors
        return digest([list(self.captions), self.training, list(table.words), digest_array(table.matrix)])


@dataclass(eq=False)
class Embedded:
    """One HKSE, or several side by side, of the captions."""

    name: str
    words: Words
    kinds: tuple[tuple[str, str], ...]
    word_features: int
    sentence_features: int
    seed: int = 0

    @property
    def seeded(self) -> bool:
        """Only random features depend on the seed."""
        return any("rbf" in kind for kind in self.kinds)

    @cached_property
    def fingerprint(self) -> str:
        """Of the words and the draws."""
        draws = [self.word_features, self.sentence_features, self.seed] if self.seeded else []
        return digest([self.words.fingerprint, self.kinds, draws])

    @cached_property
    def encoders(self) -> list[HKSE]:
        """Fitted on the training captions."""
        return [
            HKSE(
                self.words.vectors,
                word=word,  # type: ignore[arg-type]
                sentence=sentence,  # type: ignore[arg-type]
                word_features=self.word_features,
                sentence_features=self.sentence_features,
                random_state=self.seed,
            ).fit(self.words.training_captions)
            for word, sentence in self.kinds
        ]

    @cached_property
    def dimension(self) -> int:
        """Numbers in a row."""
        return sum(encoder._n_features_out for encoder in self.encoders)

    @cached_property
    def _all(self) -> Floats | None:
        if len(self.words.captions) * self.dimension * 4 > KEPT_BYTES:
            return None
        return self._embed(self.words.captions)

    def _embed(self, captions: Sequence[str]) -> Floats:
        parts = [encoder.transform(captions, unknown="mean") for encoder in self.encoders]
        return np.concatenate(parts, axis=1)

    def take(self, rows: Rows) -> Floats:
        """Embeddings of some captions."""
        kept = self._all
        return self._embed([self.words.captions[j] for j in rows]) if kept is None else kept[rows]

    def forget(self) -> None:
        """Let go of what is in memory."""
        self.__dict__.pop("_all", None)
