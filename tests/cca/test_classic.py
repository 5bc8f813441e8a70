"""CCA and PLS against other libraries and plain linear algebra, and selection by held-out correlation."""

import functools

import numpy as np
import pytest
from cca_zoo import linear as cca_zoo
from scipy.sparse import csr_array
from sklearn import cross_decomposition
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LinearRegression
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks
from statsmodels.multivariate.cancorr import CanCorr

from diptych import AWCCA, CCA, PLS, InputError, Retriever
from diptych.cca.selection import hold_out
from diptych.stats import bootstrap, cross_validated_correlations, loadings, permutation_test

pd = pytest.importorskip("pandas")


def views(seed=0, n=120, m_x=7, m_y=5, hidden=3):
    """Two views whose columns have units of their own."""
    rng = np.random.default_rng(seed)
    causes = rng.normal(size=(n, hidden))
    x = causes @ rng.normal(size=(hidden, m_x)) + rng.normal(size=(n, m_x))
    y = causes @ rng.normal(size=(hidden, m_y)) + rng.normal(size=(n, m_y))
    return x * np.geomspace(0.1, 10.0, m_x) + 5.0, y * np.geomspace(3.0, 0.3, m_y) - 2.0


def correlate(u, v):
    return np.array([np.corrcoef(a, b)[0, 1] for a, b in zip(u.T, v.T, strict=True)])


def standardize(view):
    return (view - view.mean(0)) / view.std(0)


def expect_failures(estimator):
    by_name = (
        "of a class of this name, scikit-learn expects a pair from fit_transform, which no pipeline takes"
    )
    names = ("check_transformer_general", "check_transformer_data_not_an_array")
    failures = {} if isinstance(estimator, PLS) else dict.fromkeys(names, by_name)
    if estimator.params is None:
        copies = "a copy of a pair may be held out without the other"
        for kind in ("dense", "sparse"):
            failures[f"check_sample_weight_equivalence_on_{kind}_data"] = copies
    return failures


@parametrize_with_checks(
    [CCA(params=(1.0, 1.0)), CCA(grid=2, scale=False), PLS()], expected_failed_checks=expect_failures
)
def test_estimator_checks(estimator, check):
    check(estimator)


@pytest.mark.parametrize("scale", [False, True])
def test_without_regularisation_it_is_the_cca_of_other_libraries(scale):
    x, y = views(n=300)
    model = CCA(params=(0, 0), scale=scale).fit(x, y)
    np.testing.assert_allclose(model.correlations_, CanCorr(y, x).cancorr, atol=1e-10)
    theirs = cross_decomposition.CCA(2, scale=scale, tol=1e-15, max_iter=20000).fit(x, y)
    for ours, other in zip(model.transform(x, y), theirs.transform(x, y), strict=True):
        np.testing.assert_allclose(np.abs(correlate(ours[:, :2], other)), 1.0, atol=1e-8)


def test_regularised_cca_is_that_of_cca_zoo():
    x, y = views()
    c, n = 0.3, len(x)
    # Their metric (1 − c) XᵀX/(n − 1) + c I is this one at γ = (n − 1) c/(1 − c), but for a scale.
    gamma = (n - 1) * c / (1 - c)
    theirs = cca_zoo.RidgeCCA(n_components=5, shrinkage=c).fit([standardize(x), standardize(y)])
    model = CCA(params=(gamma, gamma)).fit(x, y)
    for other, ours in zip(theirs.weights_, (model.x_weights_, model.y_weights_), strict=True):
        np.testing.assert_allclose(np.abs(other), np.abs(ours) * np.sqrt((n - 1) / (1 - c)), atol=1e-8)


@pytest.mark.parametrize("scale", [False, True])
def test_pls_is_the_svd_of_the_cross_covariance(scale):
    x, y = views()
    model = PLS(scale=scale).fit(x, y)
    a, b = (standardize(view) if scale else view - view.mean(0) for view in (x, y))
    left, values, right = np.linalg.svd(a.T @ b / len(x), full_matrices=False)
    signs = np.sign(np.sum(left * model.x_weights_, axis=0))
    np.testing.assert_allclose(model.covariances_, values, rtol=1e-10)
    np.testing.assert_allclose(model.x_weights_, left * signs, atol=1e-10)
    np.testing.assert_allclose(model.y_weights_, right.T * signs, atol=1e-10)
    u, v = model.transform(x, y)
    np.testing.assert_allclose(np.mean(u * v, axis=0), values, rtol=1e-10)
    np.testing.assert_allclose(model.correlations_, correlate(u, v), atol=1e-10)
    theirs = cross_decomposition.PLSSVD(5, scale=scale).fit(x, y)
    np.testing.assert_allclose(np.abs(theirs.x_weights_), np.abs(model.x_weights_), atol=1e-8)
    theirs = cca_zoo.PLS(n_components=5).fit([a, b])
    np.testing.assert_allclose(np.abs(correlate(theirs.weights_[1], model.y_weights_)), 1.0, atol=1e-8)


def test_cca_becomes_pls_for_large_gamma():
    x, y = views()
    limit, pls = CCA(params=(1e12, 1e12)).fit(x, y), PLS().fit(x, y)
    for ours, other in ((limit.x_weights_, pls.x_weights_), (limit.y_weights_, pls.y_weights_)):
        np.testing.assert_allclose(ours / np.linalg.norm(ours, axis=0), other, atol=1e-8)
    np.testing.assert_allclose(limit.predict(x) - y.mean(0), 0.0, atol=1e-6)  # ridge shrinks all the way,
    variates = pls.transform(x)
    expected = LinearRegression().fit(variates, y).predict(variates)
    np.testing.assert_allclose(pls.predict(x), expected, atol=1e-8)  # least squares on the variates does not


@pytest.mark.parametrize("estimator", [CCA(params=(3.0, 2.0)), CCA(2, params=(3.0, 2.0)), PLS(2)])
def test_scaling_is_that_of_standardised_views(estimator):
    x, y = views()
    model = estimator.fit(x, y)
    scaled = StandardScaler().fit(x), StandardScaler().fit(y)
    a, b = scaled[0].transform(x), scaled[1].transform(y)
    alone = clone(estimator).set_params(scale=False).fit(a, b)
    np.testing.assert_allclose(model.x_weights_, alone.x_weights_, atol=1e-10)
    np.testing.assert_allclose(model.transform(x), (x / model.x_scale_ - model.x_mean_) @ model.x_weights_)
    for ours, other in zip(model.transform(x, y), alone.transform(a, b), strict=True):
        np.testing.assert_allclose(ours, other, atol=1e-10)
    np.testing.assert_allclose(model.predict(x), scaled[1].inverse_transform(alone.predict(a)), atol=1e-8)
    np.testing.assert_allclose(model.predict_x(y), scaled[0].inverse_transform(alone.predict_x(b)), atol=1e-8)
    for back, there, scaler in zip(
        model.inverse_transform(*model.transform(x, y)),
        alone.inverse_transform(*alone.transform(a, b)),
        scaled,
        strict=True,
    ):
        np.testing.assert_allclose(back, scaler.inverse_transform(there), atol=1e-8)
    assert model.score(x, y) == pytest.approx(alone.score(a, b))
    assert clone(model).set_params(n_components=1).fit(x, y[:, 0]).predict(x).shape == (len(x),)


def test_scales_count_pairs_and_weights_and_leave_constant_columns():
    x, y = views(n=30)
    x[:, 2] = 7.0
    weights = np.arange(1, 31) % 3.0
    rows = np.repeat(np.arange(30), weights.astype(int))
    weighted = CCA(params=(1, 1)).fit(x, y, sample_weight=weights)
    repeated = CCA(params=(1, 1)).fit(x, y[rows], pairing=rows)
    np.testing.assert_allclose(weighted.x_scale_, np.where(np.arange(7) == 2, 1.0, x[rows].std(0)))
    np.testing.assert_allclose(weighted.y_scale_, y[rows].std(0))
    np.testing.assert_allclose(repeated.x_scale_, weighted.x_scale_)
    np.testing.assert_allclose(repeated.x_weights_, weighted.x_weights_, atol=1e-10)


def test_correlations_of_all_backends_agree(backend):
    x, y = views()
    model, plain = CCA(2, params=(1, 2)).fit(backend(x), backend(y)), CCA(2, params=(1, 2)).fit(x, y)
    assert type(model.transform(backend(x))) is type(backend(x))
    np.testing.assert_allclose(np.asarray(model.predict(backend(x))), plain.predict(x), atol=1e-8)
    assert model.score(backend(x), backend(y)) == pytest.approx(plain.score(x, y))


@pytest.mark.parametrize("n_components", [None, 2])
@pytest.mark.parametrize("kind", ["tikhonov", "tsvd"])
def test_selection_finds_the_best_held_out_correlation_of_the_grid(kind, n_components):
    x, y = views(1, n=80, m_x=12, m_y=9)
    grid = ([0.1, 3.0, 100.0, 3000.0], [0.3, 30.0, 300.0]) if kind == "tikhonov" else ([3, 8, 12], [2, 6, 9])
    pairing = np.random.default_rng(0).integers(0, 80, 160)
    y = y[pairing] + np.random.default_rng(1).normal(size=(160, 9))
    held = pairing >= 50
    rows = x[:50], y[~held], pairing[~held]
    others = x[50:], y[held], pairing[held] - 50
    options = {"filter": kind, "n_components": n_components, "weighting": "none", "metric": "correlation"}
    model = AWCCA(grid=grid, **options).fit(*rows, validation=others)
    kept = n_components or 1
    table = np.empty(model.path_.grid.shape)
    for i, j in np.ndindex(table.shape):
        u, v = AWCCA(params=model.path_.grid.params(i, j), **options).fit(*rows).transform(*others[:2])
        table[i, j] = correlate(u[others[2], :kept], v[:, :kept]).sum() / kept
    for task in ("search", "annotate"):
        np.testing.assert_allclose(model.path_.scores[task]["correlation"], table, atol=1e-9)
        assert model.path_.choice[task] == np.unravel_index(table.argmax(), table.shape)
        assert model.score(*others, task=task) == pytest.approx(table.max())
    assert model.path_.best("search") == pytest.approx(table.max())
    assert model.models_["search"] is model.models_["annotate"]
    if kind == "tikhonov":
        face = CCA(n_components, grid=grid, scale=False).fit(*rows, validation=others)
        assert face.path_.choice == model.path_.choice
        assert face.score(*others) == pytest.approx(table.max())


class Engine:
    """An engine in this process."""

    def map(self, function, parts):
        return map(function, parts)

    def reduce(self, function, parts):
        return functools.reduce(function, parts)


def test_selection_holds_out_a_share_scaled_alike_and_runs_on_an_engine():
    x, y = views(2, m_x=20)
    model = CCA(grid=4).fit(x, y)
    train, held = hold_out(np.arange(120), 120, 0.35, 0)
    a, b = x / x.std(0), y / y.std(0)
    params = model.path_.params("search")
    u, v = CCA(params=params, scale=False).fit(a[train.x], b[train.y]).transform(a[held.x], b[held.y])
    assert model.path_.best("search") == pytest.approx(correlate(u[:, :1], v[:, :1])[0])
    assert model.models_.filters["search"][0].gamma == pytest.approx(params[0] * 120 / 78)
    assert CCA(grid=4).fit(x, y, engine=Engine()).path_.choice == model.path_.choice
    assert f"{model.path_.best('search'):.3f}" in model._repr_html_()


def test_models_are_saved_as_what_they_are(tmp_path):
    x, y = (pd.DataFrame(view).add_prefix(name) for view, name in zip(views(), "xy", strict=True))
    for model in (CCA(2, params=(1, 2)), CCA(grid=3), PLS(scale=False)):
        folder = tmp_path / str(model)
        model.fit(x, y).save(folder)
        loaded = type(model).load(folder)
        assert loaded.get_params() == model.get_params()
        np.testing.assert_allclose(loaded.transform(x), model.transform(x))
        np.testing.assert_allclose(loaded.predict(x), model.predict(x))
        np.testing.assert_allclose(
            permutation_test(loaded, x, y, n_permutations=9, n_components=1).null,
            permutation_test(model, x, y, n_permutations=9, n_components=1).null,
        )
        for wrong in {AWCCA, CCA, PLS} - {type(model)}:
            with pytest.raises(InputError, match=f"a fitted {type(model).__name__}, no .*; use"):
                wrong.load(folder)
    assert list(loaded.set_output(transform="pandas").transform(x).columns[:2]) == ["pls0", "pls1"]
    np.testing.assert_allclose(loaded.covariances_, model.covariances_)


@pytest.mark.parametrize("model", [CCA(3, params=(2.0, 5.0)), PLS(3)])
def test_statistics_take_them(model):
    x, y = views()
    model.fit(x, y)
    a, b = (standardize(view) for view in (x, y))
    whitened = []
    for view, gamma in ((a, 2.0), (b, 5.0)):
        values, vectors = np.linalg.eigh(view.T @ view + gamma * np.eye(view.shape[1]))
        root = (vectors / np.sqrt(values)) @ vectors.T
        whitened.append(view / len(x) ** 0.5 if isinstance(model, PLS) else view @ root)
    test = permutation_test(model, x, y, n_permutations=199, n_components=3)
    values = np.linalg.svd(whitened[0].T @ whitened[1], compute_uv=False)[:3]
    np.testing.assert_allclose(test.correlations, values, atol=1e-10)
    name = "covariance" if isinstance(model, PLS) else "correlation"
    assert name in str(test)
    assert name in test.to_frame()
    if isinstance(model, PLS):
        np.testing.assert_allclose(test.correlations, model.covariances_)
        assert "correlation" not in test.describe() + str(test)
    rng = np.random.default_rng(0)
    null = [
        np.linalg.svd(whitened[0][rng.permutation(len(x))].T @ whitened[1], compute_uv=False)[0]
        for _ in range(400)
    ]
    assert test.null[:, 0].mean() == pytest.approx(np.mean(null), rel=0.05)
    assert test.p_values[0] == pytest.approx(1 / 200)
    intervals = bootstrap(model, x, y, n_resamples=60, n_components=3)
    np.testing.assert_allclose(intervals.x_weights.estimate, model.x_weights_, atol=1e-10)
    np.testing.assert_allclose(intervals.in_sample, model.correlations_, atol=1e-10)
    weights = intervals.x_weights
    assert np.mean((weights.low <= weights.estimate) & (weights.estimate <= weights.high)) > 0.8
    u, v = model.transform(x, y)
    expected = np.corrcoef(np.hstack([x, u]), rowvar=False)[:7, 7:]
    np.testing.assert_allclose(loadings(model).x, expected, atol=1e-10)
    order = np.random.default_rng(1).permutation(120)
    folds = [(order[30:], order[:30]), (order[:90], order[90:])]
    held_out = cross_validated_correlations(model, x, y, cv=folds)
    for (train, test_rows), values in zip(folds, held_out.folds, strict=True):
        fold = clone(model)
        if not isinstance(model, PLS):
            fold.set_params(params=(2.0 * 0.75, 5.0 * 0.75))
        fold.fit(x[train], y[train])
        np.testing.assert_allclose(values, correlate(*fold.transform(x[test_rows], y[test_rows])), atol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_components": "auto"}, "n_components='auto', because the first"),
        ({"selection": "leave-one-out"}, "selection='leave-one-out', because one pair"),
        ({"path_metrics": "all"}, "path_metrics='all'"),
        ({"polish": True}, "polish=True"),
    ],
)
def test_settings_that_correlation_does_not_go_with(options, message):
    x, y = views()
    with pytest.raises(InputError, match=message):
        AWCCA(metric="correlation", **options).fit(x, y)


def test_what_they_cannot_do_is_said():
    x, y = views()
    with pytest.raises(InputError, match="scale=True takes whole views"):
        CCA(params=(1, 1)).fit([(x, y)])
    with pytest.raises(InputError, match="filter='pls' has nothing to select; use diptych.PLS"):
        AWCCA(filter="pls").fit(x, y)
    with pytest.raises(InputError, match="a PLS analyses two views and does not search; use AWCCA"):
        Retriever.from_features(x, y, model=PLS())
    with pytest.raises(NotFittedError):
        PLS().covariances_  # noqa: B018
    model = CCA(params=(1, 1)).fit(x, y)
    for ask in (
        lambda: CCA(grid=3).fit(x, y, validation=(x[:9, :3], y[:9])),
        lambda: model.transform(y=y[:, :3]),
        lambda: permutation_test(model, x[:, :3], y),
        lambda: CCA().fit(csr_array(x), y),
    ):
        with pytest.raises(InputError, match="3 features|sparse"):
            ask()
    blocks = CCA(params=(1, 1), scale=False).fit([(x[:60], y[:60]), (x[60:], y[60:])])
    np.testing.assert_allclose(
        blocks.correlations_, CCA(params=(1, 1), scale=False).fit(x, y).correlations_, atol=1e-10
    )
