"""Captions in a table: CSV, TSV, JSON lines or Parquet, one row per caption or per image."""

from __future__ import annotations

import codecs
import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diptych.checks import InputError, not_installed
from diptych.data.files import DEFAULT_MAX_BYTES, check_file, check_folder, contained_path, read_lines
from diptych.data.pairs import PairedDataset, split_name

SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")
IMAGE_COLUMNS = (
    *("image", "image_path", "file_name", "filename", "file", "path", "filepath", "img", "picture", "photo"),
    *("image_name", "image_id"),
)
CAPTION_COLUMNS = (
    *("caption", "captions", "text", "sentence", "sentences", "description", "comment", "alt", "title"),
    *("raw", "label"),
)
SPLIT_COLUMNS = ("split", "subset", "partition", "fold")


def read_table(
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    image_column: str | None = None,
    caption_column: str | None = None,
    split_column: str | None = None,
    encoding: str | None = None,
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> PairedDataset:
    """Read captions from a table.

    Parameters
    ----------
    path
        ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``. Rows of one image need not stand together; a cell
        of JSON lines or Parquet may hold a list of captions.
    images
        Folder that the image names are relative to; None: the table's own, or ``images`` beside it.
    image_column, caption_column, split_column
        Names of the columns; None: found by their usual names (``image``, ``file_name``, …; ``caption``,
        ``text``, …; ``split``).
    encoding
        Of a CSV or TSV file, such as ``"cp1252"``; None: UTF-8, or UTF-16 where the file begins by saying so.
    max_bytes
        A larger file is refused.
    """
    path = check_file(path, max_bytes)
    columns, rows = _open(path, max_bytes, encoding)
    if not any(name.strip() for name in columns):
        raise InputError(f"{path} is empty; expected columns such as image and caption, one row per caption.")
    image = _column(columns, image_column, IMAGE_COLUMNS, "image", path)
    caption = _column(columns, caption_column, CAPTION_COLUMNS, "caption", path)
    split = None
    if split_column is not None or any(name.lower() in SPLIT_COLUMNS for name in columns):
        split = _column(columns, split_column, SPLIT_COLUMNS, "split", path)
    order: dict[str, int] = {}
    captions, pairing, splits = [], [], []
    for number, row in rows:
        name = row.get(image)
        if not isinstance(name, (str, int)) or not str(name).strip():
            raise InputError(f"{path}, row {number}: column {image!r} holds {name!r}; expected a file name.")
        known = len(order)
        at = order.setdefault(str(name).strip(), known)
        own_split = split_name(str(row.get(split) or "")) if split else ""
        if at == known:
            splits.append(own_split)
        elif splits[at] != own_split:
            raise InputError(
                f"{path}, row {number}: {name!r} is in {own_split or 'no split'!r} here and in "
                f"{splits[at] or 'no split'!r} before; put all captions of an image in one split."
            )
        for text in _texts(row.get(caption), path, number, caption):
            captions.append(text)
            pairing.append(at)
    if not captions:
        raise InputError(f"{path} holds no captions; expected one row for each.")
    base = _base(path, images, next(iter(order)))
    return PairedDataset(
        tuple(order),
        tuple(captions),
        np.array(pairing, np.int64),
        splits=tuple(splits) if any(splits) else None,
        paths=tuple(contained_path(base, name) for name in order),
    )


def _base(path: Path, images: str | os.PathLike[str] | None, first: str) -> Path:
    if images is not None:
        return check_folder(images)
    beside = path.parent / "images"
    inside = beside.is_dir() and not contained_path(path.parent, first).is_file()
    return beside if inside else path.parent


def _texts(cell: Any, path: Path, number: int, column: str) -> Iterable[str]:
    texts = cell if isinstance(cell, (list, tuple)) else [cell]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(f"{path}, row {number}: column {column!r} holds {cell!r}; expected text.")
    return [text.strip() for text in texts]


def _column(columns: Sequence[str], given: str | None, usual: Sequence[str], what: str, path: Path) -> str:
    if given is not None:
        if given not in columns:
            raise InputError(f"{path} has no column {given!r}; it has {', '.join(columns)}.")
        return given
    by_name = {name.strip().lower(): name for name in reversed(columns)}
    found = next((by_name[name] for name in usual if name in by_name), None)
    if found is None:
        raise InputError(
            f"{path} has the columns {', '.join(columns)}, and none is known to hold the {what}; "
            f"name it with {what}_column."
        )
    return found


def _open(
    path: Path, max_bytes: int, encoding: str | None
) -> tuple[list[str], Iterator[tuple[int, Mapping[str, Any]]]]:
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _open_delimited(path, encoding)
    if encoding is not None:
        raise InputError(f"encoding={encoding!r} is for CSV and TSV files; leave it out for {path}.")
    if suffix in (".jsonl", ".ndjson"):
        return _open_json_lines(path, max_bytes)
    if suffix == ".parquet":
        return _open_parquet(path, max_bytes)
    raise InputError(f"{path} is not a table of a known kind; expected {', '.join(SUFFIXES)}.")


def _open_delimited(
    path: Path, encoding: str | None
) -> tuple[list[str], Iterator[tuple[int, Mapping[str, Any]]]]:
    text = _encoding(path, encoding)
    header = next((line for line in _decoded(path, text) if line.strip()), "")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=header.count)
    columns = next(csv.reader([header.rstrip("\r\n")], delimiter=delimiter), [])

    def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
        reader = csv.DictReader(_decoded(path, text), delimiter=delimiter)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise InputError(f"{path} could not be read as {path.suffix[1:].upper()} ({error}).") from None

    return columns, rows()


def _decoded(path: Path, encoding: str) -> Iterator[str]:
    try:
        with open(path, encoding=encoding, newline="") as file:
            yield from file
    except UnicodeError as error:
        place = f" at byte {error.start:,}" if isinstance(error, UnicodeDecodeError) else ""
        if not encoding.startswith("utf-8"):
            raise InputError(
                f"{path} is not {encoding} text (wrong{place}); name its true encoding."
            ) from None
        raise InputError(
            f"{path} is not UTF-8 text (wrong{place}); if Excel on Windows wrote it, give encoding='cp1252', "
            "or save it as CSV UTF-8."
        ) from None


def _encoding(path: Path, given: str | None) -> str:
    """The encoding of a text file: as given, or UTF-16 where it begins with that mark, or UTF-8."""
    if given is None:
        with open(path, "rb") as file:
            return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        if codecs.lookup(given)._is_text_encoding:
            return "utf-8-sig" if codecs.lookup(given).name == "utf-8" else given
    except (LookupError, ValueError):
        pass
    raise InputError(f"encoding={given!r} is unknown; give a name such as cp1252, latin-1 or utf-16.")


def _open_json_lines(path: Path, max_bytes: int) -> tuple[list[str], Iterator[tuple[int, Mapping[str, Any]]]]:
    def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
        for number, line in read_lines(path, max_bytes):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{path}, line {number} is not valid JSON ({error}).") from None
            if not isinstance(row, dict):
                raise InputError(f"{path}, line {number} is not a JSON object.")
            yield number, row

    first = next(rows(), (1, {}))[1]
    return list(first), rows()


def _open_parquet(path: Path, max_bytes: int) -> tuple[list[str], Iterator[tuple[int, Mapping[str, Any]]]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise not_installed("Parquet files need", "parquet") from None
    try:
        # Repeated texts stay codes of a dictionary, so that their size is known before they are unpacked.
        file = pyarrow.parquet.ParquetFile(path)
        leaves = [file.schema.column(i) for i in range(len(file.schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        file = pyarrow.parquet.ParquetFile(path, read_dictionary=texts)
        columns = list(file.schema_arrow.names)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise InputError(f"{path} could not be read as Parquet ({error}).") from None
    packed = sum(file.metadata.row_group(i).total_byte_size for i in range(file.metadata.num_row_groups))
    too_large = InputError(
        f"{path} unpacks to more than {max_bytes:,} bytes, the limit; raise max_bytes, or split the table."
    )
    if packed > max_bytes:
        raise too_large

    def rows() -> Iterator[tuple[int, Mapping[str, Any]]]:
        number = size = 0
        try:
            for batch in file.iter_batches():
                size += sum(map(_unpacked_bytes, batch.columns))
                if size > max_bytes:
                    raise too_large
                for row in batch.to_pylist():
                    number += 1
                    yield number, row
        except InputError:
            raise
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise InputError(f"{path} could not be read as Parquet ({error}).") from None

    return columns, rows()


def _unpacked_bytes(column: Any) -> int:
    """What the values of an Arrow array take once each stands by itself."""
    import pyarrow
    import pyarrow.compute

    if isinstance(column, pyarrow.ListArray | pyarrow.LargeListArray):
        return _unpacked_bytes(column.flatten())
    if isinstance(column, pyarrow.DictionaryArray):
        sizes = pyarrow.compute.binary_length(column.dictionary).cast("int64")
        return int(pyarrow.compute.sum(sizes.take(column.indices)).as_py() or 0)
    return int(column.nbytes)
