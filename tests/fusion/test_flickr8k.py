"""The ingredients on real features; the test split is left alone."""

import numpy as np
import pytest

from diptych.fusion import Block, Fusion

CAPTIONS, TRAIN, VALIDATION = 5, 6000, 1000


@pytest.mark.data
@pytest.mark.slow
def test_resnet50_and_minilm(real_data):
    last = TRAIN + VALIDATION
    x = np.load(real_data / "flickr8k" / "resnet50.npy")[:last].astype(np.float32)
    y = np.load(real_data / "flickr8k" / "minilm.npy")[: last * CAPTIONS].astype(np.float32)
    pairing = np.arange(len(y)) // CAPTIONS
    training = x[:TRAIN], y[: TRAIN * CAPTIONS], pairing[: TRAIN * CAPTIONS]
    held = x[TRAIN:], y[TRAIN * CAPTIONS :], pairing[: VALIDATION * CAPTIONS]
    blocks = {"x": Block(("none", "sqrt-unit")), "y": Block("unit")}
    model = Fusion(blocks=blocks, grid=8, refit=False, bank=3000).fit(*training, validation=held)
    assert model.geometry_["x"]["x"].normalize == "sqrt-unit"
    for task, at_least in (("search", 33.5), ("annotate", 45.5)):
        chosen = model.selection_.tasks[task]
        assert chosen.correction.kind == "csls"
        assert chosen.parts[0].best.weighting == "residual"
        # Plain AW-CCA on these features reaches 31 and 44 on validation.
        assert model.score(*held, task=task) > at_least
