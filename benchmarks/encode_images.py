"""Encoding images into a feature store: images per second, how long the network waits, and memory.

Each row is a process of its own. Flickr8k's images are thumbnails of at most 256 pixels in JPEG files,
encoded by a ResNet-50 that sees the full image; the scenes are generated PNG files, encoded by the descriptor
without weights. The last row of each is an encoding killed half-way by SIGKILL and resumed.

The last two rows are the same network with the same preprocessing, run by ``OnnxEncoder`` and by fastembed in
turns; the faster of three runs each is shown.
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

from measuring import find_data, read_memory, record, require, time_call

require("onnxruntime", "pip install onnxruntime")
require("fastembed", "pip install fastembed")

SCENES = 4000
SQUARES, ROUNDS = 250, 3
RUNNERS = {"onnx": "ResNet-50 at 224 × 224, OnnxEncoder", "fastembed": "ResNet-50 at 224 × 224, fastembed"}
"""The same network and preprocessing by two libraries."""
MEAN, STD = (123.68, 116.779, 103.939), (1.0, 1.0, 1.0)


def encode(which: str, count: int, store: str, folder: str) -> None:
    """Encode some images, and print what was measured as JSON.

    ``folder`` has the scenes, or what fastembed needs.
    """
    from diptych.data import _encode, encode_images, read_pairs
    from diptych.encoders import OnnxEncoder, PyramidDescriptor, Recipe, _image, image_encoder

    data, network = find_data() / "flickr8k", find_data().parent / "models" / "resnet50.onnx"
    if which == "scenes":
        pairs, encoder = read_pairs(folder), PyramidDescriptor()
    else:
        pairs = read_pairs(data / "dataset_flickr8k.json", images=data / "images").subset("test")
        square = Recipe(
            size=(224, 224), max_side=None, interpolation="bicubic", scale=255, mean=MEAN, std=STD
        )
        recipe = square if which == "onnx" else "caffe-full-image"
        encoder = (
            image_encoder(f"fastembed:{folder}") if which == "fastembed" else OnnxEncoder(network, recipe)
        )
    busy, encoded = 0.0, 0

    def encode_inputs(encoder, inputs, what):
        nonlocal busy, encoded
        start, encoded = time.perf_counter(), encoded + len(inputs)
        result = _image.encode_inputs(encoder, inputs, what)
        busy += time.perf_counter() - start
        return result

    _encode.encode_inputs = encode_inputs
    cpu, start = time.process_time(), time.perf_counter()
    encode_images(pairs.select(range(count)), encoder, store)
    cpu, seconds = time.process_time() - cpu, time.perf_counter() - start
    print(
        json.dumps(
            {
                "images": encoded,
                "rate": encoded / seconds,
                "cpu": 1000 * cpu / encoded,
                "waits": 100 * (1 - busy / seconds),
                "peak": read_memory(),
            }
        )
    )


def write_fastembed_folder(folder: Path) -> None:
    """Lay out the network as fastembed expects it. Its colours are swapped, for ``OnnxEncoder`` too."""
    folder.mkdir()
    (folder / "model.onnx").symlink_to(find_data().parent / "models" / "resnet50.onnx")
    size = {"do_resize": True, "size": {"height": 224, "width": 224}, "resample": 3}
    values = {"do_rescale": False, "do_normalize": True, "image_mean": MEAN, "image_std": STD}
    (folder / "preprocessor_config.json").write_text(json.dumps({**size, **values}))


def compare_features(one: Path, other: Path) -> float:
    """Return the smallest cosine between the rows of two stores."""
    import numpy as np

    x, y = (np.load(store / "features.npy").astype(np.float64) for store in (one, other))
    return float(((x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)).min())


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
        write_fastembed_folder(folder / "network")
        runs: dict[str, list[dict[str, float]]] = {which: [] for which in RUNNERS}
        for turn in range(ROUNDS):
            for which in RUNNERS:
                store = folder / f"{which}-{turn}"
                runs[which].append(measure(which, SQUARES, store, folder / "network"))
        fastest = {which: max(results, key=lambda each: each["rate"]) for which, results in runs.items()}
        for which, name in RUNNERS.items():
            add(name, fastest[which])
        ratios = {key: fastest["fastembed"][key] / fastest["onnx"][key] for key in ("rate", "cpu")}
        cosine = compare_features(folder / "onnx-0", folder / "fastembed-0")
    note = (
        f"The resumed stores are {'byte for byte' if all(same) else 'NOT'} those of uninterrupted runs. "
        "The descriptor works in the decoding threads alone, so there is nothing to do but wait for them. "
        f"Scenes are drawn and written at {SCENES / drawing:.0f} per second. Peak memory holds the "
        "interpreter and, for ResNet-50, its 90 MiB of weights. fastembed encodes at "
        f"{ratios['rate']:.2f} times the rate of OnnxEncoder, with {ratios['cpu']:.2f} times its CPU time; "
        f"the smallest cosine between their features is {cosine:.7f}. Load average of the machine before and "
        f"after: {load[0]:.1f} and {os.getloadavg()[0]:.1f}; where it is above 2, CPU time says more than "
        "the rate."
    )
    record("encode_images", rows, note)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        encode(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4])
    else:
        main()
