import os
import sys
from contextlib import suppress

import numpy as np
import pytest

from diptych import InputError
from diptych.data import read_pairs
from diptych.encoders import OnnxEncoder, _networks, open_image
from diptych.encoders._networks import _TENSORS_IN, list_network_files
from diptych.retrieval._encoders import EncoderRecord
from example_files import network_with_weights
from image_files import make_images

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
onnx = pytest.importorskip("onnx", reason="onnx writes the small models of these tests")
helper, TensorProto = onnx.helper, onnx.TensorProto


def onnx_model(path, *, layout="NCHW", batch="n", kind="float32", side=None):
    element = {
        "float32": TensorProto.FLOAT,
        "float16": TensorProto.FLOAT16,
        "int32": TensorProto.INT32,
    }[kind]
    height, width = (side, side) if side else ("h", "w")
    shape = [batch, 3, height, width] if layout == "NCHW" else [batch, height, width, 3]
    axes = [2, 3] if layout == "NCHW" else [1, 2]
    nodes = [
        helper.make_node("ReduceMax", ["pixels"], ["largest"], axes=axes, keepdims=0),
        helper.make_node("Relu", ["pixels"], ["map"]),
    ]
    outputs = [
        helper.make_tensor_value_info("largest", element, [batch, 3]),
        helper.make_tensor_value_info("map", element, shape),
    ]
    inputs = [helper.make_tensor_value_info("pixels", element, shape)]
    graph = helper.make_graph(nodes, "small", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("batch", ["n", 1])
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_networks_of_every_layout_are_run(tmp_path, rng, layout, batch, kind):
    path = onnx_model(tmp_path / "small.onnx", layout=layout, batch=batch, kind=kind)
    encoder = OnnxEncoder(path, {"mean": [0, 0, 0], "std": [1, 1, 1]})
    images = make_images(rng, (10, 8), (10, 8), (7, 7))
    expected = [np.asarray(image).max(axis=(0, 1)) / 255 for image in images]
    assert encoder.dimension == 3
    np.testing.assert_allclose(encoder.encode(images), expected, atol=1e-3)


def test_the_output_is_chosen_by_the_recipe_in_the_json_file(tmp_path, rng):
    path = onnx_model(tmp_path / "small.onnx")
    (tmp_path / "small.json").write_text(
        '{"output": "map", "pooling": "mean", "mean": [0,0,0], "std": [1,1,1]}'
    )
    (image,) = make_images(rng, (10, 8))
    np.testing.assert_allclose(
        OnnxEncoder(path).encode([image])[0], np.asarray(image).mean(axis=(0, 1)) / 255, rtol=1e-5
    )
    assert OnnxEncoder(path).dimension == 3
    with pytest.raises(InputError, match="no output 'fc7'; it has largest, map"):
        OnnxEncoder(path, {"output": "fc7"})


def test_a_wrong_input_size_is_explained(tmp_path, rng):
    path = onnx_model(tmp_path / "small.onnx", side=8)
    encoder = OnnxEncoder(path, {"size": [8, 8]})
    assert encoder.encode(make_images(rng, (10, 9), (30, 20))).shape == (2, 3)
    with pytest.raises(InputError, match=r"refused \[1, 3, 9, 10\].*size and crop"):
        OnnxEncoder(path, {"size": [9, 10]}).encode(make_images(rng, (10, 9)))
    # A full image is brought to the one size that the network takes.
    assert OnnxEncoder(path, {}).encode(make_images(rng, (10, 9))).shape == (1, 3)


def test_weights_in_another_file_are_part_of_the_fingerprint(tmp_path, rng):
    for place in ("weights.bin", "small.onnx.data", "inside/weights"):
        path = network_with_weights(tmp_path / "small.onnx", place)
        first, images = OnnxEncoder(path, {}), make_images(rng, (10, 9))
        features, weights = first.encode(images), path.parent / place
        weights.write_bytes(weights.read_bytes()[::-1])
        second = OnnxEncoder(path, {})
        assert not np.allclose(second.encode(images), features)
        assert second.fingerprint != first.fingerprint
        record = EncoderRecord.of(first)
        with pytest.raises(InputError, match="small.onnx has changed"):
            record.reopen("image")
        weights.unlink()
        with pytest.raises(InputError, match=rf"{weights.name} does not exist, and small\.onnx has weights"):
            record.reopen("image")
        os.mkfifo(weights)
        with pytest.raises(InputError, match=f"{weights.name} does not exist"):
            OnnxEncoder(path, {})
        weights.unlink()


def test_other_files_beside_a_network_are_not_part_of_its_fingerprint(tmp_path):
    path = onnx_model(tmp_path / "small.onnx")
    fingerprint = OnnxEncoder(path, {}).fingerprint
    for name in ("small.onnx.bak", "small.onnx.data", "small.onnx.license.txt", "other.bin"):
        (tmp_path / name).write_bytes(b"weights")
    assert OnnxEncoder(path, {}).fingerprint == fingerprint


@pytest.mark.parametrize("elsewhere", ["initializer", "constant", "subgraph"])
def test_weights_are_found_where_onnx_finds_them(tmp_path, elsewhere):
    path = network_with_weights(tmp_path / "small.onnx", "weights.bin", elsewhere=elsewhere)
    assert list_network_files(path) == [path, tmp_path / "weights.bin"]
    # The numbers of the fields are those of the library, and none that leads to a tensor is left out.
    names = {"model": "ModelProto", "training": "TrainingInfoProto", "sparse": "SparseTensorProto"}
    names |= {"entry": "StringStringEntryProto"}
    kinds = {name: getattr(onnx, names.get(name, f"{name.title()}Proto")) for name in (*_TENSORS_IN, "entry")}
    names = {kind.DESCRIPTOR.full_name: name for name, kind in kinds.items()}
    for name, kind in kinds.items():
        fields = {
            field.number: names[field.message_type.full_name]
            for field in kind.DESCRIPTOR.fields
            if field.message_type is not None and field.message_type.full_name in names
        }
        if name in ("tensor", "entry"):
            assert fields.items() >= _TENSORS_IN.get(name, {}).items()
        else:  # notes, which are entries too, lead to no file
            assert {n: kind for n, kind in fields.items() if kind != "entry"} == _TENSORS_IN[name]


def test_a_damaged_network_is_one_error(tmp_path, rng):
    path = network_with_weights(tmp_path / "small.onnx", "weights.bin")
    whole = path.read_bytes()
    for _ in range(100):
        raw = bytearray(whole)
        for at in rng.integers(len(raw), size=3):
            raw[at] = rng.integers(256)
        path.write_bytes(raw[: rng.integers(len(raw) + 1)])
        with suppress(InputError):
            list_network_files(path)


def test_a_file_that_is_not_an_image_network_is_refused(tmp_path, monkeypatch):
    (tmp_path / "broken.onnx").write_bytes(b"not a model")
    with pytest.raises(InputError, match="could not be loaded"):
        OnnxEncoder(tmp_path / "broken.onnx", "imagenet-224")
    with pytest.raises(InputError, match="does not exist"):
        OnnxEncoder(tmp_path / "nowhere.onnx", "imagenet-224")
    path = onnx_model(tmp_path / "small.onnx", kind="int32")
    with pytest.raises(InputError, match="expected one input of floats"):
        OnnxEncoder(path, "imagenet-224")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InputError, match=r'pip install "onnxruntime>='):
        OnnxEncoder(path, "imagenet-224")


@pytest.mark.slow  # a whole network
@pytest.mark.data
def test_resnet50_agrees_with_another_framework(real_data):
    model = real_data.parent / "models" / "resnet50.onnx"
    if not model.is_file():
        pytest.skip("resnet50.onnx is not beside the data")
    folder = real_data / "flickr8k"
    test = read_pairs(folder / "dataset_flickr8k.json", images=folder / "images").subset("test")
    chosen = np.arange(0, 1000, 32)
    features = OnnxEncoder(model, "caffe-full-image").encode([open_image(test.paths[i]) for i in chosen])
    expected = np.load(folder / "resnet50_thumbs.npy")[chosen].astype(np.float32)
    lengths = np.linalg.norm(features, axis=1) * np.linalg.norm(expected, axis=1)
    assert (np.sum(features * expected, axis=1) / lengths).min() > 0.9999


def test_networks_run_on_cpu_or_cuda_only(tmp_path, monkeypatch):
    """Other providers that an installation brings may compile for minutes, or send images elsewhere."""
    available = [f"{name}ExecutionProvider" for name in ("Tensorrt", "CUDA", "Azure", "CPU")]
    used = []
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: available)
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *args, providers: used.append(providers))
    _networks._session(tmp_path / "network.onnx", None)
    available.remove("CUDAExecutionProvider")
    _networks._session(tmp_path / "network.onnx", None)
    assert used == [["CUDAExecutionProvider", "CPUExecutionProvider"], ["CPUExecutionProvider"]]
