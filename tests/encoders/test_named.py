"""Networks of torchvision and timm with random weights, compared with what the libraries compute."""

import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from diptych import InputError
from diptych.encoders import (
    PyramidDescriptor,
    Recipe,
    TorchEncoder,
    image_encoder,
    open_image,
    timm_encoder,
    torchvision_encoder,
)
from diptych.encoders._named import _default_recipe, _read_timm_config, _remove_last_layer
from diptych.encoders._preprocessing import normalize_pixels, prepare_image
from image_files import make_images
from tolerance import assert_close, rounding

SIZES = [(500, 375), (333, 500), (225, 700), (224, 224), (257, 511), (90, 61), (1201, 803)]

NETWORKS = [
    pytest.param("torchvision", "resnet18", 512, marks=pytest.mark.slow),  # a whole network
    ("torchvision", "mobilenet_v3_small", 1024),
    ("torchvision", "squeezenet1_1", 512),
    ("timm", "mobilenetv3_small_050", 1024),
    ("timm", "test_vit", 64),
]

LONGEST_SUMS = 50_000
"""The terms of all sums that follow each other in one of these networks: inputs of units, over the layers."""


@pytest.fixture(scope="session")
def torch(torchvision):
    return pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="session")
def timm(torchvision):
    return pytest.importorskip("timm", reason="timm is not installed")


@pytest.fixture(scope="session")
def make_network(torch, torchvision, timm, tmp_path_factory):
    """Make a whole network with random weights; return it with the safetensors file of its weights."""
    save_file = pytest.importorskip("safetensors.torch").save_file
    folder, networks = tmp_path_factory.mktemp("networks"), {}

    def make(library, name):
        if (library, name) not in networks:
            torch.manual_seed(0)
            network = timm.create_model(name) if library == "timm" else torchvision.models.get_model(name)
            side = network.pretrained_cfg["input_size"][1] if library == "timm" else 224
            # As after training: without the statistics of the activations, these would vanish.
            for layer in network.modules():
                if isinstance(layer, torch.nn.BatchNorm2d):
                    layer.momentum = None
            with torch.no_grad():
                network.train()(torch.randn(2, 3, side, side))
            path = folder / f"{library}-{name}.safetensors"
            save_file(network.state_dict(), path)
            networks[library, name] = network.eval(), path
        return networks[library, name]

    return make


def compute_features(torch, network, last, inputs):
    """Return what the last layer of a network is given."""
    inputs_of_last = []
    handle = last.register_forward_pre_hook(lambda module, args: inputs_of_last.append(args[0]))
    with torch.inference_mode():
        for pixels in inputs:
            network(pixels[None])
    handle.remove()
    return np.concatenate([rows.mean((2, 3)) if rows.ndim == 4 else rows for rows in inputs_of_last])


@pytest.mark.parametrize(("library", "name", "dimension"), NETWORKS)
def test_features_are_those_of_the_library(
    library, name, dimension, make_network, torch, torchvision, timm, rng
):
    network, path = make_network(library, name)
    encoder = image_encoder(f"{library}:{name}", weights=path)
    images = make_images(rng, *SIZES[:4])
    if library == "timm":
        transform = timm.data.create_transform(**timm.data.resolve_data_config({}, model=network))
        last = network.get_classifier()
    else:
        usual = torchvision.models.get_model_weights(name).DEFAULT.transforms()
        weighted = (torch.nn.Linear, torch.nn.Conv2d)
        last = [layer for layer in network.modules() if isinstance(layer, weighted)][-1]
        if name == "resnet18":  # the paper's recipe: the full image
            functional = torchvision.transforms.functional
            transform = lambda image: functional.normalize(functional.to_tensor(image), usual.mean, usual.std)  # noqa: E731
        else:
            transform = usual
    expected = compute_features(torch, network, last, map(transform, images))
    features = encoder.encode(images)
    assert encoder.dimension == dimension
    assert_close(features, expected, LONGEST_SUMS)
    # Features that hardly depend on the image would pass as well.
    assert np.ptp(features, axis=0).max() > 100 * rounding(np.float32, LONGEST_SUMS, features)


def test_weights_without_a_classifier_are_enough_and_others_are_refused(make_network, timm, tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    for library, name, head in (
        ("torchvision", "squeezenet1_1", "classifier."),
        ("timm", "mobilenetv3_small_050", "classifier."),
    ):
        network, path = make_network(library, name)
        source, state = f"{library}:{name}", network.state_dict()
        whole = image_encoder(source, weights=path)
        assert whole.fingerprint != image_encoder(source, "clip-224", weights=path).fingerprint
        other = tmp_path / "other.safetensors"
        safetensors.save_file({key: v for key, v in state.items() if not key.startswith(head)}, other)
        assert image_encoder(source, weights=other).fingerprint == whole.fingerprint
        first = next(iter(state))
        safetensors.save_file({**state, first: state[first] * 2}, other)
        assert image_encoder(source, weights=other).fingerprint != whole.fingerprint
        for change, reason in (
            ({first: state[first][:1].clone()}, f"size mismatch for {first}"),
            ({first: None}, f"it has no {first}"),
            ({"deeper.weight": state[first].clone()}, "it has deeper.weight"),
        ):
            safetensors.save_file({k: v for k, v in {**state, **change}.items() if v is not None}, other)
            with pytest.raises(InputError, match=f"does not contain the weights of this network .*{reason}"):
                image_encoder(source, weights=other)
    path = tmp_path / "weights.safetensors"
    path.write_bytes(pickle.dumps({"features.0.weight": [0.0]}))
    with pytest.raises(InputError, match="damaged or not a safetensors file"):
        image_encoder("torchvision:squeezenet1_1", weights=path)
    with pytest.raises(InputError, match="absent.safetensors"):
        image_encoder("torchvision:squeezenet1_1", weights=tmp_path / "absent.safetensors")


@pytest.mark.parametrize(
    "name",
    [
        *("alexnet", "convnext_tiny", "densenet121", "efficientnet_b0", "googlenet", "inception_v3"),
        *("mnasnet0_5", "mobilenet_v2", "resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t"),
        *("vgg11", "vit_b_16"),
    ],
)
def test_the_last_layer_of_every_kind_of_torchvision_network_is_removed(name, torch, torchvision):
    models = torchvision.models
    with torch.device("meta"):  # shapes alone
        options = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
        network = models.get_model(name, **options).eval()
        last = [m for m in network.modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)][-1]
        side = models.get_model_weights(name).DEFAULT.transforms().crop_size[0]
        features = _remove_last_layer(network)(torch.zeros(2, 3, side, side))
    assert features.shape == (2, last.in_features if hasattr(last, "in_features") else last.in_channels)


def test_recipes_of_torchvision_networks(torchvision):
    def recipe(name):
        return _default_recipe(name, torchvision.models.get_model_weights(name).DEFAULT.transforms())

    # The paper's for the networks it uses.
    assert recipe("vgg19") == Recipe.preset("vgg-ten-crops")
    full = recipe("resnet101")
    assert (full.size, full.crop, full.pooling) == (None, "none", "none")
    swin = recipe("swin_v2_t")
    assert (swin.size, swin.crop_size, swin.interpolation, swin.max_side) == (260, 256, "bicubic", None)
    large = recipe("efficientnet_v2_l")
    assert (large.size, large.crop_size, large.mean, large.std) == (480, 480, (0.5,) * 3, (0.5,) * 3)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "efficientnet_b0", "efficientnet_b1", "inception_v3"])
def test_preprocessing_is_that_of_torchvision(name, torchvision, rng):
    transforms = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    recipe = _default_recipe(name, transforms)
    for image in make_images(rng, *SIZES):
        ours = normalize_pixels(prepare_image(image, recipe), recipe)[0]
        # The 8-bit pixels are the same, so that three operations on each are all that may be rounded.
        assert_close(ours, transforms(image).numpy(), 3)
        if recipe.interpolation == "bilinear":
            # On tensors torchvision resizes with its own code, which may round to the next 8-bit step. A
            # bicubic filter has no such bound: its overshoots along the rows are cut off by Pillow alone.
            tensor = torchvision.transforms.functional.pil_to_tensor(image)
            step = 1 / 255 / min(recipe.std)
            np.testing.assert_allclose(ours, transforms(tensor).numpy(), rtol=0, atol=1.001 * step)


def test_preprocessing_is_that_of_timm(timm, rng):
    images = make_images(rng, *SIZES)
    recipes = set()
    for name in (
        "mobilenetv3_small_050",  # bicubic, 7/8 of the shortest side
        "resnet18.tv_in1k",  # bilinear
        "vit_tiny_patch16_224",  # mean and deviation of one half
        "tf_efficientnetv2_b3.in21k_ft_in1k",  # squashed, and cropped
        "convnext_tiny.in12k_ft_in1k_384",  # squashed
        "vit_base_patch16_sapiens2",  # squashed to a portrait
    ):
        config = timm.data.resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        recipe = _read_timm_config(name, config)
        transform = timm.data.create_transform(**config)
        for image in images:
            assert_close(
                normalize_pixels(prepare_image(image, recipe), recipe)[0], transform(image).numpy(), 3
            )
        recipes.add((recipe.crop, recipe.interpolation, type(recipe.size)))
    assert recipes == {
        *(("center", "bicubic", int), ("center", "bilinear", int), ("center", "bicubic", tuple)),
        *(("none", "bicubic", tuple), ("none", "bilinear", tuple)),
    }


def test_every_configuration_of_timm_is_a_recipe_unless_timm_pads(timm):
    for name in timm.list_pretrained():
        config = timm.data.resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
        if config["crop_mode"] == "border" or config["crop_pct"] > 1:
            with pytest.raises(InputError, match=f"timm prepares images for {name} as no recipe does"):
                _read_timm_config(name, config)
        else:
            recipe = _read_timm_config(name, config)
            sides = recipe.size if recipe.crop == "none" else (recipe.crop_size, recipe.crop_size)
            assert sides == tuple(config["input_size"][1:]), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_size": (3, 224, 192)}, "input of 224 × 192 pixels"),
        ({"interpolation": "random"}, "interpolation='random' is unknown"),
        ({"mean": (0.5,), "std": (0.5,)}, "three channels"),
    ],
)
def test_what_timm_does_and_no_recipe_does_is_refused(change, message, timm):
    config = timm.data.resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg("resnet18").to_dict())
    with pytest.raises(InputError, match=message):
        _read_timm_config("resnet18", {**config, **change})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 300), st.integers(1, 300), st.integers(8, 90), st.integers(0, 20))
def test_sizes_and_offsets_are_those_of_torchvision(torchvision, width, height, crop, margin):
    if max(width, height) > 40 * min(width, height):
        return
    functional = torchvision.transforms.functional
    y, x = np.mgrid[:height, :width]
    image = Image.fromarray(np.dstack([x % 256, y % 256, x // 256]).astype(np.uint8))
    recipe = Recipe(size=crop + margin, max_side=None, interpolation="nearest", crop="ten", crop_size=crop)
    crops = prepare_image(image, recipe)
    resized = functional.resize(image, [crop + margin], functional.InterpolationMode.NEAREST)
    for ours, theirs in zip(crops[:5], functional.five_crop(resized, [crop]), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))


def test_images_of_other_modes_are_converted_as_pillow_does(torchvision, rng, tmp_path):
    (colours,) = make_images(rng, (60, 40))
    for mode, name in (("L", "grey.png"), ("P", "palette.png"), ("1", "bits.png"), ("CMYK", "print.tif")):
        image = colours.convert(mode)
        image.save(tmp_path / name)
        np.testing.assert_array_equal(open_image(tmp_path / name), image.convert("RGB"))
    # Pillow drops transparency and shows what is under it; here it is white.
    Image.new("RGBA", (4, 4), (200, 0, 0, 0)).save(tmp_path / "clear.png")
    assert np.asarray(open_image(tmp_path / "clear.png")).min() == 255


def test_torchvisions_own_weights_are_read_without_unpickling(
    make_network, torch, torchvision, tmp_path, monkeypatch
):
    """torch.hub reads a file in its cache instead of downloading it."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    name, cache = "squeezenet1_1", tmp_path / "hub" / "checkpoints"
    cache.mkdir(parents=True)
    file = cache / os.path.basename(torchvision.models.get_model_weights(name).DEFAULT.url)
    network, path = make_network("torchvision", name)
    torch.save(network.state_dict(), file)
    encoder = torchvision_encoder(name)
    assert encoder.fingerprint == torchvision_encoder(name, weights=path).fingerprint
    assert "weights" not in encoder.origin

    class Program:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"features.0.weight": Program()}, file)
    with pytest.raises(InputError, match="could not be opened with the library's own weights") as caught:
        torchvision_encoder(name)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow  # whole networks
@pytest.mark.parametrize("name", ["googlenet", "inception_v3"])
def test_inception_networks_transform_their_input_as_torchvision_does_for_its_weights(
    name, torch, torchvision, tmp_path, rng
):
    safetensors = pytest.importorskip("safetensors.torch")
    torch.manual_seed(0)
    # With weights, torchvision sets transform_input; the classifiers of the training stay in its files.
    network = torchvision.models.get_model(name, init_weights=False, transform_input=True).eval()
    safetensors.save_file(network.state_dict(), tmp_path / "weights.safetensors")
    encoder = torchvision_encoder(name, weights=tmp_path / "weights.safetensors")
    images = make_images(rng, (350, 320))
    transforms = torchvision.models.get_model_weights(name).DEFAULT.transforms()
    expected = compute_features(torch, network, network.fc, map(transforms, images))
    assert_close(encoder.encode(images), expected, LONGEST_SUMS)


def test_networks_that_do_not_exist_or_have_no_weights_here_are_one_sentence(timm):
    for source, message in (
        ("torchvision:vgg99", "torchvision has no network 'vgg99' for classification"),
        ("torchvision:deeplabv3_resnet50", "no network 'deeplabv3_resnet50' for classification"),
        ("torchvision:quantized_resnet18", "no network"),
        ("timm:resnet9000", "timm has no network 'resnet9000'"),
        ("timm:resnet18.no_such_tag", "timm:resnet18.no_such_tag could not be opened"),
        ("timm:mobilenetv3_small_050", r"own weights \(.*; give a safetensors file with --weights"),
    ):
        with pytest.raises(InputError, match=message) as caught:
            image_encoder(source)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("make", "library"), [(torchvision_encoder, "torchvision"), (timm_encoder, "timm")])
def test_a_missing_library_is_named_with_its_install_command(monkeypatch, make, library):
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(InputError, match=f"ONNX file, needs {library}; install with: pip install {library}"):
        make("resnet101")


def test_a_library_that_cannot_be_imported_is_one_sentence(tmp_path):
    """As a torchvision that was built for another torch, or for another CUDA."""
    failures = {
        "torchvision": "raise RuntimeError('no operator')",
        "timm": "raise OSError('no libcudart.so')",
        "sentence_transformers": (
            "try:\n    raise RuntimeError('no operator')\n"
            "except RuntimeError as error:\n    raise ModuleNotFoundError('something else') from error"
        ),
    }
    for library, failure in failures.items():
        (tmp_path / library).mkdir()
        (tmp_path / library / "__init__.py").write_text(failure)
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import diptych.encoders, diptych.encoders
for make, name in (
    (diptych.encoders.torchvision_encoder, "resnet18"),
    (diptych.encoders.timm_encoder, "resnet18"),
    (diptych.encoders.sentence_encoder, "all-MiniLM-L6-v2"),
):
    try:
        make(name)
    except diptych.InputError as error:
        print(error)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    reasons = ("RuntimeError: no operator", "OSError: no libcudart.so", "RuntimeError: no operator")
    for line, library, reason in zip(shown.splitlines(), failures, reasons, strict=True):
        assert line.startswith(f"{library} is installed but cannot be imported ({reason}); reinstall it")


def test_a_torch_module_is_an_encoder(torch, rng):
    module = torch.nn.Conv2d(3, 5, 3)
    encoder = TorchEncoder(module, Recipe(pooling="mean"))
    assert encoder.encode(make_images(rng, (20, 10), (10, 20))).shape == (2, 5)
    assert encoder.fingerprint != TorchEncoder(torch.nn.Conv2d(3, 5, 3), Recipe(pooling="mean")).fingerprint


def test_image_encoder_returns_the_encoder_of_a_name(tmp_path):
    assert isinstance(image_encoder(), PyramidDescriptor)
    for source, options in (
        ("resnet", {}),
        ("pyramid", {"recipe": "clip-224"}),
        ("pyramid", {"weights": "w.safetensors"}),
        (tmp_path / "absent.onnx", {"recipe": "clip-224"}),
    ):
        with pytest.raises(InputError):
            image_encoder(source, **options)


def test_heavy_libraries_are_imported_only_when_used():
    program = (
        # scikit-learn imports pandas where it is installed, and pandas pyarrow.
        "import sys; import sklearn; theirs = set(sys.modules); import diptych.data, diptych.encoders;"
        "heavy = {'torch', 'torchvision', 'timm', 'onnxruntime', 'onnx', 'fastembed', 'datasets',"
        "'huggingface_hub', 'pyarrow', 'h5py'};"
        "sys.exit(', '.join(heavy & set(sys.modules) - theirs) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
