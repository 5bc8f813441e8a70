"""Near-duplicates: which copies of photos the chosen threshold finds, and how long many items take.

Among Flickr8k's 1,000 test photos (thumbnails), which have no copies, some photos get a copy that was saved
again, resized, cropped or brightened. A copy counts as found if it is in the group of its photo. The time is
for 100,000 generated rows of 384 features, of which 1,000 are copies.
"""

from __future__ import annotations

import io
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance

from diptych.data import read_pairs
from diptych.data._duplicates import center_rows, choose_threshold, group_rows
from diptych.encoders import OnnxEncoder, PyramidDescriptor
from measuring import find_data, read_memory, record

COPIES = 60
ITEMS, FEATURES, CAUSES = 100_000, 384, 24


def save_again(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def crop(image: Image.Image, share: float) -> Image.Image:
    left, top = int(image.width * share), int(image.height * share)
    return image.crop((left, top, image.width - left, image.height - top))


CHANGES = {
    "JPEG of quality 75": lambda image: save_again(image, 75),
    "JPEG of quality 40": lambda image: save_again(image, 40),
    "half as wide and high": lambda image: image.resize((image.width // 2, image.height // 2)),
    "2 % cropped from each side": lambda image: crop(image, 0.02),
    "5 % cropped from each side": lambda image: crop(image, 0.05),
    "10 % brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.1),
    "30 % brighter": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
}


def scale(rows: np.ndarray) -> np.ndarray:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def group(rows: np.ndarray) -> tuple[float, np.ndarray]:
    center_rows(rows)
    threshold = choose_threshold(rows)
    return threshold, group_rows(rows, threshold, lambda share: None)


def find_copies(name: str, encoder: object, rows: np.ndarray, photos: list[Image.Image]) -> list[dict]:
    results = []
    for change, function in {"none: no copies": None, **CHANGES}.items():
        copies = photos[:COPIES] if function else []
        every = (
            np.vstack([rows, scale(encoder.encode([function(p) for p in copies]))]) if copies else rows.copy()
        )
        threshold, labels = group(every)
        found = int(np.count_nonzero(labels[len(rows) :] == labels[: len(copies)]))
        groups = int(np.count_nonzero(np.bincount(labels) > 1))
        results.append(
            {
                "features": name,
                "copies are": change,
                "threshold": f"{threshold:.3f}",
                "found": f"{100 * found / len(copies):.0f} %" if copies else "–",
                "groups of different photos": groups - found,
            }
        )
    return results


def time_many(folder: Path) -> str:
    rng = np.random.default_rng(0)
    rows = np.memmap(folder / "rows", np.float32, "w+", shape=(ITEMS, FEATURES))
    spread = rng.normal(size=(CAUSES, FEATURES))
    for start in range(0, ITEMS, 10_000):
        cause, noise = rng.normal(size=(10_000, CAUSES)), rng.normal(size=(10_000, FEATURES))
        rows[start : start + 10_000] = scale(cause @ spread + 0.3 * noise)
    rows[-1000:] = scale(rows[:1000] + 0.001 * rng.normal(size=(1000, FEATURES)))
    before, wall, cpu = read_memory("VmRSS"), time.perf_counter(), time.process_time()
    _, labels = group(rows)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    found = int(np.count_nonzero(labels[-1000:] == labels[:1000]))
    groups = int(np.count_nonzero(np.bincount(labels) > 1))
    return (
        f"{ITEMS:,} items of {FEATURES} features, 1,000 of them copies: {cpu:.0f} s of CPU time ({wall:.0f} "
        f"s at a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores), {found:,} copies found, "
        f"{groups - found} other groups, {read_memory() - before:.0f} MiB more memory, "
        f"{ITEMS * FEATURES * 4 / 2**20:.0f} MiB of which are the mapped features."
    )


def main() -> None:
    data = find_data() / "flickr8k"
    pairs = read_pairs(data / "dataset_flickr8k.json", images=data / "images").subset("test")
    photos = [Image.open(path).convert("RGB") for path in pairs.paths]
    pyramid = PyramidDescriptor()
    network = OnnxEncoder(find_data().parent / "models" / "resnet50.onnx", "caffe-full-image")
    rows = find_copies("pyramid", pyramid, scale(pyramid.encode(photos)), photos)
    stored = scale(np.load(data / "resnet50_thumbs.npy").astype(np.float32))
    rows += find_copies("ResNet-50, full image", network, stored, photos)
    with tempfile.TemporaryDirectory() as folder:
        note = time_many(Path(folder))
    record("duplicates", rows, note)


if __name__ == "__main__":
    main()
