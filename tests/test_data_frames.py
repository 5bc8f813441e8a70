"""Rows and columns of data frames go by their labels, wherever both views are passed."""

import warnings

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV

from diptych import AWCCA, InputError
from diptych._checks import DataWarning
from diptych.cca import Moments, spectra
from diptych.ranking import ranks
from diptych.report import draw_variates
from diptych.stats import bootstrap, classical_tests, cross_validated_correlations, permutation_test

pd = pytest.importorskip("pandas")

GAMMAS = (2.0, 1.0)


def fitted(x, y):
    return AWCCA(params=GAMMAS).fit(x, y)


PAIRED = {
    "fit": lambda model, x, y: fitted(x, y).models_["search"].train_correlations,
    "fit, with a selection": lambda model, x, y: AWCCA(grid=4).fit(x, y).path_.params("search"),
    "fit, validation": lambda model, x, y: (
        AWCCA(params=GAMMAS)
        .fit(np.asarray(x)[:30], np.asarray(y.sort_index())[:30], validation=(x, y))
        .models_["search"]
        .validation_correlations
    ),
    "fit, blocks": lambda model, x, y: (
        AWCCA(params=GAMMAS).fit([(x, y)]).models_["search"].train_correlations
    ),
    "transform": lambda model, x, y: np.hstack(model.transform(x, y)),
    "score": lambda model, x, y: model.score(x, y),
    "score, r2": lambda model, x, y: model.score(x, y, metric="r2"),
    "spectra": lambda model, x, y: abs(spectra(x, y).t0),
    "moments": lambda model, x, y: Moments.of(x, y).xy,
    "ranks": lambda model, x, y: np.sort(ranks(x.iloc[:, :3], y, task="search")),
    "permutation_test": lambda model, x, y: permutation_test(model, x, y, n_permutations=20).null,
    "bootstrap": lambda model, x, y: bootstrap(model, x, y, n_resamples=20).x_loadings.low,
    "cross_validated_correlations": lambda model, x, y: cross_validated_correlations(model, x, y).folds,
    "classical_tests": lambda model, x, y: classical_tests(x, y).wilks.p_values,
    "draw_variates": lambda model, x, y: draw_variates(model, x, y).legends[0].get_texts()[0].get_text(),
}


@pytest.fixture
def pair(rng):
    """Two views as data frames with labelled rows, in the order of their labels."""
    x = rng.normal(size=(60, 4))
    y = x[:, :3] @ rng.normal(size=(3, 3)) + 0.3 * rng.normal(size=(60, 3))
    index = [f"subject {i:02}" for i in range(60)]
    return pd.DataFrame(x, index, ["weight", "waist", "pulse", "age"]), pd.DataFrame(y, index, list("abc"))


@pytest.fixture
def other_order(rng):
    return rng.permutation(60)


@pytest.mark.parametrize("compute", PAIRED.values(), ids=PAIRED)
def test_rows_are_paired_by_label_and_a_warning_says_so(pair, other_order, compute):
    x, y = pair
    model = fitted(x.to_numpy(), y.to_numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("error", DataWarning)
        expected = compute(model, x, y)
    with pytest.warns(DataWarning, match="same row labels in another order, so rows were matched") as caught:
        result = compute(model, x, y.iloc[other_order])
    assert sum(issubclass(warning.category, DataWarning) for warning in caught) == 1
    if isinstance(expected, str):
        assert result == expected
    else:
        np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("compute", PAIRED.values(), ids=PAIRED)
def test_rows_whose_labels_do_not_agree_are_refused(pair, compute):
    x, y = pair
    model = fitted(x.to_numpy(), y.to_numpy())
    wrong = y.rename(index={"subject 03": "subject 99"})
    with pytest.raises(
        InputError, match="do not agree: (Y has 'subject 99', and X|X has 'subject 03', and Y) does not"
    ):
        compute(model, x, wrong)
    with pytest.raises(InputError, match="do not agree"):
        compute(model, x, y.reset_index(drop=True))
    repeated = y.rename(index={"subject 03": "subject 04"})
    with pytest.raises(InputError, match="X has 'subject 03', and Y does not"):
        compute(model, x, repeated)


def test_repeated_labels_are_paired_in_order_or_not_at_all(pair, other_order):
    x, y = (view.set_axis([f"person {i // 2}" for i in range(60)]) for view in pair)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted(x, y)
    with pytest.raises(
        InputError, match="'person .*' is the label of several rows, so they cannot be matched"
    ):
        fitted(x, y.iloc[other_order])


def test_rows_without_labels_are_paired_by_position(pair, other_order):
    x, y = pair
    polars = pytest.importorskip("polars")
    shuffled = y.iloc[other_order]
    expected = fitted(x.to_numpy(), shuffled.to_numpy()).models_["search"].train_correlations
    numbered = x.reset_index(drop=True), shuffled.reset_index(drop=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for views in (
            numbered,
            (x, shuffled.to_numpy()),
            (x.to_numpy(), shuffled),
            tuple(map(polars.from_pandas, numbered)),
            (x.to_numpy().tolist(), shuffled),
        ):
            result = fitted(*views).models_["search"].train_correlations
            np.testing.assert_allclose(result, expected)


def test_a_pairing_is_in_numbers_and_as_a_series_goes_by_the_rows_of_y(pair, other_order):
    x, y = pair
    places = np.argsort(other_order)
    expected = fitted(x, y).models_["search"].train_correlations
    shuffled = x.iloc[places].reset_index(drop=True)  # row i of y belongs to row other_order[i]
    for pairing in (other_order, pd.Series(other_order, y.index)):
        result = AWCCA(params=GAMMAS).fit(shuffled, y, pairing).models_["search"].train_correlations
        np.testing.assert_allclose(result, expected)
    with pytest.warns(DataWarning, match="Y and pairing have the same row labels"):
        model = AWCCA(params=GAMMAS).fit(shuffled, y, pd.Series(other_order, y.index).sample(frac=1))
    np.testing.assert_allclose(model.models_["search"].train_correlations, expected)


def test_a_series_as_second_view_goes_by_its_labels(pair, other_order):
    x, y = pair
    expected = AWCCA(params=GAMMAS).fit(x, y["a"]).predict(x)
    with pytest.warns(DataWarning, match="matched by label"):
        model = AWCCA(params=GAMMAS).fit(x, y["a"].iloc[other_order])
    np.testing.assert_allclose(model.predict(x), expected)


def test_weights_go_by_the_labels_of_y(pair, other_order, rng):
    x, y = pair
    weights = pd.Series(rng.integers(0, 4, size=60).astype(float), y.index)
    expected = AWCCA(params=GAMMAS).fit(x, y, sample_weight=weights.to_numpy())
    with pytest.warns(DataWarning, match="Y and sample_weight have the same row labels in another order"):
        model = AWCCA(params=GAMMAS).fit(x, y, sample_weight=weights.iloc[other_order])
    for fit in (spectra, Moments.of):
        with pytest.warns(DataWarning, match="sample_weight"):
            assert fit(x, y, sample_weight=weights.iloc[other_order]).count == np.count_nonzero(weights)
    np.testing.assert_allclose(model.predict(x), expected.predict(x))
    # Weights in an array are those of the rows of y as they are given, also where y is reordered.
    shuffled = weights.iloc[other_order].to_numpy()
    with pytest.warns(DataWarning, match="Y and X"):
        model = AWCCA(params=GAMMAS).fit(x, y.iloc[other_order], sample_weight=shuffled)
    np.testing.assert_allclose(model.predict(x), expected.predict(x))
    with pytest.raises(InputError, match="labels of Y and sample_weight do not agree"):
        AWCCA(params=GAMMAS).fit(x, y, sample_weight=weights.reset_index(drop=True))


RESAMPLED = {
    "permutation_test": lambda *pair, blocks: (
        permutation_test(GAMMAS, *pair, blocks=blocks, n_permutations=20).null
    ),
    "bootstrap": lambda *pair, blocks: (
        bootstrap(GAMMAS, *pair, blocks=blocks, n_resamples=20).correlations.low
    ),
    "cross_validated_correlations": lambda *pair, blocks: (
        cross_validated_correlations(GAMMAS, *pair, blocks=blocks).folds
    ),
}


@pytest.mark.parametrize("compute", RESAMPLED.values(), ids=RESAMPLED)
def test_blocks_go_by_the_labels_of_x(pair, other_order, compute):
    x, y = pair
    blocks = pd.Series([f"centre {i % 7}" for i in range(60)], x.index)
    expected = compute(x, y, blocks=blocks.to_numpy())
    with pytest.warns(DataWarning, match="X and blocks have the same row labels in another order"):
        np.testing.assert_allclose(compute(x, y, blocks=blocks.iloc[other_order]), expected)
    with pytest.raises(InputError, match="labels of X and blocks do not agree"):
        compute(x, y, blocks=blocks.rename(index=str.upper))


def test_a_grid_search_splits_by_position_and_refuses_rows_in_another_order(pair, other_order):
    x, y = pair
    search = GridSearchCV(AWCCA(params=GAMMAS), {"n_components": [1, 3]}, cv=3)
    expected = search.fit(x.to_numpy(), y.to_numpy()).cv_results_["mean_test_score"]
    # Frames whose rows were shuffled together keep their labels.
    np.testing.assert_allclose(search.fit(x, y).cv_results_["mean_test_score"], expected)
    search.fit(x.iloc[other_order], y.iloc[other_order])
    with pytest.raises(ValueError, match="the row labels of Y and X do not agree"):
        search.fit(x, y.iloc[other_order])


REORDERED = {
    "transform": lambda model, x, y: np.hstack(model.transform(x, y)),
    "predict": lambda model, x, y: model.predict(x),
    "predict_x": lambda model, x, y: model.predict_x(y),
    "score": lambda model, x, y: model.score(x, y),
    "score, r2": lambda model, x, y: model.score(x, y, metric="r2"),
    "permutation_test": PAIRED["permutation_test"],
    "draw_variates": PAIRED["draw_variates"],
}


@pytest.mark.parametrize("compute", REORDERED.values(), ids=REORDERED)
def test_columns_in_another_order_than_in_fit_go_by_name(pair, compute):
    x, y = pair
    model = fitted(x, y)
    expected = compute(model, x, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = compute(model, x[["age", "pulse", "weight", "waist"]], y[["c", "a", "b"]])
    if isinstance(expected, str):
        assert result == expected
    else:
        np.testing.assert_allclose(result, expected)
    with pytest.raises(ValueError, match="feature names should match|has the columns"):
        compute(model, x.rename(columns={"age": "height"}), y.rename(columns={"a": "z"}))


def test_columns_of_validation_pairs_go_by_name(pair):
    x, y = pair
    parts = [(view.iloc[:40], view.iloc[40:]) for view in (x, y)]
    expected = AWCCA(grid=4).fit(parts[0][0], parts[1][0], validation=(parts[0][1], parts[1][1]))
    turned = [part[part.columns[::-1]] for _, part in parts]
    model = AWCCA(grid=4).fit(parts[0][0], parts[1][0], validation=tuple(turned))
    np.testing.assert_allclose(model.predict(x), expected.predict(x))
    np.testing.assert_allclose(model.score(x, y), expected.score(x, y))
    wrong = turned[1].rename(columns={"c": "z"})
    with pytest.raises(InputError, match="validation y has the columns 'z', .* but 'a', 'b', 'c' in fit"):
        AWCCA(grid=4).fit(parts[0][0], parts[1][0], validation=(turned[0], wrong))


def test_names_of_tables_are_in_the_order_of_fit(pair):
    x, y = pair
    model = fitted(x, y)
    expected = bootstrap(model, x, y, n_resamples=5)
    result = bootstrap(model, x[x.columns[::-1]], y, n_resamples=5)
    assert result.feature_names_x == expected.feature_names_x == list(x.columns)
    np.testing.assert_allclose(result.x_loadings.estimate, expected.x_loadings.estimate)


def test_parameters_may_be_an_array(pair):
    x, y = pair
    expected = fitted(x, y)
    for params in (np.array(GAMMAS), {"search": np.array(GAMMAS), "annotate": list(GAMMAS)}):
        model = AWCCA(params=params).fit(x, y)
        np.testing.assert_array_equal(model.predict(x), expected.predict(x))
    search = GridSearchCV(AWCCA(), {"params": [np.array([1e4, 1.0]), np.array(GAMMAS)]}, scoring="r2").fit(
        x, y
    )
    np.testing.assert_array_equal(search.best_params_["params"], GAMMAS)
    for compute in (permutation_test, bootstrap, cross_validated_correlations):
        assert str(compute(np.array(GAMMAS), x, y)) == str(compute(GAMMAS, x, y))


READERS = {
    "fit": lambda x, y: fitted(x, y),
    "fit, blocks": lambda x, y: AWCCA(params=GAMMAS).fit([(x, y)]),
    "permutation_test": lambda x, y: permutation_test(GAMMAS, x, y, n_permutations=5),
    "cross_validated_correlations": lambda x, y: cross_validated_correlations(GAMMAS, x, y),
    "classical_tests": classical_tests,
}


@pytest.mark.parametrize("compute", READERS.values(), ids=READERS)
def test_columns_without_numbers_are_named(pair, compute):
    x, y = pair
    for values, shown in (
        (["m", "f"] * 30, "'m'"),
        (pd.Categorical(["1", "old"] * 30), "'old'"),
        (pd.array(["1", "f"] * 30, dtype="string"), "'f'"),
        (pd.Timestamp("2020-01-01"), r"Timestamp\('2020-01-01 00:00:00'\)"),
        ([["a", "b"]] * 60, r"\['a', 'b'\]"),
    ):
        message = f"X has values that are not numbers in the column 'sex', such as {shown}; encode them"
        with pytest.raises(InputError, match=message):
            compute(x.assign(sex=values), y)
    with pytest.raises(InputError, match="Y has values that are not numbers in the column 'sex', such as"):
        compute(x, y.assign(sex="m")[["sex"]])
    compute(x.assign(pulse=x["pulse"].astype(str), age=pd.Categorical([1.5, 2.0] * 30), waist=True), y)


@pytest.mark.parametrize("compute", READERS.values(), ids=READERS)
def test_columns_of_one_name_are_refused(pair, compute):
    x, y = pair
    with pytest.raises(InputError, match="X has 2 columns called 'age'; give each column a name"):
        compute(x.rename(columns={"pulse": "age"}), y)
    with pytest.raises(InputError, match="Y has 3 columns called 'z'"):
        compute(x, y.set_axis(["z"] * 3, axis=1))


def test_text_columns_of_polars_are_named(pair):
    polars = pytest.importorskip("polars")
    x, y = (polars.from_pandas(view) for view in pair)
    with pytest.raises(InputError, match="not numbers in the column 'sex', such as 'm'"):
        fitted(x.with_columns(sex=polars.lit("m")), y)
    with pytest.raises(InputError, match="not numbers in the column 'sex', such as 'm'"):
        fitted(x, polars.Series("sex", ["m"] * 60))
