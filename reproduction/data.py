"""The data of a reproduction: pairs, features, word vectors and images found in a folder, or drawn scenes."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from PIL import Image
from scipy.io import loadmat

from diptych import InputError
from diptych.data import FeatureStore, PairedDataset, open_features, read_pairs
from diptych.encoders import (
    PyramidDescriptor,
    WordVectors,
    learn_word_vectors,
    open_image,
    read_word_vectors,
    tokenize,
)
from diptych.scenes import make_scenes
from reproduction.features import ReadVectors, StoredFeatures
from reproduction.protocols import CAPTIONS_PER_IMAGE, PROTOCOLS, first_caption_rows, keep_first_captions
from reproduction.results import Floats, Rows

DATASETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "flickr8k": ("Flickr8K", ("flickr8k",)),
    "flickr30k": ("Flickr30K", ("flickr30k-paper",)),
    "coco": ("MSCOCO", ("coco-1k", "coco-5k")),
    "scenes": ("generated scenes", ("scenes",)),
}
"""Title and protocols of each dataset."""
SPLIT_FILES = {
    "flickr8k": "dataset_flickr8k.json",
    "flickr30k": "dataset_flickr30k.json",
    "coco": "dataset_coco.json",
}
SCENES, QUICK_SCENES = 1500, 500

FEATURE_FILES = (".npy", ".safetensors", ".h5", ".hdf5", ".mat")
VECTOR_FILES = (".bin", ".vec", ".txt", ".bin.gz", ".vec.gz", ".txt.gz")
VECTOR_NAMES = ("word2vec", "googlenews", "glove", "fasttext", "vectors", "wiki", "crawl", ".vec", ".bin")
IMAGE_FOLDERS = ("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "")
PREFERRED = ("vgg19", "resnet101", "resnet", "vgg16")
"""Image features in order of preference, the paper's first."""
FEATURE_NAMES = {
    "vgg19": "VGG-19",
    "vgg16": "VGG-16",
    # Karpathy's script ran the 16-layer network on one view of each image.
    "vgg_feats": "VGG-16 (vgg_feats.mat)",
    "resnet101": "ResNet-101",
    "resnet50": "ResNet-50",
    "dinov2s": "DINOv2-S",
    "minilm": "MiniLM",
    "skipthoughts": "skip-thoughts",
    "skip-thoughts": "skip-thoughts",
}
"""Names of known feature files; files of any other name are the user's own features."""
YOURS = "(yours)"
"""Marks the user's own features in every table."""

_ENCODE = "diptych encode images {} --images IMAGES --image-encoder"
PAPER_FEATURES = (
    (
        "VGG-19",
        "VGG-19 image features (4096 numbers, mean of ten crops): their rows were not run",
        f"{_ENCODE} vgg19.onnx --recipe vgg-ten-crops -o DATA/vgg19 (Karpathy's vgg_feats.mat is no "
        "substitute: it is VGG-16 on one view of each image)",
    ),
    (
        "ResNet-101",
        "ResNet-101 image features (2048 numbers, full image): their rows were not run",
        f"{_ENCODE} resnet101.onnx --recipe resnet-full-image -o DATA/resnet101",
    ),
    (
        "skip-thoughts",
        "skip-thought vectors (4800 numbers): their rows were not run",
        "encode every caption, in the order of the split file, with the skip-thoughts encoder "
        "(github.com/ryankiros/skip-thoughts), and save the array as DATA/skipthoughts.npy",
    ),
)
"""Features of the paper: name, what is missing without them, and how to get them."""

PathLike = str | os.PathLike[str]
View = Literal["image", "text"]


class DataFile(NamedTuple):
    """A file of the data and what it is used for."""

    file: str
    use: str


class MissingData(NamedTuple):
    """Something the paper used and this run has not, and how to get it."""

    what: str
    how: str


@dataclass(eq=False)
class PaperData:
    """Everything that the experiments use."""

    name: str
    title: str
    protocols: tuple[str, ...]
    dataset: PairedDataset
    images: list[StoredFeatures]  # those nearest to the paper's first, as the texts
    texts: list[StoredFeatures]
    read_vectors: ReadVectors
    vectors_origin: str  # for the report
    load_image: Callable[[int], Image.Image | None]  # of a row; None if there is no file
    files: list[DataFile]

    def missing(self) -> list[MissingData]:
        """List the features and datasets of the paper that this run does not have."""
        present = {features.name for features in (*self.images, *self.texts)}
        split_file = SPLIT_FILES.get(self.name, "PAIRS")
        missing = [
            MissingData(what, how.format(split_file))
            for name, what, how in PAPER_FEATURES
            if name not in present
        ]
        if "googlenews-vectors-negative300" not in self.vectors_origin.lower():
            what = "the paper's word vectors, all of GoogleNews-vectors-negative300; used instead: "
            how = "download the file (code.google.com/archive/p/word2vec) and pass it with --vectors"
            missing.append(MissingData(what + self.vectors_origin, how))
        return missing + [
            MissingData(
                f"{title}: its tables were not run",
                f"python -m reproduction {name} --data FOLDER, where FOLDER contains {SPLIT_FILES[name]} "
                "(Karpathy's split files, cs.stanford.edu/people/karpathy/deepimagesent) and features",
            )
            for name, (title, _) in DATASETS.items()
            if name not in (self.name, "scenes")
        ]


def find_data(
    name: str,
    folder: PathLike | None = None,
    *,
    vectors: PathLike | None = None,
    images: PathLike | None = None,
    features: Sequence[str] = (),
    quick: bool = False,
) -> PaperData:
    """Find the pairs, features, word vectors and images of a dataset, or of a protocol.

    ``folder`` contains the split file and features, or a folder of the dataset's name that does; scenes are
    drawn, fewer if ``quick``. Word ``vectors`` and ``images`` may be elsewhere. ``features`` are the user's
    own, each as NAME=PATH, with rows in the order of the split file.

    >>> data = find_data("scenes", quick=True)
    >>> data.dataset.n_images, [features.name for features in data.images]
    (500, ['pyramid'])
    """
    name, title, protocols = _dataset(name)
    if name == "scenes":
        return _draw_scenes(title, QUICK_SCENES if quick else SCENES, vectors, features)
    if folder is None:
        raise InputError(f"{title} must be downloaded; name the folder of {SPLIT_FILES[name]} with --data.")
    base, pairs_file = _find_split_file(name, Path(folder))
    dataset = read_pairs(pairs_file)
    files = [
        DataFile(pairs_file.name, f"{dataset.n_images:,} images, {dataset.n_captions:,} captions, splits")
    ]
    reader = _FeatureReader(dataset, first_caption_rows(dataset), files)
    left_out = dataset.n_captions - len(reader.kept)
    if left_out:
        reader.dataset = dataset = keep_first_captions(dataset)
        use = f"the first {CAPTIONS_PER_IMAGE} captions of each image; the other {left_out:,} are left out"
        files.append(DataFile(pairs_file.name, use))
    reader.read_folder(base)
    reader.read_named(features)
    names = Counter(features.name for features in (*reader.images, *reader.texts))
    for repeated in (name for name, count in names.items() if count > 1):
        raise InputError(f"two files of features are called {repeated}; give each its own name.")
    if not reader.images:
        raise InputError(
            f"{base} has no image features: no file has {dataset.n_images:,} rows. Make them with: diptych "
            f"encode images {pairs_file.name} --images IMAGES --image-encoder NETWORK -o {base / 'features'}"
        )
    read, origin = _find_vectors(base, vectors, files)
    load = _find_images(base, dataset, images, files)
    return PaperData(name, title, protocols, dataset, reader.images, reader.texts, read, origin, load, files)


def _dataset(name: str) -> tuple[str, str, tuple[str, ...]]:
    for dataset, (title, protocols) in DATASETS.items():
        if name == dataset:
            return dataset, title, protocols
        if name in PROTOCOLS and name.startswith(dataset):
            return dataset, title, (name,)
    choices = ", ".join(dict.fromkeys((*DATASETS, *PROTOCOLS)))
    raise InputError(f"the dataset {name!r} is unknown; choose one of {choices}.")


def _find_split_file(name: str, folder: Path) -> tuple[Path, Path]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; name the folder that contains {SPLIT_FILES[name]}.")
    for base in (folder, folder / name):
        if (base / SPLIT_FILES[name]).is_file():
            return base, base / SPLIT_FILES[name]
    raise InputError(
        f"{folder} contains neither {SPLIT_FILES[name]} nor {name}/{SPLIT_FILES[name]}; name the folder of "
        "Karpathy's split file and of the features."
    )


def _draw_scenes(title: str, number: int, vectors: PathLike | None, features: Sequence[str]) -> PaperData:
    drawn = make_scenes(number)
    encoder = PyramidDescriptor()
    encode = cache(lambda: encoder.encode(list(drawn.images)))
    files = [
        DataFile("(none)", f"{number:,} images drawn here, with five captions each, split 70 / 15 / 15"),
        DataFile("(none)", "image features: pyramid, colours and edges, no network"),
    ]
    reader = _FeatureReader(drawn.dataset, np.arange(drawn.dataset.n_captions), files)
    reader.read_named(features)
    pyramid = StoredFeatures("pyramid", encode, origin=f"scenes {number} {encoder.fingerprint}")
    images = [pyramid, *reader.images]
    read: ReadVectors = _learn_vectors
    origin = "learned from the training captions"
    if vectors is not None:
        read, origin = _find_vectors(Path(vectors).parent, vectors, files)
    load = drawn.images.__getitem__
    names = "scenes", title, ("scenes",)
    return PaperData(*names, drawn.dataset, images, reader.texts, read, origin, load, files)


class _FeatureReader:
    """Reads features and tells by the number of rows whether they belong to images or to captions.

    ``kept`` are the rows of the split file's captions that are used.
    """

    def __init__(self, dataset: PairedDataset, kept: Rows, files: list[DataFile]) -> None:
        self.dataset, self.kept, self._files = dataset, kept, files
        self._captions_in_file = dataset.n_captions
        self.images: list[StoredFeatures] = []
        self.texts: list[StoredFeatures] = []

    def read_folder(self, base: Path) -> None:
        """Read every file and store of features in a folder; list those that do not fit."""
        for path in sorted(base.iterdir()):
            if path.suffix.lower() in FEATURE_FILES or _is_store(path):
                name = FEATURE_NAMES.get(path.stem.lower(), f"{path.stem} {YOURS}")
                problem = self._read(path, name)
                if problem:
                    self._files.append(DataFile(path.name, f"not used: {problem}"))
        self.images.sort(key=lambda features: _preference(features.name))

    def read_named(self, entries: Sequence[str]) -> None:
        """Read the user's own features, each as NAME=PATH."""
        for entry in entries:
            name, equals, file = entry.partition("=")
            if not (name.strip() and equals and file):
                raise InputError(
                    f"--features {entry} is not NAME=PATH; write, for example, mine=features.npy."
                )
            problem = self._read(Path(file), f"{name.strip()} {YOURS}")
            if problem:
                raise InputError(f"--features {entry}: {problem}.")

    def _read(self, path: Path, name: str) -> str:
        """Read the features of a file; return why they do not fit, or an empty string."""
        array = _read_karpathys_features(path) if path.suffix == ".mat" else open_features(path)
        view = self._view(path, len(array))
        if view is None:
            return (
                f"{len(array):,} rows; expected {self.dataset.n_images:,}, one per image, or "
                f"{self.dataset.n_captions:,}, one per caption"
            )
        places: Rows | None = None
        if _is_store(path):
            # A store keeps the order in which it was written; its ids identify the rows.
            ids = self.dataset.image_ids if view == "image" else self.dataset.caption_ids
            places = FeatureStore.open(path).rows_of(ids)
            if np.any(places < 0):
                return f"it lacks {np.count_nonzero(places < 0):,} of the {len(places):,} {view} rows"
        elif view == "text" and len(array) == self._captions_in_file > len(self.kept):
            places = self.kept
        features = StoredFeatures(name, lambda: array, places=places)
        (self.images if view == "image" else self.texts).append(features)
        use = f"{view} features, {features.dimension:,} numbers each: {name}"
        if name.startswith("VGG-16"):
            use += ", one view of each image; not the paper's VGG-19 with ten crops"
        self._files.append(DataFile(path.name, use))
        return ""

    def _view(self, path: Path, rows: int) -> View | None:
        n_images, n_captions = self.dataset.n_images, self.dataset.n_captions
        if n_images == n_captions == rows:
            words = ("text", "caption", "sentence", "lm", "skip")
            return "text" if any(word in path.name.lower() for word in words) else "image"
        if rows == n_images:
            return "image"
        return "text" if rows in (n_captions, self._captions_in_file) else None


def _read_karpathys_features(path: Path) -> Floats:
    """Return the matrix of ``vgg_feats.mat``; MATLAB keeps one image per column."""
    try:
        return loadmat(path)["feats"].T  # type: ignore[no-any-return]
    except Exception as error:  # SciPy raises many classes of its own
        raise InputError(f"{path} holds no readable matrix 'feats' ({error}); download it again.") from None


def _is_store(path: Path) -> bool:
    return path.is_dir() and (path / "features.npy").is_file() and (path / "config.json").is_file()


def _preference(name: str) -> tuple[int, str]:
    plain = name.lower().replace("-", "")
    return next((i for i, part in enumerate(PREFERRED) if part in plain), len(PREFERRED)), plain


def _find_vectors(base: Path, file: PathLike | None, files: list[DataFile]) -> tuple[ReadVectors, str]:
    """Return a reader of word vectors, and where they come from."""
    path = Path(file) if file is not None else _vector_file(base)
    if path is None:
        return _learn_vectors, "learned from the training captions (no file of word vectors was found)"
    if not path.exists():
        raise InputError(f"{path} does not exist; name a file of word vectors.")
    files.append(DataFile(path.name, "word vectors"))

    def read(training: Sequence[str], captions: Sequence[str]) -> WordVectors:
        # As in the paper, validation and test captions keep the words that no training caption has.
        return read_word_vectors(path, {word for caption in captions for word in tokenize(caption)})

    return read, path.name


def _learn_vectors(training: Sequence[str], captions: Sequence[str]) -> WordVectors:
    return learn_word_vectors(training)


def _vector_file(base: Path) -> Path | None:
    for folder in (base, base.parent):
        for path in sorted(folder.iterdir()):
            name = path.name.lower()
            if path.is_file() and name.endswith(VECTOR_FILES) and any(part in name for part in VECTOR_NAMES):
                return path
    return None


def _find_images(
    base: Path, dataset: PairedDataset, folder: PathLike | None, files: list[DataFile]
) -> Callable[[int], Image.Image | None]:
    """Return a function that loads the image of a row, or returns None."""
    if folder is not None and not Path(folder).is_dir():
        raise InputError(f"{folder} is not a folder; name the folder of the image files.")
    names = [Path(image).name for image in dataset.image_ids]
    for place in [Path(folder)] if folder is not None else [base / name for name in IMAGE_FOLDERS]:
        if place.is_dir():
            present = {entry.name for entry in os.scandir(place)}
            number = sum(name in present for name in names)
            if number:
                files.append(DataFile(f"{place.name}/", f"{number:,} image files, for the report only"))
                return lambda row: open_image(place / names[row]) if names[row] in present else None
    return lambda row: None
