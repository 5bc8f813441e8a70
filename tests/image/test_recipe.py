import json
from dataclasses import asdict, replace

import pytest

from diptych import InputError
from diptych.image import PRESETS, Recipe
from diptych.image._preprocessing import as_recipe


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name):
    recipe = Recipe.preset(name)
    assert Recipe.from_dict(json.loads(recipe.to_json())) == recipe


def test_the_json_beside_a_model_is_read(tmp_path):
    (tmp_path / "net.json").write_text('{"preset": "imagenet-224", "output": "pool5", "size": [240, 320]}')
    recipe = Recipe.beside(tmp_path / "net.onnx")
    assert (recipe.size, recipe.output, recipe.crop) == ((240, 320), "pool5", "center")


def test_a_model_without_json_has_no_recipe_beside_it(tmp_path):
    assert Recipe.beside(tmp_path / "net.onnx") is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "caffe",
            "There is no recipe 'caffe'; known are vgg-ten-crops, .* Did you mean caffe-vgg-ten-crops or ",
        ),
        ("imagenet224", "Did you mean imagenet-224?"),
        ("imagenet-0", "There is no recipe 'imagenet-0'"),
        ("imagenet-99999", "There is no recipe"),
        ("", "There is no recipe ''; known are .*bytes-224.$"),
        (3, "There is no recipe 3"),
    ],
)
def test_an_unknown_recipe_is_named_with_those_that_are_known(name, words):
    with pytest.raises(InputError, match=words):
        Recipe.preset(name)


def test_usual_crops_come_in_every_size():
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
def test_a_recipe_is_read_from_the_metadata_of_a_network(metadata, expected):
    assert Recipe.from_metadata(metadata, "net.onnx") == expected


@pytest.mark.parametrize("content", ["[1]", "{", '{"size": 0}', '"caffe"', '{"colour": 1}'])
def test_a_recipe_in_metadata_that_is_wrong_is_refused(content):
    with pytest.raises(InputError):
        Recipe.from_metadata({"diptych.recipe": content}, "net.onnx")


@pytest.mark.parametrize(
    "change",
    [
        {"size": 0},
        {"size": "large"},
        {"size": [1, 2, 3]},
        {"size": 10**9},
        {"size": True},
        {"max_side": -1},
        {"crop": "twelve"},
        {"crop_size": 2.5},
        {"channels": "GBR"},
        {"scale": 0},
        {"scale": "255"},
        {"mean": [1, 2]},
        {"mean": "picture"},
        {"mean": [1, 2, float("nan")]},
        {"std": [1, 0, 1]},
        {"std": None},
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


def test_recipes_come_from_names_values_and_themselves():
    recipe = Recipe.preset("clip-224")
    assert as_recipe("clip-224") is as_recipe(recipe) is recipe
    assert as_recipe(asdict(recipe)) == recipe
