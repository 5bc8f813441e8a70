"""Everything that experiments are run on: a dataset of the paper, or drawn scenes."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from diptych._checks import InputError, check_choice
from diptych.data import PROTOCOLS, PairedDataset, read_pairs
from diptych.data._pairs import CAPTIONS_PER_IMAGE, find_repeated
from diptych.data._readers import FLICKR8K_TOKENS, FLICKR30K_TOKENS
from diptych.image import PyramidDescriptor
from diptych.paper._discovery import (
    Found,
    Kept,
    Picture,
    Reader,
    find_features,
    find_pictures,
    find_vectors,
    learn_vectors,
    open_own_features,
)
from diptych.paper._sources import Stored
from diptych.scenes import make_scenes

DATASETS: dict[str, tuple[str, tuple[str, ...]]] = {
    "flickr8k": ("Flickr8K", ("flickr8k",)),
    "flickr30k": ("Flickr30K", ("flickr30k-paper",)),
    "coco": ("MSCOCO", ("coco-1k", "coco-5k")),
    "scenes": ("generated scenes", ("scenes",)),
}
"""Title and protocols of each dataset; a protocol's own name works too."""

FILES = {
    "flickr8k": "dataset_flickr8k.json",
    "flickr30k": "dataset_flickr30k.json",
    "coco": "dataset_coco.json",
}
TOKENS = {"flickr8k": FLICKR8K_TOKENS, "flickr30k": FLICKR30K_TOKENS}
SCENES, QUICK_SCENES = 1500, 500


@dataclass(eq=False)
class Materials:
    """Everything that experiments are run on.

    Attributes
    ----------
    name, title, protocols
        Of the dataset.
    dataset
        The pairs.
    images, texts
        Features that were given, the one nearest to the paper's first.
    read_vectors
        Gives vectors of words: read for all captions, or learned from the training captions.
    vectors_kind
        Where those come from, in words.
    picture
        The picture of an image row, or None where there is none.
    found
        What each file is used as.
    """

    name: str
    title: str
    protocols: tuple[str, ...]
    dataset: PairedDataset
    images: list[Stored]
    texts: list[Stored]
    read_vectors: Reader
    vectors_kind: str
    picture: Callable[[int], Picture | None]
    found: list[Found] = field(default_factory=list)


def gather(
    name: str,
    folder: str | os.PathLike[str] | None = None,
    *,
    vectors: str | os.PathLike[str] | None = None,
    images: str | os.PathLike[str] | None = None,
    features: Sequence[str] = (),
    quick: bool = False,
) -> Materials:
    """Find what there is of a dataset.

    Parameters
    ----------
    name
        ``"flickr8k"``, ``"flickr30k"``, ``"coco"``, ``"scenes"``, or the name of a protocol.
    folder
        Holds the split file and features (or is the parent of such a folder); not needed for scenes.
    vectors, images
        Word vectors and the folder of pictures, where they lie elsewhere.
    features
        The user's own features, each as NAME=PATH; rows in the order of the split file.
    quick
        Fewer scenes.
    """
    name, title, protocols = _named(name)
    if name == "scenes":
        return _drawn(title, QUICK_SCENES if quick else SCENES, vectors, features)
    if folder is None:
        raise InputError(f"{title} is not part of this library; say with --data where {FILES[name]} lies.")
    base, pairs_file = _split_file(name, Path(folder))
    dataset = read_pairs(pairs_file)
    found = [Found(pairs_file.name, f"{dataset.n_images:,} images, {dataset.n_captions:,} captions, splits")]
    kept = None
    rows = dataset.first_caption_rows(CAPTIONS_PER_IMAGE)
    if len(rows) < dataset.n_captions:
        kept = Kept(rows, dataset.n_captions)
        dataset = dataset.first_captions(CAPTIONS_PER_IMAGE)
        words = (
            f"the first {CAPTIONS_PER_IMAGE} captions of each image; the other {kept.in_file - len(rows):,}"
        )
        found.append(Found(pairs_file.name, f"{words} are left out"))
    pictured, texts = find_features(base, dataset, found, kept)
    own_images, own_texts = open_own_features(features, dataset, found, kept)
    pictured, texts = [*pictured, *own_images], [*texts, *own_texts]
    for name in find_repeated(source.name for source in (*pictured, *texts)):
        raise InputError(f"two files of features are called {name}; give each a name of its own.")
    if not pictured:
        raise InputError(
            f"{base} holds no image features: no file of {dataset.n_images:,} rows. Make them with: diptych "
            f"encode images {pairs_file.name} --images PHOTOS --image-encoder NETWORK -o {base / 'features'}"
        )
    read, kind = find_vectors(base, vectors, found)
    picture = find_pictures(base, dataset, images, found)
    return Materials(name, title, protocols, dataset, pictured, texts, read, kind, picture, found)


def _named(name: str) -> tuple[str, str, tuple[str, ...]]:
    for dataset, (title, protocols) in DATASETS.items():
        if name == dataset:
            return dataset, title, protocols
        if name in PROTOCOLS and name.startswith(dataset):
            return dataset, title, (name,)
    check_choice(name, tuple(dict.fromkeys((*DATASETS, *PROTOCOLS))), "dataset")
    raise AssertionError


def _split_file(name: str, folder: Path) -> tuple[Path, Path]:
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; give the one that holds {FILES[name]}.")
    for base in (folder, folder / name):
        if (base / FILES[name]).is_file():
            return base, base / FILES[name]
        if name in TOKENS and (base / TOKENS[name]).is_file():
            return base, base if name == "flickr8k" else base / TOKENS[name]
    raise InputError(
        f"{folder} holds neither {FILES[name]} nor {name}/{FILES[name]}; give the folder of Karpathy's split "
        "file and of the features."
    )


def _drawn(
    title: str, number: int, vectors: str | os.PathLike[str] | None, features: Sequence[str]
) -> Materials:
    drawn = make_scenes(number)
    encoder = PyramidDescriptor()
    encoded = cache(lambda: encoder.encode(list(drawn.images)))
    images = [Stored("pyramid", encoded, origin=f"scenes {number} {encoder.fingerprint}")]
    found = [
        Found("(none)", f"{number:,} pictures drawn here, with five captions each, split 70 / 15 / 15"),
        Found("(none)", "image features: pyramid, colours and edges, no network"),
    ]
    own_images, own_texts = open_own_features(features, drawn.dataset, found)
    if vectors is not None:
        read, kind = find_vectors(Path(vectors).parent, vectors, found)
    else:
        read, kind = learn_vectors, "learned from the training captions"
    return Materials(
        "scenes",
        title,
        ("scenes",),
        drawn.dataset,
        [*images, *own_images],
        own_texts,
        read,
        kind,
        lambda row: drawn.images[row],
        found,
    )
