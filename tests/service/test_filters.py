"""What clients are told to filter by."""

import datetime

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from diptych.retrieval import Item
from diptych.service._model import BINS, FACET_VALUES, FACETS, _collect_filters

NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False)
DATES = st.dates().map(datetime.date.isoformat)


def collect(**values):
    """The filters for items that have these values."""
    length = max(map(len, values.values()))
    rows = ({key: column[i] for key, column in values.items() if i < len(column)} for i in range(length))
    return _collect_filters([Item(str(i), "image", metadata=row) for i, row in enumerate(rows)])


@given(st.lists(NUMBERS, min_size=2) | st.lists(DATES, min_size=2))
def test_a_histogram_counts_every_value_once(values):
    found = collect(x=values)
    assert ("x" in found["histograms"]) == ("x" in found["ranges"]) == (min(values) != max(values))
    counts = found["histograms"].get("x", [len(values)])
    assert sum(counts) == len(values)
    assert len(counts) <= BINS
    assert counts[0] > 0 < counts[-1]


def test_bins_have_equal_widths(rng):
    sizes = rng.normal(size=500).tolist()
    assert collect(x=sizes)["histograms"]["x"] == np.histogram(sizes, BINS)[0].tolist()
    days = [datetime.date(2020, 1, 1) + datetime.timedelta(i) for i in range(40)]
    assert collect(x=[day.isoformat() for day in days])["histograms"]["x"] == [2] * 20
    assert collect(x=[1, 2, 2, 5])["histograms"]["x"] == [1, 2, 0, 0, 1]
    assert sum(collect(x=["2020-02-01", "2020-02-31", "0000-00-00"])["histograms"]["x"]) == 3


def test_values_are_a_menu_a_long_list_or_a_range():
    many = [f"value {i}" for i in range(FACET_VALUES + 1)]
    found = collect(
        few=[1, 2, 1], days=["2020-01-01", "2020-01-02"] * 2, years=list(range(30)), long=many[:-1], all=many
    )
    assert {key: len(values) for key, values in found["facets"].items()} == {
        "days": 2,
        "few": 2,
        "long": 1000,
    }
    assert list(found["ranges"]) == ["days", "few", "years"]
    # Menus come before long lists.
    columns = {f"a{i}": many[:20] for i in range(FACETS)} | {"z": ["x", "y"]}
    assert list(collect(**columns)["facets"]) == ["z", *(f"a{i}" for i in range(FACETS - 1))]
