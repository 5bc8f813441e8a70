"""Image encoders by name, and torch modules as encoders."""

import subprocess
import sys

import pytest

from diptych import InputError
from diptych.encoders import PyramidDescriptor, Recipe, TorchEncoder, image_encoder, sentence_encoder
from image_files import make_images


def test_a_torch_module_is_an_encoder(rng):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    module = torch.nn.Conv2d(3, 5, 3)
    encoder, images = TorchEncoder(module, Recipe(pooling="mean")), make_images(rng, (20, 10), (10, 20))
    assert encoder.encode(images).shape == (2, 5)
    assert encoder.fingerprint == TorchEncoder(module, Recipe(pooling="mean")).fingerprint
    assert encoder.fingerprint != TorchEncoder(module, Recipe(pooling="mean", channels="BGR")).fingerprint
    assert encoder.fingerprint != TorchEncoder(torch.nn.Conv2d(3, 5, 3), Recipe(pooling="mean")).fingerprint


def test_a_missing_library_is_named_with_its_install_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(InputError, match="TorchEncoder needs .*install with: pip install"):
        TorchEncoder(None, Recipe())


def test_a_library_that_cannot_be_imported_is_one_sentence(tmp_path, monkeypatch):
    """As one that was built for another torch, or for another CUDA."""
    (tmp_path / "sentence_transformers.py").write_text(
        "try:\n    raise RuntimeError('no operator')\n"
        "except RuntimeError as error:\n    raise ModuleNotFoundError('something else') from error"
    )
    monkeypatch.delitem(sys.modules, "sentence_transformers", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"^sentence_transformers is installed but cannot be imported \("):
        sentence_encoder("all-MiniLM-L6-v2")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("resnet", {}, "'resnet' is not an image encoder; pass an .onnx file"),
        ("pyramid", {"recipe": "clip-224"}, "not an image encoder that takes a recipe"),
        ("absent.onnx", {"recipe": "clip-224"}, "absent.onnx does not exist"),
        ("timm:resnet18", {}, "wrap the network in diptych.encoders.TorchEncoder"),
        (
            "torchvision:vgg19",
            {"recipe": "vgg-ten-crops"},
            "'torchvision:vgg19' cannot be opened by its name",
        ),
    ],
)
def test_what_is_no_name_of_an_encoder_is_refused(source, options, message):
    with pytest.raises(InputError, match=message):
        image_encoder(source, **options)


def test_the_default_image_encoder_needs_no_weights():
    assert isinstance(image_encoder(), PyramidDescriptor)


def test_heavy_libraries_are_imported_only_when_used():
    program = (
        # scikit-learn imports pandas where it is installed, and pandas pyarrow.
        "import sys; import sklearn; theirs = set(sys.modules); import diptych.data, diptych.encoders;"
        "heavy = {'torch', 'onnxruntime', 'onnx', 'fastembed', 'datasets', 'huggingface_hub', 'pyarrow',"
        "'h5py'};"
        "sys.exit(', '.join(heavy & set(sys.modules) - theirs) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
