"""Adding and removing items while a model is served: each change is on the disk when it is acknowledged.

Items are the retriever's, which keeps them in the model folder or in a database. Files that clients send are
kept in the folder beside them, each for one item: it is written before the item is committed, and removed
after the item. What a killed server leaves is removed when a writable server starts.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from diptych._checks import UnavailableError
from diptych._persistence import check_own, file_digest, real_folder, remove_abandoned, replace_file
from diptych.retrieval import Retriever
from diptych.retrieval._items import UPLOAD_NAME, UPLOADS
from diptych.retrieval.stores._base import TakenError
from diptych.retrieval.stores._folder import FolderStore
from diptych.service._limits import Problem, unknown_item

UNUSED_SECONDS = 3600.0
"""Age of an upload without an item from which it is removed: another server may be adding a younger one."""


@dataclass(frozen=True)
class Upload:
    """An uploaded file, and its suffix if the encoder needs it to read the file."""

    content: bytes
    suffix: str = ""


class Uploads:
    """The files that clients have sent, in the folder of a model."""

    def __init__(self, folder: Path) -> None:
        self.folder = real_folder(folder) / UPLOADS
        check_own(self.folder.parent, UPLOADS)
        remove_abandoned(self.folder)

    def store(self, upload: Upload) -> Path:
        """Write a file to the disk; return its path."""
        digest = hashlib.sha256(upload.content).hexdigest()
        path = self.folder / f"{digest}-{uuid4().hex[:8]}{upload.suffix}"
        if os.path.realpath(path) != os.fspath(path):
            raise OSError(errno.ELOOP, f"{UPLOADS} is a link")
        self.folder.mkdir(exist_ok=True)
        with replace_file(path, tidy=False) as staged:  # which does not make a folder that was removed
            staged.write_bytes(upload.content)
        return path

    def remove(self, path: str | os.PathLike[str]) -> None:
        """Remove a file if a server has written it here, and nobody has changed it."""
        place = Path(path)
        if place.parent == self.folder and re.match(UPLOAD_NAME, place.name) and not place.is_symlink():
            with suppress(OSError):  # it is removed when a server starts
                check_own(self.folder.parent, UPLOADS)
                if file_digest(place) == place.name.partition("-")[0]:
                    place.unlink()

    def remove_unused(self, used: Collection[str]) -> None:
        """Remove what belongs to no item: the files but for those with the paths ``used``."""
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            with suppress(OSError):
                if str(path) not in used and time.time() - path.stat().st_mtime > UNUSED_SECONDS:
                    self.remove(path)


class Writer:
    """Adds and removes items of the loaded model."""

    def __init__(self, folder: Path, retriever: Retriever) -> None:
        self.uploads = Uploads(folder)
        if self.uploads.folder.is_dir():
            self.uploads.remove_unused({item.path for item in retriever.store.items("image") if item.path})

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
        are known. Captions have the id of their image with ``#`` and a number.
        """
        item_id = item_id or f"item-{uuid4().hex[:12]}"
        ids = [f"{item_id}#{i}" for i in range(len(captions))]
        about: dict[str, Any] = {"metadata": dict.fromkeys([item_id, *ids], metadata)}
        if captions:
            rows = caption_features
            if rows is None:
                rows = retriever.encoders.encode_texts([str(caption) for caption in captions])
            about |= {"captions": rows, "texts": list(captions), "caption_ids": ids}
        if isinstance(retriever.store, FolderStore):
            retriever.store.check_in_place()  # before a file is written there
        path: Path | None = None
        source, features = image or (None, None)
        if isinstance(source, Upload):
            path = self.uploads.store(source)
        if image is not None:
            about |= {"images": features, "ids": [item_id], "paths": [source if path is None else path]}
            about |= {"pairing": np.zeros(len(captions), int)} if captions else {}
        try:
            retriever.add(**about)
        except UnavailableError:  # the database may have the item nevertheless
            raise
        except Exception as error:
            if path is not None:
                self.uploads.remove(path)
            if isinstance(error, TakenError):
                raise Problem(
                    409, "taken", f"there is an item {error.item_id!r} already; choose another id."
                ) from None
            raise
        return {"image": None if image is None else item_id, "captions": ids}

    def remove(self, retriever: Retriever, item_id: str) -> int:
        """Remove an item, an image together with its captions; return how many items."""
        if (item := retriever.item(item_id)) is None:
            raise unknown_item(item_id)
        removed = retriever.remove(item_id)
        if item.path is not None:
            self.uploads.remove(item.path)
        return removed
