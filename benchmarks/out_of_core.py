"""A fit larger than memory: 1,000,000 images × 5 captions, 2048 × 2000, from float16 files on disk.

Three sizes, each in a process of its own, which reports its peak resident memory, the seconds of the pass and
of what follows it, and the rate of a large single-precision product before and after.
"""

from __future__ import annotations

from recording import RESULTS, pin_threads, record

pin_threads(2)

import argparse  # noqa: E402
import json  # noqa: E402
import multiprocessing  # noqa: E402
import resource  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402

CAPTIONS, WIDTHS, HIDDEN, PER_FILE = 5, (2048, 2000), 64, 25_000


def write_file(task: tuple[str, int, int]) -> None:
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


def sgemm_rate(n: int = 4096) -> float:
    a = np.ones((n, n), np.float32)
    a @ a
    start = time.perf_counter()
    for _ in range(3):
        a @ a
    return 3 * 2 * n**3 / (time.perf_counter() - start)


def fit(folder: str, files: int, precision: str) -> None:
    """One fit, reported on standard output as JSON."""
    from diptych.cca import AWCCA
    from diptych.cca import _fit as cca_fitting
    from diptych.data import shards

    seconds: dict[str, float] = {}
    inner = cca_fitting.sum_blocks

    def timed(*arguments, **options):
        start = time.perf_counter()
        found = inner(*arguments, **options)
        seconds["pass"] = time.perf_counter() - start
        return found

    cca_fitting.sum_blocks = timed
    names = [[f"{folder}/{view}-{number:04d}.npy" for number in range(files)] for view in "xy"]
    peaks = [sgemm_rate()]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    blocks = shards(*names, CAPTIONS)
    model = AWCCA(params=(1e5, 1e5), precision=precision, n_components=512).fit(blocks)
    whole = time.perf_counter() - start
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peaks.append(sgemm_rate())
    images, captions = blocks.n_x, blocks.n_y
    flops = images * WIDTHS[0] ** 2 + captions * WIDTHS[1] ** 2 + 2 * images * WIDTHS[0] * WIDTHS[1]
    found = {
        "images": images,
        "captions": captions,
        "pass": seconds["pass"],
        "whole": whole,
        "peak": max(peaks),
        "share": flops / seconds["pass"] / max(peaks),
        "memory": memory / 2**20,
        "before": before / 2**20,
        "correlation": float(model.models_["search"].correlations[0]),
    }
    print(json.dumps(found))


def draw(rows: list[dict], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    images = np.array([row["images"] for row in rows]) / 1e6
    seconds = np.array([row["pass"] for row in rows])
    slope = float(images @ seconds / (images @ images))
    figure, axes = pyplot.subplots(figsize=(5.2, 3.2), layout="constrained")
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
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--folder", help="keep the files here, and use those that are there")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        fit(options.folder, options.one, options.precision)
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or scratch
        Path(folder).mkdir(exist_ok=True)
        per_file = min(PER_FILE, options.images // 4)
        files = options.images // per_file
        start = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            for _ in pool.imap_unordered(write_file, [(folder, i, per_file) for i in range(files)]):
                pass
        size = sum(path.stat().st_size for path in Path(folder).glob("[xy]-*.npy"))
        print(f"{size / 1e9:.1f} GB written in {time.perf_counter() - start:.0f} s", flush=True)
        found = []
        for share in (4, 2, 1):
            command = [sys.executable, __file__, "--folder", folder, "--one", str(files // share)]
            done = subprocess.run(
                [*command, "--precision", options.precision], check=True, capture_output=True
            )
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(found[-1], flush=True)
    draw(found, RESULTS / "out_of_core.svg")
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
            for row in found
        ],
        f"{WIDTHS[0]} × {WIDTHS[1]} features, float16 files of {per_file:,} images, products in "
        f"{options.precision}, sums in float64. FLOP: n·d² for each of the two symmetric products and "
        "2·n·d·d' for the other, n the images where captions are summed first. The rate is that of a 4096³ "
        "product, the better of one before and one after. Peak memory is the largest resident set.",
    )


if __name__ == "__main__":
    main()
