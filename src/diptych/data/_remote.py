"""Files by path or URL: which there are, when they changed, and parts of them. fsspec serves every URL."""

from __future__ import annotations

import glob
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

from diptych._checks import InputError, missing_package_error

Options: TypeAlias = Mapping[str, Any] | None
"""What a file system asks for beside a URL, an access key for one; as fsspec calls it."""

Names: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_VERSIONS = ("ETag", "etag", "md5Hash", "LastModified", "mtime", "modified", "last_modified", "created")


def expanded(given: Names, options: Options = None) -> list[str]:
    """The names that a path, a URL, a pattern or a list of them stands for; patterns in alphabetical order.

    Local names become absolute: another process may have another working folder.
    """
    if isinstance(given, str | os.PathLike):
        return _matching(os.fspath(given), options)
    names = [name for each in given for name in _matching(os.fspath(each), options)]
    if not names:
        raise InputError("the list of files is empty; give at least one.")
    return names


def is_remote(name: str) -> bool:
    """Whether only fsspec can reach it."""
    return "://" in name


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Whatever goes wrong inside is said of ``name`` in one sentence."""
    try:
        yield
    except InputError:
        raise
    except FileNotFoundError:
        raise InputError(f"{name} does not exist; check the name.") from None
    except Exception as error:  # every file system and every format raises classes of its own
        detail = (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise InputError(
            f"{name} could not be read ({detail}); it is damaged, of another kind or out of reach."
        ) from None


def filesystem(name: str, options: Options = None) -> tuple[Any, str]:
    """The file system of a URL, and the path of the file in it."""
    try:
        core = importlib.import_module("fsspec.core")
    except ImportError:
        raise missing_package_error(f"{name} needs", "zarr", "fsspec") from None
    try:
        return core.url_to_fs(name, **(options or {}))  # type: ignore[no-any-return]
    except (ImportError, ValueError) as error:  # a protocol nobody knows, or one whose library is missing
        raise InputError(f"{name} cannot be reached ({str(error).splitlines()[0]}).") from None


def opened(name: str, options: Options) -> Any:
    """A file or a URL, open for reading."""
    if not is_remote(name):
        return open(name, "rb")
    system, path = filesystem(name, options)
    return system.open(path, "rb")


def read_bytes(name: str, start: int, stop: int, options: Options = None) -> bytes:
    """The bytes from ``start`` to ``stop``, or to the end if that comes first."""
    with reading(name):
        if is_remote(name):
            system, path = filesystem(name, options)
            return system.cat_file(path, start, stop)  # type: ignore[no-any-return]
        with open(name, "rb") as file:
            file.seek(start)
            return file.read(stop - start)


def size_of(name: str, options: Options = None) -> int:
    """How long a file is."""
    with reading(name):
        if not is_remote(name):
            return os.stat(name).st_size
        system, path = filesystem(name, options)
        return int(system.info(path)["size"])


def version_of(name: str, options: Options = None) -> str:
    """Changes when the content does, as far as size, time and tag of a file, or of all in a folder, tell."""
    with reading(name):
        if is_remote(name):
            system, path = filesystem(name, options)
            entries = system.find(path, detail=True) or {path: system.info(path)}
            return repr([(each, _facts(entries[each])) for each in sorted(entries)])
        files = sorted(each for each in Path(name).rglob("*") if each.is_file()) or [Path(name)]
        stats = [(each, each.stat()) for each in files]
        return repr([(each.as_posix(), stat.st_size, stat.st_mtime_ns) for each, stat in stats])


def _facts(info: Mapping[str, Any]) -> tuple[str, str]:
    return str(info.get("size")), str(next((info[key] for key in _VERSIONS if info.get(key)), ""))


def _matching(name: str, options: Options) -> list[str]:
    name = name.removeprefix("file://")
    if not glob.has_magic(name):
        return [name if is_remote(name) else os.path.abspath(name)]
    if not is_remote(name):
        found = [name] if os.path.exists(name) else sorted(glob.glob(name))
        found = [os.path.abspath(each) for each in found]
    else:
        system, path = filesystem(name, options)
        with reading(name):
            found = [system.unstrip_protocol(each) for each in sorted(system.glob(path))]
    if not found:
        raise InputError(f"no file matches {name}; check the pattern.")
    return found
