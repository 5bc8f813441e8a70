"""Encoding images into a feature store: images per second, how long the network waits, and memory.

Each row is a process of its own. Flickr8k's images are thumbnails of at most 256 pixels in JPEG files,
encoded by a ResNet-50 that sees the full image; the scenes are generated PNG files, encoded by the descriptor
without weights. The last row of each is an encoding killed half-way by SIGKILL and resumed.
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

from measuring import find_data, read_memory, record, time_call

SCENES = 4000


def encode(which: str, count: int, store: str, scenes: str) -> None:
    """Encode some images, and print what was measured as JSON."""
    from diptych.data import encode_images, read_pairs
    from diptych.image import OnnxEncoder, PyramidDescriptor

    if which == "flickr8k":
        folder = find_data() / "flickr8k"
        pairs = read_pairs(folder / "dataset_flickr8k.json", images=folder / "images").subset("test")
        encoder = OnnxEncoder(find_data().parent / "models" / "resnet50.onnx", "caffe-full-image")
    else:
        pairs, encoder = read_pairs(scenes), PyramidDescriptor()
    reports = []
    cpu = time.process_time()
    encode_images(pairs.select(range(count)), encoder, store, progress=reports.append)
    cpu, progress = time.process_time() - cpu, reports[-1]
    encoded = progress.done - progress.resumed
    print(
        json.dumps(
            {
                "images": encoded,
                "rate": progress.rate,
                "cpu": 1000 * cpu / encoded,
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


def encode_and_kill(which: str, count: int, store: Path, scenes: Path) -> None:
    """Encode until half of the batches are on disk, then SIGKILL."""
    process, journal = start(which, count, store, scenes), store / "journal.jsonl"
    while process.poll() is None:
        if journal.is_file() and journal.read_bytes().count(b"\n") >= count // 64:
            process.send_signal(signal.SIGKILL)
        time.sleep(0.01)
    process.wait()


def hash_files(store: Path) -> str:
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(store.iterdir()))).hexdigest()


def main() -> None:
    from diptych.scenes import make_scenes

    rows, same, load = [], [], os.getloadavg()

    def add(name: str, result: dict[str, float]) -> None:
        rows.append(
            {
                "encoding": name,
                "images": int(result["images"]),
                "images per second": f"{result['rate']:.1f}",
                "CPU ms per image": f"{result['cpu']:.1f}",
                "encoder waits for decoding": f"{result['waits']:.1f} %",
                "peak memory, MiB": f"{result['peak']:.0f}",
            }
        )

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        scenes = folder / "scenes"
        drawing, _ = time_call(lambda: make_scenes(SCENES).write(scenes))
        names = {"flickr8k": "ResNet-50, thumbnails", "scenes": "descriptor, scenes of 112 pixels"}
        for which, counts in {"flickr8k": (250, 500, 1000), "scenes": (1000, SCENES)}.items():
            for count in counts:
                add(names[which], measure(which, count, folder / f"{which}-{count}", scenes))
            store = folder / f"{which}-resumed"
            encode_and_kill(which, counts[-1], store, scenes)
            add(f"{names[which]}, resumed after SIGKILL", measure(which, counts[-1], store, scenes))
            same.append(hash_files(store) == hash_files(folder / f"{which}-{counts[-1]}"))
    note = (
        f"The resumed stores are {'byte for byte' if all(same) else 'NOT'} those of uninterrupted runs. "
        "The descriptor works in the decoding threads alone, so there is nothing to do but wait for them. "
        f"Scenes are drawn and written at {SCENES / drawing:.0f} per second. Peak memory holds the "
        "interpreter and, for ResNet-50, its 90 MiB of weights. Load average of the machine before and "
        f"after: {load[0]:.1f} and {os.getloadavg()[0]:.1f}; where it is above 2, CPU time says more than "
        "the rate."
    )
    record("encode_images", rows, note)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        encode(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        main()
