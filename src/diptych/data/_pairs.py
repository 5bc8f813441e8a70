"""Image-caption pairs, their splits, and pairs joined with the features of both views."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from diptych._checks import (
    IMAGE_AND_TEXT,
    InputError,
    ViewNames,
    check_seed,
    check_view_names,
    count,
    is_unicode,
    plural,
)
from diptych.data._feature_store import Features, FeatureStore, RowNumbers

T = TypeVar("T")

SPLITS = ("train", "val", "test")
_SPLIT_NAMES = {
    **dict.fromkeys(("train", "training", "trn", "restval"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "tst"), "test"),
}


@dataclass(frozen=True, eq=False)
class PairedDataset:
    """Images, captions, and which caption belongs to which image; or any two other things that are paired.

    Attributes
    ----------
    image_ids, captions, pairing
        Caption j belongs to image ``pairing[j]``; image ids are all different.
    caption_ids
        One id per caption, all different; by default ``"<image id>#<number>"``.
    splits
        ``"train"``, ``"val"``, ``"test"`` or ``""`` (in no split) for each image; None: not split.
    paths
        The file of each image, which need not exist; None: not known.
    views
        What messages call an image and a text.
    metadata
        For some ids of images and captions, plain values to filter searches by.

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
    pairing: RowNumbers
    caption_ids: tuple[str, ...] = ()
    splits: tuple[str, ...] | None = None
    paths: tuple[Path, ...] | None = None
    views: ViewNames = IMAGE_AND_TEXT
    metadata: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = check_view_names(self.views)
        object.__setattr__(self, "views", names)
        pairing = np.array(self.pairing, np.int64)
        pairing.setflags(write=False)
        object.__setattr__(self, "pairing", pairing)
        n, m = self.n_images, self.n_captions
        if pairing.shape != (m,) or (m and not 0 <= pairing.min() <= pairing.max() < n):
            raise InputError(
                f"pairing must name one of the {n} {plural(names.image)} for each of the {m} "
                f"{plural(names.caption)}."
            )
        if not self.caption_ids:
            object.__setattr__(self, "caption_ids", _number_captions(self.image_ids, pairing))
        for name, length in (("splits", n), ("paths", n), ("caption_ids", m)):
            if (values := getattr(self, name)) is not None and len(values) != length:
                raise InputError(f"{name} has {len(values)} entries; expected {length}.")
        for name, ids in ((names.image, self.image_ids), (names.caption, self.caption_ids)):
            if duplicates := find_repeated(ids):
                raise InputError(
                    f"{count(len(duplicates), f'{name} id')} used more than once "
                    f"({', '.join(duplicates[:3])}); list each once."
                )
        for name, texts in ((f"{names.image} id", self.image_ids), (names.caption, self.captions)):
            invalid = next((text for text in texts if not is_unicode(text)), None)
            if invalid is not None:
                raise InputError(f"the {name} {invalid!r} is not valid Unicode text; correct or rename it.")
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
        views: tuple[str, str] = IMAGE_AND_TEXT,
    ) -> PairedDataset:
        """Make pairs from ``(image id, captions)`` tuples, with one split and one path per image.

        For an encoder of texts, the id is what is encoded: ``("CCO", ["ethanol"])``.
        """
        images = list(images)
        return cls(
            tuple(image_id for image_id, _ in images),
            tuple(caption for _, captions in images for caption in captions),
            np.repeat(np.arange(len(images)), [len(captions) for _, captions in images]),
            splits=None if splits is None else tuple(splits),
            paths=None if paths is None else tuple(paths),
            views=check_view_names(views),
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
        """Return the number of images in each split that has any."""
        counts = Counter(self.splits or ())
        return {split: counts[split] for split in SPLITS if counts[split]}

    def image_rows(self, split: str) -> RowNumbers:
        """Return the row numbers of the images in ``split``, ascending."""
        if self.splits is None:
            raise InputError("these pairs are not split; split them with split_by_image().")
        if split not in SPLITS:
            raise InputError(f"split={split!r} is unknown; choose one of {', '.join(SPLITS)}.")
        return np.flatnonzero(np.array([name == split for name in self.splits], bool))

    def caption_rows(self, image_rows: Sequence[int] | RowNumbers) -> RowNumbers:
        """Return the row numbers of the captions of some images, ascending."""
        is_chosen = np.zeros(self.n_images, bool)
        is_chosen[_check_rows(image_rows, self.n_images, self.views.image)] = True
        return np.flatnonzero(is_chosen[self.pairing])

    def subset(self, split: str) -> PairedDataset:
        """Return the pairs of one split."""
        return self.select(self.image_rows(split))

    def select(self, image_rows: Sequence[int] | RowNumbers) -> PairedDataset:
        """Return the pairs of some images, in the order of ``image_rows``; captions keep the file's order."""
        images, captions, pairing = self.paired_rows(image_rows)
        image_ids, caption_ids = _pick(self.image_ids, images), _pick(self.caption_ids, captions)
        kept = (*image_ids, *caption_ids) if self.metadata else ()
        return replace(
            self,
            image_ids=image_ids,
            captions=_pick(self.captions, captions),
            caption_ids=caption_ids,
            splits=_pick(self.splits, images),
            paths=_pick(self.paths, images),
            pairing=pairing,
            metadata={name: self.metadata[name] for name in kept if name in self.metadata},
        )

    def paired_rows(
        self, image_rows: Sequence[int] | RowNumbers
    ) -> tuple[RowNumbers, RowNumbers, RowNumbers]:
        """Return the row numbers of some images, those of their captions, and the pairing of these two."""
        images = _check_rows(image_rows, self.n_images, self.views.image)
        captions = self.caption_rows(images)
        position = np.full(self.n_images, -1, np.int64)
        position[images] = np.arange(len(images))
        return images, captions, position[self.pairing[captions]]

    def with_splits(self, splits: Sequence[str]) -> PairedDataset:
        """Return the same pairs with other splits, one name per image."""
        return replace(self, splits=tuple(splits))

    def with_views(self, views: tuple[str, str]) -> PairedDataset:
        """Return the same pairs with other names of the views."""
        return self if self.views == views else replace(self, views=check_view_names(views))


def normalize_split(name: str) -> str:
    """Return the common name of a split: ``"dev"`` is ``"val"``, ``"restval"`` is ``"train"``."""
    common = _SPLIT_NAMES.get(name.strip().lower(), "")
    if not common and name.strip():
        raise InputError(f"the split {name!r} is unknown; expected train, val or test.")
    return common


def find_repeated(items: Iterable[str]) -> list[str]:
    """Return the items that occur more than once, in the order of their first occurrence."""
    return [item for item, times in Counter(items).items() if times > 1]


def _pick(values: tuple[T, ...] | None, rows: RowNumbers) -> Any:
    return None if values is None else tuple(values[row] for row in rows)


def _number_captions(image_ids: Sequence[str], pairing: RowNumbers) -> tuple[str, ...]:
    numbers: dict[int, Iterator[int]] = defaultdict(itertools.count)
    return tuple(f"{image_ids[image]}#{next(numbers[image])}" for image in pairing.tolist())


def _check_rows(rows: Sequence[int] | RowNumbers, n_images: int, what: str) -> RowNumbers:
    array = np.asarray(rows)
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= n_images:
        raise InputError(f"{what} rows must be a list of whole numbers from 0 to {n_images - 1}.")
    if len(np.unique(array)) != len(array):
        raise InputError(f"{what} rows have a number twice; give each once.")
    return array.astype(np.int64)


def split_by_image(
    dataset: PairedDataset,
    *,
    validation: int | float = 0.15,
    test: int | float = 0.15,
    random_state: int = 0,
) -> PairedDataset:
    """Split pairs at random by image, so that no image is in two splits.

    Parameters
    ----------
    dataset
        Any pairs; splits they already have are replaced.
    validation, test
        A share of the images (below 1) or a number of images.
    random_state
        Seed: the same images and seed give the same splits.

    Examples
    --------
    >>> pairs = PairedDataset.of([(f"{i}.jpg", ["An image."]) for i in range(10)])
    >>> split_by_image(pairs, validation=2, test=0.3).split_sizes()
    {'train': 5, 'val': 2, 'test': 3}
    """
    n_val = _image_count(validation, dataset.n_images, "validation")
    n_test = _image_count(test, dataset.n_images, "test")
    if n_val + n_test >= dataset.n_images:
        raise InputError(
            f"{n_val} validation and {n_test} test {plural(dataset.views.image)} leave none of "
            f"{dataset.n_images} for training; ask for fewer."
        )
    order = np.random.default_rng(check_seed(random_state)).permutation(dataset.n_images)
    splits = np.full(dataset.n_images, "train", dtype="<U5")
    splits[order[:n_val]] = "val"
    splits[order[n_val : n_val + n_test]] = "test"
    return dataset.with_splits(splits.tolist())


def _image_count(share: int | float, n_images: int, name: str) -> int:
    if isinstance(share, float) and 0 <= share < 1:
        return round(share * n_images)
    if isinstance(share, int) and share >= 0:
        return share
    raise InputError(f"{name}={share!r} is neither a share below 1 nor a whole number.")


@dataclass(frozen=True, eq=False)
class PairedViews:
    """Pairs with the features of their images (``x``) and captions (``y``), row for row; see ``join``.

    ``seconds`` tells how long each step of encoding took, if they were encoded just now. ``encoders`` has the
    fingerprints of the encoders of x and y, where they are known. ``blocks`` has names and widths of the
    feature blocks that lie side by side in a view (``"image"``, ``"text"``), if several encoders made one.
    """

    dataset: PairedDataset
    x: Features
    y: Features
    seconds: Mapping[str, float] = field(default_factory=dict)
    encoders: tuple[str, str] = ("", "")
    blocks: Mapping[Literal["image", "text"], dict[str, int]] = field(default_factory=dict)

    def of(self, image_rows: Sequence[int] | RowNumbers) -> tuple[Features, Features, RowNumbers]:
        """Return ``X, Y, pairing`` of some images and their captions."""
        images, captions, pairing = self.dataset.paired_rows(image_rows)
        return _select_rows(self.x, images), _select_rows(self.y, captions), pairing

    def split(self, name: str) -> tuple[Features, Features, RowNumbers]:
        """Return ``X, Y, pairing`` of one split."""
        return self.of(self.dataset.image_rows(name))


def join(
    dataset: PairedDataset, images: FeatureStore | Features, captions: FeatureStore | Features
) -> PairedViews:
    """Join pairs with their features; images that could not be read are left out with their captions.

    Parameters
    ----------
    dataset
        The pairs.
    images, captions
        Feature stores, matched by id, or arrays with one row for each image or caption of ``dataset``.

    Examples
    --------
    >>> pets = PairedDataset.of([("cat.jpg", ["A cat.", "It sleeps."]), ("dog.jpg", ["A dog."])])
    >>> x, y, pairing = join(pets, np.eye(2), np.arange(6.0).reshape(3, 2)).of([1])
    >>> x.tolist(), y.tolist(), pairing.tolist()
    ([[0.0, 1.0]], [[4.0, 5.0]], [0])
    """
    names = dataset.views
    x, x_rows = _match_rows(images, dataset.image_ids, names.image)
    y, y_rows = _match_rows(captions, dataset.caption_ids, names.caption)
    present = np.flatnonzero(x_rows >= 0)
    if len(present) == 0:
        raise InputError(
            f"these pairs have no {names.image} features; encode the {plural(names.image)} of the same pairs."
        )
    y_rows = y_rows[dataset.caption_rows(present)]
    if np.any(y_rows < 0):
        missing = count(int(np.sum(y_rows < 0)), names.caption)
        raise InputError(
            f"there are no features for {missing}; encode the {plural(names.caption)} of the same pairs."
        )
    if len(present) < dataset.n_images:
        dataset = dataset.select(present)
    x, y = _select_rows(x, x_rows[present]), _select_rows(y, y_rows)
    return PairedViews(dataset, x, y, encoders=(_read_encoder(images), _read_encoder(captions)))


def _read_encoder(source: FeatureStore | Features) -> str:
    return source.job.encoder if isinstance(source, FeatureStore) else ""


def _match_rows(
    source: FeatureStore | Features, ids: Sequence[str], view: str
) -> tuple[Features, RowNumbers]:
    """Return the features and the row of each id in them, −1 for one that was skipped."""
    if isinstance(source, FeatureStore):
        rows = source.rows_of(ids)
        skipped = {item.id for item in source.skipped}
        unknown = [name for name, row in zip(ids, rows, strict=True) if row < 0 and name not in skipped]
        if unknown:
            raise InputError(
                f"{source.folder} lacks {count(len(unknown), view)} ({', '.join(unknown[:3])}); "
                "it was made from other pairs."
            )
        return source.features, rows
    if source.ndim != 2 or len(source) != len(ids):
        raise InputError(
            f"the {view} features have shape {list(source.shape)}; expected {len(ids)} rows, one for each "
            f"{view} of the pairs."
        )
    return source, np.arange(len(ids))


def _select_rows(array: Features, rows: NDArray[Any]) -> Features:
    # Consecutive rows stay a view of the file; others must be copied.
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and np.all(np.diff(rows) == 1):
        return array[rows[0] : rows[-1] + 1]
    return np.asarray(array[rows])
