"""Files of word vectors: word2vec, GloVe, fastText and NumPy, read as a stream.

The content decides the format, not the file name. Only the requested words are kept in memory. Nothing in a
file is executed, and no memory is allocated because a header asks for it.
"""

from __future__ import annotations

import codecs
import contextlib
import functools
import gzip
import io
import itertools
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych._checks import InputError, check_count
from diptych._persistence import READ_ERRORS
from diptych.encoders._word_vectors import WordVectors

Vector: TypeAlias = np.ndarray[Any, np.dtype[np.float32]]
File: TypeAlias = io.BufferedReader | gzip.GzipFile
Entry: TypeAlias = tuple[bytes, Vector | None, str]
"""A word's bytes, its vector (None if it was not requested), and its place in the file for messages."""

DEFAULT_MAX_BYTES = 4 * 2**30
CHUNK_BYTES = 2**20
MAX_DIMENSIONS = 2**16
MAX_WORD_BYTES = 4096
MAX_LINE_BYTES = 2**22
MAX_ROW_BYTES = 2**20
MAX_VOCABULARY_BYTES = 2**30

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
    with _open_file(path) as file:
        if file.peek(len(_NPY_MAGIC)).startswith(_NPY_MAGIC):
            entries = _npy_entries(file, path, _read_vocabulary(path, vocabulary), wanted)
        else:
            entries = _word2vec_entries(file, path, wanted)
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


@contextlib.contextmanager
def _open_file(path: Path) -> Iterator[File]:
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


def _word2vec_entries(file: File, path: Path, wanted: Wanted) -> Iterator[Entry]:
    """Return the entries of a word2vec, GloVe or fastText file; its first lines decide the format."""
    lines = iter(functools.partial(file.readline, MAX_LINE_BYTES + 1), b"")
    line = next(lines, b"")
    if not line:
        raise InputError(f"{path} is empty; expected word vectors.")
    for magic, description in _OTHER_FORMATS.items():
        if line.startswith(magic):
            raise InputError(f"{path} is {description}.")
    if len(line) > MAX_LINE_BYTES:
        raise InputError(
            f"{path} does not begin with a line of at most {MAX_LINE_BYTES} bytes; "
            "expected word vectors (word2vec, GloVe, fastText .vec or .npy)."
        )
    fields = line.removeprefix(codecs.BOM_UTF8).split()
    if len(fields) == 2 and all(field.isdigit() and len(field) < 19 for field in fields):
        count, dimensions = int(fields[0]), int(fields[1])
        if not 1 <= dimensions <= MAX_DIMENSIONS:
            raise InputError(
                f"{path}, line 1: the header announces vectors of {dimensions} numbers; "
                f"expected 1 to {MAX_DIMENSIONS}."
            )
        second = next(lines, b"")
        if _is_text(second):
            return _text_entries(itertools.chain([second], lines), path, wanted, dimensions, count)
        return _binary_entries(file, second, len(line), path, wanted, dimensions, count)
    dimensions = len(fields) - 1
    if not 1 <= dimensions <= MAX_DIMENSIONS or _parse_numbers(fields[1:]) is None:
        raise InputError(
            f"{path}, line 1: {line[:40]!r} is neither a header (two integers) nor a word "
            "followed by numbers; expected word vectors (word2vec, GloVe, fastText .vec or .npy)."
        )
    line = line.removeprefix(codecs.BOM_UTF8)
    return _text_entries(itertools.chain([line], lines), path, wanted, dimensions, None)


def _is_text(line: bytes) -> bool:
    # Any number after the first word will do, so that a damaged text file gets the error of a text file.
    if len(line) > MAX_LINE_BYTES or not _is_utf8(line):
        return False
    text = line.decode("utf-8")
    printable = text.replace("\t", " ").rstrip("\r\n").isprintable()
    return printable and any(_parse_numbers([field.encode()]) is not None for field in text.split()[1:])


def _binary_entries(
    file: File, buffer: bytes, start: int, path: Path, wanted: Wanted, dimensions: int, count: int
) -> Iterator[Entry]:
    """Yield the entries of a binary file, of which ``buffer`` has been read; it begins at byte ``start``."""
    offset, size = 0, 4 * dimensions
    damaged = f"the file is damaged, or its vectors do not have {dimensions} numbers each."
    for number in range(1, count + 1):
        space = buffer.find(b" ", offset, offset + MAX_WORD_BYTES + 1)
        if space < 0 or len(buffer) <= space + size:
            buffer, start, offset = buffer[offset:] + file.read(CHUNK_BYTES), start + offset, 0
            space = buffer.find(b" ", 0, MAX_WORD_BYTES + 1)
        place = f"byte {start + offset}"
        if space < 0 and len(buffer) > MAX_WORD_BYTES:
            raise InputError(f"{path}, {place}: no word ends within {MAX_WORD_BYTES} bytes; {damaged}")
        # Some writers end each vector with a line feed, some do not.
        word = buffer[offset : max(space, offset)].lstrip(b"\n")
        if not _is_utf8(word):
            raise InputError(f"{path}, {place}: word {number} is not UTF-8 ({word[:20]!r}); {damaged}")
        if space < 0 or len(buffer) <= space + size:
            raise InputError(
                f"{path}, byte {start + len(buffer)}: the file ends inside word {number} of the {count} that "
                "the header announces; download the file again, or read fewer with limit=."
            )
        keeps = wanted.keeps(word, number)
        yield word, np.frombuffer(buffer, "<f4", dimensions, space + 1) if keeps else None, place
        offset = space + 1 + size
    if (buffer[offset : offset + 64] + file.read(64)).strip(b"\n"):
        raise InputError(
            f"{path}, byte {start + offset}: more follows after the {count} words that the header "
            f"announces; the header is wrong, or the vectors do not have {dimensions} numbers each."
        )


def _text_entries(
    lines: Iterable[bytes], path: Path, wanted: Wanted, dimensions: int, count: int | None
) -> Iterator[Entry]:
    # GloVe has words with spaces in them; they are found by their first part.
    heads = None if wanted.words is None else {word.split(b" ", 1)[0] for word in wanted.words}
    first_line = 1 if count is None else 2
    number, entries = first_line - 1, 0
    for number, line in enumerate(lines, first_line):
        if len(line) > MAX_LINE_BYTES:
            raise InputError(
                f"{path}, line {number}: the line is longer than {MAX_LINE_BYTES} bytes; "
                "expected a word and its numbers."
            )
        line = line.strip(b" \t\r\n")
        if not line:
            continue
        entries += 1
        separators = line.count(b" ") + line.count(b"\t")
        if separators < dimensions:
            raise InputError(
                f"{path}, line {number}: {separators} numbers after {line[:20]!r}; "
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
            raise InputError(f"{path}, line {number}: {line[:40]!r} is not a word and {dimensions} numbers.")
        word = b" ".join(fields[:-dimensions])
        yield word, values if wanted.keeps(word, entries) else None, f"line {number}"
    if count is not None and entries != count:
        raise InputError(
            f"{path}, line {number}: the file ends after {entries} words, but its header announces "
            f"{count}; download the file again, or correct the header."
        )


def _parse_numbers(fields: list[bytes]) -> Vector | None:
    try:
        # Numbers beyond float32 become infinite, and infinities are refused later.
        with np.errstate(over="ignore"):
            return np.array([float(field) for field in fields], dtype=np.float32)
    except ValueError:
        return None


def _npy_entries(file: File, path: Path, words: list[bytes], wanted: Wanted) -> Iterator[Entry]:
    try:
        # NumPy parses the header as a literal, never as code. Only files that are not for plain arrays have
        # another version, which may announce a header of gigabytes.
        if (version := np.lib.format.read_magic(file)) != (1, 0):
            raise ValueError(f"version {version}")
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(file, max_header_size=2**16)
    except READ_ERRORS as error:
        reason = (str(error).splitlines() or [""])[0]
        raise InputError(f"{path}: the .npy header is damaged ({reason}); write the array again.") from None
    if dtype.kind != "f" or fortran:
        order = "columns first" if fortran else "rows first"
        raise InputError(
            f"{path} has {dtype} in {order}; expected real numbers in rows, as "
            "np.save(path, np.ascontiguousarray(vectors, dtype=np.float32)) writes them."
        )
    if len(shape) != 2 or shape[0] != len(words):
        raise InputError(
            f"{path} has an array of shape {list(shape)} and the vocabulary {len(words)} words; "
            "expected one row for each word."
        )
    row_bytes = shape[1] * dtype.itemsize
    if not 1 <= row_bytes <= MAX_ROW_BYTES:
        raise InputError(
            f"{path} has rows of {row_bytes} bytes; expected 1 to {MAX_ROW_BYTES} for word vectors."
        )
    for number, word in enumerate(words):
        content = file.read(row_bytes)
        if len(content) < row_bytes:
            raise InputError(
                f"{path}: the file ends inside row {number} of {shape[0]}; download the file again."
            )
        row = None
        if wanted.keeps(word, number + 1):
            with np.errstate(over="ignore"):
                row = np.frombuffer(content, dtype).astype(np.float32)
        yield word, row, f"row {number}"


def _read_vocabulary(path: Path, vocabulary: str | os.PathLike[str] | None) -> list[bytes]:
    """Read the words of a ``.npy`` file: one per line, or a JSON list of strings."""
    words_file = Path(vocabulary) if vocabulary is not None else _find_vocabulary(path)
    with _open_file(words_file) as file:
        content = file.read(MAX_VOCABULARY_BYTES + 1)
    if len(content) > MAX_VOCABULARY_BYTES:
        raise InputError(
            f"{words_file} is larger than {MAX_VOCABULARY_BYTES} bytes; expected one word per line."
        )
    words = None
    if content.lstrip().startswith(b"["):
        # A plain list of words may begin with a bracket, too.
        with contextlib.suppress(ValueError, RecursionError):
            words = json.loads(content)
    if words is None:
        return [line.rstrip(b"\r") for line in content.removesuffix(b"\n").split(b"\n")]
    if not all(isinstance(word, str) for word in words):
        raise InputError(
            f"{words_file} has a JSON list with entries that are not strings; pass a list of words."
        )
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
