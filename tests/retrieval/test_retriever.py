"""What a retriever answers, against plain AWCCA and NumPy."""

import numpy as np
import pytest

from diptych import AWCCA, Retriever
from diptych._checks import DataWarning
from tolerance import assert_ranked, assert_same_hits, rounding

WEIGHTINGS = ["asymmetric", "search-generation", "symmetric", "none", (0.5, 1.0)]
PARAMS = {"search": (2.0, 3.0), "annotate": (0.5, 8.0)}
COSINE = rounding(np.float32, 8)


def scores_by_hand(items, queries, similarity):
    """Cosines, or minus distances, in float64: queries × items."""
    if similarity == "cosine":
        items = items / np.linalg.norm(items, axis=1, keepdims=True)
        queries = queries / np.linalg.norm(queries, axis=1, keepdims=True)
        return queries @ items.T
    return -np.linalg.norm(queries[:, None, :] - items[None, :, :], axis=2)


def by_hand(made, task, weighting, similarity, normalize=("none", "none")):
    model = AWCCA(params=PARAMS, weighting=weighting, similarity=similarity, normalize=normalize)
    model.fit(made.x, made.y, made.pairing)
    ex, ey = model.transform(made.x, made.y, task=task)
    return scores_by_hand(ex, ey, similarity) if task == "search" else scores_by_hand(ey, ex, similarity)


def ids_of(made, task):
    if task == "search":
        return [str(row) for row in range(len(made.x))]
    seen = [0] * len(made.x)
    names = []
    for image in made.pairing:
        names.append(f"{image}#{seen[image]}")
        seen[image] += 1
    return names


def assert_found(found, scores, names, k, atol=None):
    """Hits are the ``k`` best by hand; vectors are float32 and have at most eight dimensions."""
    for hits, row in zip(found, scores, strict=True):
        assert len(hits) == min(k, len(row))
        tolerance = atol or rounding(np.float32, 8, 1 + np.abs(row).max())
        assert_ranked(hits, dict(zip(names, row.tolist(), strict=True)), tolerance)


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
@pytest.mark.parametrize("weighting", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("task", ["search", "annotate"])
def test_rankings_are_those_of_awcca_done_by_hand(make, task, weighting, similarity):
    made = make(model=AWCCA(params=PARAMS, weighting=weighting, similarity=similarity))
    queries = made.y if task == "search" else made.x
    found = getattr(made.retriever, task)(queries, k=15)
    assert_found(found, by_hand(made, task, weighting, similarity), ids_of(made, task), 15)


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
@pytest.mark.parametrize("own", WEIGHTINGS, ids=str)
@pytest.mark.parametrize("other", WEIGHTINGS, ids=str)
def test_another_weighting_ranks_as_a_model_made_with_it(make_here, own, other, similarity):
    made = make_here(model=AWCCA(params=PARAMS, weighting=own, similarity=similarity))
    for task, queries in (("search", made.y), ("annotate", made.x)):
        found = getattr(made.retriever, task)(queries, k=8, weighting=other)
        assert_found(found, by_hand(made, task, other, similarity), ids_of(made, task), 8, atol=2e-5)


def test_normalisation_is_part_of_the_model(make):
    names = ("sqrt-unit", "unit")
    made = make(model=AWCCA(params=PARAMS, normalize=names))
    for task, queries in (("search", made.y), ("annotate", made.x)):
        found = getattr(made.retriever, task)(queries, k=8)
        scores = by_hand(made, task, "asymmetric", "cosine", names)
        assert_found(found, scores, ids_of(made, task), 8, atol=2e-5)


def test_half_precision_ranks_almost_the_same(make):
    made = make(dtype="float16", model=AWCCA(params=PARAMS))
    scores = by_hand(made, "search", "asymmetric", "cosine")
    for hits, row in zip(made.retriever.search(made.y, k=10), scores, strict=True):
        np.testing.assert_allclose([hit.score for hit in hits], row[[int(h.id) for h in hits]], atol=2e-3)
        np.testing.assert_allclose([hit.score for hit in hits], np.sort(row)[::-1][:10], atol=2e-3)


def test_one_query_gives_one_list_and_several_a_list_of_lists(make):
    made = make()
    several = made.retriever.search(made.y[:4], k=3)
    assert len(several) == 4
    assert_same_hits(made.retriever.search(made.y[2], k=3), several[2], COSINE)
    (alone,) = made.retriever.search(made.y[2:3], k=3)
    assert_same_hits(alone, several[2], COSINE)
    assert len(made.retriever.annotate(made.x[:4], k=3)) == 4
    assert len(made.retriever.annotate(made.x[0], packs=True)) == 5
    assert len(made.retriever.annotate(made.x[:2], k=3, packs=True)[1]) == 3


def test_asking_for_more_than_there_is_gives_everything_once(make):
    made = make()
    for hits in (made.retriever.search(made.y[0], k=10**9), made.retriever.search(made.y[0], k=np.int64(61))):
        assert sorted(int(hit.id) for hit in hits) == list(range(60))
        assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    assert len(made.retriever.annotate(made.x[0], k=10**9, packs=True)) == 60


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_the_inner_product_of_two_embeddings_is_the_score(make, task):
    made = make(model=AWCCA(params=PARAMS))
    retriever = made.retriever
    images, texts = retriever.embed_images(made.x, task=task), retriever.embed_texts(made.y, task=task)
    queries, items = (texts, images) if task == "search" else (images, texts)
    found = getattr(retriever, task)(made.y if task == "search" else made.x, k=5)
    assert_found(found, queries @ items.T, ids_of(made, task), 5)


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_inner_products_rank_as_distances_do(make, task):
    made = make(model=AWCCA(params=PARAMS, similarity="l2"))
    retriever = made.retriever
    images, texts = retriever.embed_images(made.x, task=task), retriever.embed_texts(made.y, task=task)
    queries, items = (texts, images) if task == "search" else (images, texts)
    found = getattr(retriever, task)(made.y if task == "search" else made.x, k=5)
    names = ids_of(made, task)
    for hits, row in zip(found, queries @ items.T, strict=True):
        best = row[[names.index(hit.id) for hit in hits]]
        tolerance = rounding(np.float32, 8, 1 + np.abs(row).max())
        np.testing.assert_allclose(best, np.sort(row)[::-1][:5], rtol=0, atol=tolerance)


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
def test_similar_items_are_near_in_the_canonical_space(make, similarity):
    made = make(model=AWCCA(params=PARAMS, similarity=similarity))
    model = AWCCA(params=PARAMS, similarity=similarity).fit(made.x, made.y, made.pairing)
    for view, rows, task in (("image", made.x, "search"), ("text", made.y, "annotate")):
        embedded = model.transform(**{"X" if view == "image" else "y": rows}, task=task)
        scores = scores_by_hand(embedded, embedded, similarity)
        for row in (0, 7):
            hits = made.retriever.similar(**{view: rows[row]}, k=6)
            # A distance of zero is a difference of squares, good to the root of float32 alone.
            assert_found([hits], scores[row : row + 1], ids_of(made, task), 6, atol=2e-3)
            assert hits[0].id == ids_of(made, task)[row]


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
@pytest.mark.parametrize("weighting", ["asymmetric", "none"])
def test_packs_are_ranked_by_the_mean_of_their_captions(make, rng, similarity, weighting):
    options = {"params": PARAMS, "similarity": similarity, "weighting": weighting}
    made = make(model=AWCCA(**options))
    order = rng.permutation(len(made.y))
    made.y, made.pairing = made.y[order][:100], made.pairing[order][:100]  # unequal groups, out of order
    retriever = Retriever.from_features(made.x, made.y, made.pairing, model=AWCCA(**options))
    model = AWCCA(**options).fit(made.x, made.y, made.pairing)
    ex, ey = model.transform(made.x, made.y, task="annotate")
    groups = np.unique(made.pairing)
    means = np.stack([ey[made.pairing == group].mean(axis=0) for group in groups])
    of_groups, of_captions = scores_by_hand(means, ex, similarity), scores_by_hand(ey, ex, similarity)
    names = ids_of(made, "annotate")
    for row, packs in enumerate(retriever.annotate(made.x, k=7, packs=True)):
        expected = dict(zip(map(str, groups), of_groups[row].tolist(), strict=True))
        assert len(packs) == 7
        assert_ranked(packs, expected, rounding(np.float32, 8 + 5, 1 + np.abs(of_groups[row]).max()))
        for pack in packs:
            own = np.flatnonzero(made.pairing == int(pack.image))
            assert_found([pack.captions], of_captions[row : row + 1, own], [names[j] for j in own], len(own))
            assert pack.best is pack.captions[0]
            assert pack.to_json()["captions"][0]["id"] == pack.best.id


def test_packs_follow_what_is_added_and_removed(make):
    made = make()
    first = made.retriever.annotate(made.x[0], k=1, packs=True)[0]
    made.retriever.remove(first.best.id)
    again = made.retriever.annotate(made.x[0], k=60, packs=True)
    left = next(pack for pack in again if pack.image == first.image)
    assert [hit.id for hit in left.captions] == [first.captions[1].id]
    made.retriever.remove(left.best.id)
    assert first.image not in [p.image for p in made.retriever.annotate(made.x[0], k=60, packs=True)]
    made.retriever.add(made.x[:1], made.y[:2], pairing=[0, 0], ids=["new"])
    assert "new" in [pack.image for pack in made.retriever.annotate(made.x[0], k=60, packs=True)]


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_filters_by_function_and_by_ids(make, task):
    made = make(metadata={str(i): {"odd": bool(i % 2)} for i in range(60)})
    ask = made.retriever.search if task == "search" else made.retriever.annotate
    query = made.y[0] if task == "search" else made.x[0]
    whole = ask(query, k=1000)

    def chosen(item):
        return int((item.image or item.id).partition("#")[0]) % 3 == 0

    expected = [hit for hit in whole if chosen(hit.item)]
    assert len(expected) == len(whole) // 3
    assert_same_hits(ask(query, k=1000, where=chosen), expected, COSINE)
    assert_same_hits(ask(query, k=4, where=chosen), expected[:4], COSINE)
    ids = [hit.id for hit in expected]
    assert_same_hits(ask(query, k=1000, where=ids), expected, COSINE)
    assert_same_hits(ask(query, k=1000, where=(name for name in reversed(ids))), expected, COSINE)
    assert_same_hits(ask(query, k=1000, where={*ids, ids[0]}), expected, COSINE)
    assert_same_hits(ask(query, k=5, where=[ids[3]]), [expected[3]], COSINE)
    assert ask(query, where=[]) == []
    assert ask(query, where=lambda item: False) == []
    # Items of the other view pass no filter of this one.
    other = "0#0" if task == "search" else "0"
    assert ask(query, where=[other]) == []
    plain = [hit for hit in ask(query, k=1000, weighting="none") if chosen(hit.item)][:4]
    assert_same_hits(ask(query, k=4, where=chosen, weighting="none"), plain, COSINE)
    if task == "search":
        odd = ask(query, k=1000, where=lambda item: item.metadata["odd"])
        assert [hit.id for hit in odd] == [hit.id for hit in whole if int(hit.id) % 2]
        similar = made.retriever.similar(image=made.x[3], k=5, where=lambda item: item.metadata["odd"])
        assert similar[0].id == "3"
        assert all(int(hit.id) % 2 for hit in similar)


def test_metadata_is_as_it_will_be_after_saving(make, tmp_path):
    given = {"3": {"tags": ("a", "b"), 5: "five", "deep": {"x": [1, None, 2.5]}}}
    made = make(metadata=given)
    expected = {"tags": ["a", "b"], "5": "five", "deep": {"x": [1, None, 2.5]}}
    assert made.retriever.search(made.y[0], k=60, where=["3"])[0].metadata == expected
    made.retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    assert loaded.search(made.y[0], k=60, where=["3"])[0].metadata == expected


def test_few_weightings_are_held_at_a_time(make_here):
    made = make_here()
    for step in range(30):
        made.retriever.search(made.y[0], weighting=(step / 30, 1.0))
    assert len(made.retriever.searcher._derived) < 10


def test_hits_say_what_they_are(make, tmp_path):
    made = make(
        captions=[f"sentence {j}" for j in range(120)],
        paths=[tmp_path / f"{i}.png" for i in range(60)],
        metadata={"5": {"colour": "red"}},
    )
    hit = made.retriever.search(made.y[10], k=1)[0]
    assert (hit.id, hit.path, hit.text, hit.metadata) == (
        "5",
        str(tmp_path / "5.png"),
        None,
        {"colour": "red"},
    )
    assert hit.to_json() == {
        "score": round(hit.score, 6),
        "id": "5",
        "view": "image",
        "path": str(tmp_path / "5.png"),
        "metadata": {"colour": "red"},
    }
    caption = made.retriever.annotate(made.x[5], k=120, where=["5#1"])[0]
    assert (caption.text, caption.item.image, caption.path) == ("sentence 11", "5", None)


def test_splits_choose_what_is_learned_from_and_measured(make, views):
    x, y, pairing = views(n=90)
    splits = ["train"] * 60 + ["val"] * 15 + ["test"] * 15
    retriever = Retriever.from_features(x, y, pairing, splits=splits, model=AWCCA(grid=4))
    model = AWCCA(grid=4).fit(x[:60], y[:120], pairing[:120], validation=(x[60:75], y[120:150], pairing[:30]))
    for task in ("search", "annotate"):
        assert retriever.fitted.model.models_[task].filter_x == model.models_[task].filter_x
    facts = retriever.info()["facts"]
    assert facts["pairs"] == {"train": [60, 120], "val": [15, 30], "test": [15, 30]}
    assert set(facts["metrics"]) == {"validation", "test"}
    # Everything is indexed, whatever split it is in, and the split can be filtered by.
    assert len(retriever.search(y[0], k=200)) == 90
    in_test = retriever.search(y[0], k=200, where=lambda item: item.metadata["split"] == "test")
    assert {int(hit.id) for hit in in_test} == set(range(75, 90))


@pytest.mark.parametrize("n", [20, 24])
def test_few_pairs_are_warned_about(views, n):
    x, y, pairing = views(n=n)
    with pytest.warns(DataWarning, match=f"{2 * n} training pairs are very few"):
        Retriever.from_features(x, y, pairing, model=AWCCA(params=(1.0, 1.0)))


def test_enough_pairs_are_not_warned_about(views, recwarn):
    x, y, pairing = views(n=25)
    Retriever.from_features(x, y, pairing, model=AWCCA(params=(1.0, 1.0)))
    assert not [w for w in recwarn if w.category is DataWarning]


def test_copies_of_training_images_in_other_splits_are_warned_about(views):
    x, y, pairing = views(n=90)
    x[80:83] = x[:3] * (1 + 1e-7)
    splits = ["train"] * 60 + ["val"] * 15 + ["test"] * 15
    with pytest.warns(DataWarning, match="3 of the test images that were compared are copies") as caught:
        retriever = Retriever.from_features(x, y, pairing, splits=splits, model=AWCCA(params=(1.0, 1.0)))
    assert len([w for w in caught if w.category is DataWarning]) == 1
    assert retriever.info()["facts"]["leaks"] == {"test": 3}


def test_torch_tensors_are_taken_wherever_arrays_are(make):
    torch = pytest.importorskip("torch")
    made = make()
    x, y, pairing = (torch.as_tensor(part) for part in (made.x, made.y, made.pairing))
    retriever = Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0)))
    expected = made.retriever.search(made.y[3], k=5)
    for query in (y[3], y[3].float(), y[3].clone().requires_grad_()):
        found = retriever.search(query, k=5)
        assert [hit.id for hit in found] == [hit.id for hit in expected]
    packs = made.retriever.annotate(made.x[3], k=2, packs=True)
    assert [p.image for p in retriever.annotate(x[3], k=2, packs=True)] == [p.image for p in packs]
    assert retriever.add(x[:2] + 0.1, y[:2], ids=["a", "b"]) == ["a", "b", "a#0", "b#1"]
    assert retriever.embed_images(x).shape[0] == 60
    retriever.refit()
    with pytest.raises(ValueError, match="features as input"):
        retriever.search(x[0])
