"""The demo with few scenes."""

from commands import run
from diptych import Retriever


def test_the_demo_writes_models_and_a_report(tmp_path):
    result = run("demo", "-n", 200, "-o", tmp_path / "out", "--threads", 1)
    assert result.exit_code == 0, result.output
    for words in (
        *("Drew 200 images", "plain CCA", "search generation", "T-SVD", "Best here by mean r@1"),
        *("search 'a triangle", "annotate images/scene-"),
        *(f"diptych serve {tmp_path / 'out' / 'model'}", f"diptych search {tmp_path / 'out' / 'best'}"),
    ):
        assert words in result.stdout.replace("\n", " ")
    retriever = Retriever.load(tmp_path / "out" / "model")
    assert len(retriever.search("a red star", 3)) == 3
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.count("<figure>") == 2
    assert page.count('class="strip"') == 8
    assert "plain CCA" in page
    assert "http" not in page
