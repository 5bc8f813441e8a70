"""Partial CCA: the estimator with covariates, beside Schur complements, regressions and residuals by hand."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from scipy.linalg import eigvals
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold, cross_val_score

from diptych import AWCCA, CCA, PLS, InputError, Retriever
from diptych.cca.selection._grids import hold_out
from diptych.report import draw_arrows, draw_variates
from diptych.stats import bootstrap, cross_validated_correlations, loadings, permutation_test
from engines import InTree
from saved_files import files_of, seal

SIDES = {"both": (0, 0), "X": (0, None), "Y": (None, 0), "different": (0, 1)}


def confounded(seed, n=80, p=5, q=4, c=3, captions=1):
    """Return two views that share covariates and a cause, their pairing, and two sets of covariates."""
    rng = np.random.default_rng(seed)
    z, other = rng.normal(size=(2, n, c)) + 2.0
    pairing = rng.permutation(np.repeat(np.arange(n), captions))
    hidden = rng.normal(size=(n, 2))
    x = hidden @ rng.normal(size=(2, p)) + (z + other) @ rng.normal(size=(c, p)) + rng.normal(size=(n, p)) + 3
    y = hidden @ rng.normal(size=(2, q)) + (z - other) @ rng.normal(size=(c, q))
    y = y[pairing] + rng.normal(size=(len(pairing), q)) - 4
    return x, y, pairing, (z, other)


def choose(sides, covariates):
    """Return the covariates of X and of Y, one array if they are those of both."""
    chosen = tuple(None if at is None else covariates[at] for at in SIDES[sides])
    return chosen[0] if sides == "both" else chosen


def regress(view, covariates, rows=slice(None)):
    """Return what a regression over some rows, with an intercept, leaves of all rows of a view."""
    if covariates is None:
        return view
    return view - LinearRegression().fit(covariates[rows], view[rows]).predict(covariates)


def residuals(x, y, pairing, covariates, weights=None):
    """Return what regressions over pairs leave of both views."""
    z_x, z_y = covariates if isinstance(covariates, tuple) else (covariates, covariates)
    left_x, left_y = x, y
    if z_x is not None:
        left_x = x - LinearRegression().fit(z_x[pairing], x[pairing], weights).predict(z_x)
    if z_y is not None:
        left_y = y - LinearRegression().fit(z_y[pairing], y, weights).predict(z_y[pairing])
    return left_x, left_y


def joint_covariances(x, y, *more):
    """Return the blocks of the joint covariance matrix of several views."""
    views = (x, y, *more)
    joint = np.cov(np.hstack(views).T)
    at = np.cumsum([0, *(view.shape[1] for view in views)])
    parts = [slice(start, stop) for start, stop in pairwise(at)]
    return [[joint[rows, columns] for columns in parts] for rows in parts]


def canonical(xx, xy, yy):
    squares = eigvals(np.linalg.solve(xx, xy) @ np.linalg.solve(yy, xy.T)).real
    return np.sqrt(np.sort(squares)[::-1][: min(xy.shape)])


@given(st.integers(0, 2**31), st.integers(1, 4), st.sampled_from(list(SIDES)))
def test_correlations_are_those_of_the_conditional_covariance(seed, c, sides):
    x, y, _, (z, other) = confounded(seed, c=c)
    s = joint_covariances(x, y, z, other)
    beside = {0: 2, 1: 3}
    at_x, at_y = (None if at is None else beside[at] for at in SIDES[sides])

    def slopes(view, at):
        return np.zeros((c, len(s[view][view]))) if at is None else np.linalg.solve(s[at][at], s[at][view])

    b_x, b_y = slopes(0, at_x), slopes(1, at_y)
    i, j = at_x or 2, at_y or 2  # slopes of 0 make any covariates do
    xx = s[0][0] - b_x.T @ s[i][i] @ b_x
    yy = s[1][1] - b_y.T @ s[j][j] @ b_y
    xy = s[0][1] - b_x.T @ s[i][1] - s[0][j] @ b_y + b_x.T @ s[i][j] @ b_y
    model = AWCCA(params=(0, 0)).fit(x, y, covariates=choose(sides, (z, other)))
    np.testing.assert_allclose(
        model.models_["search"].correlations, canonical(xx, xy, yy), rtol=0, atol=1e-10
    )


def test_a_partial_correlation_is_the_textbook_one():
    x, y, _, (z, _) = confounded(1, p=1, q=1, c=1)
    r = np.corrcoef(np.hstack([x, y, z]).T)
    partial = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt((1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2))
    part = (r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt(1 - r[0, 2] ** 2)
    for covariates, expected in ((z[:, 0], partial), ((z, None), part)):
        model = AWCCA(params=(0, 0)).fit(x, y, covariates=covariates)
        assert model.models_["search"].correlations[0] == pytest.approx(abs(expected), abs=1e-10)


@pytest.mark.parametrize("sides", SIDES)
@pytest.mark.parametrize("captions", [1, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_fit_is_that_of_residuals_and_new_rows_lose_what_training_rows_say(sides, captions, weighted):
    x, y, pairing, covariates = confounded(2, captions=captions)
    given = choose(sides, covariates)
    weights = np.random.default_rng(0).integers(0, 3, len(y)) if weighted else None
    model = AWCCA(params=(2.0, 3.0)).fit(x, y, pairing, covariates=given, sample_weight=weights)
    left_x, left_y = residuals(x, y, pairing, given, weights)
    other = AWCCA(params=(2.0, 3.0)).fit(left_x, left_y, pairing, sample_weight=weights)
    for task in ("search", "annotate"):
        for vectors, expected in zip(
            model.transform(
                x,
                y,
                task=task,
                covariates=tuple(
                    None if at is None else covariates[at][rows]
                    for at, rows in zip(SIDES[sides], (slice(None), pairing), strict=True)
                ),
            ),
            other.transform(left_x, left_y, task=task),
            strict=True,
        ):
            np.testing.assert_allclose(vectors, expected, atol=1e-9)
    assert model.score(x, y, pairing, covariates=given) == other.score(left_x, left_y, pairing)
    new = confounded(3)
    z_x = SIDES[sides][0]
    if z_x is not None:
        slopes = LinearRegression().fit(covariates[z_x][pairing], x[pairing], weights)
        row = new[0][:7] - slopes.predict(new[3][z_x][:7])
        vectors = model.transform(new[0][:7], covariates=new[3][z_x][:7])
        np.testing.assert_allclose(vectors, other.transform(row), atol=1e-9)
        back = model.inverse_transform(vectors, covariates=new[3][z_x][:7])
        np.testing.assert_allclose(back, other.inverse_transform(other.transform(row)) + new[0][:7] - row)


@pytest.mark.parametrize("estimator", [AWCCA(params=(0, 0)), CCA(params=(0, 0))])
@pytest.mark.parametrize("captions", [1, 2])
def test_predictions_without_a_penalty_are_regressions_on_both(captions, estimator):
    """Frisch, Waugh and Lovell: residuals of X and covariates predict Y as X and covariates do."""
    x, y, pairing, (z, _) = confounded(4, captions=captions)
    model = clone(estimator).fit(x, y, pairing, covariates=z)
    expected = LinearRegression().fit(np.hstack([x, z])[pairing], y).predict(np.hstack([x, z]))
    np.testing.assert_allclose(model.predict(x, covariates=z), expected, atol=1e-8)
    own = z[pairing]
    expected = LinearRegression().fit(np.hstack([y, own]), x[pairing]).predict(np.hstack([y, own]))
    np.testing.assert_allclose(model.predict_x(y, covariates=own), expected, atol=1e-8)
    r2 = r2_score(y, model.predict(x, covariates=z)[pairing])
    assert model.score(x, y, pairing, metric="r2", covariates=z) == pytest.approx(r2)


@pytest.mark.parametrize("estimator", [CCA(params=(5.0, 3.0)), PLS(n_components=2)])
def test_residuals_are_standardised(tmp_path, estimator):
    """CCA and PLS with covariates are those of what the covariates leave, in its standard deviations."""
    x, y, pairing, (z, _) = confounded(6)
    u, v = residuals(x, y, pairing, z)
    partial, plain = (
        clone(estimator).fit(*views, pairing, covariates=c) for views, c in (((x, y), z), ((u, v), None))
    )
    np.testing.assert_allclose(partial.correlations_, plain.correlations_, atol=1e-10)
    partial.save(tmp_path / "model")
    expected = plain.transform(u, v)
    for model in (partial, type(partial).load(tmp_path / "model")):
        found = model.transform(x, y, covariates=(z, z[pairing]))
        for vectors, by_hand in zip(found, expected, strict=True):
            np.testing.assert_allclose(vectors, by_hand, atol=1e-9)
    back = partial.inverse_transform(expected[0], covariates=z)
    np.testing.assert_allclose(back - x, plain.inverse_transform(expected[0]) - u, atol=1e-9)
    test = permutation_test(partial, x, y, pairing, covariates=z, n_permutations=49, n_components=1)
    resampled = bootstrap(partial, x, y, pairing, covariates=z, n_resamples=5, n_components=1)
    folds = cross_validated_correlations(estimator, x, y, pairing, covariates=z, cv=3)
    assert folds.in_sample[0] > folds.mean[0] > 0.3
    if isinstance(estimator, PLS):
        np.testing.assert_allclose(test.correlations, partial.covariances_[:1])
    else:
        np.testing.assert_allclose(test.correlations, partial.models_["search"].correlations[:1])
    np.testing.assert_allclose(resampled.x_weights.estimate[:, 0], partial.x_weights_[:, 0], atol=1e-9)


def test_predictions_with_a_penalty_add_those_of_the_residuals():
    x, y, _, (z, other) = confounded(5)
    model = AWCCA(params=(7.0, 3.0)).fit(x, y, covariates=(z, other))
    left = Ridge(alpha=7.0).fit(regress(x, z), regress(y, other)).predict(regress(x, z))
    expected = LinearRegression().fit(other, y).predict(other) + left
    np.testing.assert_allclose(model.predict(x, covariates=(z, other)), expected, atol=1e-9)


@pytest.mark.parametrize("gammas", [None, (2.0, 3.0)])
def test_what_is_held_out_loses_what_the_training_part_says(gammas):
    x, y, pairing, (z, _) = confounded(6, n=120)
    model = AWCCA(params=gammas, grid=4, n_components="auto").fit(x, y, covariates=z)
    train, held = hold_out(pairing := np.arange(120), 120, 0.15, 0)
    left_x, left_y = regress(x, z, train.x), regress(y, z, train.x)
    by_hand = AWCCA(params=gammas, grid=4, n_components="auto").fit(
        left_x[train.x], left_y[train.x], validation=(left_x[held.x], left_y[held.x])
    )
    for task in ("search", "annotate"):
        ours, its = model.models_[task], by_hand.models_[task]
        np.testing.assert_allclose(ours.validation_correlations, its.validation_correlations, atol=1e-9)
        if gammas is None:
            np.testing.assert_allclose(
                model.path_.scores[task]["r@1"], by_hand.path_.scores[task]["r@1"], equal_nan=True
            )
    np.testing.assert_allclose(model.x_mean_, 0, atol=1e-9)  # the model itself is fitted on all


@pytest.mark.parametrize("pairs", [slice(None), slice(0, 25)])
def test_validation_pairs_have_covariates(pairs):
    x, y, _, (z, _) = confounded(7, n=120)
    train, held = slice(0, 80), slice(80, None)
    model = AWCCA(grid=4, normalize=("unit", "none")).fit(
        x[train], y[train], covariates=z[train], validation=(x[held], y[held], None, z[held])
    )
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    left_x, left_y = regress(unit, z, train), regress(y, z, train)
    by_hand = AWCCA(grid=4).fit(left_x[train], left_y[train], validation=(left_x[held], left_y[held]))
    assert model.path_.choice == by_hand.path_.choice
    vectors = model.transform(x[held][pairs], covariates=z[held][pairs])
    np.testing.assert_allclose(vectors, by_hand.transform(left_x[held][pairs]), atol=1e-9)
    with pytest.raises(InputError, match="with covariates, validation is"):
        AWCCA().fit(x[train], y[train], covariates=z[train], validation=(x[held], y[held]))


@pytest.mark.filterwarnings("ignore:9 items are too few")
@pytest.mark.parametrize(("selection", "n"), [("ledoit-wolf", 80), ("validation", 9)])
def test_shrinkage_is_that_of_residuals(selection, n):
    x, y, _, (z, _) = confounded(8, n)
    model = AWCCA(selection=selection).fit(x, y, covariates=z)
    other = AWCCA(selection=selection).fit(regress(x, z), regress(y, z))
    for ours, its in zip(model.models_.filters["search"], other.models_.filters["search"], strict=True):
        assert ours.gamma == pytest.approx(its.gamma)


@pytest.mark.parametrize("options", [{"engine": InTree()}, {"device": "cpu"}], ids=["engine", "device"])
def test_engines_and_devices_see_residuals(options):
    if "device" in options:
        pytest.importorskip("torch")
    x, y, _, (z, _) = confounded(8)
    there = AWCCA(grid=3).fit(x, y, covariates=z, **options)
    here = AWCCA(grid=3, solver="gram").fit(x, y, covariates=z)
    assert there.path_.choice == here.path_.choice
    np.testing.assert_allclose(there.predict(x, covariates=z), here.predict(x, covariates=z), rtol=1e-6)
    vectors = there.transform(x, covariates=z, device=options.get("device"))
    np.testing.assert_allclose(vectors, here.transform(x, covariates=z), rtol=1e-6, atol=1e-8)


def test_tensors_and_data_frames_give_the_same():
    torch, pandas = pytest.importorskip("torch"), pytest.importorskip("pandas")
    x, y, _, (z, _) = confounded(9)
    expected = AWCCA(params=(1, 1)).fit(x, y, covariates=z).transform(x, covariates=z)
    x_, y_ = torch.asarray(x, dtype=torch.float32), torch.asarray(y, dtype=torch.float32)
    vectors = AWCCA(params=(1, 1)).fit(x_, y_, covariates=z).transform(x_, covariates=z)
    assert vectors.dtype == torch.float32
    np.testing.assert_allclose(vectors, expected, rtol=1e-3, atol=1e-4)
    index = [f"subject {i}" for i in range(80)]
    frames = [pandas.DataFrame(view, index).add_prefix("c") for view in (x, y, z)]
    with pytest.warns(UserWarning, match="rows were matched by label"):
        model = AWCCA(params=(1, 1)).fit(frames[0], frames[1], covariates=frames[2][::-1])
    predicted = model.predict(frames[0], covariates=z)
    with pytest.warns(UserWarning, match="rows were matched by label"):
        by_label = model.predict(frames[0], covariates=frames[2][::-1])
    np.testing.assert_allclose(by_label, predicted)


def test_columns_of_covariates_may_be_in_another_order(tmp_path):
    pandas = pytest.importorskip("pandas")
    x, y, _, (z, _) = confounded(9)
    frame = pandas.DataFrame(z, columns=["age", "sex", "motion"])
    turned = frame[["motion", "age", "sex"]]
    model = AWCCA(params=(1, 1)).fit(
        x[:60], y[:60], covariates=frame[:60], validation=(x[60:], y[60:], None, turned[60:])
    )
    model.save(tmp_path / "model")
    expected = model.predict(x, covariates=z)
    for own in (model, AWCCA.load(tmp_path / "model")):
        np.testing.assert_allclose(own.predict(x, covariates=turned), expected)
        with pytest.raises(InputError, match="covariates has the columns 'a', 'b', 'c', but 'age', 'sex'"):
            own.transform(x, covariates=frame.set_axis(list("abc"), axis=1))


@pytest.mark.parametrize("sides", SIDES)
def test_a_saved_model_keeps_what_covariates_explain(tmp_path, sides):
    x, y, _, covariates = confounded(10)
    given = choose(sides, covariates)
    model = AWCCA(params=(1, 2)).fit(x, y, covariates=given)
    model.save(tmp_path / "model")
    loaded = AWCCA.load(tmp_path / "model")
    for copied in (loaded, pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(
            copied.transform(x, y, covariates=given), model.transform(x, y, covariates=given)
        )
        np.testing.assert_allclose(copied.predict(x, covariates=given), model.predict(x, covariates=given))
    text = {
        "both": "3 of both views",
        "X": "3 of X",
        "Y": "3 of Y",
        "different": "3 of X and 3 of Y",
    }[sides]
    assert loaded.describe().params["covariates"] == text
    assert f"Without covariates: {text}." in loaded._repr_html_()
    assert "covariates" not in AWCCA(params=(1, 2)).fit(x, y).describe().params


@pytest.mark.parametrize("name", ["mean", "directions", "intercept", "slopes"])
@pytest.mark.parametrize("damage", ["missing", "NaN", "shape"])
def test_damaged_regressions_are_refused(tmp_path, name, damage):
    x, y, _, (z, _) = confounded(11)
    AWCCA(params=(1, 2)).fit(x, y, covariates=z).save(tmp_path / "model")
    (file,) = files_of(tmp_path / "model").glob("*.safetensors")
    tensors = load_file(file)
    array = tensors.pop(f"covariates.y.{name}")
    if damage != "missing":
        tensors[f"covariates.y.{name}"] = np.full_like(array, np.nan) if damage == "NaN" else array[:-1]
    save_file(tensors, file)
    seal(tmp_path / "model")
    with pytest.raises(InputError, match="covariates.y"):
        AWCCA.load(tmp_path / "model")


def test_covariates_are_needed_and_refused_as_in_the_fit():
    x, y, _, (z, _) = confounded(12)
    plain = AWCCA(params=(1, 1)).fit(x, y)
    both = AWCCA(params=(1, 1)).fit(x, y, covariates=z)
    first = AWCCA(params=(1, 1)).fit(x, y, covariates=(z, None))
    vectors = plain.transform(x)
    for call in (
        lambda model, **given: model.transform(x, **given),
        lambda model, **given: model.predict(x, **given),
        lambda model, **given: model.predict_x(y, **given),
        lambda model, **given: model.score(x, y, **given),
        lambda model, **given: model.score(x, y, metric="r2", **given),
        lambda model, **given: model.inverse_transform(vectors, **given),
    ):
        with pytest.raises(InputError, match="fitted with covariates of X; give them"):
            call(both)
        with pytest.raises(InputError, match="fitted without covariates; leave them out"):
            call(plain, covariates=z)
        with pytest.raises(InputError, match=r"features, but is expecting 3|has 2 features"):
            call(both, covariates=z[:, :2])
        with pytest.raises(InputError, match="has 79 rows; expected one for each of the 80 rows"):
            call(both, covariates=z[:-1])
    with pytest.raises(InputError, match="without covariates of Y; give a pair with None for these"):
        first.predict(x, covariates=z)
    with pytest.raises(InputError, match="a tuple of 3"):
        AWCCA().fit(x, y, covariates=(z, z, z))
    with pytest.raises(InputError, match="neither those of X nor those of Y"):
        AWCCA().fit(x, y, covariates=(None, None))
    with pytest.raises(InputError, match="with covariates.*; give them"):
        draw_variates(both, x, y)
    for name, what in (
        ("search", lambda: both.projector()),
        ("search", lambda: Retriever.from_model(both)),
        ("refit", lambda: both.refit_moments(plain.make_moments(x, y), 80)),
        ("refit", lambda: both.make_moments(x, y)),
    ):
        with pytest.raises(InputError, match=f"with covariates, which a {name}.* does not have"):
            what()
    assert both.fit(x, y).regressions_ is None
    for wrong, message in ((None, "with covariates of X; give them"), (z[:, :2], "is expecting 3 features")):
        with pytest.raises(InputError, match=message):
            AWCCA().fit(x, y, covariates=z, validation=(x, y, None, wrong))
    with pytest.raises(InputError, match="validation X has 4 features"):
        AWCCA().fit(x, y, covariates=z, validation=(x[:, 1:], y, None, z))


def test_figures_draw_what_the_covariates_leave():
    x, y, pairing, (z, _) = confounded(7, captions=2)
    u, v = residuals(x, y, pairing, z)
    partial = CCA(params=(2.0, 1.0), scale=False).fit(x, y, pairing, covariates=z)
    plain = CCA(params=(2.0, 1.0), scale=False).fit(u, v, pairing)
    drawn = draw_variates(partial, x, y, pairing, covariates=z, held_out=(x, y, pairing, z))
    expected = draw_variates(plain, u, v, pairing, held_out=(u, v, pairing))
    for line, other in zip(drawn.axes[0].lines, expected.axes[0].lines, strict=True):
        np.testing.assert_allclose(line.get_xydata(), other.get_xydata(), atol=1e-9)
    arrows = draw_arrows(partial, x, y, pairing, covariates=z).axes[0].lines[0].get_xydata()
    np.testing.assert_allclose(
        arrows, draw_arrows(plain, u, v, pairing).axes[0].lines[0].get_xydata(), atol=1e-9
    )


def test_settings_that_take_no_covariates_are_refused(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    x, y, _, (z, _) = confounded(13)
    for settings, options in (
        ({"polish": True}, {}),
        ({"selection": "leave-one-out"}, {}),
        ({}, {"checkpoint": tmp_path / "sum"}),
    ):
        with pytest.raises(InputError, match="and covariates are not supported together"):
            AWCCA(**settings).fit(x, y, covariates=z, **options)
    with pytest.raises(InputError, match="X is a sparse matrix; give a dense array"):
        AWCCA().fit(sparse.csr_array(x), y, covariates=z)
    with pytest.raises(InputError, match="blocks are read once, which covariates do not allow"):
        AWCCA(params=(1, 1)).fit([(x, y)], covariates=z)
    with pytest.raises(InputError, match="leave nothing of 80 rows of X"):
        AWCCA().fit(x, y, covariates=np.random.default_rng(0).normal(size=(80, 79)))


def test_statistics_of_a_partial_model_need_its_covariates():
    x, y, _, (z, _) = confounded(14)
    partial = AWCCA(params=(2.0, 3.0)).fit(x, y, covariates=z)
    for function, options in (
        (lambda *views, **more: permutation_test(*views, **more).null, {"n_permutations": 19}),
        (lambda *views, **more: bootstrap(*views, **more).x_loadings.low, {"n_resamples": 5}),
        (lambda *views, **more: cross_validated_correlations(*views, **more).folds, {}),
    ):
        with pytest.raises(InputError, match="the model was fitted with covariates; give them"):
            function(partial, x, y, **options)
        options |= {"covariates": z, "n_components": 2}
        np.testing.assert_allclose(
            function(partial, x, y, **options), function((2.0, 3.0), x, y, **options), atol=1e-9
        )
    found = loadings(partial)
    u, v = (regress(view, z) @ weights for view, weights in zip((x, y), _weights(partial), strict=True))
    expected = np.corrcoef(np.hstack([regress(x, z), u]).T)[:5, 5:]
    np.testing.assert_allclose(found.x, expected, atol=1e-9)
    expected = np.corrcoef(np.hstack([regress(y, z), u]).T)[:4, 4:]
    np.testing.assert_allclose(found.y_cross, expected, atol=1e-9)
    assert v.shape == (80, 4)


def _weights(model):
    canonical = model.models_["search"]
    return canonical.x_weights, canonical.y_weights


def test_it_works_where_scikit_learn_passes_metadata():
    x, y, _, (z, _) = confounded(15)
    model = clone(AWCCA(params=(1, 1)))
    vectors = model.fit_transform(x, y, covariates=z)
    np.testing.assert_allclose(vectors, model.transform(x, covariates=z), atol=1e-9)
    with config_context(enable_metadata_routing=True):
        model.set_fit_request(covariates=True).set_score_request(covariates=True)
        scores = cross_val_score(model, x, y, params={"covariates": z}, cv=KFold(2))
    expected = []
    for train, test in KFold(2).split(x):
        fold = AWCCA(params=(1, 1)).fit(x[train], y[train], covariates=z[train])
        expected.append(fold.score(x[test], y[test], covariates=z[test]))
    np.testing.assert_allclose(scores, expected)
