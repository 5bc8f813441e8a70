"""The protocols of the paper: which images are for training, for selection and for the test."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from diptych import InputError
from diptych.data import PairedDataset
from reproduction.results import Rows

PROTOCOLS = ("flickr8k", "flickr30k-paper", "flickr30k-karpathy", "coco-5k", "coco-1k")

CAPTIONS_PER_IMAGE = 5
"""Captions of each image that the protocols use; some images of COCO have six or seven."""

_SIZES = {
    "flickr8k": (6_000, 1_000, 1_000),
    "flickr30k-karpathy": (29_000, 1_014, 1_000),
    "coco-5k": (113_287, 5_000, 5_000),
    "coco-1k": (113_287, 5_000, 5_000),
}
_FOLD = 1_000
_PAPER_RUNS = 3


@dataclass(frozen=True, eq=False)
class ProtocolRun:
    """One run of a protocol: row numbers of the images to select filters on, and of those to test on."""

    validation: Rows
    test: Rows


@dataclass(frozen=True, eq=False)
class ProtocolSplits:
    """Row numbers of the training images, which all runs share, and the runs whose results are averaged."""

    name: str
    train: Rows
    runs: tuple[ProtocolRun, ...]


def split_by_protocol(name: str, dataset: PairedDataset, *, random_state: int = 0) -> ProtocolSplits:
    """Split pairs as one of the paper's protocols does.

    Parameters
    ----------
    name
        - ``"flickr8k"``: the official 6,000 / 1,000 / 1,000.
        - ``"flickr30k-paper"``: 3,000 validation and 3,000 test images drawn with ``random_state``, the
          rest for training; three runs, each with a disjoint 1,000 of both. The paper is not exact here:
          it names 3,000 images for each set, three random splits of 1,000, and 25,381 training images,
          which is neither what the 31,783 images of the token file leave (25,783) nor what the 31,014 of
          Karpathy's file leave (25,014). It does not say whether the training set changed with the split;
          here it does not.
        - ``"flickr30k-karpathy"``: the split file's own 29,000 / 1,014 / 1,000.
        - ``"coco-5k"``: 113,287 / 5,000 / 5,000, five captions each: 25,000 search queries. COCO's file has
          six or seven for some images; ``keep_first_captions`` keeps the first five.
        - ``"coco-1k"``: the same, tested on five folds of 1,000 in the order of the file.
    dataset
        Pairs of the protocol's size; others raise an ``InputError``.
    random_state
        Seed of ``"flickr30k-paper"``; the others draw nothing.

    Examples
    --------
    >>> pairs = PairedDataset.of([(f"{i}.jpg", []) for i in range(31_783)])
    >>> len(split_by_protocol("flickr30k-paper", pairs).train)
    25783
    """
    if name not in PROTOCOLS:
        raise InputError(f"the protocol {name!r} is unknown; choose one of {', '.join(PROTOCOLS)}.")
    if name == "flickr30k-paper":
        return _draw_flickr30k(name, dataset, random_state)
    sizes = tuple(dataset.split_sizes().get(split, 0) for split in ("train", "val", "test"))
    if sizes != _SIZES[name]:
        raise InputError(
            f"protocol {name!r} has {_SIZES[name]} training, validation and test images, and these pairs "
            f"have {sizes}; read the split file that the protocol uses."
        )
    most = int(np.bincount(dataset.pairing, minlength=1).max())
    if name.startswith("coco") and most > CAPTIONS_PER_IMAGE:
        raise InputError(
            f"protocol {name!r} uses {CAPTIONS_PER_IMAGE} captions per image, and these pairs have up to "
            f"{most}; keep the first ones with keep_first_captions()."
        )
    train, validation, test = (dataset.image_rows(split) for split in ("train", "val", "test"))
    tests = test.reshape(-1, _FOLD) if name == "coco-1k" else [test]
    return ProtocolSplits(name, train, tuple(ProtocolRun(validation, rows) for rows in tests))


def _draw_flickr30k(name: str, dataset: PairedDataset, random_state: int) -> ProtocolSplits:
    held_out = _PAPER_RUNS * _FOLD
    if dataset.n_images < 30_000:
        raise InputError(
            f"protocol {name!r} is for Flickr30k's 31,014 to 31,783 images, and these pairs have "
            f"{dataset.n_images}."
        )
    order = np.random.default_rng(random_state).permutation(dataset.n_images)
    validation, test = order[:held_out], order[held_out : 2 * held_out]
    runs = tuple(
        ProtocolRun(np.sort(validation[i : i + _FOLD]), np.sort(test[i : i + _FOLD]))
        for i in range(0, held_out, _FOLD)
    )
    return ProtocolSplits(name, np.sort(order[2 * held_out :]), runs)


def first_caption_rows(dataset: PairedDataset) -> Rows:
    """Return the row numbers, ascending, of the first ``CAPTIONS_PER_IMAGE`` captions of each image."""
    # A stable sort by image numbers each image's captions in the order of the file.
    order = np.argsort(dataset.pairing, kind="stable")
    images = dataset.pairing[order]
    number = np.arange(len(order)) - np.searchsorted(images, images)
    return np.sort(order[number < CAPTIONS_PER_IMAGE])


def keep_first_captions(dataset: PairedDataset) -> PairedDataset:
    """Keep the first captions of each image; an image with fewer keeps all of them."""
    rows = first_caption_rows(dataset)
    captions, caption_ids = (
        tuple(values[row] for row in rows) for values in (dataset.captions, dataset.caption_ids)
    )
    return replace(dataset, pairing=dataset.pairing[rows], captions=captions, caption_ids=caption_ids)
