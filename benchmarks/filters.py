"""Filters by metadata in memory: ``python benchmarks/filters.py [alone|search] [--items 1000000]``.

``alone``: which of 100,000 items pass a filter, beside a look at each of them in Python. Nothing is cached
but the columns; what it takes to make these is shown too.

``search``: one query with filters that leave 0.1 % to 50 % of the items, beside the same query without one,
taken in turn. ``--items 1000000`` needs about 2 GiB of memory and some minutes.
"""

from __future__ import annotations

import argparse
import statistics
import warnings
from datetime import date, timedelta
from functools import partial
from typing import Any

from measuring import measure_fastest, pin_threads, read_memory, record, time_call

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("part", nargs="?", choices=["alone", "search"])
parser.add_argument("--items", type=int, default=100_000)
parser.add_argument("--rounds", type=int, default=200, help="search: queries of each kind")
options = parser.parse_args()
pin_threads(1)

import numpy as np  # noqa: E402

from diptych.retrieval import Item  # noqa: E402
from diptych.retrieval._filters import Filter, parse_filter  # noqa: E402
from diptych.retrieval.stores._faiss import VectorIndex  # noqa: E402
from diptych.retrieval.stores._memory import ItemTable, MemoryStore  # noqa: E402

COLUMNS, K = 256, 10
FIRST = date(1950, 1, 1)
DAYS = 27_000

ALONE = [
    "year >= 2010",
    "taken >= 2019-05-01 and taken < 2020-05-01",
    'tag = "tag 7"',
    'tags in ["tag 7", "tag 8"]',
    "score < 0.5",
    'year != 2000 and (score < 0.3 or tag = "tag 7")',
    "exists draft",
]

SEARCHES = {
    "0.1 %": ["score < 0.001", 'rare = "r 7"'],
    "1 %": ["score < 0.01", 'tag = "tag 7"', 'score < 0.1 and tags_ten = "t 3"'],
    "10 %": ["score < 0.1", 'tags_ten = "t 3"', 'score < 0.09 or tag = "tag 7"'],
    "50 %": ["score < 0.5", "even = true", "not score < 0.5"],
}
"""Filters by the share of items that they leave."""


def make_items(n: int) -> list[Item]:
    """Return items with values of several kinds, drawn at random."""
    rng = np.random.default_rng(0)
    days, years = rng.integers(0, DAYS, n).tolist(), rng.integers(1950, 2025, n).tolist()
    tags, ten, rare = (rng.integers(0, size, n).tolist() for size in (100, 10, 1000))
    pairs, scores, even = rng.integers(0, 50, (n, 2)).tolist(), rng.random(n).tolist(), rng.random(n) < 0.5
    dates = [(FIRST + timedelta(day)).isoformat() for day in range(DAYS)]
    names = [f"tag {i}" for i in range(100)]
    return [
        Item(
            str(i),
            "image",
            metadata={
                "year": years[i],
                "taken": dates[days[i]],
                "tag": names[tags[i]],
                "tags": [names[each] for each in pairs[i]],
                "tags_ten": f"t {ten[i]}",
                "rare": f"r {rare[i]}",
                "score": scores[i],
                "even": bool(even[i]),
                **({"draft": True} if i % 50 == 0 else {}),
            },
        )
        for i in range(n)
    ]


def measure_alone() -> None:
    items = make_items(options.items)
    table = ItemTable(items)
    rows = []
    for expression in ALONE:
        chosen = parse_filter(expression)
        first, _ = time_call(lambda chosen=chosen: table.find("image", chosen))
        fast = measure_fastest(lambda chosen=chosen: table.find("image", chosen), 20)
        slow = measure_fastest(lambda chosen=chosen: [item for item in items if chosen.matches(item)], 3)
        keys = table.find("image", chosen)
        assert keys is not None
        assert keys.tolist() == [key for key, item in enumerate(items) if chosen.matches(item)]
        rows.append(
            {
                "filter": f"`{expression}`",
                "items left": f"{100 * len(keys) / len(items):.1f} %",
                "each item in Python": f"{1000 * slow:.0f} ms",
                "columns": f"{1000 * fast:.2f} ms",
                "times faster": f"{slow / fast:.0f}",
                "first time": f"{1000 * first:.0f} ms",
            }
        )
    ids = [item.id for item in items[::10]]
    by_ids = measure_fastest(lambda: table.find("image", Filter(frozenset(ids), all_stored=True)))
    one = [Item("one more", "image", metadata=items[0].metadata)]
    chosen = parse_filter(ALONE[0])
    added = time_call(lambda: (table.add(one), table.find("image", chosen)))[0]
    note = (
        f"{len(items):,} items, the fastest of 20; the first time includes making the columns that no filter "
        f"has used before. {len(ids):,} ids: {1000 * by_ids:.1f} ms. The first filter after one more item: "
        f"{1000 * added:.1f} ms."
    )
    record("filters", rows, note)


def measure_search() -> None:
    rng = np.random.default_rng(1)
    index = VectorIndex(COLUMNS)
    for start in range(0, options.items, 10_000):
        block = rng.standard_normal((min(10_000, options.items - start), COLUMNS), dtype=np.float32)
        index.add(np.arange(start, start + len(block)), block / np.linalg.norm(block, axis=1, keepdims=True))
    store = MemoryStore(table=ItemTable(make_items(options.items)), indexes={"search": index})
    queries = rng.standard_normal((options.rounds, COLUMNS), dtype=np.float32)
    plans: list[tuple[str, str, Filter | None]] = [("100 %", "none", None)]
    plans += [(share, each, parse_filter(each)) for share, own in SEARCHES.items() for each in own]
    times: dict[str, list[float]] = {name: [] for _, name, _ in plans}
    filters: dict[str, list[float]] = {name: [] for _, name, _ in plans}
    for _, _, chosen in plans:  # makes the columns
        check(store, index, queries[0], chosen)
    for query in queries:
        for _, name, chosen in plans:
            times[name].append(time_call(partial(store.search, "search", query[None], K, chosen))[0])
            if chosen is not None:
                filters[name].append(time_call(partial(store.table.find, "image", chosen))[0])
    base = statistics.median(times["none"])
    rows = [
        {
            "filter": name if chosen is None else f"`{name}`",
            "items left": share,
            "filter alone, p50": f"{1000 * statistics.median(filters[name]):.2f} ms" if chosen else "",
            "filter and search, p50": f"{1000 * statistics.median(times[name]):.1f} ms",
            "p99": f"{1000 * np.quantile(times[name], 0.99):.1f} ms",
            "p50 / that without filter": f"{statistics.median(times[name]) / base:.2f}",
        }
        for share, name, chosen in plans
    ]
    note = (
        f"{options.items:,} items, vectors of {COLUMNS} float32, one query, the {K} best, exactly; "
        f"{options.rounds} queries of each kind, taken in turn; {read_memory() / 1024:.1f} GiB at most."
    )
    record("filtered_search", rows, note)


def check(store: MemoryStore, index: VectorIndex, query: Any, chosen: Filter | None) -> None:
    """Compare a search with all scores in NumPy, and the filter with a look at some items."""
    allowed = np.ones(len(store.table), np.bool_)
    if chosen is not None:
        allowed[:] = False
        allowed[store.table.find("image", chosen)] = True
        for key in range(0, len(allowed), max(1, len(allowed) // 10_000)):
            item = store.table.get(key)
            assert item is not None
            assert allowed[key] == chosen.matches(item)
    scores = np.concatenate([chunk.vectors @ query for chunk in index.chunks()])
    best = np.flatnonzero(allowed)[np.argsort(-scores[allowed])[:K]]
    ((*hits,),) = store.search("search", query[None], K, chosen)
    assert [int(item.id) for item, _ in hits] == best.tolist()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for part in [options.part] if options.part else ["alone", "search"]:
        globals()[f"measure_{part}"]()
