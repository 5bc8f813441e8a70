import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from diptych import InputError
from diptych.cca import SpectralFilter, spectra
from diptych.cca.selection import (
    NumericalFailureWarning,
    choose_route,
    make_grid,
    make_problem,
    make_weights,
    narrow_grid,
    regularization_path,
)
from diptych.cca.selection._path import FIRST_LOOK, GridScores
from diptych.ranking import metric
from generated_pairs import make_pairs

TASKS = ("search", "annotate")


def path_of(trained, kind="tikhonov", name="r@1", grid=8, **options):
    fitted, validation = trained
    similarity = options.pop("similarity", "cosine")
    problem = make_problem(fitted, validation, similarity)
    return regularization_path(problem, fitted, make_grid(kind, grid, fitted), metric(name), **options)


def make_landweber_grid(fitted):
    """A filter of the user's own: Landweber iteration with 1 to 2**7 steps."""
    own = SpectralFilter(
        lambda squares, steps: (1 - (1 - squares / squares[0]) ** steps) / squares,
        grid=lambda squares, points: 2.0 ** np.arange(points),
    )
    return make_grid("custom", 8, fitted, own)


@given(
    st.integers(0, 10**6),
    st.sampled_from(["tikhonov", "tsvd", "custom"]),
    st.sampled_from(["r@1", "r@3", "r@10"]),
    st.sampled_from(["cosine", "l2"]),
    st.sampled_from([0.1, 0.5, 1.5]),
    st.sampled_from([np.float32, np.float64]),
    st.booleans(),
)
def test_screening_selects_what_the_exact_path_selects(seed, kind, name, similarity, noise, dtype, use_torch):
    training, (x, y, pairing) = make_pairs(seed, n=120, noise=noise)
    fitted = spectra(*training)
    validation = x.astype(dtype), y.astype(dtype), pairing
    if use_torch:
        torch = pytest.importorskip("torch")
        validation = tuple(torch.as_tensor(array) for array in validation)
    problem = make_problem(fitted, validation, similarity)
    grid = make_landweber_grid(fitted) if kind == "custom" else make_grid(kind, 8, fitted)
    exact, screened = (
        regularization_path(problem, fitted, grid, metric(name), route=route)
        for route in ("exact", "screened")
    )
    assert screened.choice == exact.choice
    for task in TASKS:
        true, bound = exact.scores[task][name], screened.scores[task][name]
        assert (bound >= true - 1e-9).all()
        known = screened.exact[task]
        np.testing.assert_array_equal(bound[known], true[known])
        assert (bound[~known] <= screened.best(task)).all()


@pytest.mark.parametrize("noise", [0.02, 0.2])
@pytest.mark.parametrize("kind", ["tikhonov", "tsvd"])
@pytest.mark.parametrize("extend", [False, True])
def test_few_points_are_verified_where_many_are_equally_good(kind, noise, extend):
    # Most points find every pair, or nearly so.
    training, validation = make_pairs(3, n=400, captions=2, m_x=30, m_y=24, hidden=16, noise=noise)
    fitted = spectra(*training)
    problem = make_problem(fitted, validation)
    grid = make_grid(kind, ("rank", 20), fitted)
    exact, screened = (
        regularization_path(problem, fitted, grid, metric("r@1"), route=route, extend=extend)
        for route in ("exact", "screened")
    )
    assert screened.choice == exact.choice
    for task in TASKS:
        best = exact.best(task)
        assert screened.best(task) == best
        assert best > 95
        assert (exact.scores[task]["r@1"] == best).sum() > 10 or noise > 0.1
        assert int(screened.exact[task].sum()) <= 5


@pytest.mark.parametrize("kind", ["tikhonov", "tsvd"])
@pytest.mark.parametrize("name", ["r@1", "r@4", "mean_recall", "median_rank", "mean_rank"])
def test_the_textbook_route_selects_the_same(trained, kind, name):
    # At k = 1 every cosine is 1 or −1, and rounding would decide.
    grid = 8 if kind == "tikhonov" else ([3, 4, 6, 8, 11, 14], [3, 4, 5, 7, 9, 11])
    ours = path_of(trained, kind, name, grid)
    textbook = path_of(trained, kind, name, grid, route="textbook")
    assert ours.choice == textbook.choice
    for task in TASKS:
        np.testing.assert_array_equal(
            ours.scores[task][name][ours.exact[task]], textbook.scores[task][name][ours.exact[task]]
        )


def test_a_metric_may_be_a_function(trained):
    path = path_of(trained, name=lambda ranks: float(np.mean(1.0 / ranks)))
    for task in TASKS:
        scores = path.scores[task]["<lambda>"]
        assert path.best(task) == scores.max()


def test_path_metrics_all_keeps_four_metrics(trained):
    path = path_of(trained, path_metrics="all")
    assert path.route == "exact"
    assert set(path.scores["search"]) == {"r@1", "r@5", "r@10", "median_rank"}
    assert path.scores["annotate"]["r@10"].shape == (8, 8)
    assert (path.scores["search"]["r@1"] <= path.scores["search"]["r@5"]).all()
    with pytest.raises(InputError, match="'metric' or 'all'"):
        path_of(trained, path_metrics="some")


def test_choose_route(trained):
    fitted, validation = trained
    problem = make_problem(fitted, validation)
    weights = make_weights(problem, fitted, make_grid("tikhonov", 8, fitted))
    assert choose_route(problem, weights, metric("r@1")) == "screened"
    assert choose_route(problem, weights, metric("median_rank")) == "exact"
    assert choose_route(problem, weights, metric("r@1"), path_metrics="all") == "exact"
    assert choose_route(problem, weights, metric("r@1"), "none") == "textbook"
    assert choose_route(problem, weights, metric("r@1"), n_components=4) == "textbook"


def test_ties_go_to_the_stronger_regularisation():
    scores = GridScores.empty((2, 2), ["r@1"])
    scores.scores["search"]["r@1"][:] = [[3.0, 5.0], [5.0, 5.0]]
    assert scores.choose("search", metric("r@1"), np.zeros((2, 2))) == (0, 1)
    # A value that was added to the grid has to be better, not only equal.
    assert scores.choose("search", metric("r@1"), np.array([[1, 1], [0, 0]])) == (1, 0)


def test_a_point_that_fails_is_reported_and_never_chosen(trained, monkeypatch):
    from diptych.cca.selection import _textbook as textbook

    real, calls = textbook.decompose_t, []

    def fails_first(*arguments):
        calls.append(1)
        if len(calls) == 1:
            raise np.linalg.LinAlgError("did not converge")
        return real(*arguments)

    monkeypatch.setattr(textbook, "decompose_t", fails_first)
    with pytest.warns(NumericalFailureWarning, match="1 of 16"):
        path = path_of(trained, grid=4, route="textbook")
    assert path.failed == [(0, 0)]
    assert np.isnan(path.scores["search"]["r@1"][0, 0])
    assert path.choice["search"] != (0, 0)


def test_extreme_values_are_an_error(trained):
    fitted, (x, y, pairing) = trained
    x = x.astype(np.float32)
    x[0] = 1e30
    with np.errstate(all="ignore"), pytest.raises(InputError, match="every grid point failed"):
        path_of((fitted, (x, y.astype(np.float32), pairing)), name="median_rank")


def test_progress_ends_at_1(trained):
    for route in ("screened", "exact", "textbook"):
        seen = []
        path_of(trained, route=route, progress=seen.append)
        assert seen[-1] == pytest.approx(1.0)
        assert seen == sorted(seen)


def test_validation_must_match_training(trained):
    fitted, (x, y, pairing) = trained
    with pytest.raises(InputError, match="validation X has 13 features"):
        make_problem(fitted, (x[:, :13], y, pairing))
    with pytest.raises(InputError, match="not \\(X, Y\\)"):
        make_problem(fitted, (x,))


# Without an extension of the narrowed grid, seeds 6 and 27 lose 1.2 and 2.3 points.
@pytest.mark.parametrize("seed", [0, 3, 6, 8, 27])
def test_a_narrowed_grid_has_a_point_as_good_as_the_best(seed):
    training, validation = make_pairs(seed, n=1200, captions=2, m_x=30, m_y=20, hidden=8, noise=1.5)
    fitted = spectra(*training)
    problem, grid = make_problem(fitted, validation), make_grid("tikhonov", 12, fitted)
    narrow = narrow_grid(problem, fitted, grid)
    assert set(narrow.x) <= set(grid.x)
    assert set(narrow.y) <= set(grid.y)
    assert np.prod(narrow.shape) < np.prod(grid.shape)
    whole, part = (
        regularization_path(problem, fitted, each, metric("r@1"), extend=True) for each in (grid, narrow)
    )
    for task in TASKS:
        # The standard error of a recall on so many images is a multiple of this.
        assert part.best(task) > whole.best(task) - 1.0


def test_few_images_or_a_grid_of_the_user_are_not_narrowed():
    training, validation = make_pairs(0, n=FIRST_LOOK)
    fitted = spectra(*training)
    problem, grid = make_problem(fitted, validation), make_grid("tikhonov", 12, fitted)
    assert narrow_grid(problem, fitted, grid) is grid
    training, validation = make_pairs(0, n=6 * FIRST_LOOK)
    fitted = spectra(*training)
    problem = make_problem(fitted, validation)
    own = make_grid("tikhonov", (np.geomspace(1, 100, 12), np.geomspace(1, 100, 12)), fitted)
    assert narrow_grid(problem, fitted, own) is own
