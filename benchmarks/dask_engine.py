"""A fit's pass over shards in one process with two BLAS threads, beside DaskEngine with two workers of one.

float16 shards are generated into a temporary folder and read from there by both. The start of the cluster
and the first imports on its workers are timed apart. Then the same pass with a worker killed.
"""

from __future__ import annotations

import argparse
import os
import signal
import tempfile
import threading
from operator import add
from pathlib import Path

from measuring import pin_threads, record, require, time_call

WORKERS = 2
pin_threads(WORKERS)
require("distributed", "pip install 'dask[distributed]'")

import numpy as np  # noqa: E402

from diptych.cca._streaming import Preparation, sum_blocks  # noqa: E402
from diptych.data import shards  # noqa: E402
from diptych.distributed import DaskEngine  # noqa: E402

MATRICES = ("xx", "yy", "xy")
FILES = 10


def write_shards(folder: Path, options: argparse.Namespace) -> None:
    """Write images and captions, two noisy views of a hidden cause, as float16 files."""
    rng = np.random.default_rng(0)
    mixing = [
        rng.standard_normal((64, width), dtype=np.float32) for width in (options.width_x, options.width_y)
    ]
    for number, rows in enumerate(np.array_split(np.arange(options.images), FILES)):
        hidden = rng.standard_normal((len(rows), 64), dtype=np.float32)
        for name, cause, mix in (
            ("x", hidden, mixing[0]),
            ("y", np.repeat(hidden, options.captions, axis=0), mixing[1]),
        ):
            noise = rng.standard_normal((len(cause), mix.shape[1]), dtype=np.float32)
            np.save(folder / f"{name}-{number}.npy", (cause @ mix / 8 + noise).astype(np.float16))


def measure_difference(moments, expected) -> float:
    """Return the largest difference of the Gram matrices, relative to the largest entry of each."""
    pairs = [(getattr(moments, name), getattr(expected, name)) for name in MATRICES]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


def compare_bits(moments, expected) -> str:
    """Return whether the Gram matrices are the same, in words."""
    pairs = [(getattr(moments, name), getattr(expected, name)) for name in MATRICES]
    return "the same bits" if all(np.array_equal(a, b) for a, b in pairs) else "OTHER BITS"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=40_000)
    parser.add_argument("--captions", type=int, default=5)
    parser.add_argument("--width-x", type=int, default=2048)
    parser.add_argument("--width-y", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_shards(folder, options)
        blocks = shards(folder / "x-*.npy", folder / "y-*.npy", options.captions)
        prepare = Preparation()
        start, engine = time_call(lambda: DaskEngine(workers=WORKERS))
        with engine:

            def sum_on_workers(some):
                return engine.reduce(add, engine.map(prepare.moments, some))

            # The first task of a worker imports the library.
            first, _ = time_call(lambda: sum_on_workers(list(blocks[:1]) * WORKERS))
            plain, dask = [], []
            for _ in range(options.repeats):
                seconds, expected = time_call(lambda: sum_blocks(blocks, prepare))
                plain.append(seconds)
                seconds, moments = time_call(lambda: sum_on_workers(blocks))
                dask.append(seconds)
            one, many = min(plain), min(dask)
            rows = [
                {"pass": f"one process, {WORKERS} BLAS threads", "seconds": f"{one:.1f}", "overhead": ""},
                {
                    "pass": f"DaskEngine, {WORKERS} workers of one thread",
                    "seconds": f"{many:.1f}",
                    "overhead": f"{100 * (many / one - 1):+.0f} %",
                    "result": f"Gram matrices within {measure_difference(moments, expected):.1e}",
                },
            ]
            engine.client.wait_for_workers(WORKERS, timeout=60)
            sum_on_workers(list(blocks[:1]) * 2 * WORKERS)
            victim = next(iter(engine.client.run(os.getpid).values()))
            threading.Timer(many / 3, os.kill, (victim, signal.SIGKILL)).start()
            seconds, again = time_call(lambda: sum_on_workers(blocks))
            rows.append(
                {
                    "pass": "the same, one worker killed after a third of it",
                    "seconds": f"{seconds:.1f}",
                    "overhead": f"{100 * (seconds / one - 1):+.0f} %",
                    "result": compare_bits(again, moments),
                }
            )
        for row in rows:
            row.setdefault("result", "")
        note = (
            f"{options.images:,} × {options.width_x} images and {options.captions} captions of "
            f"{options.width_y} each, float16, {len(blocks)} blocks; the best of {options.repeats} runs. "
            f"The cluster started in {start:.1f} s and its first tasks took {first:.1f} s more, which is not "
            "counted."
        )
        record("dask_engine", rows, note)


if __name__ == "__main__":
    main()
