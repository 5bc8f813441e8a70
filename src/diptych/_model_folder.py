"""Model folders: versions that replace each other, and are never half there.

==========================  ===========================================================================
``current.json``            the record: the kind of model, its current version, the checksum of its config,
                            and other versions that were written here and can be removed
``versions/ID/``            the files of a version; its ``config.json`` has a checksum of every other file
``README.md``               the model card of the current version with its figure, for people
``uploads/``                images that were sent to a server, each named by the SHA-256 of its content
``journal.jsonl``           changes that a server has confirmed, see ``diptych.service._writes``
``.lock``                   locked while a process writes
``.server.lock``            locked by the one server that may write
==========================  ===========================================================================

**Writers** (``save``, the command line, a server) take the lock, write a new version beside the current one,
flush it to the disk and replace the record, all in ``new_version``. ``Draft.current`` is the version that
will be replaced: a writer that started from another one merges or gives up. The lock belongs to the operating
system (``filelock``) and disappears with its process. The next writer removes what a killed writer left.

**Other files in the folder stay.** A model is saved only to a new or empty folder, or to one with a record of
its kind. Removed are versions that the record names, of these only the files that their configs name, and a
card only if it is as it was written. Nothing is read, written or removed through a link.

**Readers** take no lock. ``read_current`` reads the record once and then only files of that version, so no
reader mixes two versions. Old versions are removed as soon as the record names a new one. A file that a
reader has open or mapped stays readable (on Windows, where open files cannot be removed, the old version
stays until the next save). A reader that finds a file removed sees that there is a new version and starts
again; the third time it takes the writers' lock, so it always finishes.

**Unchanged files are not copied**: a version shares them with the previous one through hard links.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import msgspec

from diptych._checks import InputError
from diptych._persistence import (
    CONFIG,
    LOCK,
    TEMPORARY,
    Arrays,
    Schema,
    Tensors,
    check_own,
    check_plain_file,
    check_same,
    convert,
    file_digest,
    flush_file,
    flush_folder,
    name_in_errors,
    read_entries,
    read_json,
    read_model_files,
    real_folder,
    replace_file,
    to_builtins,
    write_json,
    write_model_files,
)

RECORD, VERSIONS = "current.json", "versions"
UPLOADS, JOURNAL = "uploads", "journal.jsonl"
SERVER_LOCK = ".server.lock"
FOR_PEOPLE = ("README.md", "regularization.png", "reliability.png")
"""Files of the current version that are shown in the model folder itself."""

_VERSION_ID = re.compile(r"[0-9]{6,12}-[0-9a-f]{8}")

T = TypeVar("T")
S = TypeVar("S", bound=Schema)


class ChangedError(InputError):
    """Another process has saved a version since this one was loaded."""


@dataclass(frozen=True)
class Version:
    """A version of a model folder (a real path), and the SHA-256 of its config."""

    folder: Path
    id: str
    digest: str

    @property
    def path(self) -> Path:
        """Where its files are."""
        return self.folder / VERSIONS / self.id


@dataclass
class Draft:
    """A version that is being written to ``path``, the one that it will replace, and itself once in place."""

    path: Path
    current: Version | None
    version: Version | None = None


class Record(Schema, frozen=True):
    """The content of ``current.json``: the kind of model, the current version and the digest of its config.

    The version is empty until the first one is saved. ``draft`` is the version that a process writes, or was
    writing when it was killed, and ``replaced`` are earlier ones, which may still have to be removed.
    """

    format: str
    version: str
    sha256: str
    draft: str = ""
    replaced: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Refuse what is not the name of a version."""
        for name in (self.version, self.draft, *self.replaced):
            if name and not _VERSION_ID.fullmatch(name):
                raise InputError("it does not name a version")


def find_current(folder: str | os.PathLike[str]) -> Version | None:
    """Return the current version of a folder; None if nothing was saved there yet."""
    folder = real_folder(folder)
    return _current_of(folder, _read_record(folder)) if os.path.lexists(folder / RECORD) else None


def current_version(folder: str | os.PathLike[str]) -> Version:
    """Return the current version of a folder."""
    folder = real_folder(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of a model.")
    version = find_current(folder)
    if version is None:
        reason = f"{RECORD} names no version" if os.path.lexists(folder / RECORD) else f"{RECORD} is missing"
        raise InputError(f"{folder} is not a model folder: {reason}; give the folder of a model.")
    return version


def _read_record(folder: Path) -> Record:
    return convert(read_json(folder / RECORD), Record, folder / RECORD)


def _current_of(folder: Path, record: Record) -> Version | None:
    return Version(folder, record.version, record.sha256) if record.version else None


def read_current(folder: str | os.PathLike[str], read: Callable[[Version], T]) -> T:
    """Return what ``read`` makes of the current version, all of it from that one version."""
    for _ in range(2):
        version = current_version(folder)
        try:
            return _read_version(version, read)
        except (InputError, OSError):
            if current_version(folder) == version:
                raise
    with lock_folder(real_folder(folder)):
        return _read_version(current_version(folder), read)


def write_model_folder(folder: str | os.PathLike[str], kind: str, config: Schema, tensors: Arrays) -> None:
    """Write a model that is a config and arrays; a crash leaves the folder as it was."""
    with new_version(folder, kind) as draft:
        write_model_files(draft.path, kind, config, tensors)


def read_model_folder(folder: str | os.PathLike[str], kind: str, schema: type[S]) -> tuple[S, Tensors, Path]:
    """Read what ``write_model_folder`` wrote; also return the path of the arrays, for messages."""
    return read_current(folder, lambda current: read_model_files(current.path, kind, schema))


@contextmanager
def new_version(folder: str | os.PathLike[str], kind: str) -> Iterator[Draft]:
    """Write a new version of a ``kind`` of model, under the lock; it becomes current if the block succeeds.

    A folder that holds something else is never written to.
    """
    folder = real_folder(folder)
    _open_record(folder, kind)
    folder.mkdir(parents=True, exist_ok=True)
    with lock_folder(folder):
        record = _open_record(folder, kind)
        if record.draft:
            shutil.rmtree(folder / VERSIONS / record.draft, ignore_errors=True)
        number = 1 + int(record.version.partition("-")[0] or 0)
        draft = Draft(folder / VERSIONS / f"{number:06d}-{uuid4().hex[:8]}", _current_of(folder, record))
        try:
            _write_record(folder, msgspec.structs.replace(record, draft=draft.path.name))
            draft.path.mkdir(parents=True)
            with name_in_errors(draft.path):
                yield draft
            digest = file_digest(draft.path / CONFIG)
            for path in (draft.path, *draft.path.rglob("*"), folder / VERSIONS):
                (flush_folder if path.is_dir() else flush_file)(path)
            replaced = (*record.replaced, *([record.version] if record.version else ()))
            remaining = tuple(name for name in replaced if (folder / VERSIONS / name).exists())
            record = Record(f"diptych-{kind}", draft.path.name, digest, "", remaining)
            _write_record(folder, record)
        except BaseException:
            with suppress(InputError):
                record = _read_record(folder)
            if record.version != draft.path.name:
                shutil.rmtree(draft.path, ignore_errors=True)
            raise
        draft.version = Version(folder, record.version, record.sha256)
        _show_for_people(folder, record)
        for name in record.replaced:
            _remove_version(folder / VERSIONS / name)


def link_file(name: str, source: Path, target: Path) -> None:
    """Hard-link a file of one folder to another, if it is there; copy where the file system has no links."""
    if os.path.lexists(source / name):
        check_own(source, name)
        check_plain_file(source / name)
        (target / name).parent.mkdir(exist_ok=True)
        try:
            os.link(source / name, target / name)
        except OSError:
            shutil.copyfile(source / name, target / name)


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Wait until no other process writes to a model folder, and keep others from writing."""
    from filelock import FileLock  # only writers need it, and it imports asyncio

    check_own(folder, LOCK)
    with FileLock(folder / LOCK):
        yield


@contextmanager
def lock_for_serving(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Be the only server that writes to a model folder; a second one is an ``InputError``."""
    from filelock import FileLock, Timeout

    real = current_version(folder).folder
    check_own(real, SERVER_LOCK)
    lock = FileLock(real / SERVER_LOCK, timeout=0)
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


def check_writable(folder: str | os.PathLike[str], kind: str) -> None:
    """Refuse a folder that a ``kind`` of model cannot be saved to, before time is spent on fitting it."""
    folder = real_folder(folder)
    _open_record(folder, kind)
    parent = next(path for path in (folder, *folder.parents) if path.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        reason = "is a file" if not parent.is_dir() else "cannot be written to"
        raise InputError(f"{folder} cannot be made, because {parent} {reason}; choose another folder.")


def _read_version(version: Version, read: Callable[[Version], T]) -> T:
    if os.path.realpath(version.path) != os.fspath(version.path):
        raise InputError(f"{version.path} is a link; expected the folder of a model's version.")
    config = check_plain_file(version.path / CONFIG)
    check_same(config, file_digest(config) == version.digest)
    return read(version)


def _open_record(folder: Path, kind: str) -> Record:
    """Return the record of a folder that a ``kind`` of model may be saved to; a new one of a new folder."""
    record = Record(f"diptych-{kind}", "", "")
    if not folder.exists():
        return record
    reason = ""
    if os.path.lexists(folder / RECORD):
        check_own(folder, RECORD, VERSIONS)
        try:
            record = _read_record(folder)
        except InputError as error:
            record, reason = Record("", "", ""), f" ({str(error).rstrip('.')})"
        names = (record.version, record.draft, *record.replaced)
        check_own(folder, *(f"{VERSIONS}/{name}" for name in names if name))
    elif not folder.is_dir() or not all(map(_is_left_by_a_first_save, folder.iterdir())):
        record = Record("", "", "")
    if record.format != f"diptych-{kind}":
        raise InputError(
            f"{folder} exists and is not a diptych {kind}{reason}; choose another folder, or an empty one."
        )
    return record


def _is_left_by_a_first_save(path: Path) -> bool:
    """Return whether a process made a file that was killed before it could write a record."""
    status = path.lstat()
    return stat.S_ISREG(status.st_mode) and (
        (path.name == LOCK and status.st_size == 0)
        or (path.name.startswith(f".{RECORD}.") and TEMPORARY.fullmatch(path.name) is not None)
    )


def _write_record(folder: Path, record: Record) -> None:
    with replace_file(folder / RECORD) as staged:
        write_json(staged, to_builtins(record))


def _remove_version(folder: Path) -> None:
    """Remove the files that the config of a version names, and their folders unless others wrote there."""
    steps: list[Callable[[], None]] = []
    if (entries := read_entries(folder)) is not None:
        paths = [folder / name for name in entries]
        # No name leads out of the folder, and neither does a link in it.
        paths = [path for path in paths if Path(os.path.realpath(path.parent)).is_relative_to(folder)]
        parents = sorted({path.parent for path in paths} - {folder}, key=lambda path: -len(path.parts))
        # The config goes last: without it, nobody would know what to remove.
        steps = [*(path.unlink for path in paths), *(parent.rmdir for parent in parents)]
        steps.append((folder / CONFIG).unlink)
    for step in (*steps, folder.rmdir):
        with suppress(OSError):  # on Windows, a file that is open
            step()


def _show_for_people(folder: Path, record: Record) -> None:
    """Copy the card of the current version to the model folder, unless a file of somebody else is there."""
    versions = [folder / VERSIONS / name for name in (record.version, *record.replaced)]
    entries = [read_entries(version) or {} for version in versions]
    for name in FOR_PEOPLE:
        shown, wanted = folder / name, entries[0].get(name)
        digest = file_digest(shown) if shown.is_file() and not shown.is_symlink() else None
        written = {files[name].sha256 for files in entries if name in files}
        if os.path.lexists(shown) and digest not in written:
            continue
        if wanted is None:
            shown.unlink(missing_ok=True)
        elif digest != wanted.sha256:
            with replace_file(shown) as staged:
                shutil.copyfile(versions[0] / name, staged)
