"""Encoders of texts and images: HKSE, sentence encoders, image decoding and preprocessing, networks."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.encoders._decoding import UnreadableImage, open_image
    from diptych.encoders._hkse import HKSE, RandomFourier
    from diptych.encoders._image import FunctionEncoder, ImageEncoder, PyramidDescriptor, StagedEncoder
    from diptych.encoders._kernels import (
        gaussian_product,
        hkse_dimensions,
        hkse_factor,
        sentence_kernel,
        word_kernel,
    )
    from diptych.encoders._named import TorchEncoder, image_encoder
    from diptych.encoders._networks import NetworkEncoder, OnnxEncoder
    from diptych.encoders._preprocessing import PRESETS, Recipe
    from diptych.encoders._text import SentenceEncoder, sentence_encoder
    from diptych.encoders._vector_files import read_word_vectors
    from diptych.encoders._word_vectors import WordVectors, learn_word_vectors
    from diptych.encoders._words import Coverage, tokenize

__all__ = [
    "HKSE",
    "PRESETS",
    "Coverage",
    "FunctionEncoder",
    "ImageEncoder",
    "NetworkEncoder",
    "OnnxEncoder",
    "PyramidDescriptor",
    "RandomFourier",
    "Recipe",
    "SentenceEncoder",
    "StagedEncoder",
    "TorchEncoder",
    "UnreadableImage",
    "WordVectors",
    "gaussian_product",
    "hkse_dimensions",
    "hkse_factor",
    "image_encoder",
    "learn_word_vectors",
    "open_image",
    "read_word_vectors",
    "sentence_encoder",
    "sentence_kernel",
    "tokenize",
    "word_kernel",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_decoding": ["UnreadableImage", "open_image"],
        "_hkse": ["HKSE", "RandomFourier"],
        "_image": ["FunctionEncoder", "ImageEncoder", "PyramidDescriptor", "StagedEncoder"],
        "_kernels": ["gaussian_product", "hkse_dimensions", "hkse_factor", "sentence_kernel", "word_kernel"],
        "_named": ["TorchEncoder", "image_encoder"],
        "_networks": ["NetworkEncoder", "OnnxEncoder"],
        "_preprocessing": ["PRESETS", "Recipe"],
        "_text": ["SentenceEncoder", "sentence_encoder"],
        "_vector_files": ["read_word_vectors"],
        "_word_vectors": ["WordVectors", "learn_word_vectors"],
        "_words": ["Coverage", "tokenize"],
    },
)
