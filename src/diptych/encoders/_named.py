"""Image encoders by name, and torch modules as image encoders."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diptych._checks import InputError, import_package
from diptych.encoders._fastembed import open_fastembed
from diptych.encoders._image import ImageEncoder, PyramidDescriptor
from diptych.encoders._networks import NetworkEncoder, OnnxEncoder
from diptych.encoders._preprocessing import RecipeLike, as_recipe

if TYPE_CHECKING:
    import torch

StrPath: TypeAlias = str | os.PathLike[str]


class TorchEncoder(NetworkEncoder):
    """Encode images with a torch module, on the module's device and without gradients.

    ``module`` maps [n, 3, height, width] to features. ``name`` identifies the architecture and the weights;
    by default it is a digest of the weights. See ``NetworkEncoder`` for the other parameters.

    Examples
    --------
    >>> TorchEncoder(torch.nn.Conv2d(3, 5, 3), Recipe(pooling="mean")).dimension  # doctest: +SKIP
    5
    """

    def __init__(self, module: torch.nn.Module, recipe: RecipeLike, name: str | None = None) -> None:
        torch = import_package("torch", "TorchEncoder needs", "torch")
        module = module.eval()
        parameter = next(iter(module.parameters()), torch.empty(0))

        def run(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            with torch.inference_mode():
                output = module(torch.from_numpy(batch).to(parameter.device, parameter.dtype))
                return output.float().cpu().numpy()  # type: ignore[no-any-return]

        super().__init__(run, as_recipe(recipe), name or _digest(module))


def image_encoder(source: StrPath = "pyramid", recipe: RecipeLike | None = None) -> ImageEncoder:
    """Return the image encoder that ``source`` names.

    Parameters
    ----------
    source
        The path of an ``.onnx`` file, ``"fastembed:NAME"``, ``"fastembed:FOLDER"``, or ``"pyramid"``: the
        descriptor without weights, for generated scenes and quick tests.
    recipe
        For an ONNX file: a ``Recipe``, the name of a preset, or its fields as a dict. None: the JSON file
        beside the network, or its metadata.

    Examples
    --------
    >>> image_encoder("pyramid").dimension
    630
    """
    source = os.fspath(source)
    library, colon, name = source.partition(":")
    if colon and library in ("torchvision", "timm"):
        raise InputError(
            f"{source!r} cannot be opened by its name; wrap the network in diptych.encoders.TorchEncoder, or "
            "export it to an .onnx file."
        )
    if colon and library == "fastembed":
        if recipe is not None:
            raise InputError("fastembed's models have their own preprocessing; leave the recipe out.")
        return open_fastembed("image", name)
    if Path(source).suffix == ".onnx":
        return OnnxEncoder(source, recipe)
    if source == "pyramid" and recipe is None:
        return PyramidDescriptor()
    raise InputError(
        f"{source!r} is not an image encoder{' that takes a recipe' if recipe else ''}; pass an .onnx file, "
        "fastembed:NAME, or pyramid."
    )


def _digest(module: Any) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(value.detach().float().cpu().numpy()).tobytes())
    return digest.hexdigest()[:32]
