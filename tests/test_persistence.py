"""Typed configs and the files beside them; ``test_model_folders.py`` tests versions of a folder."""

from typing import Any, TypedDict

import msgspec
import numpy as np
import pytest

from diptych import InputError
from diptych._model_folder import read_model_folder, write_model_folder
from diptych._persistence import (
    Schema,
    convert,
    read_config,
    read_json,
    write_config,
    write_json,
    write_tensors,
)
from saved_files import files_of


class Notes(TypedDict, total=False):
    author: str


class Settings(Schema, frozen=True):
    name: str
    scores: np.ndarray[Any, np.dtype[np.float64]]
    notes: Notes

    def __post_init__(self):
        if not self.name:
            raise InputError("name is empty")


def settings(**changes):
    return Settings(**{"name": "one", "scores": np.array([[0.5, np.nan]]), "notes": {}, **changes})


def test_a_config_and_its_arrays_are_read_as_they_were_written(tmp_path):
    write_model_folder(tmp_path, "thing", settings(), {"a": np.arange(3.0)})
    config, tensors, path = read_model_folder(tmp_path, "thing", Settings)
    assert config.name == "one"
    np.testing.assert_array_equal(config.scores, [[0.5, np.nan]])
    np.testing.assert_array_equal(tensors["a"], [0.0, 1.0, 2.0])
    assert path == files_of(tmp_path) / "model.safetensors"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": 5}, "name: Expected `str`, got `int`"),
        ({"name": ""}, "name is empty"),
        ({"scores": [[0.5], [1.0, 2.0]]}, "scores: .*inhomogeneous"),
        ({"scores": ["0.5"]}, "scores: Expected `float \\| null`, got `str`"),
        ({"scores": 0.5}, "scores: Expected an array, got float"),
        ({"notes": {"author": "a", "colour": "red"}}, "unknown key 'colour'"),
        ({"colour": "red"}, "unknown field `colour`"),
        ({"files": {"a": {"bytes": "1", "sha256": ""}}}, "files.*bytes: Expected `int`, got `str`"),
        ({"library": None}, "library: Expected `str`, got `null`"),
    ],
)
def test_a_wrong_config_is_refused_with_its_file_and_key(tmp_path, changes, message):
    write_config(tmp_path, "thing", settings())
    write_json(tmp_path / "config.json", {**read_json(tmp_path / "config.json"), **changes})
    with pytest.raises(InputError, match=message) as caught:
        read_config(tmp_path, "thing", Settings)
    assert str(tmp_path / "config.json") in str(caught.value)


def test_a_list_that_its_schema_fills_in_is_no_error(tmp_path):
    class Scales(Schema, frozen=True):
        scales: tuple[float, ...] = ()

        def __post_init__(self):
            msgspec.structs.force_setattr(self, "scales", self.scales or (1.0,))

    assert convert({"scales": []}, Scales, tmp_path).scales == (1.0,)


def test_a_config_that_could_not_be_read_again_is_not_written(tmp_path):
    with pytest.raises(InputError, match="name: Expected `str`, got `int`"):
        write_config(tmp_path, "thing", settings(name=np.int64(5)))
    assert not list(tmp_path.iterdir())


def test_a_deferred_file_is_compared_with_its_checksum_when_it_is_read(tmp_path):
    write_tensors(tmp_path / "a.safetensors", {"a": np.arange(3.0)})
    write_config(tmp_path, "thing", settings())
    _, files = read_config(tmp_path, "thing", Settings)
    read, content = files.defer("a.safetensors"), (tmp_path / "a.safetensors").read_bytes()
    (tmp_path / "a.safetensors").unlink()  # as when a newer version replaces this one
    assert read() == content
    missing = files.defer("a.safetensors")
    with pytest.raises(InputError, match=r"a\.safetensors is missing"):
        missing()
    (tmp_path / "a.safetensors").write_bytes(content[:-1] + b"x")
    with pytest.raises(InputError, match="its checksum differs"):
        files.defer("a.safetensors")()
    with pytest.raises(InputError, match="does not list b"):
        files.defer("b")()
