"""Files: safetensors for the numbers, JSON for the rest, and never half of either.

Nothing read here is executed: safetensors holds plain arrays, and JSON is data. How files make up a model's
folder is told in ``diptych._persistence``.

Model folders: versions that never change, and one pointer to the current one.

==========================  ===========================================================================
``current.json``            the pointer: what kind of model, which version, the checksum of its config
``versions/ID/``            the files of a version; its ``config.json`` has a checksum of every other file
``README.md``               the model card of the current version, and its picture, for people
``uploads/``                images that a server was sent, each named by the SHA-256 of its content
``journal.jsonl``           what a server acknowledged, see ``diptych.service._writes``
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

import hashlib
import json
import math
import os
import re
import shutil
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import numpy as np
from filelock import FileLock, Timeout
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from diptych._checks import InputError

MAX_JSON_BYTES = 64 * 2**20
"""The largest JSON file that is read; a larger one is refused."""

CONFIG = "config.json"
TENSORS = "model.safetensors"

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}

READ_ERRORS = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, IndexError, NotImplementedError),
    *(OverflowError, MemoryError, RuntimeError, SyntaxError, tokenize.TokenError),
)
"""What NumPy and its kin raise on damaged files."""

Blocks = Iterable[np.ndarray[Any, Any]]


@contextmanager
def replacing_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file beside ``path``; it replaces ``path``, on the disk, if the block ends well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}.{uuid4().hex[:12]}")
    try:
        # The file gets the rights that any new file gets.
        staged.touch(exist_ok=False)
        yield staged
        flush_file(staged)
        staged.replace(path)
        flush_folder(path.parent)
    finally:
        staged.unlink(missing_ok=True)


def plain_file(path: str | os.PathLike[str], expected: str) -> Path:
    """``path`` if it is a file and no link: a link could make a reader open any file of the machine's."""
    path = Path(path)
    if path.is_symlink() or not path.is_file():
        found = "a link" if path.is_symlink() else "missing, or not a file"
        raise InputError(f"{path} is {found}; expected {expected}.")
    return path


@dataclass(frozen=True)
class Rows:
    """A matrix that is written block by block, and never held whole."""

    blocks: Blocks
    shape: tuple[int, int]
    dtype: np.dtype[Any]


def write_tensors(
    path: Path, tensors: Mapping[str, np.ndarray[Any, Any] | Rows], metadata: dict[str, str]
) -> None:
    """Write named arrays to a safetensors file, one block of rows at a time."""
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + int(np.prod(tensor.shape, dtype=np.int64)) * tensor.dtype.itemsize
        header[name] = {
            "dtype": _NAMES[tensor.dtype.newbyteorder("<")],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            for block in tensor.blocks if isinstance(tensor, Rows) else (tensor,):
                file.write(np.ascontiguousarray(block, tensor.dtype.newbyteorder("<")).data)
        if file.tell() != 8 + len(encoded) + end:
            raise InputError(f"{path} was given blocks that do not add up to their shape.")


def map_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a safetensors file, memory-mapped and read-only; a damaged file is an ``InputError``."""
    path = Path(path)
    try:
        # The library checks every offset against the file; the arrays themselves are then mapped.
        with safe_open(path, "np") as file:
            names = list(file.keys())
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise InputError(f"{path} is damaged or not a safetensors file ({error}); make it again.") from None
    header, length = _header(path)
    mapped = {}
    for name in names:
        kind, shape, (start, end) = (header[name][key] for key in ("dtype", "shape", "data_offsets"))
        if kind not in _TYPES:
            raise InputError(f"{path}: {name!r} is {kind}; expected one of {', '.join(_TYPES)}.")
        mapped[name] = (
            np.memmap(path, np.dtype(_TYPES[kind]), "r", 8 + length + start, tuple(shape))
            if end > start
            else np.empty(tuple(shape), np.dtype(_TYPES[kind]))
        )
    return mapped


def read_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Read every array of a safetensors file; a damaged file is an ``InputError``."""
    path = plain_file(path, "a safetensors file")
    try:
        return load(path.read_bytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(
            f"{path} is damaged or not a safetensors file ({error}); save the model again."
        ) from None


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata written beside the arrays of a safetensors file."""
    metadata = _header(Path(path))[0].get("__metadata__", {})
    return {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` as readable JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object; a damaged or oversized file is an ``InputError``."""
    path = plain_file(path, f"the {Path(path).name} of a model")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InputError(f"{path} is larger than {MAX_JSON_BYTES} bytes; it was not written by diptych.")
    return _parse(path.read_bytes(), path)


def file_digest(path: str | os.PathLike[str]) -> str:
    """SHA-256 of a file's content, for fingerprints and checksums."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def library_version() -> str:
    """The version of this library, written beside every model."""
    try:
        return version("diptych")
    except PackageNotFoundError:
        return "unknown"


def check_format(config: Mapping[str, Any], kind: str, newest: int, path: Path) -> None:
    """Refuse what is not a ``kind`` or was written by a later format."""
    if config.get("format") != f"diptych-{kind}":
        raise InputError(f"{path} holds {config.get('format')!r}; expected a diptych {kind}.")
    found = config.get("version")
    if not str(found).isdecimal() or int(str(found)) < 1:
        raise InputError(f"{path} has no valid format version ({found!r}); save the {kind} again.")
    if int(str(found)) > newest:
        raise InputError(
            f"{path} has format version {found}, newer than this library reads ({newest}); "
            "install a newer version of diptych."
        )


def take(
    tensors: Mapping[str, np.ndarray[Any, Any]], name: str, shape: tuple[int | None, ...], path: Path
) -> np.ndarray[Any, Any]:
    """The array ``name``, real and finite and of ``shape`` (None: any length), or an ``InputError``."""
    array = tensors.get(name)
    if array is None:
        raise InputError(f"{path} lacks {name!r}; save the model again.")
    fits = array.ndim == len(shape) and all(
        want in (None, have) for want, have in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind != "f" or not np.all(np.isfinite(array)):
        raise InputError(
            f"{path}: {name!r} is {array.dtype}{list(array.shape)}; expected finite numbers of shape "
            f"{['any' if n is None else n for n in shape]}."
        )
    return array


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_JSON_BYTES:
            raise InputError(f"{path} has a header of {size} bytes; expected at most {MAX_JSON_BYTES}.")
        return _parse(file.read(size), path), size


def map_npy(path: str | os.PathLike[str]) -> np.ndarray[Any, Any]:
    """The array in a ``.npy`` file, memory-mapped and read-only; pickled objects are refused."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except READ_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if "pickle" in reason:
            reason = "it is no array of plain numbers"
        raise InputError(f"{path} could not be read as a .npy array ({reason}); make it again.") from None


def parse_json(raw: bytes | str) -> Any:
    """What JSON text says; NaN, infinity and unpaired surrogates, which are none, are a ``ValueError``."""

    def refuse(name: str) -> float:
        raise ValueError(f"{name} is not a JSON number")

    def number(text: str) -> float:
        return value if math.isfinite(value := float(text)) else refuse(text)

    content = json.loads(raw, parse_constant=refuse, parse_float=number)
    escape: Any = b"\\u" if isinstance(raw, bytes) else "\\u"
    if escape in raw:
        json.dumps(content, ensure_ascii=False).encode()
    return content


def _parse(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        content = parse_json(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); save the model again.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a JSON {type(content).__name__}; expected an object.")
    return content


def flush_file(path: Path) -> None:
    """See to it that the content of a file is on the disk."""
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())


def flush_folder(folder: Path) -> None:
    """See to it that the names in a folder are on the disk."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows opens no folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
