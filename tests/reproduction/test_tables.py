"""One table in four forms: the page, CSV, LaTeX and Markdown."""

import csv
import io

import pytest

from diptych.report._page import Html, Row
from latex_check import check_latex
from reproduction.tables import ReportTable, latex_text

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


@pytest.mark.parametrize("broken", ["a & b \\\\", "{", "$", "Σ"])
def test_the_check_finds_what_is_wrong(broken):
    with pytest.raises(AssertionError):
        check_latex(TABLE.latex().replace("plain", broken))


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
