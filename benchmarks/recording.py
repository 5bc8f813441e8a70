"""What every benchmark shares: pinned threads, the machine in words, and results as files."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def pin_threads(threads: int) -> None:
    """Fix the number of BLAS threads; call before NumPy is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(threads)


def real_data() -> Path:
    """The folder of real features, or a sentence that says how to give it."""
    folder = os.environ.get("DIPTYCH_DATA")
    if not folder or not (Path(folder) / "flickr8k").is_dir():
        sys.exit("set DIPTYCH_DATA to the folder that holds flickr8k/ (features and captions), and run again")
    return Path(folder)


def command() -> str:
    """The command that is running, as a reader would type it."""
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])


def table(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as a Markdown table; the keys of the first are its head."""
    head = list(rows[0])
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(str(row.get(key, "")) for key in head) + " |" for row in rows]
    return "\n".join(lines)


def record(name: str, rows: Sequence[Mapping[str, object]], note: str = "") -> None:
    """Print a table and write it to ``results/NAME.md`` and ``.json`` with the command that made it."""
    RESULTS.mkdir(exist_ok=True)
    cores = os.environ.get("OPENBLAS_NUM_THREADS", str(os.cpu_count()))
    where = f"{cores} thread(s), Python {platform.python_version()}, {platform.machine()}"
    text = f"`{command()}`  \n{where}\n\n{table(rows)}\n" + (f"\n{note}\n" if note else "")
    (RESULTS / f"{name}.md").write_text(text, "utf-8")
    content = {"command": command(), "where": where, "rows": list(rows), "note": note}
    (RESULTS / f"{name}.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8")
    print(text)
