"""Filters by metadata: which items have these values."""

import pytest

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
