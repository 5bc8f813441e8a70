"""Model folders: versions that replace each other, and are never half there.

==========================  ===========================================================================
``versions/ID/``            the files of a version; its ``config.json`` has a checksum of every other file
``current.json``            the record: the kind of model, its current version, the checksum of its config
``.lock``                   locked while a process writes
==========================  ===========================================================================

A retriever has ``items.sqlite`` in place of the last two (``diptych._database``, and
``diptych.retrieval.stores._folder``, which describes its other files).

**Writers** take the lock, write a new version beside the current one, flush it to the disk and replace the
record, all in ``write_version``. The lock belongs to the operating system (``filelock``) and disappears with
its process. The next writer removes what a killed writer left.

**Other files in the folder stay.** A model is saved only to a new or empty folder, or to one with a record of
its kind. Removed are other versions, of these only the files that their configs name. Nothing is read,
written or removed through a link.

**Readers** take no lock. ``read_current`` reads the record once and then only files of that version, so no
reader mixes two versions. Old versions are removed as soon as the record names a new one. A file that a
reader has open or mapped stays readable (on Windows, where open files cannot be removed, the old version
stays until the next save). A reader that finds a file removed sees that there is a new version and starts
again.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from sqlite3 import Connection
from typing import TypeVar
from uuid import uuid4

from diptych._checks import InputError
from diptych._database import FILE, Database
from diptych._persistence import (
    CONFIG,
    LOCK,
    TEMPORARY,
    TENSORS,
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
    read_config,
    read_entries,
    read_json,
    real_folder,
    replace_file,
    to_builtins,
    write_json,
    write_model_files,
)

RECORD, VERSIONS = "current.json", "versions"

ATTEMPTS = 20
"""How often a reader starts again because others have saved meanwhile."""

VERSION_ID = re.compile(r"[0-9]{6,12}-[0-9a-f]{8}")

T = TypeVar("T")
S = TypeVar("S", bound=Schema)


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


class Record(Schema, frozen=True):
    """The content of ``current.json``: the kind of model, its current version, the digest of its config."""

    format: str
    version: str
    sha256: str

    def __post_init__(self) -> None:
        """Refuse what is not the name of a version."""
        if not VERSION_ID.fullmatch(self.version):
            raise InputError("it does not name a version")


def next_version(previous: str) -> str:
    """Return the name of a version that follows another, which may be empty."""
    return f"{1 + int(previous.partition('-')[0] or 0):06d}-{uuid4().hex[:8]}"


def is_model_folder(folder: str | os.PathLike[str]) -> bool:
    """Return whether a folder says which version of a model it holds."""
    return any(os.path.isfile(os.path.join(folder, name)) for name in (RECORD, FILE))


def read_version(folder: Path, connection: Connection) -> Version | None:
    """Return the version that the database of a folder names; None if nothing was saved there yet."""
    row = connection.execute("SELECT version, sha256 FROM current").fetchone()
    if row is None:
        return None
    if not all(isinstance(value, str) for value in row) or not VERSION_ID.fullmatch(row[0]):
        raise InputError(f"{folder / FILE} does not name a version; restore the file.")
    return Version(folder, *row)


def current_version(folder: str | os.PathLike[str]) -> Version:
    """Return the current version of a folder."""
    folder = real_folder(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder of a model.")
    reason = f"it has neither {RECORD} nor {FILE}"
    if os.path.lexists(folder / FILE):
        with Database(folder).reading() as connection:
            if (version := read_version(folder, connection)) is not None:
                return version
        reason = "nothing was saved there yet"
    elif os.path.lexists(folder / RECORD):
        record = _read_record(folder)
        return Version(folder, record.version, record.sha256)
    raise InputError(f"{folder} is not a model folder: {reason}; give the folder of a model.")


def _read_record(folder: Path) -> Record:
    return convert(read_json(folder / RECORD), Record, folder / RECORD)


def read_current(folder: str | os.PathLike[str], read: Callable[[Version], T]) -> T:
    """Return what ``read`` makes of the current version, all of it from that one version."""
    attempts = 0
    while True:
        version = current_version(folder)
        try:
            if os.path.realpath(version.path) != os.fspath(version.path):
                raise InputError(f"{version.path} is a link; expected the folder of a model's version.")
            config = check_plain_file(version.path / CONFIG)
            check_same(config, file_digest(config) == version.digest)
            return read(version)
        except (InputError, OSError):
            attempts += 1
            if attempts > ATTEMPTS or current_version(folder) == version:
                raise


def write_model_folder(folder: str | os.PathLike[str], kind: str, config: Schema, tensors: Arrays) -> None:
    """Write a model that is a config and arrays; a crash leaves the folder as it was."""
    write_version(folder, kind, lambda path: write_model_files(path, kind, config, tensors))


def read_model_folder(folder: str | os.PathLike[str], kind: str, schema: type[S]) -> tuple[S, Tensors, Path]:
    """Read what ``write_model_folder`` wrote; also return the path of the arrays, for messages."""

    def read(version: Version) -> tuple[S, Tensors, Path]:
        config, files = read_config(version.path, kind, schema)
        return config, files.read_tensors(), version.path / TENSORS

    return read_current(folder, read)


def write_version(folder: str | os.PathLike[str], kind: str, write: Callable[[Path], None]) -> None:
    """Write a new version of a ``kind`` of model, under the lock; it then becomes current.

    ``write`` writes its files to an empty folder. A folder that holds something else is never written to.
    """
    from filelock import FileLock  # only writers need it, and it imports asyncio

    folder = real_folder(folder)
    _check_place(folder, kind)
    folder.mkdir(parents=True, exist_ok=True)
    check_own(folder, LOCK)
    with FileLock(folder / LOCK):
        previous = _check_place(folder, kind)
        name = next_version("" if previous is None else previous.version)
        version = write_files(folder, name, write)
        with replace_file(folder / RECORD) as staged:
            write_json(staged, to_builtins(Record(f"diptych-{kind}", version.id, version.digest)))
        remove_others(folder, version)


def write_files(folder: Path, name: str, write: Callable[[Path], None]) -> Version:
    """Write the files of a version beside the others; it gets its name when they are on the disk."""
    (folder / VERSIONS).mkdir(exist_ok=True)
    draft = folder / VERSIONS / f".{name}.diptych-{uuid4().hex[:12]}"
    draft.mkdir()
    try:
        with name_in_errors(draft):
            write(draft)
        for path in (draft, *draft.rglob("*")):
            (flush_folder if path.is_dir() else flush_file)(path)
        version = Version(folder, name, file_digest(draft / CONFIG))
        draft.rename(version.path)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    flush_folder(folder / VERSIONS)
    return version


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


def _check_place(folder: Path, kind: str) -> Record | None:
    """Return the record of a folder that a ``kind`` of model may be saved to; None of a new one."""
    if not folder.exists():
        return None
    reason = ""
    if os.path.lexists(folder / RECORD):
        check_own(folder, RECORD, VERSIONS)
        try:
            record = _read_record(folder)
        except InputError as error:
            reason = f" ({str(error).rstrip('.')})"
        else:
            check_own(folder, f"{VERSIONS}/{record.version}")
            if record.format == f"diptych-{kind}":
                return record
    elif folder.is_dir() and all(map(_is_left_by_a_first_save, folder.iterdir())):
        return None
    raise InputError(
        f"{folder} exists and is not a diptych {kind}{reason}; choose another folder, or an empty one."
    )


def _is_left_by_a_first_save(path: Path) -> bool:
    """Return whether a process made a file or folder that was killed before it could write a record."""
    status = path.lstat()
    if path.name == VERSIONS and stat.S_ISDIR(status.st_mode):
        names = [inner.name for inner in path.iterdir()]
        return all(TEMPORARY.fullmatch(name) or VERSION_ID.fullmatch(name) for name in names)
    return stat.S_ISREG(status.st_mode) and (
        (path.name == LOCK and status.st_size == 0)
        or (path.name.startswith(f".{RECORD}.") and TEMPORARY.fullmatch(path.name) is not None)
    )


def remove_others(folder: Path, current: Version | None) -> None:
    """Remove other versions and the drafts of killed writers; for callers that write alone."""
    for path in (folder / VERSIONS).iterdir():
        if path.is_symlink() or (current is not None and path.name == current.id):
            continue
        if VERSION_ID.fullmatch(path.name):
            _remove_version(path)
        elif TEMPORARY.fullmatch(path.name):
            shutil.rmtree(path, ignore_errors=True)


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
