import subprocess
import sys
import types

import numpy as np
import pytest

from diptych import InputError
from diptych.image import (
    PyramidDescriptor,
    Recipe,
    TorchEncoder,
    image_encoder,
    timm_encoder,
    torchvision_encoder,
)
from image_files import make_images


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


def test_torchvision_networks_are_used_without_their_last_layer(torchvision, torch, rng):
    encoder = torchvision_encoder("vgg19")
    assert encoder.dimension == 6
    assert encoder.recipe == Recipe.preset("vgg-ten-crops")
    features = encoder.encode(make_images(rng, (50, 40)))
    assert features.shape == (1, 6)
    # fc7 comes after its rectifier, and dropout does nothing.
    assert features.min() >= 0
    np.testing.assert_array_equal(features, encoder.encode(make_images(np.random.default_rng(0), (50, 40))))
    assert torchvision_encoder("resnet101").recipe.crop == "none"
    with pytest.raises(InputError, match="no network 'vgg99'"):
        torchvision_encoder("vgg99")


def test_weights_are_read_from_safetensors_files(torchvision, torch, tmp_path, rng):
    from safetensors.numpy import save_file

    state = {key: np.ascontiguousarray(v.numpy() * 2) for key, v in small_vgg(torch).state_dict().items()}
    save_file(state, tmp_path / "weights.safetensors")
    other = torchvision_encoder("vgg19", weights=tmp_path / "weights.safetensors")
    own = torchvision_encoder("vgg19")
    assert other.fingerprint != own.fingerprint
    save_file({"wrong": np.zeros(3, np.float32)}, tmp_path / "weights.safetensors")
    with pytest.raises(InputError, match="does not contain the weights"):
        torchvision_encoder("vgg19", weights=tmp_path / "weights.safetensors")


def test_timm_networks_use_the_recipe_of_timm(torch, monkeypatch, rng):
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
    assert encoder.encode(make_images(rng, (50, 40))).shape == (1, 12)
    with pytest.raises(InputError, match="no network"):
        timm_encoder("resnet9000")


@pytest.mark.parametrize(("make", "library"), [(torchvision_encoder, "torchvision"), (timm_encoder, "timm")])
def test_a_missing_library_is_named_with_its_install_command(monkeypatch, make, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=f"pip install {library}"):
        make("resnet101")


def test_a_torch_module_is_an_encoder(torch, rng):
    module = torch.nn.Conv2d(3, 5, 3)
    encoder = TorchEncoder(module, Recipe(pooling="mean"))
    assert encoder.encode(make_images(rng, (20, 10), (10, 20))).shape == (2, 5)
    assert encoder.fingerprint != TorchEncoder(torch.nn.Conv2d(3, 5, 3), Recipe(pooling="mean")).fingerprint


def test_image_encoder_returns_the_encoder_of_a_name(torchvision, tmp_path):
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
