"""Adding and removing items while a model is served, such that no acknowledged change is ever lost.

A change is written to the journal, flushed to disk and then acknowledged, if the model folder is still the
one that was opened: nobody would find what is written to a folder that was removed. Now and then the model is
saved with all changes; after a crash, the journal's entries that the saved version does not contain are
replayed. Items in a database are durable there and have no journal.

The journal is a file of JSON lines rather than an SQLite table, so that an operator can read, repair or move
it.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import logging
import os
import threading
import time
from bisect import bisect_right
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from uuid import uuid4

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from diptych._checks import InputError
from diptych._model_folder import JOURNAL, UPLOADS, lock_folder
from diptych._persistence import (
    check_own,
    check_plain_file,
    file_digest,
    flush_folder,
    real_folder,
    remove_abandoned,
    replace_file,
)
from diptych.retrieval import Retriever
from diptych.retrieval._folder import check_current, save
from diptych.retrieval.stores._base import UnavailableError
from diptych.service._files import Decoder, encode_first_view, suffix
from diptych.service._limits import Limits, MovedError, Problem, unknown_item

log = logging.getLogger("diptych.service")

_ENTRY_START = b'{"op": "'

SAVE_AFTER = 512
"""Number of entries after which the model is saved with them."""


class Entry(BaseModel):
    """One line of the journal: items that were added, or one that was removed.

    Entries have ascending numbers ``n``. Captions have the id of their image with ``#`` and a number. An
    image is the name of an upload (``file``), a text (such as a molecule) or its features, and a caption its
    text or its features, or both; features are float32 as base64.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    op: Literal["add", "remove"]
    id: str
    n: int = 0
    captions: list[str | None] = Field(default_factory=list)
    metadata: dict[str, Any] = Field(default_factory=dict)
    file: Annotated[str, Field(pattern="^[^/]*$")] | None = None
    text: str | None = None
    features: str | None = None
    caption_features: str | None = None

    @model_validator(mode="after")
    def _check_content(self) -> Self:
        if self.op == "add" and not self.item_ids:
            raise ValueError("it adds nothing")
        if None in self.captions and self.caption_features is None:
            raise ValueError("a caption has neither a text nor features")
        return self

    @property
    def has_image(self) -> bool:
        return self.file is not None or self.text is not None or self.features is not None

    @property
    def item_ids(self) -> list[str]:
        """The ids of the items it adds: the image first, then its captions."""
        captions = [f"{self.id}#{i}" for i in range(len(self.captions))]
        return [self.id, *captions] if self.has_image else captions

    def to_line(self) -> bytes:
        return json.dumps(self.model_dump(exclude_defaults=True), allow_nan=False).encode() + b"\n"


@dataclass(frozen=True)
class Upload:
    """An uploaded file, and its suffix if the encoder needs it to read the file."""

    content: bytes
    suffix: str = ""

    @property
    def stored_name(self) -> str:
        """The name of the file in the model folder."""
        return hashlib.sha256(self.content).hexdigest() + self.suffix


class Journal:
    """An append-only file in a model folder, and a folder of the uploaded files that it names.

    A last line that a crash cut short was never acknowledged, and is dropped when the journal is opened.
    Entries stay in the journal when a saved version contains them, because a newly fitted model contains
    none of them and needs them all; a version records the number of its last entry.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = folder = real_folder(folder)
        check_own(folder, JOURNAL, UPLOADS)
        self.path, self.uploads = folder / JOURNAL, folder / UPLOADS
        remove_abandoned(self.uploads)
        self.entries, size = read_entries(self.path)
        self.stored = {entry.file for entry in self.entries if entry.file is not None}
        """Names of uploads that a server has written; no other file is ever deleted."""
        if self.path.exists() and size < self.path.stat().st_size:
            os.truncate(self.path, size)
        self.last = self.entries[-1].n if self.entries else 0
        """The greatest number that was used so far."""
        self._open()
        flush_folder(folder)

    def entries_after(self, n: int) -> list[Entry]:
        """Return the entries with greater numbers."""
        return self.entries[bisect_right(self.entries, n, key=lambda entry: entry.n) :]

    def append(self, entry: Entry) -> None:
        """Write an entry with the next number; return when it is on disk."""
        entry = entry.model_copy(update={"n": self.next_number()})
        line, end = entry.to_line(), self._file.tell()
        try:
            if self._file.write(line) != len(line):
                raise OSError(f"{self.path} could not be written to the end of a line")
            os.fsync(self._file.fileno())
            self.check_in_place()
        except (OSError, MovedError):
            # On a full disk: remove the part of the line that was written, so that the next one is whole.
            self._file.truncate(end)
            raise
        self.last = entry.n
        self.entries.append(entry)

    def check_in_place(self) -> None:
        """Raise a ``MovedError`` if the model folder was removed, replaced or moved since it was opened."""
        # The number of a folder may be used again at once; that of an open file is not.
        try:
            in_place = os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
        except (FileNotFoundError, NotADirectoryError):
            in_place = False
        if not in_place:
            raise MovedError

    def next_number(self) -> int:
        """Return an unused number: the time, so that no older version seems to contain the entry."""
        return max(self.last + 1, time.time_ns() // 1000)

    def store_upload(self, upload: Upload) -> bool:
        """Write an uploaded file to disk, unless it is there; return whether it was not."""
        path = self.uploads / upload.stored_name
        if os.path.realpath(path) != os.fspath(path):
            raise OSError(errno.ELOOP, f"{UPLOADS} or a file in it is a link")
        if path.is_file():
            return False
        try:
            self.uploads.mkdir(exist_ok=True)
            with replace_file(path, tidy=False) as staged:
                staged.write_bytes(upload.content)
        except FileNotFoundError:
            self.check_in_place()
            raise
        self.stored.add(path.name)
        return True

    def rewrite(self, entries: list[Entry]) -> None:
        self.check_in_place()
        with replace_file(self.path, tidy=False) as staged:  # which does not make a folder that was removed
            staged.write_bytes(b"".join(entry.to_line() for entry in entries))
        self._file.close()
        self._open()
        self.entries = entries
        self.last = max(self.last, entries[-1].n if entries else 0)

    def delete_unused(self, names: set[str]) -> None:
        """Delete uploads that are neither in ``names`` nor in an entry, if they are as they were written."""
        check_own(self.folder, UPLOADS)
        names = names | {entry.file for entry in self.entries if entry.file is not None}
        for name in self.stored - names:
            path = self.uploads / name
            if path.is_file() and not path.is_symlink() and file_digest(path) == path.stem:
                path.unlink()

    def close(self) -> None:
        self._file.close()

    def _open(self) -> None:
        # Unbuffered, so that no part of a failed write can reach the disk later.
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115, open as long as the server runs


def read_entries(path: Path) -> tuple[list[Entry], int]:
    """Return the entries of a journal and their size in bytes, without a last line that was cut short."""
    content = check_plain_file(path).read_bytes() if os.path.lexists(path) else b""
    size = content.rfind(b"\n") + 1
    entries: list[Entry] = []
    if _ENTRY_START.startswith(content[size:][: len(_ENTRY_START)].rstrip(b"\0")):
        content = content[:size]  # a crash cut the last line short
    for number, line in enumerate(content.splitlines(), 1):
        try:
            entry = Entry.model_validate(json.loads(line))
            if entries and entry.n <= entries[-1].n:
                raise ValueError("its number does not follow the last one")
        except (ValueError, RecursionError):
            raise InputError(
                f"{path}, line {number}, is not an entry of a journal; restore the file, or move it away to "
                "continue without its changes."
            ) from None
        entries.append(entry)
    return entries, size


class Writer:
    """Adds and removes items of the loaded model, one change at a time."""

    def __init__(self, folder: Path, limits: Limits | None = None) -> None:
        self.folder, self.save_after = folder, SAVE_AFTER
        self._limits = limits or Limits()
        self.journal = Journal(folder)
        self._lock = threading.RLock()
        self._saved = 0
        self._damaged: set[int] = set()

    @property
    def pending(self) -> int:
        """Number of entries that can be saved with the model and are not yet."""
        return len(self.journal.entries_after(self._saved)) - len(self._damaged)

    @property
    def is_due(self) -> bool:
        """Whether the model should be saved."""
        return self.pending >= self.save_after

    def add(
        self,
        retriever: Retriever,
        image: tuple[Upload | str | None, np.ndarray[Any, Any]] | None,
        captions: Sequence[str | None],
        item_id: str | None,
        metadata: dict[str, Any],
        caption_features: np.ndarray[Any, Any] | None = None,
    ) -> dict[str, Any]:
        """Add an image with its captions, or either alone; return the ids.

        ``image`` is its file or text, if known, and its features. A caption is None where only its features
        are known.
        """
        with self._lock:
            source, features = image or (None, None)
            entry = Entry(
                op="add",
                id=item_id or f"item-{uuid4().hex[:12]}",
                captions=list(captions),
                metadata=metadata,
                # The file is kept rather than its features: another model may need other features.
                file=source.stored_name if isinstance(source, Upload) else None,
                text=source if isinstance(source, str) else None,
                features=None if features is None or source is not None else _to_base64(features),
                caption_features=None if caption_features is None else _to_base64(caption_features),
            )
            if existing := _existing(retriever, entry):
                raise Problem(409, "taken", f"there is an item {existing[0]!r} already; choose another id.")
            self.journal.check_in_place()
            is_new = isinstance(source, Upload) and self.journal.store_upload(source)
            try:
                self._apply(retriever, entry, features)
                try:
                    self._record(retriever, entry)
                except Exception:
                    retriever.remove(_existing(retriever, entry))
                    raise
            except UnavailableError:  # the database may have the item nevertheless
                raise
            except Exception:
                if is_new and entry.file is not None:
                    (self.journal.uploads / entry.file).unlink(missing_ok=True)
                raise
            ids = entry.item_ids
            return {"image": ids[0], "captions": ids[1:]} if image else {"image": None, "captions": ids}

    def remove(self, retriever: Retriever, item_id: str) -> int:
        """Remove an item, an image together with its captions; return how many items."""
        with self._lock:
            if (item := retriever.item(item_id)) is None:
                raise unknown_item(item_id)
            if item.path is not None:
                self.journal.stored.add(os.path.basename(item.path))
            self._record(retriever, Entry(op="remove", id=item_id))
            return retriever.remove(item_id)

    def replay(self, retriever: Retriever) -> int:
        """Apply the entries that a newly loaded model does not contain; return how many changed it.

        An entry that cannot be applied (its upload is damaged, or its features are of another model) is
        logged and stays in the journal.
        """
        with self._lock:
            self._saved = 0 if retriever.base is None else retriever.base.journal
            self.journal.last = max(self.journal.last, self._saved)
            self._damaged = set()
            changes = 0
            with closing(Decoder(self._limits)) as decoder:
                for entry in self.journal.entries_after(self._saved):
                    try:
                        changes += self._replay_entry(retriever, entry, decoder)
                    except InputError as error:
                        self._damaged.add(entry.n)
                        log.error(
                            "%r cannot be added: %s It stays in %s.", entry.id, error, self.journal.path
                        )
            return changes

    def save(self, retriever: Retriever) -> None:
        """Save the model with all changes; raise ``ChangedError`` if the folder has another version."""
        with self._lock:
            self.journal.check_in_place()
            if self.pending > 0:
                last = self._defer_damaged()
                save(retriever, self.folder, None, last)
                self._saved = last
                self._drop_cancelled(retriever)
            if self.journal.uploads.is_dir():
                with lock_folder(real_folder(self.folder)):
                    check_current(retriever, self.folder)
                    paths = (item.path for item in retriever.store.items())
                    self.journal.delete_unused({os.path.basename(path) for path in paths if path is not None})

    def _defer_damaged(self) -> int:
        """Move damaged entries to the end, to be tried at the next start; return the number before them."""
        whole = [entry for entry in self.journal.entries if entry.n not in self._damaged]
        if self._damaged:
            first = self.journal.next_number()
            damaged = [entry for entry in self.journal.entries if entry.n in self._damaged]
            deferred = [entry.model_copy(update={"n": first + i}) for i, entry in enumerate(damaged)]
            self.journal.rewrite([*whole, *deferred])
            self._damaged = {entry.n for entry in deferred}
        return whole[-1].n

    def _drop_cancelled(self, retriever: Retriever) -> None:
        """Drop additions of items that were removed again, and these removals."""
        remaining: list[Entry] = []
        removed: set[str] = set()
        for entry in self.journal.entries:
            ids = set(entry.item_ids)
            if entry.op == "remove":
                if entry.id not in removed:
                    remaining.append(entry)
            elif entry.n in self._damaged or _existing(retriever, entry):
                remaining.append(entry)
                removed -= ids
            else:
                removed |= ids
        if len(remaining) < len(self.journal.entries):
            self.journal.rewrite(remaining)

    def _record(self, retriever: Retriever, entry: Entry) -> None:
        if retriever.store.shared:  # a database keeps its own record
            self.journal.check_in_place()
        else:
            self.journal.append(entry)

    def _replay_entry(self, retriever: Retriever, entry: Entry, decoder: Decoder) -> bool:
        if entry.op == "remove":
            return retriever.item(entry.id) is not None and retriever.remove(entry.id) > 0
        if _existing(retriever, entry):
            return False
        features = None
        if entry.file is not None:
            path = str(self.journal.uploads / entry.file)
            if suffix(path):
                features = encode_first_view(retriever.encoders, [path])
            else:
                features = retriever.encoders.encode_images([decoder.load_pixels(path=path)])
        elif entry.text is not None:
            features = encode_first_view(retriever.encoders, [entry.text])
        elif entry.features is not None:
            features = _from_base64(entry.features, 1)
        self._apply(retriever, entry, features)
        return True

    def _apply(self, retriever: Retriever, entry: Entry, features: np.ndarray[Any, Any] | None) -> None:
        """Add the items of an entry to the model."""
        ids = entry.item_ids
        texts: list[Any] = entry.captions
        caption_features = None
        if entry.caption_features is not None:
            caption_features = _from_base64(entry.caption_features, len(texts))
        elif texts:
            caption_features = retriever.encoders.encode_texts(texts)
        metadata = dict.fromkeys(ids, entry.metadata)
        if features is None:
            retriever.add(captions=caption_features, texts=texts, caption_ids=ids, metadata=metadata)
            return
        retriever.add(
            features,
            caption_features,
            pairing=np.zeros(len(texts), int) if texts else None,
            ids=ids[:1],
            caption_ids=ids[1:] if texts else None,
            texts=texts if texts else None,
            paths=[entry.text if entry.file is None else self.journal.uploads / entry.file],
            metadata=metadata,
        )


def _existing(retriever: Retriever, entry: Entry) -> list[str]:
    """Return the ids of an entry that are items of the model."""
    return [item.id for item in retriever.store.items(ids=entry.item_ids)]


def _to_base64(features: np.ndarray[Any, Any]) -> str:
    """Encode features exactly, in a quarter of the space of decimals."""
    return base64.b64encode(features.astype("<f4").tobytes()).decode("ascii")


def _from_base64(text: str, rows: int) -> np.ndarray[Any, Any]:
    try:
        return np.frombuffer(base64.b64decode(text), "<f4").reshape(rows, -1).astype(np.float32)
    except ValueError as error:
        raise InputError(f"the features in the journal are damaged ({error}).") from None
