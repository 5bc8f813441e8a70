"""Filters: how they are written, what they mean, and the columns that answer them in memory."""

import json
import shutil
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError, Retriever
from diptych.retrieval import Item
from diptych.retrieval._filters import MOST_COMPARED, FilterError, iso_string, parse_filter
from diptych.retrieval.stores import _columns
from diptych.retrieval.stores._memory import ItemTable
from filtering import FILTERS, METADATA
from saved_files import execute

ITEM = Item(
    "a",
    "image",
    metadata={
        "split": "test",
        "n": 1,
        "flag": True,
        "nothing": None,
        "tags": ["beach", 7, None],
        "empty": [],
        "nested": [[5]],
        "about": {"n": 1},
        "large": 2**53 + 1,
        "float": 1e23,
        "limit": 2.0**63,
        "taken": "2019-05-01T10:00:00",
        "wide": "\U00010000",
    },
)


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ({}, True),
        ({"split": "test"}, True),
        ({"split": ["val", "test"]}, True),
        ({"split": "val"}, False),
        ({"split": []}, False),
        ({"split": "test", "n": 2}, False),
        ({"absent": "x"}, False),
        # true is not 1, and numbers are equal whatever their type
        ({"n": 1.0}, True),
        ({"n": True}, False),
        ({"n": "1"}, False),
        ({"flag": True}, True),
        ({"flag": 1}, False),
        # complements also match items without the key
        ({"split": {"$ne": "test"}}, False),
        ({"absent": {"$ne": "x"}}, True),
        ({"split": {"$nin": ["val"]}}, True),
        ({"absent": {"$nin": []}}, True),
        ({"split": {"$not": {"$eq": "test"}}}, False),
        ({"absent": {"$not": {"$gt": 3}}}, True),
        ({"$not": {"split": "val"}}, True),
        # order: numbers with numbers, strings with strings by code point
        ({"n": {"$gt": 0, "$lte": 1}}, True),
        ({"n": {"$gt": 0.5}}, True),
        ({"n": {"$lt": 1}}, False),
        ({"n": {"$lt": "2"}}, False),
        ({"flag": {"$gte": 0}}, False),
        ({"nothing": {"$gte": 0}}, False),
        ({"split": {"$gt": "tes", "$lt": "tesu"}}, True),
        ({"wide": {"$gt": "\uffff"}}, True),
        ({"large": {"$gt": 2**53}}, True),
        ({"large": {"$gt": 2.0**53}}, True),
        ({"large": 2**53}, False),
        ({"large": {"$lt": 2.0**53 + 2}}, True),
        ({"float": 1e23}, True),
        ({"float": {"$gt": 1e23}}, False),
        ({"float": {"$gt": 2**63 - 1}}, True),
        ({"limit": {"$gt": 2**63 - 1}}, True),
        ({"limit": {"$lte": 2**63 - 1}}, False),
        ({"limit": {"$gte": -(2**63)}}, True),
        # a list matches if one of its elements does
        ({"tags": "beach"}, True),
        ({"tags": 7}, True),
        ({"tags": None}, True),
        ({"tags": {"$gt": 6}}, True),
        ({"tags": {"$lt": "c"}}, True),
        ({"tags": {"$ne": "beach"}}, False),
        ({"empty": {"$lt": 3}}, False),
        ({"empty": {"$ne": 3}}, True),
        ({"nested": 5}, False),
        ({"nested": {"$gt": 3}}, False),
        ({"about": {"$gt": 0}}, False),
        # null is a value, and presence is another thing
        ({"nothing": None}, True),
        ({"absent": None}, False),
        ({"nothing": {"$exists": True}}, True),
        ({"empty": {"$exists": True}}, True),
        ({"absent": {"$exists": False}}, True),
        ({"absent": {"$exists": True}}, False),
        # groups
        ({"$or": [{"n": 2}, {"split": "test"}]}, True),
        ({"$or": []}, False),
        ({"$and": []}, True),
        ({"$and": [{"n": 1}, {"split": "val"}]}, False),
        ({"$and": [{"n": 1}, "split = 'test' and exists tags"]}, True),
        # dates
        ({"taken": {"$gte": date(2019, 5, 1), "$lt": date(2019, 5, 2)}}, True),
        ({"taken": datetime(2019, 5, 1, 10)}, True),
        ({"n": np.int64(1)}, True),
        ({"n": {"$lt": np.float32(1.5)}}, True),
    ],
    ids=str,
)
def test_what_filters_mean(where, fits):
    chosen = parse_filter(where)
    assert chosen.matches(ITEM) is fits
    table = ItemTable()
    table.add([ITEM])
    keys = table.find("image", parse_filter(where))
    assert (keys is None or keys.tolist() == [0]) is fits


@pytest.mark.parametrize(
    ("expression", "where"),
    [
        ("year >= 2010 and tag = 'beach'", {"year": {"$gte": 2010}, "tag": "beach"}),
        ('tag == "beach"', {"tag": {"$eq": "beach"}}),
        ("a != 1", {"a": {"$ne": 1}}),
        ("a <> -1.5e3", {"a": {"$ne": -1500.0}}),
        ("a<1 or b>2", {"$or": [{"a": {"$lt": 1}}, {"b": {"$gt": 2}}]}),
        ("a = 1 or b = 2 and c = 3", {"$or": [{"a": 1}, {"$and": [{"b": 2}, {"c": 3}]}]}),
        ("(a = 1 or b = 2) and c = 3", {"$and": [{"$or": [{"a": 1}, {"b": 2}]}, {"c": 3}]}),
        ("not a = 1 and b = 2", {"$and": [{"$not": {"a": 1}}, {"b": 2}]}),
        ("not (a = 1 and b = 2)", {"$not": {"a": 1, "b": 2}}),
        ("a in [1, 'x', null, true]", {"a": {"$in": [1, "x", None, True]}}),
        ("a NOT IN (1)", {"a": {"$nin": [1]}}),
        ("a in []", {"a": []}),
        ("exists a and not exists b", {"a": {"$exists": True}, "b": {"$exists": False}}),
        ("'odd key' = \"it's\" and 'it\\'s' = 2", {"odd key": "it's", "it's": 2}),
        ("taken >= 2019-05-01", {"taken": {"$gte": date(2019, 5, 1)}}),
        ("taken < 2019-05", {"taken": {"$lt": "2019-05"}}),
        ("taken < 2019-05-01T09:30:00", {"taken": {"$lt": datetime(2019, 5, 1, 9, 30)}}),
        ("t < 2019-05-01T09:30:00+02:00", {"t": {"$lt": datetime(2019, 5, 1, 7, 30, tzinfo=UTC)}}),
        ("t < 2019-05-01T07:30:00Z", {"t": {"$lt": datetime(2019, 5, 1, 7, 30, tzinfo=UTC)}}),
        ("größe.breite-cm > 3", {"größe.breite-cm": {"$gt": 3}}),
        (r"path = 'C:\\photos\new'", {"path": r"C:\photos\new"}),
        ('{"year": {"$gte": 2010}}', {"year": {"$gte": 2010}}),
        (' {"$or": ["a = 1", {"b": 2}]}', {"$or": [{"a": 1}, {"b": 2}]}),
    ],
)
def test_expressions_are_another_way_to_write_plain_data(expression, where):
    assert parse_filter(expression) == parse_filter(where)


@given(st.text(st.sampled_from("ab=<>!()[],.'\"\\ 12-e\n{}$") | st.characters(), max_size=20) | st.text())
def test_any_text_is_a_filter_or_an_error(text):
    with suppress(FilterError):
        parse_filter(text)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        (
            {"a": {"$gtt": 1}},
            r"'\$gtt' of the key 'a' is not an operator; did you mean \$gt\? The operators are",
        ),
        ({"a": {"n": 1}}, r"'n' of the key 'a' is not an operator. The operators are \$eq, \$ne, \$gt"),
        ({"a": {}}, "there is no operator for the key 'a'"),
        ({"$gte": 3}, r"\$gte belongs to a metadata key"),
        ({"$nor": []}, r"'\$nor' is not an operator between conditions; did you mean \$or"),
        ({"$and": {"a": 1}}, r"\$and takes a list of filters; got {'a': 1}"),
        ({"$or": [3]}, "3 is not a filter"),
        ({"$not": [{"a": 1}]}, r"\[{'a': 1}\] is not a filter"),
        ({1: 2}, "1 is not a metadata key"),
        ({"a": {"$in": 3}}, r"\$in of the key 'a' takes a list; got 3"),
        ({"a": {"$exists": 1}}, r"\$exists of the key 'a' takes true or false; got 1"),
        ({"a": {"$gt": None}}, r"\$gt of the key 'a' compares numbers, strings and dates; got None"),
        ({"a": {"$gt": True}}, "got True"),
        ({"a": {"$gt": "x\0"}}, "NUL character"),
        ({"a": {"$eq": [1]}}, r"\[1\] of the key 'a' is not a plain value"),
        ({"a": [[1]]}, "is not a plain value"),
        ({"a": float("nan")}, "is not a plain value"),
        ({"a": 2**63}, "an integer has more than 64 bits; write it as a float or as text"),
        ({"a": {"$lt": -(2**63) - 1}}, "more than 64 bits"),
        (f"a < {2**63}", "more than 64 bits"),
        ({"a": b"x"}, "is not a plain value"),
        ({"a": list(range(100_001))}, "more than 100000 values"),
        ({"$and": [{"a": 1}] * 257}, "more than 256 conditions"),
        ("not " * 17 + "a = 1", "more than 16 deep"),
        ("(" * 17 + "a = 1", "more than 16 deep"),
        ('{"$not": ' * 17 + '{"a": 1}' + "}" * 17, "more than 16 deep"),
        ('{"a": ' + "[" * 60_000, "cannot be read|not JSON"),
        ("x" * (2**16 + 1), "65537 characters; at most 65536"),
        (f"taken > 2019-05-01T{'1' * 50}", "at character 9 .* there is no such date"),
        ("taken > 2019-05-01T25:00", "there is no such date"),
        (
            "tag = beach",
            "is wrong at character 7 \\('beach'\\): expected a value; put text into quotes: \"beach\"",
        ),
        ("tag = 'beach", "at character 7 .* the quote does not end"),
        ("year >=", "wrong at its end: expected a number, a date"),
        ("year", "wrong at its end: expected =, !=, <, <=, >, >=, 'in' or 'not in'"),
        ("2010 <= year", "at character 1 .* expected a metadata key"),
        ("year > 3 tag = 4", "at character 10 .* expected 'and', 'or', or the end"),
        ("(year > 3", "at its end: expected '\\)'"),
        ("a in 3", "at character 6 .* expected a list"),
        ("a in [3", "at its end: expected ','"),
        ("a not = 3", "at character 7 .* expected 'in'"),
        ("and = 3", "expected a metadata key"),
        ("'$gt' = 3", "expected a metadata key"),
        ("taken > 2019-13-01", "at character 9 .* there is no such date"),
        ("a ~ 3", "at character 3 .* this character has no meaning"),
        ("a = 1e999", "inf of the key 'a' is not a plain value"),
        ("photos/7.jpg", "To choose items by their ids, give a list of ids"),
        ('{"a": 1', "not JSON: .* at character 8"),
        ('{"a": NaN}', "is not a plain value"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_filter_is_explained(where, message):
    with pytest.raises(FilterError, match=message):
        parse_filter(where)


def test_integers_of_thousands_of_digits_are_explained():
    with pytest.raises(FilterError, match="more than 64 bits"):
        parse_filter({"a": 10**5000})
    with pytest.raises(FilterError, match="got a value that is too long"):
        parse_filter({"$and": 10**5000})


def test_dates_are_strings_in_the_order_of_time():
    rome = timezone(timedelta(hours=2))
    times = [
        datetime(2019, 5, 1, 11, tzinfo=rome),
        datetime(2019, 5, 1, 9, 30, tzinfo=UTC),
        datetime(2019, 5, 1, 9, 30, 0, 500_000, tzinfo=UTC),
        datetime(2019, 5, 1, 9, 30, 1, tzinfo=UTC),
    ]
    written = [iso_string(each) for each in times]
    assert written == sorted(written)
    assert written[0] == "2019-05-01T09:00:00.000000Z"
    with pytest.raises(InputError, match="outside of the years 1 to 9999"):
        parse_filter({"t": datetime.max.replace(tzinfo=timezone(timedelta(hours=-5)))})
    with pytest.raises(FilterError, match="there is no such date"):
        parse_filter("t < 9999-12-31T23:59:59-05:00")
    local = [date(999, 5, 1), date(2019, 5, 1), datetime(2019, 5, 1), datetime(2019, 5, 1, 0, 0, 0, 1)]
    assert [iso_string(each) for each in local] == sorted(iso_string(each) for each in local)


KEYS = st.lists(st.integers(0, 30), max_size=4, unique=True)


@given(st.lists(st.tuples(METADATA, KEYS, KEYS, FILTERS), max_size=6))
def test_columns_follow_additions_changes_and_removals(steps):
    table, chosen = ItemTable(), []
    for number, (metadata, changed, removed, where) in enumerate(steps):
        table.add(
            [
                Item(f"{number} {i}", "image" if i % 3 else "text", metadata=own)
                for i, own in enumerate(metadata)
            ]
        )
        for key in changed:
            if (item := table.get(key)) is not None:
                table.change(key, replace(item, metadata=metadata[key % len(metadata)]))
        table.remove([key for key in removed if table.get(key) is not None])
        chosen.append(parse_filter(where))
        for each in chosen:
            for view in ("image", "text"):
                matching = [key for key, item in table if item.view == view and each.matches(item)]
                keys = table.find(view, each)
                assert (table.keys(view) if keys is None else keys).tolist() == matching


class Counted(dict):
    """Items, and how often one of them was asked for."""

    asked = 0

    def get(self, key):
        self.asked += 1
        return super().get(key)


def test_items_without_metadata_are_looked_at_once():
    counted = Counted({i: Item(str(i), "image") for i in range(3000)})
    columns = _columns.Columns("image", counted)
    condition = parse_filter({"n": {"$ne": 1}}).condition
    assert len(columns.find(condition, 3000)) == 3000
    counted.asked = 0
    assert len(columns.find(condition, 3000)) == 3000
    assert counted.asked == 0


def test_few_new_items_do_not_cost_a_look_at_all():
    table = ItemTable()
    table.add([Item(str(i), "image", metadata={"n": i, "name": f"{i:05}"}) for i in range(3000)])
    counted = Counted(table._items)
    columns = _columns.Columns("image", counted)
    numbers, names = (parse_filter(where).condition for where in ("n >= 2990", 'name >= "02990"'))
    for condition in (numbers, names):
        assert columns.find(condition, 3000).tolist() == list(range(2990, 3000))
    counted.asked = 0
    counted[3000] = Item("new", "image", metadata={"n": 2995, "name": "02995"})
    for condition in (numbers, names):
        assert columns.find(condition, 3001).tolist() == list(range(2990, 3001))
    del counted[2991]
    columns.remove(np.array([2991]))
    assert columns.find(numbers, 3001).tolist() == [2990, *range(2992, 3001)]
    assert counted.asked < 10


def test_only_keys_of_items_have_columns():
    items = [Item(str(i), "image", metadata={"n": i, f"only {i}": True}) for i in range(50)]
    table = ItemTable()
    table.add(items)

    def count_columns():
        return sum(len(segment._columns) for segment in table._columns["image"]._segments)

    for i in range(100):
        where = {f"key {i} {j}": {"$ne": 1} for j in range(200)}
        assert table.find("image", parse_filter(where)).tolist() == list(range(50))
        assert table.find("image", parse_filter(f"exists 'key {i}'")).tolist() == []
    assert count_columns() == 0
    for i in range(50):
        assert table.find("image", parse_filter({f"only {i}": True})).tolist() == [i]
    assert count_columns() == 50
    table.remove(range(40))
    for i in range(50):
        assert table.find("image", parse_filter({f"only {i}": True})).tolist() == [i] * (i >= 40)
    assert count_columns() == 10
    assert table.find("image", parse_filter("n >= 45")).tolist() == list(range(45, 50))


def test_an_unknown_key_is_compared_with_few_others(monkeypatch):
    compared = []

    def compare(word, possibilities, n):
        compared.append(len(possibilities))
        return []

    monkeypatch.setattr("difflib.get_close_matches", compare)
    for n in (5, MOST_COMPARED, 20_000):
        table = ItemTable()
        table.add([Item(str(i), "image", metadata={f"key {i}": i}) for i in range(n)])
        with pytest.raises(FilterError, match="The keys there are: 'key 0', 'key 1'"):
            table.check_keys(parse_filter({"unknown": 1}))
        with pytest.raises(FilterError, match=r"where names the key 'x{60}'…, which no item has"):
            table.check_keys(parse_filter({"x" * 10_000: 1}))
    assert compared == [5, MOST_COMPARED]


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1, [0, 2**63], {"deep": [2**64]}, 10**5000], ids=type)
def test_integers_in_metadata_have_64_bits(make, value):
    made = make()
    with pytest.raises(InputError, match="the metadata of 'a' cannot be stored .*(64 bits|4300 digits)"):
        made.retriever.add(made.x[:1], ids=["a"], metadata={"a": {"n": value}})
    about = {"least": -(2**63), "greatest": 2**63 - 1, "float": 2.0**60, "larger": 2.0**63}
    made.retriever.add(made.x[:1], ids=["a"], metadata={"a": about})
    stored = made.retriever.item("a").metadata
    assert stored == about
    assert [type(value) for value in stored.values()] == [int, int, int, float]


def test_a_stored_integer_of_more_than_64_bits_is_refused(make, tmp_path):
    made = make(metadata={"0": {"n": 2**63 - 1}})
    made.retriever.save(tmp_path / "model")
    item = json.dumps({"id": "0", "view": "image", "metadata": {"n": 2**63}})
    execute(tmp_path / "model", "UPDATE items SET item = ? WHERE key = 0", item)
    with pytest.raises(InputError, match="items.sqlite holds what is not an item"):
        Retriever.load(tmp_path / "model")


def described(n):
    about = {"year": 1950 + n, "taken": date(1950 + n, 6, 1), "tags": ["sea" if n % 3 == 0 else "snow", n]}
    return about | ({"odd": True} if n % 2 else {})


@pytest.fixture(scope="module", params=["flat", "hnsw"])
def dated(request, make, tmp_path_factory):
    """A model whose images have metadata, and its folder."""
    made = make(metadata={str(n): described(n) for n in range(60)}, index=request.param)
    made.folder = tmp_path_factory.mktemp("dated") / "model"
    made.retriever.save(made.folder)
    return made


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ("year >= 1990 and not tags = 'sea'", lambda n: n >= 40 and n % 3 != 0),
        ({"taken": {"$lt": date(2001, 1, 1)}}, lambda n: n <= 50),
        (
            {"$or": [{"year": {"$lt": 1953}}, {"tags": {"$in": ["sea"]}, "year": {"$gte": 2008}}]},
            lambda n: n < 3 or (n % 3 == 0 and n >= 58),
        ),
        ("exists odd", lambda n: n % 2 == 1),
        ({"odd": {"$ne": True}}, lambda n: n % 2 == 0),
    ],
    ids=lambda value: str(value)[:20],
)
def test_operators_in_every_kind_of_search(dated, where, fits):
    expected, retriever = {str(n) for n in range(60) if fits(n)}, dated.retriever
    for search in (
        lambda where: retriever.search(dated.y[0], k=100, where=where),
        lambda where: retriever.search(dated.y[:30], k=100, where=where)[7],
        lambda where: retriever.similar(image=dated.x[0], k=100, where=where),
    ):
        assert {hit.id for hit in search(where)} == expected
        assert {hit.id for hit in search(parse_filter(where).matches)} == expected
        assert {hit.id for hit in search(sorted(expected))} == expected


@pytest.mark.parametrize("mmap", [False, True])
def test_operators_after_loading_and_changes(dated, tmp_path, mmap):
    shutil.copytree(dated.folder, tmp_path / "model")
    retriever, where = Retriever.load(tmp_path / "model", mmap=mmap), "taken >= 2001-01-01 and tags = 'snow'"

    def search(where=where):
        return {hit.id for hit in retriever.search(dated.y[0], k=100, where=where)}

    assert search() == {str(n) for n in range(51, 60) if n % 3}
    with pytest.raises(InputError, match="did you mean 'year'"):
        search({"yaer": 1})
    retriever.remove(["52"])
    retriever.add(dated.x[:1], ids=["new"], metadata={"new": {"taken": "2030", "tags": "snow"}})
    assert search() == {"new", *(str(n) for n in range(53, 60) if n % 3)}
    retriever.refit()
    assert search() == {"new", *(str(n) for n in range(53, 60) if n % 3)}


def test_ids_that_are_none_are_refused(dated):
    for ids in (["3", "nobody"], [3], ["3", ["4"]]):
        with pytest.raises(InputError, match="there is no item"):
            dated.retriever.search(dated.y[0], where=ids)
    with pytest.raises(InputError, match="give conditions on metadata, a function of an Item, or ids"):
        dated.retriever.search(dated.y[0], where=3)


def test_the_message_names_a_key_that_no_item_has(make):
    made = make(metadata={"0": {"genre": "jazz", "year": 1959}, "1": {"genre": "rock"}})
    retriever, x, y = made.retriever, made.x, made.y
    expected = "the key 'gnre', which no item has in its metadata; did you mean 'genre'. The keys there are: "
    for ask in (
        lambda where: retriever.search(y[0], where=where),
        lambda where: retriever.search(y[:3], where=where),
        lambda where: retriever.annotate(x[0], where=where),
        lambda where: retriever.similar(image=x[0], where=where),
    ):
        with pytest.raises(InputError, match=expected + "'genre', 'year'"):
            ask({"genre": "jazz", "gnre": "jazz"})
    with pytest.raises(InputError, match="metadata. The keys there are"):
        retriever.search(y[0], where={"colour": "red"})
    assert retriever.annotate(x[0], where={"genre": "jazz"}) == []  # a key of the other view
    retriever.remove([str(i) for i in range(60)])
    assert retriever.search(y[0], where={"colour": "red"}) == []  # no key is unknown in an empty index


def test_keys_come_and_go_with_their_items(make):
    made = make()
    retriever, x, jazz = made.retriever, made.x, {"genre": "jazz"}
    with pytest.raises(InputError, match="'genre', but no item has metadata"):
        retriever.search(made.y[0], where=jazz)
    retriever.add(x[:1], ids=["b"], metadata={"b": {"genre": "rock"}})
    assert retriever.search(made.y[0], where=jazz) == []
    retriever.add(x[1:2], ids=["a"], metadata={"a": jazz})
    assert [hit.id for hit in retriever.search(made.y[0], where=jazz)] == ["a"]
    retriever.remove("a")
    assert retriever.search(made.y[0], where=jazz) == []
    retriever.remove("b")
    with pytest.raises(InputError, match="no item has metadata"):
        retriever.search(made.y[0], where=jazz)
