"""Writing a feature store so that it can be interrupted at any moment.

Until a store is finished its folder holds ``work.json``, ``features.partial`` and a journal. Rows reach the
disk before the journal speaks of them: after a crash the journal's last whole line tells what to keep, and
the rest is cut off.

Features on disk: a memory-mapped array, the ids of its rows, and who made them.

A finished store is a folder with ``features.npy``, ``ids.jsonl``, ``skipped.jsonl`` and ``config.json``;
the last one is written last, so its presence means that the rest is whole.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from diptych._checks import InputError, check_choice
from diptych._persistence import (
    CONFIG,
    check_format,
    file_digest,
    map_npy,
    read_json,
    replace_file,
    write_json,
)
from diptych.data._readers import read_lines

PARTIAL, JOURNAL = "features.partial", "journal.jsonl"
_HEADER_BYTES = 128


class StoreWriter:
    """Appends features to a store, batch by batch, and can be interrupted at any moment.

    Parameters
    ----------
    folder
        A new or empty folder, or one where the same job was interrupted.
    job
        What the store is made from.
    """

    def __init__(self, folder: str | os.PathLike[str], job: Job) -> None:
        check_choice(job.dtype, DTYPES, "dtype")
        self.folder, self.job = Path(folder), job
        self.done, self.rows = 0, 0
        self.skipped: list[tuple[int, str]] = []
        self._row_bytes = job.dimension * np.dtype(job.dtype).itemsize
        _check_usable(self.folder, job)
        self.folder.mkdir(parents=True, exist_ok=True)
        if not (self.folder / WORK).is_file():
            with replace_file(self.folder / WORK) as staged:
                write_json(staged, {"format": f"diptych-{KIND}-work", "version": 1, "job": asdict(job)})
        self._journal = open(self.folder / JOURNAL, "a+b")  # noqa: SIM115, closed by finish() or close()
        _lock(self._journal, self.folder)
        if (self.folder / FEATURES).is_file():
            # Killed after the last row and before the config: the array takes its place again below.
            (self.folder / FEATURES).replace(self.folder / PARTIAL)
        self._data = open(self.folder / PARTIAL, "a+b")  # noqa: SIM115
        self._recover()

    def append(self, features: np.ndarray[Any, Any], inputs: int, skipped: Sequence[tuple[int, str]]) -> None:
        """Add the rows of the next ``inputs`` inputs, of which some (by number and reason) have none."""
        if features.shape != (inputs - len(skipped), self.job.dimension):
            raise InputError(
                f"the encoder gave an array of shape {list(features.shape)} for "
                f"{inputs - len(skipped)} inputs; expected rows of {self.job.dimension} numbers."
            )
        with np.errstate(over="ignore"):
            rows = np.ascontiguousarray(features, self.job.dtype)
        if not np.all(np.isfinite(rows)):
            raise InputError(
                f"the encoder gave NaN or numbers beyond {self.job.dtype} for inputs {self.done} to "
                f"{self.done + inputs - 1}; check the network's recipe, or store float32."
            )
        self._data.write(rows.tobytes())
        _sync(self._data)
        self.done, self.rows = self.done + inputs, self.rows + len(rows)
        self.skipped += skipped
        entry = {"done": self.done, "rows": self.rows, "skipped": list(skipped)}
        self._journal.write(json.dumps(entry).encode() + b"\n")
        _sync(self._journal)

    def finish(self, ids: Sequence[str]) -> FeatureStore:
        """Close the store; ``ids`` are those of all inputs."""
        if self.done != self.job.count:
            raise InputError(f"{self.done} of {self.job.count} inputs are done; append the others first.")
        with open(self.folder / PARTIAL, "r+b") as file:
            file.write(_npy_header(self.rows, self.job))
            _sync(file)
        self.close()
        checksum = file_digest(self.folder / PARTIAL)
        left_out = dict(self.skipped)
        kept = (name for number, name in enumerate(ids) if number not in left_out)
        _write_lines(self.folder / IDS, kept)
        _write_lines(self.folder / SKIPPED, ([ids[number], reason] for number, reason in self.skipped))
        (self.folder / PARTIAL).replace(self.folder / FEATURES)
        with replace_file(self.folder / CONFIG) as staged:
            head = {"format": f"diptych-{KIND}", "version": FORMAT_VERSION, "rows": self.rows}
            write_json(staged, {**head, "checksum": checksum, "job": asdict(self.job)})
        _clear(self.folder)
        return FeatureStore.open(self.folder)

    def close(self) -> None:
        """Let go of the files; the work can be taken up again."""
        self._data.close()
        self._journal.close()

    def _recover(self) -> None:
        whole = 0
        self._journal.seek(0)
        available = os.fstat(self._data.fileno()).st_size
        for line in self._journal:
            try:
                entry = json.loads(line)
                done, rows, skipped = entry["done"], entry["rows"], entry["skipped"]
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n") or _HEADER_BYTES + rows * self._row_bytes > available:
                break
            self.done, self.rows = done, rows
            self.skipped += [(int(number), str(reason)) for number, reason in skipped]
            whole += len(line)
        self._journal.truncate(whole)
        self._journal.seek(0, os.SEEK_END)
        self._data.truncate(_HEADER_BYTES + self.rows * self._row_bytes)
        self._data.seek(0, os.SEEK_END)


def finished(folder: str | os.PathLike[str], job: Job) -> FeatureStore | None:
    """The store in ``folder`` if it was made by the same job, None if it is not finished yet."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        return None
    store = FeatureStore.open(folder)
    _check_same(store.job, job, folder)
    _clear(folder)
    return store


def _check_usable(folder: Path, job: Job) -> None:
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the features.")
    before = started(folder) if folder.is_dir() else None
    if before is not None:
        _check_same(before, job, folder)
    elif folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise InputError(f"{folder} holds other files; give an empty or a new folder for the features.")


def _check_same(before: Job, job: Job, folder: Path) -> None:
    reasons = {
        "encoder": f"another encoder ({before.encoder}, not {job.encoder})",
        "inputs": f"other inputs ({before.count} of them; now {job.count}, or their content changed)",
        "dtype": f"dtype {before.dtype}, not {job.dtype}",
        "dimension": f"{before.dimension} columns, not {job.dimension}",
    }
    for field, reason in reasons.items():
        if getattr(before, field) != getattr(job, field):
            raise InputError(f"{folder} holds features made with {reason}; choose another folder.")


def _npy_header(rows: int, job: Job) -> bytes:
    # Written by hand to one fixed length, so that it can be put before rows that are there already.
    kind = np.dtype(job.dtype).newbyteorder("<").str
    text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': ({rows}, {job.dimension}), }}"
    length = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def _write_lines(path: Path, values: Iterable[Any]) -> None:
    with replace_file(path) as staged, open(staged, "w", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value, ensure_ascii=False) + "\n")


def _clear(folder: Path) -> None:
    for name in (JOURNAL, WORK):
        (folder / name).unlink(missing_ok=True)


def _sync(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _lock(file: BinaryIO, folder: Path) -> None:
    try:
        import fcntl
    except ImportError:  # Windows keeps an open file from being replaced, which serves as well
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            f"another process is writing to {folder}; wait for it or choose another folder."
        ) from None


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
        if not (folder / CONFIG).is_file():
            unfinished = (folder / WORK).is_file()
            raise InputError(
                f"{folder} holds {'unfinished' if unfinished else 'no'} features; "
                + (
                    "run the same encoding again to finish them."
                    if unfinished
                    else "encode some into it first."
                )
            )
        config = read_json(folder / CONFIG)
        check_format(config, KIND, folder)
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
        if file_digest(self.folder / FEATURES) != self.checksum:
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
    for name in (CONFIG, WORK):
        if (Path(folder) / name).is_file():
            return _job(read_json(Path(folder) / name).get("job"), Path(folder))
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
