"""A matrix in a Zarr array, format 2 or 3. Its metadata is checked before anything it names is made."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.checks import InputError, not_installed
from diptych.data.files import contained_path
from diptych.data.sharded.matrix import Matrix
from diptych.data.sharded.remote import Options, is_remote, read_bytes, reading

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
        raise not_installed(f"{name} needs", "zarr") from None
    return zarr
