"""Cross-validated correlations: unrelated views, refits by hand, groups and splitters."""

import numpy as np
import pytest
from sklearn.model_selection import KFold, LeaveOneOut, ShuffleSplit

from diptych import AWCCA, InputError
from diptych.stats import cross_validated_correlations
from generated_pairs import make_pairs


def test_unrelated_views_have_none():
    rng = np.random.default_rng(0)
    results = [
        cross_validated_correlations((1.0, 1.0), *rng.normal(size=(2, 60, 40)), n_components=2)
        for _ in range(40)
    ]
    for name, components in (("mean", 2), ("pooled", 2)):
        values = np.array([getattr(result, name) for result in results])[:, :components]
        error = np.std(values, axis=0) / len(values) ** 0.5
        assert np.all(np.abs(np.mean(values, axis=0)) < 4 * error)
    assert np.mean([result.in_sample[0] for result in results]) > 0.95


def test_the_selection_is_inside_the_folds():
    # Selected and scored on the same pairs, unrelated views would look related.
    rng = np.random.default_rng(1)
    model = AWCCA(grid=5, validation_fraction=0.3)
    values = [
        cross_validated_correlations(model, *rng.normal(size=(2, 80, 10)), cv=4).pooled[0] for _ in range(12)
    ]
    assert abs(np.mean(values)) < 4 * np.std(values) / len(values) ** 0.5


def test_folds_are_fits_of_the_others():
    (x, y, pairing), _ = make_pairs(3)
    result = cross_validated_correlations((20.0, 10.0), x, y, pairing, cv=KFold(3), n_components=2)
    described = np.unique(pairing)
    variates, sizes, models = [], [], []
    for number, (train, _) in enumerate(KFold(3).split(described)):
        inside = np.isin(pairing, described[train])
        share = inside.mean()
        local = np.searchsorted(described[train], pairing[inside])
        model = AWCCA(params=(20.0 * share, 10.0 * share)).fit(x[described[train]], y[inside], local)
        canonical = model.models_["search"]
        u = (x[pairing[~inside]] - model.x_mean_) @ canonical.x_weights[:, :2]
        v = (y[~inside] - model.y_mean_) @ canonical.y_weights[:, :2]
        expected = [np.corrcoef(u[:, k], v[:, k])[0, 1] for k in range(2)]
        np.testing.assert_allclose(result.folds[number], expected, atol=1e-9)
        weights = np.vstack([canonical.x_weights[:, :2], canonical.y_weights[:, :2]])
        models.append(weights)
        signs = np.sign(np.sum(weights * models[0], axis=0))  # features of this strength decide it alike
        scale = signs * inside.sum() ** 0.5
        variates.append((u * scale, v * scale))
        np.testing.assert_allclose(result.held_out_x[~inside], u * scale, atol=1e-9)
        np.testing.assert_allclose(result.held_out_y[~inside], v * scale, atol=1e-9)
        np.testing.assert_array_equal(result.fold_of[~inside], number)
        sizes.append(canonical.train_correlations[:2])
    u, v = (np.concatenate(folds) for folds in zip(*variates, strict=True))
    np.testing.assert_allclose(
        result.pooled, [np.corrcoef(u[:, k], v[:, k])[0, 1] for k in range(2)], atol=1e-9
    )
    np.testing.assert_allclose(result.mean, result.folds.mean(axis=0))
    # Nadeau and Bengio (2003): a test part is half a training part; 4.3027 is the quantile of t from a table.
    half = 4.302652730 * result.folds.std(axis=0, ddof=1) * (1 / 3 + 1 / 2) ** 0.5
    np.testing.assert_allclose(result.low, np.maximum(result.mean - half, -1), rtol=1e-2)
    np.testing.assert_allclose(result.high, np.minimum(result.mean + half, 1), rtol=1e-2)
    np.testing.assert_allclose(result.in_sample, np.mean(sizes, axis=0), atol=1e-9)


def test_intervals_contain_the_expected_correlation_more_often_than_independent_folds_say():
    means, halves, naive = [], [], []
    for seed in range(80):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(2, 60, 8))
        y[:, 0] += x[:, 0]
        result = cross_validated_correlations((10.0, 10.0), x, y, n_components=1)
        assert -1 <= result.low[0] < result.mean[0] < result.high[0] <= 1
        means.append(result.mean[0])
        halves.append(result.mean[0] - result.low[0])
        naive.append(2.776445105 * result.folds[:, 0].std(ddof=1) / 5**0.5)
    errors = np.abs(np.array(means) - np.mean(means))
    assert np.mean(errors <= halves) >= 0.8
    np.testing.assert_allclose(halves, np.array(naive) * (5 * (1 / 5 + 1 / 4)) ** 0.5, rtol=1e-6)


def test_signs_of_held_out_variates_agree_between_folds():
    rng = np.random.default_rng(2)
    hidden = rng.normal(size=(90, 2)) * [3.0, 1.5]
    # Features of equal strength and opposite signs: which of them decides the sign of a model is chance.
    x, y = (hidden @ np.kron(np.eye(2), [[1.0, -1.0]]) + 0.3 * rng.normal(size=(90, 4)) for _ in range(2))
    result = cross_validated_correlations((1.0, 1.0), x, y, cv=9, n_components=2)
    for variates in (result.held_out_x, result.held_out_y):
        for k in range(2):
            by_fold = [
                np.corrcoef(variates[result.fold_of == fold, k], hidden[result.fold_of == fold, k])[0, 1]
                for fold in range(9)
            ]
            assert abs(np.sum(np.sign(by_fold))) == 9
    np.testing.assert_allclose(
        result.pooled, [np.corrcoef(result.held_out_x[:, k], result.held_out_y[:, k])[0, 1] for k in range(2)]
    )


def test_a_pair_that_no_fold_holds_out_has_no_variates(rng):
    x, y = rng.normal(size=(2, 30, 3))
    splits = [
        (np.arange(10, 30), np.arange(5)),
        (np.arange(10, 30), np.arange(3, 8)),
        (range(15), range(15, 20)),
    ]
    result = cross_validated_correlations((1.0, 1.0), x, y, cv=splits)
    assert result.fold_of.tolist() == [0] * 5 + [1] * 3 + [-1] * 7 + [2] * 5 + [-1] * 10
    np.testing.assert_array_equal(np.isnan(result.held_out_x[:, 0]), result.fold_of < 0)
    np.testing.assert_array_equal(np.isnan(result.held_out_y), np.isnan(result.held_out_x))


def test_blocks_and_rows_of_y_with_their_row_of_x_stay_in_one_fold():
    # Each subject has values of its own in both views, which have nothing to do with each other.
    rng = np.random.default_rng(4)
    subjects = np.repeat(np.arange(24), 10)
    x, y = (rng.normal(size=(24, 30))[subjects] + 0.1 * rng.normal(size=(240, 30)) for _ in range(2))
    assert cross_validated_correlations((1.0, 1.0), x, y).pooled[0] > 0.9
    honest = cross_validated_correlations((1.0, 1.0), x, y, blocks=subjects)
    paired = cross_validated_correlations((1.0, 1.0), x[::10], y, subjects)
    for result in (honest, paired):
        assert result.in_sample[0] > 0.9
        assert abs(result.pooled[0]) < 0.5


def test_backends_agree(backend):
    (x, y, pairing), _ = make_pairs(6)
    options = {"cv": 3, "n_components": 2}
    expected = cross_validated_correlations((20.0, 10.0), x, y, pairing, **options)
    result = cross_validated_correlations((20.0, 10.0), backend(x), backend(y), backend(pairing), **options)
    np.testing.assert_allclose(result.folds, expected.folds, atol=1e-8)
    pytest.importorskip("torch")
    there = cross_validated_correlations((20.0, 10.0), x, y, pairing, device="cpu", **options)
    np.testing.assert_allclose(there.folds, expected.folds, atol=1e-8)


def test_a_model_is_not_changed():
    (x, y, pairing), _ = make_pairs(7)
    model = AWCCA(params=(20.0, 10.0), normalize=("unit", "none")).fit(x, y, pairing)
    spectra = model.spectra_
    result = cross_validated_correlations(model, x, y, pairing, task="annotate", n_components=1)
    assert model.spectra_ is spectra
    assert model.params == (20.0, 10.0)
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    expected = cross_validated_correlations((20.0, 10.0), unit, y, pairing, n_components=1)
    np.testing.assert_allclose(result.folds, expected.folds, atol=1e-9)


def test_splitters_of_scikit_learn():
    (x, y, pairing), _ = make_pairs(8, n=80)
    one = cross_validated_correlations((20.0, 10.0), x, y, pairing, cv=LeaveOneOut(), n_components=1)
    images = len(np.unique(pairing))
    assert np.isnan(one.folds[0]).all()
    assert np.isnan([one.mean, one.low, one.high]).all()
    assert 0.3 < one.pooled[0] <= 1.0
    assert str(one).splitlines()[1:] == [
        "component  in-sample  pooled",
        f"1             {one.in_sample[0]:.4f}  {one.pooled[0]:.4f}",
        f"{images} folds have fewer than three rows of X: they count in pooled only.",
    ]
    some = ShuffleSplit(4, test_size=0.3, random_state=0)
    assert cross_validated_correlations((20.0, 10.0), x, y, pairing, cv=some).folds.shape[0] == 4


def test_splits_as_a_list_of_rows_of_x():
    (x, y, pairing), _ = make_pairs(9, n=120)
    x, pairing = x[:30], np.repeat(np.arange(30), 3)
    y = y[:90]
    splits = list(KFold(3, shuffle=True, random_state=0).split(x))
    expected = cross_validated_correlations(
        (20.0, 10.0), x, y, pairing, cv=KFold(3, shuffle=True, random_state=0)
    )
    for cv in (splits, iter(splits)):
        result = cross_validated_correlations((20.0, 10.0), x, y, pairing, cv=cv)
        np.testing.assert_array_equal(result.folds, expected.folds)
    # Row numbers are those of X, also where a row has no pair.
    longer = np.concatenate([np.full((1, x.shape[1]), 7.0), x])
    moved = [(np.append(train + 1, 0), test + 1) for train, test in splits]
    result = cross_validated_correlations((20.0, 10.0), longer, y, pairing + 1, cv=moved)
    np.testing.assert_allclose(result.folds, expected.folds)


def test_folds_of_two_pairs_are_left_out_of_the_mean():
    (x, y, _), _ = make_pairs(9)
    x, y, pairing = x[:30], y[:60], np.repeat(np.arange(30), 2)
    tests = [np.arange(10), np.arange(10, 20), np.array([20, 21])]
    splits = [(np.setdiff1d(np.arange(30), test), test) for test in tests]
    result = cross_validated_correlations((20.0, 10.0), x, y, pairing, cv=splits, n_components=2)
    assert np.isnan(result.folds[2]).all()
    np.testing.assert_allclose(result.mean, result.folds[:2].mean(axis=0))
    assert "nan" not in str(result)
    assert str(result).endswith("\n1 fold has fewer than three rows of X: it counts in pooled only.")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cv": []}, "cv has no splits"),
        ({"cv": [1, 2]}, r"split 1 of cv is not \(training rows, held-out rows\); give row numbers of X"),
        ({"cv": [(range(20), range(20, 31))]}, "split 1 of cv is not .* from 0 to 29"),
        ({"cv": [(range(30), [])]}, "split 1 of cv is not"),
        ({"cv": [(range(20), range(20, 30)), (range(21), range(20, 30))]}, "split 2 .* in both parts; hold"),
        ({"cv": KFold(3), "blocks": np.arange(30) // 6}, "split 1 of cv has rows of one block in both parts"),
        ({"cv": 1}, "cv=1; give a whole number of at least 2"),
        ({"cv": "five"}, "cv='five'; give a whole number of at least 2"),
        ({"cv": 31}, "cv=31 folds need as many rows, but there are 30"),
        ({"cv": 4, "blocks": np.arange(30) % 3}, "cv=4 folds need as many blocks, but there are 3"),
        ({"n_components": 4}, "give 1 to 3"),
        ({"task": "find"}, "task='find' is unknown"),
    ],
)
def test_wrong_settings_are_refused(rng, options, message):
    x, y = rng.normal(size=(2, 30, 3))
    with pytest.raises(InputError, match=message):
        cross_validated_correlations((1.0, 1.0), x, y, **options)


def test_wrong_models_are_refused(rng):
    x, y = rng.normal(size=(2, 30, 3))
    with pytest.raises(InputError, match="str is not an estimator"):
        cross_validated_correlations("model", x, y)
    model = AWCCA(params=(1.0, 1.0)).fit(x, y, sample_weight=np.arange(30.0))
    with pytest.raises(InputError, match="sample weights, which resampling does not take"):
        cross_validated_correlations(model, x, y)


def test_a_printed_table_and_a_data_frame_show_the_same(rng):
    x = rng.normal(size=(60, 3))
    result = cross_validated_correlations((1.0, 1.0), x, x + rng.normal(size=(60, 3)), cv=3)
    assert str(result).splitlines()[2].split()[:3] == [
        "1",
        f"{result.in_sample[0]:.4f}",
        f"{result.mean[0]:.4f}",
    ]
    frame = result.to_frame()
    assert list(frame.columns) == ["in_sample", "mean", "low", "high", "pooled", "fold_1", "fold_2", "fold_3"]
    assert frame.loc[2, "fold_3"] == result.folds[2, 1]
