"""A whole reproduction on drawn scenes: what is written, what is computed again, and what chance gives."""

import csv
import json
import re
import shutil
import subprocess

import numpy as np
import pytest

from diptych import InputError
from diptych.cca.selection import regularization_path
from diptych.ranking import metric
from latex_check import check_latex
from reproduction.data import find_data
from reproduction.experiment import select
from reproduction.main_results import merge_seeds
from reproduction.maps import agreement, dense_grids, map_ranks
from reproduction.runner import EXPERIMENTS, Reproduction, check_experiments
from reproduction.setting import Options

pytestmark = pytest.mark.slow


def quick_reproduction(folder=None, **changes):
    options = Options.for_dataset("scenes", quick=True, **changes)
    return Reproduction(find_data("scenes", quick=True), options, folder)


def test_every_experiment_is_in_the_report(reproduced, scenes_folder):
    page = (scenes_folder / "report.html").read_text("utf-8")
    for experiment in EXPERIMENTS.values():
        assert experiment.title.split(":")[0] in page
    assert "(quick run)" in page
    assert "its verdicts are indicative" in page
    for words in ("5 × 5 grid even in log σ²", "Perplexity", "each of unit length", "2,000 resamples"):
        assert words in page
    for name in ("VGG-19", "ResNet-101", "skip-thought", "MSCOCO"):
        assert name in page


def test_the_report_is_self_contained(reproduced, scenes_folder):
    page = (scenes_folder / "report.html").read_text("utf-8")
    assert not re.search(r"https?://", page)
    assert "<script" not in page
    assert all(link.startswith(("#", "data:image/")) for link in re.findall(r'(?:src|href)="([^"]*)"', page))


def test_every_number_is_in_the_files(reproduced, scenes_folder):
    content = json.loads((scenes_folder / "results.json").read_text("utf-8"))
    assert set(content["results"]) == set(EXPERIMENTS)
    assert content["claims"]
    assert "indicative" in content["caveat"]
    assert "query_ranks" not in json.dumps(content)
    assert content["missing"]
    rows = [row for result in content["results"]["main"].values() for row in result["rows"]]
    # Five texts, as they are and ours, three filters each, and chance.
    assert len(rows) == 5 * 2 * 3 + 1
    assert all(0 <= row["search"]["r@1"] <= 100 for row in rows)
    written = {p.name for p in (scenes_folder / "tables").iterdir()}
    # Every table of the report is there in all three forms.
    shown = {name.removesuffix(".tex") for name in written if name.endswith(".tex")}
    assert shown > {"main_scenes", "main_scenes_ours", "claims", "weighting", "timing", "times", "similarity"}
    assert {f"{name}.{kind}" for name in shown for kind in ("csv", "md")} < written


def test_claims_have_their_intervals(reproduced, scenes_folder):
    claims = json.loads((scenes_folder / "results.json").read_text("utf-8"))["claims"]
    claim = next(c for c in claims if c["claim"] == "Asymmetric weighting outperforms plain CCA.")
    plain = claim["differences"]
    assert {(row["task"], row["metric"]) for row in plain} == {
        (task, f"r@{k}") for task in ("search", "annotate") for k in (1, 5, 10)
    }
    with open(scenes_folder / "tables" / "weighting.csv", encoding="utf-8", newline="") as file:
        table = {row["weighting"]: row for row in csv.DictReader(file) if row["section"].startswith("Ours")}
    for row in plain:
        column = f"{row['task']} {row['metric']}"
        asymmetric, cca = (
            float(table[name][column]) for name in ("asymmetric (task dependent)", "symmetric α = 0 (CCA)")
        )
        interval = row["interval"]
        assert interval["value"] == pytest.approx(asymmetric - cca)
        assert interval["joint_low"] <= interval["low"] <= interval["value"] <= interval["high"]


def test_latex_is_well_formed(reproduced, scenes_folder):
    for path in (scenes_folder / "tables").glob("*.tex"):
        check_latex(path.read_text("utf-8"))


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="needs pdflatex")
def test_latex_compiles(reproduced, scenes_folder, tmp_path):
    tables = sorted((scenes_folder / "tables").glob("*.tex"))
    body = "\n\n".join(path.read_text("utf-8") for path in tables)
    document = f"\\documentclass{{article}}\\begin{{document}}\n{body}\\end{{document}}\n"
    (tmp_path / "all.tex").write_text(document, "utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "all.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:]


def test_seconds_are_those_of_the_computation(reproduced, scenes_folder):
    again = quick_reproduction(scenes_folder)
    list(again.run(["weighting", "timing"]))
    assert again.seconds == {name: reproduced.seconds[name] for name in ("weighting", "timing")}
    assert all(value > 0 for value in reproduced.seconds.values())


def test_a_stored_selection_is_not_computed_again(reproduced):
    computed = reproduced.setting.cache.computed
    kinds = [name for name in computed if name.startswith("select")]
    inputs = [
        json.loads(p.read_text())["inputs"] for p in reproduced.setting.cache.folder.glob("select*.json")
    ]
    assert len(kinds) == len(inputs) == len({json.dumps(entry, sort_keys=True) for entry in inputs})
    timed = reproduced.results["timing"]["HKSE(rbf, rbf)"]["rows"]["T-SVD"]["ours"]
    chosen = select(
        reproduced.setting,
        reproduced.setting.image,
        reproduced.setting.hkse,
        reproduced.setting.run.validation,
        "tsvd",
        "rank",
    )
    assert timed == chosen["seconds"]


def test_a_second_run_computes_nothing(reproduced, scenes_folder):
    again = quick_reproduction(scenes_folder)
    list(again.run())
    assert again.setting.cache.computed == []
    assert again.results == reproduced.results


def test_only_what_changed_is_computed(reproduced, scenes_folder):
    again = quick_reproduction(scenes_folder)
    object.__setattr__(again.setting.options, "feature_counts", (64, 256))
    list(again.run())
    assert again.setting.cache.computed == ["approximation"]


def test_an_interrupted_run_continues_where_it_stopped(tmp_path):
    first = quick_reproduction(tmp_path)
    steps = first.run(["main"])
    for _ in range(3):
        next(steps)
    steps.close()
    done = first.setting.cache.computed.count("main")
    assert done == 2
    second = quick_reproduction(tmp_path)
    steps = second.run(["main"])
    for _ in range(3):
        next(steps)
    assert second.setting.cache.computed == []


def test_chance_is_what_the_protocol_gives_for_a_random_model(reproduced):
    setting = reproduced.setting
    n = len(setting.run.test)
    row = reproduced.results["main"]["chance"]["rows"][0]
    queries = 5 * n
    expected = 100 / n
    error = 100 * np.sqrt(1 / n * (1 - 1 / n) / queries)
    assert abs(row["search"]["r@1"] - expected) < 4 * error
    assert abs(row["search"]["median_rank"] - n / 2) < n / 8


def test_models_beat_chance_by_far(reproduced):
    rows = [r for result in reproduced.results["main"].values() for r in result["rows"]]
    floor = next(r for r in rows if r["method"] == "random embeddings")
    assert all(r["search"]["r@10"] > 3 * floor["search"]["r@10"] for r in rows if r is not floor)


def test_seeds_give_mean_and_spread():
    reproduction = quick_reproduction(seeds=2)
    steps = reproduction.run(["main"])
    labels = [step.label for _, step in zip(range(2 * 2 * 2 + 2), steps, strict=False)]
    # Mean word vectors draw nothing, so one seed is enough for them.
    assert sum("HKSE(lin, lin)" in label for label in labels) == 2
    assert sum("HKSE(lin, rbf)" in label for label in labels) == 4
    rows = [r for r in merge_seeds(reproduction.results["main"]) if r["text"] == "HKSE(lin, rbf)"]
    assert all(row["seeds"] == 2 and row["spread"]["search r@1"] >= 0 for row in rows)
    assert any(row["spread"]["search r@1"] > 0 for row in rows)


def test_agreement_of_maps():
    soft = np.arange(20.0).reshape(4, 5)
    same = {"tikhonov": soft, "tsvd": soft, "choice": {"tsvd": (3, 4)}}
    assert agreement(same) == {"above": 95.0, "loss": 0.0, "correlation": pytest.approx(1.0)}
    opposite = {"tikhonov": soft, "tsvd": -soft, "choice": {"tsvd": (0, 0)}}
    assert agreement(opposite) == {"above": 0.0, "loss": 19.0, "correlation": pytest.approx(-1.0)}


def test_maps_are_exact_and_choose_as_the_path_does(reproduced):
    setting = reproduced.setting
    image, text = setting.image, setting.hkse
    spectra, problem = setting.spectra(image, text), setting.problem(image, text, setting.run.validation)
    maps = reproduced.results["maps"]["search and annotate"]
    for name, grid in zip(("tsvd", "tikhonov"), dense_grids(spectra, setting.options.map_shape), strict=True):
        path = regularization_path(problem, spectra, grid, metric("r@1"), route="exact")
        for task in ("search", "annotate"):
            np.testing.assert_allclose(maps[task][name], path.scores[task]["r@1"], atol=1e-3)
            assert tuple(maps[task]["choice"][name]) == path.choice[task]


def test_maps_run_over_the_papers_ranks():
    assert map_ranks(4096, 37, 400, 4000, 100).tolist() == list(range(400, 4001, 100))
    assert map_ranks(2000, 91, 200, 2000, 20).tolist() == list(range(200, 2001, 20))
    # ResNet-50 has 2,048 numbers: the paper's values as far as they go.
    assert map_ranks(2048, 37, 400, 4000, 100).tolist() == list(range(400, 2001, 100))
    assert map_ranks(100, 10, 400, 4000, 100).tolist() == list(range(10, 101, 10))


def test_unknown_experiments_are_named():
    with pytest.raises(InputError, match="weighting"):
        check_experiments(["weightings"])
    assert check_experiments(["similarity", "main"]) == ["main", "similarity"]
    assert check_experiments(["Figure 5", "table6", "Remark 1"]) == ["main", "maps", "similarity"]


def test_every_table_and_figure_of_the_paper_is_computed_by_one_experiment():
    items = [item for experiment in EXPERIMENTS.values() for item in experiment.items]
    expected = [f"Table {i}" for i in range(2, 7)] + [f"Figure {i}" for i in range(1, 9)]
    assert sorted(items) == sorted([*expected, "Proposition 1", "Remark 1"])


def test_the_text_of_the_figure_can_be_given(reproduced, scenes_folder):
    caption = reproduced.results["plane"]["t-SNE"]["caption"]
    for query, is_caption in ((caption, True), ("a big red square", False)):
        again = quick_reproduction(scenes_folder, query=query)
        list(again.run(["figure 3"]))
        result = again.results["plane"]["t-SNE"]
        assert result["caption"] == query
        for name, panel in result["panels"].items():
            assert (panel["truth"] is not None) == (panel["rank"] is not None) == is_caption
            same = reproduced.results["plane"]["t-SNE"]["panels"][name]
            assert (panel == same) == is_caption
        again.write("")  # the figure without a right image can be drawn
    reproduced.write("python -m reproduction scenes --quick")
    with pytest.raises(InputError, match="no word of the query 'xyzzy'"):
        list(quick_reproduction(scenes_folder, query="xyzzy").run(["plane"]))
