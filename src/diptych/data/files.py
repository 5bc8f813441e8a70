"""Reading files that others wrote: bounded, never executed, and never outside of their folder."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from diptych.checks import InputError

DEFAULT_MAX_BYTES = 2 * 2**30
"""The largest file of pairs that is read; the largest published one has 0.15 GiB."""


def npy_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, whether columns come first, type, and where the numbers begin, of an open ``.npy`` file."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    return shape, fortran, dtype, file.tell()


def check_file(path: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> Path:
    """``path`` if it is a file of at most ``max_bytes``."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist or is not a file; check the path.")
    size = path.stat().st_size
    if size > max_bytes:
        raise InputError(f"{path} has {size:,} bytes; at most {max_bytes:,} are read. Raise max_bytes.")
    return path


def read_json_object(path: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> dict[str, Any]:
    """The JSON object in a file."""
    path = check_file(path, max_bytes)
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); download or write it again.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a JSON {type(content).__name__}; expected an object.")
    return content


def read_lines(path: str | os.PathLike[str], max_bytes: int = DEFAULT_MAX_BYTES) -> Iterator[tuple[int, str]]:
    """The lines of a UTF-8 file that are not blank, with their numbers from 1."""
    path = check_file(path, max_bytes)
    try:
        with open(path, encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start}).") from None


def contained_path(folder: str | os.PathLike[str], name: str) -> Path:
    """``folder / name`` for a name read from a file, which must not lead out of the folder.

    >>> contained_path("photos", "a/b.jpg").as_posix()
    'photos/a/b.jpg'
    """
    parts = PurePosixPath(name.replace("\\", "/"))
    drive = len(name) > 1 and name[1] == ":"
    if not name or "\0" in name or parts.is_absolute() or drive or ".." in parts.parts:
        raise InputError(
            f"the file name {name!r} leads out of {folder}; names must be relative to the folder of images."
        )
    return Path(folder, *parts.parts)


def check_folder(folder: str | os.PathLike[str]) -> Path:
    """``folder`` if it is one."""
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the folder that holds the images.")
    return folder
