"""Files that others wrote, by path or URL: bounded reads, safe names, patterns, versions.

fsspec opens every URL; local files need no extra library.
"""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, TypeAlias

import numpy as np

from diptych._checks import InputError, import_package

MAX_TEXT_BYTES = 2 * 2**30
"""The largest text file that is read; the largest published file of pairs has 0.15 GiB."""

StorageOptions: TypeAlias = Mapping[str, Any] | None
"""Settings of a remote file system, such as an access key; passed to fsspec."""

Names: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A path, a URL, a pattern, or a list of them."""

_VERSION_KEYS = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "modified", "last_modified", "created")


def check_file(path: str | os.PathLike[str], max_bytes: int = MAX_TEXT_BYTES) -> Path:
    """Return ``path`` if it is a file of at most ``max_bytes``."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist or is not a file; check the path.")
    size = path.stat().st_size
    if size > max_bytes:
        raise InputError(f"{path} has {size:,} bytes; at most {max_bytes:,} are read. Raise max_bytes.")
    return path


def read_lines(path: str | os.PathLike[str], max_bytes: int = MAX_TEXT_BYTES) -> Iterator[tuple[int, str]]:
    """Yield the lines of a UTF-8 file that are not blank, with their numbers from 1."""
    path = check_file(path, max_bytes)
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


def contained_path(folder: str | os.PathLike[str], name: str) -> Path:
    """Return ``folder / name`` for a name read from a file, which must not lead out of the folder.

    >>> contained_path("images", "a/b.jpg").as_posix()
    'images/a/b.jpg'
    """
    parts = PurePosixPath(name.replace("\\", "/"))
    drive = len(name) > 1 and name[1] == ":"
    if not name or "\0" in name or parts.is_absolute() or drive or ".." in parts.parts:
        raise InputError(
            f"the file name {name!r} leads out of {folder}; names must be relative to that folder."
        )
    return Path(folder, *parts.parts)


def read_npy_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Return shape, whether columns come first, type, and the offset of the numbers of a ``.npy`` file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    return shape, fortran, dtype, file.tell()


@contextmanager
def explain_errors(name: str) -> Iterator[None]:
    """Turn any error in the block into an ``InputError`` about the file ``name``."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{name} does not exist; check the name.") from None
    except Exception as error:  # every file system and every format raises classes of its own
        raise InputError(
            f"{name} could not be read ({_first_line(error)}); it is damaged, of another format, or cannot "
            "be reached."
        ) from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__


@contextmanager
def explain_hub_errors(name: str) -> Iterator[None]:
    """Turn the errors of huggingface_hub in the block into an ``InputError`` about ``name``."""
    errors = importlib.import_module("huggingface_hub.errors")
    unreachable = errors.HTTPError, errors.LocalEntryNotFoundError, ConnectionError
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # the library raises many classes of its own
        if isinstance(error, OSError) and error.filename is not None:  # of this machine
            raise
        # The answer of the Hub may be the cause of another error.
        causes: list[BaseException] = [error]
        while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 10:
            causes.append(cause)
        answers = (cause for cause in causes if isinstance(cause, errors.HfHubHTTPError))
        answer: Any = next((reply for reply in answers if reply.response is not None), None)
        status = 0 if answer is None else answer.response.status_code
        if isinstance(error, errors.HFValidationError):
            message = f"{name!r} is not the name of a repository; give user/name."
        elif isinstance(answer, errors.GatedRepoError):
            message = f"{name} is gated; ask for access on its page, and log in with: hf auth login"
        elif isinstance(answer, errors.RevisionNotFoundError):
            message = f"{name} has no such revision; give a branch, a tag or a commit of it."
        elif any(isinstance(cause, errors.LocalTokenNotFoundError) for cause in causes) or status == 401:
            message = f"{name} needs a valid login to the Hub, or does not exist; log in with: hf auth login"
        elif isinstance(answer, errors.RepositoryNotFoundError):
            message = f"there is no {name} on the Hub, or you may not see it; check the name and your login."
        elif status == 403:
            message = f"the Hub does not allow this for {name}; use a token that may write there."
        elif status >= 500:
            message = f"the Hub answered {status} for {name}; try again later."
        elif status:
            message = f"the Hub refused {name} ({' '.join(str(error).split())[:300].rstrip('.')})."
        elif any(isinstance(cause, unreachable) for cause in causes):
            message = (
                f"{name} is not in the cache, and the Hub cannot be reached; check the network, and that "
                "HF_HUB_OFFLINE is not set."
            )
        else:
            message = f"{name} could not be read ({_first_line(error)})."
        raise InputError(message) from None


def is_remote(name: str) -> bool:
    """Return whether ``name`` is a URL, which only fsspec can open."""
    return "://" in name


def expand_names(names: Names, options: StorageOptions = None) -> list[str]:
    """Return the files that ``names`` stands for; those of a pattern in alphabetical order.

    Local names become absolute, because another process may have another working folder.
    """
    if isinstance(names, str | os.PathLike):
        return _expand_pattern(os.fspath(names), options)
    files = [file for name in names for file in _expand_pattern(os.fspath(name), options)]
    if not files:
        raise InputError("the list of files is empty; give at least one.")
    return files


def open_file(name: str, options: StorageOptions) -> BinaryIO:
    """Open a path or a URL for reading."""
    if not is_remote(name):
        return open(name, "rb")
    system, path = _find_filesystem(name, options)
    return system.open(path, "rb")  # type: ignore[no-any-return]


def read_bytes(name: str, start: int, stop: int, options: StorageOptions = None) -> bytes:
    """Return the bytes of the file at a URL from ``start`` to ``stop``, or to the end if that comes first."""
    system, path = _find_filesystem(name, options)
    return system.cat_file(path, start, stop)  # type: ignore[no-any-return]


def remote_size(name: str, options: StorageOptions) -> int:
    """Return the size of the file at a URL."""
    system, path = _find_filesystem(name, options)
    return int(system.info(path)["size"])


def file_version(name: str, options: StorageOptions = None) -> str:
    """Return a string that changes when the size, time or tag of a file, or of any file in a folder, does."""
    if is_remote(name):
        system, path = _find_filesystem(name, options)
        entries = system.find(path, detail=True) or {path: system.info(path)}
        return repr([(file, _describe_version(entries[file])) for file in sorted(entries)])
    files = sorted(file for file in Path(name).rglob("*") if file.is_file()) or [Path(name)]
    stats = [(file, file.stat()) for file in files]
    return repr([(file.as_posix(), stat.st_size, stat.st_mtime_ns) for file, stat in stats])


def _describe_version(info: Mapping[str, Any]) -> tuple[str, str]:
    return str(info.get("size")), str(next((info[key] for key in _VERSION_KEYS if info.get(key)), ""))


def _expand_pattern(name: str, options: StorageOptions) -> list[str]:
    name = name.removeprefix("file://")
    if not is_remote(name):
        files = [name] if os.path.exists(name) or not glob.has_magic(name) else sorted(glob.glob(name))
        files = [os.path.abspath(file) for file in files]
    elif not glob.has_magic(name):
        return [name]
    else:
        system, path = _find_filesystem(name, options)
        with explain_errors(name):
            files = [system.unstrip_protocol(file) for file in sorted(system.glob(path))]
    if not files:
        raise InputError(f"no file matches {name}; check the pattern.")
    return files


def _find_filesystem(name: str, options: StorageOptions) -> tuple[Any, str]:
    """Return the file system of a URL, and the path of the file in it."""
    core = import_package("fsspec.core", f"{name} needs", "zarr", "fsspec")
    try:
        return core.url_to_fs(name, **(options or {}))  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:  # an unknown protocol, or one whose library is missing
        raise InputError(f"{name} cannot be reached ({str(error).splitlines()[0]}).") from None
