"""``diptych learn``."""

import pytest

from commands import refused, run, run_json
from diptych import AWCCA, HKSE, Retriever
from diptych.data import read_pairs
from diptych.scenes import make_scenes


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("learn")
    make_scenes(60, size=48).write(folder / "scenes")
    encoder = HKSE(word_features=40, sentence_features=40)
    retriever = Retriever("pyramid", encoder, AWCCA(params=(5.0, 5.0)))
    retriever.fit(read_pairs(folder / "scenes")).save(folder / "model")
    return folder / "model"


def test_confirmed_pairs_and_a_refit(model):
    first, second = Retriever.load(model).items("image", limit=2)
    # One is named by its id, the other by its path, as a search prints it.
    shown = run("learn", model, "a red star", "--right", first.id, "--right", second.path)
    assert shown.stdout == f"learned 2 pairs; wrote {model}\n"
    again = run_json("learn", model, "a red star", "--right", first.id)
    stored = Retriever.load(model).items(where="confirmed = true")
    assert [item.image for item in stored] == [first.id, second.id]
    assert again["learned"] == [stored[0].id]
    assert again["refitted"] is False
    shown = run("learn", model, "--refit").stdout
    facts = Retriever.load(model).fitted.facts["refitted"]
    assert facts["pairs"] == facts["before"] + 2
    assert shown == f"refitted on {facts['pairs']} pairs ({facts['before']} before)\n"


def test_what_is_missing_is_said(model):
    assert "TEXT and --right belong together" in refused("learn", model, "a red star")
    assert "TEXT and --right belong together" in refused("learn", model, "--right", "a", "--refit")
    assert "there is nothing to learn" in refused("learn", model)
    assert "there is no item 'a'" in refused("learn", model, "a star", "--right", "a")
