"""Features in named blocks: made from, asked with, added, after a refit and from disk."""

from __future__ import annotations

import numpy as np
import pytest

from diptych import AWCCA, InputError, Retriever
from diptych.data import PairedDataset, PairedViews
from diptych.fusion import Fusion

MODELS = {"awcca": AWCCA(params=(2.0, 3.0)), "fusion": Fusion(grid=3)}


def halves(rows, names, at):
    """Columns as two blocks, the second first: their order is the model's business."""
    return {names[1]: rows[..., at:], names[0]: rows[..., :at]}


def images(rows):
    return halves(rows, ("resnet", "dino"), 5)


def texts(rows):
    return halves(rows, ("glove", "bert"), 3)


def same(found, expected):
    assert [hit.id for hit in found] == [hit.id for hit in expected]
    np.testing.assert_allclose([hit.score for hit in found], [hit.score for hit in expected], atol=1e-5)


@pytest.fixture(params=MODELS)
def kind(request):
    return request.param


@pytest.fixture
def blocks(views, kind):
    x, y, pairing = views()
    named = [dict(reversed(view.items())) for view in (images(x), texts(y))]
    return Retriever.from_features(*named, pairing, model=MODELS[kind]), x, y, pairing


def test_whatever_asks_takes_named_blocks(blocks):
    retriever, x, y, _ = blocks
    same(retriever.annotate(images(x[3])), retriever.annotate(x[3]))
    same(retriever.search(texts(y[4])), retriever.search(y[4]))
    same(retriever.similar(image=images(x[3])), retriever.similar(image=x[3]))
    same(retriever.similar(text=texts(y[3])), retriever.similar(text=y[3]))
    for found, expected in (
        (retriever.annotate(images(x[:4])), retriever.annotate(x[:4])),
        (retriever.search(texts(y[:4]), 3), retriever.search(y[:4], 3)),
    ):
        assert len(found) == 4
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    np.testing.assert_allclose(
        retriever.embed_images(images(x[:4])), retriever.embed_images(x[:4]), atol=1e-6
    )
    np.testing.assert_allclose(retriever.embed_texts(texts(y[:4])), retriever.embed_texts(y[:4]), atol=1e-6)
    as_lists = {name: rows.tolist() for name, rows in images(x[3]).items()}
    same(retriever.annotate(as_lists), retriever.annotate(x[3]))


def test_items_are_added_and_pairs_evaluated_by_named_blocks(blocks):
    retriever, x, y, pairing = blocks
    ids = retriever.add(images(x[:2] + 0.01), texts(y[:2]), ids=["one", "two"], pairing=[0, 1])
    assert len(ids) == 4
    assert retriever.add(images(x[5] + 0.01), texts(y[5]), ids=["alone"]) == ["alone", "alone#0"]
    assert "one" in [hit.id for hit in retriever.similar(image=images(x[0]), k=2)]
    dataset = PairedDataset(tuple(map(str, range(len(x)))), ("",) * len(y), pairing)
    found = retriever.evaluate(PairedViews(dataset, images(x), texts(y)))
    assert found == retriever.evaluate(PairedViews(dataset, x, y))


def test_validation_pairs_are_named_blocks_too(views):
    x, y, pairing = views()
    retriever = Retriever.from_features(images(x), texts(y), pairing, model=MODELS["awcca"])
    retriever.refit(validation=(images(x), texts(y), pairing))
    assert retriever.info()["facts"]["selection"]["pairs"] == "the validation pairs that refit was given"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"resnet": np.ones(5)}, "'dino' is missing. This model takes 'resnet' .5 features., 'dino' .3 feat"),
        ({"resnet": np.ones(5), "dinner": np.ones(3)}, "'dino' is missing; 'dinner' is unknown"),
        ({"resnet": np.ones(4), "dino": np.ones(3)}, r"'resnet' has shape \[4\]"),
        ({"resnet": np.ones((2, 5)), "dino": np.ones((3, 3))}, "differ in their number of rows"),
        ({"resnet": np.ones(5), "dino": np.ones((1, 3))}, "differ in their number of rows"),
        ({"resnet": np.ones(()), "dino": np.ones(3)}, r"'resnet' has shape \[\]"),
        ({}, "'resnet' is missing; 'dino' is missing"),
        ({"resnet": np.full(5, np.nan), "dino": np.ones(3)}, "NaN"),
        ({"resnet": ["a"] * 5, "dino": np.ones(3)}, "not numbers"),
    ],
)
def test_wrong_blocks_are_named_in_one_message(views, given, message):
    x, y, pairing = views()
    named = [dict(reversed(view.items())) for view in (images(x), texts(y))]
    retriever = Retriever.from_features(*named, pairing, model=AWCCA(params=(2.0, 3.0)))
    for ask in (retriever.annotate, lambda rows: retriever.add(rows, ids=["new"])):
        with pytest.raises(InputError, match=message):
            ask(given)


def test_a_model_without_names_says_so(views):
    x, y, pairing = views()
    retriever = Retriever.from_features(x, y, pairing, model=AWCCA(params=(2.0, 3.0)))
    with pytest.raises(InputError, match="image features have no named blocks"):
        retriever.annotate(images(x[0]))
    with pytest.raises(InputError, match="X has no blocks"):
        Retriever.from_features({}, y, pairing)
    dataset = PairedDataset(tuple(map(str, range(len(x)))), ("",) * len(y), pairing)
    with pytest.raises(InputError, match="9 columns in all, but they have 8"):
        retriever.fit(PairedViews(dataset, x, y), layout={"image": {"a": 4, "b": 5}})


def test_a_fusion_from_elsewhere_knows_its_blocks(views):
    x, y, pairing = views()
    model = Fusion(grid=3).fit(images(x), texts(y), pairing)
    retriever = Retriever.from_model(model, features=(images(x), texts(y)))
    retriever.add(images(x), ids=[str(i) for i in range(len(x))])
    assert len(retriever.search(texts(y[0]), k=3)) == 3
