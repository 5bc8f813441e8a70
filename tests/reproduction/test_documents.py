"""The tables of docs/reproduction.md come from files that a whole run writes."""

import importlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reproduction.md").read_text("utf-8")


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("fill_reproduction")
    for name in ("fill_reproduction", "fill_docs", "measuring"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_run_writes_what_the_document_asks_for(script, reproduced, scenes_folder, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(scenes_folder, folder)
    page = PAGE.replace("flickr8k", "scenes")
    with pytest.raises(SystemExit, match="quick run"):
        script.read_run(folder, page)
    results = json.loads((folder / "results.json").read_text("utf-8"))
    (folder / "results.json").write_text(json.dumps(results | {"caveat": ""}))
    content = script.read_run(folder, page)
    assert content["command"] == "python -m reproduction scenes --quick"
    assert list(content["tables"]) == re.findall(r"<!-- tables/(\w+)\.md -->", page)
    assert len(content["tables"]) > 5
    assert all(len(lines) > 0 for lines in content["tables"].values())
    (folder / "tables" / "weighting.md").unlink()
    with pytest.raises(SystemExit, match="no weighting"):
        script.read_run(folder, page)
    (folder / "results.json").write_text(json.dumps(results | {"code": "other"}))
    with pytest.raises(SystemExit, match="made by other code"):
        script.read_run(folder, page)
