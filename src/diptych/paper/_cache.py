"""Results on disk, so that nothing that is finished is ever computed twice.

A result is a JSON object under a name and the digest of everything it follows from. What changed has another
digest and is computed; what did not is read. Files appear whole or not at all, so an interruption costs the
step that was running and nothing else.

How much of each experiment is run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych._checks import InputError
from diptych._persistence import read_json, replace_file, write_json

Result: TypeAlias = dict[str, Any]
TIMES = "seconds.json"


@dataclass
class Cache:
    """A folder of results.

    Attributes
    ----------
    folder
        Where they are; None keeps them in memory only.
    computed, found
        The names that were computed and those that were read, in order.
    seconds
        How long each job took when it was computed, in this run or before.
    """

    folder: Path | None = None
    computed: list[str] = field(default_factory=list)
    found: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    _memory: dict[str, Result] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Read how long jobs took before."""
        path = self._times
        if path is not None and path.is_file():
            with contextlib.suppress(InputError):
                content = read_json(path)
                self.seconds = {str(k): float(v) for k, v in content.items() if isinstance(v, (int, float))}

    def note_seconds(self, label: str, seconds: float) -> None:
        """Keep how long a job took."""
        self.seconds[label] = seconds
        if self._times is not None:
            with replace_file(self._times) as staged:
                write_json(staged, self.seconds)

    @property
    def _times(self) -> Path | None:
        return None if self.folder is None else self.folder / TIMES

    def remember(self, name: str, inputs: Mapping[str, Any], compute: Callable[[], Result]) -> Result:
        """What ``compute`` gave for these ``inputs``, now or at any time before."""
        key = f"{_slug(name)}-{digest({'name': name, **inputs})[:20]}"
        if key not in self._memory:
            self._memory[key] = self._read(key, name) or self._compute(key, name, inputs, compute)
        return self._memory[key]

    def _read(self, key: str, name: str) -> Result | None:
        if self.folder is None or not (self.folder / f"{key}.json").is_file():
            return None
        try:
            content = read_json(self.folder / f"{key}.json")
            result = content["result"]
        except (InputError, KeyError):
            return None  # damaged from outside: computed again
        self.found.append(name)
        return dict(result)

    def _compute(
        self, key: str, name: str, inputs: Mapping[str, Any], compute: Callable[[], Result]
    ) -> Result:
        # Through JSON and back, so that a result is the same whether it was just made or read.
        result: Result = json.loads(json.dumps(plain(compute()), allow_nan=False))
        if self.folder is not None:
            content = {"name": name, "inputs": plain(inputs), "result": result}
            with replace_file(self.folder / f"{key}.json") as staged:
                write_json(staged, content)
        self.computed.append(name)
        return result


def digest(content: Any) -> str:
    """SHA-256 of plain content, whatever the order of its keys.

    >>> digest({"a": 1, "b": (2, 3)}) == digest({"b": [2, 3], "a": 1})
    True
    """
    text = json.dumps(plain(content), sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def digest_array(array: np.ndarray[Any, Any], block_bytes: int = 2**24) -> str:
    """SHA-256 of an array's type, shape and numbers, read in blocks."""
    found = hashlib.sha256(f"{array.dtype}{array.shape}".encode())
    rows = max(1, block_bytes // max(1, array[:1].nbytes))
    for start in range(0, len(array), rows):
        found.update(np.ascontiguousarray(array[start : start + rows]).data)
    return found.hexdigest()


def plain(value: Any) -> Any:
    """``value`` as JSON has it: NumPy's numbers and arrays become Python's, NaN becomes None."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and value != value:
        return None
    return value


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60]


@dataclass(frozen=True)
class Options:
    """How much is run.

    Attributes
    ----------
    grid
        Points per side where filters are selected.
    map_shape
        Points of the dense maps.
    word_features, sentence_features
        m and m' of HKSE.
    alphas
        Points of the curve over (Σ^α, Σ^(1−α)).
    timed_points
        Grid points on which the textbook is timed, per side.
    all_images
        Whether the main tables take every image feature, or the first alone.
    draws, sampled_words, sampled_captions, feature_counts
        Of the approximation of HKSE.
    neighbours
        Pictures in a panel of the plane.
    seeds
        How many seeds the main tables are run with.
    quick
        Whether this is the small version, whose verdicts are indicative.
    """

    grid: int = 20
    map_shape: tuple[int, int] = (37, 91)
    word_features: int = 2000
    sentence_features: int = 2000
    alphas: int = 11
    timed_points: int = 4
    all_images: bool = True
    draws: int = 10
    sampled_words: int = 1500
    sampled_captions: int = 400
    feature_counts: tuple[int, ...] = (125, 250, 500, 1000, 2000, 4000, 8000)
    neighbours: int = 40
    seeds: int = 1
    quick: bool = False

    @classmethod
    def for_dataset(cls, name: str, *, quick: bool = False, seeds: int = 1) -> Options:
        """As the paper has it (m' = 3000 on COCO, 2000 elsewhere), or a small version of it."""
        if quick:
            return cls(
                grid=7,
                map_shape=(10, 13),
                word_features=300,
                sentence_features=300,
                alphas=5,
                timed_points=2,
                all_images=False,
                draws=6,
                sampled_words=600,
                sampled_captions=150,
                feature_counts=(125, 500, 2000),
                neighbours=24,
                seeds=seeds,
                quick=True,
            )
        return cls(sentence_features=3000 if name == "coco" else 2000, seeds=seeds)
