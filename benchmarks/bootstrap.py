"""How often bootstrap intervals contain the truth, by how the components of resamples are aligned; speed.

``coverage``: plain CCA of Gaussian views with known loadings, where two correlations are more or less
equal. ``correlations``: how often the intervals of correlations contain those of the population. ``speed``:
time of ``bootstrap`` and of fitting every resample anew.
"""

from __future__ import annotations

from measuring import pin_threads, record, time_call

pin_threads(2)

import argparse  # noqa: E402

import numpy as np  # noqa: E402

from diptych import AWCCA  # noqa: E402
from diptych.cca import regularized_cca  # noqa: E402
from diptych.stats import bootstrap  # noqa: E402
from diptych.stats._bootstrap import correct_correlations  # noqa: E402
from diptych.stats._pairs import prepare_pairs  # noqa: E402
from diptych.stats._resampling import match_components, prepare_resamples, refit_resamples  # noqa: E402

FEATURES = 6
RESAMPLES = 400
SECOND = (0.3, 0.5, 0.65, 0.68)
"""Second canonical correlations beside a first of 0.7."""


def draw(rng: np.random.Generator, n: int, correlations: np.ndarray, mixes: np.ndarray) -> list[np.ndarray]:
    u = rng.normal(size=(n, FEATURES))
    v = correlations * u + np.sqrt(1 - correlations**2) * rng.normal(size=(n, FEATURES))
    return [u @ mixes[0].T, v @ mixes[1].T]


def fit(views: list[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """Return correlations, weights and loadings of plain CCA, for a stack of data sets at once."""
    views = [view - view.mean(axis=-2, keepdims=True) for view in views]
    grams = [np.swapaxes(view, -1, -2) @ view for view in views]
    roots = [np.linalg.inv(np.linalg.cholesky(gram)) for gram in grams]
    cross = np.swapaxes(views[0], -1, -2) @ views[1]
    p, sigma, q = np.linalg.svd(roots[0] @ cross @ np.swapaxes(roots[1], -1, -2))
    weights = [np.swapaxes(roots[0], -1, -2) @ p, np.swapaxes(roots[1], -1, -2) @ np.swapaxes(q, -1, -2)]
    lengths = [np.sqrt(np.diagonal(gram, axis1=-2, axis2=-1))[..., None] for gram in grams]
    loadings = [gram @ own / length for gram, own, length in zip(grams, weights, lengths, strict=True)]
    return sigma, weights, loadings


def align(cosines: np.ndarray, kept: int, how: str) -> np.ndarray:
    """Return the matrix that turns the components of a resample into those of the estimate."""
    turn = np.zeros((cosines.shape[1], kept))
    if how == "matching":
        at, signs = match_components(cosines[:kept])
        turn[at, np.arange(kept)] = signs
    else:
        left, _, right = np.linalg.svd(cosines[:kept, :kept])
        turn[:kept] = (left @ right).T
    return turn


def measure_coverage(second: float, n: int, data_sets: int, resamples: int, seed: int) -> dict:
    rng = np.random.default_rng(seed)
    kept, hits, widths = 2, {"matching": [], "Procrustes": []}, {"matching": [], "Procrustes": []}
    for _ in range(data_sets):
        correlations = np.array([0.7, second, *[0.1] * (FEATURES - 2)])
        mixes = rng.normal(size=(2, FEATURES, FEATURES))
        views = draw(rng, n, correlations, mixes)
        _, weights, _ = fit(views)
        rows = rng.integers(n, size=(resamples, n))
        _, others, loadings = fit([view[rows] for view in views])
        grams = [np.cov(view.T, ddof=0) * n for view in views]

        def cosines(each: list[np.ndarray], grams=grams, weights=weights) -> np.ndarray:
            total = 0.0
            for gram, own, other in zip(grams, weights, each, strict=True):
                length = np.sqrt(np.sum(other * (gram @ other), axis=-2, keepdims=True))
                total = total + own.T @ gram @ (other / length)
            return total

        # The truth is aligned with the estimate by matching, whichever way resamples are.
        truth = [np.linalg.inv(mix).T for mix in mixes]
        true_turn = align(cosines(truth), kept, "matching")
        true = [mix / np.linalg.norm(mix, axis=1, keepdims=True) @ true_turn for mix in mixes]
        all_cosines = cosines(others)
        for how in hits:
            turns = np.stack([align(each, kept, how) for each in all_cosines])
            for own, expected in zip(loadings, true, strict=True):
                low, high = np.quantile(own @ turns, (0.025, 0.975), axis=0)
                hits[how].append((low <= expected) & (expected <= high))
                widths[how].append(high - low)
    return {
        "second correlation": second,
        "pairs": n,
        **{
            f"{how}: {what}": f"{scale * np.mean(values[how]):.{digits}f}{unit}"
            for how in hits
            for what, values, scale, digits, unit in (
                ("coverage", hits, 100, 1, " %"),
                ("width", widths, 1, 2, ""),
            )
        },
    }


def run_coverage(quick: bool) -> None:
    data_sets = 20 if quick else 150
    rows = []
    for n in (100, 400):
        for second in SECOND:
            rows.append(measure_coverage(second, n, data_sets, RESAMPLES, seed=n))
            print(rows[-1], flush=True)
    record(
        "bootstrap_coverage",
        rows,
        f"Loadings of the first two components of plain CCA, {FEATURES} features in each view, first "
        f"correlation 0.7, the others beside the second 0.1; 95 % percentile intervals of {RESAMPLES} "
        f"resamples, {data_sets} data sets.",
    )


SIZES = ((100, 3, 3), (400, 6, 6), (100, 6, 6), (60, 10, 8), (40, 3, 3), (40, 30, 30))
"""Pairs, and features of both views; with more features than pairs, γ is the number of pairs."""


def measure_correlations(n: int, p: int, q: int, data_sets: int, resamples: int) -> list[dict]:
    """Return how often intervals contain correlations of 0.7 and 0.4, of white views, which γ only scales."""
    true, gamma = np.array([0.7, 0.4]), float(n) if p + q > n else 0.0
    values: dict[str, list[np.ndarray]] = {}
    for seed in range(data_sets):
        rng = np.random.default_rng([n, p, seed])
        x, y = rng.normal(size=(n, p)), rng.normal(size=(n, q))
        y[:, :2] = true * x[:, :2] + np.sqrt(1 - true**2) * y[:, :2]
        pairs = prepare_pairs((gamma, gamma), x, y, None, "search")
        estimate = regularized_cca(pairs.spectra, *pairs.filters, 2)
        sample = prepare_resamples(pairs, estimate, None, seed)
        draws = np.stack([refit.correlations for refit in refit_resamples(sample, range(resamples))])
        interval = correct_correlations(estimate.train_correlations, draws, 0.95)
        low, high = np.nanquantile(draws, (0.025, 0.975), axis=0)
        for name, measured in (
            ("in-sample", estimate.train_correlations),
            ("corrected", interval.estimate),
            ("coverage", (interval.low <= true) & (true <= interval.high)),
            ("width", interval.high - interval.low),
            ("percentiles", (low <= true) & (true <= high)),
        ):
            values.setdefault(name, []).append(measured)
    means = {name: np.mean(measured, axis=0) for name, measured in values.items()}
    return [
        {
            "pairs": n,
            "features": f"{p} + {q}",
            "γ": f"{gamma:g}",
            "correlation": f"{true[k]:g}",
            "in-sample": f"{means['in-sample'][k]:.2f}",
            "corrected": f"{means['corrected'][k]:.2f}",
            "coverage": f"{100 * means['coverage'][k]:.0f} %",
            "width": f"{means['width'][k]:.2f}",
            "coverage of percentiles": f"{100 * means['percentiles'][k]:.0f} %",
        }
        for k in range(2)
    ]


def run_correlations(quick: bool) -> None:
    data_sets, resamples = (10, 50) if quick else (100, 150)
    rows = []
    for size in SIZES:
        rows += measure_correlations(*size, data_sets, resamples)
        print(*rows[-2:], sep="\n", flush=True)
    record(
        "bootstrap_correlations",
        rows,
        "Gaussian views of independent features, of which two have a correlation with one of the other view; "
        f"95 % intervals of {resamples} resamples, {data_sets} data sets.",
    )


def run_speed(quick: bool) -> None:
    rng, rows = np.random.default_rng(0), []
    shapes = [(300, 200), (2000, 50)] if quick else [(300, 2000), (20000, 100)]
    for n, width in shapes:
        hidden = rng.normal(size=(n, 4))
        x, y = (hidden @ rng.normal(size=(4, width)) + 3 * rng.normal(size=(n, width)) for _ in range(2))
        params = (0.1 * n * 9, 0.1 * n * 9)
        resamples, refits = (50, 2) if quick else (1000, 10)
        seconds, _ = time_call(lambda x=x, y=y, own=params, b=resamples: bootstrap(own, x, y, n_resamples=b))

        def refit(x=x, y=y, own=params, times=refits) -> None:
            for seed in range(times):
                chosen = np.random.default_rng(seed).integers(len(x), size=len(x))
                _ = AWCCA(params=own).fit(x[chosen], y[chosen]).models_["search"].x_weights

        naive = time_call(refit)[0] / refits * resamples
        rows.append(
            {
                "pairs": n,
                "features of each view": width,
                "resamples": resamples,
                "bootstrap": f"{seconds:.1f} s",
                "fits, one after another": f"{naive:.0f} s",
                "ratio": f"{naive / seconds:.1f}",
            }
        )
    record("bootstrap_speed", rows, "The time of the fits is extrapolated from a few of them.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("coverage", "correlations", "speed"))
    parser.add_argument("--quick", action="store_true", help="few data sets, small shapes")
    arguments = parser.parse_args()
    commands = {"coverage": run_coverage, "correlations": run_correlations, "speed": run_speed}
    commands[arguments.what](arguments.quick)
