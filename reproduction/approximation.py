"""Proposition 1: the error of HKSE's random features and its bound; and kernel CCA beside HKSE."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from diptych.encoders import (
    RandomFourier,
    hkse_dimensions,
    hkse_factor,
    sentence_kernel,
    tokenize,
    word_kernel,
)
from diptych.report import figure
from reproduction.experiment import (
    BLACK,
    BLUE,
    SKY,
    VERMILLION,
    Content,
    Experiment,
    Results,
    finish_axes,
    new_figure,
)
from reproduction.results import Floats, Result
from reproduction.setting import Setting
from reproduction.tables import ReportTable

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
        rng = _make_generator(setting.seed, 7)
        training = setting.words.training
        words_of = [[w for w in tokenize(c) if w in vectors] for c in setting.words.training_captions]
        rows_of = [row for row, words in zip(training, words_of, strict=True) if words]
        captions = [words for words in words_of if words]
        length = max(map(len, captions))
        sample = rng.choice(len(captions), min(options.sampled_captions, len(captions)), replace=False)
        sentences = [captions[i] for i in sample]
        owners = setting.data.dataset.pairing[[rows_of[i] for i in sample]]
        images = decompose_gram(_gram(setting.image.take(owners)))
        matrix = np.asarray(vectors.matrix, dtype=np.float32)
        gamma = RandomFourier(1, random_state=setting.seed).fit(matrix).gamma_
        sampled = np.sort(rng.choice(len(matrix), min(options.sampled_words, len(matrix)), replace=False))
        words = matrix[sampled]
        exact_words = word_kernel(words, words, gamma=gamma)
        places = [[vectors.index[word] for word in sentence] for sentence in sentences]
        exact_sentences = sentence_kernel([matrix[rows] for rows in places], gamma=gamma, eta=ETA)
        exact = decompose_gram(exact_sentences)
        gammas = tuple(values[len(values) // 10] for values, _ in (images, exact))
        correlations = kernel_correlations(images, exact, gammas)
        result: Result = {level: [] for level in (*LEVELS, "kernel CCA")}
        for m in options.feature_counts:
            bounds = {
                level: {name: bound(m, len(vectors), length, level, name) for name in CONSTANTS}
                for level in LEVELS
            }
            errors: dict[str, list[Result]] = {level: [] for level in LEVELS}
            differences = []
            for draw in range(options.draws):
                word_layer, sentence_layer = (
                    RandomFourier(m, gamma=scale, random_state=_make_generator(setting.seed, level, draw, m))
                    for scale, level in ((gamma, 8), (ETA, 9))
                )
                table = word_layer.fit_transform(matrix)
                errors["words"].append(_errors(table[sampled], exact_words, 0.0, bounds["words"]))
                means = np.stack([table[rows].mean(axis=0) for rows in places])
                features = sentence_layer.fit_transform(means)
                errors["sentences"].append(_errors(features, exact_sentences, ETA, bounds["sentences"]))
                texts = decompose_gram(_gram(features))
                differences.append(kernel_correlations(images, texts, gammas) - correlations)
            for level, draws in errors.items():
                result[level].append({"features": m, **_summarise(draws), **bounds[level]})
            rms, largest = np.sqrt(np.mean(np.square(differences))), np.max(np.abs(differences))
            result["kernel CCA"].append({"features": m, "rms": rms, "largest": largest})
        facts = {"vocabulary": len(vectors), "length": length, "gamma": gamma, "draws": options.draws}
        facts |= {"correlation": correlations[0]}
        return {**result, **facts, "words_sampled": len(words), "captions_sampled": len(sentences)}

    inputs = {
        "words": setting.words.fingerprint,
        "counts": options.feature_counts,
        "draws": options.draws,
        "sample": [options.sampled_words, options.sampled_captions],
        "seed": setting.seed,
    }
    return setting.fetch("approximation", (setting.image,), inputs, compute)


def _make_generator(seed: int, *key: int) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))


def _gram(features: Floats) -> Floats:
    wide = features.astype(np.float64)
    return np.asarray(wide @ wide.T)


def decompose_gram(gram: Floats) -> tuple[Floats, Floats]:
    """Return the eigenvalues of a kernel's centred Gram matrix, largest first, and its eigenvectors."""
    centred = gram - gram.mean(axis=0) - gram.mean(axis=1)[:, None] + gram.mean()
    values, vectors = np.linalg.eigh(centred)
    return values[::-1].clip(0.0), vectors[:, ::-1]


def kernel_correlations(
    x: tuple[Floats, Floats], y: tuple[Floats, Floats], gammas: tuple[float, ...]
) -> Floats:
    r"""Return the canonical correlations of exact kernel CCA, of two decomposed Gram matrices.

    Whatever the features of a kernel are, their Gram matrix is :math:`U S^2 U^\top`, and equation 8 needs no
    more: the correlations are the singular values of :math:`f(S_x) U_x^\top U_y f(S_y)` with
    :math:`f(s) = s / \sqrt{s^2 + \gamma}`.
    """
    filters = [np.sqrt(values / (values + gamma)) for (values, _), gamma in zip((x, y), gammas, strict=True)]
    operator = filters[0][:, None] * (x[1].T @ y[1]) * filters[1]
    return np.asarray(np.linalg.svd(operator, compute_uv=False))


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


ERROR_LINES = (
    ("largest", "largest error", BLUE, "-", "o"),
    ("rms", "rms error", SKY, "-", "s"),
    ("paper", "bound δ, the paper's constants", VERMILLION, (0, (5, 2)), None),
    ("hoeffding", "bound δ, Hoeffding's constants", BLACK, (0, (1.2, 1.4)), None),
)


def draw_approximation(levels: Mapping[str, Sequence[Mapping[str, float]]]) -> Any:
    """Draw errors and bounds against the number of features, one panel per level.

    ``levels`` has for each title rows with ``features``, ``rms``, ``largest``, ``paper`` and ``hoeffding``.
    """
    figure = new_figure(7.6, 3.4)
    panels = figure.subplots(1, len(levels), sharey=True, squeeze=False)[0]
    for axes, (title, rows) in zip(panels, levels.items(), strict=True):
        features = [row["features"] for row in rows]
        for key, name, color, style, marker in ERROR_LINES:
            line = {"color": color, "linestyle": style, "marker": marker, "markersize": 4, "linewidth": 1.5}
            axes.plot(features, [row[key] for row in rows], label=name, **line)
        axes.set(xscale="log", yscale="log")
        axes.set_title(title, fontsize=9)
        axes.set_xticks(features[:: 1 if len(features) < 5 else 2])
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.minorticks_off()
        finish_axes(axes, "number of random features", "error of a kernel value" if axes is panels[0] else "")
    handles, names = panels[0].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    return figure


def _show(setting: Setting, results: Results) -> list[Content]:
    result = results["errors"]
    draws = result["draws"]
    body = [
        [level, row["features"], row["rms"], row["largest"]]
        + [cell for name in CONSTANTS for cell in (row[name], f"{row['violations'][name]} of {draws}")]
        for level in LEVELS
        for row in result[level]
    ]
    kernel = [[row["features"], row["rms"], row["largest"]] for row in result["kernel CCA"]]
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
        f"Kernel CCA of the same captions with the {setting.image.name} features of their images, computed "
        "exactly from the Gram matrix of K, and with HKSE's random features (m = m′) in its place, at the "
        f"same γ. The first exact correlation is {result['correlation']:.3f}.",
        ReportTable("kernel_cca", ["features", "rms error of a correlation", "largest error"], kernel),
    ]


APPROXIMATION = Experiment(
    "approximation",
    ("Proposition 1",),
    "HKSE: how good the approximation is",
    lambda setting: {"errors": partial(_measure, setting)},
    _show,
)
