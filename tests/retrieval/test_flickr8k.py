"""Flickr8k through a retriever: the recalls of AWCCA by hand, to the digit."""

import numpy as np
import pytest

from diptych import AWCCA, Retriever, retrieval_scores
from diptych.data import PairedViews, open_features, read_pairs
from diptych.fusion import Block, Fusion
from diptych.retrieval._placing import add_offset
from diptych.retrieval.stores._faiss import VectorIndex
from tolerance import rounding

pytestmark = [pytest.mark.data, pytest.mark.slow]
NORMALIZE = ("unit", "unit")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def flickr(real_data):
    folder = real_data / "flickr8k"
    pairs = read_pairs(folder / "dataset_flickr8k.json")
    x = np.asarray(open_features(folder / "dinov2s.npy", rows=pairs.n_images), np.float32)
    y = np.asarray(open_features(folder / "minilm.npy", rows=pairs.n_captions), np.float32)
    return pairs, x, y


@pytest.fixture(scope="module")
def model():
    return AWCCA(params={"search": (3.0, 30.0), "annotate": (5.0, 20.0)}, normalize=NORMALIZE)


@pytest.fixture(scope="module")
def retriever(flickr, model):
    pairs, x, y = flickr
    return Retriever.from_features(
        x,
        y,
        pairs.pairing,
        ids=pairs.image_ids,
        caption_ids=pairs.caption_ids,
        captions=pairs.captions,
        splits=pairs.splits,
        model=model,
    )


@pytest.fixture(scope="module")
def by_hand(flickr, model):
    """AWCCA fitted on the training split, and the embeddings of the test split for both tasks."""
    pairs, x, y = flickr
    parts = {}
    for split in ("train", "test"):
        rows = pairs.image_rows(split)
        captions = pairs.caption_rows(rows)
        parts[split] = x[rows], y[captions], np.searchsorted(rows, pairs.pairing[captions])
    fitted = AWCCA(**model.get_params()).fit(*parts["train"])
    embedded = {task: fitted.transform(*parts["test"][:2], task=task) for task in ("search", "annotate")}
    return embedded, parts["test"][2]


def test_recalls_are_those_of_awcca_by_hand(retriever, by_hand):
    embedded, pairing = by_hand
    facts = retriever.info()["facts"]
    assert facts["pairs"] == {"train": [6000, 30000], "val": [1000, 5000], "test": [1000, 5000]}
    for task, (x, y) in embedded.items():
        expected = retrieval_scores(x, y, pairing, task=task)
        # A near tie may be won by the other item: then one of a thousand queries has another rank.
        assert facts["metrics"]["test"][task] == pytest.approx(expected, abs=0.05)
        assert expected["r@10"] > 70


def test_searches_give_those_recalls_too(flickr, retriever, by_hand):
    """Every test query is asked, among test items without partners; the best ten are looked at."""
    pairs, x, y = flickr
    images = pairs.image_rows("test")
    captions = pairs.caption_rows(images)
    metrics = retriever.info()["facts"]["metrics"]["test"]
    library = Retriever.from_model(retriever.fitted.model, features=(x[:1000], y[:1000]))
    library.add(x[images], ids=[pairs.image_ids[row] for row in images])
    library.add(captions=y[captions], caption_ids=[pairs.caption_ids[row] for row in captions])
    owner = {pairs.caption_ids[row]: pairs.image_ids[pairs.pairing[row]] for row in captions}
    found = library.search(y[captions], k=10)
    owners = [pairs.image_ids[row] for row in pairs.pairing[captions]]
    for k in (1, 5, 10):
        right = [own in [hit.id for hit in hits[:k]] for own, hits in zip(owners, found, strict=True)]
        # Ranking counts ties against itself, and float32 may turn a hair's breadth around.
        assert 100 * np.mean(right) == pytest.approx(metrics["search"][f"r@{k}"], abs=0.1)
    found = library.annotate(x[images], k=10)
    names = [pairs.image_ids[row] for row in images]
    for k in (1, 5, 10):
        right = [own in [owner[hit.id] for hit in hits[:k]] for own, hits in zip(names, found, strict=True)]
        assert 100 * np.mean(right) == pytest.approx(metrics["annotate"][f"r@{k}"], abs=0.2)


def test_a_graph_over_forty_thousand_captions_finds_them(flickr, retriever):
    pairs, x, _ = flickr
    held = retriever.store.indexes["annotate"].chunks()
    index = VectorIndex(held[0].vectors.shape[1])
    for chunk in held:
        index.add(chunk.keys, chunk.vectors)
    assert len(index) == 40000
    queries = retriever.embed_images(x[pairs.image_rows("test")], task="annotate")
    assert index.build_graph(add_offset(queries, 0.0)).recall >= 0.95


@pytest.fixture(scope="module")
def first_captions(flickr):
    """Images with one caption each, and which of them are in the test split."""
    pairs, x, y = flickr
    rows = np.unique(pairs.pairing, return_index=True)[1]
    return x, y[rows], pairs.image_rows("test")


@pytest.fixture(scope="module")
def here(first_captions, model):
    return Retriever.from_features(*first_captions[:2], model=model)


@pytest.mark.parametrize(("kind", "share"), [("exact", 0.999), ("hnsw", 0.99)])
def test_postgresql_finds_the_ten_best(first_captions, model, here, fresh, kind, share):
    x, y, test = first_captions
    there = Retriever.from_features(x, y, model=model, index=fresh(index=kind))
    for task, queries in (("search", y[test[:500]]), ("annotate", x[test[:500]])):
        found, expected = (getattr(each, task)(queries, k=10) for each in (there, here))
        same = 0
        for ours, theirs in zip(found, expected, strict=True):
            same += len({hit.id for hit in ours} & {hit.id for hit in theirs})
            for one, other in zip(ours, theirs, strict=True):
                # Sums of float32 in another order may turn a hair's breadth around.
                assert kind == "hnsw" or one.id == other.id or abs(one.score - other.score) < 1e-6
        assert same / (10 * len(queries)) >= share


@pytest.mark.parametrize("task", ["search", "annotate"])
def test_a_run_gives_the_same_metrics_elsewhere(retriever, flickr, task, tmp_path):
    measures = pytest.importorskip("ir_measures", reason="ir-measures is not installed")
    pairs, x, y = flickr
    result = retriever.evaluate(PairedViews(pairs, x, y))
    result.write_run(tmp_path / "run.trec", task=task)
    result.write_qrels(tmp_path / "qrels.trec", task=task)
    files = [
        list(measures.read_trec_qrels(str(tmp_path / "qrels.trec"))),
        list(measures.read_trec_run(str(tmp_path / "run.trec"))),
    ]
    asked = {"r@1": measures.Success @ 1, "r@10": measures.Success @ 10, "ndcg@10": measures.nDCG @ 10}
    computed = measures.calc_aggregate([*asked.values(), measures.RR], *files)
    # Captions that occur twice are ties, which count against the model here and are ordered by id there.
    for name, own in asked.items():
        assert result[task][name] == pytest.approx(100 * computed[own], abs=0.5)
        low, high = result.intervals()[task][name]
        assert low < result[task][name] < high
    # Beyond the 100 items of the run, a reciprocal rank is below 1 / 100.
    assert result[task]["mrr"] == pytest.approx(100 * computed[measures.RR], abs=0.5)


@pytest.mark.parametrize(
    "model",
    [
        AWCCA(params={"search": (3.0, 30.0), "annotate": (5.0, 20.0)}, normalize=("unit", "unit")),
        Fusion(
            grid=2,
            blocks={"x": Block("unit", pieces=2), "y": Block("sqrt-unit")},
            hubness=("csls",),
            weightings=("residual",),
            bank=500,
        ),
    ],
    ids=["awcca", "fusion"],
)
def test_exported_files_rank_as_the_retriever(flickr, tmp_path, model):
    pytest.importorskip("onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    pairs, x, y = flickr
    fitted = Retriever.from_features(x, y, pairs.pairing, splits=pairs.splits, model=model).fitted.model
    retriever = Retriever.from_model(fitted, features=(x[:1000], y[:1000]))  # of images without captions
    retriever.add(x, ids=[str(row) for row in range(len(x))])
    test = y[pairs.caption_rows(pairs.image_rows("test"))[:1000]]
    vectors = []
    for view, rows in (("text", test), ("image", x)):
        path = tmp_path / f"{view}.onnx"
        retriever.export_onnx(path, view=view)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        vectors.append(session.run(["vectors"], {"features": rows})[0])
    queries, items = vectors
    scores = queries @ items.T
    best = np.argsort(-scores, axis=1)[:, :10]
    hits = np.array([[int(hit.id) for hit in own] for own in retriever.search(test, k=10)])
    assert np.mean(best == hits) > 0.999
    lengths = np.linalg.norm(queries, axis=1).max() * np.linalg.norm(items, axis=1).max()
    apart = np.take_along_axis(scores, best, 1) - np.take_along_axis(scores, hits, 1)
    assert np.abs(apart).max() <= rounding(np.float32, x.shape[1] + y.shape[1] + queries.shape[1], lengths)
