"""Fill the tables and figures of README.md and docs/ from ``benchmarks/results/``.

    python benchmarks/fill_docs.py            # writes the pages
    python benchmarks/fill_docs.py --ages     # which results are older than the code

A table stands between two comments. The first one names the results file, the cells that a row must have to
be shown (``*`` stands for anything), and in a second line the columns, each as it is shown and, after ``=``,
as the results have it, with ``[2]`` for the second number of a cell and ``[:3]`` for the first three parts
between slashes:

    <!-- results/accuracy | HKSE
    | ingredient | search = search[:3] | r@1 = search[1] | -->
    (the table, and the commit that made it)
    <!-- end -->

A figure in a sentence is written ``<!-- results/startup | *--help* | seconds -->0.15<!-- / -->``: one row,
and the column or its number; ``note[2]`` is the second number of the note below the table. It must not begin
a line, because Markdown would end the paragraph there. ``<!-- tables/weighting.md -->`` begins a whole table
of the reproduction of the paper (``fill_reproduction.py``). The Markdown files beside the results are written
too. A test fails if a page is not as this command writes it.

A commit that the repository does not have, because it was made in a history that was not kept, is called so.
Where git cannot tell, in a shallow clone or without a repository, the commit is only named.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from measuring import RESULTS, ROOT, ask_git, describe_code, describe_commit, make_markdown, make_table

TABLE = re.compile(r"(<!-- tables/(\w+)\.md -->\n).*?(<!-- end -->)", re.DOTALL)
BLOCK = re.compile(
    r"(<!-- results/(\w+)((?: \|(?:(?!-->)[^|\n])*)*?)(?:\n(\|[^\n]*?))? -->\n).*?(<!-- end -->)", re.DOTALL
)
FIGURE = re.compile(r"(<!-- results/(\w+)((?: \| [^|\n]*)*?) \| ([^|\n]*?) -->)[^\n]*?(<!-- / -->)")
COLUMN = re.compile(r"(.*?)(?:\[(:?)(\d+)\])?")
NUMBER = re.compile(r"[+−]?\d[\d,]*(?:\.\d+)?(?:e[+−]?\d+)?")


@cache
def read_results(name: str) -> dict[str, Any]:
    """Return a results file, or exit with a sentence."""
    file = RESULTS / f"{name}.json"
    if not file.is_file():
        sys.exit(f"a page asks for results/{name}.json, which does not exist")
    return json.loads(file.read_text("utf-8"))


def find_rows(name: str, cells: str) -> list[dict[str, Any]]:
    """Return the rows of a results file that have all these cells, at least one."""
    patterns = [cell.strip() for cell in cells.split("|") if cell.strip()]
    rows = [
        row
        for row in read_results(name)["rows"]
        if all(any(fnmatchcase(str(value), pattern) for value in row.values()) for pattern in patterns)
    ]
    if not rows:
        sys.exit(f"no row of results/{name}.json has the cells {' | '.join(patterns)}")
    return rows


def read_cell(row: Mapping[str, Any], column: str, name: str) -> str:
    """Return a cell of a row, one of its numbers, or its first parts, with real minus signs."""
    column, slashes, number = COLUMN.fullmatch(column.strip()).groups()
    if column not in row:
        sys.exit(f"results/{name}.json has no column {column}; it has {', '.join(row)}")
    text = re.sub(r"(?<![\w)])-(?=\d)|(?<=\de)-(?=\d)", "−", str(row[column]))
    if slashes:
        return " / ".join(text.split(" / ")[: int(number)])
    return NUMBER.findall(text)[int(number) - 1] if number else text


def name_code(name: str, rows: list[dict[str, Any]]) -> str:
    """Return the line below a table: the commits that made its rows, and the date."""
    content = read_results(name)
    commits = describe_commits(content, rows)
    return f"*{commits[0].upper()}{commits[1:]}{', ' + content['date'] if 'date' in content else ''}.*"


def describe_commits(content: Mapping[str, Any], rows: list[dict[str, Any]]) -> str:
    """Return the commits that made these rows of a results file."""
    commits = dict.fromkeys(describe_commit(row["commit"]) for row in rows if "commit" in row)
    return "; ".join(commits) or describe_code(content.get("commit"), content.get("source"))


def fill_table(block: re.Match[str]) -> str:
    start, name, end = block.groups()
    tables = read_results("reproduction")["tables"]
    if name not in tables:
        sys.exit(f"results/reproduction.json has no table {name}; run benchmarks/fill_reproduction.py again")
    made = ["", name_code("reproduction", [])] if name == "run" else []
    return "\n".join([start, *tables[name], *made, "", end])


def fill_block(block: re.Match[str]) -> str:
    start, name, cells, head, end = block.groups()
    rows = find_rows(name, cells)
    columns = [cell.strip() for cell in head.strip(" |").split(" | ")] if head else list(rows[0])
    pairs = [(c, c) if c in rows[0] or " = " not in c else c.split(" = ", 1) for c in columns]
    values = [[read_cell(row, column, name) for _, column in pairs] for row in rows]
    shown = [name for name, _ in pairs]
    return "\n".join([start, *make_table(shown, values), "", name_code(name, rows), "", end])


def fill_figure(figure: re.Match[str]) -> str:
    start, name, cells, column, end = figure.groups()
    if column.startswith("note"):
        row = {"note": read_results(name)["note"]}
    else:
        row, *others = find_rows(name, cells)
        if others:
            sys.exit(f"{len(others) + 1} rows of results/{name}.json have the cells{cells}; name one")
    return start + read_cell(row, column, name) + end


def fill(page: str) -> str:
    """Return a page with every table and figure as the results have it."""
    return FIGURE.sub(fill_figure, BLOCK.sub(fill_block, TABLE.sub(fill_table, page)))


def list_pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def make_result_pages() -> dict[Path, str]:
    """Return the Markdown files beside those results that name their commit or say that there was none."""
    contents = {file: read_results(file.stem) for file in sorted(RESULTS.glob("*.json"))}
    return {
        file.with_suffix(".md"): make_markdown(content)
        for file, content in contents.items()
        if "rows" in content and "commit" in content
    }


def list_ages() -> None:
    """Print the commit that made each results file, and how many later commits changed src/diptych."""
    for file in sorted(RESULTS.glob("*.json")):
        content = read_results(file.stem)
        commit = content.get("commit")
        later = commit and ask_git("rev-list", "--count", f"{commit}..HEAD", "--", "src/diptych")
        after = f", {later} later commits of src/diptych" if later else ""
        print(f"{file.stem}: {describe_commits(content, content.get('rows', []))}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ages", action="store_true", help="show which results are older than the code")
    if parser.parse_args().ages:
        list_ages()
        return
    pages = {path: fill(path.read_text("utf-8")) for path in list_pages()} | make_result_pages()
    for path, page in pages.items():
        if path.read_text("utf-8") != page:
            path.write_text(page, "utf-8")
            print(f"{path.relative_to(ROOT)}: filled")


if __name__ == "__main__":
    main()
