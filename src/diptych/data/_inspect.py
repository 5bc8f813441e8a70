"""Checks of pairs before any work is spent on them: counts, and everything that is wrong."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from diptych._checks import IMAGE_AND_TEXT, InputError, ViewNames, count, plural, with_article
from diptych._progress import progress_bar
from diptych._threads import prefetch, thread_count
from diptych.data._pairs import PairedDataset
from diptych.data._photos import PhotoText, read_photo
from diptych.encoders._decoding import DEFAULT_MAX_PIXELS, EXTENSIONS, UnreadableImage, open_image
from diptych.encoders._image import open_input

_LISTED = 3
_TOLD = {
    **{f"a {name}": name for name in ("description", "title", "headline")},
    **{"tags": "tags", "a date": "date", "a place": "latitude", "a camera": "camera"},
}
"""What files may say, for people, and the caption or metadata that has it."""


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
    """The result of ``inspect_pairs``.

    Attributes
    ----------
    images, captions, splits
        How many there are, and how many images each split has.
    captions_per_image, caption_words
        Summaries of how many captions an image has, and how many words a caption.
    missing, unreadable, without_captions, empty_captions
        Ids of images without a file, of those that cannot be decoded (with the reason), of those without a
        caption, and of captions without a word.
    leaks, copies
        Groups of images with the same pixels, or of other files with the same content: in different splits,
        and otherwise.
    in_files
        Numbers of images whose files say something, by what that is: ``"a description"``, ``"tags"``, ….
    images_checked
        Whether the image files were opened; not if their paths are unknown.
    views
        What the problems call an image and a text.
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
    in_files: dict[str, int] = field(default_factory=dict)
    images_checked: bool = False
    views: ViewNames = IMAGE_AND_TEXT

    @property
    def problems(self) -> tuple[str, ...]:
        """One sentence for each kind of problem."""
        image, caption = self.views.image, self.views.caption
        kinds = (
            (image, " cannot be found", self.missing),
            (image, " cannot be read", [name for name, _ in self.unreadable]),
            # A folder of photos need not have captions.
            (image, f" without {with_article(caption)}", self.without_captions if self.captions else ()),
            (f"empty {caption}", "", self.empty_captions),
            (image, " in more than one split (leakage)", [" = ".join(group) for group in self.leaks]),
        )
        return tuple(
            f"{count(len(names), noun)}{what}: {_list_some(names)}." for noun, what, names in kinds if names
        )

    @property
    def ok(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def inspect_pairs(
    pairs: PairedDataset,
    *,
    workers: int | None = None,
    max_pixels: int = DEFAULT_MAX_PIXELS,
    verbose: bool | None = None,
) -> PairsReport:
    """Open every image of some pairs and report what is wrong.

    If ``pairs.views`` says that the first view holds other things than images, files that are no images by
    their name are not decoded: they must exist and not be empty.

    Parameters
    ----------
    pairs
        The pairs, such as ``read_pairs`` returns.
    workers
        Decoding threads; None: one for each core, 8 at most.
    max_pixels
        Larger images count as unreadable.
    verbose
        Whether to show a progress bar, as in ``AWCCA``.

    Examples
    --------
    >>> inspect_pairs(PairedDataset.of([("cat.jpg", ["A cat.", ""]), ("dog.jpg", [])])).problems
    ('1 image without a caption: dog.jpg.', '1 empty caption: cat.jpg#1.')
    """
    missing: list[str] = []
    unreadable: list[tuple[str, str]] = []
    rows_by_pixels: dict[str, list[int]] = defaultdict(list)
    name, told = pairs.views.image, dict[Path, PhotoText]()

    def digest(path: Path) -> str | InputError | None:
        if not path.is_file():
            return None
        if name != "image" and path.suffix.lower() not in EXTENSIONS:
            return _digest_file(path, name)
        try:
            image = open_image(path, max_pixels=max_pixels)
        except UnreadableImage as problem:
            return problem
        told[path] = read_photo(path)
        return hashlib.sha256(repr(image.size).encode() + image.tobytes()).hexdigest()

    threads = thread_count(workers)
    digests = prefetch(digest, pairs.paths or (), threads, 4 * threads)
    with progress_bar(f"checking {plural(name)}", verbose) as show:
        for row, result in enumerate(digests):
            if result is None:
                missing.append(pairs.image_ids[row])
            elif isinstance(result, InputError):
                unreadable.append((pairs.image_ids[row], str(result)))
            else:
                rows_by_pixels[result].append(row)
            show((row + 1) / pairs.n_images)
    leaks: list[tuple[str, ...]] = []
    copies: list[tuple[str, ...]] = []
    for rows in rows_by_pixels.values():
        if len(rows) > 1:
            splits = {pairs.splits[row] for row in rows} - {""} if pairs.splits else set()
            (leaks if len(splits) > 1 else copies).append(tuple(pairs.image_ids[row] for row in rows))
    caption_counts = np.bincount(pairs.pairing, minlength=pairs.n_images)
    words = [len(caption.split()) for caption in pairs.captions]
    return PairsReport(
        images=pairs.n_images,
        captions=pairs.n_captions,
        splits=pairs.split_sizes(),
        captions_per_image=Summary.of(caption_counts.tolist()),
        caption_words=Summary.of(words),
        missing=tuple(missing),
        unreadable=tuple(unreadable),
        without_captions=tuple(pairs.image_ids[i] for i in np.flatnonzero(caption_counts == 0)),
        empty_captions=tuple(name for name, n in zip(pairs.caption_ids, words, strict=True) if n == 0),
        leaks=tuple(leaks),
        copies=tuple(copies),
        in_files=_count_told(told.values()),
        images_checked=pairs.paths is not None,
        views=pairs.views,
    )


def _count_told(photos: Iterable[PhotoText]) -> dict[str, int]:
    """Return how many photos say what of themselves."""
    told = Counter(
        what for photo in photos for what, key in _TOLD.items() if key in {**photo.captions, **photo.metadata}
    )
    return {what: told[what] for what in _TOLD if told[what]}


def _digest_file(path: Path, name: str) -> str | InputError:
    try:
        with open(open_input(path, "paths", name), "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (InputError, OSError) as problem:
        return InputError(problem)


def _list_some(names: Sequence[str]) -> str:
    more = len(names) - _LISTED
    return ", ".join(names[:_LISTED]) + (f" and {more} more" if more > 0 else "")
