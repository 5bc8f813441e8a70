"""Ties on every route, against ranks that are computed in extended precision."""

import numpy as np
import pytest

from diptych.cca import bjorck_golub, spectra
from diptych.cca._weighting import project
from diptych.cca.selection import best_point, make_grid, make_problem, regularization_path
from diptych.cca.selection._textbook import components_path
from diptych.ranking import metric, ranks
from diptych.ranking._ranks import search_ranks, tie_slack
from generated_pairs import make_pairs

TASKS = ("search", "annotate")


def reference_ranks(x, y, pairing, task, similarity="cosine"):
    """Ranks of embeddings in extended precision: what is exactly as good as the truth counts against it."""
    x, y = x.astype(np.longdouble), y.astype(np.longdouble)
    items, queries = (x, y) if task == "search" else (y, x[np.unique(pairing)])
    squares = (items * items).sum(1)
    scores = queries @ items.T
    # Equal vectors come out equal in every order of summation only if they are summed as one.
    _, first, inverse = np.unique(items, axis=0, return_index=True, return_inverse=True)
    inverse = inverse.reshape(-1)
    if similarity == "cosine":
        scores = scores / np.sqrt(np.where(squares > 0, squares, 1))
    else:
        scores = scores - squares / 2
    scores = scores[:, first][:, inverse]
    if task == "search":
        own = np.arange(len(x)) == pairing[:, None]
    else:
        own = pairing == np.unique(pairing)[:, None]
    best = np.where(own, scores, -np.inf).max(1, keepdims=True)
    return 1 + ((scores >= best) & ~own).sum(1)


def duplicated(seed, dtype=np.float64, n=60):
    """Pairs whose validation half has every third image and caption twice, some of them orthogonal to all."""
    rng = np.random.default_rng(seed)
    training, (x, y, pairing) = make_pairs(seed, n=n, captions=2, m_x=8, m_y=7, noise=2.0)
    x, y = x.copy(), y.copy()
    twins = rng.permutation(len(x))[: 2 * (len(x) // 3)]
    x[twins[::2]] = x[twins[1::2]]
    twins = rng.permutation(len(y))[: 2 * (len(y) // 3)]
    y[twins[::2]] = y[twins[1::2]]
    return spectra(*training), (x.astype(dtype), y.astype(dtype), pairing)


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
@pytest.mark.parametrize("kind", ["tikhonov", "tsvd"])
def test_routes_choose_alike_where_items_are_duplicated(kind, similarity):
    for seed in range(12):
        fitted, validation = duplicated(seed)
        problem = make_problem(fitted, validation, similarity)
        grid = make_grid(kind, 5 if kind == "tikhonov" else ([2, 3, 4, 6, 8], [2, 3, 4, 5, 7]), fitted)
        paths = {
            route: regularization_path(problem, fitted, grid, metric("r@1"), route=route)
            for route in ("exact", "textbook", "screened")
        }
        for task in TASKS:
            exact = paths["exact"].scores[task]["r@1"]
            np.testing.assert_array_equal(exact, paths["textbook"].scores[task]["r@1"])
            known = paths["screened"].exact[task]
            np.testing.assert_array_equal(paths["screened"].scores[task]["r@1"][known], exact[known])
            assert paths["exact"].choice[task] == paths["textbook"].choice[task]
            assert paths["exact"].choice[task] == paths["screened"].choice[task]


@pytest.mark.parametrize(
    ("scores", "best"),
    [
        ([[0, 0, 5], [0, 5, 5], [5, 5, 5]], (0, 2)),
        ([[0, 5, 5], [5, 0, 0]], (0, 1)),
        ([[0, 0, 0, 5], [5, 0, 0, 0]], (1, 0)),
        ([[np.nan, 5], [5 + 1e-12, 0]], (0, 1)),
        ([1, 5, 3, 5], (1,)),
    ],
)
def test_equal_scores_go_to_the_smaller_sum_of_places_then_to_the_first(scores, best):
    assert best_point(np.array(scores, dtype=float)) == best


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("similarity", ["cosine", "l2"])
@pytest.mark.parametrize("task", TASKS)
def test_equal_items_tie_however_small_the_score(backend, task, similarity, dtype):
    rng = np.random.default_rng(0)
    for width in (2, 3, 8, 100, 700):
        # Scores of the truths are all but zero; each has a twin, and thirty rivals that score lower.
        queries = rng.normal(size=(30, width))
        items = rng.normal(size=(30, width))
        items -= np.sum(items * queries, 1, keepdims=True) / np.sum(queries**2, 1, keepdims=True) * queries
        twice = [np.concatenate([items, items]).astype(dtype), queries.astype(dtype)]
        if task == "search":
            x, y, pairing = *twice, np.arange(30)
        else:
            x, y = np.concatenate([queries, queries]).astype(dtype), twice[0]
            pairing = np.arange(60)
        result = ranks(backend(x), backend(y), backend(pairing), task=task, similarity=similarity)
        result = np.asarray(result)
        assert (result >= 2).all()
        reference = reference_ranks(x, y, pairing, task, similarity)
        # A rival may lie within rounding of the truth by chance, but hardly ever does.
        assert (result != reference).mean() < 0.1


@pytest.mark.parametrize("width", [2, 3, 5, 8])
def test_scores_that_differ_are_no_ties_in_float32(width):
    rng = np.random.default_rng(width)
    epsilon = float(np.finfo(np.float32).eps)
    queries = rng.normal(size=(400, width))
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    items = queries + 0.5 * rng.normal(size=queries.shape)
    x = np.concatenate([items, items * (1 - 24 * epsilon)]).astype(np.float32)
    y = queries.astype(np.float32)
    # Only the truth and its rival are compared: inner products a few dozen roundings apart.
    wrong = checked = 0
    for row in range(len(y)):
        pair = x[[row, row + len(y)]]
        scores = y[row : row + 1] @ pair.T
        exact = y[row].astype(float) @ pair.astype(float).T
        length = np.linalg.norm(y[row].astype(float)) * np.linalg.norm(pair[0].astype(float))
        if exact[0] - exact[1] > 10 * epsilon * length:
            slack = tie_slack(np.array([length], dtype=np.float32), 1.0, width)
            wrong += int(search_ranks(scores, np.array([0]), slack)[0] != 1)
            checked += 1
    assert checked > 100
    assert wrong == 0


@pytest.mark.parametrize("width", [2, 4, 8, 64, 512])
def test_the_slack_covers_the_rounding_of_another_order_of_summation(width):
    rng = np.random.default_rng(width)
    scale = 1.0 / np.arange(1, width + 1)
    for shape in (np.ones(width), scale):
        x, y = ((rng.normal(size=(500, width)) * shape).astype(np.float32) for _ in range(2))
        result = y @ x.T
        exact = y.astype(float) @ x.astype(float).T
        lengths = np.outer(*(np.linalg.norm(v, axis=1) for v in (y, x)))
        slack = tie_slack(lengths.astype(np.float32), 1.0, width)
        assert (np.abs(result - exact) <= slack).all()
        # And is not much more than that.
        assert (np.abs(result - exact) / slack).max() > 0.02


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
@pytest.mark.parametrize("task", TASKS)
def test_equal_items_tie_at_every_dimension(task, similarity):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(20, 40)), rng.normal(size=(40, 40))
    x = np.concatenate([x, x])
    y = np.concatenate([y[:20], y[:20]])
    pairing = np.arange(40)
    dimensions = [2, 7, 40]
    lowest = components_path(
        x, y, pairing, task, similarity, lambda result: float(np.min(result)), dimensions
    )
    assert (lowest >= 2).all()
    for d, k in enumerate(dimensions):
        mean = components_path(x, y, pairing, task, similarity, lambda result: float(np.mean(result)), [k])[0]
        assert mean == reference_ranks(x[:, :k], y[:, :k], pairing, task, similarity).mean(), d


@pytest.mark.parametrize("task", TASKS)
def test_sums_of_cosines_tie_up_to_the_rounding_of_their_weights(task):
    from diptych.fusion._hubness import Evaluator

    rng = np.random.default_rng(0)
    unit = rng.normal(size=(20, 300)).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    scores = unit @ np.concatenate([unit, unit]).T
    if task == "search":
        judge = Evaluator("search", np.arange(20), 40, 300)
    else:
        scores = np.concatenate([scores, scores])
        judge = Evaluator("annotate", np.arange(40), 40, 300)
    noisy = 3.0 * scores * (1 + 4 * np.finfo(np.float32).eps * rng.uniform(-1, 1, scores.shape))
    assert (judge.ranks(noisy.astype(np.float32), 3.0) >= 2).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_equal_items_that_score_zero_tie_on_both_routes(dtype):
    from dataclasses import replace

    from diptych.cca.selection import make_weights, textbook_ranks
    from diptych.cca.selection._exact import exact_rows

    for seed in range(8):
        training, validation = make_pairs(seed, n=80, captions=1, m_x=20, m_y=17)
        fitted = spectra(*training)
        problem = make_problem(fitted, tuple(np.asarray(v, dtype) for v in validation[:2]) + validation[2:])
        w_x, w_y = make_weights(problem, fitted, make_grid("tikhonov", ([30.0], [20.0]), fitted))
        n = len(np.unique(validation[2]))
        a = problem.a[:n].astype(float)
        mapped = (a * w_x.rows[0]) @ problem.t0 * w_y.rows[0]
        b = problem.b[:n].astype(float)
        b -= np.sum(b * mapped, 1, keepdims=True) / np.sum(mapped**2, 1, keepdims=True) * mapped
        truth = type(problem.truth).of(np.arange(n), 2 * n)
        twins = replace(problem, a=np.concatenate([a, a]).astype(dtype), b=b.astype(dtype), truth=truth)
        (_, search, _, _), *_ = exact_rows(twins, w_x, w_y)
        assert (search >= 2).all()
        result = next(textbook_ranks(twins, w_x.rows[0], w_y.rows[0]))
        assert (result["search"] >= 2).all()


@pytest.mark.parametrize("similarity", ["cosine", "l2"])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_equal_images_tie_with_more_features_than_pairs(dtype, similarity):
    """All correlations are 1, and most of each image is orthogonal to what the model was fitted on."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(130, 400)), rng.normal(size=(30, 90))
    fitted = spectra(x[:30], y)
    model = bjorck_golub(fitted)
    assert (model.correlations > 1 - 1e-9).all()
    rows = x[30:] - x[30:].mean(axis=0)
    rows += 1e4 * (rows - rows @ fitted.v_x @ fitted.v_x.T)
    # Each caption is near its image, and no other image is.
    near = rows @ model.x_weights + 0.01 * rng.normal(size=(100, model.x_weights.shape[1]))
    captions = (fitted.y_mean + near @ np.linalg.pinv(model.y_weights)).astype(dtype)
    images = (fitted.x_mean + np.concatenate([rows, rows])).astype(dtype)
    u, v = project(images, fitted.x_mean, model.x_weights), project(captions, fitted.y_mean, model.y_weights)
    assert (ranks(u, v, np.arange(100), task="search", similarity=similarity) == 2).all()
    problem = make_problem(fitted, (images, captions, np.arange(100)), similarity)
    grid = make_grid("tsvd", ([29], [29]), fitted)
    for route in ("exact", "textbook", "screened"):
        path = regularization_path(problem, fitted, grid, metric("r@1"), route=route)
        assert path.best("search") == 0.0, route
