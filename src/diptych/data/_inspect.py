"""Look at pairs before work is spent on them: counts, and everything that is wrong."""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diptych._checks import count
from diptych._threads import prefetch, thread_count
from diptych.data._pairs import PairedDataset
from diptych.data._readers import read_pairs
from diptych.image._decoding import DEFAULT_MAX_PIXELS, UnreadableImage, open_image

_NAMED = 3


@dataclass(frozen=True)
class Summary:
    """Smallest, median, mean and largest of some counts."""

    smallest: int
    median: float
    mean: float
    largest: int

    @classmethod
    def of(cls, counts: Iterable[int]) -> Summary:
        """Summarise ``counts``; zeros if there are none."""
        values = np.array([*counts], np.int64)
        if not values.size:
            return cls(0, 0.0, 0.0, 0)
        return cls(int(values.min()), float(np.median(values)), float(values.mean()), int(values.max()))


@dataclass(frozen=True)
class PairsReport:
    """What was found in some pairs.

    Attributes
    ----------
    images, captions
        How many there are.
    splits
        Images in each split; empty if the pairs are not split.
    captions_per_image, caption_words
        Summaries of how many captions an image has, and how many words a caption.
    missing
        Images whose file does not exist.
    unreadable
        Images that cannot be decoded, with the reason.
    without_captions
        Images that no caption belongs to.
    empty_captions
        Ids of captions without a word.
    leaks
        Groups of images with the same pixels that are in different splits.
    copies
        Groups of images with the same pixels in one split, or in pairs that are not split.
    images_checked
        Whether the image files were looked at: not if nothing tells where they lie.
    """

    images: int
    captions: int
    splits: dict[str, int]
    captions_per_image: Summary
    caption_words: Summary
    missing: tuple[str, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    without_captions: tuple[str, ...] = ()
    empty_captions: tuple[str, ...] = ()
    leaks: tuple[tuple[str, ...], ...] = ()
    copies: tuple[tuple[str, ...], ...] = ()
    images_checked: bool = False
    problems: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        """Put what is wrong into sentences."""
        object.__setattr__(self, "problems", tuple(self._sentences()))

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def _sentences(self) -> Iterable[str]:
        if self.missing:
            yield f"{count(len(self.missing), 'image')} cannot be found: {_some(self.missing)}."
        if self.unreadable:
            names = [name for name, _ in self.unreadable]
            yield f"{count(len(names), 'image')} cannot be read: {_some(names)}."
        if self.without_captions:
            names = list(self.without_captions)
            yield f"{count(len(names), 'image')} without a caption: {_some(names)}."
        if self.empty_captions:
            yield f"{count(len(self.empty_captions), 'empty caption')}: {_some(self.empty_captions)}."
        if self.leaks:
            groups = [" = ".join(group) for group in self.leaks]
            yield f"{count(len(groups), 'picture')} in more than one split (leakage): {_some(groups)}."


def inspect_pairs(
    path: str | os.PathLike[str],
    *,
    images: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Callable[[int, int], None] | None = None,
) -> PairsReport:
    """Read pairs, open every image, and report.

    Parameters
    ----------
    path
        A file of pairs or a folder, as ``read_pairs`` takes it.
    images
        Folder of the images, where it cannot be told from ``path``.
    workers
        Decoding threads; None: one for each core, 8 at most.
    max_pixels
        Larger pictures count as unreadable.
    progress
        Called with the images looked at and their number.
    """
    dataset = read_pairs(path, images=images)
    return inspect_dataset(dataset, workers=workers, max_pixels=max_pixels, progress=progress)


def inspect_dataset(
    dataset: PairedDataset,
    *,
    workers: int | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    progress: Callable[[int, int], None] | None = None,
) -> PairsReport:
    """Report on pairs that were read already; see ``inspect_pairs``."""
    counts = np.bincount(dataset.pairing, minlength=dataset.n_images)
    words = [len(caption.split()) for caption in dataset.captions]
    seen = _look(dataset, thread_count(workers), max_pixels, progress)
    leaks, copies = _same_pixels(dataset, seen.pixels)
    return PairsReport(
        dataset.n_images,
        dataset.n_captions,
        dataset.split_sizes(),
        Summary.of(counts.tolist()),
        Summary.of(words),
        tuple(seen.missing),
        tuple(seen.unreadable),
        tuple(dataset.image_ids[i] for i in np.flatnonzero(counts == 0)),
        tuple(name for name, n in zip(dataset.caption_ids, words, strict=True) if n == 0),
        leaks,
        copies,
        dataset.paths is not None,
    )


@dataclass
class _Seen:
    missing: list[str] = field(default_factory=list)
    unreadable: list[tuple[str, str]] = field(default_factory=list)
    pixels: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))


def _look(
    dataset: PairedDataset, workers: int, max_pixels: int, progress: Callable[[int, int], None] | None
) -> _Seen:
    seen = _Seen()

    def digest(path: Path) -> str | UnreadableImage | None:
        if not path.is_file():
            return None
        try:
            picture = open_image(path, max_pixels=max_pixels)
        except UnreadableImage as problem:
            return problem
        return hashlib.sha256(repr(picture.size).encode() + picture.tobytes()).hexdigest()

    for row, result in enumerate(prefetch(digest, dataset.paths or (), workers, 4 * workers)):
        name = dataset.image_ids[row]
        if result is None:
            seen.missing.append(name)
        elif isinstance(result, UnreadableImage):
            seen.unreadable.append((name, str(result)))
        else:
            seen.pixels[result].append(row)
        if progress is not None:
            progress(row + 1, dataset.n_images)
    return seen


def _same_pixels(
    dataset: PairedDataset, pixels: dict[str, list[int]]
) -> tuple[tuple[tuple[str, ...], ...], tuple[tuple[str, ...], ...]]:
    leaks: list[tuple[str, ...]] = []
    copies: list[tuple[str, ...]] = []
    for rows in pixels.values():
        if len(rows) > 1:
            splits = {dataset.splits[row] for row in rows} - {""} if dataset.splits else set()
            (leaks if len(splits) > 1 else copies).append(tuple(dataset.image_ids[row] for row in rows))
    return tuple(leaks), tuple(copies)


def _some(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
