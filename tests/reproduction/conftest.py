"""A reproduction on drawn scenes, quick, computed once."""

import pytest

from reproduction.data import find_data
from reproduction.runner import Reproduction
from reproduction.setting import Options


@pytest.fixture(scope="session")
def scenes_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scenes")


@pytest.fixture(scope="session")
def reproduced(scenes_folder):
    """Every experiment, run and written."""
    data = find_data("scenes", quick=True)
    reproduction = Reproduction(data, Options.for_dataset("scenes", quick=True), scenes_folder)
    steps = list(reproduction.run())
    assert [step.done for step in steps] == list(range(steps[0].total))
    reproduction.write("python -m reproduction scenes --quick")
    return reproduction
