"""Model selection, 20 × 20 points, both tasks: how long it takes beside the textbook, and what it finds.

``python benchmarks/selection_speed.py``: Flickr8k on the CPU. ResNet-50 × HKSE(rbf, rbf) of 2,000 dimensions,
validation 1,000 × 5,000, float32. The textbook is the library's textbook route (one SVD per point), timed on
25 points spread over the grid and extrapolated to 400.

``--device cuda``: the paper's largest selection, 113,287 images × 5 captions, 4096 × 4800, validation 5,000 ×
25,000, generated on the card; moments, eigendecompositions, projection and the whole path, screened and exact
in float32, and screened with TF32 products. The paper's own search took 163,116 s. ``--scale`` shrinks every
size, to try it out.

``--quality``: what the spacing of the grid brings on Flickr8k, by r@1 on validation, for every filter. The
test split is not read.
"""

from __future__ import annotations

import argparse
from itertools import product

from measuring import (
    check_device,
    clock,
    load_flickr8k,
    measure_gemm,
    pin_threads,
    record,
    require,
    split_flickr8k,
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--device", default="cpu")
parser.add_argument("--scale", type=float, default=1.0, help="shrink every size of --device cuda")
parser.add_argument("--quality", action="store_true")
options = parser.parse_args()
if options.device == "cpu":
    pin_threads(options.threads)

import numpy as np  # noqa: E402

from diptych import AWCCA  # noqa: E402
from diptych.cca import spectra  # noqa: E402
from diptych.cca.selection import (  # noqa: E402
    make_grid,
    make_problem,
    make_weights,
    regularization_path,
    textbook_ranks,
)
from diptych.ranking import metric  # noqa: E402

PAPER_SECONDS = 45.31 * 3600


def count_flops(problem, w_x, w_y) -> float:
    """Return the FLOP of the exact path if every numerator is computed in full."""
    images, captions, r_x, r_y = *(v.shape[0] for v in (problem.a, problem.b)), *problem.t0.shape
    touched_x = sum(step.stop - step.start for step in w_x.steps)
    touched_y = sum(step.stop - step.start for step in w_y.steps)
    mapping = 2.0 * images * touched_x * r_y + 2.0 * captions * touched_y * r_x
    return mapping + 2.0 * len(w_x.steps) * images * touched_y * captions


def measure_cpu() -> None:
    training, validation, _ = split_flickr8k(*load_flickr8k("resnet50", "hkse-rbf-rbf"))
    fitted = spectra(*training)
    problem = make_problem(fitted, validation)
    matrix = np.random.default_rng(0).standard_normal((2000, 2000), dtype=np.float32)
    rows = []
    # The path of guided Tikhonov is that of the truncated SVD (Algorithm 4, line 1).
    for name, kind in (("tikhonov", "tikhonov"), ("tsvd", "tsvd"), ("guided", "tsvd")):
        # The truncated SVD's grid is the paper's, evenly in rank: larger SVDs for the textbook, and for us.
        grid = make_grid(kind, ("log" if kind == "tikhonov" else "rank", 20), fitted)
        w_x, w_y = make_weights(problem, fitted, grid)
        rate = measure_gemm(matrix, 5)
        points = [(i, j) for i in range(1, 20, 4) for j in range(1, 20, 4)]
        start = clock()
        for i, j in points:
            next(textbook_ranks(problem, w_x.rows[i], w_y.rows[j]))
        textbook = (clock() - start) / len(points) * 400
        choices = {}
        for route, metrics in (("screened", "metric"), ("exact", "all")):
            path = regularization_path(
                problem, fitted, grid, metric("r@1"), path_metrics=metrics, route=route
            )
            choices[route] = path.choice
            limit = count_flops(problem, w_x, w_y) / rate
            rows.append(
                {
                    "filter": name,
                    "path": f"{route}, {'r@1' if metrics == 'metric' else 'all metrics'}",
                    "seconds": f"{path.seconds:.1f}",
                    "textbook, s": f"{textbook:.0f}",
                    "textbook ÷ path": f"{textbook / path.seconds:.0f}×",
                    "path ÷ (dense path's flops ÷ sgemm rate)": f"{path.seconds / limit:.2f}",
                    "verified points": str(int((path.exact["search"] | path.exact["annotate"]).sum())),
                    "chosen (search; annotate)": f"{path.choice['search']}; {path.choice['annotate']}",
                }
            )
        rows[-1]["same choice"] = rows[-2]["same choice"] = str(choices["screened"] == choices["exact"])
    record("selection_speed", rows, f"sgemm {rate / 1e9:.0f} GFLOP/s in the same run.")


def generate(torch, n: int, m_x: int, m_y: int, seed: int, mixing: tuple):
    """Return two noisy views of a hidden cause on the device; noise on the cause itself keeps retrieval
    hard."""
    device = mixing[0].device
    rng = torch.Generator(device).manual_seed(seed)
    hidden = torch.randn(n, mixing[0].shape[0], device=device, generator=rng)
    pairing = torch.arange(n, device=device).repeat_interleave(5)
    x = (hidden + torch.randn(hidden.shape, device=device, generator=rng)) @ mixing[0]
    x += 2.0 * torch.randn(n, m_x, device=device, generator=rng)
    causes = hidden[pairing]
    causes += 5.0 * torch.randn(causes.shape, device=device, generator=rng)
    y = causes @ mixing[1]
    for start in range(0, len(y), 65536):
        part = y[start : start + 65536]
        part += 2.0 * torch.randn(part.shape, device=device, generator=rng)
    return x, y, pairing


def measure_gpu(device: str) -> None:
    check_device(device)
    require("torch", "pip install torch")
    import torch

    def size(value: int) -> int:
        return max(40, int(value * options.scale))

    is_cuda = torch.cuda.is_available()
    n, n_val, m_x, m_y = size(113287), size(5000), size(4096), size(4800)
    rng = torch.Generator(device).manual_seed(0)
    strength = (1.0 / (1.0 + torch.arange(600, device=device)) ** 0.5)[:, None]
    mixing = tuple(strength * torch.randn(600, m, device=device, generator=rng) for m in (m_x, m_y))
    training = generate(torch, n, m_x, m_y, 1, mixing)
    validation = generate(torch, n_val, m_x, m_y, 2, mixing)
    # Load the libraries.
    small = tuple(part[:50] for part in training[:2]), training[2][:50] % 50
    fitted = spectra(*small[0], small[1])
    problem = make_problem(fitted, (*small[0], small[1]))
    regularization_path(problem, fitted, make_grid("tikhonov", 8, fitted), metric("r@1"))
    rows, choices = [], []
    for name, tf32, route in (
        ("float32", False, "screened"),
        ("float32", False, "exact"),
        ("TF32 products", True, "screened"),
    ):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        if is_cuda:
            torch.cuda.reset_peak_memory_stats()
        start = clock()
        fitted = spectra(*training, solver="gram")
        middle = clock()
        problem = make_problem(fitted, validation)
        grid = make_grid("tikhonov", 20, fitted)
        path = regularization_path(problem, fitted, grid, metric("r@1"), route=route)
        end = clock()
        choices.append(path.choice)
        peak = torch.cuda.max_memory_allocated() / 2**30 if is_cuda else float("nan")
        w_x, w_y = make_weights(problem, fitted, grid)
        point = clock()
        for i in (4, 10, 16):
            next(textbook_ranks(problem, w_x.rows[i], w_y.rows[i]))
        rows.append(
            {
                "path": f"{route}, {name}",
                "moments + spectra, s": f"{middle - start:.2f}",
                "path of 400 points, both tasks, s": f"{end - middle:.2f}",
                "whole selection, s": f"{end - start:.2f}",
                "the paper's time ÷ ours": f"{PAPER_SECONDS / (end - start):,.0f}",
                "textbook, s per point": f"{(clock() - point) / 3:.2f}",
                "peak memory, GiB": f"{peak:.1f}",
                "verified points": str(int((path.exact["search"] | path.exact["annotate"]).sum())),
                "chosen (search; annotate)": f"{path.choice['search']}; {path.choice['annotate']}",
                "r@1": f"{path.best('search'):.2f}; {path.best('annotate'):.2f}",
            }
        )
    same, with_tf32 = (
        "the same points" if choice == choices[1] else "other points" for choice in (choices[0], choices[2])
    )
    where = torch.cuda.get_device_name() if is_cuda else "CPU"
    record(
        "selection_gpu",
        rows,
        f"{where}, torch {torch.__version__}; {n:,} × {m_x} images, {5 * n:,} × {m_y} captions, validation "
        f"{n_val:,} × {5 * n_val:,}. Moments are always float64. The screened path chooses {same} as the "
        f"exact one, and with TF32 {with_tf32}.",
    )


def measure_quality() -> None:
    scores: dict[tuple[str, str], list[float]] = {}
    for images, texts in (
        ("resnet50", "hkse-lin-lin"),
        ("resnet50", "hkse-rbf-rbf"),
        ("resnet50-sqrt", "hkse-rbf-rbf"),
        ("resnet50-sqrt", "minilm"),
    ):
        training, validation, _ = split_flickr8k(*load_flickr8k(images, texts))
        for name, spacing in product(("tikhonov", "tsvd", "guided"), ("log", "rank")):
            model = AWCCA(filter=name, grid=(spacing, 20)).fit(*training, validation=validation)
            values = [model.score(*validation, task=task) for task in ("search", "annotate")]
            scores.setdefault((name, spacing), []).extend(values)
            print(images, texts, name, spacing, model.path_.choice, values, flush=True)
    rows = []
    for name in dict.fromkeys(name for name, _ in scores):
        log, rank = (np.array(scores[name, spacing]) for spacing in ("log", "rank"))
        means = {"even in log σ²": f"{log.mean():.2f}", "even in rank": f"{rank.mean():.2f}"}
        better = f"{np.count_nonzero(log > rank)} of {len(log)}"
        rows.append(
            {"filter": name, **means, "difference": f"{(log - rank).mean():+.2f}", "log is better": better}
        )
    record(
        "selection_grids",
        rows,
        "r@1 on validation of the selected models, mean over four pairs of features (ResNet-50 as it is and "
        "its square roots at unit length; HKSE(lin, lin), HKSE(rbf, rbf), MiniLM) and both tasks, by how the "
        "grid of 20 per side is spaced.",
    )


if __name__ == "__main__":
    if options.quality:
        measure_quality()
    elif options.device != "cpu" or options.scale != 1.0:
        measure_gpu(options.device)
    else:
        measure_cpu()
