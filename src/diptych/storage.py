"""Files: safetensors for the numbers, JSON for the rest, and never half of either.

Nothing read here is executed: safetensors holds plain arrays, and JSON is data. How files make up a model's
folder is told in ``diptych.folders``.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from diptych.checks import InputError

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
