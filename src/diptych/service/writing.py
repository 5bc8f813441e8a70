"""Items that come and go while a model is served, none of them lost."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from diptych.image import open_image
from diptych.retrieval import Retriever
from diptych.service.journal import Entry, Journal
from diptych.service.problems import Problem

FOLD_AT = 512
"""Entries after which the journal is folded into the model's folder."""

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

    @property
    def is_due(self) -> bool:
        """Whether the journal is long enough to be folded."""
        return len(self.journal) >= self.fold_at

    def add(
        self,
        retriever: Retriever,
        picture: tuple[bytes, np.ndarray[Any, Any]] | None,
        captions: list[str],
        item_id: str | None,
        metadata: dict[str, Any],
    ) -> dict[str, Any]:
        """Take in a picture (its file and its features) with its captions, or captions alone."""
        with self._lock:
            items = retriever.collection.items
            name = item_id or f"item-{uuid4().hex[:12]}"
            entry: Entry = {"op": "add", "captions": captions, "metadata": metadata}
            rows = None
            if picture is not None:
                content, rows = picture
                entry["file"] = str(self.journal.keep(content))
            entry["id"] = name
            taken = [one for one in named(entry) if one in items]
            if taken:
                raise Problem(409, "taken", f"there is an item {taken[0]!r} already; choose another id.")
            ids = put(retriever, entry, rows)
            try:
                self._note(retriever, entry)
            except OSError:
                retriever.remove([one for one in ids if one in items])
                raise
            has_picture = picture is not None
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

        A crash between saving and forgetting leaves entries that are in the model already. Each says what
        becomes of an id, whatever was there, so going through all of them again ends in the same place.
        """
        with self._lock:
            return sum(self._replayed(retriever, entry) for entry in self.journal)

    def fold(self, retriever: Retriever, saved: Callable[[], None]) -> None:
        """Save the model with all it holds now, and begin a new journal."""
        with self._lock:
            if len(self.journal):
                retriever.save(self.folder)
                saved()
                self.journal.forget()
            if self.journal.uploads.is_dir():
                shown = {item.path for _, item in retriever.collection.items if item.path is not None}
                self.journal.sweep(shown)

    def _note(self, retriever: Retriever, entry: Entry) -> None:
        """Put an entry on the disk; what others share is kept by them."""
        if not retriever.collection.shared:
            self.journal.append(entry)

    def _replayed(self, retriever: Retriever, entry: Entry) -> bool:
        items = retriever.collection.items
        if entry["op"] == "remove":
            return entry["id"] in items and retriever.remove(entry["id"]) > 0
        if any(name in items for name in named(entry)):
            return False
        rows = None
        if "file" in entry:
            # It was opened within the limits when it was sent.
            rows = retriever.encoders.encode_images([open_image(entry["file"], max_pixels=2**31)])
        put(retriever, entry, rows)
        return True


def named(entry: Entry) -> list[str]:
    """The ids of an addition: the picture's, then its captions'."""
    own = [f"{entry['id']}#{i}" for i in range(len(entry["captions"]))]
    return [entry["id"], *own] if "file" in entry else own


def put(retriever: Retriever, entry: Entry, rows: np.ndarray[Any, Any] | None) -> list[str]:
    """Do what an addition says."""
    names, texts = named(entry), entry["captions"]
    metadata: dict[str, Any] = entry["metadata"]
    about = dict.fromkeys(names, metadata)
    of_captions = retriever.encoders.encode_texts(texts) if texts else None
    if rows is None:
        return retriever.add(captions=of_captions, texts=texts, caption_ids=names, metadata=about)
    return retriever.add(
        rows,
        of_captions,
        pairing=np.zeros(len(texts), int) if texts else None,
        ids=names[:1],
        caption_ids=names[1:] if texts else None,
        texts=texts if texts else None,
        paths=[entry["file"]],
        metadata=about,
    )


def unknown(item_id: str) -> Problem:
    """No item of this id."""
    return Problem(404, "unknown-item", f"there is no item {item_id[:200]!r}.")
