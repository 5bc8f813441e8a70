"""How much longer a fit and the demo take while other programs keep the cores busy.

``AWCCA.fit`` with selection on Flickr8k (ResNet-50 × HKSE(rbf, rbf), 6,000 × 2048 images, 30,000 × 2000
captions, validation 1,000 × 5,000), the decompositions when its models are read, and ``python -m diptych
demo``. The load is 0, 1 or 3 processes that each multiply matrices on one thread without a pause. Quiet and
loaded runs alternate; the seconds are medians over rounds. No number of threads is set: each library takes
what it takes by itself. A fair share is what a program gets that has one thread on each core: with 2 cores
and 1 busy process, 2 of 3 threads are its own, and it takes 1.5 times as long.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from statistics import median

from diptych import AWCCA
from measuring import clock, load_flickr8k, record, split_flickr8k

LOADS = {0: 1.0, 1: 1.8, 3: 3.5}
"""Busy processes, and the largest acceptable ratio to the quiet time."""

BUSY = "import numpy\nmatrix = numpy.ones((500, 500))\nprint(flush=True)\nwhile True:\n    matrix @ matrix"

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--rounds", type=int, default=3, help="of fits; the demo has one less")
parser.add_argument("--only", choices=("fit", "demo"))
options = parser.parse_args()


@contextmanager
def keep_busy(processes: int):
    """Run so many processes that each keep a core busy."""
    environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    running = [
        subprocess.Popen([sys.executable, "-c", BUSY], env=environment, stdout=subprocess.PIPE)
        for _ in range(processes)
    ]
    try:
        for process in running:
            process.stdout.readline()
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def run_fits(training, validation):
    """Yield the seconds and processor seconds of each step of a fit."""
    model = AWCCA()
    yield measure("`AWCCA.fit` with selection", lambda: model.fit(*training, validation=validation))
    yield measure("its decompositions, when `models_` is read", lambda: list(model.models_.values()))


def run_demo():
    """Yield the seconds and processor seconds of the demo."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "diptych", "demo", "--quiet", "--out", folder]
        yield measure("`python -m diptych demo`", lambda: subprocess.run(command, check=True))


def measure(name, function):
    """Return a name, the seconds that a function takes, and the processor seconds."""
    before, start = os.times(), clock()
    function()
    seconds, after = clock() - start, os.times()
    return name, seconds, sum(after[:4]) - sum(before[:4])


def main() -> None:
    begun = time.perf_counter()
    works = []
    if options.only != "demo":
        training, validation, _ = split_flickr8k(*load_flickr8k("resnet50", "hkse-rbf-rbf"))
        works.append((lambda: run_fits(training, validation), options.rounds))
    if options.only != "fit":
        works.append((run_demo, max(1, options.rounds - 1)))
    times = defaultdict(list)
    for work, rounds in works:
        for _ in range(rounds):
            for load in LOADS:
                with keep_busy(load):
                    # A busy process is waited for after this, when its processor time would count as ours.
                    for name, *measured in work():
                        times[name, load].append(measured)
                        print(f"{name}, {load} busy: {measured[0]:.1f} s", flush=True)
    cores, rows = len(os.sched_getaffinity(0)), []
    for (name, load), measured in times.items():
        seconds, processor = (median(column) for column in zip(*measured, strict=True))
        quiet = median(each[0] for each in times[name, 0])
        rows.append(
            {
                "work": name,
                "busy processes": str(load),
                "seconds": f"{seconds:.1f}",
                "× quiet": f"{seconds / quiet:.2f}",
                "at most": f"{LOADS[load]:.1f}",
                "fair share": f"{(cores + load) / cores:.1f}",
                "processor seconds": f"{processor:.1f}",
                "of each round, s": ", ".join(f"{each[0]:.1f}" for each in measured),
            }
        )
    note = (
        f"{cores} cores; {time.perf_counter() - begun:.0f} s in all. Load average at the end "
        f"{os.getloadavg()[0]:.1f}; above 5, something else was running, and the quiet times are not quiet."
    )
    record("busy_machine", rows, note)


if __name__ == "__main__":
    main()
