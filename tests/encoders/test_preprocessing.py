import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from diptych import InputError
from diptych.encoders import PRESETS, Recipe, UnreadableImage
from diptych.encoders._preprocessing import as_recipe, normalize_pixels, prepare_image, resize_image
from image_files import make_images
from tolerance import assert_close

TEN = Recipe.preset("vgg-ten-crops")


def coordinates(width: int, height: int) -> Image.Image:
    """Make an image whose colours encode the position: red the column, green the row, blue the overflows."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.dstack([x % 256, y % 256, (x // 256) * 16 + y // 256]).astype(np.uint8))


def test_ten_crops_pixel_by_pixel():
    # The shortest side is 384 already, so no resizing hides the geometry.
    width, height, size = 501, 384, 224
    pixels = prepare_image(coordinates(width, height), TEN)
    assert pixels.shape == (10, size, size, 3)
    tops = [0, 0, height - size, height - size, (height - size) // 2]
    lefts = [0, width - size, 0, width - size, (width - size) // 2]
    y, x = np.mgrid[:size, :size]
    for crop, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        for mirrored, cut in ((False, pixels[crop]), (True, pixels[crop + 5])):
            column = left + (size - 1 - x if mirrored else x)
            row = top + y
            np.testing.assert_array_equal(cut[..., 0], column % 256)
            np.testing.assert_array_equal(cut[..., 1], row % 256)
            np.testing.assert_array_equal(cut[..., 2], (column // 256) * 16 + row // 256)


def test_the_shortest_side_is_resized_before_the_ten_crops():
    assert resize_image(Image.new("RGB", (192, 300)), TEN).size == (384, 600)
    assert resize_image(Image.new("RGB", (1000, 500)), TEN).size == (768, 384)
    assert prepare_image(Image.new("RGB", (5, 9)), TEN).shape == (10, 224, 224, 3)


def test_the_mean_of_each_crop_is_subtracted_in_each_channel(rng):
    pixels = rng.integers(0, 256, (10, 20, 30, 3), dtype=np.uint8)
    recipe = Recipe(channels="BGR", scale=255.0, mean="crop", std=(1.0, 1.0, 1.0))
    values = normalize_pixels(pixels, recipe)
    assert values.dtype == np.float32
    for crop in range(10):
        for channel, colour in enumerate((2, 1, 0)):
            plane = [[float(v) for v in row] for row in pixels[crop, :, :, colour]]
            mean = math.fsum(v for row in plane for v in row) / 600
            expected = [[v - mean for v in row] for row in plane]
            np.testing.assert_allclose(values[crop, channel], expected, atol=1e-4)


def test_channel_order_scale_mean_and_std_are_applied():
    red = Image.new("RGB", (4, 3), (200, 100, 50))
    caffe = Recipe.preset("caffe-full-image")
    values = normalize_pixels(prepare_image(red, caffe), caffe)
    assert values.shape == (1, 3, 3, 4)
    np.testing.assert_allclose(values[0, :, 0, 0], [50 - 103.939, 100 - 116.779, 200 - 123.68], rtol=1e-6)
    torch_like = Recipe()
    values = normalize_pixels(prepare_image(red, torch_like), torch_like)
    expected = [(200 / 255 - 0.485) / 0.229, (100 / 255 - 0.456) / 0.224, (50 / 255 - 0.406) / 0.225]
    np.testing.assert_allclose(values[0, :, 0, 0], expected, rtol=1e-5)


def test_center_crop_pixel_by_pixel():
    recipe = Recipe(crop="center", crop_size=3, max_side=None)
    pixels = prepare_image(coordinates(8, 6), recipe)
    assert pixels[0, :, :, 0].tolist() == [[2, 3, 4]] * 3
    # Margins of 5 and 3 pixels: offsets of 2.5 and 1.5 are rounded to even.
    assert pixels[0, :, 0, 1].tolist() == [2, 3, 4]


def test_exact_sizes_and_max_side_are_applied():
    assert resize_image(Image.new("RGB", (100, 50)), Recipe(size=(30, 40))).size == (40, 30)
    assert resize_image(Image.new("RGB", (4000, 1000)), Recipe(max_side=1024)).size == (1024, 256)
    assert resize_image(Image.new("RGB", (5000, 1)), Recipe(max_side=1000)).size == (1000, 1)
    small = Image.new("RGB", (300, 200))
    assert resize_image(small, Recipe.preset("resnet-full-image")) is small


def test_a_resized_image_with_too_many_pixels_is_refused():
    with pytest.raises(UnreadableImage, match="would be resized"):
        prepare_image(Image.new("RGB", (1, 9000)), TEN)


def test_images_smaller_than_their_crops_are_refused():
    with pytest.raises(UnreadableImage, match="too small"):
        prepare_image(Image.new("RGB", (100, 300)), Recipe(crop="center"))


@given(st.integers(1, 700), st.integers(1, 700), st.integers(1, 400))
def test_the_shortest_side_is_exact_and_the_aspect_kept(width, height, size):
    recipe = Recipe(size=size, max_side=None)
    if max(width, height) * size / min(width, height) > 5000:
        return
    w, h = resize_image(Image.new("RGB", (width, height)), recipe).size
    assert min(w, h) == size
    assert 0 <= max(width, height) * size / min(width, height) - max(w, h) < 1


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_equal_after_a_round_trip_through_json(name):
    recipe = Recipe.preset(name)
    assert Recipe.from_dict(json.loads(recipe.to_json())) == recipe


def test_the_recipe_is_read_from_the_json_file_beside_a_network(tmp_path):
    (tmp_path / "net.json").write_text('{"preset": "imagenet-224", "output": "pool5", "size": [240, 320]}')
    recipe = Recipe.beside(tmp_path / "net.onnx")
    assert (recipe.size, recipe.output, recipe.crop) == ((240, 320), "pool5", "center")
    assert Recipe.beside(tmp_path / "other.onnx") is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "caffe",
            "There is no recipe 'caffe'; choose one of vgg-ten-crops, .* Did you mean caffe-vgg-ten-crops or",
        ),
        ("imagenet224", "Did you mean imagenet-224?"),
        ("imagenet-0", "There is no recipe 'imagenet-0'"),
        ("imagenet-99999", "There is no recipe"),
        ("", "There is no recipe ''; choose one of .*bytes-224.$"),
        (3, "There is no recipe 3"),
    ],
)
def test_an_unknown_preset_is_refused_with_the_names_of_all_presets(name, words):
    with pytest.raises(InputError, match=words):
        Recipe.preset(name)


def test_crop_presets_exist_for_every_side():
    recipe = Recipe.preset("imagenet-299")
    assert (recipe.size, recipe.crop_size, recipe.mean) == (342, 299, Recipe().mean)
    assert Recipe.preset("imagenet-224").size == 256
    assert Recipe.preset("clip-336").size == 336


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({}, None),
        ({"author": "someone"}, None),
        ({"diptych.recipe": '"caffe-full-image"'}, Recipe.preset("caffe-full-image")),
        ({"diptych.recipe": '{"preset": "clip-224", "output": "pool"}'},
         replace(Recipe.preset("clip-224"), output="pool")),
        ({"Image.BitmapPixelFormat": "Bgr8", "Image.NominalPixelRange": "NominalRange_0_255"},
         replace(Recipe.preset("bytes-full-image"), channels="BGR")),
        ({"Image.BitmapPixelFormat": "Rgb8", "Image.NominalPixelRange": "Normalized_1_1"},
         Recipe.preset("inception-full-image")),
        ({"Image.BitmapPixelFormat": "Gray8", "Image.NominalPixelRange": "Normalized_1_1"}, None),
    ],
)  # fmt: skip
def test_the_recipe_is_read_from_metadata(metadata, expected):
    assert Recipe.from_metadata(metadata, "net.onnx") == expected


@pytest.mark.parametrize("content", ["[1]", "{", '{"size": 0}', '"caffe"', '{"colour": 1}'])
def test_a_wrong_recipe_in_metadata_is_refused(content):
    with pytest.raises(InputError):
        Recipe.from_metadata({"diptych.recipe": content}, "net.onnx")


@pytest.mark.parametrize(
    "change",
    [
        *({"size": size} for size in (0, "large", [1, 2, 3], 10**9, True)),
        {"max_side": -1},
        {"crop": "twelve"},
        {"crop_size": 2.5},
        {"channels": "GBR"},
        *({"scale": scale} for scale in (0, "255")),
        *({"mean": mean} for mean in ([1, 2], "picture", [1, 2, float("nan")])),
        *({"std": std} for std in ([1, 0, 1], None)),
        {"output": 3},
        {"pooling": "max"},
        {"interpolation": "psychic"},
        {"colour": "blue"},
        {"preset": "none such"},
    ],
)
def test_wrong_fields_are_refused(change):
    with pytest.raises(InputError):
        Recipe.from_dict(change)


def test_as_recipe_accepts_names_dicts_and_recipes():
    recipe = Recipe.preset("clip-224")
    assert as_recipe("clip-224") is as_recipe(recipe) is recipe
    assert as_recipe(asdict(recipe)) == recipe


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_preprocessing_is_that_of_torchvision(interpolation, torchvision, rng):
    """So a network of torchvision or timm gets, by a recipe with its numbers, what it was trained on."""
    usual = torchvision.transforms._presets.ImageClassification(
        crop_size=224, resize_size=256, interpolation=torchvision.transforms.InterpolationMode(interpolation)
    )
    recipe = replace(Recipe.preset("imagenet-224"), interpolation=interpolation)
    sizes = (500, 375), (333, 500), (225, 700), (224, 224), (257, 511), (90, 61), (1201, 803)
    for image in make_images(rng, *sizes):
        ours = normalize_pixels(prepare_image(image, recipe), recipe)[0]
        # The 8-bit pixels are the same, so that three operations on each are all that may be rounded.
        assert_close(ours, usual(image).numpy(), 3)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(1, 300), st.integers(1, 300), st.integers(8, 90), st.integers(0, 20))
def test_sizes_and_offsets_are_those_of_torchvision(torchvision, width, height, crop, margin):
    if max(width, height) > 40 * min(width, height):
        return
    functional = torchvision.transforms.functional
    image = coordinates(width, height)
    recipe = Recipe(size=crop + margin, max_side=None, interpolation="nearest", crop="ten", crop_size=crop)
    crops = prepare_image(image, recipe)
    resized = functional.resize(image, [crop + margin], functional.InterpolationMode.NEAREST)
    for ours, theirs in zip(crops[:5], functional.five_crop(resized, [crop]), strict=True):
        np.testing.assert_array_equal(ours, np.asarray(theirs))
