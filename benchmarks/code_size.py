"""How much code there is by package, and how much of it a fit, a search and a search over HTTP run through.

``python benchmarks/code_size.py`` measures this tree; ``--source OTHER/src`` another one, to compare. A flow
is the real command in a process of its own on 80 drawn scenes, watched by ``sys.setprofile`` in all its
threads: a file counts when one of its functions is called, a function when it is called at least once.
Importing does not count.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).resolve()
PLAIN = "--image-encoder pyramid --text-encoder hkse"

WATCHER = """
import json, os, signal, sys, threading
from pathlib import Path

source, report = sys.argv[1], Path(sys.argv[2])
calls = {}

def is_import(frame):
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(source):
            return True
        frame = frame.f_back
    return False

def watch(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(source):
        key = code.co_filename, code.co_qualname, code.co_firstlineno
        if key not in calls and not is_import(frame):
            calls[key] = None

def write(*_):
    names = [key for key in list(calls) if "<" not in key[1].rpartition(".")[2]]
    report.with_suffix(".part").write_text(json.dumps(names))
    report.with_suffix(".part").rename(report)

signal.signal(signal.SIGUSR1, lambda *_: calls.clear())
signal.signal(signal.SIGUSR2, write)
from diptych.cli import app
threading.setprofile(watch)
sys.setprofile(watch)
try:
    app(sys.argv[3:], standalone_mode=False)
finally:
    sys.setprofile(None)
    write()
"""


def count_lines(modules: list[Path]) -> tuple[int, int, int]:
    """Return modules, lines, and lines that are code: neither blank, comment, docstring nor import."""
    lines = code = 0
    for module in modules:
        text = module.read_text("utf-8")
        rows = text.splitlines()
        lines += len(rows)
        skipped = {i for i, row in enumerate(rows, 1) if not row.strip() or row.strip().startswith("#")}
        for node in ast.walk(ast.parse(text)):
            is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
            if isinstance(node, ast.Import | ast.ImportFrom) or (
                is_text and isinstance(node.value.value, str)
            ):
                skipped |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        code += len(rows) - len(skipped)
    return len(modules), lines, code


def list_packages(source: Path) -> dict[str, list[Path]]:
    """Return the modules of each package of the library, of the whole, and of what stands beside it."""
    modules = sorted((source / "diptych").rglob("*.py"))
    packages: dict[str, list[Path]] = {}
    for module in modules:
        parts = module.relative_to(source / "diptych").parts[:-1]
        packages.setdefault("/".join(parts[:2]) or "(root)", []).append(module)
    packages["the package"] = modules
    for folder in ("reproduction", "tests", "benchmarks"):
        packages[f"{folder}/"] = sorted((source.parent / folder).rglob("*.py"))
    return packages


def start(source: Path, folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Run a command under watch; its calls are written to ``folder/name.json``."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    watcher = [sys.executable, "-c", WATCHER, str(source / "diptych"), str(folder / f"{name}.json")]
    return subprocess.Popen(
        [*watcher, *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def trace_http(source: Path, folder: Path) -> None:
    """Serve the model, and watch one search over HTTP after a first one has warmed up."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = start(source, folder, "http", "serve", "model", "--port", str(port), "--no-browser")
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/search",
        json.dumps({"text": "a red square", "k": 5}).encode(),
        {"Content-Type": "application/json"},
    )

    def search() -> None:
        with urllib.request.urlopen(request, timeout=30) as answer:
            answer.read()

    try:
        for _ in range(300):
            try:
                search()
                break
            except OSError:
                time.sleep(0.2)
        server.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        search()
        server.send_signal(signal.SIGUSR2)
        for _ in range(50):
            if (folder / "http.json").exists():
                break
            time.sleep(0.1)
        (folder / "http.json").rename(folder / "http.done.json")
    finally:
        server.terminate()
        server.wait(20)
    (folder / "http.done.json").rename(folder / "http.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--source", type=Path, default=HERE.parents[1] / "src", help="The src folder to measure."
    )
    source = parser.parse_args().source.resolve()
    print("| package | modules | lines | of them code |\n|---|---|---|---|")
    for package, modules in list_packages(source).items():
        print("| {} | {} | {:,} | {:,} |".format(package, *count_lines(modules)))
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        draw = "from diptych.scenes import make_scenes; make_scenes(80).write('drawn')"
        environment = {**os.environ, "PYTHONPATH": str(source)}
        subprocess.run([sys.executable, "-c", draw], cwd=folder, env=environment, check=True)
        for name, arguments in (
            ("fit", ["fit", "drawn", *PLAIN.split(), "--out", "model"]),
            ("search", ["search", "model", "a red square"]),
        ):
            if start(source, folder, name, *arguments).wait() != 0:
                sys.exit(f"diptych {' '.join(arguments)} failed")
        trace_http(source, folder)
        print("\n| flow | files | functions |\n|---|---|---|")
        for name, title in (
            ("fit", f"`diptych fit drawn {PLAIN} --out model`"),
            ("search", '`diptych search model "a red square"`'),
            ("http", "`POST /v1/search`"),
        ):
            calls = json.loads((folder / f"{name}.json").read_text())
            print(f"| {title} | {len({call[0] for call in calls})} | {len(calls)} |")


if __name__ == "__main__":
    main()
