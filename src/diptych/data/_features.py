"""Features that others computed, memory-mapped where the file allows it.

Matrices in MATLAB files of versions 5 to 7, memory-mapped where they are not compressed.

Only plain numeric matrices are read, and every length is checked against the file: readers of the whole
format have been seen to crash on damaged files.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from diptych._checks import InputError, missing_package_error
from diptych._persistence import READ_ERRORS, map_npy, map_tensors
from diptych.data._feature_store import FeatureStore
from diptych.data._readers import check_file, npy_header

DEFAULT_MAX_BYTES = 16 * 2**30
"""The most that is read into memory from a file that cannot be mapped."""


def open_features(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    rows: int | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> np.ndarray[Any, Any]:
    """Open a matrix of features, one row per item.

    Parameters
    ----------
    path
        ``.npy``, ``.npz``, ``.safetensors``, ``.h5``/``.hdf5``, ``.mat`` (Karpathy's ``vgg_feats.mat``), or
        the folder of a feature store. Uncompressed arrays are memory-mapped, read-only; compressed or
        chunked ones are read into memory.
    key
        Name of the array in a file that holds several; None: the only matrix in it.
    rows
        How many items there must be. MATLAB keeps one item per column: columns of a ``.mat`` file become
        rows unless only its rows are as many as this.
    max_bytes
        An array that cannot be mapped and is larger is refused.
    """
    path = Path(path)
    if path.is_dir():
        matrix: np.ndarray[Any, Any] = FeatureStore.open(path).features
    else:
        check_file(path, 2**62)
        try:
            matrix = _read(path, key, max_bytes)
        except InputError:
            raise
        except (*READ_ERRORS, zipfile.BadZipFile, zlib.error, struct.error) as error:
            raise InputError(
                f"{path} could not be read ({error}); it is damaged or of another kind."
            ) from None
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise InputError(
            f"{path} holds {matrix.dtype}{list(matrix.shape)}; expected a matrix of numbers, a row per item."
        )
    if path.suffix.lower() == ".mat" and not (rows == matrix.shape[0] and rows != matrix.shape[1]):
        matrix = matrix.T
    if rows is not None and matrix.shape[0] != rows:
        raise InputError(f"{path} has {matrix.shape[0]} rows; expected {rows}, one for each item.")
    return matrix


def _read(path: Path, key: str | None, max_bytes: int) -> np.ndarray[Any, Any]:
    suffix = path.suffix.lower()
    if suffix == ".npy":
        return map_npy(path)
    if suffix == ".npz":
        return _read_npz(path, key, max_bytes)
    if suffix == ".safetensors":
        return _map_safetensors(path, key)
    if suffix in (".h5", ".hdf5", ".hdf"):
        return _read_hdf5(path, key, max_bytes)
    if suffix == ".mat":
        with open(path, "rb") as file:
            is_hdf5 = b"MATLAB 7.3" in file.read(128)
        # HDF5 gives MATLAB's columns as rows already; turning them back lets one rule serve both kinds.
        return _read_hdf5(path, key, max_bytes).T if is_hdf5 else _read_mat(path, key, max_bytes)
    raise InputError(f"{path} is of no known kind; expected .npy, .npz, .safetensors, .h5 or .mat.")


def _chosen(names: Mapping[str, tuple[int, ...]], key: str | None, path: Path) -> str:
    """``key``, or the only matrix among named arrays of given shapes."""
    if key is not None:
        if key not in names:
            raise InputError(f"{path} has no array {key!r}; it has {', '.join(names) or 'none'}.")
        return key
    matrices = [name for name, shape in names.items() if len(shape) == 2]
    if len(matrices) != 1:
        raise InputError(
            f"{path} holds {len(matrices)} matrices ({', '.join(matrices[:6])}); name one with key."
        )
    return matrices[0]


def _check_bytes(size: int, path: Path, max_bytes: int) -> None:
    if size > max_bytes:
        raise InputError(
            f"{path} unpacks to {size:,} bytes; at most {max_bytes:,} are read into memory. Save it as .npy, "
            "which is mapped, or raise max_bytes."
        )


def _read_npz(path: Path, key: str | None, max_bytes: int) -> np.ndarray[Any, Any]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        headers = {}
        for name, info in members.items():
            with archive.open(info) as member:
                headers[name] = npy_header(member)
        name = _chosen({name: header[0] for name, header in headers.items()}, key, path)
        info, (shape, fortran, dtype, length) = members[name], headers[name]
        if info.compress_type == zipfile.ZIP_STORED:
            with open(path, "rb") as file:
                file.seek(info.header_offset + 26)
                skip = sum(struct.unpack("<HH", file.read(4)))
            start = info.header_offset + 30 + skip + length
            return np.memmap(path, dtype, "r", start, shape, "F" if fortran else "C")
        _check_bytes(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, path, max_bytes)
        with archive.open(info) as member:
            return np.lib.format.read_array(member, allow_pickle=False)


def _map_safetensors(path: Path, key: str | None) -> np.ndarray[Any, Any]:
    arrays = map_tensors(path)
    name = _chosen({name: array.shape for name, array in arrays.items()}, key, path)
    if arrays[name].dtype.kind != "f":
        raise InputError(f"{path}: {name!r} is {arrays[name].dtype}; expected float16, float32 or float64.")
    return arrays[name]


def _read_hdf5(path: Path, key: str | None, max_bytes: int) -> np.ndarray[Any, Any]:
    try:
        import h5py
    except ImportError:
        raise missing_package_error("HDF5 files need", "hdf5") from None
    with h5py.File(path, "r") as file:
        shapes: dict[str, tuple[int, ...]] = {}

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset) and item.dtype.kind in "fiu":
                shapes[name] = item.shape

        file.visititems(visit)
        dataset = file[_chosen(shapes, key, path)]
        # External storage would read another file of the sender's choice.
        if dataset.external or dataset.is_virtual:
            raise InputError(f"{path} keeps its numbers in other files; copy them into one file first.")
        offset = dataset.id.get_offset() if dataset.chunks is None else None
        if offset is not None:
            return np.memmap(path, dataset.dtype, "r", offset, dataset.shape)
        _check_bytes(dataset.nbytes, path, max_bytes)
        return dataset[()]  # type: ignore[no-any-return]


def _read_mat(path: Path, key: str | None, max_bytes: int) -> np.ndarray[Any, Any]:
    found = matrices(path)
    matrix = found[_chosen({name: m.shape for name, m in found.items()}, key, path)]
    if matrix.packed is not None or matrix.dtype != matrix.stored:
        size = matrix.shape[0] * matrix.shape[1] * max(matrix.dtype.itemsize, matrix.stored.itemsize)
        _check_bytes(size, path, max_bytes)
    return matrix.open(path)


Read: TypeAlias = Callable[[int, int], bytes]
"""Gives so many bytes from an offset, or fewer where there are no more."""

_HEADER_BYTES = 128
_MATRIX, _COMPRESSED, _INT8, _INT32, _UINT32 = 14, 15, 1, 5, 6
_STORED = {
    **{1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4"},
    **{7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"},
}
_CLASSES = {
    **{6: "<f8", 7: "<f4", 8: "<i1", 9: "<u1", 10: "<i2", 11: "<u2"},
    **{12: "<i4", 13: "<u4", 14: "<i8", 15: "<u8"},
}
_COMPLEX = 0x0800
_LONGEST_NAME = 64
_HEAD_BYTES = 1024
"""More than flags, dimensions, name and tags of a matrix take together."""


@dataclass(frozen=True)
class Matrix:
    """Where the numbers of a matrix lie.

    Attributes
    ----------
    name, shape, dtype
        As MATLAB shows it.
    stored
        Type of the numbers in the file, which may be a smaller one.
    offset
        Of the numbers, in the file or in the uncompressed element.
    packed
        Offset and size of the compressed element; None if it is not compressed.
    """

    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    stored: np.dtype[Any]
    offset: int
    packed: tuple[int, int] | None

    @property
    def stored_bytes(self) -> int:
        """Bytes of the numbers as they are stored."""
        return self.shape[0] * self.shape[1] * self.stored.itemsize

    def open(self, path: Path) -> np.ndarray[Any, Any]:
        """The numbers, mapped if the file holds them as they are."""
        if self.packed is None and self.dtype == self.stored:
            return np.memmap(path, self.stored, "r", self.offset, self.shape, "F")
        with open(path, "rb") as file:
            start, size = self.packed or (self.offset, self.stored_bytes)
            file.seek(start)
            raw = file.read(size)
        if self.packed is not None:
            raw = zlib.decompressobj().decompress(raw, self.offset + self.stored_bytes)[self.offset :]
        if len(raw) != self.stored_bytes:
            raise InputError(f"{path}: {self.name!r} is shorter than it states; the file is damaged.")
        return np.frombuffer(raw, self.stored).reshape(self.shape, order="F").astype(self.dtype)


def matrices(path: Path) -> dict[str, Matrix]:
    """The real numeric matrices of a file, none of them read yet."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        if file.read(_HEADER_BYTES)[124:128] != b"\x00\x01IM":
            raise InputError(
                f"{path} is not a little-endian MATLAB file of version 5 to 7; save it again so."
            )
        found = [_matrix(file, *element) for element in _elements(file)]
    inside = [m for m in found if m is not None and (m.packed or m.offset + m.stored_bytes <= size)]
    return {matrix.name: matrix for matrix in inside}


def _elements(file: BinaryIO) -> Iterator[tuple[int, int, int]]:
    """Type, offset and size of each element of a file."""
    position = _HEADER_BYTES
    while True:
        file.seek(position)
        tag = file.read(8)
        if len(tag) < 8:
            return
        kind, size = struct.unpack("<II", tag)
        yield kind, position + 8, size
        position += 8 + size


def _matrix(file: BinaryIO, kind: int, start: int, size: int) -> Matrix | None:
    def from_file(offset: int, length: int) -> bytes:
        file.seek(offset)
        return file.read(length)

    if kind == _MATRIX:
        return _parsed(from_file, start, None)
    if kind != _COMPRESSED:
        return None
    # The head of an element unpacks from its first bytes; the numbers stay packed until they are asked for.
    head = zlib.decompressobj().decompress(from_file(start, min(size, _HEAD_BYTES)), _HEAD_BYTES)
    if head[:4] != struct.pack("<I", _MATRIX):
        return None
    return _parsed(lambda offset, length: head[offset : offset + length], 8, (start, size))


def _parsed(read: Read, start: int, packed: tuple[int, int] | None) -> Matrix | None:
    kind, offset, size = _tag(read, start)
    if kind != _UINT32 or size != 8:
        return None
    flags = struct.unpack("<I", read(offset, 4).ljust(4, b"\0"))[0]
    kind, offset, size = _tag(read, _after(offset, size))
    dimensions = read(offset, 8)
    if kind != _INT32 or size != 8 or len(dimensions) < 8:
        return None
    rows, columns = struct.unpack("<2i", dimensions)
    kind, name_at, length = _tag(read, _after(offset, size))
    if kind != _INT8 or length > _LONGEST_NAME or min(rows, columns) < 1:
        return None
    name = read(name_at, length).decode("latin-1")
    # A name of up to four letters shares the eight bytes of its tag.
    short = name_at % 8 == 4
    kind, offset, size = _tag(read, name_at + 4 if short else _after(name_at, length))
    if flags & _COMPLEX or flags & 0xFF not in _CLASSES or kind not in _STORED:
        return None
    matrix = Matrix(
        name, (rows, columns), np.dtype(_CLASSES[flags & 0xFF]), np.dtype(_STORED[kind]), offset, packed
    )
    return matrix if matrix.stored_bytes == size else None


def _tag(read: Read, start: int) -> tuple[int, int, int]:
    """Type, offset and size of what lies at ``start``; small data share the eight bytes of their tag."""
    tag = read(start, 8)
    if len(tag) < 8:
        return 0, start, 0
    kind, size = struct.unpack("<II", tag)
    if kind >> 16:
        return kind & 0xFFFF, start + 4, kind >> 16
    return kind, start + 8, size


def _after(offset: int, size: int) -> int:
    return offset + (size + 7) // 8 * 8
