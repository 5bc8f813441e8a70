"""Fits larger than memory: ``python benchmarks/streaming.py disk`` or ``gpu``.

``disk``: 1,000,000 images × 5 captions, 2048 × 2000, from float16 files on 2 cores. Three sizes, each in a
process of its own, which reports its peak resident memory, the seconds of the pass and of the whole fit, and
the rate of a large single-precision product before and after.

``gpu``: 113,287 images × 5 captions, 4096 × 4800 (the paper's COCO size), and ten times as many, from host
memory as float16, copied to one GPU while it computes. Timed: the pass, alone and with its two halves apart
(copying without computing, computing without copying); the whole fit, with 20 × 20 points scored on 5,000
validation images; and the vectors of every image back in host memory.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import tempfile
from pathlib import Path

from measuring import (
    RESULTS,
    check_device,
    clock,
    measure_gemm,
    pin_threads,
    read_memory,
    record,
    require,
    run_alone,
    start_figure,
    time_call,
)

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("part", choices=["disk", "gpu"])
parser.add_argument("--images", type=int, default=1_000_000, help="disk: how many")
parser.add_argument("--folder", help="disk: keep the files here, and use those that are there")
parser.add_argument("--precision", default="float32", help="disk: of the products")
parser.add_argument("--scale", type=float, default=1.0, help="gpu: shrink every size, to try it out")
parser.add_argument("--device", default="cuda", help="gpu: the torch device")
parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
options = parser.parse_args()
if options.part == "gpu":
    check_device(options.device)
    require("torch", "pip install torch")
else:
    require("matplotlib", "pip install matplotlib")
if options.part == "disk":
    pin_threads(2)

import numpy as np  # noqa: E402

from diptych.cca import AWCCA  # noqa: E402

CAPTIONS, WIDTHS, HIDDEN, PER_FILE = 5, (2048, 2000), 64, 25_000
GPU_HIDDEN = 600


def write_file(task: tuple[str, int, int]) -> None:
    """Write the images and captions of one pair of files, unless they are there."""
    folder, number, images = task
    place = Path(folder)
    if (place / f"y-{number:04d}.npy").exists():
        return
    mixing, rng = np.random.default_rng(0), np.random.default_rng([1, number])
    maps = [mixing.standard_normal((HIDDEN, width), dtype=np.float32) for width in WIDTHS]
    cause = rng.standard_normal((images, HIDDEN), dtype=np.float32)
    for name, width, rows in (("x", WIDTHS[0], cause), ("y", WIDTHS[1], np.repeat(cause, CAPTIONS, axis=0))):
        staged = place / f".{name}-{number:04d}.npy"
        out = np.lib.format.open_memmap(staged, "w+", np.float16, (len(rows), width))
        for start in range(0, len(rows), 5000):
            part = rows[start : start + 5000]
            noise = rng.standard_normal((len(part), width), dtype=np.float32)
            out[start : start + 5000] = part @ maps[name == "y"] + 4.0 * noise
        out.flush()
        del out
        staged.rename(place / f"{name}-{number:04d}.npy")


def fit_files(folder: str, files: int, precision: str) -> None:
    """Fit once, and print what was measured as JSON."""
    from diptych.cca import _fit as cca_fit
    from diptych.data import shards

    seconds: dict[str, float] = {}
    inner = cca_fit.sum_blocks

    def sum_and_time(*arguments, **settings):
        seconds["pass"], moments = time_call(lambda: inner(*arguments, **settings))
        return moments

    cca_fit.sum_blocks = sum_and_time
    names = [[f"{folder}/{view}-{number:04d}.npy" for number in range(files)] for view in "xy"]
    peaks = [measure_gemm(np.ones((4096, 4096), np.float32))]
    before = read_memory()
    start = clock()
    blocks = shards(*names, CAPTIONS)
    model = AWCCA(params=(1e5, 1e5), precision=precision, n_components=512).fit(blocks)
    whole = clock() - start
    memory = read_memory()
    peaks.append(measure_gemm(np.ones((4096, 4096), np.float32)))
    images, captions = blocks.n_x, blocks.n_y
    flops = images * WIDTHS[0] ** 2 + captions * WIDTHS[1] ** 2 + 2 * images * WIDTHS[0] * WIDTHS[1]
    report = {
        "images": images,
        "captions": captions,
        "pass": seconds["pass"],
        "whole": whole,
        "peak": max(peaks),
        "share": flops / seconds["pass"] / max(peaks),
        "memory": memory / 1024,
        "before": before / 1024,
        "correlation": float(model.models_["search"].correlations[0]),
    }
    print(json.dumps(report))


def draw_passes(rows: list[dict], path: Path) -> None:
    """Draw the seconds of the pass against the number of images."""
    images = np.array([row["images"] for row in rows]) / 1e6
    seconds = np.array([row["pass"] for row in rows])
    slope = float(images @ seconds / (images @ images))
    figure, axes = start_figure(size=(5.2, 3.2))
    axes.plot([0, images[-1]], [0, slope * images[-1]], color="#9aa5b1", linewidth=1.2, zorder=1)
    axes.scatter(images, seconds, color="#1f5fa8", zorder=2)
    axes.annotate(
        f"{slope:.0f} s for a million images",
        (images[-1] / 2, slope * images[-1] / 2),
        (8, -14),
        textcoords="offset points",
    )
    axes.set(
        xlabel="images, millions (five captions each)",
        ylabel="seconds of the pass",
        xlim=(0, None),
        ylim=(0, None),
    )
    figure.savefig(path, metadata={"Date": None})


def measure_disk() -> None:
    if options.one:
        fit_files(options.folder, options.one, options.precision)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or scratch
        Path(folder).mkdir(exist_ok=True)
        per_file = min(PER_FILE, options.images // 4)
        files = options.images // per_file
        start = clock()
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for _ in pool.imap_unordered(write_file, [(folder, i, per_file) for i in range(files)]):
                pass
        size = sum(path.stat().st_size for path in Path(folder).glob("[xy]-*.npy"))
        print(f"{size / 1e9:.1f} GB written in {clock() - start:.0f} s", flush=True)
        results = []
        for share in (4, 2, 1):
            settings = "--folder", folder, "--one", files // share, "--precision", options.precision
            results.append(run_alone("disk", *settings))
            print(results[-1], flush=True)
    draw_passes(results, RESULTS / "out_of_core.svg")
    record(
        "out_of_core",
        [
            {
                "images × captions": f"{row['images']:,} × {row['captions']:,}",
                "pass, s": f"{row['pass']:.1f}",
                "whole fit, s": f"{row['whole']:.1f}",
                "µs per image": f"{1e6 * row['pass'] / row['images']:.0f}",
                "sgemm rate, GFLOP/s": f"{row['peak'] / 1e9:.0f}",
                "of it in the pass": f"{100 * row['share']:.0f} %",
                "peak memory, GiB": f"{row['memory']:.2f}",
                "of it before the fit": f"{row['before']:.2f}",
            }
            for row in results
        ],
        f"{WIDTHS[0]} × {WIDTHS[1]} features, float16 files of {per_file:,} images, products in "
        f"{options.precision}, sums in float64. FLOP: n·d² for each of the two symmetric products and "
        "2·n·d·d' for the other, n the images where captions are summed first. The rate is that of a 4096³ "
        "product, the better of one before and one after. Peak memory is the largest resident set.",
    )


class Source:
    """Two views of a hidden cause; drawn on the device, kept in host memory as float16."""

    def __init__(self, m_x: int, m_y: int, device: str) -> None:
        import torch

        self.torch = torch
        self.device, self.rng = device, torch.Generator(device).manual_seed(0)
        strength = (1.0 / (1.0 + torch.arange(GPU_HIDDEN, device=device)) ** 0.5)[:, None]
        self.mixing = [
            strength * torch.randn(GPU_HIDDEN, m, device=device, generator=self.rng) for m in (m_x, m_y)
        ]

    def draw(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        x = np.empty((n, self.mixing[0].shape[1]), np.float16)
        y = np.empty((n * CAPTIONS, self.mixing[1].shape[1]), np.float16)
        for start in range(0, n, 20_000):
            rows = min(20_000, n - start)
            hidden = self._noise(rows, GPU_HIDDEN)
            images = (hidden + self._noise(rows, GPU_HIDDEN)) @ self.mixing[0]
            x[start : start + rows] = (images + 2.0 * self._noise(*images.shape)).half().cpu().numpy()
            captions = hidden.repeat_interleave(CAPTIONS, dim=0)
            captions = (captions + 5.0 * self._noise(*captions.shape)) @ self.mixing[1]
            captions += 2.0 * self._noise(*captions.shape)
            y[start * CAPTIONS : (start + rows) * CAPTIONS] = captions.half().cpu().numpy()
        return x, y, np.arange(n).repeat(CAPTIONS)

    def _noise(self, *shape: int):
        return self.torch.randn(shape, device=self.device, generator=self.rng)


def measure_pass(pairs: tuple, precision: str, device: str) -> dict:
    import torch

    from diptych._devices import copy_blocks
    from diptych.cca._moments import DEVICE_BLOCK_BYTES, products
    from diptych.cca._streaming import ArrayBlocks, Preparation, sum_blocks

    x, y, pairing = pairs
    blocks = ArrayBlocks(x, y, pairing, None, DEVICE_BLOCK_BYTES)
    prepare = Preparation(("none", "none"), precision, device)
    some = CAPTIONS * min(len(x), 30_000)  # load the libraries, and lock the pages that will be used again
    sum_blocks(ArrayBlocks(x, y[:some], pairing[:some], None, DEVICE_BLOCK_BYTES), prepare)
    whole, moments = time_call(lambda: sum_blocks(blocks, prepare))
    assert moments.count == len(y)
    start = clock()
    for block in copy_blocks(iter(blocks), device):
        del block
    copying = clock() - start
    first = [block for block, _ in zip(copy_blocks(iter(blocks), device), range(4), strict=False)]
    rows = sum(len(block[1]) for block in first)
    start = clock()
    for bx, by, p, _ in first:
        products(bx.float(), by.float(), p, None, precision)
    computing = (clock() - start) * len(y) / rows
    flops = 2 * (len(x) * x.shape[1] ** 2 + len(y) * y.shape[1] ** 2 + len(x) * x.shape[1] * y.shape[1])
    n = 8192 if torch.cuda.is_available() else 512
    peak = measure_gemm(torch.ones(n, n, dtype=getattr(torch, precision), device=device), 5)
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


def measure_fit(pairs: tuple, validation: tuple, precision: str, device: str) -> dict:
    import torch

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


def measure_gpu() -> None:
    import torch

    def size(value: int) -> int:
        return max(40, int(value * options.scale))

    source = Source(size(4096), size(4800), options.device)
    validation = source.draw(size(5000))
    passes, fits = [], []
    for n in (size(113287), size(1132870)):
        seconds, pairs = time_call(lambda n=n: source.draw(n))
        print(f"{n:,} images drawn in {seconds:.0f} s", flush=True)
        for precision in ("float64", "float32"):
            passes.append(measure_pass(pairs, precision, options.device))
            print(passes[-1], flush=True)
            fits.append(measure_fit(pairs, validation, precision, options.device))
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
    (measure_disk if options.part == "disk" else measure_gpu)()
