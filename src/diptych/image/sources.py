"""An encoder by what a user would type: a file, a name, or nothing at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diptych.checks import InputError
from diptych.image.descriptor import PyramidDescriptor
from diptych.image.encoder import ImageEncoder
from diptych.image.named import timm_encoder, torchvision_encoder
from diptych.image.onnx import OnnxEncoder
from diptych.image.recipe import Recipe

_LIBRARIES = {"torchvision": torchvision_encoder, "timm": timm_encoder}


def image_encoder(
    source: str | os.PathLike[str] = "pyramid",
    recipe: Recipe | str | Mapping[str, Any] | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
) -> ImageEncoder:
    """The encoder that ``source`` names.

    Parameters
    ----------
    source
        The path of an ``.onnx`` file; ``"torchvision:NAME"`` or ``"timm:NAME"``; ``"pyramid"``, the
        descriptor without weights, for generated scenes and smoke tests.
    recipe
        What a network expects: a ``Recipe``, the name of a preset or plain values; None: the JSON file
        beside an ONNX model, or the usual one of a named network.
    weights
        A safetensors file with the weights of a named network; None: the library's own.

    Examples
    --------
    >>> image_encoder("pyramid").dimension
    630
    """
    source = os.fspath(source)
    library, colon, name = source.partition(":")
    if colon and library in _LIBRARIES:
        return _LIBRARIES[library](name, recipe, weights=weights)
    if weights is not None:
        raise InputError(f"weights go with a named network, and {source!r} is none; leave them out.")
    if Path(source).suffix == ".onnx":
        return OnnxEncoder(source, recipe)
    if source == "pyramid" and recipe is None:
        return PyramidDescriptor()
    raise InputError(
        f"{source!r} names no image encoder{' that takes a recipe' if recipe else ''}; give an .onnx file, "
        "torchvision:NAME, timm:NAME, or pyramid."
    )
