"""Tables of pairs in CSV, TSV, JSON lines and Parquet files: their rows, and metadata from their columns.

Tables are read row by row, and within a limit on their size.
"""

from __future__ import annotations

import codecs
import csv
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal, TypeAlias

from diptych._checks import InputError, import_package, is_unicode
from diptych.data._files import explain_errors, read_lines

TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet")

Rows: TypeAlias = Iterator[tuple[int, Mapping[str, Any]]]
"""Number and cells of each row of a table."""

ColumnNames: TypeAlias = Sequence[str] | Literal["all"]
"""Names of columns, or every column that is not used otherwise."""

Metadata: TypeAlias = dict[str, dict[str, Any]]
"""Values for ids of images and captions."""

SPLIT = "split"
"""The key of the split in the metadata of items; no column may replace it."""

_INTEGER = re.compile(r"-?(0|[1-9][0-9]*)")  # +49 … is a telephone number
_NUMBER = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_TIME = re.compile(_DATE.pattern + r"[T ][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]+)?)?(Z|[+-][0-9]{2}:?[0-9]{2})?")
_INT64 = range(-(2**63), 2**63)


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
    parquet = import_package("pyarrow.parquet", "Parquet files need", "parquet")
    with explain_errors(str(path)):
        # Repeated texts stay codes of a dictionary, so that their size is known before they are unpacked.
        file = parquet.ParquetFile(path)
        leaves = [file.schema.column(i) for i in range(len(file.schema))]
        texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
        file = parquet.ParquetFile(path, read_dictionary=texts)
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


class MetadataReader:
    """Collects the values of some columns while the rows of a table are read.

    ``pair_columns`` are those of images, captions and splits. ``typed`` says whether cells have types, as in
    JSON lines and Parquet; those of a CSV file get the type that all cells of their column have.
    """

    def __init__(
        self, columns: ColumnNames, pair_columns: set[str], path: Path | str, *, typed: bool
    ) -> None:
        self._path, self._ignored, self._typed = path, {*pair_columns, SPLIT}, typed
        self._wanted = None if columns == "all" else [columns] if isinstance(columns, str) else list(columns)
        for name in self._wanted or ():
            if not isinstance(name, str) or name in self._ignored:
                what = "is part of the pairs already" if isinstance(name, str) else "is not a name"
                raise InputError(f"metadata names the column {name!r}, which {what}; leave it out.")
        self._rows: list[tuple[int, int, int, dict[str, Any]]] = []
        self._seen: dict[str, None] = {}

    def add(self, number: int, cells: Mapping[str, Any], image: int, n_captions: int) -> None:
        """Take the row with this number, of ``n_captions`` captions of the image in row ``image``."""
        self._seen.update(dict.fromkeys(name for name in cells if name))
        names = self._seen if self._wanted is None else self._wanted
        values = {}
        for name in names:
            if name in self._ignored or name not in cells:
                continue
            value = cells[name]
            value = self._check(value, name, number) if self._typed else (value or "").strip() or None
            if value is not None:
                values[name] = value
        self._rows.append((number, image, n_captions, values))

    def finish(
        self, columns: Iterable[str], image_ids: Sequence[str], caption_ids: Sequence[str]
    ) -> Metadata:
        """Return the metadata of all images and captions; ``columns`` are those that the table announces."""
        names = [name for name in dict.fromkeys((*columns, *self._seen)) if name]
        for name in self._wanted or ():
            if name not in names:
                raise InputError(f"{self._path} has no column {name!r}; it has {', '.join(names)}.")
        if not self._typed:
            for name in names:
                self._convert(name)
        metadata: Metadata = {}
        of_images: dict[int, list[dict[str, Any]]] = {}
        captions = iter(caption_ids)
        for _, image, n_captions, values in self._rows:
            of_images.setdefault(image, []).append(values)
            row_captions = [next(captions) for _ in range(n_captions)]
            metadata.update(dict.fromkeys(row_captions, values) if values else {})
        for image, rows in of_images.items():
            if merged := _merge(rows):
                metadata[image_ids[image]] = merged
        return metadata

    def _convert(self, name: str) -> None:
        """Give the cells of a column the type that all of them have."""
        rows = [values for *_, values in self._rows if name in values]
        if all(_NUMBER.fullmatch(values[name]) for values in rows):
            for number, *_, values in self._rows:
                self._check_size(values.get(name, ""), name, number)
        for parse in _PARSERS:
            parsed = [parse(values[name]) for values in rows]
            if None not in parsed:
                for values, value in zip(rows, parsed, strict=True):
                    values[name] = value
                return

    def _check(self, value: Any, name: str, number: int) -> Any:
        """Return a value that can be stored; None if there is none."""
        try:
            plain = [_as_plain(v) for v in value] if isinstance(value, list | tuple) else _as_plain(value)
        except TypeError:
            raise InputError(
                f"{self._path}, row {number}: column {name!r} holds {str(value)[:60]!r}, which cannot be "
                "metadata; expected text, a number, true or false, a date, or a list of these."
            ) from None
        for part in plain if isinstance(plain, list) else [plain]:
            if type(part) is int:
                self._check_size(str(part), name, number)
        return plain

    def _check_size(self, cell: str, name: str, number: int) -> None:
        """Refuse a whole number that does not fit into 64 bits, as those of a store do."""
        if _INTEGER.fullmatch(cell) and _parse_integer(cell) is None:
            shown = cell if len(cell) <= 24 else f"{cell[:12]}… ({len(cell):,} characters)"
            raise InputError(
                f"{self._path}, row {number}: column {name!r} holds {shown}, and a whole number of metadata "
                "has at most 64 bits; leave the column out, or store it as text."
            )


def _as_plain(value: Any) -> Any:
    """Return a plain value; None for NaN. Any other value is a ``TypeError``."""
    if isinstance(value, Decimal):
        value = float(value)
    if isinstance(value, datetime):  # or the subclass of pandas, with nanoseconds
        return datetime.combine(value.date(), value.time(), value.tzinfo)
    if value is None or isinstance(value, bool | int | date):
        return value
    if isinstance(value, float) and not math.isinf(value):
        return None if math.isnan(value) else value
    if isinstance(value, str) and is_unicode(value):
        return value
    raise TypeError


def _merge(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metadata of an image from its rows: a value if they agree, else the list of all values."""
    if len(rows) == 1:
        return dict(rows[0])
    merged: dict[str, Any] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        values = [row[name] for row in rows if name in row]
        parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
        # In Python, True equals 1.
        distinct = list({(isinstance(part, bool), part): part for part in parts}.values())
        if isinstance(values[0], list) and all(value == values[0] for value in values):
            distinct = values[0]
        is_one = len(distinct) == 1 and not isinstance(values[0], list)
        merged[name] = distinct[0] if is_one else distinct
    return merged


def _parse_integer(cell: str) -> int | None:
    # Python refuses to read thousands of digits.
    fits = len(cell) <= 20 and _INTEGER.fullmatch(cell) and int(cell) in _INT64
    return int(cell) if fits else None


def _parse_number(cell: str) -> float | None:
    if not _NUMBER.fullmatch(cell) or not math.isfinite(number := float(cell)):
        return None
    # The last digits of a long number, which may be that of an article, would be lost.
    return None if _INTEGER.fullmatch(cell) and int(number) != int(cell) else number


def _parse_boolean(cell: str) -> bool | None:
    return {"true": True, "false": False}.get(cell.lower())


def _parse_date(cell: str) -> date | None:
    try:
        if _DATE.fullmatch(cell):
            return date.fromisoformat(cell)
        return datetime.fromisoformat(cell) if _TIME.fullmatch(cell) else None
    except ValueError:  # the 30th of February
        return None


_PARSERS: tuple[Callable[[str], Any], ...] = (_parse_integer, _parse_number, _parse_boolean, _parse_date)
