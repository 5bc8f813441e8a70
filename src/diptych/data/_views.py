"""Pairs joined with the features of both views: the arrays that CCA takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from diptych._checks import InputError, count
from diptych.data._feature_store import Features, FeatureStore
from diptych.data._pairs import PairedDataset, RowNumbers


@dataclass(frozen=True, eq=False)
class PairedViews:
    """Pairs with the features of their images (``x``) and captions (``y``), row for row; see ``join``.

    ``seconds`` tells how long each step of encoding took, if they were encoded just now.
    """

    dataset: PairedDataset
    x: Features
    y: Features
    seconds: Mapping[str, float] = field(default_factory=dict)

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
    x, x_rows = _match_rows(images, dataset.image_ids, "image")
    y, y_rows = _match_rows(captions, dataset.caption_ids, "caption")
    present = np.flatnonzero(x_rows >= 0)
    if len(present) == 0:
        raise InputError("no image of these pairs has features; encode the images of the same pairs.")
    y_rows = y_rows[dataset.caption_rows(present)]
    if np.any(y_rows < 0):
        missing = count(int(np.sum(y_rows < 0)), "caption")
        raise InputError(f"there are no features for {missing}; encode the captions of the same pairs.")
    if len(present) < dataset.n_images:
        dataset = dataset.select(present)
    return PairedViews(dataset, _select_rows(x, x_rows[present]), _select_rows(y, y_rows))


def _match_rows(
    source: FeatureStore | Features, ids: Sequence[str], view: str
) -> tuple[Features, RowNumbers]:
    """Return the features and the row of each id in them, −1 for one that was skipped."""
    if isinstance(source, FeatureStore):
        rows = source.rows_of(ids)
        skipped = {each.id for each in source.skipped}
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
