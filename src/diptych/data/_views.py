"""Pairs and the features of both sides, brought together: the arrays that CCA takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diptych._checks import InputError, count
from diptych.data._feature_store import FeatureStore
from diptych.data._pairs import PairedDataset


@dataclass(frozen=True, eq=False)
class PairedViews:
    """Features of the images and captions of ``dataset``, row for row.

    Attributes
    ----------
    dataset
        The pairs that have features on both sides.
    x
        Features of its images.
    y
        Features of its captions.
    seconds
        How long each step of encoding took, where they were encoded just now.
    """

    dataset: PairedDataset
    x: np.ndarray[Any, Any]
    y: np.ndarray[Any, Any]
    seconds: Mapping[str, float] = field(default_factory=dict)

    def of(
        self, image_rows: Sequence[int] | np.ndarray[Any, Any]
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, np.dtype[np.int64]]]:
        """``X, Y, pairing`` of some images and their captions."""
        images = np.asarray(image_rows, np.int64)
        captions = self.dataset.caption_rows(images)
        place = np.full(self.dataset.n_images, -1, np.int64)
        place[images] = np.arange(len(images))
        return _taken(self.x, images), _taken(self.y, captions), place[self.dataset.pairing[captions]]

    def split(
        self, name: str
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], np.ndarray[Any, np.dtype[np.int64]]]:
        """``X, Y, pairing`` of one split."""
        return self.of(self.dataset.image_rows(name))


def join(
    dataset: PairedDataset,
    images: FeatureStore | np.ndarray[Any, Any],
    captions: FeatureStore | np.ndarray[Any, Any],
) -> PairedViews:
    """Bring features to their pairs; images that could not be read are left out with their captions.

    Parameters
    ----------
    dataset
        The pairs.
    images, captions
        Feature stores, matched by id, or arrays whose rows are those of ``dataset``.

    Examples
    --------
    >>> pets = PairedDataset.of([("cat.jpg", ["A cat.", "It sleeps."]), ("dog.jpg", ["A dog."])])
    >>> x, y, pairing = join(pets, np.eye(2), np.arange(6.0).reshape(3, 2)).of([1])
    >>> y
    array([[4., 5.]])
    """
    x_rows = _rows(images, dataset.image_ids, "image")
    y_rows = _rows(captions, dataset.caption_ids, "caption")
    present = np.flatnonzero(x_rows >= 0)
    if len(present) == 0:
        raise InputError("no image of these pairs has features; encode the images of the same pairs.")
    kept = dataset if len(present) == dataset.n_images else dataset.select(present)
    y_kept = y_rows[dataset.caption_rows(present)]
    if np.any(y_kept < 0):
        missing = count(int(np.sum(y_kept < 0)), "caption")
        raise InputError(f"there are no features for {missing}; encode the captions of the same pairs.")
    return PairedViews(kept, _taken(_array(images), x_rows[present]), _taken(_array(captions), y_kept))


def _rows(
    features: FeatureStore | np.ndarray[Any, Any], ids: Sequence[str], name: str
) -> np.ndarray[Any, np.dtype[np.int64]]:
    if isinstance(features, FeatureStore):
        rows = features.rows_of(ids)
        known = {skipped.id for skipped in features.skipped}
        strangers = [name for name, row in zip(ids, rows, strict=True) if row < 0 and name not in known]
        if strangers:
            raise InputError(
                f"{features.folder} lacks {count(len(strangers), name)} ({', '.join(strangers[:3])}); "
                "it was made from other pairs."
            )
        return rows
    if features.ndim != 2 or len(features) != len(ids):
        raise InputError(
            f"the {name} features have shape {list(features.shape)}; expected {len(ids)} rows, one for each "
            f"{name} of the pairs."
        )
    return np.arange(len(ids))


def _array(features: FeatureStore | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return features.features if isinstance(features, FeatureStore) else features


def _taken(array: np.ndarray[Any, Any], rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # Consecutive rows stay a view of the file; others must be copied.
    if len(rows) and rows[-1] - rows[0] + 1 == len(rows) and np.all(np.diff(rows) == 1):
        return array[rows[0] : rows[-1] + 1]
    return np.asarray(array[rows])
