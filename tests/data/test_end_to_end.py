"""Every step from image and caption files to recalls."""

import numpy as np
import pytest

from diptych import AWCCA, retrieval_scores
from diptych.cca._weighting import normalize
from diptych.data import encode_images, encode_texts, join, open_features, read_pairs
from diptych.encoders import HKSE, PyramidDescriptor, sentence_encoder
from diptych.scenes import make_scenes


def recalls(model, x, y, pairing):
    return {
        task: retrieval_scores(*model.transform(x, y, task=task), pairing, task=task)
        for task in ("search", "annotate")
    }


def gammas(x, y, pairing, share):
    """Return a share of the mean squared singular value of each view."""
    return tuple(share * len(pairing) * view.var(axis=0).sum() / view.shape[1] for view in (x, y))


def test_generated_scenes_reach_good_recalls(tmp_path):
    make_scenes(400, size=48).write(tmp_path / "scenes")
    pairs = read_pairs(tmp_path / "scenes")
    hkse = HKSE(word="lin", sentence="lin").fit(pairs.subset("train").captions)
    images = encode_images(pairs, PyramidDescriptor(), tmp_path / "images")
    texts = encode_texts(pairs, sentence_encoder(hkse), tmp_path / "texts")
    views = join(pairs, images, texts)
    x, y, pairing = views.split("train")
    model = AWCCA(params=gammas(x, y, pairing, 0.3)).fit(x, y, pairing)
    scores = recalls(model, *views.split("test"))
    # Guessing among 60 images gives 1.7 % at 1 and 17 % at 10.
    assert scores["search"]["r@10"] > 50
    assert scores["annotate"]["r@10"] > 50
    # The descriptor is simple and must not solve the task.
    assert scores["search"]["r@1"] < 80


@pytest.mark.data
@pytest.mark.slow
def test_flickr8k_with_precomputed_features(real_data):
    folder = real_data / "flickr8k"
    pairs = read_pairs(folder / "dataset_flickr8k.json")
    images = open_features(folder / "resnet50.npy", rows=pairs.n_images)
    texts = open_features(folder / "minilm.npy", rows=pairs.n_captions)
    views = join(pairs, images, texts)

    def prepared(split):
        x, y, pairing = views.split(split)
        x, y = (np.asarray(view, np.float32) for view in (x, y))
        return normalize(x, "sqrt-unit"), normalize(y, "unit"), pairing

    x, y, pairing = prepared("train")
    model = AWCCA(params=gammas(x, y, pairing, 0.5)).fit(x, y, pairing)
    scores = recalls(model, *prepared("test"))
    assert scores["search"]["r@10"] > 68
    assert scores["annotate"]["r@10"] > 74
