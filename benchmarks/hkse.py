"""HKSE: ``python benchmarks/hkse.py approximation``, ``quality``, ``speed`` or ``words``.

``approximation``: how near the random features come to the exact kernels, and how often Proposition 1 is
violated, with the paper's constants and with those that Hoeffding's inequality gives. Real word vectors,
Flickr8k captions.

``quality``: Flickr8k with ResNet-50 as it is: the four kinds of HKSE, five seeds each, mean and spread on
test. Filters are selected on the validation split's r@1 for each task.

``speed``: the vocabulary trick beside a token-by-token version, and a COCO-sized stream of captions into
moments. Each part runs in a process of its own. The stream's captions follow Flickr8k's lengths and word
frequencies.

``words``: what it costs to keep 50,000 further words for queries. The file is the real one, followed by words
with random vectors up to 100,000.
"""

from __future__ import annotations

import argparse
import json
import pickle
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from measuring import (
    CAPTIONS,
    TRAIN,
    clock,
    find_data,
    find_word_vectors,
    log_test_run,
    measure_fastest,
    pin_threads,
    read_captions,
    read_features,
    read_memory,
    record,
    run_alone,
    split_flickr8k,
    time_call,
)

pin_threads(2)

import numpy as np  # noqa: E402
import scipy.sparse  # noqa: E402
from sklearn.pipeline import FeatureUnion  # noqa: E402

from diptych import AWCCA, HKSE, retrieval_scores  # noqa: E402
from diptych._model_folder import current_version  # noqa: E402
from diptych.cca import Moments  # noqa: E402
from diptych.encoders import (  # noqa: E402
    hkse_dimensions,
    hkse_factor,
    read_word_vectors,
    sentence_kernel,
    tokenize,
    word_kernel,
)
from diptych.encoders._hkse_encoder import read_hkse  # noqa: E402
from diptych.encoders._kernels import draw_fourier, fourier_features, make_generator, median_gamma  # noqa: E402
from diptych.encoders._words import Corpus, mean_rows  # noqa: E402

EPSILON, ETA, DRAWS, SENTENCES = 0.05, 0.01, 10, 600
TASKS = ("search", "annotate")
REFERENCE = {  # single runs of a script: search and annotate r@1
    "HKSE(lin, lin)": (22.4, 30.3),
    "HKSE(lin, rbf)": (22.8, 30.3),
    "HKSE(rbf, rbf)": (23.7, 32.8),
}
IMAGES, IMAGE_FEATURES = 113_287, 2048
WORD_FEATURES, SENTENCE_FEATURES = 2000, 3000
BLOCK_ROWS, PEAK_ROWS = 10_240, 2560


def load_words():
    """Return the vectors of all words, some captions as known words, and the longest caption's length."""
    captions = read_captions()
    words = {word for caption in captions for word in tokenize(caption)}
    vectors = read_word_vectors(find_word_vectors(), words)
    known = [[w for w in tokenize(caption) if w in vectors] for caption in captions]
    longest = max(map(len, known))
    drawn = np.random.default_rng(0).choice(len(known), size=SENTENCES, replace=False)
    return vectors, [known[i] for i in drawn if known[i]], longest


def measure_word_errors(vectors, gamma, m, seed, block=1024):
    """Return root mean square, largest error, and share of pairs beyond each δ, over all pairs of words."""
    features = fourier_features(
        vectors.matrix, *draw_fourier(vectors.dimensions, m, gamma, make_generator(seed))
    )
    squares, largest, beyond = 0.0, 0.0, np.zeros(2)
    for start in range(0, len(vectors), block):
        exact = word_kernel(vectors.matrix[start : start + block], vectors.matrix, gamma=gamma)
        error = np.abs(features[start : start + block] @ features.T - exact)
        squares += float((error.astype(np.float64) ** 2).sum())
        largest = max(largest, float(error.max()))
        beyond += [np.count_nonzero(error > delta) for delta in (0.1, 0.25)]
    pairs = len(vectors) ** 2
    return np.sqrt(squares / pairs), largest, beyond / pairs


def compute_means(vectors, sentences, gamma, m, seed):
    table = fourier_features(
        vectors.matrix, *draw_fourier(vectors.dimensions, m, gamma, make_generator(seed, 1))
    )
    rows, ends = Corpus.of(sentences).lookup(vectors.index)
    return mean_rows(table, rows, ends)


def compute_gram(means, eta, m2, seed, chunk=8192):
    """Return K̂, summed over chunks of features, so that a large m' needs no large matrix."""
    gram = np.zeros((len(means), len(means)))
    rng = make_generator(seed, 2)
    for start in range(0, m2, chunk):
        size = min(chunk, m2 - start)
        features = fourier_features(means, *draw_fourier(means.shape[1], size, eta, rng)).astype(np.float64)
        gram += size / m2 * (features @ features.T)
    return gram


def measure_convergence(vectors, sentences, gamma, word_vectors):
    exact = {eta: sentence_kernel(word_vectors, gamma=gamma, eta=eta) for eta in (ETA, 2.0)}
    rows = []
    for m in (125, 500, 2000, 8000):
        word = np.array([measure_word_errors(vectors, gamma, m, seed)[:2] for seed in range(5)])
        row = {
            "m = m'": m,
            "word kernel, rms error": f"{np.sqrt((word[:, 0] ** 2).mean()):.4f}",
            "× √m": f"{np.sqrt(m * (word[:, 0] ** 2).mean()):.2f}",
            "largest of all pairs": f"{word[:, 1].max():.3f}",
        }
        squares = {eta: [] for eta in exact}
        # All pairs of a draw err together, so many draws are needed for a steady figure.
        for seed in range(48):
            means = compute_means(vectors, sentences, gamma, m, seed)
            for eta, target in exact.items():
                squares[eta].append(((compute_gram(means, eta, m, seed) - target) ** 2).mean())
        for eta, values in squares.items():
            row[f"K at η = {eta:g}, rms error"] = f"{np.sqrt(np.mean(values)):.4f}"
            row[f"× √m (η = {eta:g})"] = f"{np.sqrt(m * np.mean(values)):.2f}"
        rows.append(row)
    return rows


def count_violations(vectors, sentences, gamma, word_vectors, longest):
    exact = sentence_kernel(word_vectors, gamma=gamma, eta=ETA)
    distances = -2.0 / ETA * np.log(exact)
    rows = []
    for delta in (0.1, 0.25):
        for constants in ("paper", "hoeffding"):
            m, m2 = hkse_dimensions(len(vectors), longest, delta, EPSILON, constants)
            word = [measure_word_errors(vectors, gamma, m, seed) for seed in range(DRAWS)]
            factor = hkse_factor(ETA, delta, constants)
            multiple = 3 if constants == "paper" else 4
            middle, outer, measured = [], [], m * m2 <= 4e8
            for seed in range(DRAWS):
                means = compute_means(vectors, sentences, gamma, m, seed)
                squares = (means**2).sum(1)
                approximate = squares[:, None] + squares[None] - 2 * means @ means.T
                middle.append(np.mean(np.abs(approximate - distances) > multiple * delta))
                if measured:
                    gram = compute_gram(means, ETA, m2, seed)
                    outside = (gram > factor * exact + delta) | (gram < exact / factor - delta)
                    outer.append(np.mean(outside))
            largest = max(entry[1] for entry in word)
            share = np.mean([entry[2][(0.1, 0.25).index(delta)] for entry in word])
            rows.append(
                {
                    "δ": delta,
                    "constants": constants,
                    "m": m,
                    "m'": m2,
                    "words: draws that violate": f"{sum(e[1] > delta for e in word)} of {DRAWS}",
                    "pairs that violate": f"{100 * share:.4f} %",
                    "largest error": f"{largest:.3f}",
                    "‖μ̂₁−μ̂₂‖² off by over 3δ (paper), 4δ": format_draws(middle),
                    "sentences: draws that violate": format_draws(outer)
                    if measured
                    else "m' too large to run",
                }
            )
    return rows


def format_draws(shares) -> str:
    return f"{sum(share > 0 for share in shares)} of {len(shares)}"


def measure_approximation() -> None:
    vectors, sentences, longest = load_words()
    gamma = median_gamma(vectors.matrix, make_generator(0))
    word_vectors = [np.array([vectors[word] for word in words]) for words in sentences]
    note = f"{len(vectors)} words (all pairs), {len(sentences)} captions (all pairs), γ = {gamma:.4f}."
    record("hkse_convergence", measure_convergence(vectors, sentences, gamma, word_vectors), note)
    note += f" ε = {EPSILON}, η = {ETA}, longest caption {longest} known words; at most {EPSILON:.0%} of the"
    note += " draws may violate a bound at the word level, and as many at the sentence level."
    record("hkse_violations", count_violations(vectors, sentences, gamma, word_vectors, longest), note)


def make_encoders(vectors, seed):
    """Return the encoders to compare; the one without a draw is made for the first seed alone."""
    kinds = {} if seed else {"HKSE(lin, lin)": HKSE(vectors, "lin", "lin")}
    kinds["HKSE(lin, rbf)"] = HKSE(vectors, "lin", "rbf", random_state=seed)
    kinds["HKSE(rbf, lin)"] = HKSE(vectors, "rbf", "lin", random_state=seed)
    kinds["HKSE(rbf, rbf)"] = HKSE(vectors, "rbf", "rbf", random_state=seed)
    return kinds


def make_more_encoders(vectors, seed):
    """Return the paper's concatenation, and an HKSE of vectors learned from the captions."""
    kinds = {
        name: HKSE(vectors, word, "rbf", random_state=seed) for name, word in (("lin", "lin"), ("rbf", "rbf"))
    }
    return {
        "HKSE(lin, rbf) and HKSE(rbf, rbf) side by side": FeatureUnion(list(kinds.items())),
        "HKSE(rbf, rbf), vectors learned from the captions": HKSE(None, random_state=seed),
    }


def measure_quality(seeds: int = 5, grid: int = 20) -> None:
    with log_test_run(__file__) as logged:
        logged += (rows := measure_kinds(seeds, grid))
    note = (
        "r@1 / r@5 / r@10 / median rank on the test split, means over seeds; ± is the standard deviation of "
        f"r@1 over seeds. Tikhonov filters from a {grid} × {grid} grid by validation r@1. The reference is a "
        "single run of a throw-away script."
    )
    record("hkse_quality", rows, note)


def measure_kinds(seeds: int, grid: int) -> list[dict[str, str]]:
    """Return the rows of the table, one for each kind of HKSE."""
    captions = read_captions()
    pairing = np.arange(len(captions)) // CAPTIONS
    parts = split_flickr8k(read_features("resnet50"), captions, pairing)
    scores: dict[str, list[list[float]]] = {}
    for seed in range(seeds):
        vectors = find_word_vectors()
        kinds = make_encoders(vectors, seed) | (make_more_encoders(vectors, seed) if seed == 0 else {})
        for name, text in kinds.items():
            start = clock()
            features = text.fit_transform(parts[0][1])
            validation, test = ((x, embed(text, own), rows) for x, own, rows in parts[1:])
            model = AWCCA(filter="tikhonov", grid=grid)
            model.fit(parts[0][0], features, parts[0][2], validation=validation)
            figures = []
            for task in TASKS:
                summary = retrieval_scores(*model.transform(*test[:2], task=task), test[2], task=task)
                figures.append([summary[key] for key in ("r@1", "r@5", "r@10", "median_rank")])
            scores.setdefault(name, []).append(figures)
            print(seed, name, figures, f"{clock() - start:.0f} s", flush=True)
    return [make_row(name, np.array(values)) for name, values in scores.items()]


def embed(text, sentences):
    """Return features of captions that may have no known word."""
    if isinstance(text, FeatureUnion):
        return np.hstack([part.transform(sentences, unknown="mean") for _, part in text.transformer_list])
    return text.transform(sentences, unknown="mean")


def format_spread(values) -> str:
    return f" (±{values.std(ddof=1):.2f})" if len(values) > 1 else ""


def make_row(name, values):
    """Return seeds × tasks × figures as a row of the table."""
    means = values.mean(axis=0)
    both = values[:, :, 0].mean(axis=1)
    line = {"text": name, "seeds": len(values) if name != "HKSE(lin, lin)" else "no draw"}
    for i, task in enumerate(TASKS):
        figures = " / ".join(f"{value:.1f}" for value in means[i, :3]) + f" / {means[i, 3]:.0f}"
        line[task] = figures + format_spread(values[:, i, 0])
    line["r@1, both tasks"] = f"{both.mean():.2f}{format_spread(both)}"
    reference = REFERENCE.get(name)
    line["reference"] = f"{np.mean(reference):.2f}" if reference else ""
    return line


def measure_trick() -> dict[str, float]:
    """Encode 40,000 captions both ways, from the same token numbers, in the same blocks."""
    captions = read_captions()
    encoder = HKSE(find_word_vectors()).fit(captions).encoder_
    rows, ends = Corpus.of(captions).lookup(encoder.vectors.index)
    vectors, (weights, offsets) = encoder.vectors.matrix, encoder.word_map

    def split(rows, ends):
        for first in range(0, len(ends), 2048):
            start = ends[first - 1] if first else 0
            part = ends[first : first + 2048]
            yield rows[start : part[-1]], part - start

    def average_by_vocabulary(rows=rows, ends=ends):
        table = fourier_features(vectors, weights, offsets)
        for own, stops in split(rows, ends):
            yield mean_rows(table, own, stops)

    def average_by_token(rows=rows, ends=ends):
        for own, stops in split(rows, ends):
            features = fourier_features(vectors[own], weights, offsets)
            lengths = np.diff(stops, prepend=0)
            share = np.repeat(np.float32(1) / np.maximum(lengths, 1), lengths).astype(np.float32)
            tokens = np.arange(len(own))
            bag = scipy.sparse.csr_matrix((share, tokens, np.concatenate([[0], stops])))
            yield bag @ features

    def drain(word_layer):
        for _ in word_layer():
            pass

    def encode(word_layer):
        """Go from strings to the last feature, tokenisation included."""
        own, stops = Corpus.of(captions).lookup(encoder.vectors.index)
        for means in word_layer(own, stops):
            fourier_features(means, *encoder.sentence_map)

    layers = (average_by_vocabulary, average_by_token)
    largest = max(
        np.abs(a - b).max() for a, b in zip(average_by_vocabulary(), average_by_token(), strict=True)
    )
    return {
        "tokens": len(rows),
        "vocabulary": len(encoder.vectors),
        "difference": float(largest),
        "word_layer": [measure_fastest(partial(drain, layer), 3) for layer in layers],
        "end_to_end": [measure_fastest(partial(encode, layer), 2) for layer in layers],
    }


def measure_stream() -> dict[str, float]:
    """Encode 566,435 captions by HKSE(rbf, rbf), and add them block by block to the moments."""
    captions = draw_captions(read_captions())
    images = np.load(find_data() / "flickr8k" / "resnet50.npy", mmap_mode="r")
    rng = np.random.default_rng(1)
    hkse = HKSE(find_word_vectors(), word_features=WORD_FEATURES, sentence_features=SENTENCE_FEATURES)
    fit_seconds, _ = time_call(lambda: hkse.fit(captions))
    moments = Moments.zero(IMAGE_FEATURES, SENTENCE_FEATURES, precision="float32")
    # The machine's speed changes while others use it, so the product alone is timed beside every block.
    rng_peak = np.random.default_rng(2)
    left = rng_peak.standard_normal((PEAK_ROWS, WORD_FEATURES), dtype=np.float32)
    right = rng_peak.standard_normal((WORD_FEATURES, SENTENCE_FEATURES), dtype=np.float32)
    product = left @ right
    embed_seconds = moment_seconds = peak_seconds = 0.0
    samples = 0
    blocks = hkse.transform_blocks(captions, BLOCK_ROWS, unknown="mean")
    while True:
        start = clock()
        y = next(blocks, None)
        embed_seconds += clock() - start
        if y is None:
            break
        n_images = len(y) // CAPTIONS
        x = images[np.sort(rng.integers(len(images), size=n_images))].astype(np.float32)
        pairing = np.repeat(np.arange(n_images), CAPTIONS)
        start = clock()
        moments.update(x, y, pairing)
        moment_seconds += clock() - start
        peak_seconds += measure_fastest(partial(np.matmul, left, right, product), 1)
        samples += 1
    n = IMAGES * CAPTIONS
    assert moments.count == n
    return {
        "captions": n,
        "fit_seconds": fit_seconds,
        "embed_seconds": embed_seconds,
        "moment_seconds": moment_seconds,
        "peak": 2.0 * samples * PEAK_ROWS * WORD_FEATURES * SENTENCE_FEATURES / peak_seconds,
        "embed_flops": 2.0 * n * WORD_FEATURES * SENTENCE_FEATURES,
        # A Gram matrix is symmetric: half of its products suffice.
        "moment_flops": 1.0 * n * SENTENCE_FEATURES**2
        + IMAGES * IMAGE_FEATURES**2
        + 2.0 * IMAGES * IMAGE_FEATURES * SENTENCE_FEATURES,
        "memory": read_memory(),
    }


def draw_captions(captions: list[str]) -> list[str]:
    """Return as many captions as COCO has, of the lengths and word frequencies of these."""
    rng = np.random.default_rng(0)
    tokens = [tokenize(caption) for caption in captions]
    everything = np.array([word for words in tokens for word in words])
    lengths = rng.choice([len(words) for words in tokens if words], size=IMAGES * CAPTIONS)
    drawn = iter(everything[rng.integers(len(everything), size=lengths.sum())].tolist())
    return [" ".join(next(drawn) for _ in range(length)) for length in lengths.tolist()]


def write_words(folder: Path, count: int = 100_000) -> Path:
    """Write a word2vec file: the real words, and then random ones."""
    known = read_word_vectors(find_word_vectors())
    words = [*known.words, *(f"zz{i}" for i in range(count - len(known)))]
    drawn = np.random.default_rng(0).normal(size=(count - len(known), known.dimensions)) / 17
    with open(folder / "words.bin", "wb") as file:
        file.write(f"{count} {known.dimensions}\n".encode())
        for word, row in zip(words, np.vstack([known.matrix, drawn.astype(np.float32)]), strict=True):
            file.write(word.encode() + b" " + row.astype(np.float32).tobytes())
    return folder / "words.bin"


def measure_words() -> None:
    captions = read_captions()[: TRAIN * CAPTIONS]
    with TemporaryDirectory() as scratch:
        source = write_words(Path(scratch))
        models = {n: HKSE(source, query_words=n) for n in (0, 50_000)}
        rows = [measure_model(model, captions, Path(scratch, str(n))) for n, model in models.items()]
    rows = [{"further words": f"{n:,}", **row} for n, row in zip(models, rows, strict=True)]
    record("hkse_words", [{k: format_time(v) for k, v in row.items()} for row in rows], WORDS_NOTE)


WORDS_NOTE = (
    "Each the best of two or three. Mapped: as a search from the command line loads a model. Then a query of "
    "training words, one with a word that is not known, for which the further words are looked through, and "
    "the first and second query with a further word."
)


def format_time(value: object) -> object:
    return f"{value:.3g}" if isinstance(value, float) else value


def measure_model(hkse: HKSE, captions: list[str], folder: Path) -> dict[str, object]:
    """Return sizes and times of one HKSE."""
    fit = min(time_call(lambda: hkse.fit(captions))[0] for _ in range(2))
    save = min(time_call(lambda: hkse.save(folder))[0] for _ in range(3))
    files = current_version(folder).path
    load = measure_fastest(lambda: HKSE.load(folder), 3)
    mapped = measure_fastest(lambda: read_hkse(files, mmap=True), 3)
    queries = {
        "known": "dog",
        "unknown": "dog zyzzyva",
        "first further": "dog zz5",
        "next further": "dog zz6",
    }
    spent: dict[str, list[float]] = {name: [] for name in queries}
    for _ in range(3):
        model = read_hkse(files, mmap=True)
        model.encode(["cat"])
        for name, query in queries.items():
            spent[name].append(time_call(partial(model.encode, [query]))[0])
    return {
        "MB on disk": sum(file.stat().st_size for file in files.iterdir()) / 1e6,
        "MB pickled": len(pickle.dumps(hkse)) / 1e6,
        "fit s": fit,
        "save s": save,
        "load ms": 1e3 * load,
        "load mapped ms": 1e3 * mapped,
        **{f"{name} ms": 1e3 * min(values) for name, values in spent.items()},
    }


def measure_speed() -> None:
    trick, streamed = run_alone("trick"), run_alone("stream")
    names = ("once per vocabulary entry", "token by token, blocked")
    rows = [
        {
            "40,000 captions, m = m' = 2000": name,
            "word layer, s": f"{trick['word_layer'][i]:.2f}",
            "end to end, s": f"{trick['end_to_end'][i]:.2f}",
        }
        for i, name in enumerate(names)
    ]
    ratios = [trick[key][1] / trick[key][0] for key in ("word_layer", "end_to_end")]
    rows.append(
        {
            "40,000 captions, m = m' = 2000": "times faster",
            "word layer, s": f"{ratios[0]:.1f}",
            "end to end, s": f"{ratios[1]:.1f}",
        }
    )
    note = (
        f"{trick['tokens']} tokens of {trick['vocabulary']} words; the two differ by at most "
        f"{trick['difference']:.1e}. The word layer ends with the mean of each caption; end to end starts "
        "with strings and ends with the sentence features."
    )
    record("hkse_trick", rows, note)
    seconds = {
        "HKSE(rbf, rbf)": (streamed["embed_seconds"], streamed["embed_flops"]),
        "moments, float32 products": (streamed["moment_seconds"], streamed["moment_flops"]),
    }
    seconds["both"] = tuple(map(sum, zip(*seconds.values(), strict=True)))
    rows = [
        {
            "566,435 captions, m = 2000, m' = 3000": name,
            "s": f"{spent:.0f}",
            "captions per s": f"{streamed['captions'] / spent:.0f}",
            "GFLOP/s": f"{flops / spent / 1e9:.0f}",
            "share of the sgemm peak": f"{flops / spent / streamed['peak']:.2f}",
        }
        for name, (spent, flops) in seconds.items()
    ]
    note = (
        f"Peak memory of the process {streamed['memory']:.0f} MiB, the captions themselves included; fitting "
        f"(vocabulary, γ, word layer) took {streamed['fit_seconds']:.1f} s more. The sgemm peak, timed "
        f"beside every block in the same process: {streamed['peak'] / 1e9:.0f} GFLOP/s. Only matrix products "
        "count as work; tokenising, the sparse product, the cosines and copies are overhead."
    )
    record("hkse_stream", rows, note)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=["approximation", "quality", "speed", "words", "trick", "stream"])
    part = parser.parse_args().part
    if part in ("trick", "stream"):
        print(json.dumps(measure_trick() if part == "trick" else measure_stream()))
    else:
        globals()[f"measure_{part}"]()
