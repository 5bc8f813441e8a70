"""Covariates: partial correlations by an independent formula, refits by hand, and simulated data sets."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.linalg import sqrtm
from scipy.stats import binom, kstest
from statsmodels.multivariate.multivariate_ols import _MultivariateOLS

from diptych import AWCCA, InputError
from diptych.cca import regularized_cca
from diptych.cca._covariates import CovariateBasis
from diptych.stats import (
    bootstrap,
    classical_tests,
    cross_validated_correlations,
    loadings,
    permutation_test,
)
from diptych.stats._pairs import prepare_pairs
from diptych.stats._permutation import _remove, _whiten_pairs
from diptych.stats._resampling import prepare_resamples, refit_resamples


def confounded(seed, rows=40, features=(10, 8), n_covariates=10, signal=0.0, strength=1.0):
    """Return two views that depend on the same covariates, and share a hidden cause if there is a signal."""
    rng = np.random.default_rng(seed)
    covariates = rng.normal(size=(rows, n_covariates))
    x, y = (
        strength * covariates @ rng.normal(size=(n_covariates, size)) + rng.normal(size=(rows, size))
        for size in features
    )
    hidden = signal * rng.normal(size=rows)
    x[:, 0] += hidden
    y[:, 0] += hidden
    return x, y, covariates


def partial_correlations(x, y, covariates):
    """Canonical correlations of the conditional covariance, by Schur complements of the joint one."""
    sizes = np.cumsum([x.shape[1], y.shape[1]])
    joint = np.cov(np.hstack([x, y, covariates]).T)
    rest = joint[sizes[1] :, : sizes[1]]
    partial = joint[: sizes[1], : sizes[1]] - rest.T @ np.linalg.solve(joint[sizes[1] :, sizes[1] :], rest)
    xx, xy, yy = (
        partial[: sizes[0], : sizes[0]],
        partial[: sizes[0], sizes[0] :],
        partial[sizes[0] :, sizes[0] :],
    )
    return np.linalg.svd(np.linalg.inv(sqrtm(xx).real) @ xy @ np.linalg.inv(sqrtm(yy).real))[1]


@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(1, 4), st.integers(1, 4))
def test_partial_correlations_are_those_of_the_conditional_covariance(seed, n_covariates, p, q):
    x, y, covariates = confounded(seed, 40, (p, q), n_covariates, 1.0)
    expected = partial_correlations(x, y, covariates)
    tests = classical_tests(x, y, covariates=covariates)
    np.testing.assert_allclose(tests.correlations, expected, rtol=0, atol=1e-10)
    assert tests.n_covariates == n_covariates
    test = permutation_test((0, 0), x, y, covariates=covariates, n_permutations=1)
    np.testing.assert_allclose(test.correlations, expected, rtol=0, atol=1e-10)
    result = bootstrap((0, 0), x, y, covariates=covariates, n_resamples=2)
    np.testing.assert_allclose(result.in_sample, expected, rtol=0, atol=1e-10)


def test_one_partial_correlation_is_the_textbook_one():
    x, y, z = confounded(1, 50, (1, 1), 1)
    r = np.corrcoef(np.hstack([x, y, z]).T)
    expected = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    tests = classical_tests(x, y, covariates=z[:, 0])
    assert tests.correlations[0] == pytest.approx(abs(expected), abs=1e-10)
    # The t test of a partial correlation has n − 3 degrees of freedom.
    assert tests.wilks.f[0] == pytest.approx(expected**2 / (1 - expected**2) * 47)
    assert tests.wilks.df_denominator[0] == 47


def test_classical_tests_are_those_of_a_regression_with_the_covariates():
    x, y, covariates = confounded(2, 60, (4, 3), 5, 0.5)
    design = np.hstack([np.ones((60, 1)), covariates, x])
    keeps = np.hstack([np.zeros((4, 6)), np.eye(4)])
    expected = _MultivariateOLS(y, design).fit().mv_test([("x", keeps)])["x"]["stat"]
    tests = classical_tests(x, y, covariates=covariates)
    for name, row in (
        ("wilks", "Wilks' lambda"),
        ("pillai", "Pillai's trace"),
        ("hotelling_lawley", "Hotelling-Lawley trace"),
        ("roy", "Roy's greatest root"),
    ):
        test = getattr(tests, name)
        values = test.statistic[0], test.df_numerator[0], test.df_denominator[0], test.f[0], test.p_values[0]
        columns = ["Value", "Num DF", "Den DF", "F Value", "Pr > F"]
        np.testing.assert_allclose(values, expected.loc[row, columns].astype(float), rtol=1e-7)
    assert str(tests).splitlines()[0] == "Classical tests, 60 pairs, 4 and 3 features without 5 covariates"


RESULTS = {
    "permutation": lambda *views, **options: (
        permutation_test((2.0, 3.0), *views, n_permutations=30, n_components=3, **options).null
    ),
    "classical": lambda *views, **options: classical_tests(*views, **options).wilks.p_values,
    "held out": lambda *views, **options: cross_validated_correlations((2.0, 3.0), *views, **options).folds,
    "bootstrap": lambda *views, **options: (
        bootstrap((2.0, 3.0), *views, n_resamples=9, **options).x_loadings.low
    ),
}


@pytest.fixture(params=RESULTS, ids=str)
def compute(request):
    return RESULTS[request.param]


def test_constant_and_repeated_columns_are_harmless(compute):
    x, y, covariates = confounded(3, 60, (4, 3), 2)
    expected = compute(x, y, covariates=covariates)
    more = np.hstack(
        [np.full((60, 1), 7e6), covariates, covariates @ [[1.0], [2.0]], covariates * 1e-9 + 3e-7]
    )
    np.testing.assert_allclose(compute(x, y, covariates=more), expected, rtol=1e-6, atol=1e-8)
    plain = compute(x, y)
    np.testing.assert_allclose(compute(x, y, covariates=np.ones(60)), plain, rtol=1e-7, atol=1e-10)
    assert not np.allclose(plain, expected)


def test_what_depends_on_covariates_alone_changes_nothing(compute):
    x, y, covariates = confounded(4, 60, (4, 3), 3, strength=0.0)
    expected = compute(x, y, covariates=covariates)
    rng = np.random.default_rng(0)
    more_x, more_y = (view + covariates @ rng.normal(size=(3, view.shape[1])) + 5 for view in (x, y))
    result = compute(more_x, more_y, covariates=covariates)
    np.testing.assert_allclose(result, expected, rtol=1e-6, atol=1e-9)


def test_data_frames_and_tensors_give_the_same(compute):
    pandas, torch = pytest.importorskip("pandas"), pytest.importorskip("torch")
    x, y, covariates = confounded(5, 60, (4, 3), 2)
    expected = compute(x, y, covariates=covariates)
    frame = pandas.DataFrame(covariates, columns=["age", "motion"])
    np.testing.assert_allclose(compute(x, y, covariates=frame), expected, rtol=1e-7, atol=1e-9)
    tensors = compute(torch.asarray(x), torch.asarray(y), covariates=covariates)
    np.testing.assert_allclose(tensors, expected, rtol=1e-7, atol=1e-9)


def test_a_feature_that_is_a_covariate_has_nothing_left():
    x, y, covariates = confounded(6, 60, (3, 2), 2)
    x = np.hstack([x, covariates @ [[1.0], [2.0]]])
    tests = classical_tests(x, y, covariates=covariates)
    assert tests.rank_x == 3
    result = bootstrap((1, 1), x, y, covariates=covariates, n_resamples=3)
    assert np.isnan(result.x_loadings.estimate[3]).all()
    single = x.astype(np.float32)
    assert classical_tests(single, y, covariates=covariates).rank_x == 3


@pytest.mark.parametrize("rows_of_y", [1, 3])
@pytest.mark.parametrize("k", [0, 1, 3])
def test_views_are_projected_onto_the_dimensions_that_covariates_leave(rows_of_y, k):
    x, _, covariates = confounded(7, 30, (12, 9), 4)
    pairing = np.repeat(np.arange(30), rows_of_y)
    y = confounded(8, 30, (12, 9), 4)[1][pairing] + np.random.default_rng(0).normal(size=(len(pairing), 9))
    pairs = prepare_pairs((2.0, 3.0), x, y, pairing, "search", covariates=covariates)
    rotated, sigma = _whiten_pairs(pairs, None).rotate()
    remainder = _remove(rotated, sigma, np.ones(k))
    assert len(remainder.a) == 30 - 1 - 4 - 2 * k
    value, _ = remainder.evaluate(np.arange(len(remainder.a))[None, :])
    assert value[0] == pytest.approx(sigma[k], abs=1e-10)
    np.testing.assert_allclose(rotated.removed.T @ rotated.removed, np.eye(5), atol=1e-12)
    np.testing.assert_allclose(rotated.removed.T @ rotated.a, 0, atol=1e-12)
    np.testing.assert_allclose(rotated.removed.T @ rotated.b, 0, atol=1e-12)


def test_several_rows_of_y_are_those_of_repeated_rows():
    x, _, covariates = confounded(9, 30, (4, 3), 2)
    rng = np.random.default_rng(0)
    pairing = rng.permutation(rng.integers(0, 30, 70))
    y = covariates[pairing] @ rng.normal(size=(2, 3)) + rng.normal(size=(70, 3))
    pairs = prepare_pairs((2.0, 3.0), x, y, pairing, "search", covariates=covariates)
    design = np.hstack([np.ones((70, 1)), covariates[pairing]])
    for left, view in ((pairs.x[pairing], x[pairing]), (pairs.y, y)):
        expected = view - design @ np.linalg.lstsq(design, view)[0]
        np.testing.assert_allclose(left, expected, atol=1e-12)


SIDES = {
    "both": lambda z: z,
    "X": lambda z: (z, None),
    "Y": lambda z: (None, z),
    "different": lambda z: (z[:, :2], z[:, 1:]),
}


def regress(view, covariates, rows):
    """Return what a regression over some rows leaves of a view; all of it if there are no covariates."""
    if covariates is None:
        return view
    design = np.hstack([np.ones((len(view), 1)), covariates])
    return view - design @ np.linalg.lstsq(design[rows], view[rows])[0]


def regress_both(x, y, covariates, rows):
    z_x, z_y = covariates if isinstance(covariates, tuple) else (covariates, covariates)
    return regress(x, z_x, rows), regress(y, z_y, rows)


@pytest.mark.parametrize("sides", SIDES)
def test_held_out_pairs_lose_what_training_pairs_say(sides):
    x, y, covariates = confounded(10, 60, (4, 3), 3, 1.0)
    covariates = SIDES[sides](covariates)
    train, test = np.arange(40), np.arange(40, 60)
    result = cross_validated_correlations(
        (2.0, 3.0), x, y, covariates=covariates, cv=_OneSplit(train, test), n_components=2
    )
    left_x, left_y = regress_both(x, y, covariates, train)
    model = AWCCA(params=(2.0 * 40 / 60, 3.0 * 40 / 60)).fit(left_x[train], left_y[train])
    u, v = model.transform(left_x[test], left_y[test])
    expected = [np.corrcoef(u[:, k], v[:, k])[0, 1] for k in range(2)]
    np.testing.assert_allclose(result.folds[0], expected, atol=1e-9)


class _OneSplit:
    def __init__(self, *parts):
        self.parts = parts

    def split(self, rows, groups=None):
        yield self.parts


def test_rows_are_normalised_before_covariates_are_regressed_out():
    x, y, covariates = confounded(11, 60, (4, 3), 2)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    model = AWCCA(params=(0.2, 3.0), normalize=("unit", "none")).fit(x, y)
    for function in (
        lambda model, x: cross_validated_correlations(model, x, y, covariates=covariates).folds,
        lambda model, x: permutation_test(model, x, y, covariates=covariates, n_permutations=9).null,
    ):
        np.testing.assert_allclose(function(model, x), function((0.2, 3.0), unit), atol=1e-9)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("blocks", [None, np.arange(50) // 2])
def test_a_resample_has_its_own_regression(blocks, sides):
    x, y, covariates = confounded(12, 50, (4, 3), 3, 1.0)
    covariates = SIDES[sides](covariates)
    pairs = prepare_pairs((5.0, 4.0), x, y, None, "search", covariates=covariates)
    sample = prepare_resamples(pairs, regularized_cca(pairs.spectra, *pairs.filters, 2), blocks, 1)
    (refit,) = refit_resamples(sample, range(7, 8))
    rows = np.repeat(np.arange(50), sample.blocks.draw(7).astype(int))
    left_x, left_y = regress_both(x, y, covariates, rows)
    model = AWCCA(params=(5.0, 4.0)).fit(left_x[rows], left_y[rows])
    expected = model.models_["search"].train_correlations
    at = [int(np.argmin(np.abs(expected - value))) for value in refit.correlations]
    np.testing.assert_allclose(refit.correlations, expected[at], atol=1e-9)
    result = sample.x.to_features @ refit.x.products / refit.x.lengths[:, None]
    np.testing.assert_allclose(np.abs(result), np.abs(loadings(model).x[:, at]), atol=1e-9)


@pytest.mark.parametrize(("rows", "features", "gamma"), [(40, (10, 8), 0.0), (30, (40, 12), 20.0)])
def test_p_values_are_uniform_for_unrelated_views_with_the_same_covariates(rows, features, gamma):
    first, wilks, before = [], [], []
    for seed in range(120):
        x, y, covariates = confounded(seed, rows, features)
        options = {"n_permutations": 39, "n_components": 1, "random_state": seed}
        first.append(permutation_test((gamma, gamma), x, y, covariates=covariates, **options).p_values[0])
        design = np.hstack([np.ones((rows, 1)), covariates])
        left = [view - design @ np.linalg.lstsq(design, view)[0] for view in (x, y)]
        before.append(permutation_test((gamma, gamma), *left, **options).p_values[0])
        if gamma == 0:
            wilks.append(classical_tests(x, y, covariates=covariates).wilks.p_values[0])
    assert kstest(first, "uniform").pvalue > 0.01
    assert np.count_nonzero(np.array(first) <= 0.05) <= binom.ppf(0.999, 120, 0.05)
    assert np.count_nonzero(np.array(before) <= 0.05) > binom.ppf(0.999, 120, 0.05)
    if gamma == 0:
        assert kstest(wilks, "uniform").pvalue > 0.01


@pytest.mark.parametrize("side", ["X", "Y"])
@pytest.mark.parametrize("gammas", [(0, 0), (2.0, 3.0)])
def test_part_correlations_are_permuted_where_covariates_leave_something(side, gammas):
    x, y, covariates = confounded(14, 30, (5, 4), 6, 1.0)
    z = SIDES[side](covariates)
    pairs = prepare_pairs(gammas, x, y, None, "search", covariates=z)
    a, b = (view - view.mean(axis=0) for view in regress_both(x, y, z, np.arange(30)))
    # Both views are whitened as they are: the one without covariates with its whole covariance.
    a, b = (
        view @ np.linalg.inv(sqrtm(view.T @ view + gamma * np.eye(view.shape[1])).real)
        for view, gamma in zip((a, b), gammas, strict=True)
    )
    whitened = _whiten_pairs(pairs, None)
    rotated, sigma = whitened.rotate()
    np.testing.assert_allclose(sigma, np.linalg.svd(a.T @ b)[1], atol=1e-10)
    remainder = _remove(rotated, sigma, np.ones(0))
    assert len(remainder.a) == 30 - 1 - 6
    design = np.hstack([np.ones((30, 1)), covariates])
    kept = np.eye(30) - design @ np.linalg.pinv(design)
    for view, part in ((a, remainder.a), (b, remainder.b)):
        # Up to rotations, the parts in the dimensions that the covariates leave.
        expected = np.linalg.svd(kept @ view)[1]
        np.testing.assert_allclose(np.linalg.svd(part)[1][: len(expected)], expected, atol=1e-10)
    for k in (1, 2):
        value, _ = _remove(rotated, sigma, np.ones(k)).evaluate(np.arange(30 - 1 - 6 - 2 * k)[None, :])
        assert value[0] == pytest.approx(sigma[k], abs=1e-10)


def test_p_values_of_part_correlations_are_uniform_for_unrelated_views():
    """Residuals of X that are permuted over all rows meet what the covariates explain of Y."""
    first, before, ignored = [], [], []
    for seed in range(100):
        x, y, z = confounded(seed, 40, (6, 5))
        options = {"n_permutations": 39, "n_components": 1, "random_state": seed}
        first.append(permutation_test((0, 0), x, y, covariates=(z, None), **options).p_values[0])
        before.append(permutation_test((0, 0), regress(x, z, np.arange(40)), y, **options).p_values[0])
        ignored.append(permutation_test((0, 0), x, y, **options).p_values[0])
    assert kstest(first, "uniform").pvalue > 0.01
    assert np.count_nonzero(np.array(first) <= 0.05) <= binom.ppf(0.999, 100, 0.05)
    assert kstest(before, "uniform").pvalue < 0.001
    assert np.count_nonzero(np.array(ignored) <= 0.05) > 90


def test_the_same_for_both_is_one_array_and_a_test_says_what_it_did():
    x, y, z = confounded(15, 60, (4, 3), 2, 2.0)
    options = {"n_permutations": 19, "n_components": 2}
    both = permutation_test((1, 1), x, y, covariates=(z, z.copy()), **options)
    single = permutation_test((1, 1), x, y, covariates=z, **options)
    np.testing.assert_allclose(both.null, single.null, rtol=1e-10)
    assert both.n_covariates == (2, 2)
    assert "alone" not in both.describe()
    part = permutation_test((1, 1), x, y, covariates=(None, z), **options)
    assert part.n_covariates == (0, 2)
    assert "out of Y alone" in part.describe()
    assert str(part).splitlines()[0] == "Permutation test, 19 permutations without 2 covariates"
    with pytest.raises(InputError, match="covariates of X and others of Y leave the views in different dim"):
        permutation_test((1, 1), x, y, covariates=(z, z[:, :1]), **options)
    with pytest.raises(InputError, match="the same covariates for both views; use permutation_test"):
        classical_tests(x, y, covariates=(z, None))


def test_shared_covariates_count_once():
    x, y, z = confounded(16, 40, (9, 8), 12)
    pairs = prepare_pairs((0, 0), x, y, None, "search", covariates=(z[:, :8], z[:, 5:]))
    assert pairs.n_covariates == (8, 7)
    assert pairs.n_shared == 3
    assert pairs.free_spectra.count == 37
    part = permutation_test((0, 0), x[:29], y[:29], covariates=(z[:29], None), n_permutations=9)
    assert part.correlations[0] < 1
    with pytest.raises(InputError, match="for 29 pairs without 12 covariates"):
        permutation_test((0, 0), x[:29], y[:29], covariates=z[:29])


def test_what_is_left_beside_covariates_is_found():
    x, y, covariates = confounded(13, 60, (10, 8), 5, 3.0)
    test = permutation_test((1.0, 1.0), x, y, covariates=covariates, n_permutations=99)
    assert test.p_values[0] == 0.01
    assert str(test).splitlines()[0] == "Permutation test, 99 permutations without 5 covariates"
    held_out = cross_validated_correlations((1.0, 1.0), x, y, covariates=covariates)
    assert held_out.mean[0] > 0.5


def test_held_out_correlations_of_unrelated_views_are_around_zero():
    values = []
    for seed in range(60):
        x, y, covariates = confounded(seed, 60, (6, 5), 4)
        result = cross_validated_correlations((1.0, 1.0), x, y, covariates=covariates, n_components=1)
        values.append(result.mean[0])
    assert abs(np.mean(values)) < 4 * np.std(values) / len(values) ** 0.5


@given(st.integers(0, 10**6), st.integers(0, 4))
def test_scores_are_orthonormal(seed, n_covariates):
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, 30).astype(float)
    covariates = rng.normal(size=(30, n_covariates)) * 10.0 ** rng.integers(-4, 7, n_covariates) + 100
    scores = CovariateBasis.fit(covariates, weights).scores(covariates)
    np.testing.assert_allclose(weights @ scores, 0, atol=1e-8)
    np.testing.assert_allclose(scores.T * weights @ scores, np.eye(scores.shape[1]), atol=1e-6)


@pytest.mark.parametrize(
    ("covariates", "message"),
    [
        (np.ones((20, 1)), "covariates has 20 rows; expected one for each of the 40 rows of X"),
        (np.full((40, 1), np.nan), "covariates contains NaN"),
        (np.full((40, 1), "old"), "covariates has values that are not numbers"),
        (np.random.default_rng(0).normal(size=(40, 39)), "independent covariates leave nothing of"),
        (np.random.default_rng(0).normal(size=(40, 3, 2)), "covariates has 3 dimension"),
    ],
)
def test_wrong_covariates_are_explained(covariates, message, compute):
    x, y, _ = confounded(0)
    with pytest.raises(InputError, match=message):
        compute(x, y, covariates=covariates)


def test_covariates_and_blocks_are_not_exchanged_together():
    x, y, covariates = confounded(0)
    with pytest.raises(InputError, match="covariates and blocks are not supported together"):
        permutation_test((1, 1), x, y, covariates=covariates, blocks=np.arange(40) % 4)
    # The folds of the one are whole blocks.
    result = cross_validated_correlations((1, 1), x, y, covariates=covariates, blocks=np.arange(40) % 4, cv=4)
    assert result.folds.shape == (4, 8)


def test_too_many_covariates_are_explained():
    x, y, covariates = confounded(0)
    with pytest.raises(InputError, match="9 and 8 features without 30 covariates; give at least 49 pairs"):
        classical_tests(x, y, covariates=np.random.default_rng(0).normal(size=(40, 30)))
    with pytest.raises(InputError, match="for 40 pairs without 30 covariates"):
        permutation_test((0, 0), x, y, covariates=np.random.default_rng(0).normal(size=(40, 30)))
    with pytest.raises(InputError, match="directions without regularisation and 10 covariates"):
        bootstrap((0, 0), x, y, covariates=covariates)
    with pytest.raises(InputError, match="the covariates explain X completely"):
        classical_tests(covariates[:, :2], y, covariates=covariates)
