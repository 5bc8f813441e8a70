"""Files that are never half written: JSON with a schema, arrays, and configs with checksums of other files.

Numbers are stored as safetensors and everything else as JSON, so that reading a model executes nothing.
``_model_folder`` describes the folders that they make up.

**Every config is a typed schema**, a ``Schema`` beside the class that it describes. msgspec checks it: a
wrong type, a missing or unknown key and a number that is not finite are one ``InputError`` that names the
file and the key. msgspec rather than pydantic because it is 0.7 MB and imports in 27 ms, which matters for a
command line and for the size of the core installation.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias, TypeVar, get_args, get_origin
from uuid import uuid4

import msgspec
import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from diptych._checks import InputError

try:
    import fcntl
except ImportError:  # on Windows
    fcntl = None  # type: ignore[assignment]

FORMAT_VERSION = 3
"""Of everything that is saved. Format 1 was never released, and is not read."""

MAX_JSON_BYTES = 64 * 2**20
CONFIG, TENSORS = "config.json", "model.safetensors"
LOCK = ".lock"

READ_ERRORS = (
    *(OSError, ValueError, EOFError, KeyError, TypeError, AttributeError, IndexError, NotImplementedError),
    *(OverflowError, MemoryError, RuntimeError, SyntaxError, tokenize.TokenError),
)
"""What NumPy and similar libraries raise on damaged files."""

TEMPORARY = re.compile(r"\..+\.diptych-[0-9a-f]{12}")
"""The names of temporary files."""

_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "U8": "|u1"}
_DTYPE_NAMES = {np.dtype(kind): name for name, kind in _DTYPES.items()}

T = TypeVar("T")
Tensors: TypeAlias = dict[str, np.ndarray[Any, Any]]


# Single files


@contextmanager
def replace_file(path: str | os.PathLike[str], *, tidy: bool = True) -> Iterator[Path]:
    """Give a temporary file beside ``path``, flush it and replace ``path`` by it if the block succeeds.

    ``tidy`` makes its folder and removes the temporary files of killed processes first, which takes a while
    in a large folder. Without it the folder must be there.
    """
    path = Path(path)
    if tidy:
        path.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(path.parent)
    with name_in_errors(path), _temporary_file(path) as staged:
        yield staged
        flush_file(staged)
        staged.replace(path)
        flush_folder(path.parent)


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Name a file in errors of the operating system that name none, such as that of a full disk."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO) and error.filename is None:
            error.filename = os.fspath(path)
        raise


@contextmanager
def _temporary_file(target: Path) -> Iterator[Path]:
    """Make a file for one writer; where the system can, it is locked, so that others know it is in use."""
    while True:
        path = target.with_name(f".{target.name}.diptych-{uuid4().hex[:12]}")
        # Made by ``open``, so that it gets the permissions of any new file.
        file = open(path, "xb")  # noqa: SIM115, Windows cannot replace an open file
        if fcntl is None:
            file.close()
            break
        with suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink:
            break
        file.close()  # another process took it for abandoned before it was locked
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        file.close()


def remove_abandoned(folder: Path) -> None:
    """Remove the temporary files of killed processes: those that nobody has locked."""
    for path in () if fcntl is None else folder.glob(".*.diptych-*"):
        if TEMPORARY.fullmatch(path.name):
            with suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode):
                    with open(path, "rb") as file:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        path.unlink()


def flush_file(path: Path) -> None:
    """Wait until the content of a file is on the disk."""
    with open(path, "rb") as handle:
        os.fsync(handle.fileno())


def flush_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError:  # Windows does not open folders
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def file_digest(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def library_version() -> str:
    """Return the version of this library, which is written beside every model."""
    from diptych import __version__

    return __version__


def real_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the real path of a model folder, which need not exist yet."""
    return Path(os.path.realpath(folder))


def check_plain_file(path: Path) -> Path:
    """Return ``path`` if it is a file and not a link, which could point to any file of the machine."""
    if path.is_symlink():
        raise InputError(f"{path} is a link, and links are not followed; put the file itself there.")
    if not path.is_file():
        raise InputError(f"{path} is missing, or is not a file; restore the file or save the model again.")
    return path


def check_own(folder: Path, *names: str) -> None:
    """Refuse to write to a model folder, a real path, if one of its names is a link or a device."""
    for path in (folder / name for name in names):
        is_link = os.path.realpath(path) != os.fspath(path)
        try:
            mode = path.stat().st_mode  # asked once: a file of SQLite's may go at any moment
        except OSError:
            mode = stat.S_IFREG  # not there
        if is_link or not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            reason = "a link, through which nothing is written" if is_link else "neither a file nor a folder"
            raise InputError(f"{path} is {reason}; move it away.")


# JSON


class Schema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of everything that is stored as JSON; see the module."""


def parse_json(raw: bytes | str) -> Any:
    """Return what JSON text says; NaN, infinite numbers and unpaired surrogates are a ``ValueError``."""
    return msgspec.json.decode(raw)


def read_json(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a JSON object; a damaged or very large file is an ``InputError``."""
    path = check_plain_file(Path(path))
    if path.stat().st_size > MAX_JSON_BYTES:
        raise InputError(f"{path} is larger than {MAX_JSON_BYTES} bytes; it was not written by diptych.")
    return parse_object(path.read_bytes(), path)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write ``content`` as readable JSON."""
    with name_in_errors(path):
        path.write_text(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n", "utf-8")


def convert(content: Any, schema: type[T], path: str | os.PathLike[str]) -> T:
    """Return ``content``, read from the file ``path``, as a ``schema``, or raise an ``InputError``."""
    try:
        value = msgspec.convert(content, schema, dec_hook=_decode_array)
    except (msgspec.ValidationError, RecursionError) as error:
        message, _, place = str(error).partition(" - at ")
        where = place.strip("`").removeprefix("$").removeprefix(".")
        message = f"{where}: {message}" if where else message
        raise InputError(f"{path}: {message.rstrip('.')}; restore the file or save again.") from None
    # Dataclasses and typed dictionaries inside a schema ignore unknown keys.
    if (key := _find_dropped_key(content, to_builtins(value))) is not None:
        raise InputError(f"{path} has the unknown key {key!r}; restore the file or save again.")
    return value


def _find_dropped_key(content: Any, kept: Any) -> str | None:
    pairs: Iterable[tuple[Any, Any]] = ()
    if isinstance(content, dict) and isinstance(kept, dict):
        for key in content:
            if key not in kept:
                return str(key)[:60]
        pairs = ((content[key], kept[key]) for key in content)
    elif isinstance(content, (list, tuple)) and isinstance(kept, (list, tuple)):
        pairs = zip(content, kept, strict=False)  # a schema may fill in an empty list
    return next((key for pair in pairs if (key := _find_dropped_key(*pair)) is not None), None)


def to_builtins(schema: Any) -> Any:
    """Return a schema, or a part of one, as plain data."""
    return msgspec.to_builtins(schema, enc_hook=_encode_array)


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        value = value.astype(object)
        value[value != value] = None  # JSON has no NaN
    return value.tolist()


def _decode_array(kind: Any, value: Any) -> np.ndarray[Any, Any]:
    """Return the array of one or two dimensions that a schema annotates with its dtype."""
    if get_origin(kind) is not np.ndarray or not isinstance(value, list):
        raise ValueError(f"Expected an array, got {type(value).__name__}")
    (dtype,) = get_args(get_args(kind)[1])
    dtype = np.float64 if get_origin(dtype) is np.floating else dtype  # of ``Floats``
    element: Any = bool if dtype is np.bool_ else float | None
    nested = bool(value) and isinstance(value[0], list)
    try:
        return np.array(msgspec.convert(value, list[list[element]] if nested else list[element]), dtype)
    except msgspec.ValidationError as error:  # whose place is that within the array
        raise ValueError(str(error).partition(" - at ")[0]) from None


def parse_object(raw: bytes, path: Path) -> dict[str, Any]:
    try:
        content = parse_json(raw)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} is not valid JSON ({error}); restore the file or save again.") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a JSON {type(content).__name__}; expected an object.")
    return content


# Arrays


Arrays: TypeAlias = Mapping[str, np.ndarray[Any, Any]]


def write_tensors(path: Path, tensors: Arrays, metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays to a safetensors file, each as it lies in memory, without copies."""
    header: dict[str, Any] = {"__metadata__": dict(metadata or {})}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + int(np.prod(tensor.shape, dtype=np.int64)) * tensor.dtype.itemsize
        header[name] = {
            "dtype": _DTYPE_NAMES[tensor.dtype.newbyteorder("<")],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)
    with name_in_errors(path), open(path, "wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, tensor.dtype.newbyteorder("<")).data)


def read_tensors(path: str | os.PathLike[str]) -> Tensors:
    """Read every array of a safetensors file; a damaged file is an ``InputError``."""
    path = check_plain_file(Path(path))
    return parse_tensors(path.read_bytes(), path)


def map_tensors(path: str | os.PathLike[str]) -> Tensors:
    """Map the arrays of a safetensors file into memory, read-only; a damaged file is an ``InputError``."""
    path = Path(path)
    try:
        # The library checks every offset against the size of the file.
        with safe_open(path, "np") as file:
            names = list(file.keys())
    except (SafetensorError, ValueError, KeyError, OSError) as error:
        raise InputError(f"{path} is damaged or not a safetensors file ({error}); make it again.") from None
    with open(path, "rb") as content:
        header, length = _parse_header(content, path)
    arrays: Tensors = {}
    for name in names:
        kind, shape, (start, end) = (header[name][key] for key in ("dtype", "shape", "data_offsets"))
        if kind not in _DTYPES:
            raise InputError(f"{path}: {name!r} is {kind}; expected one of {', '.join(_DTYPES)}.")
        dtype = np.dtype(_DTYPES[kind])
        empty = end == start  # which cannot be mapped
        arrays[name] = (
            np.empty(shape, dtype) if empty else np.memmap(path, dtype, "r", 8 + length + start, tuple(shape))
        )
    return arrays


def map_npy(path: str | os.PathLike[str]) -> np.ndarray[Any, Any]:
    """Map the array of a ``.npy`` file into memory, read-only; pickled objects are refused."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except READ_ERRORS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        if "pickle" in reason:
            reason = "it is not an array of plain numbers"
        raise InputError(f"{path} could not be read as a .npy array ({reason}); make it again.") from None


def read_metadata(path: str | os.PathLike[str]) -> dict[str, str]:
    """Read the metadata beside the arrays of a safetensors file."""
    with open(path, "rb") as file:
        return parse_metadata(file, Path(path))


def parse_metadata(file: IO[bytes], path: Path) -> dict[str, str]:
    """Return the metadata beside the arrays of an open safetensors file."""
    metadata = _parse_header(file, path)[0].get("__metadata__", {})
    return {str(k): str(v) for k, v in metadata.items()} if isinstance(metadata, dict) else {}


def take_array(
    tensors: Mapping[str, np.ndarray[Any, Any]], name: str, shape: tuple[int | None, ...], path: Path
) -> np.ndarray[Any, Any]:
    """Return the array ``name``, finite and of ``shape`` (None: any length), or raise an ``InputError``."""
    array = tensors.get(name)
    if array is None:
        raise InputError(f"{path} has no {name!r}; save the model again.")
    fits = array.ndim == len(shape) and all(
        expected in (None, actual) for expected, actual in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind != "f" or not np.all(np.isfinite(array)):
        raise InputError(
            f"{path}: {name!r} is {array.dtype}{list(array.shape)}; expected finite numbers of shape "
            f"{['any' if n is None else n for n in shape]}."
        )
    return array


def parse_tensors(raw: bytes, path: Path) -> Tensors:
    """Return the arrays of a safetensors file whose content was read."""
    try:
        return load(raw)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputError(
            f"{path} is damaged or not a safetensors file ({error}); save the model again."
        ) from None


def _parse_header(file: IO[bytes], path: Path) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(file.read(8), "little")
    if size > MAX_JSON_BYTES:
        raise InputError(f"{path} has a header of {size} bytes; expected at most {MAX_JSON_BYTES}.")
    return parse_object(file.read(size), path), size


# The files of one version


class FileEntry(Schema, frozen=True):
    """What a config knows of a file beside it."""

    bytes: int
    sha256: str


class Header(Schema, frozen=True):
    """What every config says beside its own settings."""

    format: str
    version: int
    library: str
    files: dict[str, FileEntry]


@dataclass(frozen=True)
class ModelFiles:
    """The files of a saved model, with size and checksum of each; a file is compared when it is read."""

    folder: Path
    entries: Mapping[str, FileEntry]

    @classmethod
    def of(cls, folder: Path) -> ModelFiles:
        """Return the files that the config in a folder lists, whatever else it says."""
        entries = convert(read_json(folder / CONFIG).get("files"), dict[str, FileEntry], folder / CONFIG)
        return cls(folder, entries)

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def check(self, name: str, *, whole: bool = True) -> Path:
        """Return the path of a file that is as it was written; compare only its size unless ``whole``."""
        path, entry = self._find(name), self.entries[name]
        same = path.stat().st_size == entry.bytes and (not whole or file_digest(path) == entry.sha256)
        check_same(path, same)
        return path

    def read_tensors(self, name: str = TENSORS, *, mmap: bool = False) -> Tensors:
        """Read the arrays of a safetensors file that is as it was written, or map them into memory."""
        if mmap:
            return {key: np.asarray(array) for key, array in map_tensors(self.check(name)).items()}
        return parse_tensors(self.defer(name)(), self.folder / name)

    def defer(self, name: str) -> Callable[[], bytes]:
        """Return a function that reads a file that is as it was written.

        The file is mapped at once, because it may be removed when a newer version replaces this one.
        """
        mapped = None
        with suppress(OSError, ValueError):  # reported when the file is read
            mapped = np.memmap(self._find(name), np.uint8, "r")

        def read() -> bytes:
            raw = self._find(name).read_bytes() if mapped is None else mapped.tobytes()
            check_same(self.folder / name, hashlib.sha256(raw).hexdigest() == self.entries[name].sha256)
            return raw

        return read

    def _find(self, name: str) -> Path:
        if name not in self.entries:
            raise InputError(f"{self.folder / CONFIG} does not list {name}; save the model again.")
        return check_plain_file(self.folder / name)


def check_same(path: Path, same: bool) -> None:
    """Raise an ``InputError`` unless a file is as it was written."""
    if not same:
        raise InputError(f"{path} is not as it was written (its checksum differs); restore it or save again.")


def check_format(header: Mapping[str, Any], kind: str, path: Path) -> None:
    """Refuse what is not a ``kind``, or was written in a later format."""
    if header.get("format") != f"diptych-{kind}":
        raise InputError(f"{path} holds {header.get('format')!r}; expected a diptych {kind}.")
    number = header.get("version")
    if not str(number).isdecimal() or int(str(number)) < 1:
        raise InputError(f"{path} has no valid format version ({number!r}); save the {kind} again.")
    if int(str(number)) < FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {number}, which this library no longer reads; save the {kind} again."
        )
    if int(str(number)) > FORMAT_VERSION:
        raise InputError(
            f"{path} has format version {number}, newer than this library reads ({FORMAT_VERSION}); "
            "install a newer version of diptych."
        )


def write_config(folder: Path, kind: str, config: Schema) -> None:
    """Write the config of the files in ``folder``, with a checksum of each."""
    files = {
        path.relative_to(folder).as_posix(): FileEntry(path.stat().st_size, file_digest(path))
        for path in sorted(path for path in folder.rglob("*") if path.is_file())
    }
    settings = to_builtins(config)
    convert(settings, type(config), folder / CONFIG)  # what cannot be read again is not written
    header = Header(f"diptych-{kind}", FORMAT_VERSION, library_version(), files)
    write_json(folder / CONFIG, {**settings, **to_builtins(header)})


def read_entries(folder: Path) -> dict[str, FileEntry] | None:
    """Return what the config of a version says of the other files; None if it cannot be read."""
    with suppress(InputError):
        return dict(ModelFiles.of(folder).entries)
    return None


S = TypeVar("S", bound=Schema)


def read_config(folder: Path, kind: str, schema: type[S]) -> tuple[S, ModelFiles]:
    """Read what ``write_config`` wrote."""
    path = folder / CONFIG
    content = read_json(path)
    check_format(content, kind, path)
    header = convert({name: content.pop(name, None) for name in Header.__struct_fields__}, Header, path)
    return convert(content, schema, path), ModelFiles(folder, header.files)


def write_model_files(folder: Path, kind: str, config: Schema, tensors: Arrays) -> None:
    """Write the files of a model that is a config and arrays."""
    write_tensors(folder / TENSORS, tensors, {"format": f"diptych-{kind}"})
    write_config(folder, kind, config)
