"""Experiments: points of equal recall, packs, kernel CCA beside HKSE, and a legend that covers no curve."""

from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from diptych.cca import Tikhonov, project, regularized_cca, spectra
from diptych.cca.selection import make_grid, make_problem, regularization_path
from diptych.ranking import metric
from reproduction.approximation import decompose_gram, kernel_correlations
from reproduction.comparisons import sweep
from reproduction.maps import _score_grid, draw_selected_filters
from reproduction.setting import mean_captions

POWERS = ((1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.5, 0.5), (1.0, 1.0), (3.0, 3.0), (0.3, 0.7))


@pytest.fixture
def pairs_of_views(rng):
    hidden = rng.normal(size=(90, 6))
    x = hidden @ rng.normal(size=(6, 14)) + rng.normal(size=(90, 14))
    pairing = np.repeat(np.arange(90), 3)[:-2]
    y = hidden[pairing] @ rng.normal(size=(6, 10)) + rng.normal(size=(len(pairing), 10))
    return x, y, pairing


def test_the_vector_of_a_pack_is_the_mean_of_its_vectors(pairs_of_views):
    x, y, pairing = pairs_of_views
    fitted = spectra(x, y, pairing)
    weights = regularized_cca(fitted, Tikhonov(3.0), Tikhonov(5.0)).y_weights
    _, packs = mean_captions(x, y, pairing)
    vectors = project(y, fitted.y_mean, weights)
    by_hand = np.stack([vectors[pairing == i].mean(axis=0) for i in range(len(x))])
    np.testing.assert_allclose(project(packs, fitted.y_mean, weights), by_hand, atol=1e-12)


def test_equal_points_are_chosen_between_as_on_the_path(rng):
    hidden = rng.normal(size=(16, 4))
    x, y = (hidden @ rng.normal(size=(4, 7)) + 0.4 * rng.normal(size=(16, 7)) for _ in range(2))
    fitted, pairing = spectra(x, y), np.arange(8)
    ks = range(2, 8), range(2, 8)
    problem, grid = make_problem(fitted, (x[:8], y[:8], pairing)), make_grid("tsvd", ks, fitted)
    setting = SimpleNamespace(
        image=None,
        spectra=lambda image, text: fitted,
        problem=lambda image, text, rows: problem,
        fetch=lambda name, features, inputs, compute: compute(),
    )
    swept = sweep(setting, None, pairing, POWERS, ks)
    tied = 0
    for which, powers in enumerate(POWERS):
        for k in (1, 10):
            path = regularization_path(problem, fitted, grid, metric(f"r@{k}"), weighting=powers)
            for task in ("search", "annotate"):
                assert tuple(swept[f"{task} {k}"][which]["params"]) == path.params(task)
                tied += np.sum(path.scores[task][f"r@{k}"] == path.best(task)) > 1
    assert tied > 20
    path = regularization_path(problem, fitted, grid, metric("r@1"), route="exact")
    scores = _score_grid(problem, fitted, grid, ("search", "annotate"))
    assert {task: scores[task].best for task in scores} == path.choice


def test_with_linear_kernels_it_is_the_regularised_cca_of_the_features(rng):
    hidden = rng.normal(size=(60, 3))
    x, y = (hidden @ rng.normal(size=(3, width)) + rng.normal(size=(60, width)) for width in (8, 100))
    gammas = (4.0, 9.0)
    exact = kernel_correlations(decompose_gram(x @ x.T), decompose_gram(y @ y.T), gammas)
    expected = regularized_cca(spectra(x, y), *map(Tikhonov, gammas)).correlations
    np.testing.assert_allclose(exact[: len(expected)], expected, atol=1e-10)


def test_the_legend_is_outside_the_axes():
    ranks = np.arange(1, 2001)
    entry = {
        "ranks": ranks,
        "values": 100.0 / ranks**0.5,
        "search": {"k": 1700, "guided": 1.23e4, "tikhonov": 0.01},
    }
    figure = draw_selected_filters({"images": entry, "texts": entry})
    FigureCanvasAgg(figure).draw()
    whole = figure.bbox
    for axes in figure.axes:
        legend = axes.get_legend().get_window_extent()
        assert not legend.overlaps(axes.get_window_extent())
        # Within the figure, and clear of the axis label above it.
        assert legend.x0 >= whole.x0
        assert legend.x1 <= whole.x1
        assert legend.y0 >= whole.y0
        assert not legend.overlaps(axes.xaxis.label.get_window_extent())
    first, second = (axes.get_legend().get_window_extent() for axes in figure.axes)
    assert not first.overlaps(second)
