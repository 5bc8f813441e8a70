"""Tables in CSV, TSV, JSON lines and Parquet files, read row by row and within a limit on their size."""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from diptych._checks import InputError, missing_package_error
from diptych.data._files import explain_errors, read_lines

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

Rows: TypeAlias = Iterator[tuple[int, Mapping[str, Any]]]
"""Number and cells of each row of a table."""


def open_table(path: Path, encoding: str | None, max_bytes: int) -> tuple[list[str], Rows]:
    """Return the columns of a table and an iterator over its rows.

    Parameters
    ----------
    path
        A file with one of ``TABLE_SUFFIXES``.
    encoding
        Encoding of a CSV or TSV file; None: UTF-8, or UTF-16 if the file starts with its byte-order mark.
    max_bytes
        The most that the table may unpack to.
    """
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return _open_delimited(path, encoding)
    if encoding is not None:
        raise InputError(f"encoding={encoding!r} is for CSV and TSV files; leave it out for {path}.")
    if suffix in (".jsonl", ".ndjson"):
        return list(next(_json_rows(path, max_bytes), (1, {}))[1]), _json_rows(path, max_bytes)
    if suffix == ".parquet":
        return _open_parquet(path, max_bytes)
    raise InputError(f"{path} is not a table; expected {', '.join(TABLE_SUFFIXES)}.")


def _open_delimited(path: Path, encoding: str | None) -> tuple[list[str], Rows]:
    codec = _find_encoding(path, encoding)
    header = next((line for line in _decode_lines(path, codec) if line.strip()), "")
    delimiter = "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=header.count)
    columns = next(csv.reader([header.rstrip("\r\n")], delimiter=delimiter), [])

    def rows() -> Rows:
        reader = csv.DictReader(_decode_lines(path, codec), delimiter=delimiter)
        with explain_errors(str(path)):
            for row in reader:
                yield reader.line_num, row

    return columns, rows()


def _find_encoding(path: Path, encoding: str | None) -> str:
    if encoding is None:
        with open(path, "rb") as file:
            return "utf-16" if file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else "utf-8-sig"
    try:
        if codecs.lookup(encoding)._is_text_encoding:
            return "utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding
    except (LookupError, ValueError):
        pass
    raise InputError(f"encoding={encoding!r} is unknown; give a name such as cp1252, latin-1 or utf-16.")


def _decode_lines(path: Path, encoding: str) -> Iterator[str]:
    try:
        with open(path, encoding=encoding, newline="") as file:
            yield from file
    except UnicodeError as error:
        place = f" at byte {error.start:,}" if isinstance(error, UnicodeDecodeError) else ""
        if not encoding.startswith("utf-8"):
            raise InputError(f"{path} is not {encoding} text (wrong{place}); name its encoding.") from None
        raise InputError(
            f"{path} is not UTF-8 text (wrong{place}); if Excel on Windows wrote it, give encoding='cp1252', "
            "or save it as CSV UTF-8."
        ) from None


def _json_rows(path: Path, max_bytes: int) -> Rows:
    for number, line in read_lines(path, max_bytes):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number} is not valid JSON ({error}).") from None
        if not isinstance(row, dict):
            raise InputError(f"{path}, line {number} is not a JSON object.")
        yield number, row


def _open_parquet(path: Path, max_bytes: int) -> tuple[list[str], Rows]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise missing_package_error("Parquet files need", "parquet") from None
    with explain_errors(str(path)):
        # Repeated texts stay codes of a dictionary, so that their size is known before they are unpacked.
        file = pyarrow.parquet.ParquetFile(path)
        leaves = [file.schema.column(i) for i in range(len(file.schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        file = pyarrow.parquet.ParquetFile(path, read_dictionary=texts)
        groups = range(file.metadata.num_row_groups)
        packed_size = sum(file.metadata.row_group(i).total_byte_size for i in groups)

    def check_size(size: int) -> None:
        if size > max_bytes:
            raise InputError(
                f"{path} unpacks to more than {max_bytes:,} bytes, the limit; raise max_bytes, or split the "
                "table."
            )

    def rows() -> Rows:
        number = size = 0
        with explain_errors(str(path)):
            for batch in file.iter_batches():
                size += sum(map(_unpacked_bytes, batch.columns))
                check_size(size)
                for row in batch.to_pylist():
                    number += 1
                    yield number, row

    check_size(packed_size)
    return list(file.schema_arrow.names), rows()


def _unpacked_bytes(column: Any) -> int:
    """Return the size of an Arrow array once no value is shared between rows."""
    import pyarrow
    import pyarrow.compute

    if isinstance(column, pyarrow.ListArray | pyarrow.LargeListArray):
        return _unpacked_bytes(column.flatten())
    if isinstance(column, pyarrow.DictionaryArray):
        sizes = pyarrow.compute.binary_length(column.dictionary).cast("int64")
        return int(pyarrow.compute.sum(sizes.take(column.indices)).as_py() or 0)
    return int(column.nbytes)
