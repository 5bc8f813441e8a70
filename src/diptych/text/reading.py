"""Word-vector files, read as a stream: only the wanted words are ever in memory.

The layout is told from the content, not from the file's name. Nothing in a file is executed, and nothing
is allocated because a header says so.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych.checks import InputError
from diptych.text.bytestream import ByteStream
from diptych.text.npy import npy_rows, read_vocabulary
from diptych.text.vectors import WordVectors

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
