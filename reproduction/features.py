"""Features of images or captions behind one method, ``take(rows)``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeAlias

import numpy as np

from diptych.cca import normalize
from diptych.encoders import HKSE, WordVectors, tokenize
from reproduction.results import Floats, Rows, digest, digest_array

ReadVectors: TypeAlias = Callable[[Sequence[str], Sequence[str]], WordVectors]
"""Word vectors from the training captions and all captions: read for all, or learned from training."""

KEPT_BYTES = 2**30
"""Caption features up to this size stay in memory; larger ones are computed again for each use."""


class Features(Protocol):
    """Features of one view, one row per image or per caption.

    ``fingerprint`` identifies the numbers without computing them; ``seeded`` says whether another seed gives
    other numbers.
    """

    @property
    def name(self) -> str: ...

    @property
    def seeded(self) -> bool: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def take(self, rows: Rows) -> Floats:
        """Return the features of some rows as float32."""
        ...


@dataclass(eq=False)
class StoredFeatures:
    """Features from an array that is opened on first use, with a normalisation of its rows."""

    name: str
    open: Callable[[], Floats]
    normalization: str = "none"
    origin: str = ""  # text that determines the numbers, for the fingerprint; empty: the numbers are hashed
    seeded: bool = False
    places: Rows | None = None  # row of the array for each image or caption; None: in the same order

    @cached_property
    def _array(self) -> Floats:
        return self.open()

    @cached_property
    def fingerprint(self) -> str:
        places = [] if self.places is None else [self.places]
        return digest([self.origin or digest_array(self._array), self.normalization, *places])

    @property
    def dimension(self) -> int:
        return int(self._array.shape[1])

    def take(self, rows: Rows) -> Floats:
        rows = rows if self.places is None else self.places[rows]
        return np.asarray(normalize(np.asarray(self._array[rows], dtype=np.float32), self.normalization))


@dataclass(eq=False)
class CaptionWords:
    """All captions and the vectors of their words, which every HKSE is built from."""

    captions: Sequence[str]
    training: Rows
    read: ReadVectors

    @cached_property
    def training_captions(self) -> list[str]:
        return [self.captions[j] for j in self.training]

    @cached_property
    def vectors(self) -> WordVectors:
        """Word vectors, read for all captions or learned from the training captions."""
        return self.read(self.training_captions, self.captions)

    def describe(self, origin: str, test: Rows) -> str:
        """Say where the word vectors are from, and how many words of the captions have one."""
        norms = np.linalg.norm(np.asarray(self.vectors.matrix, dtype=np.float64), axis=1)
        have_unit_length = np.all(np.abs(norms - 1) < 1e-3)
        unit = "each of unit length" if have_unit_length else "not of unit length, used as they are"
        counts = Counter(word for caption in self.captions for word in tokenize(caption))
        words = {word for word in counts if word in self.vectors}
        share = sum(counts[word] for word in words) / counts.total()
        unseen = set(self.vectors.words) - {w for c in self.training_captions for w in tokenize(c)}
        with_unseen = sum(not unseen.isdisjoint(tokenize(self.captions[j])) for j in test)
        return (
            f"Word vectors: {origin}, {unit}; {len(words):,} of the {len(counts):,} different words of all "
            f"captions (training, validation and test) have one, and {100 * share:.1f} % of all words; the "
            f"others are skipped. {len(unseen):,} words with a vector are in no training caption, and "
            f"{with_unseen:,} of the {len(test):,} test captions contain one of them."
        )

    @cached_property
    def fingerprint(self) -> str:
        table = self.vectors
        return digest([list(self.captions), self.training, list(table.words), digest_array(table.matrix)])


@dataclass(eq=False)
class HKSEFeatures:
    """Captions embedded by one HKSE, or by several side by side.

    ``kinds`` gives the word and the sentence kernel of each, such as ``(("rbf", "rbf"),)``.
    """

    name: str
    words: CaptionWords
    kinds: tuple[tuple[str, str], ...]
    word_features: int
    sentence_features: int
    seed: int = 0

    @property
    def seeded(self) -> bool:
        return any("rbf" in kind for kind in self.kinds)

    @cached_property
    def fingerprint(self) -> str:
        draws = [self.word_features, self.sentence_features, self.seed] if self.seeded else []
        return digest([self.words.fingerprint, self.kinds, draws])

    @cached_property
    def encoders(self) -> list[HKSE]:
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
        return sum(len(encoder.get_feature_names_out()) for encoder in self.encoders)

    @cached_property
    def _all(self) -> Floats | None:
        if len(self.words.captions) * self.dimension * 4 > KEPT_BYTES:
            return None
        return self.embed(self.words.captions)

    def embed(self, texts: Sequence[str]) -> Floats:
        """Return the embeddings of captions, or of other texts; one without a known word gets the mean."""
        return np.concatenate([encoder.transform(texts, unknown="mean") for encoder in self.encoders], axis=1)

    def take(self, rows: Rows) -> Floats:
        everything = self._all
        return self.embed([self.words.captions[j] for j in rows]) if everything is None else everything[rows]

    def release(self) -> None:
        """Free the memory of the embedded captions; the next ``take`` computes them again."""
        self.__dict__.pop("_all", None)
