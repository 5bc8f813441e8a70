"""Small retrievers to test with: on features, and on drawn scenes with both encoders."""

from types import SimpleNamespace

import numpy as np
import pytest

from diptych import AWCCA, HKSE, Retriever
from diptych.data import read_pairs
from diptych.scenes import make_scenes
from tolerance import assert_same_hits, rounding


def make_views(seed=1, n=60, captions=2, m_x=8, m_y=7, hidden=4, noise=0.4):
    """Two noisy views of a hidden cause, and which row of Y belongs to which of X."""
    rng = np.random.default_rng(seed)
    cause, pairing = rng.normal(size=(n, hidden)), np.repeat(np.arange(n), captions)
    x = cause @ rng.normal(size=(hidden, m_x)) + noise * rng.normal(size=(n, m_x))
    y = cause[pairing] @ rng.normal(size=(hidden, m_y)) + noise * rng.normal(size=(n * captions, m_y))
    return x, y, pairing


@pytest.fixture(scope="session")
def views():
    return make_views


def make_retriever(seed=1, shape=None, **options):
    """A retriever on generated features, with what it was made of."""
    x, y, pairing = make_views(seed, **(shape or {}))
    options.setdefault("model", AWCCA(params=(2.0, 3.0)))
    return SimpleNamespace(
        retriever=Retriever.from_features(x, y, pairing, **options), x=x, y=y, pairing=pairing
    )


@pytest.fixture(scope="session")
def make():
    """Makes such retrievers. That every store behaves alike is tested in test_stores and test_contract."""
    return make_retriever


class Thumbnails:
    """An image as 4 × 4 colours: an image encoder that costs nothing."""

    dimension, fingerprint, name = 48, "thumbnails", "thumbnails"

    def encode(self, images):
        rows = [np.asarray(image.convert("RGB").resize((4, 4)), np.float32).ravel() for image in images]
        return np.stack(rows) / 255


@pytest.fixture(scope="session")
def thumbnails():
    return Thumbnails()


@pytest.fixture(scope="session")
def drawn(tmp_path_factory):
    """Pairs of drawings and texts on disk."""
    folder = tmp_path_factory.mktemp("drawn") / "scenes"
    make_scenes(100, size=48).write(folder)
    return read_pairs(folder)


@pytest.fixture(scope="session")
def fitted(drawn, tmp_path_factory):
    """A retriever fitted on drawings, in a folder; tests that change it save a copy."""
    encoder = HKSE(word_features=60, sentence_features=60)
    retriever = Retriever("pyramid", encoder, AWCCA(params=(5.0, 5.0))).fit(drawn)
    retriever.save(tmp_path_factory.mktemp("fitted") / "model")
    return retriever


@pytest.fixture
def pictures(fitted, tmp_path):
    """A copy of that retriever, to change at will."""
    fitted.save(tmp_path / "copied")
    return Retriever.load(tmp_path / "copied")


@pytest.fixture
def same_answers():
    """Asserts that two retrievers give the same answers; they may hold their vectors in other pieces."""
    tolerance = rounding(np.float32, 8)  # cosines of at most eight dimensions

    def asserted(one, other, x, y, k=12):
        for task, queries in (("search", y), ("annotate", x)):
            found, expected = getattr(one, task)(queries, k=k), getattr(other, task)(queries, k=k)
            for hits, its in zip(found, expected, strict=True):
                assert_same_hits(hits, its, tolerance)

    return asserted
