"""Filters by metadata: which items have these values."""

import numpy as np
import pytest

from diptych import AWCCA, Retriever
from diptych.retrieval import Item
from diptych.retrieval.filtering import matcher


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
    assert matcher(where)(item) is fits


def test_a_filter_that_was_asked_before_sees_what_changed(views):
    x, y, pairing = views()
    retriever = Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0)))
    where = {"kind": ["new"]}
    assert retriever.search(y[0], where=where) == []
    retriever.add(x[:2] + 0.01, ids=["one", "two"], metadata={"one": {"kind": "new"}, "two": {"kind": "old"}})
    assert [hit.id for hit in retriever.search(y[0], where=where)] == ["one"]
    assert retriever.search(np.asarray(y[0]), where={"kind": "other"}) == []
    retriever.remove("one")
    assert retriever.search(y[0], where=where) == []
