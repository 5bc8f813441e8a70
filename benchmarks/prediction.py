"""Prediction of held-out features on Flickr8k: AWCCA beside scikit-learn's Ridge, tuned the same way.

``python benchmarks/prediction.py``: ResNet-50 × MiniLM, official split, float64, both directions. Both choose
from the same penalties by R² on the validation pairs; the reduced rank is chosen there too, at that penalty.
The models are fitted on the training pairs. The test split is read once, by the chosen ones.

Features that are constant over the training pairs are left out of both views first: scikit-learn counts the
R² of a constant feature as 1 if it is predicted exactly and as 0 if rounding makes a difference.

``--validation`` shows the validation pairs instead, and leaves the test split alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from typing import Any

from measuring import (
    CAPTIONS,
    TRAIN,
    load_flickr8k,
    log_test_run,
    pin_threads,
    record,
    split_flickr8k,
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--validation", action="store_true", help="show validation pairs, not the test split")
options = parser.parse_args()
pin_threads(options.threads)

import numpy as np  # noqa: E402
from sklearn.decomposition import PCA  # noqa: E402
from sklearn.linear_model import Ridge  # noqa: E402
from sklearn.metrics import r2_score  # noqa: E402

from diptych import AWCCA  # noqa: E402
from diptych.cca import Moments  # noqa: E402

PENALTIES = [float(value) for value in np.logspace(-1, 6, 15)]
RANKS = [8, 16, 32, 64, 128, 256]
LEADING = 10
"""Principal components of the view that is predicted, computed on the training pairs."""

Views = tuple[np.ndarray, np.ndarray]
Predict = Callable[[np.ndarray], np.ndarray]


def time_cpu(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of one call, which a busy machine hardly changes, and its result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def correlate(expected: np.ndarray, predicted: np.ndarray) -> float:
    """Return the mean over columns of the correlation of two matrices, in percent."""
    one, other = (view - view.mean(axis=0) for view in (expected, predicted))
    lengths = np.linalg.norm(one, axis=0) * np.linalg.norm(other, axis=0)
    return 100 * float(np.mean((one * other).sum(axis=0)[lengths > 0] / lengths[lengths > 0]))


def tune_ridge(training: Views, validation: Views) -> tuple[Ridge, float]:
    """Return the ridge regression of the penalty that is best on validation pairs, and the penalty."""

    def evaluate(penalty: float) -> tuple[float, float, Ridge]:
        model = Ridge(alpha=penalty).fit(*training)
        return r2_score(validation[1], model.predict(validation[0])), penalty, model

    _, penalty, model = max((evaluate(penalty) for penalty in PENALTIES), key=lambda result: result[0])
    return model, penalty


def tune_awcca(
    moments: Moments, validation: tuple, choices: Mapping[float, dict[str, Any]]
) -> dict[str, tuple[Predict, float]]:
    """Return the prediction that is best on validation pairs, and its choice of settings, by direction."""
    x, y, pairing = validation
    best: dict[str, tuple[float, Predict, float]] = {}
    for choice, settings in choices.items():
        model = AWCCA(**settings).fit_moments(moments)
        for name, predict, own, other in (
            ("X → Y", model.predict, x[pairing], y),
            ("Y → X", model.predict_x, y, x[pairing]),
        ):
            value = r2_score(other, predict(own))
            if name not in best or value > best[name][0]:
                best[name] = value, predict, choice
    return {name: (predict, choice) for name, (_, predict, choice) in best.items()}


def main() -> None:
    if options.validation:
        rows, note = measure()
        print(*rows, note, sep="\n")
        return
    with log_test_run(__file__) as logged:
        rows, note = measure()
        logged += rows
    record("prediction", rows, note)


def measure() -> tuple[list[dict[str, str]], str]:
    """Return the rows of the table and the note below it."""
    x, y, pairing = load_flickr8k("resnet50", "minilm")
    varies = [np.ptp(view[: TRAIN * rows], axis=0) > 0 for view, rows in ((x, 1), (y, CAPTIONS))]
    left_out = [int(np.count_nonzero(~own)) for own in varies]
    x, y = (view[:, own].astype(np.float64) for view, own in zip((x, y), varies, strict=True))
    training, validation, test = split_flickr8k(x, y, pairing)
    pairs = {
        "X → Y": [(own[0][own[2]], own[1]) for own in (training, validation)],
        "Y → X": [(own[1], own[0][own[2]]) for own in (training, validation)],
    }
    chosen: list[tuple[str, str, Predict, str, float]] = []

    summed, moments = time_cpu(lambda: Moments.of(*training))
    by_penalty = {value: {"params": (value, value)} for value in PENALTIES}
    tuning, awcca = time_cpu(lambda: tune_awcca(moments, validation, by_penalty))
    params = awcca["X → Y"][1], awcca["Y → X"][1]
    by_rank = {rank: {"params": params, "n_components": rank} for rank in RANKS}
    ranking, reduced = time_cpu(lambda: tune_awcca(moments, validation, by_rank))
    retrieving, selected = time_cpu(lambda: AWCCA().fit(*training, validation=validation))
    tuned = {name: time_cpu(lambda own=own: tune_ridge(*own)) for name, own in pairs.items()}  # type: ignore[misc]
    both = sum(seconds for seconds, _ in tuned.values())
    filters = selected.models_["search"].filter_x, selected.models_["annotate"].filter_y
    for name, of_retrieval, own_filter in zip(
        pairs, (selected.predict, selected.predict_x), filters, strict=True
    ):
        ridge, penalty = tuned[name][1]
        chosen += [
            (name, "Ridge", ridge.predict, f"alpha = {penalty:.3g}", both),
            (name, "AWCCA", awcca[name][0], f"γ = {awcca[name][1]:.3g}", summed + tuning),
            (
                name,
                "AWCCA, reduced rank",
                reduced[name][0],
                f"{reduced[name][1]} components",
                summed + ranking,
            ),
            (name, "AWCCA, γ by retrieval", of_retrieval, str(own_filter), retrieving),
        ]

    shown = validation if options.validation else test
    rows = []
    for name, model, predict, choice, seconds in chosen:
        own, other = (shown[0][shown[2]], shown[1]) if name == "X → Y" else (shown[1], shown[0][shown[2]])
        predicted = predict(own)
        leading = PCA(LEADING).fit(pairs[name][0][1])
        scores = leading.transform(other), leading.transform(predicted)
        rows.append(
            {
                "predicted": "text from image" if name == "X → Y" else "image from text",
                "model": model,
                "chosen on validation": choice,
                "R², %": f"{100 * r2_score(other, predicted):.2f}",
                "correlation, mean over features": f"{correlate(other, predicted):.2f}",
                f"of the first {LEADING} principal components": f"{correlate(*scores):.2f}",
                "CPU seconds, both directions": f"{seconds:.0f}",
            }
        )
    note = (
        f"{'Validation' if options.validation else 'Test'} pairs; correlations in percent. "
        f"{len(PENALTIES)} penalties from {PENALTIES[0]:g} to {PENALTIES[-1]:g}, {len(RANKS)} ranks. "
        f"Left out as constant: {left_out[0]} features of X and {left_out[1]} of Y. CPU seconds: of choosing "
        "and fitting, the reduced rank at penalties that are known."
    )
    return rows, note


if __name__ == "__main__":
    main()
