"""Flickr8k photos through a network of timm and captions through MiniLM: fit, save, load, search, serve."""

import csv
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from commands import config, run_json
from diptych import AWCCA, Retriever
from diptych._checks import DataWarning
from diptych.data import read_pairs
from diptych.encoders import timm_encoder
from tolerance import assert_same_hits, rounding

pytestmark = [pytest.mark.data, pytest.mark.slow]

NAME, PARAMS = "mobilenetv3_small_050", (3.0, 3.0)
QUERY = "a dog runs through the grass"


@pytest.fixture(scope="module")
def place(minilm, real_data, tmp_path_factory):
    """A folder with both encoders, pairs, and the model that ``diptych fit`` made of them."""
    torch = pytest.importorskip("torch")
    timm = pytest.importorskip("timm", reason="timm is not installed")
    save_file = pytest.importorskip("safetensors.torch").save_file
    folder = tmp_path_factory.mktemp("torch") / "place"
    shutil.copytree(minilm, folder / "minilm")
    torch.manual_seed(0)
    network = timm.create_model(NAME)
    with torch.no_grad():
        network.train()(torch.randn(2, 3, 224, 224))
    save_file(network.state_dict(), folder / "network.safetensors")
    photos = (real_data / "flickr8k" / "images").resolve()  # a saved model stores where links lead
    pairs = read_pairs(real_data / "flickr8k" / "dataset_flickr8k.json")
    with open(folder / "captions.csv", "w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("image", "caption"))
        rows = [row for row, name in enumerate(pairs.image_ids) if (photos / name).is_file()][:60]
        for row in rows:
            for caption in pairs.caption_rows([row])[:2]:
                table.writerow((pairs.image_ids[row], pairs.captions[caption]))
    arguments = [folder / "captions.csv", "--images", photos, "--out", folder / "model"]
    arguments += ["--image-encoder", f"timm:{NAME}", "--weights", folder / "network.safetensors"]
    arguments += ["--text-encoder", folder / "minilm"]
    info = run_json("fit", *arguments, *config(model={"params": PARAMS}))
    return SimpleNamespace(folder=folder, model=folder / "model", photos=photos, info=info)


@pytest.fixture(scope="module")
def tolerance():
    # Cosines of features that are sums themselves, layer after layer.
    return rounding(np.float32, 50_000)


def test_fit_from_the_command_line_is_fit_in_python(place, tolerance):
    assert place.info["items"] == {"image": 60, "text": 120}
    saved = Retriever.load(place.model)
    assert (saved.encoders.name("image"), saved.encoders.name("text")) == (f"timm:{NAME}", "minilm")
    encoder = timm_encoder(NAME, weights=place.folder / "network.safetensors")
    pairs = read_pairs(place.folder / "captions.csv", images=place.photos)
    fitted = Retriever(encoder, str(place.folder / "minilm"), AWCCA(params=PARAMS)).fit(pairs)
    assert_same_hits(saved.search(QUERY, k=10), fitted.search(QUERY, k=10), tolerance)
    photo = place.photos / pairs.image_ids[7]
    assert_same_hits(saved.annotate(photo, k=10), fitted.annotate(photo, k=10), tolerance)
    # Chance finds one in six; the model knows its own pairs.
    with pytest.warns(DataWarning, match="training pairs of this model"):
        assert saved.evaluate(pairs, None)["search"]["r@10"] > 50
