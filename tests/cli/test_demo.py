"""The demo, in small."""

from commands import run
from diptych import Retriever


def test_the_demo_goes_the_whole_way(tmp_path):
    result = run("demo", "-n", 200, "-o", tmp_path / "out", "--threads", 1)
    assert result.exit_code == 0, result.output
    for words in (
        *("Drew 200 pictures", "plain CCA", "search generation", "T-SVD", "Best here by mean r@1"),
        *("search 'a triangle", "annotate images/scene-"),
        *(f"diptych serve {tmp_path / 'out' / 'model'}", f"diptych search {tmp_path / 'out' / 'best'}"),
    ):
        assert words in result.stdout.replace("\n", " ")
    retriever = Retriever.load(tmp_path / "out" / "model")
    assert len(retriever.search("a red star", 3)) == 3
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert page.count("<figure>") == 3
    assert "plain CCA" in page
    assert "http" not in page
