"""What was acknowledged: one line for each addition and removal, on disk before it counts."""

from __future__ import annotations

import hashlib
import json
import os
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from diptych.checks import InputError
from diptych.folders import JOURNAL, UPLOADS, real_folder
from diptych.storage import flush_folder, replacing_file

Entry: TypeAlias = dict[str, Any]


class Journal:
    """An append-only file in a model folder, and a folder for the images that its entries name.

    An entry is acknowledged once ``append`` returns: it is on the disk then, and so is its image. A last
    line that was cut short by a crash was never acknowledged, and is dropped.

    Entries have ascending numbers, and a version of the model tells the last one that it contains. Entries
    stay when they are part of a version: a model that is fitted anew has none of them, and gets them all.

    Parameters
    ----------
    folder
        The model folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        place = real_folder(folder)
        self.path, self.uploads = place / JOURNAL, place / UPLOADS
        self._entries, whole = read_entries(self.path)
        if self.path.exists() and whole < self.path.stat().st_size:
            os.truncate(self.path, whole)
        self.last = self._entries[-1]["n"] if self._entries else 0
        """The number of the last entry; later ones get greater numbers."""
        self._open()
        flush_folder(self.path.parent)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._entries))

    def after(self, number: int) -> list[Entry]:
        """Return the entries with greater numbers."""
        return self._entries[bisect_right(self._entries, number, key=_number) :]

    def append(self, entry: Entry) -> None:
        """Write an entry, and return when it is on the disk."""
        entry = entry | {"n": self.next_number()}
        line = _line(entry)
        end = self._file.tell()
        try:
            if self._file.write(line) != len(line):
                raise OSError(f"{self.path} could not be written to the end of a line")
            os.fsync(self._file.fileno())
        except OSError:
            # A full disk: what was written of the line must not be there when the next one follows.
            self._file.truncate(end)
            raise
        self.last = entry["n"]
        self._entries.append(entry)

    def next_number(self) -> int:
        """Return a number that no entry ever had: the time, so that no older version seems to hold it."""
        return max(self.last + 1, time.time_ns() // 1000)

    def keep(self, content: bytes) -> str:
        """Put the bytes of an image on the disk, under the hash of what they are; returns that name."""
        name = hashlib.sha256(content).hexdigest()
        path = self.uploads / name
        if not path.is_file():
            with replacing_file(path) as staged:
                staged.write_bytes(content)
        return name

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Keep these entries only."""
        kept = list(entries)
        with replacing_file(self.path) as staged:
            staged.write_bytes(b"".join(map(_line, kept)))
        self._file.close()
        self._open()
        self._entries = kept
        self.last = max(self.last, kept[-1]["n"] if kept else 0)

    def sweep(self, used: set[str]) -> None:
        """Delete images whose name neither an item nor an entry has, wherever the folder was then."""
        used = used | {entry["file"] for entry in self._entries if "file" in entry}
        for path in self.uploads.iterdir() if self.uploads.is_dir() else ():
            if path.name not in used:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _open(self) -> None:
        # Unbuffered, so that nothing of a line that failed is written later.
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115, it stays open with the server


def read_entries(path: Path) -> tuple[list[Entry], int]:
    """Return the entries of a journal, and how many bytes they take; a last line cut short is left out."""
    content = path.read_bytes() if path.exists() else b""
    whole = content.rfind(b"\n") + 1
    entries: list[Entry] = []
    for number, line in enumerate(content[:whole].splitlines(), 1):
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        if not _is_entry(entry) or (entries and entry["n"] <= entries[-1]["n"]):
            raise InputError(
                f"{path}, line {number}, is no entry of a journal; restore the file, or move it away to go "
                "on without what it holds."
            )
        entries.append(entry)
    return entries, whole


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or entry.get("op") not in ("add", "remove"):
        return False
    if type(entry.get("n")) is not int or not isinstance(entry.get("id"), str):
        return False
    # Captions that are known by their features alone are null.
    caption = str | None if "caption_features" in entry else str
    return entry["op"] == "remove" or (
        isinstance(entry.get("captions"), list)
        and all(isinstance(each, caption) for each in entry["captions"])
        and isinstance(entry.get("metadata"), dict)
        and all(isinstance(entry.get(name, ""), str) for name in ("file", "features", "caption_features"))
        and "/" not in entry.get("file", "")
    )


def _number(entry: Entry) -> int:
    number: int = entry["n"]
    return number


def _line(entry: Entry) -> bytes:
    return json.dumps(entry, ensure_ascii=True, allow_nan=False).encode() + b"\n"
