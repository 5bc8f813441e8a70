"""Feature stores: features on disk with the ids of their rows and the job that made them.

A finished store is a folder with ``features.npy``, ``ids.jsonl``, ``skipped.jsonl`` and ``config.json``. The
config is written last, so a folder that has one is complete.

A store can be interrupted at any moment while it is written. Until then its folder has ``work.json``,
``features.partial`` and a journal. Rows reach the disk before the journal mentions them: after a crash the
last complete line of the journal tells which rows to keep, and the rest is cut off.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from diptych._checks import InputError
from diptych._persistence import (
    CONFIG,
    FORMAT_VERSION,
    LOCK,
    Schema,
    check_format,
    check_own,
    convert,
    file_digest,
    map_npy,
    name_in_errors,
    read_json,
    real_folder,
    replace_file,
    write_json,
)

DTYPES = ("float32", "float16")

Features: TypeAlias = NDArray[np.floating[Any] | np.integer[Any]]
"""A matrix of features, one row per item."""

RowNumbers: TypeAlias = NDArray[np.int64]

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
T = TypeVar("T")

_KIND = "features"
_FEATURES, _IDS, _SKIPPED = "features.npy", "ids.jsonl", "skipped.jsonl"
_WORK, _PARTIAL, _JOURNAL = "work.json", "features.partial", "journal.jsonl"
_FILES = (_FEATURES, _IDS, _SKIPPED, _PARTIAL, _JOURNAL, _WORK, LOCK, CONFIG)
_HEADER_BYTES = 128


class Job(Schema, frozen=True):
    """What a store is made from; interrupted work is continued only if all of it is the same."""

    encoder: str  # its fingerprint
    inputs: str  # digest of their ids and contents
    count: Count  # of all inputs, including those that cannot be read
    dimension: Count
    dtype: str
    batch_size: Count  # the last bits of a feature may depend on it


class _Work(Schema, frozen=True):
    format: str
    version: int
    job: Job


class _StoreConfig(_Work, frozen=True):
    rows: Count
    checksum: str


class _JournalEntry(Schema, frozen=True):
    done: Count
    rows: Count
    skipped: list[tuple[int, str]]


@dataclass(frozen=True)
class Skipped:
    """An input that could not be read, and why."""

    id: str
    reason: str


@dataclass(frozen=True, eq=False)
class FeatureStore:
    """A finished feature store, made by ``encode_images`` or ``encode_texts``.

    Attributes
    ----------
    features, ids
        The features, memory-mapped and read-only, and the id of each row.
    skipped
        Inputs without a row.
    job, checksum
        What the features were made from, and the SHA-256 of ``features.npy``.
    """

    folder: Path
    features: Features
    ids: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    job: Job
    checksum: str

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, verify: bool = False) -> FeatureStore:
        """Open a finished store; ``verify`` reads the whole array and compares its checksum."""
        folder = Path(folder)
        if not (folder / CONFIG).is_file():
            if (folder / _WORK).is_file():
                raise InputError(f"{folder} holds unfinished features; run the same encoding again.")
            raise InputError(f"{folder} holds no features; encode some into it first.")
        content = read_json(folder / CONFIG)
        check_format(content, _KIND, folder / CONFIG)
        config = convert(content, _StoreConfig, folder / CONFIG)
        ids = tuple(_read_values(folder / _IDS, str))
        skipped = tuple(Skipped(*pair) for pair in _read_values(folder / _SKIPPED, tuple[str, str]))
        features, job = map_npy(folder / _FEATURES), config.job
        expected = (config.rows, (config.rows, job.dimension), job.dtype)
        if (len(ids), features.shape, features.dtype) != expected:
            raise InputError(
                f"{folder} has {features.dtype}{list(features.shape)} features and {len(ids)} ids; expected "
                f"{config.rows} rows of {job.dimension} in {job.dtype}. Encode again into an empty folder."
            )
        if verify and file_digest(folder / _FEATURES) != config.checksum:
            raise InputError(
                f"{folder / _FEATURES} has changed since it was written (its checksum differs); encode again "
                "into an empty folder."
            )
        return cls(folder, features, ids, skipped, job, config.checksum)

    def rows_of(self, ids: Iterable[str]) -> NDArray[np.int64]:
        """Return the row of each id; −1 for one that has none."""
        row_of = {name: row for row, name in enumerate(self.ids)}
        return np.array([row_of.get(name, -1) for name in ids], np.int64)


def open_finished(folder: str | os.PathLike[str], job: Job) -> FeatureStore | None:
    """Return the store in ``folder`` if it is finished; raise if another job made it."""
    folder = Path(folder)
    if not (folder / CONFIG).is_file():
        return None
    store = FeatureStore.open(folder)
    _check_same_job(store.job, job, folder)
    _remove_work_files(folder, job)
    return store


class StoreWriter:
    """Writes a store into a new or empty folder, or one where the same job was interrupted."""

    def __init__(self, folder: str | os.PathLike[str], job: Job) -> None:
        from filelock import FileLock, Timeout

        self.folder = Path(folder)
        # Resumed work keeps its batch size, because the last bits of a feature may depend on it.
        self.job = job = _find_interrupted(self.folder, job) or job
        self.done, self.rows = 0, 0
        self.skipped: list[tuple[int, str]] = []
        self._row_bytes = job.dimension * np.dtype(job.dtype).itemsize
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(self.folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"another process is writing to {folder}; wait for it or choose another folder."
            ) from None
        if (self.folder / CONFIG).is_file():
            self._lock.release()
            raise InputError(f"another process has just finished the features in {folder}; run again.")
        if not (self.folder / _WORK).is_file():
            with replace_file(self.folder / _WORK) as staged:
                work = _Work(f"diptych-{_KIND}-work", FORMAT_VERSION, job)
                write_json(staged, msgspec.to_builtins(work))
        if (self.folder / _FEATURES).is_file():
            # Killed after the last row and before the config: finish() will rename the array again.
            (self.folder / _FEATURES).replace(self.folder / _PARTIAL)
        # Both are closed by finish() or close().
        self._journal = open(self.folder / _JOURNAL, "a+b")  # noqa: SIM115
        self._data = open(self.folder / _PARTIAL, "a+b")  # noqa: SIM115
        self._recover()

    def append(self, features: NDArray[Any], inputs: int, skipped: Sequence[tuple[int, str]]) -> None:
        """Add the rows of the next ``inputs`` inputs; the skipped ones (number, reason) have none."""
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
        with name_in_errors(self.folder / _PARTIAL):
            self._data.write(rows.tobytes())
            _flush(self._data)
        self.done, self.rows = self.done + inputs, self.rows + len(rows)
        self.skipped += skipped
        entry = msgspec.json.encode(_JournalEntry(self.done, self.rows, list(skipped)))
        with name_in_errors(self.folder / _JOURNAL):
            self._journal.write(entry + b"\n")
            _flush(self._journal)

    def finish(self, ids: Sequence[str]) -> FeatureStore:
        """Complete the store; ``ids`` are those of all inputs."""
        if self.done != self.job.count:
            raise InputError(f"{self.done} of {self.job.count} inputs are done; append the others first.")
        with open(self.folder / _PARTIAL, "r+b") as file:
            file.write(_make_npy_header(self.rows, self.job))
            _flush(file)
        skipped = dict(self.skipped)
        _write_values(self.folder / _IDS, [name for i, name in enumerate(ids) if i not in skipped])
        _write_values(self.folder / _SKIPPED, [(ids[i], reason) for i, reason in self.skipped])
        checksum = file_digest(self.folder / _PARTIAL)
        self._data.close()  # Windows cannot rename an open file
        (self.folder / _PARTIAL).replace(self.folder / _FEATURES)
        with replace_file(self.folder / CONFIG) as staged:
            config = _StoreConfig(f"diptych-{_KIND}", FORMAT_VERSION, self.job, self.rows, checksum)
            write_json(staged, msgspec.to_builtins(config))
        self.close()
        _remove_work_files(self.folder, self.job)
        return FeatureStore.open(self.folder)

    def close(self) -> None:
        """Close the files; another writer may continue the work."""
        try:
            with name_in_errors(self.folder / _PARTIAL):  # they may have to write something yet
                self._data.close()
                self._journal.close()
        finally:
            self._lock.release()

    def _recover(self) -> None:
        """Keep what the journal mentions and the disk has."""
        decoder = msgspec.json.Decoder(_JournalEntry)
        end = 0
        self._journal.seek(0)
        available = os.fstat(self._data.fileno()).st_size
        for line in self._journal:
            try:
                entry = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError):
                break
            if not line.endswith(b"\n") or _HEADER_BYTES + entry.rows * self._row_bytes > available:
                break
            self.done, self.rows = entry.done, entry.rows
            self.skipped += entry.skipped
            end += len(line)
        self._journal.truncate(end)
        self._data.truncate(_HEADER_BYTES + self.rows * self._row_bytes)


def _find_interrupted(folder: Path, job: Job) -> Job | None:
    """Return the job that was interrupted in a folder; raise if anything else is there."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; give a folder for the features.")
    check_own(real_folder(folder), *_FILES)
    for name, schema in ((CONFIG, _StoreConfig), (_WORK, _Work)):
        if (path := folder / name).is_file():
            previous = convert(read_json(path), schema, path).job
            _check_same_job(previous, job, folder)
            return previous
    if folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()):
        raise InputError(f"{folder} holds other files; give an empty or a new folder for the features.")
    return None


def _check_same_job(previous: Job, job: Job, folder: Path) -> None:
    reasons = {
        "encoder": f"another encoder ({previous.encoder}, not {job.encoder})",
        "inputs": f"other inputs ({previous.count} of them; now {job.count}, or their content changed)",
        "dtype": f"dtype {previous.dtype}, not {job.dtype}",
        "dimension": f"{previous.dimension} columns, not {job.dimension}",
    }
    for name, reason in reasons.items():
        if getattr(previous, name) != getattr(job, name):
            resume = "name that encoder to resume, or " if name == "encoder" else ""
            remedy = f"{resume}choose another folder or remove this one"
            raise InputError(f"{folder} holds features made with {reason}; {remedy}.")


def _make_npy_header(rows: int, job: Job) -> bytes:
    # NumPy's own header has no promised length, and this one must fit before rows that are already there.
    dtype = np.dtype(job.dtype).newbyteorder("<").str
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': ({rows}, {job.dimension}), }}"
    length = _HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + length.to_bytes(2, "little") + text.ljust(length - 1).encode() + b"\n"


def _write_values(path: Path, values: Sequence[Any]) -> None:
    with replace_file(path) as staged:
        staged.write_bytes(msgspec.json.Encoder().encode_lines(values))


def _read_values(path: Path, kind: type[T]) -> list[T]:
    try:
        return msgspec.json.Decoder(kind).decode_lines(path.read_bytes())
    except (msgspec.MsgspecError, UnicodeDecodeError, OSError) as error:
        raise InputError(f"{path} is damaged ({error}); encode again into an empty folder.") from None


def remove_store(folder: Path) -> None:
    """Remove the files of a store, finished or not, and its folder unless others wrote there."""
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _remove_work_files(folder: Path, job: Job) -> None:
    """Remove what a finished store needs no more, if its own work left it there."""
    with suppress(InputError):
        if convert(read_json(folder / _WORK), _Work, folder / _WORK).job == job:
            (folder / _JOURNAL).unlink(missing_ok=True)
            (folder / _WORK).unlink()  # last: it says whose the journal is


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())
