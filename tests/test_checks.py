"""Wording that every message shares."""

from __future__ import annotations

import pytest

from diptych.checks import count


@pytest.mark.parametrize(
    ("n", "noun", "expected"),
    [
        (0, "image", "0 images"),
        (1, "image", "1 image"),
        (2, "training image", "2 training images"),
        (1, "query", "1 query"),
        (12_000, "query", "12,000 queries"),
        (3, "key", "3 keys"),
    ],
)
def test_a_count_agrees_with_its_noun(n: int, noun: str, expected: str) -> None:
    assert count(n, noun) == expected
