"""Recipes: how an image becomes the input of a network, and the network's output features."""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

import numpy as np

from diptych._checks import InputError, check_choice
from diptych._persistence import read_json
from diptych.encoders._decoding import DEFAULT_MAX_PIXELS, UnreadableImage

if TYPE_CHECKING:
    from PIL import Image

Crop: TypeAlias = Literal["none", "center", "ten"]
Pooling: TypeAlias = Literal["none", "mean", "first"]
Pixels: TypeAlias = np.ndarray[Any, np.dtype[np.uint8]]
"""8-bit RGB values [crops, height, width, 3]."""

LARGEST_SIDE = 16_384
_CHOICES = {
    "interpolation": ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"),
    "crop": get_args(Crop),
    "channels": ("RGB", "BGR"),
    "pooling": get_args(Pooling),
}

METADATA_KEY = "diptych.recipe"
"""Key of the recipe, as JSON, in the metadata of an ONNX file."""

_ONNX_CHANNELS = {"Rgb8": "RGB", "Bgr8": "BGR"}
_ONNX_RANGES = {"NominalRange_0_255": "bytes", "Normalized_0_1": "unit", "Normalized_1_1": "inception"}
"""What the ONNX standard calls the order of the channels, and the range of the pixels."""

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CAFFE_MEAN = (103.939, 116.779, 123.68)


@dataclass(frozen=True)
class Recipe:
    """How an image becomes the input of a network, and how its output becomes features.

    The steps before the network are, in order: resize, crop, order of the channels, scale, mean and
    standard deviation. The steps after it are: choice of the output, pooling, and the average over crops.

    Parameters
    ----------
    size
        Shortest side after resizing, with the aspect ratio kept (the longest side is rounded down, as in
        torchvision); a pair is an exact (height, width); None: not resized.
    max_side
        Images with a longer side are first shrunk to it, with the aspect ratio kept. This bounds the memory
        of networks that see the full image.
    interpolation
        Pillow's name of the filter; each of them averages when it shrinks.
    crop
        ``"none"``, ``"center"``, or ``"ten"``: the four corners and the centre, then their mirror images.
    crop_size
        Side of the square crops.
    channels
        ``"RGB"`` or ``"BGR"``.
    scale
        Values run from 0 to this before the mean is subtracted: 255 or 1.
    mean
        One number per channel, in the order of ``channels``; or ``"crop"``: the mean of each crop, per
        channel.
    std
        Divisor of each channel, in the order of ``channels``.
    output
        Name of the network's output; None: the first output that is a matrix, else the first.
    pooling
        ``"mean"``: the average over a feature map [n, c, h, w] or over tokens [n, t, c]; ``"first"``: the
        first token; ``"none"``: the output already is one row per image.

    Examples
    --------
    >>> Recipe.preset("vgg-ten-crops").crop_size
    224
    >>> Recipe(size=256, crop="center", pooling="mean").mean
    (0.485, 0.456, 0.406)
    """

    size: int | tuple[int, int] | None = None
    max_side: int | None = 1024
    interpolation: str = "bicubic"
    crop: Crop = "none"
    crop_size: int = 224
    channels: str = "RGB"
    scale: float = 1.0
    mean: tuple[float, float, float] | Literal["crop"] = IMAGENET_MEAN
    std: tuple[float, float, float] = IMAGENET_STD
    output: str | None = None
    pooling: Pooling = "none"

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            check_choice(getattr(self, name), choices, name)
        if isinstance(self.size, (list, tuple)):
            object.__setattr__(self, "size", tuple(self.size))
        sides = self.size if isinstance(self.size, tuple) else (self.size,)
        if self.size is not None and not (len(sides) <= 2 and all(map(_is_side, sides))):
            raise InputError(f"size={self.size!r} is neither a side nor a (height, width) in pixels.")
        for name in ("max_side", "crop_size"):
            side = getattr(self, name)
            if not _is_side(side) and (name, side) != ("max_side", None):
                raise InputError(f"{name}={side!r} is not a number of pixels up to {LARGEST_SIDE}.")
        if not _is_number(self.scale) or self.scale <= 0:
            raise InputError(f"scale={self.scale!r} is not a positive number; networks expect 1 or 255.")
        if self.mean != "crop":
            object.__setattr__(self, "mean", _check_three(self.mean, "mean"))
        object.__setattr__(self, "std", _check_three(self.std, "std"))
        if min(self.std) <= 0:
            raise InputError(f"std={self.std!r} has an entry that is not positive.")
        if self.output is not None and not isinstance(self.output, str):
            raise InputError(f"output={self.output!r} is not a string; pass the name of a network output.")

    @classmethod
    def preset(cls, name: str) -> Recipe:
        """Return the recipe of this name: one of ``PRESETS``, or one with another side (``imagenet-299``)."""
        if isinstance(name, str) and name in PRESETS:
            return PRESETS[name]
        match = re.fullmatch(rf"({'|'.join(STATISTICS)})-([1-9][0-9]{{0,4}})", str(name))
        if match is not None and _is_side(int(match[2])):
            return _make_crop_recipe(match[1], int(match[2]))
        # difflib misses names that only begin like a preset ("caffe").
        near = [preset for preset in PRESETS if preset.startswith(str(name))]
        near = near or difflib.get_close_matches(str(name), PRESETS, 1)
        hint = f" Did you mean {' or '.join(near)}?" if name and near else ""
        raise InputError(f"There is no recipe {name!r}; choose one of {', '.join(PRESETS)}.{hint}")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "The recipe") -> Recipe:
        """Make a recipe from its fields; ``preset`` names a preset that the other fields change."""
        names = {field.name for field in fields(cls)}
        unknown = sorted(set(content) - names - {"preset"})
        if unknown:
            raise InputError(
                f"{source} has the unknown field(s) {', '.join(unknown)}; "
                f"the fields are {', '.join(sorted(names))}."
            )
        values = asdict(cls.preset(content["preset"])) if "preset" in content else {}
        values |= {name: value for name, value in content.items() if name != "preset"}
        try:
            return cls(**values)
        except TypeError as error:
            raise InputError(f"{source} has a field of the wrong type ({error}).") from None

    @classmethod
    def beside(cls, model: str | os.PathLike[str]) -> Recipe | None:
        """Read the recipe in the JSON file beside a network (``resnet.json``); None if there is no file."""
        path = Path(model).with_suffix(".json")
        return cls.from_dict(read_json(path), str(path)) if path.is_file() else None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], source: str) -> Recipe | None:
        """Read the recipe in the metadata of an ONNX file; None if there is no recipe.

        It is JSON under ``diptych.recipe``, or the two keys that the ONNX standard has for images:
        ``Image.BitmapPixelFormat`` (order of the channels) and ``Image.NominalPixelRange``.
        """
        if METADATA_KEY in metadata:
            try:
                content = json.loads(metadata[METADATA_KEY])
            except ValueError as error:
                raise InputError(
                    f"{METADATA_KEY} in {source} is not JSON ({error}); pass a recipe."
                ) from None
            if isinstance(content, str):
                return cls.preset(content)
            if not isinstance(content, dict):
                raise InputError(f"{METADATA_KEY} in {source} is not a JSON object; pass a recipe.")
            return cls.from_dict(content, f"{METADATA_KEY} in {source}")
        channels = _ONNX_CHANNELS.get(metadata.get("Image.BitmapPixelFormat", ""))
        statistics = _ONNX_RANGES.get(metadata.get("Image.NominalPixelRange", ""))
        if channels is None or statistics is None:
            return None
        return cls(channels=channels, pooling="mean", **STATISTICS[statistics])

    def to_json(self) -> str:
        """Return all fields as JSON that ``from_dict`` reads; equal recipes give equal JSON."""
        return json.dumps(asdict(self), sort_keys=True)


RecipeLike: TypeAlias = Recipe | str | Mapping[str, Any]
"""A recipe, the name of a preset, or the fields of a recipe."""


def as_recipe(recipe: RecipeLike) -> Recipe:
    """Return the recipe that was passed itself, by the name of a preset, or by its fields."""
    if isinstance(recipe, Recipe):
        return recipe
    return Recipe.preset(recipe) if isinstance(recipe, str) else Recipe.from_dict(recipe)


def _is_side(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_SIDE


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _check_three(values: object, name: str) -> tuple[float, float, float]:
    if not isinstance(values, (list, tuple)) or len(values) != 3 or not all(map(_is_number, values)):
        raise InputError(f"{name}={values!r} is not a number for each of the three channels.")
    return cast("tuple[float, float, float]", tuple(map(float, values)))


_ONES, _ZEROS = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)

STATISTICS: dict[str, dict[str, Any]] = {
    # Most networks.
    "imagenet": {},
    # The original Caffe networks, and Keras's first ones.
    "caffe": {"channels": "BGR", "scale": 255.0, "mean": CAFFE_MEAN, "std": _ONES},
    "clip": {
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
    },
    # From -1 to 1: TensorFlow's networks and many vision transformers.
    "inception": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    # From 0 to 1, and from 0 to 255: networks that normalise their input themselves.
    "unit": {"mean": _ZEROS, "std": _ONES},
    "bytes": {"scale": 255.0, "mean": _ZEROS, "std": _ONES},
}
"""Common normalisations of pixels, the most common first."""


def _make_crop_recipe(statistics: str, side: int) -> Recipe:
    # CLIP's networks see the whole shortest side; others 7/8 of it, 224 of 256.
    whole = statistics == "clip"
    return Recipe(
        size=side if whole else (8 * side + 3) // 7,
        max_side=None,
        interpolation="bicubic" if whole else "bilinear",
        crop="center",
        crop_size=side,
        pooling="mean",
        **STATISTICS[statistics],
    )


def full_image_preset(statistics: str) -> str:
    """Return the name of the preset with these ``STATISTICS`` that uses the full image."""
    return "resnet-full-image" if statistics == "imagenet" else f"{statistics}-full-image"


PRESETS: dict[str, Recipe] = {
    # The paper's VGG protocol, for networks of PyTorch and of Caffe.
    "vgg-ten-crops": Recipe(size=384, max_side=None, crop="ten", mean="crop"),
    "caffe-vgg-ten-crops": Recipe(
        size=384, max_side=None, crop="ten", channels="BGR", scale=255.0, mean="crop", std=_ONES
    ),
    **{full_image_preset(name): Recipe(pooling="mean", **values) for name, values in STATISTICS.items()},
    **{f"{name}-224": _make_crop_recipe(name, 224) for name in STATISTICS},
}
"""The paper's two protocols, and the common normalisations for the full image and for a central crop."""


def prepare_image(image: Image.Image, recipe: Recipe) -> Pixels:
    """Resize and crop an image: the steps that can run ahead of the network, still 8-bit to save memory.

    >>> from PIL import Image
    >>> prepare_image(Image.new("RGB", (500, 400)), Recipe.preset("vgg-ten-crops")).shape
    (10, 224, 224, 3)
    """
    return _cut_crops(np.asarray(resize_image(image, recipe), np.uint8), recipe.crop, recipe.crop_size)


def normalize_pixels(pixels: Pixels, recipe: Recipe) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Apply channel order, scale, mean and standard deviation: float32 [crops, 3, height, width]."""
    ordered = pixels[..., ::-1] if recipe.channels == "BGR" else pixels
    values = np.ascontiguousarray(np.moveaxis(ordered, -1, 1), np.float32)
    if recipe.scale != 255:
        values *= np.float32(recipe.scale / 255)
    if recipe.mean == "crop":
        # Sums in float64 give the exact mean of up to a quarter million 8-bit values.
        values -= values.mean(axis=(2, 3), keepdims=True, dtype=np.float64).astype(np.float32)
    else:
        values -= np.asarray(recipe.mean, np.float32)[:, None, None]
    if recipe.std != (1.0, 1.0, 1.0):
        values /= np.asarray(recipe.std, np.float32)[:, None, None]
    return values


def resize_image(image: Image.Image, recipe: Recipe) -> Image.Image:
    """Resize an image as the recipe says; refuse sizes that the recipe cannot crop or memory cannot hold."""
    width, height = image.size
    longest = max(width, height)
    if recipe.max_side is not None and longest > recipe.max_side:
        width, height = (max(1, _divide(side * recipe.max_side, longest)) for side in (width, height))
    if isinstance(recipe.size, tuple):
        height, width = recipe.size
    elif recipe.size is not None:
        width, height = (side * recipe.size // min(width, height) for side in (width, height))
    if recipe.crop != "none" and min(width, height) < recipe.crop_size:
        raise UnreadableImage(
            f"An image of {image.width} × {image.height} pixels is {width} × {height} after resizing, "
            f"too small for crops of {recipe.crop_size}; set a larger size in the recipe."
        )
    if width * height > DEFAULT_MAX_PIXELS:
        # An image one pixel wide has few pixels in its file, and very many once its width is 384.
        raise UnreadableImage(
            f"An image of {image.width} × {image.height} pixels would be resized to {width} × {height}; "
            f"the limit is {DEFAULT_MAX_PIXELS:,} pixels."
        )
    if (width, height) == image.size:
        return image
    from PIL import Image

    return image.resize((width, height), Image.Resampling[recipe.interpolation.upper()])


def _cut_crops(pixels: Pixels, crop: Crop, size: int) -> Pixels:
    """Cut the crops of ``pixels`` [height, width, 3]: the whole image, its centre, or the paper's ten crops.

    The ten are: top left, top right, bottom left, bottom right, centre, then the same five mirrored left to
    right. When a margin is odd, the offset of the centre is rounded to even, as in torchvision.
    """
    if crop == "none":
        return pixels[None]
    height, width = pixels.shape[:2]
    bottom, right = height - size, width - size
    top, left = round(bottom / 2), round(right / 2)
    centre = pixels[top : top + size, left : left + size]
    if crop == "center":
        return centre[None]
    corners = [pixels[y : y + size, x : x + size] for y in (0, bottom) for x in (0, right)]
    five = np.stack([*corners, centre])
    return np.concatenate([five, five[:, :, ::-1]])


def _divide(numerator: int, denominator: int) -> int:
    # Rounded division of integers, so that sizes do not depend on how a platform rounds.
    return (2 * numerator + denominator) // (2 * denominator)
