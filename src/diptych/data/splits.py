"""Splits made by image, so that no picture is in two of them, and the same for the same seed."""

from __future__ import annotations

import numpy as np

from diptych.checks import InputError, check_seed
from diptych.data.pairs import PairedDataset


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
