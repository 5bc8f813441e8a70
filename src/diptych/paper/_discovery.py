"""Finding features, word vectors and pictures in a folder, by shape and by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from diptych._checks import InputError
from diptych.data import FeatureStore, PairedDataset, open_features
from diptych.image import open_image
from diptych.paper._sources import Rows, Stored
from diptych.text import WordVectors, learn_word_vectors, read_word_vectors, tokenize

Picture: TypeAlias = Any
Reader: TypeAlias = Callable[[Sequence[str], Sequence[str]], WordVectors]
"""Gives word vectors from the training captions and all captions: read for all, or learned from training."""

FEATURE_FILES = (".npy", ".safetensors", ".h5", ".hdf5", ".mat")
VECTOR_FILES = (".bin", ".vec", ".txt", ".bin.gz", ".vec.gz", ".txt.gz")
VECTOR_NAMES = ("word2vec", "googlenews", "glove", "fasttext", "vectors", "wiki", "crawl", ".vec", ".bin")
IMAGE_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "")
PREFERRED = ("vgg19", "resnet101", "resnet", "vgg16")
"""Image features nearest to the paper's first; Karpathy's VGG-16 features are not the paper's VGG-19."""
TITLES = {
    "vgg19": "VGG-19",
    "vgg16": "VGG-16",
    # The script that made this file ran the 16-layer network on one view of each image.
    "vgg_feats": "VGG-16 (vgg_feats.mat)",
    "resnet101": "ResNet-101",
    "resnet50": "ResNet-50",
    "dinov2s": "DINOv2-S",
    "minilm": "MiniLM",
    "skipthoughts": "skip-thoughts",
    "skip-thoughts": "skip-thoughts",
}
"""Names of known features by file name; features of any other name are the user's own."""
YOURS = "(yours)"
"""Marks the user's own features in every table."""


class Kept(NamedTuple):
    """Rows of the captions that are used, of so many in the split file."""

    rows: Rows
    in_file: int


@dataclass(frozen=True)
class Found:
    """A file, and what it is used as."""

    file: str
    use: str


def find_features(
    base: Path, dataset: PairedDataset, found: list[Found], kept: Kept | None = None
) -> tuple[list[Stored], list[Stored]]:
    """Features of the images and of the captions, told by their number of rows.

    ``kept`` says which captions of the split file are used; None: all of them.
    """
    images: list[Stored] = []
    texts: list[Stored] = []
    for path in sorted(base.iterdir()):
        if path.suffix.lower() not in FEATURE_FILES and not _is_store(path):
            continue
        source, kind = _open(path, _title(path), dataset, kept)
        if source is None:
            found.append(Found(path.name, f"not used: {kind}"))
            continue
        (images if kind == "image" else texts).append(source)
        found.append(Found(path.name, _use(source, kind)))
    images.sort(key=lambda source: _preference(source.name))
    return images, texts


def open_own_features(
    given: Sequence[str], dataset: PairedDataset, found: list[Found], kept: Kept | None = None
) -> tuple[list[Stored], list[Stored]]:
    """The user's own features, each given as NAME=PATH; image or text is told by the number of rows."""
    images: list[Stored] = []
    texts: list[Stored] = []
    for entry in given:
        name, equals, file = entry.partition("=")
        if not (name.strip() and equals and file):
            raise InputError(f"--features {entry} is not NAME=PATH; write, for example, mine=features.npy.")
        source, kind = _open(Path(file), f"{name.strip()} {YOURS}", dataset, kept)
        if source is None:
            raise InputError(f"--features {entry}: {kind}.")
        (images if kind == "image" else texts).append(source)
        found.append(Found(Path(file).name, _use(source, kind)))
    return images, texts


def _open(path: Path, name: str, dataset: PairedDataset, kept: Kept | None) -> tuple[Stored | None, str]:
    """The features in a file and their kind, ``"image"`` or ``"text"``; or None and why they do not fit."""
    array = open_features(path)
    kind = _kind(path, len(array), dataset)
    if kind is None and kept is not None and len(array) == kept.in_file:
        kind = "text"
    if kind is None:
        return None, (
            f"{len(array):,} rows; expected {dataset.n_images:,}, one per image, or "
            f"{dataset.n_captions:,}, one per caption"
        )
    if _is_store(path):
        # A store keeps the order in which it was written; its ids say which row is whose.
        ids = dataset.image_ids if kind == "image" else dataset.caption_ids
        places = FeatureStore.open(path).rows_of(ids)
        if np.any(places < 0):
            missing = np.count_nonzero(places < 0)
            return None, f"it lacks {missing:,} of the {len(places):,} {kind} rows"
        return Stored(name, lambda: array, kept=places), kind
    rows = kept.rows if kind == "text" and kept is not None and len(array) == kept.in_file else None
    return Stored(name, lambda: array, kept=rows), kind


def _use(source: Stored, kind: str) -> str:
    words = f"{kind} features, {source.dimension:,} numbers each: {source.name}"
    if source.name.startswith("VGG-16"):
        words += ", one view of each image; not the paper's VGG-19 with ten crops"
    return words


def _is_store(path: Path) -> bool:
    return path.is_dir() and (path / "features.npy").is_file() and (path / "config.json").is_file()


def _kind(path: Path, rows: int, dataset: PairedDataset) -> str | None:
    if dataset.n_images == dataset.n_captions == rows:
        worded = any(part in path.name.lower() for part in ("text", "caption", "sentence", "lm", "skip"))
        return "text" if worded else "image"
    return {dataset.n_images: "image", dataset.n_captions: "text"}.get(rows)


def _title(path: Path) -> str:
    return TITLES.get(path.stem.lower(), f"{path.stem} {YOURS}")


def _preference(name: str) -> tuple[int, str]:
    plain = name.lower().replace("-", "")
    return next((i for i, part in enumerate(PREFERRED) if part in plain), len(PREFERRED)), plain


def find_vectors(base: Path, given: str | os.PathLike[str] | None, found: list[Found]) -> tuple[Reader, str]:
    """A reader of word vectors, from the file given or found, and in words where they come from."""
    path = Path(given) if given is not None else _vector_file(base)
    if path is None:
        return learn_vectors, "learned from the training captions (no file of word vectors was found)"
    if not path.exists():
        raise InputError(f"{path} is not there; give a file of word vectors.")
    found.append(Found(path.name, "word vectors"))

    def read(training: Sequence[str], captions: Sequence[str]) -> WordVectors:
        # As in the paper, validation and test captions keep the words that no training caption has.
        return read_word_vectors(path, {word for caption in captions for word in tokenize(caption)})

    return read, path.name


def learn_vectors(training: Sequence[str], captions: Sequence[str]) -> WordVectors:
    """Learn word vectors from the training captions alone."""
    return learn_word_vectors(training)


def _vector_file(base: Path) -> Path | None:
    for folder in (base, base.parent):
        for path in sorted(folder.iterdir()):
            name = path.name.lower()
            if path.is_file() and name.endswith(VECTOR_FILES) and any(part in name for part in VECTOR_NAMES):
                return path
    return None


def find_pictures(
    base: Path, dataset: PairedDataset, given: str | os.PathLike[str] | None, found: list[Found]
) -> Callable[[int], Picture | None]:
    """A function from an image row to its picture, or to None."""
    if given is not None and not Path(given).is_dir():
        raise InputError(f"{given} is not a folder; give the folder of the pictures.")
    folders = [Path(given)] if given is not None else [base / name for name in IMAGE_FOLDERS]
    names = [Path(image).name for image in dataset.image_ids]
    for folder in folders:
        if folder.is_dir():
            there = {entry.name for entry in os.scandir(folder)}
            count = sum(name in there for name in names)
            if count:
                found.append(Found(f"{folder.name}/", f"pictures of {count:,} images, for the report only"))
                return lambda row: open_image(folder / names[row]) if names[row] in there else None
    return lambda row: None
