"""The paper's experimental protocols, by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from diptych.checks import InputError, check_choice, check_seed
from diptych.data.pairs import PairedDataset

Rows: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

PROTOCOLS = ("flickr8k", "flickr30k-paper", "flickr30k-karpathy", "coco-5k", "coco-1k")

_SIZES = {
    "flickr8k": (6_000, 1_000, 1_000),
    "flickr30k-karpathy": (29_000, 1_014, 1_000),
    "coco-5k": (113_287, 5_000, 5_000),
    "coco-1k": (113_287, 5_000, 5_000),
}
CAPTIONS_PER_IMAGE = 5
"""So many captions of each image the protocols use; some images of COCO have six or seven."""
_FOLD = 1_000
_PAPER_RUNS = 3


@dataclass(frozen=True, eq=False)
class Run:
    """Image rows that one run selects filters on, and those it is tested on."""

    validation: Rows
    test: Rows


@dataclass(frozen=True, eq=False)
class Plan:
    """One training set and the runs whose results are averaged.

    Attributes
    ----------
    name
        Of the protocol.
    train
        Rows of the training images: the same for every run, so one pass over them serves all.
    runs
        Validation and test images of each run.
    """

    name: str
    train: Rows
    runs: tuple[Run, ...]


def plan(name: str, dataset: PairedDataset, *, random_state: int = 0) -> Plan:
    """Lay out a protocol of the paper on a dataset.

    ``"flickr8k"``
        The official 6,000 / 1,000 / 1,000.
    ``"flickr30k-paper"``
        3,000 validation and 3,000 test images drawn with ``random_state``, the rest for training; three
        runs, each with a disjoint 1,000 of both, averaged. The paper's text leaves room here: it names
        3,000 images for each set, three random splits of 1,000, and 25,381 training images, which is
        neither what the 31,783 images of the token file leave (25,783) nor the 31,014 of Karpathy's file
        (25,014). Whether the training set changed with the split is not said; here it does not.
    ``"flickr30k-karpathy"``
        The split file's own 29,000 / 1,014 / 1,000.
    ``"coco-5k"``
        113,287 / 5,000 / 5,000, five captions each: 25,000 search queries. COCO's file has six or seven
        for some images; take the first five with ``dataset.first_captions(5)``.
    ``"coco-1k"``
        The same, tested on five folds of 1,000 in the order of the file, averaged.

    Parameters
    ----------
    name
        One of the five.
    dataset
        Pairs whose numbers are those of the protocol; others are refused.
    random_state
        Seed of ``"flickr30k-paper"``; the others draw nothing.
    """
    check_choice(name, PROTOCOLS, "protocol")
    if name == "flickr30k-paper":
        return _drawn(name, dataset, random_state)
    sizes = dataset.split_sizes()
    found = tuple(sizes.get(split, 0) for split in ("train", "val", "test"))
    if found != _SIZES[name]:
        raise InputError(
            f"protocol {name!r} has {_SIZES[name]} training, validation and test images, and these pairs "
            f"have {found}; read the split file it was made for."
        )
    most = int(np.bincount(dataset.pairing, minlength=1).max())
    if name.startswith("coco") and most > CAPTIONS_PER_IMAGE:
        raise InputError(
            f"protocol {name!r} uses {CAPTIONS_PER_IMAGE} captions per image, and these pairs have up to "
            f"{most}; take the first ones with dataset.first_captions({CAPTIONS_PER_IMAGE})."
        )
    train, validation, test = (dataset.image_rows(split) for split in ("train", "val", "test"))
    if name == "coco-1k":
        folds = test.reshape(-1, _FOLD)
        return Plan(name, train, tuple(Run(validation, fold) for fold in folds))
    return Plan(name, train, (Run(validation, test),))


def _drawn(name: str, dataset: PairedDataset, random_state: int) -> Plan:
    held_out = _PAPER_RUNS * _FOLD
    if dataset.n_images < 30_000:
        raise InputError(
            f"protocol {name!r} is for Flickr30k's 31,014 to 31,783 images, and these pairs have "
            f"{dataset.n_images}; split smaller data with split_by_image()."
        )
    order = np.random.default_rng(check_seed(random_state)).permutation(dataset.n_images)
    validation, test = order[:held_out], order[held_out : 2 * held_out]
    runs = tuple(
        Run(np.sort(validation[i : i + _FOLD]), np.sort(test[i : i + _FOLD]))
        for i in range(0, held_out, _FOLD)
    )
    return Plan(name, np.sort(order[2 * held_out :]), runs)
