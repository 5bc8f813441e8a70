"""Generalised CCA, against an eigenproblem, other libraries, and two views."""

import numpy as np
import pandas as pd
import pytest
import scipy.linalg
from cca_zoo import linear as cca_zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from diptych import GCCA, InputError
from diptych._checks import DataWarning
from diptych.cca import Tikhonov, regularized_cca, spectra
from diptych.cca._generalized import ViewSpectra, generalized_cca
from tests.tolerance import assert_close

SIZES = (7, 5, 6)


def make_views(seed=0, n=120, sizes=SIZES, hidden=3, noise=1.0):
    rng = np.random.default_rng(seed)
    cause = rng.normal(size=(n, hidden))
    return [cause @ rng.normal(size=(hidden, m)) + noise * rng.normal(size=(n, m)) + 3.0 for m in sizes]


def assert_same_up_to_sign(ours, theirs, tolerance=1e-8):
    for view, other in zip(ours, theirs, strict=True):
        for a, b in zip(np.transpose(view), np.transpose(other), strict=True):
            assert abs(np.corrcoef(a, b)[0, 1]) == pytest.approx(1.0, abs=tolerance)


def test_equals_the_group_configuration_of_the_textbook():
    views = [view - view.mean(axis=0) for view in make_views()]
    hats = sum(view @ np.linalg.inv(view.T @ view) @ view.T for view in views)
    values, group = np.linalg.eigh(hats)
    model = GCCA(n_components=4, params=(0, 0, 0)).fit(views)
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:4], atol=1e-9)
    variates = model.transform(views)
    assert_same_up_to_sign([np.sum(variates, axis=0)], [group[:, ::-1][:, :4]])


@pytest.mark.parametrize("gammas", [(0.0, 0.0, 0.0), (3.0, 40.0, 0.5)])
def test_equals_a_generalised_eigenproblem(gammas):
    views = [view - view.mean(axis=0) for view in make_views()]
    stacked = np.hstack(views)
    metric = scipy.linalg.block_diag(
        *(view.T @ view + gamma * np.eye(view.shape[1]) for view, gamma in zip(views, gammas, strict=True))
    )
    within = scipy.linalg.block_diag(*(view.T @ view for view in views))
    values, vectors = scipy.linalg.eigh(stacked.T @ stacked - within + metric, metric)
    model = GCCA(n_components=3, params=gammas).fit(views)
    np.testing.assert_allclose(model.eigenvalues_, values[::-1][:3], atol=1e-10)
    expected = vectors[:, ::-1][:, :3] * 3**0.5  # vᵀ metric v = 1 in all, so 1 a view on average
    weights = np.vstack(model.weights_)
    signs = np.sign(np.sum(expected * weights, axis=0))
    np.testing.assert_allclose(weights, expected * signs, atol=1e-9)


def test_two_views_are_those_of_regularized_cca():
    x, y, _ = make_views()
    model = GCCA(params=(4.0, 9.0)).fit([x, y])
    two = regularized_cca(spectra(x, y), Tikhonov(4.0), Tikhonov(9.0))
    assert_close(model.eigenvalues_ - 1.0, two.correlations, 120)
    assert_close(model.weights_[0], two.x_weights, 120, condition=10)
    assert_close(model.weights_[1], two.y_weights, 120, condition=10)
    assert_close(model.correlations_[:, 0, 1], two.train_correlations, 120, condition=10)


def test_equals_cca_zoo():
    views, n = make_views(), 120
    plain = cca_zoo.GCCA(n_components=3).fit(views)
    ours = GCCA(n_components=3, params=(0, 0, 0)).fit_transform(views)
    assert_same_up_to_sign(ours, plain.transform(views))
    # Their metric (1 − c) XᵀX/(n − 1) + c I is ours at γ = (n − 1) c/(1 − c), but for a scale.
    ridge = cca_zoo.MCCA(n_components=3, shrinkage=0.3).fit(views)
    ours = GCCA(n_components=3, params=[(n - 1) * 0.3 / 0.7] * 3).fit_transform(views)
    assert_same_up_to_sign(ours, ridge.transform(views))


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.integers(0, 2))
def test_an_invertible_map_of_a_view_changes_no_variate(seed, which):
    views = make_views(seed)
    rng = np.random.default_rng(seed + 1)
    basis, _ = np.linalg.qr(rng.normal(size=(SIZES[which], SIZES[which])))
    mapped = list(views)
    mapped[which] = views[which] @ (basis * rng.uniform(0.5, 2.0, SIZES[which])) - 1.0
    first, second = (GCCA(n_components=2, params=(0, 0, 0)).fit(each) for each in (views, mapped))
    assert_close(second.eigenvalues_, first.eigenvalues_, 120, condition=1e3)
    assert_same_up_to_sign(second.transform(mapped), first.transform(views), 1e-6)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(3)), st.floats(0.0, 100.0))
def test_the_order_of_views_does_not_matter(seed, order, gamma):
    views = make_views(seed)
    model = GCCA(n_components=2, params=[gamma] * 3).fit(views)
    other = GCCA(n_components=2, params=[gamma] * 3).fit([views[at] for at in order])
    assert_close(other.eigenvalues_, model.eigenvalues_, 120, condition=1e3)
    assert_close(other.correlations_, model.correlations_[:, order][:, :, order], 120, condition=1e6)


def test_both_decompositions_agree(monkeypatch):
    views = make_views(n=3000, sizes=(360, 4, 5))
    gram = ViewSpectra.of(views)
    monkeypatch.setattr("diptych.cca._generalized.resolve_solver", lambda *shapes: "svd")
    svd = ViewSpectra.of(views)
    assert gram.resolution > svd.resolution == 0.0
    values, weights = generalized_cca(gram, (10.0, 20.0, 30.0), 3)
    expected, their_weights = generalized_cca(svd, (10.0, 20.0, 30.0), 3)
    assert_close(values, expected, 3000)
    for ours, theirs in zip(weights, their_weights, strict=True):
        assert_close(ours, theirs, 3000, condition=100)


def test_selected_regularisation_is_better_on_new_rows_than_none():
    views = make_views(n=400, sizes=(60, 70, 50), noise=4.0)
    train, new = [view[:100] for view in views], [view[100:] for view in views]

    def measure(**settings):
        variates = GCCA(n_components=3, **settings).fit(train).transform(new)
        return np.mean([np.corrcoef(variates[0][:, k], variates[1][:, k])[0, 1] for k in range(3)])

    chosen = measure()
    assert chosen > measure(params=(0, 0, 0)) + 0.1
    assert chosen > measure(params="ledoit-wolf") - 0.1
    assert measure(params="oas") > measure(params=(0, 0, 0))


def test_shrinkage_is_that_of_scikit_learn():
    from sklearn.covariance import ledoit_wolf

    views = make_views(n=60)
    for view, gamma in zip(views, GCCA(params="ledoit-wolf").fit(views).params_, strict=True):
        _, delta = ledoit_wolf(view)
        mean = np.mean(np.var(view, axis=0))
        assert gamma == pytest.approx(60 * mean * delta / (1 - delta))


def test_a_missing_view_and_new_rows():
    views = make_views()
    model = GCCA(n_components=2).fit(views)
    first, none, third = model.transform([views[0][:5], None, views[2][:9]])
    assert none is None
    everything = model.transform(views)
    np.testing.assert_allclose(first, everything[0][:5], atol=1e-12)
    np.testing.assert_allclose(third, everything[2][:9], atol=1e-12)
    assert clone(model).get_params() == {"n_components": 2, "params": None, "random_state": 0}
    float32 = model.transform([view.astype(np.float32) for view in views])
    assert_close(float32[0], everything[0], 7)
    assert float32[0].dtype == np.float32


def test_data_frames_are_matched_by_label_and_by_column():
    views = make_views()
    frames = [
        pd.DataFrame(view, [f"r{i}" for i in range(120)], [f"c{j}" for j in range(view.shape[1])])
        for view in views
    ]
    model = GCCA(n_components=2, params=(1, 1, 1)).fit(views)
    shuffled = [frames[0], frames[1].sample(frac=1, random_state=0), frames[2]]
    with pytest.warns(DataWarning, match="view 2 and view 1|view 1 and view 2"):
        variates = GCCA(n_components=2, params=(1, 1, 1)).fit_transform(shuffled)
    for ours, expected in zip(variates, model.transform(views), strict=True):
        np.testing.assert_allclose(ours, expected, atol=1e-10)
    named = GCCA(n_components=2, params=(1, 1, 1)).fit(frames)
    reversed_columns = named.transform([None, frames[1].iloc[:, ::-1], None])[1]
    np.testing.assert_allclose(reversed_columns, model.transform(views)[1], atol=1e-10)
    with pytest.raises(InputError, match="view 2 has the columns 'other'"):
        named.transform([None, frames[1].rename(columns={"c0": "other"})[["other"]], None])
    with pytest.raises(InputError, match="do not agree"):
        GCCA().fit([frames[0], frames[1].rename(index={"r0": "other"})])


@pytest.mark.parametrize(
    ("settings", "change", "message"),
    [
        ({}, lambda views: views[0], "a list of two or more views"),
        ({}, lambda views: views[:1], "a list of two or more views"),
        ({}, lambda views: [views[0], None], "view 2 is None"),
        ({}, lambda views: [views[0], views[1][:5]], "view 2 has 5 rows and view 1 has 120"),
        ({}, lambda views: [views[0], np.full_like(views[1], np.nan)], "view 2 contains NaN"),
        ({}, lambda views: [views[0], np.ones((120, 2))], "every row of view 2 is the same"),
        ({}, lambda views: [view[:20] for view in views], "20 rows are too few"),
        ({"params": (1, 2)}, lambda views: views, "not a γ for each of 3 views"),
        ({"params": 5.0}, lambda views: views, "not a γ for each of 3 views"),
        ({"params": (1, 2, -1)}, lambda views: views, "not a Tikhonov parameter"),
        ({"params": "other"}, lambda views: views, "params='other' is unknown"),
        ({"n_components": 99}, lambda views: views, "n_components=99 is not possible here"),
        ({"n_components": 0}, lambda views: views, "n_components=0"),
        ({"random_state": -1}, lambda views: views, "random_state=-1"),
    ],
)
def test_wrong_input_is_refused(settings, change, message):
    with pytest.raises(InputError, match=message):
        GCCA(**settings).fit(change(make_views()))


def test_wrong_views_of_transform_are_refused():
    views = make_views()
    model = GCCA(params=(1, 1, 1)).fit(views)
    with pytest.raises(InputError, match="fitted on 3 views"):
        model.transform(views[:2])
    with pytest.raises(InputError, match="view 1 has 5 features"):
        model.transform([views[1], None, None])


def test_torch_gives_what_numpy_gives():
    torch = pytest.importorskip("torch")
    views = make_views()
    expected = GCCA(n_components=2).fit(views)
    model = GCCA(n_components=2).fit([torch.as_tensor(view) for view in views])
    assert isinstance(model.weights_[0], torch.Tensor)
    assert_close(model.eigenvalues_.numpy(), expected.eigenvalues_, 120, condition=10)
    assert_close(model.weights_[2].numpy(), expected.weights_[2], 120, condition=100)
