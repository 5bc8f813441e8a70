"""Metadata from the columns of a table, in every format, and the way it takes to a search."""

import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.data import join, read_pairs, split_by_image
from diptych.data._tables import MetadataReader
from table_files import write_table

ROWS = [
    {"image": "a.jpg", "caption": "A cat.", "year": 2010, "tag": "pet", "rating": 4.5, "ok": True},
    {"image": "a.jpg", "caption": "It sleeps.", "year": 2010, "tag": "indoors", "rating": 3.0, "ok": False},
    {"image": "b.jpg", "caption": "A dog.", "year": 2019, "tag": "pet", "rating": None, "ok": True},
    {"image": "c.jpg", "caption": "A bird.", "year": None, "tag": None, "rating": 5.0, "ok": None},
]
EXPECTED = {
    "a.jpg#0": {"year": 2010, "tag": "pet", "rating": 4.5, "ok": True},
    "a.jpg#1": {"year": 2010, "tag": "indoors", "rating": 3.0, "ok": False},
    "b.jpg#0": {"year": 2019, "tag": "pet", "ok": True},
    "c.jpg#0": {"rating": 5.0},
    "a.jpg": {"year": 2010, "tag": ["pet", "indoors"], "rating": [4.5, 3.0], "ok": [True, False]},
    "b.jpg": {"year": 2019, "tag": "pet", "ok": True},
    "c.jpg": {"rating": 5.0},
}


def write(folder, rows, kind):
    return write_table(folder / f"pairs.{kind}", rows)


def column(folder, *cells):
    """Return the metadata of captions from a CSV file with one column of these cells."""
    lines = ["image,caption,value", *(f"{i}.jpg,text,{cell}" for i, cell in enumerate(cells))]
    path = folder / "column.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    metadata = read_pairs(path, metadata=["value"]).metadata
    return [metadata.get(f"{i}.jpg", {}).get("value") for i in range(len(cells))]


@pytest.mark.parametrize("kind", ["csv", "tsv", "jsonl", "parquet"])
@pytest.mark.parametrize("names", ["all", ["year", "tag", "rating", "ok"]])
def test_every_kind_of_table_gives_the_same_metadata(tmp_path, kind, names):
    pairs = read_pairs(write(tmp_path, ROWS, kind), metadata=names)
    assert pairs.metadata == EXPECTED
    assert [type(v) for v in pairs.metadata["a.jpg#0"].values()] == [int, str, float, bool]
    assert pairs.captions == ("A cat.", "It sleeps.", "A dog.", "A bird.")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_only_named_columns_are_read(tmp_path, kind):
    path = write(tmp_path, ROWS, kind)
    assert read_pairs(path).metadata == {}
    for names in (["year"], ("year",), "year"):
        assert read_pairs(path, metadata=names).metadata["a.jpg"] == {"year": 2010}
    with pytest.raises(InputError, match=r"no column 'jahr'; it has image, caption, year, tag, rating, ok\."):
        read_pairs(path, metadata=["year", "jahr"])
    for name in ("image", "caption"):
        with pytest.raises(InputError, match=f"column '{name}', which is part of the pairs already"):
            read_pairs(path, metadata=[name])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_the_split_stays_what_it_is(tmp_path, kind):
    rows = [{**row, "split": "restval"} for row in ROWS]
    pairs = read_pairs(write(tmp_path, rows, kind), metadata="all")
    assert pairs.splits == ("train",) * 3
    assert pairs.metadata == EXPECTED
    with pytest.raises(InputError, match="'split', which is part of the pairs"):
        read_pairs(write(tmp_path, rows, kind), metadata=["split"])


def test_keys_of_json_lines_may_be_missing_from_the_first_rows(tmp_path):
    rows = [dict(list(row.items())[: 2 + at]) for at, row in enumerate(ROWS)]
    path = write(tmp_path, rows, "jsonl")
    assert read_pairs(path, metadata=["tag"]).metadata == {"b.jpg#0": {"tag": "pet"}, "b.jpg": {"tag": "pet"}}
    assert read_pairs(path, metadata="all").metadata["b.jpg"] == {"year": 2019, "tag": "pet"}
    with pytest.raises(InputError, match=r"it has image, caption, year, tag, rating\."):
        read_pairs(path, metadata=["ok"])


# Types of CSV columns


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "-2", "0", ""], [1, -2, 0, None]),
        (["1", "2.5", "1e3", ".5"], [1.0, 2.5, 1000.0, 0.5]),
        (["true", "False", "TRUE"], [True, False, True]),
        (["1", "true"], ["1", "true"]),
        (["01234", "99999"], ["01234", "99999"]),
        (["+4930123456"], ["+4930123456"]),
        (["1", "nan"], ["1", "nan"]),
        (["1", "inf"], ["1", "inf"]),
        (["1e999"], ["1e999"]),
        (["1_000"], ["1_000"]),
        (["٣"], ["٣"]),
        (["9223372036854775808", "x"], ["9223372036854775808", "x"]),
        (["9" * 5000, "x"], ["9" * 5000, "x"]),
        (["0.5", "9007199254740993"], ["0.5", "9007199254740993"]),
        (["2010-05-01", "2011-01-31"], [date(2010, 5, 1), date(2011, 1, 31)]),
        (["2010-05-01", "2010-02-30"], ["2010-05-01", "2010-02-30"]),
        (["20100501", "x"], ["20100501", "x"]),
        (["2010-05-01T10:30", "2010-05-01 10:30:15.25"], None),
        (["", ""], [None, None]),
        ([" spaces ", "x"], ["spaces", "x"]),
    ],
)
def test_a_csv_column_has_one_type(tmp_path, cells, values):
    if values is None:
        values = [datetime(2010, 5, 1, 10, 30), datetime(2010, 5, 1, 10, 30, 15, 250_000)]
    read = column(tmp_path, *cells)
    assert read == values
    assert [type(value) for value in read] == [type(value) for value in values]


@pytest.mark.parametrize("cell", [str(2**63), str(-(2**63) - 1), "12345678901234567890123", "7" * 5000])
@pytest.mark.parametrize("first", ["1", "0.5"])
def test_a_whole_number_of_more_than_64_bits_is_refused(tmp_path, cell, first):
    with pytest.raises(
        InputError, match=r"column\.csv, row 3: column 'value' holds .* at most 64 bits"
    ) as caught:
        column(tmp_path, first, cell)
    assert len(str(caught.value)) < 300
    rows = [{"image": "a.jpg", "caption": "a", "n": [1, int(cell[:4000])]}]
    with pytest.raises(InputError, match=r"row 1: column 'n' holds .* at most 64 bits"):
        read_pairs(write(tmp_path, rows, "jsonl"), metadata="all")


def test_times_with_a_zone_are_stored_in_utc(tmp_path):
    first, second = column(tmp_path, "2010-05-01T10:30:00+02:00", "2010-05-01T08:30:00Z")
    assert first == second == datetime(2010, 5, 1, 8, 30, tzinfo=UTC)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=5))
def test_any_integers_are_read_back(values):
    assert typed([str(value) for value in values]) == values


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=5))
def test_any_numbers_are_read_back(values):
    assert typed([repr(value) for value in values]) == values


@given(st.lists(st.text(min_size=1, max_size=12).filter(lambda t: t.strip()), min_size=1, max_size=5))
def test_any_text_is_a_value_or_one_of_the_types(cells):
    for cell, value in zip(cells, typed(cells), strict=True):
        assert isinstance(value, int | float | date) or value == cell.strip()


def typed(cells):
    reader = MetadataReader(["v"], {"image"}, "table.csv", typed=False)
    for row, cell in enumerate(cells):
        reader.add(row, {"image": str(row), "v": cell}, row, 0)
    ids = [str(row) for row in range(len(cells))]
    metadata = reader.finish(["image", "v"], ids, [])
    return [metadata[name]["v"] for name in ids]


# Types of Parquet and JSON lines


def test_parquet_keeps_its_types(tmp_path):
    zone = timezone(timedelta(hours=2))
    values = {
        "day": date(2010, 5, 1),
        "naive": datetime(2010, 5, 1, 10, 30),
        "aware": datetime(2010, 5, 1, 10, 30, tzinfo=zone),
        "tags": ["pet", "cat"],
        "days": [date(2010, 5, 1)],
        "price": Decimal("4.50"),
        "code": "0123",
        "empty": "",
    }
    path = write(tmp_path, [{"image": "a.jpg", "caption": "A cat.", **values}], "parquet")
    values_read = read_pairs(path, metadata="all").metadata["a.jpg#0"]
    assert values_read == {**values, "price": 4.5}
    assert type(values_read["naive"]) is datetime
    table = pyarrow.table(
        {
            "image": ["a.jpg"],
            "caption": ["A cat."],
            "when": pyarrow.array([datetime(2010, 5, 1)], pyarrow.timestamp("ns", "Europe/Berlin")),
            "gap": pyarrow.array([float("nan")]),
        }
    )
    pyarrow.parquet.write_table(table, path)
    values_read = read_pairs(path, metadata="all").metadata["a.jpg"]
    assert type(values_read["when"]) is datetime
    assert values_read == {"when": datetime(2010, 5, 1, tzinfo=UTC)}


@pytest.mark.parametrize(
    "value", [{"a": 1}, [[1]], [{"a": 1}], b"bytes", float("inf"), datetime(2010, 1, 1).time()]
)
def test_nested_and_other_values_are_refused(tmp_path, value):
    path = write(tmp_path, [{"image": "a.jpg", "caption": "A cat.", "odd": value}], "parquet")
    with pytest.raises(InputError, match="row 1: column 'odd' holds .* a date, or a list of these"):
        read_pairs(path, metadata=["odd"])
    assert read_pairs(path).n_images == 1


def test_half_a_character_is_refused(tmp_path):
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"image": "a.jpg", "caption": "A cat.", "tag": "\\ud800"}\n')
    with pytest.raises(InputError, match="cannot be metadata"):
        read_pairs(path, metadata=["tag"])


# Images with several rows, and rows with several captions


def test_an_image_has_the_values_of_its_rows(tmp_path):
    rows = [
        {"image": "a", "caption": "1", "tags": ["x", "y"], "n": 1, "same": ["p"], "some": None},
        {"image": "a", "caption": "2", "tags": ["y", "z"], "n": 1.0, "same": ["p"], "some": "s"},
        {"image": "b", "caption": ["3", "4"], "tags": "w", "n": True},
        {"image": "b", "caption": [], "tags": "v", "n": 1},
    ]
    values_read = read_pairs(write(tmp_path, rows, "jsonl"), metadata="all").metadata
    assert values_read["a"] == {"tags": ["x", "y", "z"], "n": 1, "same": ["p"], "some": "s"}
    assert values_read["a#0"] == {"tags": ["x", "y"], "n": 1, "same": ["p"]}
    assert values_read["b"] == {"tags": ["w", "v"], "n": [True, 1]}
    assert values_read["b#0"] == values_read["b#1"] == {"tags": "w", "n": True}


def test_metadata_stays_with_the_pairs(tmp_path):
    pairs = read_pairs(write(tmp_path, ROWS, "csv"), metadata="all")
    chosen = pairs.select([1, 2])
    assert chosen.metadata == {name: EXPECTED[name] for name in ("b.jpg", "c.jpg", "b.jpg#0", "c.jpg#0")}
    assert pairs.with_splits(["val", "train", "test"]).subset("train").metadata == pairs.select([1]).metadata
    assert split_by_image(pairs, validation=1, test=1).metadata == EXPECTED
    assert pairs.with_views(("film", "text")).metadata == EXPECTED
    assert join(pairs, np.eye(3), np.eye(4)).dataset.metadata == EXPECTED


def test_formats_without_columns_have_no_metadata(tmp_path):
    path = tmp_path / "dataset_x.json"
    sentences = [{"raw": "A cat."}]
    path.write_text(json.dumps({"images": [{"filename": "a.jpg", "split": "train", "sentences": sentences}]}))
    with pytest.raises(InputError, match="metadata has no effect on .*, which is not a table"):
        read_pairs(path, metadata=["year"])
