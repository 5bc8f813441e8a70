"""Models are decomposed when they are first read; until then the same ranking comes without that."""

import copy
import pickle
import threading
import warnings

import joblib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.base import clone

from diptych import AWCCA, InputError
from diptych._checks import DataWarning
from diptych.cca import (
    SpectralFilter,
    Tikhonov,
    TruncatedSVD,
    _canonical,
    bjorck_golub,
    maps,
    regularized_cca,
    spectra,
)
from diptych.cca._canonical import ranking_maps
from diptych.cca._filters import CustomFilter
from diptych.cca._models import ValidationPairs
from diptych.cca._weighting import to_unit_length
from diptych.ranking import ranks
from generated_pairs import make_pairs

TASKS = ("search", "annotate")


@pytest.fixture
def decomposed(monkeypatch):
    """How many components are wanted of every T that is decomposed."""
    wanted, real = [], _canonical.leading_components

    def note(t, most=None):
        wanted.append(most)
        return real(t, most)

    monkeypatch.setattr(_canonical, "leading_components", note)
    return wanted


def test_each_task_is_decomposed_once_and_only_when_read(decomposed):
    training, validation = make_pairs(0, n=80)
    model = AWCCA(params={"search": (1.0, 2.0), "annotate": (3.0, 4.0)}).fit(*training)
    assert set(model.models_) == {*TASKS}
    assert "search" in model.models_
    assert len(model.models_) == 2
    assert decomposed == []
    first = model.models_["search"]
    model.transform(validation[0], task="search")
    assert len(decomposed) == 1
    assert next(iter(model.models_.values())) is first
    assert len(decomposed) == 2
    with pytest.raises(KeyError):
        model.models_["find"]
    shared = AWCCA(params=(1.0, 2.0), n_components=3).fit(*training)
    assert shared.models_["search"] is shared.models_["annotate"]
    assert decomposed[2:] == [3]


def landweber(squares, t):
    return (1 - (1 - squares / squares[0]) ** t) / squares


@given(
    seed=st.integers(0, 10**6),
    widths=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    repeated=st.booleans(),
    kind=st.sampled_from(["tikhonov", "tsvd", "custom"]),
    strength=st.floats(-2, 3),
    task=st.sampled_from(TASKS),
)
def test_cosines_without_a_decomposition_are_those_with_it(seed, widths, repeated, kind, strength, task):
    rng = np.random.default_rng(seed)
    hidden = rng.normal(size=(60, 10))
    x, y = (hidden[:, :w] @ rng.normal(size=(w, w)) + rng.normal(size=(60, w)) for w in widths)
    if repeated:  # a column twice: its view has fewer directions than columns
        x = np.hstack([x, x[:, :1]])
    fitted = spectra(x, y)
    r_x, r_y = fitted.ranks
    if kind == "tikhonov":
        filters = Tikhonov(10.0**strength), Tikhonov(2 * 10.0**strength)
    elif kind == "tsvd":
        filters = TruncatedSVD(max(1, r_x - 1)), TruncatedSVD(max(1, r_y // 2))
    else:
        filters = tuple(CustomFilter(SpectralFilter(landweber), t) for t in (3.0, 9.0))
    model = regularized_cca(fitted, *filters, tolerance=0.0)
    rows = x - fitted.x_mean, y - fitted.y_mean

    def compare(pair):
        return to_unit_length(rows[0] @ pair[0]) @ to_unit_length(rows[1] @ pair[1]).T

    expected = compare(maps(model, "asymmetric", task))
    short = ranking_maps(fitted, *filters, task, short=True)
    assert short[0].shape[1] == short[1].shape[1] == model.correlations.shape[0]
    np.testing.assert_allclose(compare(short), expected, atol=1e-7)
    # A query may be longer by what no item can match, which scales all of its scores alike.
    scores = compare(ranking_maps(fitted, *filters, task))
    axis = 0 if task == "search" else 1
    for each in (scores, expected):
        each /= np.linalg.norm(each, axis=axis, keepdims=True)
    np.testing.assert_allclose(scores, expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore:the best point is on the edge")
@pytest.mark.parametrize(
    "filter", ["tikhonov", "tsvd", "guided", SpectralFilter(landweber, lambda s, n: 2 ** np.arange(n))]
)
@pytest.mark.parametrize("shape", [(12, 8), (8, 12)])
@pytest.mark.parametrize("similarity", ["cosine", "l2"])
def test_fitting_and_scoring_decompose_nothing(decomposed, backend, filter, shape, similarity):
    training, validation = make_pairs(3, n=120, m_x=shape[0], m_y=shape[1])
    training, validation = (tuple(backend(v) for v in part) for part in (training, validation))
    model = AWCCA(filter=filter, grid=5, similarity=similarity)
    for own in (None, validation):
        model.fit(*training, validation=own)
        scores = [model.score(*validation, task=task) for task in TASKS]
        assert decomposed == []
        for task, score in zip(TASKS, scores, strict=True):
            x, y = model.transform(*validation[:2], task=task)
            order = ranks(x, y, validation[2], task=task, similarity=similarity)
            assert score == pytest.approx(100 * float((order == 1).sum()) / len(order))
            assert model.score(*validation, task=task) == score
        assert decomposed
        decomposed.clear()


def test_threads_share_one_decomposition(decomposed):
    training, _ = make_pairs(0, n=80)
    model = AWCCA(params={"search": (1.0, 2.0), "annotate": (3.0, 4.0)}).fit(*training)
    barrier, models = threading.Barrier(8), []

    def read(at):
        barrier.wait()
        models.append(model.models_[TASKS[at % 2]])

    threads = [threading.Thread(target=read, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(decomposed) == 2
    assert len({id(own) for own in models}) == 2


def test_a_model_that_nobody_has_read_is_copied_and_pickled(decomposed, tmp_path):
    training, validation = make_pairs(0, n=80)
    model = AWCCA(grid=4).fit(*training)
    joblib.dump(model, tmp_path / "model")
    copies = [
        copy.copy(model),
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        joblib.load(tmp_path / "model"),
    ]
    assert not hasattr(clone(model), "models_")
    assert decomposed == []
    expected = model.transform(*validation[:2])
    for each in copies:
        for result, vectors in zip(each.transform(*validation[:2]), expected, strict=True):
            np.testing.assert_array_equal(result, vectors)
        assert each.score(*validation) == model.score(*validation)
    read = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(read.transform(validation[0]), expected[0])


@pytest.mark.parametrize("held_out", [True, False])
def test_a_device_decomposes_what_it_fitted(held_out):
    pytest.importorskip("torch")
    training, validation = make_pairs(0, n=150)
    own = None if held_out else validation
    model = AWCCA(grid=4, weighting="none")
    here = copy.deepcopy(model.fit(*training, validation=own))
    there = model.fit(*training, validation=own, device="cpu")
    unpickled = pickle.loads(pickle.dumps(there))
    for task in TASKS:
        for each in (there, unpickled):
            for name in ("correlations", "x_weights", "train_correlations", "validation_correlations"):
                result = getattr(each.models_[task], name)
                assert isinstance(result, np.ndarray)
                np.testing.assert_allclose(result, getattr(here.models_[task], name), atol=1e-8)


def test_validation_pairs_may_change_after_the_fit():
    training, validation = make_pairs(0, n=80)
    model, other = (AWCCA(params=(1.0, 2.0)).fit(*training, validation=validation) for _ in range(2))
    expected = other.models_["search"].validation_correlations
    for view in validation[:2]:
        view[:] = 0.0
    np.testing.assert_array_equal(model.models_["search"].validation_correlations, expected)


def test_many_validation_pairs_are_kept_as_moments(backend):
    (x, y, pairing), validation = make_pairs(0, n=400, m_x=6, m_y=5)
    fitted = spectra(*(backend(v) for v in (x, y, pairing)))
    model = regularized_cca(fitted, Tikhonov(1.0), Tikhonov(2.0))
    x, y, pairing = (backend(v) for v in validation)
    kept = ValidationPairs.of(x, y, pairing)
    assert kept.x is None
    expected = ValidationPairs(x, y, pairing).correlate(model, fitted)
    np.testing.assert_allclose(kept.correlate(model, fitted), expected, atol=1e-9)


def test_what_cannot_be_decomposed_is_refused_by_the_fit():
    x = np.array([[1.0], [-1.0], [1.0], [-1.0]])
    y = np.array([[1.0], [1.0], [-1.0], [-1.0]])
    for fit in (AWCCA(params=(1.0, 1.0)).fit, lambda x, y: bjorck_golub(spectra(x, y))):
        with pytest.raises(InputError, match="not correlated at all"):
            fit(x, y)
    training, _ = make_pairs(0, n=80)
    with pytest.raises(InputError, match="n_components=999 is not possible"):
        AWCCA(params=(1.0, 1.0), n_components=999).fit(*training)


def test_correlations_of_one_are_announced_without_a_decomposition(decomposed):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 20)), rng.normal(size=(30, 15))
    with pytest.warns(DataWarning, match="6 of 15 canonical correlations are 1 whatever the data") as caught:
        plain = AWCCA(filter="tsvd", params=(20, 15)).fit(x, y)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        AWCCA(params=(1.0, 1.0)).fit(x, y)
        AWCCA(filter="tsvd", params=(14, 15)).fit(x, y)
    assert decomposed == []
    assert int((plain.models_["search"].correlations > 1 - 1e-6).sum()) == 6
