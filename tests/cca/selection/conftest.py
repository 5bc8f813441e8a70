import pytest

from diptych.cca import spectra
from generated_pairs import make_pairs


@pytest.fixture
def pairs():
    return make_pairs(0)


@pytest.fixture
def trained(pairs):
    return spectra(*pairs[0]), pairs[1]
