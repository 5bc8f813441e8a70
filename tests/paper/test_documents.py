"""The tables of docs/reproduction.md come from files that a whole run writes."""

import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script():
    return runpy.run_path(str(ROOT / "benchmarks" / "reproduction.py"))


def test_blocks_are_replaced_and_the_rest_stays(script, tmp_path):
    (tmp_path / "tables").mkdir()
    (tmp_path / "tables" / "a.md").write_text("| new |\n|---|\n")
    document = "before\n<!-- tables/a.md -->\n| old |\n<!-- end -->\nafter\n"
    expected = "before\n<!-- tables/a.md -->\n\n| new |\n|---|\n\n<!-- end -->\nafter\n"
    assert script["fill"](document, tmp_path) == expected
    assert script["fill"](expected, tmp_path) == expected
    with pytest.raises(SystemExit, match="tables/b.md"):
        script["fill"](document.replace("a.md", "b.md"), tmp_path)


@pytest.mark.slow
def test_a_run_writes_what_the_document_asks_for(script, reproduced, scenes_folder):
    document = (ROOT / "docs" / "reproduction.md").read_text("utf-8")
    names = {name for _, name, _ in script["BLOCK"].findall(document)}
    assert len(names) > 5
    for name in names:
        assert (scenes_folder / name.replace("flickr8k", "scenes")).is_file(), name
