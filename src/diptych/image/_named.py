"""Networks of torchvision and timm by their names; either library is imported only here, only when asked.

An encoder by what a user would type: a file, a name, or nothing at all.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from diptych._checks import InputError
from diptych._persistence import read_tensors
from diptych.image._base import DEFAULT_RUN_PIXELS, ImageEncoder, NetworkEncoder
from diptych.image._onnx import OnnxEncoder
from diptych.image._preprocessing import Recipe, as_recipe
from diptych.image._pyramid import PyramidDescriptor


class TorchEncoder(NetworkEncoder):
    """A torch module, run on its own device without gradients.

    Parameters
    ----------
    module
        Takes [n, 3, height, width], gives features.
    recipe
        What it expects.
    name
        Identifies architecture and weights; None: made from a digest of the weights.
    run_pixels
        At most so many pixels go through the network at once.
    """

    def __init__(
        self,
        module: Any,
        recipe: Recipe | str | Mapping[str, Any],
        name: str | None = None,
        *,
        run_pixels: int = DEFAULT_RUN_PIXELS,
    ) -> None:
        torch = _import("torch")
        module = module.eval()
        first = next(iter(module.parameters()), torch.empty(0))

        def run(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            with torch.inference_mode():
                output = module(torch.from_numpy(batch).to(first.device, first.dtype))
                return output.float().cpu().numpy()  # type: ignore[no-any-return]

        super().__init__(run, as_recipe(recipe), name or _digest(module), run_pixels=run_pixels)
        self.label, self.origin = "", dict[str, Any]()


def torchvision_encoder(
    name: str,
    recipe: Recipe | str | Mapping[str, Any] | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    device: str = "cpu",
) -> TorchEncoder:
    """A torchvision network without its last layer.

    The paper's two are ``torchvision_encoder("vgg19")``, fc7 after its rectifier averaged over ten crops,
    and ``torchvision_encoder("resnet101")``, the spatial average over the full picture.

    Parameters
    ----------
    name
        As torchvision calls it.
    recipe
        What it expects; None: the paper's protocol for VGG and ResNet, else ``"imagenet-224"``.
    weights
        A safetensors file with the weights; None: torchvision's own, which it downloads once.
    device
        Where the network runs.
    """
    models = _import("torchvision").models
    if name not in models.list_models():
        raise InputError(f"torchvision has no network {name!r}; its list_models() gives the names.")
    module = models.get_model(name, weights=None if weights is not None else "DEFAULT")
    if weights is not None:
        _load(module, weights)
    encoder = TorchEncoder(
        _without_last_layer(module).to(device),
        recipe or _usual(name),
        f"torchvision:{name}:{_digest(module)}",
    )
    return _remembering(encoder, f"torchvision:{name}", weights)


def timm_encoder(
    name: str,
    recipe: Recipe | str | Mapping[str, Any] | None = None,
    *,
    weights: str | os.PathLike[str] | None = None,
    device: str = "cpu",
) -> TorchEncoder:
    """A timm network without its classifier, pooled as timm pools it.

    Parameters
    ----------
    name
        As timm calls it, ``"resnet101.a1h_in1k"`` for example.
    recipe
        What it expects; None: what timm states for it.
    weights
        A safetensors file with the weights; None: timm's own, which it downloads once.
    device
        Where the network runs.
    """
    timm = _import("timm")
    if not timm.is_model(name.split(".")[0]):
        raise InputError(f"timm has no network {name!r}; its list_models() gives the names.")
    module = timm.create_model(name, pretrained=weights is None, num_classes=0)
    if weights is not None:
        _load(module, weights)
    if recipe is None:
        recipe = _stated(timm.data.resolve_data_config({}, model=module))
    encoder = TorchEncoder(module.to(device), recipe, f"timm:{name}:{_digest(module)}")
    return _remembering(encoder, f"timm:{name}", weights)


def _remembering(encoder: TorchEncoder, source: str, weights: str | os.PathLike[str] | None) -> TorchEncoder:
    """Note where an encoder comes from, as plain values: what ``image_encoder`` takes."""
    encoder.label = source
    encoder.origin = {"source": source, "recipe": asdict(encoder.recipe)}
    if weights is not None:
        encoder.origin["weights"] = os.path.abspath(weights)
    return encoder


def _import(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise InputError(
            f"{library} is not installed; install it (pip install {library}) or give an ONNX file instead."
        ) from None


def _load(module: Any, weights: str | os.PathLike[str]) -> None:
    torch = _import("torch")
    state = {key: torch.from_numpy(value.copy()) for key, value in read_tensors(weights).items()}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise InputError(f"{weights} does not hold the weights of this network ({first}).") from None


def _without_last_layer(module: Any) -> Any:
    nn = _import("torch").nn
    for last in ("fc", "classifier", "heads", "head"):
        layer = getattr(module, last, None)
        if isinstance(layer, nn.Sequential):
            setattr(module, last, layer[:-1])
            return module
        if layer is not None:
            setattr(module, last, nn.Identity())
            return module
    raise InputError("this network's last layer was not found; wrap the network in TorchEncoder yourself.")


def _usual(name: str) -> Recipe:
    if name.startswith("vgg"):
        return Recipe.preset("vgg-ten-crops")
    if "resne" in name:
        return replace(Recipe.preset("resnet-full-image"), pooling="none")
    return Recipe.preset("imagenet-224")


def _stated(config: Mapping[str, Any]) -> Recipe:
    side = int(config["input_size"][-1])
    return Recipe(
        size=max(side, int(side / config.get("crop_pct", 1.0))),
        max_side=None,
        interpolation=config.get("interpolation", "bicubic"),
        crop="center",
        crop_size=side,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def _digest(module: Any) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(value.detach().float().cpu().numpy()).tobytes())
    return digest.hexdigest()[:32]


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
