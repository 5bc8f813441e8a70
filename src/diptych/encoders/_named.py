"""Image encoders by name: networks of fastembed, torchvision and timm, ONNX files, and the pyramid.

These libraries are imported only when one of their networks is used.
"""

from __future__ import annotations

import hashlib
import math
import os
import pickle
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from diptych._checks import InputError, import_package
from diptych._persistence import read_tensors
from diptych.encoders._fastembed import open_fastembed
from diptych.encoders._image import ImageEncoder, PyramidDescriptor
from diptych.encoders._networks import NetworkEncoder, OnnxEncoder
from diptych.encoders._preprocessing import Recipe, RecipeLike, as_recipe

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
        torch = _import("torch")
        module = module.eval()
        parameter = next(iter(module.parameters()), torch.empty(0))

        def run(batch: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
            with torch.inference_mode():
                output = module(torch.from_numpy(batch).to(parameter.device, parameter.dtype))
                return output.float().cpu().numpy()  # type: ignore[no-any-return]

        super().__init__(run, as_recipe(recipe), name or _digest(module))
        self.label, self.origin = "", dict[str, Any]()


def torchvision_encoder(
    name: str, recipe: RecipeLike | None = None, *, weights: StrPath | None = None, device: str = "cpu"
) -> TorchEncoder:
    """Return an encoder with a classification network of torchvision, without the network's last layer.

    The paper uses ``"vgg19"``, the output of fc7 after its rectifier, averaged over ten crops; and
    ``"resnet101"``, the spatial average over the full image. These are the default recipes of VGG and ResNet;
    other networks are given images as torchvision prepares them for its default weights. ``weights`` is a
    safetensors file with torchvision's names, in which a classifier is ignored; by default, torchvision
    downloads its own weights once.

    Examples
    --------
    >>> torchvision_encoder("resnet101").dimension  # doctest: +SKIP
    2048
    """
    models = _import("torchvision").models
    if name not in models.list_models(module=models):
        raise InputError(
            f"torchvision has no network {name!r} for classification; "
            "torchvision.models.list_models(module=torchvision.models) gives the names."
        )
    default_weights = models.get_model_weights(name).DEFAULT
    module = _remove_last_layer(models.get_model(name, weights=None, **_OPTIONS.get(name, {})))
    if weights is not None:
        _load_weights(module, read_tensors(weights), weights, _HEADS)
    else:
        try:
            # torchvision itself would unpickle the file without weights_only.
            state = default_weights.get_state_dict(check_hash=True, weights_only=True)
        except (OSError, RuntimeError, pickle.UnpicklingError) as error:
            raise _unavailable_weights(f"torchvision:{name}", error) from None
        _load_weights(module, state, default_weights.url, _HEADS)
    fingerprint = f"torchvision:{name}:{_digest(module)}"
    recipe = recipe or _default_recipe(name, default_weights.transforms())
    return _make_encoder(module.to(device), recipe, fingerprint, f"torchvision:{name}", weights)


def timm_encoder(
    name: str, recipe: RecipeLike | None = None, *, weights: StrPath | None = None, device: str = "cpu"
) -> TorchEncoder:
    """Return an encoder with a timm network, without its classifier and with timm's own pooling.

    The default recipe is timm's configuration of the network. ``weights`` is a safetensors file with timm's
    names, in which a classifier is ignored; by default, timm downloads its own weights once.

    Examples
    --------
    >>> timm_encoder("resnet101.a1h_in1k").dimension  # doctest: +SKIP
    2048
    """
    timm = _import("timm")
    if not timm.is_model(name.split(".")[0]):
        raise InputError(f"timm has no network {name!r}; timm.list_models() gives the names.")
    try:
        module = timm.create_model(name, pretrained=weights is None, num_classes=0)
    except (OSError, RuntimeError, ValueError) as error:
        raise _unavailable_weights(f"timm:{name}", error) from None
    if weights is not None:
        classifiers = module.pretrained_cfg.get("classifier") or ()
        names = (classifiers,) if isinstance(classifiers, str) else classifiers
        heads = tuple(name.partition(".")[0] for name in names)
        _load_weights(module, read_tensors(weights), weights, heads)
    if recipe is None:
        recipe = _read_timm_config(name, timm.data.resolve_data_config({}, model=module))
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

# torchvision sets these for its own weights alone, but the input of these networks follows from them.
_INCEPTION = {"transform_input": True, "aux_logits": False, "init_weights": False}
_OPTIONS = {"googlenet": _INCEPTION, "inception_v3": _INCEPTION}

# Names that torchvision gives to the last layers, and to classifiers that only training uses.
_LAST = ("fc", "classifier", "heads", "head")
_HEADS = (*_LAST, "aux1", "aux2", "AuxLogits")


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
    return import_package(library, "this encoder, unlike one in an ONNX file, needs", package=library)


def _unavailable_weights(source: str, error: Exception) -> InputError:
    reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
    return InputError(
        f"{source} could not be opened with the library's own weights ({reason}); give a safetensors file "
        "with --weights (weights= in Python)."
    )


def _load_weights(module: Any, state: Mapping[str, Any], source: StrPath, heads: tuple[str, ...]) -> None:
    """Load tensors or arrays by their names, all that ``module`` has; those of ``heads`` are ignored."""
    torch = _import("torch")
    tensors = {key: torch.tensor(v) if isinstance(v, np.ndarray) else v for key, v in state.items()}
    try:
        missing, unexpected = module.load_state_dict(tensors, strict=False)
    except RuntimeError as error:  # a tensor of another shape
        reason = str(error).splitlines()[-1].strip().rstrip(".")
    else:
        unexpected = [key for key in unexpected if not key.startswith(tuple(f"{head}." for head in heads))]
        reason = f"it has no {missing[0]}" if missing else f"it has {unexpected[0]}" if unexpected else ""
    if reason:
        raise InputError(f"{source} does not contain the weights of this network ({reason}).")


def _remove_last_layer(module: Any) -> Any:
    nn = _import("torch").nn
    for name in _LAST:
        layer = getattr(module, name, None)
        if isinstance(layer, nn.Sequential):
            # SqueezeNet has a rectifier and an average after its last convolution.
            last = max(i for i, part in enumerate(layer) if any(True for _ in part.parameters()))
            layer[last] = nn.Identity()
            return module
        if layer is not None:
            setattr(module, name, nn.Identity())
            return module
    raise InputError("Cannot tell which layer of this network is the last; wrap the network in TorchEncoder.")


def _default_recipe(name: str, transforms: Any) -> Recipe:
    """Return the paper's recipe of a VGG or a ResNet, or that of torchvision's ``ImageClassification``."""
    if name.startswith("vgg"):
        return Recipe.preset("vgg-ten-crops")
    if "resne" in name:
        return replace(Recipe.preset("resnet-full-image"), pooling="none")
    return Recipe(
        size=transforms.resize_size[0],
        max_side=None,
        interpolation=transforms.interpolation.value,
        crop="center",
        crop_size=transforms.crop_size[0],
        mean=tuple(transforms.mean),
        std=tuple(transforms.std),
    )


def _read_timm_config(name: str, config: Mapping[str, Any]) -> Recipe:
    """Return the recipe that does what ``timm.data.create_transform`` does with this configuration."""
    _, height, width = config["input_size"]
    size = tuple(math.floor(side / config["crop_pct"]) for side in (height, width))
    squash = config["crop_mode"] == "squash"
    whole = squash and size == (height, width)
    if not whole and (config["crop_mode"] not in ("center", "squash") or height != width or size[0] < height):
        raise InputError(
            f"timm prepares images for {name} as no recipe does (crop mode {config['crop_mode']}, crop_pct "
            f"{config['crop_pct']}, input of {height} × {width} pixels); pass "
            "another recipe with --recipe (recipe= in Python)."
        )
    return Recipe(
        size=size if squash else size[0],
        max_side=None,
        interpolation=config["interpolation"],
        crop="none" if whole else "center",
        crop_size=height,
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
    )


def _digest(module: Any) -> str:
    digest = hashlib.sha256()
    for key, value in sorted(module.state_dict().items()):
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(value.detach().float().cpu().numpy()).tobytes())
    return digest.hexdigest()[:32]
