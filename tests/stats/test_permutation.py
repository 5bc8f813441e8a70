"""Permutation tests: against refits on permuted pairs, enumeration, and simulated data sets."""

import re
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, kstest
from sklearn.datasets import load_linnerud

from diptych import AWCCA, InputError
from diptych._checks import DataWarning
from diptych.cca import SpectralFilter
from diptych.stats import _chains, classical_tests, permutation_test
from diptych.stats._chains import Remainder, draw_statistics, standard_error
from diptych.stats._pairs import ExchangeBlocks, prepare_pairs
from diptych.stats._permutation import METHODS, _remove, _whiten_pairs
from engines import InTree

GAMMA = (20.0, 30.0)


def unrelated(seed, rows=20, features=(30, 25), signal=0.0):
    """Two views that share one hidden cause if there is a signal."""
    rng = np.random.default_rng(seed)
    x, y = (rng.normal(size=(rows, size)) for size in features)
    hidden = signal * rng.normal(size=rows)
    x[:, 0] += hidden
    y[:, 0] += hidden
    return x, y


def rotate(model, x, y, pairing=None, blocks=None):
    """Return the rotated whitened views of a test and their correlations."""
    return _whiten_pairs(prepare_pairs(model, x, y, pairing, "search"), blocks).rotate()


def permuted_correlations(model, x, y, orders, pairing=None):
    """Return the first correlation for each permutation: row i of the permuted x is row ``order[i]``."""
    whitened = _whiten_pairs(prepare_pairs(model, x, y, pairing, "search"), None)
    remainder = Remainder(whitened.a, whitened.b, whitened.blocks)
    return np.concatenate([remainder.evaluate(np.asarray(order)[None, :])[0] for order in orders])


FILTERS = {
    "tikhonov": {"params": (3.0, 5.0)},
    "plain": {"params": (0.0, 0.0)},
    "tsvd": {"filter": "tsvd", "params": (3, 2)},
    "custom": {"filter": SpectralFilter(lambda squares, p: 1 / (squares + p) ** 1.1), "params": (3.0, 5.0)},
    "unit": {"params": (0.5, 0.2), "normalize": ("unit", "sqrt-unit")},
}


@given(st.sampled_from(sorted(FILTERS)), st.integers(1, 3), st.integers(0, 1000), st.booleans())
def test_a_permutation_gives_the_correlations_of_a_refit(name, rows_of_y, seed, torch_arrays):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(15, 5)), rng.normal(size=(15 * rows_of_y, 4))
    pairing = rng.permutation(np.repeat(np.arange(15), rows_of_y))
    order = rng.permutation(15)
    model = AWCCA(**FILTERS[name], verbose=False).fit(x, y, pairing)
    refit = AWCCA(**FILTERS[name], verbose=False).fit(x[order], y, pairing)
    given_x, given_y = x, y
    if torch_arrays:
        torch = pytest.importorskip("torch")
        given_x, given_y = torch.asarray(x), torch.asarray(y)
    value = permuted_correlations(model, given_x, given_y, [order], pairing)
    np.testing.assert_allclose(value, refit.models_["search"].correlations[:1], rtol=1e-9)


def test_correlations_are_those_of_the_model():
    x, y = unrelated(0)
    model = AWCCA(params=GAMMA).fit(x, y)
    test = permutation_test(model, x, y, n_permutations=5)
    assert len(test.correlations) == 9
    np.testing.assert_allclose(test.correlations, model.models_["search"].correlations[:9], rtol=1e-10)
    assert test.null.shape == (5, 9)


@pytest.mark.parametrize("rows_of_y", [1, 3])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_what_remains_keeps_its_correlations_and_products(rows_of_y, k):
    x, y = unrelated(0)
    pairing = np.repeat(np.arange(20), rows_of_y)
    y = np.random.default_rng(1).normal(size=(len(pairing), 25)) if rows_of_y > 1 else y
    rotated, sigma = rotate(GAMMA, x, y, pairing)
    remainder = _remove(rotated, sigma, np.ones(k))
    assert len(remainder.a) == len(remainder.blocks.labels) == 20 - 1 - 2 * k
    value, _ = remainder.evaluate(np.arange(len(remainder.a))[None, :])
    assert value[0] == pytest.approx(sigma[k], abs=1e-10)
    # The basis is orthonormal: products of a view with itself are those of its two parts.
    z = np.linalg.qr(np.column_stack([rotated.removed, rotated.a[:, :k], rotated.b[:, :k]]))[0]
    for part, view in ((remainder.a, rotated.a[:, k:]), (remainder.b, rotated.b[:, k:])):
        along = z.T @ view
        np.testing.assert_allclose(part.T @ part + along.T @ along, view.T @ view, atol=1e-10)


def test_the_first_p_value_is_that_of_all_permutations():
    x, y = unrelated(3, 6, (3, 3), 1.0)
    every = permuted_correlations((1.0, 1.0), x, y, list(permutations(range(6))))
    test = permutation_test((1.0, 1.0), x, y, n_permutations=5000, n_components=1)
    exact = np.mean(every >= test.correlations[0] * (1 - 1e-8))
    assert test.p_values[0] == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 5000))


@pytest.mark.parametrize(("p_corrected", "power"), [(0.9, 1.0), (0.01, 0.5)])
@pytest.mark.parametrize("blocks", [None, [0, 0, 0, 0, 1, 1, 1, 1, 1]])
def test_chains_draw_permutations_with_their_weights(blocks, p_corrected, power):
    x, y = unrelated(5, 9, (4, 4), 1.0)
    rotated, sigma = rotate((1.0, 1.0), x, y, blocks=None if blocks is None else np.array(blocks))
    remainder = _remove(rotated, sigma, np.array([p_corrected]))
    labels = remainder.blocks.labels
    every = np.array([o for o in permutations(range(len(labels))) if np.array_equal(labels[list(o)], labels)])
    values, logs = remainder.evaluate(every)
    squares = (
        np.array([np.linalg.svd(remainder.a[list(o)].T @ remainder.b + remainder.fixed)[1] for o in every])
        ** 2
    )
    with np.errstate(divide="ignore"):
        expected = power * np.log(np.maximum(sigma[0] ** 2 - squares, 0.0)).sum(axis=1)
    possible = np.isfinite(expected)
    np.testing.assert_array_equal(np.isfinite(logs), possible)
    steps = logs[possible] - expected[possible]  # weights are known up to a factor
    np.testing.assert_allclose(steps, steps[0], atol=1e-9)
    weights = np.exp(logs - logs.max())
    assert np.min(weights) < 0.5 * np.max(weights)
    sample = np.concatenate(draw_statistics(remainder, 8000, [0, 1]))
    assert len(sample) == 8000
    for cut in np.quantile(values, [0.2, 0.5, 0.8]):
        exact = np.sum(weights[values > cut]) / np.sum(weights)
        # Neighbours in a chain are alike, so the error is that of far fewer draws.
        assert np.mean(sample > cut) == pytest.approx(exact, abs=4 * np.sqrt(0.25 / 1000))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(0, 1000))
def test_rows_change_places_within_their_label(labels, seed):
    labels, rng = np.array(labels), np.random.default_rng(seed)
    part = rng.permutation(len(labels))[: rng.integers(1, len(labels) + 1)]
    order = ExchangeBlocks(labels).permute_part(np.arange(len(labels)), part, rng)
    assert sorted(order) == list(range(len(labels)))
    np.testing.assert_array_equal(labels[order], labels)
    others = np.setdiff1d(np.arange(len(labels)), part)
    np.testing.assert_array_equal(order[others], others)


def test_rows_change_places_with_those_of_as_many_rows_of_y():
    pairing = np.array([0, 0, 1, 1, 2, 3, 4, 4, 5, 6])  # row 7 has none
    labels = ExchangeBlocks.of_pairs(None, pairing, 8).labels
    assert [labels[i] == labels[0] for i in range(7)] == [True, True, False, False, True, False, False]
    blocks = np.array([0, 1, 0, 0, 1, 1, 1, 5])
    labels = ExchangeBlocks.of_pairs(blocks, pairing, 8).labels
    assert len(set(labels[[0, 1, 2, 5]])) == 4
    assert labels[1] == labels[4]


def test_blocks_account_for_subjects():
    rng = np.random.default_rng(0)
    subject = np.arange(40) % 8
    differences = 3 * rng.normal(size=(8, 2))
    x, y = rng.normal(size=(40, 30)), rng.normal(size=(40, 25))
    x[:, :2] += differences[subject]
    y[:, :2] += differences[subject]
    settings = {"n_permutations": 199, "n_components": 2}
    assert permutation_test(GAMMA, x, y, **settings).p_values[0] == 1 / 200
    assert permutation_test(GAMMA, x, y, **settings, blocks=subject).p_values[0] > 0.05
    names = np.array([f"subject {number}" for number in subject])
    one, other = (permutation_test(GAMMA, x, y, **settings, blocks=labels) for labels in (subject, names))
    np.testing.assert_array_equal(one.null, other.null)


@pytest.mark.parametrize("rows_of_y", [1, 2])
def test_block_means_are_out(rows_of_y):
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 6, 40)
    pairing = np.repeat(np.arange(40), rows_of_y)
    x, y = rng.normal(size=(40, 5)), rng.normal(size=(40 * rows_of_y, 4))
    y[:, 0] += x[pairing, 0]
    options = {"blocks": blocks, "n_permutations": 30, "n_components": 2}
    test = permutation_test((2.0, 3.0), x, y, pairing, **options)
    dummies = np.eye(6)[blocks]
    centred_x, centred_y = (
        view - design @ np.linalg.lstsq(design, view)[0]
        for view, design in ((x, dummies), (y, dummies[pairing]))
    )
    model = AWCCA(params=(2.0, 3.0), verbose=False).fit(centred_x, centred_y, pairing)
    np.testing.assert_allclose(test.correlations, model.models_["search"].correlations[:2], atol=1e-10)
    exchange = ExchangeBlocks.of_pairs(blocks, pairing, 40)
    orders = [exchange.permute(np.random.default_rng([0, 0, 1 + number])) for number in range(30)]
    expected = permuted_correlations((2.0, 3.0), centred_x, centred_y, orders, pairing)
    np.testing.assert_allclose(test.null[:, 0], expected, rtol=1e-9)
    # What is constant in a block changes nothing.
    more_x, more_y = x + 9 * rng.normal(size=(6, 5))[blocks], y + 9 * rng.normal(size=(6, 4))[blocks][pairing]
    other = permutation_test((2.0, 3.0), more_x, more_y, pairing, **options)
    np.testing.assert_allclose(other.null, test.null, rtol=1e-7)
    np.testing.assert_allclose(other.correlations, test.correlations, rtol=1e-9)
    torch = pytest.importorskip("torch")
    tensors = permutation_test(
        (2.0, 3.0), torch.asarray(x), torch.asarray(y), torch.asarray(pairing), **options
    )
    np.testing.assert_allclose(tensors.null, test.null, rtol=1e-9)


def test_correlations_within_blocks_are_partial_ones():
    rng = np.random.default_rng(1)
    blocks = np.arange(60) % 7
    x, y = rng.normal(size=(60, 4)), rng.normal(size=(60, 3))
    test = permutation_test((0, 0), x, y, blocks=blocks, n_permutations=1)
    expected = classical_tests(x, y, covariates=np.eye(7)[blocks])
    np.testing.assert_allclose(test.correlations, expected.correlations, atol=1e-10)
    x[:, 0] = blocks
    assert len(permutation_test((0, 0), x, y, blocks=blocks, n_permutations=1).correlations) == 3
    with pytest.raises(InputError, match="X is constant within every block"):
        permutation_test((0, 0), x[:, :1], y, blocks=blocks)


def test_a_second_component_is_not_found_falsely_beside_a_real_one_and_subjects():
    subject, found = np.repeat(np.arange(10), 5), 0
    for seed in range(120):
        rng = np.random.default_rng(seed)
        shared = 3 * rng.normal(size=(50, 1)), 3 * rng.normal(size=(10, 3))[subject]
        x, y = rng.normal(size=(50, 6)), rng.normal(size=(50, 5))
        for view in (x, y):
            view[:, :1] += shared[0]
            view[:, 1:4] += shared[1]
        test = permutation_test(
            (1.0, 1.0), x, y, blocks=subject, n_permutations=79, n_components=2, random_state=seed
        )
        assert test.p_values[0] <= 0.05
        found += int(test.p_corrected[1] <= 0.05)
    assert found <= binom.ppf(0.999, 120, 0.06)


def test_neither_engine_nor_chunks_nor_backend_change_the_result(monkeypatch):
    x, y = unrelated(0, signal=2.0)
    settings = {"n_permutations": 130, "n_components": 3, "random_state": 7}
    test = permutation_test(GAMMA, x, y, **settings)
    np.testing.assert_allclose(permutation_test(GAMMA, x, y, **settings, engine=InTree()).null, test.null)
    monkeypatch.setattr(_chains, "_ENTRIES_AT_ONCE", 1)
    np.testing.assert_allclose(permutation_test(GAMMA, x, y, **settings).null, test.null, rtol=1e-9)
    for seed in (8, None):
        other = permutation_test(GAMMA, x, y, **settings | {"random_state": seed})
        assert not np.allclose(other.null, test.null)
    torch = pytest.importorskip("torch")
    tensors = torch.asarray(x), torch.asarray(y)
    np.testing.assert_allclose(permutation_test(GAMMA, *tensors, **settings).null, test.null, rtol=1e-9)
    on_device = permutation_test(GAMMA, x, y, **settings, device="cpu", engine=InTree())
    np.testing.assert_allclose(on_device.null, test.null, rtol=1e-9)


@pytest.mark.parametrize("features", [(100, 100), (70, 300), (300, 66)])
@pytest.mark.parametrize("rows", [90, 200])
@pytest.mark.parametrize("torch_arrays", [False, True])
def test_large_matrices_give_the_same_first_correlation(features, rows, torch_arrays):
    x, y = unrelated(0, rows, features)
    rotated, _ = rotate(GAMMA, x, y)
    orders = np.stack([np.random.default_rng(seed).permutation(rows) for seed in range(5)])
    expected = [np.linalg.svd(rotated.a[order].T @ rotated.b, compute_uv=False)[0] for order in orders]
    a, b = rotated.a, rotated.b
    if torch_arrays:
        torch = pytest.importorskip("torch")
        a, b = torch.asarray(a), torch.asarray(b)
    remainder = Remainder(a, b, rotated.blocks)
    assert _chains.is_large(a, b)
    np.testing.assert_allclose(remainder.evaluate(orders)[0], expected, rtol=1e-9)


def test_a_test_of_large_matrices_has_the_same_null(monkeypatch):
    views, options = unrelated(0, 80, (70, 90)), {"n_permutations": 70, "n_components": 1}
    test = permutation_test(GAMMA, *views, **options)
    monkeypatch.setattr(_chains, "_SMALL", 1000)
    np.testing.assert_allclose(permutation_test(GAMMA, *views, **options).null, test.null, rtol=1e-8)


def test_equal_correlations_are_found_too(monkeypatch):
    # Every singular value of an orthogonal matrix is 1, and Lanczos' algorithm ends after one step.
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(80, 80)))[0]
    remainder = Remainder(np.eye(80), turn, ExchangeBlocks(np.zeros(80, dtype=int)))
    orders = np.random.default_rng(0).permutation(80)[None, :]
    assert remainder.evaluate(orders)[0] == pytest.approx(1.0, rel=1e-9)
    monkeypatch.setattr(_chains, "_MOST_STEPS", 3)  # as if it did not converge
    assert remainder.evaluate(orders)[0] == pytest.approx(1.0, rel=1e-12)


def collect_p_values(signal, n_components):
    options = {"n_permutations": 39, "n_components": n_components}
    tests = (
        permutation_test(GAMMA, *unrelated(seed, signal=signal), random_state=seed, **options)
        for seed in range(60)
    )
    return np.array([test.p_values for test in tests])


def test_p_values_are_uniform_if_the_views_are_unrelated():
    values = collect_p_values(0.0, 3)
    for k in range(3):
        assert kstest(values[:, k], "uniform").pvalue > 0.01


def test_the_second_p_value_is_uniform_if_only_the_first_component_is_real():
    values = collect_p_values(8.0, 2)
    assert np.mean(values[:, 0] <= 0.05) > 0.99
    assert kstest(values[:, 1], "uniform").pvalue > 0.01


@pytest.mark.parametrize("n_permutations", [1, 2, 3, 5, 80, 317])
def test_chains_have_as_many_permutations_as_asked_for(n_permutations):
    rotated, sigma = rotate(GAMMA, *unrelated(0))
    chains = draw_statistics(_remove(rotated, sigma, np.ones(1)), n_permutations, [0, 1])
    sizes = [len(values) for values in chains]
    assert sum(sizes) == n_permutations
    assert max(sizes) <= 80
    assert len(chains) >= min(4, n_permutations // 2)


def test_the_standard_error_is_that_of_chains_that_differ():
    assert standard_error([np.array([value]) for value in (1.0, 1.0, 3.0, 3.0)], 2.0) == pytest.approx(
        np.sqrt(0.6 * 0.4 / 4), rel=0.2
    )
    # Two chains of which one has all the large values are as one pair of draws.
    apart = standard_error([np.zeros(50), np.ones(50)], 0.5)
    assert apart == pytest.approx(np.sqrt(2 * (0.25**2 + 0.25**2)))
    alike = standard_error([np.arange(50) % 2, np.arange(50) % 2], 0.5)
    assert alike == pytest.approx(np.sqrt(0.25 / 100), rel=0.01)
    assert standard_error([np.zeros(50), np.zeros(50)], 0.5) > 0


def test_standard_errors_are_the_deviations_between_seeds():
    x, y = unrelated(2, 30, (12, 10))
    tests = [
        permutation_test((2.0, 2.0), x, y, n_permutations=160, n_components=3, random_state=seed)
        for seed in range(60)
    ]
    deviations = np.std([test.p_values for test in tests], axis=0, ddof=1)
    errors = np.sqrt(np.mean([test.standard_errors**2 for test in tests], axis=0))
    # The standard deviation of 60 draws is within a third of the true one.
    np.testing.assert_allclose(errors / deviations, 1.0, atol=0.4)
    independent = np.sqrt(np.mean([test.p_values * (1 - test.p_values) for test in tests], axis=0) / 160)
    np.testing.assert_allclose(errors[0], independent[0], rtol=0.02)
    assert np.all(errors[1:] > 1.2 * independent[1:])


def test_wilks_is_that_of_statsmodels():
    cancorr = pytest.importorskip("statsmodels.multivariate.cancorr")
    x, y = unrelated(1, 60, (5, 4), 1.0)
    test = permutation_test((0, 0), x, y, n_permutations=99, statistic="wilks")
    expected = cancorr.CanCorr(y, x).corr_test().stats["Wilks' lambda"].to_numpy(dtype=float)
    np.testing.assert_allclose(np.exp(-test.observed), expected, rtol=1e-9)
    # Permuted views are two views, whose statistic is known too.
    orders = [
        ExchangeBlocks(np.zeros(60, dtype=int)).permute(np.random.default_rng([0, 0, 1 + at]))
        for at in (0, 1)
    ]
    for value, order in zip(test.null[:2, 0], orders, strict=True):
        permuted = cancorr.CanCorr(y, x[order]).corr_test().stats["Wilks' lambda"].iloc[0]
        assert np.exp(-value) == pytest.approx(permuted, rel=1e-9)
    assert "−Σ log(1 − r²)" in str(test).splitlines()[1]
    np.testing.assert_array_equal(test.to_frame()["statistic"], test.observed)
    assert "all later ones (Wilks' Λ) as statistic" in test.describe()


@pytest.mark.parametrize("method", METHODS)
def test_wilks_of_the_last_component_is_a_function_of_its_correlation(method):
    x, y = unrelated(1, 40, (5, 3))
    options = {"n_permutations": 99, "method": method, "random_state": 1}
    roy, wilks = (permutation_test((2.0, 3.0), x, y, **options, statistic=name) for name in ("roy", "wilks"))
    np.testing.assert_allclose(wilks.observed[2], -np.log(1 - roy.observed[2] ** 2))
    np.testing.assert_allclose(wilks.correlations, roy.correlations, rtol=1e-12)
    np.testing.assert_array_equal(roy.observed, roy.correlations)
    if method == "stepwise":
        np.testing.assert_allclose(wilks.null[:, 2], -np.log(1 - roy.null[:, 2] ** 2))


def test_wilks_finds_several_weak_components_more_often_and_nothing_else():
    found, values = {"roy": 0, "wilks": 0}, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        hidden, x, y = rng.normal(size=(80, 6)), rng.normal(size=(80, 12)), rng.normal(size=(80, 10))
        options = {"n_permutations": 79, "random_state": seed}
        values.append(permutation_test(GAMMA, x, y, **options, n_components=2, statistic="wilks").p_values)
        x[:, :6] += 0.7 * hidden
        y[:, :6] += 0.7 * hidden
        for statistic in found:
            test = permutation_test((0, 0), x, y, **options, n_components=1, statistic=statistic)
            found[statistic] += int(test.p_values[0] <= 0.05)
    assert found["wilks"] >= found["roy"] + 10
    for k in range(2):
        assert kstest(np.array(values)[:, k], "uniform").pvalue > 0.01


def test_stepwise_permutations_are_those_of_winkler():
    """Canonical variates after the k-th are permuted and related again, by QR, without anything of ours."""
    x, y = unrelated(1, 40, (5, 4), 2.0)
    test = permutation_test((0, 0), x, y, n_permutations=49, method="stepwise", random_state=3)
    q_x, q_y = (np.linalg.qr(view - view.mean(axis=0))[0] for view in (x, y))
    left, sigma, right = np.linalg.svd(q_x.T @ q_y)
    u, v = q_x @ left, q_y @ right.T
    np.testing.assert_allclose(test.correlations, sigma)
    blocks = ExchangeBlocks(np.zeros(40, dtype=int))
    for number in range(49):
        order = blocks.permute(np.random.default_rng([3, 0, 1 + number]))
        for k in range(4):
            bases = np.linalg.qr(u[order][:, k:])[0], np.linalg.qr(v[:, k:])[0]
            expected = np.linalg.svd(bases[0].T @ bases[1])[1][0]
            assert test.null[number, k] == pytest.approx(expected, abs=1e-9)
    above = np.count_nonzero(test.null >= test.correlations * (1 - 1e-8), axis=0)
    np.testing.assert_allclose(test.p_values, (1 + above) / 50)
    np.testing.assert_allclose(test.p_corrected, np.maximum.accumulate(test.p_values))
    first = permutation_test((0, 0), x, y, n_permutations=49, random_state=3, n_components=1)
    np.testing.assert_array_equal(first.null[:, 0], test.null[:, 0])


def test_stepwise_permutations_leave_covariates_out():
    x, y = unrelated(1, 40, (5, 4))
    covariates = np.random.default_rng(0).normal(size=(40, 6))
    options = {"covariates": covariates, "n_permutations": 9}
    stepwise, conditional = (
        permutation_test((0, 0), x, y, **options, method=method) for method in METHODS[::-1]
    )
    np.testing.assert_array_equal(stepwise.null[:, 0], conditional.null[:, 0])
    assert not np.allclose(stepwise.null[:, 1], conditional.null[:, 1])


def test_a_paragraph_describes_what_was_done():
    x, y = unrelated(1, 40, (5, 4), 5.0)
    text = permutation_test((0, 0), x, y, n_permutations=199).describe()
    assert text.startswith(
        "Canonical correlations of two views (5 and 4 features) of 40 pairs were computed without "
        "regularisation. The correlations were tested by 199 permutations of the pairs, with"
    )
    assert "Glynn and Muirhead, 1978" in text
    assert "covariate" not in text
    assert text.endswith(
        "Of 4 components, 1 was significant at 5 % (component 1: 0.969, corrected p = 0.005; Monte Carlo "
        "standard error at most 0.0050)."
    )
    blocks = np.arange(40) % 4
    settings = {"n_permutations": 9, "method": "stepwise", "n_components": 2}
    text = permutation_test(GAMMA, *unrelated(1, 40), blocks=blocks, **settings).describe()
    assert "(γ = 20 for X, γ = 30 for Y)" in text
    assert "9 permutations of the pairs within blocks, whose means were subtracted" in text
    assert "left out of both views (Winkler et al., 2020)" in text
    assert "Metropolis" not in text
    assert "Of 2 components, none were significant at 5 % (component 1: " in text
    covariates = np.random.default_rng(0).normal(size=(40, 2))
    test = permutation_test((0, 0), x, y, covariates=covariates, n_permutations=9, n_components=1)
    assert "an intercept and 2 covariates leave" in test.describe()
    assert "Each later component" not in test.describe()
    assert "Of 1 component, 1 was significant at 20 %" in test.describe(alpha=0.2)
    with pytest.raises(InputError, match="alpha=2.0 is not between 0 and 1"):
        test.describe(2)


def test_tables_show_every_component():
    x, y = load_linnerud(return_X_y=True)
    test = permutation_test((0, 0), x, y, n_permutations=50)
    lines = str(test).splitlines()
    assert lines[0] == "Permutation test, 50 permutations"
    assert [line.split()[1] for line in lines[2:]] == ["0.7956", "0.2006", "0.0726"]
    frame = test.to_frame()
    np.testing.assert_array_equal(frame["p_value"], test.p_values)
    assert list(frame.index) == [1, 2, 3]
    np.testing.assert_array_equal(test.p_corrected, np.maximum.accumulate(test.p_values))
    assert np.all((test.p_values > 0) & (test.p_values <= 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_permutations": 0}, "n_permutations=0"),
        ({"random_state": -1}, "random_state=-1"),
        ({"n_components": 10}, "n_components=10 is not possible here; give 1 to 9"),
        ({"model": (0, 0)}, "the correlations are the same whatever the pairing"),
        ({"model": (0, 30.0)}, "the correlations are the same whatever the pairing"),
        ({"model": "cca"}, "str is not a model"),
        ({"blocks": np.arange(20)}, "no two rows of X may change places"),
        ({"blocks": np.arange(3)}, "blocks has shape"),
        ({"blocks": np.full(20, np.nan)}, "blocks has no label for 20 rows of X, the first of them row 0"),
        ({"blocks": ["a", None, *"cab" * 6]}, "blocks has no label for 1 row of X, the first of them row 1"),
        ({"blocks": ["a", float("nan"), *"cab" * 6]}, "blocks has no label for 1 row of X"),
        ({"blocks": ["a", 2, *"cab" * 6]}, "blocks has labels of different types (int and str)"),
        ({"task": "find"}, "task='find'"),
        ({"statistic": "pillai"}, "statistic='pillai' is unknown; choose one of 'roy', 'wilks'"),
        ({"method": "plain"}, "method='plain' is unknown; choose one of 'conditional', 'stepwise'"),
    ],
)
def test_wrong_input_is_explained(change, message):
    x, y = unrelated(0)
    settings = {"model": GAMMA, "n_permutations": 5} | change
    with pytest.raises(InputError, match=re.escape(message)):
        permutation_test(settings.pop("model"), x, y, **settings)


def test_few_arrangements_are_pointed_out():
    x, y = unrelated(0)
    blocks = np.array([0, 0, 0, 1, 1, *range(2, 17)])
    with pytest.warns(DataWarning, match="only 12 arrangements, so no p-value can be much below 0.083"):
        permutation_test(GAMMA, x, y, n_permutations=20, blocks=blocks, n_components=1)
