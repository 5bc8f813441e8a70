"""Recommended encoders: which to name for which need, and the default where fastembed is installed.

What fastembed says of its models (dimension, size, licence) is repeated here, because the list must be there
before it is installed; ``tests/retrieval/test_recommended.py`` compares the two.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from diptych._checks import DataWarning, InputError, missing_package_error
from diptych.retrieval._items import VIEWS, View

if TYPE_CHECKING:
    from diptych.retrieval._encoders import Encoders

PACKAGES = ("fastembed", "onnxruntime", "sentence-transformers")
"""Packages that bring encoders, or run them."""


@dataclass(frozen=True)
class Recommendation:
    """An encoder of a view: what it is good for, the name to give, and what it costs.

    ``gigabytes`` are to be downloaded. ``licence`` is that of the weights.
    """

    view: View
    need: str
    name: str
    dimension: int
    gigabytes: float = 0.0
    licence: str = ""


RECOMMENDED = (
    Recommendation("image", "default", "fastembed:Qdrant/clip-ViT-B-32-vision", 512, 0.34, "MIT"),
    Recommendation("image", "small", "fastembed:Qdrant/resnet50-onnx", 2048, 0.1, "Apache-2.0"),
    Recommendation("image", "accurate", "fastembed:google/siglip2-base-patch16-224", 768, 0.37, "Apache-2.0"),
    Recommendation("image", "no weights: drawings, trials", "pyramid", 630),
    Recommendation("text", "default", "fastembed:Qdrant/clip-ViT-B-32-text", 512, 0.25, "MIT"),
    Recommendation(
        "text", "small", "fastembed:sentence-transformers/all-MiniLM-L6-v2", 384, 0.09, "Apache-2.0"
    ),
    Recommendation("text", "accurate", "fastembed:google/siglip2-base-patch16-224", 768, 1.13, "Apache-2.0"),
    Recommendation(
        "text",
        "multilingual",
        "fastembed:sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        384,
        0.22,
        "Apache-2.0",
    ),
    Recommendation("text", "no weights: learned from the captions", "hkse", 2000),
)
"""The first of a view is its default. CLIP's two towers, and SigLIP 2's, belong together."""

FIELDS = {
    "medical": (
        "BiomedCLIP, microsoft/BiomedCLIP-PubMedBERT_256-vit_base_patch16_224 on Hugging Face, MIT; its card "
        "says: for research"
    ),
    "satellite": "SkyCLIP, checkpoints at github.com/wangzhecheng/SkyScript, MIT",
}
"""Encoders for special images, which fastembed does not have: export them to ONNX, or call them yourself."""


def installed_packages() -> dict[str, str | None]:
    """Return the version of each of ``PACKAGES``; None for one that is not installed."""
    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return versions


def default_encoder(view: View) -> Recommendation | None:
    """Return the encoder of a view that none was named for; None where fastembed is not installed."""
    if find_spec("fastembed") is None:
        return None
    return next(encoder for encoder in RECOMMENDED if encoder.view == view)


def open_defaults(
    views: Sequence[View], random_state: int | None = 0, *, fuses: bool = False
) -> dict[View, Any]:
    """Return an encoder for each view that none was named for, and name it in a ``DataWarning``.

    Where fastembed is installed these are the recommended encoders, which it downloads once. Otherwise they
    are ``pyramid`` and an ``HKSE`` that is not fitted yet.
    """
    from diptych.encoders._hkse import HKSE
    from diptych.encoders._named import image_encoder
    from diptych.encoders._text import sentence_encoder
    from diptych.retrieval._encoders import ARGUMENTS

    openers: dict[View, tuple[Callable[[str], Any], str]] = {
        "image": (image_encoder, "pyramid"),
        "text": (sentence_encoder, "hkse"),
    }
    recommended = {view: chosen for view in views if (chosen := default_encoder(view)) is not None}
    if recommended:
        advice = "diptych encoders lists others"
        if len(recommended) == len(VIEWS) and not fuses:
            advice += '; with fewer than about a thousand pairs, preset="best" is better, because it can use '
            advice += "the similarity of the two as they are"
        _warn(f"encoders chosen by default: {_describe(recommended.values())}; {advice}.")
    encoders: dict[View, Any] = {}
    for view in views:
        if view in recommended:
            open_encoder, plain = openers[view]
            try:
                encoders[view] = open_encoder(recommended[view].name)
            except InputError as error:
                reason, named = str(error).rstrip("."), f'{ARGUMENTS[view]}="{plain}"'
                raise InputError(f"{reason}; or give {named}, which needs no weights.") from None
        elif view == "image":
            _warn(
                "no image encoder was named, so pyramid is used, which knows only colours and shapes; photos "
                "need a network: pip install fastembed, or name one with --image-encoder network.onnx "
                "(image_encoder= in Python)."
            )
            encoders[view] = image_encoder("pyramid")
        else:
            _warn(
                "no text encoder was named, so hkse is fitted on the captions; diptych encoders lists others."
            )
            encoders[view] = HKSE(random_state=random_state)
    return encoders


def open_towers(image_encoder: Any, text_encoder: Any) -> Encoders:
    """Return a dual encoder, which searches without any pairs: its towers, or ``"auto"`` for CLIP."""
    auto = [isinstance(encoder, str) and encoder == "auto" for encoder in (image_encoder, text_encoder)]
    if any(auto) and not all(auto):
        raise InputError("one encoder was named; name both towers of a dual encoder, or none for CLIP.")
    if all(auto):
        chosen = [encoder for view in VIEWS if (encoder := default_encoder(view)) is not None]
        if not chosen:
            missing = missing_package_error("photos without captions are searched with CLIP, by", "encoders")
            raise InputError(
                f"{missing}; or name both towers of a dual encoder with --image-encoder and --text-encoder."
            )
        _warn(f"encoders chosen by default: {_describe(chosen)}; diptych encoders lists others.")
        image_encoder, text_encoder = (encoder.name for encoder in chosen)
    from diptych.retrieval._encoders import Encoders

    return Encoders(image_encoder, text_encoder)


def find_towers(encoders: Encoders) -> int:
    """Return the number of features of a dual encoder, whose cosine compares images with texts as it is."""
    from diptych.encoders._image import make_example

    names, advice = encoders.views, "name the two towers of a dual encoder such as CLIP (diptych encoders)"
    if encoders.image is None or encoders.text is None:
        raise InputError(f"{names.image} and {names.text} encoder are needed both; {advice}.")
    widths = [
        int(features.shape[1])
        for features in (encoders.encode_images([make_example()]), encoders.encode_texts(["a photo"]))
    ]
    if widths[0] != widths[1]:
        raise InputError(
            f"the {names.image} encoder gives {widths[0]} features and the {names.text} encoder {widths[1]}, "
            f"so they cannot be compared as they are; {advice}."
        )
    return widths[0]


def _describe(encoders: Iterable[Recommendation]) -> str:
    named = (f"{e.name} for {e.view}s ({e.licence}, {e.gigabytes:g} GB)" for e in encoders)
    return f"{' and '.join(named)}, downloaded once"


def _warn(message: str) -> None:
    warnings.warn(message, DataWarning, stacklevel=5)
