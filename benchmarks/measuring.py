"""Shared by the benchmarks: threads, clocks, memory, GEMM rates, Flickr8k, figures, results as files."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
LOG = RESULTS / "accuracy_log.jsonl"
"""Every run that read the test split."""

CAPTIONS, TRAIN, VALIDATION = 5, 6000, 1000
"""Flickr8k: captions of an image, and images of the official training and validation splits."""


def pin_threads(threads: int) -> None:
    """Fix the number of BLAS threads; call before NumPy is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


def record(name: str, rows: Sequence[Mapping[str, object]], note: str = "") -> None:
    """Print a table and write it to ``results/NAME.md`` and ``.json``, with the command that made it."""
    RESULTS.mkdir(exist_ok=True)
    cores = os.environ.get("OPENBLAS_NUM_THREADS", str(os.cpu_count()))
    where = f"{cores} thread(s), Python {platform.python_version()}, {platform.machine()}"
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(row.get(key, "")) for key in head) + " |" for row in rows]
    table = "\n".join(lines)
    text = f"`{command()}`  \n{where}\n\n{table}\n" + (f"\n{note}\n" if note else "")
    (RESULTS / f"{name}.md").write_text(text, "utf-8")
    content = {"command": command(), "where": where, "rows": list(rows), "note": note}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(text)


def command() -> str:
    """Return the running command as a reader would type it."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def check_committed(configuration: Path, allowed: bool) -> bool:
    """Return whether a file is committed as it stands; exit if it is not and not being so is not allowed."""
    git = ["git", "-C", str(configuration.parent)]
    checks = ["ls-files", "--error-unmatch"], ["diff", "--quiet", "HEAD", "--"]
    committed = shutil.which("git") is not None and all(
        subprocess.run([*git, *check, configuration.name], capture_output=True).returncode == 0
        for check in checks
    )
    if not committed and not allowed:
        sys.exit(f"commit {configuration.name} first: the test split is for settled configurations")
    return committed


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def log_test_run(configuration: Path, committed: bool, rows: Sequence[Mapping[str, object]]) -> None:
    """Append a run that read the test split to the log."""
    entry = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S"),
        "command": command(),
        "configuration": hash_file(configuration),
        "committed": committed,
        "rows": list(rows),
    }
    with LOG.open("a", encoding="utf-8") as log:
        log.write(json.dumps(entry, ensure_ascii=False) + "\n")


def clock() -> float:
    """Return the time in seconds, once the GPU has finished its work, if torch is in use."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def time_call(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the seconds of one call, and what it returns."""
    start = clock()
    result = function()
    return clock() - start, result


def measure_fastest(function: Callable[[], Any], times: int = 5) -> float:
    """Return the seconds of the fastest of several calls."""
    return min(time_call(function)[0] for _ in range(times))


def read_memory(line: str = "VmHWM") -> float:
    """Return ``VmRSS`` (resident now) or ``VmHWM`` (its peak) of this process in MiB, as Linux counts it."""
    with open("/proc/self/status") as status:
        return next(int(row.split()[1]) for row in status if row.startswith(line)) / 1024


def measure_gemm(matrix: Any, times: int = 3) -> float:
    """Return the FLOP/s of the product of a square matrix (NumPy or torch) with itself."""
    matrix @ matrix
    return 2 * len(matrix) ** 3 / measure_fastest(lambda: matrix @ matrix, times)


def find_data() -> Path:
    """Return the folder of real features, or exit with a sentence that says how to give it."""
    folder = os.environ.get("DIPTYCH_DATA")
    if not folder or not (Path(folder) / "flickr8k").is_dir():
        sys.exit("set DIPTYCH_DATA to the folder that holds flickr8k/ (features and captions), and run again")
    return Path(folder)


def find_word_vectors() -> Path:
    """Return the file of word vectors: word2vec, learned from Google News."""
    return find_data() / "word2vec-googlenews-26k.bin"


def read_captions() -> list[str]:
    """Return the 40,000 captions of Flickr8k."""
    content = json.loads((find_data() / "flickr8k" / "dataset_flickr8k.json").read_text("utf-8"))
    return [caption["raw"] for image in content["images"] for caption in image["sentences"]]


def read_features(name: str, rows: int | None = None) -> Any:
    """Return a feature file of Flickr8k, or its first rows, in float32."""
    import numpy as np

    return np.load(find_data() / "flickr8k" / f"{name}.npy")[:rows].astype(np.float32)


def load_flickr8k(images: str, texts: str) -> tuple[Any, Any, Any]:
    """Return image features, caption features and pairing of Flickr8k's 8,000 images, in float32.

    ``images`` is a feature file's name, with ``-sqrt`` for square roots of unit length or ``-halves`` for
    halves of unit length each; ``texts`` is a feature file's name, or ``hkse-WORD-SENTENCE``.
    """
    import numpy as np

    from diptych.text import HKSE

    x = read_features(images.removesuffix("-sqrt").removesuffix("-halves"))
    if images.endswith("-sqrt"):
        x = scale_rows(np.sqrt(x))
    elif images.endswith("-halves"):
        x = np.hstack([scale_rows(half) for half in np.split(x, 2, axis=1)])
    if texts.startswith("hkse-"):
        captions = read_captions()
        _, word, sentence = texts.split("-")
        encoder = HKSE(find_word_vectors(), word=word, sentence=sentence)  # type: ignore[arg-type]
        encoder.fit(captions[: TRAIN * CAPTIONS])
        y = encoder.transform(captions, unknown="mean")
    else:
        y = scale_rows(read_features(texts))
    return x, y, np.arange(len(y)) // CAPTIONS


def split_flickr8k(x: Any, y: Any, pairing: Any) -> list[tuple[Any, Any, Any]]:
    """Return the training, validation and test pairs."""
    bounds = [0, TRAIN, TRAIN + VALIDATION, len(x)]
    return [
        (x[a:b], y[a * CAPTIONS : b * CAPTIONS], pairing[: (b - a) * CAPTIONS]) for a, b in pairwise(bounds)
    ]


def scale_rows(rows: Any) -> Any:
    """Return rows of unit length."""
    import numpy as np

    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def start_figure(*panels: int, size: tuple[float, float]) -> tuple[Any, Any]:
    """Return a figure and its axes, without top and right spines."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(*panels, figsize=size, layout="constrained", sharey="row")
    for each in [axes] if not panels else axes.flat:
        for side in ("top", "right"):
            each.spines[side].set_visible(False)
    return figure, axes
