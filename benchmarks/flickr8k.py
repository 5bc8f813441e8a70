"""Flickr8k's features and official split, for the benchmarks."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np

from diptych.text import HKSE

CAPTIONS, TRAIN, VALIDATION = 5, 6000, 1000
HKSE_KINDS = {"hkse-lin-lin": ("lin", "lin"), "hkse-lin-rbf": ("lin", "rbf"), "hkse-rbf-rbf": ("rbf", "rbf")}


def load(folder: Path, images: str, texts: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Images × captions × pairing of all 8,000 images, float32."""
    flickr = folder / "flickr8k"
    x = np.load(flickr / f"{images.removesuffix('-sqrt')}.npy").astype(np.float32)
    if images.endswith("-sqrt"):
        x = unit(np.sqrt(x))
    if texts in HKSE_KINDS:
        content = json.loads((flickr / "dataset_flickr8k.json").read_text("utf-8"))
        sentences = [s["raw"] for image in content["images"] for s in image["sentences"]]
        word, sentence = HKSE_KINDS[texts]
        vectors = folder / "word2vec-googlenews-26k.bin"
        encoder = HKSE(vectors, word=word, sentence=sentence, random_state=seed)
        encoder.fit(sentences[: TRAIN * CAPTIONS])
        y = encoder.transform(sentences, unknown="mean")
    else:
        y = unit(np.load(flickr / f"{texts}.npy").astype(np.float32))
    return x, y, np.arange(len(y)) // CAPTIONS


def splits(x, y, pairing):
    """Training, validation and test pairs."""
    bounds = [0, TRAIN, TRAIN + VALIDATION, len(x)]
    return [
        (x[a:b], y[a * CAPTIONS : b * CAPTIONS], pairing[: (b - a) * CAPTIONS]) for a, b in pairwise(bounds)
    ]


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
