"""Tables of pairs in every format."""

import csv
import json

import pytest


def write_table(path, rows):
    """Write rows in the format that the suffix names; return the path."""
    suffix = path.suffix
    if suffix == ".parquet":
        pa = pytest.importorskip("pyarrow")
        import pyarrow.parquet

        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), path)
    elif suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in rows))
    else:
        with open(path, "w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, list(rows[0]), delimiter="\t" if suffix == ".tsv" else ",")
            writer.writeheader()
            writer.writerows(rows)
    return path
