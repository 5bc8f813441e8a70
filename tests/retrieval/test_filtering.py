"""Filters by metadata: which items have these values."""

import numpy as np
import pytest

from diptych import AWCCA, InputError, Retriever
from diptych.retrieval import Item
from diptych.retrieval._filters import parse_filter


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ({"split": "test"}, True),
        ({"split": ["val", "test"]}, True),
        ({"split": "val"}, False),
        ({"n": 1}, True),
        ({"n": True}, False),
        ({"flag": True}, True),
        ({"flag": 1}, False),
        ({"split": "test", "n": 2}, False),
        ({"absent": "x"}, False),
        ({}, True),
    ],
)
def test_filters(where, fits):
    item = Item("a", "image", metadata={"split": "test", "n": 1, "flag": True})
    assert parse_filter(where).matches(item) is fits


def test_a_filter_that_was_asked_before_sees_what_changed(views):
    x, y, pairing = views()
    retriever = Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0)))
    where = {"kind": ["new"]}
    retriever.add(x[:1] + 0.01, ids=["zero"], metadata={"zero": {"kind": "oldest"}})
    assert retriever.search(y[0], where=where) == []
    retriever.add(x[:2] + 0.01, ids=["one", "two"], metadata={"one": {"kind": "new"}, "two": {"kind": "old"}})
    assert [hit.id for hit in retriever.search(y[0], where=where)] == ["one"]
    assert retriever.search(np.asarray(y[0]), where={"kind": "other"}) == []
    retriever.remove("one")
    assert retriever.search(y[0], where=where) == []


def test_the_message_names_a_key_that_no_item_has(make):
    about = {"0": {"genre": "jazz", "year": 1959}, "1": {"genre": "rock"}}
    made = make(metadata=about)
    retriever, x, y = made.retriever, made.x, made.y
    assert [hit.id for hit in retriever.search(y[0], where={"genre": "jazz"})] == ["0"]
    assert retriever.search(y[0], where={"genre": "opera"}) == []
    expected = "the key 'gnre', which no item has in its metadata; did you mean 'genre'. The keys there are: "
    for ask in (
        lambda where: retriever.search(y[0], where=where),
        lambda where: retriever.search(y[:3], where=where),
        lambda where: retriever.search(y[0], where=where, weighting="none"),
        lambda where: retriever.annotate(x[0], where=where),
        lambda where: retriever.similar(image=x[0], where=where),
    ):
        with pytest.raises(InputError, match=expected + "'genre', 'year'"):
            ask({"genre": "jazz", "gnre": "jazz"})
    with pytest.raises(InputError, match="metadata. The keys there are"):
        retriever.search(y[0], where={"colour": "red"})


def test_a_key_of_the_other_view_matches_nothing(make):
    made = make(metadata={"0": {"genre": "jazz"}})
    assert made.retriever.annotate(made.x[0], where={"genre": "jazz"}) == []


def test_keys_come_and_go_with_their_items(make):
    made = make()
    retriever, x, y = made.retriever, made.x, made.y
    with pytest.raises(InputError, match="'genre', but no item has metadata"):
        retriever.search(y[0], where={"genre": "jazz"})
    retriever.add(x[:2], ids=["a", "b"], metadata={"a": {"genre": "jazz"}, "b": {"genre": "rock"}})
    assert [hit.id for hit in retriever.search(y[0], where={"genre": "jazz"})] == ["a"]
    retriever.remove("a")
    assert retriever.search(y[0], where={"genre": "jazz"}) == []
    retriever.remove("b")
    with pytest.raises(InputError, match="no item has metadata"):
        retriever.search(y[0], where={"genre": "jazz"})


def test_no_key_is_unknown_in_an_empty_index(make):
    made = make()
    made.retriever.remove([item.id for item in made.retriever.store.items() if item.view == "image"])
    assert made.retriever.search(made.y[0], where={"genre": "jazz"}) == []


def test_keys_are_known_again_from_disk(make_here, tmp_path):
    made = make_here(metadata={"0": {"genre": "jazz"}})
    made.retriever.save(tmp_path / "model")
    again = Retriever.load(tmp_path / "model")
    assert [hit.id for hit in again.search(made.y[0], where={"genre": "jazz"})] == ["0"]
    with pytest.raises(InputError, match="did you mean 'genre'"):
        again.search(made.y[0], where={"gnre": "jazz"})
