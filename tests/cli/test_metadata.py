"""Metadata from columns: ``fit --metadata`` and ``add --metadata``, then searches that filter by it."""

import csv
import json
from datetime import date, timedelta

import numpy as np
import pytest

from commands import config, refused, run, run_json
from diptych import AWCCA, Retriever
from diptych.data import PairedDataset, PairedViews, read_pairs
from diptych.scenes import make_scenes

SMALL = config(model={"params": [1, 1]}, hkse={"word_features": 40, "sentence_features": 40})
FIT = ["--image-encoder", "pyramid", "--text-encoder", "hkse", *SMALL]
DAY = date(2010, 1, 1)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    """A folder of drawn scenes with two tables: 40 scenes to fit, and 10 to add."""
    folder = tmp_path_factory.mktemp("scenes")
    make_scenes(50, size=48).write(folder)
    pairs = read_pairs(folder)
    header = ["image", "caption", "year", "tag", "taken", "shown"]
    rows = [
        [
            pairs.image_ids[row],
            caption,
            2000 + row,
            f"caption {at % 5}",
            DAY + timedelta(days=row),
            "true" if row % 2 else "",
        ]
        for at, (row, caption) in enumerate(zip(pairs.pairing.tolist(), pairs.captions, strict=True))
    ]
    for name, some in {"pairs.csv": rows[:200], "more.csv": rows[200:]}.items():
        with open(folder / name, "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([header, *some])
    (folder / "captions.jsonl").unlink()
    return folder


@pytest.fixture(scope="module")
def model(scenes):
    """A model of the first table, with metadata of all columns."""
    fitted = run_json("fit", scenes / "pairs.csv", *FIT, "--metadata", "all", "-o", scenes / "model")
    assert fitted["items"] == {"image": 40, "text": 200}
    return scenes / "model"


def find(*arguments):
    return [hit["metadata"] for hit in run_json(*arguments)["answers"][0]["hits"]]


def test_searches_filter_by_columns(model):
    found = find("search", model, "a red star", "--where", "year >= 2030 and year < 2035", "-k", 20)
    assert sorted(hit["year"] for hit in found) == list(range(2030, 2035))
    before = find("search", model, "a red star", "--where", "taken < 2010-01-04", "-k", 20)
    assert sorted(hit["taken"] for hit in before) == ["2010-01-01", "2010-01-02", "2010-01-03"]
    shown = find("search", model, "a red star", "--where", "shown = true", "-k", 40)
    assert len(shown) == 20
    assert "shown" not in find("search", model, "a red star", "--where", "year = 2002")[0]
    tags = find("search", model, "a red star", "--where", 'tag = "caption 3"', "-k", 40)
    assert len(tags) == 40  # each image has one such caption
    assert tags[0]["tag"] == [f"caption {i}" for i in range(5)]
    image = next(item.path for item in Retriever.load(model).store.items() if item.path)
    texts = find("annotate", model, image, "--where", 'tag = "caption 3"', "-k", 10)
    assert {hit["tag"] for hit in texts} == {"caption 3"}


def test_items_are_added_with_metadata(model, scenes, tmp_path):
    Retriever.load(model).save(tmp_path / "model")
    run_json("add", tmp_path / "model", scenes / "more.csv", "--metadata", "year,taken")
    found = find("search", tmp_path / "model", "a red star", "--where", "year >= 2045", "-k", 20)
    assert sorted(hit["year"] for hit in found) == list(range(2045, 2050))
    assert set(found[0]) == {"year", "taken"}


def test_columns_that_have_no_effect_or_do_not_exist_are_refused(model, scenes, tmp_path):
    out = ["-o", tmp_path / "m"]
    message = refused("fit", scenes / "pairs.csv", *FIT, "--metadata", "jahr", *out)
    assert message.endswith("no column 'jahr'; it has image, caption, year, tag, taken, shown.")
    assert "between two commas" in refused("fit", scenes / "pairs.csv", *FIT, "--metadata", "year,", *out)
    image = scenes / "images" / "scene-000001.png"
    assert "--metadata has no effect" in refused("add", model, image, "--metadata", "year")
    none = ["fit", scenes / "pairs.csv", *FIT, *out]
    run(*none, "-q")
    said = refused("search", tmp_path / "m", "a red star", "--where", "year = 2002")
    assert "no item has metadata" in said
    assert "--metadata" in said


def test_features_take_metadata_from_their_table(scenes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pairs = read_pairs(scenes / "pairs.csv")
    rng = np.random.default_rng(0)
    np.save("x.npy", rng.normal(size=(pairs.n_images, 5)))
    np.save("y.npy", rng.normal(size=(pairs.n_captions, 4)))
    features = ["fit", "x.npy", "y.npy", "-o", "m", *config(model={"params": [1, 1]})]
    run_json(*features, "--pairs", scenes / "pairs.csv", "--metadata", "year")
    where = {"year": {"$gte": 2038}}
    assert len(Retriever.load("m").search(rng.normal(size=4), k=40, where=where)) == 2
    assert len(Retriever.load("m").annotate(rng.normal(size=5), k=40, where=where)) == 10
    (tmp_path / "dataset_x.json").write_text(json.dumps({"images": []}))
    assert "which is not a table" in refused(*features, "--pairs", "dataset_x.json", "--metadata", "all")
    assert "--metadata need a table" in refused(*features, "--metadata", "year")


def test_what_is_given_to_fit_wins(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(40, 5)), rng.normal(size=(40, 4))
    ids = tuple(f"{i}.jpg" for i in range(40))
    own = {name: {"day": DAY + timedelta(days=i), "n": i} for i, name in enumerate(ids)}
    dataset = PairedDataset(ids, ("a text",) * 40, np.arange(40), metadata=own)
    given = {"3.jpg": {"n": "three"}}
    retriever = Retriever(model=AWCCA(params=(1.0, 1.0))).fit(PairedViews(dataset, x, y), metadata=given)
    retriever.save(tmp_path / "model")
    again = Retriever.load(tmp_path / "model")
    found = {hit.id: hit.metadata for hit in again.search(y[0], k=100)}
    assert found["3.jpg"] == {"day": "2010-01-04", "n": "three"}
    assert found["4.jpg"] == {"day": "2010-01-05", "n": 4}
    before = again.search(y[0], k=100, where={"day": {"$lt": date(2010, 1, 11)}})
    assert {hit.id for hit in before} == {f"{i}.jpg" for i in range(10)}
