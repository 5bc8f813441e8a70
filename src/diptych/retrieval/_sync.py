"""Libraries of photos: a model folder that knows folders of photos, and follows what changes in them.

A photo is an item whose id is its path from its folder. What its file was when it was read (size, time,
SHA-256) is in tables of its own in ``items.sqlite``, not in the metadata of items: so searches, pages and
published models never show it, and the library remembers photos that a user has removed, which stay removed
while their files are the same.

A photo is in the library before its file is recorded. So work that was killed goes on where it stopped: an
item whose file is not recorded is recorded as it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from diptych._checks import InputError
from diptych._database import PHOTO_SCHEMA
from diptych._persistence import file_digest
from diptych._progress import progress_bar
from diptych._threads import prefetch, thread_count
from diptych.data._encode import encode_batches, make_image_steps
from diptych.data._photos import PhotoText, list_photos, measure_photo, read_photo
from diptych.retrieval._encoders import Encoders
from diptych.retrieval._inputs import encode_items
from diptych.retrieval._items import Item, Places, PlacesConfig, View
from diptych.retrieval._searcher import Searcher
from diptych.retrieval.stores._base import Floats, Store
from diptych.retrieval.stores._folder import FolderStore

if TYPE_CHECKING:
    from diptych.retrieval._retriever import Retriever

BATCH = 256
"""Photos that are encoded and added at a time: what an interruption can lose."""

_ENCODED = 32  # images in one call of the encoder


@dataclass
class SyncReport:
    """What ``Retriever.sync`` has done.

    Attributes
    ----------
    added, updated, gone
        Ids of new photos, of photos whose file or captions changed, and of photos without a file.
    renamed
        The new path of each photo whose file has another name now, by its id, which stays.
    unchanged, removed
        Numbers of files, and of photos without a file that were removed.
    unreadable
        Why a file could not be read, by its path.
    """

    added: list[str] = field(default_factory=list)
    updated: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)
    gone: list[str] = field(default_factory=list)
    unchanged: int = 0
    removed: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)

    @property
    def changed(self) -> bool:
        """Whether the library is another than before."""
        return bool(self.added or self.updated or self.renamed or self.removed)


@dataclass(frozen=True)
class PhotoFile:
    """What the file of a photo was when it was read, and the id of the photo."""

    id: str
    size: int
    modified: int
    sha256: str


class PhotoFolders:
    """The folders that a library knows, and what their files were; in tables beside those of items."""

    def __init__(self, store: Store) -> None:
        if not isinstance(store, FolderStore):
            place = "in a database" if store.address else "in memory; save it first"
            raise InputError(f"only a model folder follows folders of photos, and this model is {place}.")
        self._store = store

    def list(self) -> dict[int, Path]:
        """Return the folders by their numbers: where they were, or at the same place beside the library."""
        with self._store.read_tables() as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'folders'").fetchone():
                return {}
            rows = connection.execute("SELECT number, path, from_model FROM folders ORDER BY number")
            places = {n: PlacesConfig(str(path), str(beside)) for n, path, beside in rows}
        located = {n: Places.read(place, self._store.folder).images for n, place in places.items()}
        return {n: Path(str(path)) for n, path in located.items()}

    def add(self, folder: Path) -> int:
        """Remember a folder, and return its number."""
        try:
            beside = os.path.relpath(folder, self._store.folder)
        except ValueError:  # on another drive of Windows
            beside = str(folder)
        with self._store.write_tables() as connection:
            for statement in PHOTO_SCHEMA:
                connection.execute(statement.replace("CREATE TABLE", "CREATE TABLE IF NOT EXISTS"))
            row = str(folder), beside
            connection.execute("INSERT OR IGNORE INTO folders (path, from_model) VALUES (?, ?)", row)
            number = connection.execute("SELECT number FROM folders WHERE path = ?", row[:1]).fetchone()
        return int(number[0])

    def files(self, number: int) -> dict[str, PhotoFile]:
        """Return the files of a folder by their paths from there."""
        with self._store.read_tables() as connection:
            rows = connection.execute(
                "SELECT name, id, size, modified, sha256 FROM files WHERE folder = ?", (number,)
            ).fetchall()
        return {str(name): PhotoFile(*values) for name, *values in rows}

    def record(self, number: int, files: Mapping[str, PhotoFile], forgotten: Iterable[str] = ()) -> None:
        """Store what files of a folder are now, and forget others."""
        with self._store.write_tables() as connection:
            names = [(number, name) for name in forgotten]
            connection.executemany("DELETE FROM files WHERE folder = ? AND name = ?", names)
            rows = [(number, name, f.id, f.size, f.modified, f.sha256) for name, f in files.items()]
            connection.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?, ?)", rows)


@dataclass(frozen=True)
class _Change:
    """A photo whose file is new or not as it was; ``encode``: its pixels may be others."""

    name: str
    path: Path
    file: PhotoFile
    encode: bool


def sync(retriever: Retriever, folders: Sequence[str | os.PathLike[str]], remove: bool) -> SyncReport:
    """Bring a library up to date with some folders of photos; with all that it knows, if none is named."""
    known, report = PhotoFolders(retriever.store), SyncReport()
    if not folders:
        folders = list(known.list().values())
        if not folders:
            raise InputError("this library knows no folder of photos; give one, or add it with diptych add.")
    places = [Path(folder).resolve() for folder in folders]
    for place in places:
        if not place.is_dir():
            raise InputError(f"{place} is not a folder that can be read now; nothing was changed.")
    for place in places:
        _sync_folder(retriever, known, place, remove, report)
    return report


def _sync_folder(
    retriever: Retriever, known: PhotoFolders, folder: Path, remove: bool, report: SyncReport
) -> None:
    store = retriever.store
    assert isinstance(store, FolderStore)
    roots = known.list()
    # A part of a folder that is known has its photos already.
    number = next((n for n, root in roots.items() if folder.is_relative_to(root)), None)
    root = folder if number is None else roots[number]
    photos = {p.relative_to(root).as_posix(): p for p in list_photos(folder, without=store.folder).values()}
    before = {} if number is None else known.files(number)
    before = {name: file for name, file in before.items() if (root / name).is_relative_to(folder)}
    if not photos:
        missing = "; is its disk there?" if before else "; give a folder of photos."
        raise InputError(f"{folder} holds no images{missing}")
    number = known.add(root) if number is None else number
    measured, renamed = _measure_others(photos, before, report), dict[str, str]()
    changes = _find_changes(store, photos, before, measured, renamed, report)
    with progress_bar("encoding photos") as progress:
        for end in range(BATCH, len(measured) + BATCH, BATCH):
            batch = list(islice(changes, BATCH))
            _put(retriever, batch, report)
            done = {c.name: c.file for c in batch if str(c.path) not in report.unreadable}
            known.record(number, done, [renamed[name] for name in done if name in renamed])
            progress(min(1.0, end / len(measured)))
    gone = {name: file.id for name, file in before.items() if name not in photos}
    for name in renamed.values():
        gone.pop(name, None)
    present = [item.id for item in store.items("image", ids=list(gone.values()))]
    if remove:
        report.removed += retriever.remove(present)
        known.record(number, {}, gone)
    report.gone += present


def _measure_others(
    photos: Mapping[str, Path], before: Mapping[str, PhotoFile], report: SyncReport
) -> dict[str, tuple[int, int]]:
    """Return size and time of the files that are not as they were recorded."""
    others = dict[str, tuple[int, int]]()
    for name, path in photos.items():
        try:
            size = measure_photo(path)
        except OSError as error:  # a link to nowhere, or removed just now
            report.unreadable[str(path)] = f"{path}: {error.strerror}"
            continue
        if name in before and size == (before[name].size, before[name].modified):
            report.unchanged += 1
        else:
            others[name] = size
    return others


def _find_changes(
    store: FolderStore,
    photos: Mapping[str, Path],
    before: Mapping[str, PhotoFile],
    measured: Mapping[str, tuple[int, int]],
    renamed: dict[str, str],
    report: SyncReport,
) -> Iterator[_Change]:
    """Iterate over the photos whose files are not as they were; ``renamed`` gets their previous names.

    Files are read as they are needed, so that the first photos of many are soon in the library.
    """
    by_digest = {file.sha256: name for name, file in before.items() if name not in photos}
    stored = list(store.items()) if measured else []
    ids, by_path = {item.id for item in stored}, {item.path: item.id for item in stored}
    threads = thread_count(None)
    digests = prefetch(_digest, [photos[name] for name in measured], threads, 4 * threads)
    for (name, size), digest in zip(measured.items(), digests, strict=True):
        path, previous = photos[name], before.get(name)
        if isinstance(digest, OSError):
            report.unreadable[str(path)] = f"{path}: {digest.strerror}"
            continue
        if previous is None and digest in by_digest:
            renamed[name] = by_digest.pop(digest)
            previous = before[renamed[name]]
        same = previous is not None and previous.sha256 == digest
        if previous is not None:
            item_id = previous.id
        elif str(path) in by_path:  # its file was not recorded
            item_id, same = by_path[str(path)], True
        else:
            item_id = choose_id(name, ids)
            ids.add(item_id)
        yield _Change(name, path, PhotoFile(item_id, *size, digest), not same)


def _digest(path: Path) -> str | OSError:
    try:
        return file_digest(path)
    except OSError as error:
        return error


def choose_id(name: str, ids: set[str]) -> str:
    """Return the path of a photo from its folder, with a number if another item has it as its id."""
    number, item_id = 1, name
    while item_id in ids:
        number += 1
        item_id = f"{name} ({number})"
    return item_id


def _put(retriever: Retriever, changes: Sequence[_Change], report: SyncReport) -> None:
    """Encode what is new, and put photos with their captions into the library."""
    read = prefetch(_read_text, [change.path for change in changes], thread_count(None), BATCH)
    texts = dict[_Change, PhotoText]()
    for change, text in zip(changes, read, strict=True):
        if isinstance(text, PhotoText):
            texts[change] = text
        else:
            report.unreadable[str(change.path)] = str(text)

    def put(searcher: Searcher) -> SyncReport:
        paths = [change.path for change in texts if change.encode]
        encoded, unreadable = _encode_photos(searcher.encoders, paths)
        with retriever._writing:
            done = _put_photos(searcher, texts, encoded)
        return replace(done, unreadable=unreadable)

    done = retriever._current.run(put, uses_encoders=True)
    report.added += done.added
    report.updated += done.updated
    report.renamed |= done.renamed
    report.unchanged += done.unchanged
    report.unreadable |= done.unreadable


def _read_text(path: Path) -> PhotoText | Exception:
    """Return what a photo says of itself, or why a file beside it cannot be read."""
    try:
        return read_photo(path)
    except (InputError, OSError) as error:
        return error


def _put_photos(
    searcher: Searcher, texts: Mapping[_Change, PhotoText], encoded: Mapping[str, Floats]
) -> SyncReport:
    """Store photos, those that are new or changed with their features, and what they say of themselves."""
    report, store = SyncReport(), searcher.store
    stored = {item.id: item for item in store.items("image", ids=[c.file.id for c in texts])}
    described = dict[str, Item]()
    captions, outdated = list[Item](), list[str]()
    for change, text in texts.items():
        path, item = str(change.path), stored.get(change.file.id)
        if path not in encoded and (change.encode or item is None):
            continue  # it cannot be read, or a user has removed it
        old = Item(change.file.id, "image") if item is None else item
        new = described[path] = replace(old, path=path, metadata={**old.metadata, **text.metadata})
        others, outdated_ids = _compare_captions(new, text, list(store.items("text", images=[new.id])))
        captions += others
        outdated += outdated_ids
        if item is None:
            report.added.append(new.id)
        elif item.path != path:
            report.renamed[new.id] = path
        elif change.encode or new != item or others or outdated_ids:
            report.updated.append(new.id)
        else:
            report.unchanged += 1
    images = {path: described[path] for path in encoded if path in described}
    moved = {new.id: new for path, new in described.items() if path not in images and new != stored[new.id]}
    if moved:
        store.update(list(moved), lambda item: moved[item.id], searcher.version)
    if outdated:
        searcher.remove(outdated)
    items: dict[View, list[Item]] = {"image": list(images.values()), "text": captions}
    features: dict[View, Floats] = {}
    if images:
        features["image"] = np.stack([encoded[path] for path in images])
    if captions:
        features["text"] = encode_items(searcher.encoders, "text", captions)
    searcher.add({view: items[view] for view in features}, features, in_place=True)
    return report


def _compare_captions(photo: Item, text: PhotoText, stored: Sequence[Item]) -> tuple[list[Item], list[str]]:
    """Return the captions of a photo that the library lacks, and the ids of those that its file lost."""
    start = f"{photo.id}#"
    before = {item.id: item.text for item in stored}
    own = {start + end: caption for end, caption in text.captions.items()}
    outdated = [name for name in before if name not in own and text.has_caption(name.removeprefix(start))]
    others = {before[name] for name in before.keys() - own.keys() - set(outdated)}
    missing = [
        Item(name, "text", text=caption, image=photo.id)
        for name, caption in own.items()
        if before.get(name) != caption and caption not in others
    ]
    return missing, outdated


def _encode_photos(encoders: Encoders, paths: Sequence[Path]) -> tuple[dict[str, Floats], dict[str, str]]:
    """Return the features of photos by their paths, and why others cannot be read."""
    if not paths:
        return {}, {}
    if encoders.image is None:
        raise encoders.missing("image")
    steps = make_image_steps(encoders.image, encoders.views.image)
    features, unreadable, first = dict[str, Floats](), dict[str, str](), 0
    for rows, size, errors in encode_batches(paths, steps, _ENCODED):
        wrong = dict(errors)
        unreadable |= {str(paths[i]): str(error) for i, error in wrong.items()}
        good = (str(paths[i]) for i in range(first, first + size) if i not in wrong)
        features |= dict(zip(good, rows, strict=True))
        first += size
    return features, unreadable
