"""Items that come and go, all of them or none; and learning from them again."""

import os
import threading
from dataclasses import replace

import numpy as np
import pytest

from diptych import AWCCA, HKSE, InputError, Retriever
from diptych._checks import DataWarning
from diptych.data import PairedDataset, PairedViews
from diptych.retrieval._inputs import Search
from placing import place_by_hand, unit
from tolerance import assert_ranked, assert_same_hits, rounding


def state(retriever):
    """Everything that an addition or removal could change."""
    items = list(retriever.store.items())
    return (
        items,
        retriever.search(np.ones(7), k=10**6),
        retriever.annotate(np.ones(8), k=10**6),
        retriever.store.features("image", [item.id for item in items if item.view == "image"]),
        retriever.store.features("text", [item.id for item in items if item.view == "text"]),
    )


def same(one, other):
    return one[:3] == other[:3] and all(map(np.array_equal, one[3:], other[3:]))


def test_what_is_added_is_found_where_awcca_puts_it(make):
    made = make()
    before = made.retriever.fitted
    rng = np.random.default_rng(5)
    x, y = made.x[:6] + 0.1 * rng.normal(size=(6, 8)), made.y[:6] + 0.1 * rng.normal(size=(6, 7))
    ids = made.retriever.add(x, y, pairing=[0, 1, 2, 3, 4, 4], ids=[f"new {i}" for i in range(6)])
    assert ids == [
        *(f"new {i}" for i in range(6)),
        *(f"new {o}#{i}" for i, o in enumerate([0, 1, 2, 3, 4, 4])),
    ]
    assert made.retriever.fitted is before  # nothing was learned
    model = AWCCA(params=(2.0, 3.0)).fit(made.x, made.y, made.pairing)
    ex, ey = model.transform(np.vstack([made.x, x]), np.vstack([made.y, y]), task="search")
    placed = place_by_hand(ex, ey, [*made.pairing, 60, 61, 62, 63, 64, 64])
    names, offsets = [*map(str, range(60)), *ids[:6]], []
    for row, hits in zip(unit(ey[:20]) @ placed.T, made.retriever.search(made.y[:20], k=66), strict=True):
        scores = dict(zip(names, row.tolist(), strict=True))
        # One number is subtracted from the scores of all images with captions.
        offsets.append(scores["0"] - next(hit.score for hit in hits if hit.id == "0"))
        scores = {name: score - offsets[0] * (name != "new 5") for name, score in scores.items()}
        assert_ranked(hits, scores, rounding(np.float32, 8))
    assert offsets[0] > 0


def test_items_without_an_id_get_an_unused_one(make, tmp_path):
    made = make()
    first = made.retriever.add(made.x[:2])
    assert first == ["item-180", "item-181"]
    assert made.retriever.add(captions=made.y[:1]) == ["item-182"]
    # Numbers start lower after loading, since the keys of what was removed are free again.
    made.retriever.remove("0")
    made.retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    added = loaded.add(made.x[:4])
    assert len({*added, *first, "item-182"}) == 7
    loaded.add(captions=made.y[:4])
    assert loaded.store.count() == 180 + 3 - 3 + 8


def test_removing_everything_leaves_a_retriever_that_can_be_filled_again(make, tmp_path):
    made = make()
    assert made.retriever.remove([str(i) for i in range(60)]) == 180
    assert made.retriever.search(made.y[0]) == made.retriever.annotate(made.x[0]) == []
    assert made.retriever.similar(image=made.x[0]) == []
    made.retriever.save(tmp_path / "model")
    made.retriever.save(tmp_path / "copy")
    loaded = Retriever.load(tmp_path / "copy", mmap=True)
    assert loaded.search(made.y[0]) == []
    for retriever in (made.retriever, loaded):
        retriever.add(made.x[:3], made.y[:3], ids=["a", "b", "c"])
        assert len(retriever.search(made.y[0])) == 3
        assert len(retriever.annotate(made.x[0])) == 3


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda r, x, y: r.add(x[:2], ids=["a", "a"]), "'a' is given twice"),
        (lambda r, x, y: r.add(x[:2], ids=["new", "5"]), "'5' is in the index already"),
        (lambda r, x, y: r.add(x[:2], y[:2], ids=["a", "b"], caption_ids=["c", "5#0"]), "'5#0' is in the"),
        (lambda r, x, y: r.add(x[:2], y[:2], ids=["a", "b"], caption_ids=["c", "a"]), "'a' is given twice"),
        (lambda r, x, y: r.add(x[:2], ids=["a"]), "ids has 1 entries; expected 2"),
        (lambda r, x, y: r.add(x[:2], y[:2], ids=["a", "b"], caption_ids=["c"]), "caption_ids has 1 entries"),
        (lambda r, x, y: r.add(x[:2], y[:3], ids=["a", "b"]), "X has 2 rows and Y has 3"),
        (lambda r, x, y: r.add(x[:2], y[:2], pairing=[0, 2], ids=["a", "b"]), "X has rows 0 to 1"),
        (lambda r, x, y: r.add(x[:2], y[:2, :5], ids=["a", "b"]), "text features has 5 features"),
        (lambda r, x, y: r.add(x[:2], y[:2] * np.nan, ids=["a", "b"]), "contains NaN"),
        (lambda r, x, y: r.add(x[:2], texts=["x"], captions=y[:2]), "got 1 texts for 2 rows"),
        (lambda r, x, y: r.add(x[:2], paths=["x"]), "got 1 paths for 2 rows"),
        (lambda r, x, y: r.add(x[:0]), "is empty"),
        (lambda r, x, y: r.add([]), "the list of images is empty"),
        (lambda r, x, y: r.add(captions=[]), "the list of texts is empty"),
        (lambda r, x, y: r.add(), "neither images nor captions"),
        (lambda r, x, y: r.add(x[:1], ids=["a"], metadata={"a": {"b": {1, 2}}}), "cannot be stored"),
        (lambda r, x, y: r.add(x[:1], ids=["a"], metadata={"a": {"b": float("inf")}}), "cannot be stored"),
        (lambda r, x, y: r.add(x[:1], ids=["a"], metadata={"a": {"b": {"c": 1}}}), "value of 'b' is nested"),
        (lambda r, x, y: r.add(x[:1], ids=["a"], metadata={"a": {"b": [[1]]}}), "value of 'b' is nested"),
        (lambda r, x, y: r.add(x[:1], ids=["a"], metadata={"b": {}}), "metadata names 'b', an id that none"),
        (lambda r, x, y: r.add(x[:1], ids=["5"], on_conflict="keep"), "on_conflict='keep' is unknown"),
        (lambda r, x, y: r.add(x[:1], ids=["5#0"], on_conflict="replace"), "'5#0' belongs to an item of the"),
        (lambda r, x, y: r.add(x[:1] * 0, ids=["a"]), "image features have only zeros in row 0"),
        (lambda r, x, y: r.update("nobody", metadata={}), "there is no item 'nobody'"),
        (lambda r, x, y: r.update(["5"], metadata={}), "there is no item"),
        (lambda r, x, y: r.update("5"), "nothing to change; give image, text, features or metadata"),
        (lambda r, x, y: r.update("5", image="a.jpg", text="a"), "given image and text"),
        (lambda r, x, y: r.update("5", text="a dog", features=x[0]), "text was given, but '5' is changed by"),
        (lambda r, x, y: r.update("5#0", image="a.jpg"), "image was given, but '5#0' is changed by its text"),
        (lambda r, x, y: r.update("5", features=x[:2]), "features of '5' are not one row"),
        (lambda r, x, y: r.update("5", features=y[0]), "image features has 7 features"),
        (lambda r, x, y: r.update("5", features="a"), "features of '5' are not one row"),
        (lambda r, x, y: r.update("5", metadata=[1]), "metadata is a list"),
        (lambda r, x, y: r.update("5", metadata={"a": {"b": 1}}), "value of 'a' is nested"),
        (lambda r, x, y: r.update("5#0", text="a dog"), "no text encoder here"),
        (lambda r, x, y: r.items("leaf"), "view='leaf' is unknown"),
        (lambda r, x, y: r.items(limit=0), "limit=0"),
        (lambda r, x, y: r.items(offset=-1), "offset=-1"),
        (lambda r, x, y: r.items(order_by=5), "order_by=5 is not a metadata key"),
        (lambda r, x, y: r.items(order_by="n"), "order_by names the key 'n', but no item has metadata"),
        (lambda r, x, y: r.add(x[:1], ids=["a"], metadata={"a": 5}), "give a dict"),
        (lambda r, x, y: r.add(x[:1], ids=["a"], metadata=[{"b": 1}]), "give a dict from ids"),
        (lambda r, x, y: r.add(x[:1], y[:1], ids=["a"], metadata={"a#0": {"b": b"c"}}), "cannot be stored"),
        (lambda r, x, y: r.remove(["3", "nobody"]), "there is no item 'nobody'"),
        (lambda r, x, y: r.remove(["3", 4]), "there is no item 4"),
        (lambda r, x, y: r.remove(["3", ["4"]]), "there is no item"),
        (lambda r, x, y: r.remove(5), "5 is not an id"),
        (lambda r, x, y: r.add(captions=["a dog"]), "no text encoder here: it was made from features"),
        (lambda r, x, y: r.add(["a.jpg"]), "no image encoder here: it was made from features"),
    ],
)
def test_a_change_that_fails_changes_nothing(make, change, words):
    made = make()
    before = state(made.retriever)
    with pytest.raises(InputError, match=words) as caught:
        change(made.retriever, made.x, made.y)
    assert "\n" not in str(caught.value)
    assert same(state(made.retriever), before)


def test_metadata_of_any_depth_are_refused(make):
    made, nested = make(), []
    for _ in range(100_000):
        nested = [nested]
    with pytest.raises(InputError, match="cannot be stored"):
        made.retriever.add(made.x[:1], ids=["a"], metadata={"a": {"b": nested}})


def test_metadata_of_numpy_and_pandas_become_plain(make):
    pandas, made = pytest.importorskip("pandas"), make()
    table = pandas.DataFrame(
        {
            "n": [1, None],
            "taken": pandas.to_datetime(["2019-05-01", None]),
            "tag": ["sea", None],
            "i": [1, 2],
        },
        index=["a", "b"],
    ).convert_dtypes()
    about = {name: dict(row) for name, row in table.iterrows()}
    about["a"] |= {
        "float": np.float32(0.5),
        "flag": np.True_,
        "list": np.arange(2),
        "some": [1.5, float("nan"), np.int8(2)],
        "day": np.datetime64("2020-02-03"),
        "time": np.datetime64("2020-02-03T04:05:06", "ns"),
        "none": None,
        "nothing": np.datetime64("NaT"),
    }
    made.retriever.add(made.x[:2], ids=["a", "b"], metadata=about)
    assert made.retriever.item("a").metadata == {
        **{"n": 1, "taken": "2019-05-01T00:00:00", "tag": "sea", "i": 1, "float": 0.5, "flag": True},
        **{
            "list": [0, 1],
            "some": [1.5, 2],
            "day": "2020-02-03",
            "time": "2020-02-03T04:05:06",
            "none": None,
        },
    }
    assert made.retriever.item("b").metadata == {"i": 2}
    changes = {"n": float("nan"), "tag": None, "more": np.int64(7)}
    assert made.retriever.update("a", metadata=changes).metadata.keys() & changes.keys() == {"more"}


def test_lists_of_numbers_are_features(make):
    made = make()
    rows = made.y[:2].tolist()
    assert made.retriever.search(rows[0]) == made.retriever.search(made.y[0])
    assert [len(hits) for hits in made.retriever.search(rows, k=3)] == [3, 3]
    assert made.retriever.similar(text=tuple(rows[1]), k=1)[0].id == "0#1"
    assert made.retriever.add(made.x[0].tolist(), ids=["a"]) == ["a"]
    with pytest.raises(InputError, match="text features holds values that are not numbers"):
        made.retriever.search([[1.0, 2.0], [3.0]])
    with pytest.raises(InputError, match="text features have only zeros in row 1"):
        made.retriever.search([rows[0], [0] * 7])


@pytest.mark.parametrize("rows", [1, 4])
def test_an_encoder_that_gives_too_few_or_too_many_rows_adds_nothing(make, rows):
    class Careless:
        fingerprint = "careless"

        def encode(self, sentences):
            return np.ones((rows, 7))

    made = make(text_encoder=Careless())
    before = state(made.retriever)
    with pytest.raises(InputError, match=f"gave an array of shape .{rows}, 7. for 3 text"):
        made.retriever.add(captions=["one", "two", "three"])
    assert same(state(made.retriever), before)


class TestFarItems:
    def test_items_far_from_training_are_added_with_a_warning(self, make):
        made = make()
        with pytest.warns(DataWarning, match=r"1 of 2 new images lies far .* \('odd' has the distance "):
            made.retriever.add(np.vstack([made.x[:1], 50 * made.x[1:2]]), ids=["even", "odd"])
        assert {"even", "odd"} <= {hit.id for hit in made.retriever.search(made.y[0], k=100)}
        with pytest.warns(DataWarning, match=r"3 of 3 new texts lie far"):
            made.retriever.add(captions=made.y[:3] + 100)

    def test_the_warning_points_at_the_line_that_adds(self, make):
        made = make()
        with pytest.warns(DataWarning) as caught:
            made.retriever.add(made.x[:1] + 1000)
        assert caught[0].filename == __file__

    def test_items_like_those_of_training_are_added_silently(self, make, tmp_path, recwarn):
        made = make(model=AWCCA(params=(1.0, 1.0), normalize=("unit", "sqrt-unit")))
        make().retriever.save(tmp_path / "model")
        for retriever in (made.retriever, Retriever.load(tmp_path / "model")):
            retriever.add(made.x[:30], made.y[:30], ids=[f"new {i}" for i in range(30)])
        assert not [w for w in recwarn if w.category is DataWarning]

    def test_the_limit_is_saved_with_the_model(self, make, tmp_path):
        made = make()
        make().retriever.save(tmp_path / "model")
        said = []
        for retriever in (made.retriever, Retriever.load(tmp_path / "model")):
            with pytest.warns(DataWarning) as caught:
                retriever.add(made.x[:1] * 9, ids=["far"])
            said.append(str(caught[0].message))
        assert said[0] == said[1]


@pytest.mark.filterwarnings("ignore:.*lies? far")
class TestRefit:
    """Saved moments and new pairs are as good as all pairs."""

    @pytest.fixture
    def grown(self, views):
        """Training pairs, pairs that come later in two batches, and all of them together."""
        x, y, pairing = views(n=100, captions=2)
        return x, y, pairing

    def retrieved(self, x, y, pairing, n, **model):
        ids = [f"p{i}" for i in range(n)]
        return Retriever.from_features(x[:n], y[: 2 * n], pairing[: 2 * n], ids=ids, model=AWCCA(**model))

    def add_rest(self, retriever, x, y, pairing, start, stop):
        ids = [f"p{i}" for i in range(start, stop)]
        retriever.add(
            x[start:stop], y[2 * start : 2 * stop], pairing=pairing[2 * start : 2 * stop] - start, ids=ids
        )

    def assert_same(self, retriever, model, x, y):
        for task in ("search", "annotate"):
            found = retriever.fitted.model
            np.testing.assert_allclose(
                found.models_[task].correlations, model.models_[task].correlations, rtol=1e-5, atol=1e-6
            )
            ex, ey = model.transform(x, y, task=task)
            images, texts = retriever.embed_images(x, task=task), retriever.embed_texts(y, task=task)
            np.testing.assert_allclose(texts @ images.T, unit(ey) @ unit(ex).T, atol=1e-4)
            # What is indexed was embedded anew.
            pairing = np.repeat(np.arange(len(x)), 2)
            if task == "search":
                hits, scores = retriever.search(y[:5], k=3), unit(ey[:5]) @ place_by_hand(ex, ey, pairing).T
            else:
                placed = place_by_hand(ey, ex[pairing], np.arange(len(y)))
                hits, scores = retriever.annotate(x[:5], k=3), unit(ex[:5]) @ placed.T
            for own, row in zip(hits, scores, strict=True):
                np.testing.assert_allclose([h.score for h in own], np.sort(row)[::-1][:3], atol=1e-4)

    @pytest.mark.parametrize("times", [1, 2])
    def test_a_refit_equals_fitting_from_scratch_with_scaled_parameters(self, grown, times):
        x, y, pairing = grown
        retriever = self.retrieved(x, y, pairing, 60, params={"search": (2.0, 3.0), "annotate": (1.0, 9.0)})
        if times == 2:
            self.add_rest(retriever, x, y, pairing, 60, 75)
            retriever.refit()
        self.add_rest(retriever, x, y, pairing, 75 if times == 2 else 60, 100)
        retriever.refit()
        grows = 100 / 60
        scaled = {"search": (2.0 * grows, 3.0 * grows), "annotate": (1.0 * grows, 9.0 * grows)}
        self.assert_same(retriever, AWCCA(params=scaled).fit(x, y, pairing), x, y)
        assert retriever.info()["facts"]["refitted"]["pairs"] == 200

    @pytest.mark.parametrize(
        "model",
        [{"filter": "tsvd", "params": (5, 4)}, {"filter": "guided", "params": (5, 4)}, {"n_components": 3}],
        ids=str,
    )
    def test_other_filters_keep_what_was_selected(self, grown, model):
        x, y, pairing = grown
        model = {"params": (2.0, 3.0), **model}
        retriever = self.retrieved(x, y, pairing, 60, **model)
        self.add_rest(retriever, x, y, pairing, 60, 100)
        retriever.refit()
        if "filter" not in model:
            model["params"] = (2.0 * 100 / 60, 3.0 * 100 / 60)
        self.assert_same(retriever, AWCCA(**model).fit(x, y, pairing), x, y)

    def test_what_was_selected_on_a_grid_is_kept(self, grown):
        x, y, pairing = grown
        retriever = self.retrieved(x, y, pairing, 60, grid=4)
        before = retriever.fitted.model.models_["search"].filter_x.gamma
        self.add_rest(retriever, x, y, pairing, 60, 100)
        retriever.refit()
        after = retriever.fitted.model.models_["search"].filter_x.gamma
        np.testing.assert_allclose(after, before * 100 / 60)

    def test_with_validation_pairs_it_selects_again(self, grown, views):
        x, y, pairing = grown
        retriever = self.retrieved(x, y, pairing, 60, params=(1e6, 1e6))
        self.add_rest(retriever, x, y, pairing, 60, 80)
        held_out = x[80:], y[160:], pairing[160:] - 80
        retriever.refit(validation=held_out)
        expected = AWCCA().fit(x[:80], y[:160], pairing[:160], validation=held_out)
        self.assert_same(retriever, expected, x[:80], y[:160])

    def test_validation_pairs_may_be_named_blocks(self, grown):
        x, y, pairing = grown
        views = {"a": x[:, :5], "b": x[:, 5:]}, {"c": y}
        retriever = Retriever.from_features(*views, pairing, model=AWCCA(params=(2.0, 3.0)))
        retriever.refit(validation=(*views, pairing))
        assert retriever.info()["facts"]["selection"]["pairs"] == "the validation pairs that refit was given"

    def test_normalisation_applies_to_new_pairs_too(self, grown):
        x, y, pairing = grown
        names = ("sqrt-unit", "unit")
        retriever = self.retrieved(x, y, pairing, 60, params=(0.02, 0.02), normalize=names)
        self.add_rest(retriever, x, y, pairing, 60, 100)
        retriever.refit()
        scaled = AWCCA(params=(0.02 * 100 / 60,) * 2, normalize=names)
        self.assert_same(retriever, scaled.fit(x, y, pairing), x, y)

    def test_only_training_pairs_and_new_pairs_count(self, grown):
        """Not other splits, not items without a partner, and not what was removed before it was learned."""
        x, y, pairing = grown
        splits = ["train"] * 40 + ["test"] * 20
        retriever = Retriever.from_features(
            x[:60], y[:120], pairing[:120], splits=splits, model=AWCCA(params=(2.0, 3.0))
        )
        retriever.add(x[60:70], ids=[f"alone {i}" for i in range(10)])
        retriever.add(captions=y[120:130])
        self.add_rest(retriever, x, y, pairing, 70, 90)
        retriever.remove([f"p{i}" for i in range(80, 90)])
        retriever.remove(["0", "1"])  # learned from already, and not forgotten
        retriever.refit()
        learned = np.r_[0:40, 70:80]
        rows = np.isin(pairing, learned)
        again = np.searchsorted(learned, pairing[rows])
        model = AWCCA(params=(2.0 * 50 / 40, 3.0 * 50 / 40)).fit(x[learned], y[rows], again)
        np.testing.assert_allclose(
            retriever.fitted.model.models_["search"].correlations,
            model.models_["search"].correlations,
            rtol=1e-5,
        )
        assert retriever.info()["facts"]["refitted"] == {"pairs": 100, "before": 80}

    def test_searches_that_began_before_a_refit_finish_on_the_old_vectors(self, make):
        made = make()
        begun = made.retriever.searcher
        expected = [hit.id for hit in made.retriever.search(made.y[0], k=60)]
        made.retriever.refit()
        made.retriever.remove([expected[0], expected[4]])
        left = [name for name in expected if made.retriever.item(name) is not None]
        found = {}

        def finish():
            found["search"] = begun.search(Search("text", "image", made.y[0], k=60))
            found["annotate"] = begun.search(Search("image", "text", made.x[0], k=120))

        searching = threading.Thread(target=finish, daemon=True)
        searching.start()
        searching.join(timeout=30)
        assert not searching.is_alive()
        assert [hit.id for hit in found["search"]] == left
        assert sorted(hit.item.image for hit in found["annotate"]) == sorted(2 * left)


@pytest.mark.filterwarnings("ignore:.*lies? far")
class TestFeaturesThatWereNotKept:
    def test_refitting_says_what_is_missing(self, make):
        made = make(keep_features=False)
        made.retriever.add(made.x[:3], made.y[:3], ids=["a", "b", "c"])
        before = made.retriever.searcher
        with pytest.raises(InputError, match="features of the items were not kept, and 'a' has nothing"):
            made.retriever.refit()
        assert made.retriever.searcher is before

    def test_refitting_encodes_images_and_texts_again(self, drawn, thumbnails, tmp_path):
        hkse = HKSE(word="lin", sentence="lin").fit(drawn.captions)
        model = AWCCA(params=(5.0, 5.0))
        kept, encoded = (
            Retriever(thumbnails, hkse, model, keep_features=keep).fit(drawn.select(range(60)))
            for keep in (True, False)
        )
        more = drawn.select(range(60, 66))
        for retriever in (kept, encoded):
            retriever.add(
                list(more.paths),
                list(more.captions),
                pairing=more.pairing,
                ids=more.image_ids,
                caption_ids=more.caption_ids,
            )
            retriever.refit()
        query = drawn.captions[0]
        tolerance = rounding(np.float32, 48)  # of the thumbnails' numbers
        assert_same_hits(encoded.search(query, k=20), kept.search(query, k=20), tolerance)
        assert not encoded.store.kept
        encoded.save(tmp_path / "model")
        assert not (tmp_path / "model" / "features.safetensors").exists()
        loaded = Retriever.load(tmp_path / "model", thumbnails)
        assert_same_hits(loaded.search(query, k=20), encoded.search(query, k=20), tolerance)
        loaded.add(captions=["a red star"])
        loaded.refit()
        assert loaded.keep_features is False

    def test_the_message_names_a_missing_image(self, drawn, thumbnails, tmp_path):
        copy = tmp_path / "copy.png"
        copy.write_bytes(drawn.paths[0].read_bytes())
        hkse = HKSE(word="lin", sentence="lin").fit(drawn.captions)
        retriever = Retriever(thumbnails, hkse, AWCCA(params=(5.0, 5.0)), keep_features=False)
        retriever.fit(drawn.select(range(30)))
        retriever.add([copy], ["a red star"])
        os.unlink(copy)
        with pytest.raises(InputError, match="copy.png"):
            retriever.refit()


def test_fitting_again_replaces_everything(make, views):
    made = make()
    x, y, pairing = views(seed=2, n=50)
    names = tuple(f"other {i}" for i in range(50))
    made.retriever.fit(PairedViews(PairedDataset(names, ("",) * 100, pairing), x, y))
    assert {hit.id for hit in made.retriever.search(y[0], k=500)} == set(names)


class TestEmptyCaptions:
    """They are kept and shown, and nothing is learned from them."""

    @pytest.fixture
    def pairs(self, drawn):
        """Pairs of drawings without splits, some of whose captions are empty; and the rows of the others."""
        few = replace(drawn.select(range(60)), splits=None)
        captions = [" " * (row % 2) if row % 7 == 0 else text for row, text in enumerate(few.captions)]
        return replace(few, captions=tuple(captions)), np.flatnonzero([bool(t.strip()) for t in captions])

    def test_a_fit_is_that_without_them(self, pairs, thumbnails):
        dataset, rows = pairs

        def fit(data):
            encoder = HKSE(word_features=40, sentence_features=40)
            return Retriever(thumbnails, encoder, AWCCA(params=(2.0, 3.0))).fit(data)

        fitted = fit(dataset)
        captions, ids = (
            tuple(np.array(own, object)[rows]) for own in (dataset.captions, dataset.caption_ids)
        )
        without = replace(dataset, captions=captions, caption_ids=ids, pairing=dataset.pairing[rows])
        expected = fit(without)
        assert fitted.info()["facts"]["pairs"] == expected.info()["facts"]["pairs"]
        atol = rounding(np.float32, 1000)  # captions are encoded in other batches
        vectors = [made.embed_texts(["a red star"]) for made in (fitted, expected)]
        np.testing.assert_allclose(*vectors, rtol=0, atol=atol)
        assert [item.text for item in fitted.items("text")] == list(dataset.captions)
        assert fitted.evaluate(dataset, None) == expected.evaluate(without, None)

    def test_a_refit_does_not_learn_from_them(self, pairs, fitted, tmp_path):
        dataset, _ = pairs
        fitted.save(tmp_path / "model")
        retriever = Retriever.load(tmp_path / "model")
        before = retriever.fitted.learned.moments().count
        images = [str(path) for path in dataset.paths[:7]]
        added = retriever.add(images, ["a red star", "", " ", *["a boat"] * 4], ids=list("abcdefg"))
        assert retriever.item(added[8]).text == ""
        retriever.refit()
        assert retriever.fitted.learned.moments().count == before + 5
        with pytest.raises(InputError, match="unless it is a caption"):
            retriever.add(captions=[""])
