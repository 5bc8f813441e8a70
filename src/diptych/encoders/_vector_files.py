"""Files of word vectors.

They are those of word2vec, GloVe and fastText, read as a stream. The content decides the format,
not the file name. Only the requested words are kept in memory. Nothing in a file is executed, and no memory
is allocated because a header asks for it.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import gzip
import io
import itertools
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych._checks import InputError, check_count
from diptych.encoders._word_vectors import WordVectors

DEFAULT_MAX_BYTES = 4 * 2**30
CHUNK_BYTES = 2**20
MAX_DIMENSIONS = 2**16
MAX_WORD_BYTES = 4096
MAX_LINE_BYTES = 2**22

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
Entry: TypeAlias = tuple[bytes, Vector, str]
"""A word's bytes, its vector, and its place in the file for messages."""

_OTHER_FORMATS = {
    b"\xba\x16\x4f\x2f": "a fastText model (.bin); pass the .vec file published beside it",
    b"PK\x03\x04": "a zip archive; unpack it and pass the file inside",
    b"\x93NUMPY": "a NumPy array without words; pass WordVectors(words, numpy.load(path))",
    **{
        bytes([0x80, protocol]): "a Python pickle, which is never loaded; write it as word2vec text first"
        for protocol in (2, 3, 4, 5)
    },
}
_FORMATS = "expected word vectors (word2vec, GloVe or fastText .vec)."


def read_word_vectors(
    path: str | os.PathLike[str],
    words: Iterable[str] | None = None,
    *,
    first: int | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> WordVectors:
    r"""Read word vectors from a file.

    The formats are word2vec binary, word2vec text and fastText ``.vec`` (with a header line), and GloVe text
    (without). Each may be gzipped. If a word occurs twice, its first vector is used.

    Parameters
    ----------
    path
        The file.
    words
        Words to keep; None: all. Words that are not in the file are left out.
    first
        Keep the words of this many entries from the start, because most files have frequent words first.
        Without ``words``, the rest of the file is not read; with them, the first entries are kept besides,
        except those that are damaged.
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
    if first is not None:
        check_count(first, "first", minimum=1 if words is None else 0)
    if isinstance(words, str):
        raise InputError("words is one string; pass a list of words.")
    requested = None if words is None else {word.encode("utf-8", "surrogatepass") for word in words}
    with _open_file(path) as stream:
        file = _VectorFile(path, stream, requested, first or 0)
        entries = itertools.islice(_read_entries(file), first if words is None else None)
        return _collect(file, entries, max_bytes)


@contextlib.contextmanager
def _open_file(path: Path) -> Iterator[io.BufferedReader | gzip.GzipFile]:
    """Open a file, plain or gzipped, to be read once from its start, so that pipes work too."""
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2)[:2] == b"\x1f\x8b"
            yield gzip.GzipFile(fileobj=raw) if packed else raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(
            f"{path}: the gzip data is damaged or truncated ({error}); download the file again."
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); pass a file.") from None


@dataclass(frozen=True)
class _VectorFile:
    """An open file, and which entries of it are kept: those of ``words`` (None: all), and the first ones."""

    path: Path
    stream: io.BufferedReader | gzip.GzipFile
    words: set[bytes] | None
    first: int

    def requests(self, word: bytes) -> bool:
        """Return whether an entry is kept for its word."""
        return self.words is None or word in self.words

    def keeps(self, word: bytes, number: int) -> bool:
        """Return whether the entry with this number, counted from 1, is kept."""
        return number <= self.first or self.requests(word)

    def error(self, place: str, problem: str) -> InputError:
        """Return the error for a place in the file."""
        return InputError(f"{self.path}, {place}: {problem}")


def _collect(file: _VectorFile, entries: Iterable[Entry], max_bytes: int) -> WordVectors:
    words: dict[str, None] = {}
    # One buffer that grows with the kept vectors: never two copies of them, never the size in a header.
    rows, dimensions = bytearray(), 0
    for raw, values, place in entries:
        word, finite = _decode(raw), bool(np.all(np.isfinite(values)))
        fits = len(rows) + values.nbytes <= max_bytes
        if not file.requests(raw) and (word is None or not finite or not fits):
            continue  # one of the first entries, which nobody asked for, must not make a file unreadable
        if word is None:
            raise file.error(
                place,
                f"the word {raw[:20]!r} is not UTF-8; pass the words you need, so that it is skipped, or "
                "convert the file.",
            )
        if not finite:
            raise file.error(place, f"the vector of {word!r} contains NaN or infinity.")
        if word and word not in words:
            if not fits:
                raise InputError(
                    f"{file.path} has more than {max_bytes} bytes of vectors; pass the words you need, "
                    "first=, or a larger max_bytes."
                )
            words[word] = None
            rows += values.astype("<f4", copy=False).tobytes()
            dimensions = len(values)
    if not words:
        raise InputError(
            f"{file.path} contains no word vectors."
            if file.words is None
            else f"{file.path} has none of the {len(file.words)} requested words; check the language and "
            "letter case."
        )
    matrix = np.frombuffer(rows, dtype="<f4").reshape(len(words), dimensions)
    return WordVectors(tuple(words), matrix.astype(np.float32, copy=False))


def _decode(raw: bytes) -> str | None:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _parse_numbers(fields: list[bytes]) -> Vector | None:
    try:
        # Numbers beyond float32 become infinite, and infinities are refused later.
        with np.errstate(over="ignore"):
            return np.array([float(field) for field in fields], dtype=np.float32)
    except ValueError:
        return None


def _read_entries(file: _VectorFile) -> Iterator[Entry]:
    """Return the entries of a file that are kept; its first lines decide the format."""
    lines = iter(functools.partial(file.stream.readline, MAX_LINE_BYTES + 1), b"")
    line = next(lines, b"")
    if not line:
        raise InputError(f"{file.path} is empty; expected word vectors.")
    for magic, description in _OTHER_FORMATS.items():
        if line.startswith(magic):
            raise InputError(f"{file.path} is {description}.")
    if len(line) > MAX_LINE_BYTES:
        raise InputError(
            f"{file.path} does not begin with a line of at most {MAX_LINE_BYTES} bytes; {_FORMATS}"
        )
    text = line.removeprefix(codecs.BOM_UTF8)
    fields = text.split()
    if len(fields) == 2 and all(field.isdigit() and len(field) < 19 for field in fields):
        count, dimensions = int(fields[0]), int(fields[1])
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise file.error(
                "line 1",
                f"the header announces vectors of {dimensions} numbers; expected 1 to {MAX_DIMENSIONS}.",
            )
        second = next(lines, b"")
        if _is_text(second):
            return _text_entries(file, itertools.chain([second], lines), dimensions, count)
        return _binary_entries(file, second, len(line), dimensions, count)
    dimensions = len(fields) - 1
    if not 1 <= dimensions <= MAX_DIMENSIONS or _parse_numbers(fields[1:]) is None:
        raise file.error(
            "line 1",
            f"{line[:40]!r} is neither a header (two integers) nor a word followed by numbers; {_FORMATS}",
        )
    return _text_entries(file, itertools.chain([text], lines), dimensions, None)


def _is_text(line: bytes) -> bool:
    # Any number after the first word will do, so that a damaged text file gets the error of a text file.
    text = _decode(line) if len(line) <= MAX_LINE_BYTES else None
    if text is None or not text.replace("\t", " ").rstrip("\r\n").isprintable():
        return False
    return any(_parse_numbers([field.encode()]) is not None for field in text.split()[1:])


def _binary_entries(
    file: _VectorFile, buffer: bytes, start: int, dimensions: int, count: int
) -> Iterator[Entry]:
    """Yield the entries of a binary file, of which ``buffer`` has been read; it begins at byte ``start``."""
    offset, size = 0, 4 * dimensions
    damaged = f"the file is damaged, or its vectors do not have {dimensions} numbers each."
    for number in range(1, count + 1):
        space = buffer.find(b" ", offset, offset + MAX_WORD_BYTES + 1)
        if space < 0 or len(buffer) <= space + size:
            buffer, start, offset = buffer[offset:] + file.stream.read(CHUNK_BYTES), start + offset, 0
            space = buffer.find(b" ", 0, MAX_WORD_BYTES + 1)
        place = f"byte {start + offset}"
        if space < 0 and len(buffer) > MAX_WORD_BYTES:
            raise file.error(place, f"no word ends within {MAX_WORD_BYTES} bytes; {damaged}")
        # Some writers end each vector with a line feed, some do not.
        word = buffer[offset : max(space, offset)].lstrip(b"\n")
        if _decode(word) is None:
            raise file.error(place, f"word {number} is not UTF-8 ({word[:20]!r}); {damaged}")
        if space < 0 or len(buffer) <= space + size:
            raise file.error(
                f"byte {start + len(buffer)}",
                f"the file ends inside word {number} of the {count} that the header announces; download the "
                "file again, or read fewer with first=.",
            )
        if file.keeps(word, number):
            yield word, np.frombuffer(buffer, "<f4", dimensions, space + 1), place
        offset = space + 1 + size
    if (buffer[offset : offset + 64] + file.stream.read(64)).strip(b"\n"):
        raise file.error(
            f"byte {start + offset}",
            f"more follows after the {count} words that the header announces; the header is wrong, or the "
            f"vectors do not have {dimensions} numbers each.",
        )


def _text_entries(
    file: _VectorFile, lines: Iterable[bytes], dimensions: int, count: int | None
) -> Iterator[Entry]:
    # GloVe has words with spaces in them; they are recognised by their first part.
    heads = None if file.words is None else {word.split(b" ", 1)[0] for word in file.words}
    first_line = 1 if count is None else 2
    number, entries = first_line - 1, 0
    for number, line in enumerate(lines, first_line):
        place = f"line {number}"
        if len(line) > MAX_LINE_BYTES:
            raise file.error(
                place, f"the line is longer than {MAX_LINE_BYTES} bytes; expected a word and its numbers."
            )
        line = line.strip(b" \t\r\n")
        if not line:
            continue
        entries += 1
        separators = line.count(b" ") + line.count(b"\t")
        if separators < dimensions:
            raise file.error(
                place,
                f"{separators} numbers after {line[:20]!r}; expected {dimensions}, as at the start of the "
                "file.",
            )
        requested = heads is None or line.split(None, 1)[0] in heads
        if not requested and entries > file.first:
            continue
        fields = line.split()
        word, values = b" ".join(fields[:-dimensions]), _parse_numbers(fields[-dimensions:])
        if not word or (len(fields) > dimensions + 1 and _parse_numbers(fields[1:2]) is not None):
            values = None  # too few numbers, or too many
        if values is None and requested:
            raise file.error(place, f"{line[:40]!r} is not a word and {dimensions} numbers.")
        if values is not None and file.keeps(word, entries):
            yield word, values, place
    if count is not None and entries != count:
        raise file.error(
            f"line {number}",
            f"the file ends after {entries} words, but its header announces {count}; download the file "
            "again, or correct the header.",
        )
