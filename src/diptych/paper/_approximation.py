"""Experiment 10: the error of HKSE's random features, and the bound of Proposition 1."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from diptych.paper._experiment import Experiment, Part, Results
from diptych.paper._features import Floats, Result
from diptych.paper._figures import draw_approximation
from diptych.paper._setting import Setting
from diptych.paper._tables import ReportTable
from diptych.report._page import figure
from diptych.text import hkse_dimensions, hkse_factor, sentence_kernel, tokenize, word_kernel
from diptych.text._fourier import draw_fourier, fourier_features, make_generator, median_gamma
from diptych.text._words import Corpus, mean_rows

CONSTANTS = ("paper", "hoeffding")
EPSILON, ETA = 0.05, 0.01
LEVELS = {"words": "words: k against m", "sentences": "sentences: K against m′ (m = m′)"}


def bound(features: int, vocabulary: int, length: int, level: str, constants: str) -> float:
    """Return the δ of Proposition 1 for a number of random features.

    The proposition gives the number of features for a δ, which falls with δ² and is rounded up; a small δ
    makes the rounding negligible.

    >>> round(bound(16725, 7745, 38, "words", "hoeffding"), 3)
    0.1
    """
    delta = 1e-3
    needed = hkse_dimensions(vocabulary, length, delta, EPSILON, constants)  # type: ignore[arg-type]
    number = needed.word_features if level == "words" else needed.sentence_features
    return math.sqrt(number * delta**2 / features)


def _measure(setting: Setting) -> Result:
    options = setting.options

    def compute() -> Result:
        vectors = setting.words.vectors
        rng = make_generator(setting.seed, 7)
        captions = [[w for w in tokenize(c) if w in vectors] for c in setting.words.training_captions]
        captions = [words for words in captions if words]
        length = max(map(len, captions))
        sample = rng.choice(len(captions), min(options.sampled_captions, len(captions)), replace=False)
        sentences = [captions[i] for i in sample]
        matrix = np.asarray(vectors.matrix, dtype=np.float32)
        gamma = median_gamma(matrix, make_generator(setting.seed, 0))
        sample = rng.choice(len(matrix), min(options.sampled_words, len(matrix)), replace=False)
        words = matrix[np.sort(sample)]
        exact_words = word_kernel(words, words, gamma=gamma)
        exact_sentences = sentence_kernel(
            [matrix[[vectors.index[w] for w in s]] for s in sentences], gamma=gamma, eta=ETA
        )
        rows, ends = Corpus.of(sentences).lookup(vectors.index)
        result: Result = {level: [] for level in LEVELS}
        for m in options.feature_counts:
            bounds = {
                level: {name: bound(m, len(vectors), length, level, name) for name in CONSTANTS}
                for level in LEVELS
            }
            errors: dict[str, list[Result]] = {level: [] for level in LEVELS}
            for draw in range(options.draws):
                word_layer = draw_fourier(matrix.shape[1], m, gamma, make_generator(setting.seed, 8, draw, m))
                features = fourier_features(words, *word_layer)
                errors["words"].append(_errors(features, exact_words, 0.0, bounds["words"]))
                means = mean_rows(fourier_features(matrix, *word_layer), rows, ends, lambda _: None)
                sentence_layer = draw_fourier(m, m, ETA, make_generator(setting.seed, 9, draw, m))
                features = fourier_features(means, *sentence_layer)
                errors["sentences"].append(_errors(features, exact_sentences, ETA, bounds["sentences"]))
            for level, draws in errors.items():
                result[level].append({"features": m, **_summarise(draws), **bounds[level]})
        facts = {"vocabulary": len(vectors), "length": length, "gamma": gamma, "draws": options.draws}
        return {**result, **facts, "words_sampled": len(words), "captions_sampled": len(sentences)}

    inputs = {
        "words": setting.words.fingerprint,
        "counts": options.feature_counts,
        "draws": options.draws,
        "sample": [options.sampled_words, options.sampled_captions],
        "seed": setting.seed,
    }
    return setting.fetch("approximation", (), inputs, compute)


def _errors(features: Floats, exact: Floats, eta: float, bounds: dict[str, float]) -> Result:
    """Return the errors of one draw, and whether a value violates a bound (which has a factor for η > 0)."""
    values = features.astype(np.float64) @ features.astype(np.float64).T
    size = np.abs(values - exact)
    violated = {}
    for name, delta in bounds.items():
        factor = hkse_factor(eta, delta, name)  # type: ignore[arg-type]
        violated[name] = bool(np.any((values > factor * exact + delta) | (values < exact / factor - delta)))
    return {"squares": float(np.mean(size**2)), "largest": float(size.max()), "violated": violated}


def _summarise(draws: list[Result]) -> Result:
    return {
        "rms": float(np.sqrt(np.mean([draw["squares"] for draw in draws]))),
        "largest": max(draw["largest"] for draw in draws),
        "violations": {name: sum(draw["violated"][name] for draw in draws) for name in CONSTANTS},
    }


def slope(rows: list[Result]) -> float:
    """Fit the exponent of the rms error in the number of features; in theory it is −½."""
    counts, errors = np.log([r["features"] for r in rows]), np.log([r["rms"] for r in rows])
    return float(np.polyfit(counts, errors, 1)[0])


def _show(setting: Setting, results: Results) -> list[Part]:
    result = results["errors"]
    draws = result["draws"]
    body = [
        [level, row["features"], row["rms"], row["largest"]]
        + [cell for name in CONSTANTS for cell in (row[name], f"{row['violations'][name]} of {draws}")]
        for level in LEVELS
        for row in result[level]
    ]
    columns = ["level", "features", "rms error", "largest error", "δ (paper)", "draws that violate it"]
    columns += ["δ (Hoeffding)", "draws that violate it"]
    return [
        f"Errors of kernel values over all pairs of {result['words_sampled']:,} words (of "
        f"{result['vocabulary']:,}) and of {result['captions_sampled']:,} captions, {draws} draws; "
        f"γ = {result['gamma']:.3f}, η = {ETA}. The bound is the δ that Proposition 1 promises for all words "
        f"and all captions of at most {result['length']} words at once (ε = {EPSILON}), with the published "
        "constants and with those of Hoeffding's inequality.",
        figure(
            draw_approximation({LEVELS[level]: result[level] for level in LEVELS}),
            "A bound below the largest error is violated.",
            "Errors of random features against their number, with bounds",
        ),
        ReportTable("approximation", columns, body),
    ]


APPROXIMATION = Experiment(
    "approximation",
    "HKSE: how good the approximation is",
    lambda setting: {"errors": partial(_measure, setting)},
    _show,
)
