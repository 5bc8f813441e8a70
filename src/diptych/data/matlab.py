"""Matrices in MATLAB files of versions 5 to 7, memory-mapped where they are not compressed.

Only plain numeric matrices are read, and every length is checked against the file: readers of the whole
format have been seen to crash on damaged files.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from diptych.checks import InputError

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
