"""Grids whose best point is on the edge, and points that fail."""

import warnings

import numpy as np
import pytest

from diptych import AWCCA, InputError
from diptych._checks import DataWarning
from diptych.cca import spectra
from diptych.cca.selection import NumericalFailureWarning, make_grid, make_problem, regularization_path
from diptych.ranking import metric
from generated_pairs import make_pairs

TASKS = ("search", "annotate")


def few_pairs(seed, n=120, p=400, hidden=12):
    """Many more features than pairs, so that the best γ lies beyond the largest squared singular value."""
    rng = np.random.default_rng(seed)
    cause = rng.normal(size=(2 * n, hidden))
    x, y = (cause @ rng.normal(size=(hidden, p)) + 6 * rng.normal(size=(2 * n, p)) for _ in range(2))
    return (x[:n], y[:n]), (x[n:], y[n:])


def searched(pairs, kind="tikhonov", grid=8, **options):
    training, validation = pairs
    fitted = spectra(*training)
    problem = make_problem(fitted, validation, options.pop("similarity", "cosine"))
    return regularization_path(
        problem, fitted, make_grid(kind, grid, fitted), metric("mean_recall"), **{"extend": True, **options}
    )


def test_an_automatic_grid_is_extended_until_the_best_point_is_inside():
    extended = 0
    for seed in range(4):
        path = searched(few_pairs(seed))
        fitted, plain = spectra(*few_pairs(seed)[0]), searched(few_pairs(seed), extend=False)
        assert path.grid.shape == path.scores["search"]["mean_recall"].shape
        for task in TASKS:
            assert path.best(task) >= plain.best(task)
            # Inside, or where more regularisation changes nothing.
            for edge in path.edges(task):
                end, _, side = edge.split()
                assert path.grid.is_limit(side.lower(), end, fitted)
        assert sum(path.extended["x"]) == path.grid.shape[0] - 8
        assert sum(path.extended["y"]) == path.grid.shape[1] - 8
        assert (np.diff(path.grid.x) < 0).all()
        if any(path.extended["x"] + path.extended["y"]):
            extended += 1
            assert "edge of the grid" in path.describe_extension()
    assert extended >= 3


@pytest.mark.parametrize("kind", ["tikhonov", "tsvd"])
def test_every_route_extends_alike_and_has_the_scores_of_the_whole_grid(kind):
    training, validation = few_pairs(1, n=60, p=90)
    fitted = spectra(*training)
    problem = make_problem(fitted, validation)
    grid, paths = make_grid(kind, ("rank", 5), fitted), []
    for route in ("screened", "exact", "textbook"):
        ours = regularization_path(problem, fitted, grid, metric("r@1"), extend=True, route=route)
        assert any(ours.extended["x"] + ours.extended["y"])
        whole = regularization_path(problem, fitted, ours.grid, metric("r@1"), route=route)
        for task in TASKS:
            both = ours.exact[task] & whole.exact[task]
            np.testing.assert_array_equal(
                ours.scores[task]["r@1"][both], whole.scores[task]["r@1"][both], err_msg=task
            )
            assert ours.best(task) == whole.best(task)
            assert (ours.scores[task]["r@1"][~ours.exact[task]] <= ours.best(task)).all()
        paths.append(ours)
    for path in paths[1:]:
        assert path.extended == paths[0].extended
        assert path.choice == paths[0].choice


def test_beyond_the_limit_nothing_changes():
    (x, y), validation = few_pairs(3, n=60, p=80)
    fitted = spectra(x, y)
    problem = make_problem(fitted, validation)
    top = fitted.s_x[0] ** 2, fitted.s_y[0] ** 2
    far = [1e3, 1e5, 1e9]
    grid = make_grid("tikhonov", ([f * top[0] for f in far], [f * top[1] for f in far]), fitted)
    for route in ("exact", "textbook"):
        path = regularization_path(problem, fitted, grid, metric("mean_rank"), route=route)
        for task in TASKS:
            scores = path.scores[task]["mean_rank"]
            assert np.isfinite(scores).all()
            np.testing.assert_allclose(scores, scores[0, 0], rtol=0.01)
    # The limit is that of partial least squares: covariances instead of correlations.
    a, b = (x - x.mean(0)).T @ (y - y.mean(0)), validation
    u, s, vt = np.linalg.svd(a, full_matrices=False)
    from diptych.ranking import ranks

    ex, ey = (b[0] - x.mean(0)) @ u * s, (b[1] - y.mean(0)) @ vt.T
    assert np.mean(ranks(ex, ey)) == pytest.approx(path.scores["search"]["mean_rank"][0, 0], rel=0.01)


def test_an_added_value_is_not_chosen_on_a_tie():
    # Equal scores everywhere: the first grid's own strongest point is chosen, with one extension beyond it.
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 4))
    path = searched(((x[:40], x[:40]), (x[40:], x[40:])), grid=5)
    for task in TASKS:
        i, j = path.choice[task]
        assert (i, j) == (path.extended["x"][0], path.extended["y"][0])
        assert not path.edges(task)


def test_a_choice_on_the_edge_of_a_given_grid_warns():
    training, validation = few_pairs(0)
    with pytest.warns(DataWarning, match="the strongest of X") as caught:
        model = AWCCA(grid=([1.0, 10.0], [1e6])).fit(*training, validation=validation)
    assert len([w for w in caught if w.category is DataWarning]) == 1
    assert model.path_.extended == {"x": (0, 0), "y": (0, 0)}
    assert model.path_.grid.shape == (2, 1)
    assert model.path_.edges("search") == ["strongest of X"]


def test_no_warning_at_the_full_rank():
    training, validation = make_pairs(0, noise=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        path = AWCCA(filter="tsvd", grid=([2, 14], [2, 11])).fit(*training, validation=validation).path_
        assert path.choice["search"][0] in (0, 1)
        AWCCA(filter="tsvd", grid=([14], [11])).fit(*training, validation=validation)
    with pytest.warns(DataWarning, match="weakest of X \\(3\\)"):
        AWCCA(filter="tsvd", grid=([2, 3], [2, 11])).fit(*training, validation=validation)


@pytest.mark.parametrize("filter", ["tikhonov", "tsvd"])
@pytest.mark.parametrize("view", [0, 1])
def test_points_that_are_not_finite_fail_on_every_route(filter, view):
    training, validation = make_pairs(0, n=120)
    # A wide range of singular values, so that some points stay within float32 and others do not.
    training, validation = (
        (x * np.geomspace(30, 0.1, 14), y * np.geomspace(30, 0.1, 11), pairing)
        for x, y, pairing in (training, validation)
    )
    fitted = spectra(*training)
    grid = make_grid("tikhonov" if filter == "tikhonov" else "tsvd", 10, fitted)
    size = grid.shape[0] * grid.shape[1]
    for power in np.arange(15.0, 24.0, 0.25):
        pairs = [v.astype(np.float32) for v in validation[:2]]
        pairs[view][0] *= np.float32(10.0**power)
        problem = make_problem(fitted, (*pairs, validation[2]))
        exact = scored(problem, fitted, grid, "exact")
        if exact is not None and 0 < len(exact.failed) < size:
            break
    else:
        pytest.fail("no row is extreme for some points and not for others")
    screened = scored(problem, fitted, grid, "screened")
    assert sorted(exact.failed) == sorted(screened.failed)
    failed = tuple(np.transpose(screened.failed))
    for task in TASKS:
        assert np.isnan(screened.scores[task]["r@1"][failed]).all()
        assert np.isfinite(screened.scores[task]["r@1"]).sum() == size - len(screened.failed)
        assert screened.choice[task] == exact.choice[task]
        assert screened.best(task) == exact.best(task)
        assert screened.choice[task] not in screened.failed


def scored(problem, fitted, grid, route):
    """The path of a route, which warns if points fail; None where all do."""
    with np.errstate(all="ignore"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            path = regularization_path(problem, fitted, grid, metric("r@1"), route=route)
        except InputError:
            return None
    warned = [w for w in caught if w.category is NumericalFailureWarning]
    assert bool(warned) == bool(path.failed)
    return path
