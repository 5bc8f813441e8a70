"""Features computed elsewhere, in NumPy, safetensors, HDF5 and MATLAB files; memory-mapped where possible."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from diptych._checks import InputError, missing_package_error
from diptych._persistence import READ_ERRORS, map_npy, map_tensors
from diptych.data._feature_store import Features, FeatureStore
from diptych.data._files import check_file, read_npy_header

DEFAULT_MAX_BYTES = 16 * 2**30
"""The most that is read into memory from a file that cannot be mapped."""


def open_features(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    rows: int | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> Features:
    """Open a matrix of features with one row per item.

    Parameters
    ----------
    path
        ``.npy``, ``.npz``, ``.safetensors``, ``.h5``/``.hdf5``, ``.mat`` (Karpathy's ``vgg_feats.mat``), or
        the folder of a feature store. Uncompressed arrays are memory-mapped, read-only; compressed or
        chunked ones are read into memory.
    key
        Name of the array in a file that holds several; None: the only matrix in it.
    rows
        The number of items that is expected. MATLAB keeps one item per column: the columns of a ``.mat``
        file become rows, unless only its rows are as many as this.
    max_bytes
        A larger array that cannot be mapped raises an ``InputError``.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> file = Path(mkdtemp()) / "features.npy"
    >>> np.save(file, np.ones((10, 3), np.float32))
    >>> open_features(file, rows=10).shape
    (10, 3)
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if path.is_dir():
        matrix = FeatureStore.open(path).features
    else:
        check_file(path, 2**62)
        if suffix not in _READERS:
            raise InputError(f"{path} has an unknown format; expected {', '.join(_READERS)}.")
        try:
            matrix = _READERS[suffix](path, key, max_bytes)
        except InputError:
            raise
        except (*READ_ERRORS, zipfile.BadZipFile, zlib.error, struct.error) as error:
            raise InputError(
                f"{path} could not be read ({error}); it is damaged or of another format."
            ) from None
    if matrix.ndim != 2 or matrix.dtype.kind not in "fiu":
        raise InputError(
            f"{path} holds {matrix.dtype}{list(matrix.shape)}; expected a matrix of numbers, a row per item."
        )
    if suffix == ".mat" and not (rows == matrix.shape[0] and rows != matrix.shape[1]):
        matrix = matrix.T
    if rows is not None and matrix.shape[0] != rows:
        raise InputError(f"{path} has {matrix.shape[0]} rows; expected {rows}, one for each item.")
    return matrix


def _read_npz(path: Path, key: str | None, max_bytes: int) -> NDArray[Any]:
    with zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        headers = {}
        for name, info in members.items():
            with archive.open(info) as member:
                headers[name] = read_npy_header(member)  # type: ignore[arg-type]
        name = _choose_matrix({name: header[0] for name, header in headers.items()}, key, path)
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


def _read_safetensors(path: Path, key: str | None, max_bytes: int) -> NDArray[Any]:
    arrays = map_tensors(path)
    name = _choose_matrix({name: array.shape for name, array in arrays.items()}, key, path)
    if arrays[name].dtype.kind != "f":
        raise InputError(f"{path}: {name!r} is {arrays[name].dtype}; expected float16, float32 or float64.")
    return arrays[name]


def _read_hdf5(path: Path, key: str | None, max_bytes: int) -> NDArray[Any]:
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
        dataset = file[_choose_matrix(shapes, key, path)]
        # External storage could read any other file of this machine.
        if dataset.external or dataset.is_virtual:
            raise InputError(f"{path} keeps its numbers in other files; copy them into one file first.")
        offset = dataset.id.get_offset() if dataset.chunks is None else None
        if offset is not None:
            return np.memmap(path, dataset.dtype, "r", offset, dataset.shape)
        _check_bytes(dataset.nbytes, path, max_bytes)
        return dataset[()]  # type: ignore[no-any-return]


def _read_mat(path: Path, key: str | None, max_bytes: int) -> NDArray[Any]:
    with open(path, "rb") as file:
        header = file.read(_MAT_HEADER_BYTES)
        if b"MATLAB 7.3" in header:
            # HDF5 gives MATLAB's columns as rows; turning them back lets one rule serve both versions.
            return _read_hdf5(path, key, max_bytes).T
        if header[124:128] != b"\x00\x01IM":
            raise InputError(
                f"{path} is not a little-endian MATLAB file of version 5 to 7.3; save it as one of these."
            )
        matrices = {matrix.name: matrix for matrix in _find_mat_matrices(file)}
        name = _choose_matrix({name: matrix.shape for name, matrix in matrices.items()}, key, path)
        matrix = matrices[name]
        start, _, compressed = matrix.element
        if not compressed and matrix.dtype == matrix.stored:
            return np.memmap(path, matrix.stored, "r", start + matrix.offset, matrix.shape, "F")
        item_bytes = max(matrix.dtype.itemsize, matrix.stored.itemsize)
        _check_bytes(matrix.shape[0] * matrix.shape[1] * item_bytes, path, max_bytes)
        length = matrix.offset + matrix.stored_bytes
        content = _read_mat_element(file, matrix.element, length)[matrix.offset :]
    if len(content) != matrix.stored_bytes:
        raise InputError(f"{path}: {name!r} is shorter than its header says; the file is damaged.")
    return np.frombuffer(content, matrix.stored).reshape(matrix.shape, order="F").astype(matrix.dtype)


_READERS: dict[str, Callable[[Path, str | None, int], NDArray[Any]]] = {
    ".npy": lambda path, key, max_bytes: map_npy(path),
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), _read_hdf5),
    ".mat": _read_mat,
}


def _choose_matrix(shapes: Mapping[str, tuple[int, ...]], key: str | None, path: Path) -> str:
    """Return ``key``, or the name of the only matrix in a file."""
    if key is not None:
        if key not in shapes:
            raise InputError(f"{path} has no array {key!r}; it has {', '.join(shapes) or 'none'}.")
        return key
    matrices = [name for name, shape in shapes.items() if len(shape) == 2]
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


_MAT_HEADER_BYTES = 128
_MATRIX, _COMPRESSED, _INT8, _INT32, _UINT32 = 14, 15, 1, 5, 6
_STORED_TYPES = {
    **{1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4"},
    **{7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"},
}
_CLASS_TYPES = {
    **{6: "<f8", 7: "<f4", 8: "<i1", 9: "<u1", 10: "<i2", 11: "<u2"},
    **{12: "<i4", 13: "<u4", 14: "<i8", 15: "<u8"},
}
_COMPLEX_FLAG = 0x0800
_LONGEST_NAME = 64
_ELEMENT_HEADER_BYTES = 1024
"""More than flags, dimensions, name and tags of a matrix take together."""


@dataclass(frozen=True)
class _MatMatrix:
    """A real matrix in a MATLAB file, and where its numbers are."""

    name: str
    shape: tuple[int, int]
    dtype: np.dtype[Any]
    stored: np.dtype[Any]  # type of the numbers in the file, which may be a smaller one
    offset: int  # of the numbers in the element, uncompressed
    element: tuple[int, int, bool]  # offset and size in the file, and whether it is compressed

    @property
    def stored_bytes(self) -> int:
        return self.shape[0] * self.shape[1] * self.stored.itemsize


def _find_mat_matrices(file: BinaryIO) -> Iterator[_MatMatrix]:
    """Yield the real numeric matrices of a MATLAB file of version 5 to 7, without reading their numbers.

    ``scipy.io.loadmat`` is not used. On damaged files it ends the process: SciPy 1.17 crashed (segmentation
    fault, bus error) on 6 of 1,000 files with one changed byte, when the type of the numbers is unknown. It
    also reads whole files, while these matrices can be mapped. Here every length is compared with the file,
    and whatever is not a plain matrix is left out.
    """
    end = file.seek(0, os.SEEK_END)
    position = _MAT_HEADER_BYTES
    while position + 8 <= end:
        file.seek(position)
        kind, size = struct.unpack("<II", file.read(8))
        if kind in (_MATRIX, _COMPRESSED):
            matrix = _parse_mat_element(file, (position + 8, size, kind == _COMPRESSED))
            if matrix is not None and (
                kind == _COMPRESSED or position + 8 + matrix.offset + matrix.stored_bytes <= end
            ):
                yield matrix
        position += 8 + size


def _read_mat_element(file: BinaryIO, element: tuple[int, int, bool], length: int) -> bytes:
    """Return the first ``length`` bytes of an element, uncompressed."""
    start, size, compressed = element
    file.seek(start)
    if not compressed:
        return file.read(length)
    unpacker, parts = zlib.decompressobj(), []
    while length > 0 and size > 0 and (packed := file.read(min(size, 2**16))):
        parts.append(unpacker.decompress(packed, length))
        size, length = size - len(packed), length - len(parts[-1])
    return b"".join(parts)


def _parse_mat_element(file: BinaryIO, element: tuple[int, int, bool]) -> _MatMatrix | None:
    """Return the matrix of an element, which has flags, dimensions, name and numbers, each behind a tag."""
    head = _read_mat_element(file, element, _ELEMENT_HEADER_BYTES)
    compressed = element[2]
    if compressed and head[:4] != struct.pack("<I", _MATRIX):
        return None
    position = 8 if compressed else 0
    tags = []
    for _ in range(4):
        if len(head) < position + 8:
            return None
        kind, size = struct.unpack_from("<II", head, position)
        if kind >> 16:  # small data share the eight bytes of their tag
            tags.append((kind & 0xFFFF, position + 4, kind >> 16))
            position += 8
        else:
            tags.append((kind, position + 8, size))
            position += 8 + (size + 7) // 8 * 8
    kinds, offsets, sizes = zip(*tags, strict=True)
    plain = kinds[:3] == (_UINT32, _INT32, _INT8) and sizes[:2] == (8, 8) and sizes[2] <= _LONGEST_NAME
    if not plain or kinds[3] not in _STORED_TYPES:
        return None
    (flags,) = struct.unpack_from("<I", head, offsets[0])
    rows, columns = struct.unpack_from("<2i", head, offsets[1])
    if flags & _COMPLEX_FLAG or flags & 0xFF not in _CLASS_TYPES or min(rows, columns) < 1:
        return None
    name = head[offsets[2] : offsets[2] + sizes[2]].decode("latin-1")
    dtype, stored = np.dtype(_CLASS_TYPES[flags & 0xFF]), np.dtype(_STORED_TYPES[kinds[3]])
    matrix = _MatMatrix(name, (rows, columns), dtype, stored, offsets[3], element)
    return matrix if matrix.stored_bytes == sizes[3] else None
