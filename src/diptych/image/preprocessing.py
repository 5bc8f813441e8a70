"""From a picture to the numbers a network takes: resize, crop, and subtract what should not matter."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from PIL import Image

from diptych.image.decoding import DEFAULT_MAX_PIXELS, Picture, UnreadableImage
from diptych.image.recipe import Recipe

Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""8-bit values [crops, height, width, 3], RGB."""


def prepare(picture: Picture, recipe: Recipe) -> Pixels:
    """Resize and crop: everything that can be done before the network is free, in a quarter of the memory.

    Examples
    --------
    >>> from PIL import Image
    >>> prepare(Image.new("RGB", (500, 400)), Recipe.preset("vgg-ten-crops")).shape
    (10, 224, 224, 3)
    """
    return crops(np.asarray(resized(picture, recipe), np.uint8), recipe.crop, recipe.crop_size)


def network_input(pixels: Pixels, recipe: Recipe) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Channel order, scale, mean and standard deviation: float32 [crops, 3, height, width]."""
    ordered = pixels[..., ::-1] if recipe.channels == "BGR" else pixels
    values = np.ascontiguousarray(np.moveaxis(ordered, -1, 1), np.float32)
    if recipe.scale != 255:
        values *= np.float32(recipe.scale / 255)
    if recipe.mean == "crop":
        # float64 sums: the mean of a quarter million 8-bit values should be exact.
        values -= values.mean(axis=(2, 3), keepdims=True, dtype=np.float64).astype(np.float32)
    else:
        values -= np.asarray(recipe.mean, np.float32)[:, None, None]
    if recipe.std != (1.0, 1.0, 1.0):
        values /= np.asarray(recipe.std, np.float32)[:, None, None]
    return values


def resized(picture: Picture, recipe: Recipe) -> Picture:
    """The picture at the recipe's size."""
    width, height = picture.size
    if recipe.max_side is not None and max(width, height) > recipe.max_side:
        longest = max(width, height)
        width, height = (max(1, _rounded(side * recipe.max_side, longest)) for side in (width, height))
    if isinstance(recipe.size, tuple):
        height, width = recipe.size
    elif recipe.size is not None:
        shortest = min(width, height)
        width, height = (_rounded(side * recipe.size, shortest) for side in (width, height))
    if recipe.crop != "none" and min(width, height) < recipe.crop_size:
        raise UnreadableImage(
            f"a picture of {picture.width} × {picture.height} pixels is {width} × {height} after resizing, "
            f"too small for crops of {recipe.crop_size}; set a larger size in the recipe."
        )
    if width * height > DEFAULT_MAX_PIXELS:
        # A strip one pixel wide passes every limit on its file, and would explode here.
        raise UnreadableImage(
            f"a picture of {picture.width} × {picture.height} pixels would be resized to {width} × {height}; "
            f"at most {DEFAULT_MAX_PIXELS:,} pixels are made."
        )
    if (width, height) == picture.size:
        return picture
    return picture.resize((width, height), Image.Resampling[recipe.interpolation.upper()])


def crops(pixels: Pixels, kind: str, size: int) -> Pixels:
    """``pixels`` [height, width, 3] as a stack: whole, its centre, or the ten crops of the paper.

    The ten are: top left, top right, bottom left, bottom right, centre, then the same five mirrored
    left to right. When a margin is odd, the centre lies half a pixel to the top and left.
    """
    if kind == "none":
        return pixels[None]
    height, width = pixels.shape[:2]
    bottom, right = height - size, width - size
    centre = pixels[bottom // 2 : bottom // 2 + size, right // 2 : right // 2 + size]
    if kind == "center":
        return centre[None]
    corners = [pixels[y : y + size, x : x + size] for y in (0, bottom) for x in (0, right)]
    five = np.stack([*corners, centre])
    return np.concatenate([five, five[:, :, ::-1]])


def _rounded(numerator: int, denominator: int) -> int:
    # Whole numbers only, so that sizes never depend on how a platform rounds.
    return (2 * numerator + denominator) // (2 * denominator)
