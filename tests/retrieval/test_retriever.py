"""What a retriever answers, against plain AWCCA and NumPy."""

import numpy as np
import pytest

from diptych import AWCCA, Retriever
from diptych._checks import DataWarning
from placing import place_by_hand
from tolerance import assert_ranked, rounding

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
@pytest.mark.parametrize("normalize", [("none", "none"), ("sqrt-unit", "unit")], ids=str)
def test_rankings_are_those_of_awcca_done_by_hand(make, weighting, similarity, normalize):
    model = AWCCA(params=PARAMS, weighting=weighting, similarity=similarity, normalize=normalize)
    made = make(model=model)
    model = model.fit(made.x, made.y, made.pairing)
    for task, queries in (("search", made.y), ("annotate", made.x)):
        hits = getattr(made.retriever, task)(queries, k=15)
        ex, ey = model.transform(made.x, made.y, task=task)
        items, queries = (ex, ey) if task == "search" else (ey, ex)
        if similarity == "cosine" and task == "search":
            items = place_by_hand(ex, ey, made.pairing)
        elif similarity == "cosine":
            items = place_by_hand(ey, ex[made.pairing], np.arange(len(ey)))
        atol = None if normalize[0] == "none" else 1e-4
        assert_found(hits, scores_by_hand(items, queries, similarity), ids_of(made, task), 15, atol)


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


def test_metadata_is_as_it_will_be_after_saving(make, tmp_path):
    given = {"3": {"tags": ("a", "b"), 5: "five", "list": [1, None, 2.5]}}
    made = make(metadata=given)
    expected = {"tags": ["a", "b"], "5": "five", "list": [1, None, 2.5]}
    assert made.retriever.search(made.y[0], k=60, where=["3"])[0].metadata == expected
    made.retriever.save(tmp_path / "model")
    loaded = Retriever.load(tmp_path / "model")
    assert loaded.search(made.y[0], k=60, where=["3"])[0].metadata == expected


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
    captions = made.retriever.annotate(made.x[3], k=2)
    assert [hit.id for hit in retriever.annotate(x[3], k=2)] == [hit.id for hit in captions]
    assert retriever.add(x[:2] + 0.1, y[:2], ids=["a", "b"]) == ["a", "b", "a#0", "b#1"]
    assert retriever.embed_images(x).shape[0] == 60
    retriever.refit()
    with pytest.raises(ValueError, match="features as input"):
        retriever.search(x[0])
