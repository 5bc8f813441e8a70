"""What changes places in a permutation test: circular shifts, whole blocks, and a warning for time series."""

import warnings

import numpy as np
import pytest
from scipy.stats import binom

from diptych import AWCCA, InputError
from diptych._checks import DataWarning
from diptych.stats import permutation_test
from diptych.stats._pairs import ExchangeBlocks
from diptych.stats._permutation import lag_correlation


def make_series(seed, rows=120, features=(3, 3), coefficient=0.7, signal=0.0):
    """Return two autoregressive series, which share one of their causes if there is a signal."""
    rng = np.random.default_rng(seed)
    steps = rng.normal(size=(rows + 100, sum(features) + 1))
    series = np.zeros_like(steps)
    for time in range(1, len(steps)):
        series[time] = coefficient * series[time - 1] + steps[time]
    x, y = np.split(series[100:, 1:], [features[0]], axis=1)
    return x + signal * series[100:, :1], y + signal * series[100:, :1]


def test_shifts_are_circular():
    blocks = ExchangeBlocks.of_pairs(None, np.arange(7), 7, "shift")
    orders = {tuple(blocks.permute(np.random.default_rng(seed))) for seed in range(200)}
    assert orders == {tuple(np.roll(np.arange(7), shift)) for shift in range(7)}
    labels = np.array([0, 1, 0, 1, 1, 0])
    blocks = ExchangeBlocks.of_pairs(labels, np.arange(6), 6, "shift")
    orders = {tuple(blocks.permute(np.random.default_rng(seed))) for seed in range(400)}
    assert len(orders) == 9
    for order in orders:
        np.testing.assert_array_equal(labels[list(order)], labels)
        places = [0, 2, 5].index(order[0])
        assert [order[row] for row in (0, 2, 5)] == list(np.roll([0, 2, 5], -places))


def test_whole_blocks_keep_the_order_of_their_rows():
    labels = np.array(["a", "b", "a", "b", "c", "d", "d", "e", "e"])
    blocks = ExchangeBlocks.of_pairs(labels, np.arange(9), 9, "blocks")
    orders = {tuple(blocks.permute(np.random.default_rng(seed))) for seed in range(900)}
    assert len(orders) == 24  # of a, b, d and e; c has another size
    places = [[0, 2], [1, 3], [5, 6], [7, 8]]
    for order in orders:
        assert order[4] == 4
        assert sorted([order[first], order[second]] for first, second in places) == places


def test_whole_blocks_have_as_many_rows_of_y():
    pairing = np.array([0, 0, 1, 2, 2, 3, 4, 5])  # two, one; two, one; one, one
    blocks = ExchangeBlocks.of_pairs(np.repeat([0, 1, 2], 2), pairing, 6, "blocks")
    orders = {tuple(blocks.permute(np.random.default_rng(seed))) for seed in range(50)}
    assert orders == {(0, 1, 2, 3, 4, 5), (2, 3, 0, 1, 4, 5)}


@pytest.mark.parametrize("exchange", ["shift", "blocks"])
def test_the_null_is_that_of_refits(exchange):
    x, y = make_series(0, 24, (4, 3))
    labels = None if exchange == "shift" else np.repeat(np.arange(6), 4)
    test = permutation_test(
        (2.0, 3.0), x, y, blocks=labels, exchange=exchange, n_permutations=40, n_components=2
    )
    blocks = ExchangeBlocks.of_pairs(labels, np.arange(24), 24, exchange)
    orders = [blocks.permute(np.random.default_rng([0, 0, 1 + number])) for number in range(40)]
    model = AWCCA(params=(2.0, 3.0), verbose=False)
    expected = [float(model.fit(x[order], y).models_["search"].correlations[0]) for order in orders]
    np.testing.assert_allclose(test.null[:, 0], expected, rtol=1e-9)
    assert (test.method, test.exchange) == ("stepwise", exchange)
    name = {"shift": "of the pairs by circular shifts, with", "blocks": "of the whole blocks of pairs, with"}
    assert name[exchange] in test.describe()


def reject(count, **options):
    """Return how many of so many pairs of unrelated series are found related at 5 %."""
    rejected = 0
    for seed in range(count):
        x, y = make_series(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            test = permutation_test(
                (0, 0), x, y, n_permutations=99, n_components=1, random_state=seed, **options
            )
        rejected += int(test.p_values[0] <= 0.05)
    return rejected


def test_shifts_and_blocks_hold_the_level_for_series_and_rows_do_not():
    most = binom.ppf(0.999, 200, 0.05)
    assert reject(200, exchange="shift") <= most
    assert reject(200) > 4 * most
    # Pieces of 20 steps depend little on each other.
    assert reject(200, exchange="blocks", blocks=np.repeat(np.arange(6), 20)) <= most


def test_what_series_share_is_found():
    x, y = make_series(1, signal=1.5)
    assert permutation_test((0, 0), x, y, exchange="shift", n_components=1).p_values[0] < 0.03


def test_series_are_pointed_out():
    x, y = make_series(3)
    message = "lag-1 autocorrelations 0.71 and 0.65.*p-values of a time series are far too small"
    with pytest.warns(DataWarning, match=message):
        permutation_test((0, 0), x, y, n_permutations=5)
    alternating = make_series(3, coefficient=-0.7)
    with pytest.warns(DataWarning, match="lag-1 autocorrelations -0.6. and -0."):
        permutation_test((0, 0), *alternating, n_permutations=5)
    rng = np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        permutation_test((0, 0), x, y, n_permutations=5, exchange="shift")
        permutation_test((0, 0), x, rng.normal(size=y.shape), n_permutations=5)  # one series is no harm
        order = rng.permutation(len(x))
        permutation_test((0, 0), x[order], y[order], n_permutations=5)
        for rows in (20, 60):
            for _ in range(50):
                x, y = rng.normal(size=(2, rows, 2))
                permutation_test((1, 1), x, y, n_permutations=1, n_components=1)


def test_lag_correlations_are_those_of_pandas():
    pandas = pytest.importorskip("pandas")
    x, _ = make_series(4, 4000)
    expected = np.mean([pandas.Series(column).autocorr(1) for column in x.T])
    assert lag_correlation(x) == pytest.approx(expected, abs=1e-3)
    assert lag_correlation(np.column_stack([x * [1, 1e6, 1e-3], np.ones(4000)])) == pytest.approx(
        expected, abs=1e-3
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exchange": "circle"}, "exchange='circle' is unknown"),
        ({"exchange": "blocks"}, "exchange='blocks' exchanges whole blocks; give blocks"),
        ({"exchange": "shift", "covariates": np.ones(12)}, "not supported together"),
        ({"exchange": "shift", "method": "conditional"}, "method='conditional' assumes independent rows"),
        ({"exchange": "shift", "blocks": np.arange(12)}, "no row of X can be shifted"),
        ({"exchange": "blocks", "blocks": np.repeat([0, 1], [5, 7])}, "no two blocks may change places"),
        (
            {"exchange": "shift", "pairing": [0, 0, *range(1, 11)]},
            "rows of X with different numbers of rows of Y cannot take the places of each other",
        ),
    ],
)
def test_what_cannot_be_exchanged_is_explained(rng, options, message):
    x, y = rng.normal(size=(2, 12, 2))
    pairing = options.get("pairing")
    with pytest.raises(InputError, match=message):
        permutation_test(
            (1, 1), x, y, pairing, n_permutations=5, **{k: v for k, v in options.items() if k != "pairing"}
        )


def test_few_shifts_are_pointed_out(rng):
    x, y = rng.normal(size=(2, 15, 2))
    with pytest.warns(DataWarning, match="only 15 arrangements, so no p-value can be much below 0.067"):
        permutation_test((1, 1), x, y, exchange="shift", n_permutations=5)
