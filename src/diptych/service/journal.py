"""What was acknowledged and is not in the model's folder yet: one line an entry, on disk before it counts."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from diptych.checks import InputError
from diptych.storage import replacing_file

Entry: TypeAlias = dict[str, Any]


class Journal:
    """An append-only file beside a model's folder, and a folder for the pictures that its entries name.

    An entry is acknowledged once ``append`` returns: it is on the disk then, and so is its picture. A last
    line that was cut short by a crash was never acknowledged, and is dropped.

    Parameters
    ----------
    folder
        The model's folder; ``NAME.journal`` and ``NAME.uploads`` lie beside it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        place = Path(folder).absolute()
        self.path = journal_of(folder)
        self.uploads = place.with_name(f"{place.name}.uploads")
        self._entries = list(self._read())
        # Unbuffered, so that nothing of a line that failed is written later.
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115, it stays open with the server
        _flush_folder(self.path.parent)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def append(self, entry: Entry) -> None:
        """Write an entry, and return when it is on the disk."""
        line = json.dumps(entry, ensure_ascii=True, allow_nan=False).encode() + b"\n"
        end = self._file.tell()
        try:
            if self._file.write(line) != len(line):
                raise OSError(f"{self.path} could not be written to the end of a line")
            os.fsync(self._file.fileno())
        except OSError:
            # A full disk: what was written of the line must not be there when the next one follows.
            self._file.truncate(end)
            raise
        self._entries.append(entry)

    def keep(self, content: bytes) -> Path:
        """Put the bytes of a picture on the disk, named by what they are."""
        path = self.uploads / hashlib.sha256(content).hexdigest()
        if not path.is_file():
            with replacing_file(path) as staged:
                staged.write_bytes(content)
            _flush_folder(self.uploads)
        return path

    def forget(self) -> None:
        """Begin anew, once the entries are in the model's folder."""
        _flush_folder(self.path.parent)
        self._file.truncate(0)
        self._file.seek(0)
        os.fsync(self._file.fileno())
        self._entries.clear()

    def sweep(self, used: set[str]) -> None:
        """Delete pictures that no item shows any more."""
        for path in self.uploads.iterdir() if self.uploads.is_dir() else ():
            if str(path) not in used:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self) -> Iterator[Entry]:
        if not self.path.exists():
            return
        content = self.path.read_bytes()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            os.truncate(self.path, whole)
        for number, line in enumerate(content[:whole].splitlines(), 1):
            try:
                entry = json.loads(line)
            except ValueError:
                entry = None
            if not isinstance(entry, dict) or entry.get("op") not in ("add", "remove"):
                raise InputError(
                    f"{self.path}, line {number}, is no entry of a journal; restore the file, or move it "
                    "away to go on without what it holds."
                )
            yield entry


def journal_of(folder: str | os.PathLike[str]) -> Path:
    """Where the journal of a model's folder lies."""
    place = Path(folder).absolute()
    return place.with_name(f"{place.name}.journal")


def _flush_folder(folder: Path) -> None:
    """See to it that the names in a folder are on the disk."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
