"""Transformers of scikit-learn inside tests, resamples and folds: fitted on the right rows, and no others."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.model_selection import KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from diptych import AWCCA, CCA, PLS, InputError
from diptych.stats import bootstrap, cross_validated_correlations, permutation_test
from engines import InTree

GAMMAS = (5.0, 3.0)
STEPS = make_pipeline(SimpleImputer(), StandardScaler(), PCA(4))
FUNCTIONS = {
    permutation_test: {"n_permutations": 9},
    bootstrap: {"n_resamples": 5},
    cross_validated_correlations: {"cv": 3},
}


@pytest.fixture
def views(rng):
    x, y = rng.normal(size=(60, 6)) * np.arange(1, 7) + 3, rng.normal(size=(60, 5))
    y[:, 0] += x[:, 0]
    x[rng.random(size=x.shape) < 0.05] = np.nan
    return x, y


def test_a_permutation_test_is_one_of_the_transformed_views(views):
    x, y = views
    options = {"n_permutations": 49, "n_components": 2}
    result = permutation_test(GAMMAS, x, y, preprocess=STEPS, **options)
    u, v = STEPS.fit_transform(x), STEPS.fit_transform(y)
    expected = permutation_test(GAMMAS, u, v, **options)
    np.testing.assert_allclose(result.null, expected.null, rtol=1e-9)
    np.testing.assert_allclose(result.correlations, expected.correlations, rtol=1e-9)
    assert result.n_features == (4, 4)
    one = permutation_test(AWCCA(params=GAMMAS).fit(u, y), x, y, preprocess=(STEPS, None), **options)
    np.testing.assert_allclose(one.null, permutation_test(GAMMAS, u, y, **options).null, rtol=1e-9)


def test_rows_of_x_without_pairs_are_not_fitted(views):
    x, y = views
    far = np.concatenate([x, np.full((9, 6), 1e6)])
    for function, options in FUNCTIONS.items():
        pairing, options = np.arange(60), options | {"preprocess": STEPS}
        one, other = (function(GAMMAS, view, y, pairing, **options) for view in (x, far))
        np.testing.assert_allclose(_numbers(one), _numbers(other), rtol=1e-7)


def _numbers(result):
    """Return some numbers of any result."""
    correlations = getattr(result, "correlations", None)
    if correlations is None:
        return result.folds
    return correlations.low if hasattr(correlations, "low") else correlations


def test_transformers_of_a_fold_have_not_seen_what_it_holds_out(views):
    x, y = views
    cv = KFold(4)
    result = cross_validated_correlations(GAMMAS, x, y, preprocess=(STEPS, StandardScaler()), cv=cv)
    for number, (train, test) in enumerate(cv.split(x)):
        steps, scaler = STEPS.fit(x[train]), StandardScaler().fit(y[train])
        model = AWCCA(params=(GAMMAS[0] * 0.75, GAMMAS[1] * 0.75))
        canonical = model.fit(steps.transform(x[train]), scaler.transform(y[train])).models_["search"]
        u = (steps.transform(x[test]) - model.x_mean_) @ canonical.x_weights
        v = (scaler.transform(y[test]) - model.y_mean_) @ canonical.y_weights
        expected = [np.corrcoef(u[:, k], v[:, k])[0, 1] for k in range(4)]
        np.testing.assert_allclose(result.folds[number], expected, atol=1e-9)


def test_data_frames_keep_their_labels_names_and_categories(views):
    x, y = views
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(x, columns=list("abcdef"))
    frame["site"] = np.where(rng.random(60) < 0.5, "north", "south")
    encoder = make_column_transformer(
        (OneHotEncoder(sparse_output=False), ["site"]),
        remainder=SimpleImputer(),
        verbose_feature_names_out=False,
    )
    options = {"preprocess": (encoder, None), "n_resamples": 5}
    named = pd.DataFrame(y, columns=list("uvwxy"))
    result = bootstrap(GAMMAS, frame, named, **options)
    assert result.feature_names_y == [*"uvwxy"]
    model = AWCCA(params=GAMMAS).fit(encoder.set_output(transform="pandas").fit_transform(frame), named)
    moved = bootstrap(model, frame, named[list("yxwvu")], **options)
    np.testing.assert_allclose(moved.y_weights.estimate, result.y_weights.estimate, atol=1e-9)
    assert result.feature_names_x == ["site_north", "site_south", *"abcdef"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shuffled = bootstrap(GAMMAS, frame.sample(frac=1, random_state=1), pd.DataFrame(y), **options)
    np.testing.assert_allclose(shuffled.in_sample, result.in_sample, rtol=1e-9)
    covariates = frame[["a"]].fillna(0.0)
    for function, settings in FUNCTIONS.items():
        settings = settings | {"preprocess": (encoder, None), "covariates": covariates}
        expected = _numbers(function(GAMMAS, frame, pd.DataFrame(y), **settings))
        settings["covariates"] = covariates.sample(frac=1, random_state=2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.testing.assert_allclose(
                _numbers(function(GAMMAS, frame, pd.DataFrame(y), **settings)), expected
            )


class Doubling(TransformerMixin, BaseEstimator):
    """A transformer that cannot name its features."""

    def fit(self, X, y=None):
        self.is_fitted_ = True
        return self

    def transform(self, X):
        return 2 * np.asarray(X)


@pytest.mark.parametrize("transformer", [Doubling(), make_pipeline(StandardScaler(), Doubling())])
def test_a_transformer_without_names_loses_no_pairing(views, transformer):
    x, y = np.nan_to_num(views[0]), views[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = permutation_test(
            (0, 0),
            pd.DataFrame(x).sample(frac=1, random_state=1),
            pd.DataFrame(y),
            preprocess=(transformer, None),
            n_permutations=1,
        )
    np.testing.assert_allclose(
        result.correlations, permutation_test((0, 0), x, y, n_permutations=1).correlations
    )


def test_engines_transform_as_threads_do(views):
    options = {"preprocess": STEPS, "n_resamples": 12, "n_components": 2}
    one, other = (bootstrap(GAMMAS, *views, **options, engine=engine) for engine in (None, InTree()))
    np.testing.assert_allclose(one.x_weights.low, other.x_weights.low, rtol=1e-9)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    ("preprocess", "message"),
    [
        ("standard", "preprocess='standard' is not a transformer; give one of scikit-learn for both views"),
        (StandardScaler, "is not a transformer"),
        ((StandardScaler(),), "is not a transformer"),
        ((None, None), "is not a transformer"),
        ((None, PCA(3)), "X contains NaN"),
        ((StandardScaler(), None), "X contains NaN"),
        ((SelectKBest(), None), "preprocess: SelectKBest could not transform X"),
        (make_pipeline(SimpleImputer(), PCA(50)), "preprocess: Pipeline could not transform X"),
    ],
)
def test_what_cannot_be_fitted_is_refused(views, function, preprocess, message):
    with pytest.raises(InputError, match=message):
        function(GAMMAS, *views, preprocess=preprocess, **FUNCTIONS[function])


def test_scaling_inside_a_resample_differs_from_scaling_beforehand(views):
    x, y = np.nan_to_num(views[0]), views[1]
    inside = bootstrap(GAMMAS, x, y, preprocess=StandardScaler(), n_resamples=30)
    before = bootstrap(
        GAMMAS, StandardScaler().fit_transform(x), StandardScaler().fit_transform(y), n_resamples=30
    )
    np.testing.assert_allclose(inside.in_sample, before.in_sample, rtol=1e-9)
    assert np.max(np.abs(inside.x_weights.low - before.x_weights.low)) > 1e-5
    np.testing.assert_allclose(inside.correlations.low, before.correlations.low, atol=0.05)


def test_a_model_with_scales_of_its_own_takes_no_transformer(views):
    x, y = np.nan_to_num(views[0]), views[1]
    model = CCA(params=GAMMAS).fit(x, y)
    for function, options in FUNCTIONS.items():
        if function is cross_validated_correlations:
            assert function(model, x, y, preprocess=StandardScaler(), **options).in_sample[0] > 0
        else:
            with pytest.raises(InputError, match="give one with scale=False"):
                function(model, x, y, preprocess=StandardScaler(), **options)


def test_covariances_have_no_wilks(views):
    x, y = np.nan_to_num(views[0]), views[1]
    with pytest.raises(InputError, match="a PLS has covariances"):
        permutation_test(PLS().fit(x, y), x, y, statistic="wilks", n_permutations=9)
