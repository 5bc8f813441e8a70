"""The path of a folder of photos without captions, command by command, as a new user goes it.

1,000 drawings and two small networks in place of CLIP's towers (those of the tests), so the seconds are of
everything but the encoding: reading, decoding, hashing, storing, searching. Every command is a process.

    python benchmarks/photos.py
"""

from __future__ import annotations

from measuring import clock, pin_threads, record, require

pin_threads(1)
for package in ("fastembed", "onnx", "pytest"):
    require(package, 'pip install ".[encoders]" onnx pytest')

import csv  # noqa: E402
import json  # noqa: E402
import os  # noqa: E402
import shutil  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Callable  # noqa: E402
from pathlib import Path  # noqa: E402

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from diptych.scenes import Scenes, make_scenes  # noqa: E402
from fastembed_models import write_tiles, write_word_pieces  # noqa: E402

PHOTOS, MORE, RENAMED, CAPTIONED, UNSEEN = 1000, 100, 100, 200, 200
SIZE = 160
VISION, TEXT = "clip-ViT-B-32-vision", "clip-ViT-B-32-text"


def run(*arguments: str) -> tuple[float, dict]:
    """Run a command; return its seconds and what it prints as JSON."""
    start = clock()
    command = [sys.executable, "-m", "diptych", *arguments, "--json"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return clock() - start, json.loads(done.stdout)


def write_captions(path: Path, scenes: Scenes, first: int, count: int) -> None:
    """Write a table of the captions of some photos."""
    pairs = scenes.dataset.select(range(first, first + count))
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["image", "caption"])
        rows.writerows(
            (pairs.image_ids[row], text) for text, row in zip(pairs.captions, pairs.pairing, strict=True)
        )


def measure() -> list[dict]:
    """Go the path in the working folder; return the seconds of each step, and what it did."""
    scenes = make_scenes(PHOTOS + MORE, size=SIZE)
    for folder, rows in (("photos", range(PHOTOS)), ("more", range(PHOTOS, PHOTOS + MORE))):
        Path(folder).mkdir()
        for row in rows:
            scenes.images[row].save(Path(folder, scenes.dataset.image_ids[row]))
    write_captions(Path("captions.csv"), scenes, 0, CAPTIONED)
    write_captions(Path("unseen.csv"), scenes, CAPTIONED, UNSEEN)
    write_tiles(Path(VISION))
    write_word_pieces(Path(TEXT))
    towers = f"--image-encoder fastembed:{VISION} --text-encoder fastembed:{TEXT}"
    table = []

    def step(name: str, command: str, describe: Callable[[dict], str]) -> None:
        seconds, content = run(*command.split())
        shown = command.replace(towers, "…")
        row = {"step": name, "command": f"`diptych {shown}`", "seconds": f"{seconds:.1f}"}
        table.append({**row, "result": describe(content)})
        print(table[-1], flush=True)

    def changes(report: dict) -> str:
        names = ("added", "updated", "renamed", "gone")
        parts = [f"{len(report[name])} {name}" for name in names if report[name]]
        return ", ".join(parts + [f"{n} unchanged" for n in [report["unchanged"]] if n])

    step("a new library", f"index photos --out library {towers}", changes)
    step("a search", "search library star", lambda content: f"{len(content['answers'][0]['hits'])} hits")
    step("another folder", "add library more", changes)
    step("nothing has changed", "sync library", changes)
    photos = sorted(Path("photos").iterdir())
    Path("photos/2024").mkdir()
    for photo in photos[-RENAMED:]:
        photo.rename(photo.parent / "2024" / photo.name)
    step("files have moved", "sync library", changes)

    def recall(content: dict) -> str:
        return f"r@1 {content['all']['search']['r@1']:.1f}"

    evaluate = "evaluate library unseen.csv --images photos"
    step("recall without a fit", evaluate, recall)
    fit = "fit captions.csv --images photos --out library"
    step(f"{CAPTIONED} captions", fit, lambda content: f"{content['items']['image']} images stay")
    step("recall after it", evaluate, recall)
    step("the folders are still known", "sync library", changes)
    return table


def main() -> None:
    home, folder = os.getcwd(), tempfile.mkdtemp()
    os.chdir(folder)
    try:
        table = measure()
    finally:
        os.chdir(home)
        shutil.rmtree(folder)
    record(
        "photos",
        table,
        f"{PHOTOS:,} drawings of {SIZE} × {SIZE} pixels, {MORE} more, {RENAMED} moved to another folder; "
        f"captions of {CAPTIONED}, and of {UNSEEN} others to measure recall on (searches among these). The "
        "networks are random projections of colours and of words, in place of CLIP's towers: their recall "
        "shows only that a fit learns. Each command is a process, its start included.",
    )


if __name__ == "__main__":
    main()
