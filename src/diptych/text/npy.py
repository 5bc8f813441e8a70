"""A NumPy array of vectors beside a list of words."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from diptych.checks import InputError
from diptych.storage import READ_ERRORS
from diptych.text.bytestream import ByteStream

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
