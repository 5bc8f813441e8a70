"""Validation pairs taken from the training pairs, by image: an image's captions are never split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from diptych.arrays import Array, move_like, to_numpy
from diptych.cca.filters import as_number
from diptych.checks import InputError

MOST = 5000
"""Images that are held out of any number: scoring takes time with their square, and more decide little."""


@dataclass(frozen=True, eq=False)
class HoldOut:
    """Rows of either part: images and captions, and a pairing that counts the part's own images."""

    images: Array
    captions: Array
    pairing: Array


def hold_out(
    pairing: Array, n_images: int, fraction: float, random_state: int | None
) -> tuple[HoldOut, HoldOut]:
    """Split images at random into training and validation, at most ``MOST``; returns both parts.

    Images without captions stay with training, where they weigh nothing.
    """
    share = as_number(fraction, "validation_fraction")
    if not 0.0 < share < 1.0:
        raise InputError(f"validation_fraction={fraction} is not between 0 and 1; give a share such as 0.15.")
    host = to_numpy(pairing)
    described = np.unique(host)
    size = held_out_size(len(described), share)
    if size is None:
        raise InputError(
            f"validation_fraction={fraction} of {len(described)} items leaves too few to choose on; "
            "give params, a larger fraction, validation pairs, or more data."
        )
    chosen = np.random.default_rng(random_state).permutation(described)[:size]
    is_held = np.zeros(n_images, dtype=bool)
    is_held[chosen] = True

    return taken_with_captions(pairing, ~is_held), taken_with_captions(pairing, is_held)


def held_out_size(n: int, share: float) -> int | None:
    """How many of ``n`` images are held out; None if that leaves too few on either side."""
    size = min(round(share * n), MOST)
    return None if size < 2 or n - size < 2 else size


def taken_with_captions(pairing: Array, is_taken: np.ndarray[Any, np.dtype[np.bool_]]) -> HoldOut:
    """The images that are marked, and all their captions."""
    host = to_numpy(pairing)
    images = np.flatnonzero(is_taken)
    captions = np.flatnonzero(is_taken[host])
    local = np.searchsorted(images, host[captions])
    return HoldOut(*(move_like(rows, pairing) for rows in (images, captions, local)))
