"""Tables of the report: shown on its page, and written as CSV, LaTeX and Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import unescape
from typing import Any

from diptych.report._page import Best, Html, Row, best_cells, number, table

LONG_CELL = 45
"""A LaTeX column with a longer cell is a paragraph column."""

# pdfLaTeX knows ASCII and accented Latin letters; other signs of the tables are set as mathematics.
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{"α": r"$\alpha$", "γ": r"$\gamma$", "δ": r"$\delta$", "ε": r"$\varepsilon$", "η": r"$\eta$"},
    **{"σ": r"$\sigma$", "Σ": r"$\Sigma$", "ℓ": r"$\ell$", "√": r"$\surd$", "′": r"$'$", "²": r"$^2$"},
    **{"×": r"$\times$", "÷": r"$\div$", "±": r"$\pm$", "≈": r"$\approx$", "≤": r"$\le$", "≥": r"$\ge$"},
    **{
        "−": r"$-$",
        "–": "--",
        "—": "---",
        "…": r"\ldots{}",
        "½": r"$\frac12$",
        "→": r"$\to$",
        "ᵀ": r"$^\top$",
    },
    **{"“": "``", "”": "''", "‘": "`", "’": "'", "○": r"$\circ$", "‖": r"$\|$", "|": r"$|$"},
    **{"<": r"$<$", ">": r"$>$", "✓": r"$\surd$", "∞": r"$\infty$"},
}


@dataclass(frozen=True)
class ReportTable:
    """A table of the report; columns, rows, ``best`` and ``groups`` as in ``diptych.report._page.table``.

    Attributes
    ----------
    name
        Of its files.
    caption, note
        Above and below it.
    """

    name: str
    columns: Sequence[str]
    rows: Sequence[Row | Sequence[Any]]
    caption: str = ""
    note: str = ""
    best: Mapping[int, Best] | None = None
    groups: Sequence[tuple[str, int]] = ()

    def html(self) -> Html:
        """The table for the page."""
        return table(
            self.columns,
            self.rows,
            caption=self.caption,
            note=self.note,
            best=self.best,
            groups=self.groups,
        )

    def csv(self) -> str:
        """Its cells as they are shown; a row that names those below it becomes their first column."""
        stream = io.StringIO()
        writer = csv.writer(stream, lineterminator="\n")
        sections = any(row.kind == "head" for row in self._rows)
        section = ""
        writer.writerow([*(["section"] if sections else []), *self._full_columns()])
        for row in self._rows:
            if row.kind == "head":
                section = plain_text(row.cells[0])
            else:
                writer.writerow([*([section] if sections else []), *map(plain_text, row.cells)])
        return stream.getvalue()

    def latex(self) -> str:
        r"""A ``tabular`` that needs no package; ``\input`` it into a table of your own."""
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
        """A table as GitHub and most others show it."""
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
        """Column names with the name of their group, in front of all of them or of the first one."""
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
    """A cell as the page shows it, without markup.

    >>> plain_text(22.34), plain_text(None), plain_text(Html("a<br>b"))
    ('22.3', '–', 'a; b')
    """
    shown = cell if isinstance(cell, Html) else number(cell)
    return unescape(re.sub(r"<[^>]*>", "", shown.replace("<br>", "; ")))


def latex_text(words: str) -> str:
    r"""Escape ``words`` for LaTeX.

    >>> print(latex_text("50 % of k_x, Σ^α"))
    50 \% of k\_x, $\Sigma$\textasciicircum{}$\alpha$
    """
    return "".join(_LATEX.get(letter, letter) for letter in words)


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"
