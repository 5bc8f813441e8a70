"""Pictures as vectors: decoding, crops, and encoders of any make behind one protocol."""

from diptych.image.decoding import UnreadableImage, open_image
from diptych.image.descriptor import PyramidDescriptor
from diptych.image.encoder import FunctionEncoder, ImageEncoder, NetworkEncoder, StagedEncoder
from diptych.image.named import TorchEncoder, timm_encoder, torchvision_encoder
from diptych.image.onnx import OnnxEncoder
from diptych.image.recipe import PRESETS, Recipe
from diptych.image.sources import image_encoder

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
