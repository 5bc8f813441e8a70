"""docs/paper.md: nothing of the paper is missing, and every file and name of the code exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [
    [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    for line in (ROOT / "docs" / "paper.md").read_text("utf-8").splitlines()
    if re.match(r"\| [A-Z]\w+ [A-Z\d]+ \|", line)
]
NUMBERED = {
    **{"Equation": 13, "Lemma": 1, "Theorem": 1, "Proposition": 1, "Remark": 2},
    **{"Algorithm": 4, "Table": 6, "Figure": 8},
}


@cache
def names_in(path):
    """Names that a module defines at its top, and Class.method."""
    names = set()
    for node in ast.parse((ROOT / path).read_text("utf-8")).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
            if isinstance(node, ast.ClassDef):
                names |= {
                    f"{node.name}.{each.name}" for each in node.body if isinstance(each, ast.FunctionDef)
                }
    return names


def test_every_number_of_the_paper_is_listed_once():
    listed = [row[0] for row in ROWS]
    expected = {f"{kind} {i}" for kind, count in NUMBERED.items() for i in range(1, count + 1)}
    expected |= {f"Appendix {letter}" for letter in "ABCDEFGH"}
    assert set(listed) == expected
    assert len(listed) == len(expected)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
def test_its_files_and_names_exist(row):
    _, what, code, tests = row
    assert what
    places = re.findall(r"`([\w/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", code)
    assert places
    for path, names in places:
        for name in re.findall(r"`([\w.]+)`", names):
            assert name in names_in(path), (path, name)
    for path in re.findall(r"`([^`]+)`", tests):
        assert (ROOT / path).is_file(), path
