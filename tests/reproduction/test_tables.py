"""Tables in four forms: the page, CSV, LaTeX and Markdown; and the published ones, read off the paper."""

import csv
import io

import pytest

from diptych.report import Html, Row
from latex_check import check_latex
from reproduction.tables import ReportTable, latex_text, published

TABLE = ReportTable(
    "odd",
    ["name", "r@1", "r@5"],
    [
        Row(["50 % of {k_x} & more"], "head"),
        ["Σ^α, a|b #1 ~ \\ $5", 1.25, 30.0],
        ["plain, with comma", 2.5, None],
        Row(["“published”", "9.36", "–"], "quiet"),
    ],
    best={1: "high", 2: "high"},
    groups=[("", 1), ("search", 2)],
)


def test_latex_escapes_and_marks():
    latex = TABLE.latex()
    check_latex(latex)
    assert r"50 \% of \{k\_x\} \& more" in latex
    assert r"$\Sigma$\textasciicircum{}$\alpha$, a$|$b \#1 \textasciitilde{} \textbackslash{} \$5" in latex
    assert r"\textbf{2.5}" in latex
    assert r"\textit{``published''}" in latex


def test_csv_has_every_cell_and_the_section_of_each_row():
    rows = list(csv.reader(io.StringIO(TABLE.csv())))
    assert rows[0] == ["section", "name", "search r@1", "search r@5"]
    assert rows[2] == ["50 % of {k_x} & more", "plain, with comma", "2.5", "–"]
    assert len(rows) == 4


def test_markdown_rows_have_equal_width():
    lines = TABLE.markdown().splitlines()
    assert lines[0] == "| name | search r@1 | r@5 |"
    assert all(line.replace(r"\|", "").count("|") == 4 for line in lines)
    assert "| plain, with comma | **2.5** | – |" in lines


def test_markup_is_left_out():
    table = ReportTable("x", ["claim"], [[Html('<span class="holds">holds &amp; stays</span>')]])
    assert table.csv() == "claim\nholds & stays\n"
    assert r"holds \& stays" in table.latex()
    assert "<" not in table.markdown()


def test_letters_of_other_scripts_stay():
    assert latex_text("café 写真") == "café 写真"


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
def test_published_main_tables(name, images, text, first, last):
    rows = [r for r in published(name).rows if (r.method, r.images, r.text) == ("guided", images, text)]
    assert len(rows) == 1
    assert (rows[0].values[0], rows[0].values[-1]) == (first, last)


@pytest.mark.parametrize(
    ("name", "rows"), [("coco-1k", 13), ("coco-5k", 12), ("flickr30k", 9), ("flickr8k", 9)]
)
def test_no_published_row_is_missing(name, rows):
    table = published(f"main/{name}")
    assert len(table.rows) == rows
    assert all(len(row.values) == len(table.columns) == 8 for row in table.rows)


def test_other_published_tables():
    weighting = {row.method: row.values for row in published("weighting/coco-5k").rows}
    assert weighting["asymmetric (task dependent)"] == (12.92, 32.38, 44.52, 17.84, 40.42, 53.16)
    assert len(weighting) == 8
    assert [row.values[0] for row in published("timing/coco").rows] == [1.04, 1.94, 6.92, 45.31]
    guided = [row for row in published("regularization/flickr30k").rows if row.method == "guided"]
    assert guided[0].values[3] == 30.56
