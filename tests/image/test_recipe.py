import json
from dataclasses import asdict

import pytest

from diptych import InputError
from diptych.image import PRESETS, Recipe
from diptych.image.recipe import as_recipe


@pytest.mark.parametrize("name", PRESETS)
def test_presets_survive_json(name):
    recipe = Recipe.preset(name)
    assert Recipe.from_dict(json.loads(recipe.to_json())) == recipe


def test_the_json_beside_a_model_is_read(tmp_path):
    (tmp_path / "net.json").write_text('{"preset": "imagenet-224", "output": "pool5", "size": [240, 320]}')
    recipe = Recipe.beside(tmp_path / "net.onnx")
    assert (recipe.size, recipe.output, recipe.crop) == ((240, 320), "pool5", "center")


def test_a_model_without_json_is_explained(tmp_path):
    with pytest.raises(InputError, match=r"net\.json does not exist.*vgg-ten-crops"):
        Recipe.beside(tmp_path / "net.onnx")


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
