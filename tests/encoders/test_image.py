import os

import numpy as np
import pytest
from PIL import Image

from diptych import InputError
from diptych.encoders import (
    FunctionEncoder,
    ImageEncoder,
    NetworkEncoder,
    PyramidDescriptor,
    Recipe,
    StagedEncoder,
    _networks,
)
from diptych.encoders._image import encode_inputs, prepare_input
from diptych.encoders._networks import pool_output
from diptych.encoders._several import join_encoders, name_blocks, split_encoders
from image_files import make_images

PLAIN = Recipe(mean=(0, 0, 0), std=(1, 1, 1), pooling="mean")


def test_every_encoder_follows_the_protocol():
    function = FunctionEncoder(lambda images: np.ones((len(images), 3)), "ones")
    network = NetworkEncoder(lambda batch: batch, PLAIN, "mean")
    for encoder in (function, network, PyramidDescriptor()):
        assert isinstance(encoder, ImageEncoder)
        assert encoder.encode([Image.new("RGB", (9, 9))]).shape == (1, encoder.dimension)
    assert isinstance(network, StagedEncoder)
    assert not isinstance(function, StagedEncoder)


def test_features_are_in_the_order_of_the_images_whatever_their_shapes(rng, monkeypatch):
    monkeypatch.setattr(_networks, "RUN_PIXELS", 200)
    encoder = NetworkEncoder(lambda batch: batch, PLAIN, "mean")
    images = make_images(rng, (10, 8), (12, 9), (10, 8), (8, 10), (10, 8), (40, 40))
    expected = [np.asarray(image, float).mean(axis=(0, 1)) / 255 for image in images]
    np.testing.assert_allclose(encoder.encode(images), expected, rtol=1e-5)


def test_the_number_of_pixels_in_a_run_is_limited(rng, monkeypatch):
    monkeypatch.setattr(_networks, "RUN_PIXELS", 700)
    shapes = []

    def network(batch):
        shapes.append(batch.shape)
        return batch

    recipe = Recipe(size=20, max_side=None, crop="ten", crop_size=10, pooling="mean")
    NetworkEncoder(network, recipe, "spy", dimension=3).encode(make_images(rng, (30, 20), (20, 30)))
    assert max(n * h * w for n, _, h, w in shapes) <= 700
    assert sum(n for n, *_ in shapes) == 20


def test_features_are_averaged_over_the_ten_crops(rng):
    recipe = Recipe(size=16, max_side=None, crop="ten", crop_size=8, mean="crop", std=(1, 1, 1), scale=255.0)

    def spread(batch):
        return np.abs(batch).mean(axis=(2, 3))

    encoder = NetworkEncoder(spread, recipe, "spread")
    (image,) = make_images(rng, (16, 16))
    pixels = np.asarray(image, float)
    crops = [pixels[y : y + 8, x : x + 8] for y, x in ((0, 0), (0, 8), (8, 0), (8, 8), (4, 4))]
    # A mirror image has the same statistics as its original.
    expected = np.mean([np.abs(c - c.mean(axis=(0, 1))).mean(axis=(0, 1)) for c in crops], axis=0)
    np.testing.assert_allclose(encoder.encode([image])[0], expected, rtol=1e-5)


def test_pooling_of_maps_tokens_and_vectors(rng):
    maps, tokens = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 6, 3))
    np.testing.assert_allclose(pool_output(maps, Recipe(pooling="mean")), maps.mean(axis=(2, 3)), rtol=1e-5)
    np.testing.assert_allclose(pool_output(tokens, Recipe(pooling="mean")), tokens.mean(axis=1), rtol=1e-5)
    np.testing.assert_allclose(pool_output(tokens, Recipe(pooling="first")), tokens[:, 0], rtol=1e-5)
    assert pool_output(maps[:, :, :1, :1], Recipe()).shape == (2, 3)
    with pytest.raises(InputError, match="pooling"):
        pool_output(maps, Recipe())


def test_fingerprints_differ_between_recipes_and_between_networks():
    def fingerprint(name, **change):
        return NetworkEncoder(lambda b: b.mean(axis=(2, 3)), Recipe(**change), name).fingerprint

    assert fingerprint("a") == fingerprint("a")
    variants = ("a", {}), ("b", {}), ("a", {"channels": "BGR"}), ("a", {"max_side": 512})
    assert len({fingerprint(name, **change) for name, change in variants}) == 4


def test_items_that_an_encoder_cannot_take_are_left_out(tmp_path):
    def measure(paths):
        if any(path.endswith("silent.wav") for path in paths):
            raise InputError("there is no sound")
        return np.array([[os.path.getsize(path)] for path in paths], float)

    encoder = FunctionEncoder(measure, "sizes", "paths")
    names = ("one.wav", "silent.wav", "three.wav")
    for name in names:
        (tmp_path / name).write_bytes(bytes(len(name)))
    prepared = [prepare_input(encoder, tmp_path / name, "audio") for name in names]
    features, refused = encode_inputs(encoder, prepared, "audio")
    assert features.tolist() == [[7], [9]]
    assert [*refused] == [1]
    assert "silent.wav: there is no sound" in str(refused[1])
    (tmp_path / "empty.wav").touch()
    for source, message in (
        (tmp_path / "empty.wav", "empty"),
        ("no.wav", "does not exist"),
        (3, "not the name"),
    ):
        assert message in str(prepare_input(encoder, source, "audio"))
    assert "is not a text" in str(prepare_input(FunctionEncoder(len, "texts", "texts"), " ", "molecule"))
    broken = FunctionEncoder(lambda texts: 1 / 0, "broken", "texts")
    with pytest.raises(InputError, match="the molecule encoder failed on CCO .ZeroDivisionError"):
        encode_inputs(broken, [prepare_input(broken, "CCO", "molecule")], "molecule")


def test_several_encoders_are_one(rng):
    pyramid = PyramidDescriptor()
    sizes = FunctionEncoder(lambda images: np.array([image.size for image in images], float), "sizes")
    several, images = join_encoders("image", [pyramid, sizes]), make_images(rng, (30, 20), (20, 30))
    features = several.encode(images)
    assert features.shape == (2, several.dimension) == (2, 632)
    np.testing.assert_array_equal(features[:, :630], pyramid.encode(images))
    np.testing.assert_array_equal(features[:, 630:], [(30, 20), (20, 30)])
    assert several.fingerprint == f"{pyramid.fingerprint} + function:sizes"
    assert (several.inputs, split_encoders(several)) == ("images", [pyramid, sizes])
    assert join_encoders("image", [sizes]) is sizes
    assert (split_encoders(sizes), split_encoders(None)) == ([sizes], [])
    letters = FunctionEncoder(lambda texts: [[len(text)] for text in texts], "letters", "texts")
    with pytest.raises(InputError, match="different inputs .images and texts"):
        join_encoders("image", [sizes, letters])
    assert join_encoders("text", [letters, letters]).encode(["CCO"]).tolist() == [[3, 3]]
    with pytest.raises(InputError, match="encoder 2 of 2 gave an array of shape .1.; expected|for 1 input"):
        join_encoders("text", [letters, FunctionEncoder(lambda texts: [1.0], "flat", "texts")]).encode(["C"])
    with pytest.raises(InputError, match="the 2 encoders gave 1, 1 features; expected 1, 2"):
        join_encoders("text", [letters, letters], [1, 2]).encode(["C"])
    assert name_blocks(["clip", "clip", "hkse"], ["hkse"]) == ["clip", "clip 2", "hkse 2"]


def test_the_descriptor_depends_on_colours_and_positions():
    def cosine(a, b):
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    left, right, blue = (Image.new("RGB", (60, 60), "white") for _ in range(3))
    left.paste((200, 30, 30), (5, 20, 25, 40))
    right.paste((200, 30, 30), (35, 20, 55, 40))
    blue.paste((30, 30, 200), (5, 20, 25, 40))
    a, b, c = PyramidDescriptor().encode([left, right, blue])
    assert cosine(a, b) < 0.99
    assert cosine(a, c) < 0.99
    assert cosine(a, PyramidDescriptor().encode([left.resize((120, 120))])[0]) > 0.99
    assert PyramidDescriptor().encode([]).shape == (0, PyramidDescriptor.dimension)
