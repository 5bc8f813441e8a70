"""Which features carry a component: ``python benchmarks/sparse_loadings.py``.

A feature is taken if the interval of its loading leaves out 0, or if a penalised matrix decomposition (PMD:
Witten, Tibshirani and Hastie, 2009) keeps it: once, or in most halves of the rows (stability selection:
Meinshausen and Bühlmann, 2010).
"""

from __future__ import annotations

from measuring import pin_threads, record

pin_threads(1)

import numpy as np  # noqa: E402
from scipy.linalg import toeplitz  # noqa: E402
from sklearn.metrics import f1_score  # noqa: E402
from sklearn.model_selection import KFold  # noqa: E402
from sklearn.preprocessing import scale  # noqa: E402

from diptych import AWCCA  # noqa: E402
from diptych.stats import bootstrap  # noqa: E402

FEATURES, ACTIVE, DRAWS, HALVES = 100, 10, 10, 50
CASES = ((100, 0.7, 0.0), (100, 0.7, 0.8), (300, 0.5, 0.0), (300, 0.5, 0.8), (1000, 0.4, 0.8))
NOTE = (
    f"F1 of the {ACTIVE} of {FEATURES} features that share one cause, and in brackets how many others are "
    f"taken per view; the mean of {DRAWS} draws. The cause has this strength beside noise of variance 1, "
    "which neighbouring features share. Intervals: 99 %, with Ledoit-Wolf's γ. PMD chooses the number of "
    "features by held-out correlation. Stability selection is given the true number, and takes features that "
    f"are in 75 % of {HALVES} halves."
)


def make_views(rng: np.random.Generator, n: int, strength: float, neighbours: float) -> list[np.ndarray]:
    """Return two views; the active features are spread over all."""
    shared = strength * rng.normal(size=(n, 1)) * (np.arange(FEATURES) % (FEATURES // ACTIVE) == 0)
    root = np.linalg.cholesky(toeplitz(neighbours ** np.arange(FEATURES)))
    return [shared + rng.normal(size=(n, FEATURES)) @ root.T for _ in range(2)]


def keep_largest(weights: np.ndarray, number: int) -> np.ndarray:
    """Return weights of length 1, soft-thresholded so that so many are left."""
    limit = np.sort(np.abs(weights))[-number - 1]
    weights = np.sign(weights) * np.maximum(np.abs(weights) - limit, 0.0)
    return weights / np.linalg.norm(weights)


def decompose(x: np.ndarray, y: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the sparse weights of the first component of PMD."""
    cross = scale(x).T @ scale(y)
    v = np.linalg.svd(cross)[2][0]
    for _ in range(20):
        u = keep_largest(cross @ v, number)
        v = keep_largest(cross.T @ u, number)
    return u, v


def choose_number(x: np.ndarray, y: np.ndarray) -> int:
    def score(number: int) -> float:
        folds = [(held, decompose(x[train], y[train], number)) for train, held in KFold(5).split(x)]
        return float(np.mean([np.corrcoef(x[held] @ u, y[held] @ v)[0, 1] for held, (u, v) in folds]))

    return max((5, 10, 20, 40, 80), key=score)


def select(x: np.ndarray, y: np.ndarray, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return which features of both views each method takes."""
    model = AWCCA(selection="ledoit-wolf").fit(x, y)
    found = bootstrap(model, x, y, n_resamples=500, confidence=0.99, n_components=1)
    loadings = [(view.low * view.high)[:, 0] > 0 for view in (found.x_loadings, found.y_loadings)]
    halves = [rng.permutation(len(x))[: len(x) // 2] for _ in range(HALVES)]
    kept = [np.hstack(decompose(x[rows], y[rows], ACTIVE)) != 0 for rows in halves]
    return {
        "intervals of loadings": np.hstack(loadings),
        "PMD": np.hstack(decompose(x, y, choose_number(x, y))) != 0,
        "PMD, stability selection": np.mean(kept, axis=0) >= 0.75,
    }


def main() -> None:
    rows, truth = [], np.tile(np.arange(FEATURES) % (FEATURES // ACTIVE) == 0, 2)
    for case in CASES:
        scores: dict[str, list[tuple[float, float]]] = {}
        for draw in range(DRAWS):
            rng = np.random.default_rng(draw)
            for name, taken in select(*make_views(rng, *case), rng).items():
                scores.setdefault(name, []).append((f1_score(truth, taken), np.sum(taken & ~truth) / 2))
        row = dict(zip(("rows", "strength", "shared noise"), case, strict=True))
        means = {name: np.mean(values, axis=0) for name, values in scores.items()}
        rows.append(row | {name: f"{f1:.2f} ({false:.1f})" for name, (f1, false) in means.items()})
        print(rows[-1], flush=True)
    record("sparse_loadings", rows, NOTE)


if __name__ == "__main__":
    main()
