"""Finding features, word vectors and pictures in a folder, by shape and by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from diptych.checks import InputError
from diptych.data import FeatureStore, PairedDataset, open_features
from diptych.experiments.sources import Stored
from diptych.image import open_image
from diptych.text import WordVectors, learn_word_vectors, read_word_vectors, tokenize

Picture: TypeAlias = Any
Reader: TypeAlias = Callable[[Sequence[str]], WordVectors]

FEATURE_FILES = (".npy", ".safetensors", ".h5", ".hdf5", ".mat")
VECTOR_FILES = (".bin", ".vec", ".txt", ".bin.gz", ".vec.gz", ".txt.gz")
VECTOR_NAMES = ("word2vec", "googlenews", "glove", "fasttext", "vectors", "wiki", "crawl", ".vec", ".bin")
IMAGE_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "")
PREFERRED = ("vgg", "resnet101", "resnet")


@dataclass(frozen=True)
class Found:
    """A file, and what it is used as."""

    file: str
    use: str


def find_features(
    base: Path, dataset: PairedDataset, found: list[Found]
) -> tuple[list[Stored], list[Stored]]:
    """Features of the images and of the captions, told by their number of rows."""
    images: list[Stored] = []
    texts: list[Stored] = []
    for path in sorted(base.iterdir()):
        if path.suffix.lower() not in FEATURE_FILES and not _is_store(path):
            continue
        array = open_features(path)
        kind = _kind(path, len(array), dataset)
        if kind is None:
            found.append(
                Found(
                    path.name,
                    f"not used: {len(array):,} rows are neither the images' nor the captions' number",
                )
            )
            continue
        if _is_store(path):
            # A store keeps the order in which it was written; its ids say which row is whose.
            ids = dataset.image_ids if kind == "image" else dataset.caption_ids
            array = array[FeatureStore.open(path).rows_of(ids)]
        source = Stored(_title(path), lambda array=array: array)  # type: ignore[misc]
        (images if kind == "image" else texts).append(source)
        found.append(Found(path.name, f"{kind} features, {array.shape[1]:,} numbers each: {source.name}"))
    images.sort(key=lambda source: _preference(source.name))
    return images, texts


def _is_store(path: Path) -> bool:
    return path.is_dir() and (path / "features.npy").is_file() and (path / "config.json").is_file()


def _kind(path: Path, rows: int, dataset: PairedDataset) -> str | None:
    if dataset.n_images == dataset.n_captions == rows:
        worded = any(part in path.name.lower() for part in ("text", "caption", "sentence", "lm", "skip"))
        return "text" if worded else "image"
    return {dataset.n_images: "image", dataset.n_captions: "text"}.get(rows)


def _title(path: Path) -> str:
    known = {"vgg19": "VGG-19", "vgg": "VGG-19", "vgg_feats": "VGG-19", "resnet101": "ResNet-101"}
    known |= {"resnet50": "ResNet-50", "dinov2s": "DINOv2-S", "minilm": "MiniLM"}
    known |= {"skipthoughts": "skip-thoughts", "skip-thoughts": "skip-thoughts"}
    return known.get(path.stem.lower(), path.stem)


def _preference(name: str) -> tuple[int, str]:
    plain = name.lower().replace("-", "")
    return next((i for i, part in enumerate(PREFERRED) if part in plain), len(PREFERRED)), plain


def find_vectors(base: Path, given: str | os.PathLike[str] | None, found: list[Found]) -> tuple[Reader, str]:
    """A reader of word vectors, from the file given or found, and in words where they come from."""
    path = Path(given) if given is not None else _vector_file(base)
    if path is None:
        return learn_word_vectors, "learned from the training captions (no file of word vectors was found)"
    if not path.exists():
        raise InputError(f"{path} is not there; give a file of word vectors.")
    found.append(Found(path.name, "word vectors"))

    def read(captions: Sequence[str]) -> WordVectors:
        return read_word_vectors(path, {word for caption in captions for word in tokenize(caption)})

    return read, path.name


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
