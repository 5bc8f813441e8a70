"""Leaving one image out in closed form, against refits that really leave it out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diptych import AWCCA, InputError
from diptych.cca import spectra
from diptych.cca.selection.leave_one_out import left_out, mapped_captions, mapped_images
from diptych.ranking import ranks, recall_at_k
from generated_pairs import make_pairs


def ridge(x, y, gamma):
    """Ridge regression of y on x with an unpenalised mean: a function of new rows."""
    x_mean, y_mean = x.mean(0), y.mean(0)
    a = x - x_mean
    weights = np.linalg.solve(a.T @ a + gamma * np.eye(x.shape[1]), a.T @ (y - y_mean))
    return lambda rows: (rows - x_mean) @ weights + y_mean


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    gamma=st.floats(1e-3, 1e3),
    captions=st.integers(1, 4),
    m_x=st.integers(2, 9),
    m_y=st.integers(2, 9),
)
def test_closed_form_equals_refits(seed, gamma, captions, m_x, m_y):
    x, y, pairing = make_pairs(seed, n=40, captions=captions, m_x=m_x, m_y=m_y)[0]
    found = spectra(x, y, pairing, solver="svd")
    rows = left_out(found, x, y, pairing)
    problem = rows.problem
    top_x, top_y = found.s_x[0], found.s_y[0]
    images = mapped_images(problem, 1 / (found.s_x**2 + gamma) * top_x**2, found.count)
    texts = mapped_captions(problem, 1 / (found.s_y**2 + gamma) * top_y**2, found.count)
    described = np.unique(pairing)
    sampled_captions = np.flatnonzero(np.isin(pairing, described))
    # Back to feature space, uncentred, as a plain regression would predict.
    images = images * top_y @ found.v_y.T + found.y_mean
    texts = texts * top_x @ found.v_x.T + found.x_mean
    scale = max(np.abs(x).max(), np.abs(y).max())
    for place, image in enumerate(described):
        keep, own = pairing != image, pairing == image
        predicted = ridge(x[pairing[keep]], y[keep], gamma)(x[image : image + 1])
        np.testing.assert_allclose(images[place], predicted[0], atol=1e-10 * scale)
        predicted = ridge(y[keep], x[pairing[keep]], gamma)(y[own])
        np.testing.assert_allclose(texts[own[sampled_captions]], predicted, atol=1e-10 * scale)


def test_ranks_are_those_of_the_mapped_rows(rng):
    """One grid point, made the long way: predictions of refits, whitened by all pairs."""
    x, y, pairing = make_pairs(3, n=60)[0]
    gammas = 2.0, 5.0
    model = AWCCA(selection="leave-one-out", grid=([gammas[0]], [gammas[1]])).fit(x, y, pairing)
    described = np.unique(pairing)
    local = np.searchsorted(described, pairing)
    y_mean = y.mean(0)
    white = np.linalg.cholesky(np.linalg.inv((y - y_mean).T @ (y - y_mean) + gammas[1] * np.eye(y.shape[1])))
    predicted = np.vstack(
        [
            ridge(x[pairing[pairing != i]], y[pairing != i], gammas[0])(x[i : i + 1])[0] - y_mean
            for i in described
        ]
    )
    expected = ranks(predicted @ white, (y - y_mean) @ white, local, task="search")
    assert model.path_.scores["search"]["r@1"][0, 0] == recall_at_k(expected, 1)
    assert model.path_.route == "leave-one-out"
    assert "left out in turn" in model.path_.held_out


def test_it_chooses_about_what_validation_chooses():
    training, validation = make_pairs(5, n=300, captions=2, m_x=40, m_y=30, noise=1.5)
    alone = AWCCA(selection="leave-one-out", grid=10, metric="mean_recall").fit(*training)
    chosen = AWCCA(grid=10, metric="mean_recall").fit(*training, validation=validation)
    weakest = AWCCA(params=(1e-9, 1e-9), metric="mean_recall").fit(*training)
    assert alone.score(*validation) > chosen.score(*validation) - 4
    assert alone.score(*validation) > weakest.score(*validation)


def test_a_sample_is_seeded_and_more_features_than_pairs_work(rng):
    x, y = rng.normal(size=(30, 50)), rng.normal(size=(30, 40))
    with pytest.warns(UserWarning, match="failed"):
        first = AWCCA(selection="leave-one-out", grid=([1e-30, 1.0], [1e-30, 1.0])).fit(x, y)
    assert first.path_.choice == {"search": (0, 0), "annotate": (0, 0)}
    found = spectra(x, y)
    a, b = (left_out(found, x, y, np.arange(30), random_state=1, sample=9).problem.a for _ in range(2))
    assert a.shape[0] == 9
    np.testing.assert_array_equal(a, b)


def test_torch_gives_the_same(rng):
    torch = pytest.importorskip("torch")
    x, y, pairing = make_pairs(1)[0]
    here = AWCCA(selection="leave-one-out", grid=5).fit(x, y, pairing)
    there = AWCCA(selection="leave-one-out", grid=5).fit(*map(torch.as_tensor, (x, y, pairing)))
    assert here.path_.choice == there.path_.choice


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"filter": "tsvd"}, "Tikhonov"),
        ({"weighting": "symmetric"}, "asymmetric"),
        ({"n_components": 3}, "full dimension"),
        ({"n_components": "auto"}, "no dimension"),
    ],
)
def test_what_it_cannot_select_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        AWCCA(selection="leave-one-out", **options).fit(*make_pairs(0)[0])


def test_validation_pairs_and_too_few_images_are_refused():
    training, validation = make_pairs(0)
    with pytest.raises(InputError, match="takes no validation"):
        AWCCA(selection="oas").fit(*training, validation=validation)
    with pytest.raises(InputError, match="too little"):
        AWCCA(selection="leave-one-out").fit(*(view[:2] for view in training[:2]))
    with pytest.raises(InputError, match="selection="):
        AWCCA(selection="guess").fit(*training)
