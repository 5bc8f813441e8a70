"""Texts for the tests: a few generated ones, and Flickr8k's captions."""

import json

import numpy as np
import pytest

from diptych.encoders import WordVectors
from hkse_models import small

WORDS = ["dog", "cat", "tree", "runs", "sleeps", "jumps", "black", "white", "snow", "grass", "the", "in"]


@pytest.fixture(scope="session")
def table():
    """Return random vectors of a dozen words."""
    return WordVectors(WORDS, np.random.default_rng(1).normal(size=(len(WORDS), 7)).astype(np.float32))


@pytest.fixture(scope="session")
def captions():
    """Return 200 texts of those words, with 1 to 9 words each."""
    rng = np.random.default_rng(2)
    return [" ".join(rng.choice(WORDS, size=rng.integers(1, 10))) for _ in range(200)]


@pytest.fixture(scope="session")
def training(captions):
    """Return the captions without two of the words."""
    return [caption for caption in captions if "snow" not in caption and "grass" not in caption]


@pytest.fixture(scope="session")
def hkse(table, captions):
    """Return a small HKSE that is fitted on all captions; tests leave it as it is."""
    return small(table).fit(captions)


@pytest.fixture(scope="session")
def flickr_captions(real_data):
    """Return all 40,000 captions of Flickr8k, five for each image, training images first."""
    content = json.loads((real_data / "flickr8k" / "dataset_flickr8k.json").read_text("utf-8"))
    return [sentence["raw"] for image in content["images"] for sentence in image["sentences"]]


@pytest.fixture(scope="session")
def news_vectors(real_data):
    """Return the path of the real word vectors, in word2vec's binary format."""
    return real_data / "word2vec-googlenews-26k.bin"
