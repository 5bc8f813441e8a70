"""Model folders: versions that never change, and one pointer to the current one.

==========================  ===========================================================================
``current.json``            the pointer: what kind of model, which version, the checksum of its config
``versions/ID/``            the files of a version; its ``config.json`` has a checksum of every other file
``README.md``               the model card of the current version, and its picture, for people
``uploads/``                images that a server was sent, each named by the SHA-256 of its content
``journal.jsonl``           what a server acknowledged, see ``diptych.service.journal``
``.lock``                   held by whoever writes
``.server.lock``            held by the one server that may write
==========================  ===========================================================================

**Writers** (``save``, the command line, a server that folds its journal) take the lock, write a new version
beside the others, flush it to the disk, and replace the pointer, all in ``new_version``. They compare before
they swap: ``Draft.current`` is the version that will be replaced, and whoever began from another one merges
or gives up. The lock is one of the system's (``filelock``), which goes away with its process. A writer that
is killed leaves a version that nothing points to, and the next writer removes it.

**Readers** take no lock. ``read_current`` reads the pointer once and then only files of that version, so no
reader can mix two. Other versions are removed as soon as the pointer has moved: what a reader has opened or
mapped stays readable until it is closed (on Windows, where open files cannot be removed, the version stays
until the next save). A reader that comes too late for a file finds that the pointer has moved and begins
again; the third time it takes the writers' lock, so that it always comes to an end.

**Nothing is copied that did not change**: files that a version shares with the one before it are hard links,
or copies where a file system has no links.

All paths are real paths: a folder that is a link, or is reached along another way, is the same folder with
the same lock.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from filelock import FileLock, Timeout

from diptych.checks import InputError
from diptych.storage import (
    CONFIG,
    TENSORS,
    Rows,
    check_format,
    file_digest,
    flush_file,
    flush_folder,
    library_version,
    plain_file,
    read_json,
    read_tensors,
    replacing_file,
    write_json,
    write_tensors,
)

POINTER, VERSIONS = "current.json", "versions"
UPLOADS, JOURNAL = "uploads", "journal.jsonl"
LOCK, SERVER_LOCK = ".lock", ".server.lock"
FOR_PEOPLE = ("README.md", "regularization.png")
"""Files of the current version that are shown in the model folder itself."""

_OWN = {POINTER, VERSIONS, UPLOADS, JOURNAL, LOCK, SERVER_LOCK, *FOR_PEOPLE}
_ID = re.compile(r"[0-9]{6,12}-[0-9a-f]{8}")

T = TypeVar("T")


class ChangedError(InputError):
    """Another process has put a version in place since this one was loaded."""


@dataclass(frozen=True)
class Version:
    """A version of a model folder.

    Attributes
    ----------
    folder
        The model folder, as a real path.
    id
        Tells it from every other version.
    digest
        SHA-256 of its config.
    """

    folder: Path
    id: str
    digest: str

    @property
    def path(self) -> Path:
        """Where its files are."""
        return self.folder / VERSIONS / self.id


@dataclass
class Draft:
    """A version that is being written.

    Attributes
    ----------
    path
        Where to write its files.
    current
        The version that it will replace, if any.
    version
        The version, once it is in place.
    """

    path: Path
    current: Version | None
    version: Version | None = None


def real_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the real path of a model folder, which need not exist yet."""
    return Path(os.path.realpath(folder))


def find_current(folder: str | os.PathLike[str]) -> Version | None:
    """Return the current version of a folder; None if nothing was saved there yet."""
    folder = real_folder(folder)
    return current_version(folder) if os.path.lexists(folder / POINTER) else None


def current_version(folder: str | os.PathLike[str]) -> Version:
    """Return the current version of a folder."""
    folder = real_folder(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of a model.")
    if not os.path.lexists(folder / POINTER):
        raise InputError(
            f"{folder / POINTER} is missing, so this is not the folder of a model; give one that is."
        )
    pointer = read_json(folder / POINTER)
    name, digest = pointer.get("version"), pointer.get("sha256")
    if not isinstance(name, str) or not _ID.fullmatch(name) or not isinstance(digest, str):
        raise InputError(f"{folder / POINTER} does not name a version; save the model again.")
    return Version(folder, name, digest)


def read_current(folder: str | os.PathLike[str], read: Callable[[Version], T]) -> T:
    """Return what ``read`` makes of the current version, all of it from that one version."""
    for _ in range(2):
        version = current_version(folder)
        try:
            return _read(version, read)
        except (InputError, OSError):
            if current_version(folder) == version:
                raise
    with locked(real_folder(folder)):
        return _read(current_version(folder), read)


@contextmanager
def new_version(folder: str | os.PathLike[str], kind: str) -> Iterator[Draft]:
    """Write a new version of a ``kind`` of model; it becomes current if the block ends well.

    Nobody else writes meanwhile. A folder that holds something else is never written to.
    """
    folder = real_folder(folder)
    _check_kind(folder, kind)
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        _check_kind(folder, kind)
        current = find_current(folder)
        _remove_others(folder, current)
        number = 1 + (int(current.id.partition("-")[0]) if current is not None else 0)
        name = f"{number:06d}-{uuid4().hex[:8]}"
        draft = Draft(folder / VERSIONS / name, current)
        draft.path.mkdir(parents=True)
        try:
            yield draft
            version = Version(folder, name, file_digest(draft.path / CONFIG))
            _flush(draft.path)
            flush_folder(folder / VERSIONS)
            with replacing_file(folder / POINTER) as staged:
                pointer = {"format": f"diptych-{kind}", "version": name, "sha256": version.digest}
                write_json(staged, pointer)
        except BaseException:
            with suppress(InputError):
                current = find_current(folder)
            if current is None or current.id != name:
                shutil.rmtree(draft.path, ignore_errors=True)
            raise
        draft.version = version
        _show(version)
        _remove_others(folder, version)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Be the only one that writes to a model folder; waits for others."""
    with FileLock(folder / LOCK):
        yield


@contextmanager
def alone(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Be the only server that writes to a model folder; a second one is told so."""
    place = current_version(folder).folder
    lock = FileLock(place / SERVER_LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(
            f"{folder} is being changed by another process that serves it with --writable; stop that one "
            "first."
        ) from None
    try:
        yield
    finally:
        lock.release()


def link_files(source: Path, target: Path) -> None:
    """Give ``target`` the file or folder ``source`` without copying it, where that is possible."""
    if source.is_dir():
        target.mkdir()
        for path in source.iterdir():
            link_files(path, target / path.name)
        return
    try:
        os.link(source, target)
    except OSError:  # another kind of file system
        shutil.copyfile(source, target)


def write_config(
    folder: Path, kind: str, version: int, config: Mapping[str, Any], before: Version | None = None
) -> None:
    """Write the config of what lies in ``folder``, with a checksum of every file.

    Files that are linked from the version ``before`` keep the checksum that is known of them.
    """
    known: dict[str, Any] = {}
    if before is not None:
        with suppress(InputError):
            known = dict(read_json(before.path / CONFIG).get("files", {}))
    files: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        if before is not None and name in known and _is_same(path, before.path / name):
            files[name] = known[name]
        elif name != CONFIG:
            files[name] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    header = {"format": f"diptych-{kind}", "version": version, "library": library_version()}
    write_json(folder / CONFIG, {**header, **config, "files": files})


def read_config(folder: Path, kind: str, newest: int) -> dict[str, Any]:
    """Read what ``write_config`` wrote; the files that it lists are checked by ``check_file``."""
    config = read_json(folder / CONFIG)
    check_format(config, kind, newest, folder / CONFIG)
    if not isinstance(config.get("files"), dict):
        raise InputError(f"{folder / CONFIG} lists no files; save the model again.")
    return config


def check_file(folder: Path, name: str, config: Mapping[str, Any], *, whole: bool = True) -> None:
    """Refuse a file that is not as it was written; unless ``whole``, only its size is compared."""
    path = plain_file(folder / name, "a file of a model")
    expected = config["files"].get(name)
    if not isinstance(expected, dict):
        raise InputError(f"{folder / CONFIG} does not list {name}; save the model again.")
    if path.stat().st_size != expected.get("bytes") or (
        whole and file_digest(path) != expected.get("sha256")
    ):
        raise InputError(f"{path} is not as it was written (its checksum differs); restore it or save again.")


def save_model(
    folder: str | os.PathLike[str],
    kind: str,
    version: int,
    tensors: Mapping[str, np.ndarray[Any, Any] | Rows],
    config: Mapping[str, Any],
    file: str = TENSORS,
) -> None:
    """Write a model that is arrays and JSON, and nothing else; a crash leaves the folder as it was."""
    with new_version(folder, kind) as draft:
        write_tensors(draft.path / file, tensors, {"format": f"diptych-{kind}"})
        write_config(draft.path, kind, version, config)


def load_model(
    folder: str | os.PathLike[str], kind: str, newest: int, file: str = TENSORS
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any], Path]:
    """Read the arrays and the JSON that ``save_model`` wrote, and tell where they were found."""
    return read_current(folder, lambda version: read_files(version.path, kind, newest, file))


def read_files(
    folder: Path, kind: str, newest: int, file: str = TENSORS
) -> tuple[dict[str, np.ndarray[Any, Any]], dict[str, Any], Path]:
    """Read the arrays and the JSON of one version."""
    config = read_config(folder, kind, newest)
    check_file(folder, file, config)
    return read_tensors(folder / file), config, folder


def _read(version: Version, read: Callable[[Version], T]) -> T:
    if version.path.is_symlink() or version.path.parent.is_symlink():
        raise InputError(f"{version.path} is a link; expected the folder of a model's version.")
    config = plain_file(version.path / CONFIG, f"the {CONFIG} of a model")
    if file_digest(config) != version.digest:
        raise InputError(
            f"{config} is not as it was written (its checksum differs); restore it or save again."
        )
    return read(version)


def check_writable(folder: str | os.PathLike[str], kind: str) -> None:
    """Refuse a folder that a ``kind`` of model cannot be saved to, before work is spent on one."""
    folder = real_folder(folder)
    _check_kind(folder, kind)
    place = next(each for each in (folder, *folder.parents) if each.exists())
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        reason = "is a file" if not place.is_dir() else "cannot be written to"
        raise InputError(f"{folder} cannot be made, because {place} {reason}; choose another folder.")


def _check_kind(folder: Path, kind: str) -> None:
    """Refuse to write where something else lies."""
    if not folder.exists():
        return
    ours = folder.is_dir()
    if ours and (folder / POINTER).is_file():
        with suppress(InputError):
            ours = read_json(folder / POINTER).get("format") == f"diptych-{kind}"
    elif ours:
        # Nothing was ever saved here, or the first save was killed.
        ours = all(path.name in _OWN or path.name.startswith(f".{POINTER}.") for path in folder.iterdir())
    if not ours:
        raise InputError(
            f"{folder} exists and is not a diptych {kind}; choose another folder, or an empty one."
        )


def _remove_others(folder: Path, current: Version | None) -> None:
    """Remove older versions, and what killed writers left. The caller holds the lock."""
    for path in (folder / VERSIONS).glob("*"):
        if current is None or path != current.path:
            shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f".{POINTER}.*"):
        path.unlink(missing_ok=True)


def _show(version: Version) -> None:
    """Put what is for people into the model folder itself."""
    for name in FOR_PEOPLE:
        shown = version.folder / name
        if (version.path / name).is_file():
            with replacing_file(shown) as staged:
                staged.unlink()
                link_files(version.path / name, staged)
        else:
            shown.unlink(missing_ok=True)


def _flush(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        if path.is_dir():
            flush_folder(path)
        else:
            flush_file(path)


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
