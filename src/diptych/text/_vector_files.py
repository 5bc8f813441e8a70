"""A file as a stream of bytes, plain or gzipped, that is looked at before it is taken.

A NumPy array of vectors beside a list of words.

Word-vector files, read as a stream: only the wanted words are ever in memory.

The layout is told from the content, not from the file's name. Nothing in a file is executed, and nothing
is allocated because a header says so.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeAlias, cast

import numpy as np

from diptych._checks import InputError
from diptych._persistence import READ_ERRORS
from diptych.text._word_vectors import WordVectors

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


MAX_VOCABULARY_BYTES = 2**30
MAX_ROW_BYTES = 2**20
_MAX_HEADER_BYTES = 2**16


def npy_rows(
    stream: ByteStream, words: list[bytes], wanted: set[bytes] | None
) -> Iterator[tuple[bytes, np.ndarray[Any, Any] | None, str]]:
    """Each word with its row, in the order of the file; None instead of a row that nobody wants."""
    shape, dtype = _header(stream)
    if len(shape) != 2 or shape[0] != len(words):
        raise InputError(
            f"{stream.path} holds an array of shape {list(shape)} and the vocabulary {len(words)} words; "
            "expected one row for each word."
        )
    row_bytes = shape[1] * dtype.itemsize
    if not 1 <= row_bytes <= MAX_ROW_BYTES:
        raise InputError(
            f"{stream.path} holds rows of {row_bytes} bytes; expected 1 to {MAX_ROW_BYTES} for word vectors."
        )
    for number, word in enumerate(words):
        where = f"byte {stream.position}"
        raw = stream.take(row_bytes)
        if raw is None:
            raise InputError(
                f"{stream.path}, byte {stream.end()}: the file ends inside row {number} of {shape[0]}; "
                "fetch the file again."
            )
        row = None
        if wanted is None or word in wanted:
            with np.errstate(over="ignore"):
                row = np.frombuffer(raw, dtype=dtype).astype(np.float32)
        yield word, row, where


def read_vocabulary(path: Path, vocabulary: str | os.PathLike[str] | None) -> list[bytes]:
    """The words of a ``.npy`` file: one per line, or a JSON list of strings."""
    file = Path(vocabulary) if vocabulary is not None else _beside(path)
    with ByteStream(file) as stream:
        content = stream.peek(MAX_VOCABULARY_BYTES + 1)
    if len(content) > MAX_VOCABULARY_BYTES:
        raise InputError(f"{file} is larger than {MAX_VOCABULARY_BYTES} bytes; expected one word per line.")
    if not content.lstrip().startswith(b"["):
        return [line.rstrip(b"\r") for line in content.removesuffix(b"\n").split(b"\n")]
    try:
        words = json.loads(content)
    except (ValueError, RecursionError):
        # A plain list of words may well begin with a bracket.
        return [line.rstrip(b"\r") for line in content.removesuffix(b"\n").split(b"\n")]
    if not all(isinstance(word, str) for word in words):
        raise InputError(f"{file} holds a JSON list with entries that are not strings; give words.")
    return [word.encode("utf-8", "surrogatepass") for word in words]


def _beside(path: Path) -> Path:
    stem = path.with_suffix("") if path.suffix == ".gz" else path
    candidates = [stem.with_suffix(suffix) for suffix in (".txt", ".vocab", ".json")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise InputError(
        f"{path} is a NumPy array without a vocabulary; give vocabulary=, a file with one word per line, or "
        f"put it beside as {', '.join(candidate.name for candidate in candidates)}."
    )


def _header(stream: ByteStream) -> tuple[tuple[int, ...], np.dtype[Any]]:
    opening = io.BytesIO(stream.peek(_MAX_HEADER_BYTES))
    try:
        # NumPy reads a header as a literal, never as code; its later formats are not for plain arrays.
        version = np.lib.format.read_magic(opening)
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, fortran, dtype = read(opening, max_header_size=_MAX_HEADER_BYTES)
    except READ_ERRORS as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{stream.path}, byte 6: the .npy header is damaged ({reason}); write the array again."
        ) from None
    stream.skip(opening.tell())
    if dtype.kind != "f" or fortran:
        order = "columns first" if fortran else "rows first"
        raise InputError(
            f"{stream.path} holds {dtype} in {order}; expected real numbers in rows, as "
            "np.save(path, np.ascontiguousarray(vectors, dtype=np.float32)) writes them."
        )
    return shape, dtype


DEFAULT_MAX_BYTES = 4 * 2**30
"""How much the kept vectors may take, unless a reader is told otherwise."""

MAX_DIMENSIONS = 2**16
MAX_WORD_BYTES = 4096
MAX_LINE_BYTES = 2**22

_NPY_MAGIC = b"\x93NUMPY"
_NOT_VECTORS = {
    b"\xba\x16\x4f\x2f": "a fastText model (.bin); give the .vec file published beside it",
    b"PK\x03\x04": "a zip archive; unpack it and give the file inside",
    b"\x80\x02": "a Python pickle, which is never loaded; write it as word2vec text first",
    b"\x80\x03": "a Python pickle, which is never loaded; write it as word2vec text first",
    b"\x80\x04": "a Python pickle, which is never loaded; write it as word2vec text first",
    b"\x80\x05": "a Python pickle, which is never loaded; write it as word2vec text first",
}

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Entry: TypeAlias = tuple[bytes, Vector | None, str]
"""A word's bytes, its vector unless nobody wants it, and where in the file it stands."""


def read_word_vectors(
    path: str | os.PathLike[str],
    words: Iterable[str] | None = None,
    *,
    limit: int | None = None,
    vocabulary: str | os.PathLike[str] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> WordVectors:
    r"""Read the vectors of ``words`` from a file.

    word2vec binary, word2vec text and fastText ``.vec`` (a header line), GloVe text (no header) and
    NumPy ``.npy`` beside a vocabulary are recognised by their content, each plain or gzipped. Of a word
    that occurs twice the first vector counts.

    Parameters
    ----------
    path
        The file.
    words
        The words to keep; None keeps all. Words that the file does not know are left out.
    limit
        Read at most this many entries from the start: most files put frequent words first.
    vocabulary
        For ``.npy`` only: a text file with one word per line, or a JSON list; by default the file of
        the same name that ends in ``.txt``, ``.vocab`` or ``.json``.
    max_bytes
        Refuse to keep more than this many bytes of vectors.

    Returns
    -------
    WordVectors
        float32 vectors in the order of the file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "vectors.txt")
    ...     _ = file.write_text("dog 1 0 0\ncat 0 1 0\ntree 0 0 1\n")
    ...     read_word_vectors(file, ["tree", "dog", "unicorn"]).words
    ('dog', 'tree')
    """
    path = Path(path)
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} is below 1; give the number of entries to read, or None for all.")
    wanted = None if words is None else _encoded(words)
    with ByteStream(path) as stream:
        for magic, what in _NOT_VECTORS.items():
            if stream.peek(len(magic)) == magic:
                raise InputError(f"{path} is {what}.")
        if stream.peek(len(_NPY_MAGIC)) == _NPY_MAGIC:
            names = read_vocabulary(path, vocabulary)
            entries = npy_rows(stream, names, wanted)
        else:
            entries = _entries(stream, wanted)
        return _collect(entries, path, wanted, limit, max_bytes)


def _encoded(words: Iterable[str]) -> set[bytes]:
    if isinstance(words, str):
        raise InputError("words is one string; give a list of words.")
    return {word.encode("utf-8", "surrogatepass") for word in words}


def _entries(stream: ByteStream, wanted: set[bytes] | None) -> Iterator[Entry]:
    if stream.at_end():
        raise InputError(f"{stream.path} is empty; expected word vectors.")
    if stream.peek(3) == b"\xef\xbb\xbf":
        stream.skip(3)  # the byte order mark that some editors put before UTF-8
    first = stream.peek_line(MAX_LINE_BYTES)
    if first is None:
        raise InputError(
            f"{stream.path} does not begin with a line of at most {MAX_LINE_BYTES} bytes; "
            "expected word vectors (word2vec, GloVe, fastText .vec or .npy)."
        )
    fields = first.split()
    if len(fields) == 2 and all(field.isdigit() and len(field) < 19 for field in fields):
        stream.skip(len(first))
        count, dimensions = int(fields[0]), int(fields[1])
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise InputError(
                f"{stream.path}, line 1: the header announces vectors of {dimensions} numbers; "
                f"expected 1 to {MAX_DIMENSIONS}."
            )
        if _continues_as_text(stream):
            return _text_entries(stream, wanted, dimensions, count, first_line=2)
        return _binary_entries(stream, wanted, dimensions, count)
    dimensions = len(fields) - 1
    if not 1 <= dimensions <= MAX_DIMENSIONS or _numbers(fields[1:]) is None:
        raise InputError(
            f"{stream.path}, line 1: {first[:40]!r} is neither a header (two whole numbers) nor a word "
            "followed by numbers; expected word vectors (word2vec, GloVe, fastText .vec or .npy)."
        )
    return _text_entries(stream, wanted, dimensions, None, first_line=1)


def _continues_as_text(stream: ByteStream) -> bool:
    # A text file with a wrong header or a damaged line is then told as such, and not as a binary one.
    try:
        line = (stream.peek_line(MAX_LINE_BYTES) or b"").decode("utf-8")
    except UnicodeDecodeError:
        return False
    printable = line.replace("\t", " ").rstrip("\r\n").isprintable()
    return printable and any(_numbers([field.encode()]) is not None for field in line.split()[1:])


def _binary_entries(
    stream: ByteStream, wanted: set[bytes] | None, dimensions: int, count: int
) -> Iterator[Entry]:
    size = 4 * dimensions
    for number in range(1, count + 1):
        start = stream.position
        raw = stream.take_until(b" ", MAX_WORD_BYTES)
        if raw is None:
            if len(stream.peek(MAX_WORD_BYTES + 1)) <= MAX_WORD_BYTES:
                raise _truncated(stream, number, count)
            raise InputError(
                f"{stream.path}, byte {start}: no word ends within {MAX_WORD_BYTES} bytes; the file is "
                f"damaged, or its vectors do not have {dimensions} numbers each."
            )
        # Some writers end each vector with a line feed, some do not.
        word = raw.lstrip(b"\n")
        try:
            word.decode("utf-8")
        except UnicodeDecodeError:
            raise InputError(
                f"{stream.path}, byte {start}: word {number} is not UTF-8 ({word[:20]!r}); the file is "
                f"damaged, or its vectors do not have {dimensions} numbers each."
            ) from None
        values = stream.take(size)
        if values is None:
            raise _truncated(stream, number, count)
        if wanted is None or word in wanted:
            yield word, np.frombuffer(values, dtype="<f4"), f"byte {start}"
        else:
            yield word, None, ""
    rest = stream.position
    if stream.peek(64).strip(b"\n"):
        raise InputError(
            f"{stream.path}, byte {rest}: more follows after the {count} words that the header announces; "
            f"the header is wrong, or the vectors do not have {dimensions} numbers each."
        )


def _truncated(stream: ByteStream, number: int, count: int) -> InputError:
    return InputError(
        f"{stream.path}, byte {stream.end()}: the file ends inside word {number} of the {count} that the "
        "header announces; fetch the file again, or read fewer with limit=."
    )


def _text_entries(
    stream: ByteStream, wanted: set[bytes] | None, dimensions: int, count: int | None, first_line: int
) -> Iterator[Entry]:
    # A word with spaces in it (GloVe has some) is found by its first part.
    heads = None if wanted is None else {word.split(b" ", 1)[0] for word in wanted}
    number = first_line - 1
    seen = 0
    while not stream.at_end():
        number += 1
        line = stream.take_line(MAX_LINE_BYTES)
        if line is None:
            raise InputError(
                f"{stream.path}, line {number}: the line is longer than {MAX_LINE_BYTES} bytes; "
                "expected a word and its numbers."
            )
        line = line.strip(b" \t\r\n")
        if not line:
            continue
        seen += 1
        separators = line.count(b" ") + line.count(b"\t")
        if separators < dimensions:
            raise InputError(
                f"{stream.path}, line {number}: {separators} numbers after {line[:20]!r}; "
                f"expected {dimensions}, as the file began with."
            )
        if heads is not None and line.split(None, 1)[0] not in heads:
            yield b"", None, ""
            continue
        fields = line.split()
        values = _numbers(fields[-dimensions:])
        too_many = len(fields) > dimensions + 1 and _numbers(fields[1:2]) is not None
        if values is None or too_many or len(fields) <= dimensions:
            raise InputError(
                f"{stream.path}, line {number}: {line[:40]!r} is not a word and {dimensions} numbers."
            )
        word = b" ".join(fields[:-dimensions])
        yield word, values if wanted is None or word in wanted else None, f"line {number}"
    if count is not None and seen != count:
        raise InputError(
            f"{stream.path}, line {number}: the file ends after {seen} words, but its header announces "
            f"{count}; fetch the file again, or correct the header."
        )


def _numbers(fields: list[bytes]) -> Vector | None:
    try:
        # What is beyond float32 becomes infinite here, and is refused like any other infinity.
        with np.errstate(over="ignore"):
            return np.array([float(field) for field in fields], dtype=np.float32)
    except ValueError:
        return None


def _collect(
    entries: Iterator[Entry], path: Path, wanted: set[bytes] | None, limit: int | None, max_bytes: int
) -> WordVectors:
    kept: dict[str, None] = {}
    # One buffer that grows with what is kept: never twice the vectors, never what a header claims.
    rows, dimensions = bytearray(), 0
    for number, (raw, values, where) in enumerate(entries, start=1):
        if values is not None:
            word = _decoded(raw, path, where)
            if not np.all(np.isfinite(values)):
                raise InputError(f"{path}, {where}: the vector of {word!r} holds NaN or infinity.")
            if word and word not in kept:
                if len(rows) + values.nbytes > max_bytes:
                    raise InputError(
                        f"{path} holds more than {max_bytes} bytes of vectors; give the words you need, a "
                        "limit, or a larger max_bytes."
                    )
                kept[word] = None
                rows += values.astype("<f4", copy=False).tobytes()
                dimensions = len(values)
        if number == limit:
            break
    if not kept:
        raise InputError(
            f"{path} knows none of the {len(wanted)} words asked for; check the language and the letter case."
            if wanted is not None
            else f"{path} holds no word vectors."
        )
    matrix = np.frombuffer(rows, dtype="<f4").reshape(len(kept), dimensions)
    return WordVectors(tuple(kept), matrix.astype(np.float32, copy=False))


def _decoded(raw: bytes, path: Path, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{path}, {where}: the word {raw[:20]!r} is not UTF-8; give the words you need, so that it is "
            "passed over, or convert the file."
        ) from None
