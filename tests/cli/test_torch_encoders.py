"""Flickr8k photos through a network of timm and captions through MiniLM: fit, save, load, search."""

import csv

import numpy as np
import pytest

from commands import config, run_json
from diptych import AWCCA, Retriever
from diptych._checks import DataWarning
from diptych.data import read_pairs
from diptych.encoders import timm_encoder
from tolerance import assert_same_hits, rounding

NAME, PARAMS = "mobilenetv3_small_050", (3.0, 3.0)


@pytest.mark.data
@pytest.mark.slow
def test_fit_from_the_command_line_is_fit_in_python(minilm, real_data, tmp_path):
    torch = pytest.importorskip("torch")
    timm = pytest.importorskip("timm", reason="timm is not installed")
    save_file = pytest.importorskip("safetensors.torch").save_file
    torch.manual_seed(0)
    network = timm.create_model(NAME)
    with torch.no_grad():
        network.train()(torch.randn(2, 3, 224, 224))
    weights = tmp_path / "network.safetensors"
    save_file(network.state_dict(), weights)
    photos = (real_data / "flickr8k" / "images").resolve()  # a saved model stores where links lead
    pairs = read_pairs(real_data / "flickr8k" / "dataset_flickr8k.json")
    rows = [row for row, name in enumerate(pairs.image_ids) if (photos / name).is_file()][:60]
    table = [
        (pairs.image_ids[row], pairs.captions[at]) for row in rows for at in pairs.caption_rows([row])[:2]
    ]
    with open(tmp_path / "captions.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("image", "caption"), *table])
    arguments = [tmp_path / "captions.csv", "--images", photos, "--out", tmp_path / "model"]
    arguments += ["--image-encoder", f"timm:{NAME}", "--weights", weights, "--text-encoder", minilm]
    info = run_json("fit", *arguments, *config(model={"params": PARAMS}))
    assert info["items"] == {"image": 60, "text": 120}

    saved = Retriever.load(tmp_path / "model")
    assert (saved.encoders.name("image"), saved.encoders.name("text")) == (f"timm:{NAME}", minilm.name)
    pairs = read_pairs(tmp_path / "captions.csv", images=photos)
    encoder = timm_encoder(NAME, weights=weights)
    fitted = Retriever(encoder, str(minilm), AWCCA(params=PARAMS)).fit(pairs)
    # Cosines of features that are sums themselves, layer after layer.
    tolerance, query = rounding(np.float32, 50_000), "a dog runs through the grass"
    assert_same_hits(saved.search(query, k=10), fitted.search(query, k=10), tolerance)
    photo = photos / pairs.image_ids[7]
    assert_same_hits(saved.annotate(photo, k=10), fitted.annotate(photo, k=10), tolerance)
    # Chance finds one in six; the model knows its own pairs.
    with pytest.warns(DataWarning, match="training pairs of this model"):
        assert saved.evaluate(pairs, None)["search"]["r@10"] > 50
