"""Tables and figures of the pages are those of the results files, which name the code that made them."""

import argparse
import ast
import hashlib
import importlib
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(BENCHMARKS.glob("*.py"))
RESULTS = sorted((BENCHMARKS / "results").glob("*.json"))
LOG = BENCHMARKS / "results" / "accuracy_log.jsonl"
FACTS = {"encoders.md", "api.md"}
"""Pages with tables of numbers that nobody measured: sizes of models, numbers of theorems."""


@pytest.fixture
def load(monkeypatch):
    """A function that imports a module of benchmarks/."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # what a benchmark sets is undone
    yield importlib.import_module
    for path in SCRIPTS:
        sys.modules.pop(path.stem, None)


@pytest.fixture
def pages(load, monkeypatch, tmp_path):
    """``fill_docs`` with a results folder of its own."""
    module = load("fill_docs")
    monkeypatch.setattr(module, "RESULTS", tmp_path)
    monkeypatch.setattr(load("measuring"), "ask_git", lambda *arguments: None)
    rows = [
        {"features": "MiniLM", "trial": "plain", "search": "28.8 / 59.4", "gain": "-0.1 [-0.2, +0.1]"},
        {"features": "MiniLM, HKSE", "trial": "plain", "search": "29.4 / 60.1", "gain": "1e-16"},
    ]
    (tmp_path / "old.json").write_text(json.dumps({"rows": rows, "note": "10 s on 2,000 images"}))
    made = {"commit": "0" * 40, "source": "1" * 40, "date": "2026-01-02"}
    (tmp_path / "new.json").write_text(json.dumps({"rows": rows, "note": "", **made}))
    (tmp_path / "reproduction.json").write_text(json.dumps({"tables": {"run": ["text"], "a": ["| a |"]}}))
    return module


def test_pages_are_as_the_results_say(load):
    """What git knows of a commit is left out: a history may be shortened after the pages were filled."""
    module = load("fill_docs")
    pages = {path: module.fill(path.read_text("utf-8")) for path in module.list_pages()}
    for path, page in (pages | module.make_result_pages()).items():
        filled, stands = (
            text.replace(" (not in this repository)", "") for text in (page, path.read_text("utf-8"))
        )
        assert filled == stands, f"{path.name} is not as the results say: run benchmarks/fill_docs.py"


def test_tables_of_figures_stand_in_blocks(load):
    for path in load("fill_docs").list_pages():
        outside = re.sub(
            r"<!-- (?:results|tables)/.*?<!-- end -->", "", path.read_text("utf-8"), flags=re.DOTALL
        )
        outside = re.sub(r"(`{1,3}).*?\1", "", outside, flags=re.DOTALL)
        figures = re.findall(r"^\|.*(?:\d\.\d|\d ?%).*\|$", outside, re.MULTILINE)
        assert not figures or path.name in FACTS, (
            f"{path.name} has figures that no results file has: {figures}"
        )


def test_no_paragraph_ends_at_a_figure(load):
    for path in load("fill_docs").list_pages():
        begun = re.findall(r"^<!-- results/.*<!-- / -->", path.read_text("utf-8"), re.MULTILINE)
        assert not begun, f"{path.name}: a figure begins a line, and Markdown ends the paragraph before it"


def test_figures_of_small_samples_are_what_the_tree_gives(load):
    """Held-out samples of 45 have many ties, so a changed rule for them is noticed here first."""
    benchmark = load("dual_encoder")
    unseen = benchmark.make_dual_features(benchmark.UNSEEN, seed=999)
    draws = [benchmark.make_dual_features(300, seed=draw) for draw in range(benchmark.DRAWS)]
    models = [benchmark.AWCCA(grid=12).fit(*pairs) for pairs in draws]
    rows = json.loads((BENCHMARKS / "results" / "dual_encoder.json").read_text("utf-8"))["rows"]
    (recorded,) = (row["AW-CCA"].split(", ") for row in rows if row["pairs"] == 300)
    for task, figure in zip(benchmark.TASKS, recorded, strict=True):
        recall = np.mean([benchmark.model_recall(model, unseen, task) for model in models])
        assert recall == pytest.approx(float(figure.partition(" ")[0]), abs=0.5), (
            "models are selected otherwise than when the results were measured: measure accuracy again"
        )


def test_a_table_has_the_rows_and_columns_asked_for(pages):
    page = "<!-- results/old | Mini* | *HKSE\n| r@1 = search[1] | search[:1] | gain | -->\n"
    page += "old\n<!-- end -->\n"
    table = "| r@1 | search[:1] | gain |\n| --- | --- | --- |\n| 29.4 | 29.4 | 1e−16 |"
    filled = page.replace("old\n<!-- end", f"\n{table}\n\n*Commit not recorded.*\n\n<!-- end")
    assert pages.fill(page) == filled
    assert pages.fill(filled) == filled
    every = pages.fill("<!-- results/new -->\n<!-- end -->\n")
    assert every.count("MiniLM") == 2
    assert "−0.1 [−0.2, +0.1]" in every
    assert "*Commit 0000000000, 2026-01-02.*" in every


def test_a_figure_is_one_number_of_one_row(pages):
    page = "It is <!-- results/old | MiniLM | search[2] -->1<!-- / --> of "
    page += "<!-- results/old | note[2] -->2<!-- / -->\nimages.\n<!-- results/old -->\n<!-- end -->\n"
    filled = re.sub("<!--.*?-->", "", pages.fill(page))
    assert filled.startswith("It is 59.4 of 2,000\nimages.\n\n\n| features |")


@pytest.mark.parametrize(
    ("marker", "message"),
    [
        ("<!-- results/none -->\n<!-- end -->", "none.json"),
        ("<!-- results/old | nobody -->\n<!-- end -->", "no row of results/old.json has the cells nobody"),
        ("<!-- results/old\n| speed | -->\n<!-- end -->", "no column speed; it has features, trial"),
        ("<!-- results/old | Mini* | search[1] -->1<!-- / -->", "2 rows of results/old.json"),
        ("<!-- tables/b.md -->\n<!-- end -->", "no table b"),
    ],
)
def test_what_the_results_lack_is_named(pages, marker, message):
    with pytest.raises(SystemExit, match=re.escape(message)):
        pages.fill(f"text {marker}\n")


def test_tables_of_the_reproduction_are_copied_whole(pages):
    page = "<!-- tables/run.md -->\nold\n<!-- end -->\n<!-- tables/a.md -->\nold\n<!-- end -->\n"
    assert pages.fill(page) == (
        "<!-- tables/run.md -->\n\ntext\n\n*Commit not recorded.*\n\n<!-- end -->\n"
        "<!-- tables/a.md -->\n\n| a |\n\n<!-- end -->\n"
    )


def ask_git(*arguments):
    result = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True)
    return result.stdout if result.returncode == 0 else None


@pytest.mark.parametrize(
    ("is_shallow", "commit", "note"),
    [("false", "", ""), ("false", None, " (not in this repository)"), ("true", None, ""), (None, None, "")],
)
def test_a_commit_that_nobody_can_look_up_is_called_so(load, monkeypatch, is_shallow, commit, note):
    """Only where git has the whole history: a shallow clone, or a copy without git, may lack any commit."""
    measuring = load("measuring")
    answers = {"rev-parse": is_shallow, "cat-file": commit}
    monkeypatch.setattr(measuring, "ask_git", lambda command, *rest: answers[command])
    measuring.is_missing.cache_clear()
    assert measuring.describe_commit("0123456789+") == f"commit 0123456789+{note}"
    assert measuring.describe_commit(measuring.NOT_RECORDED) == "commit not recorded"


def test_the_code_is_named_as_git_names_it(load):
    source = ask_git("rev-parse", "HEAD:src/diptych")
    if source is None or ask_git("status", "--porcelain", "--ignored=no", "src/diptych") != b"":
        pytest.skip("src/diptych is not as it is committed, or there is no repository")
    assert load("measuring").identify_code()["source"] == source.decode().strip()


def test_results_were_made_by_the_code_of_their_commit():
    for path in RESULTS:
        content = json.loads(path.read_text("utf-8"))
        if commit := content.get("commit"):
            assert content["date"]
            assert "numpy" in content["versions"]
            source = ask_git("rev-parse", f"{commit}:src/diptych")
            assert source is None or source.decode().strip() == content["source"], (
                f"{path.name} of changed code"
            )


def test_configurations_in_the_log_were_committed():
    for line in LOG.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry.get("event") == "start" and entry["committed"]:
            content = ask_git("show", f"{entry['commit']}:benchmarks/{entry['file']}")
            assert content is None or hashlib.sha256(content).hexdigest() == entry["configuration"], entry[
                "run"
            ]


def test_a_recorded_table_names_its_code(load, monkeypatch, tmp_path, capsys):
    measuring = load("measuring")
    monkeypatch.setattr(measuring, "RESULTS", tmp_path)
    measuring.record("table", [{"a": 1, "b": "x"}], "A note.")
    content = json.loads((tmp_path / "table.json").read_text("utf-8"))
    assert content["rows"] == [{"a": 1, "b": "x"}]
    assert {"commit", "source", "date", "versions", "command", "where"} <= set(content)
    text = (tmp_path / "table.md").read_text("utf-8")
    assert text.splitlines()[2].startswith("commit ")
    assert "numpy" in text
    assert text.endswith("| 1 | x |\n\nA note.\n")
    assert capsys.readouterr().out.startswith(text)


def test_a_copy_without_a_repository_names_its_commit(load, monkeypatch):
    measuring = load("measuring")
    monkeypatch.setattr(measuring, "ask_git", lambda *arguments: None)
    monkeypatch.delenv("DIPTYCH_COMMIT", raising=False)
    measuring.identify_code.cache_clear()
    assert measuring.name_commit() == "not recorded"
    with pytest.raises(SystemExit, match="commit accuracy.json first"):
        measuring.check_committed(BENCHMARKS / "accuracy.json")
    monkeypatch.setenv("DIPTYCH_COMMIT", "abcdef0123456789")
    measuring.identify_code.cache_clear()
    assert measuring.name_commit() == "abcdef0123"
    measuring.check_committed(BENCHMARKS / "accuracy.json")


def test_a_run_that_stops_is_in_the_log(load, monkeypatch, tmp_path):
    measuring = load("measuring")
    log = tmp_path / "log.jsonl"
    monkeypatch.setattr(measuring, "LOG", log)
    monkeypatch.setattr(measuring, "check_committed", lambda configuration: None)
    with measuring.log_test_run(BENCHMARKS / "accuracy.json") as rows:
        rows.append({"r@1": 1.0})
    with pytest.raises(KeyboardInterrupt), measuring.log_test_run(BENCHMARKS / "accuracy.json"):
        raise KeyboardInterrupt
    first, end, stopped = map(json.loads, log.read_text("utf-8").splitlines())
    assert (first["event"], end["event"], stopped["event"]) == ("start", "end", "start")
    assert first["run"] == end["run"] != stopped["run"]
    assert end["rows"] == [{"r@1": 1.0}]
    assert {"command", "configuration", "committed", "commit"} <= set(stopped)


def test_rows_of_the_readme_are_measured_with_every_seed(load):
    accuracy = load("accuracy")
    config = json.loads(accuracy.CONFIGURATION.read_text("utf-8"))
    cells = accuracy.list_cells(config, argparse.Namespace(only="", readme=True))
    steps = [(row["features"], row["ingredient"]) for row in config["readme"]]
    assert set(cells) == {(group, seed, trial) for group, trial in steps for seed in config["seeds"]}
    rows = [{"features": group, "ingredient": trial, "gain": "+1"} for group, trial in steps]
    assert [row["step"] for row in accuracy.list_readme_rows(rows[::-1], config)] == [
        row["step"] for row in config["readme"]
    ]


def test_rows_that_were_not_measured_now_keep_their_commit(load, monkeypatch, tmp_path):
    accuracy = load("accuracy")
    monkeypatch.setattr(accuracy, "RESULTS", tmp_path)
    before = [{"features": "B", "ingredient": name, "commit": "old"} for name in ("first", "second")]
    before += [{"features": "A", "ingredient": "first"}, {"features": "gone", "ingredient": "first"}]
    (tmp_path / "accuracy.json").write_text(json.dumps({"rows": before}))
    measured = [{"features": "B", "ingredient": "second", "commit": "new"}]
    rows = accuracy.merge_rows(measured, {"alone": {"A": {}}, "best": {"B": {}}})
    assert [tuple(row.values()) for row in rows] == [
        ("A", "first", "not recorded"),
        ("B", "second", "new"),
        ("B", "first", "old"),
    ]


def test_a_missing_package_is_one_line(load):
    with pytest.raises(
        SystemExit, match="needs the package nobody_has_this, which is not installed: pip install x"
    ):
        load("measuring").require("nobody_has_this", "pip install x")


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_benchmarks_ask_for_the_packages_that_they_import(path):
    """Every import that a plain install does not have is asked for, so that nothing is computed in vain."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    installed = {re.split(r"[\[<>=]", name)[0].replace("-", "_") for name in project["dependencies"]}
    installed |= {"faiss", "sklearn", "PIL", "diptych", "reproduction"}
    installed |= {helper.stem for helper in (*SCRIPTS, *(ROOT / "tests").glob("*.py"))}
    text = path.read_text("utf-8")
    imported, asked_for = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imported.add(node.module.partition(".")[0])
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            asked_for.add(node.value)
    if path.stem != "measuring" and "start_figure(" in text:
        imported.add("matplotlib")
    needed = imported - installed - sys.stdlib_module_names
    if path.stem == "measuring":
        needed -= {"matplotlib", "torch"}  # asked for by those who draw, and by check_device
    assert not needed or "require(" in text
    assert needed <= asked_for
