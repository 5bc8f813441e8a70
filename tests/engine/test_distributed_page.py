"""What the page on clusters shows works as it stands there."""

import re
from pathlib import Path

import numpy as np
import pytest

from diptych import AWCCA
from diptych.data import scenes
from diptych.image import Recipe

distributed = pytest.importorskip("distributed", reason="Dask is not installed")
PAGE = Path(__file__).parent.parent.parent / "docs" / "distributed.md"

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with what the examples expect to find."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    (tmp_path / "features").mkdir()
    for part in range(4):
        x = rng.normal(size=(30, 8))
        np.save(f"features/x-{part}.npy", x.astype(np.float16))
        noise = 0.3 * rng.normal(size=(150, 6))
        np.save(f"features/y-{part}.npy", (np.repeat(x[:, :6], 5, axis=0) + noise).astype(np.float16))
    drawn = scenes(30, size=64)
    (tmp_path / "photos").mkdir()
    lines = ["image,caption"]
    for row, picture in enumerate(drawn.pictures):
        name = drawn.dataset.image_ids[row]
        picture.save(tmp_path / "photos" / name)
        lines += [f'{name},"{drawn.dataset.captions[j]}"' for j in drawn.dataset.caption_rows([row])]
    (tmp_path / "captions.csv").write_text("\n".join(lines) + "\n")
    return tmp_path


def blocks():
    return re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


def test_the_local_cluster(place):
    names = {"__name__": "__main__"}
    exec(blocks()[0], names)
    loaded = AWCCA.load("model")
    assert loaded.models_["search"].correlations[0] > 0.5
    assert len(names["training"]) == 3


def test_the_encoders_in_front(place, network):
    names = {}
    exec(blocks()[1], names)
    assert len(names["blocks"]) == 2
    assert names["model"].spectra_.count == 150
    assert (len(names["model"].x_mean_), len(names["model"].y_mean_)) == (48, 200)


@pytest.fixture
def network(place):
    """A network that averages the colours of sixteen tiles, and the recipe beside it."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    kernel = {"kernel_shape": [16, 16], "strides": [16, 16]}
    tile = onnx.helper.make_node("AveragePool", ["pixels"], ["tiles"], **kernel)
    flat = onnx.helper.make_node("Flatten", ["tiles"], ["features"])
    shapes = [("pixels", ["n", 3, 64, 64]), ("features", ["n", 48])]
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)] for name, shape in shapes
    )
    graph = onnx.helper.make_graph([tile, flat], "colours", inputs, outputs)
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), place / "resnet50.onnx")
    (place / "resnet50.json").write_text(Recipe(size=(64, 64), mean=(0, 0, 0), std=(1, 1, 1)).to_json())


def test_a_cluster_elsewhere(place):
    # Its worker is two threads of this process, which the engine reaches by TCP like any other.
    kind = {"processes": False, "protocol": "tcp", "dashboard_address": ":0"}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, **kind) as cluster:
        names = {}
        exec(blocks()[2].replace("tcp://scheduler:8786", cluster.scheduler_address), names)
    assert names["model"].models_["search"].correlations[0] > 0.5
