"""The published figures, against numbers read off the paper, and what must never pass for published."""

import pytest

from diptych import InputError
from reproduction.tables import published


@pytest.mark.parametrize(
    ("name", "images", "text", "first", "last"),
    [
        ("main/flickr8k", "ResNet-101", "[HKSE(lin, rbf) || HKSE(rbf, rbf)]", 23.74, 3.0),
        ("main/flickr8k", "VGG-19", "HKSE(lin, lin)", 18.62, 5.0),
        ("main/flickr30k", "VGG-19", "skip-thoughts", 22.18, 4.0),
        ("main/coco-1k", "VGG-19", "HKSE(rbf, lin)", 29.54, 2.0),
        ("main/coco-5k", "ResNet-101", "HKSE(lin, lin)", 15.69, 6.0),
    ],
)
def test_main_tables(name, images, text, first, last):
    rows = [r for r in published(name).rows if (r.method, r.images, r.text) == ("guided", images, text)]
    assert len(rows) == 1
    assert (rows[0].values[0], rows[0].values[-1]) == (first, last)


@pytest.mark.parametrize(
    ("name", "rows"), [("coco-1k", 13), ("coco-5k", 12), ("flickr30k", 9), ("flickr8k", 9)]
)
def test_no_row_is_missing(name, rows):
    table = published(f"main/{name}")
    assert len(table.rows) == rows
    assert all(len(row.values) == len(table.columns) == 8 for row in table.rows)


def test_other_tables():
    weighting = {row.method: row.values for row in published("weighting/coco-5k").rows}
    assert weighting["asymmetric (task dependent)"] == (12.92, 32.38, 44.52, 17.84, 40.42, 53.16)
    assert len(weighting) == 8
    assert [row.values[0] for row in published("timing/coco").rows] == [1.04, 1.94, 6.92, 45.31]
    guided = [row for row in published("regularization/flickr30k").rows if row.method == "guided"]
    assert guided[0].values[3] == 30.56


def test_what_the_paper_commented_out_is_refused():
    with pytest.raises(InputError, match="not a published table"):
        published("generation/coco-5k")


def test_unknown_tables_are_named():
    with pytest.raises(InputError, match="main/flickr8k"):
        published("main/imagenet")
