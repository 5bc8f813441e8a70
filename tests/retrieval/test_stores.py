"""Every store keeps the promises of the store protocol, whatever it is built on."""

from types import SimpleNamespace

import numpy as np
import pytest

from diptych import InputError
from diptych.retrieval import Item
from diptych.retrieval._items import SEARCHED, TASK_OF, VIEWS, Filter
from diptych.retrieval.stores import open_store
from diptych.retrieval.stores._base import Block, Contents, ModelChanged, TakenError
from diptych.retrieval.stores._faiss import VectorIndex
from diptych.retrieval.stores._memory import MemoryStore
from tolerance import rounding

DIMENSIONS = {"search": 4, "annotate": 5}
WIDTHS = {"image": 3, "text": 6}
TOLERANCE = rounding(np.float32, 8)
STORES = ["flat", "hnsw", "mapped", "postgresql", "postgresql, hnsw"]


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
        rng.uniform(1, 2, len(ids)).astype(np.float32),
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
        iter(blocks),
        lambda task, n: queries[task][:n],
        lambda task, recall: (recalls if recalls is not None else {}).update({task: recall}),
        write_model,
    )


def map_from_disk(store, folder):
    """The same store with its vectors and features in mapped files."""

    def mapped(name, index):
        chunk = index.chunks()[0]
        np.save(folder / f"{name}.npy", chunk.vectors)
        return VectorIndex.of(np.load(folder / f"{name}.npy", mmap_mode="r"), chunk.norms, chunk.keys)

    return MemoryStore(
        table=store.table,
        indexes={task: mapped(task, index) for task, index in store.indexes.items()},
        kept={view: mapped(view, index) for view, index in store.kept.items()},
        learned=store.learned,
    )


@pytest.fixture(params=STORES)
def empty(request):
    """A store with nothing in it."""
    if not request.param.startswith("postgresql"):
        return open_store("hnsw" if request.param == "hnsw" else "flat")
    pytest.importorskip("psycopg")
    fresh = request.getfixturevalue("fresh")
    return open_store(fresh(**({"index": "hnsw"} if "hnsw" in request.param else {})))


@pytest.fixture
def filled(empty, request, tmp_path):
    """A store with thirty images of two captions each, and its version."""
    store = empty.replace(lambda: contents(BLOCKS))
    if request.node.callspec.params["empty"] == "mapped":
        store = map_from_disk(store, tmp_path)
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
@pytest.mark.parametrize("k", [1, 7, 1000])
def test_search_returns_the_items_with_the_largest_inner_products(filled, task, k):
    queries = queries_of(task)
    matches = filled.store.search(task, queries, k, None, filled.version)
    assert_matches(matches, expected(task, queries), k)
    assert all(item.view == SEARCHED[task] for own in matches for item, _ in own)


def test_equal_products_are_ordered_by_addition(empty):
    block = make_block("image", IMAGES)
    same = Block("image", block.items, np.tile(block.vectors[:1], (30, 1)), block.norms, block.features)
    store = empty.replace(lambda: contents([same]))
    (own,) = store.search("search", block.vectors[:1], 9, None, store.state().version)
    ids = [item.id for item, _ in own]
    # An approximate store may return any nine of them.
    assert ids == (sorted(ids, key=IMAGES.index) if "hnsw" in store.kind else IMAGES[:9])


def test_a_filter_by_ids_ignores_those_that_are_unknown_or_of_the_other_view(filled):
    queries = queries_of("search")
    wanted = {"i3", "i8", "i21"}
    where = Filter(frozenset({*wanted, TEXTS[0], "nobody"}))
    matches = filled.store.search("search", queries, 9, where, filled.version)
    assert_matches(matches, expected("search", queries, wanted), 9)
    nothing = filled.store.search("search", queries, 9, Filter(frozenset()), filled.version)
    assert nothing == [[]] * len(queries)


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ({"colour": "blue"}, lambda n: n % 3 == 0),
        ({"colour": ["blue", "red"], "n": [4, 5, 6]}, lambda n: n in (4, 5, 6)),
        ({"colour": "blue", "n": 4}, lambda n: False),
        ({"n": 4.0}, lambda n: n == 4),
        ({"n": True}, lambda n: False),
        ({}, lambda n: True),
    ],
    ids=str,
)
def test_a_filter_by_metadata(filled, where, fits):
    queries, wanted = queries_of("search"), {f"i{n}" for n in range(30) if fits(n)}
    matches = filled.store.search("search", queries, 99, Filter.by_metadata(where), filled.version)
    assert_matches(matches, expected("search", queries, wanted), 99)


def test_a_metadata_key_that_no_item_has_is_an_error(filled):
    queries = queries_of("search")
    with pytest.raises(InputError, match="'color', which no item has .* did you mean 'colour'"):
        filled.store.search("search", queries, 3, Filter.by_metadata({"color": "red"}), filled.version)
    texts = queries_of("annotate")
    where = Filter.by_metadata({"colour": "red"})  # a key of the other view is known
    assert filled.store.search("annotate", texts, 3, where, filled.version) == [[]] * len(texts)


def test_items_are_added_and_searched(filled):
    before = filled.store.state()
    new = [make_block("image", ["a", "b"], 1), make_block("text", ["a#0"], 1, image="a")]
    filled.store.add(new, filled.version)
    after = filled.store.state()
    assert (after.version, after.added) == (before.version, before.added + 3)
    assert after.changes > before.changes
    (own,) = filled.store.search("search", new[0].vectors[:1], 1, None, filled.version)
    assert own[0][0] == new[0].items[0]
    np.testing.assert_allclose(
        filled.store.features("image", ["b", "i0", "a"]),
        [new[0].features[1], BLOCKS[0].features[0], new[0].features[0]],
        rtol=1e-6,
    )
    assert [item.id for item in filled.store.items(image="a")] == ["a#0"]


@pytest.mark.parametrize(
    ("blocks", "error"),
    [
        ([make_block("image", ["new", "i3"])], TakenError),
        ([make_block("image", ["new"]), make_block("text", [TEXTS[0]])], TakenError),
        ([make_block("image", ["new", "new"])], InputError),
        ([make_block("image", ["new"]), make_block("text", ["new"])], InputError),
    ],
)
def test_an_addition_that_fails_adds_nothing(filled, blocks, error):
    before = filled.store.state()
    with pytest.raises(error):
        filled.store.add(blocks, filled.version)
    assert filled.store.state().changes == before.changes
    assert filled.store.count() == 90
    assert list(filled.store.items(ids=["new"])) == []


def test_an_image_is_removed_with_its_captions(filled):
    before = filled.store.state()
    assert filled.store.remove(["i4", TEXTS[0], "i4"]) == 4
    assert filled.store.state().changes > before.changes
    assert (filled.store.count(), filled.store.count("image"), filled.store.count("text")) == (86, 29, 57)
    queries = queries_of("annotate")
    gone = {TEXTS[0], "i4#4", "i4#34"}
    matches = filled.store.search("annotate", queries, 99, None, filled.version)
    assert_matches(matches, expected("annotate", queries, set(TEXTS) - gone), 99)
    assert filled.store.features("text", ["i4#4"]) is None


def test_an_unknown_id_removes_nothing(filled):
    before = filled.store.state()
    with pytest.raises(InputError, match="there is no item 'nobody'"):
        filled.store.remove(["i3", "nobody"])
    assert filled.store.state() == before
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
    assert [item.id for item in filled.store.items(image="i7")] == ["i7#7", "i7#37"]
    assert [item.id for item in filled.store.items(new=True)] == ["new"]
    assert next(filled.store.items(ids=["i3"])) == BLOCKS[0].items[3]


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_all_vectors_can_be_read(filled, task):
    blocks = list(filled.store.vectors(task, filled.version))
    (stored,) = (block for block in BLOCKS if block.view == SEARCHED[task])
    assert [item for block in blocks for item in block.items] == stored.items
    np.testing.assert_array_equal(np.concatenate([block.vectors for block in blocks]), stored.vectors)
    np.testing.assert_array_equal(np.concatenate([block.norms for block in blocks]), stored.norms)


def test_features_come_in_the_order_of_the_ids(filled):
    assert filled.store.keeps_features
    rows = filled.store.features("text", [TEXTS[7], TEXTS[0], TEXTS[7]])
    np.testing.assert_allclose(rows, BLOCKS[1].features[[7, 0, 7]], rtol=1e-6)
    assert filled.store.features("text", [TEXTS[7], "nobody"]) is None
    filled.store.add([make_block("image", ["bare"], 1, features=False)], filled.version)
    assert filled.store.features("image", ["i0", "bare"]) is None


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


def test_a_store_may_be_filled_with_nothing_and_added_to(empty):
    store = empty.replace(lambda: contents([]))
    version, queries = store.state().version, queries_of("search")
    assert store.count() == 0
    assert store.search("search", queries, 3, None, version) == [[]] * len(queries)
    assert store.search("search", queries, 3, Filter.by_metadata({"any": 1}), version) == [[]] * len(queries)
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
        assert filled.store.read_model(tmp_path, ["config.json"]) == ""
        assert not list(tmp_path.glob("config.json"))
        return
    assert filled.store.read_model(tmp_path, ["config.json", "missing"]) == filled.version
    assert (tmp_path / "config.json").read_text() == "first"
    assert not (tmp_path / "missing").exists()
    other = open_store(filled.store.address, create=False)
    other.replace(lambda: contents(BLOCKS, text="second"), filled.version)
    for use in (
        lambda: filled.store.search("search", queries_of("search"), 3, None, filled.version),
        lambda: filled.store.add([make_block("image", ["new"], 1)], filled.version),
        lambda: list(filled.store.vectors("search", filled.version)),
        lambda: filled.store.replace(lambda: contents(BLOCKS), filled.version),
    ):
        with pytest.raises(ModelChanged):
            use()
    assert filled.store.read_model(tmp_path, ["config.json"]) == filled.store.state().version
    assert (tmp_path / "config.json").read_text() == "second"
