"""What a network expects of a picture, and where among its outputs the features are."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from diptych.checks import InputError, check_choice
from diptych.storage import read_json

Crop: TypeAlias = Literal["none", "center", "ten"]
Pooling: TypeAlias = Literal["none", "mean", "first"]

CROPS: tuple[Crop, ...] = ("none", "center", "ten")
POOLINGS: tuple[Pooling, ...] = ("none", "mean", "first")
CHANNELS = ("RGB", "BGR")
INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
LARGEST_SIDE = 16_384

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
        Name of the network's output; None: its first.
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
        """The recipe called ``name``; see ``PRESETS``."""
        return PRESETS[check_choice(name, tuple(PRESETS), "preset")]

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
    def beside(cls, model: str | os.PathLike[str]) -> Recipe:
        """Read the recipe from the JSON file beside a model: ``resnet.json`` for ``resnet.onnx``."""
        path = Path(model).with_suffix(".json")
        if not path.is_file():
            raise InputError(
                f"{path} does not exist, so what {Path(model).name} expects is unknown; write that file or "
                f"name a preset: {', '.join(PRESETS)}."
            )
        return cls.from_dict(read_json(path), str(path))

    def to_json(self) -> str:
        """All fields, in a form that ``from_dict`` reads and that never varies; part of fingerprints."""
        return json.dumps(asdict(self), sort_keys=True)


PRESETS: dict[str, Recipe] = {
    # The paper's two protocols; mean and scale as torchvision and timm train their networks ...
    "vgg-ten-crops": Recipe(size=384, max_side=None, crop="ten", mean="crop"),
    "resnet-full-image": Recipe(pooling="mean"),
    # ... and as the original Caffe networks were trained.
    "caffe-vgg-ten-crops": Recipe(
        size=384, max_side=None, crop="ten", channels="BGR", scale=255.0, mean="crop", std=(1.0, 1.0, 1.0)
    ),
    "caffe-full-image": Recipe(channels="BGR", scale=255.0, mean=CAFFE_MEAN, std=(1.0, 1.0, 1.0)),
    "imagenet-224": Recipe(size=256, max_side=None, interpolation="bilinear", crop="center"),
    "clip-224": Recipe(
        size=224,
        max_side=None,
        crop="center",
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
    ),
}
"""The paper's two protocols (for torch and for Caffe weights), and the usual ones."""


def as_recipe(recipe: Recipe | str | Mapping[str, Any]) -> Recipe:
    """A recipe from itself, from the name of a preset, or from plain values."""
    if isinstance(recipe, Recipe):
        return recipe
    return Recipe.preset(recipe) if isinstance(recipe, str) else Recipe.from_dict(recipe)
