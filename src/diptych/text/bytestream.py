"""A file as a stream of bytes, plain or gzipped, that is looked at before it is taken."""

from __future__ import annotations

import gzip
import os
import zlib
from pathlib import Path
from types import TracebackType
from typing import IO, cast

from diptych.checks import InputError

CHUNK_BYTES = 2**20


class ByteStream:
    """Reads ahead in chunks and never seeks, so that pipes work too; memory stays at what is asked for."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            raw: IO[bytes] = open(self.path, "rb")  # noqa: SIM115 - closed by __exit__
        except OSError as error:
            raise InputError(
                f"{self.path} cannot be read ({error.strerror}); give the path of a file."
            ) from None
        self._raw = raw
        self._buffer, self._offset, self._start = b"", 0, 0
        # Only the content tells whether a file is gzipped: names lie.
        self._file: IO[bytes] | gzip.GzipFile = raw
        if self.peek(2) == b"\x1f\x8b":
            self._file = gzip.GzipFile(fileobj=cast(IO[bytes], _Rewound(self._buffer, raw)))
            self._buffer = b""

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._raw.close()

    @property
    def position(self) -> int:
        """Bytes taken so far (after unpacking)."""
        return self._start + self._offset

    def peek(self, size: int) -> bytes:
        """The next ``size`` bytes, or what is left of them, without taking them."""
        self._fill(size)
        return self._buffer[self._offset : self._offset + size]

    def take(self, size: int) -> bytes | None:
        """Take ``size`` bytes; None if fewer are left."""
        self._fill(size)
        if len(self._buffer) - self._offset < size:
            return None
        self._offset += size
        return self._buffer[self._offset - size : self._offset]

    def skip(self, size: int) -> None:
        """Pass over bytes that ``peek`` has shown."""
        self._offset += size

    def take_until(self, mark: bytes, limit: int) -> bytes | None:
        """Take the bytes before ``mark``, and the mark; None if it is not within ``limit`` bytes."""
        found = self._buffer.find(mark, self._offset, self._offset + limit + 1)
        if found < 0:
            self._fill(limit + 1)
            found = self._buffer.find(mark, self._offset, self._offset + limit + 1)
            if found < 0:
                return None
        taken = self._buffer[self._offset : found]
        self._offset = found + len(mark)
        return taken

    def peek_line(self, limit: int) -> bytes | None:
        """The next line with its end, without taking it; None if it is longer than ``limit``."""
        line = self.take_line(limit)
        self._offset -= len(line or b"")
        return line

    def take_line(self, limit: int) -> bytes | None:
        """Take the next line with its end (the last may lack one); None if it is longer than ``limit``."""
        line = self.take_until(b"\n", limit)
        if line is not None:
            return line + b"\n"
        rest = self.peek(limit + 1)
        if len(rest) > limit or not rest:
            return None
        self._offset += len(rest)
        return rest

    def at_end(self) -> bool:
        """Whether nothing is left."""
        return not self.peek(1)

    def end(self) -> int:
        """The position of the end; takes everything that is left."""
        while self.peek(1):
            self.skip(len(self._buffer) - self._offset)
        return self.position

    def _fill(self, size: int) -> None:
        have = len(self._buffer) - self._offset
        if have >= size:
            return
        parts = [self._buffer[self._offset :]]
        self._start += self._offset
        while have < size:
            try:
                chunk = self._file.read(CHUNK_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise InputError(
                    f"{self.path}, byte {self._start + have} after unpacking: the gzip stream is damaged or "
                    f"cut off ({error}); fetch the file again."
                ) from None
            except OSError as error:
                raise InputError(f"{self.path} cannot be read ({error.strerror}); give a file.") from None
            if not chunk:
                break
            parts.append(chunk)
            have += len(chunk)
        self._buffer, self._offset = b"".join(parts), 0


class _Rewound:
    """A file with the bytes that were read too early put back in front."""

    def __init__(self, early: bytes, file: IO[bytes]) -> None:
        self._early, self._file = early, file

    def read(self, size: int = -1) -> bytes:
        if self._early:
            early, self._early = self._early[:size], self._early[size:]
            return early
        return self._file.read(size)
