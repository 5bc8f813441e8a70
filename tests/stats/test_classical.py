"""Classical tests: the published analysis of the Linnerud data, and statsmodels."""

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, load_iris, load_linnerud
from statsmodels.multivariate.cancorr import CanCorr
from statsmodels.multivariate.multivariate_ols import multivariate_stats

from diptych import AWCCA, InputError
from diptych.stats import bootstrap, classical_tests, cross_validated_correlations, permutation_test
from tolerance import rounding

STATISTICS = {
    "wilks": "Wilks' lambda",
    "pillai": "Pillai's trace",
    "hotelling_lawley": "Hotelling-Lawley trace",
    "roy": "Roy's greatest root",
}
COLUMNS = {
    "statistic": "Value",
    "f": "F Value",
    "df_numerator": "Num DF",
    "df_denominator": "Den DF",
    "p_values": "Pr > F",
}


def data_sets():
    rng = np.random.default_rng(0)
    exercises, physiology = load_linnerud(return_X_y=True)
    diabetes, iris = load_diabetes().data, load_iris().data
    cause = rng.normal(size=(60, 2))
    related = [cause @ rng.normal(size=(2, width)) + rng.normal(size=(60, width)) for width in (7, 4)]
    return {
        "linnerud": (physiology, exercises),
        "diabetes": (diabetes[:, :4], diabetes[:, 4:]),
        "iris": (iris[:, :2], iris[:, 2:]),
        "one feature": (iris[:, :3], iris[:, 3:]),
        "related": related,
        "n = p + q + 2": (rng.normal(size=(9, 4)), rng.normal(size=(9, 3))),
        "n = p + q + 3": (rng.normal(size=(10, 3)), rng.normal(size=(10, 4))),
        "n = p + q + 4": (rng.normal(size=(12, 5)), rng.normal(size=(12, 3))),
    }


DATA = data_sets()


@pytest.fixture(params=DATA, ids=str)
def views(request):
    return DATA[request.param]


def test_the_published_analysis_of_linnerud_is_reproduced():
    tests = classical_tests(*DATA["linnerud"])
    assert [f"{r:.4f}" for r in tests.correlations] == ["0.7956", "0.2006", "0.0726"]
    assert [f"{value:.4f}" for value in tests.wilks.statistic] == ["0.3504", "0.9547", "0.9947"]
    assert [f"{f:.2f}" for f in tests.wilks.f] == ["2.05", "0.18", "0.08"]
    assert [f"{p:.4f}" for p in tests.wilks.p_values] == ["0.0635", "0.9491", "0.7748"]
    # PROC CANCORR also prints these for the first hypothesis.
    values = [getattr(tests, name).statistic[0] for name in STATISTICS]
    assert [f"{value:.4f}" for value in values] == ["0.3504", "0.6785", "1.7719", "1.7247"]
    assert [f"{getattr(tests, name).f[0]:.2f}" for name in STATISTICS] == ["2.05", "1.56", "2.64", "9.20"]


def test_all_statistics_of_every_hypothesis_are_those_of_statsmodels(views):
    x, y = views
    (n, p), q = x.shape, y.shape[1]
    tests = classical_tests(x, y)
    squares = CanCorr(x, y).cancorr ** 2
    for k in range(min(p, q)):
        if (n - p - q - 2 + k) == 2:
            continue  # statsmodels divides by 0 there; see the limit below
        expected = multivariate_stats(squares[k:], q - k, p - k, n - 1 - p)
        for name, row in STATISTICS.items():
            for field, column in COLUMNS.items():
                value = getattr(getattr(tests, name), field)[k]
                np.testing.assert_allclose(value, float(expected.loc[row, column]), rtol=1e-7, err_msg=name)


def test_the_approximation_of_hotelling_lawley_has_no_gap():
    # (n − p − q − 2)/2 = 1, where McKeon's b is infinite: df2 = 4 and F = (4/pq) U.
    rng = np.random.default_rng(1)
    test = classical_tests(rng.normal(size=(11, 4)), rng.normal(size=(11, 3))).hotelling_lawley
    assert test.df_denominator[0] == pytest.approx(4)
    assert test.f[0] == pytest.approx(4 / 12 * test.statistic[0])


def test_combinations_of_features_do_not_count():
    x, y = DATA["related"]
    whole = classical_tests(x, y)
    more = classical_tests(np.hstack([x, x[:, :2] @ [[1.0], [2.0]], np.ones((60, 1))]), y)
    assert (more.rank_x, more.rank_y) == (7, 4)
    np.testing.assert_allclose(more.wilks.p_values, whole.wilks.p_values, rtol=1e-9)


def test_backends_agree(backend):
    x, y = DATA["related"]
    result, expected = classical_tests(backend(x), backend(y)), classical_tests(x, y)
    tolerance = rounding(np.float64, 60, condition=100)
    np.testing.assert_allclose(result.correlations, expected.correlations, rtol=0, atol=tolerance)


def test_a_pairing_may_reorder_rows_and_leave_some_out():
    x, y = DATA["related"]
    order = np.random.default_rng(0).permutation(60)[:50]
    result, expected = classical_tests(x, y[order], order), classical_tests(x[order], y[order])
    np.testing.assert_allclose(result.wilks.f, expected.wilks.f, rtol=1e-9)


def test_repeated_rows_are_refused():
    x, y = DATA["related"]
    with pytest.raises(InputError, match="not independent.*permutation_test"):
        classical_tests(x[:30], y, np.repeat(np.arange(30), 2))


def test_too_few_pairs_are_refused(rng):
    with pytest.raises(InputError, match="at least 9 pairs, or use permutation_test"):
        classical_tests(rng.normal(size=(8, 4)), rng.normal(size=(8, 3)))


@pytest.mark.parametrize(
    "analyse",
    [
        classical_tests,
        lambda x, y: permutation_test((0.0, 0.0), x, y, n_permutations=9),
        lambda x, y: bootstrap((0.0, 0.0), x, y, n_resamples=9),
        lambda x, y: cross_validated_correlations(AWCCA(params=(0.0, 0.0)), x, y),
    ],
)
def test_features_too_small_to_be_squared_are_refused(rng, analyse):
    x = rng.normal(size=(60, 3))
    y = x + rng.normal(size=(60, 3))
    analyse(x * 1e-100, y)
    with pytest.raises(InputError, match="X has only values so small"):
        analyse(x * 1e-310, y)


def test_equal_views_have_infinite_f(rng):
    x = rng.normal(size=(30, 2))
    tests = classical_tests(x, x @ [[1.0, 2.0], [3.0, 4.0]])
    assert np.all(tests.wilks.p_values < 1e-10)
    assert "<0.0001" in str(tests)


def test_a_printed_table_and_a_data_frame_show_the_same():
    tests = classical_tests(*DATA["linnerud"])
    lines = str(tests).splitlines()
    assert lines[2].split() == ["1", "to", "3", "0.7956", "Wilks", "0.3504", "2.05", "9", "34.22", "0.0635"]
    frame = tests.to_frame()
    assert frame.loc[(1, "Wilks"), "p"] == tests.wilks.p_values[0]
    assert list(frame.columns) == ["correlation", "statistic", "F", "df1", "df2", "p"]
    assert len(frame) == 12
