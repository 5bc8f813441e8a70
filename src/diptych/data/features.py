"""Features that others computed, memory-mapped where the file allows it."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from diptych.checks import InputError, not_installed
from diptych.data.files import check_file, npy_header
from diptych.data.matlab import matrices
from diptych.data.store import FeatureStore
from diptych.storage import READ_ERRORS, map_npy, map_tensors

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
        raise not_installed("HDF5 files need", "hdf5") from None
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
