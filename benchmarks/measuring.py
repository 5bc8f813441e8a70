"""Shared by the benchmarks: threads, clocks, memory, GEMM rates, Flickr8k, figures, results as files."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
LOG = RESULTS / "accuracy_log.jsonl"
"""Every run that read the test split, when it started and when it ended."""

NOT_RECORDED = "not recorded"
"""The commit of results that do not name one."""

CAPTIONS, TRAIN, VALIDATION = 5, 6000, 1000
"""Flickr8k: captions of an image, and images of the official training and validation splits."""


def pin_threads(threads: int) -> None:
    """Fix the number of BLAS threads; call before NumPy is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


def require(package: str, install: str) -> None:
    """Exit with one line if a package that a benchmark needs is not installed."""
    if importlib.util.find_spec(package) is None:
        sys.exit(f"this benchmark needs the package {package}, which is not installed: {install}")


def check_device(device: str | None) -> None:
    """Exit with one line if a torch device is asked for that is not there."""
    if device is None or device == "cpu":
        return
    require("torch", "pip install torch")
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"torch {torch.__version__} finds no GPU here: leave out --device {device}, for the CPU")


def has_files(folder: Path) -> bool:
    """Return whether git would see a folder: it, or one in it, has a file that is no compiled module."""
    return any(path.is_file() and path.parent.name != "__pycache__" for path in folder.rglob("*"))


def hash_tree(folder: Path) -> bytes:
    """Return the id that git gives to the files of a folder, without git; empty folders do not count."""
    entries = []
    for path in folder.iterdir():
        if path.is_dir() and path.name != "__pycache__" and has_files(path):
            # Git sorts a folder as if its name ended with a slash.
            entries.append((f"{path.name}/".encode(), b"40000 %b\0" % path.name.encode() + hash_tree(path)))
        elif path.is_file():
            content = path.read_bytes()
            mode = b"100755" if path.stat().st_mode & 0o100 else b"100644"
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).digest()
            entries.append((path.name.encode(), b"%b %b\0" % (mode, path.name.encode()) + blob))
    body = b"".join(entry for _, entry in sorted(entries))
    return hashlib.sha1(b"tree %d\0" % len(body) + body).digest()


def ask_git(*arguments: str) -> str | None:
    """Return what a git command prints, or None if it fails or there is no git."""
    if shutil.which("git") is None:
        return None
    git = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True)
    return git.stdout.strip() if git.returncode == 0 else None


@cache
def identify_code() -> dict[str, str | None]:
    """Return the commit that is checked out, and git's id of the folder ``src/diptych`` as it is on the disk.

    ``git rev-parse COMMIT:src/diptych`` prints the same id if the code is that of the commit. Where there is
    no repository, on another machine with a copy of the files, the variable DIPTYCH_COMMIT names the commit.
    """
    commit = ask_git("rev-parse", "HEAD") or os.environ.get("DIPTYCH_COMMIT")
    return {"commit": commit, "source": hash_tree(ROOT / "src" / "diptych").hex()}


@cache
def is_missing(commit: str) -> bool:
    """Return whether this repository has its whole history, and not this commit; without git, False."""
    is_whole = ask_git("rev-parse", "--is-shallow-repository") == "false"
    return is_whole and ask_git("cat-file", "-e", f"{commit}^{{commit}}") is None


def describe_commit(commit: str) -> str:
    """Name a commit, with a plus sign if src/diptych was changed, and say if nobody can look it up here."""
    missing = commit != NOT_RECORDED and is_missing(commit.rstrip("+"))
    return f"commit {commit}" + (" (not in this repository)" if missing else "")


def describe_code(commit: str | None, source: str | None) -> str:
    """Say which commit made a result, and whether its code was changed, as far as git knows the commit."""
    if commit is None:
        return describe_commit(NOT_RECORDED)
    changed = ask_git("rev-parse", f"{commit}:src/diptych") not in (None, source)
    return describe_commit(commit[:10]) + (", with changes in src/ that are not in it" if changed else "")


def name_commit() -> str:
    """Return the commit of this code for a column of a table, with a plus sign if src/diptych was changed."""
    code, _, changed = describe_code(*identify_code().values()).partition(",")
    return code.removeprefix("commit ") + ("+" if changed else "")


identify_code()  # before anything is computed: files may change while a benchmark runs


def describe_versions() -> str:
    """Return the versions of the libraries that numbers depend on."""
    from threadpoolctl import threadpool_info

    names = ["numpy", "scipy", *(["torch"] if "torch" in sys.modules else [])]
    blas = {
        f"{library['internal_api']} {library['version']} ({library.get('architecture', 'unknown')})"
        for library in threadpool_info()
        if library["user_api"] == "blas"
    }
    return ", ".join([*(f"{name} {version(name)}" for name in names), *sorted(blas)])


def record(name: str, rows: Sequence[Mapping[str, object]], note: str = "") -> None:
    """Print a table and write it to ``results/NAME.md`` and ``.json``.

    Beside the table stand the command and the code that made it, the date, and the versions of libraries.
    Rows that were measured by other runs have a column ``commit`` of their own.
    """
    cores = os.environ.get("OPENBLAS_NUM_THREADS", str(os.cpu_count()))
    content = {
        "command": command(),
        "where": f"{cores} thread(s), Python {platform.python_version()}, {platform.machine()}",
        "versions": describe_versions(),
        "date": time.strftime("%Y-%m-%d"),
        **identify_code(),
        "rows": list(rows),
        "note": note,
    }
    write_results(name, content)
    print((RESULTS / f"{name}.md").read_text("utf-8"))


def write_results(name: str, content: Mapping[str, Any]) -> None:
    """Write a results file as JSON and, if it has rows, as Markdown."""
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    (RESULTS / f"{name}.json").write_text(text, "utf-8")
    if "rows" in content:
        (RESULTS / f"{name}.md").write_text(make_markdown(content), "utf-8")


def make_markdown(content: Mapping[str, Any]) -> str:
    """Return a results file with rows as Markdown."""
    head = list(content["rows"][0])
    code = describe_code(content["commit"], content["source"])
    lines = [f"`{content['command']}`  ", f"{content['where']}  "]
    lines += [f"{code}, {content['date']}, {content['versions']}", ""]
    lines += make_table(head, [[str(row.get(key, "")) for key in head] for row in content["rows"]])
    lines += ["", content["note"]] if content["note"] else []
    return "\n".join(lines) + "\n"


def make_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return ["| " + " | ".join(cells) + " |" for cells in (head, ["---"] * len(head), *rows)]


def command() -> str:
    """Return the running command as a reader would type it."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def check_committed(configuration: Path) -> None:
    """Exit with one line if a file is not committed as it stands.

    In a copy without a repository DIPTYCH_COMMIT is believed; a test compares the log with the commit.
    """
    if ask_git("rev-parse", "--git-dir") is None and os.environ.get("DIPTYCH_COMMIT"):
        return
    name = str(configuration)
    if ask_git("ls-files", "--error-unmatch", name) is None or (
        ask_git("diff", "--quiet", "HEAD", "--", name) is None
    ):
        sys.exit(f"commit {configuration.name} first: the test split is for settled configurations")


def hash_file(file: Path) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@contextmanager
def log_test_run(configuration: str | Path) -> Iterator[list[Mapping[str, object]]]:
    """Log that a run is about to read the test split, and the rows that are put into the list, at its end.

    The file of its configuration must be committed. A run that did not come to its end has a start in the log
    and no end.
    """
    configuration = Path(configuration).resolve()
    check_committed(configuration)
    run, rows = uuid.uuid4().hex[:8], []
    file = {"file": configuration.name, "configuration": hash_file(configuration), "committed": True}
    _log({"run": run, "event": "start", "command": command(), **file, **identify_code()})
    yield rows
    _log({"run": run, "event": "end", "rows": rows})


def _log(entry: Mapping[str, object]) -> None:
    with LOG.open("a", encoding="utf-8") as log:
        entry = {"time": time.strftime("%Y-%m-%dT%H:%M:%S"), **entry}
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


def run_alone(*arguments: object, **environment: str) -> Any:
    """Run this benchmark in a process of its own, and return the last line that it prints, which is JSON."""
    command = [sys.executable, sys.argv[0], *map(str, arguments)]
    environment = {**os.environ, **environment}
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])


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

    from diptych.encoders import HKSE

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
