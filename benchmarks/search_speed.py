"""Searching: batches against bare FAISS on the same vectors, and where the time of one query goes.

The vectors are canonical embeddings of two noisy views of a hidden cause, 100,000 × 512: isotropic noise
would tell nothing about a graph. The lines are timed in turn, seven times over, and the fastest counts.
"""

from __future__ import annotations

import sys
import time

from recording import pin_threads, real_data, record

THREADS = 2
pin_threads(THREADS)

import faiss  # noqa: E402
import numpy as np  # noqa: E402

from diptych import AWCCA, HKSE, Retriever  # noqa: E402
from diptych.data import PairedViews, read_pairs  # noqa: E402
from diptych.retrieval.stores._faiss import VectorIndex  # noqa: E402

ITEMS, COLUMNS, QUERIES, K = 100_000, 512, 1000, 10


def fastest(function, times=5):
    best = float("inf")
    for _ in range(times):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best


def batches() -> None:
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(ITEMS, 64)).astype(np.float32)
    x, y = (
        (hidden @ rng.normal(size=(64, COLUMNS)) + 3 * rng.normal(size=(ITEMS, COLUMNS))).astype(np.float32)
        for _ in range(2)
    )
    model = AWCCA(params=(1e4, 1e4), precision="float32")
    retriever = Retriever.from_features(x, y, model=model, keep_features=False)
    embedding, index = retriever.searcher.embedding, retriever.store.indexes["search"]
    vectors = np.concatenate([chunk.vectors for chunk in index.chunks()])
    asked = y[rng.choice(ITEMS, QUERIES, replace=False)]
    queries = embedding.queries(asked, "search")
    bare = faiss.IndexFlatIP(vectors.shape[1])
    bare.add(vectors)
    half = VectorIndex(vectors.shape[1], "float16")
    half.add(np.arange(ITEMS), vectors)
    graph = VectorIndex.of(vectors, np.ones(ITEMS, np.float32), np.arange(ITEMS))
    start = time.perf_counter()
    recall = graph.build_graph(queries[:500]).recall
    build = time.perf_counter() - start
    truth = bare.search(queries, K)[1]
    ways = {
        "FAISS `IndexFlatIP`": lambda q, _: bare.search(q, K)[1],
        "index": lambda q, _: index.search(q, K)[1],
        "`Retriever.search` of features, with names": lambda _, f: [
            [hit.id for hit in hits] for hits in retriever.search(f, K)
        ],
        "index, float16": lambda q, _: half.search(q, K)[1],
        f"index, HNSW (built in {build:.0f} s)": lambda q, _: graph.search(q, K)[1],
    }
    same, timed = {}, {name: [float("inf"), float("inf")] for name in ways}
    for name, search in ways.items():
        found = search(queries, asked)
        hits = [len({*map(int, a)} & {*b.tolist()}) for a, b in zip(found, truth, strict=True)]
        same[name] = np.mean(hits) / K
    for _ in range(7):
        for name, search in ways.items():
            batch = fastest(lambda search=search: search(queries, asked), 1)
            single = fastest(lambda search=search: search(queries[:1], asked[:1]), 5)
            timed[name] = [min(timed[name][0], batch), min(timed[name][1], single)]
    reference = timed["FAISS `IndexFlatIP`"]
    rows = [
        {
            "search": name,
            f"batch of {QUERIES:,}": f"{1000 * batch:.0f} ms",
            "queries per second": f"{QUERIES / batch:,.0f}",
            "× FAISS's time": f"{batch / reference[0]:.2f}",
            "one query": f"{1000 * single:.1f} ms",
            "× FAISS's": f"{single / reference[1]:.2f}",
            f"of the {K} best": f"{100 * same[name]:.1f} %",
        }
        for name, (batch, single) in timed.items()
    ]
    note = f"{ITEMS:,} × {vectors.shape[1]} vectors, {K} best; the graph's own recall at build: {recall:.3f}."
    record("search_speed", rows, note)


def one_query() -> None:
    folder = real_data() / "flickr8k"
    pairs = read_pairs(folder / "dataset_flickr8k.json", images=folder / "images")
    x = np.load(folder / "resnet50.npy").astype(np.float32)
    text = HKSE(real_data() / "word2vec-googlenews-26k.bin").fit(pairs.subset("train").captions)
    y = text.transform(pairs.captions, unknown="mean")
    retriever = Retriever(None, text, AWCCA(params=(1e3, 1.0), precision="float32"))
    retriever.fit(PairedViews(pairs, x, y))
    query = "a dog in the snow"
    embedding, index = retriever.searcher.embedding, retriever.store.indexes["search"]
    features = retriever.encoders.encode_texts([query], queries=True)
    vectors = embedding.queries(features, "search")
    whole = fastest(lambda: retriever.search(query, K), 50)
    steps = {
        "words → HKSE(rbf, rbf), 2,000 × 2,000": fastest(
            lambda: retriever.encoders.encode_texts([query], queries=True), 50
        ),
        "HKSE → canonical vector": fastest(lambda: embedding.queries(features, "search"), 50),
        f"{len(index):,} × {index.dimension} inner products, 10 best": fastest(
            lambda: index.search(vectors, K), 50
        ),
    }
    steps["names, and the rest"] = max(0.0, whole - sum(steps.values()))
    steps['**`search("a dog in the snow")`**'] = whole
    rows = [{"step": name, "time": f"{1000 * value:.2f} ms"} for name, value in steps.items()]
    record("one_query", rows, "Flickr8k, all 8,000 images; the fastest of 50.")


if __name__ == "__main__":
    batches()
    if "--no-data" not in sys.argv:
        one_query()
