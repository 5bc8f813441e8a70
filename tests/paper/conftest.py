"""A reproduction on drawn scenes, quick, computed once."""

import pytest

from diptych.paper import Cache, Options, Reproduction, Setting, gather


@pytest.fixture(scope="session")
def scenes_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("scenes")


@pytest.fixture(scope="session")
def reproduced(scenes_folder):
    """Every experiment, run and written."""
    setting = Setting(
        gather("scenes", quick=True),
        Options.for_dataset("scenes", quick=True),
        Cache(scenes_folder / "cache"),
    )
    found = Reproduction(setting)
    steps = list(found.run())
    assert [step.done for step in steps] == list(range(steps[0].total))
    found.write(scenes_folder, "diptych reproduce scenes --quick")
    return found
