"""Image encoders by name: networks of fastembed, torchvision and timm, ONNX files, and the pyramid.

These libraries are imported only when one of their networks is used.
"""

from __future__ import annotations

import hashlib
import importlib
import os
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diptych._checks import InputError
from diptych._fastembed import open_fastembed
from diptych._persistence import read_tensors
from diptych.image._encoders import DEFAULT_RUN_PIXELS, ImageEncoder, NetworkEncoder, PyramidDescriptor
from diptych.image._onnx import OnnxEncoder
from diptych.image._preprocessing import Recipe, RecipeLike, as_recipe

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

    def __init__(
        self,
        module: torch.nn.Module,
        recipe: RecipeLike,
        name: str | None = None,
        *,
        run_pixels: int = DEFAULT_RUN_PIXELS,
    ) -> None:
        torch = _import("torch")
        module = module.eval()
        parameter = next(iter(module.parameters()), torch.empty(0))

        def run(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            with torch.inference_mode():
                output = module(torch.from_numpy(batch).to(parameter.device, parameter.dtype))
                return output.float().cpu().numpy()  # type: ignore[no-any-return]

        super().__init__(run, as_recipe(recipe), name or _digest(module), run_pixels=run_pixels)
        self.label, self.origin = "", dict[str, Any]()


def torchvision_encoder(
    name: str, recipe: RecipeLike | None = None, *, weights: StrPath | None = None, device: str = "cpu"
) -> TorchEncoder:
    """Return an encoder with a torchvision network, without the network's last layer.

    The paper uses ``"vgg19"``, the output of fc7 after its rectifier, averaged over ten crops; and
    ``"resnet101"``, the spatial average over the full image. These are the default recipes of VGG and ResNet;
    for other networks it is ``"imagenet-224"``. ``weights`` is a safetensors file; by default, torchvision
    downloads its own weights once.

    Examples
    --------
    >>> torchvision_encoder("resnet101").dimension  # doctest: +SKIP
    2048
    """
    models = _import("torchvision").models
    if name not in models.list_models():
        raise InputError(f"torchvision has no network {name!r}; list_models() gives the names.")
    module = models.get_model(name, weights=None if weights is not None else "DEFAULT")
    if weights is not None:
        _load_weights(module, weights)
    module = _remove_last_layer(module).to(device)
    fingerprint = f"torchvision:{name}:{_digest(module)}"
    return _make_encoder(module, recipe or _default_recipe(name), fingerprint, f"torchvision:{name}", weights)


def timm_encoder(
    name: str, recipe: RecipeLike | None = None, *, weights: StrPath | None = None, device: str = "cpu"
) -> TorchEncoder:
    """Return an encoder with a timm network, without its classifier and with timm's own pooling.

    The default recipe is timm's configuration of the network. ``weights`` is a safetensors file; by default,
    timm downloads its own weights once.

    Examples
    --------
    >>> timm_encoder("resnet101.a1h_in1k").dimension  # doctest: +SKIP
    2048
    """
    timm = _import("timm")
    if not timm.is_model(name.split(".")[0]):
        raise InputError(f"timm has no network {name!r}; list_models() gives the names.")
    module = timm.create_model(name, pretrained=weights is None, num_classes=0)
    if weights is not None:
        _load_weights(module, weights)
    if recipe is None:
        recipe = _read_timm_config(timm.data.resolve_data_config({}, model=module))
    fingerprint = f"timm:{name}:{_digest(module)}"
    return _make_encoder(module.to(device), recipe, fingerprint, f"timm:{name}", weights)


def image_encoder(
    source: StrPath = "pyramid",
    recipe: RecipeLike | None = None,
    *,
    weights: StrPath | None = None,
) -> ImageEncoder:
    """Return the image encoder that ``source`` names.

    Parameters
    ----------
    source
        The path of an ``.onnx`` file, ``"fastembed:NAME"``, ``"fastembed:FOLDER"``, ``"torchvision:NAME"``,
        ``"timm:NAME"``, or ``"pyramid"``: the descriptor without weights, for generated scenes and quick
        tests.
    recipe
        Preprocessing: a ``Recipe``, the name of a preset, or its fields as a dict. None: the JSON file
        beside an ONNX model, or the default of a named network. fastembed's models have their own.
    weights
        A safetensors file with the weights of a network of torchvision or timm; None: the library's own.

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
        raise InputError(f"weights= needs torchvision:NAME or timm:NAME, not {source!r}; leave it out.")
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
        "fastembed:NAME, torchvision:NAME, timm:NAME, or pyramid."
    )


_LIBRARIES = {"torchvision": torchvision_encoder, "timm": timm_encoder}


def _make_encoder(
    module: Any,
    recipe: RecipeLike,
    fingerprint: str,
    source: str,
    weights: StrPath | None,
) -> TorchEncoder:
    encoder = TorchEncoder(module, recipe, fingerprint)
    # A saved model stores the origin; ``image_encoder`` makes the same encoder from it.
    encoder.label, encoder.origin = source, {"source": source, "recipe": asdict(encoder.recipe)}
    if weights is not None:
        encoder.origin["weights"] = os.path.abspath(weights)
    return encoder


def _import(library: str) -> Any:
    try:
        return importlib.import_module(library)
    except ImportError:
        raise InputError(
            f"{library} is not installed; install it (pip install {library}), or use an ONNX file."
        ) from None


def _load_weights(module: Any, weights: StrPath) -> None:
    torch = _import("torch")
    state = {key: torch.from_numpy(value.copy()) for key, value in read_tensors(weights).items()}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise InputError(f"{weights} does not contain the weights of this network ({reason}).") from None


def _remove_last_layer(module: Any) -> Any:
    nn = _import("torch").nn
    for name in ("fc", "classifier", "heads", "head"):
        layer = getattr(module, name, None)
        if layer is not None:
            setattr(module, name, layer[:-1] if isinstance(layer, nn.Sequential) else nn.Identity())
            return module
    raise InputError("Cannot tell which layer of this network is the last; wrap the network in TorchEncoder.")


def _default_recipe(name: str) -> Recipe:
    if name.startswith("vgg"):
        return Recipe.preset("vgg-ten-crops")
    if "resne" in name:
        return replace(Recipe.preset("resnet-full-image"), pooling="none")
    return Recipe.preset("imagenet-224")


def _read_timm_config(config: Mapping[str, Any]) -> Recipe:
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
