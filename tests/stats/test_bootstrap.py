"""Bootstrap intervals: against refits of AWCCA, alignment, blocks and engines."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.base import clone
from sklearn.datasets import load_linnerud
from sklearn.decomposition import PCA
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from diptych import AWCCA, InputError
from diptych.cca import SpectralFilter, regularized_cca
from diptych.cca._canonical import check_components
from diptych.stats import _bootstrap, _resampling, bootstrap, loadings
from diptych.stats._bootstrap import correct_correlations
from diptych.stats._pairs import ResampledBlocks, prepare_pairs
from diptych.stats._resampling import match_components, prepare_resamples, refit_resamples
from engines import InTree
from generated_pairs import make_pairs
from tolerance import rounding

PARTS = ("correlations", "x_weights", "y_weights", "x_loadings", "y_loadings")


def assert_same(one, other, atol=1e-9):
    for name in PARTS:
        for end in ("estimate", "low", "high"):
            a, b = (getattr(getattr(result, name), end) for result in (one, other))
            np.testing.assert_allclose(a, b, rtol=0, atol=atol * max(1.0, np.nanmax(np.abs(b))), err_msg=name)


def refit_with_awcca(model, sample, x, y, pairing, number):
    """The model of a resample as AWCCA fits it, from rows that are really repeated."""
    times = sample.blocks.draw(number).astype(int)
    rows = np.repeat(np.arange(len(x)), times)
    new_x, new_y, new_pairing = [], [], []
    for new, row in enumerate(rows):
        new_x.append(x[row])
        for j in np.flatnonzero(pairing == row):
            new_y.append(y[j])
            new_pairing.append(new)
    count = len(new_y)
    scaled = AWCCA(**model.get_params())
    if model.filter == "tikhonov":
        scaled.params = tuple(gamma * count / len(pairing) for gamma in model.params)
    return scaled.fit(np.array(new_x), np.array(new_y), np.array(new_pairing)), count


@given(
    seed=st.integers(0, 10**6),
    sizes=st.sampled_from([(14, 11, 3), (90, 6, 1), (60, 80, 1), (8, 120, 2)]),
    kind=st.sampled_from(["ridge", "plain", "tsvd", "custom"]),
    blocks=st.booleans(),
)
def test_a_resample_is_a_fit_of_the_repeated_rows(seed, sizes, kind, blocks):
    m_x, m_y, captions = sizes
    (x, y, pairing), _ = make_pairs(seed, n=90, captions=captions, m_x=m_x, m_y=m_y)
    if kind == "plain":
        x, y = x[:, :4], y[:, :3]
    model = {
        "ridge": AWCCA(params=(20.0, 30.0)),
        "plain": AWCCA(params=(0.0, 0.0)),
        "tsvd": AWCCA(filter="tsvd", params=(4, 3)),
        "custom": AWCCA(filter=SpectralFilter(lambda squares, c: 1 / (squares + c)), params=(20.0, 30.0)),
    }[kind].fit(x, y, pairing)
    pairs = prepare_pairs(model, x, y, pairing, "search")
    labels = np.arange(len(x)) // 3 if blocks else None
    most = check_components(pairs.spectra, *pairs.filters, None)
    estimate = regularized_cca(pairs.spectra, *pairs.filters, min(3, most))
    sample = prepare_resamples(pairs, estimate, labels, seed)
    (refit,) = refit_resamples(sample, range(7, 8))
    expected, count = refit_with_awcca(model, sample, x, y, pairing, 7)
    canonical = expected.models_["search"]
    found = np.asarray(refit.correlations)
    at = [int(np.argmin(np.abs(canonical.train_correlations - value))) for value in found]
    gaps = np.abs(np.subtract.outer(canonical.correlations, canonical.correlations))
    np.fill_diagonal(gaps, 1.0)
    condition = 1e5 / np.min(gaps[at])
    atol = rounding(np.float64, 300, condition=condition)
    np.testing.assert_allclose(found, canonical.train_correlations[at], rtol=0, atol=atol)
    table = loadings(expected)
    for view, weights, expected_loadings, refitted in (
        (sample.x, canonical.x_weights, table.x, refit.x),
        (sample.y, canonical.y_weights, table.y, refit.y),
    ):
        result = view.to_features @ refitted.products / refitted.lengths[:, None]
        signs = np.sign(np.sum(result * expected_loadings[:, at], axis=0))
        np.testing.assert_allclose(result * signs, expected_loadings[:, at], rtol=0, atol=atol)
        # Weights are returned at the scale of the model, which has another number of pairs.
        scale = (count / len(pairing)) ** 0.5
        result = view.to_weights @ refitted.weights / scale
        size = np.max(np.abs(weights))
        np.testing.assert_allclose(result * signs, weights[:, at], rtol=0, atol=atol * max(size, 1e-3))


def test_estimates_are_those_of_the_model():
    (x, y, pairing), _ = make_pairs(3)
    model = AWCCA(params=(10.0, 20.0)).fit(x, y, pairing)
    result = bootstrap(model, x, y, pairing, n_resamples=20, n_components=4)
    canonical, table = model.models_["search"], loadings(model, n_components=4)
    np.testing.assert_allclose(result.in_sample, canonical.train_correlations[:4])
    np.testing.assert_allclose(result.x_weights.estimate, canonical.x_weights[:, :4])
    np.testing.assert_allclose(result.y_loadings.estimate, table.y)
    for name in PARTS:
        interval = getattr(result, name)
        assert interval.low.shape == interval.high.shape == interval.estimate.shape
        assert np.all(interval.low <= interval.high)
    assert np.all(result.correlations.low < result.correlations.estimate)
    assert np.all(result.correlations.estimate < result.correlations.high)
    assert np.all(result.correlations.estimate < result.in_sample)


def test_intervals_are_those_of_the_resamples():
    (x, y, pairing), _ = make_pairs(4)
    pairs = prepare_pairs((10.0, 10.0), x, y, pairing, "search")
    sample = prepare_resamples(pairs, regularized_cca(pairs.spectra, *pairs.filters, 2), None, seed=5)
    refits = refit_resamples(sample, range(40))
    result = bootstrap(
        (10.0, 10.0), x, y, pairing, n_resamples=40, random_state=5, n_components=2, confidence=0.8
    )
    values = np.array([refit.correlations for refit in refits])
    z, resampled = np.arctanh(result.in_sample), np.arctanh(values)
    corrected, spread = 2 * z - resampled.mean(axis=0), resampled.std(axis=0, ddof=1)
    # The quantile of the normal distribution that 90 % are below, from a table.
    for end, limit in (("low", -1.2815515655), ("estimate", 0.0), ("high", 1.2815515655)):
        expected = np.tanh(corrected + limit * spread)
        np.testing.assert_allclose(getattr(result.correlations, end), expected, atol=1e-9)
    values = np.array([sample.y.to_weights @ refit.y.weights for refit in refits])
    np.testing.assert_allclose(result.y_weights.high, np.quantile(values, 0.9, axis=0), atol=1e-12)


def test_intervals_contain_their_estimate_and_the_correlation_of_the_population():
    hits, outside = 0, 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(2, 60, 6))
        y[:, 0] = 0.7 * x[:, 0] + 0.51**0.5 * y[:, 0]
        result = bootstrap((0, 0), x, y, n_resamples=100, n_components=1)
        interval = result.correlations
        assert 0 <= interval.low[0] <= interval.estimate[0] <= interval.high[0] < 1
        hits += interval.low[0] <= 0.7 <= interval.high[0]
        outside += result.in_sample[0] > 0.7
    # Of 95 %, with the normal approximation of so few resamples; percentiles contain it in less than half.
    assert hits >= 50
    assert outside > 45


@settings(max_examples=50, deadline=None)
@given(
    arrays(float, 3, elements=st.floats(0, 1)),
    arrays(float, (5, 3), elements=st.floats(0, 1) | st.just(np.nan)),
    st.floats(0.5, 0.99),
)
def test_limits_enclose_the_corrected_correlation(correlations, resampled, confidence):
    interval = correct_correlations(correlations, resampled, confidence)
    few = (~np.isnan(resampled)).sum(axis=0) < 2
    for values in (interval.low, interval.estimate, interval.high):
        np.testing.assert_array_equal(np.isnan(values), few)
        assert np.all((values[~few] >= 0) & (values[~few] <= 1))
    assert np.all(interval.low[~few] <= interval.estimate[~few])
    assert np.all(interval.estimate[~few] <= interval.high[~few])


def test_the_seed_decides_and_neither_pieces_nor_engines_nor_feature_blocks(monkeypatch):
    (x, y, pairing), _ = make_pairs(5, n=60, m_x=40)
    options = {"n_resamples": 30, "n_components": 3}
    expected = bootstrap((10.0, 10.0), x, y, pairing, **options)
    assert_same(bootstrap((10.0, 10.0), x, y, pairing, engine=InTree(), **options), expected)
    for seed in (1, None):
        other = bootstrap((10.0, 10.0), x, y, pairing, random_state=seed, **options)
        assert not np.allclose(other.correlations.low, expected.correlations.low, atol=1e-6)
    monkeypatch.setattr(_bootstrap, "RESAMPLES_AT_ONCE", 7)
    for module in (_bootstrap, _resampling):
        monkeypatch.setattr(module, "BLOCK_BYTES", 8 * 30 * 3 * 5)
    assert_same(bootstrap((10.0, 10.0), x, y, pairing, engine=InTree(), **options), expected)
    assert_same(bootstrap((10.0, 10.0), x, y, pairing, **options), expected)


def test_backends_and_devices_agree(backend):
    (x, y, pairing), _ = make_pairs(6)
    options = {"n_resamples": 20, "n_components": 2}
    expected = bootstrap((30.0, 30.0), x, y, pairing, **options)
    result = bootstrap((30.0, 30.0), backend(x), backend(y), backend(pairing), **options)
    assert_same(result, expected, atol=1e-8)
    assert isinstance(result.x_weights.low, np.ndarray)
    pytest.importorskip("torch")
    there = bootstrap((30.0, 30.0), x, y, pairing, device="cpu", **options)
    assert_same(there, expected, atol=1e-8)
    there = bootstrap((30.0, 30.0), x, y, pairing, device="cpu", engine=InTree(), **options)
    assert_same(there, expected, atol=1e-8)


def test_features_in_very_different_units_are_resampled_alike(rng):
    x = rng.normal(size=(100, 3))
    y = x + 2 * rng.normal(size=(100, 3))
    options = {"n_resamples": 30}
    expected = bootstrap((0, 0), x, y, **options)
    result = bootstrap((0, 0), x * [1e6, 1.0, 1e-4], y, **options)
    np.testing.assert_allclose(result.correlations.low, expected.correlations.low, atol=1e-7)
    # The sign of a component follows its largest weight, which depends on the units.
    signs = np.sign(np.sum(result.y_loadings.estimate * expected.y_loadings.estimate, axis=0))
    ends = np.stack([result.x_loadings.low * signs, result.x_loadings.high * signs])
    np.testing.assert_allclose(ends.min(axis=0), expected.x_loadings.low, atol=1e-6)


@pytest.mark.parametrize("captions", [1, 2])
@pytest.mark.parametrize("covariates", [0, 2])
def test_without_regularisation_invertible_transformers_change_no_variate(captions, covariates):
    (x, y, pairing), _ = make_pairs(2, n=80, captions=captions, m_x=5, m_y=4)
    confounds = np.random.default_rng(1).normal(size=(len(x), covariates)) if covariates else None
    options = {"n_resamples": 40, "covariates": confounds}
    expected = bootstrap((0, 0), x, y, pairing, **options)
    result = bootstrap((0, 0), x, y, pairing, preprocess=(PCA(), StandardScaler()), **options)
    for end in ("estimate", "low", "high"):
        one, other = (getattr(each.correlations, end) for each in (result, expected))
        np.testing.assert_allclose(one, other, atol=1e-8)
    # Components of PCA differ between resamples; weights are of those of all pairs, so these turn them back.
    used = np.unique(pairing)
    turn = PCA().fit(x[used]).components_.T
    signs = np.sign(np.sum(turn @ result.x_weights.estimate * expected.x_weights.estimate, axis=0))
    np.testing.assert_allclose(
        turn @ result.x_weights.estimate * signs, expected.x_weights.estimate, atol=1e-8
    )
    scale = y.std(axis=0)[:, None]
    ends = np.stack([result.y_weights.low * signs, result.y_weights.high * signs]) / scale
    np.testing.assert_allclose(ends.min(axis=0), expected.y_weights.low, atol=1e-8)
    np.testing.assert_allclose(ends.max(axis=0), expected.y_weights.high, atol=1e-8)
    ends = np.stack([result.y_loadings.low * signs, result.y_loadings.high * signs])
    np.testing.assert_allclose(ends.min(axis=0), expected.y_loadings.low, atol=1e-8)


def test_transformers_are_fitted_on_the_rows_of_each_resample(rng):
    x, y = rng.normal(size=(40, 6)) * np.arange(1, 7), rng.normal(size=(40, 5))
    y[:, 0] += x[:, 0]
    x[rng.random(size=x.shape) < 0.1] = np.nan
    steps = make_pipeline(SimpleImputer(), StandardScaler())
    pairs = prepare_pairs((8.0, 4.0), x, y, None, "search", preprocess=(steps, None))
    estimate = regularized_cca(pairs.spectra, *pairs.filters, 2)
    sample = prepare_resamples(pairs, estimate, None, 3)
    (refit,) = refit_resamples(sample, range(7, 8))
    rows = np.repeat(np.arange(40), sample.blocks.draw(7).astype(int))
    own = clone(steps).fit(x[rows])
    model = AWCCA(params=(8.0, 4.0)).fit(own.transform(x[rows]), y[rows])
    canonical = model.models_["search"]
    at = [int(np.argmin(np.abs(canonical.train_correlations - value))) for value in refit.correlations]
    np.testing.assert_allclose(refit.correlations, canonical.train_correlations[at], atol=1e-9)
    # Loadings: of the features that all pairs have, on the variates that the resample has.
    u = (own.transform(x[rows]) - model.x_mean_) @ canonical.x_weights[:, at]
    result = sample.x.to_features @ refit.x.products / refit.x.lengths[:, None]
    features = steps.fit(x).transform(x)
    expected = np.corrcoef(features[rows].T, u.T)[:6, 6:]
    np.testing.assert_allclose(np.abs(result), np.abs(expected), atol=1e-9)


def test_a_resample_may_have_other_features_than_the_pairs(rng):
    x = rng.normal(size=(40, 8)) * np.arange(1, 9)
    y = rng.normal(size=(40, 5))
    hidden = rng.normal(size=(40, 1))
    x, y = x + 5 * hidden, y + hidden
    result = bootstrap((9.0, 9.0), x, y, preprocess=PCA(0.8), n_resamples=30, n_components=1)
    kept = [PCA(0.8).fit(x[rng.integers(40, size=40)]).n_components_ for _ in range(30)]
    assert len(set(kept)) > 1
    assert len(result.x_loadings.low) == PCA(0.8).fit(x).n_components_
    assert np.isfinite(result.x_loadings.low).all()
    # The sign of a component of PCA is that of all pairs: no interval mixes both.
    strongest = np.argmax(np.abs(result.x_loadings.estimate[:, 0]))
    low, high = (getattr(result.x_loadings, end)[strongest, 0] for end in ("low", "high"))
    assert low * high > 0
    assert high - low < 0.8


def test_components_are_matched_one_to_one_with_signs():
    cosines = np.array([[0.1, -1.9, 0.2, 0.0], [1.8, 0.1, 0.0, 0.1], [0.0, 0.3, 0.1, -0.6]])
    at, signs = match_components(cosines)
    assert at.tolist() == [1, 0, 3]
    assert signs.tolist() == [-1.0, 1.0, -1.0]
    at, _ = match_components(cosines[:, :2])
    assert at.tolist() == [1, 0, -1]


def test_blocks_are_resampled_as_a_whole():
    rng = np.random.default_rng(14)
    subjects = np.repeat(np.arange(20), 8)
    # Almost all variation is between subjects: 160 rows tell little more than 20.
    cause = rng.normal(size=(20, 2))[subjects]
    x = cause + 0.05 * rng.normal(size=(160, 2))
    y = cause + rng.normal(size=(20, 2))[subjects] + 0.05 * rng.normal(size=(160, 2))
    labels = np.array([f"s{number}" for number in subjects])
    naive = bootstrap((0, 0), x, y, n_resamples=200)
    by_block = bootstrap((0, 0), x, y, n_resamples=200, blocks=labels)
    widths = [result.correlations.high[0] - result.correlations.low[0] for result in (naive, by_block)]
    assert widths[1] > 1.5 * widths[0]
    times = ResampledBlocks.of_pairs(labels, np.arange(160), 160, 0).draw(0)
    assert all(len(set(times[subjects == subject])) == 1 for subject in range(20))
    assert times.sum() == 160


def test_rows_without_pairs_are_left_out():
    (x, y, pairing), _ = make_pairs(9)
    extra = np.vstack([x, np.full((5, x.shape[1]), 7.0)])
    options = {"n_resamples": 10, "n_components": 2}
    described = np.unique(pairing)
    local = np.searchsorted(described, pairing)
    expected = bootstrap((30.0, 30.0), x[described], y, local, **options)
    assert_same(bootstrap((30.0, 30.0), extra, y, pairing, **options), expected)


@pytest.mark.parametrize("feature", ["constant", "far smaller than the others"])
def test_a_feature_that_spectra_do_not_resolve_has_no_loading(rng, feature):
    unresolved = np.full(60, 1e9 / 3) if feature == "constant" else 1e-10 * rng.normal(size=60)
    x = np.insert(rng.normal(size=(60, 3)), 1, unresolved, axis=1)
    y = x[:, [0, 2]] + rng.normal(size=(60, 2))
    model = AWCCA(params=(1.0, 1.0), solver="gram").fit(x, y)
    side = bootstrap(model, x, y, n_resamples=20).x_loadings
    for part in (side.estimate, side.low, side.high):
        assert np.isnan(part[1]).all()
        assert np.isfinite(np.delete(part, 1, axis=0)).all()


def test_a_feature_that_is_constant_in_some_resamples(rng):
    x = rng.normal(size=(60, 3))
    x[:, 1] = 0.0
    x[4, 1] = 1.0
    side = bootstrap((1.0, 1.0), x, x + rng.normal(size=(60, 3)), n_resamples=40).x_loadings
    assert np.isfinite(side.low).all()


def test_gamma_follows_the_number_of_pairs():
    (x, y, pairing), _ = make_pairs(10, captions=1)
    x = x[pairing]
    half = AWCCA(params=(10.0, 20.0)).fit(x[::2], y[::2])
    factor = len(y) / len(y[::2])
    options = {"n_resamples": 10, "n_components": 2}
    expected = bootstrap((10.0 * factor, 20.0 * factor), x, y, **options)
    assert_same(bootstrap(half, x, y, **options), expected)


def test_too_few_different_rows_are_refused(rng):
    x, y = rng.normal(size=(2, 30, 12))
    with pytest.raises(InputError, match="about 19 different ones, too few for 12 and 12"):
        bootstrap((0, 0), x, y)
    assert bootstrap((1.0, 1.0), x, y, n_resamples=5).correlations.low.shape == (10,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_resamples": 1}, "n_resamples=1; give a whole number of at least 2"),
        ({"confidence": 95}, "confidence=95.0 is not between 0 and 1"),
        ({"n_components": 4}, "n_components=4 is not possible here; give 1 to 3"),
        ({"random_state": -1}, "random_state"),
        ({"task": "find"}, "task='find' is unknown"),
        ({"n_resamples": 10**9}, "GiB; give fewer n_components or n_resamples"),
        ({"blocks": [1, 2, 3]}, "one label for each of the 30 rows"),
        ({"blocks": np.zeros(30)}, "one block"),
    ],
)
def test_wrong_settings_are_refused(rng, options, message):
    x, y = rng.normal(size=(2, 30, 3))
    with pytest.raises(InputError, match=message):
        bootstrap((1.0, 1.0), x, y, **options)


def test_wrong_models_are_refused(rng):
    x, y = rng.normal(size=(2, 30, 3))
    with pytest.raises(InputError, match="X has 3 features, but the model was fitted on 2"):
        bootstrap(AWCCA(params=(1.0, 1.0)).fit(x[:, :2], y), x, y)
    with pytest.raises(InputError, match="sample weights, which resampling does not take"):
        bootstrap(AWCCA(params=(1.0, 1.0)).fit(x, y, sample_weight=np.arange(30.0)), x, y)
    with pytest.raises(ValueError, match="not fitted"):
        bootstrap(AWCCA(params=(1.0, 1.0)), x, y)


def test_a_printed_table_and_data_frames_show_the_same():
    data = load_linnerud(as_frame=True)
    result = bootstrap((0, 0), data.target, data.data, n_resamples=100)
    assert result.feature_names_x == ["Weight", "Waist", "Pulse"]
    line = str(result).splitlines()[2].split()
    assert line[:5] == [
        "1",
        "0.7956",
        f"{result.correlations.estimate[0]:.4f}",
        f"{result.correlations.low[0]:.4f}",
        f"{result.correlations.high[0]:.4f}",
    ]
    column = bootstrap((0, 0), data.target, data.data["Chins"], n_resamples=2)
    assert column.feature_names_y == ["Chins"]
    frames = result.to_frames()
    assert frames["x_loadings"].loc[("Waist", 1), "low"] == result.x_loadings.low[1, 0]
    assert frames["y_weights"].loc[("Chins", 3), "estimate"] == result.y_weights.estimate[0, 2]
    assert list(frames["correlations"].index) == [1, 2, 3]
    assert frames["correlations"].loc[1, "in_sample"] == result.in_sample[0]


def test_an_interruption_ends_it(rng, monkeypatch):
    calls = []

    def interrupt(*_):
        calls.append(1)
        raise KeyboardInterrupt

    monkeypatch.setattr(_resampling, "_refit", interrupt)
    x, y = rng.normal(size=(2, 30, 3))
    with pytest.raises(KeyboardInterrupt):
        bootstrap((1.0, 1.0), x, y)
    assert len(calls) < 10
