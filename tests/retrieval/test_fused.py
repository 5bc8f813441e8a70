"""A retriever whose model is a fusion of several feature blocks."""

import numpy as np
import pytest

from diptych import InputError, Retriever
from diptych.fusion import Fusion
from diptych.ranking import recall_at_k
from tolerance import assert_ranked, rounding

SPLITS = ["train"] * 200 + ["val"] * 60 + ["test"] * 60


@pytest.fixture(scope="module")
def blocks():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(320, 6))

    def view(width, noise):
        rows = hidden @ rng.normal(size=(6, width)) + noise * rng.normal(size=(320, width))
        return rows.astype(np.float32)

    return {"photos": view(12, 0.5), "sketches": view(9, 1.0)}, {
        "words": view(10, 1.0),
        "tones": view(8, 1.0),
    }


@pytest.fixture(scope="module")
def fused(blocks):
    return Retriever.from_features(*blocks, splits=SPLITS, model=Fusion(grid=5))


def rows(blocks):
    return tuple(np.hstack(list(view.values())) for view in blocks)


def test_its_answers_are_those_of_the_model(fused, blocks):
    x, y = blocks
    model = fused.fitted.model
    asking = {"search": (fused.search, rows(blocks)[1]), "annotate": (fused.annotate, rows(blocks)[0])}
    for task, (ask, asked) in asking.items():
        items, queries = (x, y) if task == "search" else (y, x)
        scores = model.queries(queries, task) @ model.items(items, task).T
        for row in (0, 150, 319):
            found = ask(asked[row], k=5)
            names = [str(i) for i in range(320)] if task == "search" else [f"{i}#0" for i in range(320)]
            expected = dict(zip(names, scores[row].tolist(), strict=True))
            lengths = np.linalg.norm(model.queries(queries, task), axis=1).max()
            lengths *= np.linalg.norm(model.items(items, task), axis=1).max()
            assert_ranked(found, expected, rounding(np.float32, 12 + 9 + 10 + 8, lengths))


def test_its_recalls_are_those_of_the_model(fused, blocks):
    x, y = ({name: view[260:] for name, view in views.items()} for views in blocks)
    told = fused.info()["facts"]["metrics"]
    assert set(told) == {"test"}, "validation pairs were fitted on, and say nothing"
    for task in ("search", "annotate"):
        ranks = fused.fitted.model.ranks(x, y, task=task)
        assert told["test"][task]["r@1"] == recall_at_k(ranks, 1)


def test_it_comes_back_from_disk(fused, blocks, tmp_path):
    fused.save(tmp_path / "m")
    again = Retriever.load(tmp_path / "m")
    query = rows(blocks)[1][5]
    assert again.search(query, 10) == fused.search(query, 10)
    assert again.info() == fused.info()
    assert "weighted sum of cosines" in (tmp_path / "m" / "README.md").read_text()
    assert not (tmp_path / "m" / "moments.safetensors").exists()


def test_items_come_and_go(fused, blocks, tmp_path):
    fused.save(tmp_path / "m")
    changing = Retriever.load(tmp_path / "m")
    x, y = rows(blocks)
    changing.remove("7")
    assert "7" not in [hit.id for hit in changing.search(y[7], k=319)]
    changing.add(x[7:8], y[7:8], ids=["seven"])
    best, before = changing.search(y[7], k=1)[0], fused.search(y[7], k=1)[0]
    assert before.id == "7" or best.id == before.id
    assert best.score == pytest.approx(before.score, abs=1e-5)
    assert changing.annotate(x[7], k=1, packs=True)[0].best.score <= 2


def test_what_it_cannot_do_is_said(fused, blocks):
    y = rows(blocks)[1]
    with pytest.raises(InputError, match="fit it again"):
        fused.refit()
    with pytest.raises(InputError, match="chose its weightings itself"):
        fused.search(y[0], weighting="none")
    with pytest.raises(InputError, match="model and preset"):
        Retriever(model=Fusion(), preset="best")
    with pytest.raises(InputError, match="unknown"):
        Retriever.from_features(y, y, preset="worst")
    with pytest.raises(InputError, match="differ in their number of rows"):
        Retriever.from_features({"a": y, "b": y[:5]}, y)


def test_one_name_is_enough(blocks):
    retriever = Retriever.from_features(blocks[0]["photos"], blocks[1]["words"], splits=SPLITS, preset="best")
    assert isinstance(retriever.fitted.model, Fusion)
    assert retriever.info()["facts"]["metrics"]["test"]["search"]["r@1"] > 40
