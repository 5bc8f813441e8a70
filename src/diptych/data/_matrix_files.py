"""What a matrix in a file is: rows of it can be read, here or in another process, without the rest.

A column of vectors in a Parquet file.

A matrix in a Zarr array, format 2 or 3. Its metadata is checked before anything it names is made.

The matrix in a file of any kind that is known, found out by its header.
"""

from __future__ import annotations

import io
import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from diptych._checks import InputError, missing_package_error
from diptych.data._features import open_features
from diptych.data._readers import contained_path, npy_header
from diptych.data._remote import Options, is_remote, opened, read_bytes, reading, size_of, version_of

DEFAULT_MAX_BYTES = 2 * 2**30
"""The most that a piece which is packed as a whole (a row group, a chunk) may unpack to."""


@dataclass(frozen=True)
class Matrix(ABC):
    """A matrix in a file; it can be sent to another process, and is opened anew for each reading.

    Attributes
    ----------
    name
        Absolute path or URL.
    rows, width
        Its shape.
    dtype
        Of its numbers.
    key
        Name of the column or array in the file; None: the only one.
    grain
        Rows that are packed together: ranges that keep to multiples of it read nothing twice.
    version
        Changes when the content does.
    options
        Of the file system; may hold secrets, so never shown.
    max_bytes
        Limit on what a packed piece may unpack to.
    """

    name: str
    rows: int
    width: int
    dtype: str
    key: str | None = None
    grain: int = 1
    version: str = ""
    options: Options = field(default=None, repr=False)
    max_bytes: int = DEFAULT_MAX_BYTES

    def read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        """Rows from ``start`` to ``stop``; memory-mapped where the file is local and plain."""
        with reading(self.name):
            rows = self._read(start, stop)
        if rows.shape != (stop - start, self.width):
            raise InputError(
                f"{self.name} gave an array of shape {list(rows.shape)} for rows {start} to {stop - 1}; "
                f"expected {self.width} columns. It changed or is damaged."
            )
        return rows

    @abstractmethod
    def _read(self, start: int, stop: int) -> np.ndarray[Any, Any]: ...


_BATCH_ROWS = 4096


@dataclass(frozen=True)
class ParquetColumn(Matrix):
    """Lists of equal length, one to a row; row groups that are not asked for are not read."""

    def _read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        with _parquet(self.name, self.options) as file:
            ends = list(accumulate(_group_rows(file)))
            first, last = bisect_right(ends, start), bisect_right(ends, stop - 1)
            at = ends[first - 1] if first else 0
            parts = []
            for batch in file.iter_batches(_BATCH_ROWS, range(first, last + 1), columns=[self.key]):
                low, high = max(start - at, 0), min(stop - at, len(batch))
                if low < high:
                    parts.append(_vectors(batch.column(0).slice(low, high - low), self))
                at += len(batch)
                if at >= stop:
                    break
        return np.concatenate(parts) if parts else np.empty((0, self.width), self.dtype)


def open_column(name: str, key: str | None, options: Options, max_bytes: int) -> ParquetColumn:
    """The column ``key``, or the only one that holds lists of numbers."""
    with reading(name), _parquet(name, options) as file:
        fields = {field.name: field.type for field in file.schema_arrow if _is_vectors(field.type)}
        if key is None and len(fields) != 1:
            found = ", ".join(fields) or "none"
            raise InputError(f"{name} has {len(fields)} columns of vectors ({found}); name one with a key.")
        key = next(iter(fields)) if key is None else key
        if key not in fields:
            raise InputError(
                f"{name} has no column {key!r} of vectors; it has {', '.join(file.schema_arrow.names)}, and "
                f"lists of numbers in {', '.join(fields) or 'none'}."
            )
        groups = _group_rows(file)
        _check_groups(file, name, max_bytes)
        kind = fields[key]
        width = getattr(kind, "list_size", None)
        if width is None:
            first = next(file.iter_batches(1, columns=[key]), None)
            width = 0 if first is None or first.column(0)[0].as_py() is None else len(first.column(0)[0])
        # Only row groups of one size give a rhythm to keep to.
        grain = groups[0] if groups and len(set(groups[:-1])) <= 1 and groups[-1] <= groups[0] else 1
        dtype = np.dtype(kind.value_type.to_pandas_dtype()).str
        return ParquetColumn(name, sum(groups), width, dtype, key, grain, "", options, max_bytes)


@contextmanager
def _parquet(name: str, options: Options) -> Iterator[Any]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise missing_package_error("Parquet files need", "parquet") from None
    with opened(name, options) as file, pyarrow.parquet.ParquetFile(file) as table:
        yield table


def _is_vectors(kind: Any) -> bool:
    from pyarrow import types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)))


def _group_rows(file: Any) -> list[int]:
    return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]


def _check_groups(file: Any, name: str, max_bytes: int) -> None:
    for number in range(file.metadata.num_row_groups):
        # Of all its columns: pyarrow ends the process when it is asked for one whose statistics are damaged.
        size = file.metadata.row_group(number).total_byte_size
        if size > max_bytes:
            raise InputError(
                f"{name}: row group {number} unpacks to {size:,} bytes; at most {max_bytes:,} are read at "
                "once. Write smaller row groups or raise max_bytes."
            )


def _vectors(column: Any, matrix: Matrix) -> np.ndarray[Any, Any]:
    lengths = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False))
    if column.null_count or np.any(lengths != matrix.width):
        raise InputError(
            f"{matrix.name}: column {matrix.key!r} has vectors of other lengths than {matrix.width}, or none "
            "in some rows; write them all alike."
        )
    values = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values).reshape(-1, matrix.width)


CODECS = (
    *("bytes", "transpose", "gzip", "zstd", "blosc", "crc32c", "sharding_indexed"),
    *("zlib", "lz4", "bz2", "lzma", "shuffle"),
)
"""What may have packed the numbers. Others could do anything: one of Zarr's own unpickles."""

_METADATA_BYTES = 2**20
_NUMBERS = re.compile(r"(float(16|32|64)|u?int(8|16|32|64)|[<>|][fiu][1248])")


@dataclass(frozen=True)
class ZarrArray(Matrix):
    """A Zarr array of plain numbers; chunks that are not asked for are not read."""

    def _read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        place = _place(self.name, self.key)
        _checked(place, self.options, self.max_bytes)  # it may have changed since
        zarr, store = _library(self.name), place
        if is_remote(place):  # by fsspec, as everything else: Zarr would take some URLs for stores of its own
            options = dict(self.options or {})
            store = zarr.storage.FsspecStore.from_url(place, storage_options=options, read_only=True)
        return np.asarray(zarr.open_array(store, mode="r")[start:stop])


def open_array(name: str, key: str | None, options: Options, max_bytes: int) -> ZarrArray:
    """The array itself, or the one called ``key`` in a group."""
    _library(name)
    shape, chunks, dtype = _checked(_place(name, key), options, max_bytes)
    return ZarrArray(name, *shape, dtype, key, chunks[0], "", options, max_bytes)


def _place(name: str, key: str | None) -> str:
    if key is None:
        return name
    contained_path(name, key)  # refuses what leads out of the group
    return f"{name.rstrip('/')}/{key}"


def _checked(place: str, options: Options, max_bytes: int) -> tuple[tuple[int, int], tuple[int, int], str]:
    """Shape, chunks and type of an array that is safe to read."""
    metadata = _metadata(place, options)
    with reading(place):
        if metadata["zarr_format"] == 2:
            chunks, dtype = metadata["chunks"], metadata["dtype"]
            codecs = [each for each in (metadata["compressor"], *(metadata["filters"] or ())) if each]
        else:
            if metadata["node_type"] != "array":
                raise InputError(f"{place} is a Zarr group; name the array in it with a key.")
            chunks, dtype = metadata["chunk_grid"]["configuration"]["chunk_shape"], metadata["data_type"]
            codecs = [*metadata["codecs"], *metadata.get("storage_transformers", ())]
        unknown = sorted({str(each) for each in _names(codecs)} - set(CODECS))
        shape = tuple(int(n) for n in metadata["shape"])
        chunks = tuple(int(n) for n in chunks)
        plain = isinstance(dtype, str) and _NUMBERS.fullmatch(dtype)
    if unknown:
        raise InputError(
            f"{place} is packed with {unknown[0]!r}, which is not read; write it with one of "
            f"{', '.join(CODECS)}."
        )
    if not plain or len(shape) != 2 or len(chunks) != 2 or min(*shape, *chunks) < 1:
        raise InputError(f"{place} holds {dtype}{list(shape)}; expected a matrix of plain numbers.")
    size = chunks[0] * chunks[1] * np.dtype(dtype).itemsize
    if size > max_bytes:
        raise InputError(
            f"{place} has chunks of {size:,} bytes; at most {max_bytes:,} are read at once. Write smaller "
            "chunks or raise max_bytes."
        )
    return shape, chunks, np.dtype(dtype).str


def _metadata(place: str, options: Options) -> Any:
    for file in ("zarr.json", ".zarray"):
        try:
            content = read_bytes(f"{place}/{file}", 0, _METADATA_BYTES, options)
        except InputError:
            continue
        with reading(f"{place}/{file}"):
            return json.loads(content)
    raise InputError(f"{place} is no Zarr array (no zarr.json or .zarray in it); check the name or the key.")


def _names(codecs: Any) -> Iterator[Any]:
    """Every codec that is named, those inside of others too."""
    for codec in codecs:
        # Format 2 names a codec by its id and format 3 by its name; whatever both say must be known.
        yield from {codec[key] for key in ("name", "id") if key in codec} or {None}
        inner = codec.get("configuration") or {}
        for part in ("codecs", "index_codecs"):
            yield from _names(inner.get(part) or ())


def _library(name: str) -> Any:
    try:
        import zarr
    except ImportError:
        raise missing_package_error(f"{name} needs", "zarr") from None
    return zarr


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
