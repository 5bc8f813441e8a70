"""Leaving one image out in closed form, against refits that really leave it out."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from diptych import AWCCA, InputError
from diptych.cca import spectra
from diptych.cca.selection._grids import Grid
from diptych.cca.selection._leave_one_out import (
    annotate_scores,
    leave_one_out_ranks,
    left_out,
    map_x,
    map_y,
    search_scores,
)
from generated_pairs import make_pairs


def ridge(x, y, gamma):
    """Ridge regression of y on x with an unpenalised mean: a function of new rows."""
    x_mean, y_mean = x.mean(0), y.mean(0)
    a = x - x_mean
    weights = np.linalg.solve(a.T @ a + gamma * np.eye(x.shape[1]), a.T @ (y - y_mean))
    return lambda rows: (rows - x_mean) @ weights + y_mean


@given(
    seed=st.integers(0, 10_000),
    gamma=st.floats(1e-3, 1e3),
    captions=st.integers(1, 4),
    m_x=st.integers(2, 9),
    m_y=st.integers(2, 9),
)
def test_closed_form_equals_refits(seed, gamma, captions, m_x, m_y):
    x, y, pairing = make_pairs(seed, n=40, captions=captions, m_x=m_x, m_y=m_y)[0]
    result = spectra(x, y, pairing, solver="svd")
    rows = left_out(result, x, y, pairing)
    problem = rows.problem
    top_x, top_y = result.s_x[0], result.s_y[0]
    images = map_x(problem, 1 / (result.s_x**2 + gamma) * top_x**2, result.count)
    texts = map_y(problem, 1 / (result.s_y**2 + gamma) * top_y**2, result.count)
    described = np.unique(pairing)
    sampled_captions = np.flatnonzero(np.isin(pairing, described))
    # Back to feature space, uncentred, as a plain regression would predict.
    images = images.rows * top_y @ result.v_y.T + result.y_mean
    texts = texts.rows * top_x @ result.v_x.T + result.x_mean
    scale = max(np.abs(x).max(), np.abs(y).max())
    for place, image in enumerate(described):
        keep, own = pairing != image, pairing == image
        predicted = ridge(x[pairing[keep]], y[keep], gamma)(x[image : image + 1])
        np.testing.assert_allclose(images[place], predicted[0], atol=1e-10 * scale)
        predicted = ridge(y[keep], x[pairing[keep]], gamma)(y[own])
        np.testing.assert_allclose(texts[own[sampled_captions]], predicted, atol=1e-10 * scale)


def refitted_scores(x, y, pairing, gamma_x, gamma_y):
    """Captions × images by real refits, without the images of the query and of the item."""
    described = np.unique(pairing)
    whole = y - y.mean(0)
    white = np.linalg.inv(whole.T @ whole + gamma_y * np.eye(y.shape[1]))
    scores = np.empty((len(y), len(described)))
    for place, item in enumerate(described):
        for query in described:
            keep = ~np.isin(pairing, (item, query))
            mapped = ridge(x[pairing[keep]], y[keep], gamma_x)(x[item : item + 1])[0] - y[keep].mean(0)
            own, rest = pairing == query, y[pairing != query]
            centred = rest - rest.mean(0)
            without = np.linalg.inv(centred.T @ centred + gamma_y * np.eye(y.shape[1]))
            length = np.sqrt(mapped @ white @ mapped)
            scores[own, place] = (y[own] - rest.mean(0)) @ without @ mapped / length
    return scores


@given(
    seed=st.integers(0, 10_000),
    strength=st.floats(-3, 3),
    captions=st.integers(1, 3),
    widths=st.tuples(st.integers(2, 15), st.integers(2, 15)),
)
@settings(max_examples=25, deadline=None)
def test_scores_are_those_of_refits(seed, strength, captions, widths):
    x, y, pairing = make_pairs(seed, n=26, captions=captions, m_x=widths[0], m_y=widths[1])[0]
    assume(len(np.unique(pairing)) >= 4)
    result = spectra(x, y, pairing, solver="svd")
    gammas = (10**strength * result.s_x[0] ** 2, 0.3 * result.s_y[0] ** 2)
    problem = left_out(result, x, y, pairing).problem
    w_x = 1 / (result.s_x**2 + gammas[0]) * result.s_x[0] ** 2
    w_y = 1 / (result.s_y**2 + gammas[1]) * result.s_y[0] ** 2
    images, captions = (f(problem, w, result.count) for f, w in ((map_x, w_x), (map_y, w_y)))
    ours = search_scores(problem, images, captions, w_y, result.count)
    exact = refitted_scores(x, y, pairing, *gammas)
    np.testing.assert_allclose(ours, exact, atol=1e-8 * max(1.0, 10**strength) * np.abs(exact).max())


def test_scores_of_annotation_are_nearly_those_of_refits():
    """With several captions of an image, captions of two images act on each other in their sums."""
    x, y, pairing = make_pairs(3, n=60, captions=2, m_x=5, m_y=12)[0]
    result = spectra(x, y, pairing, solver="svd")
    described, order = np.unique(pairing), np.argsort(pairing, kind="stable")
    y, pairing = y[order], pairing[order]
    for strength in (0.1, 1.0, 100.0):
        gamma_x, gamma_y = strength * result.s_x[0] ** 2, strength * result.s_y[0] ** 2
        problem = left_out(result, x, y, pairing).problem
        w_x = 1 / (result.s_x**2 + gamma_x) * result.s_x[0] ** 2
        w_y = 1 / (result.s_y**2 + gamma_y) * result.s_y[0] ** 2
        captions = map_y(problem, w_y, result.count)
        ours = annotate_scores(problem, captions, w_x, result.count)
        shared = x[pairing] - x[pairing].mean(0)
        white = np.linalg.inv(shared.T @ shared + gamma_x * np.eye(x.shape[1]))
        exact = np.empty_like(ours)
        for row, query in enumerate(described):
            for caption, item in enumerate(pairing):
                keep = ~np.isin(pairing, (item, query))
                mean = x[pairing[keep]].mean(0)
                mapped = ridge(y[keep], x[pairing[keep]], gamma_y)(y[caption : caption + 1])[0] - mean
                product = (x[query] - x[pairing].mean(0)) @ white @ mapped
                exact[row, caption] = product / np.sqrt(mapped @ white @ mapped)
        scale = np.linalg.norm(exact, axis=1).mean()
        assert np.linalg.norm(ours - exact, axis=1).mean() < 0.02 * scale


def test_few_pairs_find_each_other_as_often_as_new_ones_do():
    """Without both images and with the mean of the others, at any strength; r@1 of 30 pairs."""
    alone, fresh = [], []
    for seed in range(16):
        rng = np.random.default_rng(seed)
        mixes = rng.normal(size=(4, 10)), rng.normal(size=(4, 8))

        def draw(rng=rng, mixes=mixes):
            hidden = rng.normal(size=(30, 4))
            return [hidden @ mix + rng.normal(size=(30, mix.shape[1])) for mix in mixes]

        x, y = draw()
        result, pairs = spectra(x, y), [draw() for _ in range(5)]
        rows = left_out(result, x, y, np.arange(30))
        for strength in (0.1, 1.0, 1000.0):
            gamma = strength * result.s_x[0] ** 2
            grid = Grid("tikhonov", np.array([gamma]), np.array([gamma]))
            (_, _, ranks), *_ = leave_one_out_ranks(rows, grid)
            model = AWCCA(params=(gamma, gamma)).fit(x, y)
            for task in ("search", "annotate"):
                alone.append(100 * np.mean(ranks[task] == 1))
                fresh.append(np.mean([model.score(*views, task=task) for views in pairs]))
    differences = np.subtract(alone, fresh).reshape(16, 3, 2).mean(axis=0)
    assert np.all(np.abs(differences) < 10)


def test_annotation_is_the_mirror_image_of_search():
    """With one caption for every image the two views change places."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(25, 6)), rng.normal(size=(25, 4))
    y[:, :3] += x[:, :3]
    there, back = AWCCA(selection="leave-one-out", grid=4), AWCCA(selection="leave-one-out", grid=4)
    there.fit(x, y)
    back.fit(y, x)
    for task, other in (("search", "annotate"), ("annotate", "search")):
        ours, its = there.path_.scores[task]["r@1"], back.path_.scores[other]["r@1"]
        np.testing.assert_allclose(ours, its.T)
    assert there.path_.route == "leave-one-out"
    assert "left out in turn" in there.path_.held_out


def test_leave_one_out_chooses_nearly_as_validation_does():
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
    result = spectra(x, y)
    a, b = (left_out(result, x, y, np.arange(30), random_state=1, sample=9).problem.a for _ in range(2))
    assert a.shape[0] == 9
    np.testing.assert_array_equal(a, b)


def test_torch_gives_the_same_path(rng):
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
def test_settings_it_cannot_select_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        AWCCA(selection="leave-one-out", **options).fit(*make_pairs(0)[0])


def test_validation_pairs_and_too_few_images_are_refused():
    training, validation = make_pairs(0)
    with pytest.raises(InputError, match="takes no validation"):
        AWCCA(selection="oas").fit(*training, validation=validation)
    with pytest.raises(InputError, match="too few to choose on"):
        AWCCA(selection="leave-one-out").fit(*(view[:2] for view in training[:2]))
    with pytest.raises(InputError, match="selection="):
        AWCCA(selection="guess").fit(*training)
