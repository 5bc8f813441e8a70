"""The matrix in a file of any kind that is known, found out by its header."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from diptych.checks import InputError
from diptych.data.features import open_features
from diptych.data.files import npy_header
from diptych.data.sharded.matrix import DEFAULT_MAX_BYTES, Matrix
from diptych.data.sharded.parquet import open_column
from diptych.data.sharded.remote import Options, is_remote, read_bytes, reading, size_of, version_of
from diptych.data.sharded.zarrays import open_array

_HEADER_BYTES = 2**16


def open_matrix(
    name: str, key: str | None = None, options: Options = None, max_bytes: int = DEFAULT_MAX_BYTES
) -> Matrix:
    """The matrix in a file: ``.npy``, Parquet, Zarr, or what ``open_features`` reads; by its header."""
    suffix = PurePosixPath(name).suffix.lower()
    if suffix == ".parquet":
        matrix: Matrix = open_column(name, key, options, max_bytes)
    elif suffix == ".zarr":
        matrix = open_array(name, key, options, max_bytes)
    elif not is_remote(name):
        matrix = _open_local(name, key, max_bytes)
    elif suffix == ".npy":
        matrix = _open_remote(name, options)
    else:
        raise InputError(f"{name} is of no kind that is read from afar; expected .npy, .parquet or .zarr.")
    if np.dtype(matrix.dtype).kind not in "fiu" or matrix.width < 1:
        raise InputError(
            f"{name} holds {matrix.dtype}[{matrix.rows}, {matrix.width}]; expected a matrix of real numbers."
        )
    return replace(matrix, version=version_of(name, options))


@dataclass(frozen=True)
class LocalMatrix(Matrix):
    """Features on a local disk, mapped where the file allows it."""

    def _read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        return open_features(self.name, key=self.key, max_bytes=self.max_bytes)[start:stop]


@dataclass(frozen=True)
class RemoteNpy(Matrix):
    """A ``.npy`` file elsewhere, of which only the bytes of the rows asked for are fetched.

    Attributes
    ----------
    offset
        Where the numbers begin.
    """

    offset: int = 0

    def _read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        dtype = np.dtype(self.dtype)
        row = self.width * dtype.itemsize
        content = read_bytes(self.name, self.offset + start * row, self.offset + stop * row, self.options)
        return np.frombuffer(content, dtype).reshape(-1, self.width)


def _open_local(name: str, key: str | None, max_bytes: int) -> Matrix:
    found = open_features(name, key=key, max_bytes=max_bytes)
    rows, width = found.shape
    return LocalMatrix(name, rows, width, found.dtype.str, key, max_bytes=max_bytes)


def _open_remote(name: str, options: Options) -> Matrix:
    opening = io.BytesIO(read_bytes(name, 0, _HEADER_BYTES, options))
    with reading(name):
        shape, fortran, dtype, offset = npy_header(opening)
    if len(shape) != 2 or fortran:
        order = ", columns first" if fortran else ""
        raise InputError(f"{name} holds {dtype}{list(shape)}{order}; expected a matrix, rows first.")
    missing = offset + shape[0] * shape[1] * dtype.itemsize - size_of(name, options)
    if missing > 0:
        raise InputError(f"{name} ends {missing:,} bytes before the {shape[0]} rows of its header do.")
    return RemoteNpy(name, shape[0], shape[1], dtype.str, options=options, offset=offset)
