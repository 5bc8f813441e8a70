import numpy as np
import pytest

from diptych import InputError
from diptych._arrays import to_numpy
from diptych.cca import Moments, bjorck_golub, moments_from_spectra, spectra, spectra_from_moments
from diptych.cca._spectra import resolve_solver

SOLVERS = ["gram", "svd"]


@pytest.mark.parametrize("solver", SOLVERS)
def test_spectra_are_those_of_the_repeated_data(rng, backend, solver):
    x, y, pairing = rng.normal(size=(30, 6)) + 5, rng.normal(size=(80, 4)), rng.integers(0, 25, 80)
    result = spectra(backend(x), backend(y), backend(pairing), solver=solver)
    xc, yc = x[pairing] - x[pairing].mean(0), y - y.mean(0)
    np.testing.assert_allclose(to_numpy(result.s_x), np.linalg.svd(xc, compute_uv=False), rtol=1e-10)
    np.testing.assert_allclose(to_numpy(result.s_y), np.linalg.svd(yc, compute_uv=False), rtol=1e-10)
    v_x, v_y = to_numpy(result.v_x), to_numpy(result.v_y)
    np.testing.assert_allclose(to_numpy(result.t0), v_x.T @ xc.T @ yc @ v_y, atol=1e-10)
    moments, back = Moments.of(x, y, pairing), moments_from_spectra(result)
    assert back.count == moments.count
    for name in ("x_mean", "y_mean", "xx", "yy", "xy"):
        np.testing.assert_allclose(to_numpy(getattr(back, name)), getattr(moments, name), atol=1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    ("spoil", "rank"),
    [
        (lambda x: np.hstack([x, np.full((len(x), 1), 7.0)]), 5),
        (lambda x: np.hstack([x, x[:, :2]]), 5),
        (lambda x: np.hstack([x, x @ np.ones((5, 1)) + 3e4]), 5),
        (lambda x: x[:4], 3),
    ],
    ids=["constant", "duplicated", "dependent", "n<m"],
)
def test_directions_without_variance_are_left_out(rng, solver, spoil, rank):
    x = spoil(rng.normal(size=(40, 5)))
    y = rng.normal(size=(len(x), 3))
    result = spectra(x, y, solver=solver)
    assert result.ranks[0] == rank
    model = bjorck_golub(result)
    assert np.isfinite(model.x_weights).all()
    xc = x - x.mean(0)
    identity = model.x_weights.T @ xc.T @ xc @ model.x_weights
    np.testing.assert_allclose(identity, np.eye(len(identity)), atol=1e-6)


def test_the_svd_solver_resolves_small_singular_values(rng):
    q = np.linalg.qr(rng.normal(size=(50, 3)))[0]
    q = np.linalg.qr(q - q.mean(0))[0]
    x = q * np.array([1.0, 1e-4, 1e-10])
    assert spectra(x, x, solver="svd").ranks == (3, 3)
    assert spectra(x, x, solver="gram").ranks == (2, 2)


def test_auto_chooses_the_solver_by_shape():
    assert resolve_solver("auto", (100, 50), (200, 50)) == "svd"
    assert resolve_solver("auto", (1000, 2048), (5000, 300)) == "svd"
    assert resolve_solver("auto", (6000, 2048), (30000, 300)) == "gram"
    assert resolve_solver("svd", (6000, 2048), (30000, 300)) == "svd"


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_constant_view_is_refused(rng, solver):
    with pytest.raises(InputError, match="every row of Y is the same"):
        spectra(rng.normal(size=(9, 2)), np.full((9, 2), 0.1), solver=solver)


def test_moments_without_pairs_are_refused():
    with pytest.raises(InputError, match="no pairs"):
        spectra_from_moments(Moments.zero(2, 2))
