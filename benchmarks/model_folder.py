"""What it costs to save a model, to load it and to add one item to it; also beside another checkout.

``python benchmarks/model_folder.py --before OTHER/src`` measures both in turn, in processes of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

from recording import pin_threads, record

pin_threads(1)

STEPS = ("first save", "save again", "load", "load, mapped", "load, add one item, save", "MB on disk")


def measure(items: int, features: int) -> dict[str, float]:
    """Time each step once, in milliseconds."""
    import numpy as np

    from diptych import AWCCA, Retriever

    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    x = rng.normal(size=(items, features)).astype(np.float32)
    y = (x[:, : features // 2] + rng.normal(size=(items, features // 2))).astype(np.float32)
    retriever = Retriever.from_features(x, y, model=AWCCA(params=(1.0, 1.0)))
    found: dict[str, float] = {}

    def timed(step, work):
        start = time.perf_counter()
        result = work()
        found[step] = 1000 * (time.perf_counter() - start)
        return result

    def add():
        loaded = Retriever.load(folder)
        loaded.add(x[:1], ids=["one more"])
        loaded.save(folder)

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        timed(STEPS[0], lambda: retriever.save(folder))
        timed(STEPS[1], lambda: retriever.save(folder))
        timed(STEPS[2], lambda: Retriever.load(folder))
        timed(STEPS[3], lambda: Retriever.load(folder, mmap=True))
        timed(STEPS[4], add)
        found[STEPS[5]] = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file()) / 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="the src folder of another checkout")
    parser.add_argument("--items", type=int, default=5000)
    parser.add_argument("--features", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--once", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.once:
        print(json.dumps(measure(asked.items, asked.features)))
        return
    sources = {"now": Path(__file__).parents[1] / "src"}
    if asked.before:
        sources = {"before": asked.before, **sources}
    times: dict[str, list[dict[str, float]]] = {name: [] for name in sources}
    options = ["--once", "--items", str(asked.items), "--features", str(asked.features)]
    for _ in range(asked.rounds):
        for name, source in sources.items():
            made = subprocess.run(
                [sys.executable, __file__, *options],
                env={**os.environ, "PYTHONPATH": str(source)},
                check=True,
                capture_output=True,
            )
            times[name].append(json.loads(made.stdout))
    rows = [
        {"step": step}
        | {
            name: f"{statistics.median(once[step] for once in all_times):.0f}"
            + (" MB" if step.startswith("MB") else " ms")
            for name, all_times in times.items()
        }
        for step in STEPS
    ]
    note = f"{asked.items:,} pairs, {asked.features} and {asked.features // 2} features; medians of "
    note += f"{asked.rounds} runs, taken in turn."
    record("model_folder", rows, note)


if __name__ == "__main__":
    main()
