"""A column of vectors in a Parquet file."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from diptych.checks import InputError, not_installed
from diptych.data.sharded.matrix import Matrix
from diptych.data.sharded.remote import Options, opened, reading

_BATCH_ROWS = 4096


@dataclass(frozen=True)
class ParquetColumn(Matrix):
    """Lists of equal length, one to a row; row groups that are not asked for are not read."""

    def _read(self, start: int, stop: int) -> np.ndarray[Any, Any]:
        with _parquet(self.name, self.options) as file:
            ends = list(accumulate(_group_rows(file)))
            first, last = bisect_right(ends, start), bisect_right(ends, stop - 1)
            at = ends[first - 1] if first else 0
            parts = []
            for batch in file.iter_batches(_BATCH_ROWS, range(first, last + 1), columns=[self.key]):
                low, high = max(start - at, 0), min(stop - at, len(batch))
                if low < high:
                    parts.append(_vectors(batch.column(0).slice(low, high - low), self))
                at += len(batch)
                if at >= stop:
                    break
        return np.concatenate(parts) if parts else np.empty((0, self.width), self.dtype)


def open_column(name: str, key: str | None, options: Options, max_bytes: int) -> ParquetColumn:
    """The column ``key``, or the only one that holds lists of numbers."""
    with reading(name), _parquet(name, options) as file:
        fields = {field.name: field.type for field in file.schema_arrow if _is_vectors(field.type)}
        if key is None and len(fields) != 1:
            found = ", ".join(fields) or "none"
            raise InputError(f"{name} has {len(fields)} columns of vectors ({found}); name one with a key.")
        key = next(iter(fields)) if key is None else key
        if key not in fields:
            raise InputError(
                f"{name} has no column {key!r} of vectors; it has {', '.join(file.schema_arrow.names)}, and "
                f"lists of numbers in {', '.join(fields) or 'none'}."
            )
        groups = _group_rows(file)
        _check_groups(file, name, max_bytes)
        kind = fields[key]
        width = getattr(kind, "list_size", None)
        if width is None:
            first = next(file.iter_batches(1, columns=[key]), None)
            width = 0 if first is None or first.column(0)[0].as_py() is None else len(first.column(0)[0])
        # Only row groups of one size give a rhythm to keep to.
        grain = groups[0] if groups and len(set(groups[:-1])) <= 1 and groups[-1] <= groups[0] else 1
        dtype = np.dtype(kind.value_type.to_pandas_dtype()).str
        return ParquetColumn(name, sum(groups), width, dtype, key, grain, "", options, max_bytes)


@contextmanager
def _parquet(name: str, options: Options) -> Iterator[Any]:
    try:
        import pyarrow.parquet
    except ImportError:
        raise not_installed("Parquet files need", "parquet") from None
    with opened(name, options) as file, pyarrow.parquet.ParquetFile(file) as table:
        yield table


def _is_vectors(kind: Any) -> bool:
    from pyarrow import types

    lists = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    return bool(lists and (types.is_floating(kind.value_type) or types.is_integer(kind.value_type)))


def _group_rows(file: Any) -> list[int]:
    return [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]


def _check_groups(file: Any, name: str, max_bytes: int) -> None:
    for number in range(file.metadata.num_row_groups):
        # Of all its columns: pyarrow ends the process when it is asked for one whose statistics are damaged.
        size = file.metadata.row_group(number).total_byte_size
        if size > max_bytes:
            raise InputError(
                f"{name}: row group {number} unpacks to {size:,} bytes; at most {max_bytes:,} are read at "
                "once. Write smaller row groups or raise max_bytes."
            )


def _vectors(column: Any, matrix: Matrix) -> np.ndarray[Any, Any]:
    lengths = np.asarray(column.value_lengths().to_numpy(zero_copy_only=False))
    if column.null_count or np.any(lengths != matrix.width):
        raise InputError(
            f"{matrix.name}: column {matrix.key!r} has vectors of other lengths than {matrix.width}, or none "
            "in some rows; write them all alike."
        )
    values = column.flatten().to_numpy(zero_copy_only=False)
    return np.asarray(values).reshape(-1, matrix.width)
