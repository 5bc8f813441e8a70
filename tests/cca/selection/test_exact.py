"""The SVD-free path against one SVD per grid point."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych._arrays import to_numpy
from diptych.cca import Tikhonov, TruncatedSVD, maps, regularized_cca, spectra
from diptych.cca.selection import _exact as exact
from diptych.cca.selection import make_grid, make_problem, make_weights
from diptych.cca.selection._exact import exact_rows
from diptych.cca.selection._problem import annotate_norms, products
from diptych.cca.selection._textbook import textbook_path
from generated_pairs import make_pairs

shapes = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "n": st.integers(20, 60),
        "captions": st.integers(1, 4),
        "m_x": st.integers(2, 16),
        "m_y": st.integers(2, 16),
        "rank_x": st.sampled_from([None, 2]),
    }
)


def long_way_scores(trained, validation, filters, task, similarity="cosine"):
    """Scores by canonical weights and embeddings (queries × items), but for a constant per query."""
    model = regularized_cca(trained, *filters, tolerance=0.0)
    x, y, _ = validation
    x_map, y_map = maps(model, "asymmetric", task)
    ex, ey = (x - trained.x_mean) @ x_map, (y - trained.y_mean) @ y_map
    queries, items = (ey, ex) if task == "search" else (ex, ey)
    if similarity == "cosine":
        return queries @ (items / np.linalg.norm(items, axis=1, keepdims=True)).T
    return queries @ items.T - 0.5 * np.sum(items**2, axis=1)


def rank_interval(scores, pairing, task, slack):
    """The smallest and largest rank that rounding of size ``slack`` could give each query."""
    own = np.zeros(scores.shape, dtype=bool)
    if task == "search":
        own[np.arange(len(pairing)), pairing] = True
    else:
        own[pairing, np.arange(len(pairing))] = True
        described = np.unique(pairing)
        scores, own = scores[described], own[described]
    truth = np.where(own, scores, -np.inf).max(axis=1, keepdims=True)
    others = np.where(own, -np.inf, scores)
    return 1 + (others > truth + slack).sum(1), 1 + (others >= truth - slack).sum(1)


def filters_at(grid, i, j):
    make = Tikhonov if grid.kind == "tikhonov" else TruncatedSVD
    return tuple(make(p) for p in grid.params(i, j))


@given(shapes, st.sampled_from(["tikhonov", "tsvd"]))
def test_exact_scores_equal_the_textbook_ones(shape, kind):
    training, validation = make_pairs(**shape)
    trained = spectra(*training)
    if (trained.s_x[0] / trained.s_x[-1]) ** 2 > 1e8 or (trained.s_y[0] / trained.s_y[-1]) ** 2 > 1e8:
        return
    problem = make_problem(trained, validation)
    grid = make_grid(kind, 3, trained)
    w_x, w_y = make_weights(problem, trained, grid)
    norms = annotate_norms(problem, w_x, w_y)
    for i, mapped in products(problem.a, w_x, problem.t0):
        for j, numerator in products(mapped, w_y, problem.b.T):
            image_norms = np.sqrt(mapped**2 @ w_y.rows[j])
            for task, result in (
                ("search", (numerator / image_norms[:, None]).T),
                ("annotate", numerator / np.sqrt(norms[i, j])),
            ):
                expected = long_way_scores(trained, validation, filters_at(grid, i, j), task)
                scale = np.abs(expected).max() / np.abs(result).max()
                np.testing.assert_allclose(result * scale, expected, atol=1e-10 * np.abs(expected).max())


@given(shapes, st.sampled_from(["tikhonov", "tsvd"]), st.sampled_from(["cosine", "l2"]), st.booleans())
def test_exact_ranks_equal_the_textbook_ones_on_every_backend(shape, kind, similarity, use_torch):
    training, validation = make_pairs(**shape)
    trained, views = spectra(*training), validation
    if use_torch:
        torch = pytest.importorskip("torch")
        views = [torch.as_tensor(view) for view in validation]
    problem = make_problem(trained, views, similarity)
    grid = make_grid(kind, 4, trained)
    w_x, w_y = make_weights(problem, trained, grid)
    textbook = {(i, j): result for i, j, result in textbook_path(problem, w_x, w_y)}
    with mock.patch.multiple(exact, CPU_TILE_BYTES=4000, DEVICE_TILE_BYTES=4000):  # several tiles
        rows = list(exact_rows(problem, w_x, w_y))
    for i, search, annotate, finite in rows:
        assert bool(finite.all())
        for j in range(len(finite)):
            for task, result in (("search", search[j]), ("annotate", annotate[j])):
                scores = long_way_scores(trained, validation, filters_at(grid, i, j), task, similarity)
                low, high = rank_interval(scores, validation[2], task, 1e-8 * np.abs(scores).max())
                for ranked in (to_numpy(result), to_numpy(textbook[i, j][task])):
                    assert (low <= ranked).all()
                    assert (ranked <= high).all()


def test_nested_steps_change_only_the_added_directions(trained):
    fitted, validation = trained
    problem = make_problem(fitted, validation)
    w_x, _ = make_weights(problem, fitted, make_grid("tsvd", [[2, 5, 9, 14], [3]], fitted))
    assert [(s.start, s.stop, s.fresh) for s in w_x.steps] == [
        (0, 2, True),
        (2, 5, False),
        (5, 9, False),
        (9, 14, False),
    ]
    for index, product in products(problem.a, w_x, problem.t0):
        np.testing.assert_allclose(product, (problem.a * w_x.rows[index]) @ problem.t0, atol=1e-12)
