"""Items that come and go while a model is served, none of them lost."""

from __future__ import annotations

import base64
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from diptych import folders
from diptych.checks import InputError
from diptych.image import open_image
from diptych.retrieval import Retriever, saved
from diptych.service.journal import Entry, Journal
from diptych.service.problems import Problem

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
            items = retriever.collection.items
            name = item_id or f"item-{uuid4().hex[:12]}"
            entry: Entry = {"op": "add", "id": name, "captions": list(captions), "metadata": metadata}
            content, rows = picture or (None, None)
            has_picture = rows is not None
            taken = [one for one in named(entry, has_picture) if one in items]
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
                retriever.remove([one for one in ids if one in items])
                raise
            return {"image": name if has_picture else None, "captions": ids[1:] if has_picture else ids}

    def remove(self, retriever: Retriever, item_id: str) -> int:
        """Take an item out, a picture with its captions."""
        with self._lock:
            if item_id not in retriever.collection.items:
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
                saved.save(retriever, self.folder, None, number)
                self._saved = number
                self._tidy(retriever)
            if self.journal.uploads.is_dir():
                with folders.locked(folders.real_folder(self.folder)):
                    saved.check_current(retriever, self.folder)
                    paths = (item.path for _, item in retriever.collection.items)
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
        items = retriever.collection.items
        for entry in self.journal:
            if entry["op"] == "remove":
                if entry["id"] not in gone:
                    kept.append(entry)
            elif entry["n"] in self._damaged or any(name in items for name in named(entry)):
                kept.append(entry)
                gone -= set(named(entry))
            else:
                gone |= set(named(entry))
        if len(kept) < len(self.journal):
            self.journal.rewrite(kept)

    def _note(self, retriever: Retriever, entry: Entry) -> None:
        """Put an entry on the disk; what others share is kept by them."""
        if not retriever.collection.shared:
            self.journal.append(entry)

    def _replayed(self, retriever: Retriever, entry: Entry) -> bool:
        items = retriever.collection.items
        if entry["op"] == "remove":
            return entry["id"] in items and retriever.remove(entry["id"]) > 0
        if any(name in items for name in named(entry, "file" in entry or "features" in entry)):
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
