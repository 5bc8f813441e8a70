"""The paper's largest model selection on one GPU: 113,287 images × 5 captions, 4096 × 4800, grid 20 × 20.

Validation has 5,000 images × 25,000 captions. The data is generated on the card. Timed: moments,
eigendecompositions, projection and the whole exact path, in float32 and with TF32 products; beside it one
point of the textbook route. The paper's own search took 163,116 s.
"""

from __future__ import annotations

import argparse
import time

from recording import record

import torch  # isort: skip

from diptych.cca import spectra
from diptych.cca.selection import make_grid, make_problem, make_weights, regularization_path, textbook_ranks
from diptych.ranking import metric

PAPER_SECONDS = 45.31 * 3600


def generate(n: int, captions: int, m_x: int, m_y: int, seed: int, mixing: tuple[torch.Tensor, torch.Tensor]):
    device = mixing[0].device
    rng = torch.Generator(device).manual_seed(seed)
    hidden = torch.randn(n, mixing[0].shape[0], device=device, generator=rng)
    pairing = torch.arange(n, device=device).repeat_interleave(captions)
    # Noise on the hidden cause itself keeps retrieval hard, whatever the number of features.
    x = (hidden + torch.randn(hidden.shape, device=device, generator=rng)) @ mixing[0]
    x += 2.0 * torch.randn(n, m_x, device=device, generator=rng)
    heard = hidden[pairing]
    heard += 5.0 * torch.randn(heard.shape, device=device, generator=rng)
    y = heard @ mixing[1]
    for start in range(0, len(y), 65536):
        part = y[start : start + 65536]
        part += 2.0 * torch.randn(part.shape, device=device, generator=rng)
    return x, y, pairing


def clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="shrink every size, to try it out")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    def size(value: int) -> int:
        return max(40, int(value * options.scale))

    n, n_val, m_x, m_y = size(113287), size(5000), size(4096), size(4800)
    rng = torch.Generator(options.device).manual_seed(0)
    strength = (1.0 / (1.0 + torch.arange(600, device=options.device)) ** 0.5)[:, None]
    mixing = tuple(strength * torch.randn(600, m, device=options.device, generator=rng) for m in (m_x, m_y))
    training, validation = generate(n, 5, m_x, m_y, 1, mixing), generate(n_val, 5, m_x, m_y, 2, mixing)
    spectra(*(part[:50] for part in training[:2]), training[2][:50] % 50)  # load the libraries
    rows, chosen = [], {}
    for name, tf32 in (("float32", False), ("TF32 products", True)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        start = clock()
        fitted = spectra(*training, solver="gram")
        middle = clock()
        problem = make_problem(fitted, validation)
        grid = make_grid("tikhonov", 20, fitted)
        path = regularization_path(problem, fitted, grid, metric("r@1"))
        end = clock()
        chosen[name] = path.choice
        peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")
        w_x, w_y = make_weights(problem, fitted, grid)
        point = clock()
        for i in (4, 10, 16):
            next(textbook_ranks(problem, w_x.rows[i], w_y.rows[i]))
        textbook = (clock() - point) / 3
        rows.append(
            {
                "arithmetic of the path": name,
                "moments + spectra, s": f"{middle - start:.2f}",
                "path of 400 points, both tasks, s": f"{end - middle:.2f}",
                "whole selection, s": f"{end - start:.2f}",
                "the paper's time ÷ ours": f"{PAPER_SECONDS / (end - start):,.0f}",
                "textbook, s per point": f"{textbook:.2f}",
                "peak memory, GiB": f"{peak:.1f}",
                "chosen (search; annotate)": f"{path.choice['search']}; {path.choice['annotate']}",
                "r@1": f"{path.best('search'):.2f}; {path.best('annotate'):.2f}",
            }
        )
    same = "the same points" if chosen["float32"] == chosen["TF32 products"] else "other points"
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    record(
        "selection_gpu",
        rows,
        f"{where}, torch {torch.__version__}; {n:,} × {m_x} images, {5 * n:,} × {m_y} captions, validation "
        f"{n_val:,} × {5 * n_val:,}. Moments are float64 either way. TF32 selects {same} as float32.",
    )


if __name__ == "__main__":
    main()
