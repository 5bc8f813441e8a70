"""How well a library is searched in which some photos have captions, and others do not, on Flickr8k.

All 8,000 images of Flickr8k are in one gallery. A model is fitted on some of them with four of their
captions, drawn anew with each seed; the others are added as photos, without captions. The fifth captions of
all images are the queries. Everything is chosen on pairs that the fit holds out by itself. It stands beside

- the same model with every item where its image alone puts it, which is what AW-CCA is;
- text search: the best cosine of a query with an item's captions, both as MiniLM encodes them;
- reciprocal rank fusion of these two, 1 / (60 + rank) for each, of their best 1,000.

``--cost`` measures what it costs instead, beside items that captions do not place. ``--rules`` measures what
the rules rest on: how recall depends on the weight of the captions, and how far the offset that is chosen is
from the best one.
"""

from __future__ import annotations

from measuring import CAPTIONS, load_flickr8k, pin_threads, record

pin_threads(1)

import argparse  # noqa: E402
import time  # noqa: E402
import warnings  # noqa: E402
from collections.abc import Callable, Iterator  # noqa: E402

import numpy as np  # noqa: E402

from diptych import Retriever  # noqa: E402
from diptych.retrieval._calibration import calibration_error, reliability  # noqa: E402

PRESETS = {"AW-CCA": None, 'preset="best"': "best"}
SIZES, SEEDS, IMAGES = (6000, 2000, 500), 3, 8000
DEPTH, SMOOTHING = 1000, 60
BLOCK = 1000
COST_SIZE, REPEATS = 6000, 7
WEIGHTS, NUMBERS = (0.15, 0.25, 0.4, 0.57, 0.75), (1, 2, 4)
OFFSETS = np.arange(0.0, 0.26, 0.01)
ASKED = 3000

Hits = np.ndarray
"""The best ten items of each query, best first."""

NOTE = (
    "DINOv2-S and MiniLM features; all 8,000 images of Flickr8k in one gallery. r@1 / r@10 in percent of the "
    "fifth captions, mean of three draws. With captions: images that the model was fitted on, with four "
    "captions. Without: images added as photos. Mean: of both kinds' r@1."
)
NOTE_PROBABILITIES = (
    "Expected calibration error of the probability of the first hit, in 15 bins of equal width, mean of "
    "three draws: for first hits with captions and without, and for queries that mean an image with captions "
    "and without. Held out: images on which the probabilities were measured."
)
NOTE_WEIGHTS = (
    "AW-CCA. Geometric mean of the r@1, in percent, of images with captions and without, at the best "
    "offset for both, where w is the weight of the mean direction of so many captions beside that of the "
    f"image; {ASKED:,} queries, mean of three draws."
)
NOTE_OFFSETS = (
    "AW-CCA. The offset that the fit chose on held-out pairs and that follows the library, and the one with "
    f"the greatest geometric mean of both kinds' r@1 in it; {ASKED:,} queries."
)
NOTE_COST = (
    f"AW-CCA, {COST_SIZE:,} images with four captions each; the median of {REPEATS} runs side by side, one "
    "thread."
)


def draw(size: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the images that are fitted, the caption of every image that is a query, and the others."""
    rng = np.random.default_rng(seed)
    fitted = np.sort(rng.permutation(IMAGES)[:size])
    captions = rng.permuted(np.arange(IMAGES * CAPTIONS).reshape(IMAGES, CAPTIONS), axis=1)
    return fitted, captions[:, 0], captions[:, 1:]


def make_library(x: np.ndarray, y: np.ndarray, size: int, seed: int, preset: str | None) -> Retriever:
    """Fit on some images with captions, and add the others without."""
    fitted, _, others = draw(size, seed)
    ids = [f"{row}" for row in fitted]
    pairing = np.repeat(np.arange(size), CAPTIONS - 1)
    retriever = Retriever.from_features(x[fitted], y[others[fitted].ravel()], pairing, ids=ids, preset=preset)
    new = np.setdiff1d(np.arange(IMAGES), fitted)
    retriever.add(x[new], ids=[f"{row}" for row in new])
    return retriever


def search_blocks(score: Callable[[np.ndarray], np.ndarray], k: int) -> Hits:
    """Return the best items of all images' queries, from a function that scores some of them."""
    blocks = []
    for start in range(0, IMAGES, BLOCK):
        scores = score(np.arange(start, start + BLOCK))
        best = np.argpartition(-scores, k, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(scores, best, 1), axis=1, kind="stable")
        blocks.append(np.take_along_axis(best, order, 1))
    return np.concatenate(blocks)


def search_captions(y: np.ndarray, size: int, seed: int) -> Hits:
    """Return the images whose captions are nearest to each query, as their encoder compares them."""
    fitted, queries, others = draw(size, seed)
    unit = y / np.linalg.norm(y, axis=1, keepdims=True)

    def score(rows: np.ndarray) -> np.ndarray:
        scores = np.full((len(rows), IMAGES), -np.inf)
        cosines = unit[queries[rows]] @ unit[others[fitted].ravel()].T
        scores[:, fitted] = cosines.reshape(len(rows), len(fitted), -1).max(axis=2)
        return scores

    return search_blocks(score, min(DEPTH, size - 1))


def fuse_ranks(*rankings: Hits) -> Hits:
    """Return the best ten by the sum of 1 / (60 + rank)."""
    fused = []
    for lists in zip(*rankings, strict=True):
        scores = np.zeros(IMAGES)
        for hits in lists:
            scores[hits] += 1 / (SMOOTHING + 1 + np.arange(len(hits)))
        fused.append(np.argsort(-scores, kind="stable")[:10])
    return np.array(fused)


def measure_recalls(hits: Hits, kinds: np.ndarray) -> list[float]:
    """Return r@1 and r@10 of the images with captions, and of those without."""
    places = hits[:, :10] == np.arange(IMAGES)[:, None]
    return [100 * float(places[kind, :k].any(axis=1).mean()) for kind in (kinds, ~kinds) for k in (1, 10)]


def measure(
    x: np.ndarray, y: np.ndarray, size: int, seed: int, preset: str | None
) -> Iterator[tuple[str, list[float]]]:
    """Measure one library: yield the recalls of each way to search, and the errors of probabilities."""
    fitted, queries, _ = draw(size, seed)
    has_captions = np.isin(np.arange(IMAGES), fitted)
    retriever = make_library(x, y, size, seed, preset)
    results = [
        hits
        for start in range(0, IMAGES, BLOCK)
        for hits in retriever.search(y[queries[start : start + BLOCK]])
    ]
    hits = np.array([[int(hit.id) for hit in found] for found in results])
    yield "diptych", measure_recalls(hits, has_captions)
    projector = retriever.searcher.projectors["search"]
    items, asked = projector.items(x), projector.queries(y[queries])
    alone = search_blocks(lambda rows: asked[rows] @ items.T, DEPTH)
    yield "every item by its image alone", measure_recalls(alone, has_captions)
    captions = search_captions(y, size, seed)
    yield "text search in the captions", measure_recalls(captions, has_captions)
    yield "reciprocal rank fusion of these two", measure_recalls(fuse_ranks(alone, captions), has_captions)
    smaller = search_blocks(lambda rows: np.where(has_captions, -np.inf, asked[rows] @ items.T), 10)
    yield "only those without captions, alone", measure_recalls(smaller, has_captions)
    calibration = retriever.fitted.calibration
    if not isinstance(calibration, str):
        probabilities = np.array([found[0].probability for found in results])
        right, first = hits[:, 0] == np.arange(IMAGES), has_captions[hits[:, 0]]
        groups = [first, ~first, has_captions, ~has_captions]
        errors = [calibration_error(reliability(probabilities[group], right[group])) for group in groups]
        yield "probabilities", [*errors, 100 * float(first.mean()), calibration["search"].measured.gallery]


def measure_cost(x: np.ndarray, y: np.ndarray) -> list[dict[str, str]]:
    """Return what placing items by their captions costs, beside items that are not."""
    from diptych.retrieval._placing import add_coordinate, choose_offset

    fitted, queries, others = draw(COST_SIZE, 0)
    started = time.perf_counter()
    retriever = make_library(x, y, COST_SIZE, 0, None)
    seconds_fit = time.perf_counter() - started
    searcher = retriever.searcher
    projector = searcher.projectors["search"]
    texts = y[others[fitted].ravel()]
    owner = np.repeat(np.arange(COST_SIZE), CAPTIONS - 1)
    held_out = COST_SIZE // 5
    features = {"image": x[fitted[:held_out]], "text": texts[: held_out * (CAPTIONS - 1)]}
    owners = {"image": np.arange(held_out), "text": owner[: held_out * (CAPTIONS - 1)]}
    placed = add_coordinate(projector.items(x[fitted], texts, owner), np.ones(COST_SIZE, bool))
    plain, asked = placed[:, :-1].copy(), projector.queries(y[queries[:256]])
    longer = np.hstack([asked, np.ones((256, 1), np.float32)])
    tasks: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "choosing the offset, once for a fit": (
            lambda: choose_offset(projector, features, owners),
            lambda: None,
        ),
        "vectors of 6,000 images": (
            lambda: projector.items(x[fitted], texts, owner),
            lambda: projector.items(x[fitted]),
        ),
        "256 queries": (lambda: longer @ placed.T, lambda: asked @ plain.T),
    }
    rows = [{"step": "the whole fit and the additions", "seconds": f"{seconds_fit:.2f}", "without": ""}]
    for name, (new, old) in tasks.items():
        seconds = np.array([[_clock(run) for run in (new, old)] for _ in range(REPEATS)])
        with_captions, without = np.median(seconds, axis=0)
        rows.append({"step": name, "seconds": f"{with_captions:.4f}", "without": f"{without:.4f}"})
    return rows


def weigh_captions(images: np.ndarray, captions: np.ndarray, weight: float) -> np.ndarray:
    """Return unit vectors of images moved towards the mean direction of their captions."""
    means = captions.mean(axis=1)
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    moved = (1 - weight) * images + weight * means
    return moved / np.linalg.norm(moved, axis=1, keepdims=True)


def measure_offsets(scores: np.ndarray, rows: np.ndarray, has_captions: np.ndarray) -> np.ndarray:
    """Return both kinds' r@1 for each of the ``OFFSETS``; row i of the scores is for image ``rows[i]``."""
    places = np.arange(len(rows))
    right, rivals = scores[places, rows], scores.copy()
    rivals[places, rows] = -np.inf
    best, other = rivals[:, has_captions].max(axis=1), rivals[:, ~has_captions].max(axis=1)
    kind = has_captions[rows]
    hits = [right - offset * kind > np.maximum(best - offset, other) for offset in OFFSETS]
    return np.array([[100 * hit[kind].mean(), 100 * hit[~kind].mean()] for hit in hits])


def measure_rules(x: np.ndarray, y: np.ndarray, size: int, seed: int) -> tuple[np.ndarray, list[float]]:
    """Return the best geometric mean of both kinds' r@1 for each number and weight of captions.

    And the offset that is chosen, the best one, and the share of the best geometric mean that it reaches.
    """
    fitted, queries, others = draw(size, seed)
    has_captions = np.isin(np.arange(IMAGES), fitted)
    searcher = make_library(x, y, size, seed, None).searcher
    projector = searcher.projectors["search"]
    rows = np.random.default_rng([seed, 1]).permutation(IMAGES)[:ASKED]
    items, asked = projector.items(x), projector.queries(y[queries[rows]])
    captions = projector.queries(y[others[fitted].ravel()]).reshape(size, CAPTIONS - 1, -1)
    best = np.zeros((len(NUMBERS), len(WEIGHTS)))
    chosen: list[float] = []
    for at, number in enumerate(NUMBERS):
        for place, weight in enumerate(WEIGHTS):
            placed = items.copy()
            placed[fitted] = weigh_captions(items[fitted], captions[:, :number], weight)
            means = np.sqrt(measure_offsets(asked @ placed.T, rows, has_captions).prod(axis=1))
            best[at, place] = means.max()
            if (number, weight) == (NUMBERS[-1], WEIGHTS[-2]):
                offset = searcher.fitted.offsets["search"].compute(size, IMAGES - size)
                reached = float(np.interp(offset, OFFSETS, means))
                chosen = [offset, float(OFFSETS[means.argmax()]), 100 * reached / means.max()]
    return best, chosen


def list_rules(
    x: np.ndarray, y: np.ndarray, seeds: range
) -> tuple[list[dict[str, str]], list[dict[str, str]]]:
    """Return the tables of weights and of offsets."""
    weights, offsets = [], []
    for size in SIZES:
        measured = [measure_rules(x, y, size, seed) for seed in seeds]
        means = np.mean([best for best, _ in measured], axis=0)
        for number, values in zip(NUMBERS, means, strict=True):
            columns = {f"w = {w}": f"{value:.1f}" for w, value in zip(WEIGHTS, values, strict=True)}
            weights.append({"with captions": f"{size:,}", "captions": f"{number}", **columns})
        for seed, (_, (offset, best, share)) in zip(seeds, measured, strict=True):
            row = {"with captions": f"{size:,}", "draw": f"{seed + 1}", "chosen b": f"{offset:.3f}"}
            offsets.append(row | {"best b": f"{best:.2f}", "of the best geometric mean": f"{share:.1f} %"})
        print(*weights[-len(NUMBERS) :], *offsets[-len(seeds) :], sep="\n", flush=True)
    return weights, offsets


def _clock(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost", action="store_true", help="measure seconds, not recall")
    parser.add_argument("--rules", action="store_true", help="measure what the rules rest on")
    parser.add_argument("--trial", action="store_true", help="one draw of each, and record nothing")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    x, y, _ = load_flickr8k("dinov2s-halves", "minilm")
    if options.cost:
        rows = measure_cost(x, y)
        print(*rows, sep="\n")
        if not options.trial:
            record("library_cost", rows, NOTE_COST)
        return
    if options.rules:
        weights, offsets = list_rules(x, y, range(1 if options.trial else SEEDS))
        if not options.trial:
            record("library_weights", weights, NOTE_WEIGHTS)
            record("library_offsets", offsets, NOTE_OFFSETS)
        return
    recalls, errors = [], []
    for model, preset in PRESETS.items():
        for size in SIZES:
            seeds = range(1 if options.trial else SEEDS)
            measured = [dict(measure(x, y, size, seed, preset)) for seed in seeds]
            today = np.mean([one["every item by its image alone"] for one in measured], axis=0)
            for way in measured[0]:
                values = np.mean([one[way] for one in measured], axis=0)
                row = {"with captions": f"{size:,}", "model": model}
                if way == "probabilities":
                    names = ("first hit with captions", "first hit without", "query with", "query without")
                    row |= {name: f"{value:.3f}" for name, value in zip(names, values, strict=False)}
                    row |= {"first hits with captions": f"{values[4]:.0f} %", "held out": f"{values[5]:.0f}"}
                    errors.append(row)
                    print(row, flush=True)
                    continue
                row |= {
                    "search": way,
                    "images with captions": f"{values[0]:.1f} / {values[1]:.1f}",
                    "images without": f"{values[2]:.1f} / {values[3]:.1f}",
                    "mean": f"{(values[0] + values[2]) / 2:.1f}",
                }
                if way == "diptych":
                    row["times the image alone"] = (
                        f"{values[0] / today[0]:.2f} and {values[2] / today[2]:.2f}"
                    )
                recalls.append(row)
                print(row, flush=True)
    if not options.trial:
        head = dict.fromkeys(key for row in recalls for key in row)
        record("library", [{key: row.get(key, "") for key in head} for row in recalls], NOTE)
        record("library_probabilities", errors, NOTE_PROBABILITIES)


if __name__ == "__main__":
    main()
