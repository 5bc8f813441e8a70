"""The command that evaluates: what it prints and writes."""

import numpy as np
import pytest

from commands import config, refused, run, run_json
from generated_pairs import make_pairs
from latex_check import check_latex


@pytest.fixture
def model(tmp_path, monkeypatch):
    (x, y, pairing), (new_x, new_y, new_pairing) = make_pairs(0)
    monkeypatch.chdir(tmp_path)
    for name, array in {"x": x, "y": y, "p": pairing, "nx": new_x, "ny": new_y, "np": new_pairing}.items():
        np.save(f"{name}.npy", array)
    run("fit", "x.npy", "y.npy", "--pairs", "p.npy", "-o", "m", *config(model={"params": [1, 1]}))
    return ["evaluate", "m", "nx.npy", "ny.npy", "--pairs", "np.npy"]


def test_the_command_prints_intervals_and_writes_files(model, tmp_path):
    files = ["--csv", "m.csv", "--latex", "m.tex", "--run", "out/m.trec", "--qrels", "q.trec"]
    (tmp_path / "m.csv").write_text("an older file")
    shown = run(*model, *files, "--task", "annotate", "--depth", 7)
    told = run_json(*model)
    for title in ("r@1", "median rank", "mean rank", "MRR", "nDCG@10", "mAP@R"):
        assert title in shown.stdout
    low, high = told["intervals"]["search"]["ndcg@10"]
    assert f"{told['all']['search']['ndcg@10']:.1f} [{low:.1f}, {high:.1f}]" in shown.stdout
    for name in ("m.csv", "m.tex", "out/m.trec", "q.trec"):
        assert f"wrote {name}" in shown.stdout
        assert (tmp_path / name).is_file()
    check_latex((tmp_path / "m.tex").read_text())
    assert (tmp_path / "m.csv").read_text().startswith("task,metric,value,low,high\nsearch,r@1,")
    lines = (tmp_path / "out" / "m.trec").read_text().splitlines()
    described = len(np.unique(np.load("np.npy")))
    assert len(lines) == 7 * described
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".m.")) == []


def test_options_without_effect_and_files_that_cannot_be_written_are_refused(model, tmp_path):
    assert "--depth has no effect without --run" in refused(*model, "--depth", 5)
    assert "--task has no effect" in refused(*model, "--task", "annotate")
    assert "--split has no effect" in refused(*model, "--split", "train")
    assert "task" in refused(*model, "--run", "r", "--task", "both")
    (tmp_path / "taken").mkdir()
    assert "taken" in refused(*model, "--csv", "taken")
