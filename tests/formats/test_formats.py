"""Models that older versions of the library have saved can still be read, and answer as they did."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from diptych._model_folder import current_version
from diptych._persistence import FORMAT_VERSION, read_json

sys.path.insert(0, str(Path(__file__).parent))

from make_models import FORMATS, KINDS

FOLDERS = [folder for folder in FORMATS.iterdir() if folder.name.isdecimal()]


def compare(answer, expected):
    """Compare plain data; numbers may differ by the rounding of another processor."""
    if isinstance(expected, dict):
        assert answer.keys() == expected.keys()
        for key, value in expected.items():
            compare(answer[key], value)
    elif isinstance(expected, list):
        assert len(answer) == len(expected)
        for one, other in zip(answer, expected, strict=True):
            compare(one, other)
    elif isinstance(expected, float):
        np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)
    else:
        assert answer == expected


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_answers_as_it_did(folder, kind, tmp_path):
    shutil.copytree(folder / kind, tmp_path / kind)
    assert str(read_json(current_version(tmp_path / kind).path / "config.json")["version"]) == folder.name
    compare(KINDS[kind][1](tmp_path / kind), json.loads((folder / f"{kind}.json").read_text("utf-8")))


def test_there_are_models_of_every_format_that_is_read():
    assert [folder.name for folder in FOLDERS] == [str(FORMAT_VERSION)]
