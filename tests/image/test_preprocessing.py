import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from diptych.image import Recipe, UnreadableImage
from diptych.image._preprocessing import network_input, prepare, resized

TEN = Recipe.preset("vgg-ten-crops")


def coordinates(width: int, height: int) -> Image.Image:
    """Every pixel tells where it is: red its column, green its row, blue both overflows."""
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.dstack([x % 256, y % 256, (x // 256) * 16 + y // 256]).astype(np.uint8))


def test_ten_crops_pixel_by_pixel():
    # The shortest side is 384 already, so no resizing hides the geometry.
    width, height, size = 501, 384, 224
    pixels = prepare(coordinates(width, height), TEN)
    assert pixels.shape == (10, size, size, 3)
    tops = [0, 0, height - size, height - size, (height - size) // 2]
    lefts = [0, width - size, 0, width - size, (width - size) // 2]
    y, x = np.mgrid[:size, :size]
    for crop, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        for mirrored, shown in ((False, pixels[crop]), (True, pixels[crop + 5])):
            column = left + (size - 1 - x if mirrored else x)
            row = top + y
            np.testing.assert_array_equal(shown[..., 0], column % 256)
            np.testing.assert_array_equal(shown[..., 1], row % 256)
            np.testing.assert_array_equal(shown[..., 2], (column // 256) * 16 + row // 256)


def test_ten_crops_of_a_tall_picture_are_resized_by_the_shortest_side():
    assert resized(Image.new("RGB", (192, 300)), TEN).size == (384, 600)
    assert resized(Image.new("RGB", (1000, 500)), TEN).size == (768, 384)
    assert prepare(Image.new("RGB", (5, 9)), TEN).shape == (10, 224, 224, 3)


def test_the_mean_of_each_crop_is_subtracted_in_each_channel(rng):
    pixels = rng.integers(0, 256, (10, 20, 30, 3), dtype=np.uint8)
    recipe = Recipe(channels="BGR", scale=255.0, mean="crop", std=(1.0, 1.0, 1.0))
    values = network_input(pixels, recipe)
    assert values.dtype == np.float32
    for crop in range(10):
        for channel, colour in enumerate((2, 1, 0)):
            plane = [[float(v) for v in row] for row in pixels[crop, :, :, colour]]
            mean = math.fsum(v for row in plane for v in row) / 600
            expected = [[v - mean for v in row] for row in plane]
            np.testing.assert_allclose(values[crop, channel], expected, atol=1e-4)


def test_network_input_against_an_independent_computation(rng):
    torch = pytest.importorskip("torch", reason="the second computation is torch's")
    picture = Image.fromarray(rng.integers(0, 256, (317, 419, 3), dtype=np.uint8))
    recipe = Recipe.preset("imagenet-224")
    ours = network_input(prepare(picture, recipe), recipe)
    tensor = torch.tensor(np.asarray(picture)).permute(2, 0, 1)[None].double()
    # torch's antialiased bilinear filter is the same mathematics in floating point; Pillow goes along the
    # rows first, rounds to 8 bits, then along the columns.
    for size in ((317, 338), (256, 338)):
        tensor = torch.nn.functional.interpolate(tensor, size, mode="bilinear", antialias=True)
        tensor = torch.floor(tensor + 0.5)
    crop = tensor[:, :, 16:240, 57:281] / 255
    mean, std = (torch.tensor(v).double()[:, None, None] for v in (recipe.mean, recipe.std))
    off = np.abs(ours - ((crop - mean) / std).numpy())
    # Pillow's weights are fixed-point: a value half-way between two 8-bit steps (of 1 / 255 / 0.224) may
    # be rounded either way, which among noise happens to one in four hundred.
    assert off.max() < 0.0176
    assert np.mean(off > 1e-5) < 0.005


def test_channel_order_scale_mean_and_std_by_hand():
    red = Image.new("RGB", (4, 3), (200, 100, 50))
    caffe = Recipe.preset("caffe-full-image")
    values = network_input(prepare(red, caffe), caffe)
    assert values.shape == (1, 3, 3, 4)
    np.testing.assert_allclose(values[0, :, 0, 0], [50 - 103.939, 100 - 116.779, 200 - 123.68], rtol=1e-6)
    torch_like = Recipe()
    values = network_input(prepare(red, torch_like), torch_like)
    expected = [(200 / 255 - 0.485) / 0.229, (100 / 255 - 0.456) / 0.224, (50 / 255 - 0.406) / 0.225]
    np.testing.assert_allclose(values[0, :, 0, 0], expected, rtol=1e-5)


def test_center_crop_pixel_by_pixel():
    recipe = Recipe(crop="center", crop_size=3, max_side=None)
    pixels = prepare(coordinates(8, 6), recipe)
    assert pixels[0, :, :, 0].tolist() == [[2, 3, 4]] * 3
    assert pixels[0, :, 0, 1].tolist() == [1, 2, 3]


def test_exact_sizes_and_longest_sides():
    assert resized(Image.new("RGB", (100, 50)), Recipe(size=(30, 40))).size == (40, 30)
    assert resized(Image.new("RGB", (4000, 1000)), Recipe(max_side=1024)).size == (1024, 256)
    assert resized(Image.new("RGB", (5000, 1)), Recipe(max_side=1000)).size == (1000, 1)
    small = Image.new("RGB", (300, 200))
    assert resized(small, Recipe.preset("resnet-full-image")) is small


def test_a_strip_that_would_explode_is_unreadable():
    with pytest.raises(UnreadableImage, match="would be resized"):
        prepare(Image.new("RGB", (1, 9000)), TEN)


def test_pictures_smaller_than_their_crops_are_unreadable():
    with pytest.raises(UnreadableImage, match="too small"):
        prepare(Image.new("RGB", (100, 300)), Recipe(crop="center"))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.integers(1, 700), st.integers(1, 400))
def test_the_shortest_side_is_exact_and_the_aspect_kept(width, height, size):
    recipe = Recipe(size=size, max_side=None)
    if max(width, height) * size / min(width, height) > 5000:
        return
    w, h = resized(Image.new("RGB", (width, height)), recipe).size
    assert min(w, h) == size
    assert abs(max(w, h) - max(width, height) * size / min(width, height)) <= 0.5
