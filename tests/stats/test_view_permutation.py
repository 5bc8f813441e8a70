"""The permutation test of several views."""

import numpy as np
import pytest
from scipy.stats import kstest

from diptych import GCCA, InputError
from diptych.stats import permutation_test, permutation_test_views
from diptych.stats._view_permutation import scaled_eigenvalue


def make_noise(rng, n=30, sizes=(3, 2, 2)):
    return [rng.normal(size=(n, m)) for m in sizes]


def test_the_statistic_is_the_eigenvalue_of_gcca(rng):
    views = make_noise(rng)
    model = GCCA(n_components=1, params=(2.0, 0.0, 5.0)).fit(views)
    test = permutation_test_views(model, views, n_permutations=5)
    assert test.correlations[0] == pytest.approx((model.eigenvalues_[0] - 1) / 2, abs=1e-8)
    for seed, value in enumerate(test.null[:, 0]):
        draw = np.random.default_rng([0, seed])
        permuted = [views[0], *(draw.permutation(view) for view in views[1:])]
        refitted = GCCA(n_components=1, params=(2.0, 0.0, 5.0)).fit(permuted)
        assert value == pytest.approx((refitted.eigenvalues_[0] - 1) / 2, abs=1e-8)


def test_a_view_of_one_feature_is_enough(rng):
    x, y = rng.normal(size=(2, 50, 1))
    rows = [(view - view.mean()) / np.linalg.norm(view - view.mean()) for view in (x, y)]
    assert scaled_eigenvalue(rows) == pytest.approx(abs(np.corrcoef(x[:, 0], y[:, 0])[0, 1]), abs=1e-9)


def test_p_values_of_unrelated_views_are_uniform():
    rng = np.random.default_rng(0)
    p = [
        permutation_test_views((1.0, 1.0, 1.0), make_noise(rng), n_permutations=39).p_values[0]
        for _ in range(100)
    ]
    # They are multiples of 1/40.
    assert kstest(np.array(p) - rng.uniform(0, 1 / 40, len(p)), "uniform").pvalue > 0.01


def test_a_relation_of_two_of_three_views_is_found(rng):
    x, y, z = make_noise(rng)
    test = permutation_test_views((0, 0, 0), [x, y, 0.3 * z[:, :1] + x[:, :1]], n_permutations=199)
    assert test.p_values[0] == pytest.approx(1 / 200)
    assert "of 3 views (3, 2 and 1 features) of 30 rows" in test.describe()
    assert "eigenvalue λ" in test.describe()
    assert str(test).startswith("Permutation test, 199 permutations")
    assert test.to_frame().shape == (1, 6)


def test_two_views_have_the_p_value_of_the_test_of_pairs(rng):
    x, y, _ = make_noise(rng)
    y[:, 0] += 0.6 * x[:, 0]
    ours = permutation_test_views((1, 2), [x, y], n_permutations=999)
    theirs = permutation_test((1, 2), x, y, n_permutations=999, n_components=1)
    assert ours.correlations[0] == pytest.approx(theirs.correlations[0], abs=1e-8)
    difference = abs(ours.p_values[0] - theirs.p_values[0])
    assert difference < 4 * np.hypot(ours.standard_errors[0], theirs.standard_errors[0])
    assert "of two views (3 and 2 features) of 30 pairs" in ours.describe()


def test_gammas_of_a_model_are_scaled_by_the_number_of_rows(rng):
    views = make_noise(rng, n=60)
    model = GCCA(params=(4.0, 8.0, 2.0)).fit(views)
    half = permutation_test_views(model, [view[:30] for view in views], n_permutations=9)
    assert [filter.gamma for filter in half.filters] == [2.0, 4.0, 1.0]


def test_what_cannot_be_tested_is_refused(rng):
    with pytest.raises(InputError, match="nothing to test"):
        permutation_test_views((0, 0), make_noise(rng, n=10, sizes=(9, 9)), n_permutations=9)
    with pytest.raises(InputError, match="not a γ for each of 3 views"):
        permutation_test_views((0, 0), make_noise(rng))
    with pytest.raises(InputError, match="not a γ for each"):
        permutation_test_views("model", make_noise(rng))
    with pytest.raises(InputError, match="n_permutations"):
        permutation_test_views((0, 0, 0), make_noise(rng), n_permutations=0)
