"""Models on disk: safetensors for the numbers, JSON for the rest, and never half of either.

Nothing read here is executed: safetensors holds plain arrays, and JSON is data.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load, save

from diptych.checks import InputError

MAX_JSON_BYTES = 64 * 2**20
"""The largest JSON file that is read; a larger one is refused."""

CONFIG = "config.json"


@contextmanager
def replacing_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary file beside ``path``; rename it to ``path`` if the block ends well."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    staged = Path(name)
    try:
        yield staged
        _flush(staged)
        staged.chmod(0o666 & ~_umask())
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


@contextmanager
def replacing_folder(folder: str | os.PathLike[str], kind: str) -> Iterator[Path]:
    """Give a temporary folder beside ``folder``; it takes the folder's place if the block ends well.

    The old folder steps aside before the new one moves in, so that at every moment one of the two is
    whole; ``existing_folder`` finds it. A folder that does not hold a ``kind`` is never replaced.
    """
    folder = Path(folder).absolute()
    previous = _aside(folder)
    if folder.exists() and not _holds(folder, kind):
        raise InputError(
            f"{folder} exists and is not a diptych {kind}; choose another folder, or an empty one."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{folder.name}.new-", dir=folder.parent))
    try:
        yield staged
        for file in staged.iterdir():
            _flush(file)
        staged.chmod(0o777 & ~_umask())
        if folder.exists():
            if previous.exists():
                shutil.rmtree(previous)
            folder.rename(previous)
        staged.rename(folder)
        if previous.exists():
            shutil.rmtree(previous)
    finally:
        shutil.rmtree(staged, ignore_errors=True)


def existing_folder(folder: str | os.PathLike[str]) -> Path:
    """``folder``, or the copy that an interrupted ``replacing_folder`` left aside."""
    folder = Path(folder).absolute()
    if folder.is_dir():
        return folder
    if _aside(folder).is_dir():
        return _aside(folder)
    raise InputError(f"{folder} is not a folder; give the folder that save() wrote.")


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]], metadata: dict[str, str]) -> None:
    """Write named arrays to a safetensors file."""
    path.write_bytes(save({k: np.ascontiguousarray(v) for k, v in tensors.items()}, metadata))


def read_tensors(path: str | os.PathLike[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Read every array of a safetensors file; a damaged file is an ``InputError``."""
    path = Path(path)
    if not path.is_file() or path.is_symlink():
        raise InputError(f"{path} is not a file; expected a safetensors file there.")
    try:
        return load(path.read_bytes())
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(
            f"{path} is damaged or not a safetensors file ({error}); save the model again."
        ) from None


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """The metadata written beside the arrays of a safetensors file."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > MAX_JSON_BYTES:
            raise InputError(f"{path} has a header of {size} bytes; expected at most {MAX_JSON_BYTES}.")
        header = _parse(file.read(size), Path(path))
    metadata = header.get("__metadata__", {})
    return {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` as readable JSON."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object; a damaged or oversized file is an ``InputError``."""
    path = Path(path)
    if not path.is_file() or path.is_symlink():
        raise InputError(f"{path} is missing; expected the {path.name} that save() wrote.")
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InputError(f"{path} is larger than {MAX_JSON_BYTES} bytes; it was not written by diptych.")
    return _parse(path.read_bytes(), path)


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
    if not str(found).isdigit() or int(str(found)) < 1:
        raise InputError(f"{path} has no valid format version ({found!r}); save the {kind} again.")
    if int(str(found)) > newest:
        raise InputError(
            f"{path} has format version {found}, newer than this library reads ({newest}); "
            "upgrade with: pip install --upgrade diptych"
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


def _parse(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); save the model again.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a JSON {type(content).__name__}; expected an object.")
    return content


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.previous")


def _holds(folder: Path, kind: str) -> bool:
    if not folder.is_dir():
        return False
    if not any(folder.iterdir()):
        return True
    try:
        return read_json(folder / CONFIG).get("format") == f"diptych-{kind}"
    except InputError:
        return False


def _flush(file: Path) -> None:
    with open(file, "rb") as handle:
        os.fsync(handle.fileno())


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
