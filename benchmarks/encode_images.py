"""Encoding pictures into a feature store: pictures per second, how long the network waits, and memory.

Each row is a process of its own. The photographs are thumbnails of at most 256 pixels in JPEG files, encoded
by a ResNet-50 that sees the full picture; the scenes are generated PNG files, encoded by the descriptor
without weights. The last rows are one encoding killed half-way by SIGKILL and resumed.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import find_data, read_memory, record

SCENES = 4000


def encode(which: str, count: int, store: str, pictures: str) -> None:
    from diptych.data import encode_images, read_pairs
    from diptych.image import OnnxEncoder, PyramidDescriptor

    if which == "photographs":
        folder = find_data() / "flickr8k"
        pairs = read_pairs(folder / "dataset_flickr8k.json", images=folder / "images").subset("test")
        encoder = OnnxEncoder(find_data().parent / "models" / "resnet50.onnx", "caffe-full-image")
    else:
        pairs, encoder = read_pairs(pictures), PyramidDescriptor()
    last = []
    cpu = time.process_time()
    encode_images(pairs.select(range(count)), encoder, store, progress=lambda p: last.append(p))
    cpu, progress = time.process_time() - cpu, last[-1]
    done = progress.done - progress.resumed
    print(
        json.dumps(
            {
                "pictures": done,
                "rate": progress.rate,
                "cpu": 1000 * cpu / done,
                "waits": 100 * progress.waiting / progress.seconds,
                "peak": read_memory(),
            }
        )
    )


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)], stdout=subprocess.PIPE, text=True
    )


def measure(*arguments: object) -> dict[str, float]:
    output, _ = (process := start(*arguments)).communicate()
    if process.returncode:
        sys.exit("an encoding failed; see above")
    return json.loads(output.splitlines()[-1])


def killed(which: str, count: int, store: Path, pictures: Path) -> None:
    """Encode until half of the batches are on disk, then SIGKILL."""
    process, journal = start(which, count, store, pictures), store / "journal.jsonl"
    while process.poll() is None:
        if journal.is_file() and journal.read_bytes().count(b"\n") >= count // 64:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.01)
    process.wait()


def digest(store: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(store.iterdir()))).hexdigest()


def main() -> None:
    from diptych.scenes import make_scenes

    rows, same, load = [], [], os.getloadavg()

    def add(name: str, found: dict[str, float]) -> None:
        rows.append(
            {
                "encoding": name,
                "pictures": int(found["pictures"]),
                "pictures per second": f"{found['rate']:.1f}",
                "CPU ms per picture": f"{found['cpu']:.1f}",
                "encoder waits for decoding": f"{found['waits']:.1f} %",
                "peak memory, MiB": f"{found['peak']:.0f}",
            }
        )

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        start_drawing = time.perf_counter()
        make_scenes(SCENES).write(folder / "scenes")
        drawn = SCENES / (time.perf_counter() - start_drawing)
        names = {"photographs": "ResNet-50, thumbnails", "scenes": "descriptor, scenes of 112 pixels"}
        for which, counts in {"photographs": (250, 500, 1000), "scenes": (1000, SCENES)}.items():
            for count in counts:
                add(names[which], measure(which, count, folder / f"{which}-{count}", folder / "scenes"))
            store = folder / f"{which}-resumed"
            killed(which, counts[-1], store, folder / "scenes")
            add(
                f"{names[which]}, resumed after SIGKILL", measure(which, counts[-1], store, folder / "scenes")
            )
            same.append(digest(store) == digest(folder / f"{which}-{counts[-1]}"))
    note = (
        f"The resumed stores are {'byte for byte' if all(same) else 'NOT'} those of uninterrupted runs. "
        "The descriptor works in the decoding threads alone, so there is nothing to do but wait for "
        "them. "
        f"Scenes are drawn and written at {drawn:.0f} per second. Peak memory holds the interpreter and, for "
        f"ResNet-50, its 90 MiB of weights. Load average of the machine before and after: {load[0]:.1f} and "
        f"{os.getloadavg()[0]:.1f}; where it is above 2, CPU time says more than the rate."
    )
    record("encode_images", rows, note)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        encode(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        main()
