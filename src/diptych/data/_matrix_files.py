"""Matrices of features in files: whole ones on this machine, and some rows of local or remote ones."""

from __future__ import annotations

import io
import math
import os
import zipfile
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from diptych._checks import InputError, import_package
from diptych._persistence import map_npy, map_tensors
from diptych.data._feature_store import Features, FeatureStore
from diptych.data._files import (
    StorageOptions,
    check_file,
    contained_path,
    explain_errors,
    file_version,
    is_remote,
    open_file,
    read_bytes,
    read_npy_header,
    remote_size,
)

LARGEST_ARRAY = 16 * 2**30
"""The most that is read into memory from a file that cannot be mapped."""

LARGEST_PIECE = 2 * 2**30
"""The most that a row group or a chunk, which can only be unpacked as a whole, may unpack to."""


def open_features(
    path: str | os.PathLike[str],
    *,
    key: str | None = None,
    rows: int | None = None,
    max_bytes: int = LARGEST_ARRAY,
) -> Features:
    """Open a matrix of features with one row per item.

    Parameters
    ----------
    path
        ``.npy``, ``.npz``, ``.safetensors``, ``.h5``/``.hdf5``, or the folder of a feature store. ``.npy``,
        safetensors and HDF5 files are memory-mapped, read-only, if they are neither compressed nor chunked;
        others, and every ``.npz`` file, are read into memory.
    key
        Name of the array in a file that holds several; None: the only matrix in it.
    rows
        The number of items that is expected.
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
    _check_size(math.prod(shape) * dtype.itemsize, max_bytes, str(path), _MAPPED)
    with np.load(path, allow_pickle=False) as arrays:
        return arrays[name]  # type: ignore[no-any-return]


def _read_safetensors(path: Path, key: str | None, max_bytes: int) -> NDArray[Any]:
    arrays = map_tensors(path)
    name = _choose_matrix({name: array.shape for name, array in arrays.items()}, key, path)
    if arrays[name].dtype.kind != "f":
        raise InputError(f"{path}: {name!r} is {arrays[name].dtype}; expected float16, float32 or float64.")
    return arrays[name]


def _read_hdf5(path: Path, key: str | None, max_bytes: int) -> NDArray[Any]:
    h5py = import_package("h5py", "HDF5 files need", "hdf5")
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
        _check_size(dataset.nbytes, max_bytes, str(path), _MAPPED)
        return dataset[()]  # type: ignore[no-any-return]


_READERS: dict[str, Callable[[Path, str | None, int], NDArray[Any]]] = {
    ".npy": lambda path, key, max_bytes: map_npy(path),
    ".npz": _read_npz,
    ".safetensors": _read_safetensors,
    **dict.fromkeys((".h5", ".hdf5", ".hdf"), _read_hdf5),
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


_MAPPED = "save it as .npy, which is mapped"


def _check_size(size: int, max_bytes: int, subject: str, remedy: str) -> None:
    if size > max_bytes:
        raise InputError(
            f"{subject} unpacks to {size:,} bytes; at most {max_bytes:,} are read at once; "
            f"{remedy}, or raise max_bytes."
        )


_NPY_HEADER_BYTES = 2**16
_ZARR_CODECS = (
    *("bytes", "transpose", "gzip", "zstd", "blosc", "crc32c", "sharding_indexed"),
    *("zlib", "lz4", "bz2", "lzma", "shuffle"),
)
"""The codecs that may be used. Others could do anything: one of Zarr's own unpickles."""


@dataclass(frozen=True)
class Matrix:
    """A matrix in a file. It can be sent to another process; the file is opened anew for each read."""

    name: str  # absolute path or URL
    rows: int
    width: int
    dtype: str
    key: str | None = None  # of the column or array; None: the only one in the file
    offset: int = 0  # of the numbers of a remote ``.npy`` file
    version: str = ""  # changes when the content does
    options: StorageOptions = field(default=None, repr=False)  # may hold secrets, so never shown
    max_bytes: int = LARGEST_PIECE

    def read(self, start: int, stop: int) -> Features:
        """Return the rows from ``start`` to ``stop``; memory-mapped if the file is local and plain."""
        with explain_errors(self.name):
            rows = _find_format(self.name).read(self, start, stop)
        if rows.shape != (stop - start, self.width):
            raise InputError(
                f"{self.name} gave an array of shape {list(rows.shape)} for rows {start} to {stop - 1}; "
                f"expected {self.width} columns. It changed or is damaged."
            )
        return rows


class _Format(NamedTuple):
    """How a matrix is opened, of which only the header is read, and how some of its rows are read."""

    open: Callable[[str, str | None, StorageOptions, int], Matrix]
    read: Callable[[Matrix, int, int], NDArray[Any]]


def open_matrix(
    name: str, key: str | None = None, options: StorageOptions = None, max_bytes: int = LARGEST_PIECE
) -> Matrix:
    """Open the matrix in a ``.npy``, Parquet or Zarr file, or a local file that ``open_features`` reads.

    Only the header is read.
    """
    with explain_errors(name):
        matrix = _find_format(name).open(name, key, options, max_bytes)
        version = file_version(name, options)
    if np.dtype(matrix.dtype).kind not in "fiu" or matrix.width < 1:
        raise InputError(
            f"{name} holds {matrix.dtype}[{matrix.rows}, {matrix.width}]; expected a matrix of real numbers."
        )
    return replace(matrix, key=matrix.key or key, version=version, options=options, max_bytes=max_bytes)


def _find_format(name: str) -> _Format:
    suffix = PurePosixPath(name).suffix.lower()
    if suffix in (".parquet", ".zarr"):
        return _FORMATS[suffix]
    if not is_remote(name):
        return _FORMATS["local"]
    if suffix != ".npy":
        raise InputError(f"{name}: unsupported format for a remote file; expected .npy, .parquet or .zarr.")
    return _FORMATS[suffix]


def _open_local(name: str, key: str | None, options: StorageOptions, max_bytes: int) -> Matrix:
    features = open_features(name, key=key, max_bytes=max_bytes)
    return Matrix(name, len(features), features.shape[1], features.dtype.str)


def _read_local(matrix: Matrix, start: int, stop: int) -> NDArray[Any]:
    return open_features(matrix.name, key=matrix.key, max_bytes=matrix.max_bytes)[start:stop]


def _open_remote_npy(name: str, key: str | None, options: StorageOptions, max_bytes: int) -> Matrix:
    head = io.BytesIO(read_bytes(name, 0, _NPY_HEADER_BYTES, options))
    shape, fortran, dtype, offset = read_npy_header(head)
    if len(shape) != 2 or fortran:
        order = ", columns first" if fortran else ""
        raise InputError(f"{name} holds {dtype}{list(shape)}{order}; expected a matrix, rows first.")
    missing = offset + shape[0] * shape[1] * dtype.itemsize - remote_size(name, options)
    if missing > 0:
        raise InputError(f"{name} is {missing:,} bytes too short for the {shape[0]} rows of its header.")
    return Matrix(name, shape[0], shape[1], dtype.str, offset=offset)


def _read_remote_npy(matrix: Matrix, start: int, stop: int) -> NDArray[Any]:
    """Fetch only the bytes of some rows."""
    dtype = np.dtype(matrix.dtype)
    first, last = (matrix.offset + row * matrix.width * dtype.itemsize for row in (start, stop))
    content = read_bytes(matrix.name, first, last, matrix.options)
    return np.frombuffer(content, dtype).reshape(-1, matrix.width)


def _open_parquet(name: str, key: str | None, options: StorageOptions, max_bytes: int) -> Matrix:
    with _parquet_file(name, options) as file:
        fields = {field.name: field.type for field in file.schema_arrow if _is_vector_type(field.type)}
        if key is None and len(fields) != 1:
            columns = ", ".join(fields) or "none"
            raise InputError(f"{name} has {len(fields)} columns of vectors ({columns}); name one with a key.")
        key = next(iter(fields)) if key is None else key
        if key not in fields:
            raise InputError(
                f"{name} has no column {key!r} of vectors; it has {', '.join(file.schema_arrow.names)}, and "
                f"lists of numbers in {', '.join(fields) or 'none'}."
            )
        groups = _group_rows(file)
        for number in range(len(groups)):
            # All columns together: pyarrow ends the process if asked for one whose statistics are damaged.
            size = file.metadata.row_group(number).total_byte_size
            _check_size(size, max_bytes, f"{name}: row group {number}", "write smaller row groups")
        width = getattr(fields[key], "list_size", None)
        if width is None:
            batch = next(file.iter_batches(1, columns=[key]), None)
            first = None if batch is None else batch.column(0)[0]
            width = 0 if first is None or first.as_py() is None else len(first)
        dtype = np.dtype(fields[key].value_type.to_pandas_dtype()).str
        return Matrix(name, sum(groups), width, dtype, key)


def _read_parquet(matrix: Matrix, start: int, stop: int) -> NDArray[Any]:
    """Read the row groups of some rows of a column of lists of equal length."""
    with _parquet_file(matrix.name, matrix.options) as file:
        ends = list(accumulate(_group_rows(file)))
        first, last = bisect_right(ends, start), bisect_right(ends, stop - 1)
        column = file.read_row_groups(range(first, last + 1), columns=[matrix.key]).column(0)
        column = column.slice(start - (ends[first - 1] if first else 0), stop - start).combine_chunks()
    lengths = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False))
    if column.null_count or np.any(lengths != matrix.width):
        raise InputError(
            f"{matrix.name}: column {matrix.key!r} has vectors of other lengths than {matrix.width}, or none "
            "in some rows; write vectors of one length."
        )
    numbers = np.asarray(column.flatten().to_numpy(zero_copy_only=False))
    return numbers.reshape(-1, matrix.width)


@contextmanager
def _parquet_file(name: str, options: StorageOptions) -> Iterator[Any]:
    parquet = import_package("pyarrow.parquet", "Parquet files need", "parquet")
    with open_file(name, options) as file, parquet.ParquetFile(file) as table:
        yield table


def _is_vector_type(kind: Any) -> bool:
    from pyarrow import types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)))


def _group_rows(file: Any) -> list[int]:
    return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]


def _open_zarr(name: str, key: str | None, options: StorageOptions, max_bytes: int) -> Matrix:
    array = _open_zarr_array(name, key, options, max_bytes)
    rows, width = array.shape
    return Matrix(name, rows, width, array.dtype.str, key)


def _read_zarr(matrix: Matrix, start: int, stop: int) -> NDArray[Any]:
    # It is checked again, because it may have changed since it was opened.
    array = _open_zarr_array(matrix.name, matrix.key, matrix.options, matrix.max_bytes)
    return np.asarray(array[start:stop])


def _open_zarr_array(name: str, key: str | None, options: StorageOptions, max_bytes: int) -> Any:
    """Open an array of format 2 or 3 that is safe to read: a matrix of numbers, packed by known codecs."""
    zarr = import_package("zarr", f"{name} needs", "zarr")
    path = name
    if key is not None:
        contained_path(name, key)  # raises if the key leads out of the group
        path = f"{name.rstrip('/')}/{key}"
    with explain_errors(path):
        store: Any = path
        if is_remote(path):  # through fsspec, because Zarr would treat some URLs as stores of its own
            store = zarr.storage.FsspecStore.from_url(
                path, storage_options=dict(options or {}), read_only=True
            )
        array: Any = zarr.open(store, mode="r")
        if isinstance(array, zarr.Group):
            raise InputError(f"{path} is a Zarr group; name the array in it with a key.")
        metadata: Any = array.metadata.to_dict()
        codecs = [metadata.get("compressor"), *(metadata.get("filters") or ())]  # of format 2
        codecs += [*metadata.get("codecs", ()), *metadata.get("storage_transformers", ())]
        unknown = sorted({str(codec) for codec in _codec_names(filter(None, codecs))} - set(_ZARR_CODECS))
    if unknown:
        raise InputError(
            f"{path} uses the codec {unknown[0]!r}, which is not read; write it with one of "
            f"{', '.join(_ZARR_CODECS)}."
        )
    if array.dtype.kind not in "fiu" or array.ndim != 2 or min(array.shape) < 1:
        shape = list(array.shape)
        raise InputError(f"{path} holds {array.dtype}{shape}; expected a matrix of plain numbers.")
    chunk_bytes = math.prod(array.shards or array.chunks) * array.dtype.itemsize
    _check_size(chunk_bytes, max_bytes, f"a chunk of {path}", "write smaller chunks")
    return array


def _codec_names(codecs: Iterable[Any]) -> Iterator[Any]:
    """Yield the names of all codecs, including those inside of others."""
    for codec in codecs:
        yield codec.get("id") or codec.get("name")  # the first is of format 2, the second of format 3
        inner = codec.get("configuration") or {}
        for part in ("codecs", "index_codecs"):
            yield from _codec_names(inner.get(part) or ())


_FORMATS = {
    "local": _Format(_open_local, _read_local),
    ".npy": _Format(_open_remote_npy, _read_remote_npy),
    ".parquet": _Format(_open_parquet, _read_parquet),
    ".zarr": _Format(_open_zarr, _read_zarr),
}
