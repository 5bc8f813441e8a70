"""Experiments on real features give what the estimator gives, and chance is chance."""

import numpy as np
import pytest

from diptych import AWCCA, retrieval_scores
from diptych.cca import spectra
from reproduction.data import find_data
from reproduction.experiment import select_and_test
from reproduction.setting import Options, Setting

pytestmark = [pytest.mark.data, pytest.mark.slow]


@pytest.fixture(scope="module")
def setting(real_data):
    return Setting(find_data("flickr8k", real_data), Options.for_dataset("flickr8k", quick=True))


@pytest.fixture
def small(setting):
    """The smallest of each kind of features."""
    return min(setting.data.images, key=lambda source: source.dimension), setting.data.texts[0]


def test_features_vectors_and_images_are_found(setting):
    assert setting.image.name == "ResNet-50"
    assert [source.name for source in setting.data.texts] == ["MiniLM"]
    assert "word2vec" in setting.data.vectors_origin
    assert setting.data.load_image(int(setting.run.test[0])) is not None


def test_views_decomposed_alone_give_the_same_spectra(setting, small):
    result = setting.spectra(*small)
    expected = spectra(*setting.views(*small, setting.train))
    np.testing.assert_allclose(result.s_x, expected.s_x, atol=1e-10 * expected.s_x[0])
    np.testing.assert_allclose(result.s_y, expected.s_y, atol=1e-10 * expected.s_y[0])
    scale = float(np.abs(expected.t0).max())
    np.testing.assert_allclose(np.abs(result.t0), np.abs(expected.t0), atol=1e-10 * scale)


@pytest.mark.parametrize("name", ["guided", "tsvd", "tikhonov"])
def test_rows_of_the_tables_are_what_the_estimator_gives(setting, small, name):
    run = setting.run
    result = select_and_test(setting, *small, run.validation, [run.test], name, "log")[0]
    model = AWCCA(filter=name, grid=("log", setting.options.grid))
    model.fit(*setting.views(*small, setting.train), validation=setting.views(*small, run.validation))
    x, y, pairing = setting.views(*small, run.test)
    for task in ("search", "annotate"):
        expected = retrieval_scores(*model.transform(x, y, task=task), pairing, task=task)
        for key, value in result[task].items():
            # One query of a thousand or of five thousand may be a tie that rounding decides.
            assert abs(value - expected[key]) <= (0.1 if "r@" in key else 1.0)
