"""scikit-learn's own estimator checks, and the few that cannot apply to a model of two views."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.utils.estimator_checks import parametrize_with_checks

from diptych import AWCCA

NO_FIT_TRANSFORM = "there is no fit_transform: which of the two views it should return is a matter of taste"
NOT_APPLICABLE = {
    "check_transformer_general": NO_FIT_TRANSFORM,
    "check_transformer_data_not_an_array": NO_FIT_TRANSFORM,
    "check_transformer_preserve_dtypes": NO_FIT_TRANSFORM,
    "check_n_features_in_after_fitting": "it passes score(y=...); the second view is a matrix called Y",
    "check_dtype_object": "it wants 'Unknown label type' for words as y; Y is a view, not labels",
}


def not_applicable(estimator):
    return NOT_APPLICABLE


@parametrize_with_checks([AWCCA(params=(1.0, 1.0))], expected_failed_checks=not_applicable)
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_preserved(rng, dtype):
    x, y = rng.normal(size=(30, 4)).astype(dtype), rng.normal(size=(30, 3)).astype(dtype)
    for embedded in AWCCA(params=(1.0, 1.0)).fit(x, y).transform(x, y):
        assert embedded.dtype == dtype


def test_read_only_input_is_not_changed(rng):
    x, y = rng.normal(size=(30, 4)), rng.normal(size=(30, 3))
    x.flags.writeable = y.flags.writeable = False
    AWCCA(params=(1.0, 1.0)).fit(x, y).transform(x, y)


def test_a_view_of_strings_is_refused(rng):
    with pytest.raises(ValueError, match="not numbers"):
        AWCCA(params=(1.0, 1.0)).fit(rng.normal(size=(2, 4)), ["a", "b"])


def test_clone_keeps_the_parameters():
    model = AWCCA(filter="tsvd", params=(3, 2), weighting=(0.5, 0.5))
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert copy.set_params(n_components=2).n_components == 2
