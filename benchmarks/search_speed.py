"""Searching: ``python benchmarks/search_speed.py [batches|query|probabilities|folder|startup]``.

``batches``: batches against bare FAISS on the same vectors. These are canonical vectors of two noisy views of
a hidden cause, 100,000 × 512: isotropic noise would say nothing about a graph. Timed in turn, seven times;
the fastest counts.

``query``: where the time of one query on Flickr8k goes.

``probabilities``: what they add to a search of 100,000 items, one query and 64 at a time.

``folder``: what it costs to save a model, to load it, and to add one item to it; with ``--before OTHER/src``
also for another checkout, in turn, in processes of their own.

``startup``: what a command takes from its start to its end, beside the imports it cannot do without.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

from measuring import (
    find_data,
    find_word_vectors,
    measure_fastest,
    pin_threads,
    read_features,
    record,
    run_alone,
    time_call,
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument(
    "part", nargs="?", choices=["batches", "query", "probabilities", "folder", "startup", "save"]
)
parser.add_argument("--before", type=Path, help="folder: the src folder of another checkout")
parser.add_argument("--rounds", type=int, default=7, help="folder: how often each is measured")
options = parser.parse_args()
pin_threads(2 if options.part in (None, "batches", "query") else 1)

import numpy as np  # noqa: E402

from diptych import AWCCA, HKSE, Retriever  # noqa: E402
from diptych.cli import Commands, Encode  # noqa: E402
from diptych.data import PairedDataset, PairedViews, read_pairs  # noqa: E402

ITEMS, COLUMNS, QUERIES, K = 100_000, 512, 1000, 10
STEPS = ("first save", "save again", "load", "load, mapped", "load, add one item, save", "MB on disk")
SAVED_ITEMS, SAVED_FEATURES = 5000, 1024
IMAGES, TIMES = 8000, 5
WORDS = ["red", "green", "blue", "dog", "cat", "car", "tree", "house", "snow", "sand", "sea", "sky"]


def measure_batches() -> None:
    import faiss

    from diptych.retrieval._placing import add_offset  # another checkout may not have these
    from diptych.retrieval.stores._faiss import VectorIndex

    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(ITEMS, 64)).astype(np.float32)
    x, y = (
        (hidden @ rng.normal(size=(64, COLUMNS)) + 3 * rng.normal(size=(ITEMS, COLUMNS))).astype(np.float32)
        for _ in range(2)
    )
    model = AWCCA(params=(1e4, 1e4), precision="float32")
    retriever = Retriever.from_features(x, y, model=model, keep_features=False)
    projector, index = retriever.searcher.projectors["search"], retriever.store.indexes["search"]
    vectors = np.concatenate([chunk.vectors for chunk in index.chunks()])
    features = y[rng.choice(ITEMS, QUERIES, replace=False)]
    queries = add_offset(projector.queries(features), 0.0)
    bare = faiss.IndexFlatIP(vectors.shape[1])
    bare.add(vectors)
    half = VectorIndex(vectors.shape[1], "float16")
    half.add(np.arange(ITEMS), vectors)
    graph = VectorIndex.of(vectors, np.arange(ITEMS))
    build, recall = time_call(lambda: graph.build_graph(queries[:500]).recall)
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
        results = search(queries, features)
        hits = [len({*map(int, a)} & {*b.tolist()}) for a, b in zip(results, truth, strict=True)]
        same[name] = np.mean(hits) / K
    for _ in range(7):
        for name, search in ways.items():
            batch = measure_fastest(lambda search=search: search(queries, features), 1)
            single = measure_fastest(lambda search=search: search(queries[:1], features[:1]), 5)
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


def measure_probabilities() -> None:
    from diptych.retrieval._inputs import Search
    from diptych.retrieval._searcher import Searcher

    rng = np.random.default_rng(0)
    hidden, maps = rng.normal(size=(3000, 64)), rng.normal(size=(2, 64, COLUMNS))
    x, y = (hidden @ own + 3 * rng.normal(size=(3000, COLUMNS)) for own in maps)
    splits = ["train"] * 2000 + ["val"] * 1000
    model = AWCCA(params=(1e3, 1e3), precision="float32")
    retriever = Retriever.from_features(x, y, splits=splits, model=model, keep_features=False)
    more = rng.normal(size=(ITEMS - 3000, 64)) @ maps[0] + 3 * rng.normal(size=(ITEMS - 3000, COLUMNS))
    retriever.add(more.astype(np.float32), ids=[f"more {i}" for i in range(len(more))])
    own = retriever.searcher
    without = Searcher(replace(own.fitted, calibration="left out"), own.store, own.encoders)
    rows = []

    def read(results):
        """Make all hits, which a search leaves until they are read."""
        return [hit for hits in results for hit in hits]

    for number in (1, 64):
        search = Search("text", "image", y[:number].astype(np.float32), k=K)
        times = [float("inf"), float("inf")]
        for _ in range(40 if number == 1 else 7):
            for at, searcher in enumerate((without, own)):
                took = measure_fastest(lambda s=searcher: read(s.search(search)), 3)  # noqa: B023
                times[at] = min(times[at], took)
        rows.append(
            {
                "queries": number,
                "without": f"{1000 * times[0]:.1f} ms",
                "with probabilities": f"{1000 * times[1]:.1f} ms",
                "×": f"{times[1] / times[0]:.2f}",
            }
        )
    record("probabilities_speed", rows, f"{ITEMS:,} × {own.projectors['search'].dimension} vectors, exact.")


def measure_query() -> None:
    from diptych.retrieval._placing import add_offset

    folder = find_data() / "flickr8k"
    pairs = read_pairs(folder / "dataset_flickr8k.json", images=folder / "images")
    x = read_features("resnet50")
    text = HKSE(find_word_vectors()).fit(pairs.subset("train").captions)
    y = text.transform(pairs.captions, unknown="mean")
    retriever = Retriever(None, text, AWCCA(params=(1e3, 1.0), precision="float32"))
    retriever.fit(PairedViews(pairs, x, y))
    query = "a dog in the snow"
    projector, index = retriever.searcher.projectors["search"], retriever.store.indexes["search"]
    features, _ = retriever.encoders.encode_queries([query])
    vectors = add_offset(projector.queries(features), 0.0)
    whole = measure_fastest(lambda: retriever.search(query, K), 50)
    steps = {
        "words → HKSE(rbf, rbf), 2,000 × 2,000": measure_fastest(
            lambda: retriever.encoders.encode_queries([query]), 50
        ),
        "HKSE → canonical vector": measure_fastest(lambda: projector.queries(features), 50),
        f"{len(index):,} × {index.dimension} inner products, 10 best": measure_fastest(
            lambda: index.search(vectors, K), 50
        ),
    }
    steps["names, and the rest"] = max(0.0, whole - sum(steps.values()))
    steps['**`search("a dog in the snow")`**'] = whole
    rows = [{"step": name, "time": f"{1000 * value:.2f} ms"} for name, value in steps.items()]
    record("one_query", rows, "Flickr8k, all 8,000 images; the fastest of 50.")


def measure_save() -> dict[str, float]:
    """Return the milliseconds of each step, once."""
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAVED_ITEMS, SAVED_FEATURES)).astype(np.float32)
    half = SAVED_FEATURES // 2
    y = (x[:, :half] + rng.normal(size=(SAVED_ITEMS, half))).astype(np.float32)
    retriever = Retriever.from_features(x, y, model=AWCCA(params=(1.0, 1.0)))

    def add() -> None:
        loaded = Retriever.load(folder)
        loaded.add(x[:1], ids=["one more"])
        loaded.save(folder)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        work = (
            lambda: retriever.save(folder),
            lambda: retriever.save(folder),
            lambda: Retriever.load(folder),
            lambda: Retriever.load(folder, mmap=True),
            add,
        )
        times = {step: 1000 * time_call(function)[0] for step, function in zip(STEPS, work, strict=False)}
        times[STEPS[-1]] = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file()) / 1e6
    return times


def measure_folder() -> None:
    sources = {"now": Path(__file__).parents[1] / "src"}
    if options.before:
        sources = {"before": options.before, **sources}
    times: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    for _ in range(options.rounds):
        for name, source in sources.items():
            times[name].append(run_alone("save", PYTHONPATH=str(source)))
    rows = [
        {"step": step}
        | {
            name: f"{statistics.median(once[step] for once in all_times):.0f}"
            + (" MB" if step.startswith("MB") else " ms")
            for name, all_times in times.items()
        }
        for step in STEPS
    ]
    note = f"{SAVED_ITEMS:,} pairs, {SAVED_FEATURES} and {SAVED_FEATURES // 2} features; medians of "
    record("model_folder", rows, note + f"{options.rounds} runs, taken in turn.")


def make_model(folder: Path) -> None:
    """Save a model of 8,000 images with five captions each; what it finds does not matter here.

    It has the size of one of Flickr8k: HKSE with a vocabulary of 7,000 words and 2,000 features, images with
    2,048, vectors of 2,000.
    """
    rng = np.random.default_rng(0)
    words = [*WORDS, *(f"word{i}" for i in range(7000 - len(WORDS)))]
    frequency = 1 / np.arange(5, 5 + len(words))
    drawn = rng.choice(words, (5 * IMAGES, 10), p=frequency / frequency.sum())
    captions = tuple(map(" ".join, drawn.tolist()))
    text = HKSE()
    y = np.asarray(text.fit_transform(captions), np.float32)
    x = rng.normal(size=(IMAGES, 2048)).astype(np.float32)
    x[:, : y.shape[1]] += 30 * y[::5]
    owners = np.repeat(np.arange(IMAGES), 5)
    pairs = PairedDataset(tuple(f"{i}.jpg" for i in range(IMAGES)), captions, owners)
    model = AWCCA(params=(1e3, 1.0), precision="float32")
    retriever = Retriever(None, text, model, keep_features=False)
    retriever.fit(PairedViews(pairs, x, y)).save(folder)


def measure_startup() -> None:
    python, here = [sys.executable, "-c"], [sys.executable, "-m", "diptych"]
    query = "a dog in the snow"
    # As installed: without a cache of compiled modules, every start would compile them.
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as scratch:
        model, row = f"{scratch}/model", f"{scratch}/row.npy"
        make_model(Path(model))
        np.save(row, np.ones((1, 2048), np.float32))
        opened = "typer with pydantic, NumPy, FAISS, the model with its HKSE"
        commands = {
            'python -c "import numpy, faiss"': ("NumPy, FAISS", [*python, "import numpy, faiss"]),
            'python -c "import sklearn.base"': ("scikit-learn", [*python, "import sklearn.base"]),
            'python -c "import diptych"': ("nothing more", [*python, "import diptych"]),
            "diptych --version": ("typer", [*here, "--version"]),
            "diptych --help": ("typer, rich", [*here, "--help"]),
            f'diptych search model "{query}"': (opened, [*here, "search", model, query]),
            f'diptych similar model "{query}"': (opened, [*here, "similar", model, query]),
            "diptych annotate model --features row.npy": (
                opened,
                [*here, "annotate", model, "--features", row],
            ),
        }
        helps = [*Commands.table, *(f"encode {name}" for name in Encode.table)]
        commands |= {
            f"diptych {name} --help": ("typer, rich", [*here, *name.split(), "--help"]) for name in helps
        }
        fastest = dict.fromkeys(commands, float("inf"))
        for _ in range(TIMES):
            for name, (_loads, command) in commands.items():
                run = partial(subprocess.run, command, env=env, check=True, capture_output=True)
                fastest[name] = min(fastest[name], time_call(run)[0])
    bare = next(iter(fastest.values()))
    rows = [
        {
            "command": f"`{name}`",
            "loads": commands[name][0],
            "seconds": f"{seconds:.2f}",
            "times the first": f"{seconds / bare:.1f}",
        }
        for name, seconds in fastest.items()
    ]
    record(
        "startup",
        rows,
        f"Fastest of {TIMES}, taken in turn. The model has {IMAGES:,} images with 2,048 features and five "
        "captions each, HKSE with a vocabulary of 7,000 words and 2,000 features, and vectors of 2,000.",
    )


if __name__ == "__main__":
    if options.part == "save":
        print(json.dumps(measure_save()))
    for name in [options.part] if options.part else ["batches", "query"]:
        if name != "save":
            globals()[f"measure_{name}"]()
