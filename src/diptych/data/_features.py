"""Features computed elsewhere, in NumPy, safetensors, HDF5 and MATLAB files."""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from diptych._checks import InputError, missing_package_error
from diptych._persistence import map_npy, map_tensors
from diptych.data._feature_store import Features, FeatureStore
from diptych.data._files import check_file, explain_errors, read_npy_header

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
        the folder of a feature store. ``.npy``, safetensors and HDF5 files are memory-mapped, read-only, if
        they are neither compressed nor chunked; others, and every ``.npz`` and ``.mat`` file before version
        7.3, are read into memory.
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
        with explain_errors(str(path)):
            matrix = _READERS[suffix](path, key, max_bytes)
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
    headers = {}
    with zipfile.ZipFile(path) as archive:
        for member in archive.namelist():
            with archive.open(member) as file:
                headers[member.removesuffix(".npy")] = read_npy_header(file)
    name = _choose_matrix({name: header[0] for name, header in headers.items()}, key, path)
    shape, _, dtype, _ = headers[name]
    _check_bytes(math.prod(shape) * dtype.itemsize, path, max_bytes)
    with np.load(path, allow_pickle=False) as arrays:
        return arrays[name]  # type: ignore[no-any-return]


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
    import scipy.io

    with open(path, "rb") as file:
        header = file.read(_MAT_HEADER_BYTES)
        if b"MATLAB 7.3" in header:
            # HDF5 gives MATLAB's columns as rows; turning them back lets one rule serve both versions.
            return _read_hdf5(path, key, max_bytes).T
        if header[124:128] != b"\x00\x01IM":
            raise InputError(
                f"{path} is not a little-endian MATLAB file of version 5 to 7.3; save it as one of these."
            )
        matrices = _list_mat_matrices(file)
    name = _choose_matrix({name: shape for name, (shape, _) in matrices.items()}, key, path)
    shape, dtype = matrices[name]
    _check_bytes(math.prod(shape) * dtype.itemsize, path, max_bytes)
    contents = scipy.io.loadmat(path, appendmat=False, mat_dtype=True, variable_names=[name])
    return contents[name]  # type: ignore[no-any-return]


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
_MAT_COMPRESSED, _MAT_OPAQUE, _MAT_COMPLEX_FLAG = 15, 17, 0x0800
_MAT_CLASSES = {
    **{6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2"},
    **{12: "i4", 13: "u4", 14: "i8", 15: "u8"},
}
_MAT_STORED_BYTES = {1: 1, 2: 1, 3: 2, 4: 2, 5: 4, 6: 4, 7: 4, 9: 8, 12: 8, 13: 8}
_MAT_VARIABLE_HEADER_BYTES = 1024
"""More than flags, dimensions, name and tags of a matrix take together."""


def _list_mat_matrices(file: BinaryIO) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Return shape and type of the real numeric arrays of a MATLAB file of version 5 to 7, by name.

    Only these are given to SciPy, after the headers of all variables have been read here: SciPy 1.17 ends the
    process (segmentation fault) where a damaged file names an unknown type for the numbers of an array.
    """
    variables: dict[str, tuple[tuple[int, ...], np.dtype[Any]] | None] = {}
    while len(tag := file.read(8)) == 8:
        kind, size = struct.unpack("<II", tag)
        end = file.tell() + size
        head = file.read(min(size, _MAT_VARIABLE_HEADER_BYTES))
        if kind == _MAT_COMPRESSED:
            head = zlib.decompressobj().decompress(head, _MAT_VARIABLE_HEADER_BYTES)[8:]
        (flags,) = struct.unpack_from("<I", head, 8)
        file.seek(end)
        if flags & 0xFF == _MAT_OPAQUE:  # has no name
            continue
        parts, position = [], 16
        for _ in range(3):
            kind, size = struct.unpack_from("<II", head, position)
            position += 8
            if kind >> 16:  # small data share the eight bytes of their tag
                kind, size, position = kind & 0xFFFF, kind >> 16, position - 4
            parts.append((kind, size, head[position : position + size]))
            position += size + -(position + size) % 8
        (_, _, dimensions), (_, _, name), (stored, stored_bytes, _) = parts
        shape = tuple(np.frombuffer(dimensions, "<i4").tolist())
        plain = flags & 0xFF in _MAT_CLASSES and not flags & _MAT_COMPLEX_FLAG
        whole = math.prod(shape) * _MAT_STORED_BYTES.get(stored, 0) == stored_bytes
        dtype = np.dtype(_MAT_CLASSES[flags & 0xFF]) if plain and whole and stored_bytes else None
        # SciPy reads the first of several variables with one name.
        variables.setdefault(name.decode("latin-1"), None if dtype is None else (shape, dtype))
    return {name: matrix for name, matrix in variables.items() if matrix is not None}
