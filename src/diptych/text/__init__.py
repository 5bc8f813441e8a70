"""Text encoders: tokenisation, word vectors, random Fourier features, HKSE, and sentence encoders."""

from diptych.text._encoders import SentenceEncoder, sentence_encoder
from diptych.text._fourier import RandomFourier
from diptych.text._hkse import HKSE
from diptych.text._kernels import gaussian_product, hkse_dimensions, hkse_factor, sentence_kernel, word_kernel
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
