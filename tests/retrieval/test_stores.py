"""Every store keeps the promises of the store protocol, whatever it is built on."""

import threading
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diptych import AWCCA, InputError, Retriever
from diptych.retrieval import Item
from diptych.retrieval._filters import Filter, FilterError, parse_filter, required_keys
from diptych.retrieval._items import SEARCHED, TASK_OF, VIEWS
from diptych.retrieval.stores import open_store
from diptych.retrieval.stores._base import (
    FIRST_STEP,
    Block,
    Contents,
    Listing,
    ModelChanged,
    TakenError,
    search_in_steps,
)
from diptych.retrieval.stores._folder import FolderStore, Reading
from filtering import FILTERS, METADATA
from tolerance import rounding

DIMENSIONS = {"search": 4, "annotate": 5}
WIDTHS = {"image": 3, "text": 6}
TOLERANCE = rounding(np.float32, 8)
MODEL = {"params": (2.0, 3.0)}
MANY = 900
"""Images of more than four steps of an approximate index."""
STORES = ["flat", "hnsw", "folder", "mapped folder", "folder, hnsw", "postgresql", "postgresql, hnsw"]


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def make_block(view, ids, seed=0, *, image=None, metadata=None, features=True):
    """Items with random unit vectors, which depend on the seed and on nothing else."""
    rng, task = np.random.default_rng([seed, VIEWS.index(view)]), TASK_OF[view]
    owners = image if isinstance(image, list) else [image] * len(ids)
    items = [
        Item(name, view, image=owner, metadata=(metadata or {}).get(name, {}))
        for name, owner in zip(ids, owners, strict=True)
    ]
    return Block(
        view,
        items,
        unit(rng.normal(size=(len(ids), DIMENSIONS[task]))),
        rng.normal(size=(len(ids), WIDTHS[view])).astype(np.float32) if features else None,
    )


IMAGES, TEXTS = [f"i{n}" for n in range(30)], [f"i{n % 30}#{n}" for n in range(60)]
ABOUT = {name: {"colour": "red" if n % 3 else "blue", "n": n} for n, name in enumerate(IMAGES)}
BLOCKS = [
    make_block("image", IMAGES, metadata=ABOUT),
    make_block("text", TEXTS, image=[name.partition("#")[0] for name in TEXTS]),
]


def contents(blocks, *, keep=True, text="first", recalls=None):
    def write_model(folder):
        (folder / "config.json").write_text(text)

    queries = {task: unit(np.random.default_rng(5).normal(size=(20, n))) for task, n in DIMENSIONS.items()}
    return Contents(
        DIMENSIONS,
        WIDTHS,
        keep,
        False,
        iter(blocks),
        lambda task, n: queries[task][:n],
        lambda task, recall: (recalls if recalls is not None else {}).update({task: recall}),
        write_model,
    )


class Folder:
    """A folder to fill: what a fit, a save and a load by another process give."""

    def __init__(self, folder, index, **reading):
        self.folder, self.index, self.reading = folder, index, Reading(**reading)

    def replace(self, make):
        contents = make()
        store = open_store(self.index).replace(lambda: contents)
        FolderStore.write(self.folder, store, contents.write_model).close()
        return FolderStore(self.folder, self.reading)


@pytest.fixture(params=STORES)
def empty(request, tmp_path):
    """A store with nothing in it."""
    if "folder" in request.param:
        index, mmap = ("hnsw" if "hnsw" in request.param else "flat"), "mapped" in request.param
        return Folder(tmp_path / "model", index, mmap=mmap, trust_graph=True)
    if not request.param.startswith("postgresql"):
        return open_store("hnsw" if request.param == "hnsw" else "flat")
    pytest.importorskip("psycopg")
    fresh = request.getfixturevalue("fresh")
    return open_store(fresh(**({"index": "hnsw"} if "hnsw" in request.param else {})))


@pytest.fixture(params=["flat", "postgresql", "postgresql, hnsw"])
def paged(request):
    """A store with many images, whose graph, if it has one, is a poor one."""
    index = request.param
    if index.startswith("postgresql"):
        fresh = request.getfixturevalue("fresh")
        poor = {"index": "hnsw", "ef_search": 1, "options": "-c enable_seqscan=off"}
        index = fresh(**(poor if "hnsw" in index else {}))
    names = [f"item {n}" for n in range(MANY)]
    images = make_block("image", names, metadata={name: {"even": n % 2 == 0} for n, name in enumerate(names)})
    return open_store(index).replace(lambda: contents([images]))


@pytest.fixture
def without_items(empty):
    """A store with a model and without items."""
    return empty.replace(lambda: contents([]))


@pytest.fixture
def filled(empty):
    """A store with thirty images of two captions each, and its version."""
    store = empty.replace(lambda: contents(BLOCKS))
    return SimpleNamespace(store=store, version=store.state().version)


def expected(task, queries, allowed=None, blocks=BLOCKS):
    """Ids and inner products by brute force, best first, equal ones in order of addition."""
    (block,) = (block for block in blocks if block.view == SEARCHED[task])
    products = np.asarray(queries @ block.vectors.T, np.float32)
    ranked = []
    for row in products:
        order = sorted(range(len(row)), key=lambda i: (-row[i], i))
        pairs = [(block.items[i].id, row[i]) for i in order]
        ranked.append([pair for pair in pairs if allowed is None or pair[0] in allowed])
    return ranked


def assert_matches(matches, ranked, k):
    for own, best in zip(matches, ranked, strict=True):
        assert [item.id for item, _ in own] == [name for name, _ in best[:k]]
        np.testing.assert_allclose([p for _, p in own], [p for _, p in best[:k]], atol=TOLERANCE)


def queries_of(task, n=6):
    return unit(np.random.default_rng(9).normal(size=(n, DIMENSIONS[task])))


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_search_returns_the_items_with_the_largest_inner_products(filled, task):
    queries = queries_of(task)
    for k in (1, 7, 1000):
        matches = filled.store.search(task, queries, k, None, filled.version)
        assert_matches(matches, expected(task, queries), k)
        assert all(item.view == SEARCHED[task] for hits in matches for item, _ in hits)


def test_equal_products_are_ordered_by_addition(empty):
    block = make_block("image", IMAGES)
    same = Block("image", block.items, np.tile(block.vectors[:1], (30, 1)), block.features)
    store = empty.replace(lambda: contents([same]))
    (own,) = store.search("search", block.vectors[:1], 9, None, store.state().version)
    ids = [item.id for item, _ in own]
    # An approximate store may return any nine of them.
    assert ids == (sorted(ids, key=IMAGES.index) if "hnsw" in store.kind else IMAGES[:9])


def test_shorter_lists_are_the_beginnings_of_longer_ones(paged):
    """Also of a poor graph, which is searched in steps."""
    queries, even = queries_of("search", 3), parse_filter({"even": True})
    for where, n in ((None, MANY), (even, MANY // 2)):
        whole = paged.search("search", queries, MANY, where, paged.state().version)
        assert [len({item.id for item, _ in matches}) for matches in whole] == [n] * 3
        for k in (1, 10, 99, 100, 101, 399, 401, 700):
            shorter = paged.search("search", queries, k, where, paged.state().version)
            assert shorter == [matches[:k] for matches in whole]


def test_steps_stop_when_there_are_enough_or_no_more():
    asked = []

    def search(places, size):
        asked.append((places, size))
        # The first query has 130 items, the others many; what was found before is found again, elsewhere.
        return [list(range(130 if place == 0 else 10_000))[:size][::-1] for place in places]

    results = search_in_steps(search, lambda hit: hit, 3, 120)
    assert asked == [([0, 1, 2], FIRST_STEP), ([0, 1, 2], 2 * FIRST_STEP)]
    assert [len(hits) for hits in results] == [120, 120, 120]
    assert results[0] == [*range(99, -1, -1), *range(129, 109, -1)]
    asked.clear()
    assert [len(hits) for hits in search_in_steps(search, lambda hit: hit, 2, 1000)] == [130, 1000]
    assert asked[-1] == ([1], 16 * FIRST_STEP)


@pytest.mark.parametrize(
    ("ids", "where", "fits"),
    [
        # Ids that are unknown or of the other view are ignored.
        ({"i3", "i8", "i21", TEXTS[0], "nobody"}, {}, lambda n: n in (3, 8, 21)),
        (set(), {}, lambda n: False),
        (None, {"colour": ["blue", "red"], "n": [4, 5, 6]}, lambda n: n in (4, 5, 6)),
        (None, {"colour": "blue", "n": 4}, lambda n: False),
        (None, {"n": [4.0, *range(100, 200)]}, lambda n: n == 4),
        (None, {"n": True}, lambda n: False),
        (None, {}, lambda n: True),
        ({"i3", "i4", "i6", "i7"}, {"colour": "blue"}, lambda n: n in (3, 6)),
    ],
)
def test_filters_by_ids_and_metadata(filled, ids, where, fits):
    queries, wanted = queries_of("search"), {f"i{n}" for n in range(30) if fits(n)}
    chosen = Filter(None if ids is None else frozenset(ids), parse_filter(where).condition)
    matches = filled.store.search("search", queries, 99, chosen, filled.version)
    assert_matches(matches, expected("search", queries, wanted), 99)


def test_a_filter_by_ids_or_keys_that_no_store_can_hold(filled):
    queries = queries_of("search", 1)
    where = Filter(frozenset(["a\0", "\udcff", "i3"]))
    ((match,),) = filled.store.search("search", queries, 9, where, filled.version)
    assert match[0].id == "i3"
    assert filled.store.search("search", queries, 9, parse_filter({"n": "\0"}), filled.version) == [[]]
    with pytest.raises(InputError, match=r"the key '\\udcff', which no item has"):
        filled.store.search("search", queries, 9, parse_filter({"\udcff": 1}), filled.version)
    with pytest.raises(InputError, match="there is no item"):
        filled.store.remove(["a\0"])
    assert list(filled.store.items(images=["a\0"])) == list(filled.store.items(ids=["a\0"])) == []


@settings(suppress_health_check=list(HealthCheck))
@given(METADATA, st.lists(FILTERS, min_size=1, max_size=4))
def test_filters_mean_the_same_in_every_store(without_items, metadata, filters):
    store, known = without_items, {key for own in metadata for key in own}
    names = [f"item {i}" for i in range(len(metadata))]
    block = make_block("image", names, metadata=dict(zip(names, metadata, strict=True)))
    version = store.state().version
    store.add([block], version)
    try:
        for chosen in map(parse_filter, filters):
            matching = {item.id for item in block.items if chosen.matches(item)}
            if matching or known.issuperset(required_keys(chosen.condition)):
                (own,) = store.search("search", block.vectors[:1], 10, chosen, version)
                assert {item.id for item, _ in own} == matching
            else:
                with pytest.raises(FilterError, match="no item has"):
                    store.search("search", block.vectors[:1], 10, chosen, version)
    finally:
        store.remove(names)


def test_numbers_come_back_as_they_were_stored(without_items):
    numbers = [0, 1, -(2**63), 2**63 - 1, 2**53 + 1, 0.5, 1e-300, 2.0**63, 1e23, -1e300]
    about = {"n": numbers, "deep": {"n": numbers}}
    store, block = without_items, make_block("image", ["numbers"], metadata={"numbers": about})
    store.add([block], store.state().version)
    try:
        (item,) = store.items(ids=["numbers"])
        for found in (item.metadata["n"], item.metadata["deep"]["n"]):
            assert found == numbers
            assert [type(value) for value in found] == [type(value) for value in numbers]
    finally:
        store.remove(["numbers"])


def test_a_metadata_key_that_no_item_has_is_an_error(filled):
    queries = queries_of("search")
    with pytest.raises(InputError, match="'color', which no item has .* did you mean 'colour'"):
        filled.store.search("search", queries, 3, parse_filter({"color": "red"}), filled.version)
    texts = queries_of("annotate")
    where = parse_filter({"colour": "red"})  # a key of the other view is known
    assert filled.store.search("annotate", texts, 3, where, filled.version) == [[]] * len(texts)


def test_items_are_added_and_searched(filled):
    before = filled.store.state()
    new = [make_block("image", ["a", "b"], 1), make_block("text", ["a#0"], 1, image="a")]
    filled.store.add(new, filled.version)
    after = filled.store.state()
    assert (after.version, after.added) == (before.version, before.added + 3)
    (own,) = filled.store.search("search", new[0].vectors[:1], 1, None, filled.version)
    assert own[0][0] == new[0].items[0]
    np.testing.assert_allclose(
        filled.store.features("image", ["b", "i0", "a"]),
        [new[0].features[1], BLOCKS[0].features[0], new[0].features[0]],
        rtol=1e-6,
    )
    assert [item.id for item in filled.store.items(images=["a"])] == ["a#0"]


def test_names_of_any_kind_are_stored(filled):
    names = ["it's", '"quoted"', "a;DROP TABLE items--", "%s %(x)s", "{0}", "\\", "猫", "new\nline\u2028"]
    for name in (*names, "é" * 999):
        image = Item(name, "image", path=f"/{name}", metadata={name: name})
        text = Item(f"{name}#0", "text", text=f"about {name}", image=name)
        blocks = [
            replace(make_block("image", [name]), items=[image]),
            replace(make_block("text", [name]), items=[text]),
        ]
        filled.store.add(blocks, filled.version)
        for where in (Filter(frozenset([name])), parse_filter({name: name})):
            ((match,),) = filled.store.search("search", queries_of("search", 1), 9, where, filled.version)
            assert match[0] == image
        assert list(filled.store.items(images=[name])) == [text]
        assert filled.store.remove([name]) == 2


@contextmanager
def searching(filled, check, n_threads):
    """Let threads search for all images and check their ids, again and again."""
    stop, errors, query = threading.Event(), [], queries_of("search", 1)

    def repeat():
        try:
            while not stop.is_set():
                (own,) = filled.store.search("search", query, 999, None, filled.version)
                check([item.id for item, _ in own])
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=repeat) for _ in range(n_threads)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()
    assert errors == []


def test_threads_search_while_one_adds_and_removes(filled):
    def check(ids):
        assert len(set(ids)) == len(ids) >= len(IMAGES)

    with searching(filled, check, 3):
        for i in range(15):
            filled.store.add([make_block("image", [f"new {i}"], i)], filled.version)
            if i % 2:
                filled.store.remove([f"new {i}"])
    assert filled.store.count("image") == len(IMAGES) + 8


def test_an_addition_that_fails_adds_nothing(filled):
    for blocks, error in (
        ([make_block("image", ["new", "i3"])], TakenError),
        ([make_block("image", ["new"]), make_block("text", [TEXTS[0]])], TakenError),
        ([make_block("image", ["new", "new"])], InputError),
        ([make_block("image", ["new"]), make_block("text", ["new"])], InputError),
    ):
        with pytest.raises(error):
            filled.store.add(blocks, filled.version)
        assert filled.store.count() == 90
        assert list(filled.store.items(ids=["new"])) == []


def test_an_image_is_removed_with_its_captions(filled):
    assert filled.store.remove(["i4", TEXTS[0], "i4"]) == 4
    assert (filled.store.count(), filled.store.count("image"), filled.store.count("text")) == (86, 29, 57)
    queries = queries_of("annotate")
    gone = {TEXTS[0], "i4#4", "i4#34"}
    matches = filled.store.search("annotate", queries, 99, None, filled.version)
    assert_matches(matches, expected("annotate", queries, set(TEXTS) - gone), 99)
    assert filled.store.features("text", ["i4#4"]) is None


def test_an_id_can_be_used_again_after_its_item_was_removed(filled):
    filled.store.remove(["i4"])
    block = make_block("image", ["i4"], 1)
    filled.store.add([block], filled.version)
    ((match,),) = filled.store.search("search", block.vectors, 1, None, filled.version)
    assert match[0] == block.items[0]
    assert [item.id for item in filled.store.items("image")][-1] == "i4"


def test_an_unknown_id_removes_nothing(filled):
    with pytest.raises(InputError, match="there is no item 'nobody'"):
        filled.store.remove(["i3", "nobody"])
    assert filled.store.count() == 90
    assert filled.store.remove([]) == 0


def test_items_come_in_order_of_addition(filled):
    filled.store.add([make_block("image", ["new"], 1)], filled.version)
    assert [item.id for item in filled.store.items()] == [*IMAGES, *TEXTS, "new"]
    assert [item.id for item in filled.store.items("image")] == [*IMAGES, "new"]
    assert [item.id for item in filled.store.items(ids=["new", "i7", "nobody", "i2", "i7"])] == [
        "i2",
        "i7",
        "new",
    ]
    assert [item.id for item in filled.store.items("text", ids=["i7", TEXTS[3]])] == [TEXTS[3]]
    assert [item.id for item in filled.store.items(images=["i7"])] == ["i7#7", "i7#37"]
    assert [item.id for item in filled.store.items(new=True)] == ["new"]
    assert next(filled.store.items(ids=["i3"])) == BLOCKS[0].items[3]


def list_ids(store, view=None, where=None, **options):
    listing = Listing(view, None if where is None else parse_filter(where), **options)
    items, total = store.page(listing)
    return [item.id for item in items], total


def test_pages_of_items(filled):
    assert list_ids(filled.store) == ([*IMAGES, *TEXTS], 90)
    assert list_ids(filled.store, "text", offset=58, limit=5) == (TEXTS[58:], 60)
    assert list_ids(filled.store, offset=200) == ([], 90)
    blue = IMAGES[::3]
    assert list_ids(filled.store, where={"colour": "blue"}, limit=3) == (blue[:3], 10)
    assert list_ids(filled.store, "text", {"colour": "blue"}) == ([], 0)
    with pytest.raises(FilterError, match="where names the key 'color', .* did you mean 'colour'"):
        list_ids(filled.store, where={"color": "blue"})
    items, total = filled.store.page(Listing(where=Filter(frozenset(["i3", TEXTS[0], "nobody"]))))
    assert ([item.id for item in items], total) == (["i3", TEXTS[0]], 2)
    assert items[0] == BLOCKS[0].items[3]


def test_pages_in_the_order_of_a_value(without_items):
    """Numbers exactly, then texts by code point, then all others; equal values in order of addition."""
    store, values = without_items, [2, "b", None, 2**53 + 1, "a", 1.5, [3], True, 2, "\U00010000", "é", -1]
    about = {f"item {n}": {"value": value} for n, value in enumerate(values)} | {"without": {"n": 1}}
    store.add([make_block("image", list(about), metadata=about)], store.state().version)
    try:
        others, numbers, texts = [2, 6, 7, "out"], [11, 5, 0, 8, 3], [4, 1, 10, 9]
        down = [3, 0, 8, 5, 11, *texts[::-1]]
        for descending, order in ((False, [*numbers, *texts]), (True, down)):
            expected = [f"item {n}" if n != "out" else "without" for n in [*order, *others]]
            found = list_ids(store, order_by="value", descending=descending)
            assert found == (expected, 13)
            page = list_ids(store, order_by="value", descending=descending, offset=3, limit=4)
            assert page == (expected[3:7], 13)
        assert list_ids(store, where={"value": {"$gt": 1}}, order_by="value")[0] == [
            f"item {n}" for n in (5, 0, 8, 3, 6)
        ]
        with pytest.raises(FilterError, match="order_by names the key 'values', .* did you mean 'value'"):
            list_ids(store, order_by="values")
    finally:
        store.remove(list(about))
    assert list_ids(store, order_by="value") == ([], 0)


def tell_other_readers(store):
    """The store as another process has opened it, which has learned nothing since."""
    if not store.shared:
        return store
    return open_store(store.address, create=False) if store.address else FolderStore(store.folder)


def test_items_are_changed_in_their_places(filled):
    other = tell_other_readers(filled.store)
    assert list_ids(other, where={"colour": "green"}, order_by="n") == ([], 0)  # a column was made

    def paint(item):
        return replace(
            item, text=f"about {item.id}", metadata={**item.metadata, "colour": "green", "new": [1]}
        )

    changed = filled.store.update(["i4", "i2"], paint, filled.version)
    assert changed == [paint(BLOCKS[0].items[4]), paint(BLOCKS[0].items[2])]
    for store in (filled.store, other):
        assert list_ids(store) == ([*IMAGES, *TEXTS], 90)
        assert list_ids(store, where={"colour": "green"}, order_by="n", descending=True) == (["i4", "i2"], 2)
        assert list_ids(store, where={"colour": "blue", "n": [2, 3]}) == (["i3"], 1)
        assert list_ids(store, where="exists new and colour != 'green'") == ([], 0)
        queries = queries_of("search")
        matches = store.search("search", queries, 5, None, filled.version)
        assert_matches(matches, expected("search", queries), 5)
        assert next(store.items(ids=["i2"])) == changed[1]
        assert list(store.items(new=True)) == []
    with pytest.raises(InputError, match="there is no item 'nobody'"):
        filled.store.update(["i3", "nobody"], paint, filled.version)
    assert next(other.items(ids=["i3"])) == BLOCKS[0].items[3]
    filled.store.remove(["i4"])
    assert list_ids(other, where={"colour": "green"}) == (["i2"], 1)


def test_an_item_with_other_content_counts_as_added_now(filled):
    other, new = tell_other_readers(filled.store), make_block("image", ["i4"], 7)

    def show(item):
        return replace(item, path="/new.jpg")

    (item,) = filled.store.update(["i4"], show, filled.version, new)
    assert item == replace(BLOCKS[0].items[4], path="/new.jpg")
    for store in (filled.store, other):
        assert (store.count("image"), store.count("text")) == (30, 60)
        assert [i.id for i in store.items("image")] == [*IMAGES[:4], *IMAGES[5:], "i4"]
        ((best, *_),) = store.search("search", new.vectors, 1, None, filled.version)
        assert best[0] == item
        queries = queries_of("search")
        (hits,) = store.search("search", queries[:1], 99, None, filled.version)
        assert sorted(found.id for found, _ in hits) == sorted(IMAGES)
        np.testing.assert_allclose(store.features("image", ["i4"]), new.features, rtol=1e-6)
        assert [i.id for i in store.items(new=True)] == ["i4"]
        assert [i.id for i in store.items(images=["i4"])] == ["i4#4", "i4#34"]
        assert list_ids(store, where={"n": 4}) == (["i4"], 1)


def test_items_are_replaced_by_those_with_their_ids(filled):
    other = tell_other_readers(filled.store)
    images = make_block("image", ["new", "i3"], 8, metadata={"i3": {"colour": "grey"}})
    captions = make_block("text", ["i3#3", "i3#new"], 8, image="i3")
    filled.store.add([images, captions], filled.version, replace=True)
    for store in (filled.store, other):
        assert store.count() == 92
        assert [item.id for item in store.items(images=["i3"])] == ["i3#33", "i3#3", "i3#new"]
        assert list_ids(store, where={"colour": "grey"}) == (["i3"], 1)
        for block in (images, captions):
            task = TASK_OF[block.view]
            found = store.search(task, block.vectors, 1, None, filled.version)
            assert [own[0][0] for own in found] == block.items
            np.testing.assert_allclose(
                store.features(block.view, [item.id for item in block.items]), block.features, rtol=1e-6
            )
    for view, name in (("image", "i5#5"), ("text", "i5")):
        with pytest.raises(InputError, match=f"the id '{name}' belongs to an item of the other view"):
            filled.store.add([make_block(view, [name])], filled.version, replace=True)
    with pytest.raises(InputError, match="given twice"):
        filled.store.add([make_block("image", ["i5", "i5"])], filled.version, replace=True)
    assert (other.count(), next(other.items(ids=["i5"]))) == (92, BLOCKS[0].items[5])


def test_no_search_misses_an_item_that_is_being_replaced(filled):
    def check(ids):
        assert sorted(ids) == sorted(IMAGES)

    with searching(filled, check, 1):
        for i in range(20):
            filled.store.add([make_block("image", ["i7", "i9"], i)], filled.version, replace=True)


def test_more_items_than_are_read_at_a_time(empty):
    names = [str(i) for i in range(4500)]
    store = empty.replace(lambda: contents([make_block("image", names)]))
    assert [item.id for item in store.items()] == names


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_all_vectors_can_be_read(filled, task):
    blocks = list(filled.store.vectors(task, filled.version))
    (stored,) = (block for block in BLOCKS if block.view == SEARCHED[task])
    assert [item for block in blocks for item in block.items] == stored.items
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), stored.vectors)


def test_features_come_in_the_order_of_the_ids(filled):
    assert filled.store.keeps_features
    rows = filled.store.features("text", [TEXTS[7], TEXTS[0], TEXTS[7]])
    np.testing.assert_allclose(rows, BLOCKS[1].features[[7, 0, 7]], rtol=1e-6)
    assert filled.store.features("text", [TEXTS[7], "nobody"]) is None


def test_a_store_without_features(empty):
    blocks = [make_block("image", IMAGES, features=False), make_block("text", TEXTS, features=False)]
    store = empty.replace(lambda: contents(blocks, keep=False))
    assert not store.keeps_features
    assert store.features("image", ["i0"]) is None
    assert store.count() == 90


def test_a_refit_replaces_vectors_and_keeps_items(filled):
    filled.store.add([make_block("image", ["new"], 1)], filled.version)
    images = make_block("image", [*IMAGES, "new"], 2, metadata=ABOUT)
    blocks = [images, make_block("text", TEXTS, 2, image=[name.partition("#")[0] for name in TEXTS])]
    store = filled.store.replace(lambda: contents(blocks, text="second"), filled.version)
    version = store.state().version
    queries = queries_of("search")
    assert_matches(
        store.search("search", queries, 99, None, version), expected("search", queries, blocks=blocks), 99
    )
    assert [item.id for item in store.items()] == [*IMAGES, *TEXTS, "new"]
    assert list(store.items(new=True)) == []
    np.testing.assert_allclose(store.features("image", ["i0"])[0], BLOCKS[0].features[0], rtol=1e-6)


def test_a_fit_replaces_everything(filled):
    blocks = [make_block("image", ["only"], 3)]
    store = filled.store.replace(lambda: contents(blocks, text="second"))
    assert [item.id for item in store.items()] == ["only"]
    (own,) = store.search("search", queries_of("search", 1), 5, None, store.state().version)
    assert [item.id for item, _ in own] == ["only"]


def test_a_replacement_that_fails_leaves_the_store_as_it_was(filled):
    before = filled.store.state()

    def blocks():
        yield make_block("image", IMAGES[:5], 3)
        raise InputError("this encoder is broken.")

    for version in (None, filled.version):
        with pytest.raises(InputError, match="this encoder is broken"):
            filled.store.replace(lambda: contents(blocks()), version)
    assert filled.store.state() == before
    queries = queries_of("search")
    matches = filled.store.search("search", queries, 7, None, filled.version)
    assert_matches(matches, expected("search", queries), 7)


@pytest.mark.parametrize("index", ["flat", "postgresql"])
def test_vectors_in_float16(index, request):
    index = request.getfixturevalue("fresh")() if index == "postgresql" else index
    store = open_store(index, "float16").replace(lambda: contents(BLOCKS))
    version, queries = store.state().version, queries_of("search")
    assert store.dtype == "float16"
    (block,) = store.vectors("search", version)
    np.testing.assert_array_equal(block.vectors, BLOCKS[0].vectors.astype(np.float16))
    half = [replace(BLOCKS[0], vectors=block.vectors.astype(np.float32))]
    for own, best in zip(
        store.search("search", queries, 5, None, version),
        expected("search", queries, blocks=half),
        strict=True,
    ):
        np.testing.assert_allclose([p for _, p in own], [p for _, p in best[:5]], atol=2e-3)
    if store.shared:  # opened again without a dtype, it keeps its own in a new fit
        again = open_store(store.address, create=False).replace(lambda: contents(BLOCKS[:1]))
        assert (again.dtype, again.count()) == ("float16", 30)


def test_a_store_may_be_filled_with_nothing_and_added_to(empty):
    store = empty.replace(lambda: contents([]))
    version, queries = store.state().version, queries_of("search")
    assert store.count() == 0
    assert store.search("search", queries, 3, None, version) == [[]] * len(queries)
    assert store.search("search", queries, 3, parse_filter({"any": 1}), version) == [[]] * len(queries)
    store.add(BLOCKS, version)
    assert_matches(store.search("search", queries, 3, None, version), expected("search", queries), 3)


def test_an_approximate_store_reports_its_recall(empty):
    recalls = {}
    store = empty.replace(lambda: contents(BLOCKS, recalls=recalls))
    if "hnsw" in store.kind:
        assert min(recalls.values()) > 0.9
        assert set(recalls) == {"search", "annotate"}
    else:
        assert recalls == {}


def test_a_shared_store_keeps_the_model_and_notices_another(filled, tmp_path):
    if not filled.store.shared:
        with pytest.raises(InputError, match="has no files"):
            filled.store.model_files(["config.json"])
        return
    with filled.store.model_files(["config.json", "missing"]) as (folder, version):
        assert version == filled.version
        assert (folder / "config.json").read_text() == "first"
        assert not (folder / "missing").exists()
    address = filled.store.address
    other = open_store(address, create=False) if address else FolderStore(filled.store.folder)
    other.replace(lambda: contents(BLOCKS, text="second"), filled.version)
    for use in (
        lambda: filled.store.search("search", queries_of("search"), 3, None, filled.version),
        lambda: filled.store.add([make_block("image", ["new"], 1)], filled.version),
        lambda: list(filled.store.vectors("search", filled.version)),
        lambda: filled.store.replace(lambda: contents(BLOCKS), filled.version),
    ):
        with pytest.raises(ModelChanged):
            use()
    with filled.store.model_files(["config.json"]) as (folder, version):
        assert version == filled.store.state().version
        assert (folder / "config.json").read_text() == "second"


class TestModelsFromElsewhere:
    """Retrievers of models that were fitted without one."""

    @pytest.mark.parametrize("features", [False, True])
    def test_a_fitted_model_is_filled_in_batches_and_refitted(self, views, tmp_path, features, recwarn):
        x, y, pairing = views(n=90)
        model = AWCCA(**MODEL).fit(x[:60], y[:120], pairing[:120])
        sample = (x[:60], y[:120]) if features else None
        retriever = Retriever.from_model(model, features=sample)
        assert retriever.search(y[0]) == []
        for start in range(0, 60, 20):
            rows = slice(2 * start, 2 * start + 40)
            batch = [str(i) for i in range(start, start + 20)]
            retriever.add(x[start : start + 20], y[rows], pairing=pairing[rows] - start, ids=batch)
        plain = Retriever.from_features(x[:60], y[:120], pairing[:120], model=AWCCA(**MODEL))
        for one, other in zip(retriever.search(y[:20]), plain.search(y[:20]), strict=True):
            assert [hit.id for hit in one] == [hit.id for hit in other]
        recwarn.clear()
        retriever.add(100 * x[60:61], ids=["far"])
        assert bool([w for w in recwarn if "far from the training data" in str(w.message)]) == features
        retriever.save(tmp_path / "model")
        again = Retriever.load(tmp_path / "model")
        assert again.search(y[:5]) == retriever.search(y[:5])
        retriever.refit()  # the pairs were added, so they count once more
        assert retriever.info()["facts"]["refitted"] == {"pairs": 240, "before": 120}

    def test_a_model_without_its_spectra_cannot_be_refitted(self, views, tmp_path):
        x, y, pairing = views()
        model = AWCCA(**MODEL).fit(x, y, pairing)
        del model.spectra_
        model.save(tmp_path / "awcca")
        retriever = Retriever.from_model(AWCCA.load(tmp_path / "awcca"))
        retriever.add(x, y, pairing=pairing)
        with pytest.raises(InputError, match="moments of this model's training pairs are not known"):
            retriever.refit()
        retriever.save(tmp_path / "model")
        assert len(Retriever.load(tmp_path / "model").search(y[0], k=100)) == 60

    @pytest.mark.parametrize("weight", [1.0, 2.0])
    def test_a_loaded_model_is_refitted_as_the_one_that_was_saved(self, views, tmp_path, weight):
        x, y, pairing = views()
        few, captions = slice(40), np.asarray(pairing) < 40
        weights = None if weight == 1.0 else np.full(captions.sum(), weight)
        model = AWCCA(params=(3.0, 2.0)).fit(x[few], y[captions], pairing[captions], sample_weight=weights)
        model.save(tmp_path / "awcca")
        retriever = Retriever.from_model(AWCCA.load(tmp_path / "awcca"))
        retriever.add(x[40:], y[~captions], pairing=pairing[~captions] - 40)
        retriever.refit()
        every = np.where(captions, weight, 1.0)
        # γ is in units of a sum over pairs, so it grows with their total weight.
        gammas = np.array([3.0, 2.0]) * every.sum() / (weight * captions.sum())
        expected = AWCCA(params=tuple(gammas)).fit(x, y, pairing, sample_weight=every)
        refitted = retriever.fitted.model.models_["search"]
        np.testing.assert_allclose(
            refitted.correlations,
            expected.models_["search"].correlations,
            rtol=0,
            atol=rounding(np.float32, len(y), 1.0),  # features of items are stored in float32
        )

    def test_only_fitted_models_are_accepted(self, views):
        with pytest.raises(InputError, match="str"):
            Retriever.from_model("model")
        with pytest.raises(ValueError, match="not fitted"):
            Retriever.from_model(AWCCA())
        x, y, pairing = views()
        with pytest.raises(InputError, match="features"):
            Retriever.from_model(AWCCA(**MODEL).fit(x, y, pairing), features=(x,))
