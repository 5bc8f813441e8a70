import numpy as np
import pytest

from diptych import InputError
from diptych.cca.selection import make_grid


def test_a_grid_is_spaced_in_log(trained):
    fitted, _ = trained
    grid = make_grid("tikhonov", 6, fitted)
    assert grid.x[0] == pytest.approx(fitted.s_x[0] ** 2)
    assert grid.x[-1] == pytest.approx(fitted.s_x[-1] ** 2)
    np.testing.assert_allclose(np.diff(np.log(grid.x)), np.log(grid.x[1] / grid.x[0]))
    assert isinstance(grid.params(0, 0)[0], float)
    ks = make_grid("tsvd", ("log", 8), fitted).x
    assert (ks[0], ks[-1]) == (2, len(fitted.s_x))
    assert (np.diff(ks) > 0).all()


@pytest.mark.parametrize(
    "grid", [0, -3, 2.5, "many", ("even", 5), ([], [1]), (["a"], [1.0]), ([-1.0], [1.0])]
)
def test_a_wrong_grid_is_refused(trained, grid):
    with pytest.raises(InputError):
        make_grid("tikhonov", grid, trained[0])
    with pytest.raises(InputError, match="beyond the rank"):
        make_grid("tsvd", ([99], [2]), trained[0])


def test_rank_takes_squared_singular_values(trained):
    fitted, _ = trained
    grid = make_grid("tikhonov", ("rank", 5), fitted)
    np.testing.assert_allclose(grid.x, fitted.s_x[[2, 5, 7, 10, 13]] ** 2)
    ks = make_grid("tsvd", ("rank", 5), fitted)
    np.testing.assert_array_equal(ks.x, [3, 6, 8, 11, 14])
    assert ks.params(1, 0) == (6, 2)


def test_a_grid_of_arrays_is_used_as_given(trained):
    fitted, _ = trained
    grid = make_grid("tikhonov", ([1.0, 10.0], [3.0]), fitted)
    np.testing.assert_array_equal(grid.x, [10.0, 1.0])
    assert grid.shape == (2, 1)
    np.testing.assert_array_equal(make_grid("tsvd", ([9, 2], [3]), fitted).x, [2, 9])
