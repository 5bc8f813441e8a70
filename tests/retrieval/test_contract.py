"""What every retriever does, whatever its model, its encoders, what it is given, and where its items are."""

import shutil
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from diptych import AWCCA, HKSE, Fusion, InputError, Retriever
from diptych.data import PairedDataset, PairedViews
from diptych.retrieval import Hits
from diptych.retrieval._folder import save_published
from diptych.retrieval._refitting import sum_new_pairs
from diptych.retrieval._searcher import Searcher
from placing import place_by_hand
from tolerance import assert_same_hits, rounding

N, NEW = 60, 5
"""Images that are fitted on, and further ones."""

FUSION = Fusion(grid=3, hubness=("csls",))
LETTERS = "abcdefghijklmnopqrst"

pytestmark = pytest.mark.filterwarnings("ignore:.*lies? far")


@dataclass(frozen=True)
class Case:
    """A retriever, with what stands for its images and texts, as users give them, and for further pairs."""

    retriever: Retriever
    images: Any
    texts: Any
    pairing: Any
    ids: list[str]
    encoders: tuple[Any, Any] = (None, None)
    tolerance: float = 1e-5

    @property
    def text_rows(self):
        """The texts of the images that are fitted on."""
        return np.flatnonzero(np.asarray(self.pairing) < N)

    @property
    def new_rows(self):
        """The first text of each further image."""
        return [int(np.flatnonzero(self.pairing == row)[0]) for row in range(N, N + NEW)]

    def asked(self):
        """Each task: its name, the method, all queries, and all items that it searches."""
        texts = take(self.texts, self.text_rows)
        images = take(self.images, range(N))
        yield "search", self.retriever.search, texts, images
        yield "annotate", self.retriever.annotate, images, texts

    def add_new(self, retriever=None):
        """Add the further pairs; return the ids of their images."""
        ids = [f"new {i}" for i in range(NEW)]
        images, texts = take(self.images, range(N, N + NEW)), take(self.texts, self.new_rows)
        assert (retriever or self.retriever).add(images, texts, ids=ids) == [
            *ids,
            *(f"{image}#{i}" for i, image in enumerate(ids)),
        ]
        return ids

    def open_again(self, folder, *, published=False, **options):
        """Return the retriever as another process would see it, after it was saved if it is in memory."""
        if published:
            keep = {"keep_features": True, "front_matter": ""}
            save_published(self.retriever, folder, "ada/model", **keep)
            return Retriever.from_pretrained(folder, *self.encoders, **options)
        if self.retriever.store.address:
            return Retriever.connect(self.retriever.index, *self.encoders)
        self.retriever.save(folder)
        return Retriever.load(folder, *self.encoders, **options)


class Letters:
    """Counts letters: a text encoder that costs nothing."""

    fingerprint = name = "letters"

    def encode(self, texts):
        return np.array([[text.count(letter) for letter in LETTERS] for text in texts], float)


def take(inputs, rows):
    """Return some inputs; one of them if ``rows`` is a number."""
    if isinstance(inputs, dict):
        return {name: take(block, rows) for name, block in inputs.items()}
    if isinstance(rows, int):
        return inputs[rows]
    return inputs[np.asarray(rows)] if isinstance(inputs, np.ndarray) else [inputs[row] for row in rows]


def about(ids):
    return {name: {"n": n, "odd": bool(n % 2)} for n, name in enumerate(ids)}


def of_features(make_views, model, *, blocks=False, **options):
    x, y, pairing = make_views(n=N + NEW)
    if blocks:
        x, y = {"a": x[:, :5], "b": x[:, 5:]}, {"c": y[:, :3], "d": y[:, 3:]}
    rows, ids = np.flatnonzero(pairing < N), [str(i) for i in range(N)]
    retriever = Retriever.from_features(
        take(x, range(N)), take(y, rows), pairing[rows], metadata=about(ids), model=model, **options
    )
    return Case(retriever, x, y, pairing, ids)


def of_scenes(drawn, image_encoder, text_encoder, again):
    few = drawn.select(range(N))
    retriever = Retriever(image_encoder, text_encoder, AWCCA(params=(5.0, 5.0)))
    retriever.fit(few, metadata=about(few.image_ids))
    images, texts = list(map(str, drawn.paths[: N + NEW])), list(drawn.captions)
    pairing = drawn.pairing[drawn.pairing < N + NEW]
    ids, tolerance = list(few.image_ids), rounding(np.float32, 4000)
    return Case(retriever, images, texts[: len(pairing)], pairing, ids, again, tolerance)


@pytest.fixture(scope="module")
def variants(views, drawn, thumbnails):
    """How each variant is made; those in memory are made once."""
    small = HKSE(word_features=40, sentence_features=40)
    letters = Letters()
    l2 = {"weighting": (0.5, 1.0), "similarity": "l2", "params": {"search": (1.0, 2.0), "annotate": (5, 1.0)}}
    short = AWCCA(params=(2.0, 3.0), normalize=("unit", "sqrt-unit"), n_components=3)
    plain = AWCCA(params=(2.0, 3.0))
    return {
        "cosine": lambda: of_features(views, plain),
        "l2": lambda: of_features(views, AWCCA(**l2), views=("molecule", "name")),
        "float16": lambda: replace(of_features(views, short, dtype="float16"), tolerance=2e-3),
        "graph": lambda: of_features(views, plain, index="hnsw"),
        "blocks": lambda: of_features(views, plain, blocks=True),
        "fusion": lambda: of_features(views, FUSION, blocks=True),
        "scenes": lambda: of_scenes(drawn, "pyramid", small, (None, None)),
        "several": lambda: of_scenes(
            drawn, ["pyramid", thumbnails], [small, letters], (["pyramid", thumbnails], ["hkse", letters])
        ),
        "postgresql": lambda index: of_features(views, plain, index=index, views=("molecule", "name")),
    }


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Returns a variant in memory, which is made once, and its folder."""
    cases = {}

    def get(name, make):
        if name not in cases:
            folder, case = tmp_path_factory.mktemp("case") / "model", make()
            case.retriever.save(folder)
            cases[name] = case, folder
        return cases[name]

    return get


MEMORY = ["cosine", "l2", "float16", "graph", "blocks", "fusion", "scenes", "several"]
in_a_database_too = pytest.mark.parametrize("case", [*MEMORY, "postgresql"], indirect=True)


@pytest.fixture(params=MEMORY)
def case(request, variants, saved, tmp_path):
    """A variant that may be changed: in a copy of its folder, or in a schema of its own."""
    name = request.param
    if name == "postgresql":
        return variants[name](request.getfixturevalue("fresh")())
    case, folder = saved(name, variants[name])
    shutil.copytree(folder, tmp_path / "case")
    return replace(case, retriever=Retriever.load(tmp_path / "case", *case.encoders))


def names(hits):
    return [hit.id for hit in hits]


def assert_same_answers(case, one, other, k=20):
    """The same hits but for the files of images, which are not published."""
    image, text = take(case.images, 3), take(case.texts, 3)
    for ask in (
        lambda retriever: retriever.search(text, k=k),
        lambda retriever: retriever.annotate(image, k=k),
        lambda retriever: retriever.similar(image=image, k=k),
        lambda retriever: retriever.similar(text=text, k=k),
    ):
        hits, expected = ([strip(hit) for hit in ask(retriever)] for retriever in (one, other))
        assert_same_hits(hits, expected, case.tolerance)


def strip(hit):
    return replace(hit, item=replace(hit.item, path=None))


def test_items_are_ranked_by_the_inner_products_of_their_vectors(case):
    """All have partners here."""
    retriever, owners = case.retriever, np.asarray(case.pairing)[case.text_rows]
    for task, search, queries, items in case.asked():
        embed = (retriever.embed_texts, retriever.embed_images)[:: 1 if task == "search" else -1]
        vectors, asked = embed[1](items, task=task), embed[0](queries, task=task)
        projector = retriever.fitted.projectors[task]
        if not projector.euclidean and task == "search":
            vectors = place_by_hand(vectors, asked, owners, projector)
        elif not projector.euclidean:
            vectors = place_by_hand(vectors, asked[owners], range(len(owners)), projector)
        inner = asked[:5] @ vectors.T
        order = names(search(take(queries, 0), k=10**6))
        places = {name: place for place, name in enumerate(stored_ids(case, task))}
        assert sorted(order) == sorted(places)
        for row, hits in zip(inner, search(take(queries, range(5)), k=6), strict=True):
            best = row[[places[hit.id] for hit in hits]]
            atol = max(case.tolerance, rounding(np.float32, 8, 1 + np.abs(row).max()))
            np.testing.assert_allclose(best, np.sort(row)[::-1][:6], rtol=0, atol=atol)
            if not projector.euclidean:
                np.testing.assert_allclose([hit.score for hit in hits], best, rtol=0, atol=atol)


def stored_ids(case, task):
    """The ids of the items that a task searches, in the order of ``case.asked``."""
    view = "image" if task == "search" else "text"
    return [item.id for item in case.retriever.store.items(view)]


def test_one_query_gives_hits_and_several_a_list_of_them(case):
    for _, search, queries, _ in case.asked():
        several = search(take(queries, range(4)), k=3)
        assert [len(hits) for hits in several] == [3] * 4
        for row in (0, 2):
            alone = search(take(queries, row), k=3)
            assert isinstance(alone, Hits)
            assert_same_hits(alone, several[row], case.tolerance)
            assert_same_hits(search(take(queries, [row]), k=3)[0], several[row], case.tolerance)
        assert [hit.score for hit in alone] == sorted((hit.score for hit in alone), reverse=True)


@pytest.mark.parametrize("case", ["blocks", "fusion"], indirect=True)
@pytest.mark.filterwarnings("ignore:these are training pairs")
def test_named_blocks_are_their_columns_side_by_side(case):
    retriever, named, joined = case.retriever, [], []
    for view, inputs, ask, embed, first in (
        ("image", case.images, retriever.annotate, retriever.embed_images, "0"),
        ("text", case.texts, retriever.search, retriever.embed_texts, "0#0"),
    ):
        blocks = dict(reversed(take(inputs, range(4)).items()))  # their order is the model's business
        rows = np.hstack([blocks[name] for name in retriever.fitted.layout(view)])
        np.testing.assert_allclose(embed(blocks), embed(rows), atol=1e-6)
        for hits, expected in zip(ask(blocks), ask(rows), strict=True):
            assert_same_hits(hits, expected, case.tolerance)
        for query in ({name: block[0].tolist() for name, block in blocks.items()}, rows[0]):
            assert_same_hits(ask(query), ask(rows)[0], case.tolerance)
            assert retriever.similar(**{view: query}, k=1)[0].id == first
        named.append(blocks)
        joined.append(rows)
    pairs = PairedDataset(tuple("abcd"), ("",) * 4, range(4))
    evaluations = [retriever.evaluate(PairedViews(pairs, *views)) for views in (named, joined)]
    assert evaluations[0] == evaluations[1]
    assert retriever.add(*(take(blocks, 0) for blocks in named), ids=["a"]) == ["a", "a#0"]


def test_more_than_there_is_gives_everything_once(case):
    for task, search, queries, _ in case.asked():
        for k in (10**9, np.int64(10**4)):
            hits = search(take(queries, 0), k=k)
            assert sorted(names(hits)) == sorted(stored_ids(case, task))
            assert not hits.more


def test_an_item_is_most_similar_to_itself(case):
    assert case.retriever.similar(image=take(case.images, 4), k=3)[0].id == case.ids[4]
    hits = case.retriever.similar(text=take(case.texts, 4), k=30)
    same = [hit.id for hit in hits if hit.score >= hits[0].score - case.tolerance]  # texts may be equal
    assert stored_ids(case, "annotate")[4] in same
    with pytest.raises(InputError, match="one item at a time"):
        case.retriever.similar(image=take(case.images, range(2)))


def test_filters_leave_items_out(case):
    def third(item):
        return case.ids.index(item.image or item.id) % 3 == 0

    for task, search, queries, _ in case.asked():
        whole = search(take(queries, 0), k=1000)
        expected = [hit for hit in whole if third(hit.item)]
        ids = names(expected)
        assert len(expected) == len(whole) // 3
        for where in (third, ids, iter(ids[::-1]), {*ids, ids[0]}):
            found = search(take(queries, 0), k=1000, where=where)
            assert_same_hits(found, expected, case.tolerance)
        assert_same_hits(search(take(queries, 0), k=4, where=third), expected[:4], case.tolerance)
        assert_same_hits(search(take(queries, 0), where=ids[3:4]), expected[3:4], case.tolerance)
        other = stored_ids(case, "annotate" if task == "search" else "search")[0]
        for where in ([], lambda item: False, [other]):  # an item of the other view
            assert search(take(queries, 0), where=where) == []
    for where, fits in (
        ({"odd": True}, lambda n: n % 2),
        ("n < 10 and odd = false", lambda n: n < 10 and not n % 2),
        ({"n": [3, 4, 1000]}, lambda n: n in (3, 4)),
        ({"n": []}, lambda n: False),
        ({}, lambda n: True),
    ):
        wanted = {name for n, name in enumerate(case.ids) if fits(n)}
        assert set(names(case.retriever.search(take(case.texts, 0), k=1000, where=where))) == wanted
        assert set(names(case.retriever.similar(image=take(case.images, 0), k=99, where=where))) == wanted


def test_pages_joined_are_one_long_search(case):
    searches = [
        lambda **page: case.retriever.search(take(case.texts, 3), **page),
        lambda **page: case.retriever.search(take(case.texts, 3), where={"odd": True}, **page),
        lambda **page: case.retriever.similar(image=take(case.images, 3), **page),
    ]
    for name in case.retriever.searcher.projectors["search"].masks():
        searches.append(lambda n=name, **p: case.retriever.search(take(case.texts, 3), weighting=n, **p))
    for search in searches:
        whole, ids, offset, more = names(search(k=N)), [], 0, True
        while more:
            page = search(k=13, offset=offset)
            ids, offset, more = ids + names(page), offset + 13, page.more
        assert ids == whole
        assert search(k=13, offset=offset) == []


def test_a_composed_query_is_a_sum(case):
    query = take(case.texts, 3)
    plain = case.retriever.search(query, k=N)
    assert_same_hits(case.retriever.search(query, k=N, plus=[query]), plain, 10 * case.tolerance)
    image = take(case.images, 5)
    if not isinstance(image, str):  # features are of the query's view
        assert case.retriever.similar(image=take(case.images, 3), plus=[image])[0].probability is None
        return
    scores = [
        {hit.id: hit.score for hit in case.retriever.search(query, k=N, **parts)}[case.ids[5]]
        for parts in ({"minus": [(image, 0.5)]}, {}, {"plus": [image]})
    ]
    assert scores == sorted(scores)


@in_a_database_too
def test_what_is_added_is_found_until_it_is_removed(case):
    retriever, fitted = case.retriever, case.retriever.fitted
    n_items = retriever.store.count()
    ids = case.add_new()
    assert retriever.fitted is fitted  # nothing was learned
    assert retriever.store.count() == n_items + 2 * NEW
    for row, name in enumerate(ids):
        assert retriever.similar(image=take(case.images, N + row), k=1)[0].id == name
        (caption,) = retriever.annotate(take(case.images, N + row), k=999, where=[f"{name}#{row}"])
        assert caption.item.image == name
    with pytest.raises(InputError, match="'new 1' is in the index already"):
        retriever.add(take(case.images, range(2)), ids=["fresh", "new 1"])
    with pytest.raises(InputError, match="there is no item 'nobody'"):
        retriever.remove(["new 0", "nobody"])
    assert retriever.store.count() == n_items + 2 * NEW
    assert retriever.remove(["new 0", "new 1#1", "new 0#0", "new 0"]) == 3
    assert retriever.remove(name for name in ids[1:3]) == 3
    assert retriever.remove([]) == 0
    found = {*names(retriever.search(take(case.texts, 0), k=999))}
    found |= {*names(retriever.annotate(take(case.images, 0), k=999))}
    assert found & {name for i, new in enumerate(ids) for name in (new, f"{new}#{i}")} == {
        *("new 3", "new 4", "new 3#3", "new 4#4")
    }
    retriever.add(take(case.images, [N]), ids=["new 0"])
    assert retriever.similar(image=take(case.images, N), k=1)[0].id == "new 0"


@in_a_database_too
def test_items_are_listed_changed_skipped_and_replaced(case):
    retriever, n_texts = case.retriever, len(case.text_rows)
    assert len(retriever) == N + n_texts
    assert case.ids[3] in retriever
    assert "nobody" not in retriever
    assert [item.id for item in retriever][:N] == case.ids
    newest = retriever.items("image", where={"odd": True}, order_by="-n", limit=2)
    assert [item.id for item in newest] == [case.ids[59], case.ids[57]]
    assert retriever.items(where=case.ids[:2], offset=1) == [retriever.item(case.ids[1])]
    assert retriever.items(where=lambda item: item.image == case.ids[4])[0].view == "text"

    changed = retriever.update(case.ids[3], metadata={"odd": None, "tag": "sea"})
    assert changed == retriever.items("image")[3] == retriever.item(case.ids[3])
    assert changed.metadata.items() >= {"n": 3, "tag": "sea"}.items()
    assert "odd" not in changed.metadata

    ids, image = [case.ids[0], "new"], take(case.images, [N, N + 1])
    text = take(case.texts, case.new_rows[0])
    caption = next(retriever.store.items(images=[case.ids[5]])).id
    before = retriever.annotate(take(case.images, 0), k=1)
    assert retriever.add(image, ids=ids, on_conflict="skip") == ["new"]
    assert retriever.add(image, ids=ids, on_conflict="skip") == []
    assert retriever.similar(image=take(case.images, N + 1), k=1)[0].id == "new"
    assert retriever.add(image, ids=ids, on_conflict="replace") == ids
    for row, name in enumerate(ids):
        assert retriever.similar(image=take(case.images, N + row), k=1)[0].id == name
    assert retriever.item(case.ids[0]).metadata == {}
    assert retriever.annotate(take(case.images, 0), k=1)[0].id == before[0].id  # its captions stay
    if isinstance(text, str):
        assert retriever.update(caption, text=text).text == text
        assert retriever.update("new", image=case.images[N + 2]).path == case.images[N + 2]
        assert retriever.similar(text=text, k=1, where=[caption])[0].score > 1 - case.tolerance
    else:
        retriever.update(caption, features=text)
        retriever.update("new", features=take(case.images, N + 2))
        assert retriever.similar(text=text, k=1)[0].id == caption
    assert retriever.item(caption).image == case.ids[5]
    assert retriever.similar(image=take(case.images, N + 2), k=1)[0].id == "new"
    with pytest.raises(InputError, match="'new' is in the index already"):
        retriever.add(image, ids=ids[::-1])
    assert len(retriever) == N + n_texts + 1


@in_a_database_too
def test_a_refit_learns_from_what_was_added(case, tmp_path):
    retriever = case.retriever
    pairs = retriever.fitted.learned.moments().count
    case.add_new()
    grown = case.open_again(tmp_path / "grown", mmap=True)
    vectors = retriever.embed_images(take(case.images, range(3)))
    assert retriever.refit() is retriever
    assert retriever.info()["facts"]["refitted"] == {"pairs": pairs + NEW, "before": pairs}
    assert not np.array_equal(retriever.embed_images(take(case.images, range(3))), vectors)
    assert sum_new_pairs(retriever.searcher).count == 0
    assert retriever.similar(image=take(case.images, N), k=1)[0].id == "new 0"
    again = case.open_again(tmp_path / "refitted")
    assert again.fitted.learned.moments().count == pairs + NEW
    assert again.views == grown.views
    assert_same_answers(case, again, retriever)
    if not grown.store.address:  # pairs that were saved before are learned from as well
        assert_same_answers(case, grown.refit(), retriever)
    # Without anything new nothing changes, but for what a fusion carries over.
    assert_same_answers(replace(case, tolerance=max(2e-3, case.tolerance)), again.refit(), grown)


@in_a_database_too
def test_it_is_opened_again_with_all_its_changes(case, tmp_path):
    retriever = case.retriever
    case.add_new()
    retriever.remove([case.ids[7], "new 2", "new 1#1"])
    for options in ({}, {"mmap": True}):
        again = case.open_again(tmp_path / "model", **options)
        assert_same_answers(case, again, retriever, k=200)
        assert again.search(take(case.texts, 0), where={"n": {"$gte": 50}})[0].metadata["n"] >= 50
        assert again.views == retriever.views
        assert again.info() == retriever.info()
        moments = [opened.fitted.learned.moments() for opened in (again, retriever)]
        np.testing.assert_array_equal(moments[0].xy, moments[1].xy)
        for view in ("image", "text"):
            assert list(again.store.items(view)) == list(retriever.store.items(view))


@in_a_database_too
def test_a_published_model_answers_alike_and_can_be_changed(case, tmp_path):
    if case.retriever.store.address:
        with pytest.raises(InputError, match="items of this model are in a database and are not published"):
            case.open_again(tmp_path / "model", published=True)
        return
    case.add_new()
    again = case.open_again(tmp_path / "model", published=True)
    assert again.views == case.retriever.views
    assert_same_answers(case, again, case.retriever, k=200)
    again.remove([case.ids[0], "new 1"])
    again.add(take(case.images, [N + 1]), take(case.texts, case.new_rows[1:2]), ids=["newer"])
    again.save(tmp_path / "copy")
    copy = Retriever.load(tmp_path / "copy", *case.encoders)
    assert copy.item("newer") is not None
    assert copy.item("new 1") is None
    assert_same_answers(case, copy, again, k=200)


def test_copies_are_found(case):
    case.retriever.add(take(case.images, range(2)), ids=["copy 0", "copy 1"])
    found = case.retriever.duplicates(threshold=0.99999)
    groups = [{item.id for item in group.items} for group in found]
    for i in range(2):
        assert any({case.ids[i], f"copy {i}"} <= group for group in groups)
    assert found.n_items == N + 2


@in_a_database_too
def test_confirmed_pairs_are_captions_that_a_refit_learns_from(case):
    retriever, text, image = case.retriever, take(case.texts, 1), case.ids[7]
    n_texts, n_pairs = retriever.store.count("text"), sum_new_pairs(retriever.searcher).count
    ids = retriever.learn(text, right=[image, case.ids[8], image])
    assert [retriever.item(name).image for name in ids] == [image, case.ids[8]]
    assert retriever.learn(text, right=image) == ids[:1]  # a pair that is there is not stored again
    assert retriever.store.count("text") == n_texts + 2
    assert {item.id for item in retriever.items(where="confirmed = true")} == set(ids)
    shown = retriever.item(ids[0]).text
    assert shown == (text if isinstance(text, str) else None)
    assert set(ids) <= set(names(retriever.annotate(take(case.images, 7), k=10**6)))
    assert sum_new_pairs(retriever.searcher).count == n_pairs + 2
    before = retriever.fitted.facts.get("refitted", {}).get("pairs")
    after = retriever.refit().fitted.facts["refitted"]
    assert after["pairs"] == after["before"] + 2
    assert before is None or before == after["before"]
    assert sum_new_pairs(retriever.searcher).count == 0
    assert retriever.remove(ids) == 2
    assert retriever.learn(text, right=image) == ids[:1]


@pytest.mark.parametrize("case", ["cosine", "postgresql"], indirect=True)
def test_a_pair_that_two_processes_confirm_at_once_is_stored_once(case, tmp_path, monkeypatch):
    other, text = case.open_again(tmp_path / "case"), take(case.texts, 1)
    add, first = Searcher.add, []

    def add_second(self, *arguments, **options):
        monkeypatch.undo()
        first.extend(other.learn(text, right=case.ids[1]))
        return add(self, *arguments, **options)

    monkeypatch.setattr(Searcher, "add", add_second)
    ids = case.retriever.learn(text, right=case.ids[:2])
    assert ids[1:] == first
    assert [item.id for item in other.items(where="confirmed = true")] == [first[0], ids[0]]


@pytest.mark.parametrize("case", ["cosine", "scenes"], indirect=True)
def test_pairs_that_cannot_be_confirmed(case):
    retriever, text = case.retriever, take(case.texts, 1)
    caption, n_items = stored_ids(case, "annotate")[0], len(retriever)
    for right, words in (
        (["0", "no such image"], "there is no item"),
        ([5], "there is no item 5"),
        (caption, "is a caption; right takes the ids of images"),
        ([], "right has no ids"),
    ):
        with pytest.raises(InputError, match=words):
            retriever.learn(text, right=right)
    with pytest.raises(InputError, match="one text at a time, not 2"):
        retriever.learn(take(case.texts, [1, 2]), right=case.ids[0])
    if isinstance(text, str):
        for wrong, words in ((" ", "not a text"), ("\ud800", "not valid Unicode")):
            with pytest.raises(InputError, match=words):
                retriever.learn(wrong, right=case.ids[0])
    assert len(retriever) == n_items
