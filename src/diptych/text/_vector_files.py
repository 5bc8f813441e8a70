"""Files of word vectors: word2vec, GloVe, fastText and NumPy, read as a stream.

The content decides the format, not the file name. Only the requested words are kept in memory. Nothing in a
file is executed, and no memory is allocated because a header asks for it.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np

from diptych._checks import InputError, check_count
from diptych._persistence import READ_ERRORS
from diptych.text._word_vectors import WordVectors

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Entry: TypeAlias = tuple[bytes, Vector | None, str]
"""A word's bytes, its vector (None if it was not requested), and its place in the file for messages."""

DEFAULT_MAX_BYTES = 4 * 2**30
CHUNK_BYTES = 2**20
MAX_DIMENSIONS = 2**16
MAX_WORD_BYTES = 4096
MAX_LINE_BYTES = 2**22
MAX_ROW_BYTES = 2**20
MAX_VOCABULARY_BYTES = 2**30
MAX_HEADER_BYTES = 2**16

_NPY_MAGIC = b"\x93NUMPY"
_OTHER_FORMATS = {
    b"\xba\x16\x4f\x2f": "a fastText model (.bin); pass the .vec file published beside it",
    b"PK\x03\x04": "a zip archive; unpack it and pass the file inside",
    **{
        bytes([0x80, protocol]): "a Python pickle, which is never loaded; write it as word2vec text first"
        for protocol in (2, 3, 4, 5)
    },
}


def read_word_vectors(
    path: str | os.PathLike[str],
    words: Iterable[str] | None = None,
    *,
    first: int = 0,
    limit: int | None = None,
    vocabulary: str | os.PathLike[str] | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> WordVectors:
    r"""Read word vectors from a file.

    The formats are word2vec binary, word2vec text and fastText ``.vec`` (with a header line), GloVe text
    (without), and NumPy ``.npy`` with a vocabulary file. Each may be gzipped. If a word occurs twice, its
    first vector is used.

    Parameters
    ----------
    path
        The file.
    words
        Words to keep; None: all. Words that are not in the file are left out.
    first
        Besides ``words``, keep the words of this many entries from the start, except entries that are
        damaged; most files have frequent words first.
    limit
        Read at most this many entries from the start.
    vocabulary
        For ``.npy`` only: a text file with one word per line, or a JSON list. None: the file with the same
        name that ends in ``.txt``, ``.vocab`` or ``.json``.
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
    check_count(first, "first", minimum=0)
    if words is None and first:
        raise InputError("first= is for entries besides words=; pass words=, or limit= in its place.")
    if limit is not None and limit < 1:
        raise InputError(f"limit={limit} is below 1; pass the number of entries to read, or None for all.")
    if isinstance(words, str):
        raise InputError("words is one string; pass a list of words.")
    encoded = None if words is None else {word.encode("utf-8", "surrogatepass") for word in words}
    wanted = Wanted(encoded, first)
    with ByteStream(path) as stream:
        for magic, description in _OTHER_FORMATS.items():
            if stream.peek(len(magic)) == magic:
                raise InputError(f"{path} is {description}.")
        if stream.peek(len(_NPY_MAGIC)) == _NPY_MAGIC:
            entries = _npy_entries(stream, _read_vocabulary(path, vocabulary), wanted)
        else:
            entries = _word2vec_entries(stream, wanted)
        return _collect(entries, path, wanted, limit, max_bytes)


@dataclass(frozen=True)
class Wanted:
    """Which entries of a file are kept: those of ``words`` (None: of all words), and the first entries."""

    words: set[bytes] | None
    first: int

    def requests(self, word: bytes) -> bool:
        """Return whether an entry is kept for its word."""
        return self.words is None or word in self.words

    def keeps(self, word: bytes, number: int) -> bool:
        """Return whether the entry with this number, counted from 1, is kept."""
        return number <= self.first or self.requests(word)


class ByteStream:
    """Reads a file in chunks, plain or gzipped, and lets the caller look at bytes before taking them.

    It never seeks, so pipes work too, and its memory is one chunk plus what a caller asks for.
    ``io.BufferedReader.peek`` does not replace it: it returns what happens to be in its buffer, which may be
    less than one line or word, and it cannot find the end of a word within a limit.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._buffer, self._offset, self._start = b"", 0, 0
        try:
            self._raw = open(self.path, "rb")  # noqa: SIM115, closed by __exit__
            packed = self._raw.peek(2)[:2] == b"\x1f\x8b"
        except OSError as error:
            raise InputError(f"{self.path} cannot be read ({error.strerror}); pass a file.") from None
        self._file: IO[bytes] | gzip.GzipFile = gzip.GzipFile(fileobj=self._raw) if packed else self._raw

    def __enter__(self) -> ByteStream:
        return self

    def __exit__(self, *exception: object) -> None:
        self._raw.close()

    @property
    def position(self) -> int:
        """Number of (unpacked) bytes taken."""
        return self._start + self._offset

    @property
    def end(self) -> int:
        """Number of (unpacked) bytes read; the size of the file once fewer bytes came than were asked for."""
        return self._start + len(self._buffer)

    def peek(self, size: int) -> bytes:
        """Return the next ``size`` bytes, or fewer at the end of the file, without taking them."""
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
        """Take bytes that ``peek`` has returned."""
        self._offset += size

    def take_until(self, mark: bytes, limit: int) -> bytes | None:
        """Take the bytes before ``mark``, and the mark; None if it is not within ``limit`` bytes."""
        position = self._buffer.find(mark, self._offset, self._offset + limit + 1)
        if position < 0:
            self._fill(limit + 1)
            position = self._buffer.find(mark, self._offset, self._offset + limit + 1)
            if position < 0:
                return None
        content = self._buffer[self._offset : position]
        self._offset = position + len(mark)
        return content

    def take_line(self, limit: int) -> bytes | None:
        """Take the next line with its end, which the last line may lack; None if it is over ``limit``."""
        line = self.take_until(b"\n", limit)
        if line is not None:
            return line + b"\n"
        rest = self.peek(limit + 1)
        if len(rest) > limit or not rest:
            return None
        self._offset += len(rest)
        return rest

    def peek_line(self, limit: int) -> bytes | None:
        """Return the next line like ``take_line``, without taking it."""
        line = self.take_line(limit)
        self._offset -= len(line or b"")
        return line

    def _fill(self, size: int) -> None:
        available = len(self._buffer) - self._offset
        if available >= size:
            return
        parts = [self._buffer[self._offset :]]
        self._start += self._offset
        while available < size:
            try:
                chunk = self._file.read(CHUNK_BYTES)
            except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                raise InputError(
                    f"{self.path}, byte {self._start + available} after unpacking: the gzip data is damaged "
                    f"or truncated ({error}); download the file again."
                ) from None
            except OSError as error:
                raise InputError(f"{self.path} cannot be read ({error.strerror}); pass a file.") from None
            if not chunk:
                break
            parts.append(chunk)
            available += len(chunk)
        self._buffer, self._offset = b"".join(parts), 0


def _collect(
    entries: Iterator[Entry], path: Path, wanted: Wanted, limit: int | None, max_bytes: int
) -> WordVectors:
    words: dict[str, None] = {}
    # One buffer that grows with the kept vectors: never two copies of them, never the size in a header.
    rows, dimensions = bytearray(), 0
    for raw, values, place in itertools.islice(entries, limit):
        if values is None:
            continue
        finite, fits = bool(np.all(np.isfinite(values))), len(rows) + values.nbytes <= max_bytes
        if not wanted.requests(raw) and not (finite and fits and _is_utf8(raw)):
            continue  # one of the first entries, which nobody asked for, must not make a file unreadable
        word = _decode_word(raw, path, place)
        if not finite:
            raise InputError(f"{path}, {place}: the vector of {word!r} contains NaN or infinity.")
        if word and word not in words:
            if not fits:
                raise InputError(
                    f"{path} has more than {max_bytes} bytes of vectors; pass the words you need, a limit, "
                    "or a larger max_bytes."
                )
            words[word] = None
            rows += values.astype("<f4", copy=False).tobytes()
            dimensions = len(values)
    if not words:
        raise InputError(
            f"{path} has none of the {len(wanted.words)} requested words; check the language and letter case."
            if wanted.words is not None
            else f"{path} contains no word vectors."
        )
    matrix = np.frombuffer(rows, dtype="<f4").reshape(len(words), dimensions)
    return WordVectors(tuple(words), matrix.astype(np.float32, copy=False))


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _decode_word(raw: bytes, path: Path, place: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{path}, {place}: the word {raw[:20]!r} is not UTF-8; pass the words you need, so that it is "
            "skipped, or convert the file."
        ) from None


def _word2vec_entries(stream: ByteStream, wanted: Wanted) -> Iterator[Entry]:
    """Return the entries of a word2vec, GloVe or fastText file; its first lines decide the format."""
    if not stream.peek(1):
        raise InputError(f"{stream.path} is empty; expected word vectors.")
    if stream.peek(3) == b"\xef\xbb\xbf":
        stream.skip(3)  # a UTF-8 byte order mark
    line = stream.peek_line(MAX_LINE_BYTES)
    if line is None:
        raise InputError(
            f"{stream.path} does not begin with a line of at most {MAX_LINE_BYTES} bytes; "
            "expected word vectors (word2vec, GloVe, fastText .vec or .npy)."
        )
    fields = line.split()
    if len(fields) == 2 and all(field.isdigit() and len(field) < 19 for field in fields):
        stream.skip(len(line))
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
    if not 1 <= dimensions <= MAX_DIMENSIONS or _parse_numbers(fields[1:]) is None:
        raise InputError(
            f"{stream.path}, line 1: {line[:40]!r} is neither a header (two integers) nor a word "
            "followed by numbers; expected word vectors (word2vec, GloVe, fastText .vec or .npy)."
        )
    return _text_entries(stream, wanted, dimensions, None, first_line=1)


def _continues_as_text(stream: ByteStream) -> bool:
    # Any number after the first word will do, so that a damaged text file gets the error of a text file.
    try:
        line = (stream.peek_line(MAX_LINE_BYTES) or b"").decode("utf-8")
    except UnicodeDecodeError:
        return False
    printable = line.replace("\t", " ").rstrip("\r\n").isprintable()
    return printable and any(_parse_numbers([field.encode()]) is not None for field in line.split()[1:])


def _binary_entries(stream: ByteStream, wanted: Wanted, dimensions: int, count: int) -> Iterator[Entry]:
    path, size = stream.path, 4 * dimensions
    damaged = f"the file is damaged, or its vectors do not have {dimensions} numbers each."
    for number in range(1, count + 1):
        start = stream.position
        raw = stream.take_until(b" ", MAX_WORD_BYTES)
        if raw is None and len(stream.peek(MAX_WORD_BYTES + 1)) > MAX_WORD_BYTES:
            raise InputError(f"{path}, byte {start}: no word ends within {MAX_WORD_BYTES} bytes; {damaged}")
        # Some writers end each vector with a line feed, some do not.
        word = (raw or b"").lstrip(b"\n")
        if not _is_utf8(word):
            raise InputError(f"{path}, byte {start}: word {number} is not UTF-8 ({word[:20]!r}); {damaged}")
        values = None if raw is None else stream.take(size)
        if values is None:
            raise InputError(
                f"{path}, byte {stream.end}: the file ends inside word {number} of the {count} that the "
                "header announces; download the file again, or read fewer with limit=."
            )
        if wanted.keeps(word, number):
            yield word, np.frombuffer(values, dtype="<f4"), f"byte {start}"
        else:
            yield word, None, ""
    if stream.peek(64).strip(b"\n"):
        raise InputError(
            f"{path}, byte {stream.position}: more follows after the {count} words that the header "
            f"announces; the header is wrong, or the vectors do not have {dimensions} numbers each."
        )


def _text_entries(
    stream: ByteStream, wanted: Wanted, dimensions: int, count: int | None, first_line: int
) -> Iterator[Entry]:
    # GloVe has words with spaces in them; they are found by their first part.
    heads = None if wanted.words is None else {word.split(b" ", 1)[0] for word in wanted.words}
    number, entries = first_line - 1, 0
    while stream.peek(1):
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
        entries += 1
        separators = line.count(b" ") + line.count(b"\t")
        if separators < dimensions:
            raise InputError(
                f"{stream.path}, line {number}: {separators} numbers after {line[:20]!r}; "
                f"expected {dimensions}, as at the start of the file."
            )
        requested = heads is None or line.split(None, 1)[0] in heads
        if not requested and entries > wanted.first:
            yield b"", None, ""
            continue
        fields = line.split()
        values = _parse_numbers(fields[-dimensions:])
        too_many = len(fields) > dimensions + 1 and _parse_numbers(fields[1:2]) is not None
        if values is None or too_many or len(fields) <= dimensions:
            if not requested:
                yield b"", None, ""
                continue
            raise InputError(
                f"{stream.path}, line {number}: {line[:40]!r} is not a word and {dimensions} numbers."
            )
        word = b" ".join(fields[:-dimensions])
        yield word, values if wanted.keeps(word, entries) else None, f"line {number}"
    if count is not None and entries != count:
        raise InputError(
            f"{stream.path}, line {number}: the file ends after {entries} words, but its header announces "
            f"{count}; download the file again, or correct the header."
        )


def _parse_numbers(fields: list[bytes]) -> Vector | None:
    try:
        # Numbers beyond float32 become infinite, and infinities are refused later.
        with np.errstate(over="ignore"):
            return np.array([float(field) for field in fields], dtype=np.float32)
    except ValueError:
        return None


def _npy_entries(stream: ByteStream, words: list[bytes], wanted: Wanted) -> Iterator[Entry]:
    shape, dtype = _read_npy_header(stream)
    if len(shape) != 2 or shape[0] != len(words):
        raise InputError(
            f"{stream.path} has an array of shape {list(shape)} and the vocabulary {len(words)} words; "
            "expected one row for each word."
        )
    row_bytes = shape[1] * dtype.itemsize
    if not 1 <= row_bytes <= MAX_ROW_BYTES:
        raise InputError(
            f"{stream.path} has rows of {row_bytes} bytes; expected 1 to {MAX_ROW_BYTES} for word vectors."
        )
    for number, word in enumerate(words):
        place = f"byte {stream.position}"
        raw = stream.take(row_bytes)
        if raw is None:
            raise InputError(
                f"{stream.path}, byte {stream.end}: the file ends inside row {number} of {shape[0]}; "
                "download the file again."
            )
        row = None
        if wanted.keeps(word, number + 1):
            with np.errstate(over="ignore"):
                row = np.frombuffer(raw, dtype=dtype).astype(np.float32)
        yield word, row, place


def _read_npy_header(stream: ByteStream) -> tuple[tuple[int, ...], np.dtype[Any]]:
    header = io.BytesIO(stream.peek(MAX_HEADER_BYTES))
    try:
        # NumPy parses the header as a literal, never as code. Its later versions are not for plain arrays.
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[np.lib.format.read_magic(header)]
        shape, fortran, dtype = read(header, max_header_size=MAX_HEADER_BYTES)
    except READ_ERRORS as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(
            f"{stream.path}, byte 6: the .npy header is damaged ({reason}); write the array again."
        ) from None
    stream.skip(header.tell())
    if dtype.kind != "f" or fortran:
        order = "columns first" if fortran else "rows first"
        raise InputError(
            f"{stream.path} has {dtype} in {order}; expected real numbers in rows, as "
            "np.save(path, np.ascontiguousarray(vectors, dtype=np.float32)) writes them."
        )
    return shape, dtype


def _read_vocabulary(path: Path, vocabulary: str | os.PathLike[str] | None) -> list[bytes]:
    """Read the words of a ``.npy`` file: one per line, or a JSON list of strings."""
    file = Path(vocabulary) if vocabulary is not None else _find_vocabulary(path)
    with ByteStream(file) as stream:
        content = stream.peek(MAX_VOCABULARY_BYTES + 1)
    if len(content) > MAX_VOCABULARY_BYTES:
        raise InputError(f"{file} is larger than {MAX_VOCABULARY_BYTES} bytes; expected one word per line.")
    words = None
    if content.lstrip().startswith(b"["):
        # A plain list of words may begin with a bracket, too.
        with contextlib.suppress(ValueError, RecursionError):
            words = json.loads(content)
    if words is None:
        return [line.rstrip(b"\r") for line in content.removesuffix(b"\n").split(b"\n")]
    if not all(isinstance(word, str) for word in words):
        raise InputError(f"{file} has a JSON list with entries that are not strings; pass a list of words.")
    return [word.encode("utf-8", "surrogatepass") for word in words]


def _find_vocabulary(path: Path) -> Path:
    stem = path.with_suffix("") if path.suffix == ".gz" else path
    candidates = [stem.with_suffix(suffix) for suffix in (".txt", ".vocab", ".json")]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    raise InputError(
        f"{path} is a NumPy array without a vocabulary; pass vocabulary=, a file with one word per line, or "
        f"put one beside it: {', '.join(candidate.name for candidate in candidates)}."
    )
