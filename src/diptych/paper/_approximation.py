"""Experiment 10: how near HKSE's random features come to its kernels, and Proposition 1's bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from diptych.paper._cache import Result
from diptych.paper._experiment import Experiment, Job, Part, Results, Table
from diptych.paper._figures import draw_approximation
from diptych.paper._setting import Setting
from diptych.paper._sources import Floats
from diptych.paper._tables import ReportTable
from diptych.report._page import figure
from diptych.text import hkse_dimensions, hkse_factor, sentence_kernel, tokenize, word_kernel
from diptych.text._fourier import draw_fourier, fourier_features, make_generator, median_gamma
from diptych.text._words import Corpus, mean_rows

VERSION = 1
CONSTANTS = ("paper", "hoeffding")
EPSILON, ETA = 0.05, 0.01
LEVELS = {"words": "words: k against m", "sentences": "sentences: K against m′ (m = m′)"}


def bound(features: int, vocabulary: int, length: int, level: str, constants: str) -> float:
    """The δ that Proposition 1 promises for so many features.

    >>> round(bound(16725, 7745, 38, "words", "hoeffding"), 3)
    0.1
    """
    # The number falls with δ² and is rounded up; at a small δ the rounding is nothing.
    scale = 1e-3
    needed = hkse_dimensions(vocabulary, length, scale, EPSILON, constants)  # type: ignore[arg-type]
    count = needed.word_features if level == "words" else needed.sentence_features
    return math.sqrt(count * scale**2 / features)


def _approximated(setting: Setting) -> Result:
    options = setting.options

    def compute() -> Result:
        vectors = setting.words.vectors
        rng = make_generator(setting.seed, 7)
        known = [[w for w in tokenize(c) if w in vectors] for c in setting.words.training_captions]
        known = [words for words in known if words]
        length = max(map(len, known))
        picked = rng.choice(len(known), min(options.sampled_captions, len(known)), replace=False)
        sentences = [known[i] for i in picked]
        matrix = np.asarray(vectors.matrix, dtype=np.float32)
        gamma = median_gamma(matrix, make_generator(setting.seed, 0))
        sample = rng.choice(len(matrix), min(options.sampled_words, len(matrix)), replace=False)
        words = matrix[np.sort(sample)]
        exact_words = word_kernel(words, words, gamma=gamma)
        exact = sentence_kernel(
            [matrix[[vectors.index[w] for w in s]] for s in sentences], gamma=gamma, eta=ETA
        )
        found: Result = {level: [] for level in LEVELS}
        for m in options.feature_counts:
            bounds = {
                level: {name: bound(m, len(vectors), length, level, name) for name in CONSTANTS}
                for level in LEVELS
            }
            errors: dict[str, list[Result]] = {level: [] for level in LEVELS}
            for draw in range(options.draws):
                first = draw_fourier(matrix.shape[1], m, gamma, make_generator(setting.seed, 8, draw, m))
                features = fourier_features(words, *first)
                errors["words"].append(_errors(features, exact_words, 0.0, bounds["words"]))
                rows, ends = Corpus.of(sentences).lookup(vectors.index)
                means = mean_rows(fourier_features(matrix, *first), rows, ends, lambda _: None)
                second = draw_fourier(m, m, ETA, make_generator(setting.seed, 9, draw, m))
                features = fourier_features(means, *second)
                errors["sentences"].append(_errors(features, exact, ETA, bounds["sentences"]))
            for level, each in errors.items():
                found[level].append({"features": m, **_together(each), **bounds[level]})
        facts = {"vocabulary": len(vectors), "length": length, "gamma": gamma, "draws": options.draws}
        return {**found, **facts, "words_sampled": len(words), "captions_sampled": len(sentences)}

    inputs = {
        "words": setting.words.fingerprint,
        "counts": options.feature_counts,
        "draws": options.draws,
        "sample": [options.sampled_words, options.sampled_captions],
        "seed": setting.seed,
    }
    return setting.remember("approximation", VERSION, (), inputs, compute)


def _errors(features: Floats, exact: Floats, eta: float, bounds: dict[str, float]) -> Result:
    """Errors of one draw, and whether any value leaves the bounds; at η > 0 a factor of K is allowed too."""
    values = features.astype(np.float64) @ features.astype(np.float64).T
    size = np.abs(values - exact)
    beyond = {}
    for name, delta in bounds.items():
        factor = hkse_factor(eta, delta, name)  # type: ignore[arg-type]
        beyond[name] = bool(np.any((values > factor * exact + delta) | (values < exact / factor - delta)))
    return {"squares": float(np.mean(size**2)), "largest": float(size.max()), "beyond": beyond}


def _together(draws: list[Result]) -> Result:
    return {
        "rms": float(np.sqrt(np.mean([draw["squares"] for draw in draws]))),
        "largest": max(draw["largest"] for draw in draws),
        "violations": {name: sum(draw["beyond"][name] for draw in draws) for name in CONSTANTS},
    }


def slope(rows: list[Result]) -> float:
    """Exponent of the rms error in the number of features; −½ is what theory says."""
    counts, errors = np.log([r["features"] for r in rows]), np.log([r["rms"] for r in rows])
    return float(np.polyfit(counts, errors, 1)[0])


def _show(setting: Setting, results: Results) -> list[Part]:
    found = results["approximation: errors"]
    body: list[list[Any]] = [
        [
            LEVELS[level].split(":")[0],
            row["features"],
            f"{row['rms']:.4f}",
            f"{row['largest']:.3f}",
            f"{row['paper']:.3f}",
            f"{row['violations']['paper']} of {found['draws']}",
            f"{row['hoeffding']:.3f}",
            f"{row['violations']['hoeffding']} of {found['draws']}",
        ]
        for level in LEVELS
        for row in found[level]
    ]
    columns = ["level", "features", "rms error", "largest error", "δ (paper)", "draws beyond it"]
    columns += ["δ (Hoeffding)", "draws beyond it"]
    return [
        f"Errors of kernel values over all pairs of {found['words_sampled']:,} words (of "
        f"{found['vocabulary']:,}) and of {found['captions_sampled']:,} captions, {found['draws']} draws; "
        f"γ = {found['gamma']:.3f}, η = {ETA}. The bound is the δ that Proposition 1 promises for all words "
        f"and all sentences of at most {found['length']} words at once (ε = {EPSILON}), with the constants "
        "as published and with those that Hoeffding's inequality gives.",
        figure(
            draw_approximation({LEVELS[level]: found[level] for level in LEVELS}),
            "A bound that lies below the largest error does not hold.",
            "Errors of random features against their number, with bounds",
        ),
        ReportTable("approximation", columns, body),
    ]


def _tables(results: Results) -> dict[str, Table]:
    found = results["approximation: errors"]
    return {
        "approximation": [
            {"level": level, **{k: v for k, v in row.items() if k != "violations"}}
            | {f"draws beyond {name}": count for name, count in row["violations"].items()}
            for level in LEVELS
            for row in found[level]
        ]
    }


APPROXIMATION = Experiment(
    "approximation",
    "HKSE: how good the approximation is",
    lambda setting: [Job("approximation: errors", lambda: _approximated(setting))],
    _show,
    _tables,
)
