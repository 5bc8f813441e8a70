"""What was acknowledged: one line for each addition and removal, on disk before it counts.

Items that come and go while a model is served, none of them lost.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from uuid import uuid4

import numpy as np

from diptych._checks import InputError
from diptych._persistence import JOURNAL, UPLOADS, flush_folder, lock_folder, real_folder, replace_file
from diptych.image import open_image
from diptych.retrieval import Retriever
from diptych.retrieval._folder import check_current, save
from diptych.service._schemas import Problem

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
            with replace_file(path) as staged:
                staged.write_bytes(content)
        return name

    def rewrite(self, entries: Iterable[Entry]) -> None:
        """Keep these entries only."""
        kept = list(entries)
        with replace_file(self.path) as staged:
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


FOLD_AT = 512
"""Entries after which they are saved with the model."""

log = logging.getLogger("diptych.service")


class Writer:
    """Adds and removes items of the model that is served, one after another.

    Parameters
    ----------
    folder
        The model's folder.
    fold_at
        Entries after which they are saved with the model.
    """

    def __init__(self, folder: Path, fold_at: int = FOLD_AT) -> None:
        self.folder, self.fold_at = folder, fold_at
        self.journal = Journal(folder)
        self._lock = threading.RLock()
        self._saved = 0
        self._damaged: set[int] = set()

    @property
    def pending(self) -> int:
        """Entries that are not saved with the model yet, and can be."""
        return len(self.journal.after(self._saved)) - len(self._damaged)

    @property
    def is_due(self) -> bool:
        """Whether there are enough entries to save them with the model."""
        return self.pending >= self.fold_at

    def add(
        self,
        retriever: Retriever,
        picture: tuple[bytes | None, np.ndarray[Any, Any]] | None,
        captions: Sequence[str | None],
        item_id: str | None,
        metadata: dict[str, Any],
        caption_rows: np.ndarray[Any, Any] | None = None,
    ) -> dict[str, Any]:
        """Take in a picture with its captions, or either alone.

        A picture is its file, if there is one, and its features. Captions that were given by their features
        come with ``caption_rows``, and are None where nothing else is known of them.
        """
        with self._lock:
            name = item_id or f"item-{uuid4().hex[:12]}"
            entry: Entry = {"op": "add", "id": name, "captions": list(captions), "metadata": metadata}
            content, rows = picture or (None, None)
            has_picture = rows is not None
            taken = [one for one in named(entry, has_picture) if retriever.item(one) is not None]
            if taken:
                raise Problem(409, "taken", f"there is an item {taken[0]!r} already; choose another id.")
            if content is not None:
                entry["file"] = self.journal.keep(content)
            elif rows is not None:
                entry["features"] = _as_text(rows)
            if caption_rows is not None:
                entry["caption_features"] = _as_text(caption_rows)
            ids = self._put(retriever, entry, rows)
            try:
                self._note(retriever, entry)
            except OSError:
                retriever.remove([one for one in ids if retriever.item(one) is not None])
                raise
            return {"image": name if has_picture else None, "captions": ids[1:] if has_picture else ids}

    def remove(self, retriever: Retriever, item_id: str) -> int:
        """Take an item out, a picture with its captions."""
        with self._lock:
            if retriever.item(item_id) is None:
                raise unknown(item_id)
            self._note(retriever, {"op": "remove", "id": item_id})
            return retriever.remove(item_id)

    def replay(self, retriever: Retriever) -> int:
        """Bring a model that was just loaded up to date; returns how many entries changed it.

        Only entries that are not part of its version are gone through. One that cannot be taken in (its image
        is damaged, or its features are not of this model) is logged and stays in the journal.
        """
        with self._lock:
            self._saved = 0 if retriever.base is None else retriever.base.journal
            self.journal.last = max(self.journal.last, self._saved)
            self._damaged = set()
            changed = 0
            for entry in self.journal.after(self._saved):
                try:
                    changed += self._replayed(retriever, entry)
                except InputError as error:
                    self._damaged.add(entry["n"])
                    log.error("%r is not served: %s It stays in %s.", entry["id"], error, self.journal.path)
            return changed

    def fold(self, retriever: Retriever) -> None:
        """Save the model with all it holds now; ``ChangedError`` if it is not the current version."""
        with self._lock:
            if self.pending > 0:
                number = self._put_last()
                save(retriever, self.folder, None, number)
                self._saved = number
                self._tidy(retriever)
            if self.journal.uploads.is_dir():
                with lock_folder(real_folder(self.folder)):
                    check_current(retriever, self.folder)
                    paths = (item.path for item in retriever.store.items())
                    self.journal.sweep({os.path.basename(path) for path in paths if path is not None})

    def _put_last(self) -> int:
        """Put entries of damaged images last, to be tried again later; returns the number before them."""
        whole = [entry for entry in self.journal if entry["n"] not in self._damaged]
        if self._damaged:
            first = self.journal.next_number()
            damaged = [entry for entry in self.journal if entry["n"] in self._damaged]
            again = [entry | {"n": first + i} for i, entry in enumerate(damaged)]
            self.journal.rewrite([*whole, *again])
            self._damaged = {entry["n"] for entry in again}
        number: int = whole[-1]["n"]
        return number

    def _tidy(self, retriever: Retriever) -> None:
        """Drop additions of what is gone again, and with them its removal."""
        kept: list[Entry] = []
        gone: set[str] = set()
        for entry in self.journal:
            if entry["op"] == "remove":
                if entry["id"] not in gone:
                    kept.append(entry)
            elif entry["n"] in self._damaged or any(
                retriever.item(name) is not None for name in named(entry)
            ):
                kept.append(entry)
                gone -= set(named(entry))
            else:
                gone |= set(named(entry))
        if len(kept) < len(self.journal):
            self.journal.rewrite(kept)

    def _note(self, retriever: Retriever, entry: Entry) -> None:
        """Put an entry on the disk; what others share is kept by them."""
        if not retriever.store.shared:
            self.journal.append(entry)

    def _replayed(self, retriever: Retriever, entry: Entry) -> bool:
        if entry["op"] == "remove":
            return retriever.item(entry["id"]) is not None and retriever.remove(entry["id"]) > 0
        if any(
            retriever.item(name) is not None for name in named(entry, "file" in entry or "features" in entry)
        ):
            return False
        rows = None
        if "file" in entry:
            # It was opened within the limits when it was sent.
            image = open_image(self.journal.uploads / entry["file"], max_pixels=2**31)
            rows = retriever.encoders.encode_images([image])
        elif "features" in entry:
            rows = _as_rows(entry["features"], 1)
        self._put(retriever, entry, rows)
        return True

    def _put(self, retriever: Retriever, entry: Entry, rows: np.ndarray[Any, Any] | None) -> list[str]:
        """Do what an addition says."""
        names, texts = named(entry), entry["captions"]
        metadata: dict[str, Any] = entry["metadata"]
        about = dict.fromkeys(names, metadata)
        of_captions = None
        if "caption_features" in entry:
            of_captions = _as_rows(entry["caption_features"], len(texts))
        elif texts:
            of_captions = retriever.encoders.encode_texts(texts)
        if rows is None:
            return retriever.add(captions=of_captions, texts=texts, caption_ids=names, metadata=about)
        return retriever.add(
            rows,
            of_captions,
            pairing=np.zeros(len(texts), int) if texts else None,
            ids=names[:1],
            caption_ids=names[1:] if texts else None,
            texts=texts if texts else None,
            paths=[self.journal.uploads / entry["file"] if "file" in entry else None],
            metadata=about,
        )


def named(entry: Entry, with_image: bool | None = None) -> list[str]:
    """The ids of an addition: the image's, then its captions'."""
    own = [f"{entry['id']}#{i}" for i in range(len(entry["captions"]))]
    with_image = ("file" in entry or "features" in entry) if with_image is None else with_image
    return [entry["id"], *own] if with_image else own


def _as_text(rows: np.ndarray[Any, Any]) -> str:
    """Features as a journal keeps them: exactly, and in a quarter of the room of decimals."""
    return base64.b64encode(rows.astype("<f4").tobytes()).decode("ascii")


def _as_rows(text: str, count: int) -> np.ndarray[Any, Any]:
    try:
        return np.frombuffer(base64.b64decode(text), "<f4").reshape(count, -1).astype(np.float32)
    except ValueError as error:
        raise InputError(f"the features in the journal are damaged ({error}).") from None


def unknown(item_id: str) -> Problem:
    """No item of this id."""
    return Problem(404, "unknown-item", f"there is no item {item_id[:200]!r}.")
