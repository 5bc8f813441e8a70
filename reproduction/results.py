"""Results are JSON objects. Each is stored under its name and a digest of all it depends on, code included.

Files are replaced as a whole, so an interruption costs only the running job.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

import diptych

Task: TypeAlias = Literal["search", "annotate"]
TASKS: tuple[Task, ...] = ("search", "annotate")
Result: TypeAlias = dict[str, Any]
Floats: TypeAlias = np.ndarray[Any, Any]
Rows: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_SECONDS = "seconds.json"
_NOT_COMPUTING = ("cli", "service", "retrieval", "report")
"""Packages whose code changes no result."""


@dataclass
class Cache:
    """A folder of results; without one they stay in memory.

    ``computed`` and ``read`` are the names of the results that were computed and of those that were read from
    the folder, in order; ``seconds`` is how long each job took, in this run or an earlier one.
    """

    folder: Path | None = None
    computed: list[str] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    _memory: dict[str, Result] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """Read how long jobs took in earlier runs."""
        stored = self._load(_SECONDS) or {}
        self.seconds = {str(k): float(v) for k, v in stored.items() if isinstance(v, (int, float))}

    def store_seconds(self, label: str, seconds: float) -> None:
        self.seconds[label] = seconds
        if self.folder is not None:
            write_text(self.folder / _SECONDS, write_json(self.seconds))

    def fetch(self, name: str, inputs: Mapping[str, Any], compute: Callable[[], Result]) -> Result:
        """Return the stored result for these ``inputs`` and this code, or compute and store it."""
        identity = digest({"name": name, "code": code_digest(), **inputs})
        key = f"{re.sub(r'[^a-z0-9]+', '-', name.lower()).strip('-')[:60]}-{identity[:20]}"
        if key in self._memory:
            return self._memory[key]
        stored = (self._load(f"{key}.json") or {}).get("result")
        if isinstance(stored, dict):
            self._memory[key] = stored
            self.read.append(name)
            return stored
        # Through JSON and back, so that a computed result equals the one that is read later.
        result: Result = json.loads(write_json(compute()))
        if self.folder is not None:
            write_text(
                self.folder / f"{key}.json", write_json({"name": name, "inputs": inputs, "result": result})
            )
        self._memory[key] = result
        self.computed.append(name)
        return result

    def _load(self, name: str) -> Result | None:
        """Return the content of a file; None if it is missing, or damaged and must be computed again."""
        if self.folder is None:
            return None
        try:
            content = json.loads((self.folder / name).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None


@cache
def code_digest() -> str:
    """SHA-256 of the library's version and of every source file that results are computed with."""
    library, experiments = Path(diptych.__file__).parent, Path(__file__).parent
    hashed = hashlib.sha256(diptych.__version__.encode("utf-8"))
    for path in (*sorted(library.rglob("*.py")), *sorted(experiments.rglob("*.py"))):
        if not path.is_relative_to(library) or path.relative_to(library).parts[0] not in _NOT_COMPUTING:
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
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, (np.ndarray, np.generic)):
        return plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return None if isinstance(value, float) and value != value else value


def write_json(content: Any) -> str:
    """Return ``plain`` content as JSON, which has no NaN."""
    return json.dumps(plain(content), ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def write_text(path: Path, content: str) -> None:
    """Write a file and replace an older one as a whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.part")
    try:
        staged.write_text(content, "utf-8")
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)
