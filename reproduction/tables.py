"""Tables of the report, as HTML, CSV, LaTeX and Markdown; and the published ones."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any, Literal

import msgspec

from diptych.report import Html, Row, best_cells, format_cell, table
from reproduction.results import TASKS, Result


def mean_scores(runs: Sequence[Mapping[str, Any]]) -> Result:
    return {
        task: {name: sum(run[task][name] for run in runs) / len(runs) for name in runs[0][task]}
        for task in TASKS
    }


def mean_runs(runs: Sequence[Mapping[str, Any]]) -> Result:
    """Average the scores of runs, and keep the ranks of each run's queries for comparisons."""
    ranks = {task: [run["query_ranks"][task] for run in runs] for task in TASKS}
    return {**mean_scores(runs), "query_ranks": ranks}


LONG_CELL = 45
"""A LaTeX column with a longer cell is a paragraph column."""
METRICS = ("r@1", "r@5", "r@10", "median_rank")

# pdfLaTeX reads ASCII and accented Latin letters; other signs of the tables are set as mathematics.
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"α": r"$\alpha$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "η": r"$\eta$"},
    **{"σ": r"$\sigma$", "Σ": r"$\Sigma$", "ℓ": r"$\ell$", "√": r"$\surd$", "′": r"$'$", "²": r"$^2$"},
    **{"×": r"$\times$", "÷": r"$\div$", "±": r"$\pm$", "≈": r"$\approx$", "≤": r"$\le$", "≥": r"$\ge$"},
    **{"−": r"$-$", "–": "--", "—": "---", "…": r"\ldots{}", "½": r"$\frac12$", "→": r"$\to$"},
    **{"“": "``", "”": "''", "‘": "`", "’": "'", "○": r"$\circ$", "‖": r"$\|$", "|": r"$|$"},
    **{"<": r"$<$", ">": r"$>$", "✓": r"$\surd$", "∞": r"$\infty$", "ᵀ": r"$^\top$"},
}


@dataclass(frozen=True)
class ReportTable:
    """A table of the report; ``name`` is the name of its files, the rest is as in ``report._page.table``."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Row | Sequence[Any]]
    caption: str = ""
    note: str = ""
    best: Mapping[int, Literal["high", "low"]] | None = None
    groups: Sequence[tuple[str, int]] = ()

    def html(self) -> Html:
        shown = {"caption": self.caption, "note": self.note}
        return table(self.columns, self.rows, **shown, best=self.best, groups=self.groups)

    def csv(self) -> str:
        """Return the cells, numbers at full precision; heading rows become a first column, ``section``."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        has_sections = any(row.kind == "head" for row in self._rows)
        section = ""
        writer.writerow([*(["section"] if has_sections else []), *self._full_columns()])
        for row in self._rows:
            if row.kind == "head":
                section = plain_text(row.cells[0])
            else:
                writer.writerow([*([section] if has_sections else []), *map(_exact_text, row.cells)])
        return stream.getvalue()

    def latex(self) -> str:
        r"""Return a ``tabular`` that needs no package; ``\input`` it into a table of your own."""
        width = len(self.columns)
        lines = [f"% {line}" for line in f"{self.caption}\n{self.note}".splitlines() if line]
        lines += [rf"\begin{{tabular}}{{{''.join(map(self._alignment, range(width)))}}}", r"\hline"]
        if self.groups:
            spans = [rf"\multicolumn{{{span}}}{{c}}{{{latex_text(name)}}}" for name, span in self.groups]
            lines.append(" & ".join(spans) + r" \\")
        lines += [" & ".join(map(latex_text, self.columns)) + r" \\", r"\hline"]
        for row, bold in zip(self._rows, best_cells(self._rows, self.best), strict=True):
            cells = [latex_text(plain_text(cell)) for cell in row.cells]
            if row.kind == "head":
                lines += [r"\hline", rf"\multicolumn{{{width}}}{{l}}{{\textbf{{{cells[0]}}}}} \\"]
                continue
            if row.kind == "quiet":
                cells = [rf"\textit{{{cell}}}" if cell else "" for cell in cells]
            cells = [rf"\textbf{{{cell}}}" if i in bold else cell for i, cell in enumerate(cells)]
            lines.append(" & ".join(cells) + r" \\")
        return "\n".join([*lines, r"\hline", r"\end{tabular}"]) + "\n"

    def markdown(self) -> str:
        """Return a table in GitHub's Markdown."""
        lines = [_markdown_row(self._full_columns(first_only=True)), "|" + "---|" * len(self.columns)]
        for row, bold in zip(self._rows, best_cells(self._rows, self.best), strict=True):
            cells = [plain_text(cell) for cell in row.cells]
            if row.kind == "head":
                cells = [f"**{cells[0]}**", *[""] * (len(self.columns) - 1)]
            elif row.kind == "quiet":
                cells = [f"*{cell}*" if cell else "" for cell in cells]
            else:
                cells = [f"**{cell}**" if i in bold else cell for i, cell in enumerate(cells)]
            lines.append(_markdown_row(cells))
        return "\n".join(lines) + "\n"

    @property
    def _rows(self) -> list[Row]:
        return [row if isinstance(row, Row) else Row(row) for row in self.rows]

    def _full_columns(self, *, first_only: bool = False) -> list[str]:
        """Return column names with the name of their group: on all of them, or on the first of each group."""
        names, start = list(self.columns), 0
        for group, span in self.groups:
            for i in range(start, start + (1 if first_only else span)):
                names[i] = f"{group} {names[i]}".strip()
            start += span
        return names

    def _alignment(self, column: int) -> str:
        cells = [plain_text(row.cells[column]) for row in self._rows if row.kind != "head"]
        if any(len(cell) > LONG_CELL for cell in cells):
            return r"p{0.35\linewidth}"
        return "l" if any(re.search(r"[^\W\d]{2}", cell) for cell in cells) else "r"


def plain_text(cell: Any) -> str:
    """Return a cell as the page shows it, without markup.

    >>> plain_text(22.34), plain_text(None), plain_text(Html("a<br>b"))
    ('22.3', '–', 'a; b')
    """
    shown = cell if isinstance(cell, Html) else format_cell(cell)
    return unescape(re.sub(r"<[^>]*>", "", shown.replace("<br>", "; ")))


def _exact_text(cell: Any) -> str:
    return repr(float(cell)) if isinstance(cell, float) else plain_text(cell)


def latex_text(text: str) -> str:
    r"""Escape ``text`` for LaTeX.

    >>> print(latex_text("50 % of k_x, Σ^α"))
    50 \% of k\_x, $\Sigma$\textasciicircum{}$\alpha$
    """
    return "".join(_LATEX.get(letter, letter) for letter in text)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def recall_table(
    name: str,
    first: Sequence[str],
    rows: Sequence[Row | Sequence[Any]],
    *,
    median: bool = True,
    bold: bool = True,
    caption: str = "",
) -> ReportTable:
    """Build a table with ``first`` columns, followed by the recalls of search and of annotate."""
    names = ("r@1", "r@5", "r@10", *(["med r"] if median else []))
    best: dict[int, Literal["high", "low"]] = {
        len(first) + i: "low" if name == "med r" else "high" for i, name in enumerate(names * len(TASKS))
    }
    groups = [*(("", 1) for _ in first), *((task, len(names)) for task in TASKS)]
    columns = [*first, *(names * len(TASKS))]
    return ReportTable(name, columns, rows, caption=caption, best=best if bold else None, groups=groups)


def recall_cells(scores: Mapping[str, Any], *, median: bool = True) -> list[float | None]:
    """Return the cells of a row: r@1, r@5, r@10 and the median rank of search, then of annotate."""
    names = METRICS if median else METRICS[:3]
    return [scores[task][name] if task in scores else None for task in TASKS for name in names]


def published_row(names: Sequence[str], values: Sequence[float | None]) -> Row:
    """Build a row of published figures, with the digits they were published with."""
    return Row([*names, *(None if value is None else f"{value}" for value in values)], "quiet")


def head_row(words: str) -> Row:
    return Row([words], "head")


PUBLISHED = {"flickr8k": "main/flickr8k", "coco-1k": "main/coco-1k", "coco-5k": "main/coco-5k"}
PUBLISHED |= {"flickr30k-paper": "main/flickr30k", "flickr30k-karpathy": "main/flickr30k"}
"""The main table of each protocol."""


class PublishedRow(msgspec.Struct, frozen=True):
    """One row of a published table; ``values`` follow the table's columns, None where no number is given."""

    method: str
    values: tuple[float | None, ...]
    images: str = ""
    text: str = ""
    by: str = "the paper"
    shape: tuple[int, ...] = ()


class PublishedTable(msgspec.Struct, frozen=True):
    """A published table: its columns, its rows, and a description of what was measured."""

    columns: tuple[str, ...]
    rows: tuple[PublishedRow, ...]
    setting: str = ""


class Publication(msgspec.Struct, frozen=True):
    """A publication: what to cite, and its tables by name, such as ``"weighting/coco-5k"``."""

    source: str
    tables: dict[str, PublishedTable]


@cache
def read_publication() -> Publication:
    """Return the paper, read from ``published.json``.

    >>> read_publication().tables["main/flickr8k"].rows[1].values[0]
    18.62
    """
    content = Path(__file__).with_name("published.json").read_bytes()
    return msgspec.json.decode(content, type=Publication)


def published(name: str) -> PublishedTable:
    return read_publication().tables[name]
