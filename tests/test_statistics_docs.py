"""The examples of the pages on statistics run, print what the pages say, and draw their figures."""

import importlib.util
import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="matplotlib is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

DOCS = Path(__file__).parents[1] / "docs"
PAGES = {"statistics": 10, "designs": 8}
"""The pages, and the least number of outputs of each."""
NUMBER = re.compile(r"(-?\d+(?:\.\d*)?)")


def load_page_runner():
    spec = importlib.util.spec_from_file_location("run_page", DOCS / "run_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(page):
    return re.findall(r"```text\n(.*?)```", page, re.DOTALL)


def compare(printed, expected):
    """Compare texts up to the last digit of each number, which another processor may round differently."""
    printed, expected = (NUMBER.split(re.sub(r"\s+", " ", text)) for text in (printed, expected))
    # Padding depends on signs and digits; words do not.
    assert [part.strip() for part in printed[::2]] == [part.strip() for part in expected[::2]]
    for own, other in zip(printed[1::2], expected[1::2], strict=True):
        decimals = len(other.partition(".")[2])
        assert abs(float(own) - float(other)) <= 1.01 * 10.0**-decimals * (decimals > 0), (own, other)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_what_its_examples_print(name, tmp_path, monkeypatch):
    page = (DOCS / f"{name}.md").read_text("utf-8")
    monkeypatch.chdir(tmp_path)
    new = load_page_runner().run_page(page)
    assert len(outputs(page)) == len(outputs(new)) >= PAGES[name]
    for printed, expected in zip(outputs(new), outputs(page), strict=True):
        compare(printed, expected)
    drawn = {path.name for path in tmp_path.glob("*.png")}
    shown = set(re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page))
    measured = {name for name in shown if name.startswith("../benchmarks/results/")}
    assert drawn == shown - measured
    assert all((DOCS / name).is_file() for name in measured)


@pytest.mark.parametrize("name", PAGES)
def test_figures_of_a_page_are_small(name):
    figures = list(DOCS.glob(f"{name}-*.png"))
    assert figures
    assert all(path.stat().st_size < 150_000 for path in figures)


def test_comparison_finds_another_number():
    compare("p = 0.061 of 20", "p = 0.062  of 20")
    for other in ("p = 0.064 of 20", "p = 0.061 of 21", "q = 0.061 of 20"):
        with pytest.raises(AssertionError):
            compare("p = 0.061 of 20", other)
