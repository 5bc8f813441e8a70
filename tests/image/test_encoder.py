import subprocess
import sys
import types

import numpy as np
import pytest
from PIL import Image

from diptych import InputError
from diptych.data import read_pairs
from diptych.image import (
    FunctionEncoder,
    ImageEncoder,
    NetworkEncoder,
    OnnxEncoder,
    PyramidDescriptor,
    Recipe,
    StagedEncoder,
    TorchEncoder,
    image_encoder,
    open_image,
    timm_encoder,
    torchvision_encoder,
)
from diptych.image import _onnx as onnx
from diptych.image._base import pooled

PLAIN = Recipe(mean=(0, 0, 0), std=(1, 1, 1), pooling="mean")


def pictures(rng, *sizes):
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]


def test_every_encoder_keeps_the_protocol():
    function = FunctionEncoder(lambda images: np.ones((len(images), 3)), "ones")
    network = NetworkEncoder(lambda batch: batch, PLAIN, "mean")
    for encoder in (function, network, PyramidDescriptor()):
        assert isinstance(encoder, ImageEncoder)
        assert encoder.encode([Image.new("RGB", (9, 9))]).shape == (1, encoder.dimension)
    assert isinstance(network, StagedEncoder)
    assert not isinstance(function, StagedEncoder)


def test_pictures_of_several_shapes_keep_their_rows(rng):
    encoder = NetworkEncoder(lambda batch: batch, PLAIN, "mean", run_pixels=200)
    images = pictures(rng, (10, 8), (12, 9), (10, 8), (8, 10), (10, 8), (40, 40))
    expected = [np.asarray(image, float).mean(axis=(0, 1)) / 255 for image in images]
    np.testing.assert_allclose(encoder.encode(images), expected, rtol=1e-5)


def test_no_pass_has_more_pixels_than_asked_for(rng):
    seen = []

    def network(batch):
        seen.append(batch.shape)
        return batch

    recipe = Recipe(size=20, max_side=None, crop="ten", crop_size=10, pooling="mean")
    NetworkEncoder(network, recipe, "spy", dimension=3, run_pixels=700).encode(
        pictures(rng, (30, 20), (20, 30))
    )
    assert max(n * h * w for n, _, h, w in seen) <= 700
    assert sum(n for n, *_ in seen) == 20


def test_the_ten_vectors_are_averaged(rng):
    recipe = Recipe(size=16, max_side=None, crop="ten", crop_size=8, mean="crop", std=(1, 1, 1), scale=255.0)

    def spread(batch):
        return np.abs(batch).mean(axis=(2, 3))

    encoder = NetworkEncoder(spread, recipe, "spread")
    (image,) = pictures(rng, (16, 16))
    pixels = np.asarray(image, float)
    crops = [pixels[y : y + 8, x : x + 8] for y, x in ((0, 0), (0, 8), (8, 0), (8, 8), (4, 4))]
    # A mirror image has the same statistics as its original.
    expected = np.mean([np.abs(c - c.mean(axis=(0, 1))).mean(axis=(0, 1)) for c in crops], axis=0)
    np.testing.assert_allclose(encoder.encode([image])[0], expected, rtol=1e-5)


def test_pooling_of_maps_tokens_and_vectors(rng):
    maps, tokens = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 6, 3))
    np.testing.assert_allclose(pooled(maps, Recipe(pooling="mean")), maps.mean(axis=(2, 3)), rtol=1e-5)
    np.testing.assert_allclose(pooled(tokens, Recipe(pooling="mean")), tokens.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(pooled(tokens, Recipe(pooling="first")), tokens[:, 0], rtol=1e-5)
    assert pooled(maps[:, :, :1, :1], Recipe()).shape == (2, 3)
    with pytest.raises(InputError, match="pooling"):
        pooled(maps, Recipe())


def test_fingerprints_tell_recipes_and_networks_apart():
    def of(name, **change):
        return NetworkEncoder(lambda b: b.mean(axis=(2, 3)), Recipe(**change), name).fingerprint

    assert of("a") == of("a")
    assert len({of("a"), of("b"), of("a", channels="BGR"), of("a", max_side=512)}) == 4


def test_the_descriptor_sees_colours_and_places():
    def cosine(a, b):
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    left, right, other = (Image.new("RGB", (60, 60), "white") for _ in range(3))
    left.paste((200, 30, 30), (5, 20, 25, 40))
    right.paste((200, 30, 30), (35, 20, 55, 40))
    other.paste((30, 30, 200), (5, 20, 25, 40))
    a, b, c = PyramidDescriptor().encode([left, right, other])
    assert cosine(a, b) < 0.99
    assert cosine(a, c) < 0.99
    assert cosine(a, PyramidDescriptor().encode([left.resize((120, 120))])[0]) > 0.99
    assert PyramidDescriptor().encode([]).shape == (0, PyramidDescriptor.dimension)


# ONNX


def onnx_model(path, *, layout="NCHW", batch="n", kind="float32", side=None):
    onnx = pytest.importorskip("onnx", reason="onnx writes the small models of these tests")
    from onnx import TensorProto, helper

    element = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "int32": TensorProto.INT32}[kind]
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
def test_onnx_models_of_every_layout(tmp_path, rng, layout, batch, kind):
    pytest.importorskip("onnxruntime")
    path = onnx_model(tmp_path / "small.onnx", layout=layout, batch=batch, kind=kind)
    encoder = OnnxEncoder(path, {"mean": [0, 0, 0], "std": [1, 1, 1]})
    images = pictures(rng, (10, 8), (10, 8), (7, 7))
    expected = [np.asarray(image).max(axis=(0, 1)) / 255 for image in images]
    assert encoder.dimension == 3
    np.testing.assert_allclose(encoder.encode(images), expected, atol=1e-3)


def test_onnx_outputs_are_chosen_by_name_and_recipes_read_from_json(tmp_path, rng):
    pytest.importorskip("onnxruntime")
    path = onnx_model(tmp_path / "small.onnx")
    (tmp_path / "small.json").write_text(
        '{"output": "map", "pooling": "mean", "mean": [0,0,0], "std": [1,1,1]}'
    )
    (image,) = pictures(rng, (10, 8))
    np.testing.assert_allclose(
        OnnxEncoder(path).encode([image])[0], np.asarray(image).mean(axis=(0, 1)) / 255, rtol=1e-5
    )
    assert OnnxEncoder(path).dimension == 3
    with pytest.raises(InputError, match="no output 'fc7'; it has largest, map"):
        OnnxEncoder(path, {"output": "fc7"})


def test_pictures_that_a_network_refuses_are_explained(tmp_path, rng):
    pytest.importorskip("onnxruntime")
    path = onnx_model(tmp_path / "small.onnx", side=8)
    encoder = OnnxEncoder(path, {"size": [8, 8]})
    assert encoder.encode(pictures(rng, (10, 9), (30, 20))).shape == (2, 3)
    with pytest.raises(InputError, match=r"refused \[1, 3, 9, 10\].*size and crop"):
        OnnxEncoder(path, {"size": [9, 10]}).encode(pictures(rng, (10, 9)))
    # A full image is brought to the one size that the network takes.
    assert OnnxEncoder(path, {}).encode(pictures(rng, (10, 9))).shape == (1, 3)


def test_weights_beside_a_model_are_part_of_its_fingerprint(tmp_path):
    pytest.importorskip("onnxruntime")
    path = onnx_model(tmp_path / "small.onnx")
    before = OnnxEncoder(path, {}).fingerprint
    (tmp_path / "other.json").write_text("{}")
    assert OnnxEncoder(path, {}).fingerprint == before
    (tmp_path / "small.onnx.data").write_bytes(b"weights")
    assert OnnxEncoder(path, {}).fingerprint != before


def test_what_is_no_image_network_is_explained(tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime")
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


@pytest.mark.data
def test_resnet50_gives_the_features_of_another_framework(real_data):
    pytest.importorskip("onnxruntime")
    model = real_data.parent / "models" / "resnet50.onnx"
    if not model.is_file():
        pytest.skip("resnet50.onnx is not beside the data")
    folder = real_data / "flickr8k"
    test = read_pairs(folder / "dataset_flickr8k.json", images=folder / "images").subset("test")
    chosen = np.arange(0, 1000, 32)
    found = OnnxEncoder(model, "caffe-full-image").encode([open_image(test.paths[i]) for i in chosen])
    expected = np.load(folder / "resnet50_thumbs.npy")[chosen].astype(np.float32)
    cosines = (
        np.sum(found * expected, axis=1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    )
    assert cosines.min() > 0.9999


# torchvision and timm, by stand-ins: neither is needed to know that they are used rightly


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def small_vgg(torch):
    nn = torch.nn
    torch.manual_seed(0)
    model = nn.Module()
    model.features = nn.Sequential(nn.Conv2d(3, 4, 3, stride=4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    model.classifier = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(), nn.Linear(6, 10))
    model.forward = lambda x: model.classifier(model.features(x))
    return model


@pytest.fixture
def torchvision(torch, monkeypatch):
    library = types.ModuleType("torchvision")
    library.models = types.SimpleNamespace(
        list_models=lambda: ["vgg19", "resnet101"], get_model=lambda name, weights: small_vgg(torch)
    )
    monkeypatch.setitem(sys.modules, "torchvision", library)
    return library


def test_torchvision_networks_lose_their_last_layer(torchvision, torch, rng):
    encoder = torchvision_encoder("vgg19")
    assert encoder.dimension == 6
    assert encoder.recipe == Recipe.preset("vgg-ten-crops")
    features = encoder.encode(pictures(rng, (50, 40)))
    assert features.shape == (1, 6)
    # fc7 comes after its rectifier, and dropout does nothing.
    assert features.min() >= 0
    np.testing.assert_array_equal(features, encoder.encode(pictures(np.random.default_rng(0), (50, 40))))
    assert torchvision_encoder("resnet101").recipe.crop == "none"
    with pytest.raises(InputError, match="no network 'vgg99'"):
        torchvision_encoder("vgg99")


def test_weights_come_from_safetensors_files(torchvision, torch, tmp_path, rng):
    from safetensors.numpy import save_file

    state = {key: np.ascontiguousarray(v.numpy() * 2) for key, v in small_vgg(torch).state_dict().items()}
    save_file(state, tmp_path / "weights.safetensors")
    given = torchvision_encoder("vgg19", weights=tmp_path / "weights.safetensors")
    own = torchvision_encoder("vgg19")
    assert given.fingerprint != own.fingerprint
    save_file({"wrong": np.zeros(3, np.float32)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="does not hold the weights"):
        torchvision_encoder("vgg19", weights=tmp_path / "weights.safetensors")


def test_timm_networks_use_what_timm_states(torch, monkeypatch, rng):
    library = types.ModuleType("timm")
    library.is_model = lambda name: name == "vit_tiny"
    library.create_model = lambda name, pretrained, num_classes: torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(2), torch.nn.Flatten()
    )
    config = {"input_size": (3, 32, 32), "crop_pct": 0.8, "interpolation": "bicubic"}
    config |= {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}
    library.data = types.SimpleNamespace(resolve_data_config=lambda args, model: config)
    monkeypatch.setitem(sys.modules, "timm", library)
    encoder = timm_encoder("vit_tiny.in1k")
    assert (encoder.recipe.size, encoder.recipe.crop_size, encoder.recipe.mean) == (40, 32, (0.5, 0.5, 0.5))
    assert encoder.encode(pictures(rng, (50, 40))).shape == (1, 12)
    with pytest.raises(InputError, match="no network"):
        timm_encoder("resnet9000")


@pytest.mark.parametrize(("make", "library"), [(torchvision_encoder, "torchvision"), (timm_encoder, "timm")])
def test_an_absent_library_is_explained_in_one_line(monkeypatch, make, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=f"pip install {library}"):
        make("resnet101")


def test_any_torch_module_is_an_encoder(torch, rng):
    module = torch.nn.Conv2d(3, 5, 3)
    encoder = TorchEncoder(module, Recipe(pooling="mean"))
    assert encoder.encode(pictures(rng, (20, 10), (10, 20))).shape == (2, 5)
    assert encoder.fingerprint != TorchEncoder(torch.nn.Conv2d(3, 5, 3), Recipe(pooling="mean")).fingerprint


def test_encoders_by_what_a_user_types(torchvision, tmp_path):
    assert isinstance(image_encoder(), PyramidDescriptor)
    assert image_encoder("torchvision:vgg19").dimension == 6
    for source, options in (
        ("resnet", {}),
        ("pyramid", {"recipe": "clip-224"}),
        ("pyramid", {"weights": "w.safetensors"}),
        (tmp_path / "absent.onnx", {"recipe": "clip-224"}),
        ("torchvision:vgg99", {}),
    ):
        with pytest.raises(InputError):
            image_encoder(source, **options)


def test_heavy_libraries_are_imported_only_when_used():
    program = (
        "import sys; import diptych.data, diptych.image;"
        "heavy = {'torch', 'torchvision', 'timm', 'onnxruntime', 'pyarrow', 'h5py'} & set(sys.modules);"
        "sys.exit(', '.join(heavy) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_networks_run_on_the_cpu_or_cuda_and_on_nothing_else(tmp_path, monkeypatch):
    """Other providers that an installation brings may compile for minutes, or send images elsewhere."""
    onnxruntime = pytest.importorskip("onnxruntime")
    there = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "AzureExecutionProvider"]
    there.append("CPUExecutionProvider")
    asked = []
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: there)
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *args, providers: asked.append(providers))
    onnx._session(tmp_path / "network.onnx", None)
    there.remove("CUDAExecutionProvider")
    onnx._session(tmp_path / "network.onnx", None)
    assert asked == [["CUDAExecutionProvider", "CPUExecutionProvider"], ["CPUExecutionProvider"]]
