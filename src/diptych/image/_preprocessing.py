"""From a picture to the numbers a network takes: resize, crop, and subtract what should not matter.

What a network expects of a picture, and where among its outputs the features are.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import numpy as np
from PIL import Image

from diptych._checks import InputError, check_choice
from diptych._persistence import read_json
from diptych.image._decoding import DEFAULT_MAX_PIXELS, Picture, UnreadableImage

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


Crop: TypeAlias = Literal["none", "center", "ten"]
Pooling: TypeAlias = Literal["none", "mean", "first"]

CROPS: tuple[Crop, ...] = ("none", "center", "ten")
POOLINGS: tuple[Pooling, ...] = ("none", "mean", "first")
CHANNELS = ("RGB", "BGR")
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
LARGEST_SIDE = 16_384

METADATA_KEY = "diptych.recipe"
"""Under this key an ONNX file may carry its recipe, as JSON."""

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CAFFE_MEAN = (103.939, 116.779, 123.68)


def _is_side(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= LARGEST_SIDE


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


def _three(values: object, name: str) -> tuple[float, float, float]:
    if not isinstance(values, (list, tuple)) or len(values) != 3 or not all(map(_is_number, values)):
        raise InputError(f"{name}={values!r} is not a number for each of the three channels.")
    return cast("tuple[float, float, float]", tuple(map(float, values)))


@dataclass(frozen=True)
class Recipe:
    """How a picture becomes the input of a network, and its output a feature vector.

    In order: resize, crop, channel order, scale of the values, mean, standard deviation; then, after the
    network: choice of the output, pooling, and the average over the crops.

    Parameters
    ----------
    size
        Shortest side after resizing, aspect kept; a pair is an exact (height, width); None: not resized.
    max_side
        A longer side than this is first shrunk to it, aspect kept: a bound on memory for networks that see
        the full picture.
    interpolation
        Pillow's name of the filter; all of them average when they shrink.
    crop
        ``"none"``, ``"center"``, or ``"ten"``: the four corners and the centre, then their mirror images.
    crop_size
        Side of the square crops.
    channels
        ``"RGB"`` or ``"BGR"``.
    scale
        Values run from 0 to this before the mean is subtracted: 255 or 1.
    mean
        One number per channel, in the order of ``channels``, or ``"crop"``: the mean intensity of each
        crop in each channel is subtracted from it.
    std
        What each channel is divided by, in the order of ``channels``.
    output
        Name of the network's output; None: its first that is a vector, or else its first.
    pooling
        ``"mean"``: the spatial average of a feature map [n, c, h, w] or of tokens [n, t, c];
        ``"first"``: the first token; ``"none"``: the output is a vector already.

    Examples
    --------
    >>> Recipe.preset("vgg-ten-crops").crop_size
    224
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
        """Check every field: recipes come from files."""
        check_choice(self.interpolation, INTERPOLATIONS, "interpolation")
        check_choice(self.crop, CROPS, "crop")
        check_choice(self.channels, CHANNELS, "channels")
        check_choice(self.pooling, POOLINGS, "pooling")
        if self.size is not None:
            pair = isinstance(self.size, (list, tuple))
            sides = tuple(self.size) if isinstance(self.size, (list, tuple)) else (self.size, self.size)
            if len(sides) != 2 or not all(_is_side(side) for side in sides):
                raise InputError(f"size={self.size!r} is neither a side nor a (height, width) in pixels.")
            object.__setattr__(self, "size", sides if pair else sides[0])
        if self.max_side is not None and not _is_side(self.max_side):
            raise InputError(f"max_side={self.max_side!r} is not a number of pixels up to {LARGEST_SIDE}.")
        if not _is_side(self.crop_size):
            raise InputError(f"crop_size={self.crop_size!r} is not a number of pixels up to {LARGEST_SIDE}.")
        if not _is_number(self.scale) or self.scale <= 0:
            raise InputError(f"scale={self.scale!r} is not a positive number; networks expect 1 or 255.")
        if self.mean != "crop":
            object.__setattr__(self, "mean", _three(self.mean, "mean"))
        object.__setattr__(self, "std", _three(self.std, "std"))
        if min(self.std) <= 0:
            raise InputError(f"std={self.std!r} has an entry that is not positive.")
        if self.output is not None and not isinstance(self.output, str):
            raise InputError(f"output={self.output!r} is not a name; give the name of a network output.")

    @classmethod
    def preset(cls, name: str) -> Recipe:
        """Return the recipe called ``name``: one of ``PRESETS``, or of another side (``imagenet-299``)."""
        if isinstance(name, str) and name in PRESETS:
            return PRESETS[name]
        match = re.fullmatch(rf"({'|'.join(STATISTICS)})-([1-9][0-9]{{0,4}})", str(name))
        if match is not None and _is_side(int(match[2])):
            return _cropped(match[1], int(match[2]))
        # "caffe" is nearer to nothing than to the names that begin with it.
        near = [known for known in PRESETS if known.startswith(str(name))]
        near = near or difflib.get_close_matches(str(name), PRESETS, 1)
        hint = f" Did you mean {' or '.join(near)}?" if name and near else ""
        raise InputError(f"There is no recipe {name!r}; known are {', '.join(PRESETS)}.{hint}")

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], source: str = "the recipe") -> Recipe:
        """Make a recipe from plain values; ``preset`` names the one that the others change."""
        known = {field.name for field in fields(cls)}
        unknown = sorted(set(content) - known - {"preset"})
        if unknown:
            raise InputError(
                f"{source} has the unknown field(s) {', '.join(unknown)}; "
                f"known are {', '.join(sorted(known))}."
            )
        start = asdict(cls.preset(content["preset"])) if "preset" in content else {}
        try:
            return cls(**{**start, **{k: v for k, v in content.items() if k != "preset"}})
        except TypeError as error:
            raise InputError(f"{source} could not be understood ({error}).") from None

    @classmethod
    def beside(cls, model: str | os.PathLike[str]) -> Recipe | None:
        """Read the recipe from the JSON file beside a model, if there is one: ``resnet.json``."""
        path = Path(model).with_suffix(".json")
        return cls.from_dict(read_json(path), str(path)) if path.is_file() else None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], source: str) -> Recipe | None:
        """Read the recipe from an ONNX file's metadata, if it is there.

        That is JSON under ``diptych.recipe``, or the two keys that the ONNX standard has for images:
        ``Image.BitmapPixelFormat`` (the order of the channels) and ``Image.NominalPixelRange``.
        """
        if METADATA_KEY in metadata:
            try:
                content = json.loads(metadata[METADATA_KEY])
            except ValueError as error:
                raise InputError(
                    f"{METADATA_KEY} in {source} is not JSON ({error}); name a recipe."
                ) from None
            if isinstance(content, str):
                return cls.preset(content)
            if not isinstance(content, dict):
                raise InputError(f"{METADATA_KEY} in {source} is no JSON object; name a recipe.")
            return cls.from_dict(content, f"{METADATA_KEY} in {source}")
        channels = {"Rgb8": "RGB", "Bgr8": "BGR"}.get(metadata.get("Image.BitmapPixelFormat", ""))
        statistics = {
            "NominalRange_0_255": "bytes",
            "Normalized_0_1": "unit",
            "Normalized_1_1": "inception",
        }.get(metadata.get("Image.NominalPixelRange", ""))
        if channels is None or statistics is None:
            return None
        return cls(channels=channels, pooling="mean", **STATISTICS[statistics])

    def to_json(self) -> str:
        """All fields, in a form that ``from_dict`` reads and that never varies; part of fingerprints."""
        return json.dumps(asdict(self), sort_keys=True)


_ONES, _ZEROS = (1.0, 1.0, 1.0), (0.0, 0.0, 0.0)

STATISTICS: dict[str, dict[str, Any]] = {
    # As torchvision and timm train most networks.
    "imagenet": {},
    # As the original Caffe networks were trained, and Keras's first ones.
    "caffe": {"channels": "BGR", "scale": 255.0, "mean": CAFFE_MEAN, "std": _ONES},
    "clip": {
        "mean": (0.48145466, 0.4578275, 0.40821073),
        "std": (0.26862954, 0.26130258, 0.27577711),
    },
    # From -1 to 1: TensorFlow's networks, many vision transformers.
    "inception": {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)},
    # From 0 to 1 and from 0 to 255: networks that normalise by themselves.
    "unit": {"mean": _ZEROS, "std": _ONES},
    "bytes": {"scale": 255.0, "mean": _ZEROS, "std": _ONES},
}
"""What pixels are like when they enter a network: the usual ways, the most usual first."""


def _cropped(statistics: str, side: int) -> Recipe:
    # CLIP's networks see the whole shortest side; others an eighth less, 224 of 256.
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


def full_image(statistics: str) -> str:
    """Name the preset of some ``STATISTICS`` that shows a network the full image."""
    return "resnet-full-image" if statistics == "imagenet" else f"{statistics}-full-image"


PRESETS: dict[str, Recipe] = {
    # The paper's two protocols, for networks trained by torchvision or timm and by Caffe.
    "vgg-ten-crops": Recipe(size=384, max_side=None, crop="ten", mean="crop"),
    "caffe-vgg-ten-crops": Recipe(
        size=384, max_side=None, crop="ten", channels="BGR", scale=255.0, mean="crop", std=_ONES
    ),
    **{full_image(name): Recipe(pooling="mean", **values) for name, values in STATISTICS.items()},
    **{f"{name}-224": _cropped(name, 224) for name in STATISTICS},
}
"""The paper's two protocols, and the usual statistics for the full image and for a central crop."""


def as_recipe(recipe: Recipe | str | Mapping[str, Any]) -> Recipe:
    """A recipe from itself, from the name of a preset, or from plain values."""
    if isinstance(recipe, Recipe):
        return recipe
    return Recipe.preset(recipe) if isinstance(recipe, str) else Recipe.from_dict(recipe)
