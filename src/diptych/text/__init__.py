"""Sentences as vectors: words, word vectors, random Fourier features, HKSE, sentence encoders."""

from diptych.text.bags import Coverage
from diptych.text.encoders import SentenceEncoder, sentence_encoder
from diptych.text.fourier import RandomFourier
from diptych.text.hkse import HKSE
from diptych.text.kernels import (
    gaussian_product,
    hkse_dimensions,
    hkse_factor,
    sentence_kernel,
    word_kernel,
)
from diptych.text.learned import learn_word_vectors
from diptych.text.reading import read_word_vectors
from diptych.text.tokens import tokenize
from diptych.text.vectors import WordVectors

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
