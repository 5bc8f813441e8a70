"""A fit on one GPU from host memory, copied while it computes: the paper's COCO size, and ten times as much.

113,287 images × 5 captions, 4096 × 4800, lie in host memory as float16. Timed: the pass over them, alone and
with its two halves apart (copying without computing, computing without copying), and the whole fit, with
20 × 20 points scored on 5,000 validation images; then the embedding of every image back into host memory.
"""

from __future__ import annotations

import argparse
import gc
import time

from recording import record

import numpy as np  # isort: skip
import torch  # isort: skip

from diptych._devices import copy_blocks
from diptych.cca import AWCCA
from diptych.cca._moments import DEVICE_BLOCK_BYTES, products
from diptych.cca._streaming import ArrayBlocks, Preparation, sum_blocks

CAPTIONS, HIDDEN = 5, 600


def clock() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


class Source:
    """Two views of a hidden cause; drawn on the device, kept in host memory as float16."""

    def __init__(self, m_x: int, m_y: int, device: str) -> None:
        self.device, self.rng = device, torch.Generator(device).manual_seed(0)
        strength = (1.0 / (1.0 + torch.arange(HIDDEN, device=device)) ** 0.5)[:, None]
        self.mixing = [
            strength * torch.randn(HIDDEN, m, device=device, generator=self.rng) for m in (m_x, m_y)
        ]

    def draw(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = np.empty((n, self.mixing[0].shape[1]), np.float16)
        y = np.empty((n * CAPTIONS, self.mixing[1].shape[1]), np.float16)
        for start in range(0, n, 20_000):
            rows = min(20_000, n - start)
            hidden = self._noise(rows, HIDDEN)
            seen = (hidden + self._noise(rows, HIDDEN)) @ self.mixing[0]
            x[start : start + rows] = (seen + 2.0 * self._noise(*seen.shape)).half().cpu().numpy()
            heard = hidden.repeat_interleave(CAPTIONS, dim=0)
            heard = (heard + 5.0 * self._noise(*heard.shape)) @ self.mixing[1]
            heard += 2.0 * self._noise(*heard.shape)
            y[start * CAPTIONS : (start + rows) * CAPTIONS] = heard.half().cpu().numpy()
        return x, y, np.arange(n).repeat(CAPTIONS)

    def _noise(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, device=self.device, generator=self.rng)


def gemm_rate(precision: str, device: str) -> float:
    """FLOP/s of one large product."""
    n = 8192 if torch.cuda.is_available() else 512
    a = torch.ones(n, n, dtype=getattr(torch, precision), device=device)
    a @ a
    start = clock()
    for _ in range(5):
        a @ a
    return 5 * 2 * n**3 / (clock() - start)


def pass_row(pairs: tuple, precision: str, device: str) -> dict:
    x, y, pairing = pairs
    blocks = ArrayBlocks(x, y, pairing, None, DEVICE_BLOCK_BYTES)
    prepare = Preparation(("none", "none"), precision, device)
    some = CAPTIONS * min(len(x), 30_000)  # load the libraries, and lock the pages that will be used again
    sum_blocks(ArrayBlocks(x, y[:some], pairing[:some], None, DEVICE_BLOCK_BYTES), prepare)
    start = clock()
    found = sum_blocks(blocks, prepare)
    whole = clock() - start
    assert found.count == len(y)
    start = clock()
    for block in copy_blocks(iter(blocks), device):
        del block
    copying = clock() - start
    some = [block for block, _ in zip(copy_blocks(iter(blocks), device), range(4), strict=False)]
    rows = sum(len(block[1]) for block in some)
    start = clock()
    for bx, by, p in some:
        products(bx.float(), by.float(), p, precision)
    computing = (clock() - start) * len(y) / rows
    flops = 2 * (len(x) * x.shape[1] ** 2 + len(y) * y.shape[1] ** 2 + len(x) * x.shape[1] * y.shape[1])
    peak = gemm_rate(precision, device)
    hidden = (copying + computing - whole) / min(copying, computing)
    return {
        "images × captions": f"{len(x):,} × {len(y):,}",
        "float16 in host memory": f"{(x.nbytes + y.nbytes) / 2**30:.1f} GiB",
        "products": precision,
        "pass, s": f"{whole:.2f}",
        "copying alone, s": f"{copying:.2f}",
        "computing alone, s": f"{computing:.2f}",
        "of the smaller hidden": f"{100 * max(0.0, min(1.0, hidden)):.0f} %",
        "TFLOP/s": f"{flops / whole / 1e12:.1f}",
        "of the GEMM rate": f"{100 * flops / whole / peak:.0f} % of {peak / 1e12:.1f}",
    }


def fit_row(pairs: tuple, validation: tuple, precision: str, device: str) -> dict:
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    start = clock()
    model = AWCCA(precision=precision, solver="gram").fit(*pairs, validation=validation, device=device)
    fitted = clock()
    embedded = model.transform(X=pairs[0], device=device)
    images = clock()
    del embedded
    gc.collect()
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else float("nan")
    path = model.path_
    return {
        "images × captions": f"{len(pairs[0]):,} × {len(pairs[1]):,}",
        "products": precision,
        "whole fit, s": f"{fitted - start:.1f}",
        "of it selection (20 × 20), s": f"{path.seconds:.1f}",
        "embedding all images, s": f"{images - fitted:.1f}",
        "peak on the card, GiB": f"{peak:.1f}",
        "r@1 (search; annotate)": f"{path.best('search'):.1f}; {path.best('annotate'):.1f}",
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0, help="shrink every size, to try it out")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()

    def size(value: int) -> int:
        return max(40, int(value * options.scale))

    source = Source(size(4096), size(4800), options.device)
    validation = source.draw(size(5000))
    passes, fits = [], []
    for n in (size(113287), size(1132870)):
        start = time.perf_counter()
        pairs = source.draw(n)
        print(f"{n:,} images drawn in {time.perf_counter() - start:.0f} s", flush=True)
        for precision in ("float64", "float32"):
            passes.append(pass_row(pairs, precision, options.device))
            print(passes[-1], flush=True)
            fits.append(fit_row(pairs, validation, precision, options.device))
            print(fits[-1], flush=True)
        del pairs
        gc.collect()
    where = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    where += (
        f", torch {torch.__version__}; {source.mixing[0].shape[1]} × {source.mixing[1].shape[1]} features"
    )
    record(
        "streaming_gpu",
        passes,
        f"{where}. FLOP are those of the three products as they are computed (2·n·d², no symmetry); the GEMM "
        "rate is that of one 8192³ product of the same precision in the same run. Hidden: how much of the "
        "shorter of copying and computing took no time of its own.",
    )
    record("streaming_gpu_fit", fits, f"{where}; validation 5,000 × 25,000, r@1 on it.")


if __name__ == "__main__":
    main()
