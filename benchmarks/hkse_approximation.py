"""How near the random features come to the exact kernels, and how often Proposition 1 is violated.

Real word vectors, Flickr8k captions. The bounds are checked with the paper's constants and with those that
Hoeffding's inequality gives.
"""

from __future__ import annotations

import json

from recording import pin_threads, real_data, record

pin_threads(2)

import numpy as np  # noqa: E402

from diptych.text import (  # noqa: E402
    hkse_dimensions,
    hkse_factor,
    read_word_vectors,
    sentence_kernel,
    tokenize,
    word_kernel,
)
from diptych.text._fourier import draw_fourier, fourier_features, make_generator, median_gamma  # noqa: E402
from diptych.text._words import Corpus, mean_rows  # noqa: E402

EPSILON, ETA, DRAWS, SENTENCES = 0.05, 0.01, 10, 600


def load():
    content = json.loads((real_data() / "flickr8k" / "dataset_flickr8k.json").read_text("utf-8"))
    captions = [sentence["raw"] for image in content["images"] for sentence in image["sentences"]]
    words = {word for caption in captions for word in tokenize(caption)}
    vectors = read_word_vectors(real_data() / "word2vec-googlenews-26k.bin", words)
    known = [[w for w in tokenize(caption) if w in vectors] for caption in captions]
    longest = max(map(len, known))
    chosen = np.random.default_rng(0).choice(len(known), size=SENTENCES, replace=False)
    return vectors, [known[i] for i in chosen if known[i]], longest


def word_errors(vectors, gamma, m, seed, block=1024):
    """Root mean square, largest error, and share of pairs beyond each δ, over all pairs of words."""
    frequencies = draw_fourier(vectors.dimensions, m, gamma, make_generator(seed))
    features = fourier_features(vectors.matrix, *frequencies)
    squares, largest, beyond = 0.0, 0.0, np.zeros(2)
    for start in range(0, len(vectors), block):
        exact = word_kernel(vectors.matrix[start : start + block], vectors.matrix, gamma=gamma)
        error = np.abs(features[start : start + block] @ features.T - exact)
        squares += float((error.astype(np.float64) ** 2).sum())
        largest = max(largest, float(error.max()))
        beyond += [np.count_nonzero(error > delta) for delta in (0.1, 0.25)]
    pairs = len(vectors) ** 2
    return np.sqrt(squares / pairs), largest, beyond / pairs


def sentence_means(vectors, sentences, gamma, m, seed):
    frequencies = draw_fourier(vectors.dimensions, m, gamma, make_generator(seed, 1))
    table = fourier_features(vectors.matrix, *frequencies)
    rows, ends = Corpus.of(sentences).lookup(vectors.index)
    return mean_rows(table, rows, ends, lambda _: None)


def sentence_gram(means, eta, m2, seed, chunk=8192):
    """K̂ summed over chunks of features, so that a large m' needs no large matrix."""
    gram = np.zeros((len(means), len(means)))
    rng = make_generator(seed, 2)
    for start in range(0, m2, chunk):
        size = min(chunk, m2 - start)
        features = fourier_features(means, *draw_fourier(means.shape[1], size, eta, rng)).astype(np.float64)
        gram += size / m2 * (features @ features.T)
    return gram


def convergence(vectors, sentences, gamma, word_vectors):
    exact = {eta: sentence_kernel(word_vectors, gamma=gamma, eta=eta) for eta in (ETA, 2.0)}
    rows = []
    for m in (125, 500, 2000, 8000):
        word = np.array([word_errors(vectors, gamma, m, seed)[:2] for seed in range(5)])
        row = {
            "m = m'": m,
            "word kernel, rms error": f"{np.sqrt((word[:, 0] ** 2).mean()):.4f}",
            "× √m": f"{np.sqrt(m * (word[:, 0] ** 2).mean()):.2f}",
            "largest of all pairs": f"{word[:, 1].max():.3f}",
        }
        squares = {eta: [] for eta in exact}
        # All pairs of a draw err together, so many draws are needed for a steady figure.
        for seed in range(48):
            means = sentence_means(vectors, sentences, gamma, m, seed)
            for eta, target in exact.items():
                squares[eta].append(((sentence_gram(means, eta, m, seed) - target) ** 2).mean())
        for eta, values in squares.items():
            row[f"K at η = {eta:g}, rms error"] = f"{np.sqrt(np.mean(values)):.4f}"
            row[f"× √m (η = {eta:g})"] = f"{np.sqrt(m * np.mean(values)):.2f}"
        rows.append(row)
    return rows


def violations(vectors, sentences, gamma, word_vectors, longest):
    exact = sentence_kernel(word_vectors, gamma=gamma, eta=ETA)
    distances = -2.0 / ETA * np.log(exact)
    rows = []
    for delta in (0.1, 0.25):
        for constants in ("paper", "hoeffding"):
            m, m2 = hkse_dimensions(len(vectors), longest, delta, EPSILON, constants)
            word = [word_errors(vectors, gamma, m, seed) for seed in range(DRAWS)]
            factor = hkse_factor(ETA, delta, constants)
            multiple = 3 if constants == "paper" else 4
            middle, outer, measured = [], [], m * m2 <= 4e8
            for seed in range(DRAWS):
                means = sentence_means(vectors, sentences, gamma, m, seed)
                found = (means**2).sum(1)[:, None] + (means**2).sum(1)[None] - 2 * means @ means.T
                middle.append(np.mean(np.abs(found - distances) > multiple * delta))
                if measured:
                    gram = sentence_gram(means, ETA, m2, seed)
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
                    "‖μ̂₁−μ̂₂‖² off by over 3δ (paper), 4δ": _draws(middle),
                    "sentences: draws that violate": _draws(outer) if measured else "m' too large to run",
                }
            )
    return rows


def _draws(shares) -> str:
    return f"{sum(share > 0 for share in shares)} of {len(shares)}"


def main() -> None:
    vectors, sentences, longest = load()
    gamma = median_gamma(vectors.matrix, make_generator(0))
    word_vectors = [np.array([vectors[word] for word in words]) for words in sentences]
    note = f"{len(vectors)} words (all pairs), {len(sentences)} captions (all pairs), γ = {gamma:.4f}."
    record("hkse_convergence", convergence(vectors, sentences, gamma, word_vectors), note)
    note += f" ε = {EPSILON}, η = {ETA}, longest caption {longest} known words; at most {EPSILON:.0%} of the"
    note += " draws may violate a bound at the word level, and as many at the sentence level."
    record("hkse_violations", violations(vectors, sentences, gamma, word_vectors, longest), note)


if __name__ == "__main__":
    main()
