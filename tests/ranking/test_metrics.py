import numpy as np
import pytest

from diptych import InputError
from diptych.ranking import metric

RANKS = np.array([1, 2, 6, 11])


@pytest.mark.parametrize(
    ("name", "value", "cutoff"),
    [
        ("r@1", 25.0, 1),
        ("r@7", 75.0, 7),
        ("mean_recall", (25 + 50 + 75) / 3, None),
        ("median_rank", 4.0, None),
    ],
)
def test_by_name(name, value, cutoff):
    found = metric(name)
    assert found(RANKS) == pytest.approx(value)
    assert found.cutoff == cutoff


def test_ranks_are_better_when_smaller():
    assert metric("mean_rank").signed(5.0) == -5.0
    assert metric("r@1").signed(5.0) == 5.0


def test_a_function():
    def within_two(ranks):
        return float((ranks <= 2).sum())

    assert metric(within_two)(RANKS) == 2.0
    assert metric(within_two).name == "within_two"


@pytest.mark.parametrize("name", ["r@0", "recall", "r@", 3])
def test_unknown(name):
    with pytest.raises(InputError, match="choose"):
        metric(name)
