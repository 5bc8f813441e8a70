"""A model with several encoders for each view, served: queries and uploads go through all of them."""

import httpx
import numpy as np
import pytest

from diptych import AWCCA, HKSE, Retriever
from diptych.data import read_pairs
from diptych.scenes import make_scenes
from example_files import write_network
from tolerance import rounding

pytest.importorskip("onnxruntime")

QUERY = "a red star"


@pytest.fixture(scope="module")
def several(tmp_path_factory):
    """A folder with a model of pyramid and a network, and of HKSE and letters from a file of functions."""
    folder = tmp_path_factory.mktemp("several")
    pairs = make_scenes(80, size=48).write(folder / "scenes")
    write_network(folder / "colours.onnx")
    (folder / "letters.py").write_text(
        "import numpy as np\n\n\ndef count(texts):\n"
        "    return np.array([[t.count(letter) for letter in 'abcdefghijklmnop'] for t in texts], float)\n"
    )

    def count(texts):
        return np.array([[text.count(letter) for letter in "abcdefghijklmnop"] for text in texts], float)

    texts = [HKSE(word_features=40, sentence_features=40), count]
    retriever = Retriever(["pyramid", folder / "colours.onnx"], texts, AWCCA(params=(5.0, 5.0))).fit(pairs)
    retriever.save(folder / "model")
    return folder, retriever


def scores_of(answer):
    assert answer.status_code == 200, answer.text
    return {hit["id"]: hit["score"] for hit in answer.json()["results"][0]["hits"]}


def test_uploads_and_queries_go_through_all_of_them(several, make_client):
    folder, retriever = several
    client = make_client(retriever)
    path = next(iter(read_pairs(folder / "scenes").paths))
    tolerance = rounding(np.float32, 700) + 1e-6  # scores are rounded for clients
    with open(path, "rb") as file:
        uploaded = scores_of(client.post("/v1/annotate", files={"image": file}, data={"k": "5"}))
    expected = {hit.id: hit.score for hit in retriever.annotate(path, k=5)}
    assert uploaded == pytest.approx(expected, abs=tolerance)
    found = scores_of(client.post("/v1/search", json={"text": QUERY, "k": 5}))
    assert found == pytest.approx({hit.id: hit.score for hit in retriever.search(QUERY, k=5)}, abs=tolerance)
    features = client.get("/v1/model").json()["features"]
    assert features == {"image": {"pyramid": 630, "colours": 48}, "text": {"hkse": 40, "count": 16}}


def test_the_command_takes_several_encoders(several, start):
    folder, retriever = several
    letters = f"{folder / 'letters.py'}:count"
    url = start(folder / "model", "--text-encoder", "hkse", "--text-encoder", letters).url
    found = httpx.post(f"{url}/v1/search", json={"text": QUERY, "k": 5}).json()["results"][0]["hits"]
    assert [hit["id"] for hit in found] == [hit.id for hit in retriever.search(QUERY, k=5)]
