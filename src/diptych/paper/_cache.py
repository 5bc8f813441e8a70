"""Results on disk, so that an interrupted reproduction continues and a finished one is not computed again.

A result is a JSON object, stored under its name and the digest of everything it depends on: its inputs and
the code that computes it. Files are replaced as a whole, so an interruption costs only the running job.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych._checks import InputError
from diptych._persistence import library_version, read_json, replace_file, write_json

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
