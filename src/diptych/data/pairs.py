"""Images and their captions, paired: what every reader gives and everything later takes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from diptych.checks import InputError, count, is_unicode

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
