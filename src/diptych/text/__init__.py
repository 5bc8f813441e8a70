"""Text encoders: tokenisation, word vectors, random Fourier features, HKSE, and sentence encoders."""

from typing import TYPE_CHECKING

from diptych._lazy import export_lazily

if TYPE_CHECKING:
    from diptych.text._encoders import SentenceEncoder, sentence_encoder
    from diptych.text._hkse import HKSE
    from diptych.text._kernels import (
        gaussian_product,
        hkse_dimensions,
        hkse_factor,
        sentence_kernel,
        word_kernel,
    )
    from diptych.text._random_fourier import RandomFourier
    from diptych.text._vector_files import read_word_vectors
    from diptych.text._word_vectors import WordVectors, learn_word_vectors
    from diptych.text._words import Coverage, tokenize

__all__ = [
    "HKSE",
    "Coverage",
    "RandomFourier",
    "SentenceEncoder",
    "WordVectors",
    "gaussian_product",
    "hkse_dimensions",
    "hkse_factor",
    "learn_word_vectors",
    "read_word_vectors",
    "sentence_encoder",
    "sentence_kernel",
    "tokenize",
    "word_kernel",
]

__getattr__, __dir__ = export_lazily(
    __name__,
    {
        "_encoders": ["SentenceEncoder", "sentence_encoder"],
        "_hkse": ["HKSE"],
        "_kernels": ["gaussian_product", "hkse_dimensions", "hkse_factor", "sentence_kernel", "word_kernel"],
        "_random_fourier": ["RandomFourier"],
        "_vector_files": ["read_word_vectors"],
        "_word_vectors": ["WordVectors", "learn_word_vectors"],
        "_words": ["Coverage", "tokenize"],
    },
)
