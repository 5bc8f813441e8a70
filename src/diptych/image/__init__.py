"""Image encoders: decoding, preprocessing, and networks that turn images into features."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.image._decoding import UnreadableImage, open_image
    from diptych.image._encoders import (
        FunctionEncoder,
        ImageEncoder,
        NetworkEncoder,
        PyramidDescriptor,
        StagedEncoder,
    )
    from diptych.image._named import TorchEncoder, image_encoder, timm_encoder, torchvision_encoder
    from diptych.image._onnx import OnnxEncoder
    from diptych.image._preprocessing import PRESETS, Recipe

__all__ = [
    "PRESETS",
    "FunctionEncoder",
    "ImageEncoder",
    "NetworkEncoder",
    "OnnxEncoder",
    "PyramidDescriptor",
    "Recipe",
    "StagedEncoder",
    "TorchEncoder",
    "UnreadableImage",
    "image_encoder",
    "open_image",
    "timm_encoder",
    "torchvision_encoder",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_decoding": ["UnreadableImage", "open_image"],
        "_encoders": [
            "FunctionEncoder",
            "ImageEncoder",
            "NetworkEncoder",
            "PyramidDescriptor",
            "StagedEncoder",
        ],
        "_named": ["TorchEncoder", "image_encoder", "timm_encoder", "torchvision_encoder"],
        "_onnx": ["OnnxEncoder"],
        "_preprocessing": ["PRESETS", "Recipe"],
    },
)
