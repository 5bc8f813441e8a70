"""Images and their captions, paired: what every reader gives and everything later takes.

Splits made by image, so that no picture is in two of them, and the same for the same seed.

The paper's experimental protocols, by name.

Items of one split that are all but the same as items of another: they make recalls too good.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from diptych._checks import InputError, check_choice, check_seed, count, is_unicode
from diptych._normalize import to_unit_length

SPLITS = ("train", "val", "test")
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "trn", "restval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
}


@dataclass(frozen=True, eq=False)
class PairedDataset:
    """Images, captions, and which caption belongs to which image.

    Attributes
    ----------
    image_ids
        One name per image, all different.
    captions
        The sentences, in the order of the file they come from.
    pairing
        Caption j belongs to image ``pairing[j]``.
    caption_ids
        One name per caption, all different; made from the image's name where the file has none.
    splits
        ``"train"``, ``"val"``, ``"test"`` or ``""`` (in none) for each image; None: not split.
    paths
        Where each image lies; None: not known. Whether the files exist is not checked here.
    tokens
        The words of each caption, where the file holds them.

    Examples
    --------
    >>> pets = PairedDataset.of([("cat.jpg", ["A cat.", "It sleeps."]), ("dog.jpg", ["A dog."])])
    >>> pets.n_images, pets.n_captions, pets.pairing.tolist()
    (2, 3, [0, 0, 1])
    >>> pets.select([1]).captions
    ('A dog.',)
    """

    image_ids: tuple[str, ...]
    captions: tuple[str, ...]
    pairing: np.ndarray[Any, np.dtype[np.int64]]
    caption_ids: tuple[str, ...] = ()
    splits: tuple[str, ...] | None = None
    paths: tuple[Path, ...] | None = None
    tokens: tuple[tuple[str, ...], ...] | None = None

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        pairing = np.array(self.pairing, np.int64)
        pairing.setflags(write=False)
        object.__setattr__(self, "pairing", pairing)
        n, m = self.n_images, self.n_captions
        if pairing.shape != (m,) or (m and not 0 <= pairing.min() <= pairing.max() < n):
            raise InputError(f"pairing must name one of the {n} images for each of the {m} captions.")
        if not self.caption_ids:
            object.__setattr__(self, "caption_ids", _numbered(self.image_ids, pairing))
        lengths = {"splits": (self.splits, n), "paths": (self.paths, n), "tokens": (self.tokens, m)}
        for name, (part, length) in {**lengths, "caption_ids": (self.caption_ids, m)}.items():
            if part is not None and len(part) != length:
                raise InputError(f"{name} has {len(part)} entries; expected {length}.")
        for name, ids in (("image", self.image_ids), ("caption", self.caption_ids)):
            twice = repeated(ids)
            if twice:
                raise InputError(
                    f"{count(len(twice), f'{name} id')} used more than once ({', '.join(twice[:3])}); "
                    "each must be listed once."
                )
        for name, texts in (("image id", self.image_ids), ("caption", self.captions)):
            broken = next((text for text in texts if not is_unicode(text)), None)
            if broken is not None:
                raise InputError(f"the {name} {broken!r} is not valid Unicode text; correct or rename it.")
        unknown = sorted(set(self.splits or ()) - {*SPLITS, ""})
        if unknown:
            raise InputError(f"the split {unknown[0]!r} is unknown; expected one of {', '.join(SPLITS)}.")

    @classmethod
    def of(
        cls,
        images: Iterable[tuple[str, Sequence[str]]],
        *,
        splits: Sequence[str] | None = None,
        paths: Sequence[Path] | None = None,
    ) -> PairedDataset:
        """Pairs from (image id, captions) in order."""
        images = list(images)
        captions = tuple(caption for _, own in images for caption in own)
        pairing = np.repeat(np.arange(len(images)), [len(own) for _, own in images])
        return cls(
            tuple(image for image, _ in images),
            captions,
            pairing,
            splits=None if splits is None else tuple(splits),
            paths=None if paths is None else tuple(paths),
        )

    @property
    def n_images(self) -> int:
        """Number of images."""
        return len(self.image_ids)

    @property
    def n_captions(self) -> int:
        """Number of captions."""
        return len(self.captions)

    def split_sizes(self) -> dict[str, int]:
        """Images in each split that has any."""
        counts = Counter(self.splits or ())
        return {split: counts[split] for split in SPLITS if counts[split]}

    def image_rows(self, split: str) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows of the images in ``split``, ascending."""
        if self.splits is None:
            raise InputError("these pairs are not split; make splits with split_by_image().")
        if split not in SPLITS:
            raise InputError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}.")
        return np.flatnonzero(np.array([name == split for name in self.splits], bool))

    def caption_rows(
        self, image_rows: Sequence[int] | np.ndarray[Any, Any]
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows of the captions of some images, ascending."""
        chosen = np.zeros(self.n_images, bool)
        chosen[_checked_rows(image_rows, self.n_images)] = True
        return np.flatnonzero(chosen[self.pairing])

    def subset(self, split: str) -> PairedDataset:
        """The pairs of one split."""
        return self.select(self.image_rows(split))

    def select(self, image_rows: Sequence[int] | np.ndarray[Any, Any]) -> PairedDataset:
        """The pairs of some images, in the order given; captions keep theirs."""
        images = _checked_rows(image_rows, self.n_images)
        captions = self.caption_rows(images)
        place = np.full(self.n_images, -1, np.int64)
        place[images] = np.arange(len(images))
        return PairedDataset(
            tuple(self.image_ids[i] for i in images),
            tuple(self.captions[j] for j in captions),
            place[self.pairing[captions]],
            tuple(self.caption_ids[j] for j in captions),
            None if self.splits is None else tuple(self.splits[i] for i in images),
            None if self.paths is None else tuple(self.paths[i] for i in images),
            None if self.tokens is None else tuple(self.tokens[j] for j in captions),
        )

    def first_captions(self, count: int) -> PairedDataset:
        """Keep the first ``count`` captions of each image; images with fewer keep theirs.

        >>> pets = PairedDataset.of([("cat.jpg", ["A cat.", "It sleeps."]), ("dog.jpg", ["A dog."])])
        >>> pets.first_captions(1).captions
        ('A cat.', 'A dog.')
        """
        kept = self.first_caption_rows(count)
        return replace(
            self,
            captions=tuple(self.captions[j] for j in kept),
            pairing=self.pairing[kept],
            caption_ids=tuple(self.caption_ids[j] for j in kept),
            tokens=None if self.tokens is None else tuple(self.tokens[j] for j in kept),
        )

    def first_caption_rows(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Rows of the first ``count`` captions of each image, ascending."""
        if count < 1:
            raise InputError(f"count={count} is below 1; keep at least one caption per image.")
        # A stable sort by image numbers each image's captions in the order of the file.
        order = np.argsort(self.pairing, kind="stable")
        images = self.pairing[order]
        number = np.arange(len(order)) - np.searchsorted(images, images)
        return np.sort(order[number < count])

    def with_splits(self, splits: Sequence[str]) -> PairedDataset:
        """The same pairs, split otherwise."""
        return replace(self, splits=tuple(splits))


def split_name(name: str) -> str:
    """The common name of a split: ``"dev"`` is ``"val"``, ``"restval"`` is ``"train"``.

    >>> split_name("Validation"), split_name("restval")
    ('val', 'train')
    """
    known = _SPLIT_NAMES.get(name.strip().lower())
    if known is None and name.strip():
        raise InputError(f"the split {name!r} is unknown; expected train, val or test.")
    return known or ""


def repeated(items: Iterable[str]) -> list[str]:
    """What occurs more than once, in order of first occurrence."""
    return [item for item, count in Counter(items).items() if count > 1]


def _numbered(image_ids: Sequence[str], pairing: np.ndarray[Any, Any]) -> tuple[str, ...]:
    seen: Counter[int] = Counter()
    names = []
    for image in pairing.tolist():
        names.append(f"{image_ids[image]}#{seen[image]}")
        seen[image] += 1
    return tuple(names)


def _checked_rows(
    rows: Sequence[int] | np.ndarray[Any, Any], n_images: int
) -> np.ndarray[Any, np.dtype[np.int64]]:
    array = np.asarray(rows)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= n_images:
        raise InputError(f"image rows must be whole numbers from 0 to {n_images - 1} in one list.")
    if len(np.unique(array)) != len(array):
        raise InputError("image rows name an image twice; give each once.")
    return array.astype(np.int64)


def split_by_image(
    dataset: PairedDataset,
    *,
    validation: int | float = 0.15,
    test: int | float = 0.15,
    random_state: int = 0,
) -> PairedDataset:
    """Split at random, by image.

    Parameters
    ----------
    dataset
        Any pairs; splits they have are replaced.
    validation, test
        A share of the images (below 1) or their number.
    random_state
        Seed: the same images and seed give the same splits.

    Examples
    --------
    >>> pairs = PairedDataset.of([(f"{i}.jpg", ["A picture."]) for i in range(10)])
    >>> split_by_image(pairs, validation=2, test=0.3).split_sizes()
    {'train': 5, 'val': 2, 'test': 3}
    """
    n_val = _number(validation, dataset.n_images, "validation")
    n_test = _number(test, dataset.n_images, "test")
    if n_val + n_test >= dataset.n_images:
        raise InputError(
            f"{n_val} validation and {n_test} test images leave none of {dataset.n_images} for training; "
            "ask for fewer."
        )
    order = np.random.default_rng(check_seed(random_state)).permutation(dataset.n_images)
    splits = np.full(dataset.n_images, "train", dtype="<U5")
    splits[order[:n_val]] = "val"
    splits[order[n_val : n_val + n_test]] = "test"
    return dataset.with_splits([str(split) for split in splits])


def _number(share: int | float, n_images: int, name: str) -> int:
    if isinstance(share, float) and 0 <= share < 1:
        return round(share * n_images)
    if isinstance(share, int) and share >= 0:
        return share
    raise InputError(f"{name}={share!r} is neither a share below 1 nor a number of images.")


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


SAME = 0.9999
"""Cosine of centred features from which two items count as the same."""

_SAMPLE, _BLOCK = 2000, 8192


def near_duplicates(
    training: np.ndarray[Any, Any], held_out: np.ndarray[Any, Any], *, random_state: int = 0
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Rows of ``held_out`` whose features are all but those of some row of ``training``.

    Of more than 2,000 held-out rows, a seeded sample is looked at.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x = rng.normal(size=(20, 8))
    >>> near_duplicates(x, np.vstack([rng.normal(size=(3, 8)), x[5] + 1e-6]))
    array([3])
    """
    rows = np.arange(len(held_out))
    if len(rows) > _SAMPLE:
        rows = np.sort(np.random.default_rng(random_state).choice(rows, _SAMPLE, replace=False))
    mean = np.asarray(training[:_BLOCK], np.float32).mean(axis=0)
    asked = to_unit_length(np.asarray(held_out[rows], np.float32) - mean)
    nearest = np.full(len(rows), -1.0, np.float32)
    for start in range(0, len(training), _BLOCK):
        block = to_unit_length(np.asarray(training[start : start + _BLOCK], np.float32) - mean)
        nearest = np.maximum(nearest, np.max(asked @ block.T, axis=1))
    found: np.ndarray[Any, np.dtype[np.int64]] = rows[nearest > SAME]
    return found
