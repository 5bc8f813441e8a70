import numpy as np
import pytest

from diptych import AWCCA, InputError
from diptych.cca import Moments, TruncatedSVD, regularized_cca, spectra
from diptych.ranking import ranks, recall_at_k
from tolerance import assert_close


def pairs(rng, n=60, captions=3, m_x=12, m_y=9, noise=0.3):
    hidden = rng.normal(size=(n, 5))
    x = hidden @ rng.normal(size=(5, m_x)) + noise * rng.normal(size=(n, m_x)) + 3.0
    pairing = rng.permutation(np.repeat(np.arange(n), captions))
    y = hidden[pairing] @ rng.normal(size=(5, m_y)) + noise * rng.normal(size=(n * captions, m_y)) - 2.0
    return x, y, pairing


def test_transform_gives_the_vectors_of_table_1(rng):
    x, y, pairing = pairs(rng)
    model = AWCCA(params=(2.0, 3.0)).fit(x, y, pairing)
    fitted = model.models_["search"]
    centred_x, centred_y = x - x[pairing].mean(0), y - y.mean(0)
    u, v, sigma = fitted.x_weights, fitted.y_weights, fitted.correlations
    search, annotate = model.transform(x, y, task="search"), model.transform(x, y, task="annotate")
    np.testing.assert_allclose(search[0], centred_x @ u * sigma, atol=1e-12)
    np.testing.assert_allclose(search[1], centred_y @ v, atol=1e-12)
    np.testing.assert_allclose(annotate[0], centred_x @ u, atol=1e-12)
    np.testing.assert_allclose(annotate[1], centred_y @ v * sigma, atol=1e-12)
    np.testing.assert_array_equal(model.transform(x), search[0])
    np.testing.assert_array_equal(model.transform(y=y), search[1])
    with pytest.raises(InputError, match="neither"):
        model.transform()
    with pytest.raises(InputError, match="task='find'"):
        model.transform(x, task="find")


def test_each_task_has_its_own_model(rng):
    x, y, pairing = pairs(rng)
    model = AWCCA(filter="tsvd", params={"search": (4, 5), "annotate": (6, 3)}).fit(x, y, pairing)
    assert model.models_["search"].filter_x == TruncatedSVD(4)
    assert model.models_["annotate"].correlations.shape == (3,)
    expected = regularized_cca(spectra(x, y, pairing), TruncatedSVD(6), TruncatedSVD(3))
    np.testing.assert_allclose(model.models_["annotate"].x_weights, expected.x_weights)


@pytest.mark.parametrize("weighting", ["asymmetric", "search-generation", "symmetric", "none", (0.25, 0.75)])
@pytest.mark.parametrize("similarity", ["cosine", "l2"])
def test_score_is_the_metric_of_the_ranks(rng, weighting, similarity):
    x, y, pairing = pairs(rng)
    model = AWCCA(params=(1.0, 1.0), weighting=weighting, similarity=similarity, metric="r@5")
    model.fit(x, y, pairing)
    by_task = []
    for task in ("search", "annotate"):
        result = ranks(*model.transform(x, y, task=task), pairing, task=task, similarity=similarity)
        by_task.append(recall_at_k(result, 5))
        assert model.score(x, y, pairing, task=task) == by_task[-1]
    assert model.score(x, y, pairing) == pytest.approx(np.mean(by_task))


def test_torch_views_give_torch_vectors(rng):
    torch = pytest.importorskip("torch")
    x, y, pairing = pairs(rng)
    ours = AWCCA(params=(2.0, 3.0)).fit(x, y, pairing)
    theirs = AWCCA(params=(2.0, 3.0)).fit(torch.as_tensor(x), torch.as_tensor(y), torch.as_tensor(pairing))
    embedded = theirs.transform(torch.as_tensor(x), torch.as_tensor(y), task="annotate")
    for mine, its in zip(ours.transform(x, y, task="annotate"), embedded, strict=True):
        assert isinstance(its, torch.Tensor)
        np.testing.assert_allclose(mine, its.numpy(), atol=1e-9)
    # The array given to transform chooses the backend, not the one the model was fitted on.
    assert isinstance(theirs.transform(x), np.ndarray)
    assert isinstance(ours.transform(torch.as_tensor(x)), torch.Tensor)
    score = theirs.score(torch.as_tensor(x), torch.as_tensor(y), torch.as_tensor(pairing))
    assert score == ours.score(x, y, pairing)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"filter": "ridge"}, "'tikhonov', 'tsvd', 'guided'"),
        ({"params": (-1.0, 1.0)}, "γ=-1"),
        ({"params": (1.0,)}, "not a pair"),
        ({"params": {"search": (1, 1)}}, "'search' and 'annotate'"),
        ({"filter": "tsvd", "params": (100, 2)}, "beyond the rank"),
        ({"filter": "tsvd", "params": (2.5, 2)}, "whole number"),
        ({"weighting": "both"}, "weighting"),
        ({"similarity": "dot"}, "'cosine', 'l2'"),
        ({"metric": "recall"}, "metric"),
        ({"n_components": 0}, "n_components=0"),
        ({"n_components": 2.5}, "n_components=2.5; give a whole number"),
        ({"random_state": -1}, "random_state=-1; give a whole number of at least 0"),
        ({"random_state": 1.5, "params": None}, "random_state=1.5"),
        ({"solver": "fast"}, "solver"),
        ({"precision": "half"}, "precision"),
        ({"normalize": "unit"}, "not a pair"),
        ({"normalize": ("unit", "long")}, "'none', 'unit', 'signed-sqrt', 'sqrt-unit'"),
    ],
)
def test_wrong_parameters_are_refused(rng, parameters, words):
    with pytest.raises(InputError, match=words) as caught:
        AWCCA(**{"params": (1.0, 1.0), **parameters}).fit(*pairs(rng))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda x, y, p: (x, y, None), "without a pairing"),
        (lambda x, y, p: (x, y, p + 1), "rows 0 to 59"),
        (lambda x, y, p: (x, y, p - 1), "-1"),
        (lambda x, y, p: (x, y, p[:-1]), "shape"),
        (lambda x, y, p: (np.where(x > 4, np.nan, x), y, p), "X contains NaN"),
        (lambda x, y, p: (x, np.where(y > 1, np.inf, y), p), "Y contains NaN or infinity"),
        (lambda x, y, p: (x.astype(complex), y, p), "Complex"),
        (lambda x, y, p: (x[None], y, p), "3 dimension"),
        (lambda x, y, p: (x[:0], y, p), "empty"),
        (lambda x, y, p: (x[:, :0], y, p), "0 feature"),
        (lambda x, y, p: ([["a"]] * 60, y, p), "not numbers"),
        (lambda x, y, p: ([[1, 2], [3]], y, p), "could not be read"),
        (lambda x, y, p: (np.ma.masked_array(x, x > 1), y, p), "X is a masked array"),
        (lambda x, y, p: (x * 1e300, y * 1e300, p), "X has values so large that their squares overflow"),
        (lambda x, y, p: (x, y * 1e160, p), "Y has values so large"),
        (lambda x, y, p: (x * 1e-310, y, p), "X has only values so small"),
        (lambda x, y, p: (x, y * 1e-160, p), "Y has only values so small"),
    ],
)
def test_wrong_data_is_refused(rng, spoil, words):
    with pytest.raises(InputError, match=words) as caught:
        AWCCA(params=(1.0, 1.0)).fit(*spoil(*pairs(rng)))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("solver", ["gram", "svd"])
def test_selection_on_values_near_the_end_of_the_range(rng, solver):
    x, y, pairing = pairs(rng)
    model = AWCCA(grid=3, solver=solver)
    with pytest.raises(InputError, match="X has values so large that their squares overflow"):
        model.fit(x * 1e160, y, pairing)
    model.fit(x * 1e130, y * 1e130, pairing)
    assert np.all(np.isfinite(model.transform(x * 1e130)))


def test_normalisation_is_part_of_the_model(rng):
    x, y, pairing = pairs(rng)
    x = np.abs(x)
    given = AWCCA(grid=4, normalize=("sqrt-unit", "unit")).fit(x, y, pairing, validation=(x, y, pairing))
    by_hand = np.sqrt(x), y / np.linalg.norm(y, axis=1, keepdims=True)
    by_hand = by_hand[0] / np.linalg.norm(by_hand[0], axis=1, keepdims=True), by_hand[1]
    other = AWCCA(grid=4).fit(*by_hand, pairing, validation=(*by_hand, pairing))
    np.testing.assert_allclose(given.transform(x, y)[0], other.transform(*by_hand)[0], atol=1e-9)
    np.testing.assert_allclose(given.transform(y=y), other.transform(y=by_hand[1]), atol=1e-9)


def test_views_of_two_libraries_are_refused(rng):
    torch = pytest.importorskip("torch")
    x, y, pairing = pairs(rng)
    with pytest.raises(InputError, match="same library"):
        AWCCA(params=(1.0, 1.0)).fit(x, torch.as_tensor(y), pairing)


@pytest.mark.parametrize("filter", ["tikhonov", "tsvd", "guided"])
def test_moments_and_rows_select_the_same(rng, filter):
    x, y, pairing = pairs(rng, n=300)
    validation = pairs(rng, n=60)
    rows = AWCCA(filter=filter, grid=5, solver="gram").fit(x, y, pairing, validation=validation)
    moments = AWCCA(filter=filter, grid=5).fit_moments(Moments.of(x, y, pairing), validation=validation)
    for task in ("search", "annotate"):
        assert moments.path_.choice[task] == rows.path_.choice[task]
        assert_close(
            moments.models_[task].correlations, rows.models_[task].correlations, len(y), condition=100
        )
    with pytest.raises(InputError, match="give validation pairs, or params"):
        AWCCA().fit_moments(Moments.of(x, y, pairing))


@pytest.mark.parametrize("n_components", [None, 4, "auto"])
@pytest.mark.parametrize("filter", ["tikhonov", "tsvd", "guided"])
def test_a_refit_keeps_the_selected_parameters(rng, tmp_path, filter, n_components):
    x, y, pairing = pairs(rng, n=300)
    x2, y2, pairing2 = pairs(rng, n=100)
    whole = Moments.of(x, y, pairing) + Moments.of(x2, y2, pairing2)
    first = AWCCA(filter=filter, grid=5, n_components=n_components).fit(x, y, pairing)
    first.save(tmp_path / "m")
    refitted = AWCCA.load(tmp_path / "m").refit_moments(whole, len(y))
    for task in ("search", "annotate"):
        before, after = first.models_[task], refitted.models_[task]
        if filter == "tikhonov":
            assert after.filter_x.gamma == pytest.approx(before.filter_x.gamma * whole.count / len(y))
        elif filter == "tsvd":
            assert (after.filter_x, after.filter_y) == (before.filter_x, before.filter_y)
        else:
            k = int(first.path_.params(task)[0])
            assert after.filter_x.gamma == pytest.approx(float(refitted.spectra_.s_x[k - 1]) ** 2)
        if n_components is not None:
            assert after.correlations.shape == before.correlations.shape
    assert refitted.transform(x).shape[0] == len(x)
