"""scikit-learn's own estimator checks, and what its users do: data frames, pipelines, grid searches."""

from functools import partial

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.cross_decomposition import CCA
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.linear_model import Ridge
from sklearn.model_selection import GridSearchCV, KFold, ShuffleSplit, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks

from diptych import AWCCA, InputError

pd = pytest.importorskip("pandas")

ESTIMATORS = [
    AWCCA(params=(1.0, 1.0)),
    AWCCA(filter="tsvd", params=(1, 1)),
    AWCCA(params=(1.0, 1.0), weighting="none", n_components=1),
    AWCCA(grid=3),
    AWCCA(selection="ledoit-wolf"),
]
FRAMES = [
    estimator_checks.check_transformer_get_feature_names_out,
    estimator_checks.check_transformer_get_feature_names_out_pandas,
    estimator_checks.check_set_output_transform,
    estimator_checks.check_set_output_transform_pandas,
    estimator_checks.check_global_output_transform_pandas,
    estimator_checks.check_set_output_transform_polars,
    estimator_checks.check_global_set_output_transform_polars,
]


def expect_failures(estimator):
    if estimator.params is not None or estimator.selection != "validation":
        return {}
    reason = "γ is selected on other pairs where a pair is repeated: a copy may be held out without the other"
    return dict.fromkeys(
        ("check_sample_weight_equivalence_on_dense_data", "check_sample_weight_equivalence_on_sparse_data"),
        reason,
    )


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=expect_failures)
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("check", FRAMES, ids=lambda check: check.__name__)
def test_checks_of_data_frames(check):
    check("AWCCA", AWCCA(params=(1.0, 1.0)))


@pytest.fixture
def pair(rng):
    """Two views as data frames, with an index of their own."""
    x = rng.normal(size=(60, 4))
    y = x[:, :3] @ rng.normal(size=(3, 3)) + 0.3 * rng.normal(size=(60, 3))
    index = [f"subject {i}" for i in range(60)]
    return (
        pd.DataFrame(x, index=index, columns=["weight", "waist", "pulse", "age"]),
        pd.DataFrame(y, index=index, columns=["chins", "situps", "jumps"]),
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_dtype_is_preserved_and_input_is_only_read(rng, dtype):
    x, y = rng.normal(size=(30, 4)).astype(dtype), rng.normal(size=(30, 3)).astype(dtype)
    x.flags.writeable = y.flags.writeable = False
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    vectors = model.transform(x, y)
    for made in (*vectors, model.predict(x), model.predict_x(y), *model.inverse_transform(*vectors)):
        assert made.dtype == dtype


def test_methods_take_the_arguments_of_scikit_learns_cca(pair):
    arrays = [view.to_numpy() for view in pair]
    for model in (CCA(n_components=2), AWCCA(params=(0.0, 0.0), n_components=2)):
        x_vectors, y_vectors = model.fit(X=arrays[0], y=arrays[1]).transform(X=arrays[0], y=arrays[1])
        assert x_vectors.shape == y_vectors.shape == (60, 2)
        assert model.predict(arrays[0]).shape == arrays[1].shape
        assert [v.shape for v in model.inverse_transform(X=x_vectors, y=y_vectors)] == [(60, 4), (60, 3)]


def test_vectors_are_data_frames_on_request(pair):
    x, y = pair
    model = AWCCA(params=(1.0, 1.0), n_components=2).fit(x, y)
    arrays = model.transform(x, y)
    model.set_output(transform="pandas")
    for frame, array in zip(model.transform(x, y), arrays, strict=True):
        assert list(frame.columns) == ["awcca0", "awcca1"] == list(model.get_feature_names_out())
        assert list(frame.index) == list(x.index)
        np.testing.assert_allclose(frame, array)
    assert list(model.transform(y=y).index) == list(y.index)
    assert isinstance(clone(model).fit_transform(x, y), pd.DataFrame)
    assert model.score(x, y) == clone(model).set_output(transform="default").fit(x, y).score(x, y)
    assert isinstance(model.predict(x), np.ndarray)
    np.testing.assert_allclose(
        model.inverse_transform(y=model.transform(y=y)), model.inverse_transform(y=arrays[1])
    )


def test_data_frames_of_tasks_that_differ_in_dimension(pair):
    model = AWCCA(filter="tsvd", params={"search": (2, 2), "annotate": (3, 3)}).set_output(transform="pandas")
    model.fit(*pair)
    assert model.transform(pair[0]).shape == (60, 2)
    assert list(model.transform(pair[0], task="annotate").columns) == ["awcca0", "awcca1", "awcca2"]


def test_names_of_both_views_are_kept_and_checked(pair, tmp_path):
    x, y = pair
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    model.save(tmp_path / "model")
    for fitted in (model, AWCCA.load(tmp_path / "model")):
        assert list(fitted.feature_names_in_) == list(x.columns)
        assert list(fitted.y_feature_names_in_) == list(y.columns)
        assert fitted.n_features_in_ == 4
        for ask in (fitted.transform, fitted.predict, partial(fitted.score, y=y)):
            with pytest.raises(
                ValueError, match="(?s)feature names should match.*unseen.*height.*now missing"
            ):
                ask(x.rename(columns={"age": "height"}))
        for ask in (partial(fitted.transform, None), fitted.predict_x, partial(fitted.score, x)):
            with pytest.raises(
                InputError, match="'chins', 'situps', 'runs', but 'chins', 'situps', 'jumps' in fit"
            ):
                ask(y.rename(columns={"jumps": "runs"}))
    model.fit(x.to_numpy(), y.to_numpy())
    assert not hasattr(model, "feature_names_in_")
    assert not hasattr(model, "y_feature_names_in_")


def test_a_series_is_a_view_of_one_feature(pair):
    x, y = pair
    model = AWCCA(params=(1.0, 0.0)).fit(x, y["chins"])
    assert list(model.y_feature_names_in_) == ["chins"]
    np.testing.assert_allclose(model.predict(x), Ridge(alpha=1.0).fit(x, y["chins"]).predict(x))


def test_polars_frames(pair):
    polars = pytest.importorskip("polars")
    x, y = (polars.from_pandas(view) for view in pair)
    model = AWCCA(params=(1.0, 1.0)).set_output(transform="polars").fit(x, y)
    assert list(model.y_feature_names_in_) == y.columns
    assert all(isinstance(vectors, polars.DataFrame) for vectors in model.transform(x, y))


def test_a_pipeline_on_the_side_of_x(pair):
    x, y = pair
    pipeline = make_pipeline(StandardScaler(), AWCCA(params=(2.0, 1.0), n_components=2)).fit(x, y)
    scaled = StandardScaler().fit_transform(x)
    alone = AWCCA(params=(2.0, 1.0), n_components=2).fit(scaled, y)
    np.testing.assert_allclose(pipeline.predict(x), alone.predict(scaled))
    np.testing.assert_allclose(pipeline.transform(x), alone.transform(scaled))
    assert pipeline.score(x, y) == alone.score(scaled, y)
    assert list(pipeline.get_feature_names_out()) == ["awcca0", "awcca1"]
    assert isinstance(pipeline.set_output(transform="pandas").transform(x), pd.DataFrame)


def test_a_middle_step_of_a_pipeline_passes_on_the_vectors_of_x(pair):
    x, y = pair
    model = AWCCA(params=(2.0, 1.0), n_components=2)
    pipeline = make_pipeline(StandardScaler(), model, Ridge(alpha=0.5)).fit(x, y)
    scaled = StandardScaler().fit_transform(x)
    vectors = clone(model).fit(scaled, y).transform(scaled)
    np.testing.assert_array_equal(clone(model).fit_transform(scaled, y), vectors)
    np.testing.assert_allclose(pipeline.predict(x), Ridge(alpha=0.5).fit(vectors, y).predict(vectors))
    pipeline.set_output(transform="pandas").fit(x, y)
    assert list(pipeline[-1].feature_names_in_) == ["awcca0", "awcca1"]
    assert cross_val_score(pipeline, x, y, cv=KFold(3), scoring="r2").mean() > 0.4


def test_a_grid_search_over_rows(pair):
    x, y = (view.to_numpy() for view in pair)
    grid = {"params": [(0.1, 1.0), (10.0, 1.0)], "n_components": [1, 2, None], "filter": ["tikhonov"]}
    cv = ShuffleSplit(5, random_state=0)
    search = GridSearchCV(AWCCA(), grid, cv=cv, scoring="r2").fit(x, y)
    by_hand = cross_val_score(clone(search.best_estimator_), x, y, cv=cv, scoring="r2").mean()
    assert search.best_score_ == pytest.approx(by_hand)
    assert search.predict(x).shape == y.shape
    retrieval = GridSearchCV(AWCCA(params=(1.0, 1.0)), {"n_components": [1, 3]}, cv=KFold(3)).fit(x, y)
    assert retrieval.best_params_ == {"n_components": 3}
    ridge = cross_val_predict(Ridge(alpha=3.0), x, y, cv=KFold(4))
    np.testing.assert_allclose(cross_val_predict(AWCCA(params=(3.0, 1.0)), x, y, cv=KFold(4)), ridge)


def test_pairings_are_routed():
    with sklearn.config_context(enable_metadata_routing=True):
        model = AWCCA(params=(1.0, 1.0)).set_fit_request(pairing=True)
        x = np.random.default_rng(0).normal(size=(20, 3))
        pairing = np.repeat(np.arange(20), 2)
        y = x[pairing] + 0.1 * np.random.default_rng(1).normal(size=(40, 3))
        routed = make_pipeline(StandardScaler(), model).fit(x, y, pairing=pairing)
    alone = AWCCA(params=(1.0, 1.0)).fit(StandardScaler().fit_transform(x), y, pairing)
    np.testing.assert_allclose(routed.predict(x), alone.predict(StandardScaler().fit_transform(x)))


def test_frames_everywhere_change_nothing_but_transform(pair):
    x, y = (view.to_numpy() for view in pair)
    model = AWCCA(grid=4)
    expected = model.fit(x, y).score(x, y)
    with sklearn.config_context(transform_output="pandas"):
        assert model.fit(x, y).score(x, y) == expected
        assert isinstance(model.transform(x), pd.DataFrame)


@pytest.mark.parametrize("method", ["transform", "predict", "predict_x", "inverse_transform"])
def test_an_estimator_that_is_not_fitted_says_so(method):
    with pytest.raises(NotFittedError, match="not fitted"):
        getattr(AWCCA(), method)(np.ones((2, 2)))


def spoil(frame, rows, columns, value=np.nan):
    frame = frame.copy()
    frame.iloc[rows, columns] = value
    return frame


def test_missing_values_are_counted_and_named(pair):
    x, y = pair
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    bad = spoil(x, [3, 7, 8], [1, 2])
    message = r"X contains NaN or infinity in 3 of 60 rows \(columns 'waist', 'pulse'\); fill .*imputer"
    for ask in (lambda: clone(model).fit(bad, y), lambda: model.transform(bad), lambda: model.predict(bad)):
        with pytest.raises(InputError, match=message):
            ask()
    with pytest.raises(
        InputError, match=r"Y contains NaN or infinity in 1 of 60 rows \(column 'jumps'\); leave"
    ):
        clone(model).fit(x, spoil(y, [5], [2], np.inf))
    with pytest.raises(InputError, match=r"Y contains NaN .* in 1 of 1 row \(column 0\)"):
        model.predict_x([[np.nan, 1.0, 2.0]])
    make_pipeline(SimpleImputer(), clone(model)).fit(bad, y)


def test_missing_values_of_a_nullable_type(pair):
    x, y = pair
    bad = x.round().astype("Int64")
    AWCCA(params=(1.0, 1.0)).fit(bad, y)
    bad.iloc[2, 0] = pd.NA
    with pytest.raises(InputError, match=r"in 1 of 60 rows \(column 'weight'\)"):
        AWCCA(params=(1.0, 1.0)).fit(bad, y)


@pytest.mark.parametrize("solver", ["gram", "svd"])
def test_missing_values_of_many_rows_and_columns(rng, solver):
    x, y = rng.normal(size=(20_000, 12)), rng.normal(size=(20_000, 2))
    x[[10, 19_999]] = np.nan
    with pytest.raises(InputError, match=r"in 2 of 20,000 rows \(columns 0, 1, 2, 3, 4 and 7 more\)"):
        AWCCA(params=(1.0, 1.0), solver=solver).fit(x, y)


def test_missing_values_of_validation_pairs_and_of_blocks(pair):
    x, y = (view.to_numpy() for view in pair)
    bad = x.copy()
    bad[4, 1] = np.nan
    with pytest.raises(InputError, match=r"X contains NaN .* in 1 of 10 rows \(column 1\)"):
        AWCCA(grid=3).fit(x, y, validation=(bad[:10], y[:10]))
    with pytest.raises(InputError, match=r"block 1: X contains NaN .* in 1 of 30 rows"):
        AWCCA(params=(1.0, 1.0)).fit([(x[30:], y[30:]), (bad[:30], y[:30])])


def test_a_fit_that_fails_changes_nothing(pair):
    x, y = pair
    model = AWCCA(params=(1.0, 1.0)).fit(x, y)
    before = model.transform(x)
    with pytest.raises(InputError, match="NaN"):
        model.fit(x.rename(columns=str.upper).assign(AGE=np.nan), y["y0"] if "y0" in y else y.iloc[:, 0])
    np.testing.assert_array_equal(model.feature_names_in_, x.columns)
    np.testing.assert_array_equal(model.transform(x), before)
    assert model.predict(x).shape == y.shape
