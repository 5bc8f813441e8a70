"""Adding, changing and removing items while a model is served: what is acknowledged is on the disk.

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
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
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
from diptych.service._files import Upload
from diptych.service._limits import Problem, unknown_item
from diptych.service._schemas import Matrix

UNUSED_SECONDS = 3600.0
"""Age of an upload without an item from which it is removed: another server may be adding a younger one."""


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


@dataclass(frozen=True, eq=False)
class Addition:
    """An image with its captions, or either alone: what is to be added as items.

    ``source`` is the file or text of an image, if it is known. A caption is None where only its features are
    known. Captions have the id of their image with ``#`` and a number.
    """

    source: Upload | str | None
    features: Matrix | None
    captions: Sequence[str | None]
    caption_features: Matrix | None
    metadata: dict[str, Any]
    id: str

    @property
    def caption_ids(self) -> list[str]:
        """The ids of the captions."""
        return [f"{self.id}#{number}" for number in range(len(self.captions))]


class Writer:
    """Adds, changes and removes items of the loaded model."""

    def __init__(self, folder: Path, retriever: Retriever) -> None:
        self.uploads = Uploads(folder)
        if self.uploads.folder.is_dir():
            self.uploads.remove_unused({item.path for item in retriever.store.items("image") if item.path})

    def add(
        self, retriever: Retriever, additions: Sequence[Addition], on_conflict: str = "error"
    ) -> list[dict[str, Any]]:
        """Add all of these in one transaction, or none; return the ids of each that were added."""
        images = [new for new in additions if new.features is not None]
        if 0 < len(images) < len(additions):
            raise Problem(
                422,
                "bad-request",
                "some of these are captions without an image; send them in another request.",
            )
        about: dict[str, Any] = {"on_conflict": on_conflict}
        if captions := [caption for new in additions for caption in new.captions]:
            rows = [new.caption_features for new in additions if new.caption_features is not None]
            ids = [caption_id for new in additions for caption_id in new.caption_ids]
            about |= {"captions": np.concatenate(rows), "texts": captions, "caption_ids": ids}
        if images:
            about |= {"images": np.concatenate([new.features for new in images if new.features is not None])}
            about |= {"ids": [new.id for new in images]}
        if images and captions:
            about["pairing"] = np.repeat(np.arange(len(images)), [len(new.captions) for new in images])
        about["metadata"] = {
            item_id: new.metadata
            for new in additions
            for item_id in ([new.id] * (new.features is not None) + new.caption_ids)
        }
        with self._store_uploads(retriever, [new.source for new in images]) as paths:
            replaced = {} if on_conflict == "error" else self._paths(retriever, [new.id for new in images])
            about["paths"] = paths if images else None
            added = set(retriever.add(**about))
        for new, path in zip(images, paths, strict=True):
            unused = replaced.get(new.id) if new.id in added else path
            if unused is not None:
                self.uploads.remove(unused)
        return [
            {
                "image": new.id if new.id in added else None,
                "captions": [caption_id for caption_id in new.caption_ids if caption_id in added],
            }
            for new in additions
        ]

    def update(
        self,
        retriever: Retriever,
        item_id: str,
        source: Upload | str | None,
        features: Matrix | None,
        metadata: dict[str, Any] | None,
    ) -> None:
        """Change an item; see ``Retriever.update``."""
        with self._store_uploads(retriever, [source]) as (path,):
            replaced = self._paths(retriever, [item_id])
            content = {"image" if isinstance(source, Upload) else "text": path}
            retriever.update(item_id, features=features, metadata=metadata, **content)
        if isinstance(source, Upload) and (unused := replaced.get(item_id)) is not None:
            self.uploads.remove(unused)

    def remove(self, retriever: Retriever, item_id: str) -> int:
        """Remove an item, an image together with its captions; return how many items."""
        if (item := retriever.item(item_id)) is None:
            raise unknown_item(item_id)
        removed = retriever.remove(item_id)
        if item.path is not None:
            self.uploads.remove(item.path)
        return removed

    @contextmanager
    def _store_uploads(
        self, retriever: Retriever, sources: Sequence[Upload | str | None]
    ) -> Iterator[list[str | None]]:
        """Write files to the disk and give their paths, and texts as they are; remove them after an error."""
        if isinstance(retriever.store, FolderStore):
            retriever.store.check_in_place()  # before a file is written there
        stored: list[str | None] = []
        try:
            for source in sources:
                stored.append(str(self.uploads.store(source)) if isinstance(source, Upload) else source)
            yield stored
        except UnavailableError:  # the database may have the items nevertheless
            raise
        except Exception as error:
            for source, path in zip(sources, stored, strict=False):
                if isinstance(source, Upload) and path is not None:
                    self.uploads.remove(path)
            if isinstance(error, TakenError):
                raise Problem(
                    409, "taken", f"there is an item {error.item_id!r} already; choose another id."
                ) from None
            raise

    def _paths(self, retriever: Retriever, ids: Sequence[str]) -> dict[str, str]:
        """Return the paths of the stored items that have some of these ids."""
        return {item.id: item.path for item in retriever.store.items(ids=ids) if item.path is not None}
