"""Model selection on Flickr8k, 20 × 20, both tasks, r@1: the whole path beside the textbook's, in one run.

ResNet-50 × HKSE(rbf, rbf) of 2,000 dimensions, validation 1,000 × 5,000, float32. The textbook is the
package's own textbook route (LAPACK gesdd, one score product and one blocked count of ranks per task),
timed on 25 points spread over the grid and extrapolated to 400.
"""

from __future__ import annotations

import argparse
import time

from recording import pin_threads, real_data, record

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=2)
options = parser.parse_args()
pin_threads(options.threads)

import numpy as np  # noqa: E402

import flickr8k  # noqa: E402
from diptych.cca import spectra  # noqa: E402
from diptych.cca.selection import make_grid, make_problem, make_weights, regularization_path, textbook_ranks  # noqa: E402
from diptych.ranking import metric  # noqa: E402


def sgemm_rate() -> float:
    """Products of 2,000 × 2,000 in float32, flops per second; the best of five."""
    rng = np.random.default_rng(0)
    a = rng.standard_normal((2000, 2000), dtype=np.float32)
    best = np.inf
    for _ in range(5):
        start = time.perf_counter()
        _ = a @ a
        best = min(best, time.perf_counter() - start)
    return 2 * 2000**3 / best


def dense_flops(problem, w_x, w_y) -> float:
    """What the path needs if every numerator is made in full: its own products, and nothing else."""
    images, captions, r_x, r_y = *(v.shape[0] for v in (problem.a, problem.b)), *problem.t0.shape
    touched_x = sum(step.stop - step.start for step in w_x.steps)
    touched_y = sum(step.stop - step.start for step in w_y.steps)
    mapping = 2.0 * images * touched_x * r_y + 2.0 * captions * touched_y * r_x
    return mapping + 2.0 * len(w_x.steps) * images * touched_y * captions


def main() -> None:
    x, y, pairing = flickr8k.load(real_data(), "resnet50", "hkse-rbf-rbf")
    training, validation, _ = flickr8k.splits(x, y, pairing)
    fitted = spectra(*training)
    problem = make_problem(fitted, validation)
    rows = []
    for kind in ("tikhonov", "tsvd"):
        # The truncated SVD's grid is the paper's, evenly in rank: larger SVDs for the textbook, and for us.
        grid = make_grid(kind, ("log" if kind == "tikhonov" else "rank", 20), fitted)
        w_x, w_y = make_weights(problem, fitted, grid)
        rate = sgemm_rate()
        points = [(i, j) for i in range(1, 20, 4) for j in range(1, 20, 4)]
        start = time.perf_counter()
        for i, j in points:
            next(textbook_ranks(problem, w_x.rows[i], w_y.rows[j]))
        textbook = (time.perf_counter() - start) / len(points) * 400
        chosen = {}
        for route, metrics in (("screened", "metric"), ("exact", "all")):
            path = regularization_path(
                problem, fitted, grid, metric("r@1"), path_metrics=metrics, route=route
            )
            chosen[route] = path.choice
            limit = dense_flops(problem, w_x, w_y) / rate
            rows.append(
                {
                    "filter": kind,
                    "path": f"{route}, {'r@1' if metrics == 'metric' else 'all metrics'}",
                    "seconds": f"{path.seconds:.1f}",
                    "textbook, s": f"{textbook:.0f}",
                    "textbook ÷ path": f"{textbook / path.seconds:.0f}×",
                    "path ÷ (dense path's flops ÷ sgemm rate)": f"{path.seconds / limit:.2f}",
                    "verified points": str(int((path.exact["search"] | path.exact["annotate"]).sum())),
                    "chosen (search; annotate)": f"{path.choice['search']}; {path.choice['annotate']}",
                }
            )
        rows[-1]["same choice"] = rows[-2]["same choice"] = str(chosen["screened"] == chosen["exact"])
    record("selection_speed", rows, f"sgemm {rate / 1e9:.0f} GFLOP/s in the same run.")


if __name__ == "__main__":
    main()
