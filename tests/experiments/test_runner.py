"""The whole thing on drawn scenes: what is written, what is computed again, and what chance gives."""

import csv
import json
import re

import numpy as np
import pytest

from diptych import InputError
from diptych.experiments import EXPERIMENTS, Cache, Options, Reproduction, Setting, gather
from diptych.experiments.maps import agreement
from diptych.experiments.runner import chosen_names

pytestmark = pytest.mark.slow


def quick_setting(folder=None, **changes):
    options = Options.for_dataset("scenes", quick=True, **changes)
    return Setting(gather("scenes", quick=True), options, Cache(folder))


def test_every_experiment_is_in_the_report(reproduced, scenes_folder):
    page = (scenes_folder / "report.html").read_text("utf-8")
    for experiment in EXPERIMENTS.values():
        assert experiment.title.split(":")[0] in page
    assert "holds here" in page
    for gap in ("VGG-19", "ResNet-101", "skip-thought", "MSCOCO"):
        assert gap in page


def test_the_report_is_self_contained(reproduced, scenes_folder):
    page = (scenes_folder / "report.html").read_text("utf-8")
    assert not re.search(r"https?://", page)
    assert "<script" not in page
    assert all(link.startswith(("#", "data:image/")) for link in re.findall(r'(?:src|href)="([^"]*)"', page))


def test_every_number_is_in_the_files(reproduced, scenes_folder):
    content = json.loads((scenes_folder / "results.json").read_text("utf-8"))
    assert set(content["results"]) == set(EXPERIMENTS)
    assert content["claims"]
    assert content["gaps"]
    with open(scenes_folder / "csv" / "main.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    # Five texts, as they are and ours, three filters each, and chance.
    assert len(rows) == 5 * 2 * 3 + 1
    assert all(0 <= float(row["search r@1"]) <= 100 for row in rows)
    assert sorted(p.stem for p in (scenes_folder / "csv").iterdir()) == sorted(reproduced.tables())


def test_a_second_run_computes_nothing(reproduced, scenes_folder):
    again = Reproduction(quick_setting(scenes_folder / "cache"))
    list(again.run())
    assert again.setting.cache.computed == []
    assert again.results == reproduced.results


def test_only_what_changed_is_computed(reproduced, scenes_folder):
    setting = quick_setting(scenes_folder / "cache")
    object.__setattr__(setting.options, "feature_counts", (64, 256))
    again = Reproduction(setting)
    list(again.run())
    assert setting.cache.computed == ["approximation"]


def test_an_interrupted_run_goes_on_where_it_stopped(tmp_path):
    first = Reproduction(quick_setting(tmp_path))
    steps = first.run(["main"])
    for _ in range(3):
        next(steps)
    steps.close()
    done = first.setting.cache.computed.count("main")
    assert done == 2
    second = Reproduction(quick_setting(tmp_path))
    steps = second.run(["main"])
    for _ in range(3):
        next(steps)
    assert second.setting.cache.computed == []


def test_chance_is_what_the_protocol_gives_for_a_random_model(reproduced):
    setting = reproduced.setting
    n = len(setting.run.test)
    row = reproduced.results["main"]["main: chance"]["rows"][0]
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
    setting = quick_setting(seeds=2)
    found = Reproduction(setting)
    steps = found.run(["main"])
    labels = [step.label for _, step in zip(range(2 * 2 * 2 + 2), steps, strict=False)]
    # Mean word vectors draw nothing, so one seed is enough for them.
    assert sum("HKSE(lin, lin)" in label for label in labels) == 2
    assert sum("HKSE(lin, rbf)" in label for label in labels) == 4
    from diptych.experiments.main import merged

    rows = [r for r in merged(found.results["main"]) if r["text"] == "HKSE(lin, rbf)"]
    assert all(row["seeds"] == 2 and row["spread"]["search r@1"] >= 0 for row in rows)
    assert any(row["spread"]["search r@1"] > 0 for row in rows)


def test_agreement_of_maps():
    soft = np.arange(20.0).reshape(4, 5)
    same = {"tikhonov": soft, "tsvd": soft, "choice": {"tsvd": (3, 4)}}
    assert agreement(same) == {"above": 95.0, "loss": 0.0, "correlation": pytest.approx(1.0)}
    other = {"tikhonov": soft, "tsvd": -soft, "choice": {"tsvd": (0, 0)}}
    assert agreement(other) == {"above": 0.0, "loss": 19.0, "correlation": pytest.approx(-1.0)}


def test_unknown_experiments_are_named():
    with pytest.raises(InputError, match="weighting"):
        chosen_names(["weightings"])
    assert chosen_names(["similarity", "main"]) == ["main", "similarity"]
