"""How far the probabilities of hits can be trusted on Flickr8k.

Models are fitted on the training split, their probabilities on the validation split, as ``Retriever.fit``
does it; everything here is measured on the test split, which is read once. With ``--validation`` the last
thousand training images take the place of the validation split, that of the test split is taken by
validation, and nothing is recorded.
"""

from __future__ import annotations

from measuring import (
    CAPTIONS,
    RESULTS,
    TRAIN,
    VALIDATION,
    load_flickr8k,
    log_test_run,
    pin_threads,
    record,
    require,
    start_figure,
)

pin_threads(1)

import argparse  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
from scipy.special import logsumexp  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402

from diptych import Retriever  # noqa: E402
from diptych.retrieval._calibration import BEST, JUDGED, calibration_error, reliability  # noqa: E402

FEATURES = {
    "ResNet-50 × HKSE": ("resnet50-sqrt", "hkse-rbf-rbf"),
    "DINOv2-S × MiniLM": ("dinov2s-halves", "minilm"),
}
PRESETS = {"AW-CCA": None, 'preset="best"': "best"}
RESAMPLES = 1000
"""Bootstrap samples of images."""


class Scores:
    """The best scores of queries in a gallery, which hits are right, and the image of each query."""

    def __init__(self, scores: np.ndarray, right: np.ndarray, image: np.ndarray) -> None:
        order = np.argsort(-scores, axis=1, kind="stable")[:, :BEST]
        self.best = np.take_along_axis(scores, order, 1).astype(np.float64)
        self.right, self.image = np.take_along_axis(right, order, 1), image


def resample(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return queries of a bootstrap sample of images."""
    order = np.argsort(image, kind="stable")
    starts, counts = np.unique(image[order], return_index=True, return_counts=True)[1:]
    drawn = rng.integers(len(starts), size=len(starts))
    return np.concatenate([order[starts[i] : starts[i] + counts[i]] for i in drawn])


def interval(measure, image: np.ndarray) -> str:
    """Return a measure of all queries with a 95 % bootstrap interval over images."""
    rng = np.random.default_rng(0)
    values = [measure(resample(image, rng)) for _ in range(RESAMPLES)]
    low, high = np.quantile(values, (0.025, 0.975))
    return f"{measure(np.arange(len(image))):.3f} ({low:.3f} to {high:.3f})"


def error(probabilities: np.ndarray, scores: Scores, rows: np.ndarray) -> float:
    """Return the expected calibration error of the ten best hits."""
    return calibration_error(reliability(probabilities[rows].ravel(), scores.right[rows, :JUDGED].ravel()))


class Measured:
    """A fitted retriever and the scores of its task on some pairs."""

    def __init__(self, retriever: Retriever, task: str) -> None:
        self.projector = retriever.searcher.projectors[task]
        self.calibration = retriever.fitted.calibration[task]

    def score(self, x: np.ndarray, y: np.ndarray) -> Scores:
        """Return the scores of all pairs."""
        owner = np.arange(len(y)) // CAPTIONS
        queries, items, of_query, of_item = (y, x, owner, np.arange(len(x)))
        if self.projector.task == "annotate":
            queries, items, of_query, of_item = x, y, np.arange(len(x)), owner
        return self.compare(queries, items, of_query[:, None] == of_item, of_query)

    def compare(self, queries, items, right, image) -> Scores:
        """Return the scores of queries with items."""
        vectors = self.projector.queries(queries)
        inner = vectors @ self.projector.items(items).T
        return Scores(self.projector.scores(inner, vectors), right, image)

    def hits(self, scores: Scores) -> np.ndarray:
        """Return the probabilities of the ten best hits."""
        return self.calibration.probabilities(scores.best)[:, :JUDGED]

    def softmax(self, best: np.ndarray) -> np.ndarray:
        """Return the softmax over the best scores, as sharp as the calibration has it."""
        sharp = self.calibration.evidence.sharpness * best
        return np.exp(sharp - logsumexp(sharp, axis=1, keepdims=True))


def platt_of_scores(scores: Scores):
    """Return a flat map from the score alone to a probability."""
    model = LogisticRegression(C=1e6).fit(
        scores.best[:, :JUDGED].reshape(-1, 1), scores.right[:, :JUDGED].ravel()
    )
    return lambda best: model.predict_proba(best[:, :JUDGED].reshape(-1, 1))[:, 1].reshape(-1, JUDGED)


def measure(name: str, preset: str, train: int, panels: dict) -> list[dict]:
    """Fit one model, and measure its probabilities on the images after its validation split."""
    images, texts = FEATURES[name]
    x, y, pairing = load_flickr8k(images, texts)
    held = train + VALIDATION
    splits = ["train"] * train + ["val"] * VALIDATION
    retriever = Retriever.from_features(
        x[:held], y[: held * CAPTIONS], pairing[: held * CAPTIONS], splits=splits, preset=PRESETS[preset]
    )
    test = x[held : held + VALIDATION], y[held * CAPTIONS : (held + VALIDATION) * CAPTIONS]
    validation = x[train:held], y[train * CAPTIONS : held * CAPTIONS]
    rows = []
    for task in ("search", "annotate"):
        own = Measured(retriever, task)
        scores = own.score(*test)
        probabilities = own.hits(scores)
        flat = platt_of_scores(own.score(*validation))(scores.best)
        row = {
            "features": name,
            "model": preset,
            "task": task,
            "method": "isotonic" if own.calibration.map.knots else "platt",
            "ECE": interval(lambda r: error(probabilities, scores, r), scores.image),  # noqa: B023
            "ECE, 200 images": measure_smaller(own, *test),
        }
        others = {"a map of the score": flat, "softmax": own.softmax(scores.best)[:, :JUDGED]}
        for method, values in others.items():
            row[f"ECE of {method}"] = f"{error(values, scores, np.arange(len(values))):.3f}"
        panels[f"{name}, {preset}: {task}"] = reliability(
            probabilities.ravel(), scores.right[:, :JUDGED].ravel()
        )
        print(row, flush=True)
        rows.append(row)
    return rows


def measure_smaller(own: Measured, x: np.ndarray, y: np.ndarray) -> str:
    """Return the error in galleries of a fifth of the images."""
    parts, step = [], VALIDATION // 5
    for start in range(0, VALIDATION, step):
        scores = own.score(x[start : start + step], y[start * CAPTIONS : (start + step) * CAPTIONS])
        parts.append((own.hits(scores), scores.right[:, :JUDGED]))
    probabilities, right = (np.concatenate(each).ravel() for each in zip(*parts, strict=True))
    return f"{calibration_error(reliability(probabilities, right)):.3f}"


def draw(panels: dict, file: Path) -> None:
    """Draw the reliability diagrams of the models, both tasks in one panel."""
    figure, axes = start_figure(1, len(panels) // 2, size=(2.6 * len(panels) // 2, 3.0))
    for each, start in zip(axes.flat, range(0, len(panels), 2), strict=True):
        each.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--")
        for (name, bins), colour in zip(
            list(panels.items())[start : start + 2], ("#0072B2", "#D55E00"), strict=True
        ):
            each.plot(*list(zip(*bins, strict=True))[:2], marker="o", markersize=3, color=colour)
            each.plot([], [], color=colour, marker="o", markersize=3, label=name.rpartition(": ")[2])
        each.set_title(name.rpartition(": ")[0].replace(", ", "\n"), fontsize=9)
        each.set_xlabel("probability of a hit")
    axes.flat[0].set_ylabel("share that is right")
    axes.flat[0].legend(frameon=False, fontsize=8)
    figure.savefig(file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--validation", action="store_true", help="do not read the test split")
    parser.add_argument("--only", choices=list(FEATURES), help="one pair of features; needs --validation")
    options = parser.parse_args()
    if options.only and not options.validation:
        parser.error("--only is for trials: give --validation too")
    require("matplotlib", "pip install matplotlib")
    if options.validation:
        report(options, {})
        return
    panels: dict = {}
    with log_test_run(__file__) as logged:
        logged += (rows := report(options, panels))
    record("calibration", rows, NOTE)
    draw(panels, RESULTS / "calibration.svg")


def report(options: argparse.Namespace, panels: dict) -> list[dict]:
    """Measure what was asked for; ``panels`` are filled with what is drawn."""
    train = TRAIN - VALIDATION if options.validation else TRAIN
    names = [options.only] if options.only else list(FEATURES)
    rows = [row for name in names for preset in PRESETS for row in measure(name, preset, train, panels)]
    head = dict.fromkeys(key for row in rows for key in row)
    return [{key: row.get(key, "") for key in head} for row in rows]


NOTE = (
    "The 1,000 test images and their 5,000 captions; nothing was fitted or chosen on them. ECE: expected "
    "calibration error of the ten best hits of each query, in 15 bins of equal width; in galleries of 1,000 "
    "images, and of 200. A map of the score: Platt's, fitted on the ten best hits of the validation queries. "
    "Softmax: over the 100 best scores, with the calibration's β. In brackets, 95 % bootstrap intervals over "
    "images."
)

if __name__ == "__main__":
    main()
