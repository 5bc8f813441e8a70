"""Recommended encoders: which to name for which need, and the default where fastembed is installed.

What fastembed says of its models (dimension, size, licence) is repeated here, because the list must be there
before it is installed; ``tests/retrieval/test_recommended.py`` compares the two.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from diptych.retrieval._items import View

PACKAGES = ("fastembed", "onnxruntime", "sentence-transformers", "timm", "torchvision")
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
