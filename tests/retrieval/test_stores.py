"""What every store does: one set of tests for all of them, through the store protocol."""

import threading
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diptych import AWCCA, InputError, Retriever
from diptych.retrieval._items import Filter, Item
from diptych.retrieval.stores import open_store
from diptych.retrieval.stores._base import TakenError
from filled_stores import fill, make_block, make_contents, unit_rows
from tolerance import assert_same_hits, rounding

STORES = {
    "flat": ("flat", "float32"),
    "hnsw": ("hnsw", "float32"),
    "flat, float16": ("flat", "float16"),
    "postgresql": ("exact", "float32"),
    "postgresql, hnsw": ("hnsw", "float32"),
    "postgresql, float16": ("exact", "float16"),
}
DIMENSION, IMAGES = 6, 30
MODEL = {"params": (2.0, 3.0)}
NAMES = [
    "it's",
    '"quoted"',
    "a;DROP TABLE items--",
    "%s %(x)s",
    "{0}",
    "\\",
    "猫",
    "new\nline\u2028",
    "é" * 999,
]


@pytest.fixture(params=STORES)
def empty(request):
    """Opens a store with nothing in it."""
    kind, dtype = STORES[request.param]
    if request.param.startswith("postgresql"):
        return lambda: open_store(request.getfixturevalue("fresh")(index=kind), dtype)
    return lambda: open_store(kind, dtype)


@pytest.fixture
def filled(empty, rng):
    """A store with images "0", "1", … and two captions for each, with what was stored."""
    x, y = unit_rows(rng, IMAGES, DIMENSION), unit_rows(rng, 2 * IMAGES, DIMENSION)
    images = [Item(str(i), "image", path=f"/{i}.png", metadata={"third": i % 3}) for i in range(IMAGES)]
    texts = [
        Item(f"{i // 2}#{i % 2}", "text", text=f"text {i}", image=str(i // 2)) for i in range(2 * IMAGES)
    ]
    features = rng.normal(size=(IMAGES, 4)).astype(np.float32)
    norms = np.linspace(1, 2, IMAGES, dtype=np.float32)

    def contents():
        blocks = [
            make_block(images[:20], x[:20], norms[:20], features[:20]),
            make_block(images[20:], x[20:], norms[20:], features[20:]),
            make_block(texts, y, features=y),
        ]
        return make_contents(blocks, DIMENSION, widths={"image": 4, "text": DIMENSION}, queries=x)

    store = empty().replace(contents)
    return SimpleNamespace(store=store, x=x, y=y, images=images, texts=texts, features=features, norms=norms)


def tolerance(store):
    return 2e-3 if store.dtype == "float16" else rounding(np.float32, DIMENSION)


def search(store, task, queries, k=10, where=None):
    return store.search(task, np.atleast_2d(queries), k, where, store.state().version)


def ids(results):
    return [[item.id for item, _ in own] for own in results]


class TestSearch:
    @pytest.mark.parametrize("k", [1, 5, 1000])
    def test_returns_the_items_with_the_largest_inner_products(self, filled, rng, k):
        for task, vectors, items in (
            ("search", filled.x, filled.images),
            ("annotate", filled.y, filled.texts),
        ):
            queries = unit_rows(rng, 3, DIMENSION)
            results = search(filled.store, task, queries, k)
            expected = -np.sort(-queries @ vectors.T, axis=1)[:, :k]
            scores = [[score for _, score in own] for own in results]
            np.testing.assert_allclose(scores, expected, atol=tolerance(filled.store))
            stored = dict(zip((item.id for item in items), (queries @ vectors.T).T, strict=True))
            for row, own in enumerate(results):
                np.testing.assert_allclose(
                    [score for _, score in own],
                    [stored[item.id][row] for item, _ in own],
                    atol=tolerance(filled.store),
                )
                assert all(item in items for item, _ in own)

    def test_equal_products_are_ordered_by_addition(self, empty, rng):
        row = unit_rows(rng, 1, DIMENSION)
        store = fill(empty(), np.repeat(row, 12, axis=0))
        if store.kind in ("flat", "postgresql"):
            assert ids(search(store, "search", row, 5)) == [["0", "1", "2", "3", "4"]]
        assert sorted(ids(search(store, "search", row, 100))[0], key=int) == [str(i) for i in range(12)]

    def test_an_empty_store_has_no_results(self, empty, rng):
        store = empty().replace(lambda: make_contents([], DIMENSION))
        assert search(store, "search", unit_rows(rng, 2, DIMENSION)) == [[], []]
        assert search(store, "search", unit_rows(rng, 1, DIMENSION), where=Filter(metadata={"a": (1,)})) == [
            []
        ]
        assert (store.count(), list(store.items())) == (0, [])

    def test_many_threads_search_while_one_adds_and_removes(self, filled):
        store, stop, errors = filled.store, threading.Event(), []

        def repeat():
            try:
                while not stop.is_set():
                    (own,) = search(store, "search", filled.x[0], 100)
                    assert len({item.id for item, _ in own}) == len(own) >= IMAGES
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=repeat) for _ in range(3)]
        for thread in threads:
            thread.start()
        for i in range(15):
            block = make_block([Item(f"new {i}", "image")], filled.x[:1], features=filled.features[:1])
            store.add([block], store.state().version)
            if i % 2:
                store.remove([f"new {i}"])
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert store.count("image") == IMAGES + 8


class TestFilters:
    def test_by_ids(self, filled):
        where = Filter(frozenset(["3", "7", "9", "7#0", "missing", "a\0", "\udcff"]))
        assert sorted(ids(search(filled.store, "search", filled.x[0], 10, where))[0]) == ["3", "7", "9"]
        assert ids(search(filled.store, "annotate", filled.x[0], 10, where)) == [["7#0"]]
        assert search(filled.store, "search", filled.x[0], 10, Filter(frozenset())) == [[]]

    def test_by_metadata_and_ids_together(self, filled):
        where = Filter(frozenset(map(str, range(10))), {"third": (0, 1)})
        (own,) = search(filled.store, "search", filled.x[0], 100, where)
        assert {item.id for item, _ in own} == {str(i) for i in range(10) if i % 3 < 2}
        products = filled.x @ filled.x[0]
        scores = [products[int(item.id)] for item, _ in own]
        np.testing.assert_allclose(scores, -np.sort(-np.array(scores)), atol=tolerance(filled.store))

    def test_an_unknown_key_is_an_error_that_names_the_known_ones(self, filled):
        with pytest.raises(InputError, match="'thrid', which no item has .* did you mean 'third'"):
            search(filled.store, "search", filled.x[0], 10, Filter(metadata={"thrid": (1,)}))
        with pytest.raises(InputError, match=r"the key '\\udcff', which no item has"):
            search(filled.store, "search", filled.x[0], 10, Filter(metadata={"\udcff": (1,)}))
        # Texts have no metadata, so nothing matches; but the key is known.
        assert search(filled.store, "annotate", filled.x[0], 10, Filter(metadata={"third": (1,)})) == [[]]

    PLAIN = st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.integers(-(10**20), 10**20),
        st.floats(allow_nan=False, allow_infinity=False, width=16),
        st.sampled_from(["", "a", "b", "1", "true", "null", "it's", '"', "\\", "\\u0000", "%s", "{}", "猫"]),
    )
    VALUES = st.recursive(
        PLAIN, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner)
    )
    KEYS = st.sampled_from(["a", "b", "c'd", '"', "%s", "{0}", "\\"])

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.lists(st.dictionaries(KEYS, VALUES, max_size=3), min_size=1, max_size=5),
        st.dictionaries(KEYS, PLAIN | st.lists(PLAIN, max_size=3), max_size=2),
    )
    @pytest.mark.parametrize("kind", ["flat", "postgresql"])
    def test_metadata_is_compared_as_filter_matches_does(self, kind, request, metadata, where):
        stores = request.node.stash.setdefault(_STORES, {})
        if kind not in stores:
            index = "flat" if kind == "flat" else request.getfixturevalue("fresh")()
            stores[kind] = open_store(index).replace(lambda: make_contents([], 3))
        store, chosen = stores[kind], Filter.by_metadata(where)
        items = [Item(f"item {i}", "image", metadata=own) for i, own in enumerate(metadata)]
        row = np.array([[1, 0, 0]], np.float32)
        store.add([make_block(items, np.repeat(row, len(items), axis=0))], store.state().version)
        try:
            if set(where) <= {key for own in metadata for key in own}:
                (own,) = search(store, "search", row, 10, chosen)
                assert [item for item, _ in own] == [item for item in items if chosen.matches(item)]
            else:
                with pytest.raises(InputError, match="no item has"):
                    search(store, "search", row, 10, chosen)
        finally:
            store.remove([item.id for item in items])

    @pytest.mark.parametrize("where", [{"a": {"b": 1}}, {"a": [[1]]}, {5: "x"}, {"a": object()}])
    def test_values_that_cannot_be_compared_are_refused(self, where):
        with pytest.raises(InputError, match="cannot be compared"):
            Filter.by_metadata(where)


_STORES = pytest.StashKey[dict]()


class TestAdding:
    def test_new_items_are_found_and_counted(self, filled):
        store, before = filled.store, filled.store.state()
        new = [Item("a", "image", metadata={"third": 9}), Item("b", "image")]
        captions = [Item("a#0", "text", image="a")]
        blocks = [
            make_block(new, -filled.x[:2], features=filled.features[:2]),
            make_block(captions, -filled.y[:1]),
        ]
        store.add(blocks, before.version)
        assert ids(search(store, "search", -filled.x[0], 1)) == [["a"]]
        assert ids(search(store, "search", -filled.x[0], 10, Filter(metadata={"third": (9,)}))) == [["a"]]
        assert list(store.items(new=True)) == [*new, *captions]
        after = store.state()
        assert after.version == before.version
        assert after.changes > before.changes
        assert after.added == before.added + 3

    def test_all_items_are_added_or_none(self, filled):
        store, before = filled.store, filled.store.state()
        fresh = make_block([Item("new", "image")], filled.x[:1], features=filled.features[:1])
        taken = make_block(
            [Item("also new", "text"), Item("3#1", "text")], filled.y[:2], features=filled.y[:2]
        )
        with pytest.raises(TakenError, match="'3#1' is in the index already") as caught:
            store.add([fresh, taken], before.version)
        assert caught.value.item_id == "3#1"
        with pytest.raises(InputError, match="'new'"):
            store.add([fresh, make_block([Item("new", "text")], filled.y[:1])], before.version)
        assert store.state() == before
        assert list(store.items(ids=["new", "also new"])) == []

    @pytest.mark.parametrize("name", NAMES)
    def test_names_of_any_kind_are_stored(self, filled, name):
        image = Item(name, "image", path=f"/{name}", metadata={name: name})
        text = Item(f"{name}#0", "text", text=f"about {name}", image=name)
        blocks = [make_block([image], filled.x[:1]), make_block([text], filled.y[:1])]
        filled.store.add(blocks, filled.store.state().version)
        for where in (Filter(frozenset([name])), Filter(metadata={name: (name,)})):
            (own,) = search(filled.store, "search", filled.x[0], 10, where)
            assert [item for item, _ in own] == [image]
        assert list(filled.store.items(image=name)) == [text]
        assert filled.store.remove([name]) == 2


class TestRemoving:
    def test_captions_are_removed_with_their_image(self, filled):
        store, before = filled.store, filled.store.state()
        assert store.remove(["4", "7#1"]) == 4
        assert (store.count("image"), store.count("text"), store.count()) == (29, 57, 86)
        removed = {"4", "4#0", "4#1", "7#1"}
        assert not removed & {item.id for item in store.items()}
        for task in ("search", "annotate"):
            assert not removed & set(ids(search(store, task, filled.x[4], 1000))[0])
        assert store.features("image", ["4"]) is None
        assert store.state().changes > before.changes
        assert store.state().added == before.added

    def test_an_unknown_id_is_an_error_and_nothing_is_removed(self, filled):
        before = filled.store.state()
        for ids_ in (["3", "missing"], ["a\0"]):
            with pytest.raises(InputError, match="there is no item"):
                filled.store.remove(ids_)
        assert filled.store.state() == before

    def test_ids_can_be_used_again(self, filled):
        store = filled.store
        store.remove(["4"])
        block = make_block([Item("4", "image")], -filled.x[4:5], features=filled.features[4:5])
        store.add([block], store.state().version)
        assert ids(search(store, "search", -filled.x[4], 1)) == [["4"]]
        assert [item.id for item in store.items("image")][-1] == "4"


class TestItems:
    def test_in_order_of_addition(self, filled):
        assert list(filled.store.items()) == [*filled.images, *filled.texts]
        assert list(filled.store.items("text")) == filled.texts
        assert list(filled.store.items(new=True)) == []

    def test_by_ids_and_by_image(self, filled):
        store = filled.store
        assert [item.id for item in store.items(ids=["9#1", "5", "missing", "2"])] == ["2", "5", "9#1"]
        assert [item.id for item in store.items("text", ids=["9#1", "5"])] == ["9#1"]
        assert [item.id for item in store.items(image="5")] == ["5#0", "5#1"]
        assert list(store.items(image="5#0")) == list(store.items(image="a\0")) == []

    def test_more_items_than_are_read_at_a_time(self, empty, rng):
        store = fill(empty(), unit_rows(rng, 4500, 2))
        assert [item.id for item in store.items()] == [str(i) for i in range(4500)]

    def test_counts(self, filled):
        store = filled.store
        assert (store.count(), store.count("image"), store.count("text")) == (90, 30, 60)
        assert store.state().added == 90


class TestVectors:
    def test_vectors_and_norms_of_all_items(self, filled):
        store = filled.store
        for task, vectors, items in (
            ("search", filled.x, filled.images),
            ("annotate", filled.y, filled.texts),
        ):
            blocks = list(store.vectors(task, store.state().version))
            assert [item for block in blocks for item in block.items] == items
            stored = np.concatenate([block.vectors for block in blocks])
            np.testing.assert_array_equal(stored, vectors.astype(store.dtype))
        norms = [block.norms for block in store.vectors("search", store.state().version)]
        np.testing.assert_array_equal(np.concatenate(norms), filled.norms)

    def test_features_in_the_order_of_the_ids(self, filled):
        store = filled.store
        assert store.keeps_features
        rows = store.features("image", ["7", "2", "7"])
        np.testing.assert_array_equal(rows, filled.features[[7, 2, 7]])
        assert store.features("text", ["2#0"]).dtype == np.float32
        assert store.features("image", ["7", "missing"]) is None
        assert store.features("image", ["2#0"]) is None

    def test_features_that_are_not_kept(self, filled):
        block = make_block([Item("new", "image")], filled.x[:1])
        filled.store.add([block], filled.store.state().version)
        assert filled.store.features("image", ["2", "new"]) is None
        blocks = [make_block(filled.images, filled.x)]
        store = filled.store.replace(lambda: make_contents(blocks, DIMENSION, keep_features=False))
        assert not store.keeps_features
        assert store.features("image", ["2"]) is None


class TestReplacing:
    def test_a_fit_replaces_items_vectors_and_features(self, filled, rng):
        before = filled.store.state()
        store = fill(filled.store, unit_rows(rng, 8, 3))
        assert [item.id for item in store.items()] == [str(i) for i in range(8)]
        assert store.count("text") == 0
        assert store.features("image", ["1"]).shape == (1, 3)
        assert store.state() != before
        assert list(store.items(new=True)) == []

    def test_a_refit_replaces_vectors_and_keeps_items_and_features(self, filled, rng):
        store = filled.store
        store.remove(["0"])
        new = make_block([Item("new", "image")], filled.x[:1], features=filled.features[:1])
        store.add([new], store.state().version)
        x = unit_rows(rng, IMAGES, 4)
        before = list(store.items())

        def contents():
            images, texts = list(store.items("image")), list(store.items("text"))
            np.testing.assert_array_equal(store.features("image", ["new"]), filled.features[:1])
            blocks = [make_block(images, x), make_block(texts, unit_rows(rng, len(texts), 4))]
            return make_contents(blocks, 4, widths={"image": 4, "text": DIMENSION}, queries=x)

        replaced = store.replace(contents, store.state().version)
        assert replaced.kind == store.kind
        assert list(replaced.items()) == before
        assert list(replaced.items(new=True)) == []
        assert ids(search(replaced, "search", x[-1], 1)) == [["new"]]
        np.testing.assert_array_equal(replaced.features("image", ["3"]), filled.features[3:4])

    def test_a_replacement_that_fails_leaves_the_store_as_it_was(self, filled):
        before, results = filled.store.state(), search(filled.store, "search", filled.x[0])

        def blocks():
            yield make_block(filled.images[:5], filled.x[:5])
            raise InputError("this encoder is broken.")

        for version in (None, before.version):
            with pytest.raises(InputError, match="this encoder is broken"):
                filled.store.replace(lambda: make_contents(blocks(), DIMENSION), version)
        assert filled.store.state() == before
        assert search(filled.store, "search", filled.x[0]) == results

    def test_graphs_report_their_recall(self, empty, rng):
        recalls, store = {}, empty()
        store = fill(store, unit_rows(rng, 500, DIMENSION), recalls=recalls)
        if store.kind.endswith("hnsw"):
            assert recalls["search"] > 0.95
        else:
            assert recalls == {}


class TestRetrievers:
    """Retrievers behave alike on every kind of store."""

    @pytest.mark.parametrize("features", [False, True])
    def test_a_fitted_model_is_filled_in_batches_and_refitted(self, home, views, tmp_path, features, recwarn):
        x, y, pairing = views(n=90)
        model = AWCCA(**MODEL).fit(x[:60], y[:120], pairing[:120])
        sample = (x[:60], y[:120]) if features else None
        retriever = Retriever.from_model(model, features=sample, index=home())
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
        assert bool([w for w in recwarn if "lie far" in str(w.message)]) == features
        retriever.save(tmp_path / "model")
        again = Retriever.load(tmp_path / "model")
        assert again.search(y[:5]) == retriever.search(y[:5])
        retriever.refit()  # the pairs were added, so they count once more
        assert retriever.info()["facts"]["refitted"] == {"pairs": 240, "before": 120}

    def test_a_model_without_its_spectra_cannot_be_refitted(self, home, views, tmp_path):
        x, y, pairing = views()
        AWCCA(**MODEL).fit(x, y, pairing).save(tmp_path / "awcca")
        retriever = Retriever.from_model(AWCCA.load(tmp_path / "awcca"), index=home())
        retriever.add(x, y, pairing=pairing)
        with pytest.raises(InputError, match="moments of this model's training pairs are not known"):
            retriever.refit()
        retriever.save(tmp_path / "model")
        assert len(Retriever.load(tmp_path / "model").search(y[0], k=100)) == 60

    def test_only_fitted_models_are_accepted(self, views):
        with pytest.raises(InputError, match="str"):
            Retriever.from_model("model")
        with pytest.raises(ValueError, match="not fitted"):
            Retriever.from_model(AWCCA())
        x, y, pairing = views()
        with pytest.raises(InputError, match="features"):
            Retriever.from_model(AWCCA(**MODEL).fit(x, y, pairing), features=(x,))

    def test_filters_by_metadata_and_by_a_function_agree(self, make):
        about = {str(i): {"colour": ["red", "blue", "green"][i % 3], "even": i % 2 == 0} for i in range(60)}
        made = make(metadata=about)
        for where in ({"colour": "red"}, {"colour": ["red", "blue"], "even": True}, {"colour": []}, {}):
            hits = made.retriever.search(made.y[0], k=100, where=where)
            chosen = Filter.by_metadata(where)
            assert {int(hit.id) for hit in hits} == {
                i for i in range(60) if chosen.matches(Item("", "image", metadata=about[str(i)]))
            }
            similar = [
                made.retriever.similar(image=made.x[0], k=100, where=each) for each in (where, chosen.matches)
            ]
            assert_same_hits(*similar, rounding(np.float32, 8))
            weighted = made.retriever.search(made.y[0], k=100, where=where, weighting="none")
            assert {hit.id for hit in weighted} == {hit.id for hit in hits}
