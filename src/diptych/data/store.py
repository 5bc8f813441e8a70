"""Features on disk: a memory-mapped array, the ids of its rows, and who made them.

A finished store is a folder with ``features.npy``, ``ids.jsonl``, ``skipped.jsonl`` and ``config.json``;
the last one is written last, so its presence means that the rest is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diptych import storage
from diptych.checks import InputError
from diptych.data.files import read_lines
from diptych.storage import map_npy

KIND, FORMAT_VERSION = "features", 1
DTYPES = ("float32", "float16")
FEATURES, IDS, SKIPPED = "features.npy", "ids.jsonl", "skipped.jsonl"
WORK = "work.json"
"""Stands in for the config while features are being made."""


@dataclass(frozen=True)
class Job:
    """What a store is made from; work goes on only where all of it is the same.

    Attributes
    ----------
    encoder
        Fingerprint of the encoder.
    inputs
        Digest of the ids and of what they stand for.
    count
        Number of inputs, those that will turn out unreadable included.
    dimension
        Columns of the features.
    dtype
        ``"float32"`` or ``"float16"``.
    batch_size
        Inputs encoded together: the last bits of a feature may depend on it.
    """

    encoder: str
    inputs: str
    count: int
    dimension: int
    dtype: str
    batch_size: int


@dataclass(frozen=True)
class Skipped:
    """An input that could not be read, and why."""

    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """Finished features.

    Attributes
    ----------
    folder
        Where they lie.
    features
        The array, memory-mapped and read-only.
    ids
        The id of each row.
    skipped
        Inputs without a row.
    job
        What they were made from.
    checksum
        SHA-256 of ``features.npy``.
    """

    folder: Path
    features: np.ndarray[Any, Any]
    ids: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    job: Job
    checksum: str

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = False) -> FeatureStore:
        """Open the features in ``folder``.

        Parameters
        ----------
        folder
            A finished store.
        verify
            Read the whole array and compare its checksum; otherwise only its shape and type are checked.
        """
        folder = Path(folder)
        if not (folder / storage.CONFIG).is_file():
            unfinished = (folder / WORK).is_file()
            raise InputError(
                f"{folder} holds {'unfinished' if unfinished else 'no'} features; "
                + (
                    "run the same encoding again to finish them."
                    if unfinished
                    else "encode some into it first."
                )
            )
        config = storage.read_json(folder / storage.CONFIG)
        storage.check_format(config, KIND, FORMAT_VERSION, folder)
        job, rows, checksum = _job(config.get("job"), folder), config.get("rows"), str(config.get("checksum"))
        ids = tuple(_json_line(line, folder / IDS, str) for _, line in read_lines(folder / IDS))
        skipped = tuple(
            Skipped(*_json_line(line, folder / SKIPPED, list)) for _, line in read_lines(folder / SKIPPED)
        )
        features = map_npy(folder / FEATURES)
        if features.shape != (rows, job.dimension) or features.dtype != job.dtype or len(ids) != rows:
            raise InputError(
                f"{folder} has {features.dtype}{list(features.shape)} features and {len(ids)} ids; expected "
                f"{rows} rows of {job.dimension} in {job.dtype}. Encode again into an empty folder."
            )
        store = cls(folder, features, ids, skipped, job, checksum)
        if verify:
            store.verify()
        return store

    def verify(self) -> None:
        """Read the whole array and refuse it if a bit has changed since it was written."""
        if storage.file_digest(self.folder / FEATURES) != self.checksum:
            raise InputError(
                f"{self.folder / FEATURES} has changed since it was written (its checksum differs); encode "
                "again into an empty folder."
            )

    def rows_of(self, ids: Iterable[str]) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The row of each id; −1 for one that has none."""
        row_of = {name: row for row, name in enumerate(self.ids)}
        return np.array([row_of.get(name, -1) for name in ids], np.int64)


def started(folder: str | os.PathLike[str]) -> Job | None:
    """The job of the store in ``folder``, finished or not; None if there is none."""
    for name in (storage.CONFIG, WORK):
        if (Path(folder) / name).is_file():
            return _job(storage.read_json(Path(folder) / name).get("job"), Path(folder))
    return None


def _job(content: Any, folder: Path) -> Job:
    kinds = Job.__annotations__
    if not isinstance(content, Mapping) or set(content) != set(kinds):
        raise InputError(f"{folder} does not say what its features were made from; encode again elsewhere.")
    for name, value in content.items():
        if type(value).__name__ != kinds[name] or (isinstance(value, int) and value < 0):
            raise InputError(f"{folder} has {name}={value!r}; it is damaged. Encode again elsewhere.")
    return Job(**content)


def _json_line(line: str, path: Path, kind: type[str] | type[list[Any]]) -> Any:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, kind) or (kind is list and [type(part) for part in value] != [str, str]):
        raise InputError(f"{path} has the damaged line {line[:60]!r}; encode again into an empty folder.")
    return value
