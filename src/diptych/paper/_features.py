"""Features of images or captions behind one method, ``take(rows)``, and the store of results.

A result is a JSON object, stored under its name and the digest of everything it depends on: its inputs and
the code that computes it. Files are replaced as a whole, so an interruption costs only the running job.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np

from diptych._checks import InputError
from diptych._persistence import library_version, read_json, replace_file, write_json
from diptych.cca._weighting import normalize
from diptych.text import HKSE, WordVectors
from diptych.text._words import Corpus, Coverage

Result: TypeAlias = dict[str, Any]

_SECONDS = "seconds.json"
_NOT_COMPUTING = ("cli", "service", "retrieval", "report")
"""Packages whose code changes no result."""


@dataclass
class Cache:
    """A folder of results.

    Attributes
    ----------
    folder
        Where the results are; None keeps them in memory only.
    computed, read
        Names of the results that were computed and of those that were read from the folder, in order.
    seconds
        How long each job took when it was computed, in this run or an earlier one.
    """

    folder: Path | None = None
    computed: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    _memory: dict[str, Result] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Read how long jobs took in earlier runs."""
        if self.folder is not None and (self.folder / _SECONDS).is_file():
            with contextlib.suppress(InputError):
                content = read_json(self.folder / _SECONDS)
                self.seconds = {str(k): float(v) for k, v in content.items() if isinstance(v, (int, float))}

    def store_seconds(self, label: str, seconds: float) -> None:
        """Store how long a job took."""
        self.seconds[label] = seconds
        if self.folder is not None:
            with replace_file(self.folder / _SECONDS) as staged:
                write_json(staged, self.seconds)

    def fetch(self, name: str, inputs: Mapping[str, Any], compute: Callable[[], Result]) -> Result:
        """Return the stored result for these ``inputs`` and this code, or compute and store it."""
        identity = digest({"name": name, "code": code_digest(), **inputs})
        key = f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')[:60]}-{identity[:20]}"
        if key not in self._memory:
            self._memory[key] = self._load(key, name) or self._compute(key, name, inputs, compute)
        return self._memory[key]

    def _load(self, key: str, name: str) -> Result | None:
        if self.folder is None or not (self.folder / f"{key}.json").is_file():
            return None
        try:
            result = dict(read_json(self.folder / f"{key}.json")["result"])
        except (InputError, KeyError):
            return None  # a damaged file is computed again
        self.read.append(name)
        return result

    def _compute(
        self, key: str, name: str, inputs: Mapping[str, Any], compute: Callable[[], Result]
    ) -> Result:
        # Through JSON and back, so that a computed result equals the one that is read later.
        result: Result = json.loads(json.dumps(plain(compute()), allow_nan=False))
        if self.folder is not None:
            with replace_file(self.folder / f"{key}.json") as staged:
                write_json(staged, {"name": name, "inputs": plain(inputs), "result": result})
        self.computed.append(name)
        return result


@cache
def code_digest() -> str:
    """SHA-256 of the library's version and of every source file that results are computed with."""
    root = Path(__file__).parents[1]
    hashed = hashlib.sha256(library_version().encode("utf-8"))
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).parts[0] not in _NOT_COMPUTING:
            hashed.update(path.read_bytes())
    return hashed.hexdigest()


def digest(content: Any) -> str:
    """SHA-256 of plain content, independent of the order of its keys.

    >>> digest({"a": 1, "b": (2, 3)}) == digest({"b": [2, 3], "a": 1})
    True
    """
    text = json.dumps(plain(content), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def digest_array(array: np.ndarray[Any, Any], block_bytes: int = 2**24) -> str:
    """SHA-256 of an array's type, shape and numbers, read in blocks."""
    hashed = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    rows = max(1, block_bytes // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        hashed.update(np.ascontiguousarray(array[start : start + rows]).data)
    return hashed.hexdigest()


def plain(value: Any) -> Any:
    """Return ``value`` as JSON can hold it: Python numbers and lists; NaN becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and value != value else value


Floats: TypeAlias = np.ndarray[Any, Any]
Rows: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
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
    """Features from an array that is opened on first use, with a normalisation of its rows.

    Attributes
    ----------
    origin
        Text that determines the numbers, used as fingerprint; empty: the numbers are hashed.
    places
        Row of the array for each image or caption; None: they are in the same order.
    """

    name: str
    open: Callable[[], Floats]
    normalization: str = "none"
    origin: str = ""
    seeded: bool = False
    places: Rows | None = None

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
        """Return the features of some rows, normalised."""
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

    def coverage(self, rows: Rows) -> Coverage:
        """Count the words of some captions that have a vector."""
        return Corpus.of([self.captions[j] for j in rows]).coverage(self.vectors.index)

    @cached_property
    def have_unit_length(self) -> bool:
        """Whether every word vector has length 1."""
        norms = np.linalg.norm(np.asarray(self.vectors.matrix, dtype=np.float64), axis=1)
        return bool(np.all(np.abs(norms - 1) < 1e-3))

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
        return sum(encoder._n_features_out for encoder in self.encoders)

    @cached_property
    def _all(self) -> Floats | None:
        if len(self.words.captions) * self.dimension * 4 > KEPT_BYTES:
            return None
        return self._embed(self.words.captions)

    def _embed(self, captions: Sequence[str]) -> Floats:
        return np.concatenate([each.transform(captions, unknown="mean") for each in self.encoders], axis=1)

    def take(self, rows: Rows) -> Floats:
        """Return the embeddings of some captions."""
        everything = self._all
        return self._embed([self.words.captions[j] for j in rows]) if everything is None else everything[rows]

    def release(self) -> None:
        """Free the memory of the embedded captions; the next ``take`` computes them again."""
        self.__dict__.pop("_all", None)
